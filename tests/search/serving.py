"""A small gallery that is served: a model to which words are directions, files that hold the names of modalities."""

import os
import threading
import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import normalize
from transformers import BatchFeature

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile
from scalar_retrieval.gallery.querying import QueryModel
from scalar_retrieval.gallery.searcher import Searcher
from scalar_retrieval.gallery.store.described import modalities_in
from scalar_retrieval.gallery.store.files import sha256_of
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES as MODALITIES
from scalar_retrieval.modeling_scalar.processing_scalar import Clip
from scalar_retrieval.search.service.app import build_app
from scalar_retrieval.search.service.archive import Archive
from scalar_retrieval.search.service.guard import Token
from scalar_retrieval.search.service.server import address_of, listen, make_server

DIM = 8
FITTED = {
    "least_score": {
        "score": 2.0,
        "num_clips": 5,
        "modalities": list(MODALITIES),
        "score_options": {"method": "scalar", "query_temperature": 0.1},
    }
}
"""Metadata of a gallery in which nothing ever matches well."""
SECRET = "a-token-of-enough-letters"
PRESENCE = {
    "dog.webm": (True, True, True),
    "cat.webm": (True, True, False),
    "silent.webm": (True, False, False),
    "bell.wav": (False, True, False),
    "<b>&amp; \"odd\" 'name'.webm": (True, False, True),
}


def direction(seed: int) -> torch.Tensor:
    """A unit vector."""
    return normalize(torch.randn(DIM, generator=torch.Generator().manual_seed(seed)), dim=-1)


def vector(name: str) -> torch.Tensor:
    """The direction of a word."""
    return direction(zlib.crc32(name.encode("utf-8", "surrogateescape")))


class WordProcessor:
    """Files hold the words "video", "audio" and "subtitle", whichever they have, and then what they are about."""

    reader, max_audio_seconds = SandboxedReader(), float("inf")

    modalities = MODALITIES

    def read_clip(self, path, *, processed):
        words = Path(path).read_text(encoding="utf-8").split()
        frames = torch.zeros(1, 2, 2, 3).byte().numpy() if "video" in words else None
        waveform = torch.zeros(4).numpy() if "audio" in words else None
        subtitle = "words" if "subtitle" in words else None
        return Clip(frames=frames, waveform=waveform, subtitle=subtitle, problems=[], path=path)

    def __call__(self, text=None, clips=None):
        if text is not None:
            ids = torch.tensor([[zlib.crc32(line.encode())] for line in text])
            return BatchFeature({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        mask = [[clip.frames is not None, clip.waveform is not None, clip.subtitle is not None] for clip in clips]
        return BatchFeature({"modality_mask": torch.tensor(mask)})


class WordModel:
    """Each modality of a clip is the direction of its name; each text that of its words."""

    device, dtype = torch.device("cpu"), torch.float32
    config = SimpleNamespace(query_temperature=0.1, aggregation="scalar", modalities=MODALITIES, modality_slices=None)

    def __init__(self):
        self.num_texts = 0

    def num_parameters(self):
        return 1

    def get_memory_footprint(self):
        return 4

    def score_options(self):
        return {"method": self.config.aggregation, "query_temperature": self.config.query_temperature}

    def get_modality_features(self, modality_mask):
        vectors = torch.stack([vector(name) for name in MODALITIES])
        return vectors * modality_mask[..., None], modality_mask

    def get_text_features(self, input_ids, attention_mask):
        self.num_texts += len(input_ids)
        return SimpleNamespace(pooler_output=torch.stack([direction(seed) for seed in input_ids.flatten().tolist()]))


def vectors_of(name: str, modalities: Sequence[str] = MODALITIES) -> torch.Tensor:
    """Of a clip of the gallery, by the name of its file."""
    return torch.stack([vector(f"{name} {modality}") for modality in modalities])


def presence_of(name: str, modalities: Sequence[str] = MODALITIES) -> list[bool]:
    """What a clip of the gallery has, by the name of its file; of further modalities one or another."""
    known = dict(zip(MODALITIES, PRESENCE.get(name, (True, True, False)), strict=True))
    return [known.get(modality, len(name + modality) % 4 != 3) for modality in modalities]


def recorded(path: str | Path) -> MediaFile:
    """The record of a file as it is."""
    stat = os.stat(path)
    return MediaFile(str(path), stat.st_size, stat.st_mtime_ns, sha256_of(path))


def write_gallery(
    place: Path, contents: dict[str, bytes] | None = None, records: dict[str, dict] | None = None, **metadata
) -> list[str]:
    """
    Write the files and the gallery `place/gallery`.

    Args:
        place: the folder.
        contents: of the files, by the names of the clips.
        records: what else than the truth the gallery says of a file, by its name.
        metadata: of the gallery.

    Returns:
        The identifiers of the clips.
    """
    clips = place / "clips"
    clips.mkdir(exist_ok=True)
    contents = contents or {name: name.encode() * 10 for name in PRESENCE}
    modalities = modalities_in(metadata)
    ids = [str(clips / name) for name in contents]
    vectors = torch.stack([vectors_of(name, modalities) for name in contents])
    mask = torch.tensor([presence_of(name, modalities) for name in contents])
    problems = [["the subtitles are no text"] if name == "silent.webm" else [] for name in contents]
    with GalleryWriter(place / "gallery", "float32") as writer:
        writer.metadata = {"model": "words", "fingerprint": "f" * 64, "query_temperature": 0.1} | metadata
        writer.put_clips(ids, vectors, mask, problems=problems)
        for number, (name, data) in enumerate({name.partition("#")[0]: contents[name] for name in contents}.items()):
            # Files with the same content would be copies of each other; players skip what follows the content.
            (clips / name).write_bytes(data + b" " * number)
            writer.put_files([replace(recorded(clips / name), **(records or {}).get(name, {}))])
        writer.commit()
    return ids


def put_clips(folder: Path, ids: Sequence[str], files: Sequence[MediaFile] = ()) -> None:
    """Write a gallery of clips that have every modality, whether or not there are such files."""
    with GalleryWriter(folder) as writer:
        writer.metadata = {"model": "words", "fingerprint": "f" * 64}
        writer.put_clips(ids, torch.stack([vectors_of(name) for name in ids]), torch.ones(len(ids), 3).bool())
        writer.put_files(files)
        writer.commit()


def make_app(
    place: Path,
    *,
    searcher: Searcher | None = None,
    secret: str | None = None,
    names=(),
):
    """The service of the gallery in a folder, or of another searcher, which `app.archive` uses."""
    model = WordModel()
    searcher = searcher or Gallery.open(place / "gallery").searcher
    archive = Archive(searcher, QueryModel(model, WordProcessor()), "gallery")
    app = build_app(archive, None if secret is None else Token(secret), names)
    app.archive, app.model = archive, model
    return app


@contextmanager
def serving(app, **limits):
    """Serve an application at an address, in a thread."""
    listener = listen("127.0.0.1", 0)
    server = make_server(app, **limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    address = address_of(listener)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
