"""`python -m evidence`: the miniature and its backbone, the study, the paper's tables, measurements of speed."""

import scalar_retrieval.commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

from collections.abc import Sequence

import typer

from evidence.reports.commands import register
from evidence.settings import (
    ArchiveConfig,
    BackboneConfig,
    ComposedConfig,
    EncodersConfig,
    HalveConfig,
    LabelsConfig,
    MeasureConfig,
    MiniatureConfig,
    NewHeadsConfig,
    ReheadConfig,
    StampsConfig,
    StudyConfig,
    TemperatureConfig,
    TowersConfig,
)
from evidence.speed.commands import app as speed
from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.commands.options import Commands, command_of
from scalar_retrieval.commands.texts import print_lines

# Heavy imports stay inside the commands, so that `--help` answers at once.
app = typer.Typer(
    cls=Commands,
    help="Evidence for the paper's claims.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


# Data --------------------------------------------------------------------------------------------------------------


@command_of(app, MiniatureConfig)
def miniature(config: MiniatureConfig) -> None:
    """Generate the miniature benchmark: short clips whose captions need video, audio or speech."""
    from evidence.miniature.generation import generate

    folder = generate(**vars(config))
    print_lines(f"The miniature benchmark is in {folder}.")


@command_of(app, ArchiveConfig)
def archive(config: ArchiveConfig) -> None:
    """Make the archive of a new user, index it, and ask questions that were written before. Needs espeak-ng."""
    from evidence.archive.asking import ask_archive, lines_of

    lines = lines_of(ask_archive(config.output, config.videos, config.index, print_lines))
    (config.output / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print_lines(*lines)


@command_of(app, StampsConfig)
def stamps(config: StampsConfig) -> None:
    """Measure SCALAR and its rivals on real pictures: the photographs of Debian's tuxpaint-stamps-default."""
    from evidence.reports.pages import print_report
    from evidence.stamps.measuring import measure
    from evidence.stamps.report import StampsResults, report, write_page

    # The report is computed from the files, whether or not they are new.
    if not config.report_only:
        measure(config.root, config.output, print_lines)
    results = StampsResults(config.output)
    print_report(results, report)
    if config.page is not None:
        write_page(results, config.page)


@command_of(app, ComposedConfig)
def composed(config: ComposedConfig) -> None:
    """Compare scores on composed clips: real photographs, sounds and recorded words. Needs pocketsphinx."""
    from evidence.composed.measuring import measure
    from evidence.composed.report import ComposedResults, report, write_page
    from evidence.reports.pages import print_report

    if not config.report_only:
        measure(config.stamps, config.prompts, config.output, print_lines)
    results = ComposedResults(config.output)
    print_report(results, report)
    if config.page is not None:
        write_page(results, config.page)


@command_of(app, EncodersConfig)
def encoders(config: EncodersConfig) -> None:
    """Compare encoders with spaces of their own, side by side, with other ways to join them. Needs pocketsphinx."""
    from evidence.encoders.measuring import measure
    from evidence.encoders.report import EncodersResults, report, write_page
    from evidence.reports.pages import print_report

    if not config.report_only:
        measure(config)
    results = EncodersResults(config.output)
    print_report(results, report)
    if config.page is not None:
        write_page(results, config.page)


# Models ------------------------------------------------------------------------------------------------------------


@command_of(app, BackboneConfig)
def backbone(config: BackboneConfig) -> None:
    """Write the small backbone with random weights, and the vocabulary of the training clips, to be trained."""
    from evidence.building import build_backbone

    build_backbone(**vars(config))
    print_lines(f"A new backbone is in {config.output}.")


@command_of(app, HalveConfig)
def halve(config: HalveConfig) -> None:
    """Store a trained model in half precision, with its recipe and its log, small enough for a repository."""
    from evidence.halve import halve as halve_model

    size = halve_model(**vars(config))
    print_lines(f"Stored {size / 1e6:.1f} MB of weights in {config.output}.")


@command_of(app, ReheadConfig)
def rehead(config: ReheadConfig) -> None:
    """Apply trained heads to the embeddings of a gallery, instead of embedding everything again."""
    from evidence.rehead import rehead as apply_heads

    gallery = apply_heads(**vars(config))
    print_lines(f"Wrote {len(gallery):,} clips to {config.output}.")


@command_of(app, TemperatureConfig)
def temperature(config: TemperatureConfig) -> None:
    """Suggest a contrastive temperature for a backbone from the spread of its scores."""
    from evidence.temperature import RATIO, spread_of_model

    spread = spread_of_model(**vars(config))
    print_lines(f"Spread of the scores of unmatched pairs: {spread:.3f}; temperature: {RATIO * spread:.2g}")


# The study ---------------------------------------------------------------------------------------------------------


@command_of(app, StudyConfig)
def study(config: StudyConfig) -> None:
    """Tune every method, train every variant from one backbone, evaluate, and print the tables.

    Run the same command to continue after an interruption; remove the folder of a run to repeat it.
    """
    from evidence.study.whole import run_study

    if run_study(config):
        raise typer.Exit(1)


@command_of(app, MeasureConfig)
def measure(config: MeasureConfig) -> None:
    """Of the study: embed clips, fit scores to validation clips, and write the ranks of the others."""
    from evidence.study.measure import main as measure_model

    measure_model(config)


@command_of(app, LabelsConfig)
def labels(config: LabelsConfig) -> None:
    """Of the study: a trained model on short class labels."""
    from evidence.study.labels import main as measure_labels

    measure_labels(config)


@command_of(app, TowersConfig)
def towers(config: TowersConfig) -> None:
    """Of the study: store the outputs of the frozen towers for validation and test clips."""
    from evidence.study.towers import store_towers

    store_towers(**vars(config))


@command_of(app, NewHeadsConfig)
def new_heads(config: NewHeadsConfig) -> None:
    """Of the study: write a backbone with random projections."""
    from evidence.study.new_heads import draw_heads

    draw_heads(**vars(config))


# Measurements of speed, and the paper's tables.
app.add_typer(speed, name="speed")
register(app)


def main(arguments: Sequence[str] | None = None, prog: str = "python -m evidence") -> None:
    """Run the command line, by default with the arguments of this process, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
