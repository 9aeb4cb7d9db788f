"""The options of the evaluation commands: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick. The functions that the commands call check the options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from scalar_retrieval.commands.options import Column, Given, Holdout, Plugins, WordsOf, columns_of

from .protocol.missing import RATES

# Options of several commands: each has one name and one help text.
_MODEL = Option(help="Folder or Hub name of a model or adapter.")
_BENCHMARK = Option(help="Name of the benchmark, such as msrvtt.")
_ROOT = Option(help="Folder of the benchmark; for `own` a table file or the name of a data set.")
_Split = Annotated[str, Option(help="Split of the benchmark.")]
_Embeddings = Annotated[
    str | None,
    Option(
        help="A gallery of `embed`, an earlier run or `scalar index`: in place of model, benchmark and root, or with "
        "them for what reads clips or captions. A published gallery is hf://datasets/USER/NAME."
    ),
]
Columns = Annotated[
    Mapping[str, str] | None,
    Option("--column", help=Column.__metadata__[0].help),
    Given(list[str] | None, columns_of),
]
_OnMissing = Annotated[
    Literal["raise", "leave_out"], Option(help="Stop at clips without a file, or leave them out and list them.")
]
OnError = Annotated[Literal["raise", "missing"], Option(help="Stop at unreadable files, or count them as absent.")]
_BatchSize = Annotated[int, Option(min=1, help="Clips or captions per forward pass.")]
_Output = Annotated[Path, Option(help="Folder for the results, and for embeddings that have to be computed.")]


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Options of `scalar eval audit`."""

    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    split: _Split = "test"
    columns: Columns = None
    output: Annotated[Path | None, Option(help="JSON file for all findings.")] = None
    plugins: Plugins = ()


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Options of `scalar eval embed`: arguments of
    [`~scalar_retrieval.eval.embedding.embed_benchmark.embed_benchmark`]."""

    model: Annotated[str, _MODEL]
    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    output: Annotated[Path, Option(help="Folder for the embeddings.")]
    split: _Split = "test"
    captions: Annotated[
        Literal["first", "all"] | None,
        Option(help="Captions to use for each clip; by default those of the protocol."),
    ] = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    on_missing: _OnMissing = "raise"
    on_error: OnError = "raise"
    batch_size: Annotated[
        int, Option(min=1, help="Clips or captions per forward pass, which is also the most that a kill can lose.")
    ] = 32
    plugins: Plugins = ()


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of `scalar eval run`: arguments of [`~scalar_retrieval.eval.run.evaluate`]."""

    output: _Output
    model: Annotated[str | None, _MODEL] = None
    benchmark: Annotated[str | None, _BENCHMARK] = None
    root: Annotated[str | None, _ROOT] = None
    split: _Split = "test"
    embeddings: _Embeddings = None
    columns: Columns = None
    holdout: Holdout = None
    on_missing: _OnMissing = "raise"
    on_error: OnError = "raise"
    batch_size: _BatchSize = 32
    label: Annotated[str | None, Option(help="Name of the row in tables; by default the model's.")] = None
    methods: Annotated[
        Sequence[str] | None,
        Option(
            "--method",
            help="Score to measure with the model's own, or a modality; by default all. Repeat for several.",
        ),
        Given(list[str] | None),
    ] = None
    rates: Annotated[
        Sequence[float],
        Option("--rate", help="Fraction of clips that lose a modality. Repeat for several."),
    ] = RATES
    depths: Annotated[
        Sequence[int] | None,
        Option(
            "--depth",
            min=0,
            help="Clips or captions that the second stage reorders, by default 50 if the model has one; 0 skips it. "
            "Repeat for several.",
        ),
        Given(list[int] | None),
    ] = None
    fusion_split: Annotated[
        str | None,
        Option(help="Also rank by first-stage score + weight * match logit, with the weight chosen on this split."),
    ] = None
    plugins: Plugins = ()


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """Options of `scalar eval calibrate`: arguments of [`~scalar_retrieval.eval.calibrate.calibrate`]."""

    output: _Output
    model: Annotated[str | None, _MODEL] = None
    benchmark: Annotated[str | None, _BENCHMARK] = None
    root: Annotated[str | None, _ROOT] = None
    split: _Split = "test"
    embeddings: _Embeddings = None
    columns: Columns = None
    holdout: Holdout = None
    scale_offset: Annotated[
        bool, Option("--scale-offset", help="Also fit a scale and an offset of each modality's cosines.")
    ] = False
    texts: Annotated[
        Path | None,
        Option(
            help="Text file with a query on each line. Scales and offsets of the gallery in --embeddings are fitted "
            "to them, without labels; --write saves them there."
        ),
    ] = None
    write: Annotated[
        bool,
        Option(
            "--write",
            help="Save a gain that is certain: in the gallery, and in config.json of a model's own folder. The "
            "gallery also gets the score below which clips do not match.",
        ),
    ] = False
    plugins: Plugins = ()


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Options of `scalar eval report`."""

    results: Annotated[Sequence[Path], Argument(help="Files results.json, or folders that contain them at any depth.")]
    output: Annotated[Path, Option(help="Folder for tables.md, tables.tex, one CSV file per table, and figures.")]


__all__ = ["AuditConfig", "CalibrateConfig", "Columns", "EmbedConfig", "OnError", "ReportConfig", "RunConfig"]
