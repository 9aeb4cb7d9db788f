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
from scalar_retrieval.eval.protocol.second_stage import FUSION_WEIGHTS, TwoStage
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.gallery.second_stage.matching import POLICIES
from scalar_retrieval.modeling_scalar import load_model, scores_scalar
from scalar_retrieval.modeling_scalar.scores_scalar import register_method
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
    assert (results["label"], results["seed"], results["task"]) == ("tiny", None, "retrieval")
    assert (results["model"], results["benchmark"], results["split"]) == (str(tiny_model_dir), "miniature", "test")
    embeddings = Embeddings.load(folder / "embeddings")
    expected = evaluate_embeddings(embeddings, query_temperature=0.1)
    ladder, differences, kinds = (results["retrieval"][name] for name in ("ladder", "differences", "kinds"))
    assert {"ladder": ladder, "differences": differences, "kinds": kinds} | expected == results["retrieval"]
    assert set(expected["rates"][0]["methods"]) == set(METHODS) - {"concat_head"} and len(expected["rates"]) == 5
    assert len(ladder) == 3 and {entry["baseline"] for entry in differences} > {"uniform", "gram"}
    assert results["gallery"] == embeddings.manifest()
    assert results["embedded"]["benchmark_description"]["seed"] == 0 and results["embedded"]["training"] is None
    assert results["arguments"]["batch_size"] == 4 and results["arguments"]["root"] == str(data)
    assert {"source", "date", "versions"} < set(results) and results["left_out"] == results["problems"] == []
    table = pq.read_table(folder / "queries.parquet").to_pydict()
    recall = 100 * table["rank_scalar"].count(1) / 14
    assert recall == pytest.approx(expected["rates"][0]["methods"]["scalar"]["text_to_video_recall_at_1"])
    assert table["caption"] == embeddings.captions


def test_recall_is_measured_by_kind_of_caption(whole, data):
    folder, results = whole
    table, rows = pq.read_table(folder / "queries.parquet").to_pydict(), load_benchmark("miniature", data)
    assert (table["caption"], table["kind"]) == (rows["caption"][:], rows["kind"][:])
    kinds = results["retrieval"]["kinds"]
    assert [entry["kind"] for entry in kinds] == sorted(set(table["kind"])) and len(kinds) > 1
    for entry in kinds:
        mine = [place for place, kind in enumerate(table["kind"]) if kind == entry["kind"]]
        assert entry["num_queries"] == len(mine)
        for method, recall in entry["text_to_video_recall_at_1"].items():
            hits = [table[f"rank_{method}"][place] == 1 for place in mine]
            assert recall == pytest.approx(100 * np.mean(hits))
    assert "kinds" not in results["embedded"]


def test_embeddings_give_the_same_first_stage_and_with_the_model_the_second_too(
    whole, data, tiny_model_dir, monkeypatch
):
    folder, first = whole
    again = evaluate(embeddings=folder / "embeddings", progress=False)
    for name in ("task", "model", "benchmark", "split", "score", "retrieval", "gallery", "problems", "embedded"):
        assert again[name] == first[name]
    assert again["two_stage"] == []
    monkeypatch.setattr("scalar_retrieval.eval.source.embed_dataset", pytest.fail)
    source = {"model": tiny_model_dir, "benchmark": "miniature", "root": data}
    options = {"rates": (0.5,), "depths": (5,), "progress": False}
    again = evaluate(**source, embeddings=folder / "embeddings", **options)
    expected = [entry for entry in first["two_stage"] if entry["rate"] == 0.5]
    assert again["two_stage"] == [pytest.approx(entry) for entry in expected]


@pytest.fixture(scope="module")
def fused(whole, data, tiny_model_dir, tmp_path_factory):
    """The second stage by both rules at two depths, the weight chosen on the clips to train on."""
    folder, _ = whole
    return evaluate(
        tiny_model_dir,
        "miniature",
        data,
        embeddings=folder / "embeddings",
        output=tmp_path_factory.mktemp("fused"),
        rates=(0.0, 0.9),
        depths=(2, 5),
        fusion_split="train",
        progress=False,
    )


def test_the_weight_of_the_fusion_is_chosen_on_the_other_split(fused, whole, data, tiny_model_dir):
    model, processor = load_model(tiny_model_dir)
    options, chosen = {"rates": (0.0, 0.9), "progress": False}, {}
    for split in ("train", "test"):
        dataset = load_benchmark("miniature", data, split)
        embeddings = embed_dataset(model, processor, dataset, progress=False)
        chosen[split] = TwoStage(model, processor, dataset, embeddings, 5, **options).choose_weight()
    assert fused["two_stage_fusion"] == {"split": "train", "num_clips": 3} | chosen["train"]
    assert chosen["train"]["curve"] != chosen["test"]["curve"]  # or this would hold for a choice on the test split
    assert fused["two_stage_fusion"]["grid"] == list(FUSION_WEIGHTS) == chosen["test"]["grid"]

    dataset, embeddings = load_benchmark("miniature", data), Embeddings.load(whole[0] / "embeddings")
    options["policies"] = POLICIES
    weight = chosen["train"]["weight"]
    expected = evaluate_two_stage(model, processor, dataset, embeddings, (2, 5), weight, **options)
    assert fused["two_stage"] == [pytest.approx(entry) for entry in expected]
    assert {(entry["rule"], entry["depth"]) for entry in expected} == {
        (r, d) for r in ("match", "fused") for d in (2, 5)
    }


