import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import BatchFeature

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.embedding import in_background
from scalar_retrieval.modeling_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.media_scalar import MediaError
from scalar_retrieval.modeling_scalar.processing_scalar import FROM_VIDEO, Clip
from tests.eval.embedding.test_embeddings import assert_same

DIM = 8


class FakeProcessor:
    """Reads text files; the number that stands for their content is all the model sees."""

    reader, modalities = SandboxedReader(), MODALITIES

    def __init__(self, on_error="raise"):
        self.threads, self.on_error = set(), on_error

    def read_clip(self, video, audio=FROM_VIDEO, subtitle=FROM_VIDEO, processed=False):
        self.threads.add(threading.get_ident())
        clip = Clip(subtitle=subtitle)
        for name, path in (("frames", video), ("waveform", video if audio is FROM_VIDEO else audio)):
            content = None if path is None else Path(path).read_text()
            if content == "broken":
                if self.on_error == "raise":
                    raise MediaError(f"{path} holds no {name}.")
                clip.problems.append(f"{name} of {path} is broken")
            elif content is not None and content != "silent":
                setattr(clip, name, content + name)
        return clip

    def __call__(self, text=None, clips=None):
        if text is not None:
            ids = torch.tensor([[zlib.crc32(caption.encode())] for caption in text])
            return BatchFeature({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        if any(clip.frames is clip.waveform is clip.subtitle is None for clip in clips):
            raise ValueError("A clip has nothing.")  # as the real one
        batch, present = {}, []
        names = ("pixel_values_videos", "input_features", "subtitle_input_ids")
        for key, name in zip(names, ("frames", "waveform", "subtitle"), strict=True):
            values = [getattr(clip, name) for clip in clips]
            present.append(torch.tensor([value is not None for value in values]))
            if present[-1].any():
                batch[key] = torch.tensor([[zlib.crc32((value or "").encode())] for value in values])
        return BatchFeature(batch | {"modality_mask": torch.stack(present, dim=1)})


class FakeModel(torch.nn.Module):
    """Maps each number to a unit vector of its own."""

    device, dtype = torch.device("cpu"), torch.float32
    config = SimpleNamespace(modalities=MODALITIES)

    def _vectors(self, numbers):
        assert not self.training and not torch.is_grad_enabled()
        generator = torch.Generator()
        vectors = [torch.randn(DIM, generator=generator.manual_seed(number)) for number in numbers.flatten().tolist()]
        return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)

    def get_text_features(self, input_ids, attention_mask):
        return SimpleNamespace(pooler_output=self._vectors(input_ids))

    def get_modality_features(
        self, pixel_values_videos=None, input_features=None, subtitle_input_ids=None, modality_mask=None
    ):
        embeds = torch.zeros(*modality_mask.shape, DIM)
        for index, values in enumerate((pixel_values_videos, input_features, subtitle_input_ids)):
            if values is not None:
                embeds[:, index] = self._vectors(values)
        return embeds * modality_mask[..., None], modality_mask


def row(video_id, caption="a caption", video_path=None, audio_path=None, subtitle=None):
    return dict(video_id=video_id, caption=caption, video_path=video_path, audio_path=audio_path, subtitle=subtitle)


def dataset_of(rows):
    return Dataset.from_list(rows, features=FEATURES)


def write(folder, name, content):
    path = folder / name
    path.write_text(content)
    return str(path)


@pytest.fixture
def rows(tmp_path):
    """Seven clips, nine captions: every kind of presence, and an audio file of its own."""
    films = [write(tmp_path, f"{i}.mp4", f"film {i}") for i in range(7)]
    sound = write(tmp_path, "1.wav", "sound")
    return [
        row("a", "first", films[0], films[0], "hello"),
        row("b", "second", films[1], sound),
        row("a", "third", films[0], films[0], "hello"),
        row("c", "fourth", films[2], films[2]),
        row("d", "fifth", films[3], None),
        row("e", "sixth", None, sound),
        row("f", "seventh", None, None, "only words"),
        row("a", "eighth", films[0], films[0], "hello"),
        row("g", "ninth", films[6], films[6], "bye"),
    ]


def embed(rows, on_error="raise", **options):
    return embed_dataset(FakeModel(), FakeProcessor(on_error), dataset_of(rows), progress=False, **options)


def test_rows_of_one_clip_become_one_clip_with_several_captions(rows):
    embeddings = embed(rows)
    assert embeddings.clip_ids == ["a", "b", "c", "d", "e", "f", "g"]
    assert embeddings.pairs.tolist() == [[query, clip] for query, clip in enumerate([0, 1, 0, 2, 3, 4, 5, 0, 6])]
    assert embeddings.captions == [row["caption"] for row in rows]
    assert embeddings.query_ids == ["a#0", "b#0", "a#1", "c#0", "d#0", "e#0", "f#0", "a#2", "g#0"]
    assert len(embeddings.text_embeds.unique(dim=0)) == 9
    expected = [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
    assert embeddings.modality_mask.int().tolist() == expected
    assert embeddings.problems == []


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 4), (3, 3), (100, 1)])
def test_batch_size_and_threads_change_nothing(rows, batch_size, num_workers):
    assert_same(embed(rows, batch_size=batch_size, num_workers=num_workers), embed(rows, batch_size=4))


