"""What lies beside a checkpoint is short enough to read, and starts, opens and calls nothing but what it says."""

import ast
import sys

import pytest

from scalar_retrieval.modeling_scalar import ScalarModel, ScalarProcessor
from tests.conftest import make_tiny_config
from tests.joint_encoders import write_joint_encoder

# Files, and nodes of their syntax trees: a limit on lines would reward squeezing them. One in six is the reader of
# media, which archives, training and a model of the Hub share.
MOST = {"towers": (11, 38_700), "joint": (13, 37_350)}
LIBRARIES = {"torch", "transformers", "huggingface_hub", "numpy"}
LIBRARIES |= {"av", "charset_normalizer"}  # in a `try`: only files of media need them
# Of the standard library numbers, text and files: nothing that starts processes, calls foreign code or asks a network.
STANDARD = {
    "abc", "array", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "html", "importlib", "io",
    "itertools", "json", "math", "numbers", "operator", "os", "pathlib", "re", "stat", "time", "types", "typing",
    "unicodedata", "warnings", "weakref", "xml",
}  # fmt: skip
OF_OS = {"PathLike", "R_OK", "access", "environ", "fspath", "listdir", "path", "stat"}
BANNED = {"__import__", "compile", "eval", "exec"}


@pytest.fixture(scope="module", params=sorted(MOST))
def saved(request, tmp_path_factory, tiny_processor):
    """The kind of a model, and the nodes of the syntax trees of the files that are saved with it, by their names."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "towers":
        model, processor = ScalarModel(make_tiny_config()), tiny_processor
    else:
        encoder = write_joint_encoder(folder / "encoder")
        model, processor = ScalarModel.from_joint_encoder(encoder), ScalarProcessor.from_joint_encoder(encoder)
    model.save_pretrained(folder / "saved")
    processor.save_pretrained(folder / "saved")
    nodes = {}
    for path in (folder / "saved").rglob("*.py"):
        nodes[path.stem] = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    return request.param, nodes


def test_the_code_beside_a_checkpoint_is_as_short_as_promised(saved):
    kind, files = saved
    num_nodes = sum(map(len, files.values()))
    most_files, most_nodes = MOST[kind]
    assert 8 <= len(files) <= most_files and 20_000 < num_nodes <= most_nodes, (len(files), num_nodes)
    assert "scores_scalar" in files


def test_the_code_beside_a_checkpoint_imports_only_what_is_listed(saved):
    _, files = saved
    found = set()
    for name, nodes in files.items():
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module in files, f"{name}: from .{node.module}"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                found |= {module.split(".")[0] for module in modules}
    assert found >= {"torch", "transformers"} and found <= LIBRARIES | STANDARD, found - LIBRARIES - STANDARD
    assert found & STANDARD <= sys.stdlib_module_names


def test_the_code_beside_a_checkpoint_calls_nothing_that_runs_other_programs(saved):
    _, files = saved
    for name, nodes in files.items():
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr in OF_OS, f"{name}: os.{node.attr}"
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name):
                assert called.id not in BANNED, f"{name}: {called.id}"
