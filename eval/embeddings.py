"""The embeddings of a benchmark, and the folder they are kept in.

A store is a folder of two data sets as `datasets.save_to_disk` writes them, which `datasets`, Arrow, NumPy and torch
read without this project, and a description:

`clips/`
    `clip_id` (string); `video`, `audio` and `subtitle` (lists of D floats): unit vectors, zero where the clip lacks
    the modality; `presence` (list of 3 bools): which of the three it has, in this order. What concatenation heads
    gave, for checkpoints that have them, is in `concat_video_audio`, `concat_video_subtitle` and
    `concat_video_audio_subtitle`.
`queries/`
    `query_id`, `caption` (strings); `embedding` (list of D floats): a unit vector; `clip_ids` (list of strings): the
    clips that the query describes.
`embeddings.json`
    Counts, the SHA-256 of the gallery, `problems` and `metadata`. May be left out of a store that was written by hand.

Vectors of any other model are evaluated in the same way, once they are written with `datasets` alone:

    Dataset.from_dict({"clip_id": ids, "video": v, "audio": a, "subtitle": s, "presence": p}).save_to_disk("X/clips")
    Dataset.from_dict({"query_id": q, "caption": c, "embedding": t, "clip_ids": lists}).save_to_disk("X/queries")

or as one `.safetensors` or `.npz` file, see [`load_embeddings`].
"""

import hashlib
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, load_from_disk
from safetensors import SafetensorError, safe_open

from eval.files import write_json
from modeling_scalar.configuration_scalar import CONCATENATIONS, MODALITIES

DESCRIPTION = "embeddings.json"
"""The file of a store that tells what it holds."""
VERSION = 1
_DTYPES = {"float32": torch.float32, "float16": torch.float16}

_CONCAT_COLUMNS = tuple("_".join(("concat", *names)) for names in CONCATENATIONS)
# Vectors computed in bfloat16 and normalised there miss the unit norm by up to 0.4 %, in float16 by 0.05 %.
_NORM_TOLERANCE = 0.01
_NAMED = 10


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{list(names[:_NAMED])}{more}"


def _chosen(ids: list[str], selected: torch.Tensor) -> list[str]:
    return [ids[row] for row in selected.nonzero().flatten().tolist()]


