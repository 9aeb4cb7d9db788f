"""Words on the screen: each line reported once, with its seconds, and kept beside a gallery."""

import os
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from scalar_retrieval.gallery.decoding import Limits, SandboxedReader, Stop, Stopped
from scalar_retrieval.gallery.words.cues import read_cues
from scalar_retrieval.gallery.words.transcripts import Cue, Transcripts
from scalar_retrieval.search.screen import (
    RapidOcrReader,
    Screen,
    cues_of,
    stands_still,
    without_lone_characters,
)
from tests.gallery.decoding.reading import write_media
from tests.media_corpus import tone, wav

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
GREEN, WHITE = (30, 60, 40), (250, 250, 250)


def at(*frames):
    """Lines of frames, one every two seconds."""
    return [(2.0 * place, list(lines)) for place, lines in enumerate(frames)]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], []),
        # time codes, and patterns that look like letters
        ([["00:12:33", "..."], ["RO", "-"], ["2x"], ["É é"], ["ー"]], []),
        ([["00:12:33", "EXIT"], ["Aus", "RO"]], [(0, 2, "EXIT"), (2, 4, "Aus")]),
        ([["я и ты"], ["火"], ["ﾄ"], ["출구"]], [(0, 2, "я и ты"), (2, 4, "火"), (4, 6, "ﾄ"), (6, 8, "출구")]),
        ([[], ["one"], ["two"], ["two"], []], [(2, 4, "one"), (4, 8, "two")]),
        # what comes and goes together is one cue, in reading order
        ([["title", "by somebody"], ["title", "by somebody"], ["end"]], [(0, 4, "title\nby somebody"), (4, 6, "end")]),
        ([["title"], ["title", "more"], ["more"]], [(0, 4, "title"), (2, 6, "more")]),
        # the same line, read a little differently; what was read most often is reported
        ([["Grüße: belIs"], ["Grüße: bells"], ["GRUSSE BELLS"], ["Grüße: bells"]], [(0, 8, "Grüße: bells")]),
        # numbers are not misread but counted
        ([["chapter 12 of the book"], ["chapter 13 of the book"]],
         [(0, 2, "chapter 12 of the book"), (2, 4, "chapter 13 of the book")]),
        # missed once is the same line, missed twice it was away
        ([["exit"], [], ["exit"], []], [(0, 6, "exit")]),
        ([["exit"], [], [], ["exit"]], [(0, 2, "exit"), (6, 8, "exit")]),
        # twice in a frame is one line, two that are alike are two
        ([["exit", "exit"], ["exit", "exit"]], [(0, 4, "exit")]),
        ([["the door is on the left", "the door is on the lift"]] * 2,
         [(0, 4, "the door is on the left\nthe door is on the lift")]),
    ],
)  # fmt: skip
def test_a_line_is_reported_once_from_its_first_frame_to_the_next_without_it(frames, expected):
    assert cues_of(at(*frames), end=2.0 * len(frames)) == [Cue(*cue) for cue in expected]


class Fake:
    """Reads the brightness of a picture, or always the same word."""

    name, word = "a reader 1.0", None

    def __init__(self):
        self.pictures = []

    def __call__(self, picture):
        self.pictures.append(picture)
        return [] if picture.mean() < 40 else [self.word or f"brightness of {picture.mean() / 50:.0f}"]


@pytest.mark.parametrize(
    ("lines", "names", "expected"),
    [
        (["国", "の", "RO", "Line 12 to the station"], "/videos/bus.mp4", ["RO", "Line 12 to the station"]),
        # a name, a longer line, or a kindred script says that it is a word
        (["国"], "/视频/bus.mp4", ["国"]),
        (["国", "中国铁路"], "/videos/bus.mp4", ["国", "中国铁路"]),
        (["火", "の", "人々"], "/videos/さくら.mp4", ["火", "の", "人々"]),
    ],
)
def test_a_lone_character_is_a_word_only_where_others_are(lines, names, expected):
    assert without_lone_characters(at(lines, []), [names]) == at(expected, [])


