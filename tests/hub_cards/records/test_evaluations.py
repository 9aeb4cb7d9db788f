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


def make_metrics(r1, other=None):
    """Metrics of both directions; text-to-video R@1 is `r1`, video-to-text R@1 `other`."""
    metrics = {}
    for direction, first in (("text_to_video", r1), ("video_to_text", r1 if other is None else other)):
        metrics |= {f"{direction}_{name}": first + place / 3 for place, name in enumerate(METRICS)}
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


@pytest.fixture
def make_result(tmp_path):
    def make(change=None):
        content = make_content()
        if change is not None:
            change(content)
        return read_result(write_result(tmp_path, content))

    return make


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
def test_a_file_that_is_no_result_is_refused(make_result, change, message):
    with pytest.raises(ValueError, match=message):
        make_result(change)


# Front matter -------------------------------------------------------------------------------------------------------


def read_back(results):
    """What the Hub reads of a front matter with these results."""
    data = ModelCardData(model_name="name", eval_results=eval_results(results))
    return model_index_to_eval_results(data.to_dict()["model-index"])[1]


def test_what_was_measured_with_nothing_masked_is_in_the_front_matter_as_it_is(make_result):
    result = make_result()
    found = {}
    for entry in read_back([result]):
        key = (entry.task_type, entry.metric_args["stage"], entry.metric_args.get("policy"), entry.metric_type)
        assert key not in found
        found[key] = entry.metric_value
    expected = {}
    for direction in ("text_to_video", "video_to_text"):
        task = direction.replace("_", "-") + "-retrieval"
        second = result.content["two_stage"][0]
        for name in (*METRICS, "median_rank", "mean_rank"):
            expected[task, 1, None, name] = result.rates[0.0]["methods"]["scalar"][f"{direction}_{name}"]
            expected[task, 2, "absent", name] = second[f"{direction}_{name}"]
    assert found == expected


def test_the_protocol_and_the_gallery_tell_results_of_a_benchmark_apart(tmp_path):
    for name, sha256 in (("one", "1" * 64), ("two", "2" * 64)):
        write_result(tmp_path, make_content(gallery={"sha256": sha256}), name)
    found = set()
    for entry in read_back(read_results(tmp_path)):
        arguments = entry.dataset_args
        found.add((entry.dataset_config.split(",")[0], arguments["gallery_sha256"]))
        assert (arguments["num_clips"], arguments["num_queries"], arguments["mask_seed"]) == (100, 100, 0)
        assert arguments["tie_rule"] == "the wrong ones come first" and entry.metric_args["method"] == "scalar"
        assert (entry.dataset_type, entry.dataset_split) == ("miniature", "test")
    assert found == {("gallery 111111111111", "1" * 64), ("gallery 222222222222", "2" * 64)}


def test_what_was_not_measured_is_left_out(make_result):
    def change(content):
        content["retrieval"]["rates"][0]["methods"]["scalar"]["text_to_video_recall_at_5"] = None
        content["two_stage"][0]["method"] = "video"  # another score's

    found = [
        (entry.metric_type, entry.metric_args["stage"])
        for entry in eval_results([make_result(change)])
        if entry.task_type == "text-to-video-retrieval"
    ]
    assert ("recall_at_1", 1) in found and ("recall_at_10", 1) in found
    assert not {("recall_at_5", 1), ("recall_at_1", 2)} & set(found)


# Tables and findings ------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_a_report(make_result):
    to_video, *_, differences = tables(make_result())
    rows = [line.split(" | ") for line in to_video[1].splitlines()]
    assert [row[0] for row in rows[2:]] == ["| SCALAR (own)", "| uniform centroid", "| GRAM volume", r"| subtitle \*"]
    assert rows[0][1] == "R@1" and rows[2][1] == "32.3"
    assert "| SCALAR | uniform centroid | +4.3 | +0.7 | +8.0 | 95 % |" in differences[1]
