"""The study's report: all of its tables, its figure, and its page, a template that shows them."""

import statistics
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from evidence.reports import pages
from scalar_retrieval.eval.reports.figures import COLOURS

from .differences import KINDS, described_differences, format_interval, judged_claims, side_of_zero, variant_name
from .measure import AS_TRAINED, HIGHEST, TEMPERATURES
from .paper import paper_table
from .results import BOTH, RANKS, SETS, STUDY, Quantity, StudyResults
from .tables import TABLES
from .tuning import GRID

_PREFACE = f"""# Results of the study

Every table below is computed from the files of this folder, by
`python -m evidence study --report-only`:

- `{RANKS}`: the rank of each query's own candidate, a byte for each query, for every experiment, variant, seed, set of
  clips, score, kind of numbers, mask and direction; ranks from {HIGHEST} on are {HIGHEST}.
- `{STUDY}`: what was tried and chosen, what was fitted, the clips with their queries, and the second stage."""


def report(results: StudyResults) -> str:
    """Return all tables with content, in Markdown."""
    return pages.write_report(_PREFACE, TABLES.values(), results)


# The page ------------------------------------------------------------------------------------------------------------


def difference_with(entries: Mapping[str, dict[str, Any]], name: str, expected: str | None = None) -> str:
    """Return a difference with its interval; a ValueError if this does not lie where the sentence around it relies on
    it: "above" 0, "below" it or "around" it."""
    shown = format_interval(entries[name])
    if expected is not None and side_of_zero(entries[name]) != expected:
        raise ValueError(f"The sentence relies on {name!r} {expected} 0; the results say {shown}.")
    return shown


def _mixture(results: StudyResults, variant: str, *shares: str) -> str:
    """SCALAR's lead over a variant if captions of each kind had other shares."""
    weights = [float(share) for share in shares]
    lead = 0.0
    for kind, weight in zip(KINDS, weights, strict=True):
        entry = described_differences(results)[f"{kind}-{variant}"]
        lead += weight * entry["difference"] / sum(weights)
    return f"{lead:+.1f}".replace("-", "−")


def _trial(results: StudyResults, variant: str, *settings: str) -> str:
    """MRR@10 that a trial of the tuning reached on validation clips."""
    method = results.study["tuning"]["methods"][variant]
    for trial in (*method["trials"], *method["later"]):
        if [f"{trial['settings'][name]:g}" for name in GRID] == list(settings):
            return f"{trial['mean_reciprocal_rank']:.1f}"
    raise ValueError(f"No trial of {variant!r} had the settings {settings}.")


def _verdicts(results: StudyResults) -> str:
    """How many claims of the paper have each verdict."""
    counts = Counter(row[-1] for row in paper_table(results).rows)
    return ", ".join(f"{count} are {verdict}" for verdict, count in counts.most_common())


def fill(text: str, results: StudyResults) -> str:
    """
    Fill a template with tables and numbers.

    Args:
        text (`str`): with placeholders in double braces: `table NAME`; `difference NAME [SIDE]` and `claim NAME`, with
            [`difference_with`]; `mixture VARIANT SHARE SHARE SHARE`, for the kinds of captions; `clips FIELD`, of the
            first set; `temperature`, of SCALAR's weights as trained; `trial VARIANT TEMPERATURE LEARNING_RATE EPOCHS`;
            `verdicts` on the paper's claims.
        results ([`StudyResults`]): of a study.

    Raises:
        KeyError, ValueError: a placeholder names nothing that was measured, or the results are not what the sentence
            relies on.
    """
    (temperature,) = {entry["options"]["query_temperature"] for entry in results.entries("scalar", None, AS_TRAINED)}
    kinds = {
        "table": lambda name: pages.shown(TABLES[name](results)),
        "difference": partial(difference_with, described_differences(results)),
        "claim": partial(difference_with, judged_claims(results)),
        "mixture": partial(_mixture, results),
        "clips": lambda field: f"{results.study['clips'][SETS[0]][field]:,}",
        "temperature": lambda: f"{temperature:g}",
        "trial": partial(_trial, results),
        "verdicts": partial(_verdicts, results),
    }
    return pages.fill(text, kinds)


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


__all__ = ["difference_with", "fill", "plot", "report", "write_page"]
