"""The gallery on disk and its exact search.

A gallery is a folder of two files: `gallery-<sha256>.safetensors` holds one float32 matrix per modality, zero where a
clip lacks it, and the presence mask; `gallery.json` holds everything else and names the first by its content hash. The
JSON is replaced last, so a folder is always one whole state, the old or the new.

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from modeling_scalar.aggregation_scalar import query_weights, retrieval_scores
from modeling_scalar.configuration_scalar import MODALITIES

VERSION = 1
QUERY_BLOCK = 1024
UNIT_TOLERANCE = 1e-3  # float32 rows are unit to 1e-6; a norm off by more than this is no rounding error

_JSON_NAME = "gallery.json"
_MASK = "modality_mask"
_EMBEDDINGS = re.compile(r"gallery-[0-9a-f]{64}\.safetensors")


@dataclass(frozen=True)
class Entry:
    """One clip of the gallery: its file as it was when embedded, and which modalities it has.

    `duration` is that of the sound in seconds, None without sound; `problems` says what could not be decoded.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str
    presence: list[str]
    duration: float | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FailedFile:
    """A file in which nothing could be read, kept so that it is tried again only when it changes."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str


@dataclass(frozen=True)
class Hit:
    """One result. `weights` are the query's modality weights (None for a method other than "scalar")."""

    rank: int
    path: str
    score: float
    weights: dict[str, float] | None
    presence: dict[str, bool]


_FIELD_TYPES = {
    "path": str,
    "size": int,
    "mtime_ns": int,
    "sha256": str,
    "presence": list,
    "duration": (int, float, type(None)),
    "problems": list,
    "reason": str,
    "model": str,
    "fingerprint": str,
    "query_temperature": (int, float),
    "dim": int,
    "embeddings_sha256": str,
    "entries": list,
    "failed": list,
}


def _check_record(record: object, names: set[str], where: str) -> dict:
    if not isinstance(record, dict) or record.keys() != names:
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{where} must be an object with the fields {sorted(names)}, got {found}.")
    for name in names:
        if not isinstance(record[name], _FIELD_TYPES[name]):
            raise ValueError(f"{where}: `{name}` has the wrong type, got {record[name]!r}.")
    return record


def _read_records(rows: list, record_class: type, where: str) -> dict:
    names = {item.name for item in fields(record_class)}
    records = {}
    for number, row in enumerate(rows):
        record = record_class(**_check_record(row, names, f"{where}[{number}]"))
        if record.path in records:
            raise ValueError(f"{where}[{number}]: the path {record.path!r} is listed twice.")
        records[record.path] = record
    return records


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _check_embeds(embeds: list[torch.Tensor], modality_mask: torch.Tensor, paths: list[str]) -> None:
    """Raise unless rows are unit where the mask is True and zero where it is False, with at least one True a clip."""
    empty = (~modality_mask.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"Every clip must have at least one modality; {paths[empty[0]]!r} has none.")
    for column, name in enumerate(MODALITIES):
        norms = torch.linalg.vector_norm(embeds[column], dim=1)  # (N,)
        present = modality_mask[:, column]
        right = torch.where(present, (norms - 1).abs() <= UNIT_TOLERANCE, norms == 0)  # NaN is never right
        wrong = (~right).nonzero().flatten().tolist()
        if wrong:
            row = wrong[0]
            expected = "unit" if present[row] else "zero, since the modality is absent,"
            raise ValueError(
                f"The {name} embedding of {paths[row]!r} must be {expected} but has norm {norms[row].item():.6g}."
            )


