"""The study's tables and claims, computed from its results alone, and its page, a template that shows them.

A claim is the difference of two selections, with its interval over queries and seeds. Its p-value is adjusted by
Holm's rule for the number of all claims.
"""

import re
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from eval.protocol.statistics import holm, two_way_interval
from eval.reports.figures import COLOURS
from eval.reports.result_schema import method_title
from evidence.reports.results import label_name
from evidence.reports.tables import Cell, Row, Table, markdown

from .measure import HIGHEST, ROUTER
from .results import RANKS, STUDY, Results, Selection
from .runs import ABLATIONS, RECIPES, SHARED
from .tuning import GRID

BACK = "video_to_text"
_LEVEL = 0.05
_IN_PAPER = {"ahead": "confirmed", "undecided": "not seen", "behind": "contradicted"}
_BASELINES = ("scalar_uniform", "gram", "hypergram", "triangle", "pmrl")
_SCORES = (
    "scalar", "uniform", "mean", "max", "rank_fusion", "gram", "gram_span", "hypergram", "pmrl", "video", "audio",
    "subtitle",
)  # fmt: skip
_MODALITIES = ("video", "audio", "subtitle")
_ABSENT = "–"
_VIEWS = {
    "complete": "900 complete training clips", "mixed": "900 mixed training clips",
    "new-heads": "900 complete training clips, new heads",
}  # fmt: skip


def _name(label: str) -> str:
    """The display name of a variant; TRIANGLE is not in the paper."""
    return "TRIANGLE" if label == "triangle" else label_name(label)


@dataclass(frozen=True)
class Claim:
    """
    That the first of two selections finds more than the second.

    Args:
        name (`str`): identifies it in a page.
        sentence (`str`): description of the comparison.
        first, second ([`Selection`]): the compared selections.
        in_paper (`bool`): whether the paper reports the first to be ahead.
    """

    name: str
    sentence: str
    first: Selection
    second: Selection
    in_paper: bool = False


def _both(name: str, sentence: str, first: Selection, second: Selection, in_paper: bool = False) -> list[Claim]:
    """A claim in both directions."""
    directed = [replace(selection, direction=BACK) for selection in (first, second)]
    return [
        Claim(name, f"{sentence}, text to video", first, second, in_paper),
        Claim(f"{name}-back", f"{sentence}, video to text", *directed, in_paper),
    ]


