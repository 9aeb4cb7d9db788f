"""Code shared by models and adapters: the files that leave the folder of a run, and the card about them.

Only the files named here leave a folder; checkpoints, optimizer states, pickles and `training_args.bin` never do.
"""

import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import compress, product
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from gallery.files import read_json, write_json
from modeling_scalar import ScalarJointConfig, ScalarJointModel, ScalarModel
from modeling_scalar.configuration_scalar import MODALITIES, ScalarConfig
from modeling_scalar.loading import load_config, load_processor
from modeling_scalar.model_identity import identify
from modeling_scalar.scores_scalar import CALIBRATION, METHODS, ScoreOptions, find_method

from .evidence.evaluations import (
    Result,
    check_weights,
    eval_results,
    identifier,
    method_title,
    presence,
    read_result,
    read_results,
    tables,
)
from .evidence.runs import count_parameters, read_emissions, training_table
from .markdown import Markdown, code
from .privacy import without_folders

OWNED = (
    *("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json"),
    *("*_scalar.py", "modeling_beats.py", "recipe.json", "training.json", "emissions.json"),
    *("results/*/results.json", "results/*/results.png", "results/*/report/*"),
)
"""The files that a push of a model writes, see [`~hub_cards.publishing.Kind`]."""

_BESIDE_RESULTS = ("results.png", "report/*.csv", "report/*.md", "report/*.png")
_TAGS = ("video-retrieval", "text-to-video-retrieval", "multimodal")
_MODALITY_TAGS = {"video": "video", "audio": "audio", "subtitle": "subtitles"}
_SAID = {"video": "picture", "audio": "sound", "subtitle": "subtitles"}
_MINIATURE = ("miniature", "miniature_classes")
_VAST = ("blip_2_vision_model", "beats", "bert")

# Staging ------------------------------------------------------------------------------------------------------------


def optional_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file, if it exists."""
    return read_json(path) if path.is_file() else None


def check_source(source: Path, expected: str, weights: str, hint: str) -> None:
    """Check that a folder holds weights and the file expected of its kind; `hint` explains its absence."""
    if not source.is_dir():
        raise FileNotFoundError(f"There is no folder {str(source)!r}.")
    if not (source / expected).is_file():
        steps = sorted(path.name for path in source.glob("checkpoint-*"))
        if steps:
            hint += f" A run that did not finish left {steps}: resume it, or publish one of them."
        raise ValueError(f"{source} holds no {expected}: {hint}")
    if not list(source.glob(weights)):
        raise ValueError(f"{source} holds no weights ({weights}).")


def stage_weights(source: Path, folder: Path, pattern: str) -> None:
    """Link the weights, which may be large; raise a ValueError for a file that is not a safetensors file."""
    for path in sorted(source.glob(pattern)):
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}.") from error
        os.symlink(path.resolve(), folder / path.name)


def _stage_code(source: Path, folder: Path) -> None:
    """Write configuration, processor and the code of the model in this version."""
    config = load_config(source)
    kind = ScalarJointModel if isinstance(config, ScalarJointConfig) else ScalarModel
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
    found = {
        "recipe.json": without_folders(optional_json(source / "recipe.json")),
        "training.json": optional_json(source / "training.json"),
        "emissions.json": read_emissions(source / "emissions.csv"),  # without the location of whoever ran it
    }
    for name, content in found.items():
        if content is not None:
            write_json(content, folder / name)


def _find_results(source: Path, given: list[Path] | None) -> list[Path]:
    """Return the result files to publish: those given, or else all in the folder's `results`."""
    if given is None:
        return sorted((source / "results").rglob("results.json"))
    files = []
    for path in given:
        found = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise FileNotFoundError(f"There is no results.json at {path}; `scalar eval run` writes it.")
        files += found
    return list({path.resolve(): path for path in files}.values())


def _result_name(result: Mapping[str, Any]) -> str:
    mask_seed = result["retrieval"]["mask_seed"]
    parts = [result["benchmark"], result["split"], result["gallery"]["sha256"][:8]]
    return re.sub(r"[^\w.-]+", "_", "-".join(parts + [f"masks{mask_seed}"] * bool(mask_seed)))


def _stage_results(source: Path, folder: Path, given: list[Path] | None) -> None:
    """Copy the results that were measured with exactly these weights, and their reports."""
    digests = identify(source).weights
    for path in _find_results(source, given):
        result = read_result(path)
        check_weights(result, digests)
        staged = folder / "results" / _result_name(result.content)
        if staged.exists():
            raise ValueError(
                f"{path} is the second result of {staged.name}. Choose which ones to publish with --results."
            )
        (staged / "report").mkdir(parents=True)
        gallery = result.content["gallery"]  # its ids are published as they were hashed
        write_json(without_folders(result.content) | {"gallery": gallery}, staged / "results.json")
        for pattern in _BESIDE_RESULTS:
            for file in path.parent.glob(pattern):
                shutil.copyfile(file, staged / file.relative_to(path.parent))


