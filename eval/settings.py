"""What the commands of evaluation take: each setting once, as a field with its help; the command line is made of them.

Imports nothing slow, so that `--help` is quick; settings are checked where they are made.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from commands.options import Column, Device, Given, Holdout, Limit, ModelDtype, WordsOf

RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Fractions of clips that lose a modality: those of the paper's Table 3."""

NO_CROSS_ENCODER = (
    "The second stage reads clips with a cross-encoder: give a model whose text tower has cross-attention, a "
    "benchmark and its root, even beside embeddings."
)
"""Why the second stage cannot be measured."""

AnyPath = str | os.PathLike
_PATH = Given(Path)


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """The user's columns by the names of ours, from NAME=COLUMN."""
    names = [part.partition("=") for part in given]
    if not all(name and separator and own for name, separator, own in names):
        raise ValueError(f"A column is given as NAME=COLUMN, such as video_id=clip; got {given}.")
    return {name: own for name, _, own in names}


def _limits(given: list[str]) -> Any:
    from gallery.decoding import Limits

    return Limits.parse(given)


def _folder_of(given: Path) -> Path:
    from gallery.published import folder_of

    return folder_of(given)


# Fields that several settings have.
_MODEL = Option("--model", help="Folder or Hub name of a model or adapter.")
_BENCHMARK = Option(help="Name of the benchmark, such as msrvtt.")
_ROOT = Option(help="Folder of the benchmark; for `own` a file, or the name of a data set.")
Split = Annotated[str, Option(help="Split of the benchmark.")]
Captions = Annotated[
    Literal["first", "all"] | None,
    Option(help="Which captions of a clip count; by default those of the protocol."),
]
Annotations = Annotated[
    AnyPath | None, Option(help="Annotation file, if it is not in the folder."), Given(Path | None)
]
Columns = Annotated[
    Mapping[str, str] | None,
    Option("--column", help=Column.__metadata__[0].help),
    Given(list[str] | None, columns_of),
]
OnMissing = Annotated[
    Literal["raise", "leave_out"], Option(help="Stop at clips without a file, or leave them out and say so.")
]
OnError = Annotated[Literal["raise", "missing"], Option(help="Stop at what cannot be read, or count it as absent.")]
Limits = Annotated[Any, Option("--limit", help=Limit.__metadata__[0].help), Given(list[str] | None, _limits)]
_Texts = Given(list[str] | None)


