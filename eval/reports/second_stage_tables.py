"""The second stage beside the paper's tables: every rule and depth, and what the match separates."""

from functools import partial
from itertools import product

from eval.reports.label_tables import KEYS, count, is_measured, measured
from eval.reports.result_files import Results, benchmark_name, first_stage, label_name, percent, two_stage
from eval.reports.tables import Cell, Table

_RULES = ("match", "fused")
_DIRECTIONS = {"T→V": "text_to_video_recall_at_1", "V→T": "video_to_text_recall_at_1"}


def second_stage_table(results: Results) -> Table:
    """Both directions after the second stage by each rule, at each depth and under each mask."""
    entries = [entry for run in results.all_runs() for entry in run["two_stage"]]
    rates = sorted({entry["rate"] for entry in entries})
    policies = sorted({entry["policy"] for entry in entries})
    depths = sorted({entry["depth"] for entry in entries})
    kinds = [("first stage", "", "", first_stage)]
    for rule, depth, policy in product(_RULES, depths, policies):
        kinds.append((rule, str(depth), policy, partial(two_stage, policy=policy, rule=rule, depth=depth)))
    blocks = []
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            block = []
            for *names, measure in kinds if any(run["two_stage"] for run in seeds.values()) else ():
                row = [
                    measured(percent(rate), measure(metric, rate)).cell(seeds)
                    for metric in _DIRECTIONS.values()
                    for rate in rates
                ]
                keys = [benchmark_name(benchmark), label_name(label), count(row), *names]
                block += [[*keys, *row]] if is_measured(row) else []
            blocks += [block] if block else []
    columns = [*KEYS, ("", "rule"), ("", "depth"), ("", "masked is")]
    columns += [(direction, percent(rate)) for direction in _DIRECTIONS for rate in rates]
    note = (
        "R@1 of each label's own score; columns: clips that lose one modality. match: the first candidates reordered "
        "by the cross-encoder alone; fused: by first-stage score + weight * match logit, which is not in the paper."
    )
    return Table("second_stage", "Second stage by rule and depth", note, columns, blocks, len(KEYS) + 3)


def separation_table(results: Results) -> Table:
    """How well the match separates what the first stage leaves to it, and the weight of the fusion, run by run."""
    blocks = []
    for benchmark, labels in results.runs.items():
        rows = []
        for label, seeds in labels.items():
            for seed, run in seeds.items():
                found, fusion = (run.get(f"two_stage_{name}") or {} for name in ("diagnostic", "fusion"))
                if not found and not fusion:
                    continue
                keys = [benchmark_name(benchmark), label_name(label), "" if seed is None else str(seed)]
                names = {"auc": 3, "num_matched_pairs": 0, "num_hard_pairs": 0, "depth": 0}
                row = [Cell((found[n],) if n in found else (), digits=digits) for n, digits in names.items()]
                row.append(Cell((fusion["weight"],), digits=3) if fusion else Cell(()))
                rows.append([*keys, *row, (fusion.get("split") or "given") if fusion else ""])
        blocks += [rows] if rows else []
    headings = ("benchmark", "label", "seed", "AUC", "matched pairs", "hard pairs", "depth", "weight", "chosen on")
    note = (
        "AUC: how often the match logit of a caption with its clip exceeds that of a caption with another clip among "
        "its first ones (text to video, each label's own score, nothing masked); 0.5 is chance. Weight: of the match "
        "logit in the fused rule, and the split it was chosen on."
    )
    title = "What the second stage separates"
    return Table("second_stage_separation", title, note, [("", name) for name in headings], blocks, 3)


__all__ = ["second_stage_table", "separation_table"]
