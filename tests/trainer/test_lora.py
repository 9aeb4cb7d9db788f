"""The exact trainable parameters of each recipe, and what adapters do to the towers."""

import pytest
import torch
from peft import AutoPeftModelForFeatureExtraction, PeftModel
from transformers import AutoConfig, AutoModel

from modeling_scalar import MODALITIES, ScalarConfig, ScalarModel, load_model
from tests.conftest import make_batch, make_tiny_config
from trainer.lora import RECIPES, apply_adapters, count_parameters


@pytest.mark.parametrize(
    ("recipe", "count"), [("paper", 4_763_650), ("all_towers", 6_860_802), ("full", 1_242_890_226)]
)
def test_the_papers_network_has_exactly_the_papers_trainable_parameters(recipe, count):
    with torch.device("meta"):
        model = apply_adapters(ScalarModel(ScalarConfig()), recipe)
    assert sum(count_parameters(model).values()) == count


def test_the_paper_recipe_trains_the_heads_and_the_text_tower_only():
    with torch.device("meta"):
        counts = count_parameters(apply_adapters(ScalarModel(ScalarConfig()), "paper"))
    assert counts == {
        "text_model": 589_824,
        "text_projection": 768 * 512,
        "video_projection": 1408 * 512,
        "audio_projection": 768 * 512,
        "subtitle_projection": 768 * 512,
        "match_head": 593_666,
        "video_condition": 1_083_648 + 3 * 768,  # two frame embeddings and the type embedding
        "audio_condition": 592_128 + 2 * 768,
    }


SUBTITLE_CONDITION = 768 * 768 + 768 + 2 * 768 + 768  # projection, its bias, layer norm, type embedding


@pytest.mark.parametrize(
    ("recipe", "count"), [("paper", 4_763_650), ("all_towers", 6_860_802), ("full", 1_242_890_226)]
)
def test_reading_the_subtitle_adds_its_condition_encoder(recipe, count):
    with torch.device("meta"):
        model = apply_adapters(ScalarModel(ScalarConfig(condition_on=MODALITIES)), recipe)
    counts = count_parameters(model)
    assert counts["subtitle_condition"] == SUBTITLE_CONDITION == 592_896
    assert sum(counts.values()) == count + SUBTITLE_CONDITION


def test_what_the_cross_encoder_does_not_read_is_not_trained_for_it():
    config = make_tiny_config(condition_on=["video"], aggregation="video")
    counts = count_parameters(apply_adapters(ScalarModel(config), "all_towers"))
    heads = {"text_projection", "video_projection", "match_head", "video_condition"}
    assert set(counts) == heads | {"text_model", "vision_model"}


def adapted_modules(recipe):
    model = apply_adapters(ScalarModel(make_tiny_config()), recipe)
    return {
        name.split(".lora_A")[0].removeprefix("base_model.model.")
        for name, _ in model.named_parameters()
        if "lora_A" in name
    }


def test_only_query_and_value_projections_are_adapted():
    modules = adapted_modules("all_towers")
    assert {name.rsplit(".", 1)[1] for name in modules} == {"query", "value", "q_proj", "v_proj"}
    assert "vision_model.encoder.layers.0.self_attn.qkv.query" in modules
    assert "text_model.encoder.layer.1.crossattention.self.value" in modules
    assert len(modules) == 2 * 2 + 2 * 2 + 2 * 4
    assert all(name.startswith("text_model.") for name in adapted_modules("paper"))


def test_an_adapter_leaves_the_keys_of_the_fused_projection_alone():
    torch.manual_seed(0)
    model = apply_adapters(ScalarModel(make_tiny_config()), "all_towers")
    projection = model.get_base_model().vision_model.encoder.layers[0].self_attn.qkv
    hidden = torch.randn(2, 5, 32)
    before = projection(hidden)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    query, key, value = (projection(hidden) - before).chunk(3, dim=-1)
    assert (key == 0).all() and query.abs().min() > 0 and value.abs().min() > 0


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "full"])
def test_a_saved_adapter_gives_the_same_scores_loaded_merged_and_by_auto_classes(recipe, tiny_model_dir, tmp_path):
    base = ScalarModel.from_pretrained(tiny_model_dir)
    model = apply_adapters(base, recipe).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        batch = make_batch()
        expected = model(**batch).scores
        plain = ScalarModel.from_pretrained(tiny_model_dir).eval()
        assert (plain(**batch).scores - expected).abs().max() > 1e-3
        model.save_pretrained(tmp_path)
        loaded = [
            PeftModel.from_pretrained(plain, tmp_path),
            AutoModel.from_pretrained(tmp_path),
            AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path, trust_remote_code=True),
            model.merge_and_unload(),
        ]
        assert type(loaded[-1]) is ScalarModel
        for other in loaded:
            torch.testing.assert_close(other.eval()(**batch).scores, expected, atol=1e-5, rtol=0)


def test_an_adapter_reads_what_it_was_trained_to_read_and_its_base_does_not(tiny_model_dir, tmp_path):
    base, processor = load_model(tiny_model_dir, condition_on=MODALITIES)
    model = apply_adapters(base, "paper")
    head = base.subtitle_condition.modules_to_save.default
    states = torch.randn(2, 1, 3, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.projection.weight += 0.1 * torch.randn(32, 32, generator=torch.Generator().manual_seed(1))
        expected = head(states)
        assert (ScalarModel.from_pretrained(tiny_model_dir).subtitle_condition(states) - expected).abs().max() > 0.1
    model.save_pretrained(tmp_path)
    base.config.save_pretrained(tmp_path)  # as ScalarTrainer does
    processor.save_pretrained(tmp_path)
    plain = ScalarModel.from_pretrained(tiny_model_dir, config=AutoConfig.from_pretrained(tmp_path))
    loaded = [
        load_model(tmp_path)[0],
        ScalarModel.from_pretrained(tmp_path),
        PeftModel.from_pretrained(plain, tmp_path).get_base_model(),  # as the card of such an adapter says
    ]
    for other in loaded:
        assert other.config.condition_on == list(MODALITIES)
        assert torch.equal(other.subtitle_condition(states), expected)
    assert load_model(tiny_model_dir)[0].config.condition_on == ["video", "audio"]


def test_heads_and_towers_that_an_objective_does_not_reach_are_not_trained():
    def trained(**options):
        model = apply_adapters(ScalarModel(make_tiny_config(aggregation="audio")), "all_towers", **options)
        return set(count_parameters(model))

    heads = {"text_model", "text_projection", "audio_model", "audio_projection"}
    assert trained(matching=False) == heads
    matching = {"vision_model", "match_head", "video_condition", "audio_condition"}
    assert trained(matching=True) == heads | matching
    every = {"vision_model", "video_projection", "subtitle_projection"}
    assert trained(matching=False, modalities=MODALITIES) == heads | every


def test_an_unknown_recipe_is_refused(tiny_model):
    with pytest.raises(ValueError, match="all_towers"):
        apply_adapters(tiny_model, "lora")
