"""The inputs of indexing: folders, files, and lists of files with texts.

- A list is a table, see [`~scalar_retrieval.gallery.store.file_lists`]. Its column `path`, or `video`, names a file,
  relative to the list's folder; `subtitle` may hold its speech as text, or the path of a subtitle file.
- A column named after a modality of the gallery, such as `title`, holds its text. Other columns are counted as
  unused, and reported.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from scalar_retrieval.gallery.decoding import PICTURE_FILES
from scalar_retrieval.gallery.filters import path_matcher
from scalar_retrieval.gallery.store.file_lists import is_table, read_table
from scalar_retrieval.modeling_scalar.tracks_scalar import FILM_FILES, MEDIA_FILES, names_subtitle_file

# Names of recycle bins, snapshots and previews that do not begin with a dot, in lowercase.
_SYSTEM = frozenset(
    "#recycle,#snapshot,$recycle.bin,@eadir,@recently-snapshot,@recycle,@sharebin,@snapshot,~snapshot,"
    "backups.backupdb,found.000,lost+found,lost.dir,network recycle bin,network trash folder,recycle bin,recycler,"
    "system volume information".split(",")
)
_OFTEN_TEXT = (".ts", ".mts", ".mod", ".nut", ".tp")  # TypeScript, go.mod, Squirrel, Pascal
_TEXT_BYTES = bytes([*b"\a\b\t\n\f\r\x1b", *range(32, 256)])  # all but most control characters
_COPIES = (".lrv", ".lrf")  # of GoPro and DJI
# Types of films, sounds and photographs that the reader lacks, or that are encrypted.
_UNREAD = frozenset(
    ".swf .movie .bik .smk .roq .nsv .nuv .gxf .r3d .braw .ari .fli .flc .yuv .mid .midi .kar .aa .aax .m4p .loas "
    ".mpc .mlp .thd .dts .dtshd .dsf .dff .shn .voc .gsm .qcp .dss .xm .s3m .dng .cr2 .cr3 .nef .nrw .arw .orf "
    ".rw2 .raf .pef .srw .jxl .jp2 .psd".split()
)
_KNOWN = MEDIA_FILES.union(PICTURE_FILES, _COPIES, _UNREAD)

# What tells nothing of a file, in names of files and folders. Possessive where hostile names could take long.
_NO_WORDS = re.compile(
    r"""(?<![^\W_])(?:
    [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}  # a UUID
    | (?=[a-f]*\d[a-f]*\d)[0-9a-f]{8,}  # a hash, or a date of eight digits
    | (?:19|20)\d\d[-_. ][01]\d(?:[-_. ][0-3]\d)? | [0-3]?\d[-_. ][01]?\d[-_. ](?:19|20)\d\d  # dates
    | [0-2]\d[-_.: ][0-5]\d[-_.: ][0-5]\d  # a time
    | (?:IMGP?|VID|MVIMG|MVI|MOVI?|DSC[FIN]?|PXL|DJI|GOPR|PICT|CIMG|SANY|HPIM|YDXJ|MAH|MVC|AMBA|AUD|PTT|PANO|VTS|GMT
        |RPReplay_Final|FullSizeRender|Screen[-_ ]?(?:Record(?:ing|er)|shot)|WhatsApp(?:[-_ ](?:Audio|Image|Video))?
        )(?:[-_ ]*[A-Z]?\d+)*+(?:[-_.](?:BURST|COVER|HDR|NIGHT|PANO|PORTRAIT)\d*)*+  # of cameras and programs
    | WIN(?:_\d+)+(?:_Pro)?  # of Windows' camera
    | (?-i:[A-Z]{3,4})_?(?!(?:19|20)\d\d(?!\d))\d{4,5}  # of other cameras, by the rule of their standard; no years
    | (?-i:[1-9]\d\d[A-Z_][A-Z0-9_]{4}|AVCHD|BDMV|STREAM)  # folders of cameras
    | \[(?=[^]]*\d)[\w-]{11}\]  # a video of YouTube
    | [^\W\d_]{1,2}\d{4,}[^\W\d_]{0,2} | \d{4,}[^\W\d_]{1,2} | \d{5,}  # numbers with a letter, and long ones
    )(?![^\W_])""",
    re.IGNORECASE | re.VERBOSE,
)
# Words that programs and people give to any file.
_GENERAL = frozenset(
    "audio camera clip clips copy dcim download downloads edited event file films final folder image images media "
    "movie movies new output photo photos picture pictures rec received record recording recordings roll signal "
    "snapchat track trim unbenannt untitled uploads video videos voice".split()
)

_PATHS = ("path", "video")
_SUBTITLE = "subtitle"
_TRACKS = ("video", "audio", _SUBTITLE)  # modalities that are read from media files and subtitle files


class LeftOut(StrEnum):
    """Why something that was found in a folder is left out, as the report says it after the number."""

    HIDDEN = "hidden or system item{} left out; to index one, name it."
    PICTURES = "picture{} left out; --pictures takes them."
    STILLS = "picture{} left out, as each is beside a film of the same name."
    COPIES = "low-resolution film{} of a camera left out; to index one, name it."
    UNREAD = "file{} left out, of types that are not read."
    TEXTS = "file{} left out: text, despite the name."


class FileSelection:
    """
    Selects files: of those in folders, which are not hidden, films, sounds and, if asked for, pictures; and of all
    files those that are not excluded and whose paths are UTF-8.

    Args:
        exclude (iterable of `str`): patterns of paths to skip, see [`~scalar_retrieval.gallery.filters.Filter`];
            folders that match are skipped as a whole, and so are files that were named explicitly.
        pictures (`bool`): take the pictures in folders, too, except those beside a film of the same name, as a
            Live Photo has.

    Attributes:
        left_out (`dict[LeftOut, set[str]]`): the files and folders that were skipped, by the reason.
        not_utf8 (`set[str]`): the files that were skipped because their paths cannot be written in UTF-8.
        unlisted (`dict[str, str]`): the subfolders that were skipped because they could not be listed, and why.
        unused (`dict[str, list[str]]`): by list, the columns that hold neither paths nor texts of a modality.

    Raises:
        ValueError: a pattern is not valid.
    """

    def __init__(self, exclude: Iterable[str] = (), pictures: bool = False):
        self._is_excluded = path_matcher(exclude)
        self._takes_pictures = pictures
        self.left_out: dict[LeftOut, set[str]] = defaultdict(set)
        self.not_utf8: set[str] = set()
        self.unlisted: dict[str, str] = {}
        self.unused: dict[str, list[str]] = {}

    def folders(self, folder: str, names: Iterable[str]) -> list[str]:
        """The names of the folders to go into, of those in a folder."""
        taken = []
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _is_hidden(name):
                self.left_out[LeftOut.HIDDEN].add(path)
            elif not self._is_excluded(os.path.abspath(path)):
                taken.append(name)
        return taken

    def files(self, folder: str, names: Iterable[str]) -> Iterator[str]:
        """The paths of the files to include, of those with these names in a folder."""
        known = []
        films = set()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if _extension(name) in _KNOWN and not self._is_excluded(os.path.abspath(path)):
                known.append(path)
                if _extension(name) in FILM_FILES:
                    films.add(_stem(path))
        for path in known:
            reason = self._reason_against(path, films)
            if reason is None:
                yield path
            else:
                self.left_out[reason].add(path)

    def _reason_against(self, path: str, films: Collection[str]) -> LeftOut | None:
        """Why a file is left out, if it is; `films` are those of its folder, without extensions and capitals."""
        extension = _extension(path)
        if _is_hidden(os.path.basename(path)):
            return LeftOut.HIDDEN
        if extension in _COPIES:
            return LeftOut.COPIES
        if extension in _UNREAD:
            return LeftOut.UNREAD
        if extension in PICTURE_FILES and not self._takes_pictures:
            return LeftOut.PICTURES
        if extension in PICTURE_FILES and _stem(path) in films:
            return LeftOut.STILLS
        if extension in _OFTEN_TEXT and _is_text(path):
            return LeftOut.TEXTS
        return None

    def skip_folder(self, error: OSError) -> None:
        """Note a folder that cannot be listed."""
        self.unlisted[os.path.realpath(error.filename)] = error.strerror or str(error)

    def lines(self) -> Iterator[str]:
        """What was left out, a line for each reason."""
        for reason, paths in self.left_out.items():
            extensions = Counter(sorted(map(_extension, paths)))
            ending = "s" if len(paths) > 1 else ""
            # Folders have no extension that tells anything.
            if reason != LeftOut.HIDDEN:
                ending += f" ({', '.join(f'{count:,} {name}' for name, count in extensions.most_common())})"
            yield f"{len(paths):,} {reason.format(ending)}"

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


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM


def _extension(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _stem(path: str) -> str:
    return os.path.splitext(path)[0].casefold()


def _is_text(path: str) -> bool:
    """Whether a file begins with text."""
    # A pipe could block, as may files that the system generates. Reading a file reports what is wrong with it.
    try:
        if not os.path.isfile(path) or not os.path.getsize(path):
            return False
        with open(path, "rb") as file:
            head = file.read(1024)
    except OSError:
        return False
    return not head.translate(None, _TEXT_BYTES)


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
            subfolders[:] = selection.folders(folder, subfolders)
            for file in selection.files(folder, names):
                found[real_path(file)] = None
    return selection.chosen(found)


def real_path(path: str | os.PathLike) -> str:
    """The file that a link leads to; a link to anything else is reported by its own name."""
    real = os.path.realpath(path)
    is_other = os.path.exists(real) and not os.path.isfile(real)
    return os.path.abspath(path) if is_other else real


def further_texts(modalities: Iterable[str]) -> list[str]:
    """Those of some modalities that are texts other than subtitles."""
    return [name for name in modalities if name not in _TRACKS]


def title_of_name(path: str) -> str:
    """
    The title of a file without one: the words of its name and its folder's, such as `rain noise, sounds`, or `""`.

    The extension is left out. Underscores, dashes and dots become spaces, and a space comes before each capital letter
    that follows a small one. What cameras and programs call files, dates, times and hashes are no words, see
    [`words_of`].
    """
    folder, name = os.path.split(path)
    parts = [words_of(os.path.splitext(name)[0]), words_of(os.path.basename(folder))]
    return ", ".join(filter(None, parts))


def words_of(name: str) -> str:
    """
    The words of a name, without what a camera or a program adds; `""` if none is left that tells anything.

    A word has three letters, or one of a script without capitals, such as Chinese. Numbers stay beside words.

    Example:
        >>> words_of("20250614_birthdayAnna"), words_of("Blade.Runner.2049"), words_of("IMG_0042")
        ('birthday Anna', 'Blade Runner 2049', '')
    """
    letters = []
    for before, letter in pairwise(f" {_NO_WORDS.sub(' ', name)}"):
        if before.islower() and letter.isupper():
            letters.append(" ")
        if letter in "_-.":
            letter = " "
        letters.append(letter)
    words = "".join(letters).split()
    if any(map(_tells_something, words)):
        return " ".join(words)
    return ""


def _tells_something(word: str) -> bool:
    """Whether a word tells what is in a file."""
    letters = "".join(filter(str.isalpha, word)).lower()
    if letters == letters.upper():  # no capitals, as in Chinese
        return bool(letters)
    return len(letters) >= 3 and letters not in _GENERAL


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


__all__ = [
    "FileSelection",
    "LeftOut",
    "find_clips",
    "find_files",
    "further_texts",
    "read_list",
    "title_of_name",
    "words_of",
]
