"""Joint encoders are published as other models are: the same scores elsewhere, and cards that say what they are."""

import json
import re
import shlex
import shutil
from importlib.metadata import distribution

import pytest
import torch
from huggingface_hub import ModelCard
from packaging.requirements import Requirement

from gallery.gallery import GalleryWriter
from gallery.provenance import describe
from hub_cards.adapter import adapter_card, stage_adapter
from hub_cards.card import Details
from hub_cards.gallery import gallery_card, stage_gallery
from hub_cards.hub.publishing import Published, write_record
from hub_cards.model import model_card, stage_model
from modeling_scalar import load_model
from modeling_scalar.model_identity import identify
from tests.conftest import ROOT
from tests.hub_cards.clean_environment import CleanEnvironment
from tests.hub_cards.evidence.test_runs import RECIPE, TRAINING
from tests.hub_cards.folders import names, write_card, write_json
from tests.hub_cards.pushing import Target, push_adapter, push_gallery, push_model
from tests.hub_cards.test_round_trip import INPUTS, SCORE, blocks, scores_here
from tests.joint_encoders import write_joint_encoder
from trainer.lora import apply_adapters, count_parameters

DETAILS = Details({"license": "apache-2.0", "language": ["en"]})
LICENSED = "The base has its own licence."


def scores_of(model, processor):
    space = {}
    exec(INPUTS, space)
    with torch.no_grad():
        return model(**processor(**space["INPUTS"])).scores


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
    counts = {
        kind: count_parameters(model, trainable)
        for kind, trainable in (("trainable_parameters", True), ("frozen_parameters", False))
    }
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


def card_of_adapter(source, staged):
    stage_adapter(source, staged, "user/encoder", "f" * 40)
    return write_card(staged, adapter_card(staged, "user/adapter", DETAILS))


def test_the_card_of_a_joint_model_says_what_it_is(made, staged):
    stage_model(made / "model", staged)
    card = write_card(staged, model_card(staged, "user/joint", DETAILS))
    assert {"modeling_joint_scalar.py", "configuration_joint_scalar.py", "processing_joint_scalar.py"} <= names(staged)
    config = json.loads((staged / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "configuration_joint_scalar.ScalarJointConfig",
        "AutoModel": "modeling_joint_scalar.ScalarJointModel",
    }
    number = sum(count_parameters(load_model(staged)[0]).values())
    for part in (
        "One encoder, `embedding_gemma2` (2 layers), embeds queries and the video, audio, subtitle of clips into one",
        "sphere of\n24 dimensions. There is no cross-encoder, so no second stage. It has",
        f"It has {number:,} parameters.",
        "| `language_model` | ",
        "This model has a joint encoder, which the paper does not cover.",
    ):
        assert part in card.text, part
    for stranger in ("towers are", "EVA", "BEATs", "model.match", " head"):
        assert stranger not in card.text, stranger


@pytest.mark.parametrize(
    ("run", "expected", "strange"),
    [
        (
            "heads",
            [
                "\nHeads of 2,304 parameters for [user/encoder]",
                "With them the model finds",
                "each behind a linear head of its own",
                "| `adapter` | `heads` |",
                "| `video_head` | 576 |",
                "Weights of `audio_head` and `subtitle_head` and `text_head` and `video_head` are reported as missing",
            ],
            ["LoRA"],
        ),
        (
            "every",
            [
                "\nA LoRA adapter of ",
                "| `adapter` | `trunk,video,audio,heads` |",
                "| `r` | 8 |",
                "| `vision_tower` | ",
            ],
            [],
        ),
        (
            "trunk",
            ["| `adapter` | `trunk` |", "| `language_model` | 1,088 |", "| total | 1,088 |"],
            [" head", "reported as missing"],
        ),
    ],
)
def test_the_card_of_an_adapter_says_what_is_trained(made, staged, run, expected, strange):
    card = card_of_adapter(made / run, staged)
    shared = [
        "One encoder, `embedding_gemma2`",
        "There is no cross-encoder",
        f"at the commit `{'f' * 40}`",
        LICENSED,
        "config=config",
    ]
    for part in [*expected, *shared]:
        assert part in card.text, part
    for stranger in ("towers are", "EVA", "BEATs", "model.match", *strange):
        assert stranger not in card.text, stranger
    assert (card.data.base_model, card.data.license) == ("user/encoder", "apache-2.0")
    assert ("lora" in card.data.tags) == (run != "heads")


def test_a_merged_joint_model_scores_as_its_adapter(made, staged):
    stage_model(made / "every", staged, merge=True)
    assert not any("lora" in name for name in load_model(staged)[0].state_dict())
    torch.testing.assert_close(scores_here(staged), scores_here(made / "every"), atol=1e-6, rtol=0)
    assert (scores_here(staged) - scores_here(made / "encoder")).abs().max() > 1e-3


def write_gallery(folder, model, **metadata):
    """A gallery of one clip."""
    vectors = torch.nn.functional.normalize(torch.randn(1, 3, 24), dim=-1)
    with GalleryWriter(folder) as writer:
        writer.metadata = {"model": str(model), "query_temperature": 0.1} | metadata
        writer.put_clips(["clip"], vectors, torch.ones(1, 3, dtype=torch.bool))
        writer.commit()
    return folder


EMBEDDED_BY = {
    "encoder": ("SentenceTransformer(", "sentence-transformers[image]"),
    "model": ("AutoModel.from_pretrained(", '"transformers>=5.23" "peft>=0.21"'),
    "adapter": ("PeftModel.from_pretrained(", '"transformers>=5.23" "peft>=0.21"'),
}


def kind_on(card):
    """What kind of model texts are embedded with by a card, `None` if it does not say."""
    for block in blocks(card, "python"):
        compile(block, "card", "exec")
    kinds = [kind for kind, parts in EMBEDDED_BY.items() if all(part in card for part in parts)]
    assert len(kinds) <= 1, kinds
    if not kinds:
        assert "pip install datasets torch\n" in card and not any(word in card for word in ("import Auto", "[image]"))
        assert card.count("](https://huggingface.co/user/named)") == 2 and "describes how" in card
    return kinds[0] if kinds else None


def upload(hub, folder, repo_id, patterns=("*.json",)):
    """A model on the Hub, without its weights unless they are asked for."""
    owner = repo_id.split("/")[0]
    api = hub.api() if owner == "user" else hub.api(hub.add_user(owner))
    api.create_repo(repo_id)
    api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=list(patterns))
    return hub.repo(repo_id)


