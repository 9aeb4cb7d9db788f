"""The study's tables, computed from its results alone."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evidence.reports.tables import Cell, MetricsTable, Row
from evidence.statistics import sign_test
from scalar_retrieval.modeling_scalar.scores_scalar import method_title

from .corrected import CORRECTED
from .differences import (
    BASELINES,
    KINDS,
    LEVEL,
    VIEWS,
    as_recall,
    described_differences,
    format_interval,
    judged_claims,
    named_claims,
    variant_name,
    with_interval,
)
from .measure import AS_TRAINED, FITTED_ALL, HIDDEN, RATES, ROUTER, TEMPERATURES
from .paper import paper_table
from .results import BACK, BOTH, MODALITIES, SAME_SIZE, SETS, Quantity, StudyResults
from .runs import RECIPES
from .tuning import GRID

_METHODS = ("scalar", *BASELINES)
_VOLUMES = ("gram_span", "gram_corrected", "span_corrected")
_SCORES = (
    "scalar", "uniform", "mean", "max", "rank_fusion", "gram", *_VOLUMES, "hypergram", "pmrl", "video", "audio",
    "subtitle",
)  # fmt: skip
_ABSENT = "–"
_EDGE = "†"
_WAYS = (("T→V", "text_to_video"), ("V→T", BACK))
_MRR = {"measure": "mrr", "direction": BOTH}
_OPTIONS = {
    "query_temperature": "temperature of weights", "modality_scale": "scales", "modality_offset": "offsets",
    "rank_constant": "constant of ranks", "exponent": "exponent", "missing": "per missing modality",
}  # fmt: skip

Column = tuple[str, str, Mapping[str, Any]]
"""Group and heading of a column, and the fields in which its quantities differ from those of the rows."""


def _columns(*names: str) -> list[tuple[str, str]]:
    return [("", name) for name in names]


def _with_keys(*keys: str, shown: Sequence[Column]) -> list[tuple[str, str]]:
    """The headings of the keys of rows, then those of the quantities."""
    return _columns(*keys) + [(group, heading) for group, heading, _ in shown]


def _add_row(rows: list[Row], results: StudyResults, keys: Sequence[str], quantity: Quantity, shown: Sequence[Column]):
    """Add the means of a quantity in every column, behind the keys; nothing if no column was measured."""
    cells = [Cell(results.means(replace(quantity, **changes))) for _, _, changes in shown]
    if any(cell.values for cell in cells):
        rows.append([*keys, *cells])


def _own_scores(results: StudyResults, shown: Sequence[Column]) -> list[Row]:
    """A row for each method that was measured, with its own score."""
    rows: list[Row] = []
    for variant in _METHODS:
        _add_row(rows, results, [variant_name(variant)], Quantity(variant), shown)
    return rows


def _interval(results: StudyResults, name: str) -> str:
    """A described difference in a cell."""
    entry = described_differences(results).get(name)
    return _ABSENT if entry is None else format_interval(entry)


def _masked(rate: str) -> str:
    return f"{100 * float(rate):g} % masked"


def _score_title(score: str) -> str:
    return variant_name(score) if score in CORRECTED else method_title(score)


def _number_kept(results: StudyResults, variant: str, score: str | None = None) -> str:
    """How many numbers the fits that are kept have; several where trainings differ."""
    if score == ROUTER:
        return _ABSENT
    # Trainings may keep different fits.
    counts = set()
    for entry in results.entries(variant, score, FITTED_ALL):
        count = 0
        for fit in entry["fits"]:
            if fit["kept"]:  # at most one is
                count = fit["count"]
        counts.add(count)
    return " or ".join(map(str, sorted(counts))) or "0"


def _of_trainings(results: StudyResults) -> str:
    """What the cells of a table are means of."""
    clips = results.study["clips"][SETS[0]]["num_test"]
    runs = len(results.seeds())
    return f"two sets of {clips:,} test clips, mean ± standard deviation over {runs} trainings on each"


def named_table(results: StudyResults) -> MetricsTable:
    """The claims that were named in advance."""
    # A claim that was not measured keeps its row: the family was named with it.
    rows: list[Row] = []
    sets = {"main": "seed 0", "repeated": "seed 1"}
    for claim in named_claims():
        entry = judged_claims(results).get(claim.name)
        beside = with_interval(results, as_recall(claim))
        if entry is None or beside is None:
            rows.append([claim.sentence, *[_ABSENT] * 4, "not measured"])
            continue
        where = ", ".join(map(sets.__getitem__, entry["sets"]))
        p_value = "< 0.001"
        if entry["adjusted"] >= 0.001:
            p_value = f"{entry['adjusted']:.3f}"
        shown = format_interval(entry), format_interval(beside)
        rows.append([claim.sentence, where, *shown, p_value, entry["verdict"]])
    note = (
        "Points of MRR@10, and of R@1 beside it, each the mean of both directions, with the fit that clips held out "
        "from it keep; in brackets 95 % intervals for other queries and other trainings. p: two-sided, adjusted by "
        f"Holm's rule for these {len(rows)} claims. Shown: p at most {LEVEL:g}, and the first is ahead; reverse: the "
        "second is."
    )
    columns = _columns("claim", "clips", "MRR@10", "R@1", "p", "verdict")
    return MetricsTable("named", "The claims named in advance", note, columns, [rows], 1)


def differences_table(results: StudyResults) -> MetricsTable:
    """Every other difference."""
    rows: list[Row] = []
    for entry in described_differences(results).values():
        rows.append([entry["of"].sentence, format_interval(entry)])
    note = (
        "Description, without verdicts: points of R@1, text to video, both sets of clips, fitted, unless said "
        "otherwise; in brackets 95 % intervals for other queries and other trainings. Some of the "
        f"{len(rows)} intervals leave out 0 by chance."
    )
    return MetricsTable("differences", "Differences", note, _columns("comparison", "difference"), [rows], 1)


def gains_table(results: StudyResults) -> MetricsTable:
    """Every method's own score beside the best single modality of the same embeddings."""
    rows: list[Row] = []
    for variant in _METHODS:
        own = Quantity(variant)
        # Which modality is best may differ from method to method.
        best = results.best_modality(own)
        if best is None:
            continue
        alone = Cell(results.means(replace(own, score=best)))
        cells = [Cell(results.means(own)), method_title(best), alone]
        for ending in ("", "-0.5", "-0.9"):
            cells.append(_interval(results, f"gain-{variant}{ending}"))
        rows.append([variant_name(variant), *cells])
    note = (
        "R@1 in percent, text to video, fitted. Masked: half or 90 % of the clips lose one modality, for the single "
        "ones too."
    )
    columns = _columns("method", "own score", "best single", "R@1 of that", "gain", "gain, half masked",
                       "gain, 90 % masked")  # fmt: skip
    return MetricsTable("gains", "Aggregation gain", note, columns, [rows], 1)