def claims() -> list[Claim]:
    """Return all claims of the study."""
    ours = Selection()
    found = []
    for variant in _BASELINES:
        found += _both(f"scalar-{variant}", f"SCALAR − {_name(variant)}", ours, Selection(variant), True)
    plain = Selection(numbers="as trained"), Selection("gram", numbers="as trained")
    found += _both("scalar-gram-plain", "SCALAR − GRAM, both as trained", *plain)
    for variant in ("scalar_uniform", "gram"):
        sentence = f"SCALAR's score: SCALAR's embeddings − those of {_name(variant)}"
        theirs = Selection(variant, "scalar")
        found += _both(f"embeddings-{variant}", sentence, ours, theirs)
        sentence = f"{_name(variant)}'s embeddings: SCALAR's score − its own"
        found += _both(f"score-{variant}", sentence, theirs, Selection(variant))
    span = Selection("gram", "gram_span")
    found += _both("scalar-span", "SCALAR − span distance of GRAM's embeddings", ours, span)
    found += [Claim("span-gram", "GRAM's embeddings: span distance − volume, text to video", span, Selection("gram"))]
    found += _both(
        "scalar-rrf", "SCALAR − weighted rank fusion, same embeddings", ours, Selection(score="rank_fusion")
    )
    single = Selection(score="subtitle")
    found += _both("scalar-single", "SCALAR − subtitle alone, same embeddings", ours, single, True)
    found += [Claim("router-scalar", "router that knows the kind of caption − SCALAR, same embeddings",
                    Selection(score=ROUTER), ours)]  # fmt: skip
    found += _both("fitted", "SCALAR with fitted numbers − as trained", ours, Selection(numbers="as trained"))
    found += _both("temperature", "SCALAR with a fitted temperature alone − as trained",
                   Selection(numbers="temperature"), Selection(numbers="as trained"))  # fmt: skip
    half = replace(ours, masked="half")
    for variant in ("scalar_uniform", "gram"):
        found.append(Claim(f"masked-{variant}", f"half of the clips masked: SCALAR − {_name(variant)}", half,
                           replace(half, variant=variant), True))  # fmt: skip
    for variant in ABLATIONS:
        found += _both(variant, f"SCALAR − {_name(variant)}", ours, Selection(variant), True)
    for clips, where in _VIEWS.items():
        seen = replace(ours, experiment=f"views-{clips}")
        for what, (words, change) in {
            "": ("R@1", {}), "-half": ("half of the clips masked", {"masked": "half"}),
            "-subtitles": ("without subtitles", {"masked": "subtitles"}), "-ten": ("R@10", {"at": 10}),
            "-audio": ("sound alone", {"score": "audio"}), "-subtitle": ("subtitle alone", {"score": "subtitle"}),
        }.items():  # fmt: skip
            first = replace(seen, **change)
            found.append(Claim(f"views-{clips}{what}", f"masked views, {where}: {words}", first,
                               replace(first, variant="no_masked_views"), in_paper=not what))  # fmt: skip
    single = replace(ours, kinds=("single",))
    for variant in ("scalar_uniform", "gram"):
        pair = single, replace(single, variant=variant)
        found.append(Claim(f"disagree-{variant}",
                           f"captions about one modality, where modalities disagree: SCALAR − {_name(variant)}",
                           *(replace(selection, clips="disagree") for selection in pair)))  # fmt: skip
    for variant in ("scalar_uniform", "gram"):
        again = replace(ours, experiment="repeated")
        found += _both(f"repeated-{variant}", f"other clips (seed 1): SCALAR − {_name(variant)}", again,
                       replace(again, variant=variant))  # fmt: skip
    return found


def bound(results: Results, claim: Claim) -> dict[str, float] | None:
    """Return the difference of a claim and its interval; `None` if a selection was not measured."""
    first, second = results.hits(claim.first), results.hits(claim.second)
    if not first.size or not second.size:
        return None
    same = (claim.first.experiment, claim.first.variant) == (claim.second.experiment, claim.second.variant)
    return two_way_interval(first, second, paired=same)


@cache
def judged(results: Results) -> dict[str, dict[str, Any]]:
    """Return every measured claim with its interval and adjusted p-value."""
    found = {claim.name: {"claim": claim, **bounds} for claim in claims() if (bounds := bound(results, claim))}
    adjusted = holm([entry["p_value"] for entry in found.values()])
    for entry, value in zip(found.values(), adjusted, strict=True):
        entry["adjusted"] = value
        sign = "ahead" if entry["difference"] > 0 else "behind"
        entry["verdict"] = sign if value <= _LEVEL else "undecided"
    return found


def interval(entry: dict[str, Any]) -> str:
    """Format a difference and its bounds."""
    return f"{entry['difference']:+.1f} [{entry['low']:.1f}, {entry['high']:.1f}]".replace("-", "−")


# Tables --------------------------------------------------------------------------------------------------------------


def _columns(*names: str) -> list[tuple[str, str]]:
    return [("", name) for name in names]


def claims_table(results: Results) -> Table:
    """Every claim."""
    rows: list[Row] = [
        [
            e["claim"].sentence,
            interval(e),
            f"{e['adjusted']:.3f}",
            e["verdict"],
            _IN_PAPER[e["verdict"]] if e["claim"].in_paper else "",
        ]
        for e in judged(results).values()
    ]
    note = (
        "Points of R@1 unless R@10 is named, test clips, every score with fitted numbers unless said otherwise. In "
        "brackets the 95 % interval for other queries and other trainings. p: two-sided, adjusted by Holm's rule for "
        f"all {len(rows)} rows; undecided: p above {_LEVEL:g}. The last column: differences that the paper claims."
    )
    return Table("claims", "Claims", note, _columns("claim", "difference", "p", "verdict", "paper"), [rows], 1)