def pushed_card(hub, gallery, model=None):
    push_gallery(gallery, Target("user/gallery"), DETAILS, model=model, api=hub.api())
    return hub.repo("user/gallery", "dataset").files()["README.md"].decode()


@pytest.mark.parametrize(("kind", "name"), [("encoder", "encoder"), ("model", "model"), ("adapter", "heads")])
def test_the_card_of_a_gallery_embeds_texts_with_the_kind_of_model_that_is_named(made, hub, tmp_path, kind, name):
    """Whatever lies on this machine, and under the name that the gallery has for it."""
    upload(hub, made / name, "user/named")
    for number, made_by in enumerate(("user/named", made / "encoder", made / "model", "/gone/model")):
        card = pushed_card(hub, write_gallery(tmp_path / str(number), made_by), "user/named")
        assert kind_on(card) == kind and '"user/named"' in card, made_by


def test_a_configuration_that_cannot_be_read_stops_no_gallery(made, hub, tmp_path):
    upload(hub, made / "model", "somebody/gated").gated = "manual"
    upload(hub, made / "model", "somebody/damaged")
    somebody = hub.api(hub.add_user("somebody"))
    somebody.upload_file(path_or_fileobj=b"{", path_in_repo="config.json", repo_id="somebody/damaged")
    for name in ("somebody/gated", "somebody/damaged"):
        card = pushed_card(hub, write_gallery(tmp_path / name, tmp_path / "gone"), name)
        assert kind_on(card.replace(name, "user/named")) is None


def test_a_damaged_folder_stops_no_gallery_that_names_another_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    stage_gallery(write_gallery(tmp_path / "gallery", tmp_path / "model"), tmp_path / "staged", "user/named")
    assert kind_on(gallery_card(tmp_path / "staged", "user/gallery", DETAILS)) is None


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({}, None),
        ({"is_encoder": True}, "encoder"),
        ({"is_encoder": False}, "model"),
        ({"is_encoder": False, "weights": {"adapter_model.safetensors": "0" * 64}}, "adapter"),
        ({"is_encoder": True, "model": "google/embeddinggemma-2"}, None),  # another one is named
    ],
)
def test_a_dry_run_knows_the_kind_of_the_model_from_the_gallery_alone(tmp_path, metadata, kind):
    gallery = write_gallery(tmp_path / "gallery", **{"model": "user/named"} | metadata)
    push_gallery(gallery, Target("user/gallery"), DETAILS, model="user/named", output=tmp_path / "staged")
    assert kind_on((tmp_path / "staged" / "README.md").read_text()) == kind


@pytest.mark.parametrize(("name", "kind"), [("model", "model"), ("heads", "adapter")])
def test_a_pushed_folder_tells_the_kind_of_the_model(made, hub, tmp_path, name, kind):
    folder = shutil.copytree(made / name, tmp_path / name)
    write_record(folder, hub.url, Published("user/named", "f" * 40, hub.url, None, True))
    gallery = write_gallery(tmp_path / "gallery", folder, weights=identify(folder).weights)
    push_gallery(gallery, Target("user/gallery"), DETAILS, output=tmp_path / "staged", api=hub.api())
    card = (tmp_path / "staged" / "README.md").read_text()
    assert kind_on(card) == kind and f'snapshot_download("user/named", revision="{"f" * 40}")' in card


