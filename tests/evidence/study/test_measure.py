"""Which ranks of a run are stored, and what the files of a run hold."""

import json
import math
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from evidence.settings import MeasureConfig
from evidence.study import measure as module
from evidence.study.fitting import Fit
from evidence.study.measure import EmbeddedClips, measure
from evidence.study.ranks import HIGHEST, mean_reciprocal_ranks, own_ranks, reciprocal
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS
from tests.eval.protocol.test_calibration import made
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401

CURVE = {"temperature 0.05", "temperature 0.1", "temperature 0.2", "temperature 0.4", "temperature 0.8",
         "temperature inf"}  # fmt: skip


def embedded(num_clips=60, seed=0):
    options = {"method": "scalar", "query_temperature": 0.41}
    embeddings = made(num_clips=num_clips, dim=24, seed=seed)
    return EmbeddedClips(replace(embeddings, metadata={"score_options": options}), [("single", "video")] * num_clips)


@pytest.fixture(scope="module")
def sets():
    test = embedded(50, seed=1)
    return embedded(), {"test": test, "complete": test.complete(), "disagree": embedded(20, seed=2)}


def names_of(rows, **wanted):
    chosen = [row for row in rows if wanted.items() <= row.items()]
    return Counter((row["score"], row["numbers"], row["masked"]) for row in chosen)


def test_a_model_s_own_score_and_single_modalities_are_ranked_in_both_directions(sets):
    rows, _, tried = measure(*sets)
    assert tried.keys() == {"scalar"}
    found = names_of(rows, clips="test")
    own = {("scalar", "fitted", masked) for masked in ("nothing", "0.5", "0.9", "subtitle", "audio,subtitle")}
    own |= {("scalar", "as trained", masked) for masked in ("nothing", "0.5")}
    single = {(name, "as trained", "nothing") for name in ("video", "audio", "subtitle")}
    assert found == dict.fromkeys(own | single, 2)
    of_own = {("scalar", "as trained", "nothing"), ("scalar", "fitted", "nothing")}
    assert names_of(rows, clips="complete") == dict.fromkeys(of_own, 2)
    assert names_of(rows, clips="disagree") == dict.fromkeys(of_own | single, 2)
    lengths = {row["clips"]: len(row["ranks"]) for row in rows}
    complete = int(sets[1]["test"].embeddings.modality_mask.all(1).sum())
    assert lengths == {"test": 50, "complete": complete, "disagree": 20}


def test_ranks_are_those_of_the_score_under_each_mask(sets):
    validation, tests = sets
    rows, *_ = measure(validation, {"test": tests["test"]})
    embeddings = tests["test"].embeddings
    video_alone = embeddings.modality_mask & torch.tensor([True, False, False])
    for score in ("scalar", "video"):
        (expected,) = own_ranks(embeddings, [video_alone], ("video", {}))
        masked = {"scalar": "audio,subtitle", "video": "nothing"}[score]
        for row in rows:
            if (row["score"], row["masked"]) == (score, masked):
                assert list(row["ranks"]) == expected[row["direction"]].clamp(max=HIGHEST).tolist()


def test_others_are_ranked_where_methods_are_compared(sets):
    rows, chosen, tried = measure(*sets, scores="compared", curve=True)
    assert tried.keys() == set(module.COMPARED)
    found = names_of(rows, clips="test")
    assert {key for key in found if key[1] in CURVE} == {("scalar", name, "nothing") for name in CURVE}
    assert chosen["scalar", "temperature inf"][1] == {"query_temperature": math.inf}
    of_others = {key[0]: key[1] for key in found if key[0] in ("uniform", "pmrl", "gram_corrected", "span_corrected")}
    assert set(of_others.values()) == {"fitted"}
    assert {numbers for score, numbers, _ in found if score == "gram"} == {"as trained", "fitted"}
    assert {numbers for score, numbers, _ in found if score == "hypergram"} == {"as trained"}
    alone = {masked: number for (score, _, masked), number in found.items() if score == "audio"}
    assert alone == {"nothing": 2, "0.5": 1, "0.9": 1}
    rates = {masked for score, numbers, masked in found if (score, numbers) == ("scalar", "fitted")}
    assert rates == {"nothing", "0.25", "0.5", "0.75", "0.9", "subtitle", "audio,subtitle"}
    assert ("gram_span", "fitted", "nothing") in names_of(rows, clips="complete")
    assert max(found.values()) == 2 and "mean" not in tried


