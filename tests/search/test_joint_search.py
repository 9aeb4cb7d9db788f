"""Search with a joint encoder as its publisher has it, without training or conversion."""

import json

import pytest
import torch
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.search.__main__ import app
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav
from tests.search.further import index_with
from tests.search.small_folder import run, write_clips


@pytest.fixture
def place(tmp_path, monkeypatch):
    write_joint_encoder(tmp_path / "encoder")
    folder = write_clips(tmp_path / "clips")
    (folder / "click.wav").write_bytes(wav(tone(479)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_indexed_and_found_by_a_joint_encoder(place, monkeypatch):
    index_with(monkeypatch, dtype="float32")
    reported = run("index", "clips", "--model", "encoder", "--output", "gallery")
    assert "2 new, 0 changed, 0 unchanged, 1 unreadable" in reported and "30 ms" in reported
    both, gallery = str(place / "clips" / "both.mkv"), Gallery.open("gallery")
    model, processor = load_model("encoder")
    clip = processor.read_clip(both)
    assert clip.duration == pytest.approx(2, abs=0.05)  # of 44.1 kHz, in the encoder's 16
    with torch.no_grad():
        expected, mask = model.get_modality_features(**processor(clips=[clip]))
        score = model(**processor(text="a dog", clips=[clip])).scores.item()
    row = gallery.row_of(both)
    torch.testing.assert_close(gallery.modality_embeds()[row], expected[0], atol=1e-6, rtol=0)
    assert gallery.modality_mask[row].equal(mask[0])
    (found,) = json.loads(run("query", "gallery", "a dog", "--json"))
    hit = next(hit for hit in found["hits"] if hit["path"] == both)
    assert hit["score"] == pytest.approx(score, abs=1e-5) and sum(hit["weights"].values()) == pytest.approx(1)


def test_other_prompts_are_another_model_to_a_gallery(place):
    run("index", "clips", "--model", "encoder", "--output", "gallery")
    path = place / "encoder" / "config_sentence_transformers.json"
    path.write_text(path.read_text().replace("search result", "fact checking"))
    result = CliRunner().invoke(app, ["query", "gallery", "a dog"])
    assert result.exit_code == 1 and "Embeddings of different models" in result.output, result.output
