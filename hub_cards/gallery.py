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

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from scalar_retrieval.gallery.store.file_state import clip_sha256
from scalar_retrieval.gallery.store.places import MEDIA
from scalar_retrieval.gallery.store.rows import lists_of
from scalar_retrieval.gallery.store.storage import read_manifest
from scalar_retrieval.gallery.words.transcripts import KINDS, Transcripts
from scalar_retrieval.modeling_scalar.media_scalar import check_content
from scalar_retrieval.modeling_scalar.model_identity import LIGHT, identify, is_light
from scalar_retrieval.modeling_scalar.scores_scalar import ScoreOptions
from scalar_retrieval.modeling_scalar.tracks_scalar import find_sidecar

from .card import Details, render
from .markdown import code
from .privacy import without_folders
from .publishing import Kind, PublishedModel, Push, find_model

# A common folder at this level or higher would leave names of people or disks in the paths below it.
_TOO_HIGH = ("/", "/home", "/Users")


# Staging ----------------------------------------------------------------------------------------------------------


class _Names:
    """
    Published names of clips and files: their paths below the folder that all clips share. Clips that are not files of
    the gallery keep their names.

    Raises:
        ValueError: the names would reveal the folders of this machine.
    """

    def __init__(self, gallery: Gallery):
        self.files: dict[str, str] = {}
        self._clips: dict[str, str] = {}
        clips_of_files = gallery.clips_of_files()
        paths = sorted(clips_of_files.keys() & gallery.files)
        self._folder = None
        if paths:
            self._folder = os.path.commonpath(map(os.path.dirname, paths))
        if self._folder in _TOO_HIGH:
            raise ValueError(
                f"The clips of {gallery.path} share no folder but {self._folder!r}, so their names would reveal the "
                "folders of this machine. Index one folder at a time, and publish a gallery for each."
            )
        # A window's name is that of its file with the seconds, so it changes with it.
        for path in paths:
            self.files[path] = self.of_file(path)
            for name in clips_of_files[path]:
                self._clips[name] = self.files[path] + name[len(path) :]  # a window's seconds follow its file

    def of_file(self, path: str) -> str:
        """Return the name of a file; for a file elsewhere only the last part."""
        if self._folder is not None and Path(path).is_relative_to(self._folder):
            return Path(path).relative_to(self._folder).as_posix()
        return Path(path).name

    def of_clip(self, clip_id: str) -> str:
        """Return the name of a clip."""
        return self._clips.get(clip_id, clip_id)

    def shortened(self, text: str) -> str:
        """Return a text without the folders of this machine."""
        if self._folder is not None:
            text = text.replace(f"{self._folder}{os.sep}", "")
        return without_folders(text)


def _open(source: Path, media: bool) -> Gallery:
    """Open a gallery that is whole and finished, and holds what is asked for."""
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


def _named(rows: pa.Table, column: str, name_of: Any) -> pa.Table:
    """Replace the texts of a column of lists."""
    lists = []
    for texts in lists_of(rows, column):
        lists.append(list(map(name_of, texts)))
    return _with(rows, column, lists)


def _published_files(gallery: Gallery, names: _Names, media: bool) -> list[MediaFile]:
    """Return the published details of files: why some could not be read, and of those published too all but where
    they were recorded."""
    files = []
    taken = set(names.files.values())
    for path, file in gallery.files.items():
        # Without media only failures are published, for the card names them.
        if file.reason is None and not media:
            continue
        # Files elsewhere, of which only the last part is named, may share it.
        name = names.of_file(path)
        number = 1
        while name in taken and path not in names.files:
            number += 1
            name = f"{names.of_file(path)} ({number})"
        taken.add(name)
        file = replace(file, path=name, place=None)
        if file.reason is not None:
            file = replace(file, reason=names.shortened(file.reason))
        if not media or path not in names.files:
            file = replace(file, size=0, mtime_ns=0, sha256="", recorded_ns=None)
        files.append(file)
    return files


