"""`python -m evidence fused`: fusing inside an encoder, weighting its vectors, or both.

Each model is a joint encoder (`evidence.study.joint` trains a small one). Temperatures, scales, offsets and the
best single modality are chosen on the validation clips; all results are of the test clips. A mask hides
one modality of half of the clips; the fused vector is then that of the remaining ones.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import evidence.miniature  # noqa: F401 # registers its benchmark
from evidence.fused import embed_whole_clips
from evidence.reports.tables import Cell, MetricsTable, markdown
from evidence.settings import FusedConfig
from scalar_retrieval.commands.texts import print_lines, print_message
from scalar_retrieval.eval.benchmarks.clip_rows import group_rows, query_kinds, read_row
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import first_ranks, retrieval_metrics
from scalar_retrieval.eval.protocol.calibration import fit
from scalar_retrieval.eval.protocol.first_stage import pathways, rank_pairs
from scalar_retrieval.eval.protocol.missing import rate_masks
from scalar_retrieval.eval.protocol.statistics import paired_bootstrap
from scalar_retrieval.gallery.store.files import write_json
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

_RATES = (0.0, 0.5)
_FUSED = "fused"  # the modality that holds the vectors of whole clips
_USUAL = {"query_temperature": 0.1}
_SHOWN = ("recall_at_1", "recall_at_5", "recall_at_10", "ndcg_at_10")
_TITLES = {"recall_at_1": "R@1", "recall_at_5": "R@5", "recall_at_10": "R@10", "ndcg_at_10": "nDCG@10"}

Choice = tuple[str, dict[str, Any], bool]
"""A score, its options, and whether it reads the fused vector as a modality."""

Ranks = dict[str, torch.Tensor]
"""Ranks of all queries by direction, with `_masked` where half of the clips are masked."""


@dataclass
class Measured:
    """Embeddings of a split; what each rate's mask leaves of a clip, `(clips, 3)`; and the fused vectors of that,
    `(clips, dim)`."""

    embeddings: Embeddings
    masks: list[torch.Tensor]
    fused: list[torch.Tensor]

    def seen(self, place: int, with_fused: bool) -> Embeddings:
        """Return the embeddings under one mask, with the fused vector as a modality like the others, or without it."""
        embeddings, mask = self.embeddings, self.masks[place]
        # A whole clip always has a fused vector, whatever it lacks.
        if not with_fused:
            return replace(embeddings, modality_mask=mask)
        return replace(
            embeddings,
            modality_embeds=torch.cat([embeddings.modality_embeds, self.fused[place][:, None]], dim=1),
            modality_mask=torch.cat([mask, torch.ones(len(mask), 1, dtype=torch.bool)], dim=1),
            modalities=(*embeddings.modalities, _FUSED),
        )


def embed(path: Path, root: Path, split: str) -> Measured:
    """Embed a split: single modalities once, and what each mask leaves of a clip as one vector."""
    model, processor = load_model(path)
    loaded = load_split("miniature", root, split)
    embeddings = embed_dataset(model, processor, loaded.dataset, task=loaded.task)
    embeddings.metadata = query_kinds(loaded.dataset, loaded.task)
    # The encoder fuses what each mask leaves: a fused vector cannot be masked later.
    masks = rate_masks(embeddings.clip_ids, embeddings.modality_mask, _RATES)
    rows, *_ = group_rows(loaded.dataset, loaded.task)
    clips = [read_row(processor, row, processed=True) for row in rows]
    return Measured(embeddings, masks, embed_whole_clips(model, processor, clips, masks))


def choose(validation: Measured) -> dict[str, Choice]:
    """Choose the settings of every method on the same clips, by the same rule: numbers by likelihood, the rest by
    R@1."""
    parts = validation.seen(0, False)
    every = validation.seen(0, True)
    # The best single modality is a choice, too: by R@1 of these clips.
    singles = pathways(parts.modalities)
    (ranks,) = rank_pairs(parts, [parts.modality_mask], singles, ["text_to_video"])
    best = max(singles, key=lambda name: int((ranks[name]["text_to_video"] == 1).sum()))
    # A score, its options, and whether the fused vector is among the modalities.
    return {
        f"best single modality ({best})": (best, {}, False),
        "equal weights": ("uniform", {}, False),
        "fused by the encoder": (_FUSED, {}, True),
        "SCALAR, temperature 0.1": ("scalar", _USUAL, False),
        "SCALAR, fitted": ("scalar", fit(parts, _USUAL, scale_offset=True), False),
        "SCALAR, fitted, fused as a modality": ("scalar", fit(every, _USUAL, scale_offset=True), True),
    }


def measure(test: Measured, choice: Choice) -> Ranks:
    """The rank of each query's first relevant candidate, by direction and, where half of the clips are masked, with
    `_masked`."""
    # Each mask is an evaluation of its own, with other fused vectors.
    method, options, with_fused = choice
    found = {}
    for place, rate in enumerate(_RATES):
        embeddings = test.seen(place, with_fused)
        (ranks,) = rank_pairs(embeddings, [embeddings.modality_mask], [method], **options)
        for direction, of_pairs in ranks[method].items():
            queries = embeddings.pairs[:, DIRECTIONS.index(direction)]
            found[direction + "_masked" * (rate > 0)] = first_ranks(of_pairs, queries)
    return found


def percent(ranks: torch.Tensor, measure: str) -> torch.Tensor:
    """What each query adds to a measure, in percent: a mean of these is the measure."""
    if measure == "ndcg_at_10":
        return 100 * (ranks <= 10) / torch.log2(1 + ranks.double())
    return 100.0 * (ranks <= int(measure.rsplit("_", 1)[1])).double()


def _per_query(of_models: list[Ranks], name: str, measure: str) -> torch.Tensor:
    """What each query adds to a measure, in percent: its mean over encoders, `(queries,)`."""
    return torch.stack([percent(ranks[name], measure) for ranks in of_models]).mean(0)


def _mean(values: torch.Tensor) -> Cell:
    return Cell((values.mean().item(),))


def table(titles: dict[str, str], ranks: dict[str, list[Ranks]], suffix: str) -> str:
    """The means over encoders in both directions, in Markdown."""
    columns = [("", "percent")]
    rows: dict[str, list[Cell | str]] = {key: [titles[key]] for key in ranks}
    for direction in DIRECTIONS:
        for measure in _SHOWN:
            columns.append((f"{direction}{suffix}".replace("_", " "), _TITLES[measure]))
            for key, of_models in ranks.items():
                rows[key].append(_mean(_per_query(of_models, f"{direction}{suffix}", measure)))
    return markdown(MetricsTable("fused", "", "", columns, [list(rows.values())]))


def kinds_table(titles: dict[str, str], ranks: dict[str, list[Ranks]], kinds: list[str | None]) -> str:
    """R@1 and R@10 from text to video by the kind of caption, in Markdown."""
    columns = [("", "percent, text to video")]
    rows: dict[str, list[Cell | str]] = {key: [titles[key]] for key in ranks}
    for kind in sorted(set(kinds) - {None}):
        of_kind = torch.tensor([own == kind for own in kinds])  # (queries,)
        for measure in _SHOWN[::2]:
            columns.append((f"{kind} ({int(of_kind.sum())})", _TITLES[measure]))
            for key, of_models in ranks.items():
                rows[key].append(_mean(_per_query(of_models, "text_to_video", measure)[of_kind]))
    return markdown(MetricsTable("kinds", "", "", columns, [list(rows.values())]))


def differences(ranks: dict[str, list[Ranks]], ours: str, theirs: str) -> dict[str, dict[str, Any]]:
    """The difference of two methods by each measure, with the interval of the paired bootstrap over queries, of which
    each has its mean over encoders."""
    found = {}
    for name in ranks[ours][0]:
        for measure in _SHOWN:
            first = _per_query(ranks[ours], name, measure)
            second = _per_query(ranks[theirs], name, measure)
            found[f"{name} {_TITLES[measure]}"] = paired_bootstrap(first.tolist(), second.tolist())
    return found


def main(config: FusedConfig) -> None:
    """Compare one fused vector with SCALAR's weights of single ones, and with both."""
    ranks: dict[str, list[Ranks]] = {}
    titles: dict[str, str] = {}
    chosen = []
    kinds: list[str | None] = []
    for path in config.models:
        # Every encoder has settings of its own, from its validation clips.
        validation = embed(path, config.root, "validation")
        test = embed(path, config.root, "test")
        kinds = test.embeddings.kinds()
        choices = choose(validation)
        chosen.append({"model": str(path), **choices})
        for title, choice in choices.items():
            # Encoders whose best single modality differs share a row, without its name.
            key = title.split(" (")[0]
            if titles.setdefault(key, title) != title:
                titles[key] = key
            ranks.setdefault(key, []).append(measure(test, choice))
        print_message(f"{path}: measured")

    # Three tables, then every difference in a line.
    parts = [table(titles, ranks, ""), table(titles, ranks, "_masked"), kinds_table(titles, ranks, kinds)]
    text = "\n\n".join(parts) + "\n\n"
    compared = {}
    for ours in ("SCALAR, fitted, fused as a modality", "SCALAR, fitted"):
        for theirs in ("fused by the encoder", "SCALAR, fitted", "equal weights"):
            if ours != theirs:
                compared[f"{ours} - {theirs}"] = differences(ranks, ours, theirs)
    for name, of_measures in compared.items():
        bounds = []
        for title, found in of_measures.items():
            bounds.append(f"{title} {found['difference']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]")
        text += f"- {name}: {'; '.join(bounds)}\n"

    # All measures of every encoder, for whoever wants others than the tables have.
    measures: dict[str, list[dict[str, Any]]] = {}
    for key, of_models in ranks.items():
        measures[key] = []
        for of_model in of_models:
            of_directions = {}
            for name, each in of_model.items():
                of_directions[name] = retrieval_metrics(each)
            measures[key].append(of_directions)
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    write_json({"choices": chosen, "measures": measures, "differences": compared}, output / "fused.json")
    (output / "fused.md").write_text(text, encoding="utf-8")
    print_lines(*text.splitlines())
