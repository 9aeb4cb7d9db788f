"""From a public joint encoder, by name, to a model and its processor. For programs; remote code does not need it.

What its publisher says of prompts, pooling and frames is read from the files, not guessed: those of transformers, and
those of Sentence Transformers beside them.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoFeatureExtractor, AutoTokenizer
from transformers.utils import FEATURE_EXTRACTOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME

from .checking import (
    check_counts,
    check_shapes,
    file_of,
    place_of,
    read_object,
    shapes_of,
    weight_files,
)
from .configuration_joint_scalar import FAMILIES, ScalarJointConfig, check_fields, encoder_width
from .configuration_scalar import MODALITIES
from .image_processing_joint_scalar import ScalarPatchImageProcessor
from .modeling_joint_scalar import JointEncoderModel, ScalarJointModel
from .processing_joint_scalar import VIDEO_TOKEN, ScalarJointProcessor, mix_name

_SENTINEL = "\ue000"  # stands for a text while a template is rendered
# What a processor may make of one clip, far beyond what is sensible: more would fill the memory.
_MOST_FRAMES, _MOST_SECONDS, _MOST_SOFT_TOKENS = 1024, 3600, 1120
_PROMPT_NAMES = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}


@dataclass
class Encoder:
    """
    What the files of a joint encoder say.

    Args:
        name (`str`): an absolute folder or a Hub id.
        revision (`str`, *optional*): of the Hub.
        settings (`dict`, *optional*): its config.json, if it is of one of [`FAMILIES`] and pooled as those are; else
            Sentence Transformers has to compute it.
        prompts (`dict`): `query_prompt` and `document_prompt`, where Sentence Transformers puts one.
        has_messages (`bool`): whether Sentence Transformers puts inputs into the chat template, if there is one.
        max_length (`int`, *optional*): tokens that Sentence Transformers lets through.
        processing (`dict`): what it tells the processor, by modality.
    """

    name: str
    revision: str | None = None
    settings: dict[str, Any] | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    has_messages: bool = True
    max_length: int | None = None
    processing: dict[str, dict[str, Any]] = field(default_factory=dict)


def _content(encoder: Encoder, file: str) -> dict[str, Any]:
    path = file_of(encoder.name, file, encoder.revision)
    return {} if path is None else read_object(path)


def _is_plain(encoder: Encoder, path: Path) -> bool:
    """Whether Sentence Transformers takes the mean of the encoder's tokens and nothing else."""
    try:
        modules = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        return False
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0].get("path"):
        return False
    place = str(modules[1].get("path"))
    if not re.fullmatch(r"\w[\w.-]*", place):  # a folder beside the file, and nowhere else
        return False
    pooling = _content(encoder, f"{place}/config.json")
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on]
    mode = pooling.get("pooling_mode", modes or "mean")
    return mode in ("mean", ["mean"], ["pooling_mode_mean_tokens"]) and pooling.get("include_prompt", True)


def look_at(name_or_path: str | os.PathLike, revision: str | None = None) -> Encoder | None:
    """
    Read the files of a joint encoder; no code of them runs, and no weight is read.

    Args:
        name_or_path (`str`): a folder or a Hub id.
        revision (`str`, *optional*): of the Hub.

    Returns:
        [`Encoder`], `None` if it is neither of a known family nor a SentenceTransformer.

    Raises:
        ValueError: there is no such folder, or a file is damaged.
    """
    encoder = Encoder(place_of(name_or_path), revision)
    config_path, modules_path = (file_of(encoder.name, name, revision) for name in ("config.json", "modules.json"))
    config = {} if config_path is None else read_object(config_path)
    is_known = config.get("model_type") in list(FAMILIES)  # a list compares what a dictionary could not hold
    if not is_known and modules_path is None:
        return None
    content = _content(encoder, "config_sentence_transformers.json")
    prompts, default = content.get("prompts") or {}, content.get("default_prompt_name")
    for setting, names in _PROMPT_NAMES.items():
        found = next((prompts[name] for name in (*names, default) if prompts.get(name)), None)
        if found is not None:
            encoder.prompts[setting] = found
    if modules_path is not None:
        content = _content(encoder, "sentence_bert_config.json")
        encoder.has_messages = "message" in (content.get("modality_config") or {})
        encoder.max_length, encoder.processing = content.get("max_seq_length"), content.get("processing_kwargs") or {}
    if is_known and (modules_path is None or _is_plain(encoder, modules_path)):
        encoder.settings = config
    return encoder


def _known(name_or_path: str | os.PathLike, revision: str | None) -> Encoder:
    encoder = look_at(name_or_path, revision)
    if encoder is None:
        raise ValueError(
            f"{name_or_path} is no joint encoder: expected a model of {' or '.join(FAMILIES)}, or a folder of "
            "Sentence Transformers, which has a modules.json."
        )
    return encoder


