"""The second stage of search against that of the evaluation."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.protocol.second_stage import first_candidates, fused_values, match_logits, two_stage_scores
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.querying import QueryModel
from scalar_retrieval.gallery.second_stage.matching import clip_views
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat
from scalar_retrieval.gallery.words.transcripts import Transcripts
from scalar_retrieval.modeling_scalar import ScalarModel
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.media_scalar import MediaError
from scalar_retrieval.modeling_scalar.processing_scalar import FROM_VIDEO
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from scalar_retrieval.modeling_scalar.tracks_scalar import names_subtitle_file
from scalar_retrieval.search.sources import find_files
from tests.conftest import make_tiny_config
from tests.eval.protocol.slow_matching import CAPTIONS, CONTENTS, MemoryProcessor, make_clips, make_dataset, make_rows
from tests.gallery.conftest import MADE_BY
from tests.indexers import make_indexer

DEPTH = 5


class FileProcessor(MemoryProcessor):
    """Reads a clip of memory where there is a file of its name."""

    reader, max_audio_seconds = SandboxedReader(), float("inf")
    rows = {}

    def read_clip(self, video, audio=FROM_VIDEO, subtitle=None, processed=False):
        if processed and video in self.rows:
            row = self.rows[video]
            content = open(video, encoding="utf-8").read()
            if content == "damaged":
                raise MediaError(f"{video}: damaged")
            if subtitle is not None and names_subtitle_file(subtitle):
                subtitle = open(subtitle, encoding="utf-8").read()
            words = None if subtitle is None else re.findall("[a-z]+", subtitle)[-1]
            video, audio, subtitle = row["video_path"], row["audio_path"], words or row["subtitle"]
        return super().read_clip(video, audio, subtitle)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    model = ScalarModel(make_tiny_config(initializer_range=0.3)).eval()
    torch.nn.init.normal_(model.match_head.classifier.weight)
    return model


@pytest.fixture
def place(tmp_path, model, tiny_processor):
    """Files, their rows as the evaluation has them, and a gallery that is asked by the model."""
    rows = make_rows()
    processor = FileProcessor(tiny_processor)
    for number, row in enumerate(rows):
        path = tmp_path / "clips" / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content {number}")
        row["video_id"] = str(path)
        for name in ("video_path", "audio_path"):
            row[name] = None if row[name] is None else str(path)
    processor.rows = {row["video_id"]: row for row in rows}
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = MADE_BY
        make_indexer(writer, model, processor).update(find_files([tmp_path / "clips"]))
    return tmp_path, rows, open_gallery(tmp_path, model, processor)


def open_gallery(place, model, processor, name="gallery"):
    gallery = Gallery.open(place / name)
    gallery.query_model = QueryModel(model, processor)
    return gallery


def evaluated(model, processor, rows, depth, weight=None, seen=MODALITIES):
    """Of each caption the clips in the order that the evaluation's two stages leave, and the match logit of each."""
    embeddings = embed_dataset(model, processor, make_dataset(rows), progress=False)
    mask = embeddings.modality_mask & torch.tensor([name in seen for name in MODALITIES])
    empty = ~mask.any(1)
    # the scores of clips of which nothing is seen are refused, not undefined
    scored = mask | (embeddings.modality_mask & empty[:, None])
    scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, scored, "scalar", 0.1)
    scores[:, empty] = -torch.inf
    nothing = torch.empty(0, 2, dtype=torch.long)
    candidates = first_candidates(scores, nothing, depth)
    views = clip_views(mask, MODALITIES, model.config.condition_on)
    captions = torch.arange(len(rows))[:, None].expand_as(candidates)
    requests = torch.stack([captions, candidates, views[candidates]], dim=-1).flatten(0, 1)
    logits = match_logits(model, processor, make_clips(rows), embeddings.captions, requests, progress=False).view_as(
        candidates
    )
    values = logits if weight is None else fused_values(scores.gather(1, candidates), logits, weight)
    final = two_stage_scores(scores, nothing, candidates, values)
    order = final.argsort(dim=1, descending=True)
    found = torch.full_like(scores, torch.nan).scatter(1, candidates, logits)
    defined = scores > -torch.inf
    return [
        [(embeddings.clip_ids[clip], found[row, clip].item()) for clip in line if defined[row, clip]]
        for row, line in enumerate(order.tolist())
    ]


@pytest.fixture
def reading(place, tiny_processor):
    """A model whose second stage reads words, too, and its processor."""
    torch.manual_seed(1)
    reader = ScalarModel(make_tiny_config(initializer_range=0.3, condition_on=list(MODALITIES))).eval()
    processor = FileProcessor(tiny_processor)
    processor.rows = {row["video_id"]: row for row in place[1]}
    return reader, processor


@pytest.mark.parametrize(
    ("depth", "weight", "seen"),
    [(DEPTH, None, MODALITIES), (DEPTH, 0.05, MODALITIES), (50, None, MODALITIES), (3, None, ("video", "subtitle"))],
)
def test_the_order_is_that_of_the_second_stage_of_the_evaluation(place, model, depth, weight, seen):
    folder, rows, gallery = place
    expected = evaluated(model, FileProcessor(gallery.query_model.processor.processor), rows, depth, weight, seen)
    first = gallery.search(CAPTIONS, len(rows), modalities=seen)
    found = gallery.search(CAPTIONS, len(rows), modalities=seen, rerank=depth, fusion_weight=weight)
    for hits, before, line in zip(found, first, expected, strict=True):
        assert [hit.clip_id for hit in hits] == [name for name, _ in line]
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        logits = [float("nan") if hit.match is None else hit.match for hit in hits]
        assert logits == pytest.approx([logit for _, logit in line], abs=1e-6, nan_ok=True)
        assert {hit.clip_id: hit.score for hit in hits} == {hit.clip_id: hit.score for hit in before}
    assert found != first  # or nothing would be tested
    assert any(hit.match is None for hits in found for hit in hits)


