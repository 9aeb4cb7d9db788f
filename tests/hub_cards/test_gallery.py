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


def rows_of(folder, config, cache):
    return load_dataset(str(folder), config, cache_dir=str(cache))


def saved_gallery(folder, media):
    """A gallery of search over files that stand for videos, one with a subtitle file beside it, and one unreadable."""
    (media / "sub").mkdir(parents=True)
    names = ["a.mp4", "sub/a.mp4", "sub/b c.mp4"]
    for number, name in enumerate(names):
        (media / name).write_bytes(bytes([number]) * (10 + number))
    (media / "sub/b c.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nspeech\n")
    embeddings = random_embeddings()
    mask = embeddings.modality_mask[:3]
    paths = [str(media / name) for name in names]
    files = []
    for path in paths:
        size, mtime_ns = clip_stat(path)
        files.append(MediaFile(path, size, mtime_ns, clip_sha256(path), None, None, 7 * 10**9, [48.1374, 11.5755]))
    elsewhere = str(media.parent / "elsewhere" / "broken.mp4")
    files.append(MediaFile(elsewhere, 1, 1, "", f"it is cut off, says {elsewhere}", None, 7, [48.1374, 11.5755]))
    problems = [[f"{paths[0]}: no sound", "other"], [], []]
    with GalleryWriter(folder, "float32") as writer:
        model = str(media.parent / "runs" / "tiny")
        writer.metadata = {"model": model, "fingerprint": "f" * 64, "query_temperature": 0.25}
        writer.put_clips(paths, embeddings.modality_embeds[:3], mask, problems=problems)
        writer.put_files(files)
        writer.commit()
    return names, embeddings.modality_embeds[:3], mask


# Stores -----------------------------------------------------------------------------------------------------------


def test_a_published_store_is_a_gallery_that_datasets_reads_too(tmp_path, monkeypatch):
    """In the order of its files, of which there are so many that a name with 10 comes before one with 2."""
    monkeypatch.setattr(writing, "SHARD_ROWS", 1)
    saved_store(tmp_path / "store")
    stage_gallery(tmp_path / "store", tmp_path / "staged")
    staged_card(tmp_path / "staged")
    here, there = Gallery.open(tmp_path / "store"), Gallery.open(tmp_path / "staged")
    assert there.verify() and there.facts() == here.facts()
    assert there.clips.equals(here.clips) and there.queries.equals(here.queries)
    for config in ("clips", "queries"):
        found = rows_of(tmp_path / "staged", config, tmp_path / "cache")
        assert list(found) == ["test"]
        expected = load_from_disk(tmp_path / "store" / config)
        assert found["test"].features == expected.features
        assert found["test"].with_format("arrow")[:].equals(expected.with_format("arrow")[:])
    names = {path.name for path in (tmp_path / "staged").iterdir()}
    assert names == {"README.md", "clips", "gallery-copy.json", "gallery.json", "queries"}
    # A file that is gone is missed.
    files = list((tmp_path / "staged" / "clips").glob("*.arrow"))
    assert len(files) == CLIPS
    files[1].unlink()
    with pytest.raises(Exception, match="doesn't match|Unable to find|Couldn't find"):
        rows_of(tmp_path / "staged", "clips", tmp_path / "other cache")


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