def test_audio_of_the_video_itself_and_of_a_file_are_distinguished(tmp_path):
    film = write(tmp_path, "film.mp4", "film")
    asked = []

    class Asked(FakeProcessor):
        def read_clip(self, video, audio=FROM_VIDEO, subtitle=FROM_VIDEO, processed=False):
            asked.append((video, audio, subtitle))
            return super().read_clip(video, audio, subtitle)

    other = write(tmp_path, "other.wav", "sound")
    paths = {"a": (film, film, "words"), "b": (film, other), "c": (film, None), "d": (None, other)}
    rows = [row(video_id, "x", *of_clip) for video_id, of_clip in paths.items()]
    embed_dataset(FakeModel(), Asked(), dataset_of(rows), progress=False)
    assert asked == [(film, FROM_VIDEO, "words"), (film, other, None), (film, None, None), (None, other, None)]


def test_clip_that_cannot_be_read_stops_the_run_with_its_name_and_path(rows, tmp_path):
    rows[3]["video_path"] = write(tmp_path, "bad.mp4", "broken")
    with pytest.raises(ValueError, match=r"'c' \(video '.*bad\.mp4'.*holds no frames.*`on_error` to \"missing\""):
        embed(rows, batch_size=2)


def test_what_cannot_be_read_counts_as_absent_and_is_listed_if_asked(rows, tmp_path):
    rows[3]["video_path"] = bad = write(tmp_path, "bad.mp4", "broken")
    embeddings = embed(rows, batch_size=2, on_error="missing")
    assert embeddings.modality_mask[2].tolist() == [False, True, False]
    assert embeddings.problems == [f"c: frames of {bad} is broken"]


def test_clips_with_nothing_left_are_all_named_and_never_dropped(rows, tmp_path):
    bad = write(tmp_path, "bad.mp4", "broken")
    rows += [
        row("empty", "x"),
        row("blank", "x", subtitle=" "),
        row("fine", "x", rows[0]["video_path"]),
        row("ruined", "x", bad, bad),
    ]
    with pytest.raises(ValueError, match=r"\['empty', 'blank', 'ruined'\].*frames of .*bad\.mp4 is broken"):
        embed(rows, batch_size=2, on_error="missing")


@pytest.mark.parametrize("training", [True, False])
def test_model_is_left_in_the_mode_it_was_in(rows, tmp_path, training):
    model = FakeModel().train(training)
    embed_dataset(model, FakeProcessor(), dataset_of(rows), progress=False)
    assert model.training is training
    rows[0]["video_path"] = rows[2]["video_path"] = rows[7]["video_path"] = str(tmp_path / "nowhere.mp4")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        embed_dataset(model, FakeProcessor(), dataset_of(rows), progress=False)
    assert model.training is training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[2].update(subtitle="other"), "'a' give different files"),
        (lambda rows: rows[1].update(caption=None), "'b' has no caption"),
        (lambda rows: rows[1].update(caption="  "), "'b' has no caption"),
    ],
)
def test_rows_that_make_no_sense_are_refused(rows, change, message):
    change(rows)
    with pytest.raises(ValueError, match=message):
        embed(rows)


def test_background_keeps_order_and_stays_a_bounded_number_of_batches_ahead():
    pulled = []

    def numbers():
        for number in range(12):
            pulled.append(number)
            yield number

    def slow_if_even(number):
        time.sleep(0.01 * (number % 2 == 0))
        return number

    ahead = []
    for consumed, number in enumerate(in_background(slow_if_even, numbers(), num_workers=3)):
        assert number == consumed
        ahead.append(len(pulled) - consumed - 1)
    assert len(ahead) == 12 and max(ahead) == 3


def test_class_labels_are_queries_that_describe_many_clips(rows):
    for number, row in enumerate(rows):
        row["caption"] = ("dog", "cat")[number % 2]
    del rows[7]  # the clip a has the label dog in three rows
    with pytest.raises(ValueError, match="clip 'a' has the label 'dog' twice"):
        embed(rows, task="classification")
    del rows[2]
    embeddings = embed(rows, task="classification")
    assert embeddings.query_ids == embeddings.captions == ["dog", "cat"]
    assert embeddings.clip_ids == ["a", "b", "c", "d", "e", "f", "g"]
    assert embeddings.pairs.tolist() == [[0, 0], [0, 3], [0, 5], [0, 6], [1, 1], [1, 2], [1, 4]]
    as_captions = embed(rows)
    assert torch.equal(embeddings.modality_embeds, as_captions.modality_embeds)
    assert torch.equal(embeddings.text_embeds, as_captions.text_embeds[:2])
    rows[0] = rows[0] | {"video_id": "b", **{name: rows[1][name] for name in ("video_path", "audio_path", "subtitle")}}
    assert embed(rows[:2], task="classification").pairs.tolist() == [[0, 0], [1, 0]]  # a clip with two labels


def test_embeddings_of_a_data_set_hold_what_the_concatenation_heads_give(rows):
    class WithHeads(FakeModel):
        config = SimpleNamespace(has_concat_heads=True, modalities=MODALITIES)

        def get_concat_features(self, modality_mask, **inputs):
            return modality_mask.all(dim=1)[:, None, None] * torch.ones(len(modality_mask), 3, DIM)

    embeddings = embed_dataset(WithHeads(), FakeProcessor(), dataset_of(rows), batch_size=2, progress=False)
    assert embeddings.concat_embeds.shape == (7, 3, DIM)
    assert embeddings.concat_embeds[:, 0, 0].tolist() == [1, 0, 0, 0, 0, 0, 1]
    assert torch.equal(embeddings.modality_embeds, embed(rows).modality_embeds)
    assert embed(rows).concat_embeds is None
