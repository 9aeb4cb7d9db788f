"""The public names: `import scalar_retrieval` and nothing else, at once, from anywhere."""

import ast
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scalar_retrieval
from scalar_retrieval import modeling_scalar
from tests.conftest import ROOT

NAMES = """
    ScalarModel ScalarProcessor ScalarConfig load_model
    index Gallery Filter Hits
    retrieval_scores query_weights register_method
    ScalarTrainer ScalarTrainingArguments Objective
    evaluate Embeddings
    publish
""".split()


def run(code):
    """Run Python in a new process and return the words that it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_every_public_name_is_there():
    assert sorted(NAMES) == sorted(scalar_retrieval.__all__) == dir(scalar_retrieval)
    for name in NAMES:
        assert getattr(scalar_retrieval, name).__name__ == name
    with pytest.raises(AttributeError, match="'scalar_retrieval' has no attribute 'Galery'"):
        scalar_retrieval.Galery  # noqa: B018


@pytest.mark.parametrize(("module", "places"), [(scalar_retrieval, "_PLACES"), (modeling_scalar, "_FILES")])
def test_type_checkers_import_what_programs_import(module, places):
    """They read import statements, programs read the table."""
    typed = {}
    for block in ast.parse(Path(module.__file__).read_text("utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                typed |= {alias.name: statement.module for alias in statement.names}
    assert typed == getattr(module, places) and sorted(typed) == sorted(module.__all__)
    for name, place in typed.items():
        assert getattr(module, name) is getattr(importlib.import_module(f".{place}", module.__name__), name)


def test_importing_it_loads_no_library():
    assert run("import sys, scalar_retrieval; print(*{'torch', 'transformers', 'numpy'} & sys.modules.keys())") == []


def test_scores_need_torch_alone():
    code = "from scalar_retrieval import query_weights, register_method, retrieval_scores"
    loaded = run(f"import sys; {code}; print(*{{'torch', 'transformers', 'pyarrow'}} & sys.modules.keys())")
    assert loaded == ["torch"]


@pytest.fixture
def run_elsewhere(commands, tmp_path):
    """Runs Python in a process that finds the project at a place alone; returns the words that it prints."""

    def run(place, code):
        (tmp_path / "script.py").write_text(f"import sys\nsys.path.insert(1, {str(place)!r})\n{code}")
        done = commands.run(tmp_path / "script.py", cwd=tmp_path, is_elsewhere=True)
        assert done.code == 0, done.stderr
        return done.stdout.split()

    return run


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("use", "module", "extra"),
    [
        ("Gallery", "pyarrow", "search"),
        ("ScalarTrainer", "peft", "train"),
        ("load_model('light')", "sentence_transformers", "search"),
        ("evaluate(embeddings='folder')", "pyarrow", "eval"),
        ("publish('folder', 'user/name', kind='gallery')", "pyarrow", "hub"),
    ],
)
def test_a_name_that_needs_an_extra_says_which(use, module, extra, tmp_path, run_elsewhere):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "gallery.json").write_text("{}")
    code = f"""
sys.modules[{module!r}] = None
import scalar_retrieval
try:
    scalar_retrieval.{use}
except ModuleNotFoundError as error:
    print(error)
"""
    needed = f'This needs the package {module}, which is not installed: `pip install "scalar-retrieval[{extra}]"`.'
    assert " ".join(run_elsewhere(ROOT / "src", code)) == needed


@pytest.mark.e2e
def test_a_clone_without_links_works(tmp_path, run_elsewhere):
    """As on Windows, where git writes a file that holds the link's target."""
    place = shutil.copytree(ROOT / "src" / "scalar_retrieval", tmp_path / "src" / "scalar_retrieval", symlinks=True)
    for path in place.iterdir():
        if path.is_symlink():
            (tmp_path / path.name).symlink_to(ROOT / path.name)
            target = str(path.readlink())
            path.unlink()
            path.write_text(target)
    code = "from scalar_retrieval.commands.scalar import run; sys.exit(run(['--help']))"
    assert run_elsewhere(place.parent, code)[:2] == ["Usage:", "scalar"]
