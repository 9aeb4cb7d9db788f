"""Load a saved model or adapter with the processor saved beside it, and plugins. For programs; remote code does not
need it."""

import hashlib
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoProcessor
from transformers.utils import CONFIG_NAME, PROCESSOR_NAME

from . import registration  # noqa: F401
from .checking import (
    check_counts,
    check_finite,
    check_shapes,
    file_of,
    place_of,
    read_object,
    shapes_of,
    weight_files,
)
from .configuration_joint_scalar import ScalarJointConfig, check_fields
from .configuration_scalar import MODALITIES, ScalarConfig
from .joint_encoders import (
    check_joint_processor,
    in_backbone,
    look_at,
    model_from_joint_encoder,
    processor_from_joint_encoder,
)
from .modeling_joint_scalar import ScalarJointModel
from .modeling_scalar import ScalarModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import ScalarProcessor
from .retrieval_scalar import ScalarRetrievalModel
from .scores_scalar import METHODS, Pairs

# The kinds of saved models: a model and the processor saved beside it, by the `model_type` of the configuration.
_KINDS = {
    ScalarConfig.model_type: (ScalarModel, ScalarProcessor),
    ScalarJointConfig.model_type: (ScalarJointModel, ScalarJointProcessor),
}
_PROCESSORS = {processor.__name__ for _, processor in _KINDS.values()}

# Modules that a run may add to its base, by its configuration; nothing else may be missing in a base's weights.
# Concatenation heads are not among them: no loss trains them, so new ones would stay random.
_HEADS = tuple(f"{name}_head" for name in ("text", *MODALITIES))  # of a joint encoder
_ADDED_MODULES = ("hyperbolic", "logit_scale", *_HEADS)
_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors")
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "adapter_model*.bin")
_OPTIONAL_MODULES = (*_ADDED_MODULES, "concat_projections")  # a configuration can leave them aside
_ADAPTER_CONFIG = "adapter_config.json"
_PROCESSOR_FILES = (PROCESSOR_NAME, "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
# What a processor may make of one clip, far beyond what is sensible: more would fill the memory.
_MOST = {"num_frames": 1024, "num_segments": 1024, "segment_length": 100_000, "image_size": 4096}
# Vision towers that take pictures of one size.
_FIXED_SIZE = ("blip_2_vision_model", "clip_vision_model", "siglip_vision_model")
_CONFIGS = (
    "config.json",
    "processor_config.json",
    "tokenizer.json",
    # of a joint encoder as its publisher has it
    "1_Pooling/config.json",
    "chat_template.jinja",
    "config_sentence_transformers.json",
    "modules.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "video_preprocessor_config.json",
)


# What an adapter of ours asks of its base; layers that are copied, say, would be another network.
_ADAPTER_FIELDS = {"peft_type": ("LORA",), "layer_replication": (None,)}


@contextmanager
def _told_of(name: str, what: str) -> Iterator[None]:
    """Make a ValueError that names the model of whatever libraries raise about its files: that is not foreseeable."""
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
            kind, why = "", "it needs code of its own, which is never executed here."
        raise ValueError(f"{what} {name} cannot be loaded: {kind}{why}") from error


def load_config(
    name: str, overrides: dict[str, Any] | None = None, num_tensors: int | None = None, revision: str | None = None
) -> ScalarConfig | ScalarJointConfig:
    """
    Read the configuration of a model.

    Args:
        name (`str`): an absolute folder or a Hub id.
        overrides (`dict`, *optional*): fields to change.
        num_tensors (`int`, *optional*): in its weights; a configuration cannot count more layers than that.
        revision (`str`, *optional*): of the Hub.

    Raises:
        ValueError: there is none, it is that of another model, or a field is unknown or wrong.
    """
    path = file_of(name, CONFIG_NAME, revision)
    if path is None:
        raise ValueError(f"{name} holds no {CONFIG_NAME}: it is not a saved model.")
    content = read_object(path)
    if content.get("model_type") not in list(_KINDS):  # which compares what a dictionary could not hold
        raise ValueError(
            f"{path} must describe a ScalarModel, got a `model_type` of {content.get('model_type')!r:.200}."
        )
    if num_tensors is not None:
        check_counts(content, num_tensors, str(path))
    with _told_of(str(path), "The configuration"):
        config = AutoConfig.from_pretrained(name, revision=revision or "main", trust_remote_code=False)
    if not overrides:
        return config
    check_fields(config, overrides)
    # Built again, not set on the object: only construction checks the fields against each other.
    return type(config).from_dict(config.to_dict() | overrides)


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep the lists of missing and unexpected weights back that transformers prints: they are errors here."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def _load_weights(
    name: str,
    config: ScalarConfig | ScalarJointConfig,
    shapes: dict[str, tuple[int, ...]],
    added: tuple[str, ...],
    options: dict,
) -> ScalarRetrievalModel:
    kind, _ = _KINDS[config.model_type]
    with _told_of(name, "A model with the configuration of"), torch.device("meta"):
        check_shapes(kind(config), in_backbone(shapes) if kind is ScalarJointModel else shapes, name)
    with _without_report():
        model, info = kind.from_pretrained(
            name, config=config, use_safetensors=True, output_loading_info=True, **options
        )
    for keys, allowed, told in (
        (info["missing_keys"], added, "lacks {} weights of the model"),
        (info["unexpected_keys"], _OPTIONAL_MODULES, "holds {} weights that its config.json does not know"),
    ):
        wrong = sorted(key for key in keys if key.split(".")[0] not in allowed)
        if wrong:
            raise ValueError(
                f"{name} {told.format(len(wrong))}, such as {wrong[:3]}. Give the configuration that belongs to the "
                "weights, or save the model again."
            )
    return model


