"""`python -m evidence towers BACKBONE ROOT`: the frozen towers' outputs for the clips that runs are measured on.

All runs have the same vision and audio towers and read the same files: what these say is stored once for each split,
with the processor's settings for testing. Texts are left out, because their tower is trained.

Shape letters: V clips, M modalities, H dimensions of a tower's output.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import safe_open
from safetensors.torch import save
from tqdm import tqdm

from evidence.miniature.clips import SPLITS
from scalar_retrieval.eval.benchmarks.clip_rows import group_rows, query_kinds, read_row
from scalar_retrieval.eval.benchmarks.definition import configure_processor
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_texts, read_rows
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.embedding import in_batches
from scalar_retrieval.gallery.store.columns import unit_vectors
from scalar_retrieval.gallery.store.files import write_whole
from scalar_retrieval.gallery.store.provenance import provenance_of
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.processing_scalar import ScalarProcessor
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from scalar_retrieval.trainer.cache_features import checksums

_BENCHMARK = "miniature"
_AT_ONCE = 64  # clips, or texts, of one forward pass
_PRESENCE = "presence"


def towers_file(root: str | Path, split: str) -> Path:
    """Return the file with the towers' outputs for a split."""
    return Path(root) / f"towers_{split}.safetensors"


def load_for(
    model: str | Path, root: str | Path, split: str
) -> tuple[ScalarRetrievalModel, ScalarProcessor, Dataset, dict[str, str]]:
    """Return a model with its processor, the rows of a split, and what the towers' outputs depend on."""
    network, processor = load_model(str(model), dtype=torch.float32)
    loaded = load_split(_BENCHMARK, root, split)
    processor = configure_processor(processor, loaded.processing)
    # Outputs are valid for the same towers and the same rows.
    sums = checksums(network, processor, loaded.dataset)
    identity = {name: sums[name] for name in ("towers", "rows")}
    return network.eval(), sandboxed(processor), loaded.dataset, identity


def metadata_of(network: ScalarRetrievalModel, model: str | Path, rows: Dataset) -> dict[str, Any]:
    """Return the metadata of embeddings of some rows: the options of the model's score, and kinds of captions."""
    return provenance_of(network, model) | query_kinds(rows)


@torch.no_grad()
def store_towers(backbone: str | Path, root: str | Path) -> None:
    """
    Store the towers' outputs for the validation and the test clips of a benchmark.

    A file has the presence `(V, M)` and, for each modality with a tower, its pooled output `(V, H)` in float32, zero
    where absent. Splits without clips have none; files that are there are left as they are.

    Args:
        backbone (`str` or `Path`): folder of the model.
        root (`str` or `Path`): folder of the miniature benchmark.
    """
    for split in SPLITS:
        output = towers_file(root, split)
        if split == "train" or output.is_file() or not (Path(root) / f"{split}.jsonl").stat().st_size:
            continue
        network, processor, rows, identity = load_for(backbone, root, split)
        clips, *_ = group_rows(rows, modalities=processor.modalities)
        # Outputs are collected in parts, one for each forward pass.
        parts: dict[str, list[torch.Tensor]] = {}
        for batch in tqdm(read_rows(processor, clips, _AT_ONCE, 1), total=-(-len(clips) // _AT_ONCE), desc=split):
            mask = batch.features["modality_mask"]  # (clips, M)
            outputs = network.get_tower_features(
                batch.features.get("pixel_values_videos"),
                batch.features.get("input_features"),
                mask,
                with_states=False,
            )
            for name, value in {_PRESENCE: mask, **outputs}.items():
                parts.setdefault(name, []).append(value)
        content = save({name: torch.cat(values) for name, values in parts.items()}, identity)
        write_whole(output, lambda file, content=content: file.write(content))


def _stored(path: Path, identity: dict[str, str]) -> dict[str, torch.Tensor]:
    """Read the towers' outputs; a ValueError if they are those of other towers or clips."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Store the outputs of the towers: `python -m evidence towers`.")
    # What the file depends on is in its header, so a stale one is found before it is read.
    with safe_open(path, "pt") as file:
        if file.metadata() != identity:
            raise ValueError(
                f"{path} holds the outputs of other towers, or for other clips. Measure a model whose towers were "
                "trained without `--stored`; else remove the file, and run `python -m evidence towers` again."
            )
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)


@torch.no_grad()
def embed_stored(model: str | Path, root: str | Path, split: str) -> Embeddings:
    """
    Embed a split of the miniature benchmark from the towers' outputs, as
    [`~scalar_retrieval.eval.embedding.embed_benchmark`] does from its files.

    Args:
        model (`str` or `Path`): folder of a trained model, with the towers of the backbone.
        root (`str` or `Path`): folder of the benchmark, with the files of [`store_towers`].
        split (`str`): "validation" or "test".

    Returns:
        [`~scalar_retrieval.eval.embedding.embeddings.Embeddings`] in float32; the metadata have the score's options
        and the kinds.

    Raises:
        FileNotFoundError: nothing is stored.
        ValueError: what is stored is of other towers or clips.
    """
    network, processor, rows, identity = load_for(model, root, split)
    stored = _stored(towers_file(root, split), identity)
    clips, captions, query_ids, pairs = group_rows(rows, modalities=processor.modalities)
    mask = stored.pop(_PRESENCE)  # (V, M)
    embeds = torch.zeros(*mask.shape, network.config.projection_dim)

    def embed_modality(name: str, present: torch.Tensor, **inputs: torch.Tensor) -> None:
        """Embed one modality of the clips in rows `present`."""
        column = network.config.modalities.index(name)
        features, _ = network.get_modality_features(**inputs)
        embeds[present, column] = unit_vectors(features[:, column])

    # Frozen towers: what is left is the projection of their stored outputs.
    for name, pooled in stored.items():
        modality = name.removesuffix("_pooled")
        present = mask[:, network.config.modalities.index(modality)].nonzero().flatten()
        embed_modality(modality, present, **{name: pooled[present]})
    # The text tower is trained, so subtitles and captions pass through all of it.
    with_text = [number for number, clip in enumerate(clips) if clip["subtitle"] is not None]
    for batch in in_batches(with_text, _AT_ONCE):
        texts = []
        for number in batch:
            text_alone = clips[number] | {"video_path": None, "audio_path": None}
            texts.append(read_row(processor, text_alone))
        tokens: dict[str, Any] = {}
        for key, value in processor(clips=texts).items():
            if key.startswith("subtitle_"):
                tokens[key] = value
        embed_modality("subtitle", torch.tensor(batch), **tokens)

    return Embeddings(
        text_embeds=embed_texts(network, processor, captions, _AT_ONCE),
        modality_embeds=embeds,
        modality_mask=mask,
        pairs=torch.tensor(pairs),
        clip_ids=[clip["video_id"] for clip in clips],
        query_ids=query_ids,
        captions=captions,
        metadata=metadata_of(network, model, rows),
        modalities=network.config.modalities,
    )


__all__ = ["metadata_of", "embed_stored", "load_for", "store_towers", "towers_file"]
