import unittest

import pytest
import torch
from transformers import BertConfig, CLIPVisionConfig

from scalar_retrieval.modeling_scalar import BeatsConfig, ScalarConfig, ScalarModel
from scalar_retrieval.modeling_scalar.modeling_beats import BeatsModel
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
    _tester = ScalarTester

    test_all_params_have_gradient = False  # those of the cross-encoder have none without `select_pairs`

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        return inputs | {"return_loss": True} if return_labels else inputs

    def setUp(self):
        self.model_tester = self._tester(self)
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


class FamiliarEncodersTester(ScalarTester):
    """CLIP's picture tower and a BERT that only reads, in place of EVA-CLIP and the cross-encoder."""

    def get_config(self):
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        return make_tiny_config(
            vision_config=CLIPVisionConfig(**sizes, image_size=32, patch_size=16),
            text_config=BertConfig(**sizes, vocab_size=60, max_position_embeddings=80),
            vision_pooling="pooler",
        )


class FamiliarEncodersTest(ScalarModelTest):
    test_all_params_have_gradient = True
    _tester = FamiliarEncodersTester


class BeatsTester:
    is_training = False  # it has no loss of its own
    batch_size = 3
    seq_length = 16
    hidden_size = 24
    num_hidden_layers = 2
    num_attention_heads = 2

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return make_tiny_config().audio_config

    def prepare_config_and_inputs_for_common(self):
        generator = torch.Generator().manual_seed(0)
        return self.get_config(), {"input_features": torch.randn(self.batch_size, 64, 64, generator=generator)}


class BeatsModelTest(common.ModelTesterMixin, unittest.TestCase):
    all_model_classes = (BeatsModel,)
    test_resize_embeddings = False  # it reads spectrograms, no words

    def setUp(self):
        self.model_tester = BeatsTester(self)
        self.config_tester = configurations.ConfigTester(self, config_class=BeatsConfig, has_text_modality=False)

    def test_config(self):
        self.config_tester.run_common_tests()

    @unittest.skip("It reads spectrograms: its embedding of patches is a convolution.")
    def test_model_get_set_embeddings(self):
        pass
