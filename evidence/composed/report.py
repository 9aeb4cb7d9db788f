"""The tables and findings of composed clips, computed from their results alone, and their page."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evidence.reports import pages
from evidence.reports.tables import Cell, MetricsTable, Row
from evidence.statistics import pooled_interval
from evidence.study.differences import Difference, format_interval, judged_claims, side_of_zero, with_interval
from evidence.study.measure import AS_TRAINED, FITTED_ALL, KEPT_OR_NOT
from evidence.study.ranks import stored_ranks
from evidence.study.results import BOTH, Quantity, StudyResults
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .drawing import KINDS, MODALITIES
from .measuring import ALL, ARITY, CLIPS, FACTS, RANKS, TEMPERATURE

RESULTS = Path(__file__).with_name("results")
"""The shipped results."""

STUDY_RESULTS = Path(__file__).parents[1] / "study" / "results"

BEST = "best"
"""The best single modality, by the mean over draws and photographs."""

_CLAIMS = Path(__file__).with_name("claims.yaml")
_PAGE = Path(__file__).with_name("page.md")

_LAST = 10  # the last rank that counts
_SIGNS = {"above": "+", "below": "-", "around": "0"}
_NAMES = {"video": "picture", "title": "title of the sound", "subtitle": "recognised words", "all": "everything"}

TITLES: dict[tuple[str, str], str] = {
    ("scalar", FITTED_ALL): "SCALAR",
    ("scalar", AS_TRAINED): "SCALAR, temperature 0.1",
    ("scalar", TEMPERATURE): "SCALAR, any fitted temperature",
    ("scalar", ALL): "SCALAR, any fitted scales and offsets",
    (ARITY, FITTED_ALL): "SCALAR, constant for arity",
    ("uniform", FITTED_ALL): "equal weights",
    ("uniform", AS_TRAINED): "equal weights, nothing fitted",
    ("gram", FITTED_ALL): "GRAM",
    ("gram", AS_TRAINED): "GRAM, nothing fitted",
    ("gram_corrected", FITTED_ALL): "corrected volume",
    ("gram_span", FITTED_ALL): "span distance",
    ("gram_span", AS_TRAINED): "span distance, nothing fitted",
    ("span_corrected", FITTED_ALL): "corrected span distance",
    ("max", FITTED_ALL): "max pooling",
    ("mean", FITTED_ALL): "mean",
    **{(name, AS_TRAINED): f"{_NAMES[name]} alone" for name in MODALITIES},
}
"""Scores and their numbers, in the order of tables."""


class ComposedResults:
    """
    A folder of results.

    Args:
        folder (`Path`): written by [`~evidence.composed.measuring.measure`].

    Raises:
        FileNotFoundError: the folder has no results.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.facts = read_json(folder / FACTS)

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], bytes]:
        return stored_ranks(self.folder / RANKS, "clips", "score", "numbers", "direction")

    def _is_of(self, clips: str, kind: str) -> np.ndarray:
        """Whether the caption of each draw and photograph is of a kind, `(draws, photographs)`."""
        about = [draw.split() for draw in self.facts["about"][clips]]
        is_single = np.array([[len(names) == 1 for names in draw] for draw in about])
        return is_single if kind == KINDS[0] else ~is_single

    def values(
        self,
        score: str,
        numbers: str | None = None,
        clips: str = CLIPS[0],
        kind: str | None = None,
        direction: str = BOTH,
        measure: str = "MRR@10",
    ) -> np.ndarray:
        """
        Return what each photograph is worth, in points, `(draws, photographs)`.

        Args:
            score (`str`), numbers (`str`, *optional*): as measured, or [`BEST`]; by default numbers that the study's
                rule keeps, and of single modalities those of the model.
            clips (`str`): one of [`~evidence.composed.measuring.CLIPS`].
            kind (`str`, *optional*): a kind of captions; two draws in a row then are one.
            direction (`str`): of ranking, or "both": the mean of a photograph's two values.
            measure (`str`): "MRR@10" or "R@1".
        """
        if score == BEST:
            score = self.best(clips)
        if numbers is None:
            numbers = AS_TRAINED if score in MODALITIES else FITTED_ALL
        if direction == BOTH:
            directed = [self.values(score, numbers, clips, kind, name, measure) for name in DIRECTIONS]
            return (directed[0] + directed[1]) / 2

        raw = np.frombuffer(self._rows[clips, score, numbers, direction], dtype=np.uint8)
        ranks = raw.reshape(self.facts["draws"], -1)
        if measure == "R@1":
            values = 100.0 * (ranks <= 1)
        else:
            values = np.where(ranks <= _LAST, 100.0 / ranks, 0.0)
        if kind is not None:
            # Of two draws in a row, exactly one has a caption of this kind for each photograph.
            chosen = np.where(self._is_of(clips, kind), values, 0.0)
            values = chosen[::2] + chosen[1::2]
        return values

    def mean(self, score: str, **chosen: Any) -> float:
        """Return the mean over draws and photographs, in points."""
        return float(self.values(score, **chosen).mean())

    def best(self, clips: str) -> str:
        """Return the single modality with the highest MRR@10 of both directions."""
        return max(MODALITIES, key=lambda name: self.mean(name, clips=clips))

    def finding(self, claim: Mapping[str, Any], **chosen: Any) -> dict[str, Any]:
        """Bound a finding of `claims.yaml`, for other photographs and other draws; see [`pooled_interval`]."""
        sides = [sum(self.values(**term, **chosen) for term in claim[side]) for side in ("plus", "minus")]
        return pooled_interval([tuple(sides)], paired=True)