def _copy_media(gallery: Gallery, names: _Names, folder: Path) -> None:
    """Copy files, each with its subtitle file and transcripts, and check that they are unchanged since embedding."""
    for path, name in names.files.items():
        # The file, and the subtitle file next to it, under their published names.
        target = folder / MEDIA / name
        known = gallery.files[path]
        check_content(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        sidecar = find_sidecar(path)
        if sidecar is not None:
            copy = target.with_suffix(sidecar.suffix)  # it may lie in a folder below
            copy.touch()
            # Pipes, and what the system generates such as /proc/kmsg, have no size, and reading them might never end.
            if sidecar.stat().st_size:
                shutil.copyfile(sidecar, copy)

        # Checked after copying: what is published belongs to the vectors.
        if clip_sha256(str(target)) != known.sha256:
            raise ValueError(
                f"{path}, or the subtitle file next to it, has changed since it was embedded, or a list gave its "
                "subtitle. Index again, without a list."
            )
        for kind in KINDS:
            transcript = Transcripts(gallery.path, kind).with_words(known.sha256)
            if transcript is not None:
                copies = Transcripts(folder, kind)
                copies.folder.mkdir(exist_ok=True)
                # Without the folder of the model that made it.
                text = transcript.read_text(encoding="utf-8")
                text = re.sub("^NOTE .*$", lambda note: without_folders(note[0]), text, flags=re.MULTILINE)
                copies.path_of(known.sha256).write_text(text, encoding="utf-8", newline="\n")


def stage_gallery(source: Path, folder: Path, model: PublishedModel | None = None, media: bool = False) -> None:
    """
    Write the files of a published gallery, without its card.

    Absolute paths of this machine are shortened: those of clips to names below the folder that all share, all others
    to their last component.

    Args:
        source (`Path`): a gallery, such as one by `scalar index` or `scalar eval embed`.
        folder (`Path`): a new or empty folder.
        model ([`~scalar_retrieval.hub_cards.publishing.PublishedModel`], *optional*): the model on the Hub that
            computed the vectors. By default the card names the model as the source does, as one that is not on the
            Hub.
        media (`bool`): also publish the media files, the subtitle files next to them, and their transcripts.

    Raises:
        FileNotFoundError: the source, or a file to publish, does not exist.
        ValueError: the source is damaged, or a file changed since it was embedded.
    """
    gallery = _open(source, media)
    names = _Names(gallery)

    # The tables, with published names.
    clips = _with(gallery.clips, "clip_id", list(map(names.of_clip, gallery.clip_ids)))
    if "problems" in clips.column_names:
        clips = _named(clips, "problems", names.shortened)
    with GalleryWriter(folder) as writer:
        writer.metadata = _metadata(gallery, model)
        writer.append("clips", clips)
        if gallery.queries is not None:
            writer.append("queries", _named(gallery.queries, "clip_ids", names.of_clip))
        writer.put_files(_published_files(gallery, names, media))
        writer.commit()
    (folder / ".lock").unlink()
    if media:
        _copy_media(gallery, names, folder)


def _metadata(gallery: Gallery, model: PublishedModel | None) -> dict[str, Any]:
    """Return the published metadata about the origin of the vectors."""
    metadata = without_folders(gallery.metadata)
    left_out = None
    if gallery.files:
        left_out = []
    metadata["left_out"] = gallery.metadata.get("left_out", left_out)  # ids do not change
    if model is None:  # nobody else could load it by this name
        metadata.pop("model", None)
        names = (gallery.model or "").split("+")
        metadata["local_model"] = "+".join(map(without_folders, names)) or None
    else:
        metadata |= {"model": model.repo_id, "model_revision": model.revision, "fingerprint": model.fingerprint}
    return {name: value for name, value in metadata.items() if value is not None}


# Card -------------------------------------------------------------------------------------------------------------


def _origin(gallery: Gallery, facts: dict[str, Any]) -> list[tuple]:
    """Return rows of the card's table about the origin of the vectors, as far as it is known."""
    known = {"SHA-256 of the gallery": facts["gallery_sha256"], "precision": facts["dtype"]}
    for name, value in gallery.metadata.items():
        if isinstance(value, str | int | float):
            known[name] = value
    for name, values in gallery.calibration.items():
        known[name] = ", ".join(map(str, values))
    return [(code(name), code(value)) for name, value in known.items()]


def _failures(gallery: Gallery) -> tuple[list[str], list[str]]:
    """Return what could not be read and counts as absent; and the missing clips with the reason, as far as known."""
    problems = []
    left_out = list(gallery.metadata.get("left_out") or ())
    for name, of_clip in gallery.problems().items():
        for problem in of_clip:
            problems.append(f"{name}: {problem}")
    clips = gallery.clips_of_files()  # a file's readable windows are clips even if others could not be read
    for file in gallery.files.values():
        if file.reason is not None and file.path in clips:
            problems.append(f"{file.path}: {file.reason}")
        elif file.reason is not None:
            left_out.append(f"{file.path}: {file.reason}")
    return [*problems, *gallery.metadata.get("problems", ())], left_out


def gallery_card(folder: Path, repo_id: str, details: Details) -> str:
    """Write the card of a gallery from the files that [`stage_gallery`] wrote to `folder`."""
    gallery = Gallery.open(folder)
    facts = gallery.facts()
    title = f"Embeddings of {repo_id.split('/')[-1]}"
    split = re.sub(r"\W+", "_", gallery.metadata.get("split") or "gallery")

    # Front matter, by which `datasets` loads the tables without this package.
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

    # Text of the card.
    problems, left_out = _failures(gallery)
    return render(
        "gallery",
        data,
        details,
        title=title,
        repo_id=repo_id,
        split=split,
        num_media=sum(map(Path.is_file, (folder / MEDIA).rglob("*"))),
        metadata=gallery.metadata,
        problems=problems,
        left_out=left_out,
        modalities=list(gallery.modalities),
        present=gallery.presence_counts(),
        calibration=gallery.calibration,
        is_calibrated=ScoreOptions(**gallery.calibration).is_calibrated,
        origin=_origin(gallery, facts),
        **facts,
    )


# Push -------------------------------------------------------------------------------------------------------------


def _side_by_side(api: HfApi, name: str, offline: bool) -> PublishedModel | None:
    """Find each of several encoders on the Hub; `None` if one was never published."""
    identity = identify(name)
    names = []
    for part in identity.parts:
        found = find_model(api, part.name, part.revision, part.weights, offline)
        if found is None:
            return None
        names.append(f"{found.repo_id}@{found.revision}" if found.revision else found.repo_id)
    return PublishedModel("+".join(names), fingerprint=identity.fingerprint)


def _model_of(api: HfApi, source: Path, given: str | None, offline: bool) -> PublishedModel | None:
    """
    Find the model that made a gallery on the Hub, or in packages; `None` if it was never published.

    Raises:
        PublishError: it does not exist there.
        ValueError: its weights differ from those that made the gallery, or it is a folder that was not published.
    """
    # Named by the user, or by the gallery itself.
    metadata = Gallery.open(source).metadata
    name = given or metadata.get("model")
    if name is None:
        return None
    if is_light(name):
        model = PublishedModel(LIGHT, fingerprint=metadata.get("fingerprint"))
    elif "+" in name and not Path(name).is_dir():
        model = _side_by_side(api, name, offline)
    else:
        model = find_model(api, name, None, metadata.get("weights") or {}, offline)
    if model is None and given is not None:
        raise ValueError(
            f"The model in the folder {given} has not been pushed to {api.endpoint}. Publish it first, or leave out "
            "--model: the card then says that the model is not on the Hub."
        )
    if model is None:
        return None
    identity = identify(name)
    if identity.is_folder and identity.fingerprint != metadata.get("fingerprint"):
        raise ValueError(
            f"{source} was not made by the model that is now in {name}, so their vectors cannot be compared. Make it "
            "again, or name the model with --model."
        )
    if model.fingerprint is None and name == metadata.get("model"):
        model = replace(model, fingerprint=metadata.get("fingerprint"))
    return model


def _stage(push: Push, folder: Path, api: HfApi) -> None:
    source = Path(push.source)
    model = _model_of(api, source, push.model, offline=push.dry_run is not None)
    stage_gallery(source, folder, model, push.media)


KIND = Kind(
    "gallery",
    "dataset",
    ("gallery.json", "gallery-copy.json", "clips/*", "queries/*", "files/*", "media/*", "transcripts/*"),
    _stage,
    gallery_card,
    ("model", "media"),
)

__all__ = ["KIND", "gallery_card", "stage_gallery"]
