"""`scalar eval`: audit a benchmark, embed it, calibrate and evaluate a model."""

import scalar_retrieval.commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

from collections.abc import Sequence

import typer

from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.commands.options import Commands, command_of, load_plugins
from scalar_retrieval.commands.texts import print_lines

from .inputs import check_results, check_source, num_readers
from .settings import AuditConfig, CalibrateConfig, EmbedConfig, ReportConfig, RunConfig

# Heavy imports stay inside the commands, so that `--help` answers at once.
app = typer.Typer(
    cls=Commands,
    help="Evaluate text-to-video retrieval.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_log() -> None:
    """Print the log of a run."""
    import logging

    logging.basicConfig(format="%(message)s")
    logging.getLogger("scalar_retrieval.eval").setLevel(logging.INFO)


@command_of(app, AuditConfig)
def audit(config: AuditConfig) -> None:
    """Check the files of a benchmark before a run; exit code 1 if one is missing, unreadable or empty."""
    load_plugins(config.plugins)
    check_source(None, config.benchmark, config.root)  # before the slow imports
    from scalar_retrieval.gallery.store.files import write_json

    from .benchmarks.audit import audit_split, format_audit
    from .benchmarks.registry import load_split

    # Clips without files are listed rather than refused: that is what an audit is for.
    data = load_split(
        config.benchmark,
        config.root,
        config.split,
        on_missing="leave_out",
        columns=config.columns,
    )
    report = audit_split(data, num_readers())
    print_lines(*format_audit(report).split("\n"))  # first, so that the report survives an output file that fails
    if config.output is not None:
        write_json(report, config.output)
    if not report["complete"]:
        raise typer.Exit(1)


@command_of(app, EmbedConfig)
def embed(config: EmbedConfig) -> None:
    """Embed a benchmark once, for `run --embeddings`.

    If it is killed, run the same command to resume; once finished, it does nothing.
    """
    import logging

    load_plugins(config.plugins)
    check_source(config.model, config.benchmark, config.root)  # before the slow imports
    from .embedding.embed_benchmark import embed_benchmark

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = dict(vars(config))
    del arguments["plugins"]  # they are loaded
    gallery = embed_benchmark(**arguments, num_workers=num_readers())
    # What could not be read, a line each, then the sizes.
    for name, problems in gallery.problems().items():
        for problem in problems:
            print_lines(f"counted as absent: {name}: {problem}")
    print_lines(f"{len(gallery)} clips and {len(gallery.queries)} queries are in {config.output}.")


@command_of(app, RunConfig)
def run(config: RunConfig) -> None:
    """Evaluate a model on a benchmark, or embeddings: print the table, write a report and all results."""
    from .run import evaluate

    _show_log()
    results = evaluate(**vars(config))
    from .reports.report import format_report  # after the checks, which are quick

    print_lines(*format_report([results]).split("\n"), "")
    print_lines(f"All tables and figures are in {config.output / 'report'}.")


@command_of(app, CalibrateConfig)
def calibrate(config: CalibrateConfig) -> None:
    """Fit how modalities are weighed to captions of your clips, and report the gain on held-out clips.

    With --texts, only scales and offsets are fitted, to texts without labels."""
    from .calibrate import calibrate as calibrate_score

    _show_log()
    result, written = calibrate_score(**vars(config))
    from scalar_retrieval.gallery.store.described import scale_lines

    from .fitting import format_calibration  # after the checks, which are quick

    if config.texts is not None:
        print_lines(*scale_lines(result), *(f"Written to {path}." for path in written))
        return
    print_lines(*format_calibration(result, written, config.scale_offset, config.write))


@command_of(app, ReportConfig)
def report(config: ReportConfig) -> None:
    """Compare results: every score in both directions, under missing modalities and after two stages."""
    check_results(config.results)  # before the slow imports
    from .reports.report import write_report
    from .reports.result_files import load_results

    print_lines(*write_report(load_results(config.results), config.output).split("\n"))


def main(arguments: Sequence[str] | None = None, prog: str = "python -m scalar_retrieval.eval") -> None:
    """Run the command line, by default with the arguments of this process, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