def test_a_gallery_of_search_is_published_with_paths_below_its_folder(tmp_path):
    names, vectors, mask = saved_gallery(tmp_path / "gallery", tmp_path / "videos")
    stage_gallery(tmp_path / "gallery", tmp_path / "staged")
    found = Gallery.open(tmp_path / "staged")
    text = text_of(tmp_path / "staged")
    assert str(tmp_path) not in text and tmp_path.name not in text
    assert found.clip_ids == names and torch.equal(found.modality_mask, mask)
    assert torch.equal(found.modality_embeds(), vectors)
    assert found.problems() == {"a.mp4": ["a.mp4: no sound", "other"]}
    # Of files that were read, without the files themselves, only their names are published.
    assert list(found.files.values()) == [MediaFile("broken.mp4", 0, 0, "", "it is cut off, says broken.mp4")]
    known = {"local_model": "tiny", "fingerprint": "f" * 64, "query_temperature": 0.25, "left_out": []}
    assert found.metadata == known
    card = staged_card(tmp_path / "staged")
    assert "broken.mp4: it is cut off" in card and "Reading errors (2); what could not be read" in card
    rows = rows_of(tmp_path / "staged", "clips", tmp_path / "cache")["gallery"]
    assert rows["clip_id"][:] == names and rows["presence"][:] == mask.tolist()


@pytest.mark.parametrize("roots", [("/home/jane/clips", "/disk/clips"), ("/home/jane", "/home/bob/clips")])
def test_clips_of_several_places_of_a_machine_would_tell_their_folders(tmp_path, roots):
    embeddings = random_embeddings()
    paths = [f"{roots[number % 2]}/{number}.mp4" for number in range(CLIPS)]
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata = {"model": "user/tiny"}
        writer.put_clips(paths, embeddings.modality_embeds, embeddings.modality_mask)
        writer.put_files([MediaFile(path, 1, 1, "") for path in paths])
        writer.commit()
    with pytest.raises(ValueError, match="share no folder but '/(home)?'.*a gallery for each"):
        stage_gallery(tmp_path / "gallery", tmp_path / "staged")


def test_windows_share_the_published_file_and_one_that_was_partly_read_is_not_left_out(tmp_path):
    videos = tmp_path / "videos"
    (videos / "a").mkdir(parents=True)
    partly = "not all of its windows could be read: 60-90 s: reading stopped"
    files = [MediaFile(str(videos / "gone.mp4"), 1, 1, "", "it is cut off")]
    # Files elsewhere, which have the names of one another and of a clip.
    for folder in ("other", "third"):
        files.append(MediaFile(str(tmp_path / folder / "b.mp4"), 1, 1, "", f"it is in the {folder} folder"))
    for name, reason in (("a/talk.mp4", partly), ("b.mp4", None)):
        path = videos / name
        path.write_bytes(name.encode())
        files.append(MediaFile(str(path), *clip_stat(str(path)), clip_sha256(str(path)), reason))
    names = ["a/talk.mp4#t=0,30", "a/talk.mp4#t=30", "b.mp4"]
    embeddings = random_embeddings()
    with GalleryWriter(tmp_path / "windows") as writer:
        writer.metadata = {"segment": 30}
        writer.put_files(files)
        paths = [f"{videos}/{name}" for name in names]
        problems = [[f"{paths[0]}: dark"], [], []]
        writer.put_clips(paths, embeddings.modality_embeds[:3], embeddings.modality_mask[:3], problems=problems)
        writer.commit()
    stage_gallery(tmp_path / "windows", tmp_path / "staged", media=True)
    staged = [path.relative_to(tmp_path / "staged").as_posix() for path in (tmp_path / "staged/media").rglob("*.*")]
    assert sorted(staged) == ["media/a/talk.mp4", "media/b.mp4"]
    assert str(tmp_path) not in text_of(tmp_path / "staged")
    card = staged_card(tmp_path / "staged")
    assert "the name of its file below media/; a window has its seconds appended" in card
    assert "Reading errors (2); what could not be read" in card and f"- a/talk.mp4: {partly}\n" in card
    assert "unreadable (3 clips):\n\n" in card and "- gone.mp4: it is" in card
    assert "- b.mp4 (2): it is in the other folder" in card and "- b.mp4 (3): it is in the third folder" in card
    found = Gallery.open(tmp_path / "staged")
    assert found.clip_ids == names
    media = {found.own_media_of(place, None) for place in found.places_of(names)}
    assert media == {str(tmp_path / "staged/media/a/talk.mp4"), str(tmp_path / "staged/media/b.mp4")}


