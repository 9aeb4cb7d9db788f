import unittest
from unittest import mock

import pytest
from transformers import BatchFeature, BertTokenizer

from scalar_retrieval.modeling_scalar import ScalarFeatureExtractor, ScalarImageProcessor, ScalarProcessor
from tests.transformers_suite.suite import is_here, load

if not is_here():
    pytest.skip("the mixins are not here; `make suite` fetches them", allow_module_level=True)
pytestmark = pytest.mark.suite
images = load("test_image_processing_common")
sounds = load("test_sequence_feature_extraction_common")
processors = load("test_processing_common")


def does_not_apply(reason, *names):
    """Skip tests of a mixin that ask for what there is not, each for this reason."""

    def decorate(case):
        for name in names:
            assert hasattr(case, name), name
            setattr(case, name, unittest.skip(reason)(lambda self: None))
        return case

    return decorate


class ImageTester(images.ImageProcessingTester):
    def __init__(self, parent):
        super().__init__(parent, max_resolution=80, size={"height": 18, "width": 18})

    def _get_image_processing_classes(self):
        return {"pil": ScalarImageProcessor}

    def prepare_image_processor_dict(self):
        return {"image_size": 18, "resize_mode": "crop", "antialias": True, "do_normalize": False}


class Pictures(ScalarImageProcessor):
    """Clips of one frame, in the shape and under the name that the suite has for pictures."""

    def preprocess(self, *arguments, **options):
        batch = super().preprocess(*arguments, **options)
        return BatchFeature({"pixel_values": batch["pixel_values_videos"][:, 0]})


@does_not_apply("Frames are RGB, and Pillow's pictures become RGB; there is no processing of others.",
    "test_image_processor_from_dict_with_kwargs_has_attributes", "test_call_numpy_4_channels",
)  # fmt: skip
@does_not_apply("It has one backend, torch, which runs wherever the model does.",
    "test_new_models_require_torchvision_backend",
)  # fmt: skip
@does_not_apply("Another Python gets its code from the saved folder; tested in test_processing_scalar.",
    "test_pil_can_run_without_torchvision",
)  # fmt: skip
class ImageProcessorTest(images.ImageProcessingTestMixin, unittest.TestCase):
    image_processor_tester_class = ImageTester

    def of_pictures(self, name):
        self.image_processor_tester.image_processing_classes = {"pil": Pictures}
        getattr(super(), name)()

    def test_call_pil(self):
        self.of_pictures("test_call_pil")

    def test_call_numpy(self):
        self.of_pictures("test_call_numpy")

    def test_call_pytorch(self):
        self.of_pictures("test_call_pytorch")


class SoundTester:
    batch_size, feature_size = 3, 1

    def prepare_feat_extract_dict(self):
        return {"num_mel_bins": 32, "segment_length": 64}

    def prepare_inputs_for_common(self, equal_length=False):
        return [[0.5] * (400 if equal_length else 400 + row) for row in range(self.batch_size)]


@does_not_apply("Segments have one length from the start: there is no `pad`, and no mask of what it added.",
    *(name for name in dir(sounds.SequenceFeatureExtractionTestMixin)
      if name.startswith(("test_padding", "test_truncation", "test_attention_mask"))),
)  # fmt: skip
class FeatureExtractorTest(sounds.SequenceFeatureExtractionTestMixin, unittest.TestCase):
    feature_extraction_class = ScalarFeatureExtractor
    feat_extract_tester = SoundTester()


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] (CLS) (SEP) lower newer upper older longer string".split()


@does_not_apply("`None` says that no clip has a modality; sound and subtitles come from the video by another default.",
    "test_call_arguments_default_none",
)  # fmt: skip
@does_not_apply("Subtitles, which it also returns, are unknown to the suite; tested in test_processing_scalar.",
    "test_model_input_names",
)  # fmt: skip
@does_not_apply("Texts and clips are matched, not interleaved: a clip without anything is refused.",
    "test_processor_text_has_no_visual",
)  # fmt: skip
class ProcessorTest(processors.ProcessorTesterMixin, unittest.TestCase):
    processor_class = ScalarProcessor
    images_input_name = "pixel_values_videos"

    @classmethod
    def _setup_image_processor(cls):
        return ScalarImageProcessor(image_size=16)

    @classmethod
    def _setup_feature_extractor(cls):
        return ScalarFeatureExtractor(segment_length=16)

    @classmethod
    def _setup_tokenizer(cls):
        return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})

    @staticmethod
    def prepare_processor_dict():
        return {"num_frames": 1}  # as many as a picture has

    def test_flat_kwarg_applied_when_modality_dict_lacks_it(self):
        with mock.patch.object(self, "prepare_images_inputs", lambda: None):  # they would be a clip's frames twice
            super().test_flat_kwarg_applied_when_modality_dict_lacks_it()

    def without_remote_code(self, name):
        """Saving notes in the saved object itself that its code travels with it; the suite's classes are no such."""
        with (
            mock.patch.object(ScalarProcessor, "_auto_class", None),
            mock.patch.object(ScalarImageProcessor, "_auto_class", None),
            mock.patch.object(ScalarFeatureExtractor, "_auto_class", None),
        ):
            getattr(super(), name)()

    def test_processor_from_and_save_pretrained(self):
        self.without_remote_code("test_processor_from_and_save_pretrained")

    def test_processor_from_and_save_pretrained_as_nested_dict(self):
        self.without_remote_code("test_processor_from_and_save_pretrained_as_nested_dict")