def test_each_file_is_read_once_for_all_queries(place):
    gallery = place[2]
    gallery.query_model.processor.read.clear()
    gallery.search(CAPTIONS, rerank=50)
    read = gallery.query_model.processor.read
    readable = sum(video or audio for video, audio, _ in CONTENTS)
    assert len(read) == len(set(read)) == readable < len(CONTENTS)


def test_a_clip_that_cannot_be_read_keeps_its_place_and_is_named(place):
    folder, rows, gallery = place
    text, whole = CAPTIONS[0], gallery.search(CAPTIONS[0], 7)
    gone, changed, damaged = [hit.clip_id for hit in whole if hit.presence["video"]][:3]
    for path in (folder / "clips").iterdir():
        path.touch()  # which is no change
    Path(gone).unlink()
    Path(changed).write_text("other content")
    Path(damaged).write_text("damaged")
    with GalleryWriter(folder / "gallery") as writer:  # as if it had been so when it was embedded
        size, mtime_ns = clip_stat(damaged)
        sha256 = clip_sha256(damaged)
        writer.put_files([replace(gallery.files[damaged], size=size, mtime_ns=mtime_ns, sha256=sha256)])
        writer.commit()
    gallery = open_gallery(folder, gallery.query_model.model, gallery.query_model.processor)
    hits = gallery.search(text, 7, rerank=7)
    places = {hit.clip_id: place for place, hit in enumerate(whole)}
    unread = [hit for hit in hits if hit.match is None]
    assert {gone, changed, damaged} < {hit.clip_id for hit in unread}
    assert all(hits.index(hit) == places[hit.clip_id] for hit in unread)
    matches = [hit.match for hit in hits if hit.match is not None]
    assert len(matches) == 3 and matches == sorted(matches, reverse=True)
    reasons = ("its file is gone", "or was replaced", "damaged", "nothing that the cross-encoder reads")
    assert sum(hits.notes[1].count(reason) for reason in reasons) == 3 and "and 1 more" in hits.notes[1]


def test_words_of_a_transcript_are_read_again(place, reading):
    folder, rows, _ = place
    spoken = next(row["video_id"] for row in rows if row["video_path"] and row["subtitle"] is None)
    found, path = [], Transcripts(folder / "spoken").path_of(clip_sha256(spoken))
    with GalleryWriter(folder / "spoken", "float32") as writer:
        writer.metadata = MADE_BY
        writer.commit()
        path.parent.mkdir()
        path.write_text("WEBVTT\n\n00:00.000 --> 00:01.000\nhello\n")
        make_indexer(writer, *reading).update(find_files([folder / "clips"]))
    gallery = open_gallery(folder, *reading, "spoken")
    for words in ("hello", "music"):
        path.write_text(f"WEBVTT\n\n00:00.000 --> 00:01.000\n{words}\n")
        matches = {hit.clip_id: hit.match for hit in gallery.search("low", 7, rerank=7)}
        found.append(matches[spoken])
    assert None not in found and found[0] != found[1]
    path.unlink()
    hits = gallery.search("low", 7, rerank=7)
    assert "subtitle cannot be read from its file as when it was embedded" in hits.notes[1]


def test_words_that_a_list_gave_are_not_replaced_by_those_of_the_file(place, reading):
    folder, rows, _ = place
    files = [row["video_id"] for row in rows if row["video_path"] and row["subtitle"]][:2]
    subtitle = folder / "elsewhere.srt"
    subtitle.write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    given = {files[0]: {"subtitle": "given words"}, files[1]: {"subtitle": str(subtitle)}}
    with GalleryWriter(folder / "listed", "float32") as writer:
        writer.metadata = MADE_BY
        make_indexer(writer, *reading).update(files, given)
    gallery = open_gallery(folder, *reading, "listed")
    hits = gallery.search("low", 7, rerank=7)
    assert len(hits) == 2 and all(hit.presence["subtitle"] and hit.match is None for hit in hits)
    assert "came from a list" in hits.notes[0] and "its subtitle file" in hits.notes[0]
    hits = gallery.search("low", 7, rerank=7, modalities=["video", "audio"])
    assert {hit.clip_id for hit in hits if hit.match is not None} == {files[0]}


def test_what_has_no_second_stage_says_so(place, tmp_path):
    _, _, gallery = place
    for options, message in (
        ({"rerank": 0}, "`depth`"),
        ({"rerank": 5, "fusion_weight": -1.0}, "-1.0"),
        ({"fusion_weight": 1.0}, "set `rerank`"),
    ):
        with pytest.raises(ValueError, match=message):
            gallery.search("low", **options)
    with pytest.raises(ValueError, match="only with text queries"):
        gallery.search(like=gallery.clip_ids[0], rerank=5)
    model, processor = gallery.query_model.model, gallery.query_model.processor
    with GalleryWriter(tmp_path / "other", "float32") as writer:
        writer.put_clips(gallery.clip_ids, gallery.modality_embeds(), gallery.modality_mask)
        writer.commit()
    with pytest.raises(ValueError, match="this gallery does not record"):
        open_gallery(tmp_path, model, processor, "other").search("low", rerank=5)
    encoder = SimpleNamespace(config=SimpleNamespace(), score_options=lambda: {"method": "scalar"})
    gallery.query_model = QueryModel(encoder, processor)
    with pytest.raises(ValueError, match="The second stage needs a cross-encoder"):
        gallery.search("low", rerank=5)
