"""What runs of the study leave on disk."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from modeling_scalar.scores_scalar import DIRECTIONS

RECIPE = {
    "temperature": 0.3, "learning_rate": 3e-3, "num_train_epochs": 8, "loss_warmup_steps": 17,
    "full_view_decay_steps": 69,
}  # fmt: skip


def save_run(folder, own, recall, num_queries=100, fitted=0.0, single=None, **sets):
    """As the measuring of a run leaves it: of each set of clips so many percent of the first queries are hits.

    Args:
        folder (`Path`): name of its files, without their suffixes.
        recall (`float`): with nothing masked, in percent; half masked 10 less.
        fitted (`float`): how much more fitted numbers find.
        single (`dict`, *optional*): recall of single modalities, with nothing masked; half masked 10 less.
        sets (`float`): further sets of clips, and their recall.
    """

    def ranks(percent):
        return bytes(np.where(np.arange(num_queries) < percent * num_queries / 100, 1, 7).astype(np.uint8))

    rows = []
    for numbers, more in (("as trained", 0), ("fitted", fitted)):
        found = [("test", "nothing", recall), ("test", "0.5", recall - 10), ("test", "subtitle", recall - 10)]
        found += [(name, "nothing", value) for name, value in sets.items()]
        rows += [
            {"clips": clips, "score": own, "numbers": numbers, "masked": masked, "direction": direction,
             "ranks": ranks(value + more)}
            for clips, masked, value in found for direction in DIRECTIONS
        ]  # fmt: skip
    for score, percent in (single or {}).items():
        for masked, less in (("nothing", 0), ("0.5", 10)):
            row = {"clips": "test", "score": score, "numbers": "as trained", "masked": masked}
            for direction in DIRECTIONS:
                rows.append(row | {"direction": direction, "ranks": ranks(percent - less)})
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = {"query_temperature": 0.5, "modality_scale": [1, 2, 3], "modality_offset": [0, 0, 1]}
    scores = [{"score": own, "numbers": numbers, "options": options} for numbers in ("as trained", "fitted")]
    content = {"own": own, "settings": RECIPE, "scores": scores}
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(content))
    pq.write_table(pa.Table.from_pylist(rows), folder.with_name(f"{folder.name}.parquet"))


def save_trial(path, value):
    """As a trial of the tuning leaves it: MRR@10 of both directions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"text_to_video": value + 1, "video_to_text": value - 1}
    path.with_name(f"{path.name}.json").write_text(json.dumps({"settings": {}, "mean_reciprocal_rank": found}))


def save_clips(root, num_queries=100, **changes):
    """As `python -m evidence miniature` leaves it, without clips."""
    root.mkdir(parents=True, exist_ok=True)
    manifest = {
        "version": 3, "seed": 0, "shared": 0.6, "complete": False, "disagree": 0.0, "alone": False, "evidence": [],
        "num_train": 1500, "num_validation": 500, "num_test": num_queries,
        "absent": {"test": {"video": 5, "audio": 15, "subtitle": 20}},
        "recall_at_1_ceilings": {"test": {
            reader: {"all": value} for reader, value in
            (("all", 95.0), ("video", 32.0), ("audio", 25.0), ("subtitle", 50.0))
        }},
    } | changes  # fmt: skip
    groups = [("single", ["video"]), ("several", ["video", "audio"])]
    columns = {"video_id": "v", "caption": "c", "video_path": None, "audio_path": None, "subtitle": None}
    rows = [columns | {"kind": kind, "about": about, "attributes": {}} for kind, about in groups * (num_queries // 2)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (root / "test.jsonl").write_bytes(content)
    manifest["sha256"] = {"test.jsonl": hashlib.sha256(content).hexdigest()}
    (root / "miniature.json").write_text(json.dumps(manifest))
    return root
