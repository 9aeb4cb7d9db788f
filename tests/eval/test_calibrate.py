"""`scalar eval calibrate`: where queries come from, what is said, and what is written where."""

import json

import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

from eval.__main__ import app
from eval.calibrate import CalibrateConfig, _subtitles_of_files, calibrate, format_calibration, subtitle_queries
from eval.embedding.embeddings import Embeddings
from eval.protocol.calibration import MEASURES, Calibration
from eval.run import RunConfig, embeddings_of
from gallery.decoding import SandboxedReader
from gallery.gallery import Gallery, GalleryWriter, MediaFile, score_options_of
from gallery.transcripts import Cue, write_transcript
from gallery.windows import SEGMENT
from modeling_scalar import MODALITIES, load_model
from modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from modeling_scalar.model_identity import identify
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from modeling_scalar.scores_scalar import retrieval_scores
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
    reported = {"method": "scalar", "query_temperature": 0.1}
    metadata = {"model": "model", "query_temperature": 0.1, "score_options": reported, "note": "kept"}
    write_embeddings("gallery", metadata | {"fingerprint": identify("model").fingerprint})
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["calibrate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_gain_is_written_into_the_model_and_the_gallery(place):
    config, metadata = (place / "model" / "config.json").read_bytes(), Gallery.open("gallery").metadata
    arguments = ["--embeddings", "gallery", "--output", "out", "--scale-offset", "--folds", 2, "--write"]
    reported = run(*arguments, "--model", "model")
    assert "60 queries, 60 clips, 2 folds" in reported
    assert "query temperature: 0.1 before" in reported and "modality offset: video " in reported
    assert (
        "Written to model/config.json, gallery. Galleries of this model that were not given still belong to its"
        in reported
    )
    report = json.loads((place / "out" / "calibration.json").read_text())
    assert report["is_better"] and report["written"] == ["model/config.json", "gallery"] and len(report["folds"]) == 2
    fitted = report["after"]
    assert set(fitted) == {"query_temperature", "modality_scale", "modality_offset"}
    # the model: these fields and no others
    assert json.loads((place / "model" / "config.json").read_text()) == json.loads(config) | fitted
    loaded = ScalarJointConfig.from_pretrained("model")
    assert loaded.modality_offset == fitted["modality_offset"] and loaded.initializer_range == 0.03
    # the gallery: how it is scored, and that it still belongs to the model
    gallery = Gallery.open("gallery")
    assert gallery.metadata["note"] == "kept" and gallery.query_temperature == fitted["query_temperature"]
    assert gallery.calibration == {name: fitted[name] for name in ("modality_scale", "modality_offset")}
    assert gallery.fingerprint == identify("model").fingerprint != metadata["fingerprint"]
    embeddings = Embeddings.load("gallery")
    hits = gallery.search(embeddings.text_embeds, k=1)
    right = sum(hit.clip_id == name for (hit,), name in zip(hits, embeddings.query_ids, strict=True))
    plain = gallery.search(embeddings.text_embeds, 1, 0.1, modality_scale=[1, 1, 1], modality_offset=[0, 0, 0])
    assert right > sum(hit.clip_id == name for (hit,), name in zip(plain, embeddings.query_ids, strict=True)) + 5
    # once more: from there, there is nothing to gain
    reported = run(*arguments, "--model", "model")
    assert "keep your current settings. Only the least score was written, to gallery." in reported
    assert Gallery.open("gallery").metadata == gallery.metadata  # the same one


def test_what_is_no_gain_is_not_written(place):
    write_embeddings("even", {"model": "model", "query_temperature": 0.1}, num_clips=18, gap=False)
    metadata = Gallery.open("even").metadata
    reported = run("--embeddings", "even", "--output", "out", "--folds", 2, "--write")
    assert "Fewer than 19 clips have queries of their own: too few to fit the least score of a match." in reported
    assert (
        "The interval of the gain in MRR includes zero: keep your current settings. Nothing was written." in reported
    )
    assert Gallery.open("even").metadata == metadata


@pytest.mark.parametrize("scale_offset", [False, True])
def test_what_is_too_low_a_score_is_kept_of_the_scores_that_the_gallery_is_searched_with(place, scale_offset):
    """Also where nothing else is: those that it had then; else those that are written with it."""
    name = "gallery" if scale_offset else "even"
    write_embeddings("even", {"model": "model", "query_temperature": 0.1}, gap=False)
    arguments = ["--embeddings", name, "--output", "out", "--folds", 2, *(["--scale-offset"] if scale_offset else [])]
    before = Gallery.open(name).metadata
    assert "--write saves it in the gallery: searches that find less report it." in run(*arguments)
    assert Gallery.open(name).metadata == before
    assert ("Only the least score was written, to even." in run(*arguments, "--write")) != scale_offset
    report, gallery = json.loads((place / "out" / "calibration.json").read_text()), Gallery.open(name)
    assert report["written"] == [name] and report["least_score_is_certain"]
    reported, embeddings = gallery.least_score, Embeddings.load(name)
    assert reported["score"] == report["least_score"]["score"] and reported["num_clips"] == 60
    if not scale_offset:
        assert gallery.metadata == before | {"least_score": reported}
    # so that of the queries it was fitted to so many are reported as unmatched, and without their clips many
    found = gallery.search(embeddings.text_embeds, k=2)
    doubtful = [hits.matches_well is False for hits in found]
    assert (
        doubtful == [hits[0].score < reported["score"] for hits in found] and sum(doubtful) == 2
    )  # floor(0.05 * 61) - 1
    others = [hits[hits[0].clip_id == name].score for hits, name in zip(found, embeddings.query_ids, strict=True)]
    assert sum(score < reported["score"] for score in others) > 20
    # and no longer where the weights are fitted anew
    with GalleryWriter(name) as writer:
        options = gallery.metadata.get("score_options", {}) | {"query_temperature": 0.3}
        writer.metadata = writer.metadata | {"score_options": options}
        writer.commit()
    assert Gallery.open(name).least_score is None
    assert all(hits.matches_well is None for hits in Gallery.open(name).search(embeddings.text_embeds, k=1))


def test_what_cannot_be_written_to_is_reported_before_anything_is_read(place):
    write_joint_encoder(place / "encoder")
    gallery = ["--embeddings", "gallery", "--output", "out", "--write"]
    table = ["--benchmark", "own", "--root", "clips.csv", "--output", "out", "--write"]
    (place / "adapter").mkdir()
    for model, reason in (
        ("google/embeddinggemma-2", "a model on the Hub is not changed"),
        ("encoder", "an encoder as published"),
        ("adapter", "without a configuration scores as its base"),
    ):
        reported = run(*table, "--model", model, code=1)
        assert "There is nothing to write to" in reported and reason in reported and "give the gallery" in reported
    assert "nothing to write to" in run("--embeddings", "x", "--output", "out", "--write", code=1)
    assert "the cosines of subtitles are unknown" in run(*gallery, "--subtitles", "--scale-offset", code=1)
    assert "Subtitles as queries need clips with subtitles" in run(
        "--embeddings", "x", "--output", "out", "--subtitles", code=1
    )
    assert "Expected a model, a benchmark and its root, or embeddings" in run("--output", "out", code=1)
    assert not (place / "out").exists()


def test_a_score_without_numbers_has_nothing_to_calibrate(place):
    with GalleryWriter("gallery") as writer:
        writer.metadata = writer.metadata | {"score_options": {"method": "gram"}}
        writer.commit()
    arguments = ["--embeddings", "gallery", "--output", "out", "--folds", 2]
    reported = run(*arguments, code=1)
    assert "The score 'gram' has no numbers to fit; scores with such numbers: scalar, uniform, " in reported
    with GalleryWriter("gallery") as writer:
        writer.metadata = writer.metadata | {"score_options": {"method": "max"}}
        writer.commit()
    assert "the score max" in run(*arguments)
    assert "Only a fit of SCALAR's score can be written, and this model's score is 'max'" in run(
        *arguments, "--write", code=1
    )


@pytest.mark.parametrize("method", ["weighted_gram", "max"])
def test_other_scores_are_fitted_to_compare_them_and_never_written(place, method):
    metadata = Gallery.open("gallery").metadata
    arguments = ["--embeddings", "gallery", "--output", "out", "--folds", 2, "--method", method]
    reported = run(*arguments)
    assert f"60 queries, 60 clips, 2 folds, the score {method}" in reported and "query temperature" not in reported
    for title in ("R@1, text to video", "R@1, video to text", "R@1, mean of both", "MRR, mean of both"):
        assert f"\n{title:20} " in reported
    assert "modality scale: video " in reported and ("modality offset: video " in reported) == (method == "max")
    report = json.loads((place / "out" / "calibration.json").read_text())
    assert report["method"] == method and report["before"] == {} and report["least_score"] is None
    assert "query_temperature" not in report["after"] and len(report["after"]["modality_scale"]) == 3
    assert report["is_better"] == (report["measures"]["mean_reciprocal_rank"]["low"] > 0)
    ending = "The gain is above zero." if report["is_better"] else "The interval of the gain in MRR includes zero."
    assert reported.splitlines()[-1] == ending
    reported = run(*arguments, "--write", code=1)
    assert "Only a fit of the model's own score can be written: leave out --method or --write." in reported
    assert Gallery.open("gallery").metadata == metadata
    assert "The score 'video' has no numbers to fit" in run(*arguments[:-1], "video", code=1)


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
    with pytest.raises(ValueError, match="None of 4 clips with picture or sound has a readable subtitle"):
        subtitle_queries((list("abcde"), embeds, mask), {}, embed)


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
    return Calibration({"query_temperature": 0.1}, after, [after, after], measures, 6, 6)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("calibrate") / "encoder")


