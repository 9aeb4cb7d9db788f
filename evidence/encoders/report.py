"""The tables and claims of encoders side by side, computed from their results alone, and their page."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evidence.reports.tables import Cell, MetricsTable, Row, markdown, ungrouped
from evidence.statistics import pooled_interval
from evidence.study.differences import format_interval
from evidence.study.ranks import HIGHEST, stored_ranks
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .measuring import FACTS, RANKS
from .methods import METHODS, RULE

RESULTS = Path(__file__).with_name("results")
"""The shipped results."""

PAGE = Path(__file__).with_name("page.md")
"""The template of the page."""

_CLAIMS = Path(__file__).with_name("claims.yaml")
_LEVEL = "level"
_WAYS = ("text to clip", "clip to text")  # DIRECTIONS, for readers


class EncodersResults:
    """
    A folder of results.

    Args:
        folder (`Path`): written by [`~evidence.encoders.measuring.measure`].

    Raises:
        FileNotFoundError: the folder has no results.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.sets: dict[str, dict[str, Any]] = read_json(folder / FACTS)["sets"]

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], bytes]:
        return stored_ranks(self.folder / RANKS, "set", "regime", "method", "direction")

    @cached_property
    def regimes(self) -> dict[str, list[str]]:
        """The regimes of each set."""
        found: dict[str, list[str]] = {name: [] for name in self.sets}
        for name, regime, method, direction in self._rows:
            if (method, direction) == (RULE, DIRECTIONS[0]):
                found[name].append(regime)
        return found

    def values(self, name: str, method: str, regime: str | None = None, direction: str | None = None) -> np.ndarray:
        """
        Return MRR@10 of each caption, in points, `(draws, captions)`.

        Args:
            name (`str`): a set.
            method (`str`): a key of [`~evidence.encoders.methods.METHODS`].
            regime (`str`, *optional*): by default the mean of all; what is drawn once counts for every draw.
            direction (`str`, *optional*): by default the mean of both.
        """
        regimes = [regime] if regime else self.regimes[name]
        directions = [direction] if direction else DIRECTIONS
        total: np.ndarray | float = 0.0
        for one in regimes:
            for way in directions:
                raw = np.frombuffer(self._rows[name, one, method, way], dtype=np.uint8)
                ranks = raw.reshape(-1, self.sets[name]["counts"]["shown"]["captions"])
                total = total + np.where(ranks < HIGHEST, 100.0 / ranks, 0.0)
        return total / (len(regimes) * len(directions))

    def mean(self, name: str, method: str, **chosen: str) -> float:
        """Return the mean over draws and captions, in points."""
        return float(self.values(name, method, **chosen).mean())

    def difference(self, name: str, first: str, second: str, direction: str | None = None) -> dict[str, float]:
        """Return the difference of two methods on a set, for other captions and other draws; see
        [`pooled_interval`]."""
        sides = [self.values(name, method, direction=direction) for method in (first, second)]
        return pooled_interval([tuple(sides)], paired=True)


# Claims --------------------------------------------------------------------------------------------------------------


def read_claims() -> dict[str, Any]:
    """Return what was named before the results."""
    return yaml.safe_load(_CLAIMS.read_text(encoding="utf-8"))


def judged(results: EncodersResults) -> list[dict[str, Any]]:
    """Return the claims with their differences, intervals, and whether they hold."""
    found = []
    for claim in read_claims()["claims"]:
        entry = claim | results.difference(claim["set"], RULE, claim["rival"])
        least = claim["least"]
        if least == _LEVEL:
            entry["holds"] = entry["high"] >= 0
        else:
            entry["holds"] = entry["difference"] >= least and (least <= 0 or entry["low"] > 0)
        found.append(entry)
    return found


def shared_gains(results: EncodersResults) -> dict[str, dict[str, float]]:
    """Return for each set what a shared component brings."""
    shared = read_claims()["shared"]
    return {name: results.difference(name, shared["plus"], shared["minus"]) for name in results.sets}


def is_default(results: EncodersResults) -> bool:
    """Return whether a shared component becomes the default, by the rule of `claims.yaml`."""
    above = 0
    for gain in shared_gains(results).values():
        above += gain["low"] > 0
    return above >= read_claims()["shared"]["sets"]


# Tables --------------------------------------------------------------------------------------------------------------


def methods_table(results: EncodersResults) -> MetricsTable:
    """Every method on every set, and SCALAR's difference to it."""
    rows: list[Row] = []
    for name, method in METHODS.items():
        row: list[Cell | str] = [method.title]
        for each in results.sets:
            for direction in DIRECTIONS:
                row.append(Cell((results.mean(each, name, direction=direction),)))
            row.append("" if name == RULE else format_interval(results.difference(each, RULE, name)))
        rows.append(row)
    columns = [("", "method")]
    for each in results.sets:
        columns += [(each, name) for name in (*_WAYS, "minus")]
    note = (
        "MRR@10 in percent, the mean of a set's regimes. Minus: the first row minus the method, in points of MRR@10, "
        "the mean of both directions, with the 95 % interval for other captions and other draws. Chosen: by labelled "
        "captions of the half that fits; the first row needs none."
    )
    return MetricsTable("methods", "Methods", note, columns, [rows], 1)


