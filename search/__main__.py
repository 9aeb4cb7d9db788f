"""The command line: `python -m search index`, `query` and `info`.

Libraries load inside the commands, so that `--help` is quick.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .gallery import Hit
    from .indexing import IndexReport

app = typer.Typer(
    help="Search your own videos by text.", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    pretty_exceptions_enable=False,
)  # fmt: skip

_BAR_WIDTH = 8
_NAME_WIDTH = 72


class OnError(StrEnum):
    """What to do about a stream or a file that cannot be read."""

    MISSING = "missing"
    RAISE = "raise"


@contextmanager
def _user_errors() -> Iterator[None]:
    """Say what the user can mend in one line, without a traceback."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        raise
    except (ImportError, OSError, ValueError) as error:
        typer.echo("Error: " + _plain(" ".join(str(error).split()), sys.stderr.encoding), err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(130) from error


def _plain(text: str, encoding: str | None) -> str:
    """Escape what cannot be printed: control characters, and characters that `encoding` lacks."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    encoding = encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _echo(text: str = "") -> None:
    typer.echo(_plain(text, sys.stdout.encoding))


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _weights_line(hit: "Hit") -> str:
    if hit.weights is None:
        return "  ".join(f"{name} present" for name, here in hit.presence.items() if here)
    full, rest, dash = ("█", "░", "–") if _can_print("█░–") else ("#", ".", "-")
    parts = []
    for name, weight in hit.weights.items():
        if not hit.presence[name]:
            parts.append(f"{name} {dash} absent")
            continue
        filled = round(weight * _BAR_WIDTH)
        parts.append(f"{name} {full * filled}{rest * (_BAR_WIDTH - filled)} {weight:.2f}")
    return "  ".join(parts)


def _short_name(path: str, root: str) -> str:
    """The path below `root`, the folder all clips share, cut from the left if it is long."""
    name = os.path.relpath(path, root)
    if len(name) <= _NAME_WIDTH:
        return name
    mark = "…" if _can_print("…") else "..."
    return mark + name[len(mark) - _NAME_WIDTH :]


def _print_report(report: "IndexReport", size: int) -> None:
    counts = {name: len(getattr(report, name)) for name in ("new", "changed", "unchanged", "unreadable")}
    _echo(", ".join(f"{count} {name}" for name, count in counts.items()) + f"; {size} clips in the gallery")
    if report.not_retried:
        _echo(f"{len(report.not_retried)} of the unreadable failed before and have not changed: not tried again")
    for failure in report.unreadable:
        _echo(f"unreadable: {failure.path}: {failure.reason}")
    for path, problems in report.problems.items():
        _echo(f"partly read: {path}: {'; '.join(problems)}")
    fate = "removed" if report.pruned else "kept, --prune removes it"
    for path in report.vanished:
        _echo(f"gone from disk ({fate}): {path}")


@app.command()
def index(
    paths: Annotated[list[Path], typer.Argument(help="Folders and files. Files named here may have any extension.")],
    model: Annotated[str, typer.Option(help="Model or adapter: a folder, or a Hub id.")],
    output: Annotated[Path, typer.Option(help="Folder of the gallery; an existing one is brought up to date.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Clips embedded at a time.")] = 8,
    on_error: Annotated[OnError, typer.Option(help="Count the unreadable as missing, or stop.")] = OnError.MISSING,
    recursive: Annotated[bool, typer.Option(help="Look into subfolders.")] = True,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
    prune: Annotated[bool, typer.Option("--prune", help="Remove clips whose file is gone from disk.")] = False,
) -> None:
    """Embed new and changed files into a gallery; the rest of the gallery is kept."""
    with _user_errors():
        from modeling_scalar import load_model
        from modeling_scalar.loading_scalar import model_fingerprint

        from .gallery import Gallery
        from .indexing import find_files, index_files, model_folder

        files = find_files(paths, recursive)
        if not files and not prune:
            raise ValueError(f"No video or audio file in {', '.join(repr(str(path)) for path in paths)}.")
        folder = model_folder(model)
        fingerprint = model_fingerprint(folder)
        gallery = None
        if (output / "gallery.json").exists():
            gallery = Gallery.open(output)
            gallery.check_model(model, fingerprint)
        network, processor = load_model(folder)
        network = network.to(device)
        if gallery is None:
            name = str(folder) if Path(model).is_dir() else model
            gallery = Gallery(name, fingerprint, network.config.query_temperature)
        report = index_files(
            files,
            gallery,
            output,
            network,
            processor,
            batch_size=batch_size,
            on_error=on_error.value,
            prune=prune,
            progress=True,
        )
        _print_report(report, len(gallery))
    if report.unreadable and not (report.new or report.changed or report.unchanged):
        raise typer.Exit(1)


@app.command()
def query(
    gallery: Annotated[Path, typer.Argument(help="Folder of the gallery.")],
    texts: Annotated[list[str], typer.Argument(help="One or more queries.")],
    k: Annotated[int, typer.Option("--k", min=1, help="Hits per query.")] = 5,
    model: Annotated[str | None, typer.Option(help="Where the gallery's model is now, if not where it was.")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with full paths.")] = False,
) -> None:
    """Print the best clips of each query and the weight of each modality in each."""
    with _user_errors():
        from dataclasses import asdict

        from modeling_scalar import load_model
        from modeling_scalar.loading_scalar import model_fingerprint

        from .gallery import Gallery
        from .indexing import embed_queries, model_folder

        opened = Gallery.open(gallery)
        model = model or opened.model
        folder = model_folder(model)
        opened.check_model(model, model_fingerprint(folder))
        network, processor = load_model(folder)
        embeds = embed_queries(texts, network.to(device), processor)
        options = network.score_options()
        del options["query_temperature"]  # a gallery has its own
        learned = {name: value.item() for name, value in options.items() if name != "method"}
        results = opened.search(embeds, k, method=options["method"], **learned)
        if as_json:
            table = [
                {"query": text, "hits": [asdict(hit) for hit in hits]}
                for text, hits in zip(texts, results, strict=True)
            ]
            typer.echo(json.dumps(table, indent=2))
            return
        root = os.path.commonpath([os.path.dirname(path) for path in opened.entries]) if len(opened) else ""
        for text, hits in zip(texts, results, strict=True):
            _echo(f"query: {text}")
            for hit in hits:
                _echo(f"{hit.rank:3}  {hit.score:.3f}  {_short_name(hit.path, root)}")
                _echo(f"     {_weights_line(hit)}")


@app.command()
def info(gallery: Annotated[Path, typer.Argument(help="Folder of the gallery.")]) -> None:
    """Print what a gallery holds and which files could not be read."""
    with _user_errors():
        from modeling_scalar.configuration_scalar import MODALITIES

        from .gallery import Gallery

        opened = Gallery.open(gallery)
        shares = opened.modality_mask.float().mean(dim=0).tolist() if len(opened) else [0.0] * len(MODALITIES)
        partly = sum(bool(entry.problems) for entry in opened.entries.values())
        _echo(f"clips: {len(opened)}, {opened.dim} dimensions")
        _echo("present: " + ", ".join(f"{name} {share:.1%}" for name, share in zip(MODALITIES, shares, strict=True)))
        _echo(f"model: {opened.model} (fingerprint {opened.fingerprint[:12]})")
        _echo(f"query temperature: {opened.query_temperature}")
        _echo(f"clips of which a stream could not be read: {partly}")
        _echo(f"unreadable files: {len(opened.failed)}")
        for failure in opened.failed.values():
            _echo(f"  {failure.path}: {failure.reason}")


if __name__ == "__main__":
    app(prog_name="python -m search")
