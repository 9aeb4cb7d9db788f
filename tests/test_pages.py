"""Every block of code on a page does what it is there for: Python runs, commands are accepted, data is read."""

import doctest
import inspect
import json
import re

import pytest
import torch
import yaml
from datasets import Dataset

import scalar_retrieval
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS
from tests.pages import ROOT, SHELL, blocks_of, check_command, commands_of, pages
from tests.stage import copy, set_up

PAGES = {page: blocks_of(text, page) for page, text in pages().items()}
PYTHON = {page: [block for block in blocks if block.language == "python"] for page, blocks in PAGES.items()}

# mteb calls its models by an interface of its own, which nobody else needs.
OTHER_IMPORTS = {"scalar_retrieval.eval.adapters.mteb_model"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return set_up(tmp_path_factory.mktemp("stage"))


@pytest.fixture
def place(stage, tmp_path, monkeypatch):
    """The working folder of a page; what it registers is forgotten after it."""
    copy(stage, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    methods = dict(METHODS)
    yield tmp_path
    METHODS.clear()
    METHODS.update(methods)


def run_python(blocks):
    """Run blocks one after the other in one namespace; a traceback names the page and the line."""
    namespace = {"__name__": "page"}
    for block in blocks:
        if block.not_run is None:
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, block.page, "exec"), namespace)
    return namespace


def test_every_command_is_accepted_by_its_parser(place):
    # What a page names, a reader has.
    (place / "checkpoints").mkdir()
    for name in ("MODEL", "runs/joint", "runs/joint_light", "runs/mine", "checkpoints/vast"):
        (place / name).symlink_to(place / "runs" / "miniature")
    (place / "galleries" / "theirs").symlink_to(place / "galleries" / "videos")
    problems, count = [], 0
    for block in (block for blocks in PAGES.values() for block in blocks if block.language in SHELL):
        for words in commands_of(block.text):
            try:
                count += check_command(words)
            except AssertionError as error:
                problems.append(f"{block.page}, block of line {block.line}: {' '.join(words)}\n    {error}")
    assert not problems, "\n".join(problems)
    assert count > 50


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        ("scalar index ~/Videos --outputs galleries/videos", "No such option"),
        ("python -m scalar_retrieval.trainer.semantics --benchmark miniature", "no module"),
        ("make demonstration", "no target"),
        ("pip install scalar-retrieval[find]", "no extra"),
    ],
)
def test_a_wrong_command_on_a_page_would_be_found(command, reported, place):
    with pytest.raises(AssertionError, match=reported):
        check_command(command.split())


def test_data_in_blocks_is_read():
    for block in (block for blocks in PAGES.values() for block in blocks):
        if block.language == "json":
            json.loads(block.text)
        elif block.language in ("yaml", "yml"):
            assert yaml.safe_load(block.text) is not None


@pytest.mark.parametrize("page", [page for page, blocks in PYTHON.items() if blocks])
def test_python_on_a_page_runs_from_its_first_line_to_its_last(page, place):
    run_python(PYTHON[page])


@pytest.mark.parametrize("name", scalar_retrieval.__all__)
def test_the_example_of_a_public_name_prints_what_it_shows(name, place):
    names = {name: getattr(scalar_retrieval, name) for name in scalar_retrieval.__all__}
    names |= {"torch": torch, "Dataset": Dataset}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(names[name]), names, name, None, None)
    assert example.examples
    printed = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert not printed, "".join(printed)


def test_pages_and_cards_import_public_names_alone():
    cards = (ROOT / "hub_cards" / "templates").iterdir()
    for text in [*pages().values(), *(card.read_text(encoding="utf-8") for card in cards)]:
        imported = re.findall(r"(?:from|import) (scalar_retrieval\.[\w.]+)", text)
        assert set(imported) <= OTHER_IMPORTS


def test_the_page_of_the_reference_has_all_public_names():
    names = re.findall(r"`([A-Za-z_]+)`", pages()["docs/api.md"].partition("\n- ")[2])
    assert sorted(names) == sorted(scalar_retrieval.__all__)


def test_few_blocks_are_not_run_and_each_says_why():
    comments = sum(len(re.findall("^<!-- not run", text, re.MULTILINE)) for text in pages().values())
    reasons = [block.not_run for blocks in PAGES.values() for block in blocks if block.not_run is not None]
    assert comments == len(reasons) <= 4 and all(len(reason.split()) >= 3 for reason in reasons)
