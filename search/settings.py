"""Settings of the search commands: one field per option, with its help; the command line is made from them.

Imports nothing slow, so `--help` is quick. Settings are checked when they are created.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Exit, Option, echo

from scalar_retrieval.commands.extras import check_installed
from scalar_retrieval.commands.options import MODEL, READING, Given, Limit

from .addresses import TableAddress, is_address, is_service
from .checks import check_folder, check_model, check_output, check_segment, check_tools, find_readable

if TYPE_CHECKING:
    from scalar_retrieval.gallery.filters import Filter
    from scalar_retrieval.gallery.searcher import Searcher

LEAST_TEMPERATURE = 1e-6
"""The lowest temperature of modality weights."""
TOKEN_VARIABLE = "SCALAR_SERVICE_TOKEN"
"""The environment variable with the token of a service."""

# Options by the heading under which `--help` lists them
_model = partial(Option, rich_help_panel=MODEL)
_reading = partial(Option, rich_help_panel=READING)
_gallery = partial(Option, rich_help_panel="Gallery")
_query = partial(Option, rich_help_panel="Query")
_filter = partial(Option, rich_help_panel="Filters")
_access = partial(Option, rich_help_panel="Access")


def read_token() -> str | None:
    """Read the token from the environment, as other users can see command lines; `None` if there is none."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


def open_searcher(place: str, timeout: float = 60) -> "Searcher":
    """
    Open a gallery for searching.

    Args:
        place (`str`): a folder, a published gallery, or the address of a table, see
            [`~scalar_retrieval.search.addresses.TableAddress`].
        timeout (`float`): seconds that a server of PostgreSQL has for an answer.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: the address is invalid, or something else is there.
        OSError: the server does not answer.
    """
    if is_address(place):
        from .postgresql import DatabaseTable, TableSearcher

        return TableSearcher(DatabaseTable(TableAddress.parse(place), timeout))
    from scalar_retrieval.gallery.gallery import Gallery

    return Gallery.open(place).searcher


# Checks of arguments, which return what a command works with ---------------------------------------------------------


def _names(text: str) -> list[str]:
    """Names, separated by commas."""
    return [name.strip() for name in text.split(",")]


def _check_address(address: str) -> str:
    """Refuse what is not the address of a table."""
    TableAddress.parse(address)
    check_installed("psycopg")
    return address


def _read_place(place: str) -> str:
    """The address of a table, or the folder of a gallery to read."""
    if is_address(place):
        return _check_address(place)
    return str(find_readable(place))


def _check_place(place: str) -> str:
    """Refuse a place without a gallery; a published one is looked for when it is opened."""
    from scalar_retrieval.gallery.store.places import is_published

    if not is_published(place):
        _read_place(place)
    return place


def _check_paths(paths: Sequence[Path]) -> Sequence[Path]:
    """Refuse files and folders that are not there."""
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
    return paths


# Settings, one class for each command --------------------------------------------------------------------------------

