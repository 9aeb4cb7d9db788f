"""A clip as one vector: what a joint encoder itself makes of all modalities of a clip at once.

Our scores are functions of one vector per modality, whatever is masked. The vector of a whole clip is not: it has to
be embedded again for every set of modalities that a protocol leaves of a clip. It is a baseline, computed from media.

Two encoders are supported: a SentenceTransformer, which joins the modalities by its own template, and the small
encoder that `evidence.study.joint` trains, whose sequences of single modalities are joined here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin

from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE
from scalar_retrieval.modeling_scalar.modeling_joint_scalar import ScalarJointModel
from scalar_retrieval.modeling_scalar.processing_scalar import Clip

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def _item_of(clip: Clip, has_video: bool, has_audio: bool, has_subtitle: bool) -> dict[str, Any]:
    """A clip in the format of Sentence Transformers."""
    item: dict[str, Any] = {}
    if has_video:
        item["video"] = torch.from_numpy(clip.frames).permute(0, 3, 1, 2)
    if has_audio:
        item["audio"] = {"array": clip.waveform, "sampling_rate": SAMPLING_RATE}
    if has_subtitle:
        item["text"] = clip.text_of("subtitle")
    return item


def encode_whole(encoder: "SentenceTransformer", clips: Sequence[Clip], modality_mask: torch.Tensor) -> torch.Tensor:
    """
    Embed each clip into one vector with an encoder of Sentence Transformers, by its own template.

    Args:
        encoder (`SentenceTransformer`): accepts the paper's modalities together.
        clips (`Sequence[Clip]`): results of `read_clip(..., processed=False)`, with raw frames.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what may be read of each clip, at least one modality
            that it has.

    Returns:
        `torch.FloatTensor` of shape `(clips, dim)`, unit norm, on the CPU.
    """
    embeds = torch.empty(len(clips), encoder.get_embedding_dimension())
    # The library takes clips of the same modalities together.
    for mix in modality_mask.unique(dim=0):
        rows = (modality_mask == mix).all(dim=1).nonzero().flatten()
        items = [_item_of(clips[row], *mix.tolist()) for row in rows.tolist()]
        options = {}
        if mix[0]:
            # The frames are chosen already.
            options["processing_kwargs"] = {"video": {"do_sample_frames": False}}
        vectors = encoder.encode_document(items, convert_to_tensor=True, show_progress_bar=False, **options)
        embeds[rows] = normalize(vectors.float(), dim=-1).cpu()
    return embeds


def joined_sequences(
    inputs: Mapping[str, torch.Tensor], modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Join the token sequences of single modalities into one sequence per clip.

    The first and the last token of a sequence are the tokenizer's own, which a joined sequence has once.

    Args:
        inputs (`Mapping[str, torch.Tensor]`): the output of a
            [`~scalar_retrieval.modeling_scalar.ScalarJointProcessor`] without prompts.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): the modalities to join, at least one per clip.

    Returns:
        `input_ids` and `attention_mask`, `torch.LongTensor` of shape `(clips, tokens)`.
    """
    sequences = []
    masks = []
    for row, present in enumerate(modality_mask.tolist()):
        # The tokens of each modality without padding.
        pieces = []
        for name, is_present in zip(MODALITIES, present, strict=True):
            if is_present:
                is_token = inputs[f"{name}_attention_mask"][row].bool()
                pieces.append(inputs[f"{name}_input_ids"][row][is_token])
        inner = [piece[1:-1] for piece in pieces]
        sequences.append(torch.cat([pieces[0][:1], *inner, pieces[0][-1:]]))
        masks.append(torch.ones_like(sequences[-1]))
    return pad_sequence(sequences, batch_first=True), pad_sequence(masks, batch_first=True)


def embed_whole(
    model: ScalarJointModel, inputs: Mapping[str, torch.Tensor], modality_mask: torch.Tensor
) -> torch.Tensor:
    """
    Embed each clip into one vector with a joint encoder that was trained on [`joined_sequences`].

    Args:
        model ([`~scalar_retrieval.modeling_scalar.modeling_joint_scalar.ScalarJointModel`]): of the paper's
            modalities, without heads.
        inputs (`Mapping[str, torch.Tensor]`): the output of its processor for the clips.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what may be read of each clip, at least one modality
            that it has.

    Returns:
        `torch.FloatTensor` of shape `(clips, dim)`, unit norm, with gradients where they are enabled.
    """
    input_ids, attention_mask = joined_sequences(inputs, modality_mask)
    batch = {"input_ids": input_ids, "attention_mask": attention_mask}
    # Frames and sounds of the clips that have them, in the order of their placeholders.
    has_video, has_audio, _ = modality_mask.unbind(dim=1)
    if has_video.any():
        frames = inputs["pixel_values_videos"][has_video]
        batch["pixel_values_videos"] = frames.flatten(0, 1)  # (clips * frames, patches, values)
        batch["video_position_ids"] = inputs["video_position_ids"][has_video].flatten(0, 1)
        batch["num_frames_per_video"] = torch.full((len(frames),), frames.shape[1])
    if has_audio.any():
        for name in ("input_features", "input_features_mask"):
            batch[name] = inputs[name][has_audio]
    return model.project("text", model.encode_texts(batch).pooler_output)


@torch.no_grad()
def embed_whole_clips(
    model: ScalarJointModel,
    processor: ProcessorMixin,
    clips: Sequence[Clip],
    masks: Sequence[torch.Tensor],
    batch_size: int = 32,
) -> list[torch.Tensor]:
    """
    Embed clips, each into one vector per mask.

    Args:
        model, processor: of `evidence.study.joint`.
        clips (`Sequence[Clip]`): results of `read_clip`.
        masks (`Sequence[torch.BoolTensor]`, each of shape `(clips, 3)`): as in [`embed_whole`].
        batch_size (`int`): clips per forward pass.

    Returns:
        One `torch.FloatTensor` of shape `(clips, dim)` per mask.
    """
    # A batch is prepared once for all masks.
    found: list[list[torch.Tensor]] = [[] for _ in masks]
    for start in range(0, len(clips), batch_size):
        rows = slice(start, start + batch_size)
        inputs = processor(clips=list(clips[rows]))
        for vectors, mask in zip(found, masks, strict=True):
            vectors.append(embed_whole(model, inputs, mask[rows]))
    return [torch.cat(vectors) for vectors in found]


__all__ = ["embed_whole", "embed_whole_clips", "encode_whole", "joined_sequences"]
