"""Which checkpoint a run resumes from, what makes one unfit, what a failed save leaves behind, and that a folder holds
one run."""

import json
import shutil
from types import SimpleNamespace

import pytest

from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.trainer.checkpoints import (
    MANIFEST,
    RECIPE,
    check_checkpoint,
    check_run,
    describe_failed_save,
    find_start,
    finish_checkpoint,
    last_checkpoint,
    mark_unfinished,
    only_run,
    remove_old,
    written_whole,
)
from scalar_retrieval.trainer.training_args import ScalarTrainingArguments

FILES = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
RUN = {"seed": 50, "frozen weights": "a" * 64}


def write(folder, step):
    """A checkpoint; nothing looks into its files."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_text(f"{name} of step {step}")
    finish_checkpoint(path, step, RUN)
    return path


def is_complete(checkpoint):
    try:
        check_checkpoint(checkpoint)
    except (OSError, ValueError):
        return False
    return True


def list_again(checkpoint):
    """Make the manifest fit what has been changed."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    finish_checkpoint(checkpoint, manifest["step"], manifest["run"])


def test_the_newest_complete_checkpoint_is_the_last(tmp_path, caplog):
    assert last_checkpoint(tmp_path) is None and last_checkpoint(tmp_path / "nowhere") is None
    expected = write(tmp_path, 10)
    write(tmp_path, 9)
    (write(tmp_path, 11) / "optimizer.pt").unlink()
    for name in ("checkpoint-12", "checkpoint-best", "checkpoint-\u0664", "checkpoint--1"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-14").write_text("a file")
    assert last_checkpoint(tmp_path) == expected
    assert "checkpoint-11 is skipped" in caplog.text and "checkpoint-12" not in caplog.text


@pytest.mark.promise("data", "A checkpoint with a missing or truncated file is refused, and the file named")
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
def test_a_checkpoint_with_a_file_that_is_missing_or_cut_is_refused_by_its_name(tmp_path, name, how):
    checkpoint = write(tmp_path, 3)
    check_checkpoint(checkpoint)
    file = checkpoint / name
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if how == "cut" else b"")
    with pytest.raises((OSError, ValueError), match=name):
        check_checkpoint(checkpoint)
    assert last_checkpoint(tmp_path) is None


def test_a_checkpoint_of_another_run_or_of_the_model_only_is_refused(tmp_path):
    checkpoint = write(tmp_path, 3)
    check_run(checkpoint, RUN)
    with pytest.raises(ValueError, match=r"its seed was 50, got 51"):
        check_run(checkpoint, RUN | {"seed": 51})
    with pytest.raises(ValueError, match="its frozen weights was"):
        check_run(checkpoint, RUN | {"frozen weights": "b" * 64})
    (checkpoint / "rng_state.pth").unlink()
    list_again(checkpoint)
    with pytest.raises(ValueError, match="save_only_model"):
        check_checkpoint(checkpoint)


def test_the_oldest_checkpoints_go_and_never_the_only_one(tmp_path):
    def left(limit, *keep):
        remove_old(tmp_path, limit, [tmp_path / f"checkpoint-{step}" for step in keep])
        return sorted(path.name[11:] for path in tmp_path.iterdir())

    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    assert left(None) == ["1", "2", "3", "4"]
    assert left(2, 4, 1) == ["1", "4"]
    (tmp_path / "checkpoint-9").mkdir()  # half-written: it goes before any complete one
    assert left(2, 4) == ["1", "4"]
    assert left(1, 4) == left(1, 4) == ["4"]


def test_files_are_replaced_together_or_not_at_all(tmp_path):
    def contents():
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    (tmp_path / "config.json").write_text("old")
    with pytest.raises(OSError, match="No space"), written_whole(tmp_path) as folder:
        (folder / "config.json").write_text("new")
        raise OSError("No space left on device")
    assert contents() == {"config.json": "old"}
    with written_whole(tmp_path) as folder:
        (folder / "config.json").write_text("new")
    assert contents() == {"config.json": "new"}


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_failed_save_leaves_nothing_half_written_and_names_what_is_left(tmp_path, error):
    kept = write(tmp_path, 2)
    partial = tmp_path / "checkpoint-4"
    partial.mkdir()
    with pytest.raises(OSError, match=r"checkpoint-4 could not be written: No space.*checkpoint-2\.$"):
        with describe_failed_save(tmp_path, "checkpoint-4", partial):
            raise error("No space left on device")
    assert is_complete(kept) and [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_a_save_that_fails_on_a_full_disk_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(OSError, match=r"the disk is full \(broken pipe\). There is no complete checkpoint"):
        with describe_failed_save(tmp_path, "checkpoint-4"):
            raise OSError("broken pipe")


# The folder of a run -------------------------------------------------------------------------------------------------


def arguments(folder, **fields):
    return ScalarTrainingArguments(output_dir=str(folder), use_cpu=True, **{"max_steps": 9} | fields)


def start(folder, resume=None, **fields):
    return find_start(arguments(folder, resume_from_checkpoint=resume and str(resume), **fields))


def test_a_run_that_was_broken_off_is_resumed_and_not_mixed_with_another(tmp_path):
    (tmp_path / "checkpoint-7").mkdir()  # which cannot be resumed, and does not stand in the way
    (tmp_path / ".recipe.json.17").write_text("{")  # of a killed run
    assert start(tmp_path) == start(tmp_path, "auto") == (None, False)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]
    with pytest.raises(ValueError, match="no complete checkpoint"):
        start(tmp_path, "last")
    checkpoint = write(tmp_path, 4)
    assert start(tmp_path, "last") == start(tmp_path, "auto") == start(tmp_path, checkpoint) == (checkpoint, False)
    with pytest.raises(ValueError, match="already holds a run"):
        start(tmp_path)


def test_a_run_that_has_ended_is_left_alone_unless_it_is_to_be_longer(tmp_path):
    checkpoint = write(tmp_path, 9)
    write_json(arguments(tmp_path).to_sanitized_dict(), tmp_path / RECIPE)
    assert start(tmp_path, "last") == start(tmp_path, "auto", logging_steps=3) == (None, True)
    assert start(tmp_path, "last", max_steps=12) == (checkpoint, False)
    assert start(tmp_path, "last", seed=1) == (checkpoint, False)  # which is refused as one of another run
    with pytest.raises(ValueError, match="already holds a run"):
        start(tmp_path)
    shutil.rmtree(checkpoint)
    assert start(tmp_path, "auto") == (None, True)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        start(tmp_path, "auto", seed=1)
    mark_unfinished(arguments(tmp_path))
    assert start(tmp_path, "auto", seed=1) == (None, False)


def test_only_one_process_writes_into_a_folder(tmp_path):
    args = arguments(tmp_path / "run")
    for _ in range(2):
        with only_run(args), pytest.raises(ValueError, match="Another run is writing to"), only_run(args):
            pass
