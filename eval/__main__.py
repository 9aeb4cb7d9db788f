"""`scalar eval`: make the miniature benchmark, audit a benchmark, embed it, calibrate and evaluate a model."""

import commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is heard from here on)

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from commands.errors import Commands, run_command, show
from commands.options import Device, Limit, ModelDtype

# Heavy imports stay inside the commands, so that `--help` answers at once.
app = typer.Typer(
    cls=Commands,
    help="Evaluate text-to-video retrieval.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


# Options that several commands share.
_Split = Annotated[str, typer.Option(help="Split of the benchmark.")]
_Captions = Annotated[
    Literal["first", "all"] | None,
    typer.Option(help="Which captions of a clip count; by default those of the protocol."),
]
_Annotations = Annotated[Path | None, typer.Option(help="Annotation file, if it is not in the folder.")]
_Column = Annotated[
    list[str] | None, typer.Option(help="Column of your own table, as in video_id=clip. Repeat for several.")
]
_OnMissing = Annotated[
    Literal["raise", "leave_out"], typer.Option(help="Stop at clips without a file, or leave them out and say so.")
]
_OnError = Annotated[
    Literal["raise", "missing"], typer.Option(help="Stop at what cannot be read, or count it as absent.")
]
_MODEL = typer.Option(help="Folder or Hub name of a model or adapter.")
_BENCHMARK = typer.Option(help="Name of the benchmark, such as msrvtt.")
_ROOT = typer.Option(help="Folder of the benchmark; for `own` a file, or the name of a data set.")
_Model, _Benchmark, _Root = (Annotated[str, option] for option in (_MODEL, _BENCHMARK, _ROOT))
# The same where embeddings may be given in their place.
_AnyModel, _AnyBenchmark, _AnyRoot = (Annotated[str | None, option] for option in (_MODEL, _BENCHMARK, _ROOT))
_Normalize = Annotated[bool, typer.Option(help="Normalize embeddings that do not have unit norm.")]
_BatchSize = Annotated[int, typer.Option(min=1, help="Clips or captions per forward pass.")]
_NumWorkers = Annotated[int, typer.Option(min=1, help="Threads that read clips ahead.")]


def _columns(given: list[str] | None) -> dict[str, str] | None:
    """The user's columns by the names of ours, from NAME=COLUMN."""
    names = [part.partition("=") for part in given or []]
    if not all(name and separator and own for name, separator, own in names):
        raise ValueError(f"A column is given as NAME=COLUMN, such as video_id=clip; got {given}.")
    return {name: own for name, _, own in names} or None


def _show_log() -> None:
    """Print what a run tells of itself as it goes."""
    import logging

    logging.basicConfig(format="%(message)s")
    logging.getLogger("eval").setLevel(logging.INFO)


@app.command()
def miniature(
    output: Annotated[Path, typer.Option(help="Folder to write the benchmark to.")],
    num_train: Annotated[int, typer.Option(min=0, help="Clips to train on.")] = 1500,
    num_validation: Annotated[int, typer.Option(min=0, help="Clips to choose settings with.")] = 300,
    num_test: Annotated[int, typer.Option(min=0, help="Clips to test on.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the clips.")] = 0,
    shared: Annotated[
        float,
        typer.Option(min=0, max=1, help="Probability that modalities of a clip agree in a factor; 0: independent."),
    ] = 0.6,
    num_proc: Annotated[
        int | None, typer.Option(min=1, help="Processes that write clips; by default one per CPU.")
    ] = None,
) -> None:
    """Generate the miniature benchmark: short clips whose captions need picture, sound or speech."""
    from eval.miniature import generate

    folder = generate(
        output,
        num_train=num_train,
        num_validation=num_validation,
        num_test=num_test,
        seed=seed,
        shared=shared,
        num_proc=num_proc,
    )
    show(f"The miniature benchmark is in {folder}.")


@app.command()
def audit(
    benchmark: _Benchmark,
    root: _Root,
    split: _Split = "test",
    captions: _Captions = None,
    annotations: _Annotations = None,
    column: _Column = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for everything that is found.")] = None,
    decode: Annotated[bool, typer.Option(help="Read every stream, not only the header of each file.")] = True,
    num_workers: Annotated[int, typer.Option(min=1, help="Clips read at once.")] = 2,
    limit: Limit = None,
) -> None:
    """Inspect a benchmark before anything runs; exit code 1 if a file is missing, unreadable or empty."""
    from eval.benchmarks import load_split
    from eval.benchmarks.audit import audit_split, format_audit
    from gallery.decoding import Limits
    from gallery.files import write_json

    data = load_split(
        benchmark,
        root,
        split,
        captions=captions,
        annotations=annotations,
        on_missing="leave_out",
        columns=_columns(column),
    )
    report = audit_split(data, decode=decode, num_workers=num_workers, limits=Limits.parse(limit or []))
    show(*format_audit(report).split("\n"))  # first, so that a file that cannot be written loses nothing
    if output is not None:
        write_json(report, output)
    if not report["complete"]:
        raise typer.Exit(1)


@app.command()
def embed(
    model: _Model,
    benchmark: _Benchmark,
    root: _Root,
    output: Annotated[Path, typer.Option(help="Folder for the embeddings, which all processes must see.")],
    split: _Split = "test",
    captions: _Captions = None,
    annotations: _Annotations = None,
    column: _Column = None,
    on_missing: _OnMissing = "raise",
    batch_size: Annotated[
        int, typer.Option(min=1, help="Clips or captions per forward pass: the most that a kill can lose.")
    ] = 32,
    on_error: _OnError = "raise",
    num_workers: Annotated[int, typer.Option(min=1, help="Threads of each process that read clips ahead.")] = 2,
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Precision of the vectors.")] = "float16",
    limit: Limit = None,
) -> None:
    """Embed a benchmark once, for `run --embeddings`: accelerate launch -m eval embed ...

    If it is killed, the same command resumes where it stopped; once finished, it does nothing. The embeddings do not
    depend on the number of processes.
    """
    import logging

    from eval.embedding.embed_benchmark import embed_benchmark
    from gallery.decoding import Limits

    is_main = os.environ.get("RANK", "0") == "0"  # of the processes that accelerate launches
    logging.basicConfig(level=logging.INFO if is_main else logging.ERROR, format="%(message)s")
    gallery = embed_benchmark(
        output,
        model,
        benchmark,
        root,
        split,
        batch_size=batch_size,
        on_error=on_error,
        num_workers=num_workers,
        dtype=dtype,
        limits=Limits.parse(limit or []),
        captions=captions,
        annotations=annotations,
        on_missing=on_missing,
        columns=_columns(column),
    )
    if is_main:
        for name, problems in gallery.problems().items():
            for problem in problems:
                show(f"counted as absent: {name}: {problem}")
        show(f"{len(gallery)} clips and {len(gallery.queries)} queries are in {output}.")


@app.command()
def run(
    output: Annotated[Path, typer.Option(help="Folder for results.json, tables, figures and embeddings.")],
    model: _AnyModel = None,
    benchmark: _AnyBenchmark = None,
    root: _AnyRoot = None,
    split: _Split = "test",
    captions: _Captions = None,
    annotations: _Annotations = None,
    column: _Column = None,
    on_missing: _OnMissing = "raise",
    embeddings: Annotated[
        Path | None,
        typer.Option(
            help="Embeddings from `embed`, an earlier run or any other model: in place of model, benchmark and root, "
            "or beside them for the second stage."
        ),
    ] = None,
    normalize: _Normalize = False,
    label: Annotated[str | None, typer.Option(help="Name of the row in tables; by default the model's.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Score to measure; by default all. Repeat for several.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(help="Module to import first, which registers scores of your own.")
    ] = None,
    rate: Annotated[list[float], typer.Option(help="Fraction of clips that lose a modality. Repeat for several.")] = (
        0.0,
        0.25,
        0.5,
        0.75,
        0.9,
    ),
    mask_seed: Annotated[int, typer.Option(min=0, help="Seed of the missing-modality masks.")] = 0,
    two_stage: Annotated[
        bool | None, typer.Option(help="Measure the second stage; by default if a model and clips are given.")
    ] = None,
    depth: Annotated[
        list[int], typer.Option(min=1, help="Clips or captions that the second stage reorders. Repeat for several.")
    ] = (50,),
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="What the second stage reads of a masked modality: absent, no token; zeros, zero states. By default "
            "both, absent alone if it reads subtitles. Repeat for both."
        ),
    ] = None,
    fusion_split: Annotated[
        str | None,
        typer.Option(
            help="Also order by first-stage score + weight * match logit, the weight chosen on this other split."
        ),
    ] = None,
    fusion_weight: Annotated[float | None, typer.Option(help="The same, with this weight.")] = None,
    fused: Annotated[
        bool,
        typer.Option(
            "--fused",
            help="Also measure the vectors that a joint encoder itself fuses of several modalities; this reads the "
            "clips again, and embeds them for each set of modalities that a mask leaves.",
        ),
    ] = False,
    batch_size: _BatchSize = 32,
    on_error: _OnError = "raise",
    num_workers: _NumWorkers = 2,
    device: Device = None,
    model_dtype: ModelDtype = None,
    limit: Limit = None,
) -> None:
    """Evaluate a model on a benchmark, or embeddings: print the table, write a report and all that repeats it."""
    from eval.reports.report import format_table
    from eval.run import RunConfig
    from eval.run import run as run_evaluation
    from gallery.decoding import Limits
    from modeling_scalar.plugins import load_plugins

    _show_log()
    load_plugins(plugin or [])
    config = RunConfig(
        output,
        model_path=model,
        benchmark=benchmark,
        root=root,
        split=split,
        embeddings_path=embeddings,
        methods=method,
        rates=rate,
        mask_seed=mask_seed,
        batch_size=batch_size,
        on_error=on_error,
        fused=fused,
        device=device,
        model_dtype=model_dtype,
        label=label,
        two_stage=two_stage,
        depths=depth,
        policies=policy,
        fusion_split=fusion_split,
        fusion_weight=fusion_weight,
        normalize=normalize,
        num_workers=num_workers,
        captions=captions,
        annotations=annotations,
        on_missing=on_missing,
        columns=_columns(column),
        limits=Limits.parse(limit or []),
    )
    results = run_evaluation(config)
    show(*format_table(results).split("\n"), "", f"All tables and figures are in {output / 'report'}.")


