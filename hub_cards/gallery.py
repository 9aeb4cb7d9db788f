"""A gallery of embeddings as a data set of the Hub: Parquet that `datasets` reads alone, a description and a card.

Whatever [`~gallery.gallery.Gallery`] opens is published: clips, the captions that describe them, and on request the
media files of one's own. Vectors are mapped, and written in pieces: they are never in memory as a whole.
"""

import hashlib
import logging
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import DatasetInfo, Features, SplitDict, SplitInfo
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCardData, HfApi

from gallery.files import sha256_of, write_json
from gallery.gallery import Gallery, MediaFile, calibration_of, is_gallery
from gallery.transcripts import Transcripts
from gallery.windows import SEGMENT
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.media_scalar import check_file, find_sidecar
from modeling_scalar.model_identity import ModelIdentity, identify
from modeling_scalar.scores_scalar import ScoreOptions

from .card import Details, render
from .gallery_reading import DESCRIPTION, NUM_NAMED, UNKNOWN, VERSION, read_description, read_gallery
from .hub.errors import PublishError, explained
from .hub.models import check_place, identify_published
from .hub.privacy import without_folders
from .hub.publishing import Kind, Published, Target, check_empty, push, read_record
from .markdown import code

logger = logging.getLogger(__name__)

KIND = Kind("gallery", "dataset", ("clips/*", "queries/*", "media/*", DESCRIPTION))

_SHARD_BYTES = 500_000_000
_GROUP_BYTES = 64_000_000
_ON_CARD = (
    *("dim", "num_clips", "num_queries", "columns", "split", "model", "model_revision", "query_temperature"),
    *("problems", "left_out", "media", "model_kind"),
)
_CALIBRATION = {
    f"modality_{name}": f"{name} of the cosines of {', '.join(MODALITIES)}" for name in ("scale", "offset")
}
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B")


# Staging ----------------------------------------------------------------------------------------------------------