# Fields shared by several of them
Folder = Annotated[Path, Argument(help="Folder of the gallery."), Given(Path, check_folder)]
ReadFolder = Annotated[
    Path,
    Argument(help="Folder of the gallery, or a published gallery: hf://datasets/USER/NAME."),
    Given(Path, find_readable),
]
_PLACE = Argument(
    metavar="GALLERY",
    help="Folder of the gallery, a published gallery (hf://datasets/USER/NAME), or the address of a table (see "
    "`push`).",
)
Moved = Annotated[
    str | None,
    _model(help="Path or Hub id of the gallery's model, if it has moved."),
    Given(str | None, check_model),
]


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """
    Settings of `scalar index`: arguments of [`~scalar_retrieval.search.index_folder.index`].

    Raises:
        FileNotFoundError: the speech recognition model has no possible name.
        ModuleNotFoundError: a package that they need is not installed.
        ValueError: a limit is invalid.
    """

    paths: Annotated[
        Sequence[Path],
        Argument(
            help="Folders, media files (of any extension), and lists of files: CSV, JSON, JSONL, Parquet, or a "
            "saved data set, with a column `path`."
        ),
        Given(list[Path], _check_paths),
    ]
    output: Annotated[
        Path, _gallery(help="Folder of the gallery; an existing one is updated."), Given(Path, check_output)
    ]
    segment: Annotated[
        float | Literal["scenes", "none"] | None,
        _gallery(
            metavar="scenes|SECONDS|none",
            help="How longer files are cut into windows, each of which is a clip: at chapters or else scenes, at most "
            "a minute long (the default), into windows of this length, or not at all. New galleries only.",
        ),
        Given(str, check_segment),
    ] = None
    text: Annotated[
        Sequence[str],
        _gallery(
            help="Text modality of a new gallery, such as `title`: the column of this name in a list, or for titles "
            "the file's tags. Repeatable."
        ),
    ] = ()
    prune: Annotated[
        bool,
        _gallery(
            "--prune",
            help="Remove the clips of deleted files, but only if their nearest existing folder still contains other "
            "files of the gallery: a drive may be unmounted.",
        ),
    ] = False
    watch: Annotated[
        bool, _gallery("--watch", help="Run until Ctrl-C; index new and changed files as soon as they are complete.")
    ] = False
    model: Annotated[
        str | None,
        _model(
            help="Model or adapter: a folder, a Hub id, or several encoders, A+B+C. By default the gallery's own; for "
            "a new one `light`, without a download: pictures by what it recognises in them, texts in sixteen "
            "languages. Beyond it openai/clip-vit-base-patch32+laion/clap-htsat-unfused"
            "+sentence-transformers/all-MiniLM-L6-v2 (pictures, sound, English texts; 1.3 GB, a second a clip on a "
            "CPU) and google/embeddinggemma-2 (3 GB, half a minute a clip)."
        ),
        Given(str | None, check_model),
    ] = None
    cluster: Annotated[
        str | None,
        _model(
            metavar="ADDRESS",
            help="Read and embed on the workers of the Dask scheduler at this address, such as tcp://10.0.0.5:8786. "
            "Needs the extra `cluster`.",
        ),
    ] = None
    transcribe: Annotated[
        str | None,
        _model(
            metavar="[MODEL]",
            help="Transcribe clips that have sound but no subtitles, once each, with a speech recognition model of "
            "transformers or for faster-whisper: a folder or a Hub id. Without MODEL, as the last option, with one "
            "that was downloaded before.",
        ),
        Given(str, can_be_bare=True),
    ] = None
    words_of: Annotated[
        Path | None,
        _gallery(
            metavar="GALLERY",
            help="Another gallery of the same files, whose transcripts, on-screen text and titles are used again.",
        ),
        Given(Path | None, find_readable),
    ] = None
    read_text: Annotated[
        bool,
        _model(
            "--read-text",
            help="Read on-screen text with RapidOCR, once per file, into the modality `screen`. Needs the extra "
            "`screen`.",
        ),
    ] = False
    exclude: Annotated[
        Sequence[str],
        _reading(help="Files and folders to skip: 'drafts/**', '*.gif'; patterns as in `query --path`. Repeatable."),
    ] = ()
    pictures: Annotated[
        bool,
        _reading(
            "--pictures",
            help="Also embed the pictures in folders (JPEG, PNG, WebP, AVIF, HEIC, TIFF, BMP), each as a film of one "
            "frame. Pictures that are named need no option.",
        ),
    ] = False
    limits: Limit = ()

    def __post_init__(self) -> None:
        from scalar_retrieval.gallery.decoding import Limits

        # Wrong limits and models, and missing packages, are reported before anything is read.
        Limits.parse(self.limits)
        check_tools(self.transcribe, self.read_text, self.cluster)


CONDITIONS = ("min_duration", "max_duration", "after", "before", "has", "lacks")
"""The fields of a query that are conditions on clips, next to `path`; the API has the same names."""
_NEEDS_GALLERY = ("like", "rerank", "fusion_weight", "model")


