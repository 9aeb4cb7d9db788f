"""`python -m evidence measure`: ranks by a trained model, by its own score and by others, as trained and fitted.

- Numbers are fitted to the validation clips, in both directions, by `eval.protocol.calibration`; every score may have
  as many.
- Ranks are those of each query's own clip, and of each clip's own caption; ranks above `HIGHEST` are stored as that.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from eval.embedding.embed_benchmark import embed_benchmark
from eval.embedding.embeddings import Embeddings
from eval.metrics.retrieval.ranking import first_ranks
from eval.protocol.first_stage import masks_of, measurable_methods, pathways, rank_pairs
from evidence.miniature.benchmark import load_about
from evidence.router import route
from evidence.settings import MeasureConfig
from evidence.study.fitting import fit
from evidence.weighted import FITTED, WEIGHTED
from gallery.described import score_options_of
from gallery.files import write_json
from modeling_scalar.scores_scalar import DIRECTIONS

HIGHEST = 11
"""Ranks beyond ten are not distinguished."""

FIXED_WEIGHTS = {
    "scalar": "scalar", "uniform": "weighted_centroid", "mean": "weighted_mean", "max": "max",
    "rank_fusion": "weighted_rank_fusion", "gram": "weighted_gram", "gram_span": "weighted_span",
    "pmrl": "weighted_pmrl",
}  # fmt: skip
"""Scores with numbers to fit, and the registered score that takes these."""

AS_TRAINED, TEMPERATURE, FITTED_ALL = "as trained", "temperature", "fitted"
"""Numbers of a score: those of the training, a fitted temperature of the weights only, or all of them fitted."""

ROUTER = "router"
"""The upper bound of choosing a score: for each kind of caption, the best one on validation clips."""

Key = tuple[str, str]
"""A score and its numbers."""
Choice = tuple[str, dict[str, Any]]
"""A registered score and its options."""


@dataclass(frozen=True)
class Clips:
    """Embedded clips, and the group of each caption: its kind and the modalities it is about."""

    embeddings: Embeddings
    groups: list[tuple[str, ...]]

    def complete(self) -> "Clips":
        """The clips that have every modality, and their captions."""
        found = self.embeddings
        clips = found.modality_mask.all(1).nonzero().flatten()
        kept = torch.isin(found.pairs[:, 1], clips).nonzero().flatten()
        queries = found.pairs[kept, 0]
        pairs = torch.stack([torch.arange(len(kept)), torch.searchsorted(clips, found.pairs[kept, 1])], dim=1)
        embeddings = replace(
            found, text_embeds=found.text_embeds[queries], modality_embeds=found.modality_embeds[clips],
            modality_mask=found.modality_mask[clips], pairs=pairs, clip_ids=[found.clip_ids[row] for row in clips],
            query_ids=[found.query_ids[row] for row in queries], captions=[found.captions[row] for row in queries],
        )  # fmt: skip
        return Clips(embeddings, [self.groups[row] for row in queries])


def embed(model: Path, root: Path, split: str, output: Path) -> Clips:
    """Embed a split of the miniature benchmark, or load its stored embeddings."""
    embed_benchmark(output, model, "miniature", root, split, num_workers=1, dtype="float32", progress=False)
    embeddings = Embeddings.load(output)
    kinds = embeddings.kinds()
    groups = [(kind, *about) for kind, about in zip(kinds, load_about(root, split), strict=True)]
    return Clips(embeddings, groups)


def choose(validation: Embeddings, scores: Iterable[str]) -> dict[Key, Choice]:
    """Return each score with the numbers of its training and, if it has any to fit, with fitted ones."""
    trained = {name: value for name, value in score_options_of(validation.metadata).items() if name != "method"}
    chosen: dict[Key, Choice] = {}
    for score in scores:
        chosen[score, AS_TRAINED] = (score, trained)
        if (method := FIXED_WEIGHTS.get(score)) is None:
            continue
        if "query_temperature" in FITTED[method]:
            chosen[score, TEMPERATURE] = (method, fit(validation, trained, method=method))
        chosen[score, FITTED_ALL] = (method, fit(validation, trained, scale_offset=True, method=method))
    return chosen


def own_ranks(
    embeddings: Embeddings, masks: Sequence[torch.Tensor], choice: Choice
) -> Iterator[dict[str, torch.Tensor]]:
    """The rank of each query's own candidate, for each mask and direction."""
    method, options = choice
    for ranks in rank_pairs(embeddings, masks, [method], **options):
        yield {
            direction: first_ranks(of_pairs, embeddings.pairs[:, DIRECTIONS.index(direction)])
            for direction, of_pairs in ranks[method].items()
        }


