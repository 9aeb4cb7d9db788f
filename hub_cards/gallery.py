"""Publishes a gallery as a data set on the Hub: the same gallery, with names instead of paths, and a card.

It holds the clips, the captions that describe them, and optionally your own media files.
`Gallery.open("hf://datasets/USER/NAME")` opens it, and `datasets` alone loads its Arrow files.
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from huggingface_hub import DatasetCardData, HfApi

from gallery.columns import lists_of, to_utf8
from gallery.gallery import Gallery, GalleryWriter, MediaFile, is_gallery, verify_gallery
from gallery.media import clip_sha256
from gallery.published import MEDIA
from gallery.storage import MANIFEST, read_manifest
from gallery.subtitles import find_sidecar
from gallery.transcripts import KINDS, Transcripts
from gallery.windows import SEGMENT
from modeling_scalar.media_scalar import check_file
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import ScoreOptions

from .card import Details, render
from .errors import PublishError
from .markdown import code
from .privacy import without_folders
from .publishing import Kind, check_place, find_model, read_record
from .settings import GalleryPush

_NUM_NAMED = 10  # entries shown of a long list
# A common folder at this level or higher would leave names of people or disks in the paths below it.
_TOO_HIGH = ("/", "/home", "/Users")


# Staging ----------------------------------------------------------------------------------------------------------


class _Names:
    """
    Published names of clips and files: their paths below the folder that all clips share. Clips that are not files of
    the gallery keep their names.

    Raises:
        ValueError: the names would reveal the folders of this machine, or are not UTF-8.
    """

    def __init__(self, gallery: Gallery):
        clips = {path: clips for path, clips in gallery.clips_of_files().items() if path in gallery.files}
        self._folder = os.path.commonpath(map(os.path.dirname, clips)) if clips else None
        if self._folder in _TOO_HIGH:
            raise ValueError(
                f"The clips of {gallery.path} share no folder but {self._folder!r}, so their names would reveal the "
                "folders of this machine. Index one folder at a time, and publish a gallery for each."
            )
        self.files = {path: self.of_file(path) for path in sorted(clips)}
        # A window's seconds follow its file.
        self._clips = {name: self.files[path] + name[len(path) :] for path in clips for name in clips[path]}

    def of_file(self, path: str) -> str:
        """Return the name of a file; for a file elsewhere only the last part."""
        is_inside = self._folder is not None and Path(path).is_relative_to(self._folder)
        name = Path(path).relative_to(self._folder).as_posix() if is_inside else Path(path).name
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{path!r} has a name that is not UTF-8. Rename the file, and index again.") from error
        return name

    def of_clip(self, clip_id: str) -> str:
        """Return the name of a clip."""
        return self._clips.get(clip_id, clip_id)

    def shortened(self, text: str) -> str:
        """Return a text without the folders of this machine."""
        return without_folders(text if self._folder is None else text.replace(f"{self._folder}{os.sep}", ""))


def _open(source: Path, media: bool) -> Gallery:
    """Open a gallery that is whole and finished, and holds what is asked for."""
    if not (source / MANIFEST).is_file():
        raise FileNotFoundError(
            f"There is no gallery in {source}. `Gallery.open(...).copy(FOLDER)` makes one of a data set."
        )
    gallery, _ = verify_gallery(source)
    gallery.check_finished()
    if not len(gallery):
        raise ValueError(f"The gallery in {source} holds no clips.")
    if media and not gallery.files:
        raise ValueError(f"{source} was not made by `scalar index`, and only those know their media files.")
    return gallery


def _with(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = rows.schema.field(name)
    return rows.set_column(rows.column_names.index(name), field, pa.array(values, field.type))


def _published_files(gallery: Gallery, names: _Names, media: bool) -> list[MediaFile]:
    """Return the published details of files: why some could not be read, and everything about those published too."""
    files = {}
    for path, file in gallery.files.items():
        if file.reason is not None or media:
            reason = None if file.reason is None else names.shortened(file.reason)
            listed = file if media and path in names.files else replace(file, size=0, mtime_ns=0, sha256="")
            files.setdefault(names.of_file(path), replace(listed, path=names.of_file(path), reason=reason))
    return list(files.values())


def _copy_media(gallery: Gallery, names: _Names, folder: Path) -> None:
    """Copy files, each with its subtitle file and transcripts, and check that they are unchanged since embedding."""
    for path, name in names.files.items():
        target, known = folder / MEDIA / name, gallery.files[path]
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"{path} is in the gallery but not on disk. `scalar index --prune` removes clips of deleted files, "
                "`scalar remove` those of files that you name."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        sidecar = find_sidecar(path)
        if sidecar is not None:
            _copy_text(sidecar, target.with_name(sidecar.name))
        if clip_sha256(str(target)) != known.sha256:
            raise ValueError(
                f"{path}, or the subtitle file next to it, has changed since it was embedded, or a list gave its "
                "subtitle. Index again, without a list."
            )
        for kind in KINDS:
            found, copy = Transcripts(gallery.path, kind).with_words(known.sha256), Transcripts(folder, kind)
            if found is not None:
                copy.folder.mkdir(exist_ok=True)
                _copy_transcript(found, copy.path_of(known.sha256))


def _copy_text(path: Path, target: Path) -> None:
    """Copy a regular file. Those that the system generates, such as /proc/kmsg, have no size, and are not read."""
    check_file(path)  # a device would be copied endlessly
    target.touch()
    if path.stat().st_size:
        shutil.copyfile(path, target)


def _copy_transcript(path: Path, target: Path) -> None:
    """Copy a transcript without the folder of the model that made it."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for place, line in enumerate(lines):
        if line.startswith("NOTE "):
            lines[place] = without_folders(line)
    target.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def stage_gallery(
    source: Path, folder: Path, model: str | None = None, media: bool = False, **made_by: str | None
) -> None:
    """
    Write the files of a published gallery, without its card.

    Absolute paths of this machine are shortened: those of clips to names below the folder that all share, all others
    to their last component.

    Args:
        source (`Path`): a gallery, such as one by `scalar index` or `scalar eval embed`.
        folder (`Path`): a new or empty folder.
        model (`str`, *optional*): the id on the Hub of the model that computed the vectors. By default the card names
            the model as the source does, as one that is not on the Hub.
        media (`bool`): also publish the media files, the subtitle files next to them, and their transcripts.
        made_by: further details of that model, its commit `model_revision` and its `fingerprint`; by default those in
            the source.

    Raises:
        FileNotFoundError: the source, a data set of it, or a file to publish does not exist.
        ValueError: the source is damaged, a file changed since it was embedded, or an argument is wrong.
    """
    if model is not None:
        check_place("model", model)
    gallery = _open(source, media)
    names, rows, queries = _Names(gallery), gallery.clips, gallery.queries
    rows = _with(rows, "clip_id", [to_utf8(names.of_clip(name)) for name in gallery.clip_ids])
    if "problems" in rows.column_names:
        problems = lists_of(rows, "problems")
        rows = _with(rows, "problems", [list(map(names.shortened, of_clip)) for of_clip in problems])
    with GalleryWriter(folder) as writer:
        known = _metadata(gallery, model) | made_by
        writer.metadata = {name: value for name, value in known.items() if value is not None}
        writer.append("clips", rows)
        if queries is not None:
            published = [list(map(names.of_clip, of_query)) for of_query in lists_of(queries, "clip_ids")]
            writer.append("queries", _with(queries, "clip_ids", published))
        writer.put_files(_published_files(gallery, names, media))
        writer.commit()
    (folder / ".lock").unlink()
    if media:
        _copy_media(gallery, names, folder)