def test_every_score_and_the_router_rank_one_method_s_embeddings(sets, monkeypatch):
    monkeypatch.setattr(module, "fits_of", lambda *_: [])
    validation, tests = sets
    rows, _, tried = measure(validation, {"test": tests["test"]}, scores="all")
    assert {"mean", "max", "rank_fusion"} <= tried.keys()
    routed = [row for row in rows if row["score"] == "router"]
    assert [(row["clips"], row["direction"], len(row["ranks"])) for row in routed] == [("test", "text_to_video", 50)]


def test_fitted_rows_are_those_of_the_training_if_no_fit_is_kept(sets, monkeypatch):
    unsure = Fit(("max", {}), 1, {"difference": 1.0, "low": -0.1, "high": 2.0})
    monkeypatch.setattr(module, "fits_of", lambda *_: [unsure])
    rows, chosen, _ = measure(*sets, scores="compared")
    for score in ("scalar", "gram", "gram_span"):
        assert chosen[score, "fitted"] == chosen[score, "as trained"]
    ranks = {(row["score"], row["numbers"], row["direction"]): row["ranks"] for row in rows
             if (row["clips"], row["masked"]) == ("test", "nothing")}  # fmt: skip
    for direction in DIRECTIONS:
        assert ranks["gram_corrected", "fitted", direction] == ranks["gram", "as trained", direction]
        assert ranks["span_corrected", "fitted", direction] == ranks["gram_span", "as trained", direction]


def test_a_reciprocal_rank_counts_up_to_ten():
    assert reciprocal(torch.tensor([1, 4, 10, 11, 500])).tolist() == [100, 25, 10, 0, 0]
    embeddings = made(num_clips=30)
    (ranks,) = own_ranks(embeddings, [embeddings.modality_mask], ("video", {}))
    expected = sum(reciprocal(ranks[direction]) for direction in DIRECTIONS) / 2
    assert torch.equal(mean_reciprocal_ranks(embeddings, ("video", {})), expected)


@pytest.fixture
def run(tmp_path, monkeypatch, sets):
    """A trained model's folder, with made embeddings instead of a model."""
    validation, tests = sets
    recipe = {"temperature": 0.2, "learning_rate": 0.003, "num_train_epochs": 4.0, "query_temperature": None}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    found = {"validation": validation, "test": tests["test"], "disagree": tests["disagree"]}
    monkeypatch.setattr(
        module, "embed", lambda model, root, split, stored: found["disagree" if root.name == "disagree" else split]
    )
    return tmp_path


def test_a_run_leaves_two_small_files(run):
    output = run / "main" / "scalar-50"
    module.main(MeasureConfig(model=run, root=run, output=output, disagree=run / "disagree", stored=True))
    content = json.loads(output.with_name("scalar-50.json").read_text())
    assert content["own"] == "scalar" and content["settings"]["temperature"] == 0.2
    by_numbers = {entry["numbers"]: entry for entry in content["scores"] if entry["score"] == "scalar"}
    assert by_numbers["as trained"]["options"] == {"query_temperature": 0.41}
    fits = by_numbers["fitted"]["fits"]
    assert [one["count"] for one in fits] == [1, 7]
    assert all({"kept", "gain", "options"} < one.keys() for one in fits) and sum(one["kept"] for one in fits) <= 1
    rows = pq.read_table(output.with_name("scalar-50.parquet")).to_pylist()
    assert {row["clips"] for row in rows} == {"test", "complete", "disagree"}


def test_a_trial_leaves_its_mean_reciprocal_rank_on_validation_clips_as_trained(run, sets):
    output = run / "tuning" / "scalar-0.2-0.003-4-40"
    module.main(MeasureConfig(model=run, root=run, output=output, split="validation", stored=True))
    assert [path.name for path in output.parent.iterdir()] == ["scalar-0.2-0.003-4-40.json"]
    found = json.loads((output.parent / "scalar-0.2-0.003-4-40.json").read_text())["mean_reciprocal_rank"]
    expected = mean_reciprocal_ranks(sets[0].embeddings, ("scalar", {"query_temperature": 0.41})).mean().item()
    assert sum(found.values()) / 2 == pytest.approx(expected)


def test_a_learned_temperature_is_recorded_as_it_ended(tmp_path, monkeypatch):
    class Network:
        def logit_scale(self):
            return torch.tensor(0.08913)

    (tmp_path / "recipe.json").write_text(json.dumps({"temperature": 0.1, "learnable_temperature": True}))
    monkeypatch.setattr(module, "load_model", lambda *_, **__: (Network(), None))
    found = module._learned(tmp_path)
    assert (found["temperature"], found["learned_temperature"]) == (0.1, 0.0891)