def main_table(results: StudyResults) -> MetricsTable:
    """The main comparison: every variant with its own score, then other scores of the same embeddings."""
    shown: list[Column] = [("MRR@10", AS_TRAINED, _MRR | {"numbers": AS_TRAINED}), ("MRR@10", FITTED_ALL, _MRR)]
    for way, direction in _WAYS:
        of_way = {"direction": direction}
        shown += [
            (way, AS_TRAINED, of_way | {"numbers": AS_TRAINED}),
            (way, FITTED_ALL, of_way),
            (way, "R@10", of_way | {"at": 10}),
        ]
    variants: list[Row] = []
    for variant in RECIPES:
        keys = variant_name(variant), _number_kept(results, variant)
        _add_row(variants, results, keys, Quantity(variant), shown)
    # Volumes of GRAM's embeddings, corrected by numbers of a clip alone, are the strongest rivals.
    beside: list[Row] = []
    for variant, scores in {"gram": _VOLUMES, "scalar": ("gram", *_VOLUMES, "rank_fusion", *MODALITIES)}.items():
        for score in scores:
            keys = (
                f"{_score_title(score)}, {variant_name(variant)}'s embeddings",
                _number_kept(results, variant, score),
            )
            _add_row(beside, results, keys, Quantity(variant, score), shown)
    router = Quantity(score=ROUTER)
    _add_row(beside, results, ["router that knows the kind of caption", _ABSENT], router, shown)
    note = (
        f"R@1 in percent unless MRR@10, the mean of both directions, or R@10 is named; {_of_trainings(results)}. "
        "Fitted: with parameters that were fitted to validation clips in both directions; HyperGRAM, TRIANGLE and "
        "single modalities have none. Fitted parameters: those of the fit that is kept; with 0, fitted is as trained. "
        "Corrected: with an exponent on the determinant of the clip's own modalities (−1 for the span distance) and a "
        "constant for each that is missing, which leave the order of captions as it is."
    )
    columns = _with_keys("variant", "fitted parameters", shown=shown)
    return MetricsTable("main", "Main comparison", note, columns, [variants, beside], 1)