def _metadata(gallery: Gallery, model: str | None) -> dict[str, Any]:
    """Return the published metadata about the origin of the vectors."""
    metadata = without_folders(gallery.metadata)
    metadata["left_out"] = gallery.metadata.get("left_out", [] if gallery.files else None)  # ids do not change
    if model is None:  # nobody else could load it by this name
        metadata["local_model"] = metadata.pop("model", None)
    else:
        metadata["model"] = model
    return metadata


# Card -------------------------------------------------------------------------------------------------------------


def _origin(gallery: Gallery, facts: dict[str, Any]) -> list[tuple]:
    """Return rows of the card's table about the origin of the vectors, as far as it is known."""
    metadata = gallery.metadata
    known = {
        "model": metadata.get("model") or metadata.get("local_model"),
        "its commit on the Hub": gallery.model_revision,
        "fingerprint of the model": metadata.get("fingerprint"),
        "how it scores": (metadata.get("score_options") or {}).get("method"),
        "query temperature": metadata.get("query_temperature"),
        "SHA-256 of the gallery": facts["gallery_sha256"],
        "benchmark": metadata.get("benchmark"),
        "split of the benchmark": metadata.get("split"),
        "date": metadata.get("date"),
        "commit of the code": (metadata.get("source") or {}).get("commit"),
        "precision": facts["dtype"],
    }
    for name, values in gallery.calibration.items():
        known[f"{name.removeprefix('modality_')} of the cosines"] = ", ".join(map(str, values))
    for name, digest in (metadata.get("weights") or {}).items():
        known[f"SHA-256 of {name}"] = digest
    return [(name, code(value)) for name, value in known.items() if value is not None]


