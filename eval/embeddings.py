"""The embeddings of a benchmark, and the folder they are kept in."""

import hashlib
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from modeling_scalar.configuration_scalar import CONCATENATIONS, MODALITIES

_TENSORS = ("text_embeds", "modality_embeds", "modality_mask", "pairs")


def _named(ids: list[str], selected: torch.Tensor) -> list[str]:
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
        ValueError: shapes do not fit, an identifier repeats, a target is no clip, or a clip has no modality at all.
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
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"Expected `{name}` of shape {shape}, got {tuple(getattr(self, name).shape)}.")
        if self.modality_mask.dtype != torch.bool:
            raise ValueError(f"`modality_mask` must be a bool tensor, got {self.modality_mask.dtype}.")
        for name, ids in (("clip_ids", self.clip_ids), ("query_ids", self.query_ids)):
            if len(set(ids)) != len(ids):
                raise ValueError(f"`{name}` must be unique, repeated: {sorted({i for i in ids if ids.count(i) > 1})}.")
        if len(self.captions) != queries:
            raise ValueError(f"Expected one caption per query, got {len(self.captions)} for {queries}.")
        outside = (self.pairs < 0) | (self.pairs >= self.pairs.new_tensor([queries, clips]))
        if outside.any():
            wrong = self.pairs[outside.any(dim=1)].tolist()[:10]
            raise ValueError(f"`pairs` must name rows of the {queries} queries and {clips} clips, got {wrong}.")
        if len(self.pairs.unique(dim=0)) != len(self.pairs):
            raise ValueError("`pairs` must be unique: a query describes a clip or not.")
        lost = torch.ones(queries, dtype=torch.bool).index_fill(0, self.pairs[:, 0], False)
        if lost.any():
            raise ValueError(f"Every query must describe a clip; these describe none: {_named(self.query_ids, lost)}.")
        empty = _named(self.clip_ids, ~self.modality_mask.any(dim=1))
        if empty:
            raise ValueError(f"Every clip needs at least one modality; these have none: {empty}.")

    def check_finite(self) -> None:
        """Raise a ValueError that names the captions and clips with a NaN or infinity where it counts."""
        clips = (~self.modality_embeds.isfinite().all(dim=-1) & self.modality_mask).any(dim=1)
        bad_queries = _named(self.query_ids, ~self.text_embeds.isfinite().all(dim=-1))
        bad_clips = _named(self.clip_ids, clips)
        if bad_queries or bad_clips:
            raise ValueError(
                f"Embeddings must be finite; they are not for the captions {bad_queries} and the clips {bad_clips}."
            )

    def save(self, folder: str | os.PathLike) -> None:
        """Write `embeddings.safetensors` and `embeddings.json` into `folder`, which is made if need be."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Removed first and written last: an interrupted save leaves no description of other tensors.
        (folder / "embeddings.json").unlink(missing_ok=True)
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        description = {
            "clip_ids": self.clip_ids,
            "query_ids": self.query_ids,
            "problems": self.problems,
            "metadata": self.metadata,
        }
        save_file(tensors, folder / "embeddings.safetensors")
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (folder / "embeddings.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Embeddings":
        """Read what [`Embeddings.save`] wrote."""
        folder = Path(folder)
        content = json.loads((folder / "embeddings.json").read_text(encoding="utf-8"))
        content |= load_file(folder / "embeddings.safetensors")
        expected = {part.name for part in fields(cls)}
        if set(content) != expected:
            raise ValueError(f"Expected {sorted(expected)} in {str(folder)!r}, got {sorted(content)}.")
        return cls(**content)


def gallery_manifest(embeddings: Embeddings) -> dict[str, Any]:
    """
    Describe a gallery so that two figures can be compared: galleries shrink as links die.

    Returns:
        `dict`: `num_clips`; `ids` and `presence` (three 0 or 1 per clip, in the order of `MODALITIES`), in gallery
        order; and `sha256` of the UTF-8 text of the JSON list of `[id, presence]` pairs, without spaces and with
        non-ASCII characters escaped.
    """
    presence = embeddings.modality_mask.int().tolist()
    pairs = [list(pair) for pair in zip(embeddings.clip_ids, presence, strict=True)]
    canonical = json.dumps(pairs, separators=(",", ":"), ensure_ascii=True)
    return {
        "num_clips": len(pairs),
        "ids": list(embeddings.clip_ids),
        "presence": presence,
        "sha256": hashlib.sha256(canonical.encode()).hexdigest(),
    }


__all__ = ["Embeddings", "gallery_manifest"]
