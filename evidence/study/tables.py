"""The study's tables, computed from its results alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from eval.reports.result_schema import method_title
from evidence.reports.tables import Cell, Row
from evidence.reports.tables import MetricsTable as Table

from .differences import (
    BASELINES,
    LEVEL,
    VIEWS,
    as_recall,
    bound,
    described,
    interval,
    judged,
    named_claims,
    variant_name,
)
from .measure import AS_TRAINED, ROUTER
from .paper import paper_table
from .results import BACK, MODALITIES, Results, Selection
from .runs import RECIPES
from .tuning import GRID

_SCORES = (
    "scalar", "uniform", "mean", "max", "rank_fusion", "gram", "gram_span", "hypergram", "pmrl", "video", "audio",
    "subtitle",
)  # fmt: skip
_ABSENT = "–"
_END = "†"


def _columns(*names: str) -> list[tuple[str, str]]:
    return [("", name) for name in names]


def _shown(results: Results, chosen: Selection, **changes: Any) -> Cell:
    return Cell(results.means(replace(chosen, **changes)))


def named_table(results: Results) -> Table:
    """The claims that were named in advance."""
    rows: list[Row] = []
    sets = {"main": "seed 0", "repeated": "seed 1"}
    for claim in named_claims():
        entry = judged(results).get(claim.name)
        beside = bound(results, as_recall(claim))
        if entry is None or beside is None:
            rows.append([claim.sentence, *[_ABSENT] * 4, "not measured"])
            continue
        where = ", ".join(sets[name] for name in entry["sets"])
        p_value = f"{entry['adjusted']:.3f}" if entry["adjusted"] >= 0.001 else "< 0.001"
        rows.append([claim.sentence, where, interval(entry), interval(beside), p_value, entry["verdict"]])
    note = (
        "Points of MRR@10, and of R@1 beside it, each the mean of both directions, all as trained; in brackets 95 % "
        "intervals for other queries and other trainings. p: two-sided, adjusted by Holm's rule for these "
        f"{len(rows)} claims. Shown: p at most {LEVEL:g}, and the first is ahead; reverse: the second is. The claims "
        "were named for the next version of the study, when the results of this one were known: here their verdicts "
        "repeat what was seen before, and test nothing."
    )
    columns = _columns("claim", "clips", "MRR@10", "R@1", "p", "verdict")
    return Table("named", "The claims named in advance", note, columns, [rows], 1)


def differences_table(results: Results) -> Table:
    """Every other difference."""
    rows: list[Row] = []
    for entry in described(results).values():
        rows.append([entry["of"].sentence, interval(entry)])
    note = (
        "Description, without verdicts: points of R@1, text to video, test clips of seed 0, fitted, unless said "
        "otherwise; in brackets 95 % intervals for other queries and other trainings. Some of the "
        f"{len(rows)} intervals leave out 0 by chance."
    )
    return Table("differences", "Differences", note, _columns("comparison", "difference"), [rows], 1)


def gains_table(results: Results) -> Table:
    """Every method's own score beside the best single modality of the same embeddings."""
    rows: list[Row] = []
    for variant in ("scalar", *BASELINES):
        own = Selection(variant, numbers=AS_TRAINED)
        best = results.best_modality(own)
        if best is None:
            continue
        gains = [interval(described(results)[name]) for name in (f"gain-{variant}", f"gain-{variant}-half")]
        cells = [_shown(results, own), method_title(best), _shown(results, own, score=best)]
        rows.append([variant_name(variant), *cells, *gains])
    note = (
        "R@1 in percent, text to video, as trained, test clips of seed 0; gains are those of both sets of clips where "
        "a method was trained on both. Masked: half of the clips lose one modality, for the single ones too."
    )
    columns = _columns("method", "own score", "best single", "R@1 of that", "gain", "gain, masked")
    return Table("gains", "Aggregation gain", note, columns, [rows], 1)


