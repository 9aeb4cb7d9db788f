"""The lists of docs/reliability.md, written from the tests: `python -m tests.promises --write`.

A promise is stated once, at the test that shows it: `@pytest.mark.promise("data", "A full disk ...")`.
"""

import argparse
import ast
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
"""What promises are about, and the headings of their lists."""
BEGIN, END = "<!-- promises: written by `python -m tests.promises --write` -->\n", "<!-- end of promises -->"


@dataclass(frozen=True)
class Promise:
    """A sentence about a topic, and the file of the test that shows it."""

    topic: str
    sentence: str
    path: str


def promises() -> list[Promise]:
    """All promises, by topic and file."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "pytest.mark.promise(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
                topic, sentence = (argument.value for argument in node.args)
                found.append(Promise(topic, sentence, str(path.relative_to(ROOT))))
    return sorted(found, key=lambda promise: list(TOPICS).index(promise.topic))


def lists() -> str:
    """The lists as Markdown, one for each topic."""
    lines, topic = [], None
    for promise in promises():
        if promise.topic != topic:
            topic = promise.topic
            lines += ["", f"**{TOPICS[topic]}**", ""]
        lines.append(f"- [{promise.sentence}](../{promise.path})")
    return "\n".join(lines) + "\n\n"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + lists() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page; otherwise the lists are printed")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(lists())