def _check_modalities(modalities: Iterable[str]) -> list[str]:
    modalities = list(modalities)
    if not modalities or (unknown := [name for name in modalities if name not in MODALITIES]):
        raise ValueError(f"`modalities` must be some of {MODALITIES}, got {unknown if modalities else modalities}.")
    return [name for name in MODALITIES if name in modalities]


def model_from_joint_encoder(
    name_or_path: str | os.PathLike,
    modalities: Sequence[str] = MODALITIES,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    **config_kwargs: Any,
) -> JointEncoderModel:
    """
    Make a model of a joint encoder; see [`ScalarModel.from_joint_encoder`].

    Raises:
        ValueError: it is no joint encoder, lacks weights, or cannot compute in `dtype`.
    """
    encoder, modalities = _known(name_or_path, revision), _check_modalities(modalities)
    check_fields(ScalarJointConfig(), config_kwargs)
    if encoder.settings is None:
        from .sentence_encoders import ScalarSentenceModel

        return ScalarSentenceModel.from_folder(encoder.name, modalities, dtype, revision, **config_kwargs)
    family = FAMILIES[encoder.settings["model_type"]]
    if dtype == torch.float16 and not family.has_float16:
        raise ValueError(f"{encoder.name} gives NaN in float16. Load it in bfloat16 or float32.")
    shapes = shapes_of(weight_files(encoder.name, "model", revision))
    check_counts(encoder.settings, len(shapes), f"the config.json of {encoder.name}")
    config = AutoConfig.from_pretrained(encoder.name, revision=revision or "main", trust_remote_code=False)
    for tower in (tower for name, tower in family.towers.items() if name not in modalities):
        setattr(config, tower, None)
    fields = {"projection_dim": encoder_width(config), "modalities": modalities} | config_kwargs
    joint = ScalarJointConfig(backbone_config=config, **fields)
    with torch.device("meta"):
        check_shapes(ScalarJointModel(joint), in_backbone(shapes), encoder.name)
    model, info = ScalarJointModel.from_pretrained(
        encoder.name,
        config=joint,
        revision=revision or "main",
        use_safetensors=True,
        output_loading_info=True,
        **({} if dtype is None else {"dtype": dtype}),
    )
    missing = sorted(key for key in info["missing_keys"] if key.startswith("backbone."))
    if missing:
        raise ValueError(
            f"{encoder.name} lacks {len(missing)} weights of its model, such as {missing[:3]}. Download it again."
        )
    return model.eval()