def main_table(results: Results) -> Table:
    """The main comparison: every variant with its own score, then other scores of SCALAR's embeddings."""
    shown = [
        ("T→V", "as trained", {"numbers": "as trained"}), ("T→V", "fitted", {}), ("T→V", "R@10", {"at": 10}),
        ("T→V", "masked", {"masked": "0.5"}), ("V→T", "as trained", {"numbers": "as trained", "direction": BACK}),
        ("V→T", "fitted", {"direction": BACK}), ("V→T", "R@10", {"direction": BACK, "at": 10}),
        ("V→T", "masked", {"direction": BACK, "masked": "0.5"}),
    ]  # fmt: skip
    variants = [
        [variant_name(variant), *(_shown(results, Selection(variant), **change) for *_, change in shown)]
        for variant in RECIPES
        if results.means(Selection(variant))
    ]
    others = [
        ("span distance of GRAM's embeddings", Selection("gram", "gram_span")),
        *((f"{method_title(name)}, SCALAR's embeddings", Selection(score=name)) for name in
          ("gram_span", "gram", "rank_fusion", *MODALITIES)),
        ("router that knows the kind of caption", Selection(score=ROUTER)),
    ]  # fmt: skip
    beside = [[title, *(_shown(results, chosen, **change) for *_, change in shown)] for title, chosen in others]
    note = (
        "R@1 in percent unless R@10 is named, 1,000 test clips; mean ± deviation over seeds. Fitted: numbers that "
        "were fitted to validation clips in both directions; HyperGRAM and TRIANGLE have none, nor has a single "
        "modality. Masked: half of the clips lose one modality, fitted."
    )
    columns = [("", "variant"), *((group, heading) for group, heading, _ in shown)]
    return Table("main", "Main comparison", note, columns, [variants, beside], 1)


def _settings(results: Results) -> dict[str, list[str]]:
    """The chosen value of each setting by method, marked if it lies at an end of what was tried."""
    tuning = results.study["tuning"] or {"methods": {}}
    found = {}
    for variant, method in tuning["methods"].items():
        found[variant] = []
        for name, tried in GRID.items():
            value = method["chosen"][name]
            mark = _END if value in (min(tried), max(tried)) else ""
            found[variant].append(f"{value:g}{mark}")
    return found


def short_table(results: Results) -> Table:
    """The main comparison in a few lines, for the README."""
    shown = []
    for heading, direction in (("T→V", "text_to_video"), ("V→T", BACK)):
        for numbers in ("as trained", "fitted"):
            shown.append((heading, numbers, {"numbers": numbers, "direction": direction}))
    settings = _settings(results)
    rows: list[Row] = []
    for variant in ("scalar", *BASELINES):
        cells = [_shown(results, Selection(variant), **change) for *_, change in shown]
        rows.append([variant_name(variant), ", ".join(settings.get(variant, [_ABSENT])), *cells])
    clips, runs = results.study["clips"]["main"], len(results.seeds())
    note = (
        f"R@1 in percent, text to video (T→V) and back: {clips['num_test']:,} test clips, mean ± standard deviation "
        f"over {runs} trainings. Fitted: with numbers fitted on validation clips; HyperGRAM's and TRIANGLE's scores "
        f"have none. Settings: contrastive temperature (PMRL: of directions), learning rate, epochs; {_END}: an end "
        "of what was tried."
    )
    columns = [("", "method"), ("", "settings"), *((group, heading) for group, heading, _ in shown)]
    return Table("short", "Main comparison in short", note, columns, [rows], 2)


def attribution_table(results: Results, direction: str = "text_to_video") -> Table:
    """Each method's embeddings ranked by each score."""
    rows: list[Row] = []
    for variant in ("scalar", *BASELINES):
        cells = [_shown(results, Selection(variant, score), direction=direction) for score in _SCORES]
        if any(cell.values for cell in cells):
            rows.append([variant_name(variant), *cells])
    note = "R@1 in percent; rows: what trained the embeddings; columns: what scores them, with fitted numbers."
    title = f"Attribution, {direction.replace('_', ' ')}"
    columns = _columns("embeddings of", *(method_title(score) for score in _SCORES))
    return Table(f"attribution_{direction}", title, note, columns, [rows], 1)


def kinds_table(results: Results) -> Table:
    """R@1 by kind of caption."""
    kinds = {"about one modality": {"kinds": ("single",)}, "about several": {"kinds": ("several",)},
             "about what is shared": {"kinds": ("shared",)}}  # fmt: skip
    kinds |= {f"about {name} alone": {"about": name, "kinds": ("single",)} for name in MODALITIES}
    rows = [
        [variant_name(variant), *(_shown(results, Selection(variant), **change) for change in kinds.values())]
        for variant in ("scalar", *BASELINES)
    ]
    return Table("kinds", "Kinds of captions", "R@1 in percent, text to video, fitted.",
                 _columns("variant", *kinds), [rows], 1)  # fmt: skip