def test_names_in_the_folder_say_whether_characters_are_words(tmp_path):
    fake = Fake()
    fake.word = "国"
    for neighbour, words in (("talk.txt", []), ("国庆节.txt", ["国"])):
        (tmp_path / neighbour).touch()
        cues = words_of([(0.0, bright(50))], fake, 2.0, str(tmp_path / "IMG_0001.mp4"))
        assert [cue.text for cue in cues] == words


def bright(value, size=(64, 48)):
    return np.full((*size, 3), value, np.uint8)


def words_of(pictures, fake, end, path="file"):
    """The words of a file that shows these pictures."""
    media = SimpleNamespace(limits=Limits(), read_duration=lambda _: end, sample_frames=lambda *_: iter(pictures))
    media.reporting_to = lambda _: media
    return Screen("gallery", fake).make(path, media).cues


def test_a_picture_in_which_nothing_changes_is_not_read_again():
    fake, noise = Fake(), np.random.default_rng(0)
    pictures = [(bright(100) + noise.integers(0, 6, (64, 48, 3))).astype(np.uint8) for _ in range(5)]
    pictures += [bright(200), bright(200), bright(200, (32, 32)), bright(0)]
    cues = words_of(list(enumerate(pictures)), fake, end=9.0)
    assert cues == [Cue(0, 5, "brightness of 2"), Cue(5, 8, "brightness of 4")] and len(fake.pictures) == 4
    small = bright(100)
    small[40:48, 8:12] = 160  # a letter
    slowly = [bright(100 + 3 * step) for step in range(20)]  # changes in the end
    for pictures, least, most in (([bright(100), small], 2, 2), (slowly, 4, 9)):
        fake = Fake()
        words_of(list(enumerate(pictures)), fake, end=20.0)
        assert least <= len(fake.pictures) <= most


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """Two seconds in the dark, four seconds of 100, four of 200."""
    path = tmp_path_factory.mktemp("slides") / "slides.mp4"
    values = [0] * 20 + [100] * 40 + [200] * 40
    write_media(path, num_frames=100, seconds_of_audio=1, pictures=lambda index: bright(values[index], (64, 64)))
    return path


def test_words_of_a_file_are_kept_with_its_seconds_and_who_read_them(slides, tmp_path):
    fake, reader = Fake(), SandboxedReader()
    screen, reported = Screen(tmp_path, fake), []
    screen.on_progress = lambda path, second: reported.append(second)
    found = screen.of(str(slides), "a1", reader)
    assert reported == pytest.approx([0, 2, 4, 6, 8])
    assert read_cues(found) == [
        (2.0, 6.0, "brightness of 2"), (6.0, pytest.approx(10.0, abs=0.1), "brightness of 4"),
    ]  # fmt: skip
    assert "NOTE made by machine: a reader 1.0" in Path(found).read_text()
    # They are read once, and found without a reader.
    assert screen.of(str(slides), "a1", reader) == Screen(tmp_path).of(str(slides), "a1", reader) == found
    assert len(fake.pictures) == 3 and Screen(tmp_path).of(str(slides), "a2", reader) is None
    assert os.listdir(tmp_path / "transcripts") == ["a1.screen.vtt"]
    assert Transcripts(tmp_path).count() == (0, 0) and screen.count() == (1, 1)  # what is heard is of another kind


def test_what_has_no_words_is_read_once_and_what_has_no_picture_never(slides, tmp_path):
    write_media(tmp_path / "dark.mp4", pictures=lambda index: bright(0, (64, 64)))
    (tmp_path / "sound.wav").write_bytes(wav(tone(16_000)))
    (tmp_path / "text.mp4").write_text("no video")
    fake = Fake()
    screen, reader = Screen(tmp_path, fake), SandboxedReader()
    for _ in range(2):
        for name in ("dark.mp4", "sound.wav", "text.mp4", "gone.mp4"):
            assert screen.of(str(tmp_path / name), name[0], reader) is None
    assert len(fake.pictures) == 1 and screen.count() == (1, 0) and screen.has_words("d") is False
    assert screen.has_words("s") is None


