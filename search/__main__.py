"""The command line: `scalar index`, `query`, `push`, `serve`, `info`, `verify`, `repair` and `compact`.

Libraries load inside the commands, so that `--help` is quick.
"""

import commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is heard from here on)

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from commands.errors import Commands, run_command, say, show
from commands.options import Device, Limit, ModelDtype

if TYPE_CHECKING:
    import torch

    from gallery.gallery import Gallery, GalleryWriter
    from gallery.hits import Hits
    from gallery.searching import Searcher
    from modeling_scalar import ScalarProcessor

    from .indexing import IndexReport
    from .speech import SpeechRecognizer

app = typer.Typer(
    cls=Commands, help="Search your own videos by text.", no_args_is_help=True, add_completion=False,
    rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def _folder(path: Path) -> Path:
    """Refuse an address where a folder is expected."""
    from gallery.published import is_published

    from .engine.address import is_address

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


def _read_folder(path: Path) -> Path:
    """The folder of a gallery that is only read: a published one is downloaded."""
    from gallery.published import folder_of, is_published

    return folder_of(path) if is_published(path) else _folder(path)


_Gallery = Annotated[Path, typer.Argument(help="Folder of the gallery.", callback=_folder)]
_ReadGallery = Annotated[
    Path,
    typer.Argument(
        help="Folder of the gallery, or the address of a published one, hf://datasets/USER/NAME.",
        callback=_read_folder,
    ),
]
_Place = Annotated[
    str,
    typer.Argument(
        metavar="GALLERY",
        help="Folder of the gallery, or the address of a collection that `push` made, or of a published gallery, "
        "hf://datasets/USER/NAME.",
    ),
]

_DEFAULT_MODEL = "google/embeddinggemma-2"
_INTERVAL = 5.0


class OnError(StrEnum):
    """What to do about a stream or a file that cannot be read."""

    MISSING = "missing"
    RAISE = "raise"


Modality = StrEnum("Modality", ["video", "audio", "subtitle"])
"""What a clip may lack; typer takes no list of literals."""


def _told_of_cut(files: list[str], segment: float | None, heard: float) -> str:
    """Say that the end of some sound is left out, and what has all of it."""
    name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    if segment is not None and segment <= heard:
        return (
            f"longer than the header says: {name} could not be cut as long as it is, and the sound after the first "
            f"{heard:g} s of a window is left out; a copy by `ffmpeg -i FILE -c copy NEW` says how long it is"
        )
    what = "the sound" if segment is None else "in windows the sound"
    return (
        f"longer than the model hears: of {name}, {what} after the first {heard:g} s is left out; a new gallery with "
        f"--segment {heard:g} has all of it"
    )


def _counts_of(report: "IndexReport") -> str:
    counts = {name: len(getattr(report, name)) for name in ("new", "changed", "unchanged", "unreadable")}
    kept = len(report.doubtful)
    fates = {"out of reach": len(report.out_of_reach)}
    fates |= {"removed": len(report.vanished) - kept, "gone but kept": kept} if report.pruned else {}
    counts |= {name: count for name, count in fates.items() if count}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _print_report(report: "IndexReport", gallery: "Gallery", output: Path, heard: float) -> None:
    from gallery.windows import SEGMENT
    from modeling_scalar.configuration_scalar import MODALITIES

    show(f"{_counts_of(report)}; {len(gallery)} clips in the gallery")
    if report.transcribed:
        show(f"of {len(report.transcribed)} files of this run, the subtitles are transcripts made by machine")
    old = set(report.not_retried)
    if num_old := sum(failure.path in old for failure in report.unreadable):
        have = "has" if num_old == 1 else "have"
        show(f"{num_old} of the unreadable failed before and {have} not changed: not tried again")
    dropped = set(report.dropped)
    for failure in report.unreadable:
        fate = ", and its clips are removed" if failure.path in dropped else ""
        show(f"unreadable{fate}: {failure.path}: {failure.reason}")
    for path, problems in report.problems.items():
        told = "; ".join(problem.rstrip(".") for problem in problems)
        fate = ". It failed before and has not changed: not tried again." if path in old else ""
        show(f"partly read: {path}: {told}{fate}")
    if report.cut:
        show(_told_of_cut(report.cut, gallery.metadata.get(SEGMENT), heard))
    for path, why in report.out_of_reach.items():
        show(f"out of reach, its clips are kept: {path}: {why}")
    doubtful = set(report.doubtful)
    for path in report.vanished:
        flag = "--prune-all" if path in doubtful else "--prune"
        fate = "removed" if report.pruned and path not in doubtful else f"kept, {flag} removes it"
        show(f"gone from disk ({fate}): {path}")
    if doubtful:
        show(f"nothing is left where {len(doubtful)} of these files lay: a drive may be away, so --prune keeps them")
    lacking = (~gallery.modality_mask).sum(dim=0).tolist() if len(gallery) else []
    if told := [f"{count} without {name}" for name, count in zip(MODALITIES, lacking, strict=False) if count]:
        first = MODALITIES[lacking.index(max(lacking))]
        command = f"scalar info {quote(str(output))} --missing {first}"
        show(f"in the gallery, {', '.join(told)}; `{command}` names them")


def _default_model(output: Path) -> str:
    """The model of a gallery that is there, or the one that needs no training."""
    from gallery.gallery import Gallery, is_gallery

    found = Gallery.open(output) if is_gallery(output) else None
    if found is None or (found.model is None and not len(found)):
        return _DEFAULT_MODEL
    if found.model is None:
        raise ValueError(f"{output} does not say which model made it. Name it with --model.")
    return found.model


def _announce(model: str) -> None:
    """Say what is about to be downloaded, if anything is."""
    from gallery.provenance import pending_download

    download = pending_download(model)
    if download is not None:
        size = "" if download.num_parameters is None else f" with {download.num_parameters:,} parameters"
        say(
            f"The model {model}{size} is not here yet. {download.num_bytes / 1e9:.2f} GB in {download.num_files} "
            f"files are downloaded, once, from {download.host} to {download.folder}. Later runs need no network: "
            "with HF_HUB_OFFLINE=1 they do not ask for one. --model takes a folder, too."
        )


def _recognizer(model: str, processor: "ScalarProcessor", device: "torch.device") -> "SpeechRecognizer":
    from modeling_scalar.configuration_scalar import MODALITIES
    from modeling_scalar.model_identity import identify

    from .speech import SpeechRecognizer

    if "subtitle" not in getattr(processor, "modalities", MODALITIES):
        raise ValueError("`--transcribe` makes subtitles, of which the model of this gallery takes none.")
    return SpeechRecognizer(str(identify(model).download()), model, device)


def _choose_segment(writer: "GalleryWriter", segment: float | None, has_clips: bool) -> None:
    """Keep in the metadata how long windows are; a gallery that holds clips has it once and for all."""
    from gallery.windows import SEGMENT

    found = writer.metadata.get(SEGMENT)
    if segment is None or segment == found:
        return
    if has_clips:
        kind = "whole files" if found is None else f"windows of {found:g} seconds"
        raise ValueError(f"{writer.folder} holds {kind}. Leave --segment away, or index into a new gallery.")
    writer.metadata = writer.metadata | {SEGMENT: segment}


@app.command()
def index(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folders, files, and lists of files: CSV, JSONL, Parquet, or a saved data set, with a column `path`. "
            "Media files named here may have any other extension."
        ),
    ],
    output: Annotated[
        Path, typer.Option(help="Folder of the gallery; an existing one is brought up to date.", callback=_folder)
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Model or adapter: a folder, or a Hub id. By default that of the gallery, or for a new one "
            f"{_DEFAULT_MODEL}."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Clips embedded at a time.")] = 8,
    on_error: Annotated[OnError, typer.Option(help="Count the unreadable as missing, or stop.")] = OnError.MISSING,
    recursive: Annotated[bool, typer.Option(help="Look into subfolders.")] = True,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Column of a list that is not used. Repeat for several.")
    ] = None,
    device: Device = None,
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        typer.Option(help="Precision of a new gallery, by default float16.", show_default=False),
    ] = None,
    model_dtype: ModelDtype = None,
    num_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Clips read at a time, each by a decoder of its own; by default some more than there are processors.",
        ),
    ] = None,
    segment: Annotated[
        float | None,
        typer.Option(
            min=1, help="Cut longer files into windows of so many seconds, each a clip of its own; of a new gallery."
        ),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove clips whose file is gone from disk.")] = False,
    prune_all: Annotated[
        bool,
        typer.Option("--prune-all", help="As --prune, also where nothing is left of a folder: a drive may be away."),
    ] = False,
    transcribe: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Write down what is said in clips with sound and without subtitles, once, by a model of transformers "
            "for automatic speech recognition: a folder, or a Hub id.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on until Ctrl-C: index what is new or changed as soon as it is whole.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="With --watch, seconds from one look to the next: a file is read once it looks the same twice. "
            f"By default {_INTERVAL:g}.",
        ),
    ] = None,
    limit: Limit = None,
) -> None:
    """Embed new and changed files into a gallery; the rest of the gallery is kept."""
    from gallery.decoding import Limits, sandboxed
    from gallery.embedding import batches_ahead
    from gallery.gallery import Gallery, GalleryWriter, check_format, is_gallery
    from gallery.parallel import device_of, num_local_processes, start_launched, together
    from gallery.provenance import describe
    from gallery.storage import check_place
    from modeling_scalar import load_model
    from modeling_scalar.devices import device_of_name, dtype_of_name, said_of
    from modeling_scalar.model_identity import identify

    from .crew import Crew
    from .indexing import IndexReport, default_workers, find_files, help_index, index_files, memory_of_decoders
    from .known import Known
    from .sources import find_clips, is_list
    from .watching import watch as watch_files

    prune = prune or prune_all
    state = start_launched()
    is_main = state is None or state.is_main_process
    with nullcontext() if state is None else together(state):
        if interval is not None and not watch:
            raise ValueError("`--interval` is for `--watch`, which looks at folders again and again.")
        if watch and (lists := [str(path) for path in paths if is_list(path)]):
            raise ValueError(
                f"`--watch` looks at folders and files, not at lists, got {lists}. Index lists without it."
            )
        if state is not None and (watch or device not in (None, "cpu")):
            name = "--watch" if watch else "--device"
            raise ValueError(f"`{name}` is for one process, and several were launched. Leave it away.")
        place = device_of_name(device) if state is None or device is not None else device_of(state)
        num_workers = num_workers or default_workers(num_local_processes())
        limits = Limits.parse(limit or [], memory=memory_of_decoders(num_workers, num_local_processes()))
        if is_main:
            if prune and (missing := [str(path) for path in paths if not path.exists()]):
                raise FileNotFoundError(
                    f"There is no file or folder {missing[0]!r}. If it was deleted, give any other folder in its "
                    "place, such as an empty one: all files of the gallery are looked for. Where nothing is left of "
                    "their folder, only `--prune-all` removes their clips."
                )
            files, subtitles = find_clips(paths, recursive, ignore or [])
            if not files and not prune and not watch:
                raise ValueError(f"No video or audio file in {', '.join(repr(str(path)) for path in paths)}.")
            # All that can be wrong is told before the model is loaded, which takes longest.
            check_format(output)
            if not is_gallery(output):
                check_place(output)
            elif dtype is not None and (held := Gallery.open(output).dtype) not in (None, dtype):
                raise ValueError(f"{output} holds vectors in {held}. Leave --dtype away, or index into a new gallery.")
            model = model or _default_model(output)
            _announce(model)
            fingerprint = identify(model).fingerprint
            if is_gallery(output):
                Gallery.open(output).check_model(model, fingerprint, must_know=True)
            if transcribe is not None:
                _announce(transcribe)
                identify(transcribe).download()
    with nullcontext() if state is None else together(state):  # the first process has downloaded the models
        model = model or _default_model(output)
        identity = identify(model)
        network, processor = load_model(identity.download(), dtype_of_name(model_dtype), place)
        processor = sandboxed(processor, limits)
        recognizer = None if transcribe is None else _recognizer(transcribe, processor, network.device)
    crew = None if state is None else Crew(state, batches_ahead(batch_size, num_workers))
    if not is_main:
        options = {"recognizer": recognizer, "num_workers": num_workers, "on_error": on_error.value}
        help_index(crew, output, network, processor, **options)
        return
    several = "" if state is None else f" by {state.num_processes} processes"
    say(f"{model}: {said_of(network)}{several}.")
    with GalleryWriter(output, dtype or "float16") as writer:
        if not writer.metadata:
            writer.metadata = describe(network, identity.download()) | {"model": identity.name}
        there = writer.gallery()
        there.check_model(model, fingerprint, must_know=True)  # another process may have begun it
        _choose_segment(writer, segment, len(there) > 0)
        report, known = IndexReport(), Known(there)

        def update(files: list[str], vanished: list[str] | None = None) -> None:
            latest = IndexReport()
            try:
                index_files(
                    files,
                    writer,
                    network,
                    processor,
                    subtitles=subtitles,
                    recognizer=recognizer,
                    batch_size=batch_size,
                    num_workers=num_workers,
                    on_error=on_error.value,
                    prune=prune,
                    prune_all=prune_all,
                    progress=True,
                    report=latest,
                    crew=crew,
                    known=known,
                    vanished=vanished,
                )
            finally:
                report.add(latest)
            if watch and (latest.new or latest.changed or latest.unreadable or (prune and latest.vanished)):
                say(_counts_of(latest))

        if watch:
            say(
                f"Watching {', '.join(map(str, paths))}. The gallery can be searched meanwhile, but nothing else can "
                "write to it until Ctrl-C ends this."
            )
            with suppress(KeyboardInterrupt):
                watch_files(lambda: find_files(paths, recursive), update, interval or _INTERVAL, prune)
        else:
            update(files)
        gallery = writer.gallery()
    _print_report(report, gallery, output, processor.max_audio_seconds)
    if report.unreadable and not watch and not (report.new or report.changed or report.unchanged):
        say("None of these files could be read.")
        raise typer.Exit(1)


