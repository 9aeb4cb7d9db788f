"""Published encoders, with their weights, against the numbers that their model cards and documentation print."""

from io import BytesIO
from urllib.request import urlopen

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from scalar_retrieval.modeling_scalar import ScalarModel, ScalarProcessor

pytestmark = pytest.mark.network

CATS = "http://images.cocodataset.org/val2017/000000039769.jpg"
DOG = "hf-internal-testing/ashraq-esc50-1-dog-example"


@pytest.fixture(scope="module")
def cats() -> np.ndarray:
    """A video of one frame: two cats and two remote controls on a sofa."""
    with urlopen(CATS, timeout=30) as answer:
        picture = Image.open(BytesIO(answer.read())).convert("RGB")
    return np.asarray(picture)[None]


@torch.no_grad()
def cosines_of(model: ScalarModel, processor: ScalarProcessor, texts: list[str], clip) -> torch.Tensor:
    """The cosine of each text with the only modality of a clip, `(texts,)`."""
    output = model(**processor(text=texts, clips=[clip]))
    assert output.modality_mask.tolist() == [[True]]
    return output.text_embeds @ output.modality_embeds[0, 0]


def load(name: str) -> tuple[ScalarModel, ScalarProcessor]:
    return ScalarModel.from_joint_encoder(name), ScalarProcessor.from_joint_encoder(name)


@pytest.mark.parametrize(
    ("name", "texts", "printed", "tolerance"),
    [
        ("openai/clip-vit-base-patch32", ["a photo of a cat", "a photo of a dog"], [24.5701, 19.3049], 0.2),
        ("google/siglip-base-patch16-224", ["a photo of 2 cats", "a photo of 2 dogs"], [-0.7567, -10.3354], 0.05),
    ],
)
def test_cats_are_seen_as_printed(cats, name, texts, printed, tolerance):
    model, processor = load(name)
    cosines = cosines_of(model, processor, texts, processor.read_clip(video=cats))
    published = model.encoder.transformers_model
    logits = cosines * published.logit_scale.detach().exp() + getattr(published, "logit_bias", 0.0)
    # Pictures are resized in other ways by other versions.
    torch.testing.assert_close(logits.detach(), torch.tensor(printed), atol=tolerance, rtol=0)


def test_clap_hears_a_dog(tmp_path):
    model, processor = load("laion/clap-htsat-unfused")
    sounds = datasets.load_dataset(DOG, split="train").cast_column("audio", datasets.Audio(decode=False))
    (tmp_path / "dog.wav").write_bytes(sounds[0]["audio"]["bytes"])
    clip = processor.read_clip(tmp_path / "dog.wav")
    dog, cleaner = cosines_of(model, processor, ["Sound of a dog", "Sound of vacuum cleaner"], clip)
    assert dog > cleaner + 0.1