def test_a_gallery_of_an_encoder_as_it_is_published_keeps_what_is_fitted_to_captions(place, encoder, monkeypatch):
    write_clips("videos", list("abcdef"), encoder, note="kept")
    write_table(place / "clips.csv", "abcdef")
    files = {path: path.read_bytes() for path in sorted(encoder.rglob("*")) if path.is_file()}
    seen = []

    def fit(embeddings, *arguments, **options):
        seen.append(embeddings)
        return gains(1.0, 3.0)

    monkeypatch.setattr("eval.calibrate.calibrate_embeddings", fit)
    table = ["--benchmark", "own", "--root", "clips.csv", "--model", encoder, "--output", "out"]
    metadata = Gallery.open("videos").metadata
    assert "The gain is above zero; --write saves it." in run("--embeddings", "videos", *table)
    assert Gallery.open("videos").metadata == metadata
    assert json.loads((place / "out" / "calibration.json").read_text())["written"] == []
    reported = run("--embeddings", "videos", *table, "--write")
    assert "Written to videos alone: " in reported and "is an encoder as published" in reported
    assert "Galleries of this model" not in reported  # the model is what it was
    assert seen[0].captions == [f"caption {number}" for number in range(6)] and seen[0].clip_ids == list("abcdef")
    gallery = Gallery.open("videos")
    assert gallery.query_temperature == 0.04 and gallery.calibration == {"modality_offset": [0.0, 0.1, 0.2]}
    assert gallery.metadata["note"] == "kept" and gallery.fingerprint == identify(encoder).fingerprint
    assert {path: path.read_bytes() for path in sorted(encoder.rglob("*")) if path.is_file()} == files


