"""The tables, claims and figure of the stamps, computed from their results alone, and the page that shows them."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from evidence.reports import pages
from evidence.reports.tables import Cell, MetricsTable, Row, ungrouped
from evidence.statistics import holm, pooled_interval
from evidence.study.differences import format_interval
from evidence.study.ranks import stored_ranks
from scalar_retrieval.eval.reports.figures import COLOURS
from scalar_retrieval.gallery.store.files import read_json

from .languages import compare
from .measuring import FACTS, LANGUAGE_RANKS, RANKS
from .regimes import REGIMES
from .rivals import RIVALS, modality_of

RESULTS = Path(__file__).with_name("results")
"""The shipped results."""

_CLAIMS = Path(__file__).with_name("claims.yaml")
_PAGE = Path(__file__).with_name("page.md")
_FIGURE = "real_pictures.png"
_LEVEL = 0.05  # of p-values, for all claims together
# The goal, see claims.yaml.
_BELOW = 1.0
_ABOVE = 3.0
_NAMES = {"video": "picture"}  # of modalities, for readers

MEASURES = {
    "MRR": lambda ranks: 100 / ranks,
    "R@1": lambda ranks: 100 * (ranks <= 1),
    "R@10": lambda ranks: 100 * (ranks <= 10),
}
"""What a rank is worth, in points."""


class StampsResults:
    """
    A folder of results.

    Args:
        folder (`Path`): written by [`~evidence.stamps.measuring.measure`].

    Raises:
        FileNotFoundError: the folder has no results.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.facts = read_json(folder / FACTS)

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], bytes]:
        return stored_ranks(self.folder / RANKS, "regime", "method")

    @cached_property
    def languages(self) -> list[dict[str, Any]]:
        """The rows of [`~evidence.stamps.languages.rank_languages`]."""
        return pq.read_table(self.folder / LANGUAGE_RANKS).to_pylist()

    @property
    def claimed(self) -> str:
        """The method that stands for SCALAR in the claims."""
        return self.facts["claimed"]

    @property
    def num_queries(self) -> int:
        """Number of queries of the shown half."""
        counts = self.facts["counts"]["shown"]
        return counts["caption"] + counts["definition"]

    def values(self, regime: str, method: str, measure: str = "MRR") -> np.ndarray:
        """Return what each query is worth, in points, `(draws, queries)`."""
        ranks = np.frombuffer(self._rows[regime, method], dtype=np.uint8).reshape(-1, self.num_queries)
        return MEASURES[measure](ranks.astype(float))

    def mean(self, regime: str, method: str, measure: str = "MRR") -> float:
        """Return the mean over draws and queries, in points."""
        return float(self.values(regime, method, measure).mean())

    def difference(self, regime: str, rival: str, measure: str = "MRR") -> dict[str, float]:
        """Return the difference of SCALAR and a rival, see [`pooled_interval`]: for other queries and other draws of
        the regime, which are the same on both sides."""
        own = self.values(regime, self.claimed, measure)
        return pooled_interval([(own, self.values(regime, rival, measure))], paired=True)


def judged(results: StampsResults) -> list[dict[str, Any]]:
    """Return the claims of `claims.yaml` with their intervals, p-values adjusted by Holm's rule, and verdicts."""
    # Holm's rule adjusts all p-values at once.
    found = []
    for claim in yaml.safe_load(_CLAIMS.read_text(encoding="utf-8"))["claims"]:
        found.append(claim | results.difference(claim["regime"], claim["rival"]))
    adjusted = holm([entry["p_value"] for entry in found])
    for entry, value in zip(found, adjusted, strict=True):
        sign = "ahead" if entry["difference"] > 0 else "behind"
        entry["adjusted"] = value
        entry["verdict"] = sign if value <= _LEVEL else "undecided"
    return found


