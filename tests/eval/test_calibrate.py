"""`python -m eval calibrate`: where queries come from, what is said, and what is written where."""

import json

import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from eval.__main__ import app
from eval.calibrate import CalibrateConfig, calibrate, subtitle_queries
from eval.embedding.embeddings import Embeddings, load_embeddings
from gallery.gallery import Gallery, GalleryWriter
from modeling_scalar import MODALITIES, load_model
from modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from modeling_scalar.loading_scalar import model_fingerprint
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from search.__main__ import app as search
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import media


class Scores(ScalarRetrievalModel):
    """No encoder at all: a folder with a configuration and a weight."""

    config_class = ScalarJointConfig

    def __init__(self, config):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()


def write_embeddings(folder, metadata, num_clips=60, gap=True):
    """Captions of one modality each; with a gap video's cosines lie above the others and win every query."""
    generator = torch.Generator().manual_seed(0)
    facts = normalize(torch.randn(num_clips, 3, 32, generator=generator), dim=-1)
    texts = facts[torch.arange(num_clips), torch.arange(num_clips) % 3]
    texts = normalize(texts + 0.5 * torch.randn(num_clips, 32, generator=generator) / 32**0.5, dim=-1)
    if gap:
        way = normalize(torch.randn(32, generator=generator), dim=-1)
        facts[:, 0], texts = normalize(facts[:, 0] + 1.5 * way, dim=-1), normalize(texts + 1.5 * way, dim=-1)
    names = [f"{row}" for row in range(num_clips)]
    mask = torch.ones(num_clips, 3, dtype=torch.bool)
    pairs = torch.arange(num_clips)[:, None].expand(-1, 2)
    Embeddings(texts, facts, mask, pairs, names, names, names, metadata=metadata).save(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Scores(ScalarJointConfig(has_logit_scale=True, initializer_range=0.03)).save_pretrained("model")
    told = {"method": "scalar", "query_temperature": 0.1}
    metadata = {"model": "model", "query_temperature": 0.1, "score_options": told, "note": "kept"}
    write_embeddings("gallery", metadata | {"fingerprint": model_fingerprint("model")})
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_gain_is_told_and_written_only_when_asked(place):
    config, metadata = (place / "model" / "config.json").read_bytes(), Gallery.open("gallery").metadata
    told = run("--embeddings", "gallery", "--output", "out", "--scale-offset", "--folds", 2)
    assert "60 queries, 60 clips, 2 folds" in told and "--write keeps it" in told
    assert "query temperature: 0.1 before" in told and "modality offset: video " in told
    report = json.loads((place / "out" / "calibration.json").read_text())
    assert report["is_better"] and report["written"] == [] and len(report["folds"]) == 2
    assert (place / "model" / "config.json").read_bytes() == config
    assert Gallery.open("gallery").metadata == metadata

    arguments = ["--embeddings", "gallery", "--output", "out", "--scale-offset", "--folds", 2, "--write"]
    told = run(*arguments, "--model", "model")
    assert "Written to model/config.json, gallery." in told
    fitted = json.loads((place / "out" / "calibration.json").read_text())["after"]
    assert fitted == report["after"] and set(fitted) == {"query_temperature", "modality_scale", "modality_offset"}
    # the model: these fields and no others
    assert json.loads((place / "model" / "config.json").read_text()) == json.loads(config) | fitted
    loaded = ScalarJointConfig.from_pretrained("model")
    assert loaded.modality_offset == fitted["modality_offset"] and loaded.initializer_range == 0.03
    # the gallery: how it is scored, and that it still belongs to the model
    gallery = Gallery.open("gallery")
    assert gallery.metadata["note"] == "kept" and gallery.query_temperature == fitted["query_temperature"]
    assert gallery.calibration == {name: fitted[name] for name in ("modality_scale", "modality_offset")}
    assert gallery.fingerprint == model_fingerprint("model") != metadata["fingerprint"]
    embeddings = load_embeddings("gallery")
    hits = gallery.search(embeddings.text_embeds, k=1)
    right = sum(hit.clip_id == name for (hit,), name in zip(hits, embeddings.query_ids, strict=True))
    plain = gallery.search(embeddings.text_embeds, 1, 0.1, modality_scale=[1, 1, 1], modality_offset=[0, 0, 0])
    assert right > sum(hit.clip_id == name for (hit,), name in zip(plain, embeddings.query_ids, strict=True)) + 5
    # once more: from there, there is nothing to gain
    assert "includes zero: keep what you have. Nothing was written." in run(*arguments, "--model", "model")


def test_what_is_no_gain_is_not_written(place):
    write_embeddings("even", {"model": "model", "query_temperature": 0.1}, gap=False)
    metadata = Gallery.open("even").metadata
    told = run("--embeddings", "even", "--output", "out", "--folds", 2, "--write")
    assert "The interval of the gain in MRR includes zero: keep what you have. Nothing was written." in told
    assert Gallery.open("even").metadata == metadata


def test_what_cannot_be_written_to_is_told_before_anything_is_read(place):
    write_joint_encoder(place / "encoder")
    gallery = ["--embeddings", "gallery", "--output", "out", "--write"]
    assert "a model on the Hub is not changed" in run(*gallery, "--model", "google/embeddinggemma-2", code=1)
    assert "an encoder as it is published" in run(*gallery, "--model", "encoder", code=1)
    (place / "adapter").mkdir()
    assert "without a configuration scores as its base" in run(*gallery, "--model", "adapter", code=1)
    assert "nothing to write to" in run("--embeddings", "x.npz", "--output", "out", "--write", code=1)
    assert "tell nothing of the cosines of subtitles" in run(*gallery, "--subtitles", "--scale-offset", code=1)
    assert "Subtitles as queries are those of a gallery's files" in run(
        "--embeddings", "x.npz", "--output", "out", "--subtitles", code=1
    )
    assert "Expected a model, a benchmark and its root, or embeddings" in run("--output", "out", code=1)
    assert not (place / "out").exists()


def test_a_score_without_weights_has_nothing_to_calibrate(place):
    with GalleryWriter("gallery") as writer:
        writer.metadata = writer.metadata | {"score_options": {"method": "gram"}}
        writer.commit()
    told = run("--embeddings", "gallery", "--output", "out", code=1)
    assert "Only the score 'scalar' weighs modalities by the query; this model's is 'gram'" in told


def test_subtitles_ask_for_picture_and_sound_of_their_clips():
    embeds = normalize(torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1]]).bool()
    texts = {"a": "hello", "b": "bye", "c": "alone", "e": "hello", "d": ""}
    asked = []

    def embed(captions):
        asked.append(captions)
        return normalize(torch.ones(len(captions), 8), dim=-1)

    found = subtitle_queries((list("abcde"), embeds, mask), texts, embed)
    assert asked == [["hello", "bye"]] and found.captions == ["hello", "bye"]
    assert found.clip_ids == ["a", "b", "d", "e"]  # what has a subtitle alone cannot be found
    assert found.pairs.tolist() == [[0, 0], [0, 3], [1, 1]]
    assert not found.modality_mask[:, MODALITIES.index("subtitle")].any() and mask[0].all()
    assert torch.equal(found.modality_embeds, embeds[[0, 1, 3, 4]])
    with pytest.raises(ValueError, match="None of 4 clips with picture or sound has a subtitle"):
        subtitle_queries((list("abcde"), embeds, mask), {}, embed)


