"""The published results of the study: every rank, and every setting that led to it.

- `ranks.parquet` has a row for each experiment, variant, seed, set of clips, score, kind of numbers, mask and
  direction, with a byte for each query: the rank of its own candidate, at most 11.
- `study.json` has the trials and chosen settings, the fitted numbers, the clips, and the second stage.

There are two sets of clips with the same trainings: what is shown of [`BOTH_SETS`] is pooled over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from evidence.miniature.clips import SPLITS
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .measure import AS_TRAINED, FITTED_ALL

RANKS, STUDY = "ranks.parquet", "study.json"
"""The files of a folder of results."""

SETS = ("main", "repeated")
"""The experiments of the main comparison, each with clips and trainings of its own."""

BOTH_SETS = "both sets"
"""The experiments of [`SETS`] together; of clips that disagree the first alone."""

SAME_SIZE = "same size"
"""Galleries drawn at random from all test clips, as large as that of the complete ones: a set of clips for R@1."""

BACK = "video_to_text"
BOTH = "both"
"""The mean of both directions."""

MEASURES = ("recall", "mrr")
"""What is computed from ranks."""

MODALITIES = ("video", "audio", "subtitle")
"""Scores by a single modality."""

_LAST = 10  # the last rank that counts
_QUERIES_OF = {"disagree": "disagreeing"}  # the described clips behind the name of a set of clips
_NOTHING = np.empty((0, 0))


@dataclass(frozen=True)
class Quantity:
    """
    Something that the ranks of all trainings give: a cell of a table is the mean of its values.

    Args:
        variant (`str`): the trained variant.
        score (`str`, *optional*): the score; by default the variant's own.
        numbers (`str`): of the score: "as trained"; "fitted": with the fit that is kept, if one is; or "temperature
            0.1", one of [`~evidence.study.measure.TEMPERATURES`].
        experiment (`str`): as in the file, or [`BOTH_SETS`].
        clips (`str`): as in the file, or [`SAME_SIZE`].
        masked (`str`): as in the file.
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
    numbers: str = FITTED_ALL
    experiment: str = BOTH_SETS
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


def chances_of_first(num_all: int, size: int) -> np.ndarray:
    """
    Return how likely a candidate of each rank is the first of a smaller gallery, `(12,)`, by rank from 0.

    The smaller gallery has the candidate itself and `size` - 1 others, drawn from all `num_all` - 1 others: none of
    the r - 1 better ones may be among them. That is the mean over all such galleries, without a draw. The last rank
    stands for all later ones and counts 0; with more than half of the clips drawn that is less than 0.001 off.
    """
    better = np.arange(_LAST - 1)  # better candidates that are already left out
    left_out = (num_all - size - better).clip(min=0) / (num_all - 1 - better).clip(min=1)
    return np.concatenate([[0.0, 1.0], left_out.cumprod(), [0.0]])


def is_complete(clips: dict[str, Any]) -> np.ndarray:
    """Return which test clips of a described set lack nothing, `(clips,)`, as they were drawn from its seed."""
    order = np.random.default_rng((clips["seed"], SPLITS.index("test"), 3)).permutation(clips["num_test"])
    return order >= sum(clips["absent"]["test"].values())  # no clip lacks two


