"""The work of a calibration: the score is fitted, and what is certain is written where it belongs."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.scales import measure_scales
from scalar_retrieval.gallery.store.described import (
    LEAST_SCORE,
    SCALES,
    calibration_of,
    fitted_to,
    score_options_of,
)
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.gallery.store.places import is_gallery
from scalar_retrieval.modeling_scalar import ScalarConfig
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.configuration_scalar import note_in_adapter
from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION
from scalar_retrieval.modeling_scalar.model_identity import identify, read_object

from .inputs import AnyPath, Inputs
from .measuring import prepare
from .protocol.calibration import MEASURES, Calibration, calibrate_embeddings
from .protocol.least_score import LeastScore, fit_least_score, format_least_score

_CONFIGS = {config.model_type: config for config in (ScalarConfig, ScalarJointConfig)}


def _write_model(model: AnyPath, options: Mapping[str, Any], modalities: Sequence[str]) -> None:
    """Write fitted options into the configuration of a model, which may embed the same modalities in another order."""
    path = Path(model) / "config.json"
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
    note_in_adapter(fitted, model)


def _check_modalities(model: AnyPath, modalities: Sequence[str]) -> None:
    """Raise a ValueError if the model embeds a modality that the clips lack: it would have no scale and no offset."""
    content = read_object(Path(model) / "config.json")
    own = _CONFIGS[content["model_type"]].from_dict(content).modalities
    others = [name for name in own if name not in modalities]
    if others:
        raise ValueError(
            f"{model} also embeds {', '.join(others)}, which these clips do not have: scales "
            f"and offsets of {', '.join(modalities)} alone cannot be written into it. Leave out the model."
        )


def _write(
    gallery: Path,
    model: AnyPath | None,
    options: Mapping[str, Any] | None,
    modalities: Sequence[str],
    least: LeastScore | None,
) -> list[str]:
    """
    Write a fit, with numbers for each of these modalities, and the least score; return the paths written to.

    Args:
        gallery (`Path`): where the clips are, if it holds a gallery.
        model (`str`, *optional*): the folder of a model that has a configuration of its score.
        options (`Mapping`, *optional*), least ([`~scalar_retrieval.eval.protocol.least_score.LeastScore`],
            *optional*): what is certain.
    """
    written: list[str] = []
    if options is None and least is None:
        return written
    before = None
    after = None
    # Opened first: if another process is writing to it, the model is not changed either.
    with GalleryWriter(gallery) if is_gallery(gallery) else nullcontext() as writer:
        # The model's configuration, which changes its fingerprint.
        if options is not None and model is not None:
            before = identify(model).fingerprint
            _write_model(model, options, modalities)
            after = identify(model).fingerprint
            written.append(str(Path(model) / "config.json"))
        # The gallery's metadata, in one commit.
        if writer is not None:
            changes: dict[str, Any] = {}
            if options is not None:
                described = {"method": "scalar"} | (writer.metadata.get("score_options") or {}) | options
                if calibration_of({"score_options": described}) != calibration_of(writer.metadata):
                    changes[SCALES] = None  # they come from labels now
                changes |= {"query_temperature": options["query_temperature"], "score_options": described}
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


def calibrate_inputs(
    inputs: Inputs, output: Path, model: AnyPath | None, scale_offset: bool, write: bool
) -> tuple[Calibration, list[str]]:
    """
    Fit the score to queries and clips, write `calibration.json`, and keep what is certain if `write`.

    Args:
        inputs ([`~scalar_retrieval.eval.inputs.Inputs`]): gives the queries and clips.
        output (`Path`): folder of the results, and of embeddings that have to be computed.
        model (`str`, *optional*): the folder of a model that has a configuration of its score, to write to.
        scale_offset (`bool`), write (`bool`): as in [`~scalar_retrieval.eval.calibrate.calibrate`].

    Returns, Raises: as there.
    """
    # Queries and clips, and how they are scored before the fit.
    embeddings, _ = prepare(inputs, output)
    before = score_options_of(embeddings.metadata)
    method = before.pop("method")
    if method != "scalar":
        raise ValueError(f"Only SCALAR's score is calibrated, but the score of these clips is {method!r}.")
    has_numbers = scale_offset or not before.keys().isdisjoint(CALIBRATION)
    if write and model is not None and has_numbers:
        _check_modalities(model, embeddings.modalities)
    output.mkdir(parents=True, exist_ok=True)
    calibration = calibrate_embeddings(embeddings, before, scale_offset)

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
    if write:
        kept_options = None
        if calibration.is_better:
            kept_options = calibration.after
        kept_score = None
        if least.is_certain:
            kept_score = least
        gallery = Path(inputs.place or output / "embeddings")
        written = _write(gallery, model, kept_options, calibration.modalities, kept_score)
    report = asdict(calibration) | {
        "is_better": calibration.is_better,
        "least_score_is_certain": least.is_certain,
        "model": embeddings.metadata.get("model"),
        "written": written,
    }
    write_json(report, output / "calibration.json")
    return calibration, written


def calibrate_texts(
    gallery: Gallery, texts: Sequence[str], source: AnyPath, output: Path, model: AnyPath | None, write: bool
) -> tuple[dict[str, Any], list[str]]:
    """
    Fit the scales of a gallery without labels, write `calibration.json`, and keep them if `write`.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): what is searched.
        texts (`list[str]`): the different texts.
        source (`str`): the file that they are from.
        output (`Path`), model (`str`, *optional*), write (`bool`): as in
            [`~scalar_retrieval.eval.calibrate.calibrate`].

    Returns, Raises: as there.
    """
    queries = dict.fromkeys(texts, ())  # that belong to no clips

    def embed(batch: list[str]) -> torch.Tensor:
        return (gallery.query_model or gallery.load_model(model)).embed(batch)

    fitted = measure_scales(gallery, queries, f"texts of {Path(source).name}", embed)
    written = []
    if write:
        with GalleryWriter(gallery.path) as writer:
            writer.metadata |= fitted
            writer.commit()
        written.append(str(gallery.path))
    output.mkdir(parents=True, exist_ok=True)
    write_json(fitted | {"modalities": gallery.modalities, "written": written}, output / "calibration.json")
    return fitted, written


def format_calibration(
    result: Calibration, written: Sequence[str], scale_offset: bool = False, write: bool = False
) -> list[str]:
    """Format the result of [`~scalar_retrieval.eval.calibrate.calibrate`], and what follows from it, as lines."""
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
    if scale_offset:
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
    elif not write:
        lines.append("The gain is above zero; --write saves it.")
    if written:
        lines.append(f"Written to {', '.join(written)}.")
    elif write:
        lines.append("Nothing was written.")
    return lines


__all__ = ["calibrate_inputs", "calibrate_texts", "format_calibration"]
