import numpy as np
import PIL.Image
import pytest
import torch
from transformers import AutoProcessor, BertTokenizer

from scalar_retrieval.modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from scalar_retrieval.modeling_scalar.image_processing_scalar import ScalarImageProcessor, frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, resample
from scalar_retrieval.modeling_scalar.processing_scalar import FROM_VIDEO, Clip, ScalarProcessor
from tests.gallery.decoding.reading import write_media
from tests.media_corpus import wav

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog barks loudly hello world".split()


def make_processor(**settings):
    return ScalarProcessor(
        ScalarImageProcessor(image_size=16),
        ScalarFeatureExtractor(segment_length=32, num_segments=settings.pop("num_segments", 1)),
        BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}),
        **settings,
    )


@pytest.fixture(scope="module")
def processor():
    return make_processor()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_media(folder / "both.mp4", 20, encoder="g=5", seconds_of_audio=2.0, muxer="movflags=faststart")
    (folder / "both.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    write_media(folder / "silent.mp4", 20)
    write_media(folder / "sound.m4a", 0, seconds_of_audio=2.0)
    data = (folder / "both.mp4").read_bytes()
    (folder / "half.mp4").write_bytes(data[: len(data) // 2])
    (folder / "text.mp4").write_text("not a video\n" * 50)
    return folder


def random_frames(num_frames=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num_frames, 20, 24, 3), dtype=np.uint8)


def random_waveform(num_samples=8000, seed=0):
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.1).astype(np.float32)


# ---------------------------------------------------------------- reading


def test_each_stream_can_come_from_elsewhere(processor, files):
    clip = processor.read_clip(files / "silent.mp4", audio=files / "sound.m4a", subtitle=files / "both.srt")
    assert clip.has("video") and clip.has("audio") and clip.subtitle == "hello"
    words = "the end of file.srt is here"
    for given, subtitle in ((str(files / "both.srt"), "hello"), (words, words), (None, None)):
        clip = processor.read_clip(files / "both.mp4", audio=None, subtitle=given)
        assert clip.has("video") and not clip.has("audio") and clip.subtitle == subtitle
    assert not processor.read_clip(None, audio=files / "both.mp4").has("video")


@pytest.mark.parametrize("name", ["half.mp4", "text.mp4"])
def test_a_stream_that_does_not_decode_raises_by_default(processor, files, name):
    for read in (processor.read_clip, lambda path: processor(videos=[path])):
        with pytest.raises(MediaError, match=name):
            read(files / name)


def test_a_damaged_stream_can_count_up_to_its_damage(processor, files, monkeypatch):
    warnings = []
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.processing_scalar.logger.warning", warnings.append)
    monkeypatch.setattr(processor.reader, "on_error", "missing")
    clip = processor.read_clip(files / "half.mp4", subtitle="a dog")
    assert len(clip.frames) == 8 and 8000 < len(clip.waveform) < 32_000 and clip.subtitle == "a dog"
    assert [problem.split(": ")[1] for problem in clip.problems] == ["video stream 0 (h264)", "audio stream 1 (aac)"]
    assert warnings == clip.problems
    with pytest.raises(FileNotFoundError, match="nowhere.mp4"):
        processor.read_clip(files / "nowhere.mp4")


@pytest.mark.parametrize(("samples", "is_there"), [(399, False), (400, True), (0, False)])
def test_sound_shorter_than_a_window_is_absent_and_noted(processor, samples, is_there):
    clip = processor.read_clip(None, audio=random_waveform(samples))
    assert clip.has("audio") == is_there
    assert len(clip.problems) == (not is_there) and all(f"{samples} samples" in problem for problem in clip.problems)


# ---------------------------------------------------------------- batches


def test_a_batch_has_the_keys_and_shapes_of_the_model_and_zeros_where_something_is_absent(processor, files):
    videos = [files / "both.mp4", files / "silent.mp4", str(files / "sound.m4a")]
    batch = processor(text=["a dog barks", "hello"], videos=videos)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 5),
        "attention_mask": (2, 5),
        "modality_mask": (3, 3),
        "pixel_values_videos": (3, 8, 3, 16, 16),
        "input_features": (3, 1, 32, 64),
        "subtitle_input_ids": (3, 3),
        "subtitle_attention_mask": (3, 3),
    }
    assert set(batch) == set(processor.model_input_names)
    assert batch["modality_mask"].tolist() == [[True, True, True], [True, False, False], [False, True, False]]
    # Rows of absent modalities hold zeros and padding, and change nothing of the others.
    assert batch["subtitle_input_ids"].tolist() == [[2, 9, 3], [0] * 3, [0] * 3]
    alone = processor(videos=videos[:1])
    for name, absent in (("pixel_values_videos", 2), ("input_features", 1), ("subtitle_attention_mask", 1)):
        assert not batch[name][absent].any() and alone[name].any() and torch.equal(batch[name][:1], alone[name])


