"""Search and evaluation with PE-AV as its publisher has it: a vector of the text for each modality."""

import json

import pytest
import torch
from typer.testing import CliRunner

from eval.run import RunConfig
from eval.run import run as evaluate
from gallery.gallery import Gallery
from modeling_scalar import load_model
from search.__main__ import app
from tests.media_corpus import media, tone, wav
from tests.pe_av import without_timm, write_pe_av


@pytest.fixture
def place(tmp_path, monkeypatch):
    without_timm(monkeypatch)
    write_pe_av(tmp_path / "pe-av")
    clips = tmp_path / "clips"
    clips.mkdir()
    (clips / "both.mkv").write_bytes(media("matroska", "mjpeg", "pcm_s16le", sampling_rate=44_100))
    (clips / "both.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na dog barks\n")
    (clips / "sound.wav").write_bytes(wav(tone(16_000)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_files_are_indexed_and_found_by_its_folder(place):
    assert "2 new" in run("index", "clips", "--model", "pe-av", "--output", "gallery", "--dtype", "float32")
    gallery = Gallery.open("gallery")
    names = [name.rsplit("/")[-1] for name in gallery.clip_ids]
    presence = dict(zip(names, gallery.modality_mask.tolist(), strict=True))
    assert presence == {"both.mkv": [True, True, False], "sound.wav": [False, True, False]}
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
