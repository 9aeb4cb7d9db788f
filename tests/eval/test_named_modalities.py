"""Evaluation of clips with any number of named modalities, against loops in double precision."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from scalar_retrieval.eval.calibrate import calibrate
from scalar_retrieval.eval.fitting import _write_model
from scalar_retrieval.eval.protocol.calibration import calibrate_embeddings
from scalar_retrieval.eval.protocol.first_stage import (
    evaluate_embeddings,
    measurable_methods,
    measure_first_stage,
    pathways,
)
from scalar_retrieval.eval.protocol.missing import ladder
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


def slow_protocol(embeddings, mask):
    """Recall of SCALAR and of each modality, and the weights at the clip that a query describes, for one mask."""
    texts, vectors, mask = embeddings.text_embeds.double(), embeddings.modality_embeds.double(), torch.tensor(mask)
    scores, weights = loop(texts, vectors, mask, TAU)
    cosines = torch.einsum("qd,vmd->mqv", texts, vectors).masked_fill(~mask.T[:, None], -torch.inf)
    every, own = torch.cat([scores[None], cosines]), torch.arange(len(texts)) % len(vectors)
    hits = (every >= every[:, torch.arange(len(texts)), own, None]).sum(-1) == 1
    return 100 * hits.double().mean(1).numpy(), weights[torch.arange(len(texts)), own].numpy()


@pytest.mark.parametrize("modalities", [("title",), ("audio", "story"), FIVE, EIGHT])
def test_the_protocol_is_that_of_loops_for_any_number_of_names(modalities, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.eval.protocol.first_stage._CHUNK", 7)
    embeddings, number = made(modalities), len(modalities)
    measured, table = measure_first_stage(embeddings, rates=(0.0, 0.9), query_temperature=TAU)
    assert pathways(modalities) == modalities
    for entry in measured["rates"]:
        mask = [
            slow_mask(name, present, entry["rate"])
            for name, present in zip(embeddings.clip_ids, embeddings.modality_mask.tolist(), strict=True)
        ]
        recalls, weights = slow_protocol(embeddings, mask)
        found = [entry["methods"][name]["text_to_video_recall_at_1"] for name in ("scalar", *modalities)]
        assert found == pytest.approx(recalls.tolist())
        best = entry["best_pathway"]
        assert best["text_to_video_recall_at_1"] == pytest.approx(recalls[1:].max()) and best["method"] in modalities
        assert entry["aggregation_gain"]["scalar"] == pytest.approx(recalls[0] - recalls[1:].max())
        assert not set(entry["aggregation_gain"]) & set(modalities)
        assert entry["presence"] == dict(zip(modalities, np.sum(mask, axis=0).tolist(), strict=True))
        assert list(entry["mean_weight"]) == list(entry["decided"]) == list(modalities)
        assert list(entry["mean_weight"].values()) == pytest.approx(weights.mean(axis=0).tolist(), abs=1e-5)
        decided = np.bincount(weights.argmax(axis=1), minlength=number).tolist()
        assert list(entry["decided"].values()) == decided and (number == 1 or sorted(decided)[-2] > 0)
        assert entry["methods"]["scalar"]["num_unscorable_clips"] == 0
        if entry["rate"] == 0:
            shown = [[table[f"weight_{name}"][row] for name in modalities] for row in range(2 * CLIPS)]
            assert np.allclose(shown, weights, atol=1e-5)
            assert table["decided"] == [modalities[place] for place in weights.argmax(axis=1)]
    assert (np.array(mask) != embeddings.modality_mask.numpy()).any() or number == 1
    sets = [tuple(step["modalities"]) for step in measured["ladder"]]
    assert sets == ladder(modalities) == [modalities[: count + 1] for count in range(number)]
    for count, step in enumerate(measured["ladder"]):
        left = [
            [here and place <= count for place, here in enumerate(row)] for row in embeddings.modality_mask.tolist()
        ]
        assert step["num_unscorable_clips"] == sum(not any(row) for row in left)
        recalls, _ = slow_protocol(embeddings, left)
        assert step["text_to_video_recall_at_1"]["scalar"] == pytest.approx(recalls[0])


# Scores --------------------------------------------------------------------------------------------------------------


def test_scores_that_need_certain_modalities_are_measured_where_clips_have_them():
    names = measurable_methods(made())
    assert names[4:9] == FIVE and "triangle" in names and not {"subtitle", "concat_head"} & set(names)
    assert set(names) == (set(METHODS) | set(FIVE)) - {"subtitle", "concat_head"}
    assert not {"video", "audio", "triangle"} & set(measurable_methods(made(("title", "speech"))))
    metrics = evaluate_embeddings(made(), ("triangle",), (0.0,))["rates"][0]["methods"]["triangle"]
    lacking = (~made().modality_mask[:, [0, 2]].all(1)).sum().item()
    assert metrics["num_unscorable_clips"] == lacking > 0


def test_a_name_of_a_modality_is_checked_before_anything_is_read(tmp_path):
    made().save(tmp_path / "gallery")
    results = evaluate(embeddings=tmp_path / "gallery", methods=("title", "gram"), rates=(0.0,), progress=False)
    assert {"title", "gram"} < results["retrieval"]["rates"][0]["methods"].keys()
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
    _, written = calibrate(tmp_path / "model", **options)  # a temperature is of no modality
    assert tmp_path / "model" / "config.json" not in written
