"""Scores of the items by SCALAR and its rivals, each with the numbers that are fitted, and how these are fitted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from scipy.optimize import differential_evolution

import evidence.weighted  # noqa: F401 # registers the fused vector with weights
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, Clips, Pairs, make_options, make_pairs

from .embedding import MODALITIES
from .regimes import Drawn

_LEAST = 1e-6  # of volumes and entropies
_SEED = 0  # of searches and folds
_GENERATIONS = 30
_PEOPLE = 12  # tried numbers in a generation, for each number


class Scene:
    """
    All pairs of queries and items, under all draws of one regime.

    Args:
        drawn ([`Drawn`]): the items.
    """

    def __init__(self, drawn: Drawn):
        self.relevant = drawn.half.relevant
        self.num_draws = len(drawn.modality_mask)
        # The items of all draws are one gallery, (draws * V).
        self._pairs = make_pairs(
            drawn.half.text_embeds,
            drawn.modality_embeds.flatten(0, 1),
            drawn.modality_mask.flatten(0, 1),
            modalities=MODALITIES,
        )

    def _by_draw(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.unflatten(-1, (self.num_draws, -1))

    @cached_property
    def cosines(self) -> torch.Tensor:
        """The cosines of queries with what items have, `(M, Q, draws, V)`, 0 where absent."""
        return self._by_draw(self._pairs.similarities)

    @cached_property
    def present(self) -> torch.Tensor:
        """What items have, `(M, draws, V)`."""
        return self._by_draw(self._pairs.clips.modality_mask.T)

    @cached_property
    def log_volumes(self) -> torch.Tensor:
        """Logarithms of the volumes of each query and item, `(Q, draws, V)`; see `"gram"`."""
        return (-self.score("gram")).clamp(min=_LEAST).log()

    @cached_property
    def log_determinants(self) -> torch.Tensor:
        """Logarithms of the determinants of each item's own Gram matrix, `(draws, V)`."""
        # What an item lacks is an axis of its own.
        clips = self._pairs.clips.exact
        gram = clips.gram + torch.diag_embed((~clips.modality_mask).double())
        return self._by_draw(torch.linalg.det(gram).clamp(min=_LEAST**2).log().float())

    def score(self, method: str, **options: float | Sequence[float]) -> torch.Tensor:
        """Score by a method of the model, `(Q, draws, V)`."""
        pairs = Pairs(self._pairs.text_embeds, self._pairs.clips, make_options(**options), self._pairs.similarities)
        return self._by_draw(pairs.scores(method))

    def of_draw(self, number: int, **options: float) -> Pairs:
        """The pairs of one draw, for scores that compare items with each other."""
        size = len(self._pairs.clips) // self.num_draws
        columns = slice(number * size, (number + 1) * size)
        clips: Clips = self._pairs.clips[columns]
        return Pairs(self._pairs.text_embeds, clips, make_options(**options), self._pairs.similarities[..., columns])

    def ranks(self, scores: torch.Tensor) -> np.ndarray:
        """
        Rank the item that each query asks for.

        Args:
            scores (`torch.Tensor` of shape `(Q, draws, V)`): higher is better.

        Returns:
            `np.ndarray` of shape `(draws, Q)`: from 1; of items with the same score it is the last.
        """
        rows = torch.arange(len(self.relevant))
        own = scores[rows, :, self.relevant]  # (Q, draws)
        return (scores >= own[..., None]).sum(-1).T.numpy()


@dataclass(frozen=True)
class Number:
    """
    A number that is fitted.

    Args:
        name (`str`): its name.
        low, high (`float`): the range that is searched.
        is_log (`bool`): whether the range is that of its logarithm.
    """

    name: str
    low: float
    high: float
    is_log: bool = False

    def value(self, searched: float) -> float:
        """The number itself."""
        if self.is_log:
            return math.exp(searched)
        return searched


Score = Callable[[Scene, Sequence[float]], torch.Tensor]


