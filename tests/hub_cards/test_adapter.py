"""An adapter: what is published of it, its card, and its base."""

import json
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from peft import AutoPeftModelForFeatureExtraction, PeftModel
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from transformers import AutoModel

from scalar_retrieval.hub_cards.adapter import adapter_card, find_base, stage_adapter
from scalar_retrieval.hub_cards.card import Details
from scalar_retrieval.hub_cards.errors import PublishError
from scalar_retrieval.hub_cards.publishing import PublishedModel
from scalar_retrieval.hub_cards.records.evaluations import eval_results, read_results
from scalar_retrieval.modeling_scalar import ScalarModel, load_model
from tests.hub_cards.folders import CODE, COMMIT, PROCESSOR, make_adapter, names, write_card, write_json
from tests.hub_cards.pushing import push_adapter, push_model
from tests.hub_cards.records.test_evaluations import make_content
from tests.hub_cards.records.test_runs import RECIPE, TRAINING


def test_of_a_run_only_what_others_need_is_staged(adapter_dir, staged, model_dir):
    stage_adapter(adapter_dir, staged, PublishedModel("user/base", "f" * 40))
    result = "results/miniature-test-aaaaaaaa"
    assert names(staged) == CODE | PROCESSOR | {
        *("adapter_config.json", "adapter_model.safetensors", "config.json", "recipe.json"),
        *(f"{result}/results.json", f"{result}/results.png"),
    }
    for file in staged.rglob("*.json"):
        if file.name != "tokenizer.json":
            assert str(model_dir.parent) not in file.read_text(), f"{file.name} names a folder of this machine"
    adapter, config, recipe, written = (
        json.loads((staged / name).read_text())
        for name in ("adapter_config.json", "config.json", "recipe.json", f"{result}/results.json")
    )
    assert (adapter["base_model_name_or_path"], adapter["revision"], adapter["r"]) == ("user/base", "f" * 40, 2)
    assert config["aggregation"] == "gram" and config["auto_map"]["AutoModel"] == "modeling_scalar.ScalarModel"
    assert recipe == {"model": "model", "seed": 1, "output_dir": "runs/x"}
    assert written["arguments"] == {"root": "x"} and written["problems"] == ["b.mp4: no sound"]
    assert written["gallery"]["ids"] == ["/data/a.mp4", "b"]  # they are hashed, and stay


# Card ---------------------------------------------------------------------------------------------------------------


def test_the_card_of_an_adapter_has_the_content_of_its_files(tmp_path):
    folder = make_adapter(tmp_path)
    details = Details({"license": "apache-2.0", "language": ["en"]})
    body = write_card(folder, adapter_card(folder, "user/adapter", details)).text
    data = ModelCard.load(folder / "README.md").data
    assert len(data.eval_results) == len(eval_results(read_results(folder))) == 28
    assert (data.library_name, data.base_model, data.license) == ("peft", "user/base", "apache-2.0")
    assert {"video-retrieval", "scalar", "lora"} <= set(data.tags)
    assert data.co2_eq_emissions["emissions"] == 1.2 and data.co2_eq_emissions["geographical_location"] == "Italy"
    for part in (
        "A LoRA adapter of 18 parameters for [user/base](https://huggingface.co/user/base)",
        f"at the commit `{COMMIT}`",
        f'from_pretrained("user/base", revision="{COMMIT}", config=config, trust_remote_code=True)',
        "| `r` | `8` |",
        "| total | 18 |",
        "Hardware: 4 x NVIDIA A100-SXM4-64GB.",
        "Time: 0:03 (hours and minutes).",
        f"commit `{'b' * 40}` with local changes",
        f"Gallery: 100 clips, SHA-256 `{make_content()['gallery']['sha256']}`; clips with video: 78 (78%)",
        "| SCALAR (own) | 91.0 |",
        "](results/miniature-test/results.png)",
        "This benchmark is synthetic",
        "No clip was left out.",
        "**Direction.**",
        "@article{mehrish2026scalar",
    ):
        assert part in body
    assert "not recorded" not in body and "missing in the base" not in body


