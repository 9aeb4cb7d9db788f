"""A joint encoder of five modalities, of which three are texts, against one of the paper's three."""

import logging

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from torch.nn.functional import normalize

from scalar_retrieval.modeling_scalar import Clip, ScalarJointConfig, ScalarModel, ScalarProcessor, load_model
from scalar_retrieval.modeling_scalar.sentence_encoders import ScalarSentenceModel, ScalarSentenceProcessor
from tests.joint_encoders import make_streams, write_joint_encoder
from tests.modeling_scalar.test_joint_encoders import DeafEncoder

FIVE = ("screen", "video", "audio", "subtitle", "title")
PAPER = ("video", "audio", "subtitle")
TITLES, SCREENS = ["Rex", "a title", "end"], ["stop", "exit here", "word"]
CLOSE = {"atol": 1e-6, "rtol": 0}  # what the padding of a batch may change


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("named") / "encoder")


def loaded(folder, modalities):
    model = ScalarModel.from_joint_encoder(folder, modalities=modalities)
    return model, ScalarProcessor.from_joint_encoder(folder, modalities=modalities, num_frames=2)


@pytest.fixture(scope="module")
def five(folder):
    return loaded(folder, FIVE)


@pytest.fixture(scope="module")
def three(folder):
    return loaded(folder, PAPER)


def make_clips(presence=({*FIVE},) * 3) -> list[Clip]:
    """Three clips with what is named of each."""
    clips = []
    for names, *values in zip(presence, SCREENS, *make_streams(), TITLES, strict=True):
        own = {name: value for name, value in zip(FIVE, values, strict=True) if name in names}
        texts = {name: own.pop(name) for name in ("screen", "title") if name in own}
        clips.append(Clip(own.get("video"), own.get("audio"), own.get("subtitle"), texts=texts))
    return clips


MIXED = ({"video", "title", "screen"}, {"audio"}, {"subtitle", "title"})


@torch.no_grad()
def embed(loaded, clips):
    model, processor = loaded
    return model.get_modality_features(**processor(clips=clips))


@torch.no_grad()
def as_subtitles(three, texts):
    return embed(three, [Clip(subtitle=text) for text in texts])[0][:, PAPER.index("subtitle")]


# Vectors -------------------------------------------------------------------------------------------------------------


def test_each_text_has_the_vector_of_the_same_words_as_a_subtitle(five, three):
    embeds, mask = embed(five, make_clips())
    assert mask.shape == (3, 5) and mask.all()
    for name, texts in (("title", TITLES), ("screen", SCREENS), ("subtitle", make_streams()[2])):
        torch.testing.assert_close(embeds[:, FIVE.index(name)], as_subtitles(three, texts), **CLOSE)
    paper = embed(three, make_clips())[0]
    torch.testing.assert_close(embeds[:, [FIVE.index(name) for name in PAPER]], paper, **CLOSE)
    distances = torch.cdist(embeds, embeds) + 9 * torch.eye(5)
    assert distances.min() > 1e-3  # or there would be nothing to tell apart


@torch.no_grad()
def test_masked_is_absent_whatever_it_holds(five):
    model, processor = five
    expected, mask = embed(five, make_clips(MIXED))
    batch = processor(clips=make_clips()) | {"modality_mask": mask}
    for index, name in enumerate(FIVE):
        for key in model.input_sets(name)[0]:
            junk = float("nan") if batch[key].is_floating_point() else 1
            batch[key] = batch[key].clone()
            batch[key][~mask[:, index]] = junk
    torch.testing.assert_close(model.get_modality_features(**batch), (expected, mask), **CLOSE)


# Saved ---------------------------------------------------------------------------------------------------------------


def test_a_processor_and_a_score_of_other_modalities_are_refused(folder, tmp_path, five, three):
    five[0].save_pretrained(tmp_path)
    three[1].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"\['video', 'audio', 'subtitle'\]"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="triangle"):
        ScalarModel.from_joint_encoder(folder, modalities=["video", "title"], aggregation="triangle")


