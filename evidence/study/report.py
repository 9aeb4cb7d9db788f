"""The study's report: all of its tables, its figure, and its page, a template that shows them."""

import re
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evidence.reports.tables import markdown
from scalar_retrieval.eval.reports.figures import COLOURS

from .differences import described_differences, format_interval, judged_claims, side_of_zero, variant_name
from .measure import AS_TRAINED, HIGHEST, TEMPERATURES
from .results import BOTH, RANKS, STUDY, Quantity, StudyResults
from .tables import TABLES

_PREFACE = f"""# Results of the study

Every table below is computed from the files of this folder, by
`python -m evidence study --report-only`:

- `{RANKS}`: the rank of each query's own candidate, a byte for each query, for every experiment, variant, seed, set of
  clips, score, kind of numbers, mask and direction; ranks from {HIGHEST} on are {HIGHEST}.
- `{STUDY}`: what was tried and chosen, what was fitted, the clips with their queries, and the second stage."""


def report(results: StudyResults) -> str:
    """Return all tables with content, in Markdown."""
    # A table without a row is of what was not measured.
    parts = [_PREFACE]
    for make in TABLES.values():
        table = make(results)
        if table.rows:
            parts.append(f"## {table.title}\n\n{markdown(table.filled())}\n\n{table.note}")
    return "\n\n".join(parts)


# Placeholders of the page --------------------------------------------------------------------------------------------
# Each takes the results and the words behind its name; `None` if they name nothing that was measured.


def _table(results: StudyResults, name: str) -> str | None:
    if name not in TABLES:
        return None
    table = TABLES[name](results).filled()
    return f"{markdown(table)}\n\n{table.note}"


def _entry(results: StudyResults, name: str) -> dict[str, Any] | None:
    """A difference by its name, described or named in advance; of one name the described one."""
    return described_differences(results).get(name) or judged_claims(results).get(name)


def _difference(results: StudyResults, name: str, expected: str | None = None) -> str | None:
    entry = _entry(results, name)
    if entry is None:
        return None
    if expected is not None and side_of_zero(entry) != expected:
        raise ValueError(f"The sentence relies on {name!r} {expected} 0; the results say {format_interval(entry)}.")
    return format_interval(entry)


def _words(results: StudyResults, name: str, above: str, around: str, below: str) -> str | None:
    entry = _entry(results, name)
    if entry is None:
        return None
    return {"above": above, "around": around, "below": below}[side_of_zero(entry)]


def _mean(results: StudyResults, variant: str, *fields: str) -> str | None:
    # Fields of a quantity are words but for `kinds`, which is a list.
    changes: dict[str, Any] = {}
    for field in fields:
        name, _, value = field.partition("=")
        changes[name] = value
    if "kinds" in changes:
        changes["kinds"] = tuple(changes["kinds"].split(","))
    means = results.means(Quantity(variant, **changes))
    if not means:
        return None
    return f"{statistics.fmean(means):.1f}"


def _option(results: StudyResults, variant: str, name: str) -> str | None:
    values = {entry["options"].get(name) for entry in results.entries(variant, None, AS_TRAINED)}
    if len(values) != 1:
        return None
    return f"{values.pop():g}"


def _learned(results: StudyResults, variant: str) -> str | None:
    values = results.settings(variant, "learned_temperature")
    if not values:
        return None
    return f"{statistics.fmean(values):.3f}"


def _trainings(results: StudyResults, experiment: str) -> str | None:
    return str(len(results.seeds(experiment)) or "") or None


def _grid(results: StudyResults, name: str) -> str | None:
    tuning = results.study["tuning"]
    if tuning is None or name not in tuning["grid"]:
        return None
    return ", ".join(map("{:g}".format, tuning["grid"][name]))


def _clips(results: StudyResults, name: str, field: str) -> str | None:
    clips = results.study["clips"].get(name, {})
    if field not in clips:
        return None
    return f"{clips[field]:,}"


def _lack(results: StudyResults, name: str, modality: str) -> str | None:
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


def _ceiling(results: StudyResults, name: str, reader: str) -> str | None:
    ceilings = results.study["clips"].get(name, {}).get("ceilings", {})
    if reader not in ceilings:
        return None
    return f"{ceilings[reader]['all']:.1f}"


