"""What a run of the study leaves on disk."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def save(folder, run, hits=()):
    """As a training and `eval run` leave it: its recipe, the results, and where each query's clip ranked."""
    results = folder / "results"
    results.mkdir(parents=True)
    (results / "results.json").write_text(json.dumps(run))
    (folder / "recipe.json").write_text(json.dumps({"learnable_temperature": False}))
    ranks = {f"rank_{run['score']['method']}": [1 if hit else 7 for hit in hits]}
    weights = {f"weight_{name}": [0.4] * len(hits) for name in ("video", "audio", "subtitle")}
    captions = {"caption": [f"caption {row}" for row in range(len(hits))], "decided": ["video"] * len(hits)}
    pq.write_table(pa.table(ranks | weights | captions), results / "queries.parquet")
