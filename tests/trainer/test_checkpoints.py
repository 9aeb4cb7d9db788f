"""Which checkpoint a run resumes from, what makes one unfit, and what a failed save leaves behind."""

import json
import os
import pickle
import random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trainer.checkpoints import (
    MANIFEST,
    check_checkpoint,
    check_run,
    clear_unfinished,
    describe_failed_save,
    finish_checkpoint,
    last_checkpoint,
    remove_old,
    unfinished_checkpoint,
    written_whole,
)

FILES = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
RUN, FREE = {"seed": 50, "frozen weights": "a" * 64}, {"max_steps": 9}


def write(folder, step):
    """A checkpoint with the files of a small run."""
    path = unfinished_checkpoint(folder, step)
    path.mkdir(parents=True)
    save_file({"weight": torch.arange(64.0) + step}, path / "adapter_model.safetensors")
    torch.save({"state": {0: {"exp_avg": torch.ones(64)}}}, path / "optimizer.pt")
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    numbers = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(numbers, path / "rng_state.pth")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return finish_checkpoint(path, step, RUN, FREE)


def is_complete(checkpoint, processes=1):
    try:
        check_checkpoint(checkpoint, processes)
    except (OSError, ValueError):
        return False
    return True


def list_again(checkpoint):
    """Make the list fit what has been changed."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    folder = checkpoint.rename(unfinished_checkpoint(checkpoint.parent, manifest["step"]))
    return finish_checkpoint(folder, manifest["step"], manifest["run"], manifest["free"])


def test_the_newest_complete_checkpoint_is_the_last(tmp_path, caplog):
    assert last_checkpoint(tmp_path) is None and last_checkpoint(tmp_path / "nowhere") is None
    write(tmp_path, 9)
    expected = write(tmp_path, 10)
    (write(tmp_path, 11) / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-12").mkdir()
    for name in ("checkpoint-best", ".checkpoint-13.unfinished", "checkpoint-\u0664", "checkpoint--1"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-14").write_text("a file")
    assert last_checkpoint(tmp_path) == expected
    skipped = [record.getMessage() for record in caplog.records]
    assert len(skipped) == 2 and "checkpoint-12 is skipped" in skipped[0]
    assert "checkpoint-11 is skipped" in skipped[1] and "optimizer.pt is missing" in skipped[1]


class Harm:
    """What a pickle can do to who loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def damage(file, how):
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "harmful":
        harm = Harm(str(file.parent.parent / "harmed"))
        file.write_bytes(pickle.dumps(harm)) if file.suffix != ".pt" else torch.save(harm, file)
    else:
        changed = {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "noise": bytes(range(256)) * (len(content) // 256 + 1),
            "one bit": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        }
        file.write_bytes(changed[how])


@pytest.mark.promise("data", "A damaged checkpoint is refused by the name of its file")
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "noise", "harmful", "one bit"])
def test_a_damaged_checkpoint_is_refused_by_the_name_of_its_file(tmp_path, name, how):
    checkpoint = write(tmp_path, 3)
    check_checkpoint(checkpoint)
    damage(checkpoint / name, how)
    with pytest.raises(ValueError, match=r"checkpoint-3.*(Choose another|Restore)") as caught:
        check_checkpoint(checkpoint)
    assert name in str(caught.value)
    assert not (tmp_path / "harmed").exists() and not is_complete(checkpoint) and last_checkpoint(tmp_path) is None


def test_a_checkpoint_of_another_step_than_its_name_says_is_refused(tmp_path):
    checkpoint = write(tmp_path, 3).rename(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match="checkpoint-4 holds the checkpoint of step 3"):
        check_checkpoint(checkpoint)
    check_checkpoint(checkpoint.rename(tmp_path / "kept"))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"files": []}', '{"files": {"optimizer.pt": 3}}', "[" * 100_000],
)
def test_a_list_of_files_that_is_none_is_refused(tmp_path, content):
    checkpoint = write(tmp_path, 3)
    (checkpoint / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match=r"checkpoint\.json"):
        check_checkpoint(checkpoint)


def test_weights_and_optimizer_may_lie_in_folders_whose_files_are_listed_too(tmp_path):
    """As FSDP and DeepSpeed write them."""
    checkpoint = write(tmp_path, 3)
    folder = checkpoint.rename(unfinished_checkpoint(tmp_path, 3))
    (folder / "optimizer_0").mkdir()
    for name in ("optimizer.pt", "adapter_model.safetensors"):
        (folder / name).rename(folder / "optimizer_0" / name)
    checkpoint = finish_checkpoint(folder, 3, RUN, FREE)
    check_checkpoint(checkpoint)
    damage(checkpoint / "optimizer_0" / "optimizer.pt", "one bit")
    with pytest.raises(ValueError, match=r"optimizer_0/optimizer\.pt is damaged: its SHA-256 differs"):
        check_checkpoint(checkpoint)


