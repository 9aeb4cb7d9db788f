"""Settings of the commands of `python -m evidence`: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from scalar_retrieval.commands.options import Given

AnyPath = str | os.PathLike
_PATH = Given(Path)
# Options of several commands.
Device = Annotated[str | None, Option(help="Device: cpu, cuda, ...; by default the accelerator, if any.")]


@dataclass(frozen=True, kw_only=True)
class MiniatureConfig:
    """Settings of the miniature benchmark, see [`~evidence.miniature.generation.generate`]."""

    output: Annotated[AnyPath, Option(help="Folder to write the benchmark to."), _PATH]
    num_train: Annotated[int, Option(min=0, max=10**6, help="Number of training clips.")] = 1500
    num_validation: Annotated[int, Option(min=0, max=10**6, help="Number of validation clips.")] = 300
    num_test: Annotated[int, Option(min=0, max=10**6, help="Number of test clips.")] = 300
    # What is drawn; each of these makes another benchmark.
    seed: Annotated[int, Option(min=0, help="Seed of the clips.")] = 0
    shared: Annotated[
        float, Option(min=0, max=1, help="Probability that modalities of a clip agree in a factor; 0: independent.")
    ] = 0.6
    complete: Annotated[bool, Option("--complete", help="Give every clip video, audio and a subtitle.")] = False
    disagree: Annotated[
        float, Option(min=0, max=1, help="Probability that what a caption does not describe is from another clip.")
    ] = 0.0
    alone: Annotated[
        bool, Option("--alone", help="Add a row per modality, with a caption of it alone: for training a backbone.")
    ] = False
    evidence: Annotated[
        Sequence[str],
        Option(
            "--evidence",
            help="Further evidence in clips, with captions that need it: title, or screen (words shown on it). Repeat "
            "for both.",
        ),
    ] = ()
    # How, which changes no clip.
    num_proc: Annotated[
        int | None, Option(min=1, max=1024, help="Number of processes that write clips; by default one per CPU.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ArchiveConfig:
    """Settings of the archive of a new user, see [`~evidence.archive.asking.ask_archive`]."""

    output: Annotated[AnyPath, Option(help="Folder for the files and their gallery; both are kept."), _PATH]
    videos: Annotated[
        AnyPath | None, Option(help="Folder with the four clips that a person filmed; by default without them."), _PATH
    ] = None
    index: Annotated[
        Sequence[str], Option(help="Further argument of `scalar index`, such as --read-text. Repeatable.")
    ] = ()


@dataclass(frozen=True, kw_only=True)
class StampsConfig:
    """Settings of the benchmark of real pictures, see `evidence/stamps`."""

    root: Annotated[AnyPath, Option(help="Folder of the stamps of tuxpaint-stamps-default."), _PATH] = Path(
        "/usr/share/tuxpaint/stamps"
    )
    output: Annotated[AnyPath, Option(help="Folder for the results."), _PATH]
    report_only: Annotated[bool, Option("--report-only", help="Only print the tables of the results in OUTPUT.")] = (
        False
    )
    page: Annotated[
        AnyPath | None, Option(help="File for the page with these results, beside its figure."), Given(Path | None)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ComposedConfig:
    """Settings of the comparison on composed clips, see `evidence/composed`."""

    stamps: Annotated[AnyPath, Option(help="Folder of the stamps of tuxpaint-stamps-default."), _PATH] = Path(
        "/usr/share/tuxpaint/stamps"
    )
    prompts: Annotated[AnyPath, Option(help="Folder of the prompts of asterisk-core-sounds-en-wav."), _PATH] = Path(
        "/usr/share/asterisk/sounds/en_US_f_Allison"
    )
    output: Annotated[AnyPath, Option(help="Folder for the results."), _PATH]
    report_only: Annotated[bool, Option("--report-only", help="Only print the tables of the results in OUTPUT.")] = (
        False
    )
    page: Annotated[AnyPath | None, Option(help="File for the page with these results."), Given(Path | None)] = None


@dataclass(frozen=True, kw_only=True)
class EncodersConfig(ComposedConfig):
    """Settings of the comparison of encoders side by side, see `evidence/encoders`."""

    model: Annotated[AnyPath, Option(help="Folder of the model that `make demo` trains."), _PATH] = "runs/miniature"
    root: Annotated[AnyPath, Option(help="Folder of the miniature benchmark."), _PATH] = "data/miniature"


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Settings of a new backbone, see [`~evidence.building.build_backbone`]."""

    root: Annotated[AnyPath, Option(help="Folder of the miniature benchmark that gives the vocabulary."), _PATH]
    output: Annotated[AnyPath, Option(help="Folder for the model."), _PATH]
    seed: Annotated[int, Option(min=0, help="Seed of the weights.")] = 50


