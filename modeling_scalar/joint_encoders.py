"""Build a model and its processor from a public joint encoder. For programs; remote code does not need it.

Prompts, pooling and frames are read from the published files of transformers and Sentence Transformers, never guessed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoFeatureExtractor, AutoTokenizer
from transformers.utils import FEATURE_EXTRACTOR_NAME, PROCESSOR_NAME, VIDEO_PROCESSOR_NAME

from .configuration_joint_scalar import ScalarJointConfig, check_fields, check_modalities, encoder_width
from .image_processing_joint_scalar import ScalarPatchImageProcessor
from .media_scalar import SAMPLING_RATE
from .modalities_scalar import FAMILIES, kind_of
from .model_identity import SENTENCE_TRANSFORMERS, ModelIdentity, Named, identify, read_object
from .modeling_joint_scalar import JointEncoderModel, ScalarJointModel
from .processing_joint_scalar import VIDEO_TOKEN, ScalarJointProcessor

_SENTINEL = "\ue000"  # stands for a text while a template is rendered
_BICUBIC = 3  # PIL.Image.Resampling.BICUBIC
_SENTENCE_CONFIG = "sentence_bert_config.json"
_PROMPT_NAMES = {"query_prompt": ("query",), "document_prompt": ("document", "passage", "corpus")}


def _encoder_of(
    model: Named | ModelIdentity, modalities: Sequence[str] | None, revision: str | None
) -> tuple[ModelIdentity, Sequence[str]]:
    """Identify an encoder, and the modalities to embed."""
    encoder = identify(model, revision).cached_if_offline()
    encoder.check_encoder()
    if modalities is None:
        modalities = encoder.modalities
    check_modalities(modalities)
    return encoder, modalities


def model_from_joint_encoder(
    name_or_path: Named | ModelIdentity,
    modalities: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    **config_kwargs: Any,
) -> JointEncoderModel:
    """
    Make a model of a joint encoder; see [`ScalarModel.from_joint_encoder`].

    Raises:
        ValueError: If it is not a joint encoder, weights are missing, or it does not support `dtype`.
    """
    # Check before anything is loaded, which takes long.
    encoder, modalities = _encoder_of(name_or_path, modalities, revision)
    if config_kwargs:
        check_fields(ScalarJointConfig(), config_kwargs)
    if encoder.encoder == SENTENCE_TRANSFORMERS:
        from .sentence_encoders import ScalarSentenceModel

        model = ScalarSentenceModel.from_folder(encoder, modalities, dtype, **config_kwargs)
        model.name_or_path = encoder.name  # which an adapter names as its base
        return model
    # The published configuration, without the towers of modalities that are not wanted.
    family = FAMILIES[encoder.encoder]
    revision = encoder.revision or "main"
    config = AutoConfig.from_pretrained(encoder.name, revision=revision, trust_remote_code=False)
    for name, tower in family.towers.items():
        if name not in modalities:
            setattr(config, tower, None)
    fields = {"projection_dim": encoder_width(config), "modalities": modalities} | config_kwargs
    joint = ScalarJointConfig(backbone_config=config, **fields)
    model, info = ScalarJointModel.from_pretrained(
        encoder.name,
        config=joint,
        revision=revision,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
    )
    # New heads have no weights yet, but the encoder must be complete.
    missing = sorted(key for key in info["missing_keys"] if key.startswith("backbone."))
    if missing:
        raise ValueError(
            f"{encoder.name} lacks {len(missing)} weights of its model, such as {missing[:3]}. Download it again."
        )
    return model


# Processors ---------------------------------------------------------------------------------------------------------


def _image_processor(settings: Mapping[str, Any]) -> ScalarPatchImageProcessor:
    """Adopt the settings of an encoder's own video processor, if it prepares pictures as this package does."""
    # Whatever else it may do to pictures would change the embeddings.
    expected = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": _BICUBIC}
    wrong = {}
    for name, value in expected.items():
        if settings.get(name, value) != value:
            wrong[name] = settings[name]
    if settings.get("add_timestamps"):
        wrong["add_timestamps"] = True
    if wrong:
        raise ValueError(f"These settings of the encoder's video processor are not supported: {wrong}.")
    adopted = {}
    for name in ScalarPatchImageProcessor.valid_kwargs.__annotations__:
        if settings.get(name) is not None:
            adopted[name] = settings[name]
    return ScalarPatchImageProcessor(**adopted)


def _rendered(tokenizer: Any, prompt: str | None, part: dict[str, str], mark: str) -> str:
    """Render a part with the chat template, with `{}` instead of its mark."""
    messages = []
    if prompt:
        messages.append({"role": "system", "content": [{"type": "text", "text": prompt}]})
    messages.append({"role": "user", "content": [part]})
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    if text.count(mark) != 1:
        raise ValueError(f"The chat template must contain {mark!r} once, got {text!r}. Pass the prompts yourself.")
    return text.replace(mark, "{}")