def test_each_process_needs_its_random_state(tmp_path):
    checkpoint = write(tmp_path, 3)
    with pytest.raises(ValueError, match="was written by 1 processes, got 2"):
        check_checkpoint(checkpoint, 2)
    for rank in (0, 2):
        os.link(checkpoint / "rng_state.pth", checkpoint / f"rng_state_{rank}.pth")
    checkpoint = list_again(checkpoint)
    with pytest.raises(ValueError, match=r"rng_state_1\.pth is missing"):
        check_checkpoint(checkpoint, 2)
    (checkpoint / "rng_state_2.pth").rename(checkpoint / "rng_state_1.pth")
    checkpoint = list_again(checkpoint)
    assert is_complete(checkpoint, 2) and last_checkpoint(tmp_path) == checkpoint


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path, caplog):
    checkpoint = write(tmp_path, 3)
    check_run(checkpoint, RUN, FREE)
    assert not caplog.records
    with pytest.raises(ValueError, match=r"its seed was 50, got 51.*`output_dir`"):
        check_run(checkpoint, RUN | {"seed": 51}, FREE)
    with pytest.raises(ValueError, match="its frozen weights changed"):
        check_run(checkpoint, RUN | {"frozen weights": "b" * 64}, FREE)
    check_run(checkpoint, RUN, {"max_steps": 12})
    assert "max_steps 12, not 9" in caplog.text


def test_a_checkpoint_that_is_written_again_is_there_all_the_time(tmp_path, monkeypatch):
    """Killed between any two changes of names, one whole version is there after the next start."""
    for stop in range(4):
        folder = tmp_path / str(stop)
        write(folder, 3)
        renames = []

        def rename(self, target, renames=renames, stop=stop, original=os.rename):
            renames.append(target)
            if len(renames) > stop:
                raise KeyboardInterrupt
            original(self, target)

        with monkeypatch.context() as patched:
            patched.setattr("pathlib.Path.rename", rename)
            try:
                write(folder, 3)
            except KeyboardInterrupt:
                assert len(renames) == stop + 1
        clear_unfinished(folder)
        assert last_checkpoint(folder).name == "checkpoint-3"
        assert [path.name for path in folder.iterdir()] == ["checkpoint-3"]


def test_the_oldest_checkpoints_go_and_never_the_only_one(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    remove_old(tmp_path, None, keep=[])
    assert len(list(tmp_path.iterdir())) == 4
    remove_old(tmp_path, 2, keep=[tmp_path / "checkpoint-4", tmp_path / "checkpoint-1"])
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-1", "checkpoint-4"}
    remove_old(tmp_path, 1, keep=[tmp_path / "checkpoint-4"])
    remove_old(tmp_path, 1, keep=[tmp_path / "checkpoint-4"])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_files_are_replaced_together_or_not_at_all(tmp_path):
    (tmp_path / "config.json").write_text("old")
    with pytest.raises(OSError, match="No space"), written_whole(tmp_path) as folder:
        (folder / "config.json").write_text("new")
        raise OSError("No space left on device")
    assert (tmp_path / "config.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with written_whole(tmp_path) as folder:
        (folder / "config.json").write_text("new")
    assert (tmp_path / "config.json").read_text() == "new" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_failed_save_leaves_nothing_half_written_and_names_what_is_left(tmp_path, error):
    kept = write(tmp_path, 2)
    partial = unfinished_checkpoint(tmp_path, 4)
    partial.mkdir()
    with pytest.raises(OSError, match=r"checkpoint-4 could not be written: No space.*checkpoint-2\.$"):
        with describe_failed_save(tmp_path, "checkpoint-4", partial):
            raise error("No space left on device")
    assert is_complete(kept) and [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("DataLoader worker (pid 7) is killed by a signal.")])
def test_other_errors_pass_unchanged(tmp_path, error):
    partial = unfinished_checkpoint(tmp_path, 4)
    partial.mkdir()
    with pytest.raises(type(error)) as raised, describe_failed_save(tmp_path, "checkpoint-4", partial):
        raise error
    assert raised.value is error
    assert not partial.exists()