def _failures(gallery: Gallery) -> tuple[list[str], list[str]]:
    """Return what could not be read and counts as absent; and the missing clips with the reason, as far as known."""
    clips = gallery.clips_of_files()  # a file's readable windows are clips even if others could not be read
    problems, left_out = [], list(gallery.metadata.get("left_out") or ())
    for name, found in gallery.problems().items():
        problems += [f"{name}: {problem}" for problem in found]
    for file in gallery.files.values():
        if file.reason is not None:
            (problems if file.path in clips else left_out).append(f"{file.path}: {file.reason}")
    return [*problems, *gallery.metadata.get("problems", ())], left_out


def gallery_card(folder: Path, repo_id: str, details: Details) -> str:
    """Write the card of a gallery from the files that [`stage_gallery`] wrote to `folder`."""
    gallery = Gallery.open(folder)
    facts, metadata = gallery.facts(), gallery.metadata
    split = re.sub(r"\W+", "_", metadata.get("split") or "gallery")
    title = f"Embeddings of {repo_id.split('/')[-1]}"
    if metadata.get("benchmark"):
        title = f"Embeddings of {metadata['benchmark']}, {metadata.get('split') or split}"
    _, shards = read_manifest(folder)
    configs = []
    for name in ("clips", "queries"):
        # Named one by one, because a pattern would sort 10 before 2, and not miss one that is gone.
        files = [f"{name}/{shard.file}" for shard in shards.get(name, ())]
        if files:
            configs.append({"config_name": name, "data_files": [{"split": split, "path": files}]})
    configs[0]["default"] = True
    data = DatasetCardData(
        pretty_name=title,
        task_categories=["feature-extraction"],
        tags=["embeddings", "video-retrieval", "multimodal", "scalar"],
        configs=configs,
    )
    media = [path for path in (folder / MEDIA).rglob("*") if path.is_file()]
    problems, left_out = _failures(gallery)
    return render(
        "gallery",
        data,
        details,
        title=title,
        repo_id=repo_id,
        split=split,
        media=media,
        media_bytes=sum(path.stat().st_size for path in media),
        metadata=metadata,
        model=gallery.model,
        model_revision=gallery.model_revision,
        query_temperature=metadata.get("query_temperature"),
        method=(metadata.get("score_options") or {}).get("method"),
        problems=problems,
        left_out=left_out,
        modalities=list(gallery.modalities),
        present=dict(zip(gallery.modalities, gallery.modality_mask.sum(dim=0).tolist(), strict=True)),
        has_windows=SEGMENT in metadata,
        calibration=gallery.calibration,
        is_calibrated=ScoreOptions(**gallery.calibration).is_calibrated,
        origin=_origin(gallery, facts),
        num_named=_NUM_NAMED,
        **facts,
    )


# Push -------------------------------------------------------------------------------------------------------------


def _model_of(api: HfApi, source: Path, given: str | None, offline: bool) -> dict[str, Any]:
    """
    Find the model that made a gallery on the Hub; returns arguments of [`stage_gallery`].

    Raises:
        PublishError: it does not exist there.
        ValueError: its weights differ from those that made the gallery.
    """
    metadata = Gallery.open(source, check=False).metadata if is_gallery(source) else {}
    name = given or metadata.get("model")
    if name is None:
        return {"model": None}
    is_folder = given is None and (Path(name).is_dir() or os.path.isabs(name) or name.count("/") > 1)
    if is_folder:
        record = read_record(Path(name), api.endpoint)
        if record is None:
            return {"model": None}
        if identify(name).fingerprint != metadata.get("fingerprint"):
            raise ValueError(
                f"{source} was not made by the model that is now in {name}, so their vectors cannot be compared. Make "
                "it again, or name the model with --model."
            )
        repo_id, revision, fingerprint = record
        return {"model": repo_id, "model_revision": revision, "fingerprint": fingerprint}
    if offline:
        return {"model": name}
    try:
        info, different = find_model(api, name, None, metadata.get("weights"))
    except PublishError as error:
        raise PublishError(f"{error} {source} was made by {name}: give its id with --model.") from error
    if different:
        raise ValueError(
            f"{source} was made with other weights than those of {name}: {different} differ. Name the model that "
            "made it, or make it again."
        )
    fingerprint = metadata.get("fingerprint") if metadata.get("model") == name else None
    return {"model": name, "model_revision": info.sha, "fingerprint": fingerprint}


def _stage(settings: GalleryPush, folder: Path, api: HfApi) -> None:
    made_by = _model_of(api, settings.folder, settings.model, offline=settings.dry_run is not None)
    stage_gallery(settings.folder, folder, media=settings.media, **made_by)


KIND = Kind(
    "gallery",
    "dataset",
    ("gallery.json", "sealed-*.json", "clips/*", "queries/*", "files/*", "media/*", "transcripts/*"),
    _stage,
    gallery_card,
)

__all__ = ["KIND", "gallery_card", "stage_gallery"]
