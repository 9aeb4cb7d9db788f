import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import disable_progress_bars, load_dataset, load_from_disk

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.store import writing
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat, is_as_known
from scalar_retrieval.gallery.store.stills import Stills
from scalar_retrieval.gallery.words.transcripts import SCREEN, SPEECH, Cue, Transcripts, write_transcript
from scalar_retrieval.hub_cards.card import Details
from scalar_retrieval.hub_cards.gallery import gallery_card, stage_gallery
from scalar_retrieval.hub_cards.publishing import PublishedModel
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import query_weights, retrieval_scores
from tests.eval.slow import make_embeddings
from tests.hub_cards.folders import blocks

DIM, CLIPS, QUERIES = 8, 12, 5
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DETAILS = Details({"license": "cc-by-4.0", "language": ["en"]})
NAMES = ["a.mp4", "more/b c.mp4", "more/talk.mp4#t=0,30", "more/talk.mp4#t=30"]
PARTLY = "not all of its windows could be read: 60-90 s: reading stopped"
disable_progress_bars()


def random_embeddings(metadata=None, problems=(), **changes):
    described = {"model": "runs/tiny", "query_temperature": 0.3, "split": "test", "benchmark": "own", "left_out": []}
    described |= metadata or {}
    embeddings = make_embeddings(
        CLIPS, 1, dim=DIM, undescribed=CLIPS - QUERIES, problems=list(problems), metadata=described, **changes
    )
    embeddings.pairs = torch.cat([embeddings.pairs, torch.tensor([[0, CLIPS - 1]])])
    embeddings.clip_ids = [f"clip {row} é" for row in range(CLIPS)]
    embeddings.captions = [f'a "red" star | {row}' for row in range(QUERIES)]
    assert not embeddings.modality_mask.all()
    return embeddings


def saved_store(folder, **settings):
    embeddings = random_embeddings(**settings)
    embeddings.save(folder)
    return embeddings


def staged_card(folder, repo_id="user/gallery"):
    """Write and return the card of a staged gallery."""
    card = gallery_card(folder, repo_id, DETAILS)
    (folder / "README.md").write_text(card)
    return card


def text_of(folder):
    """All that is published but the media, as text."""
    files = (path for path in folder.rglob("*") if path.is_file() and "media" not in path.parts)
    return b"".join(path.read_bytes() for path in files).decode("utf-8", "replace")


@pytest.fixture
def searched(tmp_path):
    """A gallery of search over files that stand for videos: one has subtitles, one is in windows and was partly read;
    of three that could not be read, two lie elsewhere and have the name of a clip."""
    videos = tmp_path / "videos"
    (videos / "more").mkdir(parents=True)
    (videos / "more/b c.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nspeech\n")
    files = []
    for name, reason in (("a.mp4", None), ("more/b c.mp4", None), ("more/talk.mp4", PARTLY)):
        path = str(videos / name)
        Path(path).write_bytes(name.encode())
        known = (*clip_stat(path), clip_sha256(path))
        files.append(MediaFile(path, *known, reason, None, 7 * 10**9, [48.1374, 11.5755]))
    for name in ("videos/gone.mp4", "other/a.mp4", "third/a.mp4"):
        path = str(tmp_path / name)
        files.append(MediaFile(path, 1, 1, "", f"it is cut off, says {path}", None, 7, [48.1374, 11.5755]))
    clip_ids = [f"{videos}/{name}" for name in NAMES]
    embeddings = random_embeddings()
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = {"model": str(tmp_path / "runs" / "tiny"), "fingerprint": "f" * 64, "segment": 30}
        vectors, mask = embeddings.modality_embeds[:4], embeddings.modality_mask[:4]
        writer.put_clips(clip_ids, vectors, mask, problems=[[f"{clip_ids[0]}: no sound", "other"], [], [], []])
        writer.put_files(files)
        writer.commit()
    return Gallery.open(tmp_path / "gallery")


# Stores -----------------------------------------------------------------------------------------------------------


def test_a_published_store_is_a_gallery_that_datasets_reads_too(tmp_path, monkeypatch):
    """In the order of its files, of which there are so many that a name with 10 comes before one with 2."""
    monkeypatch.setattr(writing, "SHARD_ROWS", 1)
    saved_store(tmp_path / "store")
    stage_gallery(tmp_path / "store", tmp_path / "staged")
    staged_card(tmp_path / "staged")
    here, there = Gallery.open(tmp_path / "store"), Gallery.open(tmp_path / "staged")
    assert there.verify() and there.facts() == here.facts()
    for config in ("clips", "queries"):
        found = load_dataset(str(tmp_path / "staged"), config, cache_dir=str(tmp_path / "cache"))["test"]
        expected = load_from_disk(tmp_path / "store" / config)
        assert found.features == expected.features
        assert found.with_format("arrow")[:].equals(expected.with_format("arrow")[:])