def views_table(results: Results) -> Table:
    """Masked views, on complete training clips and on clips of which some lack a modality."""
    shown = {
        "R@1": {}, "R@10": {"at": 10}, "half masked": {"masked": "0.5"}, "without subtitles": {"masked": "subtitle"},
        "video to text": {"direction": BACK}, "picture alone": {"score": "video"}, "sound alone": {"score": "audio"},
        "subtitle alone": {"score": "subtitle"},
    }  # fmt: skip
    rows = [
        [where.replace(" training clips", ""), variant_name(variant),
         *(_shown(results, Selection(variant, experiment=f"views-{clips}"), **change) for change in shown.values())]
        for clips, where in VIEWS.items()
        for variant in ("scalar", "no_masked_views")
    ]  # fmt: skip
    return Table("views", "Masked views", "R@1 in percent unless R@10 is named, the 1,000 test clips of the main "
                 "comparison, fitted.", _columns("training clips", "variant", *shown), [rows], 1)  # fmt: skip


def disagreement_table(results: Results) -> Table:
    """Clips in which everything that a caption is not about comes from another clip."""
    groups = {"about one modality": ("single",), "about several": ("several",), "about what is shared": ("shared",)}
    rows = [
        [variant_name(variant),
         *(_shown(results, Selection(variant), kinds=kinds, clips=clips)
           for kinds in groups.values() for clips in ("test", "disagree"))]
        for variant in ("scalar", *BASELINES)
    ]  # fmt: skip
    columns = [("", "variant"), *((group, clips) for group in groups for clips in ("agree", "disagree"))]
    return Table("disagreement", "Where modalities disagree", "R@1 in percent, text to video, fitted on clips that "
                 "agree.", columns, [rows], 1)  # fmt: skip


def arity_table(results: Results) -> Table:
    """Complete clips alone, next to the gallery of mixed arity."""
    rows = [
        [variant_name(variant),
         *(_shown(results, Selection(variant), clips=clips, numbers=numbers)
           for clips in ("test", "complete") for numbers in ("as trained", "fitted"))]
        for variant in ("scalar", *BASELINES)
    ]  # fmt: skip
    columns = [("", "variant"), *((clips, numbers) for clips in ("all test clips", "complete test clips alone")
                                  for numbers in ("as trained", "fitted"))]  # fmt: skip
    return Table("arity", "Galleries of one arity", "R@1 in percent, text to video.", columns, [rows], 1)


def sharing_table(results: Results) -> Table:
    """R@1 as a function of how much the modalities of a clip share."""
    levels = results.levels()
    rows = [
        [variant_name(variant), words,
         *(_shown(results, Selection(variant, experiment=name), masked=masked) for name in levels.values())]
        for variant in ("scalar", "scalar_uniform", "gram")
        for masked, words in {"nothing": "nothing masked", "0.5": "half masked"}.items()
    ]  # fmt: skip
    columns = [("", "variant"), ("", ""), *((f"{level:g}", "shared") for level in levels)]
    return Table("sharing", "How much modalities share", "R@1 in percent, text to video, fitted; every column has "
                 "training, validation and test clips of its own.", columns, [rows], 2)  # fmt: skip


def repeated_table(results: Results) -> Table:
    """The main comparison on other clips."""
    rows = [
        [variant_name(variant), *(_shown(results, Selection(variant, experiment=name), direction=direction)
                                for name in ("main", "repeated") for direction in ("text_to_video", BACK))]
        for variant in ("scalar", "scalar_uniform", "gram")
    ]  # fmt: skip
    columns = [("", "variant"), *((name, way) for name in ("seed 0", "seed 1") for way in ("T→V", "V→T"))]
    return Table("repeated", "The same on other clips", "R@1 in percent, fitted; settings of training are those that "
                 "were chosen on the clips of seed 0.", columns, [rows], 1)  # fmt: skip


def ceilings_table(results: Results) -> Table:
    """R@1 of perfect readers and of SCALAR's embeddings."""
    rows: list[Row] = []
    for name in ("main", "repeated", *(n for n in results.levels().values() if n != "main")):
        clips = results.study["clips"].get(name)
        if clips is not None:
            found = [Cell((clips["ceilings"][reader]["all"],)) for reader in ("all", *MODALITIES)]
            reached = [_shown(results, Selection(score=reader, experiment=name)) for reader in ("scalar", *MODALITIES)]
            absent = "/".join(f"{100 * clips['absent']['test'][m] / clips['num_test']:.0f}" for m in MODALITIES)
            rows.append([f"seed {clips['seed']}, {clips['shared']:g} shared", absent,
                         *(cell for pair in zip(found, reached, strict=True) for cell in pair)])  # fmt: skip
    columns = [("", "clips"), ("", "lack picture/sound/subtitle, %")]
    columns += [(reader, what) for reader in ("everything", *MODALITIES) for what in ("perfect", "SCALAR's")]
    note = "R@1 in percent, text to video: of a reader that makes no mistake, and of SCALAR's trained embeddings."
    return Table("ceilings", "Perfect readers", note, columns, [rows], 1)


