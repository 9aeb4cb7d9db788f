"""`scalar eval calibrate`: fits how SCALAR's score weighs modalities to captions of your clips."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.store.contents import is_gallery
from scalar_retrieval.gallery.store.described import LEAST_SCORE, fitted_to, score_options_of
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.modeling_scalar import ScalarConfig
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.configuration_scalar import note_in_adapter
from scalar_retrieval.modeling_scalar.model_identity import identify, read_object
from scalar_retrieval.modeling_scalar.scores_scalar import CALIBRATION

from .protocol.calibration import MEASURES, Calibration, calibrate_embeddings
from .protocol.least_score import LeastScore, fit_least_score, format_least_score
from .run import embeddings_of
from .settings import CalibrateConfig
from .source import check_made_by

logger = logging.getLogger(__name__)

_CONFIGS = {config.model_type: config for config in (ScalarConfig, ScalarJointConfig)}


def _write_model(model_path: str, options: Mapping[str, Any], modalities: Sequence[str]) -> None:
    """Write fitted options into the configuration of a model, which may embed the same modalities in another order."""
    path = Path(model_path) / "config.json"
    content = read_object(path)
    kind = _CONFIGS[content["model_type"]]
    names = kind.from_dict(content).modalities
    for name, value in options.items():
        # Numbers of modalities in the order of the model, which may not be that of the clips; a temperature has none.
        if isinstance(value, list):
            value = [value[modalities.index(own)] for own in names]
        content[name] = value
    fitted = kind.from_dict(dict(content))  # which checks it
    write_json(content, path)
    note_in_adapter(fitted, model_path)


def _check_modalities(config: CalibrateConfig, modalities: Sequence[str]) -> None:
    """Raise a ValueError if the model embeds a modality that the clips lack: it would have no scale and no offset."""
    content = read_object(Path(config.model_path) / "config.json")
    own = _CONFIGS[content["model_type"]].from_dict(content).modalities
    others = [name for name in own if name not in modalities]
    if others:
        raise ValueError(
            f"{config.model_path} also embeds {', '.join(others)}, which these clips do not have: scales "
            f"and offsets of {', '.join(modalities)} alone cannot be written into it. Leave out --model."
        )


def _write(
    config: CalibrateConfig, options: Mapping[str, Any] | None, modalities: Sequence[str], least: LeastScore | None
) -> list[str]:
    """Write the fit, with numbers for each of these modalities, and the least score; return the paths written to."""
    written: list[str] = []
    if options is None and least is None:
        return written
    before = None
    after = None
    gallery = config.embeddings_path
    if gallery is None:
        gallery = Path(config.output) / "embeddings"
    # Opened first: if another process is writing to it, the model is not changed either.
    with GalleryWriter(gallery) if is_gallery(gallery) else nullcontext() as writer:
        # The model's configuration, which changes its fingerprint.
        if options is not None and config.has_own_model:
            before = identify(config.model_path).fingerprint
            _write_model(config.model_path, options, modalities)
            after = identify(config.model_path).fingerprint
            written.append(str(Path(config.model_path) / "config.json"))
        # The gallery's metadata, in one commit.
        if writer is not None:
            changes: dict[str, Any] = {}
            if options is not None:
                described = {"method": "scalar"} | (writer.metadata.get("score_options") or {}) | options
                changes = {"query_temperature": options["query_temperature"], "score_options": described}
            if least is not None:
                changes[LEAST_SCORE] = {
                    "score": least.score,
                    "num_clips": least.num_clips,
                    "modalities": least.modalities,
                    "score_options": fitted_to(writer.metadata | changes),
                }
            if before is not None and writer.metadata.get("fingerprint") == before:
                changes["fingerprint"] = after  # its vectors are those of the changed model, too
            writer.metadata = writer.metadata | changes
            writer.commit()
            written.append(str(gallery))
    return written


def calibrate(config: CalibrateConfig) -> tuple[Calibration, list[str]]:
    """
    Fit how SCALAR's score weighs modalities, write `calibration.json`, and save the result if `config.write`.

    Returns:
        [`~scalar_retrieval.eval.protocol.calibration.Calibration`], and the files and folders that the result was
        written to: none unless `config.write`, and the gain, or what the least score achieves, is certain.

    Raises:
        ValueError: the model has another score, the gallery is of another model, or a step cannot be done.
        FileNotFoundError: a file does not exist.
    """
    if config.model_path is not None and config.embeddings_path is not None:
        check_made_by(config.embeddings_path, config.model_path)
    Path(config.output).mkdir(parents=True, exist_ok=True)
    # Queries and clips, and how they are scored before the fit.
    embeddings = embeddings_of(config.run_config())
    before = score_options_of(embeddings.metadata)
    method = before.pop("method")
    if method != "scalar":
        raise ValueError(f"Only SCALAR's score is calibrated, but the score of these clips is {method!r}.")
    has_numbers = config.scale_offset or not before.keys().isdisjoint(CALIBRATION)
    if config.write and config.has_own_model and has_numbers:
        _check_modalities(config, embeddings.modalities)
    calibration = calibrate_embeddings(embeddings, before, config.scale_offset)

    # The least score belongs to the options that the gallery is searched with, once the fit is kept or not.
    options = calibration.before
    folds = [calibration.before] * len(calibration.folds)
    if calibration.is_better:
        options = calibration.after
        folds = calibration.folds
    least = fit_least_score(embeddings, options, folds)
    calibration = replace(calibration, least_score=least)

    # Only what is certain is written.
    written = []
    if config.write:
        kept_options = None
        if calibration.is_better:
            kept_options = calibration.after
        kept_score = None
        if least.is_certain:
            kept_score = least
        written = _write(config, kept_options, calibration.modalities, kept_score)
    report = asdict(calibration) | {
        "is_better": calibration.is_better,
        "least_score_is_certain": least.is_certain,
        "model": embeddings.metadata.get("model"),
        "written": written,
    }
    write_json(report, Path(config.output) / "calibration.json")
    return calibration, written


def format_calibration(result: Calibration, config: CalibrateConfig, written: Sequence[str]) -> list[str]:
    """Format the result, and what follows from it, as lines."""
    # What was measured on held-out clips.
    lines = [f"{result.num_queries} queries, {result.num_clips} clips, {len(result.folds)} folds", ""]
    lines.append(f"{'held out, percent':20} {'before':>8} {'after':>8} {'gain':>8}  95 % interval")
    for name, title in MEASURES.items():
        m = result.measures[name]
        gain = f"{m['difference']:+8.2f}  {m['low']:+.2f} to {m['high']:+.2f}"
        lines.append(f"{title:20} {m['before']:8.2f} {m['after']:8.2f} {gain}")
    lines.append("")

    # What was fitted.
    values = [fold["query_temperature"] for fold in result.folds]
    spread = f"{min(values):.3g} to {max(values):.3g} in the folds"
    before = result.before["query_temperature"]
    after = result.after["query_temperature"]
    lines.append(f"query temperature: {before:.4g} before, {after:.4g} fitted ({spread})")
    if config.scale_offset:
        for name in CALIBRATION:
            texts = []
            for modality, value in zip(result.modalities, result.after[name], strict=True):
                texts.append(f"{modality} {value:.4g}")
            lines.append(f"{name.replace('_', ' ')}: {', '.join(texts)}")
    if result.least_score is not None:
        lines += format_least_score(result.least_score)

    # What follows from it.
    lines.append("")
    if not result.is_better:
        lines.append("The interval of the gain in MRR is not above zero: keep your current settings.")
    elif not config.write:
        lines.append("The gain is above zero; --write saves it.")
    if written:
        lines.append(f"Written to {', '.join(written)}.")
    elif config.write:
        lines.append("Nothing was written.")
    return lines


__all__ = ["CalibrateConfig", "calibrate", "format_calibration"]