def test_no_folder_of_this_machine_is_published_and_no_identifier_changed(tmp_path):
    problem = "/videos/clip: /home/jane/clips/a.mp4: audio stream 1: decoding stopped"
    metadata = {"model": "/home/jane/runs/tiny", "plan": {"root": "/home/jane/data"}, "left_out": ["/videos/other"]}
    embeddings = random_embeddings(metadata, [problem])
    embeddings.clip_ids[0] = "/videos/clip"
    embeddings.save(tmp_path / "store")
    stage_gallery(tmp_path / "store", tmp_path / "staged")
    found = Gallery.open(tmp_path / "staged")
    assert "jane" not in text_of(tmp_path / "staged")
    assert found.model is None and found.metadata["local_model"] == "tiny"
    assert found.problems() == {"/videos/clip": ["a.mp4: audio stream 1: decoding stopped"]}
    assert found.metadata["left_out"] == ["/videos/other"]
    assert "computed by `tiny`" in re.sub(r"\s+", " ", staged_card(tmp_path / "staged"))


# Galleries of search ----------------------------------------------------------------------------------------------


def test_a_gallery_of_search_is_published_with_paths_below_its_folder(tmp_path, searched):
    stage_gallery(searched.path, tmp_path / "staged")
    card = staged_card(tmp_path / "staged")
    text = text_of(tmp_path / "staged")
    assert str(tmp_path) not in text and tmp_path.name not in text
    found = Gallery.open(tmp_path / "staged")
    assert found.clip_ids == NAMES and torch.equal(found.modality_mask, searched.modality_mask)
    assert torch.equal(found.modality_embeds(), searched.modality_embeds())
    assert found.problems() == {"a.mp4": ["a.mp4: no sound", "other"]}
    assert found.metadata == {"local_model": "tiny", "fingerprint": "f" * 64, "segment": 30, "left_out": []}
    # Of the files, only those that could not be read are published, and of them the reasons.
    reasons = [PARTLY, "it is cut off, says gone.mp4", *2 * ["it is cut off, says a.mp4"]]
    files = [replace(file, path="") for file in found.files.values()]
    assert files == [MediaFile("", 0, 0, "", reason) for reason in reasons]
    for problem in ("a.mp4: a.mp4: no sound", f"more/talk.mp4: {PARTLY}", f"gone.mp4: {reasons[1]}"):
        assert f"- {problem}\n" in card


@pytest.mark.parametrize("other", ["/disk/clips/b.mp4", "/home/bob/b.mp4"])
def test_clips_of_several_places_of_a_machine_would_tell_their_folders(tmp_path, other):
    paths = ["/home/jane/a.mp4", other]
    Gallery.from_arrays(paths, {"video": torch.eye(2)}, path=tmp_path / "gallery")
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.put_files([MediaFile(path, 1, 1, "") for path in paths])
        writer.commit()
    with pytest.raises(ValueError, match="share no folder but '/(home)?'"):
        stage_gallery(tmp_path / "gallery", tmp_path / "staged")


