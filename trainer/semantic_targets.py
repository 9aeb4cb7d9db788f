"""Graded semantic targets: how similar a frozen sentence encoder finds the captions of the training clips.

`python -m trainer.semantic_targets` embeds the captions once and keeps the cosines of each clip's nearest neighbours
(SCALAR, "Graded semantic supervision"). Training needs no encoder: it looks pairs up in that file, which safetensors
maps into memory rather than reads.
"""

import gc
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import datasets
import torch
import typer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm

from commands.errors import user_errors
from commands.options import Column, Holdout
from gallery.provenance import versions
from modeling_scalar import default_device
from modeling_scalar.devices import device_of_name
from modeling_scalar.model_identity import LIGHT, identify

from .identity import rows_sha256, tensors_sha256

_COMMAND = "python -m trainer.semantic_targets"
_DTYPES = {"neighbors": torch.int32, "cosines": torch.float32, "clip_of_row": torch.int32}


def embed_captions(
    captions: Sequence[str],
    encoder: str,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> torch.Tensor:
    """
    Embed captions with a frozen sentence encoder.

    Args:
        captions (sequence of `str`): at least one.
        encoder (`str`): folder or Hub name of a sentence-transformers model, or of a transformers model, whose tokens
            are then averaged; or `LIGHT`, which needs no network. Code that comes with a model does not run.
        batch_size (`int`): captions per forward pass. Changes speed and memory; results by rounding only.
        device (`str` or `torch.device`, *optional*): by default the accelerator if there is one.
        progress (`bool`): show a bar with an estimate of the time left.

    Returns:
        `torch.FloatTensor` of shape `(captions, dim)` on the CPU, unit norm.

    Raises:
        ModuleNotFoundError: a package that the encoder needs is not installed.
        OSError, ValueError: there is no such model, or it cannot be loaded.
    """
    # Imported here: training reads the targets without it.
    from sentence_transformers import SentenceTransformer

    try:
        folder = identify(encoder).at_hand().name
        model = SentenceTransformer(folder, device=str(device_of_name(None if device is None else str(device))))
    # The library tries several kinds of models, and fails on what is none of them in many ways.
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"No sentence encoder could be loaded from {encoder!r}: {error} {LIGHT!r} needs no network."
        ) from error
    # Captions of similar length share a batch, which saves padding. The longest come first: what does not fit in
    # memory shows at once.
    order = sorted(range(len(captions)), key=lambda row: -len(captions[row]))
    embeds = None
    with tqdm(total=len(captions), desc="captions", unit="caption", disable=not progress) as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = [captions[row] for row in rows]
            part = model.encode(
                batch,
                batch_size=batch_size,
                show_progress_bar=False,
                convert_to_tensor=True,
                normalize_embeddings=True,
            )
            if embeds is None:
                embeds = torch.empty(len(captions), part.shape[1])
            embeds[rows] = part.float().cpu()
            bar.update(len(rows))
    del model
    gc.collect()  # a model refers to itself: its weights would stay through the search
    return embeds


