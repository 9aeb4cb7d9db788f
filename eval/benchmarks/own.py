"""The user's own benchmark: a JSON, JSONL, CSV or Parquet file, or a data set on the Hub."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from datasets import Dataset, Value, load_dataset
from tqdm import tqdm

from scalar_retrieval.gallery.decoding import SandboxedReader, num_processors
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.file_lists import KINDS, Row, is_table, read_table
from scalar_retrieval.gallery.store.file_state import is_as_known
from scalar_retrieval.gallery.store.rows import check_modality
from scalar_retrieval.gallery.words.transcripts import Transcripts
from scalar_retrieval.modeling_scalar.media_scalar import MediaError
from scalar_retrieval.modeling_scalar.modalities_scalar import kind_of
from scalar_retrieval.modeling_scalar.tracks_scalar import find_sidecar, names_subtitle_file

from .annotations import FEATURES, KIND, dataset_from_rows, find_media
from .definition import Benchmark

FILE_COLUMNS = ("video_path", "path")
"""Default names of the column of videos; the first that a table has is used."""
HELD_OUT = "test"
KEPT = "train"
"""The two splits of a table with `holdout`."""


def _read_table(
    root: str | os.PathLike, split: str, wanted: set[str], id_column: str
) -> tuple[list[str], Iterable[Row], Path]:
    """Return column names and rows of the table, and the folder that its paths are relative to."""
    path = Path(root)
    if path.exists() and is_table(path):
        return *read_table(path), path.parent
    if path.is_file():
        raise ValueError(f"A table must be one of {list(KINDS)}, got {path}.")
    # Anything else is a data set of the Hub, or the folder of one.
    name = str(root)
    try:
        dataset = load_dataset(name, split=split)
    except ConnectionError as error:
        raise FileNotFoundError(
            f"There is no file or folder {name!r}, and the Hub cannot be reached: {error}."
        ) from error
    except OSError:
        raise
    except Exception as error:  # the library's readers raise any exception for malformed files
        raise ValueError(f"No data set could be loaded from {name!r}: {error}") from error
    names = dataset.column_names
    kind = dataset.features.get(id_column)
    if kind not in (None, Value("string"), Value("large_string")):
        raise ValueError(
            f"Ids must be text, but the column {id_column!r} of {name} holds {kind}: as numbers, 007 and 7 are "
            "the same. Store it as text, or give the file instead of the data set."
        )
    # Columns that are not used, such as one of decoded videos, are not read.
    rows = []
    for row in dataset.select_columns([name for name in names if name in wanted]):
        rows.append((f"row {len(rows) + 1}", row))
    return names, rows, path if path.is_dir() else Path()


def _value(value: Any) -> Any:
    """Return `None` for the empty values of tables."""
    is_nan = isinstance(value, float) and value != value
    is_blank = isinstance(value, str) and not value.strip()
    return None if is_nan or is_blank else value


def _read_clips(rows: Iterable[Row], columns: Mapping[str, str], source: str) -> list[dict[str, Any]]:
    """Convert rows of the user's table to clips with these columns, with captions as a list."""
    clips: dict[str, dict[str, Any]] = {}
    for place, row in rows:
        # The values of the clip, each of the expected type.
        where = f"{source}, {place}"
        clip = {name: _value(row.get(column)) for name, column in columns.items()}
        video_id = clip["video_id"]
        if type(video_id) not in (str, int):
            raise ValueError(f"{where}: {columns['video_id']!r} must be text, got {video_id!r}.")
        video_id = clip["video_id"] = str(video_id)
        captions = clip["caption"] if isinstance(clip["caption"], list) else [clip["caption"]]
        if not captions or not all(isinstance(_value(text), str) for text in captions):
            raise ValueError(
                f"{where}, clip {video_id!r}: {columns['caption']!r} must be a caption or a list of captions, got "
                f"{clip['caption']!r:.200}."
            )
        for name in clip.keys() - {"video_id", "caption"}:
            if not isinstance(clip[name], str | None):
                raise ValueError(
                    f"{where}, clip {video_id!r}: {columns[name]!r} must be text, got {clip[name]!r:.200}."
                )
        clip["caption"] = captions

        # Rows with the same id are one clip, with the captions of all.
        known = clips.setdefault(video_id, clip)
        if known is not clip:
            if known | {"caption": captions} != clip:
                raise ValueError(
                    f"{where} gives other files or texts for the clip {video_id!r} than an earlier row: one "
                    f"{columns['video_id']!r} is one clip."
                )
            known["caption"] += captions
    return list(clips.values())


