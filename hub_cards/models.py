"""What is published of a model or an adapter: weights, configuration, processor, remote code, recipe and results.

Only what is named here leaves a folder. Checkpoints, optimizer states, pickles and `training_args.bin` never do.
"""

import csv
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from modeling_scalar import ScalarConfig, ScalarModel, ScalarProcessor
from modeling_scalar.loading_scalar import weight_digests

from .files import read_json, without_folders, write_json
from .publishing import PublishError, Target, explained, read_record
from .results import check_weights, read_result

logger = logging.getLogger(__name__)

_REPORT_FILES = ("*.csv", "*.md", "*.png")


def _check_source(source: Path, expected: str, weights: str, hint: str) -> None:
    if not source.is_dir():
        raise FileNotFoundError(f"There is no folder {str(source)!r}.")
    if not (source / expected).is_file():
        steps = [path.name for path in source.glob("checkpoint-*") if (path / expected).is_file()]
        if steps:
            hint += f" A run that did not finish left {sorted(steps)}: resume it, or publish one of them."
        raise ValueError(f"{source} holds no {expected}: {hint}")
    if not list(source.glob(weights)):
        pickles = sorted(path.name for path in source.glob("*.bin") if path.name != "training_args.bin")
        found = f", only {pickles}, which are pickles: load the model and save it again" if pickles else ""
        raise ValueError(f"{source} holds no weights ({weights}){found}.")


def _check_adapter(source: Path) -> None:
    _check_source(source, "adapter_config.json", "adapter_model*.safetensors", "it is no saved adapter.")
    if not (source / "config.json").is_file():
        raise ValueError(
            f"{source} holds no config.json, the configuration that the adapter was trained with: save it there with "
            "`model.get_base_model().config.save_pretrained`."
        )


def _stage_weights(source: Path, folder: Path, pattern: str) -> None:
    """Link the weights: they may be large, and are read once. A file that is no safetensors file is refused."""
    for path in sorted(source.glob(pattern)):
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}.") from error
        os.symlink(path.resolve(), folder / path.name)


def _stage_code(source: Path, folder: Path) -> None:
    """Write configuration and processor, and the code of both and of the model, as this version has it."""
    config = ScalarConfig.from_pretrained(source)
    model_code = sys.modules[ScalarModel.__module__].__file__
    for file in (model_code, *get_relative_import_files(model_code)):
        shutil.copyfile(file, folder / Path(file).name)
    # Not as it was loaded: code of another repository would be named there.
    config.architectures = [ScalarModel.__name__]
    config.auto_map = {"AutoModel": f"{Path(model_code).stem}.{ScalarModel.__name__}"}
    config.save_pretrained(folder)  # adds its own class to the map
    try:
        processor = ScalarProcessor.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{source} holds no processor, without which nobody can use the model: save it there with "
            f"`processor.save_pretrained` ({' '.join(str(error).split())[:200]})."
        ) from error
    processor.save_pretrained(folder)


def _stage_training(source: Path, folder: Path) -> None:
    if (source / "recipe.json").is_file():
        write_json(without_folders(read_json(source / "recipe.json")), folder / "recipe.json")
    if (source / "training.json").is_file():
        shutil.copyfile(source / "training.json", folder / "training.json")
    if (source / "emissions.csv").is_file():
        _stage_emissions(source / "emissions.csv", folder / "emissions.csv")


def _stage_emissions(source: Path, target: Path) -> None:
    """Copy CodeCarbon's record but for the coordinates, which are those of the desk of whoever ran it."""
    with source.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names = [name for name in reader.fieldnames or () if name not in ("longitude", "latitude")]
        rows = list(reader)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# Results ------------------------------------------------------------------------------------------------------------


def _is_of_another(path: Path, source: Path) -> bool:
    """Whether a result lies in a folder of its own model: a checkpoint, another run, what a dry run wrote."""
    folders = [folder for folder in path.parents if source in folder.parents]
    return any(folder.name.startswith("checkpoint-") or (folder / "config.json").is_file() for folder in folders)


def _find_results(source: Path, given: list[Path] | None) -> list[Path]:
    """The result files to publish: those beneath the folder, or those given."""
    if given is None:
        return sorted(path for path in source.rglob("results.json") if not _is_of_another(path, source))
    files = []
    for path in given:
        found = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise FileNotFoundError(f"There is no results.json at {path}; `python -m eval run` writes it.")
        files += found
    return list({path.resolve(): path for path in files}.values())


def _result_name(result: Mapping[str, Any]) -> str:
    mask_seed = result["retrieval"]["mask_seed"]
    masks = [f"masks{mask_seed}"] if mask_seed else []
    parts = [result["benchmark"], result["split"], result["gallery"]["sha256"][:8], *masks]
    return re.sub(r"[^\w.-]+", "_", "-".join(parts))


def _stage_results(source: Path, folder: Path, given: list[Path] | None) -> None:
    """Copy results that were measured with these very weights, with what their reports hold."""
    digests = weight_digests(source)
    for path in _find_results(source, given):
        result = read_result(path)
        check_weights(result, digests)
        staged = folder / "results" / _result_name(result.content)
        if staged.exists():
            raise ValueError(
                f"{path} is the second result of {staged.name}. Choose the ones to publish with --results."
            )
        (staged / "report").mkdir(parents=True)
        gallery = result.content["gallery"]  # its ids stand for the clips: they are published as they were hashed
        write_json(without_folders(result.content) | {"gallery": gallery}, staged / "results.json")
        for figure in path.parent.glob("results.png"):
            shutil.copyfile(figure, staged / figure.name)
        for pattern in _REPORT_FILES:
            for file in sorted((path.parent / "report").glob(pattern)):
                shutil.copyfile(file, staged / "report" / file.name)


