"""The inputs of indexing: folders, files, and lists of files with texts.

- A list is a table, see [`~scalar_retrieval.gallery.store.file_lists`]. Its column `path`, or `video`, names a file,
  relative to the list's folder; `subtitle` may hold its speech as text, or the path of a subtitle file.
- A column named after a modality of the gallery, such as `title`, holds its text. Other columns are counted as
  unused, and reported.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from scalar_retrieval.gallery.filters import path_matcher
from scalar_retrieval.gallery.store.file_lists import is_table, read_table
from scalar_retrieval.modeling_scalar.scores_scalar import kind_of
from scalar_retrieval.modeling_scalar.tracks_scalar import MEDIA_FILES, names_subtitle_file

_SYSTEM = ("@eaDir", "$RECYCLE.BIN", "System Volume Information")

_PATHS = ("path", "video")
_SUBTITLE = "subtitle"


class FileSelection:
    """
    Selects files: those in folders that are not hidden, and of all files those that are not excluded and whose paths
    are UTF-8.

    Args:
        exclude (iterable of `str`): patterns of paths to skip, see [`~scalar_retrieval.gallery.filters.Filter`];
            folders that match are skipped as a whole, and so are files that were named explicitly.

    Attributes:
        left_out (`set[str]`): the files and folders that were skipped because they are hidden: names that begin with a
            dot, recycle bins and other system folders.
        not_utf8 (`set[str]`): the files that were skipped because their paths cannot be written in UTF-8.
        unlisted (`dict[str, str]`): the subfolders that were skipped because they could not be listed, and why.
        unused (`dict[str, list[str]]`): by list, the columns that hold neither paths nor texts of a modality.

    Raises:
        ValueError: a pattern is not valid.
    """

    def __init__(self, exclude: Iterable[str] = ()):
        self._is_excluded = path_matcher(exclude)
        self.left_out: set[str] = set()
        self.not_utf8: set[str] = set()
        self.unlisted: dict[str, str] = {}
        self.unused: dict[str, list[str]] = {}

    def takes(self, path: str) -> bool:
        """Whether to include a file or folder found in a folder."""
        # What is hidden is reported, so that nobody searches in vain for it.
        name = os.path.basename(path)
        is_hidden = name.startswith(".") or name in _SYSTEM
        if is_hidden:
            self.left_out.add(path)
        return not is_hidden and not self._is_excluded(os.path.abspath(path))

    def skip_folder(self, error: OSError) -> None:
        """Note a folder that cannot be listed."""
        self.unlisted[os.path.realpath(error.filename)] = error.strerror or str(error)

    def chosen(self, paths: Iterable[str]) -> list[str]:
        """The files to include among those that were found or named."""
        kept = []
        for path in paths:
            try:
                path.encode()
            except UnicodeEncodeError:
                self.not_utf8.add(path)
                continue
            if not self._is_excluded(path):
                kept.append(path)
        return kept


def find_files(paths: Iterable[str | os.PathLike], selection: FileSelection | None = None) -> list[str]:
    """List the files in `paths` (files and folders), absolute, with symbolic links resolved, each once.

    Raises:
        FileNotFoundError: a path does not exist.
        OSError: one of these folders cannot be listed; without a selection, which notes them, also a subfolder.
    """
    found = {}  # a `dict`, as it keeps the order
    visited = set()
    skip = selection.skip_folder if selection is not None else _reraise
    selection = selection or FileSelection()
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found[real_path(path)] = None
            continue
        os.scandir(path).close()  # what was named must be there
        for folder, subfolders, names in os.walk(path, onerror=skip, followlinks=True):
            # Linked folders are followed once, so circular links end.
            real = os.path.realpath(folder)
            if real in visited:
                subfolders.clear()
            visited.add(real)
            # `os.walk` goes into the folders that are left in this list.
            subfolders[:] = [name for name in sorted(subfolders) if selection.takes(os.path.join(folder, name))]
            for name in sorted(names):
                file = os.path.join(folder, name)
                if os.path.splitext(name)[1].lower() in MEDIA_FILES and selection.takes(file):
                    found[real_path(file)] = None
    return selection.chosen(found)


def real_path(path: str | os.PathLike) -> str:
    """The file that a link leads to; a link to anything else is reported by its own name."""
    real = os.path.realpath(path)
    is_other = os.path.exists(real) and not os.path.isfile(real)
    return os.path.abspath(path) if is_other else real


def further_texts(modalities: Iterable[str]) -> list[str]:
    """Those of some modalities that are texts other than subtitles."""
    return [name for name in modalities if kind_of(name) == "text" and name != _SUBTITLE]


def title_of_name(path: str) -> str:
    """
    The title of a file without one: its name and its folder's as words, such as `rain noise, sounds`.

    The extension is left out. Underscores, dashes and dots become spaces, and a space comes before each capital letter
    that follows a small one.
    """
    # First the name, then the folder
    folder, name = os.path.split(path)
    parts = []
    for part in (os.path.splitext(name)[0], os.path.basename(folder)):
        letters = []
        for before, letter in pairwise(f" {part}"):
            if before.islower() and letter.isupper():
                letters.append(" ")
            if letter in "_-.":
                letter = " "
            letters.append(letter)
        words = "".join(letters).split()
        if words:
            parts.append(" ".join(words))
    return ", ".join(parts)


def _reraise(error: OSError) -> None:
    raise error


def read_list(path: str | os.PathLike, columns: Collection[str] = ()) -> tuple[dict[str, dict[str, str]], list[str]]:
    """
    Read a list of files.

    Args:
        path (`str`): a table, see [`~scalar_retrieval.gallery.store.file_lists`]. Its paths are relative to its
            folder.
        columns: names of columns, next to `subtitle`, with texts of the files.

    Returns:
        The files, in order, and the texts of each, by column; `subtitle` is text or the path of a subtitle file. And
        the names of the columns that are not used.

    Raises:
        ValueError: it is not such a list; a column is missing or has other content; or two rows of one file disagree.
            The message names the list and the line.
    """
    folder = os.path.dirname(os.path.abspath(path))
    # Which column has the paths
    names, rows = read_table(path)
    paths = [name for name in _PATHS if name in names]
    if len(paths) != 1:
        got = f"got {names}" if names else "there is none"
        raise ValueError(f"{path} must have one column `path`, or `video`, with the names of files; {got}.")
    # The texts of each row; empty cells count as missing.
    used = (*paths, _SUBTITLE, *columns)
    found: dict[str, dict[str, str]] = {}
    for where, row in rows:
        given = {}
        for name in used:
            cell = row.get(name)
            if not isinstance(cell, str | None) or "\0" in (cell or ""):
                raise ValueError(f"{path}, {where}, column `{name}`: expected a text, got {cell!r}.")
            if cell is not None and cell.strip():
                given[name] = cell
        file = given.pop(paths[0], None)
        if file is None:
            raise ValueError(f"{path}, {where}, column `{paths[0]}`: expected the path of a file, got none.")
        # A subtitle is a text, or a file relative to the list.
        if names_subtitle_file(given.get(_SUBTITLE)):
            given[_SUBTITLE] = os.path.join(folder, given[_SUBTITLE])
            if not os.path.isfile(given[_SUBTITLE]):
                raise ValueError(f"{path}, {where}, column `{_SUBTITLE}`: there is no file {given[_SUBTITLE]!r}.")
        _add(found, real_path(os.path.join(folder, file)), given, f"{path}, {where}")
    return found, [name for name in names if name not in used]


def _add(found: dict[str, dict[str, str]], file: str, given: Mapping[str, str], where: str) -> None:
    """Add what a row or a list says of a file."""
    known = found.setdefault(file, {})
    for name, text in given.items():
        if known.setdefault(name, text) != text:
            raise ValueError(f"{where}: what is before it has another `{name}` of {file}. Remove one of them.")


def find_clips(
    paths: Iterable[str | os.PathLike],
    selection: FileSelection,
    columns: Collection[str] = (),
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """
    List the files in folders, files and lists, each once, and their texts from lists.

    Args:
        paths (iterable of `str`): folders, files and lists.
        selection ([`FileSelection`]): which files to include.
        columns: as in [`read_list`].

    Returns:
        The files, and the texts of those in lists, see [`read_list`].

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: see [`read_list`]; or two lists disagree.
    """
    found = {}
    given = {}
    for path in map(Path, paths):
        # A list that is not there is reported as any other path.
        if not is_table(path) or not path.exists():
            found |= dict.fromkeys(find_files([path], selection))
            continue
        rows, unused = read_list(path, columns)
        if unused:
            selection.unused[str(path)] = unused
        found |= dict.fromkeys(rows)
        for file, texts in rows.items():
            if texts:
                _add(given, file, texts, str(path))
    return selection.chosen(found), given


__all__ = ["FileSelection", "find_clips", "find_files", "further_texts", "read_list", "title_of_name"]
