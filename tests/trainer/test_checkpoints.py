"""Which checkpoint a run resumes from, and what a failed save leaves behind."""

import json

import pytest

from trainer.checkpoints import describe_failed_save, is_complete, last_checkpoint


def write(folder, step, state=None):
    (path := folder / f"checkpoint-{step}").mkdir(parents=True)
    (path / "adapter_model.safetensors").write_bytes(b"weights")
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    return path


def complete(step):
    return json.dumps({"global_step": step})


def test_the_newest_complete_checkpoint_is_the_last(tmp_path, caplog):
    assert last_checkpoint(tmp_path) is None and last_checkpoint(tmp_path / "nowhere") is None
    write(tmp_path, 9, complete(9))
    expected = write(tmp_path, 10, complete(10))
    write(tmp_path, 11, complete(11)[:5])  # the run was killed, or the disk full, while this was written
    write(tmp_path, 12)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) == expected
    assert "checkpoint-12 is incomplete" in caplog.text and "checkpoint-11 is incomplete" in caplog.text


def test_a_failed_save_leaves_nothing_half_written_and_names_what_is_left(tmp_path):
    kept = write(tmp_path, 2, complete(2))
    with pytest.raises(OSError, match="checkpoint-4 could not be written: No space.*checkpoint-2"):
        with describe_failed_save(tmp_path, "checkpoint-4", tmp_path / "checkpoint-4"):
            write(tmp_path, 4)
            raise RuntimeError("No space left on device")
    assert is_complete(kept) and not (tmp_path / "checkpoint-4").exists()


def test_other_errors_pass_unchanged(tmp_path):
    with pytest.raises(KeyError), describe_failed_save(tmp_path, "checkpoint-4", write(tmp_path, 4)):
        raise KeyError("a")
    assert (tmp_path / "checkpoint-4").exists()