@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """
    Settings of `scalar query`: see the help of each field.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: settings contradict each other, or one is out of its range.
    """

    gallery: Annotated[
        str,
        Argument(
            metavar="GALLERY",
            help=f"{_PLACE.help} Or a running service, such as http://127.0.0.1:8000; the token, if it needs one, is "
            f"read from {TOKEN_VARIABLE}.",
        ),
    ]
    texts: Annotated[
        Sequence[str],
        Argument(help="One or more queries. Words in quotation marks must be in the clip: 'a dog \"good boy\"'."),
    ] = ()
    like: Annotated[
        str | None,
        _query(help="Clip of the gallery, or any picture or media file, to search by instead of texts."),
    ] = None
    modalities: Annotated[
        Sequence[str] | None,
        _query(metavar="NAME,...", help="Modalities to search, such as video,title; by default all."),
        Given(str | None, _names),
    ] = None
    query_temperature: Annotated[
        float | None,
        _query(
            min=LEAST_TEMPERATURE,
            help="Temperature of the modality weights. Lower values favour the single best-matching modality.",
        ),
    ] = None
    rerank: Annotated[
        int | None, _query(min=1, help="Number of top hits to rerank with the cross-encoder, such as 50.")
    ] = None
    fusion_weight: Annotated[
        float | None, _query(min=0, help="With --rerank: order by score + WEIGHT x match, not by match alone.")
    ] = None
    path: Annotated[
        Sequence[str],
        _filter(
            help="Pattern of file paths: 'holiday/**', '*.mkv'. Matches below any folder, unless it starts with /. "
            "Repeatable; one must match."
        ),
    ] = ()
    min_duration: Annotated[float | None, _filter(help="Minimum length of clips in seconds.")] = None
    max_duration: Annotated[float | None, _filter(help="Maximum length of clips in seconds.")] = None
    after: Annotated[
        str | None,
        _filter(
            help="Only files recorded at or after this UTC time: 2026-01-31 or 2026-01-31T18:00. The date is that of "
            "the file's tags, else of its name, else of its last change."
        ),
    ] = None
    before: Annotated[str | None, _filter(help="Only files recorded before this UTC time.")] = None
    has: Annotated[Sequence[str], _filter(help="Modality that clips must have. Repeatable.")] = ()
    lacks: Annotated[Sequence[str], _filter(help="Modality that clips must lack. Repeatable.")] = ()
    per_file: Annotated[bool, _filter("--per-file", help="Show only the best window of each file.")] = False
    unique: Annotated[bool, _filter("--unique", help="Show identical files once, with the number of copies.")] = False
    model: Moved = None
    k: Annotated[int, Option("-k", "--k", min=1, help="Number of hits per query.")] = 5
    sort: Annotated[
        Literal["score", "date"],
        Option(help="Order of the hits, which are always chosen by score; `date` shows the newest first."),
    ] = "score"
    as_json: Annotated[bool, Option("--json", help="Print JSON, with full paths.")] = False

    def __post_init__(self) -> None:
        # There are either texts or an example.
        if not self.texts and self.like is None:
            raise ValueError("There is no query. Type what you are looking for, or name a clip with --like.")
        if self.texts and self.like is not None:
            raise ValueError("Give either queries or --like, not both.")
        if self.rerank is not None and self.like is not None:
            raise ValueError("--rerank needs a text query: it cannot be combined with --like.")
        if self.rerank is None and self.fusion_weight is not None:
            raise ValueError("--fusion-weight needs --rerank, the number of hits to rerank.")
        if not is_service(self.gallery):
            from scalar_retrieval.gallery.filters import split_queries

            _check_place(self.gallery)
            self.filter()
            split_queries(self.texts)
            return
        # A service has the gallery, so options that need it here are refused.
        for name in _NEEDS_GALLERY:
            if getattr(self, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs the gallery itself; a service cannot be asked.")

    def filter(self) -> "Filter":
        """The conditions that hits must meet; raises a ValueError if no clip could."""
        from scalar_retrieval.gallery.filters import Filter

        return Filter(self.path, **{name: getattr(self, name) for name in CONDITIONS})


def _give_sql(folder: str | None) -> None:
    if folder is None:
        return
    if folder:
        from .push import write_extension

        write_extension(folder)
        echo(f"Wrote scalar.control and scalar--1.sql to {folder}.")
    else:
        from .postgresql import SCHEMA

        echo(SCHEMA, nl=False)
    raise Exit


@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """Settings of `scalar push`, see [`~scalar_retrieval.search.push.push`]."""

    gallery: ReadFolder
    address: Annotated[
        str,
        Argument(
            help="Table: postgresql://[USER@]HOST[:PORT]/DATABASE/[SCHEMA.]TABLE; the password is read from "
            "PGPASSWORD or ~/.pgpass."
        ),
        Given(str, _check_address),
    ]
    nodes: Annotated[
        Sequence[str] | None,
        Option(
            metavar="HOST,...",
            help="Of a new table: servers that it is partitioned over, HOST or HOST:PORT, separated by commas. Prints "
            "the SQL that it runs.",
        ),
        Given(str | None, _names),
    ] = None
    sql: Annotated[
        str | None,
        Option(
            metavar="[FOLDER]",
            is_eager=True,
            callback=_give_sql,
            help="Push nothing: print SCALAR's score and the list of the best as SQL for any table, or write them "
            "into FOLDER as the two files of an extension, which nodes need.",
        ),
        Given(str | None, can_be_bare=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Settings of `scalar serve`: see the help of each field."""

    gallery: Annotated[str, _PLACE, Given(str, _check_place)]
    host: Annotated[
        str,
        _access(
            help="Address to listen on. Any but a loopback address needs a token, which requests must carry and "
            f"{TOKEN_VARIABLE} holds."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, _access(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8000
    public: Annotated[
        bool, _access("--public", help="Answer anybody, without a token; other sites may embed the page.")
    ] = False
    hostname: Annotated[
        Sequence[str],
        _access(help="Hostname that browsers use for this machine, if not its address. Repeatable."),
    ] = ()
    model: Moved = None


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """Settings of `scalar info`."""

    gallery: ReadFolder


@dataclass(frozen=True, kw_only=True)
class RemoveConfig:
    """Settings of `scalar remove`, see [`~scalar_retrieval.search.vanished.remove`]."""

    gallery: Folder
    paths: Annotated[Sequence[Path], Argument(help="Files, and folders with everything below them, existing or not.")]


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Settings of `scalar verify`."""

    gallery: Annotated[str, _PLACE, Given(str, _read_place)]


@dataclass(frozen=True, kw_only=True)
class GalleryConfig:
    """Settings of commands that change a gallery and need nothing else."""

    gallery: Folder


__all__ = [
    "CONDITIONS",
    "GalleryConfig",
    "IndexConfig",
    "InfoConfig",
    "PushConfig",
    "QueryConfig",
    "RemoveConfig",
    "ServeConfig",
    "TOKEN_VARIABLE",
    "VerifyConfig",
    "open_searcher",
    "read_token",
]
