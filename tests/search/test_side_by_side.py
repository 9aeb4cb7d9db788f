"""Encoders side by side, from the first index to a published gallery and trained heads."""

import json

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from evidence.miniature.generation import generate
from scalar_retrieval.eval.__main__ import app as eval_app
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.querying import QueryModel
from scalar_retrieval.hub_cards.__main__ import app as hub_app
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.light_model import text_folder
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.search.__main__ import app as search_app
from scalar_retrieval.search.service.app import build_app
from scalar_retrieval.search.service.archive import Archive
from scalar_retrieval.search.settings import open_searcher
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import train
from tests.dual_encoders import WRITERS
from tests.search.small_folder import write_clips
from tests.search.test_service import ADDRESS

pytestmark = pytest.mark.e2e

MODALITIES = ("video", "audio", "title", "subtitle", "screen")


def run(app, *arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def hits_of(*arguments):
    """What a query finds, by its name."""
    result = CliRunner().invoke(search_app, ["query", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    return {hit["path"].rpartition("/")[2]: hit["score"] for hit in found["hits"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    for name, write in WRITERS.items():
        write(folder / name)
    write_clips(folder / "clips")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "picture.png")
    return folder


def test_a_folder_is_indexed_and_searched_by_three_encoders(place, monkeypatch, postgres):
    monkeypatch.chdir(place)
    name = f"clip+clap+{text_folder()}"
    run(search_app, "index", "clips", "--model", name, "--output", "gallery")
    gallery = Gallery.open("gallery")
    assert gallery.modalities == MODALITIES
    assert gallery.metadata["modality_slices"] == [[0, 12], [12, 32], [32, 416], [32, 416], [32, 416]]
    assert gallery.fingerprint == identify(name).fingerprint
    # The same encoders go on, by any of their names; others are refused.
    assert "2 unchanged" in run(search_app, "index", "clips", "--output", "gallery")
    (place / "moved").symlink_to("clip")
    found = hits_of("gallery", "a dog")
    assert list(found) == list(hits_of("gallery", "a dog", "--model", f"moved+clap+{text_folder()}"))
    other = f"siglip+clap+{text_folder()}"
    assert "Embeddings of different models" in run(search_app, "query", "gallery", "a", "--model", other, code=1)
    # A picture has a vector of its own encoder alone.
    likeness = gallery.load_model(device="cpu").embed_file("picture.png")
    assert likeness.embeds[0].any() and not likeness.embeds[:, 12:].any() and likeness.mask.tolist()[1:] == [False] * 4
    assert next(iter(hits_of("gallery", "--like", "picture.png"))) == "both.mkv"
    # A table answers as the gallery does.
    table = f"{postgres(1)[0].new_database()}/clips"
    run(search_app, "push", "gallery", table)
    assert hits_of(table, "a dog") == pytest.approx(found, abs=1e-5)


def test_an_encoder_of_pictures_alone_sees_and_reads_if_asked_to(place, monkeypatch):
    monkeypatch.chdir(place)
    said = run(search_app, "index", "clips", "--model", "siglip", "--output", "seen")
    assert Gallery.open("seen").modalities == ("video",) and "texts that are queries" not in said
    said = run(search_app, "index", "clips", "--model", "siglip", "--output", "read", "--text", "title")
    assert Gallery.open("read").modalities == ("video", "title") and "texts that are queries" in said
    assert list(hits_of("seen", "--like", "picture.png")) == ["both.mkv"]


def test_galleries_of_encoders_side_by_side_are_served_published_and_evaluated(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generate(tmp_path / "data", num_train=6, num_validation=0, num_test=4, num_proc=1)
    name = f"{place / 'clip'}+{place / 'clap'}+{text_folder()}"
    run(search_app, "index", "data/test", "--model", name, "--output", "gallery")
    expected = list(hits_of("gallery", "a red star").values())

    archive = Archive(open_searcher("gallery"), QueryModel(*load_model(name, modalities=list(MODALITIES))), "gallery")
    with TestClient(build_app(archive, None, ()), ADDRESS) as client:
        answer = client.post("/api/search", json={"query": "a red star"}).json()
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx(expected, abs=1e-5) and len(expected) == 4

    run(hub_app, "gallery", "gallery", "user/gallery", "--dry-run", "published")
    assert "clip+clap+model" in (tmp_path / "published" / "README.md").read_text()
    assert Gallery.open("published").metadata["local_model"] == "clip+clap+model"

    source = ["--model", name, "--benchmark", "miniature", "--root", "data"]
    run(eval_app, "run", *source, "--output", "results", "--depth", 0)
    assert json.loads((tmp_path / "results" / "results.json").read_text())["gallery"]["num_clips"] == 4

    # Heads are trained on stored vectors.
    run(eval_app, "embed", *source, "--split", "train", "--output", "stored")
    recipe = {
        "model": name, "benchmark": "miniature", "root": "data", "features": "stored", "adapter": "heads",
        "output_dir": "heads", "matching_weight": 0, "semantic_weight": 0, "max_steps": 2, "learning_rate": 5e-2,
        "per_device_train_batch_size": 6, "fp16": False, "loss_warmup_steps": 0, "full_view_decay_steps": 0,
        "dataloader_num_workers": 0, "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    train(*parse_arguments(["recipe.json"]))
    model, _ = load_model("heads")
    for head, width in ((model.audio_head, 20), (model.text_head, 416)):
        assert head.weight.shape[0] == width and head.weight.any()
    assert identify("heads").fingerprint != identify(name).fingerprint