@dataclass(frozen=True)
class Rival:
    """
    A way to score items.

    Args:
        title (`str`): its name in tables.
        score (`Callable`): from a [`Scene`] and the numbers to scores `(Q, draws, V)`, higher is better.
        numbers (`tuple[Number, ...]`): what is fitted.
    """

    title: str
    score: Score
    numbers: tuple[Number, ...] = ()


def _unfitted(method: str, scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return scene.score(method)


def modality_of(number: float) -> str:
    """Return the modality that a fitted number stands for, from 0 to the number of modalities."""
    return MODALITIES[min(int(number), len(MODALITIES) - 1)]


def _single(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return scene.score(modality_of(numbers[0]))


def _max(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return scene.score("max", modality_offset=[0.0, *numbers])


def _fused(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return scene.score("weighted_centroid", modality_offset=[0.0, *numbers])


def _rank_fusion(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    found = []
    for number in range(scene.num_draws):
        found.append(METHODS["rank_fusion"].score(scene.of_draw(number, rank_constant=numbers[0])))
    return torch.stack(found, dim=1)


def _by_entropy(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    """
    The mean cosine of what an item has, where a modality's weight is 1 / H.

    H is the entropy of softmax(cosine / temperature) over the items that have the modality, for each query. This is
    the idea of Q2E (arXiv 2506.10202): a modality that singles out few items knows what is asked for.
    """
    present = scene.present[:, None]
    # The entropy of a query's distribution over the items that have the modality.
    logits = (scene.cosines / numbers[0]).masked_fill(~present, -math.inf)
    logs = logits.log_softmax(-1)
    entropies = -(logs.exp() * logs.masked_fill(~present, 0.0)).sum(-1, keepdim=True)  # (M, Q, draws, 1)
    weights = present / entropies.clamp(min=_LEAST)
    return (weights * scene.cosines).sum(0) / weights.sum(0)


def _volume(scene: Scene, exponent: float, constant: float) -> torch.Tensor:
    """Minus the logarithm of the volume, divided by a power of the item's own volume, with a factor for what lacks."""
    lacking = (~scene.present).sum(0)
    return 0.5 * exponent * scene.log_determinants - constant * lacking - scene.log_volumes


def _gram(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return _volume(scene, numbers[0], numbers[1])


def _span(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return _volume(scene, 1.0, numbers[0])


def _scalar(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    return scene.score("scalar", query_temperature=numbers[0])


def _scalar_calibrated(scene: Scene, numbers: Sequence[float]) -> torch.Tensor:
    temperature, *rest = numbers
    # The picture is the unit: its scale is 1, its offset 0.
    scales = [1.0, *rest[:2]]
    offsets = [0.0, *rest[2:]]
    return scene.score("scalar", query_temperature=temperature, modality_scale=scales, modality_offset=offsets)


def _of_texts(name: str, low: float, high: float, is_log: bool = False) -> tuple[Number, ...]:
    """A number for each text; that of the picture would change nothing, or is the unit."""
    return tuple(Number(f"{name} of {text}", low, high, is_log) for text in MODALITIES[1:])


# Numbers that several methods have.
_TEMPERATURE = Number("temperature", math.log(0.005), math.log(5.0), is_log=True)
_ARITY = Number("constant of arity", -1.0, 1.0)

SCALAR = "scalar"
"""SCALAR with a fitted temperature."""

CALIBRATED = "scalar_calibrated"
"""SCALAR with a fitted temperature, scales and offsets."""

RIVALS: dict[str, Rival] = {
    SCALAR: Rival("SCALAR, temperature", _scalar, (_TEMPERATURE,)),
    CALIBRATED: Rival(
        "SCALAR, temperature, scales, offsets",
        _scalar_calibrated,
        (_TEMPERATURE, *_of_texts("scale", -1.5, 1.5, is_log=True), *_of_texts("offset", -0.5, 0.5)),
    ),
    "scalar_own": Rival("SCALAR, temperature 0.1", partial(_unfitted, "scalar")),
    "fused": Rival("one fused vector", _fused, _of_texts("log weight", -4.0, 4.0)),
    "max": Rival("max pooling", _max, _of_texts("offset", -0.5, 0.5)),
    "single": Rival("best single modality", _single, (Number("modality", 0.0, float(len(MODALITIES))),)),
    "mean": Rival("mean", partial(_unfitted, "mean")),
    "uniform": Rival("equal weights", partial(_unfitted, "uniform")),
    "rank_fusion": Rival(
        "rank fusion", _rank_fusion, (Number("constant", math.log(0.1), math.log(1000.0), is_log=True),)
    ),
    "entropy": Rival("weights by entropy (Q2E)", _by_entropy, (_TEMPERATURE,)),
    "gram": Rival("GRAM volume", _gram, (Number("exponent", -0.5, 1.5), _ARITY)),
    "gram_span": Rival("span distance", _span, (_ARITY,)),
}
"""SCALAR and its rivals, in the order of tables."""


def reciprocal_ranks(rival: Rival, scenes: Mapping[str, Scene], numbers: Sequence[float]) -> np.ndarray:
    """Return the reciprocal rank of each query, `(Q,)`: the mean over regimes of the mean over their draws."""
    means = []
    for scene in scenes.values():
        means.append((1 / scene.ranks(rival.score(scene, numbers))).mean(0))
    return np.mean(means, axis=0)


@dataclass(frozen=True)
class Fit:
    """
    The numbers of a rival.

    Args:
        numbers (`list[float]`): in the order of the rival's.
        mrr (`float`): what they reach on the queries that they are fitted to, in percent.
    """

    numbers: list[float]
    mrr: float


def fit(rival: Rival, scenes: Mapping[str, Scene], queries: np.ndarray | None = None) -> Fit:
    """
    Find the numbers with the highest MRR over all regimes at once.

    All rivals are searched alike, by differential evolution, with a number of trials in proportion to the numbers.

    Args:
        rival ([`Rival`]): what is fitted.
        scenes (`Mapping[str, Scene]`): of each regime.
        queries (`np.ndarray` of indices, *optional*): the queries to fit to; by default all.
    """
    chosen = slice(None)
    if queries is not None:
        chosen = queries

    def values(searched: Sequence[float]) -> list[float]:
        return list(map(Number.value, rival.numbers, searched))

    def loss(searched: Sequence[float]) -> float:
        return -float(reciprocal_ranks(rival, scenes, values(searched))[chosen].mean())

    # A method without numbers is only measured.
    best: Sequence[float] = ()
    if rival.numbers:
        bounds = [(number.low, number.high) for number in rival.numbers]
        options = {"maxiter": _GENERATIONS, "popsize": _PEOPLE, "polish": False, "init": "sobol", "tol": 0.0}
        best = differential_evolution(loss, bounds, rng=_SEED, **options).x.tolist()
    return Fit(values(best), -100 * loss(best))


def held_out(rival: Rival, scenes: Mapping[str, Scene], num_folds: int = 5) -> np.ndarray:
    """Return the reciprocal rank of each query `(Q,)`, with numbers that were fitted to the other folds' queries."""
    # Every query belongs to one of the folds, at random.
    num_queries = len(next(iter(scenes.values())).relevant)
    fold = np.random.default_rng(_SEED).permutation(num_queries) % num_folds
    found = np.empty(num_queries)
    for number in range(num_folds):
        fitted = fit(rival, scenes, np.flatnonzero(fold != number))
        found[fold == number] = reciprocal_ranks(rival, scenes, fitted.numbers)[fold == number]
    return found


__all__ = [
    "CALIBRATED",
    "RIVALS",
    "SCALAR",
    "Fit",
    "Number",
    "Rival",
    "Scene",
    "fit",
    "held_out",
    "modality_of",
    "reciprocal_ranks",
]
