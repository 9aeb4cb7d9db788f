"""Joint encoders in evaluation: they have the calls of three towers."""

import pytest
import torch
from datasets import Dataset

from scalar_retrieval.eval.benchmarks.definition import configure_processor
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.modeling_scalar import load_model
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import media


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("evaluation") / "encoder")


def test_a_data_set_is_embedded_by_a_joint_encoder(encoder, tmp_path):
    model, processor = load_model(encoder)
    processor = configure_processor(processor, {"num_frames": 2})
    path = tmp_path / "clip.mkv"
    path.write_bytes(media("matroska", "mjpeg", "pcm_s16le"))
    rows = [
        {"video_id": "a", "caption": "a dog", "video_path": str(path), "audio_path": str(path), "subtitle": "woof"},
        {"video_id": "b", "caption": "a cat", "video_path": None, "audio_path": str(path), "subtitle": None},
    ]
    embeddings = embed_dataset(model, processor, Dataset.from_list(rows), batch_size=1, progress=False)
    clips = [processor.read_clip(path, subtitle="woof"), processor.read_clip(None, audio=path)]
    with torch.no_grad():
        expected = model(**processor(text=["a dog", "a cat"], clips=clips))
    assert embeddings.modality_mask.tolist() == [[True, True, True], [False, True, False]]
    torch.testing.assert_close(embeddings.modality_embeds, expected.modality_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(embeddings.text_embeds, expected.text_embeds, atol=1e-6, rtol=0)


def test_a_second_stage_is_measured_only_where_there_is_one(encoder, tmp_path):
    (tmp_path / "clip.mkv").write_bytes(media("matroska", "mjpeg", ""))
    (tmp_path / "clips.csv").write_text("video_path,caption\nclip.mkv,a dog\nclip.mkv,a cat\n")
    source = {"model": encoder, "benchmark": "own", "root": tmp_path / "clips.csv", "rates": (0.0,), "progress": False}
    with pytest.raises(ValueError, match="needs a cross-encoder, which reads a text together with a clip"):
        evaluate(**source, depths=(1,))
    assert evaluate(**source)["two_stage"] == []  # by default
