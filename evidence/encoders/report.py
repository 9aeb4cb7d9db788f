"""The tables and claims of encoders side by side, computed from their results alone, and their page."""

from collections.abc import Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evidence.reports import pages
from evidence.reports.tables import Cell, MetricsTable, Row, ungrouped
from evidence.statistics import pooled_interval
from evidence.study.differences import format_interval
from evidence.study.ranks import HIGHEST, stored_ranks
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .measuring import FACTS, RANKS
from .methods import METHODS, RULE

RESULTS = Path(__file__).with_name("results")
"""The shipped results."""

_PAGE = Path(__file__).with_name("page.md")

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

    def values(
        self, name: str, method: str, direction: str | None = None, regimes: tuple[str, ...] | None = None
    ) -> np.ndarray:
        """
        Return MRR@10 of each caption, in points, `(draws, captions)`.

        Args:
            name (`str`): a set.
            method (`str`): a key of [`~evidence.encoders.methods.METHODS`].
            direction (`str`, *optional*): by default the mean of both.
            regimes (`tuple[str, ...]`, *optional*): by default the mean of all; what is drawn once counts for every
                draw.
        """
        about = self.sets[name]
        parts = []
        for regime in regimes or about["regimes"]:
            for way in [direction] if direction else DIRECTIONS:
                ranks = np.frombuffer(self._rows[name, regime, method, way], dtype=np.uint8)
                parts.append(np.where(ranks < HIGHEST, 100.0 / ranks, 0.0).reshape(-1, about["captions"]))
        return np.mean(np.broadcast_arrays(*parts), axis=0)

    def mean(self, name: str, method: str, **chosen: Any) -> float:
        """Return the mean over draws and captions, in points."""
        return float(self.values(name, method, **chosen).mean())

    def difference(self, name: str, first: str, second: str, direction: str | None = None) -> dict[str, float]:
        """Return the difference of two methods on a set, for other captions and other draws; see
        [`pooled_interval`]."""
        sides = self.values(name, first, direction), self.values(name, second, direction)
        return pooled_interval([sides], paired=True)


def read_claims() -> dict[str, Any]:
    """Return what was named before the results."""
    return yaml.safe_load(_CLAIMS.read_text(encoding="utf-8"))


def holds(claim: Mapping[str, Any]) -> bool:
    """Return whether a claim holds with its `difference` and the bounds `low` and `high`, by the rule of
    `claims.yaml`."""
    least = claim["least"]
    if least == _LEVEL:
        return claim["high"] >= 0
    is_enough = claim["difference"] >= least
    return is_enough and (least <= 0 or claim["low"] > 0)


def judged(results: EncodersResults) -> list[dict[str, Any]]:
    """Return the claims with their differences, intervals, and whether they hold."""
    found = []
    for claim in read_claims()["claims"]:
        entry = claim | results.difference(claim["set"], RULE, claim["rival"])
        entry["holds"] = holds(entry)
        found.append(entry)
    return found


# Tables --------------------------------------------------------------------------------------------------------------


def methods_table(results: EncodersResults) -> MetricsTable:
    """Every method on every set, and SCALAR's difference to it."""
    columns = ungrouped("method")
    columns += product(results.sets, (*_WAYS, "minus"))
    rows: list[Row] = []
    for name, method in METHODS.items():
        row: list[Cell | str] = [method.title]
        for each in results.sets:
            for direction in DIRECTIONS:
                row.append(Cell.of(results.mean(each, name, direction=direction)))
            row.append("" if name == RULE else format_interval(results.difference(each, RULE, name)))
        rows.append(row)
    note = (
        "MRR@10 in percent, the mean of a set's regimes. Minus: the first row minus the method, in points of MRR@10, "
        "the mean of both directions, with the 95 % interval for other captions and other draws. Chosen: by labelled "
        "captions of the half that fits; the first row needs none."
    )
    return MetricsTable("methods", "Methods", note, columns, [rows])


def claims_table(results: EncodersResults) -> MetricsTable:
    """The claims that were named before."""
    rows: list[Row] = []
    for entry in judged(results):
        verdict = "holds" if entry["holds"] else "fails"
        least = str(entry["least"]).replace("-", "−")
        rows.append([entry["set"], METHODS[entry["rival"]].title, least, format_interval(entry), verdict])
    note = "SCALAR on the direct sum minus the rival, in points of MRR@10, the mean of both directions."
    return MetricsTable("claims", "Claims", note, ungrouped("set", "rival", "at least", "here", "verdict"), [rows], 2)


def shared_table(results: EncodersResults) -> MetricsTable:
    """What a component in common brings, and whether it becomes the default, by the rule of `claims.yaml`."""
    named = read_claims()["shared"]
    above = 0
    rows: list[Row] = []
    for name, about in results.sets.items():
        chosen = about["numbers"][named["plus"]]
        gain = results.difference(name, named["plus"], named["minus"])
        above += gain["low"] > 0
        rows.append([name, f"{chosen['share']:g}", f"{chosen['deviations']:g}", format_interval(gain)])
    verdict = "becomes" if above >= named["sets"] else "does not become"
    note = (
        f"Points of MRR@10, the mean of both directions. The interval is above 0 on {above} of {len(rows)} sets, so "
        f"rho {verdict} the default."
    )
    columns = ungrouped("set", "rho", "temperature in deviations", "gain by rho")
    return MetricsTable("shared", "A component in common", note, columns, [rows])


def regimes_table(results: EncodersResults) -> MetricsTable:
    """Every method under every regime."""
    columns = ungrouped("method")
    for each, about in results.sets.items():
        columns += [(each, regime) for regime in about["regimes"]]
    rows: list[Row] = []
    for name, method in METHODS.items():
        row: list[Cell | str] = [method.title]
        for each, regime in columns[1:]:
            row.append(Cell.of(results.mean(each, name, regimes=(regime,))))
        rows.append(row)
    note = "MRR@10 in percent, the mean of both directions."
    return MetricsTable("regimes", "Regimes", note, columns, [rows])


TABLES = {"methods": methods_table, "claims": claims_table, "shared": shared_table, "regimes": regimes_table}
"""The tables by name."""


def report(results: EncodersResults) -> str:
    """Return all tables in Markdown."""
    opening = f"# Results of encoders side by side\n\nComputed from `{RANKS}` and `{FACTS}`; see docs/encoders.md."
    return pages.write_report(opening, TABLES.values(), results)


def fill(text: str, results: EncodersResults) -> str:
    """Fill a template with `{{minus SET METHOD METHOD [DIRECTION]}}`, a difference, and `{{holding}}`, how many claims
    hold."""
    claims = judged(results)
    kinds = {
        "minus": lambda *names: format_interval(results.difference(*names)),
        "holding": lambda: f"{sum(claim['holds'] for claim in claims)} of {len(claims)}",
    }
    return pages.fill(text, kinds)


def write_page(results: EncodersResults, path: Path) -> None:
    """Write the page."""
    path.write_text(fill(_PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


__all__ = ["RESULTS", "TABLES", "EncodersResults", "fill", "holds", "judged", "read_claims", "report", "write_page"]
