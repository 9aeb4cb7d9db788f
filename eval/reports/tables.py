"""Results as tables: a `DataFrame` of what was measured, a row per run, and the same as text, means over seeds.

Every frame is indexed by named levels: benchmark, label and seed of the run, then what was measured, such as the
masking rate, the score and the direction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import pandas as pd

from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, method_title

from .result_files import Run

ABSENT = "–"
"""The text of what was not measured."""

RUN = ["benchmark", "label", "seed"]
"""Levels that name a run."""

METRICS = {
    "R@1": "recall_at_1",
    "R@5": "recall_at_5",
    "R@10": "recall_at_10",
    "mAP": "mean_average_precision",
    "nDCG@10": "ndcg_at_10",
    "MedR": "median_rank",
    "MnR": "mean_rank",
}
"""Columns of both stages, and the metric of each in result files; all but the ranks in percent."""

_FORMATS = {"gain": "{:+.1f}", "unscorable clips": "{:.0f}"}
_LATEX = {"±": r"$\pm$", ABSENT: "--", "−": "$-$"}


def percent(rate: float) -> str:
    """Format a masking rate for display."""
    return f"{100 * rate:g} %"


# What was measured --------------------------------------------------------------------------------------------------


def _frame(rows: Sequence[Mapping], levels: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a frame of numbers; what is `None` becomes NaN."""
    return pd.DataFrame(rows, columns=[*RUN, *levels, *columns]).set_index([*RUN, *levels]).astype(float)


def _row(run: Run, measured: Mapping[str, float | None], direction: str) -> dict[str, str | float | None]:
    """Return the levels of a run, the direction, and its metrics by their names in tables."""
    row = {level: run[level] for level in RUN} | {"direction": direction}
    for column, metric in METRICS.items():
        row[column] = measured.get(f"{direction}_{metric}")
    return row


def first_stage(runs: Iterable[Run]) -> pd.DataFrame:
    """
    Return every score on the embeddings of each run.

    Args:
        runs (`Iterable[Run]`): content of `results.json` files.

    Returns:
        `DataFrame` with the levels of [`RUN`], `masked` (the rate, 0 to 1), `score` and `direction`; its columns are
        [`METRICS`], and from text to video also `gain` (in points of R@1) and `unscorable clips`.
    """
    rows = []
    for run in runs:
        for entry in run["retrieval"]["rates"]:
            gains = entry.get("aggregation_gain", {})
            for score, measured in entry["methods"].items():
                for direction in DIRECTIONS:
                    row = _row(run, measured, direction) | {"masked": entry["rate"], "score": score}
                    if direction == "text_to_video":
                        row["gain"] = gains.get(score)
                        row["unscorable clips"] = measured.get("num_unscorable_clips")
                    rows.append(row)
    return _frame(rows, ["masked", "score", "direction"], [*METRICS, *_FORMATS])


def second_stage(runs: Iterable[Run]) -> pd.DataFrame:
    """
    Return every score after the cross-encoder reorders its first candidates.

    Args:
        runs (`Iterable[Run]`): content of `results.json` files.

    Returns:
        `DataFrame` with the levels of [`RUN`], `rule` (match or fused), `depth`, `masked is` (the policy), `masked`,
        `score` and `direction`, and the columns of [`METRICS`]; empty if no run has a second stage.
    """
    rows = []
    for run in runs:
        # By the match first, then fused; each by depth and policy.
        entries = sorted(
            run["two_stage"],
            key=lambda entry: (entry.get("rule", "match") != "match", entry["depth"], entry["policy"]),
        )
        for entry in entries:
            levels = {
                "rule": entry.get("rule", "match"),
                "depth": str(entry["depth"]),
                "masked is": entry["policy"],
                "masked": entry["rate"],
                "score": entry["method"],
            }
            for direction in DIRECTIONS:
                rows.append(_row(run, entry, direction) | levels)
    return _frame(rows, ["rule", "depth", "masked is", "masked", "score", "direction"], [*METRICS])


def differences(runs: Iterable[Run]) -> pd.DataFrame:
    """
    Return the differences of text-to-video R@1 between the own score and others, nothing masked.

    Args:
        runs (`Iterable[Run]`): content of `results.json` files.

    Returns:
        `DataFrame` with the levels of [`RUN`], `score` and `minus`; its columns are `difference`, `low` and `high` (in
        points) and `confidence` (0 to 1) of the paired bootstrap over queries.
    """
    rows = []
    for run in runs:
        for entry in run["retrieval"].get("differences", []):
            levels = {level: run[level] for level in RUN}
            rows.append(levels | entry | {"score": entry["method"], "minus": entry["baseline"]})
    return _frame(rows, ["score", "minus"], ["difference", "low", "high", "confidence"])


def select(frame: pd.DataFrame, **levels: object) -> pd.DataFrame:
    """Return the rows that have these values in their levels, without the levels."""
    for level, value in levels.items():
        frame = frame[frame.index.get_level_values(level) == value].droplevel(level)
    return frame


