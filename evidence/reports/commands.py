"""`python -m evidence tables`: the paper's, from result files, next to its published values."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scalar_retrieval.commands.options import Given, command_of
from scalar_retrieval.commands.texts import print_lines

_Results = Annotated[
    Sequence[str | os.PathLike],
    Argument(help="Files results.json, or folders that contain them at any depth."),
    Given(list[Path]),
]
_Output = Annotated[str | os.PathLike, Option(help="Folder to write to."), Given(Path)]


@dataclass(frozen=True, kw_only=True)
class TablesConfig:
    """Settings of the paper's tables, see [`~evidence.reports.results.load_results`]."""

    results: _Results
    output: _Output
    baseline: Annotated[
        str | None, Option(help="Label of the baseline for margins; by default the one with GRAM's score.")
    ] = None
    reference: Annotated[
        str | None, Option(help="Label that ablations (no_..., w/o ...) are compared with; by default scalar.")
    ] = None
    paper_mean: Annotated[
        bool, Option("--paper-mean", help="Show the paper's mean next to benchmarks that the paper does not have.")
    ] = False


def register(app: typer.Typer) -> None:
    """Add the command to those of `python -m evidence`."""

    @command_of(app, TablesConfig)
    def tables(config: TablesConfig) -> None:
        """Print the paper's tables with measured and published values; write them in Markdown and CSV."""
        from evidence.reports.paper_report import write_tables
        from evidence.reports.results import load_results

        results = load_results(config.results, config.baseline, config.reference, config.paper_mean)
        print_lines(*write_tables(results, config.output).split("\n"))


__all__ = ["TablesConfig", "register"]