@dataclass(eq=False)
class Embeddings:
    """
    Everything the scores of a benchmark are made of.

    Args:
        text_embeds (`torch.FloatTensor` of shape `(queries, dim)`): one unit vector per caption.
        modality_embeds (`torch.FloatTensor` of shape `(clips, 3, dim)`): unit vectors in the order of `MODALITIES`;
            rows with a False mask are ignored.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has, at least one True per row.
        pairs (`torch.LongTensor` of shape `(pairs, 2)`): which query (row of `text_embeds`) describes which clip (row
            of `modality_embeds`). Every query describes at least one clip; a clip may be described by none or several.
        clip_ids (`list[str]`), query_ids (`list[str]`): identifiers, each unique, in the order of the rows.
        captions (`list[str]`): the text of each query.
        concat_embeds (`torch.FloatTensor` of shape `(clips, 3, dim)`, *optional*): what the concatenation heads give
            for each clip, in the order of `CONCATENATIONS`; zero where the clip lacks a modality of the head. Only
            some checkpoints have these heads.
        problems (`list[str]`): what could not be read and counts as absent, each with the identifier of its clip.
        metadata (`dict`): where the embeddings come from; anything JSON can hold.

    Raises:
        ValueError: there are no queries or no clips, shapes do not fit, an identifier repeats, a pair names no clip,
            or a clip has no modality at all.
    """

    text_embeds: torch.Tensor
    modality_embeds: torch.Tensor
    modality_mask: torch.Tensor
    pairs: torch.Tensor
    clip_ids: list[str]
    query_ids: list[str]
    captions: list[str]
    concat_embeds: torch.Tensor | None = None
    problems: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        queries, clips = len(self.query_ids), len(self.clip_ids)
        dim = self.text_embeds.shape[-1]
        expected = {
            "text_embeds": (queries, dim),
            "modality_embeds": (clips, len(MODALITIES), dim),
            "modality_mask": (clips, len(MODALITIES)),
            "pairs": (len(self.pairs), 2),
        }
        if self.concat_embeds is not None:
            expected["concat_embeds"] = (clips, len(CONCATENATIONS), dim)
        if not queries or not clips:
            raise ValueError(f"There must be a query and a clip, got {queries} queries and {clips} clips.")
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"Expected `{name}` of shape {shape}, got {tuple(getattr(self, name).shape)}.")
        if self.modality_mask.dtype != torch.bool:
            raise ValueError(f"`modality_mask` must be a bool tensor, got {self.modality_mask.dtype}.")
        for name, ids in (("clip_ids", self.clip_ids), ("query_ids", self.query_ids)):
            if len(set(ids)) != len(ids):
                repeated = sorted(i for i, count in Counter(ids).items() if count > 1)
                raise ValueError(f"`{name}` must be unique, repeated: {_listed(repeated)}.")
        if len(self.captions) != queries:
            raise ValueError(f"Expected one caption per query, got {len(self.captions)} for {queries}.")
        outside = (self.pairs < 0) | (self.pairs >= self.pairs.new_tensor([queries, clips]))
        if outside.any():
            wrong = self.pairs[outside.any(dim=1)].tolist()[:_NAMED]
            raise ValueError(f"`pairs` must name rows of the {queries} queries and {clips} clips, got {wrong}.")
        if len(self.pairs.unique(dim=0)) != len(self.pairs):
            raise ValueError("`pairs` must be unique: a query describes a clip or not.")
        lost = torch.ones(queries, dtype=torch.bool).index_fill(0, self.pairs[:, 0], False)
        if lost.any():
            names = _listed(_chosen(self.query_ids, lost))
            raise ValueError(f"Every query must describe a clip; these describe none: {names}.")
        empty = _chosen(self.clip_ids, ~self.modality_mask.any(dim=1))
        if empty:
            raise ValueError(f"Every clip needs at least one modality; these have none: {_listed(empty)}.")

    def check_finite(self) -> None:
        """Raise a ValueError that names the captions and clips with a NaN or infinity where it counts."""
        clips = (~self.modality_embeds.isfinite().all(dim=-1) & self.modality_mask).any(dim=1)
        if self.concat_embeds is not None:
            clips |= ~self.concat_embeds.isfinite().all(dim=-1).all(dim=-1)
        bad_queries = _chosen(self.query_ids, ~self.text_embeds.isfinite().all(dim=-1))
        bad_clips = _chosen(self.clip_ids, clips)
        if bad_queries or bad_clips:
            raise ValueError(
                f"Embeddings must be finite; they are not for the captions {_listed(bad_queries)} and the clips "
                f"{_listed(bad_clips)}."
            )

    def check_unit(self) -> None:
        """Raise a ValueError that names the captions and clips whose vectors are not of unit norm where present.

        A norm that is not finite passes: [`check_finite`] tells of it. Concatenation heads may give zero.
        """
        captions = _chosen(self.query_ids, _is_off(self.text_embeds))
        clips = (_is_off(self.modality_embeds) & self.modality_mask).any(dim=1)
        if self.concat_embeds is not None:
            clips |= (_is_off(self.concat_embeds) & (self.concat_embeds != 0).any(dim=-1)).any(dim=1)
        clips = _chosen(self.clip_ids, clips)
        if captions or clips:
            raise ValueError(
                f"Embeddings must be of unit norm; they are not for the captions {_listed(captions)} and the clips "
                f"{_listed(clips)}. Normalise them, or load them with `normalize=True`; a modality that a clip lacks "
                "must be marked absent."
            )

    def normalized(self) -> "Embeddings":
        """Return a copy whose vectors are of unit norm; zeros stay zeros."""
        names = ["text_embeds", "modality_embeds"] + ["concat_embeds"] * (self.concat_embeds is not None)
        return replace(self, **{name: _unit(getattr(self, name)) for name in names})

    def save(self, folder: str | os.PathLike, dtype: str | None = None) -> None:
        """
        Write a store, whole or not at all.

        Args:
            folder (`str`): made if need be; a store that is there is replaced. Pairs are kept in the order of queries.
            dtype (`str`, *optional*): `"float32"` or `"float16"`; by default that of `modality_embeds`.

        Raises:
            ValueError: the folder holds something else than a store, the embeddings have another precision and
                `dtype` does not choose one, or `metadata` is not JSON.
        """
        precision = precision_of(dtype or str(self.modality_embeds.dtype).removeprefix("torch."))
        concat_embeds = None if self.concat_embeds is None else self.concat_embeds.to(precision)
        clips = clip_table(self.clip_ids, self.modality_embeds.to(precision), self.modality_mask, concat_embeds)
        queries = query_table(
            self.query_ids, self.captions, self.text_embeds.to(precision), _described(self.pairs, self.clip_ids)
        )
        write_store(folder, Dataset(clips), Dataset(queries), self.problems, self.metadata)

    @classmethod
    def load(cls, folder: str | os.PathLike, normalize: bool = False) -> "Embeddings":
        """
        Read a store.

        Args:
            folder (`str`): what [`Embeddings.save`], `python -m eval embed` or `datasets` wrote, see the module.
            normalize (`bool`): give vectors unit norm that do not have it.

        Returns:
            [`Embeddings`], in float16 if that is what the store holds, else in float32.

        Raises:
            FileNotFoundError: a data set is not there.
            ValueError: a column is missing or of another type, lengths differ, an identifier repeats or a query names
                an unknown clip, a vector is not of unit norm, or the description is that of something else.
        """
        folder = Path(folder)
        description = _read_description(folder)
        clips, queries = _open(folder / "clips"), _open(folder / "queries")
        has_concats = any(name in clips.column_names for name in _CONCAT_COLUMNS)
        clip_ids = _strings(clips, "clip_id", folder / "clips")
        query_ids, captions = (_strings(queries, name, folder / "queries") for name in ("query_id", "caption"))
        embeddings = cls(
            text_embeds=_vectors(queries, ["embedding"], folder / "queries")[:, 0],
            modality_embeds=_vectors(clips, MODALITIES, folder / "clips"),
            modality_mask=_vectors(clips, ["presence"], folder / "clips", boolean=True)[:, 0],
            pairs=_read_pairs(queries, clip_ids, folder / "queries"),
            clip_ids=clip_ids.to_pylist(),
            query_ids=query_ids.to_pylist(),
            captions=captions.to_pylist(),
            concat_embeds=_vectors(clips, _CONCAT_COLUMNS, folder / "clips") if has_concats else None,
            problems=description.get("problems", []),
            metadata=description.get("metadata", {}),
        )
        facts = _facts(clips, queries)
        different = sorted(name for name, value in facts.items() if description.get(name, value) != value)
        if different:
            raise ValueError(
                f"{folder / DESCRIPTION} describes other embeddings than those beside it: different are {different}. "
                "Restore the file that belongs to them, or remove it."
            )
        return _checked(embeddings, normalize)


