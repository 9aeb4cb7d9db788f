"""Evaluation of clips with any number of named modalities, against loops in double precision."""

import json
from functools import partial

import pytest
import torch

from scalar_retrieval.eval.calibrate import calibrate
from scalar_retrieval.eval.fitting import _write_model
from scalar_retrieval.eval.protocol.calibration import calibrate_embeddings
from scalar_retrieval.eval.protocol.first_stage import (
    evaluate_embeddings,
    measurable_methods,
    measure_first_stage,
)
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from tests.eval.slow import make_embeddings, slow_mask
from tests.modeling_scalar.test_calibrated_scores import Scores
from tests.modeling_scalar.test_scores_scalar import loop
from tests.scores import METHODS

FIVE = ("video", "title", "audio", "speech", "screen")
EIGHT = (*FIVE, "subtitle", "story", "place")
TAU, CLIPS = 0.2, 24


def made(modalities=FIVE, clips=CLIPS, **changes):
    return make_embeddings(clips, modalities=modalities, **{"metadata": {"query_temperature": TAU}} | changes)


@pytest.mark.parametrize("modalities", [("title",), ("audio", "story"), FIVE, EIGHT])
def test_the_protocol_is_that_of_loops_for_any_number_of_names(modalities, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.eval.protocol.first_stage._CHUNK", 7)
    embeddings = made(modalities)
    measured, table = measure_first_stage(embeddings, rates=(0.0, 0.9), query_temperature=TAU)
    clips = dict(zip(embeddings.clip_ids, embeddings.modality_mask.tolist(), strict=True))
    vectors = embeddings.text_embeds.double(), embeddings.modality_embeds.double()
    own = tuple(embeddings.pairs.T)
    for entry in measured["rates"]:
        mask = torch.tensor([slow_mask(name, present, entry["rate"]) for name, present in clips.items()])
        weights = loop(*vectors, mask, TAU)[1][own]
        decided = weights.argmax(1)
        assert entry["presence"] == dict(zip(modalities, mask.sum(0).tolist(), strict=True))
        means = dict(zip(modalities, weights.mean(0).tolist(), strict=True))
        assert entry["mean_weight"] == pytest.approx(means, abs=1e-5)
        counts = decided.bincount(minlength=len(modalities)).tolist()
        assert entry["decided"] == dict(zip(modalities, counts, strict=True))
        assert len(decided.unique()) > 1 or len(modalities) == 1
        if entry["rate"] == 0:
            shown = torch.tensor([table[f"weight_{name}"] for name in modalities]).T
            torch.testing.assert_close(shown.double(), weights.double(), atol=1e-5, rtol=0)
            assert table["decided"] == [modalities[place] for place in decided]
        recalls = {name: metrics["text_to_video_recall_at_1"] for name, metrics in entry["methods"].items()}
        best = max(modalities, key=recalls.get)
        assert entry["best_pathway"] == {"method": best, "text_to_video_recall_at_1": recalls[best]}
        gains = {name: recall - recalls[best] for name, recall in recalls.items() if name not in modalities}
        assert entry["aggregation_gain"] == pytest.approx(gains)
    assert (mask != embeddings.modality_mask).any() or len(modalities) == 1
    for count, step in enumerate(measured["ladder"], start=1):
        left = embeddings.modality_mask & (torch.arange(len(modalities)) < count)
        scores = loop(*vectors, left, TAU)[0]
        hits = (scores >= scores[own][:, None]).sum(1) == 1
        assert tuple(step["modalities"]) == modalities[:count]
        assert step["num_unscorable_clips"] == (~left.any(1)).sum()
        assert step["text_to_video_recall_at_1"]["scalar"] == pytest.approx(100 * hits.double().mean().item())
    assert count == len(modalities)


# Scores --------------------------------------------------------------------------------------------------------------


def test_scores_that_need_certain_modalities_are_measured_where_clips_have_them():
    assert set(measurable_methods(made())) == (set(METHODS) | set(FIVE)) - {"subtitle", "concat_head"}
    assert not {"video", "audio", "triangle"} & set(measurable_methods(made(("title", "speech"))))
    metrics = evaluate_embeddings(made(), ("triangle",), (0.0,))["rates"][0]["methods"]["triangle"]
    lacking = (~made().modality_mask[:, [0, 2]].all(1)).sum().item()
    assert metrics["num_unscorable_clips"] == lacking > 0


def test_a_name_of_a_modality_is_checked_before_anything_is_read(tmp_path):
    made().save(tmp_path / "gallery")
    with pytest.raises(ValueError, match=r"got \['story'\]. The clips have video, title, audio, speech, screen"):
        evaluate(embeddings=tmp_path / "gallery", output=tmp_path / "out", methods=("title", "story"))
    assert not (tmp_path / "out").exists()


# Calibration ---------------------------------------------------------------------------------------------------------


def write_model(folder, modalities):
    Scores(ScalarJointConfig(modalities=modalities, has_logit_scale=True)).save_pretrained(folder)


def test_fitted_numbers_are_written_into_a_model_by_name(tmp_path):
    write_model(tmp_path, ["screen", "title", "video"])
    _write_model(tmp_path, {"query_temperature": 0.2, "modality_offset": [0.1, 0.2, 0.3, 0.4, 0.5]}, FIVE)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["modality_offset"] == [0.5, 0.2, 0.1] and config["query_temperature"] == 0.2


def test_numbers_of_some_modalities_are_not_written_into_a_model_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "scalar_retrieval.eval.fitting.calibrate_embeddings", partial(calibrate_embeddings, num_folds=2)
    )
    made().save(tmp_path / "gallery")
    write_model(tmp_path / "model", ["video", "story"])
    options = {"embeddings": tmp_path / "gallery", "output": tmp_path / "out", "write": True, "progress": False}
    with pytest.raises(ValueError, match="also embeds story, which these clips do not have"):
        calibrate(tmp_path / "model", **options, scale_offset=True)