def test_a_long_file_is_read_at_a_slower_pace(slides, tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.screen.MOST_FRAMES", 2)
    reported = []
    screen = Screen(tmp_path, Fake())
    screen.on_progress = lambda path, second: reported.append(second)
    screen.of(str(slides), "a1", SandboxedReader())
    assert reported == pytest.approx([0.0, 5.0], abs=0.11)


def test_reading_is_given_up_at_the_next_frame_and_leaves_nothing(slides, tmp_path):
    stop, fake = Stop(), Fake()
    screen = Screen(tmp_path, fake)
    screen.on_progress = lambda path, second: second >= 4 and stop.set()
    with stop.threads(1) as threads, pytest.raises(Stopped):
        threads.submit(screen.of, str(slides), "a1", SandboxedReader()).result(30)
    assert len(fake.pictures) == 2 and os.listdir(tmp_path / "transcripts") == []


def test_slides_stand_still_and_films_and_empty_pictures_do_not():
    slide, other = drawn(("The bells ring at noon", 20, 20, 40)), drawn(("at noon", 20, 20, 40))
    noise = np.random.default_rng(0).integers(-3, 4, (8, *slide.shape))  # of compression
    assert stands_still((np.stack([slide] * 6 + [other] * 2) + noise).clip(0, 255).astype(np.uint8))
    moves = np.stack([np.roll(slide, 40 * step, 1) for step in range(8)])
    no_edges = np.stack([drawn()] * 8)
    for frames in (moves, no_edges, slide[None]):
        assert not stands_still(frames)


# The real reader -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rapid():
    pytest.importorskip("rapidocr")
    return RapidOcrReader()


def drawn(*lines, size=(640, 360), ground=GREEN):
    """A picture with lines, each `(text, left, top, size of the letters)`."""
    picture = Image.new("RGB", size, ground)
    for text, left, top, points in lines:
        ImageDraw.Draw(picture).text((left, top), text, font=ImageFont.truetype(FONT, points), fill=WHITE)
    return np.asarray(picture)


def test_letters_of_many_sizes_and_two_languages_are_read_in_their_order(rapid):
    picture = drawn(
        ("Der Fluß trägt schöne Brücken", 20, 300, 24),
        ("The bells ring at noon", 20, 20, 40),
        ("left", 20, 120, 16),
        ("right", 400, 122, 16),
        ("small words of a label", 20, 200, 14),
    )
    assert rapid(picture) == [
        "The bells ring at noon", "left", "right", "small words of a label", "Der Fluß trägt schöne Brücken",
    ]  # fmt: skip
    assert rapid.name == f"rapidocr {version('rapidocr')}, PP-OCRv6 small"


@pytest.mark.promise("files", "Pictures for text recognition have a bounded size, whatever their shape")
@pytest.mark.parametrize("size", [(16, 4096), (4096, 16), (1, 1), (960, 1), (400, 960), (540, 960), (2000, 2000)])
def test_the_recogniser_computes_on_pictures_of_bounded_size(rapid, monkeypatch, size):
    seen = []

    def detect(values):
        seen.append(values.shape[-2:])
        return np.zeros((1, 1, *values.shape[-2:]), np.float32)

    monkeypatch.setattr(rapid._read._load_det_model(), "session", detect)
    rapid(np.zeros((*size, 3), np.uint8))
    ((height, width),) = seen
    assert min(height, width) <= 960 and max(height, width) <= 3 * 480 + 32


def test_words_of_a_long_and_narrow_picture_are_read(rapid):
    assert rapid(drawn(("The bells ring at noon", 20, 4, 24), size=(960, 40))) == ["The bells ring at noon"]


def test_colours_are_not_swapped(rapid, monkeypatch):
    read = Mock(return_value=Mock(txts=["red"]))
    monkeypatch.setattr(rapid, "_read", read)
    assert rapid(drawn(ground=(200, 0, 10))) == ["red"]
    assert read.call_args.args[0][-1, -1].tolist() == [10, 0, 200]  # as OpenCV has it