def test_media_go_along_with_their_words_but_without_still_pictures_and_places(tmp_path, searched):
    videos, media = tmp_path / "videos", tmp_path / "staged" / "media"
    sha256 = searched.files[f"{videos}/a.mp4"].sha256
    said = {SPEECH: "/words/ that are/ said", SCREEN: "words that are shown"}
    (searched.path / "transcripts").mkdir()
    for kind, words in said.items():
        path = Transcripts(searched.path, kind).path_of(sha256)
        write_transcript(path, [Cue(0, 1, words)], "/home/me/models/whisper")
    Stills(searched.path).put(sha256, None, b"picture")
    stage_gallery(searched.path, tmp_path / "staged", media=True)

    files = {path.relative_to(media).as_posix() for path in media.rglob("*.*")}
    assert files == {"a.mp4", "more/b c.mp4", "more/b c.srt", "more/talk.mp4"}
    for name in files:
        assert (media / name).read_bytes() == (videos / name).read_bytes()
    for kind, words in said.items():
        copy = Transcripts(tmp_path / "staged", kind).path_of(sha256).read_text()
        assert words in copy and "NOTE made by machine: whisper\n" in copy
    assert not list(tmp_path.glob("staged/**/*.jpg")) and str(tmp_path) not in text_of(tmp_path / "staged")
    card = staged_card(tmp_path / "staged")
    assert "| media files | 4 |" in card and "when each was recorded, not where" in card
    # All is as in the gallery, but the place of a recording; windows share their file.
    found = Gallery.open(tmp_path / "staged")
    assert set(found.files) == {"gone.mp4", "a.mp4 (2)", "a.mp4 (3)"} | files - {"more/b c.srt"}
    for clip_id, place in zip(NAMES, found.places_of(NAMES), strict=True):
        name = clip_id.partition("#")[0]
        known = found.files[name]
        assert known == replace(searched.files[f"{videos}/{name}"], path=name, place=None)
        assert found.own_media_of(place, None) == str(media / name) and is_as_known(str(media / name), known)
    # Without media, too, what could not be read elsewhere has not the name of a clip. Words are of the media.
    stage_gallery(searched.path, tmp_path / "without")
    assert set(Gallery.open(tmp_path / "without").files) == {"gone.mp4", "a.mp4 (2)", "a.mp4 (3)", "more/talk.mp4"}
    assert Transcripts(tmp_path / "without").count() == (0, 0)


@pytest.mark.parametrize("name", ["a.mp4", "more/b c.srt"])
def test_media_that_changed_are_not_published(tmp_path, searched, name):
    path = tmp_path / "videos" / name
    path.write_bytes(path.read_bytes().swapcase())  # the same size
    with pytest.raises(ValueError, match=rf"{path.stem}.mp4, or the subtitle file next to it, has changed"):
        stage_gallery(searched.path, tmp_path / "staged", media=True)


# Cards ------------------------------------------------------------------------------------------------------------


def test_the_card_of_a_gallery_has_the_numbers_the_model_and_the_problems_of_its_files(tmp_path):
    problems = [f"clip {row}: *no* sound" for row in range(12)]
    embeddings = saved_store(tmp_path / "store", metadata={"left_out": ["gone"]}, problems=problems)
    stage_gallery(tmp_path / "store", tmp_path / "staged", PublishedModel("user/scalar", COMMIT))
    card = staged_card(tmp_path / "staged")
    rows = {"clips": str(CLIPS), "captions": str(QUERIES), "`query_temperature`": "`0.3`"}
    rows |= {"`model`": "`user/scalar`", "`model_revision`": f"`{COMMIT}`"}
    rows["`SHA-256 of the gallery`"] = f"`{embeddings.manifest()['sha256']}`"
    for name, count in zip(MODALITIES, embeddings.modality_mask.sum(0).tolist(), strict=True):
        rows[f"with {name}"] = f"{count} ({count / CLIPS:.1%})"
    for name, value in rows.items():
        assert f"| {name} | {value} |" in card
    assert "Reading errors (12)" in card and r"- clip 9: \*no\* sound" in card and "license: cc-by-4.0" in card
    assert "clip 10" not in card and "- and 2 more" in card and "- gone\n" in card


CALIBRATED = {"modality_scale": [1, 2, 0.5, 1, 1.5], "modality_offset": [0.3, -0.1, 0.05, 0, 0.2]}


@pytest.mark.parametrize(
    ("names", "temperature", "calibration"),
    [
        (MODALITIES, "inf", {}),
        (("video", "title", "audio", "speech", "on_screen"), 0.3, CALIBRATED),
    ],
)
def test_the_snippet_scores_as_the_model_does(tmp_path, monkeypatch, names, temperature, calibration):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    described = {"query_temperature": temperature, "score_options": {"method": "scalar"} | calibration}
    embeddings = saved_store(tmp_path / "store", metadata=described, modalities=names)
    stage_gallery(tmp_path / "store", tmp_path / "staged", PublishedModel("user/model"))
    card = staged_card(tmp_path / "staged")
    namespace = {}
    for block in blocks(card):
        exec(block.replace('"user/gallery"', repr(str(tmp_path / "staged"))), namespace)
    arguments = (embeddings.text_embeds[:1], embeddings.modality_embeds, embeddings.modality_mask)
    options = {"query_temperature": float(temperature)} | calibration
    expected = retrieval_scores(*arguments, "scalar", modalities=names, **options)
    torch.testing.assert_close(namespace["scores"][None], expected)
    torch.testing.assert_close(namespace["weights"][None], query_weights(*arguments, **options))
