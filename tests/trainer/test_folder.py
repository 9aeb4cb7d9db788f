"""The folder of a run: where a run begins in it, and that it never holds two."""

import shutil

import pytest

from tests.trainer.test_checkpoints import write
from trainer.folder import RECIPE, find_start, forget_end, only_run, save_recipe
from trainer.recipe import RunArguments
from trainer.training_args import ScalarTrainingArguments

RUN = RunArguments(model="base", benchmark="miniature", root="data")


def arguments(folder, **fields):
    return ScalarTrainingArguments(output_dir=str(folder), use_cpu=True, **{"max_steps": 9} | fields)


def start(folder, resume=None, **fields):
    return find_start(RUN, arguments(folder, resume_from_checkpoint=resume and str(resume), **fields))


def test_an_empty_folder_begins_anew(tmp_path):
    assert start(tmp_path) == start(tmp_path, "auto") == (None, False)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        start(tmp_path, "last")


def test_a_run_that_was_broken_off_is_resumed_and_not_mixed_with_another(tmp_path):
    checkpoint = write(tmp_path, 4)
    (tmp_path / "checkpoint-7").mkdir()
    assert start(tmp_path, "last") == start(tmp_path, "auto") == start(tmp_path, checkpoint) == (checkpoint, False)
    with pytest.raises(ValueError, match=r"already holds a run \(checkpoint-4\)"):
        start(tmp_path)


def test_what_cannot_be_resumed_does_not_stand_in_the_way(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    assert start(tmp_path) == start(tmp_path, "auto") == (None, False)


def test_a_run_that_has_ended_is_left_alone_unless_it_is_to_be_longer(tmp_path):
    checkpoint = write(tmp_path, 9)
    save_recipe(RUN, arguments(tmp_path))
    assert start(tmp_path, "last") == start(tmp_path, "auto") == (None, True)
    assert start(tmp_path, "last", logging_steps=3) == (None, True)
    assert start(tmp_path, "last", max_steps=12) == (checkpoint, False)
    assert start(tmp_path, "last", seed=1) == (checkpoint, False)  # which is refused as one of another run
    with pytest.raises(ValueError, match=r"already holds a run \(recipe.json\)"):
        start(tmp_path)
    shutil.rmtree(checkpoint)
    assert start(tmp_path, "auto") == (None, True)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        start(tmp_path, "auto", seed=1)
    forget_end(arguments(tmp_path))
    assert not (tmp_path / RECIPE).exists() and start(tmp_path, "auto", seed=1) == (None, False)


def test_a_checkpoint_elsewhere_begins_a_run_only_where_none_is(tmp_path):
    elsewhere = write(tmp_path / "other", 4)
    assert start(tmp_path / "new", elsewhere) == (elsewhere, False)
    write(tmp_path / "new", 2)
    with pytest.raises(ValueError, match="already holds a run, but"):
        start(tmp_path / "new", elsewhere)


def test_what_a_killed_run_left_half_written_is_cleared_away(tmp_path):
    for name in (".checkpoint-4.unfinished", ".checkpoint-2.removed", ".model.unfinished"):
        (tmp_path / name).mkdir()
    for name in (".recipe.json.17", ".training.json.17"):
        (tmp_path / name).write_text("{")
    start(tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_one_process_writes_into_a_folder(tmp_path):
    args = arguments(tmp_path / "run")
    with only_run(args):
        with pytest.raises(ValueError, match="Another run is writing to"), only_run(args):
            pass
    with only_run(args):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="`output_dir` must be a folder"), only_run(arguments(tmp_path / "file")):
        pass