@app.command()
def calibrate(
    output: Annotated[Path, typer.Option(help="Folder for calibration.json, and embeddings that have to be made.")],
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Embeddings with queries, or a gallery whose clips the benchmark or --subtitles is about."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub name of the model. With --write its config.json is changed, if it is one that "
            "`save_pretrained` wrote."
        ),
    ] = None,
    benchmark: _AnyBenchmark = None,
    root: _AnyRoot = None,
    split: _Split = "test",
    captions: _Captions = None,
    annotations: _Annotations = None,
    column: _Column = None,
    on_missing: _OnMissing = "raise",
    normalize: _Normalize = False,
    subtitles: Annotated[
        bool, typer.Option("--subtitles", help="Without captions: subtitles are the queries, and are not searched.")
    ] = False,
    scale_offset: Annotated[
        bool, typer.Option("--scale-offset", help="Also fit a scale and an offset of each modality's cosines.")
    ] = False,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the clips; each is ranked by a fit to the others.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds and of the interval.")] = 0,
    write: Annotated[
        bool,
        typer.Option("--write", help="Keep a gain that is certain: in the gallery, and in a model's own folder."),
    ] = False,
    batch_size: _BatchSize = 32,
    on_error: _OnError = "raise",
    num_workers: _NumWorkers = 2,
    device: Device = None,
    model_dtype: ModelDtype = None,
    limit: Limit = None,
) -> None:
    """Fit how queries weigh modalities to clips of yours, and say whether it helps on clips held out."""
    from eval.calibrate import CalibrateConfig, format_calibration
    from eval.calibrate import calibrate as calibrate_model
    from gallery.decoding import Limits

    _show_log()
    config = CalibrateConfig(
        output,
        model,
        benchmark,
        root,
        split=split,
        embeddings_path=embeddings,
        normalize=normalize,
        subtitles=subtitles,
        scale_offset=scale_offset,
        num_folds=folds,
        seed=seed,
        write=write,
        captions=captions,
        annotations=annotations,
        on_missing=on_missing,
        columns=_columns(column),
        batch_size=batch_size,
        on_error=on_error,
        num_workers=num_workers,
        device=device,
        model_dtype=model_dtype,
        limits=Limits.parse(limit or []),
    )
    found, written = calibrate_model(config)
    show(*format_calibration(found, config, written))


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Files results.json, or folders that hold some at any depth.")],
    output: Annotated[
        Path, typer.Option(help="Folder for tables.md, tables.tex, one CSV file per table, and figures.")
    ],
    baseline: Annotated[
        str | None, typer.Option(help="Label that margins are taken against; by default the one with GRAM's score.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Label that ablations (no_..., w/o ...) are compared with; by default scalar.")
    ] = None,
    paper_mean: Annotated[
        bool,
        typer.Option("--paper-mean", help="Show the paper's mean beside benchmarks that the paper does not have."),
    ] = False,
) -> None:
    """Compare results: the paper's tables and figures, with its published values beside them."""
    from eval.reports.report import write_report
    from eval.reports.result_files import load_results

    show(*write_report(load_results(results, baseline, reference, paper_mean), output).split("\n"))


def main(arguments: Sequence[str] | None = None, prog: str = "python -m eval") -> None:
    """Run the command line, by default that of this program, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
