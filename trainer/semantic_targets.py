"""Graded semantic targets: similarities of the training captions according to a frozen sentence encoder.

`python -m scalar_retrieval.trainer.semantic_targets` embeds the captions once and stores the cosines of each clip's
nearest neighbours (SCALAR, "Graded semantic supervision"). Training needs no encoder: it looks up pairs in that file,
which safetensors memory-maps.
"""

import gc
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import datasets
import torch
import typer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tqdm.auto import tqdm
from typer import Option

from scalar_retrieval.commands.errors import user_errors
from scalar_retrieval.commands.options import Holdout, Plugins, command_of, load_plugins
from scalar_retrieval.commands.texts import print_lines
from scalar_retrieval.eval.settings import Columns
from scalar_retrieval.gallery.store.files import write_whole
from scalar_retrieval.gallery.store.provenance import versions
from scalar_retrieval.modeling_scalar import default_device
from scalar_retrieval.modeling_scalar.model_identity import LIGHT, identify, is_light

from .identity import rows_sha256, tensors_sha256

_COMMAND = "python -m scalar_retrieval.trainer.semantic_targets"


def embed_captions(captions: Sequence[str], encoder: str, progress: bool = True) -> torch.Tensor:
    """
    Embed captions with a frozen sentence encoder.

    Args:
        captions (sequence of `str`): The captions, at least one.
        encoder (`str`): The folder or Hub id of a sentence-transformers model, or of a transformers model, whose
            tokens are averaged; or `LIGHT`, which needs no network. Remote code of a model does not run.
        progress (`bool`): Whether to show a progress bar.

    Returns:
        `torch.FloatTensor` of shape `(captions, dim)` on the CPU, unit norm.

    Raises:
        ModuleNotFoundError: If a package that the encoder needs is not installed.
        OSError, ValueError: If the model does not exist or cannot be loaded.
    """
    # Imported here, because training reads the targets without it.
    from sentence_transformers import SentenceTransformer

    from scalar_retrieval.modeling_scalar.light_model import text_folder
    from scalar_retrieval.modeling_scalar.loading import quietly

    # Errors of the library do not name the encoder.
    try:
        if is_light(encoder):
            folder = text_folder()
        else:
            folder = identify(encoder).cached_if_offline().name
        with quietly():
            model = SentenceTransformer(str(folder), device=str(default_device()))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Cannot load a sentence encoder from {encoder!r}: {error} {LIGHT!r} needs no network."
        ) from error
    embeds = model.encode(list(captions), batch_size=64, show_progress_bar=progress, normalize_embeddings=True)
    del model
    gc.collect()  # a model has reference cycles: its weights would stay in memory during the search
    return torch.from_numpy(embeds).float()


