"""Training goes on from an adapter: as it is, or merged into its base and trained whole; anything else is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from scalar_retrieval.modeling_scalar import ScalarModel, load_model
from scalar_retrieval.trainer.lora import apply_adapters
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import train
from tests.conftest import make_batch

CONSTANT = ["--lr_scheduler_type", "constant", "--warmup_steps", "0", "--calibration_weight", "0"]
CONSTANT += ["--learnable_temperature", "true"]
STILL = [*CONSTANT, "--learning_rate", "0"]
MOVING = [*CONSTANT, "--learning_rate", "1e-2", "--loss_warmup_steps", "0"]
ADAPTER = "adapter_model.safetensors"
WEIGHTS = "model.safetensors"


def run(tiny_run, output, *fields, steps=2):
    _, *arguments = tiny_run.command(output, *fields, steps=steps)
    assert train(*parse_arguments(list(map(str, arguments))))
    return output


@pytest.fixture(scope="module")
def first(tiny_run, tmp_path_factory):
    """An adapter whose matrices and heads have moved, in the folder of its run."""
    folder = run(tiny_run, tmp_path_factory.mktemp("first") / "run", *MOVING)
    matrices = [value for name, value in load_file(folder / ADAPTER).items() if ".lora_B" in name]
    assert min(value.abs().max() for value in matrices) > 1e-3
    return folder


def scores_of(model):
    with torch.no_grad():
        return model.eval()(**make_batch()).scores


@pytest.mark.promise("data", "Continued training starts from the adapter's exact weights")
@pytest.mark.parametrize("part", [".", "checkpoint-2"])
def test_a_step_that_learns_nothing_leaves_an_adapter_as_it_was(tiny_run, first, tmp_path, part):
    again = run(tiny_run, tmp_path / "again", "--model", first / part, *STILL, steps=1)
    assert (again / ADAPTER).read_bytes() == (first / ADAPTER).read_bytes()
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (first, again)]
    assert configs[0] == configs[1] and configs[0]["base_model_name_or_path"] == str(tiny_run.folder / "model")


def test_a_continued_adapter_learns_and_its_record_describes_the_first_training(tiny_run, first, tmp_path):
    again = run(tiny_run, tmp_path / "again", "--model", first, *MOVING)
    before, after = (load_file(folder / ADAPTER) for folder in (first, again))
    assert before.keys() == after.keys() and all((before[name] != after[name]).any() for name in before)
    first_record, record = (json.loads((folder / "training.json").read_text()) for folder in (first, again))
    assert record["continues"]["model"] == str(first) and record["continues"]["training"] == first_record
    assert record["continues"]["recipe"]["model"] == str(tiny_run.folder / "model")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["--adapter", "video,heads"], "`adapter: video,heads` is for joint encoders"),
        (["--adapter", "heads"], r"differs from what `adapter: heads` trains in .*'text_model'\].*merge"),
        (["--adapter", "all_towers"], r"`adapter: all_towers` trains in \['audio_model', .*'vision_model'\].*merge"),
        (["--matching_weight", "0"], r"differs .* in \['audio_condition', .*'match_head', .*'text_model'.*merge"),
        (["--objective", "contrastive", "--aggregation", "hypergram"], r"differs .* in \['hyperbolic'.*merge"),
    ],
)
def test_another_reach_than_that_of_the_adapter_is_refused(tiny_run, first, tmp_path, fields, message):
    """That has a learned temperature too."""
    with pytest.raises(ValueError, match=message):
        run(tiny_run, tmp_path / "again", "--model", first, *fields)


def test_an_adapter_can_be_continued_with_another_score(tiny_run, first, tmp_path):
    start = shutil.copytree(first, tmp_path / "start")
    record = json.loads((start / "training.json").read_text())
    (start / "training.json").write_text(json.dumps(record | {"clips": ["0" * 16]}))
    again = run(tiny_run, tmp_path / "again", "--model", start, "--aggregation", "uniform", *STILL, steps=1)
    assert (again / ADAPTER).read_bytes() == (first / ADAPTER).read_bytes()
    assert load_model(again)[0].config.aggregation == "uniform"
    # Clips of one's own that it has seen stay known: an evaluation on them is no test.
    assert json.loads((again / "training.json").read_text())["clips"] == ["0" * 16]


# The whole model -----------------------------------------------------------------------------------------------------

WHOLE = ["--features", "null", "--adapter", "full"]


@pytest.fixture(scope="module")
def still(tiny_run, first, tmp_path_factory):
    """A whole model that began as the adapter and learned nothing."""
    return run(tiny_run, tmp_path_factory.mktemp("still") / "run", "--model", first, *WHOLE, *STILL, steps=1)


def test_a_full_run_from_an_adapter_trains_and_saves_the_merged_model(tiny_run, first, still, tmp_path):
    assert not (still / ADAPTER).exists()
    loaded = AutoModel.from_pretrained(still)
    # Merging adds a product of matrices in float32 to the weights.
    torch.testing.assert_close(scores_of(loaded), scores_of(load_model(first)[0]), atol=1e-5, rtol=0)
    assert type(loaded) is ScalarModel
    # Trained further, its record describes all trainings.
    again = run(tiny_run, tmp_path / "again", "--model", still, *WHOLE, *STILL, steps=1)
    continued = json.loads((again / "training.json").read_text())["continues"]
    assert continued["model"] == str(still) and continued["training"]["continues"]["model"] == str(first)


@pytest.mark.e2e
def test_a_full_run_from_an_adapter_moves_the_weights_and_resumes_to_the_byte(tiny_run, first, still, tmp_path):
    moved = run(tiny_run, tmp_path / "moved", "--model", first, *WHOLE, *MOVING)
    before, after = (load_file(folder / WEIGHTS) for folder in (still, moved))
    changed = [name for name in before if (before[name] != after[name]).any()]
    assert len(changed) > len(before) / 2
    run(tiny_run, tmp_path / "broken", "--model", first, *WHOLE, *MOVING, steps=1)
    broken = run(tiny_run, tmp_path / "broken", "--model", first, *WHOLE, *MOVING, "--resume_from_checkpoint", "last")
    assert not list(broken.rglob(ADAPTER)) and (broken / WEIGHTS).read_bytes() == (moved / WEIGHTS).read_bytes()


# In Python -----------------------------------------------------------------------------------------------------------


def test_an_adapter_that_python_saves_scores_as_trained(tiny_model_dir, tiny_processor, tmp_path, batch):
    model = apply_adapters(load_model(tiny_model_dir, aggregation="gram")[0])
    for _ in range(2):  # a new adapter, then the same as it is loaded to be continued
        model.save_pretrained(tmp_path)
        tiny_processor.save_pretrained(tmp_path)
        loaded, _ = load_model(tmp_path)
        with torch.no_grad():
            assert torch.equal(loaded(**batch).scores, model.eval()(**batch).scores)
        model, _ = load_model(tmp_path, trainable=True)
    with pytest.raises(ValueError, match="trained with {'aggregation': 'gram'}"):
        AutoModel.from_pretrained(tmp_path)
