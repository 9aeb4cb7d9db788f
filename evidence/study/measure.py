"""`python -m evidence measure`: ranks by a trained model, by its own score and by others, as trained and fitted.

- Numbers are fitted to the validation clips, and a fit is kept only if clips that were not part of it gain in MRR@10
  ([`~evidence.study.fitting`]). Rows "fitted" have the fit that is kept, or what was trained. What a constant for
  missing modalities brings SCALAR is shown whether its fit is kept or not.
- Ranks are those of each query's own clip, and of each clip's own caption; ranks above `HIGHEST` are stored as that.
- Stored are `OUTPUT.json`, with the fitted numbers, and then `OUTPUT.parquet`, with the ranks: together a few dozen
  kilobytes, which say that a run is done. Of the trial of a tuning there is the first alone, with its MRR@10.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from evidence.miniature.benchmark import load_about
from evidence.router import route
from evidence.settings import MeasureConfig
from evidence.study.corrected import CORRECTED
from evidence.study.fitting import Fit, fits_of, kept_fit, some_clips
from evidence.study.ranks import HIGHEST, Choice, own_ranks, reciprocal
from evidence.study.towers import embed_stored, load_for, metadata_of
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol.first_stage import pathways
from scalar_retrieval.eval.protocol.missing import rate_masks
from scalar_retrieval.gallery.store.described import score_options_of
from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

AS_TRAINED, FITTED_ALL = "as trained", "fitted"
"""Numbers of a score: those of the training, or those of the fit that is kept."""

KEPT_OR_NOT = "fitted, kept or not"
"""The numbers of a fit, even if held-out clips gain nothing by it."""

TEMPERATURES = (0.05, 0.1, 0.2, 0.4, 0.8, math.inf)
"""Temperatures of SCALAR's weights at which its score is shown, besides that of the training."""

ROUTER = "router"
"""The upper bound of choosing a score: for each kind of caption, the best one on validation clips."""

COMPARED = ("scalar", "uniform", "gram", "gram_span", "hypergram", "pmrl", "gram_corrected", "span_corrected")
"""The scores that rank the embeddings of every method."""

OTHERS = ("mean", "max", "rank_fusion", "scalar_corrected")
"""Further scores, for one method's embeddings."""

RATES = ("0.25", "0.5", "0.75", "0.9")
"""Shares of clips that lose a modality: names of masks."""

HIDDEN = ("subtitle", "audio,subtitle")
"""Modalities that all clips lose: names of masks. The second leaves the video alone."""

_FEW_RATES = ("0.5", "0.9")  # for single modalities, and for variants that are not compared
_SHOWN_AS_TRAINED = ("scalar", "gram", "gram_span", "hypergram")  # by other scores, only fitted numbers are shown
_SETTINGS = ("temperature", "learning_rate", "num_train_epochs", "query_temperature")

Key = tuple[str, str]
"""A score and its numbers."""


@dataclass(frozen=True)
class EmbeddedClips:
    """Embedded clips, and the group of each caption: its kind and the modalities it is about."""

    embeddings: Embeddings
    groups: list[tuple[str, ...]]

    def complete(self) -> "EmbeddedClips":
        """The clips that have every modality, and their captions."""
        rows = self.embeddings.modality_mask.all(1).nonzero().flatten()
        embeddings, queries = some_clips(self.embeddings, rows)
        return EmbeddedClips(embeddings, [self.groups[row] for row in queries])


def embed(model: Path, root: Path, split: str, stored: bool) -> EmbeddedClips:
    """Embed a split of the miniature benchmark, from the stored outputs of the towers or from its files."""
    if stored:
        embeddings = embed_stored(model, root, split)
    else:
        network, processor, rows, _ = load_for(model, root, split)
        embeddings = embed_dataset(network, processor, rows, progress=False, num_workers=1)
        embeddings.metadata |= metadata_of(network, model, rows)
    abouts = load_about(root, split)
    groups = [(kind, *about) for kind, about in zip(embeddings.kinds(), abouts, strict=True)]
    return EmbeddedClips(embeddings, groups)


def _own_choice(embeddings: Embeddings) -> Choice:
    """Return the score of a training, and its options."""
    options = score_options_of(embeddings.metadata)
    return options.pop("method"), options


def choose(validation: Embeddings, scores: Sequence[str]) -> tuple[dict[Key, Choice], dict[str, list[Fit]]]:
    """Return each score with the numbers of its training and, if it has any to fit, with those that are kept; and what
    was fitted."""
    # Every score starts from the temperature of the training.
    _, trained = _own_choice(validation)
    chosen: dict[Key, Choice] = {}
    tried: dict[str, list[Fit]] = {}
    for score in scores:
        if score not in CORRECTED:
            chosen[score, AS_TRAINED] = (score, trained)
        tried[score] = fits_of(validation, score, trained)
        if not tried[score]:
            continue
        # Without a fit that is kept, the numbers stay what they were: those of the training, or none.
        kept = kept_fit(tried[score])
        if kept is not None:
            chosen[score, FITTED_ALL] = kept.choice
        else:
            chosen[score, FITTED_ALL] = chosen.get((score, AS_TRAINED), (score, trained))
    return chosen, tried


