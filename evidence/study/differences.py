"""The study's differences: seven that were named in advance, with a verdict, and all others, which describe.

Every difference has its 95 % interval for other queries and other trainings (`eval.protocol.statistics`). Holm's rule
covers the named ones alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eval.protocol.statistics import holm, pooled_interval
from evidence.reports.results import label_name

from .measure import AS_TRAINED, ROUTER
from .results import BACK, BOTH, MODALITIES, Results, Selection
from .runs import ABLATIONS

LEVEL = 0.05
"""A named claim is shown if its adjusted p-value is at most this."""

BASELINES = ("scalar_uniform", "gram", "hypergram", "triangle", "pmrl")
"""Variants that SCALAR is compared with."""

VIEWS = {
    "complete": "900 complete training clips",
    "mixed": "900 mixed training clips",
    "new-heads": "900 complete training clips, new heads",
}
"""What the trainings of the study of masked views learned from, by the end of their experiment's name."""

KINDS = {"single": "one modality", "several": "several", "shared": "what is shared"}
"""What captions are about, by their kind."""

SETS = ("main", "repeated")
"""Sets of clips that are pooled, each with trainings of its own."""

_WORDS = ("picture", "sound", "subtitle")  # of MODALITIES
_NAMED = Path(__file__).with_name("claims.yaml")


@dataclass(frozen=True)
class Difference:
    """
    The mean of one selection minus that of another.

    Args:
        name (`str`): identifies it in a page.
        sentence (`str`): description of the comparison.
        first ([`Selection`]): what is compared.
        second ([`Selection`], *optional*): what it is compared with; without it, `first` with 0.
        pooled (`bool`): over all of [`SETS`] where both were measured, in place of the experiment of the selections.
    """

    name: str
    sentence: str
    first: Selection
    second: Selection | None = None
    pooled: bool = False

    @property
    def same_trainings(self) -> bool:
        """Whether both sides are computed from the same embeddings."""
        if self.second is None:
            return True
        return (self.first.experiment, self.first.variant) == (self.second.experiment, self.second.variant)


def variant_name(label: str) -> str:
    """Return the display name of a variant; TRIANGLE is not in the paper."""
    return "TRIANGLE" if label == "triangle" else label_name(label)


def bound(results: Results, difference: Difference) -> dict[str, Any] | None:
    """
    Bound a difference.

    Returns:
        `dict`: the output of [`~eval.protocol.statistics.pooled_interval`], and `sets`, the experiments behind it;
        `None` if a side was not measured.
    """
    asked = [difference]
    if difference.pooled:
        asked = [_in_experiment(difference, experiment) for experiment in SETS]
    measured = {}
    for one in asked:
        sides = _values(results, one)
        if sides is not None:
            measured[one.first.experiment] = sides
    if not measured:
        return None
    return pooled_interval(list(measured.values()), difference.same_trainings) | {"sets": tuple(measured)}


def _in_experiment(difference: Difference, experiment: str) -> Difference:
    """The difference with both sides from another experiment."""
    first = replace(difference.first, experiment=experiment)
    second = difference.second
    if second is not None:
        second = replace(second, experiment=experiment)
    return replace(difference, first=first, second=second)