@pytest.mark.slow
def test_subtitles_are_read_from_the_files_of_a_gallery_or_from_a_table(place):
    write_joint_encoder(place / "encoder")
    clips = place / "clips"
    clips.mkdir()
    lines = ["video_id,caption,video_path,audio_path,subtitle"]
    for number, words in enumerate(["a dog barks", "rain", "a tall red star", "bells", "bells"]):
        (clips / f"{number}.mkv").write_bytes(media("matroska", "mjpeg", "pcm_s16le"))
        (clips / f"{number}.srt").write_text(f"1\n00:00:00,000 --> 00:00:01,000\n{words}\n")
        lines.append(f"{number},caption {number},{clips}/{number}.mkv,{clips}/{number}.mkv,{words}")
    (place / "table.csv").write_text("\n".join(lines) + "\n")
    told = CliRunner().invoke(search, ["index", "clips", "--model", "encoder", "--output", "found"])
    assert told.exit_code == 0, told.output
    asked = CalibrateConfig("out", embeddings_path="found", subtitles=True, num_folds=2, progress=False)
    found, written = calibrate(asked)
    assert (found.num_queries, found.num_clips, written) == (4, 5, [])  # bells are asked for once
    assert json.loads((place / "out" / "calibration.json").read_text())["queries"] == "subtitles"

    table = ["--benchmark", "own", "--root", "table.csv", "--model", "encoder", "--folds", 2]
    assert "4 subtitles, 5 clips" in run(*table, "--output", "of_table", "--subtitles")
    assert "5 queries, 5 clips" in run(*table, "--embeddings", "found", "--output", "of_captions")
    # a model of its own keeps what was fitted
    model, processor = load_model("encoder")
    model.save_pretrained("own")
    processor.save_pretrained("own")
    assert "5 queries, 5 clips" in run(*table[:4], "--model", "own", "--folds", 2, "--output", "of_own", "--write")