@dataclass(frozen=True, kw_only=True)
class MiniatureConfig:
    """The miniature benchmark, see [`~eval.miniature.generate`]."""

    output: Annotated[AnyPath, Option(help="Folder to write the benchmark to."), _PATH]
    num_train: Annotated[int, Option(min=0, max=10**6, help="Clips to train on.")] = 1500
    num_validation: Annotated[int, Option(min=0, max=10**6, help="Clips to choose settings with.")] = 300
    num_test: Annotated[int, Option(min=0, max=10**6, help="Clips to test on.")] = 300
    seed: Annotated[int, Option(min=0, help="Seed of the clips.")] = 0
    shared: Annotated[
        float, Option(min=0, max=1, help="Probability that modalities of a clip agree in a factor; 0: independent.")
    ] = 0.6
    complete: Annotated[bool, Option("--complete", help="No clip lacks picture, sound or subtitle.")] = False
    disagree: Annotated[
        float, Option(min=0, max=1, help="Probability that what a caption is not about is that of another clip.")
    ] = 0.0
    alone: Annotated[
        bool, Option("--alone", help="Each modality in a further row, with a caption of it alone: for a backbone.")
    ] = False
    evidence: Annotated[
        Sequence[str],
        Option(
            "--evidence",
            help="What clips have besides, with captions that need it: title, or screen, words on it. Repeat for "
            "both.",
        ),
    ] = ()
    num_proc: Annotated[
        int | None, Option(min=1, max=1024, help="Processes that write clips; by default one per CPU.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """A benchmark to inspect, see [`~eval.benchmarks.audit.audit_split`]."""

    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    split: Split = "test"
    captions: Captions = None
    annotations: Annotations = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    output: Annotated[AnyPath | None, Option(help="JSON file for everything that is found."), Given(Path | None)] = (
        None
    )
    decode: Annotated[bool, Option(help="Read every stream, not only the header of each file.")] = True
    num_workers: Annotated[int, Option(min=1, help="Clips read at once.")] = 2
    limits: Limits = None


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """A benchmark to embed, see [`~eval.embedding.embed_benchmark.embed_benchmark`], whose arguments these are."""

    model_path: Annotated[str, _MODEL]
    benchmark: Annotated[str, _BENCHMARK]
    root: Annotated[str, _ROOT]
    output: Annotated[AnyPath, Option(help="Folder for the embeddings, which all processes must see."), _PATH]
    split: Split = "test"
    captions: Captions = None
    annotations: Annotations = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    on_missing: OnMissing = "raise"
    batch_size: Annotated[
        int, Option(min=1, help="Clips or captions per forward pass: the most clips that a kill can lose.")
    ] = 32
    on_error: OnError = "raise"
    num_workers: Annotated[int, Option(min=1, help="Threads of each process that read clips ahead.")] = 2
    dtype: Annotated[Literal["float32", "float16"], Option(help="Precision of the vectors.")] = "float16"
    limits: Limits = None


@dataclass(frozen=True)
class SourceConfig:
    """
    Where clips and queries come from. The help of each field says what it is; in Python there are besides:

    Args:
        progress (`bool`): show progress bars.

    Embeddings may be those of a gallery without queries, such as `scalar index` writes: a model, a benchmark and its
    root then give the captions that describe its clips, and it is scored as it is searched, with its own temperature,
    scale and offset.
    """

    output: Annotated[
        AnyPath, Option(help="Folder for what is found, and for embeddings that have to be made."), _PATH
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
            help="Embeddings from `embed`, an earlier run or any other model, or a gallery: in place of model, "
            "benchmark and root, or beside them for what reads clips or captions. A published gallery is "
            "hf://datasets/USER/NAME.",
        ),
        Given(Path | None, _folder_of),
    ] = None
    captions: Captions = None
    annotations: Annotations = None
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    on_missing: OnMissing = "raise"
    normalize: Annotated[bool, Option(help="Normalize embeddings that do not have unit norm.")] = False
    batch_size: Annotated[int, Option(min=1, help="Clips or captions per forward pass.")] = 32
    on_error: OnError = "raise"
    num_workers: Annotated[int, Option(min=1, help="Threads that read clips ahead.")] = 2
    progress: bool = True
    device: Device = None
    model_dtype: ModelDtype = None
    limits: Limits = None


@dataclass(frozen=True)
class RunConfig(SourceConfig):
    """
    What is evaluated, and how: see [`SourceConfig`] and the help of each field.

    Raises:
        ValueError: settings contradict each other, or one is out of its range.
    """

    _: KW_ONLY
    label: Annotated[str | None, Option(help="Name of the row in tables; by default the model's.")] = None
    methods: Annotated[
        Sequence[str] | None,
        Option(
            "--method",
            help="Score to measure beside the model's own, or a modality; by default all. Repeat for several.",
        ),
        _Texts,
    ] = None
    rates: Annotated[
        Sequence[float],
        Option("--rate", help="Fraction of clips that lose a modality. Repeat for several."),
        Given(list[float]),
    ] = RATES
    mask_seed: Annotated[int, Option(min=0, help="Seed of the missing-modality masks.")] = 0
    two_stage: Annotated[
        bool | None, Option(help="Measure the second stage; by default if a model and clips are given.")
    ] = None
    depths: Annotated[
        Sequence[int],
        Option("--depth", min=1, help="Clips or captions that the second stage reorders. Repeat for several."),
        Given(list[int]),
    ] = (50,)
    policies: Annotated[
        Sequence[str] | None,
        Option(
            "--policy",
            help="What the second stage reads of a masked modality: absent, no token; zeros, zero states. By default "
            "both, absent alone if it reads subtitles. Repeat for both.",
        ),
        _Texts,
    ] = None
    fusion_split: Annotated[
        str | None,
        Option(help="Also order by first-stage score + weight * match logit, the weight chosen on this other split."),
    ] = None
    fusion_weight: Annotated[float | None, Option(help="The same, with this weight.")] = None
    fused: Annotated[
        bool,
        Option(
            "--fused",
            help="Also measure the vectors that a joint encoder itself fuses of several modalities; this reads the "
            "clips again, and embeds them for each set of modalities that a mask leaves.",
        ),
    ] = False
    plugins: Annotated[
        Sequence[str],
        Option("--plugin", help="Module to import first, which registers scores of your own."),
        Given(list[str]),
    ] = ()

    def __post_init__(self) -> None:
        from eval.protocol.missing import check_rate
        from modeling_scalar.devices import device_of_name, dtype_of_name
        from modeling_scalar.plugins import load_plugins

        load_plugins(self.plugins)
        source = (self.model_path, self.benchmark, self.root)
        if None in source and any(part is not None for part in source):
            raise ValueError(f"A model, a benchmark and its root belong together, got {list(source)}.")
        if self.embeddings_path is None and None in source:
            raise ValueError("Expected a model, a benchmark and its root, or embeddings in their place.")
        # Before hours of embedding, not after.
        self._check_methods()
        for rate in self.rates:
            check_rate(rate)
        device_of_name(self.device)
        dtype_of_name(self.model_dtype)
        if self.is_fused and (self.model_path is None or self.two_stage is False):
            raise ValueError(
                "Fusion is a rule of the second stage: measure it, with a model, a benchmark and its root."
            )
        if self.model_path is None:
            self._check_unread()
        else:
            self._check_read()

    @property
    def scores_named(self) -> list[str]:
        """The scores to measure that were named, but for what a model fuses itself where that is embedded."""
        from eval.embedding.embeddings import FUSED

        return [name for name in self.methods or () if name != FUSED or not self.fused]

    def _check_methods(self) -> None:
        """Of scores that are not registered, find modalities of these names, as far as a look tells which there are;
        once clips are embedded, or a file of embeddings is read, all are checked."""
        from eval.protocol.first_stage import check_methods
        from gallery.gallery import Gallery, is_gallery
        from modeling_scalar.model_identity import identify
        from modeling_scalar.scores_scalar import METHODS, PAPER_MODALITIES

        path, modalities = self.embeddings_path, PAPER_MODALITIES
        if set(self.scores_named) <= METHODS.keys() or (path is not None and Path(path).is_file()):
            return
        if path is not None and is_gallery(path):
            modalities = Gallery.open(path, check=False).modalities
        elif path is None and self.model_path is not None and (model := identify(self.model_path)).is_configured:
            modalities = model.config.get("modalities", modalities)
        check_methods(self.scores_named, modalities)

    def _check_unread(self) -> None:
        """Without a model no clip is read, and nothing may ask for it."""
        unused = [name for name, value in self.benchmark_settings().items() if value not in (None, "raise")]
        if unused:
            raise ValueError(
                f"{unused} say how a benchmark is read: give a model, a benchmark and its root with them."
            )
        if self.two_stage:
            raise ValueError(NO_CROSS_ENCODER)
        if self.fused:
            raise ValueError("Fused vectors are made from clips: give the model, the benchmark and its root too.")

    def _check_read(self) -> None:
        """How clips are read, by a model and by its second stage."""
        from gallery.embedding import check_reading
        from gallery.matching import check_policies
        from gallery.reranking import check_depth, check_weight

        check_reading(self.batch_size, self.on_error, self.num_workers)
        if not self.depths:
            raise ValueError("`depths` must hold at least one number of candidates, got none.")
        for depth in self.depths:
            check_depth(depth)
        if self.policies is not None:
            check_policies(self.policies, ())
        if self.fusion_weight is not None:
            check_weight(self.fusion_weight)
            if self.fusion_split is not None:
                raise ValueError("Give either the weight of the fusion or the split on which it is chosen, not both.")
        if self.fusion_split == self.split:
            raise ValueError(
                f"The weight of the fusion must be chosen on another split than the {self.split!r} that is reported."
            )
        if self.fusion_split is not None and self.annotations is not None:
            raise ValueError(
                "An annotation file holds one split: give the weight of the fusion, not a split to choose it on."
            )

    @property
    def is_fused(self) -> bool:
        """Whether the second stage is measured by the fused rule too."""
        return self.fusion_split is not None or self.fusion_weight is not None

    def benchmark_settings(self) -> dict[str, Any]:
        """Return how the benchmark is read: keyword arguments of [`~eval.benchmarks.load_split`]."""
        return {
            name: getattr(self, name)
            for name in ("captions", "annotations", "on_missing", "columns", "holdout", "words_of")
        }

    def reading(self) -> dict[str, Any]:
        """Return how clips are read, keyword arguments of both stages."""
        return {name: getattr(self, name) for name in ("batch_size", "on_error", "num_workers", "progress")}

    def arguments(self) -> dict[str, Any]:
        """Return the configuration as result files hold it: paths as text, how the benchmark is read by itself."""
        settings = self.benchmark_settings()
        values = {name: value for name, value in asdict(self).items() if name not in (*settings, "limits")}
        return json.loads(json.dumps(values | {"settings": settings}, default=os.fspath))


@dataclass(frozen=True)
class CalibrateConfig(SourceConfig):
    """
    What is calibrated, on what, and where the result goes: see [`SourceConfig`] and the help of each field. With
    embeddings that have queries, a model is only what the result is written to.

    Raises:
        ValueError: settings contradict each other, or the result could not be written where it should be.
    """

    _: KW_ONLY
    method: Annotated[
        str | None,
        Option(
            help="Score whose numbers are fitted, weighted_gram say, to compare scores as they are at their best; by "
            "default the model's own.",
        ),
    ] = None
    subtitles: Annotated[
        bool, Option("--subtitles", help="Without captions: subtitles are the queries, and are not searched.")
    ] = False
    scale_offset: Annotated[
        bool,
        Option(
            "--scale-offset",
            help="Also fit a scale and an offset of each modality's cosines; other scores than SCALAR's have nothing "
            "else, and need no such flag.",
        ),
    ] = False
    terms: Annotated[
        Sequence[str],
        Option(
            "--term",
            help="A modality, fused say, that is taken out of the centroid and whose cosine is added to the score, "
            "with a weight that is fitted. Repeat for more.",
        ),
        Given(list[str]),
    ] = ()
    num_folds: Annotated[
        int, Option("--folds", min=2, help="Parts of the clips; each is ranked by a fit to the others.")
    ] = 5
    seed: Annotated[int, Option(min=0, help="Seed of the folds and of the interval.")] = 0
    write: Annotated[
        bool,
        Option(
            "--write",
            help="Keep a gain that is certain: in the gallery, and in the config.json of a model's own folder. The "
            "gallery also keeps which scores are too low to match.",
        ),
    ] = False

    def __post_init__(self) -> None:
        from eval.calibrate import why_unwritable
        from eval.protocol.calibration import check_fitted
        from gallery.gallery import check_format, is_gallery

        self.run_config()
        if self.method is not None:
            check_fitted(self.method, self.terms)
            if self.write:
                raise ValueError(
                    "Only what is fitted of the model's own score is kept: leave out --method or --write."
                )
        if self.subtitles and self.benchmark is None and not is_gallery(self.embeddings_path):
            raise ValueError(
                "Subtitles as queries are those of a gallery's files, or of a benchmark: give the gallery with "
                "--embeddings, or a model, a benchmark and its root."
            )
        if self.subtitles and self.terms:
            raise ValueError(
                "Without captions nothing is known of how well a whole clip matches a query: leave out --term, or "
                "give captions."
            )
        if self.subtitles and self.scale_offset and self.write:
            raise ValueError(
                "Subtitles as queries tell nothing of the cosines of subtitles, so scales and offsets that are fitted "
                "to them would set the others against these blindly, and are not written. Leave out --write or "
                "--scale-offset, or give captions."
            )
        if self.write:  # before hours of embedding, not after
            if self.embeddings_path and is_gallery(self.embeddings_path):
                check_format(Path(self.embeddings_path))
            elif self.model_path is None:
                raise ValueError(
                    "There is nothing to write to: give the folder of a model, or the gallery that is searched."
                )
            elif (reason := why_unwritable(self.model_path)) is not None:
                raise ValueError(
                    f"There is nothing to write to: {reason}. Save it as a model of its own "
                    "(`model.save_pretrained` and `processor.save_pretrained`), or give the gallery that is searched "
                    "with --embeddings, which keeps the result then."
                )

    def run_config(self) -> RunConfig:
        """Return the run whose embeddings are the queries and clips."""
        settings = {field.name: getattr(self, field.name) for field in fields(SourceConfig)}
        if self.benchmark is None and self.root is None and self.embeddings_path:
            settings["model_path"] = None
        return RunConfig(**settings)


@dataclass(frozen=True, kw_only=True)
class MtebConfig:
    """Tasks of mteb to evaluate a model on, see [`~eval.adapters.mteb_run.evaluate`]."""

    model_path: Annotated[str, _MODEL]
    tasks: Annotated[
        Sequence[str],
        Option(
            "--tasks",
            help='Benchmark or task of mteb, such as "MVEB(v1)" or VALOR32KT2VARetrieval; several between commas, or '
            "repeat. Of a benchmark, the tasks that are no retrieval between texts and clips are left out.",
        ),
        Given(list[str]),
    ]
    output: Annotated[AnyPath, Option(help="Folder for mteb's `results` and the table."), _PATH] = "results/mteb"
    name: Annotated[
        str | None, Option(help="Name in the results, organisation/model; by default the model's own.")
    ] = None
    fused: Annotated[
        bool,
        Option(help="Also score what a joint encoder itself fuses, where it does; clips are then read twice."),
    ] = True
    batch_size: Annotated[int, Option(min=1, help="Clips or texts per forward pass.")] = 32
    on_error: OnError = "raise"
    num_workers: Annotated[int, Option(min=1, help="Threads that read clips ahead.")] = 2
    progress: bool = True
    device: Device = None
    model_dtype: ModelDtype = None
    limits: Limits = None

    def __post_init__(self) -> None:
        if self.name is not None and self.name.count("/") != 1:
            raise ValueError(f"`name` is an organisation and a model with a slash between them, got {self.name!r}.")


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Results to compare, see [`~eval.reports.result_files.load_results`]."""

    results: Annotated[
        Sequence[AnyPath],
        Argument(help="Files results.json, or folders that hold some at any depth."),
        Given(list[Path]),
    ]
    output: Annotated[
        AnyPath, Option(help="Folder for tables.md, tables.tex, one CSV file per table, and figures."), _PATH
    ]
    baseline: Annotated[
        str | None, Option(help="Label that margins are taken against; by default the one with GRAM's score.")
    ] = None
    reference: Annotated[
        str | None, Option(help="Label that ablations (no_..., w/o ...) are compared with; by default scalar.")
    ] = None
    paper_mean: Annotated[
        bool, Option("--paper-mean", help="Show the paper's mean beside benchmarks that the paper does not have.")
    ] = False


__all__ = [
    "RATES",
    "AuditConfig",
    "CalibrateConfig",
    "EmbedConfig",
    "MiniatureConfig",
    "MtebConfig",
    "ReportConfig",
    "RunConfig",
    "SourceConfig",
    "columns_of",
]
