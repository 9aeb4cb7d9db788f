"""What lies beside a checkpoint is short enough to read, and starts, opens and calls nothing but what it says."""

import ast

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


def test_the_code_beside_a_checkpoint_is_short_imports_what_is_listed_and_runs_no_programs(saved):
    kind, files = saved
    num_nodes = sum(map(len, files.values()))
    most_files, most_nodes = MOST[kind]
    assert 8 <= len(files) <= most_files and 20_000 < num_nodes <= most_nodes, (len(files), num_nodes)
    found = set()
    for name, nodes in files.items():
        for node in nodes:
            match node:
                case ast.ImportFrom(level=1, module=module):
                    assert module in files, f"{name}: from .{module}"
                case ast.ImportFrom(module=module):
                    found.add(module.split(".")[0])
                case ast.Import(names=modules):
                    found |= {module.name.split(".")[0] for module in modules}
                case ast.Attribute(value=ast.Name(id="os"), attr=attribute):
                    assert attribute in OF_OS, f"{name}: os.{attribute}"
                case ast.Call(func=ast.Name(id=called)):
                    assert called not in BANNED, f"{name}: {called}"
    assert found >= {"torch", "transformers"} and found <= LIBRARIES | STANDARD, found - LIBRARIES - STANDARD
