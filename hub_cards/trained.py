"""Code shared by models and adapters: the files that leave the folder of a run, and the card about them.

Only the files named here leave a folder; checkpoints, optimizer states, pickles and `training_args.bin` never do.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.modeling_scalar import ScalarJointConfig, ScalarJointModel, ScalarModel
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES, ScalarConfig
from scalar_retrieval.modeling_scalar.loading import load_config, load_processor
from scalar_retrieval.modeling_scalar.modalities_scalar import CALIBRATION
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, ScoreOptions, find_method, method_title

from .privacy import without_folders
from .records.evaluations import (
    check_weights,
    eval_results,
    identifier,
    read_result,
    read_results,
    tables,
)
from .records.runs import count_parameters, read_emissions, training_table

OWNED = (
    *("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json"),
    *("*_scalar.py", "modeling_beats.py", "recipe.json", "training.json", "emissions.json"),
    *("results/*/results.json", "results/*/results.png"),
)
"""The files that a push of a model writes, see [`~scalar_retrieval.hub_cards.publishing.Kind`]."""

_FIGURE = "results.png"
_TAGS = ("video-retrieval", "text-to-video-retrieval", "multimodal")

# Staging ------------------------------------------------------------------------------------------------------------


def optional_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file, if it exists."""
    if not path.is_file():
        return None
    return read_json(path)


def stage_weights(source: Path, folder: Path, pattern: str) -> None:
    """Link the weights, which may be large; raise a ValueError if there are none, or one is no safetensors file."""
    files = sorted(source.glob(pattern))
    if not files:
        raise ValueError(f"{source} holds no weights ({pattern}).")
    for path in files:
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}.") from error
        os.symlink(path.resolve(), folder / path.name)


def _stage_code(source: Path, folder: Path) -> None:
    """Write configuration, processor and the code of the model in this version."""
    config = load_config(source)
    kind = ScalarModel
    if isinstance(config, ScalarJointConfig):
        kind = ScalarJointModel

    # The file of the model, and all that it imports from its own folder: together they load without this package.
    model_code = sys.modules[kind.__module__].__file__
    for file in (model_code, *get_relative_import_files(model_code)):
        shutil.copyfile(file, folder / Path(file).name)
    # Not as loaded: its map may name code in another repository.
    config.architectures = [kind.__name__]
    config.auto_map = {"AutoModel": f"{Path(model_code).stem}.{kind.__name__}"}
    config.save_pretrained(folder)  # adds its own class to the map
    load_processor(str(source.resolve())).save_pretrained(folder)


def _stage_training(source: Path, folder: Path) -> None:
    """Write the recipe and the records of the run, as far as they exist."""
    records = {
        "recipe.json": without_folders(optional_json(source / "recipe.json")),
        "training.json": without_folders(optional_json(source / "training.json")),
        "emissions.json": read_emissions(source / "emissions.csv"),  # without the location of whoever ran it
    }
    for name, content in records.items():
        if content is not None:
            write_json(content, folder / name)


def _find_results(source: Path, given: Sequence[str | os.PathLike] | None) -> list[Path]:
    """Return the result files to publish: those given, or else all in the folder's `results`."""
    if given is None:
        return sorted((source / "results").rglob("results.json"))
    files = []
    for path in map(Path, given):
        inside = [path]
        if path.is_dir():
            inside = sorted(path.rglob("results.json"))
        if not inside or not inside[0].is_file():
            raise FileNotFoundError(f"There is no results.json at {path}; `scalar eval run` writes it.")
        files += inside
    return files


def _result_name(result: Mapping[str, Any]) -> str:
    # Results of other masks are results of their own.
    parts = [result["benchmark"], result["split"], result["gallery"]["sha256"][:8]]
    mask_seed = result["retrieval"]["mask_seed"]
    if mask_seed:
        parts.append(f"masks{mask_seed}")
    return re.sub(r"[^\w.-]+", "_", "-".join(parts))


def _stage_results(source: Path, folder: Path, given: Sequence[str | os.PathLike] | None) -> None:
    """Copy the results that were measured with exactly these weights, and their figures."""
    # A result counts for these weights alone.
    digests = identify(source).weights
    for path in _find_results(source, given):
        result = read_result(path)
        check_weights(result, digests)
        staged = folder / "results" / _result_name(result.content)
        if staged.exists():
            raise ValueError(
                f"{path} is the second result of {staged.name}. Remove one of them, or name those to publish: "
                "`publish(..., results=[...])` in Python."
            )
        staged.mkdir(parents=True)
        gallery = result.content["gallery"]  # its ids are published as they were hashed
        write_json(without_folders(result.content) | {"gallery": gallery}, staged / "results.json")
        if (path.parent / _FIGURE).is_file():
            shutil.copyfile(path.parent / _FIGURE, staged / _FIGURE)


