"""The paper's claims one by one: their sizes in the paper, what the study finds, and a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from evidence.reports.tables import MetricsTable, Row

from .differences import described_differences, format_interval
from .results import StudyResults


@dataclass(frozen=True)
class PaperClaim:
    """
    A claim of the paper.

    Args:
        sentence (`str`): what is claimed to differ from 0.
        place (`str`): the table, figure or section of the paper, by number or label.
        sizes (`tuple[float, ...]`): the differences in the paper, one for each benchmark, or a single mean; none if
            the claim has no number.
        difference (`str`, *optional*): name of the study's difference that tests it; `None` if nothing does.
        relative (`bool`): sizes are percent of SCALAR's value, not points.
    """

    sentence: str
    place: str
    sizes: tuple[float, ...] = ()
    difference: str | None = None
    relative: bool = False


_FIRST_STAGE = "Table S3, tab:supp-gain-components"
_GAIN = "Table 4, tab:gain"
_MASKED = "Table 3, tab:missing"
_ABLATION = "Table 5, tab:loss_ablation"
_LADDER = "Table S5, tab:supp-subset-ladder"
_RERANKED = "Table S4, tab:supp-missing-two-stage"
_FULL = "Tables 1 and 2, tab:msrvtt and tab:transfer"

PAPER_CLAIMS: Sequence[Sequence[PaperClaim]] = (
    (
        PaperClaim("aggregation gain of GRAM", _GAIN, (-3.4, -3.8, -5.8, -1.9, -6.1), "gain-gram"),
        PaperClaim("aggregation gain of HyperGRAM", _GAIN, (-3.4, -0.1, -2.0, 0.0), "gain-hypergram"),
        PaperClaim("aggregation gain of equal weights", _GAIN, (-7.0, -7.5, -4.0, -11.2, 0.2), "gain-scalar_uniform"),
        PaperClaim("aggregation gain of PMRL", _GAIN, (-12.2, -9.6, -9.8, -27.6, 1.4), "gain-pmrl"),
        PaperClaim("aggregation gain of SCALAR", _GAIN, (4.0, -1.1, 0.3, 0.5, 1.4), "gain-scalar"),
        PaperClaim(
            "the same, half masked (paper: least of all rates, two benchmarks)",
            "Figure fig:gain_vs_mask",
            (2.4, 0.5),
            "gain-scalar-0.5",
        ),
    ),
    (
        PaperClaim("SCALAR − GRAM, first stage", _FIRST_STAGE, (6.5, 6.1, 3.4, 6.1, 4.2), "lead-gram"),
        PaperClaim(
            "SCALAR − equal weights, first stage", _FIRST_STAGE, (11.1, 7.3, 8.4, 12.6, -1.7), "lead-scalar_uniform"
        ),
        PaperClaim("SCALAR − HyperGRAM, first stage", _FIRST_STAGE, (6.1, 2.3, 0.1, 3.7), "lead-hypergram"),
        PaperClaim("SCALAR − PMRL, first stage", _FIRST_STAGE, (13.7, 5.6, 4.4, 28.1, -6.3), "lead-pmrl"),
        PaperClaim("SCALAR − GRAM, a quarter masked", _MASKED, (5.5, 6.3, 3.2, 8.9, 3.4), "lead-gram-0.25"),
        PaperClaim("SCALAR − GRAM, half masked", _MASKED, (6.8, 5.5, 3.8, 9.8, 3.5), "lead-gram-0.5"),
        PaperClaim("SCALAR − GRAM, three quarters masked", _MASKED, (6.4, 4.3, 3.9, 10.9, 4.6), "lead-gram-0.75"),
        PaperClaim("SCALAR − GRAM, 90 % masked", _MASKED, (6.6, 4.4, 3.5, 9.5, 3.8), "lead-gram-0.9"),
        PaperClaim(
            "the volume is not comparable across arities: what it gains by an exponent and a constant for them",
            "Section sec:maskedvol",
            difference="gram_corrected-volume",
        ),
        PaperClaim(
            "SCALAR's score is comparable across arities: what it gains by a constant for them",
            "Section sec:maskedvol",
            (0.0,),
            "scalar_corrected-scalar",
        ),
    ),
    (
        PaperClaim("SCALAR − PMRL, video to text (paper: reranked)", "Table 1, tab:msrvtt", (-2.4,), "lead-pmrl-back"),
        PaperClaim(
            "SCALAR − HyperGRAM, video to text (paper: reranked)",
            "Table 1, tab:msrvtt",
            (-1.4,),
            "lead-hypergram-back",
        ),
    ),
    (
        PaperClaim("gain: SCALAR − without masked views", _ABLATION, (6.5,), "gain-no_masked_views"),
        PaperClaim("gain: SCALAR − without L_mask", _ABLATION, (1.5,), "gain-no_cross_arity"),
        PaperClaim("gain: SCALAR − without L_sem", _ABLATION, (0.9,), "gain-no_semantic"),
        PaperClaim("gain: SCALAR − without L_unif", _ABLATION, (0.4,), "gain-no_uniformity"),
        PaperClaim("gain, 90 % masked: SCALAR − without masked views", _ABLATION, (7.1,)),
        PaperClaim(
            "sound alone: SCALAR − without masked views, % of SCALAR's",
            "Section sec:missing",
            (17.0, 39.0),
            "views-main-audio",
            relative=True,
        ),
    ),
    (
        PaperClaim("LoRA − full fine-tuning (paper: reranked)", _FULL, (4.2, 2.2, 2.5, 1.3, 2.0), "lora"),
        PaperClaim("SCALAR with picture, sound and subtitle − picture alone", _LADDER, (4.0, 0.5), "ladder-scalar"),
        PaperClaim("GRAM with picture, sound and subtitle − picture alone", _LADDER, (-3.4, -1.9), "ladder-gram"),
        PaperClaim("clips of picture and sound: SCALAR − GRAM", _FIRST_STAGE, (6.1, 3.4, 4.2), "two-gram"),
        PaperClaim(
            "short class labels, accuracy: SCALAR − equal weights", "Table S6, tab:supp-vggsound", (-1.0,), "labels"
        ),
        PaperClaim("reranked, nothing masked: SCALAR − GRAM", _RERANKED, (2.3, 0.6, -0.5, 0.5, 3.0), "reranked-0"),
        PaperClaim("reranked, 90 % masked: SCALAR − GRAM", _RERANKED, (0.3, -0.3, -1.6, -0.5, -1.5), "reranked-0.9"),
        PaperClaim("reranked, 90 % masked: SCALAR comes near picture alone", _RERANKED),
        PaperClaim(
            "100 times the text–centroid cosine: SCALAR − its initialization",
            "Section sec:supp-latent",
            (10.0,),
            "cosine",
        ),
        PaperClaim("scores on five public benchmarks", _FULL),
    ),
)
"""The claims by topic. What the paper does not claim, TRIANGLE for one, is not here."""

RULE = (
    "Points of R@1, text to video unless said otherwise. Aggregation gain: a method's own score minus the best single "
    "modality of the same embeddings. Paper: mean over its benchmarks, from the lowest to the highest in brackets. "
    "Its least value is the one nearest to 0 on the side of that mean; a claim without a number has a sign alone. "
    "Verdicts, the first that fits: *reverse*, our interval lies on the other side of 0; *excluded*, it ends before "
    "the least value; *confirmed*, it leaves out 0; *too small to see*, it has both 0 and the least value. That "
    "something is 0 cannot be confirmed: it is *not excluded* where the interval has 0. Data and sizes of models "
    "differ from the paper's, so a sign says more than a size."
)
"""How the table's verdicts are found."""

