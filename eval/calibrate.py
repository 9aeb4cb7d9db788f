"""Fit how SCALAR's score weighs modalities to captions of your clips: [`calibrate`].

Imports nothing slow: what is wrong is reported before the libraries are imported that take seconds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalar_retrieval.commands.options import load_plugins

from .inputs import AnyPath, Inputs

if TYPE_CHECKING:
    from .protocol.calibration import Calibration


def _has_score(model: AnyPath | None) -> bool:
    """Whether a model is a folder with a configuration of its score, unlike an encoder as published."""
    from scalar_retrieval.modeling_scalar.model_identity import identify

    if model is None:
        return False
    identity = identify(model)
    return identity.is_folder and identity.is_configured


def _read_texts(path: AnyPath) -> list[str]:
    """The different texts of a file, one on each line."""
    from scalar_retrieval.gallery.store.file_lists import is_table

    try:
        if is_table(path):
            raise ValueError("it is a table")
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except ValueError as error:
        raise ValueError(f"{path} must be a text file in UTF-8 with a query on each line: {error}.") from error
    texts = dict.fromkeys(map(str.strip, lines))
    texts.pop("", None)
    return list(texts)


def calibrate(
    model: AnyPath | None = None,
    benchmark: str | None = None,
    root: AnyPath | None = None,
    *,
    output: AnyPath,
    embeddings: AnyPath | None = None,
    split: str = "test",
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    scale_offset: bool = False,
    texts: AnyPath | None = None,
    write: bool = False,
    progress: bool = True,
    plugins: Sequence[str] = (),
) -> "tuple[Calibration | dict[str, Any], list[str]]":
    """
    Fit how SCALAR's score weighs modalities to captions of your clips, and measure the gain on held-out clips;
    `scalar eval calibrate` does the same. With `texts`, fit the scales of modalities without labels instead.

    Args:
        output (`str`): folder for `calibration.json`, and for `embeddings` that have to be computed.
        model (`str`, *optional*): as in [`~scalar_retrieval.eval.run.evaluate`]. With embeddings that have queries,
            and without a benchmark, it serves only as a place to write the result to.
        scale_offset (`bool`): also fit a scale and an offset of each modality's cosines.
        texts (`str`, *optional*): a text file with at least 30 texts that look like queries, one on each line. The
            scale and offset of each modality's cosines in the gallery `embeddings` are measured over them, see
            [`~scalar_retrieval.gallery.scales.fit_scales`]. `model` is then where the gallery's model is now, and
            `write` saves the scales in the gallery alone.
        write (`bool`): save a gain that is certain: in the gallery, and in `config.json` of a model's own folder. The
            gallery also gets the score below which clips do not match.
        benchmark, root, embeddings, split, columns, holdout, progress, plugins: as in
            [`~scalar_retrieval.eval.run.evaluate`]; embeddings by their place. To read clips in another way, embed
            them first with [`~scalar_retrieval.eval.embedding.embed_benchmark.embed_benchmark`].

    Returns:
        [`~scalar_retrieval.eval.protocol.calibration.Calibration`], and the files and folders that the result was
        written to: none unless `write`, and the gain, or what the least score achieves, is certain. With `texts`, the
        entries `score_options` and `scales` for the gallery's metadata instead of a calibration.

    Raises:
        ValueError: arguments contradict each other, the result could not be written, the model has another score, the
            gallery is of another model, or a step cannot be done.
        FileNotFoundError: a file does not exist.
    """
    load_plugins(plugins)
    if texts is not None and (embeddings is None or benchmark is not None or scale_offset):
        raise ValueError(
            "`texts` take the place of captions: give the gallery as `embeddings`, and neither `benchmark` nor "
            "`scale_offset`."
        )
    # With embeddings that have queries, the model is only a place to write to.
    reader = model
    if embeddings is not None and benchmark is None and root is None:
        reader = None
    inputs = Inputs(
        model=reader,
        benchmark=benchmark,
        root=root,
        embeddings=embeddings,
        split=split,
        columns=columns,
        holdout=holdout,
        progress=progress,
    )

    # Before hours of embedding, not after: can the result be saved where it belongs?
    own_model = None
    if _has_score(model):
        own_model = model
    if write and embeddings is None and own_model is None:
        raise ValueError(
            "There is nothing to write to: give the gallery to search as embeddings, or the folder of a model saved "
            "by `model.save_pretrained` and `processor.save_pretrained`."
        )
    if embeddings is not None:
        from scalar_retrieval.gallery.gallery import Gallery, check_writable
        from scalar_retrieval.modeling_scalar.model_identity import identify

        gallery = Gallery.open(embeddings)
        if write:
            check_writable(gallery.path)
        if model is not None:
            gallery.check_model(str(model), identify(model).fingerprint)
    queries = []
    if texts is not None:
        queries = _read_texts(texts)
    else:
        inputs.check_queries()
    from .fitting import calibrate_inputs, calibrate_texts

    if texts is not None:
        return calibrate_texts(gallery, queries, texts, Path(output), model, write)
    return calibrate_inputs(inputs, Path(output), own_model, scale_offset, write)


__all__ = ["calibrate"]