@dataclass(frozen=True, kw_only=True)
class HalveConfig:
    """Settings of [`~evidence.halve.halve`]."""

    run: Annotated[AnyPath, Argument(help="Folder of a full fine-tuning run."), _PATH]
    output: Annotated[AnyPath, Argument(help="Folder for the model in half precision."), _PATH]
    before: Annotated[
        Sequence[AnyPath], Option("--before", help="Earlier run that it continued, for its log."), Given(list[Path])
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ReheadConfig:
    """Settings of [`~evidence.rehead.rehead`]."""

    gallery: Annotated[AnyPath, Argument(help="Gallery that the encoder made."), _PATH]
    model: Annotated[str, Option(help="Folder or Hub id of the trained heads.")]
    output: Annotated[AnyPath, Option(help="Folder for the new gallery."), _PATH]


@dataclass(frozen=True, kw_only=True)
class TemperatureConfig:
    """Settings of [`~evidence.temperature.spread_of_model`]."""

    model: Annotated[str, Option(help="Folder or Hub id of the backbone.")]
    root: Annotated[str, Option(help="Folder of the benchmark.")]
    benchmark: Annotated[str, Option(help="Name of the benchmark.")] = "miniature"
    split: Annotated[str, Option(help="Split to read.")] = "train"
    clips: Annotated[int, Option(min=2, help="Number of rows to read, from the first.")] = 1000
    aggregation: Annotated[str | None, Option(help="Score to use instead of the model's own.")] = None
    device: Device = None


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Settings of the study, see `evidence/study`."""

    output: Annotated[AnyPath, Option(help="Folder of the study."), _PATH] = Path("runs/study")
    seeds: Annotated[
        Sequence[int], Option("--seed", help="Seed of every variant. Repeat for several."), Given(list[int])
    ] = (50, 51, 52)
    variants: Annotated[
        Sequence[str], Option("--variant", help="Variant; by default all. Repeat for several."), Given(list[str])
    ] = ()
    jobs: Annotated[int, Option(min=1, help="Number of processes, each on one core.")] = 2
    overlay: Annotated[AnyPath, Option(help="Recipe whose fields override those of each variant."), _PATH] = Path(
        "recipes/miniature.yaml"
    )
    shared: Annotated[
        Sequence[float],
        Option(
            "--shared",
            min=0,
            max=1,
            help="Probability with which modalities share what they are about; each is a benchmark of its own. Repeat "
            "for several.",
        ),
        Given(list[float]),
    ] = (0.0, 0.3, 1.0)
    # What is read and written besides OUTPUT; a part of the study is kept away from the published files.
    report_only: Annotated[
        bool, Option("--report-only", help="Only report on --results: print the tables, and write them there.")
    ] = False
    measured: Annotated[
        AnyPath | None,
        Option(
            help="Folder of what each run leaves, which says what is done. Default: that of the repository for the "
            "whole study, else OUTPUT/measured."
        ),
        Given(Path | None),
    ] = None
    results: Annotated[
        AnyPath | None,
        Option(
            help="Folder of the results. Default: that of the repository for the whole study, once nothing is left, "
            "and with --report-only; else OUTPUT/results."
        ),
        Given(Path | None),
    ] = None
    page: Annotated[
        AnyPath | None, Option(help="File for the page with these results, beside its figure."), Given(Path | None)
    ] = None


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Settings of the ranks of one trained model, see `evidence/study/measure.py`."""

    model: Annotated[AnyPath, Option(help="Folder of the trained model."), _PATH]
    root: Annotated[AnyPath, Option(help="Miniature benchmark with validation and test clips."), _PATH]
    output: Annotated[AnyPath, Option(help="Name of the files OUTPUT.json and OUTPUT.parquet."), _PATH]
    scores: Annotated[
        Literal["own", "compared", "all"], Option(help="The model's own score, those of every method, or all.")
    ] = "own"
    curve: Annotated[bool, Option("--curve", help="Also SCALAR's score at several temperatures of its weights.")] = (
        False
    )
    # What is measured: of a trial of the tuning the validation clips alone.
    split: Annotated[Literal["validation", "test"], Option(help="Split to measure.")] = "test"
    disagree: Annotated[AnyPath | None, Option(help="Benchmark whose modalities disagree."), Given(Path | None)] = None
    stored: Annotated[
        bool, Option("--stored", help="Read the outputs that `python -m evidence towers` stored, instead of files.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class LabelsConfig:
    """Settings of a trained model on class labels, see `evidence/study/labels.py`."""

    model: Annotated[AnyPath, Option(help="Folder of the trained model."), _PATH]
    root: Annotated[AnyPath, Option(help="Miniature benchmark, with the stored outputs of the towers."), _PATH]
    output: Annotated[AnyPath, Option(help="File to write."), _PATH]


@dataclass(frozen=True, kw_only=True)
class TowersConfig:
    """Settings of [`~evidence.study.towers.store_towers`]."""

    backbone: Annotated[AnyPath, Argument(help="Folder of the model whose towers are frozen."), _PATH]
    root: Annotated[AnyPath, Argument(help="Folder of a miniature benchmark."), _PATH]


@dataclass(frozen=True, kw_only=True)
class NewHeadsConfig:
    """Settings of [`~evidence.study.new_heads.draw_heads`]."""

    backbone: Annotated[AnyPath, Argument(help="Folder of the trained backbone."), _PATH]
    output: Annotated[AnyPath, Argument(help="Folder for the new one."), _PATH]
