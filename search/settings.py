"""What the commands of the search take: each setting once, as a field with its help; the command line is made of them.

Imports nothing slow, so that `--help` is quick; settings are checked where they are made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Exit, Option, echo

from commands.options import MODEL, READING, Device, Given, Limit, ModelDtype

from .engine.address import is_address

LONGEST_SCENE = 60.0
"""Seconds of a window that ends where a scene changes, at most, where nothing else is said."""
DEFAULT_MODEL = "google/embeddinggemma-2"
"""The model of a new gallery: one that needs no training."""

_model, _reading = partial(Option, rich_help_panel=MODEL), partial(Option, rich_help_panel=READING)
_gallery = partial(Option, rich_help_panel="The gallery")
_query = partial(Option, rich_help_panel="What is asked")
_filter = partial(Option, rich_help_panel="Which clips")
_access = partial(Option, rich_help_panel="Who may ask")
_upload = partial(Option, rich_help_panel="Files that are added")
_new = partial(Option, rich_help_panel="A new collection")


def _folder(path: Path) -> Path:
    """Refuse an address where a folder is expected."""
    from gallery.published import is_published

    if is_address(str(path)):
        raise ValueError(
            "A folder is expected here, not the address of a collection: `scalar push` fills a collection from a "
            "folder, and only `scalar query` and `scalar serve` take its address in place of one."
        )
    if is_published(path):
        raise ValueError(
            "A published gallery can be read, not changed. `hf download USER/NAME --repo-type dataset --local-dir "
            "FOLDER` makes a folder of it."
        )
    return path


def _segment(text: str) -> float | Literal["scenes"]:
    """How files are cut: a number of seconds, or `scenes`."""
    if text == "scenes":
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < math.inf:
        raise ValueError(f"`--segment` is a number of seconds, at least 1, or `scenes`, got {text!r}.")
    return seconds


def _read_folder(path: Path) -> Path:
    """The folder of a gallery that is only read: a published one is downloaded."""
    from gallery.published import folder_of, is_published

    return folder_of(path) if is_published(path) else _folder(path)


# Fields that several settings have.
Folder = Annotated[Path, Argument(help="Folder of the gallery."), Given(Path, _folder)]
ReadFolder = Annotated[
    Path,
    Argument(help="Folder of the gallery, or the address of a published one, hf://datasets/USER/NAME."),
    Given(Path, _read_folder),
]
Place = Annotated[
    str,
    Argument(
        metavar="GALLERY",
        help="Folder of the gallery, or the address of a collection that `push` made, or of a published gallery, "
        "hf://datasets/USER/NAME.",
    ),
]
Moved = Annotated[str | None, _model(help="Where the gallery's model is now, if not where it was.")]


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """
    What is indexed, and how, see [`~search.index_folder.index_folder`].

    Raises:
        ValueError: settings contradict each other.
    """

    paths: Annotated[
        Sequence[Path],
        Argument(
            help="Folders, files, and lists of files: CSV, JSON, JSONL, Parquet, or a saved data set, with a column "
            "`path`. Media files named here may have any other extension."
        ),
    ]
    output: Annotated[
        Path, _gallery(help="Folder of the gallery; an existing one is brought up to date."), Given(Path, _folder)
    ]
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        _gallery(help="Precision of a new gallery, by default float16.", show_default=False),
    ] = None
    segment: Annotated[
        float | Literal["scenes"] | None,
        _gallery(
            metavar="SECONDS|scenes",
            help="Cut longer files into windows of so many seconds, or where their scenes change, each a clip of its "
            "own; of a new gallery.",
        ),
        Given(str, _segment),
    ] = None
    segment_max: Annotated[
        float | None,
        _gallery(
            min=4,  # so that half of it is no shorter than the shortest one
            show_default=False,
            help=f"With --segment scenes: no window is longer, by default {LONGEST_SCENE:g} seconds.",
        ),
    ] = None
    text: Annotated[
        Sequence[str],
        _gallery(
            help="Of a new gallery: a text by which clips are found, too, such as `title`: what a list has in the "
            "column of this name, or of titles the tags of the file. Repeatable."
        ),
    ] = ()
    add: Annotated[
        Sequence[str],
        _gallery(
            help="Add a modality to the gallery, such as `title`, or another column of a list: files are read for it "
            "alone. Repeatable."
        ),
    ] = ()
    drop: Annotated[Sequence[str], _gallery(help="Take a modality out of the gallery. Repeatable.")] = ()
    prune: Annotated[
        bool,
        _gallery(
            "--prune",
            help="Remove the clips of files that are gone, where other files of the gallery are still there, in or "
            "below the nearest folder that is left: not if a drive is away.",
        ),
    ] = False
    watch: Annotated[
        bool, _gallery("--watch", help="Go on until Ctrl-C: index what is new or changed as soon as it is whole.")
    ] = False
    model: Annotated[
        str | None,
        _model(
            help="Model or adapter: a folder, a Hub id, or `light`, which embeds texts alone and needs no download; "
            f"by default that of the gallery, or for a new one {DEFAULT_MODEL}."
        ),
    ] = None
    batch_size: Annotated[int, _model(min=1, help="Clips embedded at a time.")] = 8
    device: Device = None
    model_dtype: ModelDtype = None
    transcribe: Annotated[
        str | None,
        _model(
            metavar="MODEL",
            help="Write down what is said in clips with sound and without subtitles, once, by a model of transformers "
            "for automatic speech recognition: a folder, or a Hub id.",
        ),
    ] = None
    words_of: Annotated[
        Path | None,
        _gallery(
            metavar="GALLERY",
            help="Another gallery of these files: what was heard, read and said of them there is not made again.",
        ),
    ] = None
    read_text: Annotated[
        bool,
        _model(
            "--read-text",
            help="Read the words on the screen, once, by RapidOCR, as the modality `screen` of the gallery. Needs the "
            "extra `screen`.",
        ),
    ] = False
    language: Annotated[
        str | None,
        _reading(
            metavar="CODES",
            help="Which subtitles come first where a file has several: 'de,en'. A gallery has it from the beginning.",
        ),
    ] = None
    exclude: Annotated[
        Sequence[str],
        _reading(help="No such files and folders: 'drafts/**', '*.gif'; patterns as of `query --path`. Repeatable."),
    ] = ()
    hidden: Annotated[
        bool,
        _reading("--hidden", help="Of folders also what begins with a dot, and bins and other folders of systems."),
    ] = False
    ignore: Annotated[Sequence[str], _reading(help="Column of a list that is not used. Repeat for several.")] = ()
    on_error: Annotated[Literal["missing", "raise"], _reading(help="Count the unreadable as missing, or stop.")] = (
        "missing"
    )
    num_workers: Annotated[
        int | None,
        _reading(
            min=1,
            help="Clips read at a time, each by a decoder of its own; by default some more than there are processors.",
        ),
    ] = None
    limit: Limit = None

    def __post_init__(self) -> None:
        if self.segment_max is not None and self.segment != "scenes":
            raise ValueError("--segment-max is how long a scene is at most: it needs --segment scenes.")


@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """
    What is asked of a gallery: see the help of each field.

    Raises:
        ValueError: settings contradict each other, or one is out of its range.
    """

    gallery: Place
    texts: Annotated[
        Sequence[str],
        Argument(help="One or more queries. What one has in quotation marks must be said: 'a dog \"good boy\"'."),
    ] = ()
    like: Annotated[
        str | None,
        _query(
            help="In place of queries: a clip of the gallery, to find those most like it; or a picture or media file "
            "from elsewhere, which is embedded now."
        ),
    ] = None
    mask: Annotated[
        Sequence[str], _query(help="A modality that is not looked at: video, audio, subtitle, ... Repeatable.")
    ] = ()
    temperature: Annotated[
        float | None, _query(help="Of the query's weights: the lower, the more the best modality decides.")
    ] = None
    rerank: Annotated[
        int | None, _query(min=1, help="So many first hits are put in order by the model's cross-encoder: 50, say.")
    ] = None
    fusion_weight: Annotated[
        float | None,
        _query(help="With --rerank: order by the score and so many times the match, not the match alone."),
    ] = None
    path: Annotated[
        Sequence[str],
        _filter(
            help="Only clips of such files: 'holiday/**', '*.mkv'. From any folder on, unless it begins with /. "
            "Repeatable: one must fit."
        ),
    ] = ()
    min_duration: Annotated[float | None, _filter(help="Only clips, or windows, of at least so many seconds.")] = None
    max_duration: Annotated[float | None, _filter(help="Only clips, or windows, of at most so many.")] = None
    after: Annotated[
        str | None, _filter(help="Only files changed then or later: 2026-01-31, or 2026-01-31T18:00; UTC.")
    ] = None
    before: Annotated[str | None, _filter(help="Only files changed before this time.")] = None
    has: Annotated[Sequence[str], _filter(help="Only clips that have this modality. Repeatable.")] = ()
    lacks: Annotated[Sequence[str], _filter(help="Only clips that lack this modality. Repeatable.")] = ()
    per_file: Annotated[
        bool, _filter("--per-file", help="Of a gallery of windows, show each file once, by its best one.")
    ] = False
    unique: Annotated[
        bool, _filter("--unique", help="Show files of the same content once, and say how many copies there are.")
    ] = False
    model: Moved = None
    device: Device = None
    model_dtype: ModelDtype = None
    k: Annotated[int, Option("--k", min=1, help="Hits per query.")] = 5
    as_json: Annotated[bool, Option("--json", help="Print JSON, with full paths.")] = False

    def __post_init__(self) -> None:
        from gallery.querying import check_texts
        from gallery.reranking import check_weight
        from gallery.words import split_query
        from modeling_scalar.devices import device_of_name
        from modeling_scalar.scores_scalar import ScoreOptions

        device_of_name(self.device)
        if not self.texts and self.like is None:
            raise ValueError("There is no query. Type what you are looking for, or name a clip with --like.")
        if self.texts and self.like is not None:
            raise ValueError("--like takes the place of queries: give one of the two.")
        if self.rerank is not None and self.like is not None:
            raise ValueError("--rerank reads texts: it does not go with --like.")
        if self.rerank is None and self.fusion_weight is not None:
            raise ValueError("--fusion-weight is of the second stage: say with --rerank how many hits it reads.")
        if self.fusion_weight is not None:
            check_weight(self.fusion_weight)
        if self.temperature is not None:
            ScoreOptions(self.temperature)  # which refuses what cannot be one
        check_texts(list(self.texts))
        check_texts([split_query(text)[0] for text in self.texts])


def _print_sql(is_asked: bool) -> None:
    if is_asked:
        from .engine.scoring import FUNCTION

        echo(FUNCTION, nl=False)
        raise Exit


@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """What is pushed to a vector engine, see [`~search.engine.push.push`]."""

    gallery: ReadFolder
    address: Annotated[
        str,
        Argument(
            help="Of a collection of Qdrant: qdrant+http://HOST:6333/NAME, qdrant+https://HOST/NAME, or without a "
            "server qdrant+file:///FOLDER/NAME; QDRANT_API_KEY holds the key, if it needs one. Of a table of "
            "PostgreSQL: postgresql://[USER@]HOST/DATABASE/TABLE, of several nodes with commas between them; "
            "PGPASSWORD or ~/.pgpass holds the password."
        ),
    ]
    part: Annotated[str, Option(help="Name of this gallery, where several of one model lie in one collection.")] = ""
    rewrite: Annotated[
        bool, Option("--rewrite", help="Write what it holds already, too: repairs what was damaged in the engine.")
    ] = False
    print_sql: Annotated[
        bool,
        Option(
            "--print-sql",
            is_eager=True,
            callback=_print_sql,
            help="Print SCALAR's score as a function of PostgreSQL, for any table, and push nothing.",
        ),
    ] = False
    shards: Annotated[int | None, _new(min=1, help="Into how many it is cut; of Qdrant, as the next two.")] = None
    replicas: Annotated[int | None, _new(min=1, help="Copies of each shard.")] = None
    detail: Annotated[int, _new(min=1, max=6, help="How close bounds are; 2 is least memory, 4 short lists.")] = 3


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """
    What is served, to whom: see the help of each field.

    Raises:
        ValueError: settings contradict each other, or one is out of its range.
    """

    gallery: Place
    host: Annotated[str, _access(help="Address to listen on. Any but this machine's own needs a token.")] = "127.0.0.1"
    port: Annotated[int, _access(min=0, max=65535, help="Port to listen on; 0 for any that is free.")] = 8000
    token_file: Annotated[
        Path | None,
        _access(help="File of the token that requests must carry; by default SCALAR_SERVICE_TOKEN, if set."),
    ] = None
    public: Annotated[
        bool, _access("--public", help="Answer anybody, without a token, and let pages of other sites show this one.")
    ] = False
    hostname: Annotated[
        Sequence[str],
        _access(help="Name by which browsers call this machine, if they do not use its address. Repeatable."),
    ] = ()
    allow_uploads: Annotated[
        bool, _upload("--allow-uploads", help="Let the page add files, which are kept beside the gallery.")
    ] = False
    max_upload: Annotated[float, _upload(min=0.001, help="Of an uploaded file, in MB.")] = 1000
    upload_quota: Annotated[float, _upload(min=0.001, help="Of all uploaded files together, in MB.")] = 20_000
    limit: Limit = None
    model: Moved = None
    device: Device = None
    model_dtype: ModelDtype = None

    def __post_init__(self) -> None:
        from gallery.decoding import Limits
        from gallery.gallery import check_format

        # Not the device: a process that has asked for an accelerator cannot start the one that uses it.
        Limits.parse(self.limit or [])
        of_uploads = [field for field in fields(self) if field.name in ("max_upload", "upload_quota", "limit")]
        given = [field.name for field in of_uploads if getattr(self, field.name) != field.default]
        if given and not self.allow_uploads:
            raise ValueError(
                f"--{given[0].replace('_', '-')} is about files that are added: it needs --allow-uploads."
            )
        if self.allow_uploads and is_address(self.gallery):
            raise ValueError(
                "--allow-uploads needs a gallery in a folder. Index files into one, and push it: `scalar push`."
            )
        if self.allow_uploads:
            check_format(_folder(Path(self.gallery)))


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """What is told of a gallery."""

    gallery: ReadFolder
    missing: Annotated[
        Sequence[str],
        Option(help="Print the names of the clips without it, and no more. Repeat for those without several."),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class RemoveConfig:
    """What is taken out of a gallery, see [`~search.vanished.remove`]."""

    gallery: Folder
    paths: Annotated[Sequence[Path], Argument(help="Files, and folders with all files below them, there or not.")]


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """A gallery that is read."""

    gallery: ReadFolder


@dataclass(frozen=True, kw_only=True)
class GalleryConfig:
    """A gallery that is changed, of which nothing else need be said."""

    gallery: Folder


__all__ = [
    "DEFAULT_MODEL",
    "GalleryConfig",
    "IndexConfig",
    "InfoConfig",
    "PushConfig",
    "QueryConfig",
    "RemoveConfig",
    "ServeConfig",
    "VerifyConfig",
]
