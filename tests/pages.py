"""The code blocks of pages, and their commands parsed by the project's own parsers, which then run nothing.

A block that no test can run says why on the line above it: `<!-- not run: needs ... -->`.
"""

import argparse
import contextlib
import importlib.util
import inspect
import io
import re
import runpy
import shlex
import signal
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
SHELL = ("", "sh", "bash", "shell", "console", "text")
"""Languages of blocks that may hold commands; an indented block has none."""

_NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->", re.DOTALL)
_TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
_EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@dataclass(frozen=True)
class Block:
    """A block of code: its page and the line it begins on, its language, its text, and why it is not run."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None


def blocks_of(text: str, page: str) -> list[Block]:
    """The blocks of a page of Markdown, fenced and indented."""
    blocks, not_run = [], None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            language = token.info.split()[0].lower() if token.info.strip() else ""
            line = token.map[0] + (2 if token.type == "fence" else 1)
            blocks.append(Block(page, line, language, token.content, not_run))
        match = _NOT_RUN.fullmatch(token.content.strip()) if token.type == "html_block" else None
        not_run = match[1] if match else None
    return blocks


def pages() -> dict[str, str]:
    """All pages: those of the root that show code, and those of `docs/`."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


# Commands -----------------------------------------------------------------------------------------------------------


def _statements(text: str) -> Iterator[list[str]]:
    """What a shell reads at once, as words and signs: lines are continued, quotes closed, comments left out."""
    statement = ""
    for line in text.replace("\\\n", " ").splitlines():
        statement += re.sub(r"(^|\s)#.*", "", line) + "\n"
        lexer = shlex.shlex(statement, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            yield list(lexer)
        except ValueError:  # a quote is open
            continue
        statement = ""


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each command of a block; what is on other lines is taken for commands too."""
    for tokens in _statements(text):
        words: list[str] = []
        for token in [*tokens, ";"]:
            if token and not set(token) <= set("();<>|&"):
                words.append(token)
                continue
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []


def _parse_alone(self: typer.core.TyperCommand, ctx: object, invoke: Callable) -> None:
    """In place of a command's `invoke`: make its settings, which checks them, and run nothing."""
    command = inspect.unwrap(self.callback)
    cells = dict(zip(command.__code__.co_freevars, command.__closure__ or (), strict=True))
    if not {"run", "settings", "conversions"} <= cells.keys():
        return
    run, cells["run"].cell_contents = cells["run"].cell_contents, lambda settings: None
    try:
        invoke(self, ctx)
    except OSError:  # of what is not here: a gallery on the Hub, say
        pass
    finally:
        cells["run"].cell_contents = run


@contextlib.contextmanager
def _only_parsing() -> Iterator[None]:
    """Parsers parse, and nothing runs."""
    import torch
    import transformers.training_args

    import scalar_retrieval.eval.benchmarks.registry
    import scalar_retrieval.trainer.recipe
    import scalar_retrieval.trainer.run
    import scalar_retrieval.trainer.training_args

    parse, invoke = argparse.ArgumentParser.parse_args, typer.core.TyperCommand.invoke

    def parse_args(self: argparse.ArgumentParser, *arguments: object, **options: object) -> None:
        parse(self, *arguments, **options)
        sys.exit(0)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr(typer.core.TyperCommand, "invoke", lambda self, ctx: _parse_alone(self, ctx, invoke))
        # Of a plugin, perhaps; and its files are not here.
        patch.setattr(scalar_retrieval.eval.benchmarks.registry, "check_benchmark", lambda name, root=None: None)
        patch.setattr(scalar_retrieval.trainer.recipe, "load_plugins", lambda names: None)
        patch.setattr(scalar_retrieval.trainer.recipe, "find_method", lambda *names: None)  # of a plugin, perhaps
        patch.setattr(transformers.training_args, "is_torch_bf16_gpu_available", lambda: True)
        patch.setattr(scalar_retrieval.trainer.training_args.ScalarTrainingArguments, "device", torch.device("cuda"))
        patch.setattr(scalar_retrieval.trainer.run, "train", lambda run, args: True)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _run(main: Callable[[], object]) -> None:
    """Call a program; an AssertionError with what it printed, unless it ends well."""
    printed, code = io.StringIO(), 0
    with _only_parsing(), contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        except (ValueError, OSError) as error:
            code, _ = 1, printed.write(str(error))
    assert not code, printed.getvalue().strip()


def _module(name: str, arguments: list[str]) -> None:
    """Check `python -m NAME`: of the project's modules also what follows."""
    assert importlib.util.find_spec(name) is not None, f"there is no module {name}"
    if name.partition(".")[0] not in ("scalar_retrieval", "evidence", "tests"):
        return
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that the module has been imported before
        patch.setattr(sys, "argv", [name, *arguments])
        _run(lambda: runpy.run_module(name, run_name="__main__") and None)


def _python(arguments: list[str]) -> None:
    if arguments[0] == "-c":
        compile(arguments[1], "-c", "exec")
    elif arguments[0] == "-m":
        _module(arguments[1], arguments[2:])
    else:
        assert (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"


def _make(arguments: list[str]) -> None:
    for target in (word for word in arguments if "=" not in word and not word.startswith("-")):
        assert target in _TARGETS, f"there is no target {target}"


def _pip(arguments: list[str]) -> None:
    for word in arguments[1:]:
        for extra in re.findall(r"\[(.*)\]", word):
            unknown = set(extra.split(",")) - _EXTRAS.keys()
            assert not unknown, f"there is no extra {unknown}"


def _scalar(arguments: list[str]) -> None:
    from scalar_retrieval.commands.scalar import run

    _run(lambda: run(arguments))


_PROGRAMS = {"scalar": _scalar, "python": _python, "python3": _python, "make": _make, "pip": _pip}


def check_command(words: list[str]) -> bool:
    """
    Check a command of a page without running it, in a folder like [`~tests.stage.set_up`]'s.

    Args:
        words (`list[str]`): the program and its arguments.

    Returns:
        Whether it is one of the programs that are known here.

    Raises:
        AssertionError: what its parser says.
    """
    check = _PROGRAMS.get(words[0].removeprefix(".venv/bin/"))
    if check is None:
        return False
    check(words[1:])
    return True
