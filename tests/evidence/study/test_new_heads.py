"""A backbone with new heads: its towers, and nothing of what it learned about the shared space."""

import torch
from datasets import Dataset

from evidence.study.new_heads import draw_heads
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.cache_features import checksums


def test_only_projections_are_new_and_stored_features_still_fit(tiny_model_dir, tmp_path):
    for name in ("one", "two"):
        draw_heads(tiny_model_dir, tmp_path / name)
    (before, processor), (one, _), (two, _) = map(load_model, (tiny_model_dir, tmp_path / "one", tmp_path / "two"))
    changed = {
        name.split(".")[0] for name, value in before.state_dict().items() if not value.equal(one.state_dict()[name])
    }
    assert changed == {f"{name}_projection" for name in ("text", "video", "audio", "subtitle")}
    assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    for name in changed:
        weight = one.get_submodule(name).weight
        assert weight.std().item() * weight.shape[1] ** 0.5 > 0.8
    rows = Dataset.from_dict(
        {"video_id": ["a"], "video_path": ["a.mp4"], "audio_path": [None], "subtitle": ["x"], "caption": ["y"]}
    )
    assert checksums(one, processor, rows) == checksums(before, processor, rows)
