"""Docstrings in the style of transformers, as griffe's reader of Google's style takes them.

`name (`type` of shape `(Q, D)`): what it is` becomes `name: what it is`, with the type in front where it adds to the
signature; [`Name`] becomes a link where the reference describes it.
"""

import re
from typing import Any

import griffe

_REFERENCE = re.compile(r"\[`(~?[\w.]+)`\](?![\[(])")
_NAME = re.compile(r"(\*{0,2}\w+)( \()?")
_SECTION = re.compile(r"\s*(Args|Attributes|Returns):")


def _end_of_bracket(text: str, start: int) -> int:
    """Return where the bracket that is open at `start` is closed."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _split(entry: str) -> tuple[list[tuple[str, str]], str]:
    """Return names with types, and the description, of `a (`int`), b (`str`, *optional*), c: what they are`."""
    named = []
    place = 0
    match = _NAME.match(entry)
    while match is not None:
        # A name, and its type in brackets if there is one.
        place = match.end()
        kind = ""
        if match[2]:
            end = _end_of_bracket(entry, place)
            kind = entry[place:end]
            place = end + 1
        named.append((match[1], kind))
        if not entry.startswith(", ", place):
            break
        place += 2
        match = _NAME.match(entry, place)
    return named, entry[place:].lstrip(":. ")


def _described(kind: str, annotation: str, about: str) -> str:
    """Return the description, after the type if that adds to the signature."""
    kind = re.sub(r",? ?\*optional\*$", "", kind)
    is_known = bool(annotation) and " " not in kind.replace(" or ", "|").replace(", ", ",")
    if is_known or not kind:
        return about
    if not about:
        return kind
    return f"{kind}: {about}"


def rewrite(text: str, annotations: dict[str, str]) -> str:
    """Return a docstring's text in Google's style.

    Args:
        text (`str`): the docstring.
        annotations (`dict[str, str]`): types of the signature by name, that of the result as `"return"`.
    """
    written = []
    entry: list[str] = []  # the lines of the entry that is read
    indent = None  # of its section
    section = ""

    def close() -> None:
        """Write the entry that ends here."""
        if not entry:
            return
        if section == "Returns":
            about = " ".join(entry)
            if "return" in annotations:
                about = f"{annotations['return']}: {about}"
            written.append(" " * (indent + 4) + about)
        else:
            named, about = _split(" ".join(entry))
            for name, kind in named:
                described = _described(kind, annotations.get(name.lstrip("*"), ""), about)
                written.append(f"{' ' * (indent + 4)}{name}: {described or name}")
        entry.clear()

    for line in text.splitlines():
        # Lines that are indented in a section belong to its entries, which start one step in.
        depth = len(line) - len(line.lstrip())
        if indent is not None and line.strip() and depth > indent:
            if depth == indent + 4 and section != "Returns":
                close()
            entry.append(line.strip())
            continue
        # Any other line ends the section, and may begin another one.
        close()
        indent = None
        match = _SECTION.fullmatch(line)
        if match:
            indent = depth
            section = match[1]
        written.append(line)
    close()
    return "\n".join(written)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of everything that is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once for each package."""
        self._rewrite(pkg)

    def _rewrite(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            # Parameters of a function, attributes of a class, and what a function returns.
            described = [*getattr(obj, "parameters", ())]
            for member in obj.members.values():
                if not member.is_alias and member.is_attribute:
                    described.append(member)
            annotations = {}
            for each in described:
                if each.annotation is not None:
                    annotations[each.name] = str(each.annotation)
            if getattr(obj, "returns", None) is not None:
                annotations["return"] = str(obj.returns)
            text = rewrite(obj.docstring.value, annotations)
            obj.docstring.value = _REFERENCE.sub(lambda match: self._link(obj, match[1]), text)
        for member in obj.members.values():
            if not member.is_alias:
                self._rewrite(member)

    def _link(self, obj: griffe.Object, name: str) -> str:
        # A tilde hides all of the name but its last part.
        target = name.lstrip("~")
        label = name
        if name != target:
            label = target.rpartition(".")[2]
        first, *rest = target.split(".")
        try:
            target = ".".join([obj.resolve(first), *rest])
        except griffe.NameResolutionError:
            pass
        return f'<autoref identifier="{target}" optional><code>{label}</code></autoref>'