def precision_of(name: str) -> torch.dtype:
    """Return the precision of a store by its name; a ValueError if there is none of that name."""
    if name not in _DTYPES:
        raise ValueError(f"A store holds {' or '.join(_DTYPES)}, got {name!r}. Choose one as `dtype`.")
    return _DTYPES[name]


def _norms(embeds: torch.Tensor) -> torch.Tensor:
    # In blocks: a half-precision tensor is copied for it.
    dtype = torch.promote_types(embeds.dtype, torch.float32)
    return torch.cat([torch.linalg.vector_norm(block, dim=-1, dtype=dtype) for block in embeds.split(4096)])


def _is_off(embeds: torch.Tensor) -> torch.Tensor:
    norms = _norms(embeds)
    return (norms - 1).abs().gt(_NORM_TOLERANCE) & norms.isfinite()


def _unit(embeds: torch.Tensor) -> torch.Tensor:
    norms = _norms(embeds)[..., None]
    return (embeds / torch.where(norms > 0, norms, 1)).to(embeds.dtype)


def _checked(embeddings: Embeddings, normalize: bool) -> Embeddings:
    embeddings = embeddings.normalized() if normalize else embeddings
    embeddings.check_unit()
    return embeddings


# Writing ----------------------------------------------------------------------------------------------------------