def at_temperatures() -> dict[Key, Choice]:
    """Return SCALAR's score at each of [`TEMPERATURES`]."""
    choices: dict[Key, Choice] = {}
    for value in TEMPERATURES:
        choices["scalar", f"temperature {value:g}"] = ("scalar", {"query_temperature": value})
    return choices


def _masks(embeddings: Embeddings) -> dict[str, torch.Tensor]:
    """Masks of clips: nothing, one modality of a share of the clips, all subtitles, or everything but the video."""
    drawn = rate_masks(embeddings.clip_ids, embeddings.modality_mask, (0.0, *map(float, RATES)))
    masks = dict(zip(("nothing", *RATES), drawn, strict=True))
    for hidden in HIDDEN:
        left = masks["nothing"].clone()
        for name in hidden.split(","):
            left[:, embeddings.modalities.index(name)] = False
        masks[hidden] = left
    return masks


def _row(clips: str, key: Key, masked: str, direction: str, ranks: torch.Tensor) -> dict[str, Any]:
    stored = bytes(ranks.clamp(max=HIGHEST).tolist())  # one byte each
    names = {"clips": clips, "score": key[0], "numbers": key[1], "masked": masked, "direction": direction}
    return names | {"ranks": stored}


def _rows(
    name: str, key: Key, clips: EmbeddedClips, choice: Choice, masks: Mapping[str, torch.Tensor]
) -> Iterator[dict]:
    """Rank a set of clips by a score under some masks; by a single modality under a mask from text to video alone."""
    is_single = key[0] in clips.embeddings.modalities
    under_masks = own_ranks(clips.embeddings, [*masks.values()], choice)
    for masked, ranks in zip(masks, under_masks, strict=True):
        for direction, of_queries in ranks.items():
            if is_single and masked != "nothing" and direction != DIRECTIONS[0]:
                continue
            yield _row(name, key, masked, direction, of_queries)


def _masked_of(clips: str, key: Key, own: str, modalities: Sequence[str], compared: bool) -> tuple[str, ...]:
    """Return the names of the masks under which a score of a set of clips is shown; none if it is not."""
    score, numbers = key
    # What is shown at all, with nothing masked.
    is_own = score == own and numbers in (AS_TRAINED, FITTED_ALL)
    is_single = score in modalities
    if clips == "disagree":
        is_shown = is_own or is_single
    elif clips == "complete":
        is_shown = is_own or score == "gram_span"
    else:
        is_shown = is_own or is_single or numbers != AS_TRAINED or score in _SHOWN_AS_TRAINED
    if not is_shown:
        return ()
    # Masks are for the main set of clips, more of them where methods are compared.
    masked = ("nothing",)
    if clips == "test" and is_single and compared:
        masked += _FEW_RATES
    if clips == "test" and is_own and numbers == AS_TRAINED:
        masked += ("0.5",)
    if clips == "test" and is_own and numbers == FITTED_ALL:
        rates = RATES if compared else _FEW_RATES
        masked += (*rates, *HIDDEN)
    return masked


def _routed(
    validation: EmbeddedClips, test: EmbeddedClips, chosen: Mapping[Key, Choice], on_test: Mapping[Key, torch.Tensor]
) -> torch.Tensor:
    """Return the ranks of test queries by the score that is best for their kind on validation clips."""
    # The best score of each kind by its ranks on validation clips, where every score is computed again.
    masks = [validation.embeddings.modality_mask]
    known = {}
    for key in on_test:
        (ranks,) = own_ranks(validation.embeddings, masks, chosen[key])
        known[key] = ranks[DIRECTIONS[0]].tolist()
    _, routed = route(known, validation.groups, test.groups)
    ranks_of_routed = [int(on_test[key][row]) for row, key in enumerate(routed)]
    return torch.tensor(ranks_of_routed)


