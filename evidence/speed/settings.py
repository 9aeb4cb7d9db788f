"""Settings of the measurements: a dataclass for each, a field for each of its options."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from evidence.settings import Device
from scalar_retrieval.commands.options import Given

Threads = Annotated[int, Option(min=1, help="Threads of torch.")]
Rounds = Annotated[int, Option(min=1, help="Rounds, in which the methods take turns.")]
Dim = Annotated[int, Option(min=1, help="Dimension of the vectors.")]
Data = Annotated[Literal["random", "clustered"], Option(help="Made vectors.")]
_NUMBERS = Given(list[int])


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Time to read eight frames of a 720p clip."""

    seconds: Annotated[int, Option(min=1, help="Length of the clip.")] = 30
    frames: Annotated[int, Option(min=1, help="Frames to read.")] = 8
    repeats: Annotated[int, Option(min=1, help="Runs of each reader.")] = 3


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Time of every score and of a whole evaluation."""

    sizes: Annotated[
        Sequence[int], Option("--size", help="Number of queries and clips. Repeat for several."), _NUMBERS
    ] = (1000, 5000)
    dim: Dim = 512
    threads: Threads = 1
    rounds: Rounds = 5


@dataclass(frozen=True, kw_only=True)
class FiltersConfig:
    """Time of filters on the metadata of clips."""

    clips: Annotated[int, Option(min=1, help="Number of clips.")] = 1_000_000


@dataclass(frozen=True, kw_only=True)
class IndexingConfig:
    """Clips per second of indexing, and of its parts."""

    clips: Annotated[int, Option(min=1, help="Number of clips.")] = 48
    cores: Annotated[int | None, Option(min=1, help="Processes for decoding alone; by default one per CPU.")] = None
    workers: Annotated[
        Sequence[int], Option("--workers", help="Clips read at a time. Repeat for several."), _NUMBERS
    ] = ()
    repeats: Annotated[int, Option(min=1, help="Runs of each.")] = 3
    model: Annotated[str | None, Option(help="Such as light; by default the small backbone of the recipes.")] = None
    device: Device = None


@dataclass(frozen=True, kw_only=True)
class JointEncoderConfig:
    """Time of a joint encoder at full size for each modality of a clip."""

    device: Device = None
    dtype: Annotated[Literal["float32", "bfloat16"] | None, Option(help="Default: bfloat16 on a GPU.")] = None
    clips: Annotated[int, Option(min=1, help="Clips per batch.")] = 1
    num_frames: Annotated[int, Option(min=1, help="Frames of each clip.")] = 8
    seconds: Annotated[float, Option(min=0, help="Seconds of audio.")] = 10
    rounds: Rounds = 2
    threads: Threads = 1


@dataclass(frozen=True, kw_only=True)
class PostgresqlConfig:
    """Time of a query in PostgreSQL, on one server and on three nodes."""

    clips: Annotated[int, Option(min=1, help="Number of clips.")] = 100_000
    dim: Dim = 64
    queries: Annotated[int, Option(min=1, help="Number of queries.")] = 5
    repeats: Annotated[int, Option(min=1, help="Times that each query is asked.")] = 3


@dataclass(frozen=True, kw_only=True)
class ScenesConfig:
    """Time and memory to find where the scenes of a long film change."""

    minutes: Annotated[int, Option(min=2, help="Length of the film.")] = 60
    keyframes: Annotated[int, Option(min=1, help="Most frames from one keyframe to the next.")] = 250
    repeats: Annotated[int, Option(min=1, help="Runs.")] = 1


@dataclass(frozen=True, kw_only=True)
class ScoringConfig:
    """Time of the closed form (Eq. 4) as a ratio to matrix products."""

    queries: Annotated[int, Option(min=1, help="Number of queries.")] = 1000
    clips: Annotated[int, Option(min=1, help="Number of clips.")] = 10_000
    dim: Dim = 512
    threads: Threads = 1
    before: Annotated[Path | None, Option(help="Checkout of an earlier commit to compare with.")] = None


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Time to search a gallery, open it and add to it."""

    clips: Annotated[int, Option(min=1, help="Number of clips.")] = 100_000
    dim: Dim = 512
    queries: Annotated[
        Sequence[int], Option("--queries", help="Queries of a search. Repeat for several."), _NUMBERS
    ] = (1, 64, 1000)
    threads: Threads = 1
    data: Data = "clustered"
    device: Annotated[str | None, Option(help="GPU, such as cuda, instead of the CPU.")] = None
    modalities: Annotated[
        Sequence[int],
        Option("--modalities", help="Number of modalities to search with. Repeat for several."),
        _NUMBERS,
    ] = ()
    spaces: Annotated[bool, Option("--spaces", help="Search three spaces side by side, against one.")] = False
    growth: Annotated[
        Sequence[int],
        Option("--growth", help="Size at which to measure adding and opening. Repeat for several."),
        _NUMBERS,
    ] = ()
    folder: Annotated[Path | None, Option(help="Folder for the galleries; needs a few GB.")] = None


@dataclass(frozen=True, kw_only=True)
class StartConfig:
    """Seconds of commands that need no model: helps, refusals, a folder without new files, a query to a service."""

    files: Annotated[int, Option(min=1, help="Files in the folder.")] = 1000
    repeats: Annotated[int, Option(min=1, help="Runs of each command.")] = 5
    before: Annotated[Path | None, Option(help="Checkout of an earlier commit to compare with.")] = None


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Time and memory of training, as ratios, or of the paper's recipe on a GPU."""

    batches: Annotated[
        Sequence[int], Option("--batch", help="Clips, for the objective. Repeat for several."), _NUMBERS
    ] = (128, 2048)
    score_batches: Annotated[
        Sequence[int], Option("--score-batch", help="Clips, for the scores. Repeat for several."), _NUMBERS
    ] = (128, 256)
    bert_batch: Annotated[int, Option(min=1, help="Captions, for BERT.")] = 16
    step_batch: Annotated[int, Option(min=1, help="Clips, for the miniature model.")] = 64
    dim: Dim = 512
    rounds: Rounds = 5
    threads: Threads = 1
    gpu: Annotated[bool, Option("--gpu", help="Time the paper's recipe at full size instead.")] = False
    precision: Annotated[Literal["fp16", "bf16"], Option(help="With --gpu; fp16 is the paper's.")] = "fp16"