def claims_table(results: StampsResults) -> MetricsTable:
    """The claims that were named before."""
    rows: list[Row] = []
    for entry in judged(results):
        p_value = "< 0.001"
        if entry["adjusted"] >= 0.001:
            p_value = f"{entry['adjusted']:.3f}"
        row = [
            entry["regime"],
            f"SCALAR − {RIVALS[entry['rival']].title}",
            format_interval(entry),
            p_value,
            entry["verdict"],
        ]
        for measure in ("R@1", "R@10"):
            row.append(format_interval(results.difference(entry["regime"], entry["rival"], measure)))
        rows.append(row)
    note = (
        "Points of MRR, text to item; in brackets the 95 % interval for other queries and other draws of the "
        f"regime. p: two-sided, adjusted by Holm's rule for these six; undecided: p above {_LEVEL:g}. "
        "R@1 and R@10 stand beside it, without a verdict."
    )
    columns = ungrouped("regime", "claim", "MRR", "p", "verdict", "R@1", "R@10")
    return MetricsTable("claims", "Claims", note, columns, [rows], 2)


def goals(results: StampsResults) -> list[dict[str, Any]]:
    """Return for each regime the better of the two rivals and the other, with SCALAR's differences, and whether the
    goal is met: at most one point below the better, at least three above the other."""
    # The better of the two by the mean in this regime.
    found = []
    for regime in REGIMES:
        better, other = sorted(("fused", "max"), key=lambda rival: -results.mean(regime, rival))
        below = results.difference(regime, better)
        above = results.difference(regime, other)
        is_met = below["difference"] >= -_BELOW and above["difference"] >= _ABOVE
        found.append(
            {"regime": regime, "better": better, "other": other, "below": below, "above": above, "met": is_met}
        )
    return found


def goals_table(results: StampsResults) -> MetricsTable:
    """The goal in each regime."""
    rows: list[Row] = []
    for goal in goals(results):
        verdict = "met" if goal["met"] else "not met"
        better = RIVALS[goal["better"]].title
        other = RIVALS[goal["other"]].title
        rows.append(
            [goal["regime"], better, format_interval(goal["below"]), other, format_interval(goal["above"]), verdict]
        )
    note = "The goal: at least −1 against the better of the two rivals, and at least +3 against the other."
    columns = ungrouped("regime", "better rival", "SCALAR − better", "other rival", "SCALAR − other", "goal")
    return MetricsTable("goals", "Goals", note, columns, [rows], 1)


def methods_table(results: StampsResults) -> MetricsTable:
    """Every method in every regime."""
    # After the fit, a column for each regime and measure.
    columns = list(product(REGIMES, MEASURES))
    rows: list[Row] = []
    for name, rival in RIVALS.items():
        means = [results.mean(regime, name, measure) for regime, measure in columns]
        numbers = (results.facts["fits"][name]["mrr"], *means)
        rows.append([rival.title, str(len(rival.numbers)), *map(Cell.of, numbers)])
    counts = results.facts["counts"]["shown"]
    draws = results.facts["draws"]["shown"]
    note = (
        f"In percent: {results.num_queries} queries, {counts['items']} items; means over {draws} draws of what is "
        "missing and of what disagrees. Fit: the MRR that the fitted parameters reach, over all "
        "regimes, on the half that they were fitted to."
    )
    columns = [*ungrouped("method", "fitted parameters", "fit"), *columns]
    return MetricsTable("methods", "Methods", note, columns, [rows], 1)


def differences_table(results: StampsResults) -> MetricsTable:
    """SCALAR minus every other method."""
    rows: list[Row] = []
    for name, rival in RIVALS.items():
        if name != results.claimed:
            cells = [format_interval(results.difference(regime, name)) for regime in REGIMES]
            rows.append([rival.title, *cells])
    note = (
        f"Points of MRR, {RIVALS[results.claimed].title} minus the method, with 95 % intervals over queries and "
        "draws. A description, without verdicts."
    )
    return MetricsTable("differences", "SCALAR minus each method", note, ungrouped("method", *REGIMES), [rows], 1)


def _number_text(name: str, value: float) -> str:
    if name == "modality":
        chosen = modality_of(value)
        return _NAMES.get(chosen, chosen)
    return f"{name} {value:.2g}".replace("-", "−")


def numbers_table(results: StampsResults) -> MetricsTable:
    """The fitted numbers."""
    rows: list[Row] = []
    for name, rival in RIVALS.items():
        if rival.numbers:
            # Each number with its name.
            texts = []
            for number, value in zip(rival.numbers, results.facts["fits"][name]["numbers"], strict=True):
                texts.append(_number_text(number.name, value))
            rows.append([rival.title, ", ".join(texts)])
    gain = results.facts["gain"]
    note = (
        "Fitted to MRR over all regimes at once. Of the picture scales are 1, offsets and log weights 0. Scales and "
        f"offsets bring SCALAR {format_interval(gain)} points on held-out queries of the half that fits, in five "
        "folds; they would stand for SCALAR if the interval lay above zero."
    )
    return MetricsTable("numbers", "Fitted numbers", note, ungrouped("method", "fitted parameters"), [rows], 2)