_MEASURED = (
    " All with the fit that clips held out from it keep, both sets of clips; reranked: with the numbers of training, "
    "on clips of their own; reranked, labels and cosines: intervals for other trainings alone."
)


def verdict(sizes: Sequence[float], entry: dict[str, Any] | None) -> str:
    """
    Return the verdict on a claim by the rule of [`RULE`].

    Args:
        sizes (`Sequence[float]`): the paper's differences; without any, the claim is a difference above 0, and with
            a mean of 0 it is that there is none.
        entry (`dict`, *optional*): our difference with its bounds `low` and `high`.

    Returns:
        `str`: "reverse", "excluded", "confirmed", "too small to see", "not excluded", or "not run" without an entry.
    """
    if entry is None:
        return "not run"
    if sizes and fmean(sizes) == 0:
        return "not excluded" if entry["low"] <= 0 <= entry["high"] else "excluded"
    # With the paper's sign turned to plus, every rule reads one way.
    # A claim without a size has a sign alone, so its least size is 0.
    sign = 1.0
    least = 0.0
    if sizes:
        sign = math.copysign(1, fmean(sizes))
        least = min(sign * size for size in sizes if sign * size > 0)
    low, high = sorted((sign * entry["low"], sign * entry["high"]))
    if high < 0:
        return "reverse"
    if high < least:
        return "excluded"
    if low > 0:
        return "confirmed"
    return "too small to see"