def load_processor(name: str) -> ScalarProcessor:
    """
    Load the processor of a model; no code of the folder runs.

    Args:
        name (`str`): an absolute folder or a Hub id.

    Raises:
        ValueError: there is none, or one of its files is missing or damaged.
    """
    found = {file: file_of(name, file) for file in _PROCESSOR_FILES}
    contents = {file: {} if path is None else read_object(path) for file, path in found.items()}
    described = contents[PROCESSOR_NAME].get("processor_class")
    if described not in list(_PROCESSORS):
        raise ValueError(
            f"{name} must hold a ScalarProcessor in its {PROCESSOR_NAME}, got {described!r:.200}. Save the model's "
            "processor beside it with `processor.save_pretrained`."
        )
    with _told_of(name, "The processor of"):
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
    # Without any of these files transformers makes a tokenizer that knows no word.
    files = list(processor.tokenizer.vocab_files_names.values())
    if not any(file_of(name, file) for file in files):
        raise ValueError(
            f"{name} holds no vocabulary of its tokenizer ({' or '.join(sorted(files))}). Copy it from where the "
            "model came from, or save the processor again with `processor.save_pretrained`."
        )
    return processor


def _check_processor(processor: ScalarProcessor, config: ScalarConfig | ScalarJointConfig, name: str) -> None:
    """Check that the model can take what its processor makes."""
    _, expected = _KINDS[config.model_type]
    if type(processor) is not expected:
        raise ValueError(
            f"The model in {name} takes what a {expected.__name__} makes, but beside it lies a "
            f"{type(processor).__name__}. Copy the {PROCESSOR_NAME} that it was saved with."
        )
    if isinstance(config, ScalarJointConfig):
        return check_joint_processor(processor, config, name)
    largest, known = max(processor.tokenizer.get_vocab().values()), config.text_config.vocab_size
    if largest >= known:
        raise ValueError(
            f"The tokenizer in {name} has {largest + 1} tokens, but the model knows {known}: it belongs to another "
            "model. Copy the tokenizer that the model was saved with."
        )
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
                f"the model takes {config.vision_config.image_size}. Copy the {PROCESSOR_NAME} that it was saved with."
            )
    for field, limit in most.items():
        value = next(getattr(part, field) for part in parts if hasattr(part, field))
        if value > limit:
            raise ValueError(
                f"`{field}` in the {PROCESSOR_NAME} of {name} must be at most {limit} for this model, got {value}. "
                "Copy the file that the model was saved with."
            )


