"""The exact trainable parameters of each recipe, and what adapters do to the towers."""

import pytest
import torch
from peft import AutoPeftModelForFeatureExtraction, PeftModel
from transformers import AutoConfig, AutoModel

from scalar_retrieval.modeling_scalar import MODALITIES, ScalarConfig, ScalarModel, load_model
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS
from scalar_retrieval.trainer.lora import apply_adapters, count_parameters, lora_parameters
from scalar_retrieval.trainer.run import describe_run
from scalar_retrieval.trainer.training_args import ScalarTrainingArguments
from tests.conftest import make_batch, make_tiny_config
from tests.trainer.test_scalar_trainer import give_effect, make_trainer


def counts_of(recipe, **config):
    """The trainable parameters of the paper's network, by part."""
    with torch.device("meta"):
        return count_parameters(apply_adapters(ScalarModel(ScalarConfig(**config)), recipe))


@pytest.mark.parametrize(("recipe", "count"), [("all_towers", 6_860_802), ("full", 1_242_890_226)])
def test_the_papers_network_has_exactly_the_papers_trainable_parameters(recipe, count):
    assert sum(counts_of(recipe).values()) == count


def test_the_paper_recipe_trains_the_heads_and_the_text_tower_only():
    counts = {
        "text_model": 589_824,
        "text_projection": 768 * 512,
        "video_projection": 1408 * 512,
        "audio_projection": 768 * 512,
        "subtitle_projection": 768 * 512,
        "match_head": 593_666,
        "video_condition": 1_083_648 + 3 * 768,  # two frame embeddings and the type embedding
        "audio_condition": 592_128 + 2 * 768,
    }
    assert counts_of("paper") == counts and sum(counts.values()) == 4_763_650
    # Reading the subtitle adds its condition encoder: projection, its bias, layer norm, type embedding.
    subtitle = 768 * 768 + 768 + 2 * 768 + 768
    assert counts_of("paper", condition_on=MODALITIES) == counts | {"subtitle_condition": subtitle}


def test_an_adapter_leaves_the_keys_of_the_fused_projection_alone():
    model = apply_adapters(ScalarModel(make_tiny_config()), "all_towers")
    projection = model.get_base_model().vision_model.encoder.layers[0].self_attn.qkv
    hidden = torch.randn(2, 5, 32)
    before = projection(hidden)
    for parameter in lora_parameters(model):
        torch.nn.init.normal_(parameter)
    query, key, value = (projection(hidden) - before).chunk(3, dim=-1)
    assert (key == 0).all() and query.abs().min() > 0 and value.abs().min() > 0


def test_a_saved_adapter_scores_and_reads_as_it_was_trained_however_it_is_loaded(tiny_model_dir, tmp_path):
    base, processor = load_model(tiny_model_dir, condition_on=MODALITIES)
    model = apply_adapters(base, "all_towers").eval()
    give_effect(model)
    torch.nn.init.normal_(base.subtitle_condition.modules_to_save.default.projection.weight)
    for part in (model, base.config, processor):  # as ScalarTrainer does
        part.save_pretrained(tmp_path)
    batch, states = make_batch(), torch.randn(2, 1, 3, 32)
    plain = ScalarModel.from_pretrained(tiny_model_dir, config=AutoConfig.from_pretrained(tmp_path))
    with torch.no_grad():
        expected = model(**batch).scores, base.subtitle_condition(states)
        assert (plain(**batch).scores - expected[0]).abs().max() > 1e-3
        for other in (
            PeftModel.from_pretrained(plain, tmp_path).get_base_model(),  # as the card of such an adapter says
            AutoModel.from_pretrained(tmp_path),
            load_model(tmp_path)[0],
            model.merge_and_unload(),
        ):
            found = other.eval()(**batch).scores, other.subtitle_condition(states)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert type(other) is ScalarModel
    with pytest.raises(ValueError, match="trained with {'condition_on'"):
        AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path)
    assert load_model(tmp_path)[0].config.condition_on == list(MODALITIES)
    assert load_model(tiny_model_dir)[0].config.condition_on == ["video", "audio"]


def test_the_description_counts_the_papers_network():
    args = ScalarTrainingArguments(output_dir="out", use_cpu=True, per_device_train_batch_size=128)
    with torch.device("meta"):
        model = apply_adapters(ScalarModel(ScalarConfig()), "paper")
    text = describe_run(model, args, num_examples=136_674, steps_per_epoch=1067)
    trained, frozen = 4_763_650, sum(count_parameters(model, trainable=False).values())
    assert f"trained: {trained:,} parameters" in text and f"frozen: {frozen:,} parameters" in text
    assert "128 clips see each other" in text and "steps: 5,335, 1,067 an epoch of 136,674 examples" in text
    assert f"memory: {(4 * frozen + 16 * trained) / 2**20:,.0f} MiB" in text


def gradients_of_a_real_step(trainer):
    """Names with the largest gradient they received in the steps of a run; the Trainer clears gradients after each."""
    received = {}

    def watch(optimizer, *step):
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                received[name] = max(received.get(name, 0.0), parameter.grad.abs().max().item())

    trainer.create_optimizer().register_step_pre_hook(watch)
    trainer.train()
    return received


@pytest.mark.parametrize(
    ("objective", "aggregation", "adapter", "matching"),
    [
        ("scalar", "scalar", "paper", 0.1),
        ("contrastive", "hypergram", "all_towers", 0.0),
        ("contrastive", "audio", "all_towers", 0.0),
        ("contrastive", "subtitle", "full", 0.1),
        ("pmrl", "pmrl", "full", 0.1),
        ("pathways", "scalar", "full", 0.0),
    ],
)
def test_exactly_what_an_objective_reaches_is_trained(tmp_path, objective, aggregation, adapter, matching):
    """Two steps reach all that is trainable, as LoRA starts with B = 0, and nothing else is trainable."""
    learnable = objective == "contrastive"
    condition_on = MODALITIES if adapter == "full" else ("video", "audio")
    options = {"objective": objective, "aggregation": aggregation, "adapter": adapter, "matching_weight": matching}
    options |= {"condition_on": condition_on, "warmup_steps": 0, "learning_rate": 1e-2, "max_steps": 2}
    trainer = make_trainer(tmp_path, learnable_temperature=learnable, calibration_weight=0, **options)
    trainable = set(count_parameters(trainer.model))
    for name, tower in (("video", "vision_model"), ("audio", "audio_model"), ("subtitle", "text_model")):
        reads = METHODS[aggregation].reads is None or name in METHODS[aggregation].reads
        assert (f"{name}_projection" in trainable) == reads
        assert (f"{name}_condition" in trainable) == (matching > 0 and name in condition_on)
        # Matching reads video and audio, and the text tower reads the queries.
        assert (tower in trainable) == (adapter != "paper" and (reads or matching > 0) or tower == "text_model")
    assert ("hyperbolic" in trainable) == (aggregation == "hypergram")
    assert ("logit_scale" in trainable) == learnable and ("match_head" in trainable) == (matching > 0)
    names = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    received = gradients_of_a_real_step(trainer)
    # The key's bias cannot change a softmax; in float32 its gradient is a rounding error or zero.
    unmoved = {name for name, largest in received.items() if largest == 0 and not name.endswith("key.bias")}
    assert set(received) == names and unmoved == set()
