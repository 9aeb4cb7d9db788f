"""The study's differences: seven that were named in advance, with a verdict, and all others, which describe.

Every difference has its 95 % interval for other queries and other trainings
(`evidence.statistics`). Holm's rule covers the named ones alone.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evidence.reports.results import label_name
from evidence.statistics import holm, pooled_interval

from .measure import AS_TRAINED, HIDDEN, KEPT_OR_NOT, RATES, ROUTER
from .results import BACK, BOTH, MODALITIES, SETS, Quantity, StudyResults
from .runs import ABLATIONS

LEVEL = 0.05
"""A named claim is shown if its adjusted p-value is at most this."""

BASELINES = ("scalar_uniform", "gram", "hypergram", "triangle", "pmrl")
"""Variants that SCALAR is compared with."""

VIEWS = {
    "complete": "complete clips",
    "new-heads": "complete clips, new heads",
}
"""What the trainings of the study of masked views learned from, by the end of their experiment's name."""

KINDS = {"single": "one modality", "several": "several", "shared": "what is shared"}
"""What captions are about, by their kind."""

_WORDS = ("picture", "sound", "subtitle")  # of MODALITIES
_TITLES = {  # of variants that the paper does not have
    "triangle": "TRIANGLE",
    "scalar_01": "SCALAR, trained at temperature 0.1",
    "gram_corrected": "corrected volume",
    "span_corrected": "corrected span distance",
    "scalar_corrected": "SCALAR's score with a constant for missing modalities",
}
_NAMED = Path(__file__).with_name("claims.yaml")


@dataclass(frozen=True)
class Difference:
    """
    The mean of one quantity minus that of another.

    Args:
        name (`str`): identifies it in a page.
        sentence (`str`): description of the comparison.
        first ([`Quantity`]): what is compared.
        second ([`Quantity`], *optional*): what it is compared with; without it, `first` with 0.
    """

    name: str
    sentence: str
    first: Quantity
    second: Quantity | None = None

    @property
    def same_trainings(self) -> bool:
        """Whether both sides are computed from the same embeddings."""
        if self.second is None:
            return True
        return (self.first.experiment, self.first.variant) == (self.second.experiment, self.second.variant)


def variant_name(label: str) -> str:
    """Return the display name of a variant or of a corrected score."""
    return _TITLES.get(label) or label_name(label)


def with_interval(results: StudyResults, difference: Difference) -> dict[str, Any] | None:
    """
    Bound a difference.

    Returns:
        `dict`: the output of [`~evidence.statistics.pooled_interval`]; `sets`, the experiments
            behind it; and the
        difference's definition as `of`. `None` if a side was not measured.
    """
    # Each set of clips has queries and trainings of its own, so the sets are bounded together, not averaged first.
    experiments = [quantity.experiment for quantity in results.on_each_set(difference.first)]
    measured = {}
    for experiment in experiments:
        first = results.values(replace(difference.first, experiment=experiment))
        if difference.second is None:
            second = np.zeros_like(first)
        else:
            second = results.values(replace(difference.second, experiment=experiment))
        if first.size and second.size:
            measured[experiment] = (first, second)
    if not measured:
        return None
    found = pooled_interval(list(measured.values()), difference.same_trainings)
    return found | {"sets": tuple(measured), "of": difference}


def format_interval(entry: dict[str, Any]) -> str:
    """Format a difference and its bounds."""
    shown = f"{entry['difference']:+.1f} [{entry['low']:.1f}, {entry['high']:.1f}]"
    return shown.replace("-", "−")


def side_of_zero(entry: dict[str, Any]) -> str:
    """Return where the interval lies: "above" 0, "below" it, or "around" it."""
    if entry["low"] > 0:
        return "above"
    return "below" if entry["high"] < 0 else "around"


# Named in advance ----------------------------------------------------------------------------------------------------


def named_claims() -> list[Difference]:
    """Return the claims of `claims.yaml`: MRR@10, the mean of both directions, pooled over both sets of clips."""
    claims = []
    for row in yaml.safe_load(_NAMED.read_text(encoding="utf-8"))["claims"]:
        common = {"direction": BOTH, "measure": "mrr", "gain": row.get("measure") == "gain"}
        first = Quantity(**common | row["first"])
        second = Quantity(**common | row["second"])
        claims.append(Difference(row["name"], row["sentence"], first, second))
    return claims


def as_recall(claim: Difference) -> Difference:
    """Return a claim in points of R@1, to be shown beside its own measure."""
    first = replace(claim.first, measure="recall")
    return replace(claim, first=first, second=replace(claim.second, measure="recall"))