def _values(results: Results, difference: Difference) -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides of a difference, `(trainings, queries)` each; `None` if one was not measured."""
    first = results.values(difference.first)
    if difference.second is None:
        second = np.zeros_like(first)
    else:
        second = results.values(difference.second)
    if not first.size or not second.size:
        return None
    return first, second


def interval(entry: dict[str, Any]) -> str:
    """Format a difference and its bounds."""
    shown = f"{entry['difference']:+.1f} [{entry['low']:.1f}, {entry['high']:.1f}]"
    return shown.replace("-", "−")


def place(entry: dict[str, Any]) -> str:
    """Return where the interval lies: "above" 0, "below" it, or "around" it."""
    if entry["low"] > 0:
        return "above"
    return "below" if entry["high"] < 0 else "around"


# Named in advance ----------------------------------------------------------------------------------------------------


def named_claims() -> list[Difference]:
    """Return the claims of `claims.yaml`: MRR@10, the mean of both directions, pooled over both sets of clips."""
    found = []
    for row in yaml.safe_load(_NAMED.read_text(encoding="utf-8"))["claims"]:
        # The shipped ranks were made before the rule that keeps a fit or drops it: they have no kept numbers.
        common = {"numbers": AS_TRAINED, "direction": BOTH, "measure": "mrr", "gain": row.get("measure") == "gain"}
        sides = [Selection(**common | row[side]) for side in ("first", "second")]
        found.append(Difference(row["name"], row["sentence"], *sides, pooled=True))
    return found


def as_recall(claim: Difference) -> Difference:
    """Return a claim in points of R@1, to be shown beside its own measure."""
    sides = [replace(chosen, measure="recall") for chosen in (claim.first, claim.second)]
    return replace(claim, first=sides[0], second=sides[1])


@cache
def judged(results: Results) -> dict[str, dict[str, Any]]:
    """
    Return the measured claims that were named in advance, each with its interval and verdict.

    Returns:
        `dict`: by name, the output of [`bound`] with the `claim`, the p-value that Holm's rule `adjusted` for the
        number of all named claims, measured or not, and the `verdict`: "shown", "reverse" or "undecided".
    """
    claims = named_claims()
    found = {}
    for claim in claims:
        entry = bound(results, claim)
        if entry is not None:
            found[claim.name] = {"claim": claim} | entry
    missing = len(claims) - len(found)
    adjusted = holm([entry["p_value"] for entry in found.values()] + [1.0] * missing)
    for entry, value in zip(found.values(), adjusted, strict=False):
        entry["adjusted"] = value
        if value > LEVEL:
            entry["verdict"] = "undecided"
        else:
            entry["verdict"] = "shown" if entry["difference"] > 0 else "reverse"
    return found


# Descriptions --------------------------------------------------------------------------------------------------------


def _both(name: str, sentence: str, first: Selection, second: Selection, pooled: bool = False) -> list[Difference]:
    """A difference in each direction."""
    directed = [replace(selection, direction=BACK) for selection in (first, second)]
    return [
        Difference(name, f"{sentence}, text to video", first, second, pooled),
        Difference(f"{name}-back", f"{sentence}, video to text", *directed, pooled),
    ]


def _as_trained(**fields: Any) -> Selection:
    return Selection(numbers=AS_TRAINED, **fields)


def _of_methods() -> list[Difference]:
    """SCALAR and its baselines, each with its own score."""
    found = []
    for clips, words in {"test": "all clips", "complete": "complete clips alone"}.items():
        for variant in ("gram", "scalar_uniform"):
            pair = _as_trained(clips=clips), _as_trained(variant=variant, clips=clips)
            sentence = f"SCALAR − {variant_name(variant)}, as trained, both sets of clips, {words}"
            name = f"pooled-{variant}" if clips == "test" else f"pooled-{variant}-complete"
            found += _both(name, sentence, *pair, pooled=True)
    for variant in ("gram", "scalar_uniform"):
        pair = _as_trained(masked="0.5"), _as_trained(variant=variant, masked="0.5")
        sentence = f"SCALAR − {variant_name(variant)}, as trained, both sets of clips, half of the clips masked"
        found.append(Difference(f"pooled-{variant}-half", sentence, *pair, pooled=True))
    for variant in BASELINES:
        pair = Selection(), Selection(variant)
        found += _both(f"scalar-{variant}", f"SCALAR − {variant_name(variant)}, fitted", *pair)
        plain = _as_trained(), _as_trained(variant=variant)
        found += _both(f"scalar-{variant}-plain", f"SCALAR − {variant_name(variant)}, as trained", *plain)
    for variant in ("scalar_uniform", "gram"):
        pair = Selection(experiment="repeated"), Selection(variant, experiment="repeated")
        found += _both(f"repeated-{variant}", f"other clips (seed 1): SCALAR − {variant_name(variant)}, fitted", *pair)
        half = Selection(masked="0.5"), Selection(variant, masked="0.5")
        sentence = f"half of the clips masked: SCALAR − {variant_name(variant)}, fitted"
        found.append(Difference(f"masked-{variant}", sentence, *half))
    return found


def _of_scores() -> list[Difference]:
    """Scores of the same embeddings, and embeddings with the same score."""
    found = []
    for variant in ("scalar_uniform", "gram"):
        theirs = Selection(variant, "scalar")
        sentence = f"SCALAR's score: SCALAR's embeddings − those of {variant_name(variant)}, fitted"
        found += _both(f"embeddings-{variant}", sentence, Selection(), theirs)
        sentence = f"embeddings of {variant_name(variant)}: SCALAR's score − its own, fitted"
        found += _both(f"score-{variant}", sentence, theirs, Selection(variant))
    for variant in ("scalar", "gram"):
        for numbers, ending in (("as trained", ""), ("fitted", "-fitted")):
            pair = Selection(variant, "scalar", numbers), Selection(variant, "gram_span", numbers)
            sentence = f"embeddings of {variant_name(variant)}: SCALAR's score − span distance, {numbers}"
            found += _both(f"span-{variant}{ending}", sentence, *pair)
    for numbers, ending in (("as trained", ""), ("fitted", "-fitted")):
        pair = Selection("gram", "gram_span", numbers), Selection("gram", numbers=numbers)
        found += _both(f"span-volume{ending}", f"GRAM's embeddings: span distance − volume, {numbers}", *pair)
    span = Selection("gram", "gram_span")
    found += _both("scalar-span", "SCALAR − span distance of GRAM's embeddings, fitted", Selection(), span)
    fusion = Selection(score="rank_fusion")
    found += _both("scalar-rrf", "SCALAR − weighted rank fusion, same embeddings, fitted", Selection(), fusion)
    sentence = "router that knows the kind of caption − SCALAR, same embeddings, fitted"
    found.append(Difference("router-scalar", sentence, Selection(score=ROUTER), Selection()))
    for variant in ("scalar", "scalar_uniform", "gram"):
        name = "fitted" if variant == "scalar" else f"fitted-{variant}"
        pair = Selection(variant), _as_trained(variant=variant)
        found += _both(name, f"{variant_name(variant)} with fitted numbers − as trained", *pair)
    pair = Selection(numbers="temperature"), _as_trained()
    return found + _both("temperature", "SCALAR with a fitted temperature alone − as trained", *pair)


def _of_gains() -> list[Difference]:
    """Aggregation gain of every method, and what ablations change of it."""
    found = []
    for variant in ("scalar", *BASELINES):
        for masked, words in {"nothing": "", "0.5": ", half of the clips masked"}.items():
            own = _as_trained(variant=variant, masked=masked, gain=True)
            name = f"gain-{variant}" if masked == "nothing" else f"gain-{variant}-half"
            sentence = f"aggregation gain of {variant_name(variant)}, as trained{words}"
            found.append(Difference(name, sentence, own, pooled=True))
    for variant in ABLATIONS:
        for numbers, ending in (("as trained", ""), ("fitted", "-fitted")):
            pair = Selection(numbers=numbers, gain=True), Selection(variant, numbers=numbers, gain=True)
            sentence = f"aggregation gain: SCALAR − {variant_name(variant)}, {numbers}"
            found.append(Difference(f"gain-{variant}{ending}", sentence, *pair))
        pair = Selection(), Selection(variant)
        found += _both(variant, f"SCALAR − {variant_name(variant)}, fitted", *pair)
    return found


def _of_views() -> list[Difference]:
    """Masked views on three sets of training clips."""
    found = []
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "": ("R@1", {}),
        "-half": ("half of the clips masked", {"masked": "0.5"}),
        "-subtitles": ("without subtitles", {"masked": "subtitle"}),
        "-ten": ("R@10", {"at": 10}),
        "-gain": ("aggregation gain", {"gain": True}),
        "-video": ("picture alone", {"score": "video"}),
        "-audio": ("sound alone", {"score": "audio"}),
        "-subtitle": ("subtitle alone", {"score": "subtitle"}),
    }
    for clips, where in VIEWS.items():
        for ending, (words, change) in changes.items():
            first = Selection(experiment=f"views-{clips}", **change)
            second = replace(first, variant="no_masked_views")
            found.append(Difference(f"views-{clips}{ending}", f"masked views, {where}: {words}", first, second))
    for name, words in zip(MODALITIES, _WORDS, strict=True):
        first = Selection(score=name)
        sentence = f"masked views, main comparison: {words} alone"
        found.append(Difference(f"views-main-{name}", sentence, first, replace(first, variant="no_masked_views")))
    return found


def _of_captions(results: Results) -> list[Difference]:
    """Kinds of captions, clips that disagree, and how much modalities share."""
    found = []
    for variant in ("scalar_uniform", "gram"):
        title = variant_name(variant)
        for kind, words in KINDS.items():
            first = Selection(kinds=(kind,))
            sentence = f"captions about {words}: SCALAR − {title}, fitted"
            found.append(Difference(f"{kind}-{variant}", sentence, first, replace(first, variant=variant)))
        for numbers, ending in (("fitted", ""), ("as trained", "-plain")):
            first = Selection(numbers=numbers, kinds=("single",), clips="disagree")
            sentence = f"captions about one modality, where modalities disagree: SCALAR − {title}, {numbers}"
            name = f"disagree-{variant}{ending}"
            found.append(Difference(name, sentence, first, replace(first, variant=variant)))
        for level, experiment in results.levels().items():
            first = Selection(experiment=experiment)
            sentence = f"{level:g} shared: SCALAR − {title}, fitted"
            found.append(Difference(f"sharing-{level:g}-{variant}", sentence, first, replace(first, variant=variant)))
    for name, words in zip(MODALITIES, _WORDS, strict=True):
        alone = Selection(score=name, about=name)
        sentence = f"captions about the {words}: {words} alone − SCALAR, same embeddings, fitted"
        found.append(Difference(f"about-{name}", sentence, alone, replace(alone, score=None)))
    first = Selection(kinds=("single",), clips="disagree")
    sentence = "captions about one modality, where modalities disagree: SCALAR with fitted numbers − as trained"
    return [*found, Difference("disagree-fitted", sentence, first, replace(first, numbers=AS_TRAINED))]


@cache
def described(results: Results) -> dict[str, dict[str, Any]]:
    """Return all measured differences but the named ones, by name: the output of [`bound`], and the `difference`'s
    definition as `of`."""
    differences: Sequence[Difference] = [
        *_of_methods(),
        *_of_gains(),
        *_of_scores(),
        *_of_captions(results),
        *_of_views(),
    ]
    found = {}
    for difference in differences:
        entry = bound(results, difference)
        if entry is not None:
            found[difference.name] = {"of": difference} | entry
    return found


__all__ = [
    "BASELINES",
    "KINDS",
    "LEVEL",
    "SETS",
    "VIEWS",
    "Difference",
    "as_recall",
    "bound",
    "described",
    "interval",
    "judged",
    "named_claims",
    "place",
    "variant_name",
]
