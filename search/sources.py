"""What there is to index: folders, files, and lists that name files and may say what is known of them in words.

A list is a table, see [`~gallery.tables`]. Its column `path`, or `video`, names
a file of each row, from the folder in which the list lies; `subtitle` may hold what is spoken in it, or name a
subtitle file. A column that is called as a modality of the gallery, `title` say, holds its text. Other columns are an
error unless they are to be ignored: nothing that somebody wrote down is dropped in silence.
"""

import os
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path

from gallery.filters import fitting
from gallery.subtitles import MEDIA_FILES
from gallery.tables import distinct, is_table, rows_of_table
from modeling_scalar.media_scalar import names_subtitle_file

_SYSTEM = ("@eaDir", "$RECYCLE.BIN", "System Volume Information")

_PATHS = ("path", "video")
_SUBTITLE = "subtitle"


class Selection:
    """
    Which files of folders are taken: those that are not hidden, and that nobody excludes.

    Args:
        exclude (iterable of `str`): patterns of paths, see [`~gallery.filters.Filter`]; of folders that fit nothing is
            taken, and no file that is named fits.
        hidden (`bool`): take what is hidden, too: what begins with a dot, and folders in which systems keep what was
            deleted, or their own.

    Attributes:
        left_out (`set[str]`): the files and folders that were left out because they are hidden.

    Raises:
        ValueError: a pattern cannot be read.
    """

    def __init__(self, exclude: Iterable[str] = (), hidden: bool = False):
        self.is_excluded, self.hidden, self.left_out = fitting(exclude), hidden, set()

    def takes(self, path: str) -> bool:
        """Whether what is in a folder is taken."""
        name = os.path.basename(path)
        is_hidden = not self.hidden and (name.startswith(".") or name in _SYSTEM)
        if is_hidden:
            self.left_out.add(path)
        return not is_hidden and not self.is_excluded(os.path.abspath(path))


def find_files(paths: Iterable[str | os.PathLike], selection: Selection | None = None) -> list[str]:
    """List the files that `paths` (files and folders) stand for, absolute, free of symbolic links, each once.

    Raises:
        FileNotFoundError: a path does not exist.
        OSError: a folder cannot be listed.
    """
    found, visited, selection = {}, set(), selection or Selection()
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found[real_path(path)] = None
            continue
        for folder, subfolders, names in os.walk(path, onerror=_reraise, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited:
                subfolders.clear()  # linked folders are followed once, so a circle of links ends
            visited.add(real)
            subfolders[:] = [name for name in sorted(subfolders) if selection.takes(os.path.join(folder, name))]
            for name in sorted(names):
                file = os.path.join(folder, name)
                if os.path.splitext(name)[1].lower() in MEDIA_FILES and selection.takes(file):
                    found[real_path(file)] = None
    return [path for path in found if not selection.is_excluded(path)]


def real_path(path: str | os.PathLike) -> str:
    """The file that a link leads to; one that leads to anything else is reported by its own name."""
    real = os.path.realpath(path)
    return os.path.abspath(path) if os.path.exists(real) and not os.path.isfile(real) else real


def _reraise(error: OSError) -> None:
    raise error


def read_list(
    path: str | os.PathLike, ignored: Collection[str] = (), evidence: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """
    Read a list of files.

    Args:
        path (`str`): a table, see [`~gallery.tables`]. What it names is looked for from the folder in which it lies.
        ignored: names of columns that are not used.
        evidence: names of columns, beside `subtitle`, that hold texts of the files.

    Returns:
        `dict`: the files, in their order, and what the list says of each, by the names of columns; `subtitle` is words
        or the path of a subtitle file.

    Raises:
        ValueError: not such a list; a column is lacking, unknown or holds something else; or two rows of one file
            disagree. The message names the list, the line and the column.
    """
    path = Path(path)
    folder = Path(os.path.abspath(path)).parent
    found: dict[str, tuple[str, dict[str, str]]] = {}

    def choose(names: Iterable[str]) -> list[str]:
        names = distinct(path, [name for name in names if name not in ignored])
        paths = [name for name in _PATHS if name in names]
        if len(paths) != 1:
            got = f"got {names}" if names else "there is none"
            raise ValueError(f"{path} must have one column `path`, or `video`, that names the files; {got}.")
        if unknown := [name for name in names if name not in (*paths, _SUBTITLE, *evidence)]:
            flags = " ".join(f"--ignore {shlex.quote(name)}" for name in unknown)  # one may have no name
            raise ValueError(
                f"{path}: nothing is known to do with the columns {unknown}; known are `path` or `video`, and "
                f"{', '.join(f'`{name}`' for name in (_SUBTITLE, *evidence))}. Texts by which clips are to be found "
                f"are taken by --text NAME, into a gallery that exists by --add NAME. Leave others out by {flags}."
            )
        return names

    for where, row in rows_of_table(path, choose):
        for name, cell in row.items():
            if not isinstance(cell, str | None) or (isinstance(cell, str) and "\0" in cell):
                raise ValueError(f"{path}, {where}, column `{name}`: expected a text, got {cell!r}.")
        told = {name: row.pop(name) for name in (_SUBTITLE, *evidence) if name in row}
        told = {name: words for name, words in told.items() if words and words.strip()}
        ((name, file),) = row.items()
        if not file:
            raise ValueError(f"{path}, {where}, column `{name}`: expected the path of a file, got {file!r}.")
        if names_subtitle_file(told.get(_SUBTITLE)):
            told[_SUBTITLE] = os.path.join(folder, told[_SUBTITLE])
            if not os.path.isfile(told[_SUBTITLE]):
                raise ValueError(f"{path}, {where}, column `{_SUBTITLE}`: there is no file {told[_SUBTITLE]!r}.")
        file = real_path(os.path.join(folder, file))
        before, said = found.setdefault(file, (where, told))
        if different := [name for name in (_SUBTITLE, *evidence) if said.get(name) != told.get(name)]:
            raise ValueError(f"{path}, {before} and {where}, column `{different[0]}`: they disagree about {file}.")
    return {file: told for file, (_, told) in found.items()}


def find_clips(
    paths: Iterable[str | os.PathLike],
    ignored: Collection[str] = (),
    selection: Selection | None = None,
    evidence: Collection[str] = (),
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """
    List the files that folders, files and lists stand for, each once, and what lists say of them.

    Args:
        paths, ignored, evidence: as in [`read_list`].
        selection ([`Selection`], *optional*): which of them are taken.

    Returns:
        The files, and of those that are in a list what it says, see [`read_list`].

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: see [`read_list`]; or two lists disagree.
    """
    found, told, selection = {}, {}, selection or Selection()
    for path in map(Path, paths):
        if not is_table(path) or not path.exists():
            found |= dict.fromkeys(find_files([path], selection))
            continue
        for file, texts in read_list(path, ignored, evidence).items():
            for name, text in texts.items():
                if told.setdefault(file, {}).setdefault(name, text) != text:
                    raise ValueError(f"{path} and a list before it disagree about the {name} of {file}.")
            found[file] = None
    return [path for path in found if not selection.is_excluded(path)], told


__all__ = ["Selection", "find_clips", "find_files", "read_list"]