@cache
def judged_claims(results: StudyResults) -> dict[str, dict[str, Any]]:
    """
    Return the measured claims that were named in advance, each with its interval and verdict.

    Returns:
        `dict`: by name, the output of [`with_interval`] with the p-value that Holm's rule `adjusted` for the number of
        all named claims, measured or not, and the `verdict`: "shown", "reverse" or "undecided".
    """
    claims = named_claims()
    judged = {}
    for claim in claims:
        entry = with_interval(results, claim)
        if entry is not None:
            judged[claim.name] = entry
    # A claim that was not measured counts as one that found nothing.
    missing = len(claims) - len(judged)
    adjusted = holm([entry["p_value"] for entry in judged.values()] + [1.0] * missing)
    for entry, value in zip(judged.values(), adjusted, strict=False):
        entry["adjusted"] = value
        if value > LEVEL:
            entry["verdict"] = "undecided"
        elif entry["difference"] > 0:
            entry["verdict"] = "shown"
        else:
            entry["verdict"] = "reverse"
    return judged


# Descriptions --------------------------------------------------------------------------------------------------------


def _both(name: str, sentence: str, first: Quantity, second: Quantity) -> list[Difference]:
    """A difference in each direction."""
    forth = Difference(name, f"{sentence}, text to video", first, second)
    first = replace(first, direction=BACK)
    second = replace(second, direction=BACK)
    return [forth, Difference(f"{name}-back", f"{sentence}, video to text", first, second)]


def _with_other(name: str, sentence: str, variant: str, **fields: Any) -> Difference:
    """SCALAR minus another variant, in the same fields."""
    return Difference(name, sentence, Quantity(**fields), Quantity(variant, **fields))


def _of_methods() -> list[Difference]:
    """SCALAR and its baselines, each with its own score."""
    found = []
    for variant in BASELINES:
        title = f"SCALAR − {variant_name(variant)}"
        # Among all clips, and where no clip lacks anything.
        for clips, words, ending in (("test", "all clips", ""), ("complete", "complete clips alone", "-complete")):
            pair = Quantity(clips=clips), Quantity(variant, clips=clips)
            found += _both(f"lead-{variant}{ending}", f"{title}, fitted, {words}", *pair)
        # Under masks, and with nothing fitted.
        for rate in RATES:
            sentence = f"{title}, fitted, {100 * float(rate):g} % of the clips masked"
            found.append(_with_other(f"lead-{variant}-{rate}", sentence, variant, masked=rate))
        pair = Quantity(numbers=AS_TRAINED), Quantity(variant, numbers=AS_TRAINED)
        found += _both(f"lead-{variant}-plain", f"{title}, as trained", *pair)
    # Each set of clips by itself.
    for experiment in SETS:
        for variant in ("scalar_uniform", "gram"):
            pair = Quantity(experiment=experiment), Quantity(variant, experiment=experiment)
            sentence = f"{experiment} clips: SCALAR − {variant_name(variant)}, fitted"
            found += _both(f"{experiment}-{variant}", sentence, *pair)
    return found + _both("lora", "LoRA − full fine-tuning, fitted", Quantity(), Quantity("scalar_full_ft"))


def _at_two_temperatures() -> list[Difference]:
    """SCALAR as trained, with the paper's temperature of weights, and with the one that was fitted beforehand."""
    gram = Quantity("gram")
    rivals = {
        "": ("GRAM, fitted", gram),
        "-equal": ("equal weights, fitted", Quantity("scalar_uniform")),
        "-span": ("span distance of GRAM's embeddings, as trained", Quantity("gram", "gram_span", AS_TRAINED)),
        "-corrected": ("corrected volume of GRAM's embeddings, fitted", Quantity("gram", "gram_corrected")),
    }
    found = []
    for name, variant in (("trained-01", "scalar_01"), ("plain", "scalar")):
        own = Quantity(variant, numbers=AS_TRAINED)
        for ending, (words, rival) in rivals.items():
            sentence = f"{variant_name(variant)}, as trained − {words}"
            found += _both(f"{name}{ending}", sentence, own, rival)
            pair = replace(own, clips="complete"), replace(rival, clips="complete")
            found += _both(f"{name}{ending}-complete", f"{sentence}, complete clips alone", *pair)
            pair = tuple(replace(side, measure="mrr", direction=BOTH) for side in (own, rival))
            found.append(Difference(f"{name}{ending}-mrr", f"{sentence}, MRR@10 of both directions", *pair))
        # Captions about several modalities are those to which weights per query may do harm.
        pair = replace(own, kinds=("several",)), Quantity("scalar_uniform", kinds=("several",))
        sentence = f"captions about several: {variant_name(variant)}, as trained − equal weights, fitted"
        found.append(Difference(f"{name}-several", sentence, *pair))
    scored = Quantity(numbers="temperature 0.1")
    return found + _both("scored-01", "SCALAR scored at temperature 0.1 − GRAM, fitted", scored, gram)