def _open(place: str, context: typer.Context, is_patient: bool = True) -> "Searcher":
    """The search of a folder, or of a vector engine; who is patient waits for one that does not answer."""
    from gallery.gallery import Gallery

    from .engine.address import is_address, parse_address

    if not is_address(place):
        return Gallery.open(place).searcher
    from .engine.asking import EngineSearcher
    from .engine.collection import Collection

    address = parse_address(place)
    collection = Collection.at(address, is_patient, is_new=False)
    context.call_on_close(collection.close)
    return EngineSearcher(collection, str(address))


@app.command()
def query(
    context: typer.Context,
    gallery: _Place,
    texts: Annotated[list[str] | None, typer.Argument(help="One or more queries.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Hits per query.")] = 5,
    model: Annotated[str | None, typer.Option(help="Where the gallery's model is now, if not where it was.")] = None,
    device: Device = None,
    model_dtype: ModelDtype = None,
    like: Annotated[
        str | None, typer.Option(help="In place of queries: a clip of the gallery, to find those most like it.")
    ] = None,
    mask: Annotated[
        list[str] | None, typer.Option(help="A modality that is not looked at: video, audio or subtitle. Repeatable.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the query's weights: the lower, the more the best modality decides.")
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option(
            help="Only clips of such files: 'holiday/**', '*.mkv'. From any folder on, unless it begins with /. "
            "Repeatable: one must fit."
        ),
    ] = None,
    min_duration: Annotated[
        float | None, typer.Option(help="Only clips, or windows, of at least so many seconds.")
    ] = None,
    max_duration: Annotated[float | None, typer.Option(help="Only clips, or windows, of at most so many.")] = None,
    after: Annotated[
        str | None,
        typer.Option(help="Only files changed then or later: 2026-01-31, or 2026-01-31T18:00; UTC."),
    ] = None,
    before: Annotated[str | None, typer.Option(help="Only files changed before this time.")] = None,
    has: Annotated[list[Modality] | None, typer.Option(help="Only clips that have it. Repeatable.")] = None,
    lacks: Annotated[list[Modality] | None, typer.Option(help="Only clips that lack it. Repeatable.")] = None,
    per_file: Annotated[
        bool, typer.Option("--per-file", help="Of a gallery of windows, show each file once, by its best one.")
    ] = False,
    rerank: Annotated[
        int | None,
        typer.Option(min=1, help="So many first hits are put in order by the model's cross-encoder: 50, say."),
    ] = None,
    fusion_weight: Annotated[
        float | None,
        typer.Option(help="With --rerank: order by the score and so many times the match, not the match alone."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with full paths.")] = False,
) -> None:
    """Print the best clips of each query and the weight of each modality in each."""
    from dataclasses import asdict

    from gallery.filters import Filter
    from gallery.hits import remarks_of
    from gallery.querying import check_texts
    from gallery.reranking import check_weight
    from modeling_scalar.configuration_scalar import MODALITIES
    from modeling_scalar.devices import device_of_name
    from modeling_scalar.scores_scalar import ScoreOptions

    from .engine.address import is_address

    # All that can be wrong is told before the model is loaded, which takes longest.
    device_of_name(device)
    if not texts and like is None:
        raise ValueError("There is no query. Type what you are looking for, or name a clip with --like.")
    if texts and like is not None:
        raise ValueError("--like takes the place of queries: give one of the two.")
    if rerank is not None and like is not None:
        raise ValueError("--rerank reads texts: it does not go with --like.")
    if rerank is None and fusion_weight is not None:
        raise ValueError("--fusion-weight is of the second stage: say with --rerank how many hits it reads.")
    if fusion_weight is not None:
        check_weight(fusion_weight)
    if temperature is not None:
        ScoreOptions(temperature)  # which refuses what cannot be one
    check_texts(texts or [])
    seen = [name for name in MODALITIES if name not in (mask or ())]
    if not seen or not set(mask or ()) <= set(MODALITIES):
        raise ValueError(f"--mask takes one or two of {', '.join(MODALITIES)}, got {', '.join(mask or ())}.")
    wanted = Filter(path or (), min_duration, max_duration, after, before, has or (), lacks or ())
    opened = _open(gallery, context)
    if is_address(gallery):
        opened.check_asked(rerank, wanted)
    options = {"modalities": seen, "allowed": wanted, "per_file": per_file}
    if like is None:
        opened.load_model(model, device, model_dtype)
        results = opened.search(texts, k, temperature, rerank=rerank, fusion_weight=fusion_weight, **options)
    else:
        results = [opened.search(None, k, temperature, like=opened.clip_named(like), **options)]
    for remark in remarks_of(results):
        say(remark)
    if as_json:

        def told(hits: "Hits") -> list[dict]:
            table = [hits.place_of(hit)._asdict() | asdict(hit) for hit in hits]
            left_out = {"key", "place"} if rerank else {"key", "place", "match"}
            return [{name: row[name] for name in row if name not in left_out} for row in table]

        asked = [{"query": text} for text in texts] if like is None else [{"like": like}]
        numbers = ("certainty", "num_clips", "num_allowed", "num_scored")
        answers = [
            of | {"hits": told(hits)} | {name: getattr(hits, name) for name in numbers}
            for of, hits in zip(asked, results, strict=True)
        ]
        typer.echo(json.dumps(answers, indent=2))
        return
    for hits in results:
        show(*hits.lines(sys.stdout.encoding or "ascii"))


@app.command()
def push(
    gallery: _ReadGallery,
    address: Annotated[
        str,
        typer.Argument(
            help="Of a collection of Qdrant: qdrant+http://HOST:6333/NAME, qdrant+https://HOST/NAME, or without a "
            "server qdrant+file:///FOLDER/NAME. QDRANT_API_KEY holds the key, if it needs one."
        ),
    ],
    part: Annotated[
        str, typer.Option(help="Name of this gallery, where several of one model lie in one collection.")
    ] = "",
    shards: Annotated[int | None, typer.Option(min=1, help="Of a new collection: into how many it is cut.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Of a new collection: copies of each shard.")] = None,
    detail: Annotated[
        int,
        typer.Option(
            min=1, max=6, help="Of a new collection: how close bounds are; 2 is least memory, 4 short lists."
        ),
    ] = 3,
    rewrite: Annotated[
        bool,
        typer.Option("--rewrite", help="Write what it holds already, too: repairs what was damaged in the engine."),
    ] = False,
) -> None:
    """Make a collection of a vector engine hold what a gallery holds; what it holds already is left alone."""
    from contextlib import closing

    from gallery.gallery import Gallery

    from .engine.address import parse_address
    from .engine.collection import Collection
    from .engine.push import push as push_gallery

    place, opened = parse_address(address), Gallery.open(gallery)
    with closing(Collection.at(place)) as collection:
        report = push_gallery(opened, collection, part, shards, replicas, detail, progress=True, rewrite=rewrite)
        counts = ", ".join(f"{count} {name}" for name, count in vars(report).items())
        held = len(collection)
        show(f"{counts}; {'about ' if collection.is_estimate(held) else ''}{held} clips in the collection")


@app.command()
def serve(
    context: typer.Context,
    gallery: _Place,
    host: Annotated[str, typer.Option(help="Address to listen on. Any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File of the token that requests must carry; by default SCALAR_SERVICE_TOKEN, if set."),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Answer anybody, without a token, and let pages of other sites show this one."),
    ] = False,
    hostname: Annotated[
        list[str] | None,
        typer.Option(help="Name by which browsers call this machine, if they do not use its address. Repeatable."),
    ] = None,
    allow_uploads: Annotated[
        bool, typer.Option("--allow-uploads", help="Let the page add files, which are kept beside the gallery.")
    ] = False,
    max_upload: Annotated[float, typer.Option(min=0.001, help="Of an uploaded file, in MB.")] = 1000,
    upload_quota: Annotated[float, typer.Option(min=0.001, help="Of all uploaded files together, in MB.")] = 20_000,
    max_uploads: Annotated[int, typer.Option(min=1, help="How many uploaded files are kept.")] = 1000,
    model: Annotated[str | None, typer.Option(help="Where the gallery's model is now, if not where it was.")] = None,
    device: Device = None,
    model_dtype: ModelDtype = None,
    limit: Limit = None,
) -> None:
    """Answer searches over HTTP, and show a page to search with."""
    from copy import deepcopy

    from gallery.decoding import Limits, sandboxed
    from gallery.gallery import check_format
    from gallery.published import name_of
    from modeling_scalar import load_model
    from modeling_scalar.devices import device_of_name, dtype_of_name
    from modeling_scalar.model_identity import identify

    from .engine.address import is_address
    from .service.archive import Archive
    from .service.folder import Folder
    from .service.server import TOKEN_VARIABLE, address_of, is_loopback, listen, make_server, read_token

    # All that can be wrong is told before the model is loaded, which takes longest.
    place, limits, secret = device_of_name(device), Limits.parse(limit or []), read_token(token_file)
    if public and (secret is not None or allow_uploads):
        raise ValueError("--public answers anybody and takes no files: leave out the token and --allow-uploads.")
    if secret is None and not public and not is_loopback(host):
        raise ValueError(
            f"Others can reach {host}, so a token is needed. Put one into a file that only you can read and name it "
            f"with --token-file, or set {TOKEN_VARIABLE}. Where anybody may search, say --public."
        )
    from .service.app import build_app
    from .service.guard import Token

    token, is_folder = None if secret is None else Token(secret), not is_address(gallery)
    of_uploads = ("max_upload", "upload_quota", "max_uploads", "limit")
    given = [name for name in of_uploads if context.get_parameter_source(name).name == "COMMANDLINE"]
    if given and not allow_uploads:
        raise ValueError(f"--{given[0].replace('_', '-')} is about files that are added: it needs --allow-uploads.")
    if allow_uploads and not is_folder:
        raise ValueError(
            "--allow-uploads needs a gallery in a folder. Index files into one, and push it: `scalar push`."
        )
    if allow_uploads:
        _folder(Path(gallery))
    opened = _open(gallery, context, is_patient=False)
    if allow_uploads:
        check_format(Path(gallery))
    revision = opened.model_revision if model is None else None
    model = model or opened.model
    if model is None:
        raise ValueError(f"{gallery} does not say which model made it. Name it with --model.")
    with listen(host, port) as listener:
        identity = identify(model, revision)
        folder, fingerprint = identity.download(), identity.fingerprint
        opened.check_model(model, fingerprint, must_know=allow_uploads)
        network, processor = load_model(folder, dtype_of_name(model_dtype), place)
        uploads = None
        if is_folder:
            source = Folder(opened.path, model, fingerprint, name_of(gallery))
        else:
            from .service.engine import EngineSource

            source = EngineSource(opened, model, fingerprint)
        archive = Archive(source, network, processor)
        if allow_uploads:
            from .service.uploads import Uploads

            reader = sandboxed(deepcopy(processor), limits)
            most = round(1e6 * max_upload), round(1e6 * upload_quota), max_uploads
            uploads = Uploads(source, archive.lock, network, reader, *most)
        server = make_server(build_app(archive, uploads, token, (host, *(hostname or ())), public))
        show(f"{len(opened)} clips are searched at {address_of(listener)} until Ctrl-C.")
        sys.stdout.flush()
        server.run(sockets=[listener])


@app.command()
def info(
    gallery: _ReadGallery,
    missing: Annotated[
        list[Modality] | None,
        typer.Option(help="Print the names of the clips without it, and no more. Repeat for those without several."),
    ] = None,
) -> None:
    """Print what a gallery holds and which files could not be read."""
    from gallery.gallery import Gallery
    from gallery.transcripts import Transcripts
    from gallery.windows import SEGMENT, UNFINISHED
    from modeling_scalar.configuration_scalar import MODALITIES

    opened = Gallery.open(gallery)
    if missing:
        places = [MODALITIES.index(name) for name in missing]
        rows = (~opened.modality_mask[:, places]).all(dim=1).tolist() if len(opened) else []
        show(*(name for name, lacks in zip(opened.clip_ids, rows, strict=True) if lacks))
        return
    shares = opened.modality_mask.float().mean(dim=0).tolist() if len(opened) else [0.0] * len(MODALITIES)
    clips = opened.clips_of_files()
    show(f"clips: {len(opened)}" + (f", {opened.dim} dimensions, {opened.dtype}" if len(opened) else ""))
    show("present: " + ", ".join(f"{name} {share:.1%}" for name, share in zip(MODALITIES, shares, strict=True)))
    if opened.queries is not None:
        show(f"queries: {len(opened.queries)}")
    show(f"model: {opened.model or 'unknown'} (fingerprint {(opened.fingerprint or 'unknown')[:12]})")
    show(f"query temperature: {opened.query_temperature}")
    if opened.metadata.get(SEGMENT) is not None:
        cut = [names for path, names in clips.items() if names != [path]]
        counts = f"files cut: {len(cut)}, into {sum(map(len, cut))}; whole: {len(clips) - len(cut)}"
        show(f"windows: {opened.metadata[SEGMENT]:g} s; {counts}")
    for name, values in opened.calibration.items():
        show(f"{name.replace('_', ' ')}: {', '.join(f'{value:.3g}' for value in values)}")
    show(f"clips of which a stream could not be read: {len(opened.problems())}")
    num_transcripts, num_with_words = Transcripts(gallery).count()
    if num_transcripts:
        show(f"transcripts made by machine: {num_transcripts}, of which {num_with_words} have words")
    lacking = [file for file in opened.files.values() if file.reason is not None]
    partly = [file for file in lacking if file.path in clips or file.reason == UNFINISHED]
    for what, files in (
        ("unreadable files", [file for file in lacking if file not in partly]),
        ("files of which windows are missing", partly),
    ):
        if files or what == "unreadable files":
            show(f"{what}: {len(files)}")
        for file in files:
            show(f"  {file.path}: {file.reason}")


@app.command()
def verify(gallery: _ReadGallery) -> None:
    """Compare every file of a gallery with its hash, and check every vector."""
    from gallery.gallery import verify_gallery

    opened, num_bytes = verify_gallery(gallery)
    show(f"{len(opened)} clips in {num_bytes / 1e6:.1f} MB are as they were written.")


@app.command()
def repair(gallery: _Gallery) -> None:
    """Restore what is whole of a damaged gallery; what is damaged is moved into its folder `damaged`."""
    from gallery.gallery import Gallery
    from gallery.repair import repair as repair_gallery

    show(*repair_gallery(gallery), f"{gallery} is whole: {len(Gallery.open(gallery))} clips.")


@app.command()
def compact(gallery: _Gallery) -> None:
    """Write a gallery again without the clips that were removed, in as few files as there can be."""
    from gallery.gallery import GalleryWriter
    from gallery.storage import MANIFEST, check_not_lost

    check_not_lost(gallery)
    if not (gallery / MANIFEST).is_file():
        raise FileNotFoundError(f"There is no gallery in {str(gallery)!r}: {MANIFEST} is missing.")
    with GalleryWriter(gallery) as writer:
        writer.compact()
        num_files = sum(len(shards) for shards in writer.snapshot.shards.values())
    show(f"{gallery} is compact: {num_files} file{'' if num_files == 1 else 's'}.")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m search") -> None:
    """Run the command line, by default that of this program, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