def settings_table(results: Results) -> Table:
    """The chosen settings of each method, and what its best trial found on validation clips."""
    tuning = results.study["tuning"] or {"measure": "mean_reciprocal_rank", "methods": {}}
    measure = tuning["measure"]
    title = {"recall_at_1": "R@1", "mean_reciprocal_rank": "MRR@10"}[measure]
    rows = []
    for variant, method in tuning["methods"].items():
        best = max((t[measure] for t in method["trials"] if t[measure] is not None), default=None)
        cell = Cell() if best is None else Cell((best,))
        rows.append([variant_name(variant), *_settings(results)[variant], cell])
    grid = "; ".join(f"{name} {', '.join(f'{v:g}' for v in values)}" for name, values in GRID.items())
    note = f"Chosen by the mean {title} of both directions on validation clips; ablations have SCALAR's. "
    note += f"Tried: {grid}; {_END}: an end of these. For PMRL the temperature is that of its directions; GRAM, "
    note += "HyperGRAM and TRIANGLE learn theirs, from this start."
    return Table("settings", "Chosen settings", note, _columns("method", *GRID, title), [rows], 1)


def fitted_table(results: Results) -> Table:
    """The fitted numbers, means over seeds, and how many they are."""
    rows: list[Row] = []
    for variant in ("scalar", *BASELINES):
        own = next((run["own"] for run in results.study["runs"] if run["variant"] == variant), None)
        if own is None:
            continue
        options = results.options(variant, own, "fitted")
        cells, count = [], 0
        for name in ("query_temperature", "modality_scale", "modality_offset"):
            values = [np.atleast_1d(found[name]) for found in options if found.get(name) is not None]
            means = np.mean(values, axis=0) if values else ()
            count += len(means)
            cells.append(", ".join(f"{mean:.2f}" for mean in means) or _ABSENT)
        rows.append([variant_name(variant), *cells, str(count)])
    note = "Means over seeds; scales and offsets of picture, sound and subtitle; how many numbers a method has."
    columns = _columns("variant", "temperature of weights", "scales", "offsets", "numbers")
    return Table("fitted", "Fitted numbers", note, columns, [rows], 1)


def second_stage_table(results: Results) -> Table:
    """The second stage after different trainings."""
    by_label: dict[str, list[dict[str, Any]]] = {}
    for run in results.study["second_stage"]:
        by_label.setdefault(run["label"], []).append(run)
    rows: list[Row] = []
    for label, runs in by_label.items():
        cells: list[Cell] = []
        for direction in ("text_to_video", BACK):
            cells.append(Cell(tuple(run["first"][f"{direction}, 0 masked"] for run in runs)))
            for rule in ("match", "fused"):
                found = (run["staged"].get(f"{direction}, 0 masked, {rule}") for run in runs)
                cells.append(Cell(tuple(value for value in found if value is not None)))
        rows.append([variant_name(label), *cells, Cell(tuple(run["auc"] for run in runs), digits=3)])
    columns = [("", "training"), *((way, what) for way in ("T→V", "V→T") for what in ("first", "match", "fused"))]
    note = (
        "R@1 in percent, first stage with the numbers of training; 50 candidates; fused with a weight chosen on "
        "validation clips."
    )
    return Table("second_stage", "The second stage", note, [*columns, ("", "AUC")], [rows], 1)


TABLES: dict[str, Callable[[Results], Table]] = {
    "short": short_table,
    "main": main_table,
    "named": named_table,
    "differences": differences_table,
    "gains": gains_table,
    "paper": paper_table,
    "kinds": kinds_table,
    "attribution": attribution_table,
    "attribution-back": lambda results: attribution_table(results, BACK),
    "ceilings": ceilings_table,
    "views": views_table,
    "disagreement": disagreement_table,
    "arity": arity_table,
    "sharing": sharing_table,
    "repeated": repeated_table,
    "second_stage": second_stage_table,
    "settings": settings_table,
    "fitted": fitted_table,
}
"""The tables that a page can show, by name."""


__all__ = ["TABLES", "main_table", "sharing_table", "short_table"]
