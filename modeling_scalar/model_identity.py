"""What options of commands name: a model, its device and its precision.

A model is identified from its small files, without reading weights or running code; so are encoders that stand side by
side, as in `openai/clip-vit-base-patch32+laion/clap-htsat-unfused`. The libraries torch and
transformers, which take seconds to import, are imported where they are needed: a name that is wrong is refused before,
and a query to a gallery of [`LIGHT`] needs no transformers.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache
from pathlib import Path
from posixpath import join
from typing import TYPE_CHECKING, Any

import huggingface_hub  # which loads its client only when it is used
from huggingface_hub import constants

from .modalities_scalar import FAMILIES, PAPER_MODALITIES

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ADAPTER_CONFIG = "adapter_config.json"
NOT_NEEDED = ["*.gguf", "*.h5", "*.msgpack", "*.onnx*", "*.tflite", "onnx/*", "openvino/*", "pytorch_model*.bin"]
"""The same weights for other libraries and as pickles, which are not downloaded."""

SENTENCE_TRANSFORMERS = "sentence_transformers"
LIGHT = "light"
"""A small model of texts and pictures that comes in packages and needs no network; see `light_model.py`."""

LIGHT_MODALITIES = ("video", "title", "subtitle", "screen")
"""The modalities of a gallery of [`LIGHT`], each present in the clips that have it."""

_HUB_TIMEOUT = 2.0  # seconds
_ROUTER_CONFIG = "router_config.json"
_SENTENCE_CONFIG = "sentence_bert_config.json"
_LARGEST_JSON = 50_000_000  # bytes
_HUB_ID = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")
# What somebody may mean by a name that is no Hub id
_MEANT = {
    LIGHT: LIGHT,
    "all-minilm-l6-v2": LIGHT,  # its text encoder
    "clip": "openai/clip-vit-base-patch32",
    "siglip": "google/siglip2-base-patch16-224",
    "siglip2": "google/siglip2-base-patch16-224",
    "clap": "laion/clap-htsat-unfused",
}
# The `model_type` of ScalarConfig and ScalarJointConfig, which are not imported, as transformers takes a second.
_TOWERS, _JOINT = "scalar", "scalar_joint"
_ALL_KINDS = ("text", "image", "video", "audio")
# What encoders embed, by their `model_type`, and by their class in Sentence Transformers; others embed texts.
_KINDS = {
    "clip": ("image", "text"),
    "siglip": ("image", "text"),
    "siglip2": ("image", "text"),
    "clap": ("audio", "text"),
    "CLIPModel": ("image", "text"),
    "DirectSum": _ALL_KINDS,
    "LightEncoder": ("text", "image", "video"),
}
_WEIGHTS = ("model*.safetensors", "adapter_model*.safetensors")
# Files that determine embeddings, in addition to weights.
_CONFIGS = (
    "config.json",
    "processor_config.json",
    "tokenizer.json",
    # files of a joint encoder as published
    "chat_template.jinja",
    "config_sentence_transformers.json",
    "modules.json",
    "preprocessor_config.json",
    _ROUTER_CONFIG,
    _SENTENCE_CONFIG,
    "video_preprocessor_config.json",
)


Named = str | os.PathLike | Sequence[str] | Mapping[str, str]
"""How a model is named, see [`identify`]."""


class NoModelError(FileNotFoundError, ValueError):
    """There is no model at the given folder or Hub id."""


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the model in errors that libraries raise about its files, which become ValueErrors."""
    import torch

    try:
        yield
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error)
        if isinstance(error, ValueError) and any(part in reason for part in name.split("+")):
            raise
        if not isinstance(error, (OSError, ValueError)):  # the message of a KeyError is only the key
            reason = f"{type(error).__name__}: {reason}"
        raise ValueError(f"{name} cannot be loaded: {reason}") from error


# Files --------------------------------------------------------------------------------------------------------------