def _fixed_lists(rows: torch.Tensor) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.contiguous().numpy().reshape(-1)), rows.shape[-1])


def clip_table(
    clip_ids: list[str],
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    concat_embeds: torch.Tensor | None = None,
) -> pa.Table:
    """Lay clips out as a store has them; arguments as in [`Embeddings`], on the CPU, in a precision of a store."""
    columns = {"clip_id": pa.array(clip_ids, pa.string())}
    for index, name in enumerate(MODALITIES):
        rows = modality_embeds[:, index]
        columns[name] = _fixed_lists(torch.where(modality_mask[:, index, None], rows, rows.new_zeros(())))
    columns["presence"] = _fixed_lists(modality_mask)
    if concat_embeds is not None:
        columns |= {name: _fixed_lists(concat_embeds[:, index]) for index, name in enumerate(_CONCAT_COLUMNS)}
    return pa.table(columns)


def query_table(query_ids: list[str], captions: list[str], text_embeds: torch.Tensor, clip_ids: Any) -> pa.Table:
    """Lay queries out as a store has them; `clip_ids`: of each query, the list of clips that it describes."""
    return pa.table(
        {
            "query_id": pa.array(query_ids, pa.string()),
            "caption": pa.array(captions, pa.string()),
            "embedding": _fixed_lists(text_embeds),
            "clip_ids": pa.array(clip_ids, pa.list_(pa.string())),
        }
    )


def _described(pairs: torch.Tensor, clip_ids: list[str]) -> list[list[str]]:
    """Of each query, the identifiers of the clips that it describes."""
    described = [[] for _ in range(int(pairs[:, 0].max()) + 1)]
    for query, clip in pairs.tolist():
        described[query].append(clip_ids[clip])
    return described


def check_place(folder: Path) -> None:
    """Raise a ValueError unless a store can be written to the folder without losing anything but a store."""
    if folder.exists() and not (folder / DESCRIPTION).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something else than embeddings. Give a new folder, or an empty one.")