def _prompts(encoder: ModelIdentity, settings: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The prompts that Sentence Transformers adds to texts and media: from the chat template if there is one,
    otherwise prompts before texts and none for media."""
    # Prompts of texts by their usual names, else the default one.
    content = encoder.read("config_sentence_transformers.json")
    known = content.get("prompts") or {}
    default = content.get("default_prompt_name")
    texts = {}
    for setting, names in _PROMPT_NAMES.items():
        prompts = [known[name] for name in (*names, default) if known.get(name)]
        if prompts:
            texts[setting] = prompts[0]
    # Without messages, the library does not use the chat template.
    has_messages = encoder.file("modules.json") is None or "message" in (settings.get("modality_config") or {})
    if not has_messages or getattr(tokenizer, "chat_template", None) is None:
        return texts
    # Otherwise render it for a text, for frames and for audio.
    text = {"type": "text", "text": _SENTINEL}
    rendered: dict[str, Any] = {}
    for name in _PROMPT_NAMES:
        rendered[name] = _rendered(tokenizer, texts.get(name), text, _SENTINEL)
    document = texts.get("document_prompt")
    video = _rendered(tokenizer, document, {"type": "video"}, VIDEO_TOKEN)
    audio = _rendered(tokenizer, document, {"type": "audio"}, tokenizer.audio_token)
    if video != audio:
        raise ValueError(
            f"The chat template of {encoder.name} treats video and audio differently: {sorted([video, audio])}. Pass "
            "the prompts yourself."
        )
    rendered["media_prompt"] = video
    # A template may contain the first token, which the tokenizer must not add again.
    first = tokenizer.bos_token or _SENTINEL
    rendered["add_special_tokens"] = not all(prompt.startswith(first) for prompt in rendered.values())
    return rendered


def _sampling_rate(encoder: ModelIdentity) -> int:
    """The rate in Hz at which SentenceTransformers hear sound, according to their processors."""
    for part in encoder.parts:
        for path in part.download().rglob("*processor_config.json"):
            settings = read_object(path)
            settings = settings.get("feature_extractor", settings)
            if "sampling_rate" in settings:
                return settings["sampling_rate"]
    return SAMPLING_RATE


def processor_from_joint_encoder(
    name_or_path: Named | ModelIdentity,
    modalities: Sequence[str] | None = None,
    revision: str | None = None,
    **settings: Any,
) -> Any:
    """
    Build the processor of a joint encoder; see [`ScalarProcessor.from_joint_encoder`].

    Raises:
        ValueError: If it is not a joint encoder, or a setting is out of range.
    """
    encoder, modalities = _encoder_of(name_or_path, modalities, revision)
    sentence_config = encoder.read(_SENTENCE_CONFIG)
    if encoder.encoder == SENTENCE_TRANSFORMERS:
        from .sentence_encoders import ScalarSentenceProcessor

        own = {
            "modalities": [name for name in modalities if kind_of(name) == "text" or name in encoder.takes],
            "max_text_length": sentence_config.get("max_seq_length"),
            "sampling_rate": _sampling_rate(encoder),
        }
        return ScalarSentenceProcessor(**own | settings)
    # The encoder's own tokenizer, feature extractor and settings of frames.
    options = {"revision": encoder.revision or "main", "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(encoder.name, **options)
    if VIDEO_TOKEN not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO_TOKEN]})
    extractor = AutoFeatureExtractor.from_pretrained(encoder.name, **options)
    frames = encoder.read(PROCESSOR_NAME).get("video_processor")
    if not isinstance(frames, dict):
        frames = encoder.read(VIDEO_PROCESSOR_NAME) or encoder.read(FEATURE_EXTRACTOR_NAME)
    processing = sentence_config.get("processing_kwargs") or {}
    frames |= processing.get("video", {})
    # Its limits and prompts, unless they are given.
    longest = min(8192, tokenizer.model_max_length, sentence_config.get("max_seq_length") or 8192)
    own = {"max_length": longest, "max_text_length": longest, "max_subtitle_length": longest}
    max_samples = processing.get("audio", {}).get("max_length")
    if max_samples is not None:
        own["max_audio_seconds"] = max_samples / extractor.sampling_rate
    if not settings.keys() >= {"query_prompt", "document_prompt", "media_prompt"}:
        own |= _prompts(encoder, sentence_config, tokenizer)
    settings = own | {"modalities": modalities} | settings
    return ScalarJointProcessor(_image_processor(frames), extractor, tokenizer, **settings)


__all__ = ["model_from_joint_encoder", "processor_from_joint_encoder"]