def _settings(results: StudyResults) -> dict[str, list[str]]:
    """The chosen value of each setting by method, marked if it lies at an end of what was tried."""
    tuning = results.study["tuning"] or {"methods": {}}
    settings = {}
    for variant, method in tuning["methods"].items():
        settings[variant] = []
        for name in GRID:
            # Trials beyond the grid count: an end that was passed is none.
            tried = [trial["settings"][name] for trial in method["trials"]]
            value = method["chosen"][name]
            mark = ""
            if value in (min(tried), max(tried)):
                mark = _EDGE
            settings[variant].append(f"{value:g}{mark}")
    return settings


def short_table(results: StudyResults) -> MetricsTable:
    """The main comparison in a few lines, for the README."""
    # The main measure comes first.
    shown: list[Column] = [
        ("MRR@10", "all clips", _MRR),
        ("MRR@10", "complete clips", _MRR | {"clips": "complete"}),
    ]
    for way, direction in _WAYS:
        shown.append(("R@1", way, {"direction": direction}))
    settings = _settings(results)
    rows: list[Row] = []
    for variant in _METHODS:
        chosen = ", ".join(settings.get(variant, [_ABSENT]))
        keys = variant_name(variant), chosen, _number_kept(results, variant)
        _add_row(rows, results, keys, Quantity(variant), shown)
    note = (
        f"Percent: {_of_trainings(results)}; MRR@10 of both directions. Settings: contrastive temperature, learning "
        f"rate, epochs; {_EDGE} edge of the search grid."
    )
    columns = _with_keys("method", "settings", "fitted parameters", shown=shown)
    return MetricsTable("short", "Main comparison in short", note, columns, [rows], 2)


def curve_table(results: StudyResults) -> MetricsTable:
    """SCALAR's score at several temperatures of its weights."""
    shown: list[Column] = []
    for value in TEMPERATURES:
        shown.append(("temperature", f"{value:g}", {"numbers": f"temperature {value:g}"}))
    rows: list[Row] = []
    for variant in ("scalar", "scalar_01", "gram"):
        for words, changes in (("MRR@10", _MRR), ("T→V", {}), ("V→T", {"direction": BACK})):
            _add_row(rows, results, [variant_name(variant), words], Quantity(variant, "scalar", **changes), shown)
    note = "MRR@10 of both directions and R@1 in percent by SCALAR's score; infinite: the weights are equal."
    columns = _with_keys("embeddings of", "", shown=shown)
    return MetricsTable("curve", "The temperature of weights", note, columns, [rows], 2)


def masks_table(results: StudyResults) -> MetricsTable:
    """SCALAR's lead where some clips lose a modality, and the sign test over sets of clips and masks."""
    columns = _columns("", "nothing masked", *map(_masked, RATES), "ahead", "p")
    rows: list[Row] = []
    for variant in BASELINES:
        cells = []
        wins = losses = 0
        for masked in ("nothing", *RATES):
            name = f"lead-{variant}" if masked == "nothing" else f"lead-{variant}-{masked}"
            cells.append(_interval(results, name))
            # One cell of the sign test for each set of clips that was measured under this mask.
            for experiment in SETS:
                own = Quantity(experiment=experiment, masked=masked)
                ours = results.means(own)
                theirs = results.means(replace(own, variant=variant))
                if not ours or not theirs:
                    continue
                if statistics.fmean(ours) > statistics.fmean(theirs):
                    wins += 1
                else:  # a tie counts against the claim, as in the paper
                    losses += 1
        if wins + losses:
            sign = f"{wins} of {wins + losses}", f"{sign_test(wins, losses):.2g}"
            rows.append([f"SCALAR − {variant_name(variant)}", *cells, *sign])
    note = (
        "Points of R@1, text to video, fitted. Ahead: in how many of the cells, sets of clips times masks, the mean "
        "over trainings is higher; p of the exact one-sided sign test. Cells share trainings, so p describes."
    )
    return MetricsTable("masks", "Masked clips", note, columns, [rows], 1)


