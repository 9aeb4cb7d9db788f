"""The command line: `scalar index`, `query`, `push`, `serve`, `info`, `verify`, `repair`, `compact` and `remove`.

Libraries are imported inside the commands, so `--help` is quick.
"""

import scalar_retrieval.commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.commands.options import Commands, command_of
from scalar_retrieval.commands.texts import print_lines, print_message

from .addresses import TableAddress, is_address, is_service
from .settings import (
    TOKEN_VARIABLE,
    GalleryConfig,
    IndexConfig,
    InfoConfig,
    PushConfig,
    QueryConfig,
    RemoveConfig,
    ServeConfig,
    VerifyConfig,
    open_searcher,
    read_token,
)

if TYPE_CHECKING:
    from scalar_retrieval.gallery.filters import Filter
    from scalar_retrieval.gallery.gallery import GalleryWriter
    from scalar_retrieval.gallery.hits import Hits
    from scalar_retrieval.gallery.querying import Likeness, QueryModel
    from scalar_retrieval.gallery.searcher import Searcher

app = typer.Typer(
    cls=Commands, help="Search your own videos by text.", no_args_is_help=True, add_completion=False,
    rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


@command_of(app, IndexConfig)
def index(config: IndexConfig) -> None:
    """Embed new and changed files into a gallery; clips of other files stay."""
    from .index_folder import index as index_files
    from .states import Report, Status

    report = Report()
    gallery = index_files(**vars(config), on_report=report.update)
    print_lines(*report.lines(gallery))
    has_clips = report.of(Status.NEW, Status.CHANGED, Status.UNCHANGED, Status.MOVED)
    failed = report.of(Status.UNREADABLE, Status.EMPTY, Status.OUT_OF_REACH, Status.GONE)
    if failed and not has_clips and not config.watch:
        print_message("Nothing was embedded.")
        raise typer.Exit(1)


@command_of(app, QueryConfig)
def query(config: QueryConfig) -> None:
    """Print the best clips for each query, with the weight of each modality."""
    if is_service(config.gallery):
        return _query_service(config)
    # What is wrong is reported before torch is imported, which takes a second.
    wanted = config.filter()
    if not is_address(config.gallery):
        _check_query(config, wanted)
    from scalar_retrieval.gallery.hits import remarks_of
    from scalar_retrieval.gallery.querying import load_query_model
    from scalar_retrieval.gallery.searching import search

    searcher = open_searcher(config.gallery)
    # Which clips may be hits, and which of their modalities count
    options = {
        "modalities": config.modalities,
        "allowed": wanted,
        "per_file": config.per_file,
        "unique": config.unique,
    }

    # The model is loaded only if it is needed: a clip of the gallery has its embeddings there.
    def load() -> "QueryModel":
        return load_query_model(searcher.described, config.model)

    if config.like is None:
        options |= {"rerank": config.rerank, "fusion_weight": config.fusion_weight, "load": load}
        results = search(searcher, list(config.texts), config.k, config.query_temperature, **options)
    else:
        like = _like(searcher, config.like, load)
        results = [search(searcher, None, config.k, config.query_temperature, like=like, **options)]
    if config.sort == "date":
        results = [hits.newest_first() for hits in results]
    # Remarks go to stderr, so that hits can be piped.
    for remark in remarks_of(results):
        print_message(remark)
    if not config.as_json:
        for hits in results:
            print_lines(*hits.lines(sys.stdout.encoding or "ascii"))
        return
    answers = []
    asked = [{"query": text} for text in config.texts] or [{"like": config.like}]
    for question, hits in zip(asked, results, strict=True):
        answers.append(question | _as_json(hits, config))
    typer.echo(json.dumps(answers, indent=2))


def _check_query(config: QueryConfig, wanted: "Filter") -> None:
    """Refuse a query to a folder that names modalities or a clip that are not there."""
    from scalar_retrieval.gallery.filters import are_selected
    from scalar_retrieval.gallery.store.contents import Contents

    opened = Contents.open(config.gallery)
    are_selected(config.modalities, opened.modalities)
    wanted.check_modalities(opened.modalities)
    if config.like is not None and not Path(config.like).is_file():
        opened.clip_named(config.like)


def _query_service(config: QueryConfig) -> None:
    """Print the answers of a running service."""
    from .client import ask, lines_of

    answers = list(zip(config.texts, ask(config), strict=True))
    if config.as_json:
        typer.echo(json.dumps([{"query": text} | answer for text, answer in answers], indent=2))
        return
    for text, answer in answers:
        if answer["note"] is not None:
            print_message(answer["note"])
        print_lines(*lines_of(text, answer))


def _like(searcher: "Searcher", name: str, load: "Callable[[], QueryModel]") -> "str | Likeness":
    """The clip of the gallery with a name, or the embedding of a file that is not in it."""
    from scalar_retrieval.gallery.store.described import NoClipError

    try:
        return searcher.clip_named(name)
    except NoClipError:
        if not Path(name).is_file():
            raise
    return load().embed_file(name)


def _as_json(hits: "Hits", config: QueryConfig) -> dict:
    """What `--json` prints for the answer to one query."""
    from scalar_retrieval.gallery.store.rows import recording_of

    # Fields that only some queries have are left out of the others.
    rows = []
    for hit in hits:
        row = {**hit.place._asdict(), "rank": hit.rank, "clip_id": hit.clip_id, "score": hit.score}
        row |= {"weights": hit.weights, "presence": hit.presence, **recording_of(hit.record)}
        if config.rerank:
            row["match"] = hit.match
        if config.unique:
            row["copies"] = list(hit.copies)
        rows.append(row)
    counts = {name: getattr(hits, name) for name in ("num_clips", "num_allowed", "num_scored")}
    return {"hits": rows, **counts, "matches_well": hits.matches_well}


@command_of(app, PushConfig)
def push(config: PushConfig) -> None:
    """Copy a gallery into a table of PostgreSQL; only what is new, changed or removed is sent."""
    from scalar_retrieval.gallery.gallery import Gallery

    from .push import push as push_gallery

    address = TableAddress.parse(config.address)
    gallery = Gallery.open(config.gallery)
    report = push_gallery(gallery, address, config.nodes or (), print_lines)
    counts = ", ".join(f"{count} {name}" for name, count in vars(report).items())
    print_lines(f"{counts}; {len(gallery)} clips in the table")


_SERVICE_SECONDS = 10  # that a server of PostgreSQL has for an answer: somebody waits for it


@command_of(app, ServeConfig)
def serve(config: ServeConfig) -> None:
    """Serve a gallery over HTTP, with a search page."""
    from .service.server import address_of, is_loopback, listen, make_server

    # Everything that can be wrong is reported before the model is loaded, which takes longest.
    token = None
    secret = read_token()
    if config.public and secret is not None:
        raise ValueError(f"--public lets anybody search: unset {TOKEN_VARIABLE}.")
    if secret is None and not config.public and not is_loopback(config.host):
        raise ValueError(
            f"Other machines can reach {config.host}, so a token is needed: set {TOKEN_VARIABLE} to one. Use --public "
            "to let anybody search."
        )
    with closing(listen(config.host, config.port)) as listener:
        from scalar_retrieval.gallery.querying import load_query_model
        from scalar_retrieval.gallery.store.places import name_of

        from .service.app import build_app
        from .service.archive import Archive
        from .service.guard import Token

        # With the port taken, open the gallery, and load its model.
        if secret is not None:
            token = Token(secret)
        searcher = open_searcher(config.gallery, _SERVICE_SECONDS)
        model = load_query_model(searcher.described, config.model)
        name = name_of(config.gallery) or os.path.basename(os.path.abspath(config.gallery))
        archive = Archive(searcher, model, name)
        service = build_app(archive, token, (config.host, *config.hostname), config.public)
        # requests wait in the listener from now on
        print_lines(f"Serving {len(searcher)} clips at {address_of(listener)} until Ctrl-C.")
        sys.stdout.flush()
        make_server(service).run(sockets=[listener])


@command_of(app, InfoConfig)
def info(config: InfoConfig) -> None:
    """Print what a gallery contains and which files could not be read."""
    # Not `scalar_retrieval.gallery.gallery`: this needs no vectors, and so no torch, which loads for a second.
    from scalar_retrieval.gallery.store.contents import Contents
    from scalar_retrieval.gallery.store.described import scale_lines
    from scalar_retrieval.gallery.store.windows import SCENES, SEGMENT, UNFINISHED, is_nothing
    from scalar_retrieval.gallery.words.transcripts import Transcripts

    opened = Contents.open(config.gallery)
    # What is embedded, and by which model
    clips = f"clips: {len(opened)}"
    if len(opened):
        clips += f", {opened.dim} dimensions, {opened.dtype}"
    present = []
    for name, count in opened.presence_counts().items():
        present.append(f"{name} {count / max(len(opened), 1):.1%}")
    print_lines(clips, f"present: {', '.join(present)}")
    if opened.queries is not None:
        print_lines(f"queries: {len(opened.queries)}")
    print_lines(f"model: {opened.model or 'unknown'} (fingerprint {(opened.fingerprint or 'unknown')[:12]})")
    print_lines(f"query temperature: {opened.query_temperature}")
    if opened.metadata.get(SEGMENT) is not None:
        kind = "scenes of at most " if opened.metadata.get(SCENES) else ""
        print_lines(f"windows: {kind}{opened.metadata[SEGMENT]:g} s")
    # How hits are scored
    print_lines(*scale_lines(opened.metadata))
    least = opened.least_score
    if least is not None:
        fitted = f"fitted to {least['num_clips']} clips, by {', '.join(least['modalities'])}"
        print_lines(f"least score of a match: {least['score']:.3g} ({fitted})")
        if "source" in least:
            shares = f"{least['answered']:.1f} % of the former and {least['unanswered']:.1f} % of the latter"
            print_lines(f"  from {least['source']}: {shares} score less")
    # When files were recorded
    extent = opened.extent
    if extent.oldest is not None:
        dates = f"dates: {extent.oldest.date()} to {extent.newest.date()}"
        if extent.num_changed:
            dates += f" (time of change only for {extent.num_changed} of {extent.num_files} files)"
        print_lines(dates)
    # What could not be read
    print_lines(f"clips with an unreadable stream: {len(opened.problems())}")
    num_transcripts, num_with_words = Transcripts(config.gallery).count()
    if num_transcripts:
        print_lines(f"machine transcripts: {num_transcripts}, of which {num_with_words} have words")
    # Files that failed, by what became of them; only the first line is shown even if there are none.
    failed = {"unreadable files": [], "files with nothing to embed": [], "files with missing windows": []}
    with_clips = set(opened.paths.to_pylist())
    for file in opened.failed_files():
        what = "unreadable files"
        if file.path in with_clips or file.reason == UNFINISHED:
            what = "files with missing windows"
        elif is_nothing(file.reason):
            what = "files with nothing to embed"
        failed[what].append(f"  {file.path}: {file.reason}")
    for what, lines in failed.items():
        if lines or what == "unreadable files":
            print_lines(f"{what}: {len(lines)}", *lines)


@command_of(app, VerifyConfig)
def verify(config: VerifyConfig) -> None:
    """Compare every file of a gallery with its hash, or every row of a table, and check every vector."""
    if is_address(config.gallery):
        from .push import verify_table

        print_lines(f"{verify_table(TableAddress.parse(config.gallery))} clips are intact.")
        return
    from scalar_retrieval.gallery.gallery import verify_gallery

    opened, num_bytes = verify_gallery(config.gallery)
    print_lines(f"{len(opened)} clips in {num_bytes / 1e6:.1f} MB are intact.")


@command_of(app, GalleryConfig)
def repair(config: GalleryConfig) -> None:
    """Restore the intact parts of a damaged gallery; damaged files are moved to its folder `damaged`."""
    from scalar_retrieval.gallery.gallery import Gallery
    from scalar_retrieval.gallery.repair import repair as repair_gallery

    lines = repair_gallery(config.gallery)
    print_lines(*lines, f"{config.gallery} is intact: {len(Gallery.open(config.gallery))} clips.")


@contextmanager
def _changing(folder: Path) -> Iterator["GalleryWriter"]:
    """The writer of an existing gallery."""
    from scalar_retrieval.gallery.store.places import is_gallery

    if not is_gallery(folder):  # a writer would make one
        raise FileNotFoundError(f"There is no gallery in {str(folder)!r}.")
    from scalar_retrieval.gallery.gallery import GalleryWriter

    with GalleryWriter(folder) as writer:
        yield writer


@command_of(app, RemoveConfig)
def remove(config: RemoveConfig) -> None:
    """Remove the clips of files and folders from a gallery, whether or not the files still exist."""
    with _changing(config.gallery) as writer:
        from .vanished import remove as remove_files

        num_clips = remove_files(writer, config.paths)
        print_lines(f"{num_clips} clips removed; {len(writer.gallery())} clips in the gallery")


@command_of(app, GalleryConfig)
def compact(config: GalleryConfig) -> None:
    """Rewrite a gallery without the clips that were removed, in as few files as possible."""
    with _changing(config.gallery) as writer:
        writer.compact()
        num_files = sum(len(shards) for shards in writer.snapshot.shards.values())
    print_lines(f"{config.gallery} is compact: {num_files} file{'' if num_files == 1 else 's'}.")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m scalar_retrieval.search") -> None:
    """Run the command line, by default that of this process, and exit."""
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
