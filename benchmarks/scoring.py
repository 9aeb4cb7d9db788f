"""Speed of the closed form (SCALAR Eq. 4) as a ratio to three plain matrix products of the same size.

    python -m benchmarks.scoring [--queries 1000] [--clips 10000] [--dim 512] [--threads 1]

Every method runs in turn within each round of one process; a ratio is the median over rounds of its CPU time divided
by that of the three products in the same round.
"""

import argparse
import statistics
import time

import torch
from torch.nn.functional import normalize

from modeling_scalar.scores_scalar import query_weights, retrieval_scores

ROUNDS = 7


def three_products(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """The limit: what any score over three modalities has to compute."""
    return [texts @ modalities[:, index].T for index in range(3)]


def closed_form(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return retrieval_scores(texts, modalities, mask)


def materialised(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The definition (Eq. 2 and 3): a centroid for every query and clip."""
    columns = []
    for start in range(0, len(modalities), 64):
        block = slice(start, start + 64)
        weights = query_weights(texts, modalities[block], mask[block])
        centroids = normalize(torch.einsum("qvm,vmd->qvd", weights, modalities[block]), dim=-1)
        columns.append(torch.einsum("qd,qvd->qv", texts, centroids))
    return torch.cat(columns, dim=1)


def stacked_volume(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The Gramian volume the way its published code computes it: a stacked 4 x 4 determinant per pair."""
    columns = []
    gram = modalities @ modalities.mT
    for start in range(0, len(modalities), 256):
        block = slice(start, start + 256)
        agreement = torch.einsum("qd,vmd->qvm", texts, modalities[block])
        matrix = agreement.new_ones(*agreement.shape[:2], 4, 4)
        matrix[..., 0, 1:] = matrix[..., 1:, 0] = agreement
        matrix[..., 1:, 1:] = gram[block]
        columns.append(torch.linalg.det(matrix).abs().sqrt())
    return torch.cat(columns, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--clips", type=int, default=10000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    texts = normalize(torch.randn(options.queries, options.dim, generator=generator), dim=-1)
    modalities = normalize(torch.randn(options.clips, 3, options.dim, generator=generator), dim=-1)
    mask = torch.rand(options.clips, 3, generator=generator) < torch.tensor([0.95, 0.85, 0.6])
    mask[:, 0] |= ~mask.any(1)
    modalities *= mask[..., None]

    few = slice(0, max(options.clips // 20, 1))  # the slow ones on a part of the gallery, counted in full
    methods = {
        "three matrix products": (three_products, slice(None)),
        "closed form": (closed_form, slice(None)),
        "materialised centroids": (materialised, few),
        "stacked 4 x 4 determinants": (stacked_volume, few),
    }
    times = {name: [] for name in methods}
    for _ in range(ROUNDS + 1):
        for name, (method, part) in methods.items():
            start = time.process_time()
            method(texts, modalities[part], mask[part])
            elapsed = time.process_time() - start
            times[name].append(elapsed * options.clips / len(modalities[part]))
    floor = times["three matrix products"]
    print(f"{options.queries} queries x {options.clips} clips x {options.dim}, {options.threads} thread(s), float32")
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in list(zip(values, floor, strict=True))[1:])
        print(f"{name:28} {statistics.median(values[1:]) * 1e3:9.1f} ms   {ratio:7.2f} x")
    difference = (
        closed_form(texts, modalities[few], mask[few]) - materialised(texts, modalities[few], mask[few])
    ).abs()
    print(f"closed form and materialised centroids differ by at most {difference.max():.1e}")


if __name__ == "__main__":
    main()