@pytest.mark.parametrize("processed", [False, True])
def test_digital_silence_is_missing_sound_unless_presence_is_vast(processor, tmp_path, processed):
    path = tmp_path / "sound.wav"
    for level in (b"\x01\x00", bytes(2)):
        path.write_bytes(wav(level * 32_000))
        clip = processor.read_clip(path, processed=processed)
        assert clip.has("audio") == any(level) and clip.duration == 2 and not clip.problems
    assert make_processor(presence="vast").read_clip(path, processed=processed).has("audio")
    assert not processor.read_clip(None, audio=np.zeros(32_000, np.float32), processed=processed).has("audio")


@pytest.mark.parametrize("subtitle", ["", " \n\t"])
def test_a_subtitle_without_words_is_missing_unless_presence_is_vast(processor, subtitle):
    arguments = {"videos": [random_frames()] * 2, "subtitles": [subtitle, None]}
    assert processor(**arguments)["modality_mask"].tolist() == [[True, False, False]] * 2
    batch = make_processor(presence="vast")(**arguments)
    assert batch["modality_mask"].tolist() == [[True, False, True], [True, False, False]]
    assert batch["subtitle_attention_mask"].tolist() == [[1, 1], [0, 0]]  # [CLS] [SEP], and nothing


def test_clips_without_anything_are_refused_by_name(processor, files, monkeypatch):
    monkeypatch.setattr(processor.reader, "on_error", "missing")
    empty = processor.read_clip(files / "text.mp4")
    assert empty.is_empty and len(empty.problems) == 1 and "text.mp4" in empty.problems[0]
    with pytest.raises(ValueError, match=r"these have none: 1 \(.*text\.mp4\), 2 \(no path\)(.|\n)*not a readable"):
        processor(clips=[Clip(subtitle="a dog"), empty, Clip()])


def test_training_is_a_function_of_the_generator(files):
    processor = make_processor(num_segments=2)
    arguments = {"videos": [files / "both.mp4", random_frames(30)], "audio": [FROM_VIDEO, random_waveform(90_000)]}
    first, again, other = (
        processor(**arguments, training=True, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    for name in ("pixel_values_videos", "input_features"):
        assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])


def test_frames_waveforms_and_texts_are_accepted_as_they_are_and_lists_can_be_asked_for(processor):
    frames, waveform = random_frames(20), random_waveform()
    arguments = {"text": ["a dog"], "videos": [frames], "audio": [waveform], "subtitles": ["a dog"]}
    tensors, lists = processor(**arguments), processor(**arguments, return_tensors=None)
    chosen = processor.image_processor.process_frames(frames[frame_indices(20, 8)])
    assert torch.equal(tensors["pixel_values_videos"][0], chosen)
    assert torch.equal(tensors["input_features"][0], processor.feature_extractor.process_waveform(waveform))
    assert lists["modality_mask"] == [[True] * 3] and lists["input_ids"] == tensors["input_ids"].tolist()
    for name in ("pixel_values_videos", "input_features"):
        assert type(lists[name]) is list
        np.testing.assert_array_equal(lists[name], tensors[name])


# ---------------------------------------------------------------- as transformers' users hold them


def as_pictures(frames):
    return [PIL.Image.fromarray(frame) for frame in frames]


def channels_first(frames):
    return np.ascontiguousarray(np.moveaxis(frames, -1, -3))


@pytest.mark.parametrize(
    "hold",
    [
        as_pictures,
        channels_first,
        lambda frames: list(torch.from_numpy(frames)),
        lambda frames: [as_pictures(frames)],
        lambda frames: torch.from_numpy(channels_first(frames[None])),
    ],
)
def test_a_clip_is_the_same_however_its_frames_are_held(processor, hold):
    frames = random_frames(20)
    expected, batch = processor(videos=[frames]), processor(videos=hold(frames))
    assert torch.equal(batch["pixel_values_videos"], expected["pixel_values_videos"])
    assert batch["modality_mask"].tolist() == [[True, False, False]]


@pytest.mark.parametrize("hold", [as_pictures, channels_first, lambda pictures: [[picture] for picture in pictures]])
def test_a_picture_is_a_clip_of_one_frame(processor, hold):
    pictures = random_frames(3)
    expected = processor(videos=list(pictures[:, None]))["pixel_values_videos"]
    assert torch.equal(processor(images=hold(pictures))["pixel_values_videos"], expected)
    assert torch.equal(processor(images=hold(pictures)[0])["pixel_values_videos"], expected[:1])