def _top_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest columns of each row, best first, equal scores in column order (torch.topk promises none)."""
    k = min(k, scores.shape[1])
    values, columns = torch.topk(scores, k, dim=1)
    tied = (scores >= values[:, -1:]).sum(dim=1) > k  # more candidates for the last place than places
    if tied.any():
        columns[tied] = scores[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    columns = columns.sort(dim=1).values
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


class Gallery:
    """Embedded clips with the model that made them, in the order in which they were added.

    Args:
        model (`str`): where the model was loaded from.
        fingerprint (`str`): hash of the model's files; embeddings of different models are never compared.
        query_temperature (`float`): temperature of the query's modality weights, positive.

    `entries` maps path to `Entry` in row order, `failed` maps path to `FailedFile`. A record may be replaced under its
    own path; rows are added and taken away by `append` and `remove` only.
    """

    def __init__(self, model: str, fingerprint: str, query_temperature: float):
        if not (math.isfinite(query_temperature) and query_temperature > 0):
            raise ValueError(f"`query_temperature` must be positive and finite, got {query_temperature!r}.")
        self.model = model
        self.fingerprint = fingerprint
        self.query_temperature = query_temperature
        self.entries: dict[str, Entry] = {}
        self.failed: dict[str, FailedFile] = {}
        self._embeds: list[torch.Tensor] = []  # one (N, D) per modality; none before the first clip
        self._modality_mask = torch.zeros(0, len(MODALITIES), dtype=torch.bool)  # (N, 3)
        self._revision: str | None = None  # hash of the JSON this object stands for

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def dim(self) -> int | None:
        """Embedding dimension, None as long as no clip was ever added."""
        return self._embeds[0].shape[1] if self._embeds else None

    @property
    def modality_mask(self) -> torch.Tensor:
        """`torch.BoolTensor` of shape `(N, 3)`: which modalities each clip has."""
        return self._modality_mask

    def check_model(self, model: str, fingerprint: str) -> None:
        """Raise a ValueError unless `fingerprint` is that of the model which made this gallery."""
        if fingerprint != self.fingerprint:
            raise ValueError(
                f"The gallery was made with {self.model!r} (fingerprint {self.fingerprint[:12]}), but the files of "
                f"{model!r} have fingerprint {fingerprint[:12]}. Embeddings of different models cannot be compared: "
                "use the gallery's model, or index into a new gallery."
            )

    def append(self, entries: list[Entry], modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
        """Add clips at the end.

        Args:
            entries (`list[Entry]`): one per clip, new paths only; `presence` agrees with the mask.
            modality_embeds (`torch.FloatTensor` of shape `(N, 3, D)`): unit where present, zero where absent.
            modality_mask (`torch.BoolTensor` of shape `(N, 3)`): at least one True per row.
        Raises:
            ValueError: shapes, norms, presence or paths are not as said above; the gallery is then unchanged.
        """
        paths = [entry.path for entry in entries]
        expected = (len(entries), len(MODALITIES))
        if (
            tuple(modality_mask.shape) != expected
            or modality_embeds.ndim != 3
            or modality_embeds.shape[:2] != expected
        ):
            raise ValueError(
                f"{len(entries)} entries need `modality_mask` of shape {expected} and `modality_embeds` of shape "
                f"{(*expected, 'D')}, got {tuple(modality_mask.shape)} and {tuple(modality_embeds.shape)}."
            )
        if self.dim not in (None, modality_embeds.shape[2]):
            raise ValueError(f"The gallery has {self.dim} dimensions, got embeddings of {modality_embeds.shape[2]}.")
        counts = Counter(paths)
        repeated = [path for path in paths if counts[path] > 1 or path in self.entries]
        if repeated:
            raise ValueError(f"{repeated[0]!r} is in the gallery already, or given twice; `remove` it first.")
        modality_mask = modality_mask.to("cpu", torch.bool)
        embeds = list(modality_embeds.to("cpu", torch.float32).unbind(dim=1))  # 3 x (N, D)
        _check_embeds(embeds, modality_mask, paths)
        _check_presence(entries, modality_mask)
        self._embeds = [torch.cat(pair) for pair in zip(self._embeds, embeds, strict=True)] if self._embeds else embeds
        self._modality_mask = torch.cat([self._modality_mask, modality_mask])
        self.entries |= {entry.path: entry for entry in entries}

    def remove(self, paths: set[str]) -> None:
        """Take clips out; the others keep their order. A path that is not in the gallery raises a KeyError."""
        for path in paths:
            if path not in self.entries:
                raise KeyError(path)
        keep = torch.tensor([path not in paths for path in self.entries], dtype=torch.bool)
        self._embeds = [matrix[keep] for matrix in self._embeds]
        self._modality_mask = self._modality_mask[keep]
        self.entries = {path: entry for path, entry in self.entries.items() if path not in paths}

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Gallery":
        """Open a gallery folder with its embeddings memory-mapped.

        Raises:
            FileNotFoundError: the folder holds no gallery.
            ValueError: the folder is not as `save` writes it; the message says where.
        """
        folder = Path(path)
        json_path = folder / _JSON_NAME
        if not json_path.is_file():
            raise FileNotFoundError(f"There is no gallery in {str(folder)!r}: {_JSON_NAME} is missing.")
        raw = json_path.read_bytes()
        try:
            record = json.loads(raw)
        except ValueError as error:
            raise ValueError(f"{json_path} is not valid JSON: {error}") from error
        if not isinstance(record, dict) or record.pop("version", None) != VERSION:
            raise ValueError(f"{json_path} is not a gallery of version {VERSION}, the one this program reads.")
        names = {"model", "fingerprint", "query_temperature", "dim", "embeddings_sha256", "entries", "failed"}
        _check_record(record, names, str(json_path))
        gallery = cls(record["model"], record["fingerprint"], record["query_temperature"])
        gallery.entries = _read_records(record["entries"], Entry, f"{json_path}: entries")
        gallery.failed = _read_records(record["failed"], FailedFile, f"{json_path}: failed")
        gallery._map(folder / f"gallery-{record['embeddings_sha256']}.safetensors", record["dim"])
        gallery._revision = hashlib.sha256(raw).hexdigest()
        return gallery

    def _map(self, file: Path, dim: int) -> None:
        """Memory-map and check the embeddings that belong to `self.entries`."""
        if not _EMBEDDINGS.fullmatch(file.name):
            raise ValueError(f"{file.parent / _JSON_NAME}: `embeddings_sha256` is not a SHA-256.")
        if not file.is_file():
            raise ValueError(f"{file} is missing, although {_JSON_NAME} refers to it.")
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.stem.removeprefix("gallery-"):
                raise ValueError(f"{file} is damaged: its content does not have the hash in its name.")
        try:
            with safe_open(file, framework="pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}
        except SafetensorError as error:
            raise ValueError(f"{file} is not a safetensors file: {error}") from error
        count = len(self.entries)
        expected = {name: (torch.float32, (count, dim)) for name in MODALITIES}
        expected[_MASK] = (torch.bool, (count, len(MODALITIES)))
        found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        if found != expected:
            raise ValueError(f"{file} must hold {expected}, got {found}.")
        self._embeds = [tensors[name] for name in MODALITIES]
        self._modality_mask = tensors[_MASK]
        _check_embeds(self._embeds, self._modality_mask, list(self.entries))
        _check_presence(list(self.entries.values()), self._modality_mask)

    def save(self, path: str | os.PathLike) -> None:
        """Write the gallery; whatever happens on the way, the folder holds the old state or the new one.

        Raises:
            ValueError: no clip was ever added, or the folder's gallery is not the one this object was read from or
                last saved as, so that writing would lose another program's work.
        """
        if self.dim is None:
            raise ValueError("A gallery to which no clip was ever added cannot be saved.")
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        json_path = folder / _JSON_NAME
        on_disk = hashlib.sha256(json_path.read_bytes()).hexdigest() if json_path.exists() else None
        if on_disk != self._revision:
            raise ValueError(f"The gallery in {str(folder)!r} was written by another program meanwhile; run again.")

        part = folder / f".gallery-{os.getpid()}.part"
        try:
            tensors = {name: matrix.contiguous() for name, matrix in zip(MODALITIES, self._embeds, strict=True)}
            save_file(tensors | {_MASK: self._modality_mask}, part)
            _sync(part)
            with part.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            embeddings = folder / f"gallery-{digest}.safetensors"
            os.replace(part, embeddings)
            record = {
                "version": VERSION,
                "model": self.model,
                "fingerprint": self.fingerprint,
                "query_temperature": self.query_temperature,
                "dim": self.dim,
                "embeddings_sha256": digest,
                "entries": [asdict(entry) for entry in self.entries.values()],
                "failed": [asdict(failure) for failure in self.failed.values()],
            }
            raw = (json.dumps(record, indent=1) + "\n").encode("ascii")
            part.write_bytes(raw)
            _sync(part)
            os.replace(part, json_path)
        finally:
            part.unlink(missing_ok=True)
        self._revision = hashlib.sha256(raw).hexdigest()
        for file in folder.iterdir():
            if _EMBEDDINGS.fullmatch(file.name) and file != embeddings:
                file.unlink(missing_ok=True)
        with safe_open(embeddings, framework="pt") as stored:  # the mapped file in place of the copy in memory
            self._embeds = [stored.get_tensor(name) for name in MODALITIES]

    def search(
        self,
        text_embeds: torch.Tensor,
        k: int = 10,
        query_temperature: float | None = None,
        method: str = "scalar",
        block_size: int = 4096,
        **score_parameters: float,
    ) -> list[list[Hit]]:
        """Find the k best clips of each query, exactly: every clip is scored.

        Args:
            text_embeds (`torch.FloatTensor` of shape `(Q, D)`): unit norm along the last axis.
            k (`int`): hits per query; fewer come back where the gallery has fewer clips that `method` can score.
            query_temperature (`float`, *optional*): the gallery's own when None.
            method (`str`): as in `retrieval_scores`. A clip without the pathway of a single-pathway method is no hit.
            block_size (`int`): clips scored at a time; it bounds memory and does not change the result.
            score_parameters (`float`): what the method learned, the other keyword arguments of `retrieval_scores`.
        Returns:
            `list[list[Hit]]`: per query, best first; equal scores in gallery order.
        Raises:
            ValueError: shape or norm of `text_embeds`, or a number below one.
        """
        if k < 1 or block_size < 1:
            raise ValueError(f"`k` and `block_size` must be at least 1, got {k} and {block_size}.")
        if text_embeds.ndim != 2 or self.dim not in (None, text_embeds.shape[1]):
            raise ValueError(
                f"`text_embeds` must have shape (queries, {self.dim or 'D'}), got {tuple(text_embeds.shape)}."
            )
        text_embeds = text_embeds.detach().to("cpu", torch.float32)
        norms = torch.linalg.vector_norm(text_embeds, dim=1)
        if not ((norms - 1).abs() <= UNIT_TOLERANCE).all():
            raise ValueError(f"Rows of `text_embeds` must have unit norm, got {norms.tolist()[:8]}.")
        temperature = self.query_temperature if query_temperature is None else query_temperature
        results = []
        for queries in text_embeds.split(QUERY_BLOCK):
            results += self._search_block(queries, k, temperature, method, block_size, score_parameters)
        return results

    def _rows(self, index: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embeds = torch.stack([matrix[index] for matrix in self._embeds], dim=1)  # (rows, 3, D)
        return embeds, self._modality_mask[index]

    def _search_block(
        self,
        text_embeds: torch.Tensor,
        k: int,
        query_temperature: float,
        method: str,
        block_size: int,
        score_parameters: dict[str, float],
    ) -> list[list[Hit]]:
        top_scores = torch.empty(len(text_embeds), 0)
        top_rows = torch.empty(len(text_embeds), 0, dtype=torch.long)
        for start in range(0, len(self), block_size):
            embeds, mask = self._rows(slice(start, start + block_size))
            scores = retrieval_scores(text_embeds, embeds, mask, method, query_temperature, **score_parameters)
            scores, columns = _top_k(scores, k)
            scores, rows = torch.cat([top_scores, scores], dim=1), torch.cat([top_rows, columns + start], dim=1)
            top_scores, order = _top_k(scores, k)  # earlier rows stand first, so ties keep gallery order
            top_rows = rows.gather(1, order)  # (Q, K)

        paths, results = list(self.entries), []
        for query, scores, rows in zip(text_embeds, top_scores, top_rows, strict=True):
            rows = rows[scores > -math.inf]
            embeds, mask = self._rows(rows) if len(rows) else (None, None)
            weights = [None] * len(rows)
            if method == "scalar" and len(rows):
                table = query_weights(query[None], embeds, mask, query_temperature)[0]  # (K, 3)
                weights = [dict(zip(MODALITIES, line, strict=True)) for line in table.tolist()]
            results.append(
                [
                    Hit(
                        rank=number + 1,
                        path=paths[row],
                        score=scores[number].item(),
                        weights=weights[number],
                        presence=dict(zip(MODALITIES, mask[number].tolist(), strict=True)),
                    )
                    for number, row in enumerate(rows.tolist())
                ]
            )
        return results


def _check_presence(entries: list[Entry], modality_mask: torch.Tensor) -> None:
    for entry, row in zip(entries, modality_mask.tolist(), strict=True):
        present = [name for name, here in zip(MODALITIES, row, strict=True) if here]
        if entry.presence != present:
            raise ValueError(f"{entry.path!r}: `presence` is {entry.presence}, but the mask says {present}.")


__all__ = ["Entry", "FailedFile", "Gallery", "Hit"]
