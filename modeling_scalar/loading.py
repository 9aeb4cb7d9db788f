"""Load a saved model or adapter with its saved processor. For programs; remote code does not need it."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoProcessor
from transformers.utils import CONFIG_NAME, PROCESSOR_NAME

from . import registration  # noqa: F401
from .checking import (
    check_counts,
    check_finite,
    check_shapes,
    check_vocabulary,
    file_of,
    read_object,
    shapes_of,
    weight_files,
)
from .configuration_joint_scalar import ScalarJointConfig, check_fields
from .configuration_scalar import ScalarConfig
from .devices import default_dtype
from .joint_encoders import (
    check_joint_processor,
    in_backbone,
    model_from_joint_encoder,
    processor_from_joint_encoder,
)
from .model_identity import SENTENCE_TRANSFORMERS, ModelIdentity, identify
from .modeling_joint_scalar import ScalarJointModel
from .modeling_scalar import ScalarModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import ScalarProcessor
from .retrieval_scalar import ScalarRetrievalModel

# The kinds of saved models: the classes of model and processor by the `model_type` of the configuration.
_KINDS = {
    ScalarConfig.model_type: (ScalarModel, ScalarProcessor),
    ScalarJointConfig.model_type: (ScalarJointModel, ScalarJointProcessor),
}
_PROCESSORS = {processor.__name__ for _, processor in _KINDS.values()}

# Modules that the configuration of a run may add to its base; no other weights of a base may be missing.
# Concatenation heads are not among them: no loss trains them, so new ones would stay random. The heads of a joint
# encoder are; their names end with `_head`.
_ADDED_MODULES = ("hyperbolic", "logit_scale")
_OPTIONAL_MODULES = (*_ADDED_MODULES, "concat_projections")  # a configuration can omit them
_PROCESSOR_FILES = (PROCESSOR_NAME, "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
# Fields of the configuration of heads on an encoder that is used as published.
_OF_HEADS = ScalarJointConfig.__annotations__.keys() - {"backbone_config", "modalities"}
# Limits on the output of a processor for one clip, far beyond sensible values: more would fill the memory.
_MOST = {"num_frames": 1024, "num_train_frames": 1024, "num_segments": 1024, "segment_length": 100_000}
_MOST |= {"num_mel_bins": 1024, "sampling_rate": 192_000, "image_size": 4096}
# Vision towers that accept pictures of one size only.
_FIXED_SIZE = ("blip_2_vision_model", "clip_vision_model", "siglip_vision_model")
# Allowed values of an adapter's configuration; copied layers, for example, would make another network.
_ADAPTER_FIELDS = {"peft_type": ("LORA",), "layer_replication": (None,)}


@contextmanager
def _naming(name: str, what: str) -> Iterator[None]:
    """Turn any error that libraries raise about a model's files into a ValueError that names the model."""
    try:
        yield
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and name in str(error) and "trust_remote_code" not in str(error):
            raise
        why = error.__cause__ or error if isinstance(error, StrictDataclassError) else error
        kind = "" if isinstance(why, (OSError, ValueError)) else f"{type(why).__name__}: "
        if "trust_remote_code" in str(error):
            kind, why = "", "it needs remote code, which is never executed here."
        raise ValueError(f"{what} {name} cannot be loaded: {kind}{why}") from error


def load_config(
    model: str | os.PathLike | ModelIdentity, overrides: dict[str, Any] | None = None, num_tensors: int | None = None
) -> ScalarConfig | ScalarJointConfig:
    """
    Read the configuration of a model.

    Args:
        model (`str`): A folder or Hub id.
        overrides (`dict`, *optional*): Fields to change.
        num_tensors (`int`, *optional*): The number of weights; a configuration cannot have more layers.

    Raises:
        ValueError: If there is none, it belongs to another kind of model, or a field is unknown or invalid.
    """
    identity = identify(model)
    path = identity.file(CONFIG_NAME)
    if path is None:
        raise ValueError(f"{identity.name} holds no {CONFIG_NAME}, so it is not a saved model.")
    if not identity.is_configured:
        raise ValueError(
            f"{path} must describe a ScalarModel, got a `model_type` of {identity.config.get('model_type')!r:.200}."
        )
    if num_tensors is not None:
        check_counts(identity.config, num_tensors, str(path))
    with _naming(str(path), "The configuration"):
        config = AutoConfig.from_pretrained(
            identity.name, revision=identity.revision or "main", trust_remote_code=False
        )
    if not overrides:
        return config
    check_fields(config, overrides)
    # Built again, because only construction checks the fields against each other.
    return type(config).from_dict(config.to_dict() | overrides)