def test_media_go_along_with_their_subtitle_files_and_transcripts_but_no_still_pictures(tmp_path):
    names, _, _ = saved_gallery(tmp_path / "gallery", tmp_path / "videos")
    sha256 = clip_sha256(str(tmp_path / "videos" / names[0]))
    said = {SPEECH: "/words/ that are/ said", SCREEN: "words that are shown"}
    (tmp_path / "gallery" / "transcripts").mkdir()
    for kind, words in said.items():
        path = Transcripts(tmp_path / "gallery", kind).path_of(sha256)
        write_transcript(path, [Cue(0, 1, words)], "/home/me/models/whisper")
    Stills(tmp_path / "gallery").put(sha256, None, b"picture")
    stage_gallery(tmp_path / "gallery", tmp_path / "staged", media=True)
    media = tmp_path / "staged" / "media"
    staged = {path.relative_to(media).as_posix() for path in media.rglob("*.*")}
    assert staged == {*names, "sub/b c.srt"}
    for name in staged:
        assert (media / name).read_bytes() == (tmp_path / "videos" / name).read_bytes()
    for kind, words in said.items():
        copy = Transcripts(tmp_path / "staged", kind).path_of(sha256).read_text()
        assert words in copy and "NOTE made by machine: whisper\n" in copy
    assert not list(tmp_path.glob("staged/**/*.jpg"))
    card = staged_card(tmp_path / "staged")
    assert "| media files | 4 |" in card and "when each was recorded, not where" in card
    # All is as in the gallery, but the place of a recording.
    here, there = Gallery.open(tmp_path / "gallery"), Gallery.open(tmp_path / "staged")
    assert set(there.files) == {"broken.mp4", *names}
    for name, place in zip(names, there.places_of(names), strict=True):
        known, own = there.files[name], here.files[str(tmp_path / "videos" / name)]
        assert own.place and known == replace(own, path=name, place=None)
        assert is_as_known(there.own_media_of(place, None), known)
    # Words are of the media, too.
    stage_gallery(tmp_path / "gallery", tmp_path / "without")
    assert Transcripts(tmp_path / "without").count() == (0, 0)


def test_media_that_changed_are_not_published(tmp_path):
    saved_gallery(tmp_path / "gallery", tmp_path / "videos")
    (tmp_path / "videos/sub/b c.srt").write_text("another line, of another size")
    with pytest.raises(ValueError, match=r"b c.mp4, or the subtitle file next to it, has changed.*Index again"):
        stage_gallery(tmp_path / "gallery", tmp_path / "staged", media=True)
    (tmp_path / "videos/a.mp4").write_bytes(b"x" * 10)  # the same size
    with pytest.raises(ValueError, match="/a.mp4, or the subtitle file"):
        stage_gallery(tmp_path / "gallery", tmp_path / "again", media=True)
    (tmp_path / "videos/a.mp4").unlink()
    with pytest.raises(FileNotFoundError, match="videos/a.mp4"):
        stage_gallery(tmp_path / "gallery", tmp_path / "once more", media=True)


# Cards ------------------------------------------------------------------------------------------------------------


def test_the_card_of_a_gallery_has_the_numbers_the_model_and_the_problems_of_its_files(tmp_path):
    problems = [f"clip {row}: *no* sound" for row in range(12)]
    embeddings = saved_store(tmp_path / "store", metadata={"left_out": ["gone"]}, problems=problems)
    stage_gallery(tmp_path / "store", tmp_path / "staged", PublishedModel("user/scalar", COMMIT))
    here, there = Gallery.open(tmp_path / "store"), Gallery.open(tmp_path / "staged")
    assert there.metadata == here.metadata | {"model": "user/scalar", "model_revision": COMMIT}
    card = staged_card(tmp_path / "staged")
    assert f"| clips | {CLIPS} |" in card and f"| captions | {QUERIES} |" in card
    for index, name in enumerate(MODALITIES):
        count = int(embeddings.modality_mask[:, index].sum())
        assert f"| with {name} | {count} ({count / CLIPS:.1%}) |" in card
    assert f"| `SHA-256 of the gallery` | `{embeddings.manifest()['sha256']}` |" in card
    assert "| `query_temperature` | `0.3` |" in card and "(cosines / 0.3)" in card
    assert "Reading errors (12); what could not be read" in card and r"- clip 9: \*no\* sound" in card
    assert "clip 10" not in card and "- and 2 more" in card and "- gone\n" in card
    assert f"| `model_revision` | `{COMMIT}` |" in card and "license: cc-by-4.0" in card