def _of_scores() -> list[Difference]:
    """Scores of the same embeddings, and embeddings with the same score."""
    found = []
    # A lead may come from the score or from the embeddings: each with the other held fixed.
    for variant in ("scalar_uniform", "gram"):
        theirs = Quantity(variant, "scalar")
        sentence = f"SCALAR's score: SCALAR's embeddings − those of {variant_name(variant)}, fitted"
        found += _both(f"embeddings-{variant}", sentence, Quantity(), theirs)
        sentence = f"embeddings of {variant_name(variant)}: SCALAR's score − its own, fitted"
        found += _both(f"score-{variant}", sentence, theirs, Quantity(variant))
    # The span distance is the volume without the clip's own determinant.
    for variant in ("scalar", "gram"):
        pair = Quantity(variant, "scalar"), Quantity(variant, "gram_span")
        sentence = f"embeddings of {variant_name(variant)}: SCALAR's score − span distance, fitted"
        found += _both(f"span-{variant}", sentence, *pair)
    # If scores were not comparable across arities, a constant for each missing modality would help.
    first = Quantity(score="scalar_corrected", numbers=KEPT_OR_NOT)
    sentence = "SCALAR's score with a constant for each missing modality − without, same embeddings, text to video"
    found.append(Difference("scalar_corrected-scalar", sentence, first, Quantity(numbers=AS_TRAINED)))
    span = Quantity("gram", "gram_span")
    found += _both("span-volume", "GRAM's embeddings: span distance − volume, fitted", span, Quantity("gram"))
    # Numbers that do not depend on the query: with them a volume may compare clips that lack something.
    for score in ("gram_corrected", "span_corrected"):
        theirs = Quantity("gram", score)
        title = f"{variant_name(score)} of GRAM's embeddings"
        found += _both(f"lead-{score}", f"SCALAR − {title}, fitted", Quantity(), theirs)
        found += _both(f"{score}-volume", f"{title} − volume, fitted", theirs, Quantity("gram"))
        sentence = f"SCALAR's score − {variant_name(score)}, same embeddings, fitted"
        found += _both(f"score-{score}", sentence, Quantity(), Quantity(score=score))
    found += _both("scalar-span", "SCALAR − span distance of GRAM's embeddings, fitted", Quantity(), span)
    fusion = Quantity(score="rank_fusion")
    found += _both("scalar-rrf", "SCALAR − weighted rank fusion, same embeddings, fitted", Quantity(), fusion)
    sentence = "router that knows the kind of caption − SCALAR, same embeddings, fitted"
    found.append(Difference("router-scalar", sentence, Quantity(score=ROUTER), Quantity()))
    for variant in ("scalar", "scalar_01", *BASELINES):
        pair = Quantity(variant), Quantity(variant, numbers=AS_TRAINED)
        found += _both(f"fitted-{variant}", f"{variant_name(variant)} with fitted numbers − as trained", *pair)
    return found


def _of_gains() -> list[Difference]:
    """Aggregation gain of every method, and what ablations change of it."""
    found = []
    for variant in ("scalar", *BASELINES):
        for masked in ("nothing", "0.5", "0.9"):
            own = Quantity(variant, masked=masked, gain=True)
            name = f"gain-{variant}"
            sentence = f"aggregation gain of {variant_name(variant)}, fitted"
            if masked != "nothing":
                name += f"-{masked}"
                sentence += f", {100 * float(masked):g} % of the clips masked"
            found.append(Difference(name, sentence, own))
    # The paper states what ablations cost in aggregation gain; R@1 and MRR@10 stand beside it.
    for variant in ABLATIONS:
        title = f"SCALAR − {variant_name(variant)}"
        sentence = f"aggregation gain: {title}, fitted"
        found.append(_with_other(f"gain-{variant}", sentence, variant, gain=True))
        fields = {"gain": True, "measure": "mrr", "direction": BOTH}
        found.append(_with_other(f"gain-{variant}-mrr", f"{sentence}, MRR@10 of both directions", variant, **fields))
        found += _both(variant, f"{title}, fitted", Quantity(), Quantity(variant))
    return found


