"""Result files with chosen metrics, and what a table says of a label."""

import json

from scalar_retrieval.eval.protocol.missing import RATES


def make_metrics(recall):
    names = ("recall_at_1", "recall_at_5", "recall_at_10", "mean_average_precision", "ndcg_at_10")
    metrics = {name: recall + step for step, name in enumerate(names)} | {"median_rank": 7.0, "mean_rank": 9.0}
    directions = {"text_to_video": 0.0, "video_to_text": -1.0}
    return {f"{d}_{name}": value + shift for d, shift in directions.items() for name, value in metrics.items()}


def make_run(label, seed=50, joint=20.0, best=15.0, two_stage=30.0, slope=0.0, method="scalar", **changes):
    """A result whose joint R@1 falls by `slope` per masking rate, and whose best pathway falls by 1."""
    rates = []
    for step, rate in enumerate(changes.pop("rates", RATES)):
        top = best - step
        recalls = {method: joint - slope * step, "uniform": joint - 2 - step, "video": 5.0, "audio": top}
        entry = {"rate": rate, "methods": {}, "best_pathway": {"method": "audio", "text_to_video_recall_at_1": top}}
        for name, recall in recalls.items():
            entry["methods"][name] = make_metrics(recall) | {"num_unscorable_clips": 10}
        entry["aggregation_gain"] = {name: recalls[name] - top for name in (method, "uniform")}
        entry["presence"] = {"video": 100, "audio": 90 - step, "subtitle": 80}
        entry["mean_weight"] = {"video": 0.5, "audio": 0.3, "subtitle": 0.2}
        entry["decided"] = {"video": 70, "audio": 20, "subtitle": 10}
        rates.append(entry)
    ladder, reranked = [], []
    for count, lost in ((1, 5), (2, 2), (3, 0)):
        recall = {"num_unscorable_clips": lost, "text_to_video_recall_at_1": {method: joint - lost}}
        ladder.append({"modalities": ["video", "audio", "subtitle"][:count]} | recall)
    for shift, policy in enumerate(("absent", "zeros")):
        for step, rate in enumerate(RATES):
            setting = {"depth": 50, "policy": policy, "method": method, "rate": rate, "num_unread_pairs": 0}
            reranked.append(setting | make_metrics(two_stage - step - shift))
    bounds = {"difference": 2.0, "low": 0.5, "high": 3.5, "confidence": 0.95}
    measured = {"num_queries": 1000, "num_clips": 900, "num_pairs": 1000, "mask_seed": 0}
    measured |= {"tie_rule": "against the method", "rates": rates, "ladder": ladder}
    measured["differences"] = [{"method": method, "baseline": "uniform"} | bounds]
    run = {"label": label, "seed": seed, "benchmark": "miniature", "split": "test", "task": "retrieval"}
    run |= {"score": {"method": method, "query_temperature": 0.1}, "retrieval": measured, "two_stage": reranked}
    return run | {"gallery": {"sha256": "c0ffee" * 10}, "left_out": [], "problems": []} | changes


def save(folder, *runs):
    for place, run in enumerate(runs):
        path = folder / f"{place}" / "results"
        path.mkdir(exist_ok=True, parents=True)
        (path / "results.json").write_text(json.dumps(run))
    return folder


def three_labels():
    return [
        make_run("scalar", 50, joint=20.0, best=15.0, two_stage=30.0),
        make_run("scalar", 51, joint=22.0, best=16.0, two_stage=31.0, slope=1.0),
        make_run("scalar", 52, joint=24.0, best=15.0, two_stage=35.0),
        make_run("gram", 50, joint=10.0, best=15.0, two_stage=28.0, slope=2.0, method="gram"),
        make_run("gram", 52, joint=16.0, best=15.0, two_stage=32.0, slope=2.0, method="gram"),
        make_run("no_masked_views", 50, joint=18.0, best=16.0, two_stage=29.0, slope=1.5),
        make_run("no_masked_views", 51, joint=18.0, best=15.0, two_stage=31.0),
    ]


def cells(table, label, benchmark=None):
    """What stands right of the keys in the one row of a label."""
    found = [row for row in table.rows if label in row[: table.num_keys] and benchmark in (None, row[0])]
    (row,) = found
    return [str(cell) for cell in row[table.num_keys :]]