@pytest.mark.parametrize(("name", "is_encoder"), [("encoder", True), ("model", False), ("heads", False)])
def test_a_gallery_notes_whether_an_encoder_without_code_made_it(made, name, is_encoder):
    model, _ = load_model(made / name)
    assert describe(model, made / name)["is_encoder"] is is_encoder


def test_what_the_card_of_an_encoders_gallery_installs_reads_pictures(tmp_path):
    """Without torchvision the encoder's processor cannot be made, not even for texts."""
    gallery = write_gallery(tmp_path / "gallery", "user/named", is_encoder=True)
    stage_gallery(gallery, tmp_path / "staged", "user/named")
    card = gallery_card(tmp_path / "staged", "user/gallery", DETAILS)
    _, install = re.findall(r"^pip install (.*)$", card, re.MULTILINE)
    wanted, found = [Requirement(name) for name in shlex.split(install)], set()
    while wanted:
        one = wanted.pop()
        found.add(one.name)
        for line in (distribution(one.name).requires or []) if one.extras else []:
            needed = Requirement(line)
            if needed.marker and any(needed.marker.evaluate({"extra": extra}) for extra in one.extras):
                wanted.append(needed)
    assert {"torchvision", "pillow"} <= {name.lower() for name in found}


OF_THE_CARD = """
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

if find_spec("torchvision") is None:
    sys.path.insert(0, {root!r})
    from tests.modeling_scalar.joint_reference import stand_in

    stand_in()
space = {{}}
for block in Path("card.md").read_text().split("```python\\n")[1:]:
    exec(block.split("```")[0], space)
torch.save(space["query"], "found.pt")
"""


@pytest.mark.slow
def test_the_snippet_takes_the_encoder_as_it_is_published(made, hub, run_python, tmp_path):
    upload(hub, made / "encoder", "user/encoder", patterns=["*"])
    (tmp_path / "card.md").write_text(pushed_card(hub, write_gallery(tmp_path / "gallery", "user/encoder")))
    run_python(OF_THE_CARD.format(root=str(ROOT)))
    model, processor = load_model(made / "encoder")
    with torch.no_grad():
        expected = model.get_text_features(**processor(text=["a low bell"])).pooler_output[0]
    torch.testing.assert_close(torch.load(tmp_path / "found.pt"), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_same_scores_elsewhere(made, hub, tmp_path):
    """By every way to load and by the snippets of the cards, with torch, transformers and peft alone."""
    api = hub.api()
    api.create_repo("user/encoder")
    api.upload_folder(repo_id="user/encoder", folder_path=made / "encoder")
    push_model(made / "model", Target("user/joint"), DETAILS, api=api)
    push_adapter(made / "trunk", Target("user/trunk"), DETAILS, api=api)
    push_model(made / "every", Target("user/merged"), DETAILS, merge=True, api=api)
    for name in ("heads", "every"):
        push_adapter(made / name, Target(f"user/{name}"), DETAILS, base="user/encoder", api=api)
    loaded = {
        "joint": "AutoModel.from_pretrained('user/joint', trust_remote_code=True)",
        "merged": "AutoModel.from_pretrained('user/merged', trust_remote_code=True)",
        "trunk": "AutoPeftModelForFeatureExtraction.from_pretrained('user/trunk', trust_remote_code=True)",
    }
    script = SCORE + "from peft import AutoPeftModelForFeatureExtraction\n"
    script += "".join(f"found[{name!r}] = scores({how}, 'user/{name}')\n" for name, how in loaded.items())
    for name in ("heads", "every", "trunk"):
        card = ModelCard(hub.repo(f"user/{name}").files()["README.md"].decode())
        (install,) = re.findall(r"^pip install (.*)$", card.text, re.MULTILINE)
        assert install == 'torch "transformers>=5.23" "peft>=0.21"'
        code = blocks(card.text, "python")
        assert "PeftModel.from_pretrained(base" in code[0] and "model_class.from_pretrained(name" in code[-2]
        for way, snippet in (("peft", code[0]), ("transformers", code[0] + code[-2])):
            script += f"space = {{}}\nexec({snippet!r}, space)\n"
            script += f"found['{name} by {way}'] = scores(space['model'], 'user/{name}')\n"
        snippets = "\n".join(code)
        script += f"exec(compile({snippets!r}, 'card', 'exec'), {{'__name__': '__main__'}})\n"
    script += "print(json.dumps(found))\n"
    environment = CleanEnvironment(tmp_path / "packages", ["torch", "transformers", "peft"])
    found = json.loads(environment.run(script, hub.env(tmp_path / "home"), tmp_path).splitlines()[-1])
    here = {name: scores_here(made / name) for name in ("encoder", "heads", "every", "trunk")}
    assert len({tuple(scores.flatten().tolist()) for scores in here.values()}) == 4
    expected = {"joint": here["encoder"], "merged": here["every"], "trunk": here["trunk"]}
    for name in ("heads", "every", "trunk"):
        expected |= {f"{name} by peft": here[name], f"{name} by transformers": here[name]}
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        torch.testing.assert_close(torch.tensor(found[name]), scores, atol=1e-6, rtol=0, msg=name)
