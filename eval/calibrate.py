"""`scalar eval calibrate`: fit how a score, the model's own or another, weighs modalities, on your clips.

The queries are the captions of a benchmark, of your own table or of embeddings; for unlabelled clips they are the
clips' own subtitles, which are then not searched.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from eval.embedding.embed_dataset import embed_texts
from eval.embedding.embeddings import FUSED, Embeddings
from eval.protocol.calibration import (
    MEASURES,
    Calibration,
    calibrate_embeddings,
    check_fitted,
    own_number,
    why_unwritable,
)
from eval.protocol.least_score import LeastScore, fit_least_score, format_least_score
from eval.protocol.weighted import FITTED
from eval.run import embeddings_of
from eval.settings import CalibrateConfig
from eval.source import check_made_by, open_model, prepare
from gallery.columns import listed
from gallery.decoding import SandboxedReader
from gallery.described import LEAST_SCORE, fitted_to
from gallery.files import write_json
from gallery.gallery import Gallery, GalleryWriter, is_gallery, score_options_of
from gallery.subtitles import LANGUAGES
from gallery.transcripts import Transcripts
from gallery.windows import SEGMENT, Place, place_of_clip
from modeling_scalar import MediaReader, ScalarConfig
from modeling_scalar.checking import read_object
from modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from modeling_scalar.media_scalar import MediaError
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import CALIBRATION, PAPER_MODALITIES, ScoreOptions

logger = logging.getLogger(__name__)

SUBTITLE = "subtitle"
"""The modality that is not searched when its words are the queries."""
_SAID = {"video": "picture", "audio": "sound"}

_CONFIGS = {config.model_type: config for config in (ScalarConfig, ScalarJointConfig)}


# Queries and clips ---------------------------------------------------------------------------------------------------


def _subtitles_of_files(gallery: Gallery, reader: MediaReader) -> dict[str, str]:
    """Return the subtitle, or the transcript, of each clip that has one and whose file exists; for a window, what is
    shown in it."""
    place_of = Place if gallery.metadata.get(SEGMENT) is None else place_of_clip
    transcripts = Transcripts(gallery.path)
    texts, lost = {}, []
    has_subtitles = gallery.modality_mask[:, gallery.modalities.index(SUBTITLE)].tolist()
    for name, has_subtitle in zip(gallery.clip_ids, has_subtitles, strict=True):
        if not has_subtitle:
            continue
        path, start, stop = place_of(name)
        window, file = None if start is None else (start, stop), gallery.files.get(path)
        heard = None if file is None else transcripts.with_words(file.sha256)
        try:
            found = reader.read_subtitle(heard, window) if heard else reader.read_subtitle_of(path, window)
        except (MediaError, OSError) as error:
            lost.append(f"{name}: {error}")
            continue
        texts[name] = (found or "").strip()
    if lost:
        logger.warning("The subtitles of %d clips can no longer be read: %s.", len(lost), listed(lost))
    return texts


def subtitle_queries(
    clips: tuple[Sequence[str], torch.Tensor, torch.Tensor],
    texts: Mapping[str, str],
    embed: Callable[[list[str]], torch.Tensor],
    modalities: Sequence[str] = PAPER_MODALITIES,
) -> Embeddings:
    """
    Make queries of subtitles, to match the other modalities of their clips, such as video and audio.

    Args:
        clips: identifiers, `modality_embeds` `(clips, M, dim)` and `modality_mask` `(clips, M)`.
        texts (`dict`): subtitles by identifier. Clips with the same subtitle share one query.
        embed (`Callable`): embeds texts as queries.
        modalities (`Sequence[str]`): names along the axis M.

    Returns:
        [`Embeddings`] without subtitles and without fused vectors, which include them; clips without another modality
        are left out. The number of remaining clips that have no subtitle, hence no query, is
        `clips_without_subtitle` in the metadata, and logged.

    Raises:
        ValueError: no clip with a subtitle has another modality.
    """
    ids, embeds, mask = clips
    mask = mask & torch.tensor([name not in (SUBTITLE, FUSED) for name in modalities])
    others = " or ".join(_SAID.get(name, name) for name in modalities if name not in (SUBTITLE, FUSED))
    rows = mask.any(1).nonzero().flatten()
    ids, embeds, mask = [ids[row] for row in rows.tolist()], embeds[rows], mask[rows]
    described: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        if texts.get(name):
            described.setdefault(texts[name], []).append(row)
    if not described:
        raise ValueError(f"None of {len(ids)} clips with {others} has a readable subtitle.")
    num_silent = sum(not texts.get(name) for name in ids)
    if num_silent:
        logger.warning(
            "%d of %d clips with %s have no readable subtitle, and so no query.",
            num_silent,
            len(ids),
            others,
        )
    captions = list(described)
    return Embeddings(
        text_embeds=embed(captions),
        modality_embeds=embeds,
        modality_mask=mask,
        pairs=torch.tensor([[query, row] for query, text in enumerate(captions) for row in described[text]]),
        clip_ids=ids,
        query_ids=[ids[described[text][0]] for text in captions],
        captions=captions,
        metadata={"clips_without_subtitle": num_silent},
        modalities=tuple(modalities),
    )


def _with_subtitles(config: CalibrateConfig) -> Embeddings:
    if config.benchmark is None:
        gallery = Gallery.open(config.embeddings_path)
        if SUBTITLE not in gallery.modalities:
            raise ValueError(
                f"Subtitles as queries need the modality {SUBTITLE!r}, but the clips of {config.embeddings_path} have "
                f"{', '.join(gallery.modalities)}. Give captions: a model, a benchmark and its root, or embeddings "
                "with queries."
            )
        model_path = config.model_path or gallery.model
        if model_path is None:
            raise ValueError(f"{config.embeddings_path} does not say which model made it. Name it with --model.")
        check_made_by(config.embeddings_path, model_path)
        clips, metadata = (gallery.clip_ids, gallery.modality_embeds(), gallery.modality_mask), gallery.metadata
        modalities = gallery.modalities
        reader = SandboxedReader(config.limits, gallery.metadata.get(LANGUAGES, ()))
        texts = _subtitles_of_files(gallery, reader)
        model, processor = open_model(model_path, config)
    else:
        given, source = prepare(config.run_config())
        clips, metadata = (given.clip_ids, given.modality_embeds, given.modality_mask), given.metadata
        modalities = given.modalities
        rows, model, processor = source.split.dataset, source.model, source.processor
        texts = {name: (text or "").strip() for name, text in zip(rows["video_id"], rows["subtitle"], strict=True)}

    def embed(captions: list[str]) -> torch.Tensor:
        return embed_texts(model, processor, captions, config.batch_size, config.progress)

    found = subtitle_queries(clips, texts, embed, modalities)
    found.metadata = metadata | found.metadata
    return found


# What is written -----------------------------------------------------------------------------------------------------


def _modalities_of(model_path: str | os.PathLike) -> list[str]:
    """Return the modalities that a model on disk embeds."""
    content = read_object(Path(model_path) / "config.json")
    return _CONFIGS[content["model_type"]].from_dict(content).modalities


def _check_same(config: CalibrateConfig, options: Mapping[str, Any], modalities: Sequence[str]) -> None:
    """Raise a ValueError if the fit, a number per modality, would be written into a model that embeds other ones."""
    has_numbers = config.scale_offset or any(options.get(name) is not None for name in CALIBRATION)
    if not (config.write and has_numbers) or config.model_path is None or why_unwritable(config.model_path):
        return
    others = [name for name in _modalities_of(config.model_path) if name not in modalities]
    if others:
        raise ValueError(
            f"{config.model_path} also embeds {', '.join(others)}, which these clips do not have: scales "
            f"and offsets of {', '.join(modalities)} alone cannot be written into it. Leave out --model."
        )


def _write(
    config: CalibrateConfig, options: Mapping[str, Any] | None, modalities: Sequence[str], least: LeastScore | None
) -> list[str]:
    """Write the fit, with numbers for each of these modalities, and the least score; return the paths written to."""
    written, fingerprints = [], (None, None)
    if options is None and least is None:
        return written
    made = Path(config.output) / "embeddings"
    gallery = config.embeddings_path if config.embeddings_path is not None else made
    # Opened first: if another process is writing to it, the model is not changed either.
    with GalleryWriter(gallery) if is_gallery(gallery) else nullcontext() as writer:
        if options and config.model_path is not None and why_unwritable(config.model_path) is None:
            path = Path(config.model_path) / "config.json"
            content, names = read_object(path), _modalities_of(config.model_path)
            for name, value in options.items():
                is_of_each = isinstance(value, list)
                content[name] = [value[modalities.index(own)] for own in names] if is_of_each else value
            _CONFIGS[content["model_type"]].from_dict(dict(content))  # which checks it
            before = identify(config.model_path).fingerprint
            write_json(content, path)
            fingerprints = before, identify(config.model_path).fingerprint
            written.append(str(path))
        if writer is not None:
            changes: dict[str, Any] = {}
            if options is not None:
                described = {"method": "scalar"} | (writer.metadata.get("score_options") or {}) | options
                changes = {"query_temperature": options["query_temperature"], "score_options": described}
            if least is not None:
                found = {"score": least.score, "num_clips": least.num_clips, "modalities": least.modalities}
                changes[LEAST_SCORE] = found | {"score_options": fitted_to(writer.metadata | changes)}
            if options and writer.metadata.get("fingerprint") == fingerprints[0] is not None:
                changes["fingerprint"] = fingerprints[1]  # its vectors are those of the changed model, too
            writer.metadata = writer.metadata | changes
            writer.commit()
            written.append(str(gallery))
    return written


def calibrate(config: CalibrateConfig) -> tuple[Calibration, list[str]]:
    """
    Fit how a score weighs modalities, write `calibration.json`, and save the result if `config.write`.

    Returns:
        [`~eval.protocol.calibration.Calibration`], and the files and folders that the result was written to: none
        unless `config.write`, and the gain, or what the least score achieves, is certain.

    Raises:
        ValueError: the score has no numbers to fit, or none that can be written, the gallery is of another model, or a
            step cannot be done.
        FileNotFoundError: a file does not exist.
    """
    if config.model_path is not None and config.embeddings_path is not None:
        check_made_by(config.embeddings_path, config.model_path)
    Path(config.output).mkdir(parents=True, exist_ok=True)
    embeddings = _with_subtitles(config) if config.subtitles else embeddings_of(config.run_config())
    before = score_options_of(embeddings.metadata)
    own = before.pop("method")
    method = config.method or own
    check_fitted(method)
    if config.write and own != "scalar":
        raise ValueError(
            f"Only a fit of SCALAR's score can be written, and this model's score is {own!r}: leave out --write."
        )
    if method != own:
        before = {"query_temperature": 0.1}  # all other settings belong to the other score
    _check_same(config, before, embeddings.modalities)
    found = calibrate_embeddings(
        embeddings,
        before,
        config.scale_offset,
        config.num_folds,
        config.seed,
        fixed=(SUBTITLE,) if config.subtitles else (),
        method=method,
    )
    kept, least, written = found.is_better, None, []
    if method == own:
        options = found.after if kept else found.before  # with --write: those that the gallery will have
        of_folds = [{"method": own} | part for part in (found.folds if kept else [found.before] * len(found.folds))]
        used = [name for name in embeddings.modalities if not (config.subtitles and name in (SUBTITLE, FUSED))]
        least = fit_least_score(embeddings, {"method": own} | options, of_folds, used, config.seed)
        found = replace(found, least_score=least)
    if config.write:
        certain = least if least is not None and least.is_certain else None
        written = _write(config, found.after if kept else None, found.modalities, certain)
    report = asdict(found) | {
        "is_better": found.is_better,
        "least_score_is_certain": least is not None and least.is_certain,
        "queries": "subtitles" if config.subtitles else "captions",
        "clips_without_subtitle": embeddings.metadata.get("clips_without_subtitle"),
        "model": embeddings.metadata.get("model"),
        "written": written,
    }
    write_json(report, Path(config.output) / "calibration.json")
    return found, written


def format_calibration(found: Calibration, config: CalibrateConfig, written: Sequence[str]) -> list[str]:
    """Format the result, and what follows from it, as lines."""
    queries = "subtitles" if config.subtitles else "queries"
    of_score = "" if found.method == "scalar" else f", the score {found.method}"
    lines = [f"{found.num_queries} {queries}, {found.num_clips} clips, {len(found.folds)} folds{of_score}", ""]
    lines.append(f"{'held out, percent':20} {'before':>8} {'after':>8} {'gain':>8}  95 % interval")
    for name, title in MEASURES.items():
        m = found.measures[name]
        gain = f"{m['difference']:+8.2f}  {m['low']:+.2f} to {m['high']:+.2f}"
        lines.append(f"{title:20} {m['before']:8.2f} {m['after']:8.2f} {gain}")
    lines.append("")
    own = own_number(found.method)
    if own is not None:
        values = [fold[own] for fold in found.folds]
        spread = f"{min(values):.3g} to {max(values):.3g} in the folds"
        before = found.before.get(own, getattr(ScoreOptions, own))
        lines.append(f"{own.replace('_', ' ')}: {before:.4g} before, {found.after[own]:.4g} fitted ({spread})")
    is_fitted = config.scale_offset or found.method != "scalar"
    for name in FITTED[found.method]:
        if name != own and is_fitted:
            numbers = zip(found.modalities, found.after[name], strict=True)
            lines.append(f"{name.replace('_', ' ')}: " + ", ".join(f"{key} {value:.4g}" for key, value in numbers))
    if found.least_score is not None:
        lines += format_least_score(found.least_score, is_kept=config.write)
    if not found.is_better:
        where = "is below zero" if found.is_worse else "includes zero"
        kept = " Nothing was written." if config.write else ""
        kept = f" Only the least score was written, to {', '.join(written)}." if written else kept
        advice = ": keep your current settings." if config.method is None else "."
        lines += ["", f"The interval of the gain in MRR {where}{advice}{kept}"]
    elif config.subtitles and config.scale_offset:
        lines += ["", "Scales and offsets fitted to subtitles are not written: those of subtitles are unknown."]
    elif written:
        reason = None if config.model_path is None else why_unwritable(config.model_path)
        alone, more = "", ""
        if reason is not None:
            alone = f" alone: {reason}"
        elif config.model_path is not None:
            more = " Galleries of this model that were not given still belong to its earlier state."
        lines += ["", f"Written to {', '.join(written)}{alone}.{more}"]
    else:
        lines += ["", "The gain is above zero" + ("; --write saves it." if config.method is None else ".")]
    return lines


__all__ = ["CalibrateConfig", "calibrate", "format_calibration", "subtitle_queries"]