def _write_shards(folder: Path, split: str, rows: pa.Table) -> None:
    """Write rows as Parquet files of about `_SHARD_BYTES` at most, in groups of about `_GROUP_BYTES`."""
    num_shards = math.ceil(rows.nbytes / _SHARD_BYTES)
    features = Features.from_arrow_schema(rows.schema)
    rows = rows.replace_schema_metadata(features.arrow_schema.metadata)  # how `datasets` remembers them
    group = max(1, _GROUP_BYTES * len(rows) // rows.nbytes)
    folder.mkdir()
    for shard in range(num_shards):
        start, stop = (len(rows) * number // num_shards for number in (shard, shard + 1))
        file = folder / f"{split}-{shard:05d}-of-{num_shards:05d}.parquet"
        # As `datasets` writes them: in chunks by content, so that the Hub stores only once what does not change.
        options = {"use_content_defined_chunking": True, "write_page_index": True, "row_group_size": group}
        pq.write_table(rows.slice(start, stop - start), file, **options)


def _copy_media(files: dict[str, MediaFile], folder: Path, transcripts: Transcripts) -> dict[str, int]:
    """Copy files, each with the subtitle file beside it or its transcript in the place of one, and check that the
    copies are what was embedded."""
    stems = Counter(Path(name).with_suffix("") for name in files)
    for name, known in files.items():
        path, target = Path(known.path), folder / name
        sidecar = find_sidecar(path)
        if sidecar is not None:
            check_file(sidecar)  # a device would be copied for ever
        target.parent.mkdir(parents=True, exist_ok=True)
        copies = [target] if sidecar is None else [target, target.with_name(sidecar.name)]
        try:
            for file, copy in zip((path, sidecar), copies, strict=False):
                shutil.copyfile(file, copy)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{path} is in the gallery but not on disk. `scalar index --prune` takes clips of deleted files out, "
                "`scalar remove` those of files that you name."
            ) from error
        digests = [sha256_of(copy) for copy in copies]
        # One hash for all that a clip is read from, as in indexing.
        digest = digests[0] if sidecar is None else hashlib.sha256(" ".join(digests).encode()).hexdigest()
        if (sum(copy.stat().st_size for copy in copies), digest) != (known.size, known.sha256):
            raise ValueError(
                f"{path}, or the subtitle file beside it, has changed since it was embedded, or a list gave its "
                "subtitle. Index again, without a list."
            )
        heard = transcripts.with_words(known.sha256)
        if heard is not None and stems[Path(name).with_suffix("")] == 1:  # else it would be that of others too
            _copy_transcript(heard, target.with_suffix(heard.suffix))
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return {"num_files": len(sizes), "num_bytes": sum(sizes)}


def _copy_transcript(path: Path, target: Path) -> None:
    """Copy a transcript without the folder in which the model lay that made it."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = [without_folders(line) if line.startswith("NOTE ") else line for line in lines]
    target.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def stage_gallery(
    source: Path,
    folder: Path,
    model: str | None = None,
    model_revision: str | None = None,
    media: bool = False,
    model_kind: str | None = None,
) -> None:
    """
    Lay a gallery out as a data set of the Hub, everything but its card.

    The folder then holds `clips/*.parquet`, `queries/*.parquet` unless there are no captions, `media/` if asked for,
    and `embeddings.json`. Absolute paths of this machine are shortened to their last component in it.

    Args:
        source (`Path`): a gallery, of `scalar index` or `scalar eval embed` say.
        folder (`Path`): a new or empty folder.
        model (`str`, *optional*): the id on the Hub of the model that made the vectors, `"unknown"` if nobody knows
            which one did. By default the card names the model as the source does, as one that is not on the Hub.
        model_revision (`str`, *optional*): its commit.
        media (`bool`): also publish the videos of a gallery of search and the subtitle files beside them. A transcript
            that a machine made becomes such a file.
        model_kind (`str`, *optional*): what `model` is: a `"model"` or an `"adapter"` with code beside it, or an
            `"encoder"` as its publisher has it. By default what the source says, if it names the same model; where
            nothing is known, the card does not say how texts are embedded.

    Raises:
        FileNotFoundError: the source, a data set of it, or a file to publish is not there.
        ValueError: the source is damaged, vectors that are present are not of unit norm, a file changed since it was
            embedded, or an argument is wrong.
    """
    is_known = model is not None
    model = None if model == UNKNOWN else model
    if (model, model_revision) != (None, None):
        check_place("model", model, model_revision)
    gallery = read_gallery(source, is_known, media)
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)

    for name, rows in (("clips", gallery.clips), ("queries", gallery.queries)):
        if rows is not None and len(rows):
            _write_shards(folder / name, gallery.split, rows)
    if model_kind is None and model == gallery.description["metadata"].get("model"):
        model_kind = gallery.description["model_kind"]
    copied = _copy_media(gallery.media, folder / "media", Transcripts(source)) if gallery.media else None
    if copied is not None:
        logger.info("With %d media files of %d bytes.", copied["num_files"], copied["num_bytes"])
    description = {
        "version": VERSION,
        **gallery.description,
        "split": gallery.split,
        "model": model,
        "model_revision": model_revision,
        "model_kind": None if model is None else model_kind,
        "media": copied,
    }
    write_json(description, folder / DESCRIPTION)


# Card -------------------------------------------------------------------------------------------------------------


def _size_category(num_rows: int) -> str:
    digits = min(len(str(num_rows)), 9)
    return "n<1K" if digits < 4 else f"{_SIZES[digits - 4]}<n<{_SIZES[digits - 3]}"


def _info(folder: Path, config: str, split: str) -> DatasetInfo:
    """What `datasets` compares a download with."""
    files = sorted((folder / config).glob("*.parquet"))
    written = [pq.read_metadata(file) for file in files]
    num_bytes = sum(data.row_group(group).total_byte_size for data in written for group in range(data.num_row_groups))
    rows = SplitInfo(split, num_bytes=num_bytes, num_examples=sum(data.num_rows for data in written))
    return DatasetInfo(
        features=Features.from_arrow_schema(pq.read_schema(files[0])),
        splits=SplitDict({split: rows}),
        download_size=sum(file.stat().st_size for file in files),
        dataset_size=num_bytes,
        config_name=config,
    )


def _contents(description: dict[str, Any], query_length: int) -> list[tuple]:
    """Rows of the card's table of columns; `query_length`: of a text's embedding."""
    vector = f"list of {description['dim']} floats"
    heads = [name for name in description["columns"] if name not in MODALITIES]
    clips = [
        ("clip_id", "string", "identifier, unique"),
        *((name, vector, "unit vector, zeros where the clip lacks it") for name in MODALITIES),
        *((name, vector, "of the head that reads these together, zeros where the clip lacks one") for name in heads),
        ("presence", "list of 3 bools", f"whether the clip has {', '.join(MODALITIES)}"),
    ]
    if description["media"]:
        windows = "; the seconds of a clip in it stand in its identifier" if SEGMENT in description["metadata"] else ""
        clips.append(("file", "string", f"path of the clip's file in this repository{windows}"))
    of_text = "unit vector of the text"
    if query_length != description["dim"]:
        of_text = f"a unit vector of the text for each of {', '.join(MODALITIES)}, one after the other"
    queries = [
        ("query_id", "string", "identifier, unique"),
        ("caption", "string", "the text"),
        ("embedding", f"list of {query_length} floats", of_text),
        ("clip_ids", "list of strings", "the clips that it describes"),
    ]
    configs = [("clips", row) for row in clips]
    configs += [("queries", row) for row in queries] if description["num_queries"] else []
    return [(code(config), code(name), kind, meaning) for config, (name, kind, meaning) in configs]


def _counts(description: dict[str, Any]) -> list[tuple]:
    num_clips, media = description["num_clips"], description["media"]
    rows = [("clips", f"{num_clips:,}")]
    rows += [
        (f"with {name}", f"{number:,} ({number / num_clips:.1%})")
        for name, number in description["num_present"].items()
    ]
    if description["num_queries"]:
        rows.append(("captions", f"{description['num_queries']:,}"))
        rows.append(("pairs of a caption and a clip it describes", f"{description['num_pairs']:,}"))
    if media:
        rows.append(("media files", f"{media['num_files']:,}"))
        rows.append(("their size in bytes", f"{media['num_bytes']:,}"))
    return rows


def _origin(description: dict[str, Any], query_dtype: str) -> list[tuple]:
    """Rows of the card's table of what the vectors were made from, known or not."""
    metadata, revision = description["metadata"], description["model_revision"]
    model = description["model"] or metadata.get("model")
    method, source = (description["score_options"] or {}).get("method"), metadata.get("source") or {}
    precision = description["dtype"] + (f", captions {query_dtype}" if query_dtype != description["dtype"] else "")
    known = {
        "model": code(model) if model else None,
        "its commit on the Hub": code(revision) if revision else None,
        "how it scores": code(method) if method else None,
        "query temperature": description["query_temperature"],
        **{_CALIBRATION[name]: ", ".join(map(str, values)) for name, values in calibration_of(description).items()},
        "SHA-256 of the gallery": code(description["gallery_sha256"]),
    }
    further = {
        "fingerprint of the model": code(metadata["fingerprint"]) if "fingerprint" in metadata else None,
        **{f"SHA-256 of {name}": code(digest) for name, digest in (metadata.get("weights") or {}).items()},
        "benchmark": metadata.get("benchmark"),
        "split of the benchmark": metadata.get("split"),
        "date": metadata.get("date"),
        "commit of the code": code(source["commit"]) if "commit" in source else None,
        "changes to it since": ("yes" if source["dirty"] else "none") if "dirty" in source else None,
        "precision": precision,
    }
    rows = [(name, "not known" if value is None else value) for name, value in known.items()]
    return rows + [(name, value) for name, value in further.items() if value is not None]


def gallery_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of a gallery from what was laid out.

    Args:
        folder (`Path`): what [`stage_gallery`] filled.
        repo_id (`str`): of the data set on the Hub.
        details ([`~hub_cards.card.Details`]): what no file says.

    Returns:
        `str`: the text of README.md.
    """
    description = read_description(folder / DESCRIPTION)
    split, metadata = description["split"], description["metadata"]
    configs = ["clips"] + ["queries"] * (description["num_queries"] > 0)
    infos = {config: _info(folder, config, split) for config in configs}
    num_shards = {config: len(list((folder / config).glob("*.parquet"))) for config in configs}
    if metadata.get("benchmark"):
        title = f"Embeddings of {metadata['benchmark']}, {metadata.get('split') or split}"
    else:
        title = f"Embeddings of {repo_id.split('/')[-1]}"
    data = DatasetCardData(
        pretty_name=title,
        size_categories=[_size_category(description["num_clips"])],
        task_categories=["feature-extraction"],
        tags=["embeddings", "video-retrieval", "multimodal", "scalar"],
        configs=[
            {
                "config_name": config,
                "data_files": [{"split": split, "path": f"{config}/{split}-*-of-{num_shards[config]:05d}.parquet"}],
                **({"default": True} if config == "clips" else {}),
            }
            for config in configs
        ],
    )
    DatasetInfosDict(infos).to_dataset_card_data(data)
    texts = infos["queries"].features["embedding"] if "queries" in infos else None
    query_length, query_dtype = (
        (description["dim"], description["dtype"]) if texts is None else (texts.length, texts.feature.dtype)
    )
    calibration = calibration_of(description)
    return render(
        KIND.name,
        data,
        details,
        title=title,
        repo_id=repo_id,
        local_model=metadata.get("model"),
        is_described=bool(metadata),
        method=(description["score_options"] or {}).get("method"),
        modalities=MODALITIES,
        contents=_contents(description, query_length),
        has_text_vectors=query_length != description["dim"],
        calibration=calibration,
        is_calibrated=ScoreOptions(**calibration).is_calibrated,
        counts=_counts(description),
        origin=_origin(description, query_dtype),
        num_named=NUM_NAMED,
        **{name: description[name] for name in _ON_CARD},
    )


# Push ---------------------------------------------------------------------------------------------------------------


def _kind_of(model: Callable[[], ModelIdentity]) -> str | None:
    """What kind of model this is, `None` where that cannot be told; see [`stage_gallery`]."""
    try:
        identity = model()
        # An adapter without a configuration has no code beside it either.
        return identity.kind if identity.is_configured or identity.kind == "encoder" else None
    except (OSError, ValueError):  # gated, absent or damaged: the vectors are published without it
        return None


def _check_made_by(api: HfApi, source: Path, model: str) -> str | None:
    """
    Return what kind of model one on the Hub is.

    Raises:
        PublishError, ValueError: it is not there, or has other weights than the gallery names, if it names any.
    """
    try:
        with explained(api, "model", model):
            info = api.model_info(model, files_metadata=True)
    except PublishError as error:
        raise PublishError(
            f"{error} {source} was made by {model}: say with --model where it is, or 'unknown'."
        ) from error
    there = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    made_by = Gallery.open(source, check=False).metadata.get("weights") if is_gallery(source) else None
    if isinstance(made_by, dict) and any(there.get(name) != digest for name, digest in made_by.items()):
        raise ValueError(
            f"{source} was made with other weights than those of {model}: {sorted(made_by)} differ. Name the model "
            "that made it, or make it again."
        )
    return _kind_of(lambda: identify_published(api, model, info.sha))


def _model_of(source: Path, endpoint: str) -> tuple[str | None, str | None, str | None]:
    """The id, commit and kind on the Hub of the model that made a gallery, `None` where that is not known.

    Raises:
        ValueError: the model's folder holds other weights than those that made the gallery.
    """
    metadata = Gallery.open(source, check=False).metadata if is_gallery(source) else {}
    name = metadata.get("model")
    if not isinstance(name, str) or not Path(name).is_dir():
        is_id = isinstance(name, str) and not os.path.isabs(name) and name.count("/") <= 1
        return (name if is_id else None), None, None
    place = read_record(Path(name), endpoint)
    if place is None:
        return None, None, None
    there = identify(name)
    made_by = "fingerprint" if "fingerprint" in metadata else "weights"
    if getattr(there, made_by) != metadata.get(made_by):
        raise ValueError(
            f"{source} was not made by the model that is in {name} now, so their vectors cannot be compared. Make it "
            "again, or name the model with --model."
        )
    return *place, _kind_of(lambda: there)


def push_gallery(
    source: Path,
    target: Target,
    details: Details,
    model: str | None = None,
    media: bool = False,
    output: Path | None = None,
    api: HfApi | None = None,
) -> Published | str:
    """
    Publish a gallery as a data set.

    Args:
        source (`Path`): a folder of `scalar eval embed`, of `scalar eval run`, or of `scalar index`.
        model (`str`, *optional*): id of the model that made it; by default where that model's folder was pushed.
        media (`bool`): also publish the videos of a search gallery.
        target, details, output, api: as in [`~hub_cards.model.push_model`].

    Returns:
        As [`~hub_cards.model.push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`~hub_cards.model.push_model`].
    """
    api = api or HfApi()
    revision = kind = None
    if model is None:
        model, revision, kind = _model_of(source, api.endpoint)
    if output is None and model not in (None, UNKNOWN) and revision is None:
        kind = _check_made_by(api, source, model)

    def stage(folder: Path) -> None:
        stage_gallery(source, folder, model, revision, media, kind)

    return push(KIND, target, details, stage, gallery_card, output, api, source if source.is_dir() else None)


__all__ = ["DESCRIPTION", "KIND", "UNKNOWN", "gallery_card", "push_gallery", "stage_gallery"]