@contextmanager
def _without_report() -> Iterator[None]:
    """Suppress the lists of missing and unexpected weights that transformers prints; they are errors here."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def _load_weights(
    base: ModelIdentity,
    config: ScalarConfig | ScalarJointConfig,
    shapes: dict[str, tuple[int, ...]],
    may_add: bool,
    options: dict,
) -> ScalarRetrievalModel:
    name, (kind, _) = base.name, _KINDS[config.model_type]
    heads = ("_head",) if kind is ScalarJointModel else ()
    with _naming(name, "A model with the configuration of"), torch.device("meta"):
        check_shapes(kind(config), in_backbone(shapes) if kind is ScalarJointModel else shapes, name)
    options = {"revision": base.revision or "main", "use_safetensors": True, "output_loading_info": True} | options
    with _without_report():
        model, info = kind.from_pretrained(name, config=config, **options)
    for keys, allowed, problem in (
        (info["missing_keys"], (*_ADDED_MODULES, *heads) if may_add else (), "lacks {} weights of the model"),
        (info["unexpected_keys"], (*_OPTIONAL_MODULES, *heads), "holds {} weights that are not in its config.json"),
    ):
        wrong = sorted(key for key in keys if not key.split(".")[0].endswith(allowed))
        if wrong:
            raise ValueError(
                f"{name} {problem.format(len(wrong))}, such as {wrong[:3]}. Use the configuration that belongs to the "
                "weights, or save the model again."
            )
    return model


def load_processor(name: str) -> ScalarProcessor:
    """
    Load the processor of a model; no code of the folder runs.

    Args:
        name (`str`): An absolute folder or a Hub id.

    Raises:
        ValueError: If there is none, or one of its files is missing or damaged.
    """
    found = {file: file_of(name, file) for file in _PROCESSOR_FILES}
    contents = {file: {} if path is None else read_object(path) for file, path in found.items()}
    described = contents[PROCESSOR_NAME].get("processor_class")
    if described not in list(_PROCESSORS):
        raise ValueError(
            f"{name} must hold a ScalarProcessor in its {PROCESSOR_NAME}, got {described!r:.200}. Save the model's "
            "processor in the same folder with `processor.save_pretrained`."
        )
    with _naming(name, "The processor of"):
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
    # Without any of these files transformers builds a tokenizer without words.
    files = list(processor.tokenizer.vocab_files_names.values())
    if not any(file_of(name, file) for file in files):
        raise ValueError(
            f"{name} holds no vocabulary of its tokenizer ({' or '.join(sorted(files))}). Copy it from the original "
            "model, or save the processor again with `processor.save_pretrained`."
        )
    return processor


def _check_processor(processor: ScalarProcessor, config: ScalarConfig | ScalarJointConfig, name: str) -> None:
    """Check that the processor fits its model."""
    _, expected = _KINDS[config.model_type]
    if type(processor) is not expected:
        raise ValueError(
            f"The model in {name} needs a {expected.__name__}, but its folder holds a "
            f"{type(processor).__name__}. Copy the {PROCESSOR_NAME} that it was saved with."
        )
    if isinstance(config, ScalarJointConfig):
        return check_joint_processor(processor, config, name)
    check_vocabulary(processor.tokenizer, config.text_config.vocab_size, name)
    parts = (processor, processor.image_processor, processor.feature_extractor)
    most = dict(_MOST)
    positions = getattr(config.text_config, "max_position_embeddings", None)
    if positions is not None:
        most |= {"max_text_length": positions, "max_subtitle_length": positions}
    if config.vision_config.model_type in _FIXED_SIZE:
        most["image_size"] = config.vision_config.image_size
        if processor.image_processor.image_size < config.vision_config.image_size:
            raise ValueError(
                f"The processor in {name} makes pictures of {processor.image_processor.image_size} pixels a side, but "
                f"the model needs {config.vision_config.image_size}. Copy the {PROCESSOR_NAME} that it was saved with."
            )
    for field, limit in most.items():
        value = next(getattr(part, field) for part in parts if hasattr(part, field))
        if value > limit:
            raise ValueError(
                f"`{field}` in the {PROCESSOR_NAME} of {name} must be at most {limit} for this model, got {value}. "
                "Copy the file that the model was saved with."
            )


def _load_adapter(model: ScalarRetrievalModel, name: str, adapter: dict[str, Any]) -> None:
    """Add the weights of an adapter to its base; all of them must fit."""
    for field, allowed in _ADAPTER_FIELDS.items():
        if adapter.get(field) not in allowed:
            raise ValueError(
                f"`{field}` in the adapter_config.json of {name} must be {allowed[0]!r}, got "
                f"{adapter.get(field)!r:.200}. Other adapters are not supported."
            )
    shapes = shapes_of(weight_files(name, "adapter_model"))
    widest = max((max(shape, default=0) for shape in shapes.values()), default=0)
    patterns = adapter.get("rank_pattern") or {}
    ranks = [adapter.get("r"), *(patterns.values() if isinstance(patterns, dict) else [patterns])]
    if not all(isinstance(rank, int) and 1 <= rank <= widest for rank in ranks):
        raise ValueError(
            f"The ranks in the adapter_config.json of {name} must be those of its weights, which have at most "
            f"{widest} rows, got {ranks!r:.200}."
        )
    alpha = adapter.get("lora_alpha")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ValueError(f"`lora_alpha` in the adapter_config.json of {name} must be a number, got {alpha!r:.200}.")
    mend = "Use the base that it was trained on, and the configuration that was saved with it."
    try:
        with _without_report():
            info = model.load_adapter(name)
    except RuntimeError as error:  # of shapes
        raise ValueError(
            f"The weights of the adapter in {name} do not have the shapes that its base and its adapter_config.json "
            f"require. {mend}"
        ) from error
    found = {kind: sorted(getattr(info, kind)) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(found.values()):
        problem = ", ".join(
            f"{len(keys)} {kind.split('_')[0]} (such as {keys[0]})" for kind, keys in found.items() if keys
        )
        raise ValueError(
            f"The weights of the adapter in {name} do not fit its base and its adapter_config.json: {problem}. {mend}"
        )


def load_model(
    name_or_path: str | os.PathLike,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **config_overrides: Any,
) -> tuple[ScalarRetrievalModel, ScalarProcessor]:
    """
    Load a model, or an adapter on its base, and its processor; no code of the folder runs.

    A joint encoder is loaded as published; see [`ScalarModel.from_joint_encoder`].

    An adapter may be trained with another configuration than its base's, for example another aggregation. If it was
    saved with that configuration (`config.json` next to `adapter_config.json`), the model uses it, else the base's.

    Args:
        name_or_path (`str`): A folder or Hub id.
        dtype (`torch.dtype`, *optional*): The dtype of the weights; by default that of the checkpoint or, if a device
            is given, [`default_dtype`].
        device (`torch.device`, *optional*): The device to run on; by default the CPU.
        **config_overrides: Fields of the configuration to change, such as `aggregation="gram"`. Modules that they add
            (a learned temperature, the learned scalars of `"hypergram"`) are newly initialised.

    Returns:
        The model, in evaluation mode, and the processor.

    Raises:
        ValueError: If nothing can be loaded, it is not a SCALAR model with its processor, weights are missing
            (including those of concatenation heads for `has_concat_heads=True`), or a field is unknown.
    """
    identity = identify(name_or_path)
    with _naming(identity.name, "The model in"):
        identity = identity.at_hand()
        name = identity.name
        if device is not None and dtype is None:
            dtype = default_dtype(identity, device)
        options = {} if dtype is None else {"dtype": dtype}
        if identity.encoder is not None:
            with _without_report():  # about modules that a run adds to the encoder; the rest is checked
                model = model_from_joint_encoder(identity, **options, **config_overrides)
            check_finite(model, name)
            processor = processor_from_joint_encoder(identity, modalities=model.config.modalities)
            return model.to(device or "cpu"), processor
        base = (identity.base or identity).at_hand()
        if base.encoder == SENTENCE_TRANSFORMERS:  # used as published, under trained heads
            config = load_config(identity, config_overrides)
            fields = {name: value for name, value in config.to_dict().items() if name in _OF_HEADS}
            model = model_from_joint_encoder(base, config.modalities, **options, **fields)
            processor = processor_from_joint_encoder(base, config.modalities)
            _load_adapter(model, name, identity.adapter)
            check_finite(model, name)
            return model.eval().to(device or "cpu"), processor
        shapes = shapes_of(weight_files(base.name, "model", base.revision))
        configured = base if identity.file(CONFIG_NAME) is None else identity
        config = load_config(configured, config_overrides, len(shapes))
        processor = load_processor(name)
        if "modalities" in config_overrides:
            processor.modalities = list(config.modalities)
        _check_processor(processor, config, name)
        may_add = bool(config_overrides) or identity.adapter is not None
        model = _load_weights(base, config, shapes, may_add, options)
        if identity.adapter is not None:
            _load_adapter(model, name, identity.adapter)
        check_finite(model, name)
    return model.eval().to(device or "cpu"), processor


__all__ = ["load_config", "load_model", "load_processor"]
