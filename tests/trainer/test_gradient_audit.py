"""What is said before a run, and that a parameter nobody reaches stops it."""

import pytest
import torch

from modeling_scalar import ScalarConfig, ScalarModel
from modeling_scalar.scores_scalar import METHODS
from tests.conftest import make_tiny_config
from tests.trainer.test_scalar_trainer import make_trainer
from trainer.lora import apply_adapters, count_parameters
from trainer.record import describe_run
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


def test_a_trainable_parameter_without_a_gradient_stops_the_run_after_one_step(tmp_path):
    model = apply_adapters(ScalarModel(make_tiny_config()), "paper")
    model.get_base_model().subtitle_condition.projection.weight.requires_grad = True
    trainer = make_trainer(tmp_path, model=model, max_steps=3)
    with pytest.raises(ValueError, match="1 trainable parameters got no gradient in step 1.*subtitle_condition"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_parameters_of_an_absent_modality_are_waited_for(tmp_path, caplog):
    mask = torch.ones(8, 3, dtype=torch.bool)
    mask[:, 1] = False
    trainer = make_trainer(tmp_path, mask=mask, max_steps=2)
    trainer.train()
    assert "never got a gradient" in caplog.text and "audio_condition" in caplog.text


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
    """Two steps pass the audit, and what it does not reach is not trainable."""
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
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_temperature_that_is_not_there_cannot_be_learned(tiny_model):
    with pytest.raises(ValueError, match="has_logit_scale"):
        apply_adapters(tiny_model, "paper", learnable_temperature=True)


@pytest.mark.parametrize("condition_on", [["subtitle"], ["video", "audio", "subtitle"]])
def test_what_the_cross_encoder_reads_is_trained_with_it(tmp_path, condition_on):
    trainer = make_trainer(tmp_path, condition_on=condition_on, adapter="full", max_steps=2)
    trainable = set(count_parameters(trainer.model))
    for name in ("video", "audio", "subtitle"):
        assert (f"{name}_condition" in trainable) == (name in condition_on)
    trainer.train()  # passes the audit
    assert trainer.state.global_step == 2


def test_matching_by_subtitles_is_waited_for_while_there_are_none(tmp_path, caplog):
    mask = torch.tensor([[True, True, False]]).repeat(8, 1)
    trainer = make_trainer(tmp_path, mask=mask, condition_on=["subtitle"], max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1 and "match_head" in caplog.text


def test_matching_is_waited_for_while_there_is_nothing_to_read(tmp_path, caplog):
    """Clips with nothing but a subtitle train neither the cross-encoder nor its head: no mistake of the run."""
    mask = torch.tensor([[False, False, True]]).repeat(8, 1)
    trainer = make_trainer(tmp_path, mask=mask, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1 and "never got a gradient" in caplog.text