def test_splits_that_share_clips_are_no_choice(data, tiny_model_dir, tmp_path, monkeypatch):
    test = load_split("miniature", data)
    monkeypatch.setattr("scalar_retrieval.eval.source.load_split", lambda *arguments, **options: test)
    with pytest.raises(ValueError, match="'train' and 'test' share 14, such as '"):
        evaluate(tiny_model_dir, "miniature", data, output=tmp_path, fusion_split="train")


def test_the_models_own_score_is_measured_with_what_it_learned(tmp_path):
    learned = {"hyperbolic_mix": 0.25, "curvature": 2.0}
    metadata = {"score_options": {"method": "hypergram", "query_temperature": 0.3} | learned}
    make_embeddings(metadata=metadata).save(tmp_path / "store")
    results = evaluate(embeddings=tmp_path / "store", output=tmp_path / "out", methods=["uniform"], rates=[0.0])
    assert results["score"] == {"method": "hypergram", "query_temperature": 0.3} | learned
    metrics = results["retrieval"]["rates"][0]["methods"]
    assert list(metrics) == ["hypergram", "uniform", "video", "audio", "subtitle"]
    expected = evaluate_embeddings(make_embeddings(), ("hypergram",), (0.0,), **learned)
    assert metrics["hypergram"] == expected["rates"][0]["methods"]["hypergram"]
    assert results["label"] == "store" and results["problems"] == ["clip3: audio is broken"]


def test_an_infinite_temperature_survives_the_files(tmp_path):
    make_embeddings(metadata={"score_options": {"method": "scalar", "query_temperature": "inf"}}).save(
        tmp_path / "store"
    )
    results = evaluate(embeddings=tmp_path / "store", output=tmp_path / "out", methods=["uniform"], rates=[0.0])
    metrics = results["retrieval"]["rates"][0]["methods"]
    assert metrics["scalar"] == metrics["uniform"]
    content = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=pytest.fail)
    assert content["score"]["query_temperature"] == "inf"


def test_a_run_follows_the_protocol_and_names_what_is_left_out(data, tiny_model_dir, tmp_path, monkeypatch):
    whole = load_split("miniature_classes", data)
    split = Split(whole.dataset, ["gone"], whole.task, {"num_frames": 1})
    monkeypatch.setattr("scalar_retrieval.eval.source.load_split", lambda *arguments, **options: split)
    options = {"rates": (0,), "depths": (), "progress": False}
    results = evaluate(tiny_model_dir, "miniature_classes", data, output=tmp_path / "out", **options)
    assert results["left_out"] == ["gone"] and results["embedded"]["processing"] == {"num_frames": 1}
    assert results["task"] == "classification" and results["retrieval"]["num_queries"] < len(whole.dataset)
    model, processor = load_model(tiny_model_dir)
    expected = embed_dataset(
        model, configure_processor(processor, {"num_frames": 1}), whole.dataset, task=whole.task, progress=False
    )
    embeddings = Embeddings.load(tmp_path / "out" / "embeddings")
    assert torch.allclose(embeddings.modality_embeds, expected.modality_embeds, atol=1e-6)


def test_a_score_of_ones_own_gets_a_column_in_every_table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_scores.py").write_text(
        "from scalar_retrieval.modeling_scalar.scores_scalar import register_method\n\n\n"
        '@register_method("my_product")\ndef my_product(pairs):\n    return pairs.similarities.prod(0)\n'
    )
    make_embeddings().save(tmp_path / "store")
    command = ["run", "--embeddings", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
    try:
        done = CliRunner().invoke(app, [*command, "--plugin", "my_scores"])
    finally:
        scores_scalar.METHODS.pop("my_product", None)
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert all("my_product" in entry["methods"] for entry in results["retrieval"]["rates"])
    assert "my_product" in done.output and "my_product" in (tmp_path / "out" / "report" / "tables.md").read_text()
    assert "my_product" in results["retrieval"]["ladder"][0]["text_to_video_recall_at_1"]
    register_method("my_product")  # the name is free again


def test_command_prints_the_table_of_any_modalities_and_repeats_rates(tmp_path):
    names = ("video", "title", "audio", "speech", "screen")
    slow.make_embeddings(12, 1, names, dim=8).save(tmp_path / "store")
    command = ["run", "--embeddings", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--rate", "0", "--rate", "0.25", "--method", "gram"])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [entry["rate"] for entry in results["retrieval"]["rates"]] == [0.0, 0.25]
    assert list(results["retrieval"]["rates"][0]["aggregation_gain"]) == ["scalar", "gram"]
    assert done.stdout.startswith((tmp_path / "out" / "report" / "tables.md").read_text().split("\n![")[0].rstrip())
    assert all(f"| {name} " in done.stdout for name in names)  # their rows among the scores
    table = pq.read_table(tmp_path / "out" / "queries.parquet")
    assert [name for name in table.column_names if name.startswith("weight_")] == [f"weight_{n}" for n in names]