def read_claims() -> list[dict[str, Any]]:
    """Return the findings that were named before the results."""
    return yaml.safe_load(_CLAIMS.read_text(encoding="utf-8"))["findings"]


def _of_study(results: StudyResults, name: str) -> dict[str, Any] | None:
    """The study's own number for a finding, by its functions; None if it has none."""
    if name in judged_claims(results):
        return judged_claims(results)[name]
    common: dict[str, Any] = {"direction": BOTH, "measure": "mrr"}
    gains = {"gain-gram": "gram", "gain-equal": "scalar_uniform"}
    sides = None
    if name in gains:
        sides = [Quantity(gains[name], numbers=AS_TRAINED, gain=True, **common)]
    elif name == "arity":
        with_constant = Quantity(score="scalar_corrected", numbers=KEPT_OR_NOT, **common)
        sides = with_constant, Quantity(numbers=AS_TRAINED, **common)
    elif name == "corrected":
        sides = Quantity("gram", "gram_corrected", **common), Quantity("gram", numbers=AS_TRAINED, **common)
    if sides is None:
        return None
    return with_interval(results, Difference(name, "", *sides))


# Tables ------------------------------------------------------------------------------------------------------------


def _columns(*names: str) -> list[tuple[str, str]]:
    return [("", name) for name in names]


def findings_table(results: ComposedResults) -> MetricsTable:
    """The findings that were named before, here and in the study."""
    study = StudyResults(STUDY_RESULTS)
    rows: list[Row] = []
    for claim in read_claims():
        entry = results.finding(claim)
        sign = _SIGNS[side_of_zero(entry)]
        there = _of_study(study, claim["name"])
        recall = format_interval(results.finding(claim, measure="R@1"))
        agrees = "yes" if sign == claim["expected"] else "no"
        in_study = "" if there is None else format_interval(there)
        signs = [text.replace("-", "−") for text in (claim["expected"], sign)]
        rows.append([claim["sentence"], *signs, agrees, format_interval(entry), recall, in_study])
    note = (
        "Points of MRR@10, the mean of both directions, and of R@1, with 95 % intervals for other photographs and "
        "other draws; sounds and prompts are fixed. Sign: +, above 0; −, below 0; 0, the interval holds 0. The "
        "study: the same comparison on generated clips, of methods trained each for itself; empty where there is none."
    )
    columns = _columns("finding", "expected", "here", "same", "MRR@10", "R@1", "study, MRR@10")
    return MetricsTable("findings", "Findings", note, columns, [rows], 1)


