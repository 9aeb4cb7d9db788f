"""What the runs of the study leave, and its collection into the published results.

A folder `measured` has, for each experiment, the files of its runs (see `measure`) and, in `clips`, what is shown of
each set of clips. They are small: they can be committed, and tell on any machine what is done.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evidence.miniature.benchmark import load_about
from scalar_retrieval.gallery.store.files import read_json, without_infinity, write_json, write_whole
from scalar_retrieval.gallery.store.provenance import versions
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from .measure import write_ranks
from .results import RANKS, STUDY

SECOND_STAGE = "-second-stage"
"""Ends the names of files with what a second stage reaches."""

LABELS = "-labels"
"""Ends the names of files with what is measured on class labels."""

_OF_CLIPS = (
    "version", "seed", "shared", "complete", "disagree", "num_train", "num_validation", "num_test", "absent",
)  # fmt: skip


def describe_clips(root: Path, path: Path, with_queries: bool = True) -> None:
    """Write what is shown of a set of clips: its settings, its ceilings and, if asked, the kind of each test query."""
    manifest = read_json(root / "miniature.json")
    content = {name: manifest[name] for name in _OF_CLIPS}
    content["ceilings"] = manifest["recall_at_1_ceilings"]["test"]
    if with_queries and manifest["num_test"]:
        # Each query as its kind and the modalities that it is about.
        content["queries"] = []
        rows = (root / "test.jsonl").read_text(encoding="utf-8").splitlines()
        for row, about in zip(rows, load_about(root), strict=True):
            content["queries"].append([json.loads(row)["kind"], *about])
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_compactly(content, path)


def keep_second_stage(results: Path, path: Path) -> None:
    """Write the reported numbers of one evaluation of the second stage."""
    # R@1 of the first stage by its own score, and of the second by each rule, for every mask.
    run = read_json(results)
    method = run["score"]["method"]
    first = {}
    staged = {}
    for entry in run["retrieval"]["rates"]:
        for direction in DIRECTIONS:
            first[f"{direction}, {entry['rate']:g} masked"] = entry["methods"][method][f"{direction}_recall_at_1"]
    for entry in run["two_stage"]:
        for direction in DIRECTIONS:
            if f"{direction}_recall_at_1" in entry:
                name = f"{direction}, {entry['rate']:g} masked, {entry['rule']}"
                staged[name] = entry[f"{direction}_recall_at_1"]
    content = {
        "label": run["label"], "seed": run["seed"], "first": first, "staged": staged,
        "auc": run["two_stage_diagnostic"]["auc"], "weight": run["two_stage_fusion"]["weight"],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(content, path)


def collect(measured: Path, output: Path) -> None:
    """
    Collect what the runs of a study left in a folder of results.

    Args:
        measured (`Path`): folder of what was measured.
        output (`Path`): folder of the results.

    Raises:
        ValueError: nothing was measured.
    """
    tables = []
    fitted = []
    for path in sorted(measured.glob("*/*.parquet")):
        # The names of a run are those of its files.
        variant, _, seed = path.stem.rpartition("-")
        names = {"experiment": path.parent.name, "variant": variant, "seed": int(seed)}
        table = pq.read_table(path)
        for name, value in reversed(names.items()):
            table = table.add_column(0, name, pa.array([value] * len(table)))
        tables.append(table)
        fitted.append(names | read_json(path.with_suffix(".json")))
    if not tables:
        raise ValueError(f"There are no measured runs in {measured}. Run the study without `--report-only` first.")
    output.mkdir(parents=True, exist_ok=True)
    write_ranks(pa.concat_tables(tables), output / RANKS)
    # Everything else is small: one file has it all.
    tuning = None
    if (measured / "tuning.json").is_file():
        tuning = read_json(measured / "tuning.json")
    content = {
        "tuning": tuning,
        "runs": fitted,
        "clips": {path.stem: read_json(path) for path in sorted((measured / "clips").glob("*.json"))},
        "second_stage": [read_json(path) for path in sorted(measured.glob(f"*/*{SECOND_STAGE}.json"))],
        "labels": [],
        "versions": versions(),
    }
    for path in sorted(measured.glob(f"*/*{LABELS}.json")):
        variant, _, seed = path.stem.removesuffix(LABELS).rpartition("-")
        names = {"experiment": path.parent.name, "variant": variant, "seed": int(seed)}
        content["labels"].append(names | read_json(path))
    _write_compactly(content, output / STUDY)


def _write_compactly(content: dict[str, Any], path: Path) -> None:
    """Write JSON without indentation: thousands of queries would each take several lines."""
    raw = json.dumps(without_infinity(content), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    write_whole(path, lambda file: file.write(raw))


__all__ = ["LABELS", "SECOND_STAGE", "collect", "describe_clips", "keep_second_stage"]