@torch.no_grad()
def nearest_neighbors(
    embeds: torch.Tensor, num_neighbors: int = 64, row_block: int = 256, progress: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find each clip's nearest other clips by cosine, exactly, without building the full clips x clips matrix.

    Args:
        embeds (`torch.FloatTensor` of shape `(clips, dim)`): Embeddings of unit norm, on the device to search on.
        num_neighbors (`int`): The number of neighbours; all others if there are fewer.
        row_block (`int`): The clips whose cosines are computed at once, 4 bytes for each pair. Affects speed and
            memory; results change by rounding only.
        progress (`bool`): Whether to show a progress bar.

    Returns:
        neighbors (`torch.IntTensor` of shape `(clips, neighbors)`): Nearest first; ties are in any order, and any of
            them are kept if not all fit. cosines (`torch.FloatTensor`, same shape): In [-1, 1]. Both on the CPU.
    """
    num_clips = len(embeds)
    count = min(num_neighbors, num_clips - 1)
    neighbors = torch.empty(num_clips, count, dtype=torch.int32)
    cosines = torch.empty(num_clips, count)
    for row in tqdm(range(0, num_clips, row_block), desc="neighbours", disable=not progress):
        block = embeds[row : row + row_block] @ embeds.T  # (rows, clips)
        block.diagonal(row).fill_(-torch.inf)  # no clip is its own neighbour
        best, index = block.topk(count, dim=1)
        neighbors[row : row + row_block] = index.int()
        cosines[row : row + row_block] = best.clamp(-1, 1)
    return neighbors, cosines


def _columns(rows: datasets.Dataset) -> tuple[list[str], list[str]]:
    columns = rows.select_columns(["video_id", "caption"])[:]
    return columns["video_id"], columns["caption"]


def make_semantic_targets(
    rows: datasets.Dataset,
    output: str | os.PathLike,
    encoder: str = "sentence-transformers/all-mpnet-base-v2",
    num_neighbors: int = 64,
    progress: bool = True,
    include_self: bool = False,
) -> None:
    """
    Write the file that [`SemanticTargets`] reads; an earlier one is replaced once the new one is complete.

    Rows with the same `video_id` are captions of one clip, represented by the normalised mean of their unit
    embeddings. Targets are between clips.

    Args:
        rows (`datasets.Dataset`): The training rows, with the columns `video_id` and `caption`.
        output (`str` or `os.PathLike`): The file. It holds `neighbors` and `cosines` of shape `(clips, neighbors)`,
            `clip_of_row` of shape `(rows,)` and its origin as metadata.
        encoder, progress: See [`embed_captions`].
        num_neighbors (`int`): Neighbours stored per clip; the affinity to any other clip is unknown.
        include_self (`bool`): Whether a clip is one of its own neighbours, so that one fewer other clip is stored. Its
            affinity to itself, the diagonal of S*, is always 1.

    Raises:
        ValueError: If there is no row, or a caption is empty.
        ModuleNotFoundError, OSError: See [`embed_captions`].
    """
    # Every row needs a caption.
    output = Path(output)
    video_ids, captions = _columns(rows)
    empty = []
    for name, caption in zip(video_ids, captions, strict=True):
        if not caption or not caption.strip():
            empty.append(name)
    if empty or not captions:
        raise ValueError(
            f"Every row needs a caption, but of {len(captions)} rows those of the clips {empty[:10]} have none."
        )
    # Number the clips in the order of their first row.
    clips: dict[str, int] = {}
    numbers = []
    for name in video_ids:
        numbers.append(clips.setdefault(name, len(clips)))
    clip_of_row = torch.tensor(numbers, dtype=torch.int32)
    output.parent.mkdir(parents=True, exist_ok=True)
    # The mean of the captions of each clip, of which the sum has the direction, (clips, dim), and the nearest others.
    # Normalised in place, to save the memory of a copy.
    caption_embeds = embed_captions(captions, encoder, progress=progress)
    embeds = torch.zeros(len(clips), caption_embeds.shape[1]).index_add_(0, clip_of_row, caption_embeds)
    del caption_embeds
    embeds = embeds.div_(embeds.norm(dim=1, keepdim=True)).to(default_device())
    neighbors, cosines = nearest_neighbors(embeds, num_neighbors - include_self, progress=progress)
    # Tensors and their origin in one file, which replaces an earlier one only when it is complete.
    packages = {name: version(name) for name in ("sentence-transformers", "tokenizers")}
    description = {
        "encoder": encoder,
        "num_neighbors": str(num_neighbors),
        "num_rows": str(len(captions)),
        "rows_sha256": rows_sha256(video_ids, captions),
        "versions": json.dumps(versions() | packages),
    }
    if include_self:
        description["include_self"] = "true"
    content = save({"neighbors": neighbors, "cosines": cosines, "clip_of_row": clip_of_row}, description)
    write_whole(output, lambda file: file.write(content))


class SemanticTargets:
    """
    The affinities between training clips stored by [`make_semantic_targets`], looked up for one batch at a time.

    The tensors stay in the file, which safetensors memory-maps; processes share the pages they read.

    Args:
        path (`str` or `os.PathLike`): The file.

    Attributes:
        metadata (`dict` of `str`): The origin of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is truncated or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"There are no semantic targets at {self.path}. Create them: `{_COMMAND} --help`.")
        try:
            with safe_open(self.path, framework="pt") as file:
                self.metadata: dict[str, str] = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{self.path} is truncated or damaged ({error}). Recreate it: `{_COMMAND}`.") from error
        self.neighbors = tensors["neighbors"]
        self.cosines = tensors["cosines"]  # (clips, neighbors)
        self.clip_of_row = tensors["clip_of_row"]  # (rows,)

    def sha256(self) -> str:
        """Return the SHA-256 of the neighbours and their cosines."""
        return tensors_sha256({"neighbors": self.neighbors, "cosines": self.cosines})

    def check(self, rows: datasets.Dataset) -> None:
        """Raise a ValueError unless the targets were made from exactly these rows, in this order."""
        if len(rows) != len(self.clip_of_row) or rows_sha256(*_columns(rows)) != self.metadata["rows_sha256"]:
            raise ValueError(
                f"The semantic targets in {self.path} have {len(self.clip_of_row)} rows whose clips, captions or "
                f"order differ from the {len(rows)} rows of this data set. Create them again: `{_COMMAND}`."
            )

    def affinities(
        self, row_index: torch.Tensor, column_index: torch.Tensor, semantic_temperature: float = 0.5
    ) -> torch.Tensor:
        """
        Return S* = ((cos + 1) / 2)^(1 / tau*) between the clips of two lists of rows of the data set.

        Args:
            row_index (`torch.LongTensor` of shape `(rows,)`): Rows in [0, number of rows), possibly repeated.
            column_index (`torch.LongTensor` of shape `(columns,)`): The same for columns.
            semantic_temperature (`float`): tau*, positive.

        Returns:
            `torch.FloatTensor` of shape `(rows, columns)` on the CPU, in [0, 1]: exactly 1 for the same clip, S* if
            the column's clip is a stored neighbour of the row's clip, and 0 where unknown. Not symmetric: a stored
            neighbour of a clip need not have that clip among its own.
        """
        row_index = row_index.cpu()
        column_index = column_index.cpu()
        rows = self.clip_of_row[row_index].long()
        columns = self.clip_of_row[column_index].long()
        # The column of each clip; several captions of one clip share the column of one of them.
        column_of_clip = torch.full((len(self.neighbors),), -1)
        column_of_clip[columns] = torch.arange(len(columns))
        neighbor_columns = column_of_clip[self.neighbors[rows].long()]  # (rows, neighbors), -1 outside the batch
        # S* of the neighbours that are in the batch.
        row, neighbor = (neighbor_columns >= 0).nonzero(as_tuple=True)
        targets = torch.zeros(len(rows), len(columns))
        cosines = self.cosines[rows[row], neighbor]
        targets[row, neighbor_columns[row, neighbor]] = ((cosines + 1) / 2) ** (1 / semantic_temperature)
        # Copied to the columns of the other captions of the same clip; a clip has affinity 1 to itself.
        targets = targets.index_select(1, column_of_clip[columns])  # (rows, columns)
        return targets.masked_fill_(rows[:, None] == columns, 1)