def ladder_table(results: StudyResults) -> MetricsTable:
    """What each modality adds to the picture."""
    # From the picture alone upwards, as in the paper's table.
    shown: list[Column] = []
    for title, masked in (("picture", HIDDEN[1]), ("picture and sound", HIDDEN[0]), ("all three", "nothing")):
        shown.append(("", title, {"masked": masked}))
    note = "R@1 in percent, text to video, fitted; what clips have besides these modalities is left out."
    columns = _with_keys("method", shown=shown)
    return MetricsTable("ladder", "One, two and three modalities", note, columns, [_own_scores(results, shown)], 1)


def attribution_table(results: StudyResults, direction: str = "text_to_video") -> MetricsTable:
    """Each method's embeddings ranked by each score."""
    # Along a row only the score differs, along a column only the training.
    shown: list[Column] = []
    for score in _SCORES:
        shown.append(("", _score_title(score), {"score": score, "direction": direction}))
    rows = _own_scores(results, shown)
    note = "R@1 in percent; rows: what trained the embeddings; columns: what scores them, with fitted numbers."
    title = f"Attribution, {direction.replace('_', ' ')}"
    columns = _with_keys("embeddings of", shown=shown)
    return MetricsTable(f"attribution_{direction}", title, note, columns, [rows], 1)


def kinds_table(results: StudyResults) -> MetricsTable:
    """R@1 by kind of caption."""
    # Of captions about one modality, those about each are shown, too.
    shown: list[Column] = []
    for kind, words in KINDS.items():
        shown.append(("", f"about {words}", {"kinds": (kind,)}))
    for name in MODALITIES:
        shown.append(("", f"about {name} alone", {"about": name, "kinds": ("single",)}))
    for kind, words in KINDS.items():
        shown.append(("complete clips", f"about {words}", {"kinds": (kind,), "clips": "complete"}))
    columns = _with_keys("variant", shown=shown)
    rows = _own_scores(results, shown)
    return MetricsTable("kinds", "Kinds of captions", "R@1 in percent, text to video, fitted.", columns, [rows], 1)


def views_table(results: StudyResults) -> MetricsTable:
    """Masked views, on complete training clips and on clips of which some lack a modality."""
    shown: list[Column] = [
        ("", "R@1", {}), ("", "R@10", {"at": 10}), ("", "half masked", {"masked": "0.5"}),
        ("", "without subtitles", {"masked": "subtitle"}), ("", "video to text", {"direction": BACK}),
        ("", "picture alone", {"score": "video"}), ("", "sound alone", {"score": "audio"}),
        ("", "subtitle alone", {"score": "subtitle"}),
    ]  # fmt: skip
    rows: list[Row] = []
    for clips, where in VIEWS.items():
        for variant in ("scalar", "no_masked_views"):
            own = Quantity(variant, experiment=f"views-{clips}")
            _add_row(rows, results, [where, variant_name(variant)], own, shown)
    note = "R@1 in percent unless R@10 is named, the test clips of the main comparison, fitted."
    columns = _with_keys("training clips", "variant", shown=shown)
    return MetricsTable("views", "Masked views", note, columns, [rows], 1)


def disagreement_table(results: StudyResults) -> MetricsTable:
    """Clips in which everything that a caption is not about comes from another clip."""
    shown: list[Column] = []
    for kind, words in KINDS.items():
        # The same kind on both sets of clips, side by side.
        for heading, clips in (("agree", "test"), ("disagree", "disagree")):
            shown.append((f"about {words}", heading, {"kinds": (kind,), "clips": clips}))
    fitted = {"kinds": ("single",), "clips": "disagree", "numbers": AS_TRAINED}
    shown.append(("about one modality", "disagree, as trained", fitted))
    note = (
        "R@1 in percent, text to video, fitted on clips that agree, unless as trained. The gallery of clips that "
        "disagree is the smaller one."
    )
    columns = _with_keys("variant", shown=shown)
    return MetricsTable("disagreement", "Where modalities disagree", note, columns, [_own_scores(results, shown)], 1)


