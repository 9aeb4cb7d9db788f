"""Settings of the evaluation commands: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick; settings are checked when they are created.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from scalar_retrieval.commands.options import Column, Given, Holdout, Plugins, WordsOf, columns_of, load_plugins

from .protocol.missing import RATES, check_rate

AnyPath = str | os.PathLike
_PATH = Given(Path)


def _check_source(model: AnyPath | None, benchmark: str, root: AnyPath) -> None:
    """Refuse a model, a benchmark or a root that is not there, before the imports that take seconds."""
    from scalar_retrieval.modeling_scalar.model_identity import identify

    from .benchmarks.registry import check_benchmark

    check_benchmark(benchmark, root)
    if model is not None:
        identify(model)


def num_readers() -> int:
    """Return the number of threads that read clips ahead: one for each core of this process's share of the machine, at
    most eight."""
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    # Several processes share a machine when a model is trained on several GPUs.
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return min(8, max(1, num_cores // num_processes))


def _find_gallery(place: Path) -> Path:
    from scalar_retrieval.gallery.store.contents import find_gallery

    return find_gallery(place)


# Fields shared by several settings: each option has one name and one help text.
_MODEL = Option("--model", help="Folder or Hub name of a model or adapter.")
_BENCHMARK = Option(help="Name of the benchmark, such as msrvtt.")
_ROOT = Option(help="Folder of the benchmark; for `own` a table file or the name of a data set.")
Split = Annotated[str, Option(help="Split of the benchmark.")]
Captions = Annotated[
    Literal["first", "all"] | None,
    Option(help="Captions to use for each clip; by default those of the protocol."),
]
Columns = Annotated[
    Mapping[str, str] | None,
    Option("--column", help=Column.__metadata__[0].help),
    Given(list[str] | None, columns_of),
]
OnMissing = Annotated[
    Literal["raise", "leave_out"], Option(help="Stop at clips without a file, or leave them out and list them.")
]
OnError = Annotated[Literal["raise", "missing"], Option(help="Stop at unreadable files, or count them as absent.")]
_Texts = Given(list[str] | None)


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Settings of an audit, see [`~scalar_retrieval.eval.benchmarks.audit.audit_split`]."""

    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    split: Split = "test"
    columns: Columns = None
    output: Annotated[AnyPath | None, Option(help="JSON file for all findings."), Given(Path | None)] = None
    plugins: Plugins = ()

    def __post_init__(self) -> None:
        load_plugins(self.plugins)
        _check_source(None, self.benchmark, self.root)


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Settings of an embedding job: the arguments of
    [`~scalar_retrieval.eval.embedding.embed_benchmark.embed_benchmark`]."""

    model_path: Annotated[str, _MODEL]
    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    output: Annotated[AnyPath, Option(help="Folder for the embeddings."), _PATH]
    split: Split = "test"
    captions: Captions = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    on_missing: OnMissing = "raise"
    batch_size: Annotated[
        int, Option(min=1, help="Clips or captions per forward pass, which is also the most that a kill can lose.")
    ] = 32
    on_error: OnError = "raise"
    plugins: Plugins = ()

    def __post_init__(self) -> None:
        load_plugins(self.plugins)
        _check_source(self.model_path, self.benchmark, self.root)

    def job(self) -> dict[str, Any]:
        """Return the arguments of the job."""
        settings = vars(self) | {"num_workers": num_readers()}
        del settings["plugins"]  # they are loaded
        return settings


@dataclass(frozen=True)
class SourceConfig:
    """
    Where clips and queries come from. The help of each field describes it; one more is available in Python:

    Args:
        progress (`bool`): show progress bars.

    The embeddings may be a gallery without queries, such as `scalar index` writes. A model, a benchmark and its root
    then give the captions of its clips, and it is scored as a search in it scores, with its own temperature, scale and
    offset.
    """

    output: Annotated[
        AnyPath, Option(help="Folder for the results, and for embeddings that have to be computed."), _PATH
    ]
    model_path: Annotated[AnyPath | None, _MODEL, Given(str | None)] = None
    benchmark: Annotated[str | None, _BENCHMARK] = None
    root: Annotated[AnyPath | None, _ROOT, Given(str | None)] = None
    _: KW_ONLY
    split: Split = "test"
    embeddings_path: Annotated[
        AnyPath | None,
        Option(
            "--embeddings",
            help="A gallery of `embed`, an earlier run or `scalar index`: in place of model, benchmark and root, or "
            "with them for what reads clips or captions. A published gallery is hf://datasets/USER/NAME.",
        ),
        Given(Path | None, _find_gallery),
    ] = None
    captions: Captions = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    on_missing: OnMissing = "raise"
    batch_size: Annotated[int, Option(min=1, help="Clips or captions per forward pass.")] = 32
    on_error: OnError = "raise"
    progress: bool = True
    plugins: Plugins = ()


@dataclass(frozen=True)
class RunConfig(SourceConfig):
    """
    Settings of an evaluation: see [`SourceConfig`] and the help of each field.

    Raises:
        ValueError: settings contradict each other, or one is out of range.
    """

    _: KW_ONLY
    label: Annotated[str | None, Option(help="Name of the row in tables; by default the model's.")] = None
    methods: Annotated[
        Sequence[str] | None,
        Option(
            "--method",
            help="Score to measure with the model's own, or a modality; by default all. Repeat for several.",
        ),
        _Texts,
    ] = None
    rates: Annotated[
        Sequence[float],
        Option("--rate", help="Fraction of clips that lose a modality. Repeat for several."),
        Given(list[float]),
    ] = RATES
    two_stage: Annotated[
        bool | None, Option(help="Measure the second stage; by default when a model and clips are given.")
    ] = None
    depths: Annotated[
        Sequence[int],
        Option("--depth", min=1, help="Clips or captions that the second stage reorders. Repeat for several."),
        Given(list[int]),
    ] = (50,)
    fusion_split: Annotated[
        str | None,
        Option(help="Also rank by first-stage score + weight * match logit, with the weight chosen on this split."),
    ] = None

    def __post_init__(self) -> None:
        load_plugins(self.plugins)
        # A model and a benchmark, or embeddings, or both.
        source = (self.model_path, self.benchmark, self.root)
        num_given = 3 - source.count(None)
        if 0 < num_given < 3:
            raise ValueError(f"A model, a benchmark and its root belong together, got {list(source)}.")
        if self.embeddings_path is None and num_given == 0:
            raise ValueError("Expected a model, a benchmark and its root, or embeddings instead of them.")

        # Before hours of embedding, not after; what needs torch comes last.
        for rate in self.rates:
            check_rate(rate)
        # The weight of the fusion is read from clips that are not reported.
        if self.fusion_split is not None and (self.model_path is None or self.two_stage is False):
            raise ValueError("Fusion needs the second stage: measure it, and give a model, a benchmark and its root.")
        if self.fusion_split == self.split:
            raise ValueError(
                f"The weight of the fusion must be chosen on another split than {self.split!r}, which is reported."
            )
        # With a model, what it reads; without one, that nothing has to be read.
        if self.model_path is None:
            self._check_unread()
        else:
            _check_source(*source)
        self._check_methods()
        if self.model_path is not None:
            self._check_read()

    def _check_methods(self) -> None:
        """Check names that are not registered scores against the modalities, as far as they are known cheaply; all are
        checked once clips are embedded or embeddings are read."""
        from scalar_retrieval.gallery.gallery import Gallery
        from scalar_retrieval.gallery.store.contents import is_gallery
        from scalar_retrieval.modeling_scalar.model_identity import identify
        from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, PAPER_MODALITIES

        from .protocol.first_stage import check_methods

        path = self.embeddings_path
        methods = self.methods or ()
        if {*methods} <= METHODS.keys():
            return
        # The modalities of the clips: those of the gallery, or else of the model, as far as a file has them.
        modalities = PAPER_MODALITIES
        if path is not None:
            if is_gallery(path):
                modalities = Gallery.open(path).modalities
        elif self.model_path is not None:
            model = identify(self.model_path)
            if model.is_configured:
                modalities = model.config.get("modalities", modalities)
        check_methods(methods, modalities)

    def _check_unread(self) -> None:
        """Without a model no clip is read: refuse settings that need clips."""
        unused = [name for name, value in self.benchmark_settings().items() if value not in (None, "raise")]
        if unused:
            raise ValueError(
                f"{unused} are settings of reading a benchmark: give a model, a benchmark and its root too."
            )
        if self.two_stage:
            raise ValueError(
                "The second stage needs a cross-encoder and clips to read: give a model whose text tower has "
                "cross-attention, a benchmark and its root, even with --embeddings."
            )

    def _check_read(self) -> None:
        """Check how the model and its second stage read clips."""
        from scalar_retrieval.gallery.embedding import check_reading
        from scalar_retrieval.gallery.second_stage.matching import check_depth

        check_reading(self.batch_size, num_readers())
        if not self.depths:
            raise ValueError("`depths` must hold at least one number of candidates, got none.")
        for depth in self.depths:
            check_depth(depth)

    def benchmark_settings(self) -> dict[str, Any]:
        """Return how the benchmark is read, as keyword arguments of
        [`~scalar_retrieval.eval.benchmarks.registry.load_split`]."""
        return {name: getattr(self, name) for name in ("captions", "on_missing", "columns", "holdout", "words_of")}

    def reading(self) -> dict[str, Any]:
        """Return how clips are read, as keyword arguments of both stages."""
        return {"batch_size": self.batch_size, "progress": self.progress, "num_workers": num_readers()}

    def arguments(self) -> dict[str, Any]:
        """Return the configuration as in result files: paths as text, those of the benchmark by themselves."""
        values = asdict(self)
        values["settings"] = {name: values.pop(name) for name in self.benchmark_settings()}
        return json.loads(json.dumps(values, default=os.fspath))


@dataclass(frozen=True)
class CalibrateConfig(SourceConfig):
    """
    Settings of a calibration: see [`SourceConfig`] and the help of each field. With embeddings that have queries, the
    model serves only as a place to write the result to.

    Raises:
        ValueError: settings contradict each other, or the result could not be written.
    """

    _: KW_ONLY
    scale_offset: Annotated[
        bool, Option("--scale-offset", help="Also fit a scale and an offset of each modality's cosines.")
    ] = False
    write: Annotated[
        bool,
        Option(
            "--write",
            help="Save a gain that is certain: in the gallery, and in config.json of a model's own folder. The "
            "gallery also gets the score below which clips do not match.",
        ),
    ] = False

    def __post_init__(self) -> None:
        from scalar_retrieval.gallery.gallery import check_writable
        from scalar_retrieval.gallery.store.contents import is_gallery

        self.run_config()  # which checks them
        if not self.write:
            return
        # Before hours of embedding, not after: can the result be saved where it belongs?
        if self.embeddings_path is not None and is_gallery(self.embeddings_path):
            check_writable(Path(self.embeddings_path))
        elif not self.has_own_model:
            raise ValueError(
                "There is nothing to write to: give the gallery to search with --embeddings, or the folder of a model "
                "saved by `model.save_pretrained` and `processor.save_pretrained`."
            )

    @property
    def has_own_model(self) -> bool:
        """Whether the model is a folder with a configuration of its score, unlike an encoder as published."""
        from scalar_retrieval.modeling_scalar.model_identity import identify

        if self.model_path is None:
            return False
        identity = identify(self.model_path)
        return identity.is_folder and identity.is_configured

    def run_config(self) -> RunConfig:
        """Return the settings of the run that gives the queries and clips."""
        # With embeddings that have queries, the model is only a place to write to.
        settings = {field.name: getattr(self, field.name) for field in fields(SourceConfig)}
        if self.benchmark is None and self.root is None and self.embeddings_path:
            settings["model_path"] = None
        return RunConfig(**settings)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Results to compare, see [`~scalar_retrieval.eval.reports.result_files.load_results`]."""

    results: Annotated[
        Sequence[AnyPath],
        Argument(help="Files results.json, or folders that contain them at any depth."),
        Given(list[Path]),
    ]
    output: Annotated[
        AnyPath, Option(help="Folder for tables.md, tables.tex, one CSV file per table, and figures."), _PATH
    ]


__all__ = [
    "AuditConfig",
    "CalibrateConfig",
    "EmbedConfig",
    "ReportConfig",
    "RunConfig",
    "SourceConfig",
    "num_readers",
]
