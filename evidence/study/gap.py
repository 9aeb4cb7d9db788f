"""`python -m evidence gap`: calibration of embeddings with an artificial modality gap.

In many joint encoders each modality has a region of its own, and texts are nearer to some regions than to others. Here
a vector is added to each modality and one to the texts, which are then normalised again. The score is calibrated on
other clips than those that are measured, with the same gap.
"""

from dataclasses import replace

import torch
from torch.nn.functional import normalize

from evidence.settings import GapConfig
from scalar_retrieval.commands.texts import print_lines
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import first_ranks, relevant_ranks
from scalar_retrieval.eval.protocol.calibration import calibrate_embeddings
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores

_TOWARDS = torch.tensor([0.6, 0.0, 0.3, 0.5])  # of texts: to video, audio, subtitle, and a direction of their own
_BEFORE = {"method": "scalar", "query_temperature": 0.1}


def add_gap(embeddings: Embeddings, size: float, seed: int = 0) -> Embeddings:
    """
    Move each modality, and the texts, to a region of their own.

    Args:
        embeddings ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): unit vectors.
        size (`float`): norm of the added vectors; 0 changes nothing.
        seed (`int`): seed of the directions, which are the same for all embeddings of one dimension.
    """
    texts = embeddings.text_embeds.float()
    clips = embeddings.modality_embeds.float()
    # A direction for each modality and one more, the same for all embeddings of a dimension.
    generator = torch.Generator().manual_seed(seed)
    regions = normalize(torch.randn(len(_TOWARDS), texts.shape[-1], generator=generator), dim=-1)
    clips = normalize(clips + size * regions[: len(MODALITIES)], dim=-1)
    return replace(
        embeddings,
        text_embeds=normalize(texts + size * normalize(_TOWARDS @ regions, dim=0), dim=-1),
        modality_embeds=clips * embeddings.modality_mask[..., None],
    )


def hits_at_1(embeddings: Embeddings, **options: object) -> list[float]:
    """Return for each query whether it ranks a clip that it describes first: 100 or 0."""
    scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **options)
    ranks = first_ranks(relevant_ranks(scores, embeddings.pairs), embeddings.pairs[:, 0])
    return (100.0 * (ranks <= 1)).tolist()


def main(config: GapConfig) -> None:
    """
    Print R@1 from text to video before and after calibration, with gaps of several sizes.

    Raises:
        ValueError: A clip is measured and fitted to.
    """
    measured = Embeddings.load(config.embeddings)
    others = Embeddings.load(config.fitted)
    # A gain on the clips of the fit would prove nothing.
    shared = set(measured.clip_ids) & set(others.clip_ids)
    if shared:
        raise ValueError(f"{len(shared)} clips are in both, such as {min(shared)!r}: fit to other clips.")
    for gap in config.sizes:
        # Both sets get the same gap, and the measured one is not fitted to.
        here = add_gap(measured, gap)
        there = add_gap(others, gap)
        plain = hits_at_1(here, **_BEFORE)
        line = [f"gap {gap:g}: R@1 {sum(plain) / len(plain):.1f}"]
        for name, scale_offset in (("temperature", False), ("scale and offset too", True)):
            after = calibrate_embeddings(there, _BEFORE, scale_offset).after
            better = hits_at_1(here, **after)
            gain = paired_bootstrap(better, plain)
            line.append(
                f"{name} {sum(better) / len(better):.1f} ({gain['difference']:+.1f}, {gain['low']:+.1f} to "
                f"{gain['high']:+.1f})"
            )
        print_lines("; ".join(line))


__all__ = ["add_gap", "hits_at_1", "main"]
