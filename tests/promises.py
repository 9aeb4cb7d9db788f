"""The tables of docs/reliability.md, written from the tests: `python -m tests.promises --write`.

A promise is stated once, at the test that shows it: `@pytest.mark.promise("data", "A full disk ...")`.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
TOPICS = {
    "scores": "Scores",
    "data": "Stored data",
    "files": "Reading files",
    "code": "Untrusted files",
    "errors": "Errors",
}
"""What promises are about, and the headings of their tables."""
_LEFT_OUT = ("slow", "e2e")
BEGIN, END = "<!-- promises: written by `python -m tests.promises --write` -->\n", "<!-- end of promises -->"


@dataclass(frozen=True)
class Promise:
    """A sentence about a topic, the file of the test that shows it, and its mark if `make test` leaves that out."""

    topic: str
    sentence: str
    path: str
    mark: str | None


def _marks(node: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    """Names of a test's marks and their arguments that are texts."""
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        arguments = decorator.args if isinstance(decorator, ast.Call) else []
        if ast.unparse(call).startswith("pytest.mark."):
            yield call.attr, [each.value for each in arguments if isinstance(each, ast.Constant)]


def promises() -> list[Promise]:
    """All promises, by topic and file."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "pytest.mark.promise(" not in text:
            continue
        tree = ast.parse(text)
        whole = [line for line in text.splitlines() if line.startswith("pytestmark")]
        for node in ast.walk(tree):
            marks = list(_marks(node)) if isinstance(node, ast.FunctionDef) else []
            left_out = (mark for mark in _LEFT_OUT if mark in dict(marks) or any(f"mark.{mark}" in it for it in whole))
            mark = next(left_out, None)
            found += [Promise(*texts, str(path.relative_to(ROOT)), mark) for name, texts in marks if name == "promise"]
    return sorted(found, key=lambda promise: list(TOPICS).index(promise.topic))


def tables() -> str:
    """The tables as Markdown, one for each topic."""
    lines = []
    for topic, heading in TOPICS.items():
        lines += ["", f"{heading} | test", "---|---"]
        for promise in (promise for promise in promises() if promise.topic == topic):
            mark = f", {promise.mark}" if promise.mark else ""
            lines.append(f"{promise.sentence} | [{Path(promise.path).stem}](../{promise.path}){mark}")
    return "\n".join(lines) + "\n\n"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page; otherwise the tables are printed")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(tables())