def claims_table(results: EncodersResults) -> MetricsTable:
    """The claims that were named before."""
    rows: list[Row] = []
    for entry in judged(results):
        least = entry["least"] if entry["least"] == _LEVEL else f"{entry['least']:+d}".replace("-", "−")
        verdict = "holds" if entry["holds"] else "fails"
        rows.append([entry["set"], METHODS[entry["rival"]].title, least, format_interval(entry), verdict])
    note = "The direct sum minus the rival, with scales fitted without labels, in points of MRR@10."
    return MetricsTable("claims", "Claims", note, ungrouped("set", "rival", "at least", "here", "verdict"), [rows], 2)


def shared_table(results: EncodersResults) -> MetricsTable:
    """What a shared component brings."""
    rows: list[Row] = []
    for name, gain in shared_gains(results).items():
        chosen = results.sets[name]["numbers"][read_claims()["shared"]["plus"]]
        rows.append([name, f"{chosen['share']:g}", f"{chosen['deviations']:g}", format_interval(gain)])
    note = (
        "Gain: points of MRR@10 on the half that is shown. It becomes the default if the interval is above 0 on two "
        f"of three sets: {'it does' if is_default(results) else 'it does not'}."
    )
    columns = ungrouped("set", "rho", "temperature in deviations", "gain by rho")
    return MetricsTable("shared", "A component in common", note, columns, [rows], 1)


def regimes_table(results: EncodersResults) -> MetricsTable:
    """Every method under every regime, in each direction."""
    rows: list[Row] = []
    for name, method in METHODS.items():
        row: list[Cell | str] = [method.title]
        for each, regimes in results.regimes.items():
            for regime in regimes:
                for direction in DIRECTIONS:
                    row.append(Cell((results.mean(each, name, regime=regime, direction=direction),)))
        rows.append(row)
    columns = [("", "method")]
    for each, regimes in results.regimes.items():
        for regime in regimes:
            columns += [(f"{each}, {regime}", way) for way in _WAYS]
    return MetricsTable("regimes", "Regimes and directions", "MRR@10 in percent.", columns, [rows], 1)


def numbers_table(results: EncodersResults) -> MetricsTable:
    """The chosen numbers."""
    rows: list[Row] = []
    for name, method in METHODS.items():
        if method.grid:
            cells = []
            for about in results.sets.values():
                numbers = about["numbers"][name]
                cells.append(", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in numbers.items()))
            rows.append([method.title, *cells])
    note = (
        "By MRR@10 of labelled captions of the half that fits. Deviations: the temperature, in deviations of a "
        "modality's cosines; share: rho; modality: its place."
    )
    return MetricsTable("numbers", "Chosen numbers", note, ungrouped("method", *results.sets), [rows], 1)


TABLES = {
    "methods": methods_table,
    "claims": claims_table,
    "shared": shared_table,
    "regimes": regimes_table,
    "numbers": numbers_table,
}
"""The tables by name."""


def report(results: EncodersResults) -> str:
    """Return all tables in Markdown."""
    parts = [f"# Results of encoders side by side\n\nComputed from `{RANKS}` and `{FACTS}`; see docs/encoders.md."]
    for make in TABLES.values():
        table = make(results)
        parts.append(f"## {table.title}\n\n{markdown(table)}\n\n{table.note}")
    return "\n\n".join(parts) + "\n"


def fill(text: str, results: EncodersResults) -> str:
    """
    Fill a template.

    Args:
        text (`str`): with `{{table NAME}}`; `{{minus SET METHOD METHOD [DIRECTION]}}`, a difference with its interval;
            `{{mean SET METHOD}}`, an MRR@10; `{{count SET HALF KIND}}`, a number of clips or captions; `{{holding}}`,
            how many claims hold.
        results ([`EncodersResults`]): of encoders side by side.

    Raises:
        ValueError: a placeholder names nothing.
    """

    def put(match: re.Match) -> str:
        kind, *names = match.group(1).split()
        if kind == "table":
            table = TABLES[names[0]](results)
            return f"{markdown(table)}\n\n{table.note}"
        if kind == "minus":
            return format_interval(results.difference(*names))
        if kind == "mean":
            return f"{results.mean(*names):.1f}"
        if kind == "count":
            name, half, counted = names
            return str(results.sets[name]["counts"][half][counted])
        if kind == "holding":
            claims = judged(results)
            return f"{sum(claim['holds'] for claim in claims)} of {len(claims)}"
        raise ValueError(f"{match.group(0)} names nothing that was measured.")

    return re.sub(r"\{\{(.+?)\}\}", put, text)


__all__ = ["PAGE", "RESULTS", "TABLES", "EncodersResults", "fill", "is_default", "judged", "read_claims", "report"]
