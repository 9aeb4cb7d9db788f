"""Speed of every score and of the whole evaluation, as ratios within one process.

    python -m evidence speed evaluation [--size 1000 --size 5000] [--dim 512] [--threads 1] [--rounds 5]

First, full score matrices for three modalities with as many queries as clips: the time of each score divided by that
of one plain matrix product per modality, the lower limit. "alone" computes its own products; "shared" reuses existing
products, as in an evaluation. "public way" is how public code computes the score: a stacked 4 x 4 determinant,
singular value decomposition or centroid per pair. It differs from "alone" only in the implementation.

Then the whole evaluation of embeddings: all scores, five masking rates, both directions.

The methods take turns within each round; a ratio is the median over rounds of CPU time divided by that of the
products in the same round. Slow methods run on a part of the gallery, and their time is extrapolated.
"""

import statistics
import time
from operator import truediv

import torch
from torch.nn.functional import normalize

from evidence.speed.scoring import products
from evidence.speed.settings import EvaluationConfig
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol.first_stage import evaluate_embeddings, measurable_methods
from scalar_retrieval.eval.protocol.missing import RATES
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import Pairs, make_pairs, query_weights, retrieval_scores

_PART = 250  # clips on which public code is timed


def stacked_gram(texts: torch.Tensor, modalities: torch.Tensor) -> torch.Tensor:
    """Gram matrices of all pairs of a text and a clip, (Q, V, 4, 4)."""
    similarities = torch.einsum("qd,vmd->qvm", texts, modalities)
    matrix = similarities.new_ones(*similarities.shape[:2], 4, 4)
    matrix[..., 0, 1:] = matrix[..., 1:, 0] = similarities
    matrix[..., 1:, 1:] = modalities @ modalities.mT
    return matrix


def volume_per_pair(texts: torch.Tensor, modalities: torch.Tensor) -> torch.Tensor:
    return -torch.linalg.det(stacked_gram(texts, modalities)).abs().sqrt()


def singular_value_per_pair(texts: torch.Tensor, modalities: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(stacked_gram(texts, modalities))[..., 0] / 4


def centroid_per_pair(texts: torch.Tensor, modalities: torch.Tensor) -> torch.Tensor:
    columns = []
    for block in modalities.split(max(1, 2**18 // len(texts))):
        weights = query_weights(texts, block, torch.ones(len(block), 3, dtype=torch.bool))
        centroids = normalize(torch.einsum("qvm,vmd->qvd", weights, block), dim=-1)
        columns.append(torch.einsum("qd,qvd->qv", texts, centroids))
    return torch.cat(columns, dim=1)


PUBLIC = {"gram": volume_per_pair, "pmrl": singular_value_per_pair, "scalar": centroid_per_pair}
"""The implementations of public code, by the name of the same score here."""


def make_embeddings(size: int, dim: int) -> Embeddings:
    """Random clips of a size with random modalities missing; every query is near its own clip."""
    generator = torch.Generator().manual_seed(0)
    modalities = normalize(torch.randn(size, 3, dim, generator=generator), dim=-1)
    mask = torch.rand(size, 3, generator=generator) < torch.tensor([0.95, 0.85, 0.6])
    mask[:, 0] |= ~mask.any(1)
    texts = normalize(modalities.sum(1) + 5 * torch.randn(size, dim, generator=generator) / dim**0.5, dim=-1)
    ids = [f"video{index}" for index in range(size)]
    pairs = torch.arange(size)[:, None].expand(-1, 2)
    return Embeddings(
        texts, modalities * mask[..., None], mask, pairs, ids, ids, ids, PAPER_MODALITIES, modalities.flip(2)
    )


def _cpu_time(function, *arguments, **options) -> float:
    start = time.process_time()
    function(*arguments, **options)
    return time.process_time() - start


@torch.no_grad()
def measure_scores(size: int, dim: int, rounds: int) -> None:
    embeddings = make_embeddings(size, dim)
    texts = embeddings.text_embeds
    modalities = embeddings.modality_embeds
    mask = embeddings.modality_mask
    pairs = make_pairs(texts, modalities, mask, embeddings.concat_embeds, PAPER_MODALITIES).exact
    # Public code does not support missing modalities, so it is timed on complete clips.
    complete = normalize(torch.randn(_PART, 3, dim, generator=torch.Generator().manual_seed(1)), dim=-1)
    for name, public in PUBLIC.items():
        ours = retrieval_scores(texts[:50], complete, method=name, modalities=PAPER_MODALITIES)
        torch.testing.assert_close(public(texts[:50], complete), ours, atol=1e-4, rtol=0)

    methods = measurable_methods(embeddings)
    # All methods in each round; CPU seconds by round.
    limit = []
    alone = {}
    shared = {}
    per_pair = {}
    for _ in range(rounds + 1):
        limit.append(_cpu_time(products, texts, modalities, mask))
        for name in methods:
            options = {"method": name, "concat_embeds": embeddings.concat_embeds, "modalities": PAPER_MODALITIES}
            alone.setdefault(name, []).append(_cpu_time(retrieval_scores, texts, modalities, mask, **options))
            # Has the products but no caches of other scores.
            fresh = Pairs(pairs.text_embeds, pairs.clips, pairs.options, pairs.similarities)
            shared.setdefault(name, []).append(_cpu_time(fresh.scores, name))
        for name, public in PUBLIC.items():
            per_pair.setdefault(name, []).append(_cpu_time(public, texts, complete) * size / _PART)

    def ratio(times: list[float]) -> float:
        # The first round warms up.
        return statistics.median(map(truediv, times[1:], limit[1:]))

    print(f"\n{size:,} x {size:,}, three products: {1000 * statistics.median(limit[1:]):.0f} ms of CPU time")
    print(f"{'score':<14}{'alone':>8}{'shared':>8}{'public way':>12}{'slower by':>11}")
    # A line for each score; only some have public code.
    for name in methods:
        row = f"{name:<14}{ratio(alone[name]):>8.2f}{ratio(shared[name]):>8.2f}"
        if name in per_pair:
            public = ratio(per_pair[name])
            row += f"{public:>12.1f}{public / ratio(alone[name]):>10.0f}x"
        print(row, flush=True)


def measure_evaluation(size: int, dim: int) -> None:
    embeddings = make_embeddings(size, dim)
    begun = time.perf_counter()
    before = time.process_time()
    results = evaluate_embeddings(embeddings, rates=RATES)
    spent = time.process_time() - before
    seconds = time.perf_counter() - begun
    measured = len(results["rates"][0]["methods"])
    print(
        f"\nwhole evaluation of {size:,} clips: {measured} scores x {len(RATES)} rates x 2 directions "
        f"in {seconds:.1f} s ({spent:.1f} s of CPU time)"
    )


def main(config: EvaluationConfig) -> None:
    torch.set_num_threads(config.threads)
    print(f"ratios of CPU time to three plain products, {config.threads} thread(s), dimension {config.dim}")
    for size in config.sizes:
        measure_scores(size, config.dim, config.rounds)
    measure_evaluation(max(config.sizes), config.dim)
