"""Joint encoders in evaluation: they have the calls of three towers."""

import pytest

from scalar_retrieval.eval.run import evaluate
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import media


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("evaluation") / "encoder")


def test_a_second_stage_is_measured_only_where_there_is_one(encoder, tmp_path):
    (tmp_path / "clip.mkv").write_bytes(media("matroska", "mjpeg", ""))
    (tmp_path / "clips.csv").write_text("video_path,caption\nclip.mkv,a dog\nclip.mkv,a cat\n")
    source = {"model": encoder, "benchmark": "own", "root": tmp_path / "clips.csv", "rates": (0.0,), "progress": False}
    with pytest.raises(ValueError, match="needs a cross-encoder, which reads a text together with a clip"):
        evaluate(**source, depths=(1,))
    assert evaluate(**source)["two_stage"] == []  # by default
