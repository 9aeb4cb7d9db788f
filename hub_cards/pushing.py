"""One function for each thing that can be published: stage it, write its card, make one commit of both."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi

from modeling_scalar.loading_scalar import model_fingerprint, weight_digests

from .cards import Details, adapter_card, model_card
from .files import read_json
from .galleries import UNKNOWN, gallery_card, stage_gallery
from .metrics import metric_card, stage_metric
from .models import find_base, stage_adapter, stage_model
from .publishing import (
    Published,
    PublishError,
    Target,
    explained,
    preview,
    publish,
    read_record,
    staging,
    write_record,
)
from .spaces import space_card, stage_space

logger = logging.getLogger(__name__)

Stage = Callable[[Path], None]
Card = Callable[[Path, str, Details], str]


def _push(
    target: Target, stage: Stage, card: Card, details: Details, output: Path | None, api: HfApi, source: Path | None
) -> Published | str:
    with staging() as folder:
        stage(folder)

        def make_card(repo_id: str, details: Details) -> str:
            return card(folder, repo_id, details)

        if output is not None:
            return preview(target, folder, make_card, details, output)
        published = publish(api, target, folder, make_card, details)
    if source is not None and not target.is_pull_request:
        try:
            write_record(source, api.endpoint, published)
        except OSError as error:
            logger.warning(
                "%s was published, but %s cannot take a note of it (%s): name it where it is asked for.",
                published.repo_id, source, error.strerror,
            )  # fmt: skip
    return published


def push_model(
    source: Path,
    target: Target,
    details: Details,
    results: list[Path] | None = None,
    merge: bool = False,
    output: Path | None = None,
    api: HfApi | None = None,
) -> Published | str:
    """
    Publish a whole model.

    Args:
        source (`Path`): a folder with the model and its processor; with `merge`, an adapter's, added to its base.
        target ([`~hub_cards.publishing.Target`]): where it goes.
        details ([`~hub_cards.cards.Details`]): what no file says.
        results (`list[Path]`, *optional*): result files, or folders that hold some; by default all beneath `source`.
        output (`Path`, *optional*): write what would be published there instead; nothing reaches the network.
        api ([`~huggingface_hub.HfApi`], *optional*): endpoint and token, by default those of the environment.

    Returns:
        [`~hub_cards.publishing.Published`], or with `output` the card.

    Raises:
        PublishError: nothing was published; the message says why.
        FileNotFoundError, ValueError: something is missing, or is not what it should be.
    """
    api = api or HfApi()

    def stage(folder: Path) -> None:
        base = None
        if merge:
            try:
                base = find_base(api, source, None, offline=output is not None)
            except (OSError, ValueError) as error:
                logger.warning("The card names no base: %s", error)
        stage_model(source, folder, results, merge, base)

    # The folder of a merged model is that of its adapter, which is not what was pushed.
    return _push(target, stage, model_card, details, output, api, None if merge else source)


def push_adapter(
    source: Path,
    target: Target,
    details: Details,
    base: str | None = None,
    results: list[Path] | None = None,
    output: Path | None = None,
    api: HfApi | None = None,
) -> Published | str:
    """
    Publish an adapter.

    Args:
        source (`Path`): the folder of a run.
        base (`str`, *optional*): id of its base; by default where the base was loaded from, or pushed to.
        target, details, results, output, api: as in [`push_model`].

    Returns:
        As [`push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`push_model`]; also if the base is not on the Hub or has other
            weights there.
    """
    api = api or HfApi()

    def stage(folder: Path) -> None:
        name, revision = find_base(api, source, base, offline=output is not None)
        stage_adapter(source, folder, name, revision, results)

    return _push(target, stage, adapter_card, details, output, api, source)


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
    Publish a store of embeddings or a search gallery as a data set.

    Args:
        source (`Path`): a folder of `python -m eval embed`, of `python -m eval run`, or of `python -m search index`.
        model (`str`, *optional*): id of the model that made it; by default where that model's folder was pushed.
        media (`bool`): publish the videos of a search gallery too.
        target, details, output, api: as in [`push_model`].

    Returns:
        As [`push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`push_model`].
    """
    api = api or HfApi()
    revision = None
    if model is None:
        model, revision = _model_of(source, api.endpoint)
    if output is None and model not in (None, UNKNOWN) and revision is None:
        _check_model(api, source, model)
    return _push(
        target,
        lambda folder: stage_gallery(source, folder, model, revision, media=media),
        gallery_card,
        details,
        output,
        api,
        source if source.is_dir() else None,
    )


def _check_model(api: HfApi, source: Path, model: str) -> None:
    """Raise an error unless a model is on the Hub, and has the weights that a store names, if it names any.

    A gallery of search names them by a fingerprint of the local files, which the Hub's copies need not have.
    """
    try:
        with explained(api, Target(model, "model")):
            info = api.model_info(model, files_metadata=True)
    except PublishError as error:
        raise PublishError(
            f"{error} {source} was made by {model}: say with --model where that is, or 'unknown'."
        ) from error
    there = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    description = source / "embeddings.json"
    made_by = read_json(description).get("metadata", {}).get("weights") if description.is_file() else None
    if isinstance(made_by, dict) and any(there.get(name) != digest for name, digest in made_by.items()):
        raise ValueError(
            f"{source} was made with other weights than those of {model}: {sorted(made_by)} differ. Name the model "
            "that made it, or make it again."
        )


def _model_of(source: Path, endpoint: str) -> tuple[str | None, str | None]:
    """The id and commit on the Hub of the model that made a gallery: `None` where nobody knows.

    Raises:
        ValueError: the model's folder holds other weights than those that made the gallery.
    """
    gallery, store = source / "gallery.json", source / "embeddings.json"
    if gallery.is_file():
        content = read_json(gallery)
        name, made_by, identify = content.get("model"), content.get("fingerprint"), model_fingerprint
    elif store.is_file():
        content = read_json(store).get("metadata", {})
        name, made_by, identify = content.get("model"), content.get("weights"), weight_digests
    else:
        return None, None
    if not isinstance(name, str) or not Path(name).is_dir():
        is_id = isinstance(name, str) and not os.path.isabs(name) and name.count("/") <= 1
        return (name, None) if is_id else (None, None)
    place = read_record(Path(name), endpoint)
    if place is None:
        return None, None
    if identify(name) != made_by:
        raise ValueError(
            f"{source} was not made by the model that is in {name} now: its vectors and that model's do not fit "
            "together. Make it again, or name the model with --model."
        )
    return place


def push_metric(
    source: Path, target: Target, details: Details, output: Path | None = None, api: HfApi | None = None
) -> Published | str:
    """
    Publish a metric as a Space, from which `evaluate.load` takes it.

    Args:
        source (`Path`): a folder of `eval/metrics/`.
        target, details, output, api: as in [`push_model`]. The repository must be called as the metric is.

    Returns:
        As [`push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`push_model`].
    """
    return _push(
        target,
        lambda folder: stage_metric(source, folder, target.repo_id),
        metric_card,
        details,
        output,
        api or HfApi(),
        None,
    )


def push_space(
    target: Target,
    details: Details,
    gallery: str,
    model: str | None = None,
    output: Path | None = None,
    api: HfApi | None = None,
) -> Published | str:
    """
    Publish the app that searches a published gallery.

    Args:
        gallery (`str`): id of the data set.
        model (`str`, *optional*): id of the model that embeds queries; by default the one that made the gallery.
        target, details, output, api: as in [`push_model`].

    Returns:
        As [`push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`push_model`]; also if the gallery is not on the Hub, or does
            not say by which model it was made.
    """
    api = api or HfApi()

    def stage(folder: Path) -> None:
        revisions = {}
        if output is None:
            revisions = _revisions_of(api, gallery, model)
        elif model is None:
            raise ValueError("A dry run does not look the gallery up: name the model that made it with --model.")
        stage_space(folder, **{"model": model, "gallery": gallery} | revisions)

    return _push(target, stage, space_card, details, output, api, None)


def _revisions_of(api: HfApi, gallery: str, model: str | None) -> dict[str, str | None]:
    """What the app loads: the model and the gallery, each at one commit."""
    with explained(api, Target(gallery, "gallery")):
        commit = api.dataset_info(gallery).sha
        path = api.hf_hub_download(gallery, "embeddings.json", repo_type="dataset", revision=commit)
    description = read_json(Path(path))
    made_by, revision = description.get("model"), description.get("model_revision")
    if model is None and made_by is None:
        raise ValueError(f"{gallery} does not say which model on the Hub made it: name one with --model.")
    if None not in (model, made_by) and model != made_by:
        raise ValueError(
            f"{gallery} was made by {made_by}, so queries of {model} cannot be compared with it. Leave out --model, "
            f"or publish a gallery that {model} made."
        )
    model = model or made_by
    with explained(api, Target(model, "model")):
        revision = api.model_info(model, revision=revision).sha
        config = read_json(Path(api.hf_hub_download(model, "config.json", revision=revision)))
    if config.get("aggregation") != "scalar":
        raise ValueError(
            f"The app draws the weights of SCALAR's score, but {model} scores with {config.get('aggregation')!r}: it "
            "would show other hits than the model finds. Publish a gallery of a model that scores with 'scalar'."
        )
    return {"model": model, "model_revision": revision, "gallery_revision": commit}


__all__ = ["push_adapter", "push_gallery", "push_metric", "push_model", "push_space"]
