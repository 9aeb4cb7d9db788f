"""Models, galleries and evaluation score with the scale and offset of each modality in their configuration."""

import pytest
import torch

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from tests.modeling_scalar.test_scores_scalar import CALIBRATION, FLOAT32, loop, random_clips


class Scores(ScalarRetrievalModel):
    """No encoder at all: what scores vectors that are there."""

    config_class = ScalarJointConfig

    def __init__(self, config):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()


NEUTRAL = {"modality_scale": [1, 1, 1], "modality_offset": [0, 0, 0]}


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (CALIBRATION, {}, CALIBRATION),
        ({}, {"query_temperature": 0.2} | CALIBRATION, {"temperature": 0.2} | CALIBRATION),
        (CALIBRATION, {"query_temperature": 0.2} | NEUTRAL, {"temperature": 0.2}),
    ],
)
def test_a_model_scores_and_weighs_as_its_configuration_says_unless_it_is_given_another_calibration(
    own, given, expected
):
    clips = random_clips()
    model = Scores(ScalarJointConfig(**own))
    assert model.score_options() == {"method": "scalar", "query_temperature": 0.1} | own
    scores, weights = loop(*clips, **expected)
    torch.testing.assert_close(model.compute_scores(*clips, **given).double(), scores, **FLOAT32)
    torch.testing.assert_close(model.compute_weights(*clips, **given).double(), weights, atol=2e-5, rtol=0)


def write_gallery(folder, modalities, mask, metadata):
    names = [f"clip{row}" for row in range(len(modalities))]
    with GalleryWriter(folder, "float16") as writer:
        writer.metadata = metadata
        writer.put_clips(names, modalities, mask)
        writer.commit()
    return Gallery.open(folder)


def test_a_gallery_is_searched_with_its_own_calibration(tmp_path):
    texts, modalities, mask = random_clips()
    half = modalities.half()
    gallery = write_gallery(tmp_path / "g", half, mask, {"query_temperature": 0.1, "score_options": CALIBRATION})
    scores, weights = loop(texts, half, mask, **CALIBRATION)
    for query, hits in enumerate(gallery.search(texts, k=5)):
        order = scores[query].argsort(descending=True)[:5].tolist()
        assert [hit.clip_id for hit in hits] == [f"clip{row}" for row in order]
        for hit, row in zip(hits, order, strict=True):
            assert hit.score == pytest.approx(scores[query, row].item(), abs=1e-5)
            expected = weights[query, row].tolist()
            assert list(hit.weights.values()) == pytest.approx(expected, abs=1e-4)
    other, _ = loop(texts, half, mask)
    (hits, *_) = gallery.search(texts, k=1, modality_scale=[1, 1, 1], modality_offset=[0, 0, 0])
    assert hits[0].score == pytest.approx(other[0].max().item(), abs=1e-5)