@torch.no_grad()
def nearest_neighbors(
    embeds: torch.Tensor,
    num_neighbors: int = 64,
    row_block: int = 1024,
    column_block: int = 16384,
    progress: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find each clip's nearest other clips by cosine, exactly; the clips x clips matrix never exists.

    Args:
        embeds (`torch.FloatTensor` of shape `(clips, dim)`): unit norm, on the device that is to search.
        num_neighbors (`int`): how many; all others where there are fewer.
        row_block, column_block (`int`): shape of the largest block of cosines. Changes speed and memory; results by
            rounding only.
        progress (`bool`): show a bar with an estimate of the time left.

    Returns:
        neighbors (`torch.IntTensor` of shape `(clips, neighbors)`): nearest first; clips that are equally near come
            in any order, and where not all of them fit, any are kept. cosines (`torch.FloatTensor`, same shape): in
            [-1, 1]. Both on the CPU.
    """
    num_clips = len(embeds)
    count = min(num_neighbors, num_clips - 1)
    neighbors = torch.empty(num_clips, count, dtype=torch.int32)
    cosines = torch.empty(num_clips, count)
    with tqdm(total=num_clips, desc="neighbours", unit="clip", disable=not progress) as bar:
        for row in range(0, num_clips, row_block):
            rows = embeds[row : row + row_block]
            best = rows.new_empty(len(rows), 0)
            index = torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device)
            for column in range(0, num_clips, column_block):
                block = rows @ embeds[column : column + column_block].T  # (rows, columns)
                block.diagonal(row - column).fill_(-torch.inf)  # no clip is its own neighbour
                found, place = block.topk(min(count, block.shape[1]), dim=1)
                best, index = torch.cat([best, found], dim=1), torch.cat([index, place + column], dim=1)
                best, place = best.topk(min(count, best.shape[1]), dim=1)
                index = index.gather(1, place)  # (rows, neighbors)
            neighbors[row : row + row_block] = index.int()
            cosines[row : row + row_block] = best.clamp(-1, 1)
            bar.update(len(rows))
    return neighbors, cosines


def _columns(rows: datasets.Dataset) -> tuple[list[str], list[str]]:
    columns = rows.select_columns(["video_id", "caption"])[:]
    return columns["video_id"], columns["caption"]


def _clip_embeds(embeds: torch.Tensor, clip_of_row: torch.Tensor) -> torch.Tensor:
    """Return the normalised mean of the captions of each clip, `(clips, dim)`."""
    # The sum has the direction of the mean. Normalised in place: a large data set has no room for another copy.
    clips = torch.zeros(int(clip_of_row.max()) + 1, embeds.shape[1]).index_add_(0, clip_of_row, embeds)
    norms = clips.norm(dim=1, keepdim=True)
    bad = ~(norms.isfinite() & (norms > 0)).flatten()
    if bad.any():
        rows = bad[clip_of_row].nonzero().flatten().tolist()
        raise ValueError(
            f"The embeddings of the captions in the rows {rows[:10]} have no direction; no cosine exists."
        )
    return clips.div_(norms)


def make_semantic_targets(
    rows: datasets.Dataset,
    output: str | os.PathLike,
    encoder: str = "sentence-transformers/all-mpnet-base-v2",
    num_neighbors: int = 64,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    metadata: dict[str, str] | None = None,
    progress: bool = True,
    include_self: bool = False,
) -> None:
    """
    Write the file that [`SemanticTargets`] reads; an earlier one is replaced once the new one is whole.

    Rows with the same `video_id` are captions of one clip: the mean of their unit embeddings, normalised, stands for
    it, and targets are between clips.

    Args:
        rows (`datasets.Dataset`): the training rows, with the columns `video_id` and `caption`.
        output (`str` or `os.PathLike`): the file. It holds `neighbors` and `cosines` of shape `(clips, neighbors)`,
            `clip_of_row` of shape `(rows,)` and, as metadata, what it was made from.
        encoder, batch_size, device, progress: as in [`embed_captions`].
        num_neighbors (`int`): neighbours kept per clip; the affinity to any other clip counts as unknown.
        include_self (`bool`): count the clip as one of its own neighbours, so that one fewer other clip is kept. Its
            affinity to itself, the diagonal of S*, is 1 in any case.
        metadata (`dict` of `str`, *optional*): more to note in the file, such as the name of the data set.

    Raises:
        ValueError: a number is below 1, there is no row, or a caption is empty.
        ModuleNotFoundError, OSError: as in [`embed_captions`].
    """
    output = Path(output)
    if num_neighbors < 1 or batch_size < 1:
        raise ValueError(f"`neighbors` and `batch_size` must be at least 1, got {num_neighbors} and {batch_size}.")
    if output.is_dir():
        raise ValueError(f"`output` must be a file, {output} is a folder.")
    video_ids, captions = _columns(rows)
    empty = [name for name, caption in zip(video_ids, captions, strict=True) if not caption or not caption.strip()]
    if empty or not captions:
        raise ValueError(
            f"Every row needs a caption; of {len(captions)} rows, those of the clips {empty[:10]} lack it."
        )
    clips: dict[str, int] = {}
    clip_of_row = torch.tensor([clips.setdefault(name, len(clips)) for name in video_ids], dtype=torch.int32)
    output.parent.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad path fails at once
    if device is None:
        device = default_device()
    embeds = _clip_embeds(embed_captions(captions, encoder, batch_size, device, progress), clip_of_row)
    neighbors, cosines = nearest_neighbors(embeds.to(device), num_neighbors - include_self, progress=progress)
    description = (metadata or {}) | {
        "encoder": encoder,
        "num_neighbors": str(num_neighbors),
        "num_rows": str(len(captions)),
        "rows_sha256": rows_sha256(video_ids, captions),
        "versions": json.dumps(versions() | {name: version(name) for name in ("sentence-transformers", "tokenizers")}),
    }
    if include_self:
        description["include_self"] = "true"
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        tensors = {"neighbors": neighbors, "cosines": cosines, "clip_of_row": clip_of_row}
        try:
            save_file(tensors, temporary, metadata=description)
        except SafetensorError as error:  # it does not tell which file
            raise OSError(f"{output} could not be written: {error}. Free some space, then try again.") from error
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)


class SemanticTargets:
    """
    The affinities between training clips that [`make_semantic_targets`] kept, looked up for one batch at a time.

    The tensors stay in the file: safetensors maps it into memory, and processes share the pages they touch.

    Args:
        path (`str` or `os.PathLike`): the file.

    Attributes:
        metadata (`dict` of `str`): what the file was made from.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is truncated, or not a file of semantic targets.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"No semantic targets at {self.path}. Make them: `{_COMMAND} --help`.")
        try:
            with safe_open(self.path, framework="pt") as file:
                self.metadata: dict[str, str] = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{self.path} is truncated or damaged ({error}). Make it again: `{_COMMAND}`.") from error
        if {name: tensor.dtype for name, tensor in tensors.items()} != _DTYPES or "rows_sha256" not in self.metadata:
            raise ValueError(
                f"Expected the tensors {sorted(_DTYPES)} of `{_COMMAND}` in {self.path}, got {sorted(tensors)[:10]}."
            )
        self.neighbors, self.cosines = tensors["neighbors"], tensors["cosines"]  # (clips, neighbors)
        self.clip_of_row = tensors["clip_of_row"]  # (rows,)
        self._indices = self.neighbors, self.clip_of_row

    def __reduce__(self):
        return SemanticTargets, (self.path,)  # the file travels by name, not by content

    def sha256(self) -> str:
        """Return the SHA-256 of the neighbours and their cosines."""
        return tensors_sha256({"neighbors": self.neighbors, "cosines": self.cosines})

    def check(self, rows: datasets.Dataset) -> None:
        """Raise a ValueError unless the targets were made from exactly these rows, in this order."""
        if len(rows) != len(self.clip_of_row) or rows_sha256(*_columns(rows)) != self.metadata["rows_sha256"]:
            raise ValueError(
                f"The semantic targets in {self.path} are of {len(self.clip_of_row)} rows whose clips, captions or "
                f"order differ from the {len(rows)} rows of this data set. Make them from it: `{_COMMAND}`."
            )
        clips = len(self.neighbors)
        inside = all(0 <= int(index.min()) and int(index.max()) < clips for index in self._indices if index.numel())
        # Comparisons are false for NaN.
        if not inside or not bool(((self.cosines >= -1) & (self.cosines <= 1)).all()):
            raise ValueError(
                f"{self.path} names clips that there are not, or has cosines outside [-1, 1]. Make it again: "
                f"`{_COMMAND}`."
            )

    def affinities(
        self, row_index: torch.Tensor, column_index: torch.Tensor, semantic_temperature: float = 0.5
    ) -> torch.Tensor:
        """
        Return S* = ((cos + 1) / 2)^(1 / tau*) between the clips of two lists of rows of the data set.

        Args:
            row_index (`torch.LongTensor` of shape `(rows,)`): each in [0, number of rows); any may repeat.
            column_index (`torch.LongTensor` of shape `(columns,)`): the same.
            semantic_temperature (`float`): tau*, positive.

        Returns:
            `torch.FloatTensor` of shape `(rows, columns)` on the CPU, in [0, 1]: exactly 1 where both are of one clip,
            S* where the column's clip is among the neighbours kept for the row's clip, and 0 where it is unknown. Not
            symmetric: the neighbours kept for a clip need not have it among theirs.

        """
        row_index, column_index = row_index.cpu(), column_index.cpu()
        rows, columns = self.clip_of_row[row_index].long(), self.clip_of_row[column_index].long()
        # Where each clip stands among the columns; several captions of one clip share the place of one of them.
        place_of_clip = torch.full((len(self.neighbors),), -1)
        place_of_clip[columns] = torch.arange(len(columns))
        places = place_of_clip[self.neighbors[rows].long()]  # (rows, neighbors)
        row, neighbor = (places >= 0).nonzero(as_tuple=True)
        targets = torch.zeros(len(rows), len(columns))
        cosines = self.cosines[rows[row], neighbor]
        targets[row, places[row, neighbor]] = ((cosines + 1) / 2) ** (1 / semantic_temperature)
        targets = targets.index_select(1, place_of_clip[columns])  # (rows, columns)
        return targets.masked_fill_(rows[:, None] == columns, 1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(no_args_is_help=True)
def main(
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark, such as miniature.")],
    root: Annotated[Path, typer.Option(help="Folder of the benchmark.")],
    output: Annotated[Path, typer.Option(help="File to write; an existing one is replaced.")],
    split: Annotated[str, typer.Option(help="Split that is trained on.")] = "train",
    column: Column = None,
    holdout: Holdout = None,
    encoder: Annotated[
        str,
        typer.Option(help=f"Folder or Hub name of a sentence encoder, or {LIGHT}, which needs no network."),
    ] = "sentence-transformers/all-mpnet-base-v2",
    neighbors: Annotated[int, typer.Option(help="Neighbours kept per clip.")] = 64,
    include_self: Annotated[
        bool, typer.Option("--include-self", help="Count a clip as its own neighbour: one fewer other is kept.")
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Captions per forward pass.")] = 64,
    device: Annotated[str | None, typer.Option(help="Device; by default the accelerator if there is one.")] = None,
) -> None:
    """Embed the captions of a split with a frozen sentence encoder; keep each clip's nearest neighbours."""
    with user_errors():
        from eval.benchmarks import load_benchmark
        from eval.settings import columns_of

        rows = load_benchmark(benchmark, root, split, columns=column and columns_of(column), holdout=holdout)
        names = {"benchmark": benchmark, "split": split}
        make_semantic_targets(rows, output, encoder, neighbors, batch_size, device, names, include_self=include_self)
        targets = SemanticTargets(output)
        num_clips, num_neighbors = targets.neighbors.shape
        others = "others as " if include_self else ""
        typer.echo(f"{num_neighbors} {others}neighbours of each of {num_clips} clips are in {output}.")


__all__ = [
    "SemanticTargets",
    "embed_captions",
    "make_semantic_targets",
    "nearest_neighbors",
]


if __name__ == "__main__":
    app(prog_name=_COMMAND)