@dataclass(frozen=True)
class TargetsConfig:
    """Settings of the command, see [`make_semantic_targets`]."""

    benchmark: Annotated[str, Option(help="Name of the benchmark, such as miniature.")]
    root: Annotated[Path, Option(help="Folder of the benchmark.")]
    output: Annotated[Path, Option(help="Output file; an existing one is replaced.")]
    split: Annotated[str, Option(help="Training split.")] = "train"
    plugins: Plugins = ()
    columns: Columns = None
    holdout: Holdout = None
    encoder: Annotated[
        str, Option(help=f"Folder or Hub id of a sentence encoder, or {LIGHT}, which needs no network.")
    ] = "sentence-transformers/all-mpnet-base-v2"
    include_self: Annotated[
        bool, Option("--include-self", help="Count a clip as its own neighbour, so one fewer other is stored.")
    ] = False


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@command_of(app, TargetsConfig)
def main(config: TargetsConfig) -> None:
    """Embed the captions of a split with a frozen sentence encoder and store each clip's nearest neighbours."""
    with user_errors():
        from scalar_retrieval.eval.benchmarks.registry import load_benchmark

        load_plugins(config.plugins)
        own = {"columns": config.columns, "holdout": config.holdout}
        make_semantic_targets(
            load_benchmark(config.benchmark, config.root, config.split, **own),
            config.output,
            config.encoder,
            include_self=config.include_self,
        )
        num_clips, num_neighbors = SemanticTargets(config.output).neighbors.shape
        print_lines(f"Stored {num_neighbors} neighbours of each of {num_clips} clips in {config.output}.")


__all__ = ["SemanticTargets", "embed_captions", "make_semantic_targets", "nearest_neighbors"]

if __name__ == "__main__":
    app(prog_name=_COMMAND)