def in_backbone(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return shapes of weights by their names in [`ScalarJointModel`]: of one, or of an encoder as it is published."""
    if any(name.startswith("backbone.") for name in shapes):
        return dict(shapes)
    return {f"backbone.{name}": shape for name, shape in shapes.items()}


# Processors ---------------------------------------------------------------------------------------------------------


def _settings_of(encoder: Encoder, part: str, files: tuple[str, ...]) -> dict[str, Any]:
    """The saved settings of a part of a processor, in the one file of today or in one of its own."""
    content = _content(encoder, PROCESSOR_NAME)
    if isinstance(content.get(part), dict):
        return content[part]
    return next(filter(None, (_content(encoder, file) for file in files)), {})


def _rendered(tokenizer: Any, prompt: str | None, parts: Mapping[str, tuple[dict[str, str], str]]) -> str:
    """What the chat template makes of parts, `{name}` in the place of the mark that it shows for each."""
    messages = [{"role": "system", "content": [{"type": "text", "text": prompt}]}] if prompt else []
    content = [part for part, _ in parts.values()]
    text = tokenizer.apply_chat_template([*messages, {"role": "user", "content": content}], tokenize=False)
    for name, (_, mark) in parts.items():
        if text.count(mark) != 1:
            raise ValueError(f"The chat template must show {mark!r} once, got {text!r}. Give the prompts yourself.")
        text = text.replace(mark, f"{{{name}}}")
    return text


def _prompts(encoder: Encoder, tokenizer: Any) -> dict[str, Any]:
    """What Sentence Transformers puts around texts and media: by the chat template if there is one, else prompts
    before texts, and none before media."""
    if not encoder.has_messages or getattr(tokenizer, "chat_template", None) is None:
        return dict(encoder.prompts)
    text = {"type": "text", "text": _SENTINEL}, _SENTINEL
    parts = {"video": ({"type": "video"}, VIDEO_TOKEN), "audio": ({"type": "audio"}, tokenizer.audio_token)}
    document = encoder.prompts.get("document_prompt")
    prompts: dict[str, Any] = {
        name: _rendered(tokenizer, encoder.prompts.get(name), {"": text}) for name in _PROMPT_NAMES
    }
    media = {_rendered(tokenizer, document, {"": part}) for part in parts.values()}
    if len(media) > 1:
        raise ValueError(
            f"The chat template of {encoder.name} treats video and audio differently: {sorted(media)}. Give the "
            "prompts yourself."
        )
    prompts["media_prompt"] = media.pop()
    first = tokenizer.bos_token or _SENTINEL
    adds = not all(prompt.startswith(first) for prompt in prompts.values())
    parts["subtitle"] = text
    mixes = [names for size in (2, 3) for names in combinations(parts, size)]
    fused = {mix_name(names): _rendered(tokenizer, document, {name: parts[name] for name in names}) for names in mixes}
    return prompts | {"add_special_tokens": adds, "fused_prompts": fused}


def processor_from_joint_encoder(
    name_or_path: str | os.PathLike,
    modalities: Sequence[str] = MODALITIES,
    revision: str | None = None,
    **settings: Any,
) -> Any:
    """
    Make the processor of a joint encoder; see [`ScalarProcessor.from_joint_encoder`].

    Raises:
        ValueError: it is no joint encoder, or a setting is out of its range.
    """
    encoder, modalities = _known(name_or_path, revision), _check_modalities(modalities)
    if encoder.settings is None:
        from .sentence_encoders import ScalarSentenceProcessor, modalities_of

        modalities = [name for name in modalities if name in modalities_of(encoder.name, revision)]
        settings = {"modalities": modalities, "max_text_length": encoder.max_length} | settings
        return ScalarSentenceProcessor(**settings)
    options = {"revision": revision or "main", "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(encoder.name, **options)
    if VIDEO_TOKEN not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO_TOKEN]})
    defaults = CONFIG_MAPPING[encoder.settings["model_type"]]
    for token, number in ((VIDEO_TOKEN, "video_token_id"), (tokenizer.audio_token, "audio_token_id")):
        got = tokenizer.convert_tokens_to_ids(token)
        expected = encoder.settings.get(number, getattr(defaults, number))
        if got != expected:
            raise ValueError(
                f"{token!r} has the number {got} in the tokenizer of {encoder.name}, but its model takes {expected} "
                "for it. Download both again."
            )
    extractor = AutoFeatureExtractor.from_pretrained(encoder.name, **options)
    frames = _settings_of(encoder, "video_processor", (VIDEO_PROCESSOR_NAME, FEATURE_EXTRACTOR_NAME))
    frames |= encoder.processing.get("video", {})
    longest = min(8192, tokenizer.model_max_length, encoder.max_length or 8192)
    own = {"max_length": longest, "max_text_length": longest, "max_subtitle_length": longest}
    if (max_samples := encoder.processing.get("audio", {}).get("max_length")) is not None:
        own["max_audio_seconds"] = max_samples / extractor.sampling_rate
    if not settings.keys() >= {"query_prompt", "document_prompt", "media_prompt"}:
        own |= _prompts(encoder, tokenizer)
    settings = own | {"modalities": modalities} | settings
    return ScalarJointProcessor(ScalarPatchImageProcessor.from_encoder(frames), extractor, tokenizer, **settings)


def check_joint_processor(processor: ScalarJointProcessor, config: ScalarJointConfig, name: str) -> None:
    """
    Check that a model can take what its processor makes.

    Raises:
        ValueError: it cannot; the message names the folder.
    """
    backbone, frames, wrong = config.backbone_config, processor.image_processor, []
    largest, known = max(processor.tokenizer.get_vocab().values()), backbone.text_config.vocab_size
    if largest >= known:
        raise ValueError(
            f"The tokenizer in {name} has {largest + 1} tokens, but the model knows {known}: it belongs to another "
            "model. Copy the tokenizer that the model was saved with."
        )
    if "video" in config.modalities:
        for side in ("patch_size", "pooling_kernel_size"):
            if getattr(frames, side) != getattr(backbone.vision_config, side):
                wrong.append(f"`{side}={getattr(frames, side)}`")
    for part, setting, most in (
        (processor, "num_frames", _MOST_FRAMES),
        (processor, "max_length", backbone.text_config.max_position_embeddings),
        (processor, "max_audio_seconds", _MOST_SECONDS),
        (frames, "max_soft_tokens", _MOST_SOFT_TOKENS),
    ):
        if getattr(part, setting) > most:
            wrong.append(f"`{setting}={getattr(part, setting)}`")
    if set(processor.modalities) - set(config.modalities):
        wrong.append(f"`modalities={processor.modalities}`")
    if wrong:
        raise ValueError(
            f"The processor in {name} does not fit its model, with {', '.join(wrong)}. Copy the {PROCESSOR_NAME} that "
            "the model was saved with."
        )


__all__ = [
    "Encoder",
    "check_joint_processor",
    "in_backbone",
    "look_at",
    "model_from_joint_encoder",
    "processor_from_joint_encoder",
]