def base_of(name: str, adapter: dict[str, Any]) -> tuple[str, str]:
    """
    Return the base of an adapter, a folder or a Hub id, and its revision.

    Args:
        name (`str`): the absolute folder of the adapter, or its Hub id.
        adapter (`dict`): its `adapter_config.json`.

    Raises:
        ValueError: it names none, or one that cannot be; the message says where to mend it.
    """
    base, revision = adapter.get("base_model_name_or_path"), adapter.get("revision") or "main"
    mend = "Name the base in `base_model_name_or_path` of its adapter_config.json."
    if not isinstance(base, str) or not base or not isinstance(revision, str):
        raise ValueError(
            f"The adapter in {name} must name its base, got {base!r:.200}, revision {revision!r:.200}. {mend}"
        )
    if not Path(base).is_dir() and (os.path.isabs(base) or base.startswith(".")):
        raise ValueError(f"The folder {base}, the base of the adapter in {name}, is gone. Put it back. {mend}")
    base = place_of(base)
    if base == name:
        raise ValueError(f"The adapter in {name} names itself as its base. {mend}")
    if file_of(base, _ADAPTER_CONFIG, revision) is not None:
        raise ValueError(
            f"The base of the adapter in {name} is an adapter itself, {base}; a model was expected. {mend}"
        )
    return base, revision