def test_without_sampling_all_frames_are_kept(processor):
    frames = random_frames(11)
    for arguments in ({"videos": [frames]}, {"clips": [processor.read_clip(frames, num_frames="all")]}):
        batch = processor(**arguments, do_sample_frames=False)
        assert torch.equal(batch["pixel_values_videos"][0], processor.image_processor.process_frames(frames))
    with pytest.raises(ValueError, match=r"the same number of frames, got \[11, 8\]"):
        processor(videos=[frames, random_frames()], do_sample_frames=False)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({}, ValueError, "Nothing to process"),
        ({"text": []}, ValueError, "empty list"),
        ({"clips": []}, ValueError, "empty"),
        ({"clips": [Clip(subtitle="a")], "videos": [None]}, ValueError, "not both"),
        ({"videos": [None, None], "subtitles": ["a"]}, ValueError, "`subtitles` must have"),
        ({"videos": [random_frames()], "training": True}, ValueError, "generator"),
        ({"videos": random_frames() / 255}, TypeError, "float64"),
        ({"videos": np.zeros((8, 8), np.uint8)}, ValueError, r"\(8, 8\)"),
        ({"images": random_frames(), "videos": random_frames()}, ValueError, "images"),
        ({"audio": np.zeros((3, 8000), np.float32)}, ValueError, r"\(3, 8000\)"),
        ({"audio": [np.zeros(8000, np.int16)]}, TypeError, "int16"),
        ({"audio": random_waveform(), "sampling_rate": 44_100}, ValueError, "44100"),
        ({"text": ["a", None]}, TypeError, "None"),
        ({"text": "a", "audios": [None]}, TypeError, "audios"),
        ({"text": "a", "text_kwargs": {"image_size": 3}}, TypeError, "image_size"),
    ],
)
def test_inputs_and_keywords_that_do_not_fit_are_refused(processor, arguments, error, name):
    with pytest.raises(error, match=name):
        processor(**arguments)


@pytest.mark.parametrize(
    "hold",
    [
        torch.from_numpy,
        lambda waveform: np.stack([waveform, waveform], axis=1),
        lambda waveform: {"array": waveform, "sampling_rate": 16_000, "path": None},
        lambda waveform: (waveform, 16_000),
    ],
)
def test_sound_is_the_same_however_it_is_held(processor, hold):
    waveforms = [random_waveform(seed=1), random_waveform(seed=2)]
    expected = processor(audio=waveforms)["input_features"]
    given = [hold(waveform) for waveform in waveforms]
    assert torch.equal(processor(audio=given, sampling_rate=16_000)["input_features"], expected)
    if getattr(given[0], "ndim", 1) == 1:  # the channels of one, or several: only a list can tell
        assert torch.equal(processor(audio=given[0])["input_features"], expected[:1])


def test_sound_that_says_its_rate_is_resampled(processor):
    waveform = random_waveform(44_100)
    expected = processor(audio=[resample(waveform[None], 44_100)])["input_features"]
    for audio in ((waveform, 44_100), {"array": np.stack([waveform] * 2), "sampling_rate": 44_100}):
        assert torch.equal(processor(audio=audio)["input_features"], expected)


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 7),
        ({"text_kwargs": {"max_length": 4}}, 4),
        ({"max_length": 4, "common_kwargs": {"max_length": 5}}, 4),
        ({"max_length": 4, "padding": "max_length", "truncation": True}, 4),
    ],
)
def test_texts_are_cut_to_their_own_lengths_of_which_keywords_change_that_of_captions(options, length):
    processor = make_processor(max_text_length=7, max_subtitle_length=6)
    text = "a dog barks loudly hello world"
    batch = processor(text=[text, "a"], subtitles=[text], **options)
    assert batch["input_ids"].shape == (2, length) and batch["subtitle_input_ids"].shape == (1, 6)
    assert batch["attention_mask"].sum(dim=1).tolist() == [length, 3]
    assert batch["input_ids"][0, -1] == WORDS.index("[SEP]")


def test_a_setting_of_the_image_processor_can_be_given_for_one_call(processor, files):
    frames, size = random_frames(), {"image_size": 12, "resize_mode": "crop"}
    for options in (size, {"images_kwargs": size}, {"videos_kwargs": size}):
        batch = processor(videos=[frames], **options)
        assert torch.equal(batch["pixel_values_videos"][0], ScalarImageProcessor(**size).process_frames(frames))
    assert processor(videos=[frames])["pixel_values_videos"].shape[-1] == 16
    clip = processor.read_clip(files / "both.mp4", processed=True)
    with pytest.raises(ValueError, match="image_size"):
        processor(clips=[clip], image_size=12)


@pytest.mark.parametrize(
    "settings", [{"presence": "loud"}, {"num_frames": 0}, {"num_train_frames": 0}, {"max_text_length": 0}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        make_processor(**settings)


# ---------------------------------------------------------------- saving


def test_settings_survive_saving(tmp_path):
    settings = {"num_frames": 4, "num_train_frames": 3, "max_text_length": 12, "max_subtitle_length": 13}
    saved = make_processor(num_segments=2, **settings)
    saved.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert type(loaded) is ScalarProcessor and loaded.feature_extractor.num_segments == 2
    assert {name: getattr(loaded, name) for name in settings} == settings
    assert loaded.image_processor.to_dict() == saved.image_processor.to_dict()
    assert loaded.feature_extractor.to_dict() == saved.feature_extractor.to_dict()
    assert loaded.tokenizer.get_vocab() == saved.tokenizer.get_vocab()
