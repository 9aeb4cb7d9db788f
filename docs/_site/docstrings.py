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


def _closing(text: str, start: int) -> int:
    """Where the bracket that is open at `start` is closed."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text)


def _split(entry: str) -> tuple[list[tuple[str, str]], str]:
    """Names with types, and the description, of `a (`int`), b (`str`, *optional*), c: what they are`."""
    named, place = [], 0
    while (match := _NAME.match(entry, place)) is not None:
        place = _closing(entry, match.end()) + 1 if match[2] else match.end()
        named.append((match[1], entry[match.end() : place - 1] if match[2] else ""))
        if not entry.startswith(", ", place):
            break
        place += 2
    return named, entry[place:].lstrip(":. ")


def _described(kind: str, annotation: str, about: str) -> str:
    """The description, after the type where that says more than the signature."""
    kind = re.sub(r",? ?\*optional\*$", "", kind)
    is_known = bool(annotation) and " " not in kind.replace(" or ", "|").replace(", ", ",")
    return about if is_known or not kind else f"{kind}: {about}" if about else kind


def rewrite(text: str, annotations: dict[str, str]) -> str:
    """A docstring's text in Google's style, with `annotations` of the signature by name, `return` among them."""
    written, entry, indent, section = [], [], None, ""

    def close() -> None:
        if not entry:
            return
        if section == "Returns":
            about, returned = " ".join(entry), annotations.get("return")
            written.append(f"{' ' * (indent + 4)}{f'{returned}: {about}' if returned else about}")
        else:
            named, about = _split(" ".join(entry))
            for name, kind in named:
                described = _described(kind, annotations.get(name.lstrip("*"), ""), about)
                written.append(f"{' ' * (indent + 4)}{name}: {described or name}")
        entry.clear()

    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if indent is not None and line.strip() and depth > indent:
            if depth == indent + 4 and section != "Returns":
                close()
            entry.append(line.strip())
            continue
        close()
        match = _SECTION.fullmatch(line)
        indent, section = (depth, match[1]) if match else (None, "")
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
            given = [*getattr(obj, "parameters", ())]
            given += [member for member in obj.members.values() if not member.is_alias and member.is_attribute]
            annotations = {each.name: str(each.annotation) for each in given if each.annotation is not None}
            if getattr(obj, "returns", None) is not None:
                annotations["return"] = str(obj.returns)
            text = rewrite(obj.docstring.value, annotations)
            obj.docstring.value = _REFERENCE.sub(lambda match: self._link(obj, match[1]), text)
        for member in obj.members.values():
            if not member.is_alias:
                self._rewrite(member)

    def _link(self, obj: griffe.Object, name: str) -> str:
        shown = name.rpartition(".")[2] if name.startswith("~") else name
        first, *rest = name.lstrip("~").split(".")
        try:
            target = ".".join([obj.resolve(first), *rest])
        except griffe.NameResolutionError:
            target = name.lstrip("~")
        return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'
