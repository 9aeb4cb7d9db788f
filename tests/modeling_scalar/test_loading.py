"""One way to load a model or adapter with its processor, and its refusals."""

import pytest
import torch
from peft import AutoPeftModelForFeatureExtraction, LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModel, BertConfig

from scalar_retrieval.modeling_scalar import ScalarModel, load_model


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_a_model_comes_with_its_processor_in_evaluation_mode(tiny_model_dir, tiny_processor, device, capfd):
    model, processor = load_model(tiny_model_dir, dtype=torch.bfloat16, device=device)
    assert isinstance(model, ScalarModel) and not model.training and model.dtype == torch.bfloat16
    assert processor.image_processor.image_size == tiny_processor.image_processor.image_size
    assert "Loading weights" not in capfd.readouterr().err  # no bar of progress


def test_a_device_that_this_machine_lacks_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="^The device must be one of this machine, cpu.*, got 'gpu'"):
        load_model("no/such/folder", device="gpu")


def test_another_model_is_refused(tmp_path, tiny_processor):
    tiny_processor.save_pretrained(tmp_path)
    BertConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for folder, message in ((tmp_path, "'bert'"), ("no/such/folder", "no/such/folder")):
        with pytest.raises(ValueError, match=message):
            load_model(folder)


# Configurations other than the base's ------------------------------------------------------------------------------


def save_adapter(folder, base_folder, processor, with_config=True, **changes):
    """Adapt a base under another configuration, disturb what is trained, save as training does; return the model."""
    base, _ = load_model(base_folder, **changes)
    modules = ["text_projection", *(name for name in ("hyperbolic", "logit_scale") if hasattr(base, name))]
    config = LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=QUERIES, modules_to_save=modules)
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    if with_config:
        base.config.save_pretrained(folder)
    return model.eval()


QUERIES = r"text_model\..*\.query"
CHANGES = [
    {},
    {"query_temperature": 0.3},
    {"aggregation": "gram"},
    {"aggregation": "hypergram"},
    {"aggregation": "uniform", "query_temperature": 0.3, "has_logit_scale": True},
]


OURS = {
    "by this package": lambda folder, base: load_model(folder)[0],
    "by its auto class": lambda folder, base: AutoModel.from_pretrained(folder),
    "by its class": lambda folder, base: ScalarModel.from_pretrained(folder),
}
WAYS = OURS | {
    "by PEFT's class": lambda folder, base: AutoPeftModelForFeatureExtraction.from_pretrained(folder),
    "by PEFT on a base": lambda folder, base: PeftModel.from_pretrained(ScalarModel.from_pretrained(base), folder),
    "beside another": lambda folder, base: put_beside_another(folder, base),
    "into a base": lambda folder, base: put_into(ScalarModel.from_pretrained(base), folder),
}


def put_into(model, folder, name="default"):
    model.load_adapter(folder, adapter_name=name)
    return model


def put_beside_another(folder, base):
    model = get_peft_model(ScalarModel.from_pretrained(base), LoraConfig(target_modules=QUERIES), adapter_name="one")
    put_into(model, folder, "two").set_adapter("two")
    return model


@pytest.fixture(scope="module", params=CHANGES, ids=lambda changes: "-".join(changes) or "none")
def adapter(request, tmp_path_factory, tiny_model_dir, tiny_processor):
    """An adapter that was trained with a configuration: what was changed, where it is, and the model."""
    folder = tmp_path_factory.mktemp("trained") / "adapter"
    return request.param, folder, save_adapter(folder, tiny_model_dir, tiny_processor, **request.param)


@pytest.mark.promise("scores", "An adapter scores as trained, or fails to load")
@pytest.mark.parametrize("way", WAYS)
def test_an_adapter_has_one_score_however_it_is_loaded(way, adapter, monkeypatch, tiny_model_dir, batch):
    changes, path, trained = adapter
    monkeypatch.chdir(path.parent)
    folder = path.name  # a relative folder
    if changes and way not in OURS:
        with pytest.raises(ValueError, match=f"trained with .*{next(iter(changes))}.*AutoConfig"):
            WAYS[way](folder, tiny_model_dir)
        base = ScalarModel.from_pretrained(tiny_model_dir, config=AutoConfig.from_pretrained(folder))
        loaded = PeftModel.from_pretrained(base, folder)  # as the message says
    else:
        loaded = WAYS[way](folder, tiny_model_dir)
    if way in OURS:
        assert {name: getattr(loaded.config, name) for name in changes} == changes
    with torch.no_grad():
        output, expected = loaded.eval()(**batch), trained(**batch)
    assert torch.equal(output.scores, expected.scores)
    assert torch.equal(output.logits_per_text, expected.logits_per_text)
    if changes.get("aggregation") == "hypergram":
        assert abs(output.score_parameters[0] - 0.51) > 1e-3  # trained, not as initialised


def test_an_adapter_that_is_saved_again_keeps_its_score(tmp_path, tiny_model_dir, tiny_processor, batch):
    """And only this package gives it another."""
    trained = save_adapter(tmp_path / "adapter", tiny_model_dir, tiny_processor, aggregation="gram")
    again = tmp_path / "again"
    AutoModel.from_pretrained(tmp_path / "adapter").save_pretrained(again)
    tiny_processor.save_pretrained(again)
    with torch.no_grad():
        for model in (AutoModel.from_pretrained(again).eval(), load_model(again)[0]):
            assert torch.equal(model(**batch).scores, trained(**batch).scores)
    with pytest.raises(ValueError, match="aggregation"):
        AutoModel.from_pretrained(again, config=AutoConfig.from_pretrained(again, aggregation="uniform"))
    assert load_model(again, aggregation="uniform")[0].config.aggregation == "uniform"


def test_an_adapter_without_a_configuration_has_that_of_its_base(tmp_path, tiny_model_dir, tiny_processor, batch):
    trained = save_adapter(tmp_path, tiny_model_dir, tiny_processor, with_config=False)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)[0](**batch).scores, trained(**batch).scores)
    assert load_model(tmp_path, aggregation="uniform")[0].config.aggregation == "uniform"
    with pytest.raises(ValueError, match="lacks 6 weights .*concat_projections"):  # they are never random
        load_model(tmp_path, has_concat_heads=True)


def test_what_a_changed_field_adds_is_newly_initialised_but_for_concatenation_heads(tiny_model_dir):
    model, _ = load_model(tiny_model_dir, aggregation="hypergram", has_logit_scale=True)
    torch.testing.assert_close([*model.hyperbolic(), model.logit_scale()], list(torch.tensor([0.51, 1.0, 0.07])))
    with pytest.raises(ValueError, match="lacks 6 weights .*concat_projections"):
        load_model(tiny_model_dir, has_concat_heads=True)


@pytest.mark.parametrize("changes", [{}, {"aggregation": "hypergram"}])
def test_a_checkpoint_without_one_of_its_weights_is_refused(tmp_path, tiny_model, tiny_processor, changes):
    state = {name: value for name, value in tiny_model.state_dict().items() if name != "video_projection.weight"}
    tiny_model.save_pretrained(tmp_path, state_dict=state)
    tiny_processor.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="video_projection.weight"):
        load_model(tmp_path, **changes)
