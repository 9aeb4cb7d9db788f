"""Training examples from the embeddings of a gallery, so that a frozen encoder need not run again.

They train the heads of a joint encoder, in minutes on a CPU. The gallery comes from `scalar eval embed`, which also
stores the captions, or from `scalar index`. A clip is the same in every epoch.
"""

import os
from contextlib import nullcontext
from typing import Any

import datasets
import torch
from peft import PeftModel
from torch.utils.data import default_collate

from scalar_retrieval.eval.embedding.embed_dataset import embed_texts
from scalar_retrieval.eval.embedding.query_gallery import rows_of
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.columns import stacked
from scalar_retrieval.gallery.store.rows import texts_of
from scalar_retrieval.modeling_scalar import ScalarJointModel, ScalarProcessor
from scalar_retrieval.modeling_scalar.model_identity import part_of

from .data import Examples
from .identity import tensors_sha256
from .lora import count_parameters, without_adapter

_CAPTIONS_AT_ONCE = 32


def _check_trained(model: ScalarJointModel, path: Any) -> None:
    """Raise a ValueError if training would change the encoder that made the embeddings of the gallery."""
    trained = count_parameters(model).keys() - {"hyperbolic", "logit_scale"}
    in_encoder = sorted(part for part in trained if not part.endswith("_head"))
    if in_encoder or not trained:
        raise ValueError(
            f"{path} is a gallery, which holds embeddings of a frozen encoder, but this run trains "
            f"{in_encoder or 'no heads'} of it. Set `features` to null or, for a joint encoder, `adapter` to heads."
        )
    # The heads of an adapter are not those that made the gallery, and a new head adds zero.
    for name, value in model.named_parameters():
        if part_of(name).endswith("_head") and "modules_to_save" not in name and value.any():
            raise ValueError(
                f"The heads of this model are already trained, and the embeddings in {path} went through them. Start "
                "from the encoder without trained heads and a gallery made with it."
            )


class EmbeddingDataset(Examples):
    """
    Training examples read from a gallery, instead of [`~scalar_retrieval.trainer.data.ClipDataset`].

    An example is `{"clip_index", "modality_mask", "text_pooled"}` with `"video_pooled"`, `"audio_pooled"` and
    `"subtitle_pooled"`, zero where the clip lacks the modality; `default_collate` of torch makes batches of them.

    Args:
        folder (`str`): The gallery.
        rows (`datasets.Dataset`): The rows to train on; a clip is found by its identifier or its file.
        model ([`ScalarJointModel`] or its PEFT model): The model to train, with its trainable parameters already
            chosen. It embeds captions that the gallery does not hold.
        processor ([`ScalarProcessor`]): The model's processor.
        model_path (`str`), fingerprint (`str`): The base model, which must have made the gallery.
        progress (`bool`): Whether to show a progress bar while captions are embedded.

    Raises:
        ValueError: If another model made the gallery, it lacks clips, or more than the heads is trained.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        rows: datasets.Dataset,
        model: ScalarJointModel | PeftModel,
        processor: ScalarProcessor,
        model_path: str,
        fingerprint: str,
        progress: bool = True,
    ):
        # The gallery must hold what this model computes before its heads, for every row.
        base = without_adapter(model)
        gallery = Gallery.open(folder)
        _check_trained(base, gallery.path)
        gallery.check_model(model_path, fingerprint, must_know=True)
        places = rows_of(gallery, rows, "Embed the training split with `scalar eval embed`.")
        super().__init__(rows)
        self.collator = default_collate
        if list(gallery.modalities) != list(base.config.modalities):
            raise ValueError(
                f"{gallery.path} holds {', '.join(gallery.modalities)}, but the model embeds "
                f"{', '.join(base.config.modalities)}. Embed the split with this model."
            )
        # All vectors fit in memory, so workers need not read files.
        self._names = gallery.modalities
        self._mask = gallery.modality_mask[places]
        self._modalities = gallery.modality_embeds()[places]
        without = nullcontext()
        if isinstance(model, PeftModel):  # heads that are continued come after what is stored
            without = model.disable_adapter()
        with without:
            self._texts = _texts_of(gallery, base, processor, rows["caption"], progress)

    def identity(self) -> dict[str, Any]:
        """Add the SHA-256 of the embeddings."""
        read = {"texts": self._texts, "modalities": self._modalities, "mask": self._mask}
        return {"stored vectors": tensors_sha256(read)} | super().identity()

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = {"clip_index": index, "modality_mask": self._mask[index], "text_pooled": self._texts[index]}
        for name, vector in zip(self._names, self._modalities[index], strict=True):
            example[f"{name}_pooled"] = vector
        return example


def _texts_of(
    gallery: Gallery, model: ScalarJointModel, processor: ScalarProcessor, captions: list[str], progress: bool
) -> torch.Tensor:
    """The embeddings of captions, `(captions, dim)`, from the gallery or, where it has none, from the model."""
    vectors: dict[str, torch.Tensor] = {}
    if gallery.queries is not None:
        embeds = stacked(gallery.queries, ["embedding"])[:, 0].float()
        vectors = dict(zip(texts_of(gallery.queries, "caption"), embeds, strict=True))
    missing = [caption for caption in dict.fromkeys(captions) if caption not in vectors]
    if missing:
        model.eval()
        embeds = embed_texts(model, processor, missing, _CAPTIONS_AT_ONCE, progress)
        vectors |= dict(zip(missing, embeds, strict=True))
    return torch.stack([vectors[caption] for caption in captions])


__all__ = ["EmbeddingDataset"]
