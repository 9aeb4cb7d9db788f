import unittest

import pytest
import torch

from scalar_retrieval.modeling_scalar import ScalarConfig, ScalarModel
from tests.conftest import make_batch, make_tiny_config
from tests.transformers_suite.suite import is_here, load

if not is_here():
    pytest.skip("the mixins are not here; `make suite` fetches them", allow_module_level=True)
pytestmark = pytest.mark.suite
common = load("test_modeling_common")
configurations = load("test_configuration_common")


class ScalarTester:
    """What the mixins ask of every model."""

    is_training = True
    batch_size = 4
    seq_length = 8
    num_hidden_layers = 2

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return make_tiny_config()

    def prepare_config_and_inputs_for_common(self):
        batch = make_batch()
        batch["subtitle_input_ids"].clamp_(max=40)  # resizing takes the last 15 of 60 words away
        return self.get_config(), batch


class ScalarModelTest(common.ModelTesterMixin, unittest.TestCase):
    all_model_classes = (ScalarModel,)
    # Without clips there is no score to compare.
    additional_model_inputs = (
        "pixel_values_videos", "input_features", "subtitle_input_ids", "subtitle_attention_mask"
    )  # fmt: skip

    test_all_params_have_gradient = False  # those of the cross-encoder have none without `select_pairs`

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        return inputs | {"return_loss": True} if return_labels else inputs

    def setUp(self):
        self.model_tester = ScalarTester(self)
        self.config_tester = configurations.ConfigTester(
            self, config_class=ScalarConfig, has_text_modality=False, common_properties=["projection_dim"]
        )

    def test_config(self):
        self.config_tester.run_common_tests()

    @common.parameterized.expand(common.TEST_EAGER_MATCHES_SDPA_INFERENCE_PARAMETERIZATION)
    def test_eager_matches_sdpa_inference(self, *case):
        # The suite compares logits, which are cosines over a temperature of 0.07: so much larger are their errors.
        atols = {
            ("cpu", kernels, dtype): atol / 0.07
            for kernels in (False, True)
            for dtype, atol in ((torch.float32, 1e-6), (torch.float16, 5e-3), (torch.bfloat16, 1e-2))
        }
        common._test_eager_matches_sdpa_inference(self, *case, atols=atols)

    @unittest.skip("As of CLIPModel, attentions are in the outputs of the towers; tested in test_modeling_scalar.")
    def test_attention_outputs(self):
        pass

    @unittest.skip("As of CLIPModel, hidden states are in the outputs of the towers; tested in test_modeling_scalar.")
    def test_hidden_states_output(self):
        pass

    @unittest.skip("As of CLIPModel, hidden states are in the outputs of the towers.")
    def test_retain_grad_hidden_states_attentions(self):
        pass

    @unittest.skip("It subtracts outputs from each other, and the mask of modalities is boolean; own test beside it.")
    def test_model_outputs_equivalence(self):
        pass

    def test_outputs_are_the_same_as_tuple_and_dictionary(self):
        config, batch = self.model_tester.prepare_config_and_inputs_for_common()
        model = ScalarModel(config).eval()
        for flags in ({}, {"output_hidden_states": True}):
            with torch.no_grad():
                named = model(**batch, **flags)
                plain = model(**batch, **flags, return_dict=False)
            assert isinstance(plain, tuple) and len(plain) == len(named.to_tuple())
            for left, right in zip(plain, named.to_tuple(), strict=True):
                torch.testing.assert_close(left, right, rtol=0, atol=0)
