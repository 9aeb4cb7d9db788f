"""Wrong galleries: how each is made of a good one, and what every command that meets it must say.

`make` changes a gallery: clips, the files that they were read from, and captions.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scalar_retrieval.gallery.gallery import GalleryWriter, MediaFile
from scalar_retrieval.gallery.store.columns import query_table
from scalar_retrieval.gallery.store.files import sha256_of
from scalar_retrieval.gallery.store.places import MANIFEST
from scalar_retrieval.gallery.store.storage import signed
from tests.gallery.conftest import make_clips, make_queries

READING = ("query", "info", "verify", "run", "push")
EVERY = (*READING, "compact", "index")
# Of vectors that only those look at who use them.
VECTORS = ("query", "verify", "run", "push")
# Of files that only those look at who use them; `index` has reported the model before.
FILES = ("info", "verify", "push", "compact")


@dataclass(frozen=True)
class Wrong:
    """A wrong gallery; `message` is a regular expression, `commands` are those that must refuse it."""

    name: str
    make: Callable[[Path], Any]
    message: str
    commands: tuple[str, ...] = EVERY


def make_good(folder: Path, metadata: dict[str, Any]) -> None:
    """The gallery that is changed: two files of clips, one with a removed clip, and captions of the others."""
    with GalleryWriter(folder, "float32") as writer:
        writer.metadata = metadata
        for seed in (0, 1):
            names, embeds, mask = make_clips(4, seed=seed)
            writer.put_clips(names, embeds, mask)
            writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
            kept = names[1:]
            writer.put_queries(
                query_table([f"{seed}-{n}" for n in range(3)], ["c"] * 3, make_queries(3), [[name] for name in kept])
            )
            writer.commit()
        for seed in (0, 1):
            writer.remove_clips(make_clips(1, seed=seed)[0])
        writer.commit()


# How to make them ---------------------------------------------------------------------------------------------------


def text(content: str | bytes) -> Callable[[Path], Any]:
    """Another manifest."""
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / MANIFEST).write_bytes(raw)


def record(change: Callable[[dict], Any]) -> Callable[[Path], Any]:
    """A manifest that is changed, and has the hash of what it is now."""

    def make(folder):
        content = json.loads((folder / MANIFEST).read_text())
        content.pop("sha256")
        change(content)
        (folder / MANIFEST).write_text(json.dumps(signed(content)))

    return make


def shard(**changes: Any) -> Callable[[Path], Any]:
    return record(lambda content: content["tables"]["clips"][0].update(changes))


def hash_of_file(sha256: str | None) -> Callable[[Path], Any]:
    """A committed table of files, one of which has another hash, which our writer would refuse."""

    def make(folder):
        with GalleryWriter(folder) as writer:
            rows = writer.gallery().file_rows.slice(0, 1)
            place = rows.column_names.index("sha256")
            writer.append("files", rows.set_column(place, rows.schema.field(place), pa.array([sha256], pa.string())))
            writer.commit()

    return make


def file(write: Callable[[Path], Any], pattern: str = "clips/data-*.arrow") -> Callable[[Path], Any]:
    """The first file of a pattern, changed in place."""
    return lambda folder: write(min(folder.glob(pattern)))


def table(change: Callable[[pa.Table], pa.Table], name: str = "clips", new: Callable = pa.ipc.new_stream):
    """Rows that are changed, in files whose sizes and hashes the manifest has: what somebody made on purpose."""

    def make(folder):
        entries = json.loads((folder / MANIFEST).read_text())["tables"][name]
        for entry in entries:
            path = folder / name / entry["file"]
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                rows = change(stream.read_all())
            with open(path, "wb") as sink, new(sink, rows.schema) as stream:
                stream.write_table(rows.combine_chunks())
            entry |= {"rows": len(rows), "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        record(lambda content: content["tables"].update({name: entries}))(folder)

    return make


def removed(save: Callable[[Any, np.ndarray], Any], rows: Any) -> Callable[[Path], Any]:
    """Another list of removed rows, whose hash the manifest has."""

    def make(folder):
        path = min(folder.glob("clips/removed-*.npy"))
        with open(path, "wb") as sink:
            save(sink, np.array(rows))
        shard(removed_sha256=sha256_of(path))(folder)

    return make


def column(name: str, change: Callable[[pa.ChunkedArray], Any], of: str = "clips"):
    """One column of all files of a table, changed."""
    return table(lambda rows: rows.set_column(rows.column_names.index(name), name, change(rows.column(name))), of)


def listed(values: Callable[[np.ndarray], np.ndarray], kind: pa.DataType):
    """Other values in a column of lists."""

    def change(chunks):
        matrix = values(np.array(chunks.to_pylist()))
        return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1), kind), matrix.shape[1])

    return change


GONE = "gallery.json is missing, although gallery-copy.json exists"
NO_NUMBERS = "changed since they were written|unit norm|must be finite"

WRONG = [
    # The manifest as a file
    Wrong("no manifest", file(os.unlink, MANIFEST), GONE),
    # The manifest as text
    Wrong("not UTF-8", text(b'{"version": "\xff"}'), "is not JSON"),
    Wrong("a list", text("[]"), "must hold a JSON object, got list"),
    Wrong("deep lists", text("[" * 100_000), "is not JSON"),
    Wrong("NaN", text('{"commit": NaN}'), "NaN is not JSON"),
    Wrong(
        "changed",
        file(lambda path: path.write_text(path.read_text().replace(": 3", ": 4")), MANIFEST),
        "has changed since",
    ),
    # Fields of the manifest, of which more are in test_forged.py
    Wrong("version", record(lambda content: content.update(version=2)), "has version .*expected 3"),
    # Its tables
    Wrong("more bytes than there are", shard(bytes=10**15), "must have 1000000000000000 bytes, got"),
    Wrong("a row too many", shard(rows=5), "must have 5 rows, got 4"),
    # Files of rows
    Wrong("a shard is gone", file(os.unlink), "data-000001-0.arrow is missing"),
    Wrong("a file of Arrow's other kind", table(lambda rows: rows, new=pa.ipc.new_file), "is damaged"),
    # Vectors that are looked at when they are used
    Wrong(
        "a vector of NaN",
        column("video", listed(lambda rows: rows * np.nan, pa.float32())),
        NO_NUMBERS,
        ("query", "verify", "push"),
    ),
    Wrong(
        "clips without anything",
        column("presence", listed(np.zeros_like, pa.bool_())),
        "changed since they were written|these have none|at least one modality",
        VECTORS[:4],
    ),
    Wrong(
        "an identifier for all",
        column("clip_id", lambda c: pa.array(["same"] * len(c))),
        "must be unique|not in the gallery",
        ("verify", "run"),
    ),
    # Lists of removed rows
    Wrong("a list is gone", file(os.unlink, "clips/removed-*.npy"), "removed-000003-0.npy is missing"),
    Wrong("a list of texts", removed(np.save, ["x"]), "does not list rows that were removed"),
    Wrong("a row that is not there", removed(np.save, [9]), "does not list rows that were removed"),
    # Media files and captions
    Wrong("a hash that is a path", hash_of_file("../../x"), "must be 64 hexadecimal digits, got '../../x'", FILES),
    Wrong("captions are gone", file(os.unlink, "queries/data-*.arrow"), "queries/data-000001-0.arrow is missing"),
    Wrong(
        "captions of unknown clips",
        column("clip_ids", lambda c: pa.array([["nowhere"]] * 3), "queries"),
        "clips that are not in the gallery",
        ("run",),
    ),
    # What `datasets` reads
    Wrong(
        "half a description",
        lambda folder: os.truncate(folder / "clips/dataset_info.json", 99),
        "clips/dataset_info.json",
        ("verify", "push"),
    ),
]
