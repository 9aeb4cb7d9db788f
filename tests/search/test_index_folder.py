"""Indexing from Python, as a new user would."""

import inspect
import warnings
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from scalar_retrieval import index
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.settings import IndexConfig
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav
from tests.search.small_folder import write_clips

BOTH = ["both.mkv", "sound.wav"]

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("index") / "encoder")


@pytest.fixture
def place(encoder, tmp_path, monkeypatch):
    (tmp_path / "encoder").symlink_to(encoder)
    write_clips(tmp_path / "clips")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(gallery):
    return sorted(Path(name).name for name in gallery.clip_ids)


@pytest.mark.parametrize(
    "paths",
    ["clips", Path("clips"), ["clips"], ("clips/both.mkv", Path("clips/sound.wav")), "list.csv"],
)
def test_what_is_indexed_may_be_given_in_any_way(paths, place, capsys):
    Path("list.csv").write_text("path\nclips/both.mkv\nclips/sound.wav\n")
    gallery = index(paths, Path("gallery"), Path("encoder"), progress=False)
    assert names(gallery) == BOTH == names(Gallery.open("gallery")) and gallery.newest() is gallery
    assert capsys.readouterr() == ("", "")


def test_pictures_are_embedded_if_that_is_asked_for(place):
    for name in ("both.jpg", "cat.PNG"):
        Image.new("RGB", (64, 48), "red").save(Path("clips", name))
    with pytest.warns(UserWarning, match=r"1 picture \(1 .jpg\) left out, as each is beside a film of the same name."):
        gallery = index("clips", "gallery", "encoder", pictures=True, progress=False)
    assert names(gallery) == ["both.mkv", "cat.PNG", "sound.wav"] and not gallery.problems()
    (clip,) = gallery.searcher.clips([f"{place}/clips/cat.PNG"])
    assert clip.modality_mask.tolist() == [name == "video" for name in gallery.modalities] and clip.still is not None


def test_with_progress_all_is_printed_on_stderr_and_what_cannot_be_read_once_and_not_in_the_bar(place, capsys, caplog):
    Path("clips/broken.mp4").write_text("no film")
    whole = Path("clips/both.mkv").read_bytes()
    Path("clips/half.mkv").write_bytes(whole[: len(whole) // 2])
    index("clips", "gallery", "encoder")
    printed, said = capsys.readouterr()
    report = said.rsplit("\r", 1)[1]
    for name in ("broken.mp4", "half.mkv"):
        assert said.count(name) == report.count(name) == 1
    assert printed == "" and not caplog.records  # which would be printed as they come
    assert "3 new, 0 changed, 0 unchanged, 1 unreadable; 3 clips" in report and "parameters in float32" in said


def test_settings_of_a_new_gallery_are_kept_and_others_refused_before_its_model_is_loaded(place, monkeypatch):
    gallery = index("clips", "gallery", "encoder", text="title", segment=1, dtype="float32", progress=False)
    assert gallery.dtype == "float32" and gallery.modalities == ("video", "audio", "subtitle", "title")
    assert gallery.metadata["segment"] == 1 and any("#t=" in name for name in gallery.clip_ids)
    (place / "more.wav").write_bytes(wav(tone(32_000)))
    later = index("more.wav", "gallery", progress=False)
    assert len(later) == len(gallery) + 2 and later.dtype == "float32"
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", None)
    for arguments, message in (
        ({"segment": 2}, "holds .*Omit `segment`"),
        ({"dtype": "float16"}, "holds vectors in float32. Omit `dtype`"),
        ({"frames": 3}, "was indexed with other values of `frames` and `sound_seconds`"),
        ({"text": ["mood"]}, "has the modalities video, audio, subtitle, title, not mood.* as `words_of`"),
    ):
        with pytest.raises(ValueError, match=message):
            index("clips", "gallery", **arguments)


def test_an_open_gallery_is_added_to_and_remains_as_it_was(place):
    gallery = index("clips/both.mkv", "gallery", "encoder", progress=False)
    more = gallery.index("clips/sound.wav", progress=False)
    assert names(gallery) == ["both.mkv"] and names(more) == BOTH and more.metadata == gallery.metadata
    assert more.index("clips", progress=False).clip_ids == more.clip_ids  # nothing is new


def test_a_file_that_cannot_be_read_is_a_warning_that_names_it_unless_the_report_is_asked_for(place, capsys):
    Path("clips/broken.mp4").write_text("no film")
    with pytest.warns(UserWarning, match="2 new, 0 changed, 0 unchanged, 1 unreadable") as caught:
        gallery = index("clips", "gallery", "encoder", progress=False)
    assert f"{place}/clips/broken.mp4: not a readable video or audio file" in str(caught[0].message)
    assert caught[0].filename == __file__
    (failed,) = gallery.failed_files()
    assert failed.path == f"{place}/clips/broken.mp4" and "not a readable" in failed.reason
    with pytest.warns(UserWarning, match="broken.mp4"):
        index("clips", "gallery", progress=False)
    reports = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index("clips", "gallery", progress=False, on_report=reports.append)
    assert [state.status for state in reports[0].values()] == ["unchanged", "unreadable", "unchanged"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"paths": []}, "`paths` must name at least one folder, file or list."),
        ({"paths": "nothing"}, "No video or audio file in 'nothing'."),
        ({"output": "clips"}, "clips contains something other than a gallery"),
        ({"output": "postgresql://localhost/media/videos"}, "Expected a folder, not the address of a table"),
        ({"output": "hf://datasets/user/name"}, "A published gallery cannot be changed"),
        ({"text": "Title!"}, "The name of a modality must consist of lowercase letters"),
        ({"segment": "minutes"}, "`segment` must be .* got 'minutes'"),
        ({"dtype": "float64"}, "Vectors are stored in float16 or float32, got 'float64'. Choose one as `dtype`."),
        ({"frames": 0}, "`frames` must be a whole number from 1, got 0."),
        ({"sound_seconds": 0.5}, r"`sound_seconds` must be a number in \[1, .*got 0.5."),
        ({"watch": True, "paths": "list.csv"}, r"`watch` takes folders and files, not lists, got \['list.csv'\]"),
        ({"exclude": ""}, "A path pattern must have 1 to 4096 characters"),
        ({"limits": ["speed=1"]}, "A limit must be NAME=VALUE"),
    ],
)
def test_a_wrong_argument_is_answered_before_a_model_is_loaded(arguments, message, place, monkeypatch):
    Path("list.csv").write_text("path\nclips/both.mkv\n")
    Path("nothing").mkdir()
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", None)
    with pytest.raises((ValueError, OSError), match=message):
        index(**{"paths": "clips", "output": "gallery", "model": "encoder"} | arguments)
    assert not Path("gallery").exists()


def test_every_option_of_the_command_is_an_argument_of_the_function():
    arguments = inspect.signature(index).parameters
    options = set(IndexConfig.__dataclass_fields__)
    assert options < set(arguments)
    assert set(arguments) - options == {"dtype", "frames", "sound_seconds", "batch_size", "progress", "on_report"}
    assert set(inspect.signature(Gallery.index).parameters) < {"self", *arguments}


def test_the_command_makes_the_gallery_of_the_function(place):
    ours = index("clips", "ours", "encoder", progress=False)
    result = CliRunner().invoke(app, ["index", "clips", "--model", "encoder", "--output", "theirs"])
    theirs = Gallery.open("theirs")
    assert result.exit_code == 0 and ours.clip_ids == theirs.clip_ids
    assert ours.modality_embeds().equal(theirs.modality_embeds())