CALIBRATED = {"modality_scale": [1, 2, 0.5, 1, 1.5], "modality_offset": [0.3, -0.1, 0.05, 0, 0.2]}


@pytest.mark.parametrize(
    ("names", "temperature", "calibration"),
    [
        (MODALITIES, "inf", {}),
        (MODALITIES, 0.3, {"modality_scale": [1, 1, 1]}),
        (("video", "title", "audio", "speech", "on_screen"), 0.3, CALIBRATED),
    ],
)
def test_the_snippet_scores_as_the_model_does(tmp_path, monkeypatch, names, temperature, calibration):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    described = {"query_temperature": temperature, "score_options": {"method": "scalar"} | calibration}
    embeddings = saved_store(tmp_path / "store", metadata=described, modalities=names)
    mask = embeddings.modality_mask
    stage_gallery(tmp_path / "store", tmp_path / "staged", PublishedModel("user/model"))
    assert Gallery.open(tmp_path / "staged").modalities == tuple(names)
    card = staged_card(tmp_path / "staged")
    assert ("different modalities comparable" in card) == (calibration is CALIBRATED)
    for name, values in calibration.items():
        assert f"| `{name}` | `{', '.join(map(str, values))}` |" in card
    for name in names:
        assert f"| `clips` | `{name}` | list of {DIM} floats | unit vector, zeros" in card
    namespace = {}
    for block in blocks(card):
        exec(block.replace('"user/gallery"', repr(str(tmp_path / "staged"))), namespace)
    arguments = (embeddings.text_embeds[:1], embeddings.modality_embeds, mask)
    options = {"query_temperature": float(temperature)} | calibration
    expected = retrieval_scores(*arguments, "scalar", modalities=names, **options)
    torch.testing.assert_close(namespace["scores"][None], expected)
    torch.testing.assert_close(namespace["weights"][None], query_weights(*arguments, **options))


def put_on_hub(hub, tmp_path, name, **options):
    """Stage a gallery, write its card, and upload both."""
    staged = tmp_path / "staged" / name
    stage_gallery(tmp_path / name, staged, **options)
    staged_card(staged, f"user/{name}")
    hub.api().create_repo(f"user/{name}", repo_type="dataset")
    hub.api().upload_folder(repo_id=f"user/{name}", folder_path=staged, repo_type="dataset")


def test_a_gallery_is_opened_by_its_address(tmp_path, hub):
    names, vectors, mask = saved_gallery(tmp_path / "gallery", tmp_path / "videos")
    put_on_hub(hub, tmp_path, "gallery", media=True)
    opened = Gallery.open("hf://datasets/user/gallery")
    assert opened.clip_ids == names and torch.equal(opened.modality_embeds(), vectors)
    assert not (opened.path / "media").exists()  # before it is asked for
    path = Path(opened.own_media_of(opened.places_of(names)[1], None))
    assert path.read_bytes() == (tmp_path / "videos" / names[1]).read_bytes() and not path.is_symlink()
    commit = hub.api().dataset_info("user/gallery").sha
    assert Gallery.open(Path(f"hf://datasets/user/gallery@{commit}")).path == opened.path
    with pytest.raises(ValueError, match="a published gallery, which can be read but not changed"):
        GalleryWriter(opened.path)