def languages_table(results: StampsResults) -> MetricsTable:
    """How captions in each language find their pictures, with the claims that were named before."""
    rows: list[Row] = []
    for row, entry in zip(results.languages, compare(results.languages), strict=True):
        verdict = "met" if entry["met"] else "not met"
        numbers = map(Cell.of, (entry["english"], entry["light"]))
        rows.append([entry["language"], str(len(row["light"])), *numbers, format_interval(entry), verdict])
    counts = results.facts["counts"]["shown"]
    note = (
        f"MRR in percent, caption to picture, among the pictures of {counts['items']} items; difference: points of "
        "MRR, with the 95 % interval for other captions. The claims are those of `language_claims.yaml`."
    )
    columns = ungrouped("language", "captions", "English encoder alone", "light", "difference", "claim")
    return MetricsTable("languages", "Captions in sixteen languages", note, columns, [rows], 1)


TABLES = {
    "methods": methods_table,
    "claims": claims_table,
    "goals": goals_table,
    "differences": differences_table,
    "numbers": numbers_table,
    "languages": languages_table,
}
"""The tables by name."""


def report(results: StampsResults) -> str:
    """Return all tables in Markdown."""
    files = f"`{RANKS}`, `{LANGUAGE_RANKS}` and `{FACTS}`"
    opening = f"# Results of the stamps\n\nComputed from {files}; see docs/real_pictures.md."
    return pages.write_report(opening, TABLES.values(), results)


def fill(text: str, results: StampsResults) -> str:
    """
    Fill a template.

    Args:
        text (`str`): with `{{minus REGIME METHOD}}`, SCALAR's difference with its interval;
            `{{mean REGIME METHOD}}`, the MRR of a method; `{{count HALF KIND}}`, a number of items or queries;
            `{{queries}}` of the shown half; `{{language NAME}}`, what `light` gains in a language.
        results ([`StampsResults`]): of the stamps.

    Raises:
        ValueError: a placeholder names nothing.
    """
    languages = {entry["language"]: entry for entry in compare(results.languages)}
    kinds = {
        "minus": lambda *names: format_interval(results.difference(*names)),
        "mean": lambda *names: f"{results.mean(*names):.1f}",
        "count": lambda half, kind: str(results.facts["counts"][half][kind]),
        "queries": lambda: str(results.num_queries),
        "language": lambda name: format_interval(languages[name]),
    }
    return pages.fill(text, kinds)


def plot_differences(results: StampsResults, path: Path) -> None:
    """Draw SCALAR's difference to every method with its interval, a panel for each regime."""
    from matplotlib.figure import Figure

    # A row for each method, the same in all panels; the two rivals of the goal in a colour of their own.
    others: Sequence[str] = [name for name in RIVALS if name != results.claimed]
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    panels = figure.subplots(1, len(REGIMES), sharey=True)
    for axes, regime in zip(panels, REGIMES, strict=True):
        axes.axvline(0, color="black", linewidth=0.8)
        for place, name in enumerate(others):
            entry = results.difference(regime, name)
            colour = COLOURS[0]
            if name in ("fused", "max"):
                colour = COLOURS[1]
            axes.plot([entry["low"], entry["high"]], [place, place], color=colour, linewidth=1.6)
            axes.plot(entry["difference"], place, "o", color=colour, markersize=5)
        # Nothing but the axis and the methods' lines.
        axes.set_title(regime, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(others)), [RIVALS[name].title for name in others])
    panels[0].invert_yaxis()
    figure.supxlabel("points of MRR, SCALAR minus method", fontsize=10)
    figure.savefig(path, dpi=150)


def write_page(results: StampsResults, path: Path) -> None:
    """Write the page, and its figure beside it."""
    path.write_text(fill(_PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    plot_differences(results, path.with_name(_FIGURE))


__all__ = [
    "RESULTS",
    "TABLES",
    "StampsResults",
    "fill",
    "goals",
    "judged",
    "plot_differences",
    "report",
    "write_page",
]