def _find_files(clips: list[dict[str, Any]], known: set[str], folder: Path) -> None:
    """Find the files of clips whose table has no column of videos or of audio files."""
    ids = [clip["video_id"] for clip in clips]
    if "video_path" not in known:
        videos = find_media(folder / "videos", ids)
        for clip in clips:
            clip["video_path"] = videos.get(clip["video_id"])
    if "audio_path" not in known:
        audios = find_media(folder / "audios", ids)
        for clip in clips:
            clip["audio_path"] = audios.get(clip["video_id"], clip["video_path"])
    for clip in clips:
        if "video_path" not in known and clip["audio_path"] is None:
            clip["video_path"] = clip["video_path"] or f"videos/{clip['video_id']}.*"  # later reported as missing
        if names_subtitle_file(clip["subtitle"]):
            clip["subtitle"] = str(folder.absolute() / clip["subtitle"])


def _find_words(clips: list[dict[str, Any]], folder: Path, gallery: Gallery | None) -> None:
    """Find the subtitles of clips whose table has no column of subtitles."""
    # The clips with a file, that of the video or else of the sound.
    with_file = []
    files = []
    for clip in clips:
        file = clip["video_path"] or clip["audio_path"]
        if file is not None and "\0" not in file:  # no system has such a file: reading it reports the error
            with_file.append(clip)
            files.append(os.path.realpath(folder.absolute() / file))
    known = gallery.files_at(files) if gallery is not None else {}
    reader = SandboxedReader()

    def words_of(path: str) -> str | None:
        """Return what a search reads: a transcript, the path of a subtitle file, or the text of a subtitle track."""
        found = None
        if path in known and is_as_known(path, known[path]):
            found = Transcripts(gallery.path).with_words(known[path].sha256)
        try:
            found = found or find_sidecar(path)
            return reader.read_subtitle_of(path) if found is None else str(found)
        except (MediaError, OSError):  # reported when the clip is read
            return None

    # Several at once, because reading a subtitle track waits for a decoder.
    with ThreadPoolExecutor(num_processors()) as pool:
        subtitles = tqdm(pool.map(words_of, files), "Subtitles", len(files), unit="file", delay=2)
        for clip, words in zip(with_file, subtitles, strict=True):
            clip["subtitle"] = words