# The processor -------------------------------------------------------------------------------------------------------


def test_texts_of_a_call_are_those_of_clips(five):
    _, processor = five
    frames, sounds, subtitles = make_streams()
    batch = processor(videos=frames, audio=sounds, subtitles=subtitles, texts={"title": TITLES, "screen": SCREENS})
    torch.testing.assert_close(dict(batch), dict(processor(clips=make_clips())), atol=0, rtol=0)
    assert set(batch) <= set(processor.model_input_names)
    blank = processor(videos=frames, texts={"title": ["Rex", None, ""]})
    assert blank["modality_mask"][:, FIVE.index("title")].tolist() == [True, False, False]


@pytest.mark.parametrize("texts", [{"description": "a"}, {"subtitle": "a"}, {"title": 3}, {"title": ["a", "b"]}])
def test_texts_that_cannot_be_are_refused(five, tiny_processor, texts):
    with pytest.raises(ValueError, match="texts"):
        five[1](videos=make_streams()[0][:1], texts=texts)
    with pytest.raises(ValueError, match="texts"):
        tiny_processor.read_clip(None, subtitle="a", texts=texts)  # a model of three towers has no others


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [["video", "title", "title"], ["video", "text"], ["Title"], ["on screen"], ["2nd"], [], "video"]
)
def test_names_that_cannot_be_are_refused(folder, names):
    with pytest.raises(Exception, match="modalities"):
        ScalarJointConfig(modalities=names)
    with pytest.raises(ValueError, match="modalities"):
        ScalarProcessor.from_joint_encoder(folder, modalities=names)


# Sentence Transformers -----------------------------------------------------------------------------------------------


def test_a_sentence_transformer_takes_any_text_and_tokens_of_encoders_as_words(caplog):
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        model = ScalarSentenceModel.from_encoder(DeafEncoder(), "deaf", FIVE)
    assert "deaf does not support audio" in caplog.text
    assert model.config.modalities == ["screen", "video", "subtitle", "title"]
    processor = ScalarSentenceProcessor(num_frames=2, modalities=model.config.modalities)
    clips = make_clips((set(FIVE), {"title"}, {"title"}))[:2]
    clips[1].texts["title"] = "the <|video|>"
    batch = processor(text="a <|video|>", clips=clips)
    assert set(batch) <= set(processor.model_input_names)
    # It counts words, of which "< |video|>" are two.
    expected = torch.zeros(2, 4, 3)
    colours = make_streams()[0][0].mean(axis=(0, 1, 2)).tolist()
    expected[0] = torch.tensor([[1, 1, 0], colours, [3, 1, 0], [1, 1, 0]])
    expected[1, 3] = torch.tensor([3, 1, 0])
    output = model(**batch)
    torch.testing.assert_close(output.modality_embeds, normalize(expected, dim=-1), **CLOSE)
    torch.testing.assert_close(output.text_embeds, normalize(expected[1, 3:], dim=-1), **CLOSE)
    assert torch.equal(output.modality_mask, expected.any(dim=-1))
    with pytest.raises(ValueError, match="empty list"):
        processor(text=[])


def test_slices_are_equal_or_disjoint_and_lie_within_a_query():
    fields = {"modalities": ["video", "title", "subtitle"], "projection_dim": 8}
    right = [[0, 5], [5, 8], [5, 8]]
    config = ScalarJointConfig(**fields, modality_slices=right)
    assert ScalarJointConfig.from_dict(config.to_dict()).modality_slices == right
    for wrong in (right[:2], [[0, 5], [4, 8], [5, 8]], [[0, 5], [5, 9], [5, 9]], [[0, 5], [5, 5], [5, 5]]):
        with pytest.raises(StrictDataclassClassValidationError, match="equal or disjoint"):
            ScalarJointConfig(**fields, modality_slices=wrong)