def _size(sizes: Sequence[float]) -> str:
    """The paper's values in a cell."""
    if not sizes:
        return "–"
    shown = f"{fmean(sizes):+.1f}" if fmean(sizes) else "0"
    if len(sizes) > 1:
        shown += f" ({min(sizes):+.1f} to {max(sizes):+.1f})"
    return shown.replace("-", "−")


def reranked_lead(results: StudyResults, rate: str) -> dict[str, float] | None:
    """
    Return SCALAR minus GRAM in R@1 of the second stage, text to video, with an interval for other trainings.

    Args:
        results ([`StudyResults`]): of a study.
        rate (`str`): share of clips that lose a modality.

    Returns:
        `dict`: `difference`, `low` and `high`; `None` if a method has fewer than two trainings.
    """
    # R@1 of each training by the match logits alone, as in the paper's table.
    reached: dict[str, list[float]] = {"scalar": [], "gram": []}
    for run in results.study["second_stage"]:
        value = run["staged"].get(f"text_to_video, {rate} masked, match")
        if run["label"] in reached and value is not None:
            reached[run["label"]].append(value)
    if min(map(len, reached.values())) < 2:
        return None
    return _of_trainings(*reached.values())


def _of_trainings(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """The difference of two means, with an interval for other trainings: what was stored without ranks."""
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    return {"difference": fmean(first) - fmean(second), "low": float(low), "high": float(high)}


def labelled_lead(results: StudyResults) -> dict[str, float] | None:
    """Return SCALAR minus equal weights in accuracy on class labels, in points, with an interval for other
    trainings; `None` if a method has fewer than two."""
    reached: dict[str, list[float]] = {"scalar": [], "scalar_uniform": []}
    for run in results.study["labels"]:
        reached[run["variant"]].append(run["accuracy"])
    if min(map(len, reached.values())) < 2:
        return None
    return _of_trainings(*reached.values())


def gained_cosine(results: StudyResults) -> dict[str, float] | None:
    """Return 100 times what SCALAR's trainings add to the text-centroid cosine, with an interval for other trainings;
    `None` for fewer than two."""
    gains = []
    for run in results.study["labels"]:
        if run["variant"] == "scalar":
            gains.append(100 * (run["text_centroid_cosine"] - run["initial_text_centroid_cosine"]))
    if len(gains) < 2:
        return None
    low, high = stats.ttest_1samp(gains, 0).confidence_interval()
    return {"difference": fmean(gains), "low": float(low), "high": float(high)}


def our_difference(results: StudyResults, claim: PaperClaim) -> dict[str, Any] | None:
    """Return our difference for a claim, in the unit of its sizes; `None` if it was not measured."""
    name = claim.difference or ""
    if name.startswith("reranked-"):
        return reranked_lead(results, name.removeprefix("reranked-"))
    if name == "labels":
        return labelled_lead(results)
    if name == "cosine":
        return gained_cosine(results)
    entry = described_differences(results).get(name)
    if entry is None or not claim.relative:
        return entry
    # The paper gives some changes in percent of SCALAR's value.
    scale = 100 / fmean(results.means(entry["of"].first))
    return {name: scale * entry[name] for name in ("difference", "low", "high")}


def paper_table(results: StudyResults) -> MetricsTable:
    """The claims of the paper, one by one."""
    # A block for each topic; a claim that nothing tests keeps its row.
    blocks: list[list[Row]] = []
    for topic in PAPER_CLAIMS:
        rows: list[Row] = []
        for claim in topic:
            entry = our_difference(results, claim)
            ours = "–"
            if entry is not None:
                ours = format_interval(entry)
            rows.append([claim.sentence, claim.place, _size(claim.sizes), ours, verdict(claim.sizes, entry)])
        blocks.append(rows)
    columns = [("", name) for name in ("claim", "in the paper", "paper", "here", "verdict")]
    return MetricsTable("paper", "Claims of the paper", RULE + _MEASURED, columns, blocks, 2)


__all__ = ["PAPER_CLAIMS", "RULE", "PaperClaim", "our_difference", "paper_table", "verdict"]
