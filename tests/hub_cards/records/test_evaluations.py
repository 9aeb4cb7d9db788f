"""Evaluations are read, refused where they are none, and every figure comes out as it went in."""

import json

import pytest
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from scalar_retrieval.eval.reports.result_files import R1
from scalar_retrieval.hub_cards.records.evaluations import (
    eval_results,
    read_result,
    read_results,
    tables,
)

METRICS = ("recall_at_1", "recall_at_5", "recall_at_10", "mean_average_precision", "ndcg_at_10")
SHA256 = "0123456789abcdef" * 4


def make_metrics(r1):
    """Metrics of both directions, in which R@1 is `r1`."""
    metrics = {}
    for direction in ("text_to_video", "video_to_text"):
        metrics |= {f"{direction}_{name}": r1 + place / 3 for place, name in enumerate(METRICS)}
        metrics |= {f"{direction}_median_rank": 3.0, f"{direction}_mean_rank": 10.78}
    return metrics | {"num_unscorable_clips": 0}


def make_rate(rate, own=32.333333333333336, uniform=28.0, best=15.0):
    """A rate of the first stage at which nothing speaks against the model."""
    return {
        "rate": rate,
        "num_masked_clips": int(100 * rate),
        "presence": {"video": 95, "audio": 85, "subtitle": 80},
        "methods": {
            "scalar": make_metrics(own),
            "uniform": make_metrics(uniform),
            "gram": make_metrics(16.0),
            "subtitle": make_metrics(best),
        },
        "best_pathway": {"method": "subtitle", R1: best},
        "aggregation_gain": {"scalar": own - best, "uniform": uniform - best},
    }


def make_content(**changes):
    """A `results.json` at which nothing speaks against the model."""
    second = {"depth": 50, "policy": "absent", "method": "scalar", "mask_seed": 0, "num_unread_pairs": 0}
    return {
        "label": "miniature",
        "seed": 50,
        "model": "miniature",
        "benchmark": "miniature",
        "split": "test",
        "task": "retrieval",
        "score": {"method": "scalar", "query_temperature": 0.2},
        "retrieval": {
            "num_queries": 100,
            "num_clips": 100,
            "num_pairs": 100,
            "mask_seed": 0,
            "tie_rule": "the wrong ones come first",
            "rates": [make_rate(0.0), make_rate(0.5, own=24.666666666666668, uniform=23.0, best=12.0)],
            "differences": [
                {
                    "method": "scalar",
                    "baseline": "uniform",
                    "difference": 4.3,
                    "low": 0.7,
                    "high": 8.0,
                    "confidence": 0.95,
                }
            ],
        },
        "two_stage": [
            second | {"rate": 0.0} | make_metrics(40.0),
            second | {"rate": 0.5} | make_metrics(30.0),
        ],
        "gallery": {"num_clips": 100, "ids": [], "presence": [], "sha256": SHA256},
        "left_out": [],
        "problems": [],
        "embedded": {"weights": {"adapter_model.safetensors": "ab" * 32}},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "peft": None},
        "source": {"commit": "a" * 40, "dirty": False},
        "date": "2026-11-21T08:13:36+00:00",
    } | changes


def write_result(folder, content, name="miniature-test"):
    """Write an evaluation into the `results/` of a model's folder."""
    path = folder / "results" / name / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("gallery"), r"lacks \['gallery'\]"),
        (lambda content: content.pop("left_out"), r"lacks \['left_out'\]"),
        (lambda content: content["score"].update(method="max"), "own score 'max'"),
        (lambda content: content["retrieval"]["rates"].pop(0), "nothing masked"),
        (lambda content: content["two_stage"][0].update({R1: float("nan")}), "NaN is not JSON"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, change, message):
    content = make_content()
    change(content)
    with pytest.raises(ValueError, match=message):
        read_result(write_result(tmp_path, content))


def test_what_was_measured_with_nothing_masked_is_in_the_front_matter_as_it_is(tmp_path):
    """Without what was not measured, or is another score's; and as two results, if their galleries differ."""
    expected = {}
    for name in ("1", "2"):
        content = make_content(gallery={"sha256": name * 64})
        second, own = content["two_stage"][0], content["retrieval"]["rates"][0]["methods"]["scalar"]
        own["text_to_video_recall_at_5"] = None
        content["two_stage"].append(second | {"method": "video", "policy": "zeros"})
        write_result(tmp_path, content, name)
        for stage, metrics in ((1, own), (2, second)):
            for metric, value in metrics.items():
                task, of_task = metric[:13].replace("_", "-"), metric[14:]
                if task in ("text-to-video", "video-to-text") and value is not None:
                    expected[name * 64, f"{task}-retrieval", stage, of_task] = value
    # What the Hub reads of it
    data = ModelCardData(model_name="name", eval_results=eval_results(read_results(tmp_path)))
    found = {}
    for entry in model_index_to_eval_results(data.to_dict()["model-index"])[1]:
        sha256 = entry.dataset_args["gallery_sha256"]
        key = (sha256, entry.task_type, entry.metric_args["stage"], entry.metric_type)
        assert key not in found and entry.dataset_config.startswith(f"gallery {sha256[:12]}, 100 queries, mask seed 0")
        found[key] = entry.metric_value
        assert (entry.dataset_args["tie_rule"], entry.dataset_split) == ("the wrong ones come first", "test")
    assert found == expected


def test_the_tables_are_those_of_a_report(tmp_path):
    to_video, *_, differences = tables(read_result(write_result(tmp_path, make_content())))
    rows = [line.split(" | ") for line in to_video[1].splitlines()]
    assert [row[0] for row in rows[2:]] == ["| SCALAR (own)", "| uniform centroid", "| GRAM volume", r"| subtitle \*"]
    assert rows[0][1] == "R@1" and rows[2][1] == "32.3"
    assert "| SCALAR | uniform centroid | +4.3 | +0.7 | +8.0 | 95 % |" in differences[1]