def _of_ladder() -> list[Difference]:
    """What sound and subtitles add to the picture."""
    found = []
    for variant in ("scalar", *BASELINES):
        every = Quantity(variant)
        without_subtitle = replace(every, masked=HIDDEN[0])
        picture = replace(every, masked=HIDDEN[1])
        title = variant_name(variant)
        sentence = f"{title}, fitted: picture and sound − picture alone"
        found.append(Difference(f"ladder-{variant}-sound", sentence, without_subtitle, picture))
        sentence = f"{title}, fitted: picture, sound and subtitle − picture alone"
        found.append(Difference(f"ladder-{variant}", sentence, every, picture))
        if variant != "scalar":
            sentence = f"picture and sound alone: SCALAR − {title}, fitted"
            found.append(_with_other(f"two-{variant}", sentence, variant, masked=HIDDEN[0]))
    return found


def _of_views() -> list[Difference]:
    """Masked views on each set of training clips."""
    found = []
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "": ("R@1", {}),
        "-half": ("half of the clips masked", {"masked": "0.5"}),
        "-subtitles": ("without subtitles", {"masked": "subtitle"}),
        "-ten": ("R@10", {"at": 10}),
        "-gain": ("aggregation gain", {"gain": True}),
    }
    alone: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, words in zip(MODALITIES, _WORDS, strict=True):
        alone[f"-{name}"] = (f"{words} alone", {"score": name})
    for clips, where in VIEWS.items():
        for ending, (words, change) in (changes | alone).items():
            sentence = f"masked views, {where}: {words}"
            change = change | {"experiment": f"views-{clips}"}
            found.append(_with_other(f"views-{clips}{ending}", sentence, "no_masked_views", **change))
    for ending, (words, change) in alone.items():
        sentence = f"masked views, main comparison: {words}"
        found.append(_with_other(f"views-main{ending}", sentence, "no_masked_views", **change))
    return found


def _of_captions(levels: dict[float, str]) -> list[Difference]:
    """Kinds of captions, clips that disagree, and how much modalities share."""
    found = []
    # Only captions about one modality have an answer where modalities disagree.
    disagreeing: dict[str, Any] = {"kinds": ("single",), "clips": "disagree"}
    about = "captions about one modality, where modalities disagree"
    for variant in ("scalar_uniform", "gram"):
        title = f"SCALAR − {variant_name(variant)}"
        for kind, words in KINDS.items():
            sentence = f"captions about {words}: {title}, fitted"
            found.append(_with_other(f"{kind}-{variant}", sentence, variant, kinds=(kind,)))
        for numbers, ending in (("fitted", ""), (AS_TRAINED, "-plain")):
            fields = disagreeing | {"numbers": numbers}
            found.append(_with_other(f"disagree-{variant}{ending}", f"{about}: {title}, {numbers}", variant, **fields))
        for level, experiment in levels.items():
            sentence = f"{level:g} shared: {title}, fitted"
            found.append(_with_other(f"sharing-{level:g}-{variant}", sentence, variant, experiment=experiment))
    # What the choice of a modality could gain: of captions about one, this one alone.
    for name, words in zip(MODALITIES, _WORDS, strict=True):
        alone = Quantity(score=name, about=name)
        sentence = f"captions about the {words}: {words} alone − SCALAR, same embeddings, fitted"
        found.append(Difference(f"about-{name}", sentence, alone, replace(alone, score=None)))
    first = Quantity(**disagreeing)
    sentence = f"{about}: SCALAR with fitted numbers − as trained"
    return [*found, Difference("disagree-fitted", sentence, first, replace(first, numbers=AS_TRAINED))]


@cache
def described_differences(results: StudyResults) -> dict[str, dict[str, Any]]:
    """Return all measured differences but the named ones, by name: the outputs of [`with_interval`]."""
    differences = [
        *_of_methods(),
        *_at_two_temperatures(),
        *_of_gains(),
        *_of_ladder(),
        *_of_scores(),
        *_of_captions(results.levels()),
        *_of_views(),
    ]
    entries = {}
    for difference in differences:
        entry = with_interval(results, difference)
        if entry is not None:
            entries[difference.name] = entry
    return entries


__all__ = [
    "BASELINES",
    "KINDS",
    "LEVEL",
    "VIEWS",
    "Difference",
    "as_recall",
    "described_differences",
    "format_interval",
    "judged_claims",
    "named_claims",
    "side_of_zero",
    "variant_name",
    "with_interval",
]
