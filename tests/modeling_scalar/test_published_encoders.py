"""Published encoders, with their weights, against the numbers that their model cards and documentation print."""

from io import BytesIO
from urllib.request import urlopen

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from scalar_retrieval import index
from scalar_retrieval.modeling_scalar import ScalarModel, ScalarProcessor
from tests.search.small_folder import write_clips

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


def test_clip_sees_cats(cats):
    model, processor = load("openai/clip-vit-base-patch32")
    clip = processor.read_clip(video=cats)
    cosines = cosines_of(model, processor, ["a photo of a cat", "a photo of a dog"], clip)
    # Logits of 24.5701 and 19.3049 over a scale of 100. Pictures are resized in other ways by other versions.
    torch.testing.assert_close(cosines, torch.tensor([0.2457, 0.1930]), atol=0.002, rtol=0)


def test_siglip_counts_cats(cats):
    model, processor = load("google/siglip-base-patch16-224")
    clip = processor.read_clip(video=cats)
    cosines = cosines_of(model, processor, ["a photo of 2 cats", "a photo of 2 dogs"], clip)
    published = model.encoder.transformers_model
    logits = cosines * published.logit_scale.detach().exp() + published.logit_bias.detach()
    torch.testing.assert_close(logits, torch.tensor([-0.7567, -10.3354]), atol=0.05, rtol=0)


def test_siglip_2_tells_cats_from_planes_and_remotes(cats):
    model, processor = load("google/siglip2-base-patch16-224")
    clip = processor.read_clip(video=cats)
    cosines = cosines_of(model, processor, ["2 cats", "a plane", "a remote"], clip)
    assert cosines.argmax() == 0, cosines


def test_clap_hears_a_dog(tmp_path):
    model, processor = load("laion/clap-htsat-unfused")
    sounds = datasets.load_dataset(DOG, split="train").cast_column("audio", datasets.Audio(decode=False))
    (tmp_path / "dog.wav").write_bytes(sounds[0]["audio"]["bytes"])
    clip = processor.read_clip(tmp_path / "dog.wav")
    dog, cleaner = cosines_of(model, processor, ["Sound of a dog", "Sound of vacuum cleaner"], clip)
    assert dog > cleaner + 0.1


def test_three_published_encoders_find_a_clip(tmp_path):
    names = ["openai/clip-vit-base-patch32", "laion/clap-htsat-unfused", "sentence-transformers/all-MiniLM-L6-v2"]
    clips = write_clips(tmp_path / "clips")
    gallery = index(clips / "both.mkv", tmp_path / "gallery", "+".join(names), progress=False)
    assert not gallery.failed_files()
    assert gallery.search("a dog barks", k=1)[0].clip_id.endswith("both.mkv")