def stage_beside_weights(source: Path, folder: Path, results: list[Path] | None) -> None:
    """
    Stage the files that belong to weights: configuration, processor, code, records of the training and results.

    Args:
        source (`Path`), folder (`Path`): folder of the model or adapter, and the staged one.
        results (`list[Path]`, *optional*): result files, or folders of some; by default all in its `results`.

    Raises:
        FileNotFoundError: a given path holds no result.
        ValueError: there is no processor, two results are of the same task, or one was measured with other weights.
    """
    _stage_code(source, folder)
    _stage_training(source, folder)
    _stage_results(source, folder, results)


# Card ---------------------------------------------------------------------------------------------------------------


def _evaluation(folder: Path, result: Result) -> dict[str, Any]:
    """Return the card's variables for one evaluation."""
    files = {"file": "results.json", "figure": "results.png", "report": "report/tables.md"}
    places = {name: f"results/{result.name}/{file}" for name, file in files.items()}
    return {
        "content": result.content,
        "presence": presence(result),
        "tables": tables(result),
        "is_miniature": result.content["benchmark"] in _MINIATURE,
        **{name: place if (folder / place).is_file() else None for name, place in places.items()},
    }


def _needed(aggregation: str, modalities: Sequence[str]) -> list[str]:
    """Return the modalities that a clip needs to get a score."""
    if aggregation not in (*METHODS, *modalities):
        return []
    masks = torch.tensor(list(product((False, True), repeat=len(modalities))))
    always = masks[find_method(aggregation, modalities).covers(masks, modalities)].all(dim=0)
    return list(compress(modalities, always.tolist()))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _layers(tower: Mapping[str, Any]) -> str:
    return f" ({tower['num_hidden_layers']} layers)" if isinstance(tower.get("num_hidden_layers"), int) else ""


def _encoders(config: Mapping[str, Any], is_joint: bool, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the encoders: three towers, or one joint encoder with or without heads."""
    if is_joint:
        backbone = config["backbone_config"]
        return {
            "encoder": Markdown(code(backbone["model_type"]) + _layers(backbone.get("text_config") or {})),
            "heads": [part for part in counts if part.endswith("_head")],
            "is_vast": False,
            "has_second_stage": False,
        }
    towers = {name: config[f"{name}_config"] for name in ("vision", "audio", "text")}
    return {
        "encoder": None,
        "towers": [Markdown(code(tower["model_type"]) + _layers(tower)) for tower in towers.values()],
        "is_vast": tuple(tower["model_type"] for tower in towers.values()) == _VAST,
        "has_second_stage": bool(towers["text"].get("is_decoder") and towers["text"].get("add_cross_attention")),
    }


def describe(folder: Path, repo_id: str, pattern: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return front matter of a model or adapter, and variables of its template; `pattern` matches the weights."""
    validate_repo_id(repo_id)
    weights = sorted(folder.glob(pattern))
    config = read_json(folder / "config.json")
    recipe, training = optional_json(folder / "recipe.json"), optional_json(folder / "training.json")
    emissions = optional_json(folder / "emissions.json")
    hardware = training and "{num_processes} x {device}".format_map(training["hardware"])
    results = read_results(folder)
    aggregation, temperature = config["aggregation"], config["query_temperature"]
    modalities = list(config.get("modalities", MODALITIES))
    if isinstance(temperature, dict):  # JSON has no infinity; transformers writes an object instead
        temperature = temperature["__float__"]
    calibration = {name: config[name] for name in CALIBRATION if config.get(name) is not None}
    counts = count_parameters(weights)
    model_name, tags = repo_id.split("/")[-1], [tag for name, tag in _MODALITY_TAGS.items() if name in modalities]
    data = {"pipeline_tag": "feature-extraction", "tags": [*_TAGS, *tags, identifier(aggregation)]}
    if results:
        data |= {"model_name": model_name, "eval_results": eval_results(results)}
    if emissions is not None:
        emissions["training_type"] = "fine-tuning"
        data["co2_eq_emissions"] = emissions | ({"hardware_used": hardware} if training else {})
    variables = _encoders(config, identify(folder).is_joint, counts) | {
        "repo_id": repo_id,
        "counts": counts,
        "model_name": model_name,
        "aggregation": aggregation,
        "aggregation_name": method_title(aggregation),
        "query_temperature": float(temperature),
        "has_equal_weights": math.isinf(float(temperature)),
        "calibration": calibration,
        "is_calibrated": ScoreOptions(**calibration).is_calibrated,
        "needed": _needed(aggregation, modalities),
        "modalities": modalities,
        "what_it_sees": _listed([_SAID.get(name, name) for name in modalities]),
        "what_clips_have": _listed(modalities),
        "projection_dim": config["projection_dim"],
        "condition_on": [name for name in MODALITIES if name in config.get("condition_on", ScalarConfig.condition_on)],
        "recipe": recipe,
        "training": training,
        "training_time": None if training is None else str(timedelta(seconds=round(training["seconds"]))),
        "hardware": hardware,
        "emissions": emissions,
        "settings": training_table(recipe, training, optional_json(folder / "adapter_config.json")),
        "trained_on_miniature": recipe is not None and recipe.get("benchmark") in _MINIATURE,
        "evaluations": [_evaluation(folder, result) for result in results],
    }
    return data, variables


__all__ = ["OWNED", "check_source", "describe", "optional_json", "stage_beside_weights", "stage_weights"]