def _shown(results: Results, chosen: Selection, **changes: Any) -> Cell:
    return Cell(results.recalls(replace(chosen, **changes)))


def main_table(results: Results) -> Table:
    """The main comparison: every variant with its own score, then other scores of SCALAR's embeddings."""
    shown = [
        ("T→V", "as trained", {"numbers": "as trained"}), ("T→V", "fitted", {}), ("T→V", "R@10", {"at": 10}),
        ("T→V", "masked", {"masked": "half"}), ("V→T", "as trained", {"numbers": "as trained", "direction": BACK}),
        ("V→T", "fitted", {"direction": BACK}), ("V→T", "R@10", {"direction": BACK, "at": 10}),
        ("V→T", "masked", {"direction": BACK, "masked": "half"}),
    ]  # fmt: skip
    variants = [
        [_name(variant), *(_shown(results, Selection(variant), **change) for *_, change in shown)]
        for variant in RECIPES
        if results.recalls(Selection(variant))
    ]
    others = [
        ("span distance of GRAM's embeddings", Selection("gram", "gram_span")),
        *((f"{method_title(name)}, SCALAR's embeddings", Selection(score=name)) for name in
          ("gram_span", "gram", "rank_fusion", *_MODALITIES)),
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


def short_table(results: Results) -> Table:
    """The main comparison in a few lines, for the README."""
    shown = [
        ("", "text to video", {}), ("", "masked", {"masked": "half"}), ("", "video to text", {"direction": BACK}),
    ]  # fmt: skip
    chosen = {variant: (_name(variant), Selection(variant)) for variant in ("scalar", *_BASELINES)}
    chosen |= {"gram_span": ("span distance, GRAM's embeddings", Selection("gram", "gram_span"))}
    methods = (results.study["tuning"] or {"methods": {}})["methods"]
    settings = {name: ", ".join(f"{method['chosen'][key]:g}" for key in GRID) for name, method in methods.items()}
    rows: list[Row] = [
        [title, settings.get(name, _ABSENT), *(_shown(results, selection, **change) for *_, change in shown)]
        for name, (title, selection) in chosen.items()
    ]
    clips, runs = results.study["clips"]["main"], len(results.seeds())
    note = (
        f"R@1 in percent: {clips['num_test']:,} test clips, mean ± standard deviation over {runs} trainings. "
        "Masked: half of the clips lose one modality. Settings: contrastive temperature (PMRL: of directions), "
        "learning rate, epochs."
    )
    perfect = Cell((clips["ceilings"]["all"]["all"],))
    ceiling: list[Row] = [["perfect reader", _ABSENT, perfect, *[Cell()] * (len(shown) - 1)]]
    columns = [("", "method"), ("", "settings"), *((group, heading) for group, heading, _ in shown)]
    return Table("short", "Main comparison in short", note, columns, [ceiling, rows], 2)


def attribution_table(results: Results, direction: str = "text_to_video") -> Table:
    """Each method's embeddings ranked by each score."""
    rows: list[Row] = []
    for variant in ("scalar", *_BASELINES):
        cells = [_shown(results, Selection(variant, score), direction=direction) for score in _SCORES]
        if any(cell.values for cell in cells):
            rows.append([_name(variant), *cells])
    note = "R@1 in percent; rows: what trained the embeddings; columns: what scores them, with fitted numbers."
    title = f"Attribution, {direction.replace('_', ' ')}"
    columns = _columns("embeddings of", *(method_title(score) for score in _SCORES))
    return Table(f"attribution_{direction}", title, note, columns, [rows], 1)


def kinds_table(results: Results) -> Table:
    """R@1 by kind of caption."""
    kinds = {"about one modality": {"kinds": ("single",)}, "about several": {"kinds": ("several",)},
             "about what is shared": {"kinds": ("shared",)}}  # fmt: skip
    kinds |= {f"about {name} alone": {"about": name, "kinds": ("single",)} for name in _MODALITIES}
    rows = [
        [_name(variant), *(_shown(results, Selection(variant), **change) for change in kinds.values())]
        for variant in ("scalar", *_BASELINES)
    ]
    return Table("kinds", "Kinds of captions", "R@1 in percent, text to video, fitted.",
                 _columns("variant", *kinds), [rows], 1)  # fmt: skip


def views_table(results: Results) -> Table:
    """Masked views, on complete training clips and on clips of which some lack a modality."""
    shown = {
        "R@1": {}, "R@10": {"at": 10}, "half masked": {"masked": "half"}, "without subtitles": {"masked": "subtitles"},
        "video to text": {"direction": BACK}, "picture alone": {"score": "video"}, "sound alone": {"score": "audio"},
        "subtitle alone": {"score": "subtitle"},
    }  # fmt: skip
    rows = [
        [where.replace(" training clips", ""), _name(variant),
         *(_shown(results, Selection(variant, experiment=f"views-{clips}"), **change) for change in shown.values())]
        for clips, where in _VIEWS.items()
        for variant in ("scalar", "no_masked_views")
    ]  # fmt: skip
    return Table("views", "Masked views", "R@1 in percent unless R@10 is named, the 1,000 test clips of the main "
                 "comparison, fitted.", _columns("training clips", "variant", *shown), [rows], 1)  # fmt: skip


def disagreement_table(results: Results) -> Table:
    """Clips in which everything that a caption is not about comes from another clip."""
    groups = {"about one modality": ("single",), "about several": ("several",), "about what is shared": ("shared",)}
    rows = [
        [_name(variant),
         *(_shown(results, Selection(variant), kinds=kinds, clips=clips)
           for kinds in groups.values() for clips in ("test", "disagree"))]
        for variant in ("scalar", *_BASELINES)
    ]  # fmt: skip
    columns = [("", "variant"), *((group, clips) for group in groups for clips in ("agree", "disagree"))]
    return Table("disagreement", "Where modalities disagree", "R@1 in percent, text to video, fitted on clips that "
                 "agree.", columns, [rows], 1)  # fmt: skip


def arity_table(results: Results) -> Table:
    """Complete clips alone, next to the gallery of mixed arity."""
    rows = [
        [_name(variant),
         *(_shown(results, Selection(variant), clips=clips, numbers=numbers)
           for clips in ("test", "complete") for numbers in ("as trained", "fitted"))]
        for variant in ("scalar", *_BASELINES)
    ]  # fmt: skip
    columns = [("", "variant"), *((clips, numbers) for clips in ("all test clips", "complete test clips alone")
                                  for numbers in ("as trained", "fitted"))]  # fmt: skip
    return Table("arity", "Galleries of one arity", "R@1 in percent, text to video.", columns, [rows], 1)


def _levels(results: Results) -> dict[float, str]:
    names = {run["experiment"] for run in results.study["runs"]}
    found = {float(name.removeprefix("sharing-")): name for name in names if name.startswith("sharing-")}
    return dict(sorted((found | {SHARED: "main"}).items()))


def sharing_table(results: Results) -> Table:
    """R@1 as a function of how much the modalities of a clip share."""
    levels = _levels(results)
    rows = [
        [_name(variant), f"{masked} masked",
         *(_shown(results, Selection(variant, experiment=name), masked=masked) for name in levels.values())]
        for variant in ("scalar", "scalar_uniform", "gram")
        for masked in ("nothing", "half")
    ]  # fmt: skip
    columns = [("", "variant"), ("", ""), *((f"{level:g}", "shared") for level in levels)]
    return Table("sharing", "How much modalities share", "R@1 in percent, text to video, fitted; every column has "
                 "training, validation and test clips of its own.", columns, [rows], 2)  # fmt: skip


def repeated_table(results: Results) -> Table:
    """The main comparison on other clips."""
    rows = [
        [_name(variant), *(_shown(results, Selection(variant, experiment=name), direction=direction)
                                for name in ("main", "repeated") for direction in ("text_to_video", BACK))]
        for variant in ("scalar", "scalar_uniform", "gram")
    ]  # fmt: skip
    columns = [("", "variant"), *((name, way) for name in ("seed 0", "seed 1") for way in ("T→V", "V→T"))]
    return Table("repeated", "The same on other clips", "R@1 in percent, fitted; settings of training are those that "
                 "were chosen on the clips of seed 0.", columns, [rows], 1)  # fmt: skip


def ceilings_table(results: Results) -> Table:
    """R@1 of perfect readers and of SCALAR's embeddings."""
    rows: list[Row] = []
    for name in ("main", "repeated", *(n for n in _levels(results).values() if n != "main")):
        clips = results.study["clips"].get(name)
        if clips is not None:
            found = [Cell((clips["ceilings"][reader]["all"],)) for reader in ("all", *_MODALITIES)]
            reached = [
                _shown(results, Selection(score=reader, experiment=name)) for reader in ("scalar", *_MODALITIES)
            ]
            absent = "/".join(f"{100 * clips['absent']['test'][m] / clips['num_test']:.0f}" for m in _MODALITIES)
            rows.append([f"seed {clips['seed']}, {clips['shared']:g} shared", absent,
                         *(cell for pair in zip(found, reached, strict=True) for cell in pair)])  # fmt: skip
    columns = [("", "clips"), ("", "lack picture/sound/subtitle, %")]
    columns += [(reader, what) for reader in ("everything", *_MODALITIES) for what in ("perfect", "SCALAR's")]
    note = "R@1 in percent, text to video: of a reader that makes no mistake, and of SCALAR's trained embeddings."
    return Table("ceilings", "Perfect readers", note, columns, [rows], 1)


def settings_table(results: Results) -> Table:
    """The chosen settings of each method, and R@1 of its best trial on validation clips."""
    tuning = results.study["tuning"] or {"methods": {}}
    rows = []
    for variant, method in tuning["methods"].items():
        best = max((t["recall_at_1"] for t in method["trials"] if t["recall_at_1"] is not None), default=None)
        values = [f"{method['chosen'][name]:g}" for name in GRID]
        rows.append([_name(variant), *values, Cell(() if best is None else (best,))])
    grid = "; ".join(f"{name} {', '.join(f'{v:g}' for v in values)}" for name, values in GRID.items())
    note = "Chosen by the mean R@1 of both directions on validation clips, one seed; ablations have SCALAR's. "
    note += f"Tried: {grid}. For PMRL the temperature is that of its directions."
    return Table("settings", "Chosen settings", note, _columns("method", *GRID, "R@1"), [rows], 1)


def fitted_table(results: Results) -> Table:
    """The fitted numbers, means over seeds."""
    rows: list[Row] = []
    for variant in ("scalar", *_BASELINES):
        own = next((r["own"] for r in results.study["runs"] if r["variant"] == variant), None)
        options = results.options(variant, own, "fitted") if own else []
        if not options:
            continue
        cells = []
        for name in ("query_temperature", "modality_scale", "modality_offset"):
            values = [found[name] for found in options if found.get(name) is not None]
            if values and isinstance(values[0], list):
                cells.append(", ".join(f"{statistics.fmean(column):.2f}" for column in zip(*values, strict=True)))
            else:
                cells.append(f"{statistics.fmean(values):.2f}" if values else "–")
        rows.append([_name(variant), *cells])
    return Table("fitted", "Fitted numbers", "Means over seeds; scales and offsets of picture, sound and subtitle.",
                 _columns("variant", "temperature of weights", "scales", "offsets"), [rows], 1)  # fmt: skip


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
        rows.append([_name(label), *cells, Cell(tuple(run["auc"] for run in runs), digits=3)])
    columns = [("", "training"), *((way, what) for way in ("T→V", "V→T") for what in ("first", "match", "fused"))]
    note = (
        "R@1 in percent, first stage with the numbers of training; 50 candidates; fused with a weight chosen on "
        "validation clips."
    )
    return Table("second_stage", "The second stage", note, [*columns, ("", "AUC")], [rows], 1)


TABLES: dict[str, Callable[[Results], Table]] = {
    "short": short_table,
    "main": main_table,
    "claims": claims_table,
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


# Page ----------------------------------------------------------------------------------------------------------------


def fill(text: str, results: Results) -> str:
    """
    Fill a template with tables and differences.

    Args:
        text (`str`): with `{{table NAME}}`, a table with its note; `{{claim NAME VERDICT}}`, a difference with its
            interval, where the sentence around it relies on the verdict "ahead", "behind" or "undecided"; and
            `{{recall VARIANT KEY=VALUE ...}}`, a mean of R@1, with fields of [`Selection`], quoted where they contain
            a space.
        results ([`Results`]): of a study.

    Raises:
        ValueError: a placeholder names nothing that was measured, or relies on another verdict.
    """

    def put(match: re.Match) -> str:
        kind, name, *rest = shlex.split(match.group(1))
        if kind == "table" and name in TABLES:
            table = TABLES[name](results).filled()
            return f"{markdown(table)}\n\n{table.note}"
        if kind == "claim" and name in judged(results):
            entry = judged(results)[name]
            if rest != [entry["verdict"]]:
                raise ValueError(f"{match.group(0)}: the results say {entry['verdict']}, {interval(entry)}.")
            return interval(entry)
        if kind == "recall":
            changes = dict(part.split("=", 1) for part in rest)
            if "kinds" in changes:
                changes["kinds"] = tuple(changes["kinds"].split(","))
            if recalls := results.recalls(Selection(name, **changes)):
                return f"{statistics.fmean(recalls):.1f}"
        raise ValueError(f"{match.group(0)} names nothing that was measured.")

    return re.sub(r"\{\{(.+?)\}\}", put, text)


def plot_sharing(results: Results, path: Path) -> None:
    """Draw R@1 against the degree of sharing: a line for each variant, a panel for each mask."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels, levels = figure.subplots(1, 2, sharey=True), _levels(results)
    for axes, masked in zip(panels, ("nothing", "half"), strict=True):
        for colour, variant in zip(COLOURS, ("scalar", "scalar_uniform", "gram"), strict=False):
            recalls = {
                level: results.recalls(Selection(variant, experiment=name, masked=masked))
                for level, name in levels.items()
            }
            recalls = {level: values for level, values in recalls.items() if values}
            means = [statistics.fmean(values) for values in recalls.values()]
            axes.plot(list(recalls), means, "o-", color=colour, label=_name(variant))
            for level, values in recalls.items():
                axes.plot([level] * len(values), values, ".", color=colour, alpha=0.4)
        axes.set_title(f"{masked} masked", fontsize=10)
        axes.set_xlabel("share of what modalities say in common")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("text-to-video R@1 (%)")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


_PREFACE = f"""# Results of the study

Every table below is computed from the files of this folder, by
`python -m evidence study --report-only`:

- `{RANKS}`: the rank of each query's own candidate, a byte for each query, for every experiment, variant, seed, set of
  clips, score, kind of numbers, mask and direction; ranks from {HIGHEST} on are {HIGHEST}.
- `{STUDY}`: what was tried and chosen, what was fitted, the clips with their queries, and the second stage."""


def report(results: Results) -> str:
    """Return all tables with content, in Markdown."""
    tables: Sequence[Table] = [make(results) for make in TABLES.values()]
    parts = [f"## {table.title}\n\n{markdown(table.filled())}\n\n{table.note}" for table in tables if table.rows]
    return "\n\n".join([_PREFACE, *parts])


__all__ = ["BACK", "TABLES", "Claim", "bound", "claims", "fill", "interval", "judged", "plot_sharing", "report"]