def _load_adapter(model: ScalarRetrievalModel, name: str, adapter: dict[str, Any]) -> None:
    """Add the weights of an adapter to its base; all of them must find their place."""
    for field, allowed in _ADAPTER_FIELDS.items():
        if adapter.get(field) not in allowed:
            raise ValueError(
                f"`{field}` in the adapter_config.json of {name} must be {allowed[0]!r}, got "
                f"{adapter.get(field)!r:.200}: other adapters are not supported."
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
    mend = "Give the base that it was trained on, and the configuration that was saved with it."
    try:
        with _without_report():
            info = model.load_adapter(name)
    except RuntimeError as error:  # of shapes
        raise ValueError(
            f"The weights of the adapter in {name} do not have the shapes that its base and its adapter_config.json "
            f"ask for. {mend}"
        ) from error
    found = {kind: sorted(getattr(info, kind)) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(found.values()):
        told = ", ".join(
            f"{len(keys)} {kind.split('_')[0]} (such as {keys[0]})" for kind, keys in found.items() if keys
        )
        raise ValueError(
            f"The weights of the adapter in {name} do not fit its base and its adapter_config.json: {told}. {mend}"
        )


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256(path: Path) -> str:
    """Hash a file, once as long as it does not change: weights are large, and asked for by several names."""
    stat = path.stat()
    return _sha256_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)


def _parts(folder: Path) -> list[Path]:
    """A saved model's folder, and those below it from which Sentence Transformers loads its modules."""
    path = folder / "modules.json"
    try:
        modules = json.loads(path.read_text("utf-8")) if path.is_file() else []
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    modules = modules if isinstance(modules, list) else []
    names = {str(module.get("path") or "") for module in modules if isinstance(module, dict)}
    below = [folder / name for name in sorted(names) if re.fullmatch(r"\w[\w.-]*", name)]
    return [folder, *(part for part in below if part.is_dir())]


def _glob(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for part in _parts(folder) for pattern in patterns for path in part.glob(pattern)]


def default_device() -> torch.device:
    """Return where a command runs a model by default: on the accelerator if there is one, else on the CPU."""
    # Without the question, older versions name the accelerator that torch was built for, there or not.
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def device_of_name(name: str | None) -> torch.device:
    """
    Return the device of a name, `None` standing for [`default_device`].

    Raises:
        ValueError: it is none of the devices of this machine, which the message names.
    """
    if name is None:
        return default_device()
    there = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        there += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if name not in there:
        raise ValueError(f"The device must be one that is here, {' or '.join(there)}; got {name!r}.")
    return torch.device(name)


_PRECISIONS = ("bfloat16", "float16", "float32")


def dtype_of_name(name: str | None) -> torch.dtype | None:
    """
    Return the precision of a name, `None` standing for [`default_dtype`].

    Raises:
        ValueError: models do not run in it.
    """
    if name is not None and name not in _PRECISIONS:
        raise ValueError(f"The precision of a model must be one of {', '.join(_PRECISIONS)}; got {name!r}.")
    return None if name is None else getattr(torch, name)


def weight_digests(name_or_path: str | os.PathLike) -> dict[str, str]:
    """
    Identify the weights of a saved model or adapter, so that metrics can be traced to them.

    Args:
        name_or_path (`str`): a folder, or a Hub id whose files are in the cache.

    Returns:
        `dict`: SHA-256 by the path in the folder, of every safetensors file that `save_pretrained` writes.

    Raises:
        FileNotFoundError: there are none.
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(name_or_path), local_files_only=True))
    digests = {path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(_glob(folder, _WEIGHTS))}
    if not digests:
        raise FileNotFoundError(f"There are no weights ({' or '.join(_WEIGHTS)}) in {folder}.")
    return digests


def model_fingerprint(folder: str | os.PathLike) -> str:
    """Hash the files of a saved model that decide its embeddings: configuration, processor, tokenizer and weights.

    For an adapter, the base counts too: by the fingerprint of its folder if it is local, else by its Hub id.

    Raises:
        FileNotFoundError: the folder holds no weights.
        ValueError: it holds an adapter whose base cannot be told.
    """
    folder = Path(folder)
    weights = _glob(folder, _WEIGHTS + _PICKLED_WEIGHTS)
    if not _glob(folder, _WEIGHTS):
        pickles = f", only the pickles {sorted(path.name for path in weights)}, which are not read" if weights else ""
        raise FileNotFoundError(f"{str(folder)!r} holds no model: no file like {', '.join(_WEIGHTS)}{pickles}.")
    configs = (part / name for part in _parts(folder) for name in _CONFIGS)
    files = [*(path for path in configs if path.is_file()), *weights]
    parts: dict[str, Any] = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
    adapter_config = folder / "adapter_config.json"
    if adapter_config.is_file():
        adapter = read_object(adapter_config)
        base, _ = base_of(str(folder.resolve()), adapter)
        if Path(base).is_dir():
            adapter["base_model_name_or_path"] = model_fingerprint(base)  # the same wherever the folder stands
        parts["adapter_config.json"] = adapter
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def default_dtype(name_or_path: str | os.PathLike, device: torch.device) -> torch.dtype | None:
    """
    Return the precision in which a model runs on a device unless another is asked for.

    Args:
        name_or_path (`str`): a folder or Hub id, of a model or an adapter.
        device (`torch.device`): where it is to run.

    Returns:
        `torch.dtype`: of a joint encoder bfloat16 on an accelerator that has it, half the memory, and float32 on a
        CPU, which computes slowly in less. `None`, that of the checkpoint, for any other model.
    """
    name, revision = place_of(name_or_path), None
    if (adapter := file_of(name, _ADAPTER_CONFIG)) is not None:
        name, revision = base_of(name, read_object(adapter))
    config = file_of(name, CONFIG_NAME, revision)
    kind = None if config is None else read_object(config).get("model_type")
    if kind != ScalarJointConfig.model_type and look_at(name, revision) is None:
        return None
    has_it = device.type not in ("cpu", "mps") and (device.type != "cuda" or torch.cuda.is_bf16_supported())
    return torch.bfloat16 if has_it else torch.float32


def said_of(model: torch.nn.Module) -> str:
    """Say how large a model is, its precision, the memory of its weights and where it runs."""
    weights = list(model.parameters())
    kinds = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    place = next((weight.device for weight in weights), torch.device("cpu"))
    name = f" ({torch.cuda.get_device_name(place)})" if place.type == "cuda" else ""
    size = sum(weight.numel() * weight.element_size() for weight in weights) / 1e9
    count = sum(weight.numel() for weight in weights)
    return f"{count:,} parameters in {' and '.join(kinds)}, {size:.2g} GB, on {place}{name}"


def load_model(
    name_or_path: str | os.PathLike,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **config_overrides: Any,
) -> tuple[ScalarRetrievalModel, ScalarProcessor]:
    """
    Load a model, or an adapter on its base, and its processor; no code of the folder runs.

    A joint encoder is taken as its publisher has it; see [`ScalarModel.from_joint_encoder`].

    An adapter is trained with a configuration that may differ from its base's, in the aggregation say. Where it was
    saved with that configuration (a `config.json` beside `adapter_config.json`), the model has it; else the base's.

    Args:
        name_or_path (`str`): a folder or Hub id.
        dtype (`torch.dtype`, *optional*): of the weights; by default that of the checkpoint or, where a device is
            given, [`default_dtype`].
        device (`torch.device`, *optional*): where the model is to run; by default the CPU.
        **config_overrides: fields of the configuration to change, `aggregation="gram"` say. What they add to the model
            (a learned temperature, the learned scalars of `"hypergram"`) is newly initialised.

    Returns:
        The model, in evaluation mode, and the processor.

    Raises:
        ValueError: nothing can be loaded from there, it is not a SCALAR model with its processor, weights are missing
            (those of concatenation heads asked for by `has_concat_heads=True` too), or a field is unknown.
    """
    name = place_of(name_or_path)
    with _told_of(name, "The model in"):
        if device is not None and dtype is None:
            dtype = default_dtype(name, device)
        options = {} if dtype is None else {"dtype": dtype}
        adapter_config = file_of(name, _ADAPTER_CONFIG)
        adapter = None if adapter_config is None else read_object(adapter_config)
        # An adapter remembers where its base was loaded from; an absolute folder holds in any working directory.
        base, revision = (name, None) if adapter is None else base_of(name, adapter)
        if adapter is None and look_at(name) is not None:
            with _without_report():  # of what a run adds to the encoder; all else is checked
                model = model_from_joint_encoder(name, **options, **config_overrides)
            check_finite(model, name)
            return model.to(device or "cpu"), processor_from_joint_encoder(name, modalities=model.config.modalities)
        shapes = shapes_of(weight_files(base, "model", revision))
        if adapter is None:
            source, added = (name, None), _ADDED_MODULES if config_overrides else ()
        else:
            source, added = (
                (name, None) if file_of(name, CONFIG_NAME) is not None else (base, revision),
                _ADDED_MODULES,
            )
            options["revision"] = revision
        config = load_config(source[0], config_overrides, len(shapes), source[1])
        processor = load_processor(name)
        _check_processor(processor, config, name)
        model = _load_weights(base, config, shapes, added, options)
        if adapter is not None:
            _load_adapter(model, name, adapter)
        check_finite(model, name)
    return model.eval().to(device or "cpu"), processor


def _where(error: BaseException) -> str:
    """What an error of a plugin is, and the line that it came from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _checked(name: str, score: Callable[[Pairs], torch.Tensor]) -> Callable[[Pairs], torch.Tensor]:
    """Call a score of a plugin, whose mistakes are not ours."""

    @wraps(score)
    def checked(pairs: Pairs) -> torch.Tensor:
        try:
            scores = score(pairs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(f"The score {name!r} of a plugin fails: {_where(error)}") from error
        expected = (len(pairs.text_embeds), len(pairs.clips.modality_mask))
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        if got != expected:
            raise ValueError(f"The score {name!r} of a plugin must return a tensor of shape {expected}, got {got}.")
        return scores

    return checked


def load_plugins(names: Iterable[str]) -> None:
    """
    Import modules that register scores of one's own with [`~scores_scalar.register_method`].

    Args:
        names (iterable of `str`): importable names; a module in the working folder is found by its own.

    Raises:
        ValueError: there is no such module, or it cannot be imported. A score that fails later, or returns something
            else than scores, raises one too.
    """
    for name in names:
        if os.getcwd() not in sys.path:  # as `python -m` has it, and a script in another folder has not
            sys.path.append(os.getcwd())
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"A plugin is the name of a module, as `import` takes it, got {name!r}.")
        known = set(METHODS)
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"The plugin {name!r} cannot be imported from here: {error}") from error
        except (Exception, SystemExit) as error:
            raise ValueError(f"The plugin {name!r} fails when it is imported: {_where(error)}") from error
        for method in set(METHODS) - known:
            METHODS[method] = replace(METHODS[method], score=_checked(method, METHODS[method].score))


__all__ = [
    "base_of",
    "default_device",
    "default_dtype",
    "device_of_name",
    "dtype_of_name",
    "load_config",
    "load_processor",
    "load_model",
    "load_plugins",
    "model_fingerprint",
    "said_of",
    "weight_digests",
]
