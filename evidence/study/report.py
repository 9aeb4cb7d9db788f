"""The study's report: all of its tables, its figure, and its page, a template that shows them."""

import re
import shlex
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.reports.figures import COLOURS
from evidence.reports.tables import MetricsTable as Table
from evidence.reports.tables import markdown

from .differences import described, interval, judged, place, variant_name
from .measure import AS_TRAINED, HIGHEST
from .results import RANKS, STUDY, Results, Selection
from .tables import TABLES

_PREFACE = f"""# Results of the study

Every table below is computed from the files of this folder, by
`python -m evidence study --report-only`:

- `{RANKS}`: the rank of each query's own candidate, a byte for each query, for every experiment, variant, seed, set of
  clips, score, kind of numbers, mask and direction; ranks from {HIGHEST} on are {HIGHEST}.
- `{STUDY}`: what was tried and chosen, what was fitted, the clips with their queries, and the second stage."""


def report(results: Results) -> str:
    """Return all tables with content, in Markdown."""
    tables: Sequence[Table] = [make(results) for make in TABLES.values()]
    parts = [f"## {table.title}\n\n{markdown(table.filled())}\n\n{table.note}" for table in tables if table.rows]
    return "\n\n".join([_PREFACE, *parts])


# Placeholders of the page --------------------------------------------------------------------------------------------
# Each takes the results and the words behind its name; `None` if they name nothing that was measured.


def _table(results: Results, name: str) -> str | None:
    if name not in TABLES:
        return None
    table = TABLES[name](results).filled()
    return f"{markdown(table)}\n\n{table.note}"


def _difference(results: Results, name: str, expected: str) -> str | None:
    entry = described(results).get(name)
    if entry is None:
        return None
    if place(entry) != expected:
        raise ValueError(f"The sentence relies on {name!r} {expected} 0; the results say {interval(entry)}.")
    return interval(entry)


def _claim(results: Results, name: str, expected: str) -> str | None:
    entry = judged(results).get(name)
    if entry is None:
        return None
    if entry["verdict"] != expected:
        raise ValueError(f"The sentence relies on {name!r} {expected}; the results say {entry['verdict']}.")
    return interval(entry)


def _recall(results: Results, variant: str, *fields: str) -> str | None:
    changes: dict[str, str | tuple[str, ...]] = dict(field.split("=", 1) for field in fields)
    if "kinds" in changes:
        changes["kinds"] = tuple(str(changes["kinds"]).split(","))
    means = results.means(Selection(variant, **changes))
    if not means:
        return None
    return f"{statistics.fmean(means):.1f}"


def _option(results: Results, variant: str, name: str) -> str | None:
    own = {run["own"] for run in results.study["runs"] if run["variant"] == variant}
    values = set()
    for score in own:
        values |= {options.get(name) for options in results.options(variant, score, AS_TRAINED)}
    if len(values) != 1:
        return None
    return f"{values.pop():g}"


def _clips(results: Results, name: str, field: str) -> str | None:
    clips = results.study["clips"].get(name, {})
    if field not in clips:
        return None
    return f"{clips[field]:,}"


def _lack(results: Results, name: str, modality: str) -> str | None:
    clips = results.study["clips"].get(name)
    if clips is None:
        return None
    absent = clips["absent"]["test"]
    lacking = absent.get(modality)
    if modality == "any":
        lacking = sum(absent.values())  # no clip lacks two
    if lacking is None:
        return None
    return f"{100 * lacking / clips['num_test']:g}"


def _ceiling(results: Results, name: str, reader: str) -> str | None:
    ceilings = results.study["clips"].get(name, {}).get("ceilings", {})
    if reader not in ceilings:
        return None
    return f"{ceilings[reader]['all']:.1f}"


_PLACEHOLDERS: dict[str, Callable[..., str | None]] = {
    "table": _table,
    "difference": _difference,
    "claim": _claim,
    "recall": _recall,
    "option": _option,
    "clips": _clips,
    "lack": _lack,
    "ceiling": _ceiling,
}


def fill(text: str, results: Results) -> str:
    """
    Fill a template with tables and numbers.

    Args:
        text (`str`): with placeholders in double braces:

            - `table NAME`: a table with its note;
            - `difference NAME PLACE`: a difference with its interval, where the sentence around it relies on the
              interval lying "above" 0, "below" it or "around" it;
            - `claim NAME VERDICT`: a claim named in advance with its interval, where the sentence relies on the
              verdict "shown", "reverse" or "undecided";
            - `recall VARIANT KEY=VALUE ...`: a mean of R@1, with fields of [`Selection`], quoted where they contain
              a space;
            - `option VARIANT NAME`: an option of its own score, as trained, the same in all trainings;
            - `clips NAME FIELD`: a number of a set of clips, `num_test` for one;
            - `lack NAME MODALITY`: how many of its test clips lack a modality, or "any", in percent;
            - `ceiling NAME READER`: R@1 of a perfect reader of "all" or of one modality.
        results ([`Results`]): of a study.

    Raises:
        ValueError: a placeholder names nothing that was measured, or the results are not what the sentence relies on.
    """

    def put(match: re.Match) -> str:
        kind, *words = shlex.split(match.group(1))
        try:
            shown = _PLACEHOLDERS[kind](results, *words)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{match.group(0)}: {error}") from error
        if shown is None:
            raise ValueError(f"{match.group(0)} names nothing that was measured.")
        return shown

    return re.sub(r"\{\{(.+?)\}\}", put, text)


def plot_sharing(results: Results, path: Path) -> None:
    """Draw R@1 against the degree of sharing: a line for each variant, a panel for each mask."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels, levels = figure.subplots(1, 2, sharey=True), results.levels()
    for axes, masked in zip(panels, ("nothing", "0.5"), strict=True):
        for colour, variant in zip(COLOURS, ("scalar", "scalar_uniform", "gram"), strict=False):
            recalls = {}
            for level, name in levels.items():
                if values := results.means(Selection(variant, experiment=name, masked=masked)):
                    recalls[level] = values
            means = [statistics.fmean(values) for values in recalls.values()]
            axes.plot(list(recalls), means, "o-", color=colour, label=variant_name(variant))
            for level, values in recalls.items():
                axes.plot([level] * len(values), values, ".", color=colour, alpha=0.4)
        axes.set_title(f"{masked} masked", fontsize=10)
        axes.set_xlabel("share of what modalities say in common")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("text-to-video R@1 (%)")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


__all__ = ["fill", "plot_sharing", "report"]
