"""Search and evaluation with PE-AV as its publisher has it: a vector of the text for each modality."""

import json

import pytest
import torch

from eval.run import RunConfig
from eval.run import run as evaluate
from gallery.gallery import Gallery
from modeling_scalar import load_model
from tests.pe_av import without_timm, write_pe_av
from tests.search.small_folder import run, write_clips


@pytest.fixture
def place(tmp_path, monkeypatch):
    without_timm(monkeypatch)
    write_pe_av(tmp_path / "pe-av")
    write_clips(tmp_path / "clips")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_indexed_and_found_by_its_folder(place):
    assert "2 new" in run("index", "clips", "--model", "pe-av", "--output", "gallery", "--dtype", "float32")
    gallery = Gallery.open("gallery")
    names = [name.rsplit("/")[-1] for name in gallery.clip_ids]
    presence = dict(zip(names, gallery.modality_mask.tolist(), strict=True))
    assert presence == {"both.mkv": [True, True], "sound.wav": [False, True]}
    assert gallery.metadata["is_encoder"] is True

    model, processor = load_model("pe-av")
    clip = processor.read_clip(place / "clips" / "both.mkv")
    with torch.no_grad():
        expected = model(**processor(text="a dog", clips=[clip]))
    stored = gallery.modality_embeds()[names.index("both.mkv")]
    torch.testing.assert_close(stored, expected.modality_embeds[0], atol=1e-6, rtol=0)
    (found,) = json.loads(run("query", "gallery", "a dog", "--json"))
    hit = next(hit for hit in found["hits"] if hit["path"].endswith("both.mkv"))
    assert hit["score"] == pytest.approx(expected.scores.item(), abs=1e-5)
    assert "2 unchanged" in run("index", "clips", "--model", "pe-av", "--output", "gallery")


def test_it_is_evaluated_with_the_scores_that_take_its_texts(place):
    captions = {"both.mkv": "a dog", "sound.wav": "a bell"}
    rows = [f"{name},{text},{place / 'clips' / name}" for name, text in captions.items()]
    (place / "clips.csv").write_text("\n".join(["video_id,caption,video_path", *rows]) + "\n")
    evaluate(RunConfig("out", "pe-av", "own", "clips.csv", rates=(0.0,), progress=False))
    result = json.loads((place / "out" / "results.json").read_text())
    (rate,) = result["retrieval"]["rates"]
    assert "scalar" in rate["methods"] and "gram" not in rate["methods"]
