"""A model without an encoder, for the tests of calibrations: it scores vectors that are there."""

from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel


class Scores(ScalarRetrievalModel):
    """No encoder at all: what scores vectors that are there."""

    config_class = ScalarJointConfig

    def __init__(self, config):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()