class StudyResults:
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
        """The ranks of each training by the names of everything else."""
        names = itemgetter("experiment", "variant", "clips", "score", "numbers", "masked", "direction")
        rows: dict[tuple[str, ...], dict[int, bytes]] = {}
        for row in pq.read_table(self.folder / RANKS).to_pylist():
            rows.setdefault(names(row), {})[row["seed"]] = row["ranks"]
        return rows

    def on_each_set(self, quantity: Quantity) -> list[Quantity]:
        """Return a quantity on each set of clips that is pooled for it."""
        # A single experiment is what it says.
        if quantity.experiment != BOTH_SETS:
            return [quantity]
        sets = SETS
        # The clips that disagree are the same for the trainings on both sets: they are no two samples to pool.
        if quantity.clips in _QUERIES_OF:
            sets = SETS[:1]
        return [replace(quantity, experiment=name) for name in sets]

    def ranks(self, quantity: Quantity) -> np.ndarray:
        """Return the ranks on one set of clips, `(seeds, queries)`, for all kinds; no rows if it was not measured. A
        score that has no numbers to fit has those of its training."""
        experiment, variant = quantity.experiment, quantity.variant
        score = quantity.score or self._own.get((experiment, variant))
        # HyperGRAM's score, for one, has nothing to fit.
        accepted = [quantity.numbers]
        if quantity.numbers == FITTED_ALL:
            accepted.append(AS_TRAINED)
        for numbers in accepted:
            key = (experiment, variant, quantity.clips, score, numbers, quantity.masked, quantity.direction)
            by_seed = self._rows.get(key)
            if by_seed:
                seeds = sorted(by_seed)
                return np.stack([np.frombuffer(by_seed[seed], dtype=np.uint8) for seed in seeds])
        return _NOTHING

    def values(self, quantity: Quantity) -> np.ndarray:
        """Return the value of each query, in percent, `(trainings, queries)`; none if it was not measured. Of several
        sets of clips these are the values on the first."""
        quantity = self.on_each_set(quantity)[0]
        # What is composed of other quantities comes first: a gain, both directions, galleries of another size.
        if quantity.gain:
            best = self.best_modality(quantity)
            if best is None:
                return _NOTHING
            joint = self.values(replace(quantity, gain=False))
            return joint - self.values(replace(quantity, gain=False, score=best))
        if quantity.direction == BOTH:
            forth = self.values(replace(quantity, direction=DIRECTIONS[0]))
            back = self.values(replace(quantity, direction=DIRECTIONS[1]))
            if not forth.size or not back.size:  # the router, for one, ranks no captions
                return _NOTHING
            return (forth + back) / 2
        if quantity.clips == SAME_SIZE:
            return self._values_of_same_size(quantity)

        # What remains is a function of each rank.
        ranks = self.ranks(quantity)
        if not ranks.size:
            return _NOTHING
        if quantity.measure == "mrr":
            values = np.where(ranks <= _LAST, 100.0 / ranks, 0.0)
        else:
            values = 100.0 * (ranks <= quantity.at)
        return self._counted(values, quantity)

    def _values_of_same_size(self, quantity: Quantity) -> np.ndarray:
        """R@1 in galleries as large as that of the complete clips."""
        ranks = self.ranks(replace(quantity, clips="test"))
        if not ranks.size:
            return _NOTHING
        complete = is_complete(self._clips_of(quantity))
        return 100 * chances_of_first(len(complete), int(complete.sum()))[ranks]

    def _counted(self, values: np.ndarray, quantity: Quantity) -> np.ndarray:
        """The columns of the captions of some kinds."""
        if not quantity.kinds and quantity.about is None:
            return values
        # Kinds are known of all test captions; those of complete clips are some of them, in the same order.
        clips = self._clips_of(quantity)
        counted = np.ones(len(clips["queries"]), dtype=bool)
        for row, (kind, *about) in enumerate(clips["queries"]):
            if quantity.kinds and kind not in quantity.kinds:
                counted[row] = False
            if quantity.about is not None and about != [quantity.about]:
                counted[row] = False
        if quantity.clips == "complete":
            counted = counted[is_complete(clips)]
        return values[:, counted]

    def _clips_of(self, quantity: Quantity) -> dict[str, Any]:
        """The description of the clips that a quantity is measured on; experiments without one have those of the
        first set."""
        # Trainings on complete clips, for one, are measured on the clips of the main comparison.
        name = _QUERIES_OF.get(quantity.clips, quantity.experiment)
        clips = self.study["clips"].get(name, {})
        return clips if "queries" in clips else self.study["clips"][SETS[0]]

    def best_modality(self, quantity: Quantity) -> str | None:
        """Return the modality that finds most by itself in the same embeddings, by the mean over trainings. `None` if
        the quantity or no single modality was measured."""
        # By the same clips, masks and direction as the quantity itself.
        joint = replace(quantity, gain=False)
        means = {}
        for name in MODALITIES:
            alone = self.values(replace(joint, score=name))
            if alone.size:
                means[name] = float(alone.mean())
        if not means or not self.values(joint).size:
            return None
        return max(means, key=means.__getitem__)

    def means(self, quantity: Quantity) -> tuple[float, ...]:
        """Return the mean value of each training, in percent, of all sets of clips that are pooled."""
        # Every training weighs the same, on whichever set it was measured.
        means: list[float] = []
        for each in self.on_each_set(quantity):
            values = self.values(each)
            if values.size:
                means += values.mean(1).tolist()
        return tuple(means)

    def levels(self) -> dict[float, str]:
        """Return the experiments by the share of what modalities say in common, in ascending order."""
        found = {}
        for run in self.study["runs"]:
            name = run["experiment"]
            if name.startswith("sharing-"):
                found[float(name.removeprefix("sharing-"))] = name
        return dict(sorted(found.items()))

    def seeds(self, experiment: str = "main") -> Sequence[int]:
        """Return the seeds of training of an experiment."""
        return sorted({run["seed"] for run in self.study["runs"] if run["experiment"] == experiment})

    def settings(self, variant: str, name: str) -> tuple[Any, ...]:
        """Return a setting of each training of a variant in the main comparison, without those that have none."""
        values = []
        for run in self._compared(variant):
            if run["settings"].get(name) is not None:
                values.append(run["settings"][name])
        return tuple(values)

    def entries(self, variant: str, score: str | None, numbers: str) -> list[dict[str, Any]]:
        """Return what is stored about the numbers of a score, by default a variant's own, for each training of the
        main comparison: its `options`, and of fits each one's `count`, `gain`, `options` and whether it is `kept`."""
        found = []
        for run in self._compared(variant):
            for entry in run["scores"]:
                if (entry["score"], entry["numbers"]) == (score or run["own"], numbers):
                    found.append(entry)
        return found

    def _compared(self, variant: str) -> list[dict[str, Any]]:
        """The trainings of a variant in the main comparison."""
        return [run for run in self.study["runs"] if run["experiment"] in SETS and run["variant"] == variant]


__all__ = [
    "BACK",
    "BOTH",
    "BOTH_SETS",
    "MEASURES",
    "MODALITIES",
    "RANKS",
    "SAME_SIZE",
    "SETS",
    "STUDY",
    "Quantity",
    "StudyResults",
    "chances_of_first",
    "is_complete",
]
