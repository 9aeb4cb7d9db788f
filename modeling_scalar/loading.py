"""Load a saved model or adapter with its saved processor. For programs; remote code does not need it.

Only safetensors files are read, and no code of a folder is executed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoProcessor, PreTrainedModel
from transformers.utils import CONFIG_NAME, PROCESSOR_NAME

from . import registration  # noqa: F401
from .configuration_joint_scalar import ScalarJointConfig, check_fields
from .configuration_scalar import ScalarConfig, own_fields
from .joint_encoders import model_from_joint_encoder, processor_from_joint_encoder
from .model_identity import SENTENCE_TRANSFORMERS, ModelIdentity, default_dtype, device_of_name, identify, naming
from .modeling_joint_scalar import ScalarJointModel
from .modeling_scalar import ScalarModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import ScalarProcessor
from .retrieval_scalar import ScalarRetrievalModel

if TYPE_CHECKING:
    from peft import PeftModel

# The classes of saved models by the `model_type` of the configuration, and those of their processors.
_MODELS = {ScalarConfig.model_type: ScalarModel, ScalarJointConfig.model_type: ScalarJointModel}
_PROCESSORS = (ScalarProcessor.__name__, ScalarJointProcessor.__name__)
# Modules that the configuration of a run may add to its base; no other weights of a base may be missing.
# Concatenation heads are not among them: no loss trains them, so new ones would stay random. The heads of a joint
# encoder are; their names end with `_head`.
_ADDED_MODULES = ("hyperbolic", "logit_scale")
_OPTIONAL_MODULES = (*_ADDED_MODULES, "concat_projections")  # a configuration can omit them


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress what transformers prints while it loads weights: a progress bar, and lists of missing and unexpected
    weights, which are errors here."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    hook = transformers.logging.set_tqdm_hook(
        lambda make, arguments, options: make(*arguments, **options | {"disable": True})
    )
    try:
        yield
    finally:
        transformers.logging.set_tqdm_hook(hook)
        transformers.logging.set_verbosity(verbosity)


def load_config(
    model: str | os.PathLike | ModelIdentity, overrides: dict[str, Any] | None = None
) -> ScalarConfig | ScalarJointConfig:
    """
    Read the configuration of a model.

    Args:
        model (`str`): A folder or Hub id.
        overrides (`dict`, *optional*): Fields to change.

    Raises:
        ValueError: If there is none, it belongs to another kind of model, or a field is unknown or invalid.
    """
    identity = identify(model)
    if not identity.is_configured:
        raise ValueError(
            f"{identity.name} must hold the {CONFIG_NAME} of a ScalarModel, got a `model_type` of "
            f"{identity.config.get('model_type')!r:.200}."
        )
    with naming(identity.name):
        config = AutoConfig.from_pretrained(
            identity.name, revision=identity.revision or "main", trust_remote_code=False
        )
    if not overrides:
        return config
    check_fields(config, overrides)
    # Built again, because only construction checks the fields against each other.
    return type(config).from_dict(config.to_dict() | overrides)


def load_processor(name: str) -> ScalarProcessor:
    """
    Load the processor of a model.

    Args:
        name (`str`): A folder or a Hub id.

    Raises:
        ValueError: If there is none, or one of its files is missing or damaged.
    """
    identity = identify(name)
    described = identity.read(PROCESSOR_NAME).get("processor_class")
    if described not in _PROCESSORS:
        raise ValueError(
            f"{identity.name} must hold a ScalarProcessor in its {PROCESSOR_NAME}, got {described!r:.200}. Save the "
            "model's processor in the same folder with `processor.save_pretrained`."
        )
    with naming(identity.name):
        processor = AutoProcessor.from_pretrained(identity.name, trust_remote_code=False)
    # Without any of these files transformers builds a tokenizer without words.
    files = sorted(processor.tokenizer.vocab_files_names.values())
    if not any(map(identity.file, files)):
        raise ValueError(f"{identity.name} holds no vocabulary of its tokenizer ({' or '.join(files)}).")
    return processor


def _load_weights(
    base: ModelIdentity, config: ScalarConfig | ScalarJointConfig, may_add: bool, dtype: torch.dtype | None
) -> ScalarRetrievalModel:
    """Load the weights of a base; only modules that a run adds may be initialised."""
    model_class = _MODELS[config.model_type]
    revision = base.revision or "main"
    with quietly():
        model, info = model_class.from_pretrained(
            base.name, config=config, revision=revision, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    # What may be missing from the weights, and what the configuration may leave out.
    added = _ADDED_MODULES
    optional = _OPTIONAL_MODULES
    if model_class is ScalarJointModel:
        added += ("_head",)
        optional += ("_head",)
    if not may_add:
        added = ()
    # Anything else would be random, or unused without a warning.
    for keys, allowed, problem in (
        (info["missing_keys"], added, "lacks {} weights of the model"),
        (info["unexpected_keys"], optional, "holds {} weights that are not in its config.json"),
    ):
        wrong = sorted(key for key in keys if not key.split(".")[0].endswith(allowed))
        if wrong:
            raise ValueError(
                f"{base.name} {problem.format(len(wrong))}, such as {wrong[:3]}. Use the configuration that belongs "
                "to the weights, or save the model again."
            )
    return model


def _load_adapter(
    model: ScalarRetrievalModel, identity: ModelIdentity, trainable: bool
) -> "PeftModel | ScalarRetrievalModel":
    """Add the weights of an adapter to its base; all of them must fit."""
    weights = identity.file("adapter_model.safetensors")
    if weights is None:
        raise ValueError(f"{identity.name} holds no adapter_model.safetensors, the only format that is read.")
    adapted = model
    if trainable:
        adapted, wrong = _trainable(model, identity, load_file(weights))
    else:
        with quietly():
            info = PreTrainedModel.load_adapter(model, identity.name)  # the caller has chosen the configuration
        wrong = info.missing_keys | info.unexpected_keys
    if wrong:
        raise ValueError(
            f"{len(wrong)} weights of the adapter in {identity.name} do not fit its base and its adapter_config.json, "
            f"such as {min(wrong)}. Use the base that it was trained on, and the configuration that was saved with it."
        )
    return adapted


def _trainable(
    model: ScalarRetrievalModel, identity: ModelIdentity, weights: dict[str, torch.Tensor]
) -> tuple["PeftModel", set[str]]:
    """Put the weights of an adapter on its base as PEFT trains them; also return the names that do not fit."""
    # Imported here, because only training needs it.
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    # The configuration that it is noted to belong to may change in this run, the place of its base may not.
    noted = {"configuration": own_fields(model.config)}
    config = PeftConfig.from_peft_type(**identity.adapter | {"inference_mode": False, "auto_mapping": noted})
    place = config.base_model_name_or_path
    adapted = get_peft_model(model, config)
    config.base_model_name_or_path = place
    wrong = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() ^ weights.keys()
    if not wrong:
        set_peft_model_state_dict(adapted, weights)
    return adapted, wrong


@overload
def load_model(
    name_or_path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    trainable: Literal[False] = False,
    **config_overrides: object,
) -> tuple[ScalarRetrievalModel, ScalarProcessor]: ...
@overload
def load_model(
    name_or_path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    *,
    trainable: bool,
    **config_overrides: object,
) -> tuple["PeftModel | ScalarRetrievalModel", ScalarProcessor]: ...
def load_model(
    name_or_path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    trainable: bool = False,
    **config_overrides: object,
) -> tuple["PeftModel | ScalarRetrievalModel", ScalarProcessor]:
    """
    Load a model, or an adapter on its base, and its processor; no code of the folder runs.

    A joint encoder is loaded as published; see [`ScalarModel.from_joint_encoder`].

    An adapter may be trained with another configuration than its base's, for example another aggregation. If it was
    saved with that configuration (in a `config.json`, or noted in its `adapter_config.json`), the model uses it, else
    the base's.

    Args:
        name_or_path (`str`): A folder or Hub id.
        dtype (`torch.dtype`, *optional*): The dtype of the weights; by default that of the checkpoint or, if a device
            is given, [`default_dtype`].
        device (`str` or `torch.device`, *optional*): The device to run on, such as `"cuda"`; by default the CPU.
        trainable (`bool`): Whether to return an adapter as a `PeftModel`, in which it can be trained further.
        **config_overrides: Fields of the configuration to change, such as `aggregation="gram"`. Modules that they add
            (a learned temperature, the learned scalars of `"hypergram"`) are newly initialised.

    Returns:
        The model, in evaluation mode, and the processor.

    Raises:
        ValueError: If nothing can be loaded, it is not a SCALAR model with its processor, weights are missing
            (including those of concatenation heads for `has_concat_heads=True`), a field is unknown, or this machine
            has no such device.

    Example:

        >>> model, processor = load_model("user/miniature-backbone", aggregation="gram")
        >>> model.config.aggregation
        'gram'
    """
    place = None if device is None else device_of_name(device)
    identity = identify(name_or_path)
    with naming(identity.name):
        identity = identity.cached_if_offline()
        if place is not None and dtype is None:
            dtype = default_dtype(identity, place)
        base = identity if identity.base is None else identity.base.cached_if_offline()
        # An encoder as published, heads on one, or a model that was saved here.
        if identity.encoder is not None:
            with quietly():  # about modules that a run adds to the encoder; the rest is checked
                model = model_from_joint_encoder(identity, dtype=dtype, **config_overrides)
            processor = processor_from_joint_encoder(identity, modalities=model.config.modalities)
        elif base.encoder == SENTENCE_TRANSFORMERS:  # used as published, under trained heads
            config = load_config(identity, config_overrides)
            model = model_from_joint_encoder(base, dtype=dtype, **own_fields(config))
            processor = processor_from_joint_encoder(base, config.modalities)
            model = _load_adapter(model, identity, trainable)
        else:
            model, processor = _load_saved(identity, base, trainable, config_overrides, dtype)
    return model.eval().to(place or "cpu"), processor


def _load_saved(
    identity: ModelIdentity,
    base: ModelIdentity,
    trainable: bool,
    overrides: dict[str, Any],
    dtype: torch.dtype | None,
) -> tuple["PeftModel | ScalarRetrievalModel", ScalarProcessor]:
    """Load a model that was saved whole, or an adapter on one."""
    # An adapter may have a configuration of its own, or a note of it.
    configured = identity
    if identity.file(CONFIG_NAME) is None:
        configured = base
        noted = (identity.adapter or {}).get("auto_mapping") or {}
        overrides = noted.get("configuration", {}) | overrides
    config = load_config(configured, overrides)
    processor = load_processor(identity.name)
    if "modalities" in overrides:
        processor.modalities = list(config.modalities)
    if list(processor.modalities) != list(config.modalities):
        raise ValueError(
            f"The model in {identity.name} needs a processor of {config.modalities}, but its folder holds one of "
            f"{list(processor.modalities)}. Copy the {PROCESSOR_NAME} that it was saved with."
        )
    model = _load_weights(base, config, bool(overrides) or identity.adapter is not None, dtype)
    if identity.adapter is not None:
        model = _load_adapter(model, identity, trainable)
    return model, processor


__all__ = ["load_config", "load_model", "load_processor", "quietly"]