def test_queries_of_a_gallery_are_not_fitted_into_another_model(place):
    Scores(ScalarJointConfig(has_logit_scale=True, initializer_range=0.07)).save_pretrained("other")
    before = (place / "other" / "config.json").read_bytes(), Gallery.open("gallery").metadata
    reported = run("--embeddings", "gallery", "--model", "other", "--output", "out", "--write", code=1)
    assert "Embeddings of different models cannot be compared" in reported
    assert ((place / "other" / "config.json").read_bytes(), Gallery.open("gallery").metadata) == before
    assert not (place / "out").exists()  # it was reported before the fit


def test_a_gallery_that_is_being_written_leaves_the_model_as_it_is(place, monkeypatch):
    monkeypatch.setattr("eval.calibrate.calibrate_embeddings", lambda *arguments, **options: gains(1.0, 3.0))
    before = (place / "model" / "config.json").read_bytes()
    arguments = ["--embeddings", "gallery", "--model", "model", "--output", "out", "--write"]
    with GalleryWriter("gallery"):
        assert "Another process" in run(*arguments, code=1)
    assert (place / "model" / "config.json").read_bytes() == before
    run(*arguments)
    assert (place / "model" / "config.json").read_bytes() != before


def test_an_interval_below_zero_is_distinguished_from_one_around_it():
    config = CalibrateConfig("out", embeddings_path="x")
    for low, high, reported in (
        (-3.0, -1.0, "The interval of the gain in MRR is below zero: keep your current settings."),
        (-3.0, 0.0, "The interval of the gain in MRR includes zero: keep your current settings."),
        (0.0, 1.0, "The interval of the gain in MRR includes zero: keep your current settings."),
    ):
        assert format_calibration(gains(low, high), config, [])[-1] == reported