# Text ---------------------------------------------------------------------------------------------------------------


def _cell(mean: float, deviation: float, form: str) -> str:
    if pd.isna(mean):
        return ABSENT
    text = form.format(round(mean, 9) + 0.0)  # differences that cancel leave noise with a sign
    if not pd.isna(deviation):
        text += f" ± {form.replace('+', '').format(deviation)}"
    return text


def means(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the text of means over seeds, with the sample deviation of two or more: `12.3 ± 0.4`."""
    levels = [level for level in frame.index.names if level != "seed"]
    seeds = frame.groupby(level=levels, sort=False)
    deviations = seeds.std()
    text = seeds.mean().astype(object)
    for column in text:
        form = _FORMATS.get(column, "{:.1f}")
        text[column] = list(map(_cell, text[column], deviations[column], repeat(form)))
    return text


def _num_seeds(text: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """Put the number of seeds before the columns, if some row has several."""
    # A row without any number was not measured with that seed.
    measured = numbers.dropna(how="all").reset_index("seed")
    counts = measured.groupby(level=list(text.index.names), sort=False)["seed"].nunique(dropna=False)
    if (counts > 1).any():
        text.insert(0, "n", counts.astype(str))
    return text


@dataclass(frozen=True)
class Table:
    """
    A table of a report.

    Args:
        name (`str`): name of its CSV file and its LaTeX label.
        title (`str`), note (`str`): content of the table, and how it was measured.
        text (`DataFrame`): what is shown, with the names of the rows in the index.
        numbers (`DataFrame`): what was measured, unrounded, a row per run.
    """

    name: str
    title: str
    note: str
    text: pd.DataFrame
    numbers: pd.DataFrame = field(repr=False)

    def cells(self) -> pd.DataFrame:
        """Return what is shown as a frame of text on one line each, with the names of the rows as columns."""
        return self.text.reset_index().astype(str).replace(r"\s+", " ", regex=True)

    def markdown(self) -> str:
        """Format a Markdown table whose columns are aligned in plain text, too."""
        cells = self.cells().replace(r"\|", r"\|", regex=True)
        sides = ["left"] * self.text.index.nlevels + ["right"] * len(self.text.columns)
        return cells.to_markdown(index=False, disable_numparse=True, colalign=sides)

    def latex(self) -> str:
        """Format a floating table with the rules of booktabs."""
        sides = "l" * self.text.index.nlevels + "r" * len(self.text.columns)
        names = {"label": f"tab:{self.name}", "caption": self.title, "position": "t"}
        text = self.cells().to_latex(index=False, escape=True, column_format=sides, **names)
        for character, command in _LATEX.items():
            text = text.replace(character, command)
        note = " ".join(self.note.split())
        return f"% {note}\n{text}"


# The tables of a report ---------------------------------------------------------------------------------------------


Titles = Mapping[tuple[str, str, str], str]
"""Titles of scores by benchmark, label and score."""


def _titles(runs: Sequence[Run]) -> Titles:
    """Return the title of each score of a label: * marks its strongest single pathway, (own) its own score."""
    titles = {}
    for run in runs:
        # The strongest single pathway with nothing masked.
        rates = run["retrieval"]["rates"]
        best = None
        for entry in rates:
            if entry["rate"] == 0:
                best = entry.get("best_pathway", {}).get("method")
        # Scores may differ from rate to rate in a file that another program wrote.
        for entry in rates:
            for score in entry["methods"]:
                title = method_title(score)
                if score == best:
                    title += " *"
                if score == run["score"]["method"]:
                    title += " (own)"
                key = (run["benchmark"], run["label"], score)
                # Seeds may differ in their strongest pathway.
                titles[key] = max(titles.get(key, ""), title, key=len)
    return titles


def _with_titles(text: pd.DataFrame, titles: Titles) -> pd.DataFrame:
    """Return the text with the title of each score in place of its name."""
    levels = text.index.to_frame(index=False)
    levels["score"] = list(map(titles.get, text.index))
    return text.set_axis(pd.MultiIndex.from_frame(levels))


def _without_run(text: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the text without the levels of the run if there is only one, which the heading names."""
    return text if len(runs) > 1 else text.droplevel([level for level in RUN if level in text.index.names])


def _scores_table(runs: Sequence[Run], first: pd.DataFrame, titles: Titles, direction: str) -> Table:
    # A metric that no run has gives no column.
    numbers = select(first, masked=0, direction=direction).dropna(axis=1, how="all")
    text = _with_titles(_num_seeds(means(numbers), numbers), titles)
    note = "First stage, nothing masked. * strongest single pathway, text to video; (own) the model's own score."
    if direction == "text_to_video":
        note += " Clips for which a score is undefined rank last."
    title = f"Every score on the same embeddings, {direction.replace('_', ' ')}"
    return Table(f"scores_{direction}", title, note, _without_run(text, runs), numbers)


def _missing_table(runs: Sequence[Run], first: pd.DataFrame, titles: Titles) -> Table:
    # A column for each masking rate.
    numbers = select(first, direction="text_to_video")[["R@1"]]
    rates = sorted(numbers.index.unique("masked"))
    text = means(numbers)["R@1"].unstack("masked", fill_value=ABSENT, sort=False)[rates]
    text = text.rename(columns=percent).rename_axis(columns=None)
    text = _with_titles(_num_seeds(text, numbers), titles)
    note = (
        "Text-to-video R@1, first stage; columns: clips that lose one modality. * strongest single pathway "
        "with nothing masked; (own) the model's own score."
    )
    text = _without_run(text, runs)
    return Table("scores_missing", "Every score under missing modalities", note, text, numbers)


def _own(frame: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the rows of the own score of each label."""
    own = [(run["benchmark"], run["label"], run["score"]["method"]) for run in runs]
    levels = frame.index.to_frame()[["benchmark", "label", "score"]]
    return frame[pd.MultiIndex.from_frame(levels).isin(own)].droplevel("score")


def _second_stage_table(runs: Sequence[Run], first: pd.DataFrame) -> Table:
    # The own score of each label after both stages.
    staged = [run for run in runs if run["two_stage"]]
    numbers = second_stage(staged)
    own = _own(numbers, staged)[["R@1"]]

    # The first stage of the same labels, in the rows above.
    labels = own.index.droplevel(["seed", "rule", "depth", "masked is", "masked", "direction"])
    before = _own(first, runs)[["R@1"]]
    before = before[before.index.droplevel(["seed", "masked", "direction"]).isin(labels)]
    before = pd.concat({("first stage", "", ""): before}, names=["rule", "depth", "masked is"])
    both = pd.concat([before.reorder_levels(own.index.names), own])

    # A column for each direction and masking rate.
    text = means(both)["R@1"].unstack(["direction", "masked"], fill_value=ABSENT, sort=False)
    text = text[sorted(text.columns, key=lambda column: (DIRECTIONS.index(column[0]), column[1]))]
    text.columns = [f"{direction.replace('_', ' ')} {percent(rate)}" for direction, rate in text.columns]
    text = _num_seeds(text, both).sort_index(level=RUN[:2], sort_remaining=False, kind="stable")
    note = (
        "R@1 of each label's own score; columns: clips that lose one modality. match: the first candidates reordered "
        "by the cross-encoder alone; fused: by first-stage score + weight * match logit, which is not in the paper."
    )
    for run in staged:
        fusion = run.get("two_stage_fusion")
        if fusion is not None:
            origin = f"chosen on {fusion['split']}" if fusion.get("split") else "given"
            note += f" Weight of {run_name(run)}: {fusion['weight']:.3f}, {origin}."
    return Table("second_stage", "Second stage by rule and depth", note, _without_run(text, runs), numbers)


def _differences_table(runs: Sequence[Run]) -> Table:
    numbers = differences(runs)
    # Each difference with its interval, in points.
    text = numbers[["difference", "low", "high"]].map("{:+.1f}".format)
    text["confidence"] = numbers["confidence"].map(percent)
    text = text.rename(index=method_title, level="score").rename(index=method_title, level="minus")
    note = "Points of text-to-video R@1, first stage, nothing masked; low and high: paired bootstrap over queries."
    title = "Differences between scores on the same queries"
    return Table("differences", title, note, _without_run(text, runs), numbers)


def run_name(run: Run) -> str:
    """Return the name of a run in headings and notes."""
    name = f"{run['benchmark']} {run['split']}: {run['label']}"
    if run["seed"] is not None:
        name += f", seed {run['seed']}"
    return name


def report_tables(runs: Sequence[Run]) -> list[Table]:
    """
    Return the tables of a report: every score in both directions, and, as far as they were measured, under missing
    modalities, after the second stage, and the differences between scores.

    Args:
        runs (`Sequence[Run]`): content of comparable `results.json` files.
    """
    # Tables without a measurement are left out.
    first = first_stage(runs)
    titles = _titles(runs)
    tables = [_scores_table(runs, first, titles, direction) for direction in DIRECTIONS]
    if first.index.unique("masked").any():  # of the rates, 0 is false
        tables.append(_missing_table(runs, first, titles))
    if any(run["two_stage"] for run in runs):
        tables.append(_second_stage_table(runs, first))
    if any(run["retrieval"].get("differences") for run in runs):
        tables.append(_differences_table(runs))
    return [table for table in tables if not table.text.empty]


__all__ = [
    "ABSENT",
    "METRICS",
    "RUN",
    "Table",
    "differences",
    "first_stage",
    "means",
    "percent",
    "report_tables",
    "run_name",
    "second_stage",
    "select",
]
