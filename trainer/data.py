"""Rows of a benchmark to training examples, with reproducible random frames."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from tqdm.auto import tqdm

from eval.embed import read_row
from modeling_scalar import Clip, ScalarProcessor


def derived_generator(*numbers: int) -> torch.Generator:
    """Return a generator on the CPU whose seed is a hash of `numbers`: the same numbers, the same draws."""
    seed = 0
    for number in numbers:  # 64-bit mixing (splitmix64), so that neighbouring numbers give unrelated streams
        seed = (seed + number + 0x9E3779B97F4A7C15) % 2**64
        seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB % 2**64
        seed ^= seed >> 31
    return torch.Generator().manual_seed(seed)


class ClipDataset(torch.utils.data.Dataset):
    """
    Training examples read from files: `{"caption", "clip", "generator"}`.

    Frames, audio segments and crops of an example depend on the seed, the epoch and its index alone, so an interrupted
    run continues exactly, with any number of workers.

    Args:
        rows (`datasets.Dataset`): the columns of a benchmark.
        processor ([`ScalarProcessor`]): reads the files.
        seed (`int`): of all draws.
        on_error (`str`): `"raise"`, or `"missing"` to count a stream that cannot be decoded as absent.
        keep_in_memory (`bool`): decode every clip once, before training, and keep all its frames. For small data sets;
            the examples are the same as without.

    Raises:
        ValueError: a clip cannot be read, or has nothing left.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        processor: ScalarProcessor,
        seed: int = 0,
        on_error: str = "raise",
        keep_in_memory: bool = False,
    ):
        self.rows = rows
        self.processor = processor
        self.seed = seed
        self.on_error = on_error
        self.epoch = 0
        self._clips: list[Clip] | None = None
        if keep_in_memory:
            with ThreadPoolExecutor() as executor:  # decoders release the GIL
                clips = executor.map(self._read_all_frames, rows)
                self._clips = list(tqdm(clips, total=len(rows), desc="decode", unit="clip"))

    def _read_all_frames(self, row: dict[str, Any]) -> Clip:
        return read_row(self.processor, row, self.on_error, num_frames="all")

    def set_epoch(self, epoch: int) -> None:
        """Draw new frames; the Trainer calls this at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, generator = self.rows[index], derived_generator(self.seed, self.epoch, index)
        if self._clips is not None:
            clip = self._clips[index]
        else:
            clip = read_row(self.processor, row, self.on_error, training=True, generator=generator)
        return {"caption": row["caption"], "clip": clip, "generator": generator}


@dataclass
class ScalarDataCollator:
    """Turn a list of examples into the arguments of [`ScalarModel`]; nothing but a call of the processor."""

    processor: ScalarProcessor

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate examples of [`ClipDataset`] in training mode, each with its own generator."""
        batch = self.processor(
            text=[example["caption"] for example in examples],
            clips=[example["clip"] for example in examples],
            training=True,
            generator=[example["generator"] for example in examples],
        )
        return dict(batch)


__all__ = ["ClipDataset", "ScalarDataCollator", "derived_generator"]
