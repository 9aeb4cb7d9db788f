"""Models score with the scale and offset of each modality in their configuration, or with those that are given."""

import pytest
import torch

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