def read_object(path: Path, kind: type = dict) -> Any:
    """
    Read a JSON object, or another kind of JSON, of a model's folder.

    Raises:
        ValueError: If it is not JSON, not of this kind, or too large.
    """
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"{path} must be a small JSON file, got {path.stat().st_size:,} bytes. Restore the file.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}. Restore the file.")
    return content


def part_of(parameter: str) -> str:
    """Return the part of a model to which a parameter, or a weight of an adapter, belongs by name."""
    names = parameter.removeprefix("base_model.model.").split(".")
    if names[0] == "backbone":  # a joint encoder has parts of its own
        return names[1]
    return names[0]


# Fingerprints -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _sha256_of_version(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """The files of a saved model, in its folder and in those that Sentence Transformers numbers, as `2_Dense`,
    `text_0_Transformer` or `0_encoder/1_Pooling`."""
    files = []
    for pattern in patterns:
        files += folder.glob(pattern)
    for part in folder.glob("*[0-9]_*"):
        files += _files(part, patterns)
    return sorted(files)


def weights_of(folder: Path) -> list[Path]:
    """Return the safetensors files of a saved model; a FileNotFoundError if there are none."""
    weights = _files(folder, _WEIGHTS)
    if not weights:
        raise FileNotFoundError(
            f"{str(folder)!r} holds no model: no file like {' or '.join(_WEIGHTS)}. Weights of other formats are not "
            "read; on the Hub another revision may have them, which is named as USER/NAME@REVISION."
        )
    return weights


def _digests(folder: Path, *others: str) -> dict[str, str]:
    """The SHA-256 of the safetensors files of a model, and of files of other names, by their path in the folder."""
    digests = {}
    for path in (*weights_of(folder), *_files(folder, others)):
        # Cached as long as the file does not change: weights are large, and several names may refer to them.
        stat = path.stat()
        digest = _sha256_of_version(path.resolve(), stat.st_size, stat.st_mtime_ns)
        digests[path.relative_to(folder).as_posix()] = digest
    return digests


# The Hub ------------------------------------------------------------------------------------------------------------


@cache
def _answers(endpoint: str, minute: int) -> bool:
    try:
        huggingface_hub.get_session().head(endpoint, timeout=_HUB_TIMEOUT)
    except Exception:  # errors of any HTTP client
        return False
    return True


def hub_answers() -> bool:
    """Whether the Hub answers within two seconds, checked once a minute. Its own library waits without limit."""
    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT, int(time.monotonic() // 60))


# Models -------------------------------------------------------------------------------------------------------------


class ModelIdentity:
    """
    The content of a folder or a Hub repository, see [`identify`]; each property is read on first access.

    Attributes:
        name (`str`): The absolute folder, or the Hub id.
        revision (`str`, *optional*): The revision on the Hub.
        parts (`list[ModelIdentity]`): The encoders that stand side by side, or this one alone.
        routes (`dict[str, int]`, *optional*): Of encoders side by side, see [`DirectSumIdentity`].
    """

    routes: dict[str, int] | None = None

    def __init__(self, name: str, revision: str | None = None):
        self.name = name
        self.revision = revision
        self.parts = [self]
        self._files: dict[str, Path | None] = {}
        self._folder: Path | None = None  # with all files, once downloaded

    @property
    def is_folder(self) -> bool:
        """Whether it is a local folder."""
        return os.path.isabs(self.name)

    def file(self, name: str) -> Path | None:
        """Return one of its files, downloaded if needed; `None` if it has no file of that name."""
        if name in self._files:
            return self._files[name]
        if self.is_folder or self._folder is not None:
            path = self.download() / name
            if not path.is_file():
                path = None
        else:
            from transformers.utils import cached_file

            path = cached_file(
                self.name,
                name,
                revision=self.revision,
                local_files_only=not hub_answers(),
                _raise_exceptions_for_missing_entries=False,
            )
            path = path and Path(path)
        self._files[name] = path
        return path

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of one of its JSON files, empty if missing; a ValueError names a damaged file."""
        path = self.file(name)
        if path is None:
            return {}
        return read_object(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its own config.json, empty if it has none."""
        return self.read(constants.CONFIG_NAME)

    @cached_property
    def adapter(self) -> dict[str, Any] | None:
        """Its `adapter_config.json`, if it is an adapter."""
        path = self.file(ADAPTER_CONFIG)
        return path and read_object(path)

    @property
    def is_configured(self) -> bool:
        """Whether its own config.json defines the score of clips, unlike that of a published encoder."""
        return self.config.get("model_type") in [_TOWERS, _JOINT]

    @cached_property
    def encoder(self) -> str | None:
        """
        The implementation of a published joint encoder, `None` for anything else.

        The `model_type` if the family and its pooling are supported here, otherwise [`SENTENCE_TRANSFORMERS`].
        """
        if self.adapter is not None or self.is_configured:
            return None
        # Its own implementation if the family and its pooling are known, else that of the library.
        family = self.config.get("model_type")
        modules = self.file("modules.json")
        is_known = family in list(FAMILIES)  # a list compares what a dictionary could not hold
        if is_known and (modules is None or self._is_plain(modules)):
            return family
        if modules is None and family not in list(_KINDS):
            return None
        return SENTENCE_TRANSFORMERS

    def check_encoder(self) -> None:
        """Raise a ValueError if this is no published encoder."""
        if self.encoder is None:
            raise ValueError(
                f"{self.name} is not a joint encoder: expected a model such as CLIP, CLAP or EmbeddingGemma 2, or a "
                "Sentence Transformers folder with a modules.json."
            )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """What a published encoder may embed, of `"text"`, `"image"`, `"video"` and `"audio"`."""
        modules = self.file("modules.json")
        if modules is None:
            return frozenset(_KINDS.get(self.config.get("model_type"), _ALL_KINDS))
        first = read_object(modules, list)[0]
        return frozenset(self._kinds_of(first["type"], first.get("path", ""))).intersection(_ALL_KINDS)

    def _kinds_of(self, module: str, folder: str) -> Iterable[str]:
        """What a module of Sentence Transformers embeds, whose files are in a folder."""
        library, _, name = module.rpartition(".")
        if name == "Router":
            kinds = []
            for part, module in self.read(join(folder, _ROUTER_CONFIG))["types"].items():
                kinds += self._kinds_of(module, join(folder, part))
            return kinds
        if name in _KINDS:
            return _KINDS[name]
        if library.startswith(SENTENCE_TRANSFORMERS):
            return self.read(join(folder, _SENTENCE_CONFIG)).get("modality_config", ["text"])
        raise ValueError(f"{self.name} needs code of its own, {module}, which is never run.")

    @property
    def takes(self) -> list[str]:
        """What an encoder embeds beside others: pictures and sound, or texts if it embeds nothing else."""
        names = []
        if self.kinds & {"image", "video"}:
            names.append("video")
        if "audio" in self.kinds:
            names.append("audio")
        return names or ["text"]

    @property
    def reads_texts(self) -> bool:
        """Whether an encoder is meant for the texts of clips, unlike CLIP, whose texts are queries."""
        return self.takes == ["text"] or "video" in self.kinds

    @property
    def modalities(self) -> tuple[str, ...]:
        """
        The modalities that a published encoder embeds if none are named.

        Raises:
            ValueError: If it embeds texts alone.
        """
        if self.takes == ["text"]:
            raise ValueError(
                f"{self.name} embeds texts alone. Name it beside an encoder of pictures or sound, as in "
                f"{_MEANT['clip']}+{self.name}."
            )
        if self.reads_texts:
            return PAPER_MODALITIES
        return tuple(self.takes)

    def _is_plain(self, modules_path: Path) -> bool:
        """Whether Sentence Transformers only averages the encoder's tokens."""
        # Only the encoder, pooling, and perhaps normalisation.
        modules = read_object(modules_path, list)
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        plain = ["Transformer", "Pooling"]
        if kinds not in (plain, [*plain, "Normalize"]) or modules[0].get("path"):
            return False
        # Older folders have a switch for each mode of pooling instead of its name.
        pooling = self.read(f"{modules[1]['path']}/config.json")
        modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
        mode = pooling.get("pooling_mode", modes or "mean")
        return mode in ("mean", ["mean"], ["pooling_mode_mean_tokens"]) and pooling.get("include_prompt", True)

    @property
    def kind(self) -> str | None:
        """`"model"` if saved by this package, `"adapter"`, `"encoder"` if published, `None` for anything else."""
        if self.adapter is not None:
            return "adapter"
        if self.is_configured:
            return "model"
        if self.encoder is not None:
            return "encoder"
        return None

    @property
    def is_joint(self) -> bool:
        """Whether one encoder embeds all modalities; for an adapter without a configuration see its base."""
        if self.is_configured:
            return self.config["model_type"] == _JOINT
        if self.base is not None:
            return self.base.is_joint
        return self.encoder is not None

    @cached_property
    def base(self) -> "ModelIdentity | None":
        """
        The base model of an adapter, `None` for any other.

        Raises:
            ValueError: If the adapter names no valid base; the message says where to fix it.
        """
        if self.adapter is None:
            return None
        base = self.adapter.get("base_model_name_or_path")
        if not base:
            raise ValueError(
                f"The {ADAPTER_CONFIG} of {self.name} must name its base in `base_model_name_or_path`, got {base!r}."
            )
        return identify(base, self.adapter.get("revision") or "main")

    def download(self) -> Path:
        """
        Return the folder with all its files, downloaded if needed.

        Raises:
            FileNotFoundError: If the Hub does not have it or cannot be reached.
        """
        if self.is_folder:
            return Path(self.name)
        if self._folder is not None:
            return self._folder
        missing = f"There is no model folder {self.name!r}, and the Hub does not give it: "
        options = {"ignore_patterns": NOT_NEEDED, "local_files_only": not hub_answers()}
        try:
            self._folder = Path(huggingface_hub.snapshot_download(self.name, revision=self.revision, **options))
        except huggingface_hub.errors.LocalEntryNotFoundError as error:
            raise FileNotFoundError(
                f"{missing}it cannot be reached, and nothing of that name was downloaded before. Try again with a "
                f"network (without `HF_HUB_OFFLINE=1`), or copy the folder that `hf download {self.name} --local-dir "
                "FOLDER` makes elsewhere, and name it as the model."
            ) from error
        except OSError as error:
            raise FileNotFoundError(f"{missing}{error}") from error
        return self._folder

    def cached_if_offline(self) -> "ModelIdentity":
        """This one or, if the Hub does not answer, its cached download."""
        if self.is_folder or hub_answers():
            return self
        return identify(self.download())

    @cached_property
    def commit(self) -> str | None:
        """The commit loaded from the Hub, `None` for a folder."""
        if self.is_folder:
            return None
        path = self.file(constants.CONFIG_NAME) or self.file("modules.json")
        return path and path.parent.name  # the cache stores each commit in a folder of its name

    @cached_property
    def fingerprint(self) -> str:
        """
        The SHA-256 of everything that determines its embeddings: configuration, processor, tokenizer and weights.

        For an adapter it includes the base: its own fingerprint if it is a folder, else its Hub id.

        Raises:
            FileNotFoundError: If it holds no weights.
            ValueError: If it is an adapter whose base cannot be identified.
        """
        # An adapter is its weights on those of its base.
        digests: dict[str, Any] = _digests(self.download(), *_CONFIGS)
        if self.base is not None:
            digests[ADAPTER_CONFIG] = self.adapter
            if self.base.is_folder:  # independent of its path
                digests[ADAPTER_CONFIG] = self.adapter | {"base_model_name_or_path": self.base.fingerprint}
        return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()

    @property
    def weights(self) -> dict[str, str]:
        """
        The SHA-256 of every safetensors file written by `save_pretrained`, by its path in the folder.

        Raises:
            FileNotFoundError: If there are none.
        """
        return _digests(self.download())


class DirectSumIdentity(ModelIdentity):
    """
    Published encoders with spaces of their own, side by side; see [`~direct_sum.DirectSum`].

    Args:
        names (`list[str]`): A folder, a Hub id or [`LIGHT`] for each.
        chosen (`dict[str, str]`, *optional*): The encoder of each modality by its name. By default the one that sees
            embeds pictures, the one that hears sound, and one of texts alone all texts, else the one that sees.

    Raises:
        ValueError: If one is named twice; `routes` raises it if one is no such encoder, or two embed the same.
    """

    is_folder = True  # the Hub has each encoder, but not their sum
    encoder = SENTENCE_TRANSFORMERS
    weights: dict[str, str] = {}  # those of its parts

    def __init__(self, names: Sequence[str], chosen: Mapping[str, str] | None = None):
        parts: dict[str, ModelIdentity] = {}
        for name in names:
            part = identify(name)
            known = LIGHT if is_light(name) else part.name
            if known in parts or "+" in known:
                raise ValueError(
                    f"Encoders side by side are named once each, by names without a `+`; got {known!r} in "
                    f"{list(names)}."
                )
            parts[known] = part
        super().__init__("+".join(parts))
        self.parts = list(parts.values())
        if chosen is not None:
            self.routes = {modality: names.index(name) for modality, name in chosen.items()}

    @cached_property
    def routes(self) -> dict[str, int]:
        """The number of the encoder of `"video"`, `"audio"` and `"text"`, or of each modality that was chosen."""
        routes: dict[str, int] = {}
        for number, part in enumerate(self.parts):
            if not part.is_folder and not part.config:
                part.download()  # says if it cannot be had
            part.check_encoder()
            for modality in part.takes:
                if modality in routes:
                    first = self.parts[routes[modality]]
                    raise ValueError(f"{first.name} and {part.name} would both embed {modality}. Leave out one.")
                routes[modality] = number
        routes.setdefault("text", routes.get("video", 0))
        return dict(sorted(routes.items(), reverse=True))  # pictures before sound, as everywhere

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that are embedded if none are named: those chosen, or what the encoders are meant for."""
        named = [name for name in self.routes if name != "text"]
        if "text" in self.routes and any(part.reads_texts for part in self.parts):
            named += LIGHT_MODALITIES[1:]
        return tuple(named)

    def file(self, name: str) -> None:
        """Return `None`, as there is no file of all encoders."""

    def download(self) -> Path:
        """Download all encoders; returns the name by which [`identify`] finds them, now with their revisions."""
        names = self.name.split("+")
        for number, part in enumerate(self.parts):
            part.download()
            if part.commit is not None:
                names[number] = f"{part.name}@{part.commit}"
        self.name = "+".join(names)
        return Path(self.name)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the fingerprints of all encoders, and of what each embeds."""
        content = [self.routes, *[part.fingerprint for part in self.parts]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_light(model: "str | os.PathLike | ModelIdentity") -> bool:
    """Whether this names [`LIGHT`], and not a folder of that name."""
    return model == LIGHT and not Path(LIGHT).is_dir()


def identify(model: "Named | ModelIdentity", revision: str | None = None) -> ModelIdentity:
    """
    Identify the model of a name or folder: its content, location and base.

    Args:
        model (`str`): A folder, a Hub id, perhaps with `@REVISION`, or [`LIGHT`]; or several of these, for encoders
            side by side: `A+B`, a list, or a dictionary with the encoder of each modality. An identity is returned
            unchanged.
        revision (`str`, *optional*): The revision on the Hub of a single one.

    Raises:
        NoModelError: If the path is a file, or the folder does not exist and the name is not a valid Hub id, which
            has a slash. It is a FileNotFoundError and a ValueError.
        ModuleNotFoundError: If a package of [`LIGHT`] is not installed.
    """
    # An identity, the built-in model, a folder, or a repository.
    if isinstance(model, ModelIdentity):
        return model
    if isinstance(model, Mapping):
        return DirectSumIdentity(list(dict.fromkeys(model.values())), model)
    if isinstance(model, list | tuple):
        return DirectSumIdentity(model)
    if is_light(model):
        from .light_model import light_folder

        return ModelIdentity(str(light_folder()))
    if os.path.isdir(model):
        return ModelIdentity(str(Path(model).resolve()), revision)
    # Otherwise it must be a Hub id; a wrong path is refused without asking the Hub.
    if os.path.exists(model):
        raise NoModelError(f"{model} is a file. Give the folder of a model or adapter, or its Hub id.")
    name = os.fspath(model)
    if "+" in name:
        return DirectSumIdentity(name.split("+"))
    found = _HUB_ID.fullmatch(name)
    if found is None:
        meant = get_close_matches(name.lower(), _MEANT, n=1)
        hint = f" Did you mean {_MEANT[meant[0]]!r}?" if meant else ""
        raise NoModelError(
            f"There is no model folder {name[:200]!r}, and this is not a valid Hub id, USER/NAME.{hint}"
        )
    return ModelIdentity(found[1], found[2] or revision)


# Devices and plugins ------------------------------------------------------------------------------------------------


def default_device() -> "torch.device":
    """Return the default device of commands: the accelerator if available, otherwise the CPU."""
    import torch

    # Without the check, older versions return the accelerator that torch was built for, even if it is missing.
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


def device_of_name(name: "str | torch.device | None") -> "torch.device":
    """
    Return the device with a name, or a device itself if this machine has it; `None` means [`default_device`].

    Raises:
        ValueError: If this machine has no such device; the message lists those it has.
    """
    import torch

    if name is None:
        return default_device()
    available = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        available.append(kind)
        for index in range(torch.accelerator.device_count()):
            available.append(f"{kind}:{index}")
    if str(name) not in available:
        raise ValueError(f"The device must be one of this machine, {' or '.join(available)}, got {str(name)!r}.")
    return torch.device(name)


def default_dtype(model: str | os.PathLike | ModelIdentity, device: "torch.device") -> "torch.dtype | None":
    """
    Return the default precision of a model on a device.

    Args:
        model (`str`): The folder or Hub id of a model or an adapter.
        device (`torch.device`): The device.

    Returns:
        `torch.dtype`: For a joint encoder bfloat16 on an accelerator that supports it, which halves the memory, and
        float32 on a CPU, which is slow in lower precision. `None`, that of the checkpoint, for any other model.
    """
    import torch

    if not identify(model).is_joint:
        return None
    if device.type in ("cpu", "mps") or (device.type == "cuda" and not torch.cuda.is_bf16_supported()):
        return torch.float32
    return torch.bfloat16


def model_summary(model: "PreTrainedModel") -> str:
    """Describe the number of parameters, precision, memory and device of a model."""
    import torch

    precision = str(model.dtype).removeprefix("torch.")
    size = model.get_memory_footprint() / 1e9
    device = str(model.device)
    if model.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(model.device)})"
    return f"{model.num_parameters():,} parameters in {precision}, {size:.2g} GB, on {device}"


__all__ = [
    "ADAPTER_CONFIG", "LIGHT", "LIGHT_MODALITIES", "NOT_NEEDED", "SENTENCE_TRANSFORMERS", "ModelIdentity",
    "NoModelError", "default_device", "default_dtype", "device_of_name", "hub_answers", "identify", "is_light",
    "part_of", "read_object", "model_summary",
    "DirectSumIdentity", "Named", "naming", "weights_of",
]  # fmt: skip