def scores_table(results: ComposedResults) -> MetricsTable:
    """Every score on every set of clips."""
    rows: list[Row] = []
    for (score, numbers), title in TITLES.items():
        cells = []
        for clips in CLIPS:
            for direction in DIRECTIONS:
                for measure in ("MRR@10", "R@1"):
                    chosen = {"numbers": numbers, "clips": clips, "direction": direction, "measure": measure}
                    cells.append(Cell((results.mean(score, **chosen),)))
        for kind in KINDS:
            cells.append(Cell((results.mean(score, numbers=numbers, kind=kind, direction=DIRECTIONS[0]),)))
        rows.append([title, *cells])
    count = results.facts["halves"]["test"]["photographs"]
    note = (
        f"In percent: {count} clips, means over {results.facts['draws']} draws. Without a further word, numbers are "
        "those that the study's rule keeps. One, several: MRR@10 from text to video for captions about one modality "
        "and about several, of incomplete clips."
    )
    columns = [("", "score")]
    for clips in CLIPS:
        for words in ("text to video", "video to text"):
            columns += [(f"{clips}, {words}", "MRR@10"), (f"{clips}, {words}", "R@1")]
    columns += _columns("one", "several")
    return MetricsTable("scores", "Scores", note, columns, [rows], 1)


def ceilings_table(results: ComposedResults) -> MetricsTable:
    """What perfect readers reach."""
    rows: list[Row] = []
    for reader, found in results.facts["ceilings"][CLIPS[0]].items():
        rows.append([_NAMES[reader], *(Cell((found[kind],)) for kind in ("all", *KINDS))])
    note = (
        "R@1 in percent, text to video, of readers that know all about one modality or everything; incomplete clips."
    )
    return MetricsTable("ceilings", "Perfect readers", note, _columns("knows", "all", "one", "several"), [rows], 1)


def fits_table(results: ComposedResults) -> MetricsTable:
    """What fits gained, and how many were kept."""
    rows: list[Row] = []
    fits = results.facts["fits"]
    for score in fits[0]["gains"]:
        for number, first in enumerate(fits[0]["gains"][score]):
            each = [fit["gains"][score][number] for fit in fits]
            gain = np.mean([one["gain"]["difference"] for one in each])
            kept = sum(one["kept"] for one in each)
            title = TITLES[score, FITTED_ALL]
            rows.append([title, str(first["count"]), f"{gain:+.1f}".replace("-", "−"), f"{kept} of {len(each)}"])
    note = (
        "Gain: points of MRR@10 on clips of the half that fits that were not part of the fit, mean over draws. A fit "
        "is kept if the interval of its gain lies above 0."
    )
    return MetricsTable("fits", "Fits", note, _columns("score", "fitted parameters", "gain", "kept"), [rows], 1)


TABLES = {"findings": findings_table, "scores": scores_table, "ceilings": ceilings_table, "fits": fits_table}
"""The tables by name."""


def report(results: ComposedResults) -> str:
    """Return all tables in Markdown."""
    opening = f"# Results of composed clips\n\nComputed from `{RANKS}` and `{FACTS}`; see docs/composed_clips.md."
    return pages.write_report(opening, TABLES.values(), results)


def fill(text: str, results: ComposedResults) -> str:
    """
    Fill a template.

    Args:
        text (`str`): with `{{finding NAME}}`, a difference with its interval; `{{minus SCORE SCORE
            [NAME=VALUE ...]}}`, that of two scores, with arguments of [`ComposedResults.values`]; `{{fact KEY ...}}`,
            an entry of the facts; `{{same}}`, how many findings have the sign expected.
        results ([`ComposedResults`]): of composed clips.

    Raises:
        ValueError: a placeholder names nothing.
    """
    claims = {claim["name"]: claim for claim in read_claims()}

    def minus(first: str, second: str, *options: str) -> str:
        chosen = dict(name.split("=") for name in options)
        if "numbers" in chosen:
            chosen["numbers"] = chosen["numbers"].replace("_", " ")
        sides = [[{"score": name} | chosen] for name in (first, second)]
        return format_interval(results.finding({"plus": sides[0], "minus": sides[1]}))

    def same() -> str:
        signs = [_SIGNS[side_of_zero(results.finding(claim))] == claim["expected"] for claim in claims.values()]
        return f"{sum(signs)} of {len(signs)}"

    def fact(*names: str) -> str:
        value: Any = results.facts
        for name in names:
            value = value[name]
        return f"{value:.0f}" if isinstance(value, float) else str(value)

    kinds = {
        "finding": lambda name: format_interval(results.finding(claims[name])),
        "minus": minus,
        "same": same,
        "fact": fact,
    }
    return pages.fill(text, kinds)


def write_page(results: ComposedResults, path: Path) -> None:
    """Write the page."""
    path.write_text(fill(_PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


__all__ = ["BEST", "RESULTS", "TABLES", "ComposedResults", "fill", "read_claims", "report", "write_page"]
