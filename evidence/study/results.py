"""The published results of the study: every rank, and every setting that led to it.

- `ranks.parquet` has a row for each experiment, variant, seed, set of clips, score, kind of numbers, mask and
  direction, with a byte for each query: the rank of its own candidate, at most 11.
- `study.json` has the trials and chosen settings, the fitted numbers, the clips, and the second stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gallery.files import read_json
from modeling_scalar.scores_scalar import DIRECTIONS

from .runs import SHARED

RANKS, STUDY = "ranks.parquet", "study.json"
"""The files of a folder of results."""

BACK = "video_to_text"
BOTH = "both"
"""The mean of both directions."""

MEASURES = ("recall", "mrr")
"""What is computed from ranks."""

MODALITIES = ("video", "audio", "subtitle")
"""Scores by a single modality."""

_LAST = 10  # the last rank that counts
_NOTHING = np.empty((0, 0))


@dataclass(frozen=True)
class Selection:
    """
    Some rows of the results, for all trainings: a cell of a table is the mean of their values.

    Args:
        variant (`str`): the trained variant.
        score (`str`, *optional*): the score; by default the variant's own.
        numbers (`str`): of the score: "as trained", "temperature" or "fitted".
        experiment, clips, masked (`str`): as in the file.
        direction (`str`): "text_to_video", "video_to_text", or "both": the mean of a clip's two values.
        measure (`str`): "recall": 100 where the rank is at most `at`, else 0; "mrr": 100 times the reciprocal rank,
            0 from rank 11 on (MRR@10).
        at (`int`): hits count up to this rank, at most 10.
        gain (`bool`): subtract the value of the best single modality of the same embeddings: the aggregation gain.
        kinds (`tuple[str, ...]`): kinds of captions to count; by default all.
        about (`str`, *optional*): count only captions about this modality alone.
    """

    variant: str = "scalar"
    score: str | None = None
    numbers: str = "fitted"
    experiment: str = "main"
    clips: str = "test"
    masked: str = "nothing"
    direction: str = "text_to_video"
    measure: str = "recall"
    at: int = 1
    gain: bool = False
    kinds: tuple[str, ...] = ()
    about: str | None = None

    def __post_init__(self):
        if self.direction not in (*DIRECTIONS, BOTH):
            raise ValueError(f"Directions are {[*DIRECTIONS, BOTH]}, got {self.direction!r}.")
        if self.measure not in MEASURES:
            raise ValueError(f"Measures are {list(MEASURES)}, got {self.measure!r}.")


class Results:
    """
    A folder of results.

    Args:
        folder (`Path`): written by [`~evidence.study.collecting.collect`].

    Raises:
        FileNotFoundError: the folder has no results.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.study = read_json(folder / STUDY)
        self._own = {(run["experiment"], run["variant"]): run["own"] for run in self.study["runs"]}

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], dict[int, bytes]]:
        found: dict[tuple[str, ...], dict[int, bytes]] = {}
        for row in pq.read_table(self.folder / RANKS).to_pylist():
            names = ("experiment", "variant", "clips", "score", "numbers", "masked", "direction")
            found.setdefault(tuple(row[name] for name in names), {})[row["seed"]] = row["ranks"]
        return found

    def ranks(self, chosen: Selection) -> np.ndarray:
        """Return the ranks of a selection, `(seeds, queries)`, for all kinds; no rows if it was not measured. A score
        without the selected numbers has those of its training."""
        own = self._own.get((chosen.experiment, chosen.variant))
        names = chosen.experiment, chosen.variant, chosen.clips, chosen.score or own
        for numbers in dict.fromkeys((chosen.numbers, "as trained")):
            if by_seed := self._rows.get((*names, numbers, chosen.masked, chosen.direction)):
                return np.stack([np.frombuffer(by_seed[seed], dtype=np.uint8) for seed in sorted(by_seed)])
        return _NOTHING

    def values(self, chosen: Selection) -> np.ndarray:
        """Return the value of each query of a selection, in percent, `(trainings, queries)`; none if it was not
        measured."""
        if chosen.gain:
            best = self.best_modality(chosen)
            if best is None:
                return _NOTHING
            joint = self.values(replace(chosen, gain=False))
            return joint - self.values(replace(chosen, gain=False, score=best))
        if chosen.direction == BOTH:
            directed = [self.values(replace(chosen, direction=direction)) for direction in DIRECTIONS]
            return (directed[0] + directed[1]) / 2

        ranks = self.ranks(chosen)
        if not ranks.size:
            return _NOTHING
        if chosen.measure == "mrr":
            values = np.where(ranks <= _LAST, 100.0 / ranks, 0.0)
        else:
            values = 100.0 * (ranks <= chosen.at)
        if chosen.kinds or chosen.about:
            counted = [self._counts(group, chosen) for group in self.queries(chosen.experiment)]
            values = values[:, counted]
        return values

    def best_modality(self, chosen: Selection) -> str | None:
        """Return the modality that finds most by itself in a selection's embeddings, by the mean over trainings.
        `None` if the selection or no single modality was measured."""
        found = {}
        for name in MODALITIES:
            alone = self.values(replace(chosen, gain=False, score=name))
            if alone.size:
                found[name] = float(alone.mean())
        if not found or not self.values(replace(chosen, gain=False)).size:
            return None
        return max(found, key=found.__getitem__)

    def queries(self, experiment: str) -> list[list[str]]:
        """Return the kind and modalities of each query of an experiment's test clips."""
        sets = self.study["clips"]
        return sets[experiment if "queries" in sets.get(experiment, {}) else "main"]["queries"]

    def means(self, chosen: Selection) -> tuple[float, ...]:
        """Return the mean value of each training, in percent."""
        values = self.values(chosen)
        return tuple(values.mean(1).tolist()) if values.size else ()

    def levels(self) -> dict[float, str]:
        """Return the experiments by the share of what modalities say in common, in ascending order."""
        names = {run["experiment"] for run in self.study["runs"]}
        found = {SHARED: "main"}
        for name in names:
            if name.startswith("sharing-"):
                found[float(name.removeprefix("sharing-"))] = name
        return dict(sorted(found.items()))

    def seeds(self, experiment: str = "main") -> Sequence[int]:
        """Return the seeds of training of an experiment."""
        return sorted({run["seed"] for run in self.study["runs"] if run["experiment"] == experiment})

    def options(self, variant: str, score: str, numbers: str, experiment: str = "main") -> list[dict[str, Any]]:
        """Return the fitted numbers of a score, for each seed."""
        return [
            entry["options"]
            for run in self.study["runs"]
            if (run["experiment"], run["variant"]) == (experiment, variant)
            for entry in run["scores"]
            if (entry["score"], entry["numbers"]) == (score, numbers)
        ]

    @staticmethod
    def _counts(group: Sequence[str], chosen: Selection) -> bool:
        kind, *about = group
        return (not chosen.kinds or kind in chosen.kinds) and chosen.about in (
            None,
            *([about[0]] if len(about) == 1 else []),
        )


__all__ = ["BACK", "BOTH", "MEASURES", "MODALITIES", "RANKS", "STUDY", "Results", "Selection"]
