"""Evaluate a model on a benchmark, or given embeddings: [`evaluate`].

Imports nothing slow: what is wrong is reported before the libraries are imported that take seconds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scalar_retrieval.commands.extras import naming_extras
from scalar_retrieval.commands.options import load_plugins

from .inputs import AnyPath, Inputs
from .protocol.missing import RATES, check_rate
from .results import Results

if TYPE_CHECKING:
    from scalar_retrieval.gallery.gallery import Gallery

    from .embedding.embeddings import Embeddings

_DEPTHS = (50,)  # candidates that the second stage reorders


def _check_stages(
    rates: Sequence[float], depths: Sequence[int] | None, fusion_split: str | None, split: str, has_model: bool
) -> None:
    """Check what both stages measure, as far as it does not depend on clips."""
    for rate in rates:
        check_rate(rate)
    if depths and not has_model:
        raise ValueError(
            "The second stage needs a cross-encoder and clips to read: give a model whose text tower has "
            "cross-attention, a benchmark and its root, even with embeddings."
        )
    # The weight of the fusion is read from clips that are not reported.
    if fusion_split is not None and (depths == () or not has_model):
        raise ValueError("Fusion needs the second stage: measure it, and give a model, a benchmark and its root.")
    if fusion_split == split:
        raise ValueError(
            f"The weight of the fusion must be chosen on another split than {split!r}, which is reported."
        )


def _check_model(model: AnyPath, depths: Sequence[int] | None) -> None:
    """Check that a model of the Hub is here if the Hub is not, and what its second stage reorders."""
    from scalar_retrieval.modeling_scalar.model_identity import identify

    identify(model).cached_if_offline()
    from scalar_retrieval.gallery.second_stage.matching import check_depth

    for depth in depths or ():
        check_depth(depth)


@naming_extras()
def evaluate(
    model: AnyPath | None = None,
    benchmark: str | None = None,
    root: AnyPath | None = None,
    *,
    embeddings: "AnyPath | Gallery | Embeddings | None" = None,
    output: AnyPath | None = None,
    split: str = "test",
    captions: Literal["first", "all"] | None = None,
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    words_of: AnyPath | None = None,
    on_missing: Literal["raise", "leave_out"] = "raise",
    on_error: Literal["raise", "missing"] = "raise",
    batch_size: int = 32,
    label: str | None = None,
    methods: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    depths: Sequence[int] | None = None,
    fusion_split: str | None = None,
    progress: bool = True,
    plugins: Sequence[str] = (),
) -> Results:
    """
    Evaluate a model on a benchmark, or embeddings, or both; `scalar eval run` does the same.

    Args:
        model (`str`, *optional*): folder or Hub name of a model or adapter; with it, a benchmark and its root.
        benchmark (`str`, *optional*): name of the benchmark; `"own"` for your own table.
        root (`str`, *optional*): folder of the benchmark; for `"own"` a table file or the name of a data set.
        embeddings (`str`, [`~scalar_retrieval.gallery.gallery.Gallery`] or
            [`~scalar_retrieval.eval.embedding.embeddings.Embeddings`], *optional*): in place of model, benchmark and
            root, or with them for what reads clips or captions. A path or the address of a published gallery
            (hf://datasets/USER/NAME) is opened. A gallery without queries, as by `scalar index`, is scored as a search
            in it scores, with its own temperature, scales and offsets.
        output (`str`, *optional*): folder for `results.json`, `queries.parquet` (the result of each query),
            `results.png`, the tables and figures of `report/` and, unless they were given, the `embeddings`, so that
            other methods and masks can be measured without reading the files again. By default nothing is written.
        split (`str`), captions (`str`, *optional*), columns (`Mapping`, *optional*), holdout (`float`, *optional*),
            words_of (`str`, *optional*), on_missing (`str`): how the benchmark is read, as in
            [`~scalar_retrieval.eval.benchmarks.registry.load_split`].
        on_error (`str`): `"raise"` stops at unreadable files, `"missing"` counts them as absent.
        batch_size (`int`): clips or captions per forward pass.
        label (`str`, *optional*): name of the row in tables; by default the model's.
        methods (`Sequence[str]`, *optional*): scores to measure with the model's own, and modalities; by default all.
        rates (`Sequence[float]`): fractions of clips that lose a modality, each in [0, 1].
        depths (`Sequence[int]`, *optional*): numbers of clips or captions that the second stage reorders; by default
            50 if the model has one. An empty sequence, or 0, skips it.
        fusion_split (`str`, *optional*): also rank by first-stage score + weight * match logit, with the weight chosen
            on this split.
        progress (`bool`): show progress bars.
        plugins (`Sequence[str]`): modules to import first, which register scores or benchmarks.

    Returns:
        [`~scalar_retrieval.eval.results.Results`]: the content of `results.json`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: arguments contradict each other, one is out of range, or a step cannot be done.
        FileNotFoundError: a file does not exist.

    Example:

        >>> results = evaluate(embeddings="galleries/msrvtt", methods=["scalar"], rates=(0.0,))
        >>> sorted(results["retrieval"]["rates"][0]["methods"])
        ['audio', 'scalar', 'subtitle', 'video']
    """
    arguments = dict(locals())

    # Everything is checked before hours of embedding, not after; what needs torch comes last.
    load_plugins(plugins)
    if depths is not None:
        depths = tuple(depth for depth in depths if depth != 0)
    _check_stages(rates, depths, fusion_split, split, model is not None)
    inputs = Inputs(
        model=model,
        benchmark=benchmark,
        root=root,
        embeddings=embeddings,
        split=split,
        captions=captions,
        columns=columns,
        holdout=holdout,
        words_of=words_of,
        on_missing=on_missing,
        on_error=on_error,
        batch_size=batch_size,
        progress=progress,
    )
    inputs.check_queries()
    if model is not None:
        _check_model(model, depths)
    from scalar_retrieval.gallery.store.described import score_options_of

    from .measuring import describe, prepare, write
    from .protocol.first_stage import measure_first_stage

    # Embed, or read embeddings.
    folder = None
    if output is not None:
        folder = Path(output)
    needs_match = bool(depths) or fusion_split is not None
    embedded, source = prepare(inputs, folder, methods or (), needs_match, fusion_split)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)

    # Both stages, scored as the model that embedded the clips scores.
    score = score_options_of(embedded.metadata)
    first, queries = measure_first_stage(embedded, methods=methods, rates=rates, progress=progress, **score)
    measured = {
        "score": score,
        "retrieval": first,
        "two_stage": [],
        "two_stage_fusion": None,
        "two_stage_diagnostic": None,
    }
    if source is not None and source.model.config.has_cross_attention and depths != ():
        measured |= source.second_stage(embedded, score, rates, depths or _DEPTHS, fusion_split)

    results = describe(inputs, embedded, label, measured, arguments)
    if folder is not None:
        write(folder, results, queries)
    return results


__all__ = ["evaluate"]
