"""Every documented column of a user's table can have another name, in every command that reads one."""

import re
import signal

import pytest

from scalar_retrieval import modeling_scalar
from scalar_retrieval.commands.options import columns_of
from scalar_retrieval.eval.__main__ import app as eval_app
from scalar_retrieval.eval.benchmarks import own
from scalar_retrieval.trainer import cache_features, semantic_targets
from scalar_retrieval.trainer.__main__ import main as train
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
PARAGRAPH = re.search(r"\*\*Your own clips\*\*.*?\n\n", PAGE, re.DOTALL)[0]
DOCUMENTED = re.findall(r"`(\w+)`", PARAGRAPH.partition("with the columns")[2].partition("Rename")[0])
APPS = {"cache_features": cache_features, "semantic_targets": semantic_targets}
COMMANDS = ["audit", "calibrate", "embed", "run", "train", *APPS]


class Read(BaseException):
    """The rows that a command has read; it ends the command."""


def start(command, root, column, folder):
    """Run a command on a table."""
    given = ["--benchmark", "own", "--root", str(root), "--column", column]
    if command not in ("audit", "semantic_targets"):
        given += ["--model", str(folder)]  # any folder, as no model is loaded
    if command == "train":
        return train([*given, "--output_dir", str(folder / "out"), "--use_cpu", "true"])
    if command != "audit":
        given += ["--output", str(folder / "out")]
    if command in APPS:
        return APPS[command].app(given)
    return eval_app([command, *given])


def test_the_documented_columns_are_those_of_the_benchmark():
    assert sorted(DOCUMENTED) == sorted(["path", *own.FEATURES])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("column", DOCUMENTED)
def test_a_documented_column_can_have_another_name(tmp_path, monkeypatch, command, column):
    monkeypatch.setattr(modeling_scalar, "load_model", lambda *_, **__: (None, None))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a training would keep its handlers

    def read(rows, *_):
        raise Read(rows)

    monkeypatch.setattr(own, "dataset_from_rows", read)
    (tmp_path / "a.mp4").touch()
    cells = {"caption": "a dog", "path": "a.mp4", "audio_path": "a.wav", "subtitle": "sit"}
    if column in ("video_id", "video_path"):
        cells["video_path" if column == "video_path" else "video_id"] = cells.pop("path")
    names = [{column: "theirs"}.get(name, name) for name in cells]
    table = tmp_path / "t.csv"
    table.write_text(",".join(names) + "\n" + ",".join(cells.values()) + "\n")
    with pytest.raises(Read) as ended:
        start(command, table, f"{column}=theirs", tmp_path)
    ((row,),) = ended.value.args
    assert (row["video_id"], row["caption"], row["audio_path"], row["subtitle"]) == ("a.mp4", "a dog", "a.wav", "sit")
    if column != "video_id":
        assert row["video_path"] == "a.mp4"


def test_a_column_given_twice_is_refused():
    with pytest.raises(ValueError, match="'caption' is given twice: 'a' and 'b'"):
        columns_of(["caption=a", "caption=b"])
