"""Evaluations are read, refused where they are none, and every figure comes out as it went in."""

import json
from functools import cache

import pytest
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from scalar_retrieval import evaluate
from scalar_retrieval.eval.reports.result_files import R1
from scalar_retrieval.hub_cards.records.evaluations import eval_results, read_result, read_results, tables
from tests.eval.slow import make_embeddings


@cache
def _measured():
    """What an evaluation writes of an adapter, with the second stage that embeddings alone do not have."""
    metadata = {"benchmark": "miniature", "split": "test", "query_temperature": 0.2, "left_out": []}
    metadata["weights"] = {"adapter_model.safetensors": "ab" * 32}
    embeddings = make_embeddings(100, 1, metadata=metadata)
    content = evaluate(embeddings=embeddings, rates=[0.0, 0.5], progress=False)
    for entry in content["retrieval"]["rates"]:
        second = {"rate": entry["rate"], "depth": 50, "policy": "absent", "method": "scalar", "mask_seed": 0}
        content["two_stage"].append(second | {"num_unread_pairs": 0} | entry["methods"]["scalar"])
    return json.dumps(content | {"seed": 50})


def make_content(**changes):
    """A `results.json` at which nothing speaks against the model."""
    return json.loads(_measured()) | changes


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
        (lambda content: content["score"].update(method="mine"), "own score 'mine'"),
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
        assert (entry.dataset_args["tie_rule"], entry.dataset_split) == (content["retrieval"]["tie_rule"], "test")
    assert found == expected


def test_the_tables_are_those_of_a_report(tmp_path):
    to_video, *_, differences = tables(read_result(write_result(tmp_path, make_content())))
    heading, _, own, *others = [line.split(" | ") for line in to_video[1].splitlines()]
    assert (heading[1], own[:2]) == ("R@1", ["| SCALAR (own)", "91.0"]) and len(others) > 5
    assert "| SCALAR | uniform centroid | +61.0 | +51.0 | +71.0 | 95 % |" in differences[1]