def arity_table(results: StudyResults) -> MetricsTable:
    """Complete clips alone, next to the gallery of mixed arity and to random parts of it that are as large."""
    # The middle columns have the size of the last and the arities of the first.
    titles = {"test": "all test clips", SAME_SIZE: "as many at random", "complete": "complete test clips alone"}
    shown: list[Column] = []
    for clips, title in titles.items():
        for numbers in (AS_TRAINED, FITTED_ALL):
            shown.append((title, numbers, {"clips": clips, "numbers": numbers}))
    rows = _own_scores(results, shown)
    _add_row(rows, results, ["PMRL's score, GRAM's embeddings"], Quantity("gram", "pmrl"), shown)
    note = (
        "R@1 in percent, text to video. As many at random: the mean over all galleries of so many of the test clips, "
        "computed from each rank without drawing, so that the size of a gallery is not taken for its arity."
    )
    columns = _with_keys("variant", shown=shown)
    return MetricsTable("arity", "Galleries of one arity", note, columns, [rows], 1)


def sharing_table(results: StudyResults) -> MetricsTable:
    """R@1 as a function of how much the modalities of a clip share."""
    # Each level is a benchmark of its own, with trainings of its own.
    levels = results.levels()
    shown: list[Column] = []
    for level, name in levels.items():
        shown.append((f"{level:g}", "shared", {"experiment": name}))
    rows: list[Row] = []
    for variant in ("scalar", "scalar_uniform", "gram"):
        for masked, words in {"nothing": "nothing masked", "0.5": "half masked"}.items():
            _add_row(rows, results, [variant_name(variant), words], Quantity(variant, masked=masked), shown)
    note = "R@1 in percent, text to video, fitted; every column has training, validation and test clips of its own."
    columns = _with_keys("variant", "", shown=shown)
    return MetricsTable("sharing", "How much modalities share", note, columns, [rows], 2)


def repeated_table(results: StudyResults) -> MetricsTable:
    """The main comparison on each set of clips."""
    shown: list[Column] = []
    for experiment, words in zip(SETS, ("seed 0", "seed 1"), strict=True):
        for way, direction in _WAYS:
            shown.append((words, way, {"experiment": experiment, "direction": direction}))
    note = "R@1 in percent, fitted; settings of training are those that were chosen on the clips of seed 0."
    columns = _with_keys("variant", shown=shown)
    return MetricsTable("repeated", "The same on other clips", note, columns, [_own_scores(results, shown)], 1)


def ceilings_table(results: StudyResults) -> MetricsTable:
    """R@1 of perfect readers and of SCALAR's embeddings."""
    rows: list[Row] = []
    for name in dict.fromkeys([*SETS, *results.levels().values()]):
        clips = results.study["clips"].get(name)
        if clips is None:
            continue
        # A perfect reader of a modality beside what SCALAR's embeddings reach with it.
        cells = []
        absent = []
        for score, reader in zip(("scalar", *MODALITIES), ("all", *MODALITIES), strict=True):
            cells.append(Cell((clips["ceilings"][reader]["all"],)))
            cells.append(Cell(results.means(Quantity(score=score, experiment=name))))
        for modality in MODALITIES:
            absent.append(f"{100 * clips['absent']['test'][modality] / clips['num_test']:.0f}")
        rows.append([f"seed {clips['seed']}, {clips['shared']:g} shared", "/".join(absent), *cells])
    columns = _columns("clips", "lack picture/sound/subtitle, %")
    for reader in ("everything", *MODALITIES):
        columns += [(reader, "perfect"), (reader, "SCALAR's")]
    note = "R@1 in percent, text to video: of a reader that makes no mistake, and of SCALAR's trained embeddings."
    return MetricsTable("ceilings", "Perfect readers", note, columns, [rows], 1)


def settings_table(results: StudyResults) -> MetricsTable:
    """The chosen settings of each method, what its best trial found on validation clips, and learned temperatures."""
    tuning = results.study["tuning"] or {"methods": {}}
    settings = _settings(results)
    rows: list[Row] = []
    for variant, method in tuning["methods"].items():
        learned = Cell(results.settings(variant, "learned_temperature"), digits=3)
        best = 0.0
        for trial in method["trials"]:
            best = max(best, trial["mean_reciprocal_rank"] or 0.0)
        rows.append([variant_name(variant), *settings[variant], learned, Cell((best,))])
    later: list[Row] = []
    for variant, method in tuning["methods"].items():
        for trial in method["later"]:
            values = [f"{trial['settings'][name]:g}" for name in GRID]
            title = f"{variant_name(variant)}, tried later"
            later.append([title, *values, _ABSENT, Cell((trial["mean_reciprocal_rank"],))])
    note = (
        f"Chosen by the mean MRR@10 of both directions on validation clips; ablations have SCALAR's. {_EDGE} edge "
        "of the search grid. For PMRL the temperature is that of its directions; GRAM, HyperGRAM and TRIANGLE learn "
        "theirs, from this start: learned is where it ended. Tried later: once the results were known, and chosen by "
        "nothing."
    )
    columns = _columns("method", *GRID, "learned temperature", "MRR@10")
    return MetricsTable("settings", "Chosen settings", note, columns, [rows, later], 1)