def test_of_windows_the_subtitles_are_those_shown_in_them_and_what_is_left_out_is_reported(place, encoder, caplog):
    talk, gone = place / "talk.mp4", place / "gone.mp4"
    spoken = [("00:00:01", "a dog"), ("00:00:31", "rain"), ("00:01:02", "bells"), ("00:01:40", "a star")]
    cues = [f"{number}\n{time},000 --> {time},900\n{words}\n" for number, (time, words) in enumerate(spoken)]
    talk.with_suffix(".srt").write_text("\n".join(cues))
    windows = [f"{talk}#t={time}" for time in ("0,30", "30,60", "60,90", "90,120", "120")]
    write_clips("windows", [*windows, f"{gone}#t=0,30"], encoder, segment=30.0, query_temperature=0.1)
    config = CalibrateConfig(
        "out", embeddings_path="windows", subtitles=True, num_folds=2, model_dtype="bfloat16", progress=False
    )
    caplog.set_level("INFO", "eval")
    found, _ = calibrate(config)
    assert (found.num_queries, found.num_clips) == (4, 6)
    assert "The subtitles of 1 clips can no longer be read" in caplog.text and "gone.mp4#t=0,30" in caplog.text
    assert "2 of 6 clips with picture or sound have no readable subtitle" in caplog.text
    assert " parameters in bfloat16, " in caplog.text
    report = json.loads((place / "out" / "calibration.json").read_text())
    assert report["clips_without_subtitle"] == 2
    assert report["least_score"]["modalities"] == ["video", "audio"] and report["least_score"]["num_clips"] == 6
    texts = _subtitles_of_files(Gallery.open("windows"), SandboxedReader())
    assert texts == dict(zip(windows, ["a dog", "rain", "bells", "a star", ""], strict=True))


def test_what_a_machine_heard_in_a_clip_asks_for_it_too(place):
    """Also where the file itself is gone."""
    with GalleryWriter("heard") as writer:
        writer.metadata = {SEGMENT: 30.0}
        embeds = normalize(torch.ones(3, 3, 4), dim=-1)
        names = ["talk.mp4#t=0,30", "talk.mp4#t=30", "silent.mp4"]
        writer.put_clips(names, embeds, torch.tensor([[True] * 3, [True] * 3, [True, True, False]]))
        writer.put_files([MediaFile("talk.mp4", 1, 1, "a" * 64), MediaFile("silent.mp4", 1, 1, "b" * 64)])
        writer.commit()
    (place / "heard" / "transcripts").mkdir()
    cues = [Cue(1, 2, "a dog"), Cue(31, 32, "rain")]
    write_transcript(place / "heard" / "transcripts" / f"{'a' * 64}.speech.vtt", cues, "whisper", None)
    assert _subtitles_of_files(Gallery.open("heard"), SandboxedReader()) == {names[0]: "a dog", names[1]: "rain"}


def test_a_gallery_is_evaluated_with_the_weights_that_it_is_searched_with(place, encoder):
    """Whatever the model's own are, as they may have changed since, or differ from what the gallery was fitted to."""
    model, processor = load_model(encoder, query_temperature=0.5, modality_scale=[1.0, 2.0, 3.0])
    model.save_pretrained("own")
    processor.save_pretrained("own")
    reported = {"query_temperature": 0.04, "modality_offset": [0.0, 0.1, 0.2]}
    write_clips("videos", list("ab"), "own", query_temperature=0.04, score_options={"method": "scalar"} | reported)
    write_clips("silent", list("ab"), "own")
    write_table(place / "clips.csv", "ab")
    for name, expected in (("videos", reported), ("silent", {"query_temperature": 0.1})):  # by default the paper's
        embeddings = embeddings_of(
            RunConfig("out", "own", "own", "clips.csv", embeddings_path=name, progress=False, two_stage=False)
        )
        assert score_options_of(embeddings.metadata) == {"method": "scalar"} | expected
        embeds, gallery = embeddings.text_embeds, Gallery.open(name)
        scores = retrieval_scores(
            embeds, embeddings.modality_embeds, embeddings.modality_mask, **score_options_of(embeddings.metadata)
        )
        for line, hits in zip(scores, gallery.search(embeds, k=2), strict=True):
            assert sorted(line.tolist(), reverse=True) == pytest.approx([hit.score for hit in hits], abs=1e-5)


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
    reported = CliRunner().invoke(search, ["index", "clips", "--model", "encoder", "--output", "found"])
    assert reported.exit_code == 0, reported.output
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