def measure(
    validation: EmbeddedClips, tests: Mapping[str, EmbeddedClips], scores: str = "own", curve: bool = False
) -> tuple[list[dict[str, Any]], dict[Key, Choice], dict[str, list[Fit]]]:
    """
    Rank the captions and clips of several sets by a model's own score, by single modalities, and by other scores.

    Args:
        validation ([`EmbeddedClips`]): to fit numbers and the router to.
        tests (`dict`): clips to rank, by the name of their set. Those of `"test"` are also masked, for the model's
            own score and for single modalities, and ranked by all scores; complete ones by the span distance too.
        scores (`str`): `"own"`, `"compared"` ([`COMPARED`]) or `"all"` ([`OTHERS`] and the router too).
        curve (`bool`): also rank by SCALAR's score at each of [`TEMPERATURES`].

    Returns:
        Rows with `clips`, `score`, `numbers`, `masked`, `direction` and `ranks`, a byte for each query; the scores
        with their options; and what was fitted.
    """
    # What ranks: the model's own score, others as asked, each as trained and fitted, and single modalities.
    own, _ = _own_choice(validation.embeddings)
    modalities = validation.embeddings.modalities
    names = [own]
    if scores != "own":
        names += COMPARED
    if scores == "all":
        names += OTHERS
    chosen, tried = choose(validation.embeddings, list(dict.fromkeys(names)))
    if scores == "all":
        for fit in tried["scalar_corrected"]:
            chosen["scalar_corrected", KEPT_OR_NOT] = fit.choice
    if curve:
        chosen |= at_temperatures()
    for name in pathways(modalities):
        chosen[name, AS_TRAINED] = (name, {})

    # What is ranked: each set of clips, under the masks for which it is shown.
    rows = []
    for name, clips in tests.items():
        masks = _masks(clips.embeddings)
        for key, choice in chosen.items():
            masked = _masked_of(name, key, own, modalities, scores != "own")
            if not masked:
                continue
            rows += _rows(name, key, clips, choice, {mask: masks[mask] for mask in masked})
    # The router needs the ranks of all other scores.
    if scores == "all":
        on_test = {}
        for row in rows:
            if (row["clips"], row["masked"], row["direction"]) == ("test", "nothing", DIRECTIONS[0]):
                on_test[row["score"], row["numbers"]] = torch.tensor(list(row["ranks"]))
        ranks = _routed(validation, tests["test"], chosen, on_test)
        rows.append(_row("test", (ROUTER, FITTED_ALL), "nothing", DIRECTIONS[0], ranks))
    return rows, chosen, tried


def _learned(model: Path) -> dict[str, Any]:
    """Return the settings of a training, and the contrastive temperature that it learned, if it did."""
    # A learned temperature is where the training ended, not where its recipe began.
    recipe = read_json(model / "recipe.json")
    settings = {name: recipe.get(name) for name in _SETTINGS}
    if recipe.get("learnable_temperature"):
        network, _ = load_model(str(model), dtype=torch.float32)
        settings["learned_temperature"] = round(network.logit_scale().item(), 4)
    return settings


def _stored_numbers(chosen: Mapping[Key, Choice], tried: Mapping[str, Sequence[Fit]]) -> list[dict[str, Any]]:
    """Return the numbers of each score, and of each fit how many it fitted, what it gained and whether it was kept."""
    entries = []
    for (score, numbers), (_, options) in chosen.items():
        if numbers not in (AS_TRAINED, FITTED_ALL):
            continue
        entry: dict[str, Any] = {"score": score, "numbers": numbers, "options": options}
        if numbers == FITTED_ALL:
            kept = kept_fit(tried[score])
            entry["fits"] = []
            for fit in tried[score]:
                about = {"count": fit.count, "kept": fit is kept, "gain": fit.gain, "options": fit.choice[1]}
                entry["fits"].append(about)
        entries.append(entry)
    return entries


def main(config: MeasureConfig) -> None:
    """Embed clips, fit scores to validation clips, and write the ranks of the others; of a trial of the tuning, write
    MRR@10 on validation clips."""
    model, output = Path(config.model), Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    validation = embed(model, Path(config.root), "validation", config.stored)
    settings = _learned(model)
    choice = _own_choice(validation.embeddings)
    # A trial of the tuning sees no test clip.
    if config.split == "validation":
        (ranks,) = own_ranks(validation.embeddings, [validation.embeddings.modality_mask], choice)
        means = {name: reciprocal(ranks[name]).mean().item() for name in DIRECTIONS}
        write_json({"settings": settings, "mean_reciprocal_rank": means}, output.with_name(f"{output.name}.json"))
        return
    test = embed(model, Path(config.root), "test", config.stored)
    tests = {"test": test, "complete": test.complete()}
    if config.disagree is not None:
        tests["disagree"] = embed(model, Path(config.disagree), "test", config.stored)
    rows, chosen, tried = measure(validation, tests, config.scores, config.curve)
    content = {"own": choice[0], "settings": settings, "scores": _stored_numbers(chosen, tried)}
    # The file of ranks says that the run is done, so it comes last.
    write_json(content, output.with_name(f"{output.name}.json"))
    write_ranks(pa.Table.from_pylist(rows), output.with_name(f"{output.name}.parquet"))


def write_ranks(table: pa.Table, path: Path) -> None:
    """Write ranks; equal rows take space once."""
    temporary = path.with_name(f".{path.name}")
    pq.write_table(table, temporary, compression="zstd", compression_level=19, dictionary_pagesize_limit=2**28)
    temporary.replace(path)


__all__ = [
    "AS_TRAINED",
    "COMPARED",
    "FITTED_ALL",
    "HIGHEST",
    "KEPT_OR_NOT",
    "ROUTER",
    "embed",
    "main",
    "measure",
    "write_ranks",
]
