"""The measurements of training costs run at tiny sizes; what they count, not how fast, is tested."""

import pytest
import torch

import evidence.speed.training as training


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return training.make_targets(tmp_path_factory.mktemp("targets"), num_clips=50, num_neighbors=4)


def test_what_is_frozen_is_not_run_from_features_and_keeps_less_for_the_backward_pass(targets, tmp_path):
    steps = training.compare_features(targets, tmp_path, batch_size=4, rounds=1)
    assert {"vision_model", "audio_model"} == set(steps["pixels"][0]) - set(steps["features"][0])
    sizes = training.compare_frozen(targets, tmp_path, batch_size=4)
    assert 0 < sizes["paper"] < sizes["all_towers"] < sizes["full"]


def test_the_run_at_full_size_works_on_a_small_model_without_a_gpu(targets, tmp_path, capsys):
    config = training.make_miniature().config
    training.print_full_size(config, targets, tmp_path, "fp16", 1, torch.device("cpu"), 4, 128, 32)
    printed = capsys.readouterr().out
    assert "clips/s" in printed and "5,330 steps" in printed