def _given_columns(columns: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the user's columns, with `path` under its other name, `video_path`, and the modalities that columns are
    given for; raise a ValueError for one that cannot be a text of a clip."""
    given = dict(columns)
    if set(FILE_COLUMNS) <= given.keys():
        raise ValueError(f"`path` and `video_path` name the same column, the one of videos; got {given}. Give one.")
    if "path" in given:
        given["video_path"] = given.pop("path")
    texts = [name for name in given if name not in FEATURES]
    for name in texts:
        if given[name] in (*FEATURES, *FILE_COLUMNS) or name == KIND or kind_of(name) != "text":
            raise ValueError(
                f"`columns` can name {['path', *FEATURES]}, and texts that are further modalities, as in "
                f"title=heading; got {name}={given[name]}."
            )
        check_modality(name)
    return given, texts


def _columns_of(given: Mapping[str, str], names: list[str], source: str) -> dict[str, str]:
    """Return the table's names of the columns of `FEATURES`."""
    # By default a column has the name of what it holds; a video may also be `path`.
    columns = {name: given.get(name, name) for name in (*FEATURES, *given)}
    if "video_path" not in {*given, *names}:
        columns["video_path"] = "path"
    # Without ids, the path is the id.
    if "video_id" not in {*given, *names}:
        columns["video_id"] = columns["video_path"]
    needed = set(map(columns.get, ("video_id", "caption", *given)))
    lacking = sorted(needed.difference(names))
    if lacking:
        raise ValueError(
            f"{source} has the columns {names}, but not {lacking}. Name yours for `caption`, and for `path` or "
            "`video_id`: `--column path=YOURS` on a command, `column: {path: YOURS}` in a recipe."
        )
    return columns


def is_held_out(video_id: str, share: float) -> bool:
    """Whether a clip is held out. This depends on its id alone, so it stays on its side when a table grows."""
    digest = hashlib.sha256(video_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def _one_side(clips: list[dict[str, Any]], split: str, share: float, source: str) -> list[dict[str, Any]]:
    """Return the held-out share of a table, or the rest."""
    if split not in (KEPT, HELD_OUT):
        raise ValueError(f"With `holdout` a table has the splits {KEPT!r} and {HELD_OUT!r}, got {split!r}.")
    chosen = [clip for clip in clips if is_held_out(clip["video_id"], share) == (split == HELD_OUT)]
    if not chosen:
        raise ValueError(
            f"With `holdout` {share:g}, none of the {len(clips)} clips of {source} is in the split {split!r}. Give "
            "another share."
        )
    return chosen


def load_own(
    root: str | os.PathLike,
    split: str = "test",
    *,
    captions: str = "all",
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    words_of: str | os.PathLike | None = None,
    on_missing: str = "raise",
) -> tuple[Dataset, list[str]]:
    """
    Load clips from the user's own table.

    A row is a clip with a caption or a list of captions; rows with the same id are one clip. Empty values, null and
    NaN count as absent. Videos are in the column `video_path`, or `path`. Ids are text, taken exactly as written;
    without a column of ids the path is the id.

    Without a column of videos or of audio files, files are found by id in the folders `videos` and `audios` next to
    the table; a clip without an audio file has the audio track of its video, if any. A subtitle is text or the path of
    a subtitle file; without a column of subtitles it is, as in a search, the file next to the video, or else the audio
    file, or a track in it.

    Args:
        root (`str` or `os.PathLike`): a `.json`, `.jsonl`, `.csv` or `.parquet` file, or the name of a data set on the
            Hub, or the folder of one.
        split (`str`, defaults to "test"): split of the data set. A file is a single split.
        captions (`str`, defaults to "all"): a row per caption, or only the "first" of each clip.
        holdout (`float`, *optional*): in (0, 1), the share of clips in the split "test"; "train" has the others. A
            hash of its id decides the side of a clip.
        words_of (`str` or `os.PathLike`, *optional*): a gallery of these files, whose transcripts are used as in
            a search.
        columns (`Mapping`, *optional*): the table's column for each of `FEATURES`, or `path`, that it names
            differently, and for further texts, by the names of their modalities: `{"title": "heading"}`.
            Paths are relative to the folder of the file; for a data set on the Hub, to the working directory.
        on_missing (`str`, defaults to "raise"): or "leave_out": clips with missing files.

    Returns:
        `Dataset` with the columns of `FEATURES` and of further texts, clips in the order of their first rows, paths
        absolute; and the ids left out.

    Raises:
        FileNotFoundError: the table does not exist, or files are missing.
        ValueError: a column is missing, a row is malformed, or rows of one clip differ.
    """
    given, texts = _given_columns(columns or {})
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"`holdout` is a share of the clips between 0 and 1, got {holdout:g}.")

    # The rows of the table, in which a held-out share is part of the split "train".
    wanted = {*FILE_COLUMNS, *FEATURES, *given.values()}
    split_of_table = KEPT if holdout is not None else split
    names, rows, folder = _read_table(root, split_of_table, wanted, given.get("video_id", "video_id"))

    # Clips, each with all of its captions, on the side of the split.
    columns = _columns_of(given, names, str(root))
    clips = _read_clips(rows, columns, str(root))
    if holdout is not None:
        clips = _one_side(clips, split, holdout, str(root))

    # Their files and subtitles, as far as the table has no columns of them.
    known = {name for name, column in columns.items() if column in names}
    _find_files(clips, known, folder)
    if columns["subtitle"] not in names:
        gallery = Gallery.open(words_of) if words_of is not None else None
        _find_words(clips, folder, gallery)

    # A row per caption.
    rows = []
    for clip in clips:
        chosen = clip["caption"][:1] if captions == "first" else clip["caption"]
        rows += [clip | {"caption": caption} for caption in chosen]
    return dataset_from_rows(rows, folder, on_missing, texts)


OWN = Benchmark("own", load_own, settings=("captions", "columns", "holdout", "words_of"))

__all__ = ["OWN", "load_own"]