# Models and adapters ------------------------------------------------------------------------------------------------


def stage_model(
    source: Path,
    folder: Path,
    results: list[Path] | None = None,
    merge: bool = False,
    base: tuple[str, str | None] | None = None,
) -> None:
    """
    Stage a whole model.

    Args:
        source (`Path`): a folder with a [`ScalarModel`] and its processor; with `merge`, an adapter's.
        folder (`Path`): empty.
        results (`list[Path]`, *optional*): result files, or folders that hold some; by default all beneath `source`.
        merge (`bool`): add the adapter's weights to those of its base.
        base (`tuple`, *optional*): id and commit of that base on the Hub, for the card; by default nobody knows them.

    Raises:
        FileNotFoundError, ValueError: something is missing or no model; a result was measured with other weights.
    """
    is_adapter = (source / "adapter_config.json").is_file()
    if is_adapter and not merge and not list(source.glob("model*.safetensors")):
        raise ValueError(
            f"{source} holds an adapter: publish it with push-adapter, or the whole model with push-model --merge."
        )
    if merge:
        if not is_adapter:
            raise ValueError(f"{source} holds no adapter that could be merged: leave out --merge.")
        _stage_merged(source, folder, base)
    else:
        _check_source(source, "config.json", "model*.safetensors", "it is no saved model.")
        _stage_weights(source, folder, "model*.safetensors")
        for index in source.glob("model.safetensors.index.json"):
            shutil.copyfile(index, folder / index.name)
        _stage_code(source, folder)
    _stage_training(source, folder)
    _stage_results(source, folder, results)


def _stage_merged(source: Path, folder: Path, base: tuple[str, str | None] | None) -> None:
    _check_adapter(source)
    adapter = read_json(source / "adapter_config.json")
    name, revision = adapter["base_model_name_or_path"], adapter.get("revision")
    config = ScalarConfig.from_pretrained(source)
    model = ScalarModel.from_pretrained(name, revision=revision or "main", config=config)
    PeftModel.from_pretrained(model, source).merge_and_unload().save_pretrained(folder)
    _stage_code(source, folder)
    repo_id, commit = base or (Path(name).name, None)
    write_json({"base_model": repo_id, "base_model_revision": commit}, folder / "merge.json")


def find_base(api: HfApi, source: Path, given: str | None, offline: bool = False) -> tuple[str, str | None]:
    """
    Find the base of an adapter on the Hub, and see to it that it is the one the adapter was trained on.

    Args:
        api ([`~huggingface_hub.HfApi`]): of the Hub.
        source (`Path`): the adapter's folder.
        given (`str`, *optional*): id of the base; by default what the adapter says, or where its folder was pushed.
        offline (`bool`): believe it, without looking.

    Returns:
        `tuple`: id and commit (`None` if nobody looked).

    Raises:
        PublishError: it is not on the Hub.
        ValueError: the base is a folder that was never pushed, or has other weights on the Hub.
    """
    _check_adapter(source)
    adapter = read_json(source / "adapter_config.json")
    name = adapter["base_model_name_or_path"]
    local = Path(name) if Path(name).is_dir() else None
    revision = adapter.get("revision")
    if given is not None:
        repo_id, revision = given, None
    elif local is not None or os.path.isabs(name):
        record = read_record(local, api.endpoint) if local is not None else None
        if record is None:
            known = f"has not been pushed to {api.endpoint}" if local is not None else "is gone"
            raise ValueError(
                f"The adapter's base is the folder {name}, which {known}: others could not load the adapter. Publish "
                f"the base first (python -m hub_cards push-model {name} user/name), or say where it is with --base."
            )
        repo_id, revision = record
    else:
        repo_id = name
    if offline:
        return repo_id, revision
    with explained(api, Target(repo_id, "model", revision=revision)):
        info = api.model_info(repo_id, revision=revision, files_metadata=True)
    there = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    if local is not None:
        ours = weight_digests(local)
        different = sorted(name for name, digest in ours.items() if there.get(name) != digest)
        if different:
            raise ValueError(
                f"{repo_id} at {info.sha} is not the base that this adapter was trained on: {different} of {local} "
                "differ. Push that folder, or name another base with --base."
            )
    elif not any(name.startswith("model") and name.endswith(".safetensors") for name in there):
        raise PublishError(f"{repo_id} holds no weights of a model, so it cannot be the adapter's base.")
    if info.private:
        logger.warning("%s is private: only who may read it can load an adapter of it.", info.id)
    return info.id, info.sha


def stage_adapter(
    source: Path, folder: Path, base: str, base_revision: str | None, results: list[Path] | None = None
) -> None:
    """
    Stage an adapter.

    Args:
        source (`Path`): the folder of a run, with the adapter, its configuration and processor.
        folder (`Path`): empty.
        base (`str`), base_revision (`str`, *optional*): id and commit of the base on the Hub, see [`find_base`].
        results (`list[Path]`, *optional*): result files, or folders that hold some; by default all beneath `source`.

    Raises:
        FileNotFoundError, ValueError: something is missing or no adapter; a result was measured with other weights.
    """
    _check_adapter(source)
    _stage_weights(source, folder, "adapter_model*.safetensors")
    adapter = read_json(source / "adapter_config.json")
    write_json(adapter | {"base_model_name_or_path": base, "revision": base_revision}, folder / "adapter_config.json")
    _stage_code(source, folder)
    _stage_training(source, folder)
    _stage_results(source, folder, results)


__all__ = ["find_base", "stage_adapter", "stage_model"]