_PLACEHOLDERS: dict[str, Callable[..., str | None]] = {
    "table": _table,
    "difference": _difference,
    "words": _words,
    "mean": _mean,
    "option": _option,
    "learned": _learned,
    "trainings": _trainings,
    "grid": _grid,
    "clips": _clips,
    "lack": _lack,
    "ceiling": _ceiling,
}


def fill(text: str, results: StudyResults) -> str:
    """
    Fill a template with tables and numbers.

    Args:
        text (`str`): with placeholders in double braces:

            - `table NAME`: a table with its note;
            - `difference NAME`: a difference with its interval, also of a claim named in advance; with a second word
              the sentence around it relies on the interval lying "above" 0, "below" it or "around" it;
            - `words NAME ABOVE AROUND BELOW`: the one that fits the place of the interval, so that a sentence says
              what the results say;
            - `mean VARIANT KEY=VALUE ...`: a mean, by default of R@1, with fields of [`Quantity`], quoted where they
              contain a space;
            - `option VARIANT NAME`: an option of its own score, as trained, the same in all trainings;
            - `learned VARIANT`: the mean of the contrastive temperatures that its trainings learned;
            - `trainings EXPERIMENT`: the number of its seeds;
            - `grid NAME`: the values of a setting that were tried;
            - `clips NAME FIELD`: a number of a set of clips, `num_test` for one;
            - `lack NAME MODALITY`: how many of its test clips lack a modality, or "any", in percent;
            - `ceiling NAME READER`: R@1 of a perfect reader of "all" or of one modality.
        results ([`StudyResults`]): of a study.

    Raises:
        ValueError: a placeholder names nothing that was measured, or the results are not what the sentence relies on.
    """

    def filled(match: re.Match) -> str:
        # Whatever is wrong with a placeholder is reported with its text.
        kind, *words = shlex.split(match.group(1))
        try:
            content = _PLACEHOLDERS[kind](results, *words)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{match.group(0)}: {error}") from error
        if content is None:
            raise ValueError(f"{match.group(0)} names nothing that was measured.")
        return content

    return re.sub(r"\{\{(.+?)\}\}", filled, text)


def write_page(results: StudyResults, page: Path) -> None:
    """Write the page, with its figure beside it."""
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    page.write_text(fill(template, results), encoding="utf-8")
    plot(results, page.with_name("miniature_sharing.png"))


# The figure ----------------------------------------------------------------------------------------------------------


def _line(axes: Any, points: dict[float, tuple[float, ...]], variant: str, colour: str) -> None:
    """Draw the mean of the trainings at each place, and every training as a dot."""
    means = {}
    for place, values in points.items():
        if values:
            means[place] = statistics.fmean(values)
            axes.plot([place] * len(values), values, ".", color=colour, alpha=0.4)
    axes.plot(list(means), list(means.values()), "o-", color=colour, label=variant_name(variant))


def plot(results: StudyResults, path: Path) -> None:
    """Draw R@1 against the degree of sharing, a line for each variant and a panel for each mask; and MRR@10 by
    SCALAR's score against the temperature of its weights."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    panels[1].sharey(panels[0])
    for axes, masked, title in (
        (panels[0], "nothing", "nothing masked"),
        (panels[1], "0.5", "half of the clips masked"),
    ):
        for colour, variant in zip(COLOURS, ("scalar", "scalar_uniform", "gram"), strict=False):
            points = {}
            for level, name in results.levels().items():
                points[level] = results.means(Quantity(variant, experiment=name, masked=masked))
            _line(axes, points, variant, colour)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("share of what modalities say in common")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("text-to-video R@1 (%)")
    # Temperatures are spaced evenly: one is infinite.
    for colour, variant in zip(COLOURS, ("scalar", "scalar_01", "gram"), strict=False):
        points = {}
        for place, value in enumerate(TEMPERATURES):
            quantity = Quantity(variant, "scalar", f"temperature {value:g}", measure="mrr", direction=BOTH)
            points[place] = results.means(quantity)
        _line(panels[2], points, variant, colour)
    labels = [f"{value:g}".replace("inf", "∞") for value in TEMPERATURES]
    panels[2].set_xticks(range(len(labels)), labels)
    panels[2].set_title("SCALAR's score on embeddings of", fontsize=10)
    panels[2].set_xlabel("temperature of weights")
    panels[2].set_ylabel("MRR@10, both directions (%)")
    # The first two panels have the same lines, so they share a legend.
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[::2]:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


__all__ = ["fill", "plot", "report", "write_page"]