def test_the_card_of_a_continued_adapter_names_all_its_trainings(tmp_path):
    folder = make_adapter(tmp_path)
    first = {"model": "runs/first", "recipe": RECIPE | {"model": "checkpoints/vast"}, "training": TRAINING}
    second = {"model": "runs/second", "recipe": {}, "training": TRAINING | {"global_step": 7, "continues": first}}
    write_json(TRAINING | {"continues": second}, folder / "training.json")
    body = write_card(folder, adapter_card(folder, "user/adapter", Details())).text
    assert "- Continues `runs/second` in 7 steps of 64 examples, made 2026-11-20" in body
    trained = "- Continues `runs/first`, made from `checkpoints/vast` by training on `miniature` in 1,840 steps"
    assert body.index("`runs/second`") < body.index(trained)


def test_an_adapter_on_the_hub_scores_as_trained_on_its_base_as_it_was(hub, adapter_dir, model_dir, batch):
    """By its id, with another score than its base, of which the Hub has got a newer commit with other weights."""
    push_model(model_dir, "user/base", api=hub.api())
    push_adapter(adapter_dir, "user/adapter", api=hub.api())
    with torch.no_grad():
        expected = load_model(adapter_dir)[0](**batch).scores
        newer = ScalarModel.from_pretrained(model_dir)
        newer.text_projection.weight += 1
        newer.video_projection.weight += 1
        newer.save_pretrained(model_dir)
        push_model(model_dir, "user/base", api=hub.api())
        for model in (
            AutoModel.from_pretrained("user/adapter", trust_remote_code=True),
            ScalarModel.from_pretrained("user/adapter"),
            load_model("user/adapter")[0],
        ):
            assert model.config.aggregation == "gram"
            assert torch.equal(model.eval()(**batch).scores, expected)
    base = AutoModel.from_pretrained("user/base", trust_remote_code=True)
    for load in (
        lambda: AutoPeftModelForFeatureExtraction.from_pretrained("user/adapter", trust_remote_code=True),
        lambda: PeftModel.from_pretrained(base, "user/adapter"),
        lambda: AutoModel.from_pretrained("user/base", trust_remote_code=True).load_adapter("user/adapter"),
    ):
        with pytest.raises(ValueError, match="trained with {'aggregation': 'gram'}"):
            load()


# The base -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushed(hub, model_dir):
    """The commit of the base of an adapter on the Hub, which its folder records."""
    push_model(model_dir, "user/base", api=hub.api())
    return hub.repo("user/base").head.sha


def test_the_base_is_found_where_its_folder_was_pushed(hub, adapter_dir, model_dir, pushed):
    found = find_base(hub.api(), adapter_dir, None)
    assert (found.repo_id, found.revision) == ("user/base", pushed)
    with hub.offline():
        assert find_base(hub.api(), adapter_dir, None, offline=True) == found
    weights = load_file(model_dir / "model.safetensors")
    weights["text_projection.weight"] += 1
    save_tensors(weights, model_dir / "model.safetensors")
    with pytest.raises(ValueError, match="user/base at .* has other weights than expected"):
        find_base(hub.api(), adapter_dir, None)


def test_a_base_that_was_not_pushed_or_is_gone_has_to_be_named(hub, adapter_dir, model_dir, pushed):
    record = json.loads((model_dir / "hub.json").read_text())
    write_json(record | {"endpoint": "https://huggingface.co"}, model_dir / "hub.json")
    with pytest.raises(ValueError, match=f"publish model {model_dir} user/name.*--base"):
        find_base(hub.api(), adapter_dir, None)
    shutil.rmtree(model_dir)
    with pytest.raises(ValueError, match="has not been pushed.*--base"):
        find_base(hub.api(), adapter_dir, None)
    with pytest.raises(PublishError, match="The model user/nowhere does not exist.*--base names another"):
        find_base(hub.api(), adapter_dir, "user/nowhere")
    assert find_base(hub.api(), adapter_dir, "user/base") == PublishedModel("user/base", pushed)


def test_a_base_that_was_loaded_from_the_hub_keeps_its_revision(hub, adapter_dir, pushed):
    new = hub.api().upload_file(path_or_fileobj=b"x", path_in_repo="notes.txt", repo_id="user/base").oid
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    for revision, expected in ((None, new), (pushed, pushed)):
        named = {"base_model_name_or_path": "user/base", "revision": revision}
        write_json(config | named, adapter_dir / "adapter_config.json")
        assert find_base(hub.api(), adapter_dir, None) == PublishedModel("user/base", expected)
