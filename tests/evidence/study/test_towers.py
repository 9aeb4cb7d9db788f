"""Stored outputs of frozen towers give the embeddings that the files give."""

import pytest
import torch

from evidence.miniature.generation import generate
from evidence.study.towers import embed_stored, store_towers, towers_file
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.gallery.store.described import score_options_of
from scalar_retrieval.modeling_scalar import load_model


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    generate(root / "some", num_train=2, num_validation=6, num_test=9, num_proc=1)
    generate(root / "others", num_train=0, num_validation=6, num_test=9, seed=1, num_proc=1)
    return root


def save(folder, source, change):
    """A model whose parameters of some name differ from those of another."""
    model, processor = load_model(source, dtype=torch.float32)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.startswith(change):
                value.add_(0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_embeddings_are_those_of_the_files(clips, tiny_model_dir, tmp_path):
    root = clips / "some"
    store_towers(tiny_model_dir, root)
    assert not towers_file(root, "train").exists()
    trained = save(tmp_path / "trained", tiny_model_dir, ("text_", "video_projection", "audio_projection"))
    model, processor = load_model(trained, dtype=torch.float32)
    for split in ("validation", "test"):
        expected = embed_dataset(model, processor, load_benchmark("miniature", root, split), progress=False)
        found = embed_stored(trained, root, split)
        torch.testing.assert_close(found.modality_embeds, expected.modality_embeds, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.text_embeds, expected.text_embeds, atol=1e-5, rtol=0)
        assert torch.equal(found.modality_mask, expected.modality_mask) and torch.equal(found.pairs, expected.pairs)
        assert (found.clip_ids, found.query_ids) == (expected.clip_ids, expected.query_ids)
        assert all(found.kinds()) and score_options_of(found.metadata)["method"] == "scalar"


def test_other_towers_and_other_clips_are_refused(clips, tiny_model_dir, tmp_path):
    root = clips / "others"
    with pytest.raises(FileNotFoundError, match="evidence towers"):
        embed_stored(tiny_model_dir, root, "test")
    store_towers(tiny_model_dir, root)
    other = save(tmp_path / "other", tiny_model_dir, ("vision_model",))
    with pytest.raises(ValueError, match="outputs of other towers"):
        embed_stored(other, root, "test")
    towers_file(root, "test").write_bytes(towers_file(root, "validation").read_bytes())
    with pytest.raises(ValueError, match="outputs of other towers, or for other clips"):
        embed_stored(tiny_model_dir, root, "test")


def test_splits_that_are_stored_are_left_alone(clips, tiny_model_dir, tmp_path):
    root = tmp_path / "empty"
    generate(root, num_train=0, num_validation=0, num_test=2, num_proc=1)
    store_towers(tiny_model_dir, root)
    assert not towers_file(root, "validation").exists()
    before = towers_file(root, "test").stat().st_mtime_ns
    store_towers(tiny_model_dir, root)
    assert towers_file(root, "test").stat().st_mtime_ns == before
