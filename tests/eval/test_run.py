"""`eval run` with a tiny model on a few clips, on embeddings alone, and with mistakes."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from evidence.miniature.generation import generate
from scalar_retrieval.eval.__main__ import app
from scalar_retrieval.eval.benchmarks.definition import Split, configure_processor
from scalar_retrieval.eval.benchmarks.registry import load_benchmark, load_split
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.protocol.first_stage import evaluate_embeddings
from scalar_retrieval.eval.protocol.second_stage import TwoStage
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.gallery.second_stage.matching import POLICIES
from scalar_retrieval.modeling_scalar import load_model, scores_scalar
from tests.eval import slow
from tests.eval.protocol.slow_matching import evaluate_two_stage
from tests.scores import METHODS


def make_embeddings(**changes):
    return slow.make_embeddings(12, 1, dim=8, **{"problems": ["clip3: audio is broken"]} | changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("run") / "data", num_train=3, num_validation=0, num_test=14, num_proc=1)


@pytest.fixture(scope="module")
def whole(data, tiny_model_dir, tmp_path_factory):
    """One evaluation with everything, and the folder it wrote."""
    folder = tmp_path_factory.mktemp("whole")
    options = {"batch_size": 4, "label": "tiny", "depths": (5,), "progress": False}
    results = evaluate(tiny_model_dir, "miniature", data, output=folder, **options)
    return folder, results


def test_a_run_holds_every_metric_and_how_to_repeat_them(whole, data, tiny_model_dir):
    folder, results = whole
    assert json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail) == results
    embeddings = Embeddings.load(folder / "embeddings")
    expected = {"label": "tiny", "seed": None, "task": "retrieval", "model": str(tiny_model_dir)}
    expected |= {"benchmark": "miniature", "split": "test", "left_out": [], "problems": []}
    assert results == results | expected | {"gallery": embeddings.manifest()}
    measured = evaluate_embeddings(embeddings, query_temperature=0.1)
    assert results["retrieval"] == results["retrieval"] | measured
    assert set(measured["rates"][0]["methods"]) == set(METHODS) - {"concat_head"} and len(measured["rates"]) == 5
    assert {entry["baseline"] for entry in results["retrieval"]["differences"]} > {"uniform", "gram"}
    assert results["arguments"]["batch_size"] == 4 and results["arguments"]["root"] == str(data)
    assert {"source", "date", "versions", "embedded"} < set(results)


def test_recall_is_measured_by_kind_of_caption(whole, data):
    folder, results = whole
    table, rows = pq.read_table(folder / "queries.parquet").to_pydict(), load_benchmark("miniature", data)
    assert (table["caption"], table["kind"]) == (rows["caption"][:], rows["kind"][:])
    hits, kinds = np.array(table["rank_scalar"]) == 1, np.array(table["kind"])
    everything = results["retrieval"]["rates"][0]["methods"]["scalar"]["text_to_video_recall_at_1"]
    assert everything == pytest.approx(100 * hits.mean())
    entries = results["retrieval"]["kinds"]
    assert [entry["kind"] for entry in entries] == sorted(set(kinds)) and len(entries) > 1
    for entry in entries:
        mine = hits[kinds == entry["kind"]]
        assert entry["num_queries"] == len(mine)
        assert entry["text_to_video_recall_at_1"]["scalar"] == pytest.approx(100 * mine.mean())


def test_the_weight_of_the_fusion_is_chosen_on_the_other_split(whole, data, tiny_model_dir):
    """The second stage by both rules at two depths."""
    options = {"rates": (0.0, 0.9), "progress": False}
    store, split = whole[0] / "embeddings", {"depths": (2, 5), "fusion_split": "train"}
    fused = evaluate(tiny_model_dir, "miniature", data, embeddings=store, **split, **options)
    model, processor = load_model(tiny_model_dir)
    chosen = {}
    for split in ("train", "test"):
        dataset = load_benchmark("miniature", data, split)
        embeddings = embed_dataset(model, processor, dataset, progress=False)
        chosen[split] = TwoStage(model, processor, dataset, embeddings, 5, **options).choose_weight()
    assert fused["two_stage_fusion"] == {"split": "train", "num_clips": 3} | chosen["train"]
    assert chosen["train"]["curve"] != chosen["test"]["curve"]  # or this would hold for a choice on the test split

    weight = chosen["train"]["weight"]
    stages = model, processor, dataset, Embeddings.load(store)
    expected = evaluate_two_stage(*stages, (2, 5), weight, policies=POLICIES, **options)
    assert fused["two_stage"] == [pytest.approx(entry) for entry in expected]


def test_splits_that_share_clips_are_no_choice(data, tiny_model_dir, tmp_path, monkeypatch):
    test = load_split("miniature", data)
    monkeypatch.setattr("scalar_retrieval.eval.source.load_split", lambda *arguments, **options: test)
    with pytest.raises(ValueError, match="'train' and 'test' share 14, such as '"):
        evaluate(tiny_model_dir, "miniature", data, output=tmp_path, fusion_split="train")


@pytest.mark.parametrize("temperature", [0.3, "inf"])
def test_the_models_own_score_is_measured_with_what_it_learned(tmp_path, temperature):
    score = {"method": "hypergram", "query_temperature": temperature, "hyperbolic_mix": 0.25, "curvature": 2.0}
    make_embeddings(metadata={"score_options": score}).save(tmp_path / "store")
    out, methods = tmp_path / "out", ["uniform", "scalar"]
    results = evaluate(embeddings=tmp_path / "store", output=out, methods=methods, rates=[0.0])
    assert json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)["score"] == score
    metrics = results["retrieval"]["rates"][0]["methods"]
    assert list(metrics) == ["hypergram", "uniform", "scalar", "video", "audio", "subtitle"]
    learned = {"hyperbolic_mix": 0.25, "curvature": 2.0}
    expected = evaluate_embeddings(make_embeddings(), ("hypergram",), (0.0,), **learned)
    assert metrics["hypergram"] == expected["rates"][0]["methods"]["hypergram"]
    assert (metrics["scalar"] == metrics["uniform"]) == (temperature == "inf")
    assert results["label"] == "store" and results["problems"] == ["clip3: audio is broken"]


def test_a_run_follows_the_protocol_and_names_what_is_left_out(data, tiny_model_dir, tmp_path, monkeypatch):
    whole = load_split("miniature_classes", data)
    split = Split(whole.dataset, ["gone"], whole.task, {"num_frames": 1})
    monkeypatch.setattr("scalar_retrieval.eval.source.load_split", lambda *arguments, **options: split)
    options = {"output": tmp_path, "rates": (0,), "depths": (), "progress": False}
    results = evaluate(tiny_model_dir, "miniature_classes", data, **options)
    assert results["left_out"] == ["gone"] and results["embedded"]["processing"] == {"num_frames": 1}
    assert results["task"] == "classification" and results["retrieval"]["num_queries"] < len(whole.dataset)
    model, processor = load_model(tiny_model_dir)
    processor = configure_processor(processor, {"num_frames": 1})
    expected = embed_dataset(model, processor, whole.dataset, task=whole.task, progress=False)
    embeddings = Embeddings.load(tmp_path / "embeddings")
    torch.testing.assert_close(embeddings.modality_embeds, expected.modality_embeds, atol=1e-6, rtol=0)


def test_the_command_puts_any_modalities_and_a_score_of_ones_own_into_every_table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_scores.py").write_text(
        "from scalar_retrieval.modeling_scalar.scores_scalar import register_method\n\n\n"
        '@register_method("my_product")\ndef my_product(pairs):\n    return pairs.similarities.prod(0)\n'
    )
    names, out = ("video", "title", "audio", "speech", "screen"), tmp_path / "out"
    slow.make_embeddings(12, 1, names, dim=8).save(tmp_path / "store")
    command = ["run", "--embeddings", str(tmp_path / "store"), "--output", str(out), "--plugin", "my_scores"]
    try:
        done = CliRunner().invoke(app, [*command, "--rate", "0", "--rate", "0.25"])
    finally:
        scores_scalar.METHODS.pop("my_product", None)
    assert done.exit_code == 0, done.output
    retrieval = json.loads((out / "results.json").read_text())["retrieval"]
    assert [entry["rate"] for entry in retrieval["rates"]] == [0.0, 0.25]
    assert all("my_product" in entry["methods"] for entry in retrieval["rates"])
    assert done.stdout.startswith((out / "report" / "tables.md").read_text().split("\n![")[0].rstrip())
    assert all(f"| {name} " in done.stdout for name in (*names, "my_product"))  # their rows among the scores
    assert {f"weight_{name}" for name in names} < set(pq.read_table(out / "queries.parquet").column_names)
