"""`scalar eval calibrate`: where queries come from, what is said, and what is written where."""

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch.nn.functional import normalize
from transformers import AutoModel
from typer.testing import CliRunner

from scalar_retrieval.commands.errors import error_text
from scalar_retrieval.eval.__main__ import app
from scalar_retrieval.eval.calibrate import calibrate
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.fitting import _write, _write_model
from scalar_retrieval.eval.inputs import Inputs
from scalar_retrieval.eval.measuring import prepare
from scalar_retrieval.eval.protocol.calibration import MEASURES, Calibration
from scalar_retrieval.gallery import querying
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.scales import fit_scales
from scalar_retrieval.gallery.store.described import score_options_of
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel, load_model
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.eval.slow import make_embeddings
from tests.joint_encoders import write_joint_encoder
from tests.modeling_scalar.test_calibrated_scores import Scores
from tests.modeling_scalar.test_loading import save_adapter


def write_embeddings(folder, metadata, num_clips=60, gap=1.5):
    """Captions of one modality each; with a gap video's cosines lie above the others and win every query."""
    embeddings = make_embeddings(num_clips, 1, dim=32, noise=0.5, metadata=metadata)
    way = torch.nn.functional.normalize(torch.ones(32), dim=0)
    embeddings.modality_embeds[:, 0] += gap * way * embeddings.modality_mask[:, :1]
    embeddings.text_embeds += gap * way
    for name in ("text_embeds", "modality_embeds"):
        setattr(embeddings, name, normalize(getattr(embeddings, name), dim=-1))
    embeddings.save(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Scores(ScalarJointConfig(has_logit_scale=True, initializer_range=0.03)).save_pretrained("model")
    reported = {"method": "scalar", "query_temperature": 0.1}
    metadata = {"model": "model", "query_temperature": 0.1, "score_options": reported, "note": "kept"}
    write_embeddings("gallery", metadata | {"fingerprint": identify("model").fingerprint})
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def ids_of_queries(embeddings):
    return [name.replace("query", "clip") for name in embeddings.query_ids]


def check_least_score(gallery, report, embeddings):
    """Of the queries it was fitted to so many are reported as unmatched, and without their clips many."""
    least = gallery.least_score["score"]
    assert least == report["least_score"]["score"] and report["least_score_is_certain"]
    found = gallery.search(embeddings.text_embeds, k=2)
    doubtful = [hits[0].score < least for hits in found]
    assert doubtful == [hits.matches_well is False for hits in found]
    assert sum(doubtful) == 2  # floor(0.05 * 61) - 1
    others = [
        hits[hits[0].clip_id == clip].score for hits, clip in zip(found, ids_of_queries(embeddings), strict=True)
    ]
    assert sum(score < least for score in others) > 20


def test_a_gain_is_written_into_the_model_and_the_gallery(place):
    config, metadata = json.loads((place / "model" / "config.json").read_text()), Gallery.open("gallery").metadata
    arguments = ["--embeddings", "gallery", "--output", "out", "--scale-offset", "--write", "--model", "model"]
    reported = run(*arguments)
    assert "60 queries, 60 clips, 5 folds" in reported
    assert "Written to model/config.json, gallery." in reported
    report = json.loads((place / "out" / "calibration.json").read_text())
    assert report["is_better"] and report["written"] == ["model/config.json", "gallery"] and len(report["folds"]) == 5
    fitted = report["after"]
    assert set(fitted) == {"query_temperature", "modality_scale", "modality_offset"}
    # the model: these fields and no others
    assert json.loads((place / "model" / "config.json").read_text()) == config | fitted
    # the gallery: how it is scored, and that it still belongs to the model
    gallery, embeddings = Gallery.open("gallery"), Embeddings.load("gallery")
    assert gallery.metadata["note"] == "kept" and gallery.fingerprint == identify("model").fingerprint
    assert gallery.fingerprint != metadata["fingerprint"]
    assert {"query_temperature": gallery.query_temperature} | gallery.calibration == fitted
    right = []
    for numbers in ({}, {"query_temperature": 0.1, "modality_scale": [1, 1, 1], "modality_offset": [0, 0, 0]}):
        hits = gallery.search(embeddings.text_embeds, k=1, **numbers)
        right.append(sum(hit.clip_id == name for (hit,), name in zip(hits, ids_of_queries(embeddings), strict=True)))
    assert right[0] > right[1] + 5
    check_least_score(gallery, report, embeddings)
    # once more: from there, there is nothing to gain
    assert run(*arguments).endswith("keep your current settings.\nWritten to gallery.\n")
    assert Gallery.open("gallery").metadata == gallery.metadata  # the same one
    # and what is too low a score is no longer known where the weights are fitted anew
    with GalleryWriter("gallery") as writer:
        writer.metadata = writer.metadata | {"score_options": {"query_temperature": 0.3}}
        writer.commit()
    assert Gallery.open("gallery").least_score is None
    (hits, *_) = Gallery.open("gallery").search(embeddings.text_embeds, k=1)
    assert hits.matches_well is None


def test_what_is_no_gain_is_not_written(place):
    write_embeddings("even", {"model": "model", "query_temperature": 0.1}, num_clips=18, gap=0)
    metadata = Gallery.open("even").metadata
    reported = run("--embeddings", "even", "--output", "out", "--write")
    assert "Fewer than 19 clips" in reported and "Nothing was written" in reported
    assert Gallery.open("even").metadata == metadata


def test_where_nothing_is_gained_too_low_a_score_is_kept_of_the_numbers_that_there_were(place):
    write_embeddings("even", {"model": "model", "query_temperature": 0.05}, gap=0)
    before = Gallery.open("even").metadata
    command = ["--embeddings", "even", "--output", "out"]
    run(*command)
    assert Gallery.open("even").metadata == before
    assert "keep your current settings" in run(*command, "--write")
    report, gallery = json.loads((place / "out" / "calibration.json").read_text()), Gallery.open("even")
    assert report["written"] == ["even"] and gallery.metadata == before | {"least_score": gallery.least_score}
    check_least_score(gallery, report, Embeddings.load("even"))


def test_what_cannot_be_written_to_is_reported_before_anything_is_read(place):
    write_joint_encoder(place / "encoder")
    (place / "adapter").mkdir()
    (place / "clips.csv").touch()
    for model in ("google/embeddinggemma-2", "encoder", "adapter"):
        table = ["--benchmark", "own", "--root", "clips.csv", "--output", "out", "--model", model]
        assert "There is nothing to write to" in run(*table, "--write", code=1)
    assert not (place / "out").exists()


def write_clips(folder, ids, encoder, **metadata):
    """A gallery as `scalar index` writes it, but for its vectors, which are drawn."""
    embeds = normalize(torch.randn(len(ids), 3, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
    with GalleryWriter(folder) as writer:
        writer.metadata = {"model": str(encoder), "fingerprint": identify(encoder).fingerprint} | metadata
        writer.put_clips(ids, embeds, torch.ones(len(ids), 3, dtype=torch.bool))
        writer.commit()


def write_table(path, ids):
    lines = [f"{name},caption {number},,,words" for number, name in enumerate(ids)]
    path.write_text("\n".join(["video_id,caption,video_path,audio_path,subtitle", *lines]) + "\n")


def gains(low, high):
    """What a fit returns, with this interval."""
    measure = {"before": 50.0, "after": 60.0, "difference": (low + high) / 2, "low": low, "high": high}
    after = {"query_temperature": 0.04, "modality_offset": [0.0, 0.1, 0.2]}
    measures = dict.fromkeys(MEASURES, measure)
    return Calibration({"query_temperature": 0.1}, after, [after, after], measures, 6, 6, MODALITIES)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("calibrate") / "encoder")


def test_a_gallery_of_an_encoder_as_it_is_published_keeps_what_is_fitted_to_captions(place, encoder, monkeypatch):
    write_clips("videos", list("abcdef"), encoder, note="kept")
    write_table(place / "clips.csv", "abcdef")
    seen = []

    def fit(embeddings, *arguments, **options):
        seen.append((embeddings.captions, embeddings.clip_ids))
        return gains(1.0, 3.0)

    monkeypatch.setattr("scalar_retrieval.eval.fitting.calibrate_embeddings", fit)
    command = ["--benchmark", "own", "--root", "clips.csv", "--model", encoder, "--output", "out"]
    command += ["--embeddings", "videos"]
    metadata = Gallery.open("videos").metadata
    assert "The gain is above zero; --write saves it." in run(*command)
    assert Gallery.open("videos").metadata == metadata
    files = {path: path.stat().st_mtime_ns for path in encoder.rglob("*")}
    assert "Written to videos." in run(*command, "--write")
    assert seen[0] == ([f"caption {number}" for number in range(6)], list("abcdef"))
    gallery = Gallery.open("videos")
    assert gallery.query_temperature == 0.04 and gallery.calibration == {"modality_offset": [0.0, 0.1, 0.2]}
    assert gallery.metadata["note"] == "kept" and gallery.fingerprint == identify(encoder).fingerprint
    assert {path: path.stat().st_mtime_ns for path in encoder.rglob("*")} == files


def test_queries_of_a_gallery_are_not_fitted_into_another_model(place):
    Scores(ScalarJointConfig(has_logit_scale=True, initializer_range=0.07)).save_pretrained("other")
    before = (place / "other" / "config.json").read_bytes(), Gallery.open("gallery").metadata
    reported = run("--embeddings", "gallery", "--model", "other", "--output", "out", "--write", code=1)
    assert "Embeddings of different models cannot be compared" in reported
    assert ((place / "other" / "config.json").read_bytes(), Gallery.open("gallery").metadata) == before
    assert not (place / "out").exists()  # it was reported before the fit


def test_a_gallery_that_is_being_written_leaves_the_model_as_it_is(place, monkeypatch):
    monkeypatch.setattr(
        "scalar_retrieval.eval.fitting.calibrate_embeddings", lambda *arguments, **options: gains(1.0, 3.0)
    )
    before = (place / "model" / "config.json").read_bytes()
    arguments = ["--embeddings", "gallery", "--model", "model", "--output", "out", "--write"]
    with GalleryWriter("gallery"):
        assert "Another process" in run(*arguments, code=1)
    assert (place / "model" / "config.json").read_bytes() == before
    run(*arguments)
    assert (place / "model" / "config.json").read_bytes() != before


@pytest.mark.parametrize("fitted", [{"query_temperature": 0.04, "modality_offset": [0.0, 0.1, 0.2]}, {}])
def test_a_gallery_is_evaluated_with_the_weights_that_it_is_searched_with(place, encoder, fitted):
    """Whatever the model's own are, as they may have changed since, or differ from what the gallery was fitted to."""
    model, processor = load_model(encoder, query_temperature=0.5, modality_scale=[1.0, 2.0, 3.0])
    model.save_pretrained("own")
    processor.save_pretrained("own")
    written = {"query_temperature": 0.04, "score_options": {"method": "scalar"} | fitted} if fitted else {}
    write_clips("videos", list("ab"), "own", **written)
    write_table(place / "clips.csv", "ab")
    source = {"model": "own", "benchmark": "own", "root": "clips.csv", "embeddings": "videos"}
    embeddings, _ = prepare(Inputs(**source, progress=False))
    options = score_options_of(embeddings.metadata)
    assert options == {"method": "scalar"} | (fitted or {"query_temperature": 0.1})  # by default the paper's
    texts = embeddings.text_embeds
    scores = retrieval_scores(texts, embeddings.modality_embeds, embeddings.modality_mask, **options)
    for line, hits in zip(scores, Gallery.open("videos").search(texts, k=2), strict=True):
        assert sorted(line.tolist(), reverse=True) == pytest.approx([hit.score for hit in hits], abs=1e-5)


def test_what_is_written_into_an_adapter_is_noted_where_peft_reads_it(tmp_path, tiny_model_dir, tiny_processor):
    save_adapter(tmp_path, tiny_model_dir, tiny_processor)
    base = ScalarModel.from_pretrained(tiny_model_dir)
    _write_model(tmp_path, {"query_temperature": 0.25}, [])
    assert AutoModel.from_pretrained(tmp_path).config.query_temperature == 0.25
    with pytest.raises(ValueError, match="trained with {'query_temperature': 0.25}"):
        PeftModel.from_pretrained(base, tmp_path)


class Texts:
    """Stands for the model of a gallery: each text has a direction of its own."""

    def embed(self, texts):
        seeds = [int.from_bytes(sha256(text.encode()).digest()[:4]) for text in texts]
        vectors = [torch.randn(32, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return normalize(torch.stack(vectors), dim=-1)


QUERIES = [f"query {number}" for number in range(31)]


def test_scales_are_fitted_to_texts_without_labels(place, monkeypatch):
    monkeypatch.setattr(querying, "load_query_model", lambda *_: Texts())
    # An empty line is no text, and one that is there twice is one text.
    Path("queries.txt").write_text("\n".join(["", f" {QUERIES[0]}", *QUERIES]) + "\n")
    gallery = Gallery.open("gallery")
    similarities = torch.einsum("qd,vmd->qvm", Texts().embed(QUERIES), gallery.modality_embeds().float())
    expected = fit_scales(similarities, gallery.modality_mask)
    command = ["--embeddings", "gallery", "--output", "out", "--texts", "queries.txt"]
    reported = run(*command)
    assert "scales from 31 texts of queries.txt\n" in reported and "Written" not in reported
    assert Gallery.open("gallery").metadata == gallery.metadata
    run(*command, "--write")
    after = Gallery.open("gallery")
    for name, values in after.calibration.items():
        assert values == pytest.approx(expected[name])
    assert after.metadata["note"] == "kept" and set(after.calibration) == {"modality_scale", "modality_offset"}

    # What is fitted to labels later keeps what it says of them as long as they are the same.
    _write(after.path, None, {"query_temperature": 0.2} | after.calibration, MODALITIES, None)
    assert Gallery.open("gallery").metadata["scales"] == after.metadata["scales"]
    _write(after.path, None, {"query_temperature": 0.2, "modality_offset": [0.0, 1.0, 2.0]}, MODALITIES, None)
    assert Gallery.open("gallery").metadata["scales"] is None


@pytest.mark.parametrize(
    "content, arguments, message",
    [
        (None, {}, "There is no queries.txt"),
        (QUERIES, {"scale_offset": True}, "`texts` take the place of captions"),
        (QUERIES, {"embeddings": None}, "give the gallery as `embeddings`"),
        (QUERIES[:29] * 2, {}, "29 different texts of queries.txt and 60 clips are too few"),
        (QUERIES, {"embeddings": "nameless"}, "does not say which model made it"),
        (["\udcff"], {}, "queries.txt must be a text file in UTF-8"),
        (["caption", *QUERIES], {"texts": "queries.csv"}, "queries.csv must be a text file .* it is a table"),
    ],
)
def test_wrong_texts_are_reported_before_a_model_is_loaded(place, content, arguments, message, monkeypatch):
    monkeypatch.setattr(querying.modeling_scalar, "load_model", None)
    write_embeddings("nameless", {})
    arguments = {"texts": "queries.txt", "embeddings": "gallery", "output": "out"} | arguments
    if content is not None:
        Path(arguments["texts"]).write_text("\n".join(content), errors="surrogateescape")
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        calibrate(**arguments)
    assert re.search(message, error_text(raised.value))
