"""Speed of the closed form (SCALAR Eq. 4) as a ratio to plain matrix products of the same size, one per modality.

    python -m evidence speed scoring [--queries 1000] [--clips 10000] [--dim 512] [--threads 1] [--before FOLDER]

The methods take turns within each round of one process; a ratio is the median over rounds of CPU time divided by that
of the products in the same round. Then the same for one to eight modalities. `--before` is a checkout of an earlier
commit, whose closed form runs in the same rounds.
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from types import ModuleType

import torch
from torch.nn.functional import normalize

from evidence.speed.settings import ScoringConfig
from scalar_retrieval.modeling_scalar.scores_scalar import query_weights, retrieval_scores

ROUNDS = 7


def products(texts: torch.Tensor, modalities: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """The lower limit: the products that any score over all modalities needs."""
    return [texts @ modality.T for modality in modalities.unbind(1)]


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
    """The Gramian volume as in its published code: a stacked 4 x 4 determinant per pair."""
    columns = []
    gram = modalities @ modalities.mT
    for start in range(0, len(modalities), 256):
        block = slice(start, start + 256)  # a determinant takes 16 numbers a pair
        agreement = torch.einsum("qd,vmd->qvm", texts, modalities[block])
        matrix = agreement.new_ones(*agreement.shape[:2], 4, 4)
        matrix[..., 0, 1:] = matrix[..., 1:, 0] = agreement
        matrix[..., 1:, 1:] = gram[block]
        columns.append(torch.linalg.det(matrix).abs().sqrt())
    return torch.cat(columns, dim=1)


def _remove_modules() -> dict[str, ModuleType]:
    """Remove the package's modules from those that are imported, and return them."""
    removed = {}
    for name in list(sys.modules):
        if name.split(".")[0] == "scalar_retrieval":
            removed[name] = sys.modules.pop(name)
    return removed


def closed_form_of(folder: str) -> Callable:
    """The closed form of another checkout."""
    own = _remove_modules()
    source = str(Path(folder, "src"))
    sys.path.insert(0, source)
    try:
        return importlib.import_module("scalar_retrieval.modeling_scalar.scores_scalar").retrieval_scores
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{folder} must be a checkout of this repository.") from error
    finally:
        sys.path.remove(source)
        _remove_modules()
        sys.modules |= own


def make_clips(num_clips: int, num_modalities: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random clips, some without all modalities."""
    generator = torch.Generator().manual_seed(0)
    modalities = normalize(torch.randn(num_clips, num_modalities, dim, generator=generator), dim=-1)
    mask = torch.rand(num_clips, num_modalities, generator=generator) < 0.8
    mask[:, 0] |= ~mask.any(1)
    return modalities * mask[..., None], mask


def run_in_turn(methods: dict[str, tuple[Callable, slice]], *data: torch.Tensor) -> dict[str, list[float]]:
    """CPU seconds of each method in each round except the first, extrapolated to all clips."""
    texts, modalities, mask = data
    times = {}
    for number in range(ROUNDS + 1):
        for name, (method, part) in methods.items():
            start = time.process_time()
            method(texts, modalities[part], mask[part])
            seconds = (time.process_time() - start) * len(modalities) / len(modalities[part])
            if number > 0:  # the first round warms up
                times.setdefault(name, []).append(seconds)
    return times


def print_row(label: str, values: list[float], floor: list[float]) -> None:
    ratio = statistics.median(map(truediv, values, floor))
    print(f"{label:28} {statistics.median(values) * 1e3:9.1f} ms   {ratio:7.2f} x")


def main(config: ScoringConfig) -> None:
    torch.set_num_threads(config.threads)
    texts = torch.randn(config.queries, config.dim, generator=torch.Generator().manual_seed(1))
    texts = normalize(texts, dim=-1)
    modalities, mask = make_clips(config.clips, 3, config.dim)

    # All methods for three modalities.
    few = slice(0, max(config.clips // 20, 1))  # slow methods run on a part of the gallery
    methods = {
        "three matrix products": (products, slice(None)),
        "closed form": (closed_form, slice(None)),
        "materialised centroids": (materialised, few),
        "stacked 4 x 4 determinants": (stacked_volume, few),
    }
    if config.before is not None:
        methods["closed form before"] = (closed_form_of(config.before), slice(None))
    times = run_in_turn(methods, texts, modalities, mask)
    print(f"{config.queries} queries x {config.clips} clips x {config.dim}, {config.threads} thread(s), float32")
    for name, values in times.items():
        print_row(name, values, times["three matrix products"])

    # Both are the same score.
    part = (texts, modalities[few], mask[few])
    difference = (closed_form(*part) - materialised(*part)).abs()
    print(f"closed form and materialised centroids differ by at most {difference.max():.1e}")

    # The closed form for other numbers of modalities.
    for number in range(1, 9):
        both = {"products": (products, slice(None)), "closed form": (closed_form, slice(None))}
        times = run_in_turn(both, texts, *make_clips(config.clips, number, config.dim))
        print_row(f"closed form, {number} modalities", times["closed form"], times["products"])
