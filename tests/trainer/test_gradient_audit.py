"""What is said before a run, and that a run trains each of its trainable parameters."""

import pytest
import torch

from modeling_scalar import ScalarConfig, ScalarModel
from modeling_scalar.scores_scalar import METHODS
from tests.trainer.test_scalar_trainer import gradients_of_a_real_step, make_trainer
from trainer.lora import apply_adapters, count_parameters
from trainer.run import describe_run
from trainer.training_args import ScalarTrainingArguments


def test_the_description_counts_the_papers_network():
    args = ScalarTrainingArguments(output_dir="out", use_cpu=True, per_device_train_batch_size=128)
    with torch.device("meta"):
        model = apply_adapters(ScalarModel(ScalarConfig()), "paper")
    text = describe_run(model, args, num_examples=136_674, steps_per_epoch=1067)
    assert "trained: 4,763,650 parameters" in text and "text_model 589,824" in text
    frozen = sum(count_parameters(model, trainable=False).values())
    assert f"frozen: {frozen:,} parameters" in text and frozen > 1.2e9
    assert "128 clips see each other" in text and "steps: 5,335, 1,067 an epoch of 136,674 examples" in text
    total = frozen + 4_763_650
    assert f"memory: {(4 * total + 12 * 4_763_650) / 2**20:,.0f} MiB" in text


def trained_and_not(folder, **options):
    """The names of the trainable parameters that get a gradient in two steps, and of those that do not."""
    trainer = make_trainer(folder, max_steps=2, warmup_steps=0, lr_scheduler_type="constant", **options)
    received = gradients_of_a_real_step(trainer)
    trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert set(received) <= trainable and trainer.state.global_step == 2
    # The key's bias cannot change a softmax; in float32 its gradient is a rounding error or zero.
    trained = {name for name, largest in received.items() if largest > 0 or name.endswith("key.bias")}
    return trained, trainable - trained


@pytest.mark.parametrize("adapter", ["paper", "all_towers", "full"])
@pytest.mark.parametrize(
    ("objective", "aggregation"),
    [
        ("scalar", "scalar"),
        ("contrastive", "gram"),
        ("contrastive", "hypergram"),
        ("contrastive", "triangle"),
        ("pmrl", "pmrl"),
        ("pathways", "scalar"),
    ],
)
def test_each_trainable_parameter_of_a_recipe_gets_a_gradient(tmp_path, objective, aggregation, adapter):
    trained, untrained = trained_and_not(tmp_path, objective=objective, aggregation=aggregation, adapter=adapter)
    assert len(trained) > 20 and untrained == set()


def test_a_modality_that_no_clip_has_is_all_that_gets_no_gradient(tmp_path):
    mask = torch.ones(8, 3, dtype=torch.bool)
    mask[:, 1] = False
    trained, untrained = trained_and_not(tmp_path, mask=mask)
    assert untrained and all("audio_" in name for name in untrained)
    assert not any("audio_" in name for name in trained)


@pytest.mark.parametrize(
    ("objective", "aggregation", "adapter", "matching"),
    [
        ("pathways", "scalar", "full", 0.0),
        ("pathways", "scalar", "full", 0.1),
        ("contrastive", "triangle", "paper", 0.1),
        ("contrastive", "hypergram", "all_towers", 0.1),
        ("contrastive", "audio", "all_towers", 0.0),
        ("contrastive", "video", "full", 0.0),
        ("contrastive", "subtitle", "all_towers", 0.1),
    ],
)
def test_exactly_what_an_objective_reaches_is_trained(tmp_path, objective, aggregation, adapter, matching):
    """Two steps reach all that is trainable, and what they do not reach is not trainable."""
    learnable = objective == "contrastive"
    options = {"objective": objective, "aggregation": aggregation, "adapter": adapter, "matching_weight": matching}
    trainer = make_trainer(tmp_path, learnable_temperature=learnable, max_steps=2, **options)
    trainable = set(count_parameters(trainer.model))
    for name, tower in (("video", "vision_model"), ("audio", "audio_model"), ("subtitle", "text_model")):
        reads = METHODS[aggregation].reads is None or name in METHODS[aggregation].reads
        assert (f"{name}_projection" in trainable) == reads
        # Matching reads video and audio, and the text tower reads the queries.
        assert (tower in trainable) == (adapter != "paper" and (reads or matching > 0) or tower == "text_model")
    assert ("hyperbolic" in trainable) == (aggregation == "hypergram")
    assert ("logit_scale" in trainable) == learnable and ("match_head" in trainable) == (matching > 0)
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert any("crossattention" in name for name in names) == (matching > 0)
    received = gradients_of_a_real_step(trainer)
    assert set(received) == set(names) and trainer.state.global_step == 2


def test_a_temperature_that_is_not_there_cannot_be_learned(tiny_model):
    with pytest.raises(ValueError, match="has_logit_scale"):
        apply_adapters(tiny_model, "paper", learnable_temperature=True)


@pytest.mark.parametrize("condition_on", [["subtitle"], ["video", "audio", "subtitle"]])
def test_what_the_cross_encoder_reads_is_trained_with_it(tmp_path, condition_on):
    trainer = make_trainer(tmp_path, condition_on=condition_on, adapter="full", max_steps=2)
    trainable = set(count_parameters(trainer.model))
    for name in ("video", "audio", "subtitle"):
        assert (f"{name}_condition" in trainable) == (name in condition_on)
    names = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert set(gradients_of_a_real_step(trainer)) == names


@pytest.mark.parametrize("present", [["video", "audio"], ["subtitle"]])
def test_matching_gets_no_gradient_while_there_is_nothing_to_read(tmp_path, present):
    """Clips with nothing that the cross-encoder reads train neither it nor its head: no mistake of the run."""
    mask = torch.tensor([[name in present for name in ("video", "audio", "subtitle")]]).repeat(8, 1)
    reads = ["subtitle"] if "video" in present else ["video", "audio"]
    trained, untrained = trained_and_not(tmp_path, mask=mask, condition_on=reads)
    assert any("match_head" in name for name in untrained)
    assert not any("match_head" in name or "crossattention" in name for name in trained)
