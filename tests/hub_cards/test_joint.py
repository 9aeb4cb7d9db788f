"""Joint encoders are published as other models are: the same scores elsewhere, and cards that say what they are."""

import re

import pytest
import torch

from scalar_retrieval.hub_cards.adapter import adapter_card, stage_adapter
from scalar_retrieval.hub_cards.card import Details
from scalar_retrieval.hub_cards.model import model_card, stage_model
from scalar_retrieval.hub_cards.publishing import PublishedModel
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.lora import apply_adapters, count_parameters
from tests.hub_cards.folders import blocks, names, write_card, write_json
from tests.hub_cards.pushing import push_adapter, push_model
from tests.hub_cards.records.test_runs import RECIPE, TRAINING
from tests.hub_cards.test_round_trip import scores_here, scores_of
from tests.joint_encoders import write_joint_encoder

DETAILS = Details({"license": "apache-2.0", "language": ["en"]})


def make_run(base, adapter, folder):
    """An adapter as a run leaves it, with an effect."""
    changes = {"has_heads": True} if "heads" in adapter else {}
    model, processor = load_model(base, **changes)
    torch.manual_seed(1)
    model = apply_adapters(model, adapter, matching=False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    model.get_base_model().config.save_pretrained(folder)
    processor.save_pretrained(folder)
    counts = {"trainable_parameters": count_parameters(model, True)}
    counts["frozen_parameters"] = count_parameters(model, False)
    write_json(TRAINING | counts, folder / "training.json")
    write_json(RECIPE | {"benchmark": "own", "adapter": adapter, "matching_weight": 0.0}, folder / "recipe.json")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An encoder as published, the same as a model of ours, and adapters of both."""
    folder = tmp_path_factory.mktemp("joint-published")
    write_joint_encoder(folder / "encoder")
    model, processor = load_model(folder / "encoder")
    model.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    make_run(folder / "encoder", "heads", folder / "heads")
    make_run(folder / "encoder", "trunk,video,audio,heads", folder / "every")
    make_run(folder / "model", "trunk", folder / "trunk")
    return folder


def test_the_card_of_a_joint_model_describes_one_encoder(made, staged):
    stage_model(made / "model", staged)
    card = write_card(staged, model_card(staged, "user/joint", DETAILS)).text
    assert {"modeling_joint_scalar.py", "configuration_joint_scalar.py", "processing_joint_scalar.py"} <= names(staged)
    number = sum(count_parameters(load_model(staged)[0]).values())
    for part in ("One encoder, `embedding_gemma2`, embeds", f"It has {number:,} parameters.", "has a joint encoder"):
        assert part in card, part
    assert not re.search(r"towers are|model\.match| head", card)


@pytest.mark.parametrize(
    ("run", "expected", "strange"),
    [
        (
            "heads",
            ["\nHeads of 2,304 parameters for [user/encoder]", "| `video_head` | 576 |", "are reported as missing"],
            "LoRA",
        ),
        ("every", ["\nA LoRA adapter of ", "| `adapter` | `trunk,video,audio,heads` |"], "BEATs"),
        ("trunk", ["| `adapter` | `trunk` |", "| total | 1,088 |"], "reported as missing"),
    ],
)
def test_the_card_of_a_joint_adapter_describes_what_is_trained(made, staged, run, expected, strange):
    stage_adapter(made / run, staged, PublishedModel("user/encoder", "f" * 40))
    card = write_card(staged, adapter_card(staged, "user/adapter", DETAILS))
    for part in [*expected, "One encoder, `embedding_gemma2`", f"at the commit `{'f' * 40}`"]:
        assert part in card.text, part
    assert not re.search(rf"towers are|model\.match|{strange}", card.text)
    assert ("lora" in card.data.tags) == (run != "heads")


def test_heads_without_a_base_that_others_can_load_are_refused(made, tmp_path, hub):
    model, _ = load_model("light", has_heads=True)
    model = apply_adapters(model, "heads", matching=False)
    model.save_pretrained(tmp_path / "run")
    model.get_base_model().config.save_pretrained(tmp_path / "run")
    with pytest.raises(ValueError, match="heads on a SentenceTransformer, .* cannot be published"):
        push_adapter(tmp_path / "run", "user/heads", dry_run=tmp_path / "out")
    with pytest.raises(ValueError, match=rf"--base, or upload it \(`hf upload ID {made / 'encoder'}`\)"):
        push_adapter(made / "heads", "user/heads")


@pytest.mark.e2e
@pytest.mark.parametrize("run", ["heads", "every", "trunk"])
def test_the_snippets_of_a_card_load_what_was_trained(made, hub, run):
    """By PEFT, and by transformers alone."""
    base = None
    if run == "trunk":
        push_model(made / "model", "user/joint")
    else:
        base = "user/encoder"
        hub.api().create_repo(base)
        hub.api().upload_folder(repo_id=base, folder_path=made / "encoder")
    push_adapter(made / run, "user/run", base=base)
    first, *others, last_but_one, _ = blocks(hub.repo("user/run").files()["README.md"].decode())
    expected = scores_here(made / run)
    space = {}
    for snippet in (first, "\n".join(others), last_but_one):
        exec(snippet, space)
        found = scores_of(space["model"], space["processor"])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (expected - scores_here(made / "encoder")).abs().max() > 1e-3