def stage_beside_weights(source: Path, folder: Path, results: Sequence[str | os.PathLike] | None) -> None:
    """
    Stage the files that belong to weights: configuration, processor, code, records of the training and results.

    Args:
        source (`Path`), folder (`Path`): folder of the model or adapter, and the staged one.
        results (`Sequence[str]`, *optional*): result files, or folders of some; by default all in its `results`.

    Raises:
        FileNotFoundError: a given path holds no result.
        ValueError: there is no processor, two results are of the same task, or one was measured with other weights.
    """
    _stage_code(source, folder)
    _stage_training(source, folder)
    _stage_results(source, folder, results)


# Card ---------------------------------------------------------------------------------------------------------------


def _needed(aggregation: str, modalities: Sequence[str]) -> list[str]:
    """Return the modalities that a clip needs to get a score."""
    # A score of a plugin is not known here.
    if aggregation not in (*METHODS, *modalities):
        return []
    masks = ~torch.eye(len(modalities), dtype=torch.bool)  # each clip lacks one modality
    has_score = find_method(aggregation, modalities).covers(masks, modalities)
    return [modalities[place] for place in (~has_score).nonzero().flatten().tolist()]


def _encoders(config: Mapping[str, Any], is_joint: bool) -> dict[str, Any]:
    """Return the families of the encoders: three towers, or one joint encoder."""
    if is_joint:
        encoder = config["backbone_config"]["model_type"]
        return {"encoder": encoder, "towers": [], "has_second_stage": False}
    text = config["text_config"]
    return {
        "encoder": None,
        "towers": [config[f"{name}_config"]["model_type"] for name in ("vision", "audio", "text")],
        "has_second_stage": bool(text.get("is_decoder") and text.get("add_cross_attention")),
    }


def card_inputs(folder: Path, repo_id: str, pattern: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return front matter of a model or adapter, and variables of its template; `pattern` matches the weights."""
    # The staged files.
    config = read_json(folder / "config.json")
    recipe = optional_json(folder / "recipe.json")
    training = optional_json(folder / "training.json")
    emissions = optional_json(folder / "emissions.json")
    results = read_results(folder)
    aggregation = config["aggregation"]
    modalities = list(config.get("modalities", MODALITIES))
    temperature = config["query_temperature"]
    if isinstance(temperature, dict):  # JSON has no infinity, and transformers writes an object instead
        temperature = temperature["__float__"]
    calibration = {name: config[name] for name in CALIBRATION if config.get(name) is not None}
    model_name = repo_id.split("/")[-1]
    # The trainings that this one continued, the first one last.
    continued = []
    earlier = (training or {}).get("continues")
    while earlier is not None:
        continued.append(earlier)
        earlier = earlier["training"].get("continues")

    # Front matter.
    tags = [*_TAGS, *map(identifier, modalities), identifier(aggregation)]
    data = {"pipeline_tag": "feature-extraction", "tags": tags}
    if results:
        data |= {"model_name": model_name, "eval_results": eval_results(results)}
    if emissions is not None:
        data["co2_eq_emissions"] = emissions | {"training_type": "fine-tuning"}

    # Variables of the template.
    evaluations = []
    for result in results:
        place = f"results/{result.name}"
        has_figure = (folder / place / _FIGURE).is_file()
        evaluation = {"content": result.content, "tables": tables(result), "folder": place, "has_figure": has_figure}
        evaluations.append(evaluation)
    variables = _encoders(config, identify(folder).is_joint) | {
        "repo_id": repo_id,
        "counts": count_parameters(sorted(folder.glob(pattern))),
        "model_name": model_name,
        "aggregation": aggregation,
        "aggregation_name": method_title(aggregation),
        "query_temperature": float(temperature),
        "calibration": calibration,
        "is_calibrated": ScoreOptions(**calibration).is_calibrated,
        "needed": _needed(aggregation, modalities),
        "modalities": modalities,
        "projection_dim": config["projection_dim"],
        "condition_on": config.get("condition_on", ScalarConfig.condition_on),
        "recipe": recipe,
        "training": training,
        "continued": continued,
        "emissions": emissions,
        "settings": training_table(recipe, training, optional_json(folder / "adapter_config.json")),
        "evaluations": evaluations,
    }
    return data, variables


__all__ = ["OWNED", "card_inputs", "optional_json", "stage_beside_weights", "stage_weights"]