def _masks(embeddings: Embeddings) -> dict[str, torch.Tensor]:
    """Masks of clips: nothing masked, one modality of half of the clips, or all subtitles."""
    (everything, half), _ = masks_of(embeddings, (0.0, 0.5), mask_seed=0)
    without = everything.clone()
    without[:, embeddings.modalities.index("subtitle")] = False
    return {"nothing": everything, "half": half, "subtitles": without}


def _row(clips: str, key: Key, masked: str, direction: str, ranks: torch.Tensor) -> dict[str, Any]:
    kept = bytes(ranks.clamp(max=HIGHEST).tolist())
    names = {"clips": clips, "score": key[0], "numbers": key[1], "masked": masked, "direction": direction}
    return names | {"ranks": kept}


def measure(
    validation: Clips, tests: Mapping[str, Clips], compared: bool = False
) -> tuple[list[dict[str, Any]], dict[Key, Choice]]:
    """
    Rank the captions and clips of several sets by a model's own score, and by all scores if they are compared.

    Args:
        validation ([`Clips`]): to fit numbers and the router to.
        tests (`dict`): clips to rank, by the name of their set; those of `"test"` also masked.
        compared (`bool`): rank the clips of `"test"` by every score and by the router. Other sets, and masked
            clips, are ranked by the model's own score and by single modalities.

    Returns:
        Rows with `clips`, `score`, `numbers`, `masked` ("nothing", "half" or "subtitles"), `direction` and `ranks`, a
        byte for each query; and the fitted scores.
    """
    own = score_options_of(validation.embeddings.metadata)["method"]
    scores = dict.fromkeys([own])
    if compared:
        known = measurable_methods(validation.embeddings)
        scores |= dict.fromkeys(name for name in known if name not in WEIGHTED)
    chosen = choose(validation.embeddings, scores)
    chosen |= {(name, AS_TRAINED): (name, {}) for name in pathways(validation.embeddings.modalities)}
    rows, on_test = [], {}
    for name, clips in tests.items():
        for key, choice in chosen.items():
            is_own = key[0] == own or choice[0] in clips.embeddings.modalities
            if name != "test" and not is_own:
                continue
            masks = (
                _masks(clips.embeddings) if is_own and name == "test" else {"nothing": clips.embeddings.modality_mask}
            )
            for masked, ranks in zip(masks, own_ranks(clips.embeddings, [*masks.values()], choice), strict=True):
                rows += [_row(name, key, masked, direction, found) for direction, found in ranks.items()]
                if (name, masked) == ("test", "nothing"):
                    on_test[key] = ranks[DIRECTIONS[0]]
    if compared:
        masks = [validation.embeddings.modality_mask]
        known = {key: next(own_ranks(validation.embeddings, masks, choice)) for key, choice in chosen.items()}
        known = {key: ranks[DIRECTIONS[0]].tolist() for key, ranks in known.items()}
        _, routed = route(known, validation.groups, tests["test"].groups)
        ranks = torch.tensor([on_test[key][row].item() for row, key in enumerate(routed)])
        rows.append(_row("test", (ROUTER, FITTED_ALL), "nothing", DIRECTIONS[0], ranks))
    return rows, chosen


def main(config: MeasureConfig) -> None:
    """Embed clips, fit scores to validation clips, and write the ranks of the others."""
    model, output = Path(config.model), Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    validation = embed(model, config.root, "validation", output / "validation")
    tests = {"test": validation}
    if config.split == "test":
        tests["test"] = embed(model, config.root, "test", output / "test")
        tests["complete"] = tests["test"].complete()
    if config.disagree is not None:
        tests["disagree"] = embed(model, config.disagree, "test", output / "disagree")
    rows, chosen = measure(validation, tests, config.scores == "all")
    fitted = [
        {"score": score, "numbers": numbers, "options": options} for (score, numbers), (_, options) in chosen.items()
    ]
    for folder in ("validation", "test", "disagree"):  # megabytes that are no longer needed
        shutil.rmtree(output / folder, ignore_errors=True)
    own = score_options_of(validation.embeddings.metadata)["method"]
    write_json({"own": own, "scores": fitted}, output / "fitted.json")
    pq.write_table(pa.Table.from_pylist(rows), output / "ranks.parquet", compression="zstd")