def _fit_row(fits: Sequence[Mapping[str, Any]]) -> Row:
    """One fit of all trainings: how many numbers it has, how often it is kept, its gain, and the mean numbers."""
    shown = []
    for name in _OPTIONS:
        # Scores differ in what they have to fit.
        if name not in fits[0]["options"]:
            shown.append(_ABSENT)
            continue
        means = np.mean([np.atleast_1d(fit["options"][name]) for fit in fits], axis=0)
        shown.append(", ".join(map("{:.2f}".format, means)))
    kept = 0
    gains = []
    for fit in fits:
        kept += fit["kept"]
        gains.append(fit["gain"]["difference"])
    return [str(fits[0]["count"]), f"{kept} of {len(fits)}", Cell(tuple(gains), signed=True), *shown]


def fitted_table(results: StudyResults) -> MetricsTable:
    """The fitted numbers, how many they are, what they gain on held-out clips, and how many fits are kept."""
    rows: list[Row] = []
    for variant in _METHODS:
        for score in (None, *_VOLUMES):
            if score is not None and variant != "gram":
                continue
            title = variant_name(variant)
            if score is not None:
                title = f"{_score_title(score)}, {title}'s embeddings"
            # Every training tried the same fits, in the same order.
            tried = [entry["fits"] for entry in results.entries(variant, score, FITTED_ALL)]
            for fits in zip(*tried, strict=True):
                rows.append([title, *_fit_row(fits)])
    note = (
        "Means over trainings; scales and offsets of picture, sound and subtitle; how many numbers a fit has. A fit "
        "is kept if its gain in MRR@10 on validation clips that were not part of it has an interval above 0; of "
        "several the best."
    )
    columns = _columns("variant", "fitted parameters", "kept", "gain", *_OPTIONS.values())
    return MetricsTable("fitted", "Fitted numbers", note, columns, [rows], 1)


def second_stage_table(results: StudyResults) -> MetricsTable:
    """The second stage after different trainings."""
    # Every run has all masks: a row for each training and mask.
    by_label: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in results.study["second_stage"]:
        for name in run["first"]:
            direction, masked = name.split(", ")
            if direction == "text_to_video":
                by_label.setdefault((run["label"], masked), []).append(run)
    rows: list[Row] = []
    columns = _columns("training", "clips")
    for way, _ in _WAYS:
        columns += [(way, "first"), (way, "match"), (way, "fused")]
    for (label, masked), runs in by_label.items():
        cells: list[Cell] = []
        for _, direction in _WAYS:
            name = f"{direction}, {masked}"
            cells.append(Cell(tuple(run["first"][name] for run in runs)))
            for rule in ("match", "fused"):
                values = [run["staged"].get(f"{name}, {rule}") for run in runs]
                cells.append(Cell(tuple(value for value in values if value is not None)))
        rows.append([variant_name(label), masked, *cells, Cell(tuple(run["auc"] for run in runs), digits=3)])
    clips = results.study["clips"].get("reranked") or results.study["clips"][SETS[0]]
    note = (
        f"R@1 in percent, {clips['num_test']:,} test clips, first stage with the numbers of training; 50 candidates; "
        "fused with a weight chosen on validation clips. Masked: the share of clips that lose one modality. AUC: of "
        "matching, nothing masked."
    )
    return MetricsTable("second_stage", "The second stage", note, [*columns, ("", "AUC")], [rows], 2)


TABLES: dict[str, Callable[[StudyResults], MetricsTable]] = {
    "short": short_table,
    "main": main_table,
    "named": named_table,
    "differences": differences_table,
    "gains": gains_table,
    "paper": paper_table,
    "curve": curve_table,
    "masks": masks_table,
    "ladder": ladder_table,
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