def write_store(
    folder: str | os.PathLike, clips: Dataset, queries: Dataset, problems: list[str], metadata: dict[str, Any]
) -> dict[str, Any]:
    """
    Write a store, whole or not at all: beside its place, then renamed.

    Args:
        folder (`str`): a store that is there is replaced.
        clips, queries (`datasets.Dataset`): rows of [`clip_table`] and [`query_table`], in memory or in files.
        problems (`list[str]`), metadata (`dict`): as in [`Embeddings`].

    Returns:
        `dict`: the content of `embeddings.json`.

    Raises:
        ValueError: the folder holds something else than a store, or `metadata` is not JSON.
    """
    folder = Path(folder).resolve()
    check_place(folder)
    facts = _facts(clips.with_format("arrow")[:], queries.with_format("arrow")[:])
    description = {"version": VERSION, **facts, "problems": problems, "metadata": metadata}
    try:
        json.dumps(description, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The metadata of embeddings must be JSON, without NaN and infinity: {error}") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, replaced = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    try:
        clips.save_to_disk(temporary / "clips")
        queries.save_to_disk(temporary / "queries")
        write_json(description, temporary / DESCRIPTION)
        for path in temporary.glob("*/*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    return description


# Reading ----------------------------------------------------------------------------------------------------------


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a ValueError that names the file if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_json)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


def _read_description(folder: Path) -> dict[str, Any]:
    if not (folder / DESCRIPTION).is_file():
        return {}
    content = read_json(folder / DESCRIPTION)
    if content.get("version", VERSION) != VERSION:
        raise ValueError(f"{folder} holds embeddings of version {content['version']!r}, expected {VERSION}.")
    for name, kind in (("problems", list), ("metadata", dict)):
        if not isinstance(content.get(name, kind()), kind):
            raise ValueError(f"`{name}` in {folder / DESCRIPTION} must be a {kind.__name__}, got {content[name]!r}.")
    return content


def _open(folder: Path) -> pa.Table:
    """Memory-map one data set of a store."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no data set {folder}. A store of embeddings has `clips` and `queries`, each as "
            "`datasets.save_to_disk` writes it."
        )
    try:
        dataset = load_from_disk(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{folder} cannot be opened as a data set; is it cut off, or empty? {error}") from error
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{folder} must hold one data set, got the splits {list(dataset)}.")
    return dataset.with_format("arrow")[:]


def _column(table: pa.Table, name: str, where: Path) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise ValueError(f"{where} lacks the column `{name}`; it has {table.column_names}.")
    column = table.column(name)
    if column.null_count:
        raise ValueError(
            f"The column `{name}` of {where} has {column.null_count} nulls, of which a store has none: absent "
            "modalities are zeros, with False in `presence`."
        )
    return column


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _strings(table: pa.Table, name: str, where: Path) -> pa.Array:
    column = _column(table, name, where)
    if not _is_string(column.type):
        raise ValueError(f"The column `{name}` of {where} must hold strings, got {column.type}.")
    return column.cast(pa.string()).combine_chunks()


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _vectors(table: pa.Table, names: Sequence[str], where: Path, boolean: bool = False) -> torch.Tensor:
    """Copy columns of lists, chunk by chunk, into one tensor (rows, columns, length)."""
    columns = {name: _column(table, name, where) for name in names}
    is_value = pa.types.is_boolean if boolean else pa.types.is_floating
    lengths = set()
    for name, column in columns.items():
        if not _is_list(column.type) or not is_value(column.type.value_type):
            kind = "bools" if boolean else "floats"
            raise ValueError(f"The column `{name}` of {where} must hold lists of {kind}, got {column.type}.")
        lengths |= set(pc.unique(pc.list_value_length(column)).to_pylist())
    if len(lengths) != 1:
        raise ValueError(
            f"All lists in {list(names)} of {where} must have one length, got {sorted(lengths)[:_NAMED]}."
        )
    length = lengths.pop()
    halves = all(pa.types.is_float16(column.type.value_type) for column in columns.values())
    dtype = torch.bool if boolean else torch.float16 if halves else torch.float32
    result = torch.empty(len(table), len(columns), length, dtype=dtype)
    for index, (name, column) in enumerate(columns.items()):
        start = 0
        for chunk in column.chunks:
            values = chunk.flatten()
            if values.null_count:
                raise ValueError(f"Lists in the column `{name}` of {where} hold nulls.")
            rows = values.to_numpy(zero_copy_only=not boolean).reshape(-1, length)  # bools are bits in Arrow
            result.numpy()[start : start + len(rows), index] = rows
            start += len(rows)
    return result


def _read_pairs(queries: pa.Table, clip_ids: pa.Array, where: Path) -> torch.Tensor:
    column = _column(queries, "clip_ids", where)
    if not _is_list(column.type) or not _is_string(column.type.value_type):
        raise ValueError(f"The column `clip_ids` of {where} must hold lists of strings, got {column.type}.")
    described, parents = pc.list_flatten(column).cast(pa.string()), pc.list_parent_indices(column)
    rows = pc.index_in(described, value_set=clip_ids)
    if rows.null_count:
        unknown = described.filter(pc.is_null(rows)).unique().to_pylist()
        raise ValueError(f"Queries in {where} describe clips that are not in the gallery: {_listed(unknown)}.")
    pairs = [column.to_numpy().astype(np.int64) for column in (parents, rows)]
    return torch.from_numpy(np.stack(pairs, axis=1))


def _facts(clips: pa.Table, queries: pa.Table) -> dict[str, Any]:
    """What a description says of its data sets."""
    vectors, concats = clips.column(MODALITIES[0]), [name for name in _CONCAT_COLUMNS if name in clips.column_names]
    presence = _vectors(clips, ["presence"], Path("clips"), boolean=True)[:, 0]
    return {
        "dim": len(vectors[0]),
        "dtype": np.dtype(vectors.type.value_type.to_pandas_dtype()).name,
        "num_clips": len(clips),
        "num_queries": len(queries),
        "num_pairs": pc.sum(pc.list_value_length(queries.column("clip_ids"))).as_py(),
        "columns": [*MODALITIES, *concats],
        "gallery_sha256": _sha256(clips.column("clip_id").to_pylist(), presence.int().tolist()),
    }


# One file ---------------------------------------------------------------------------------------------------------

_AXES = {"text_embeds": 2, "modality_embeds": 3, "modality_mask": 2, "pairs": 2, "targets": 1, "concat_embeds": 3}
_TEXTS = ("clip_ids", "query_ids", "captions")


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
        if not all(isinstance(value, np.ndarray) for value in content.values()):
            raise ValueError("it holds other files")
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not an archive of plain arrays: {error}") from error
    texts = {name: content.pop(name).tolist() for name in _TEXTS if name in content}
    try:
        return {name: torch.from_numpy(content.pop(name)) for name in _AXES if name in content} | content | texts
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds an array that is not of plain numbers: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            content = {name: file.get_tensor(name) for name in file.keys()}
            header = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    try:
        return content | {name: json.loads(header[name]) for name in _TEXTS if name in header}
    except ValueError as error:
        raise ValueError(f"{list(_TEXTS)} in the header of {path} must be JSON lists of strings: {error}") from error


def _float(content: dict[str, Any], name: str, path: Path) -> torch.Tensor:
    if name not in content:
        raise ValueError(f"{path} lacks `{name}`; it has {sorted(content)}.")
    if not content[name].is_floating_point():
        raise ValueError(f"`{name}` in {path} must be floats, got {content[name].dtype}.")
    return content[name] if content[name].dtype in _DTYPES.values() else content[name].float()


def _rows(content: dict[str, Any], name: str, path: Path) -> torch.Tensor | None:
    rows = content.get(name)
    if rows is not None and (rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex()):
        raise ValueError(f"`{name}` in {path} must be whole numbers, got {rows.dtype}.")
    return None if rows is None else rows.long()


def _load_file(path: Path) -> Embeddings:
    content = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    unknown = sorted(set(content) - {*_AXES, *_TEXTS})
    if unknown:
        raise ValueError(f"{path} holds {unknown}, which is none of {[*_AXES, *_TEXTS]}.")
    for name, axes in _AXES.items():
        if name in content and content[name].ndim != axes:
            raise ValueError(f"`{name}` in {path} must have {axes} axes, got {tuple(content[name].shape)}.")
    text_embeds, modality_embeds = (_float(content, name, path) for name in ("text_embeds", "modality_embeds"))
    queries, clips = len(text_embeds), len(modality_embeds)
    if "pairs" in content and "targets" in content:
        raise ValueError(f"{path} must hold either `pairs` or `targets`, not both.")
    if "pairs" not in content and "targets" not in content and queries != clips:
        raise ValueError(
            f"{path} holds {queries} queries and {clips} clips, so it must say which describes which: in `targets` "
            "(queries,), the row of each query's clip, or in `pairs` (pairs, 2), rows of queries and of clips."
        )
    pairs = _rows(content, "pairs", path)
    if pairs is None:
        targets = _rows(content, "targets", path)
        targets = torch.arange(clips) if targets is None else targets
        if targets.shape != (queries,):
            raise ValueError(f"`targets` in {path} must be of shape ({queries},), got {tuple(targets.shape)}.")
        pairs = torch.stack([torch.arange(queries), targets], dim=1)
    texts = {"clip_ids": clips, "query_ids": queries, "captions": queries}
    for name in texts:
        given = content.get(name, [])
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise ValueError(f"`{name}` in {path} must be a list of strings.")
    return Embeddings(
        text_embeds=text_embeds,
        modality_embeds=modality_embeds,
        modality_mask=content.get("modality_mask", (modality_embeds != 0).any(dim=-1)),
        pairs=pairs,
        clip_ids=content.get("clip_ids", [str(row) for row in range(clips)]),
        query_ids=content.get("query_ids", [str(row) for row in range(queries)]),
        captions=content.get("captions", [""] * queries),
        concat_embeds=_float(content, "concat_embeds", path) if "concat_embeds" in content else None,
    )


def load_embeddings(path: str | os.PathLike, normalize: bool = False) -> Embeddings:
    """
    Read embeddings, of this project or of any other model.

    One file holds the arrays `text_embeds` (queries, dim) and `modality_embeds` (clips, 3, dim), and may hold
    `modality_mask` (clips, 3) of bools (without it, rows of zeros are absent), `targets` (queries,) or `pairs`
    (pairs, 2) (without them, query i describes clip i), `concat_embeds`, and `clip_ids`, `query_ids` and `captions`:
    in a `.npz`, arrays of strings; in a `.safetensors`, JSON lists in the header. Without identifiers, rows are
    counted from 0; masks of missing modalities are drawn from the identifiers of clips.

    Args:
        path (`str`): the folder of a store (see the module), or a `.safetensors` or `.npz` file.
        normalize (`bool`): give vectors unit norm that do not have it.

    Returns:
        [`Embeddings`]; `metadata` is empty where nothing is told.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: an array is missing, of another type or shape, or not of unit norm; the message says which.
    """
    path = Path(path)
    if path.is_dir():
        return Embeddings.load(path, normalize)
    if not path.is_file():
        raise FileNotFoundError(f"There are no embeddings at {path}: neither a folder nor a file.")
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"Embeddings are the folder of a store, or a .safetensors or .npz file; got {path}.")
    return _checked(_load_file(path), normalize)


def _sha256(ids: Sequence[str], presence: Sequence[Sequence[int]]) -> str:
    pairs = [list(pair) for pair in zip(ids, presence, strict=True)]
    canonical = json.dumps(pairs, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def gallery_manifest(embeddings: Embeddings) -> dict[str, Any]:
    """
    Describe a gallery so that two figures can be compared: galleries shrink as links die.

    Returns:
        `dict`: `num_clips`; `ids` and `presence` (three 0 or 1 per clip, in the order of `MODALITIES`), in gallery
        order; and `sha256` of the UTF-8 text of the JSON list of `[id, presence]` pairs, without spaces and with
        non-ASCII characters escaped.
    """
    presence = embeddings.modality_mask.int().tolist()
    return {
        "num_clips": len(presence),
        "ids": list(embeddings.clip_ids),
        "presence": presence,
        "sha256": _sha256(embeddings.clip_ids, presence),
    }


__all__ = [
    "DESCRIPTION",
    "Embeddings",
    "check_place",
    "clip_table",
    "gallery_manifest",
    "load_embeddings",
    "precision_of",
    "query_table",
    "read_json",
    "write_store",
]
