import errno
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
import torch
from datasets import load_from_disk
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.hits import NOTHING_MATCHES
from scalar_retrieval.gallery.store.described import fitted_to
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES as MODALITIES
from scalar_retrieval.search.__main__ import app
from tests.search.serving import WordModel, WordProcessor
from tests.search.test_sources import make_unlistable

NEW_YEAR = 1_577_836_800  # 2020, in seconds from 1970
SEEDS = [zlib.crc32(name.encode()) for name in MODALITIES]  # of queries, as the processor has them


class FakeModel(WordModel):
    """Modality m is the m-th unit vector, and so is its name as a query."""

    config = SimpleNamespace(query_temperature=1.0, aggregation="scalar", modalities=MODALITIES, modality_slices=None)

    def get_modality_features(self, modality_mask):
        return torch.eye(3) * modality_mask[..., None], modality_mask

    def get_text_features(self, input_ids, attention_mask):
        places = [SEEDS.index(seed) for seed in input_ids.flatten().tolist()]
        return SimpleNamespace(pooler_output=torch.eye(3)[places])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A model folder, clips (one with brackets in its name), and the fakes in place of what is loaded."""
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *_: (FakeModel(), WordProcessor()))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    (tmp_path / "clips" / "[red]").mkdir(parents=True)
    for name, content in (("[red]/dog [bold]1.mp4", "video audio"), ("cat.mp4", "audio"), ("empty.mp4", "")):
        path = tmp_path / "clips" / name
        path.write_text(content)
        os.utime(path, (0, NEW_YEAR))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=0, charset="utf-8"):
    result = CliRunner(charset=charset).invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def index(*arguments, code=0):
    return run("index", *(arguments or ["clips"]), "--model", "model", "--output", "gallery", code=code)


def test_index_prints_the_counts_and_names_what_it_could_not_read(place):
    first = index().stdout
    assert "2 new, 0 changed, 0 unchanged, 1 unreadable; 2 clips in the gallery" in first
    assert f"unreadable: {place / 'clips' / 'empty.mp4'}: not a readable video or audio file: it is empty" in first
    assert first.endswith("in the gallery, 1 without video, 2 without subtitle\n")
    second = index().stdout
    assert "0 new, 0 changed, 2 unchanged, 1 unreadable" in second
    assert "1 of the unreadable files failed before" in second
    output = run("info", "gallery").stdout
    for fact in ("clips: 2, 3 dimensions", "video 50.0%, audio 100.0%, subtitle 0.0%", f"model: {place / 'model'} ("):
        assert fact in output
    assert "unreadable files: 1" in output and "empty.mp4: not a readable video or audio file: it is empty" in output


def test_what_is_left_out_of_folders_is_counted(place):
    (place / "clips" / ".hidden.mp4").write_text("video")
    (place / "clips" / os.fsdecode(b"caf\xe9.mp4")).write_text("video")
    reported = index("clips", "--exclude", "cat.*")
    assert "1 hidden or system item left out; to index one, name it." in reported.stderr
    assert "1 files are skipped, as their names are not UTF-8" in reported.stderr and "caf\\udce9" in reported.stderr
    assert "1 new, 0 changed, 0 unchanged, 1 unreadable" in reported.stdout


def test_files_are_removed_by_name_whether_they_are_there_or_not(place):
    (place / "clips" / "cat").mkdir()
    (place / "clips" / "cat" / "kitten.mp4").write_text("video")
    index()
    assert "has no clips of 'elsewhere'" in run("remove", "gallery", "clips/cat", "elsewhere", code=1).stderr
    assert "1 clips removed; 2 clips in" in run("remove", "gallery", "clips/cat").stdout  # and not cat.mp4
    assert "1 new, 0 changed, 2 unchanged" in index().stdout
    shutil.rmtree(place / "clips")
    assert "2 clips removed; 1 clips in" in run("remove", "gallery", "clips/cat.mp4", "clips/cat").stdout
    assert run("remove", "gallery", "clips").stdout == "1 clips removed; 0 clips in the gallery\n"
    assert "unreadable files: 0" in run("info", "gallery").stdout  # nothing is left of the folder


def test_what_prune_keeps_and_why_is_reported(place):
    index()
    (place / "clips").rename(place / "away")
    (place / "clips").mkdir()
    (place / "list.csv").write_text("path\nclips/cat.mp4\n")
    counts, cat, dog, advice, *_ = index("list.csv", "--prune", code=1).stdout.splitlines()
    assert counts == "0 new, 0 changed, 0 unchanged, 0 unreadable, 2 gone; 2 clips in the gallery"
    for line, name in ((cat, "cat.mp4"), (dog, "[red]/dog [bold]1.mp4")):
        assert line.startswith(f"gone from disk, its clips are kept: {place / 'clips' / name}: no other file of")
    assert advice == f"`scalar remove {place / 'gallery'} PATH` removes the clips of what will not come back"


def test_index_that_embeds_nothing_fails_unless_there_was_nothing_to_do(place):
    assert index("clips/empty.mp4", code=1).stderr.endswith("Nothing was embedded.\n")
    asked = run("query", "gallery", "video", "--json")
    assert json.loads(asked.stdout)[0]["hits"] == [] and "gallery holds no clips." in asked.stderr
    (place / "clips" / "nothing.mp4").write_text("none")
    assert "2 new" in run("index", "clips", "--output", "gallery").stdout  # by its own model
    assert "0 new, 0 changed, 2 unchanged" in index().stdout
    (place / "clips" / "cat.mp4").rename(place / "clips" / "tom.mp4")
    shutil.rmtree(place / "clips" / "[red]")
    assert "1 moved, 1 unreadable, 1 with nothing to embed, 1 removed" in index("--prune", "clips").stdout


@pytest.mark.promise("files", "A subfolder that cannot be listed is named, and its clips are kept")
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ENOENT])
def test_a_folder_that_cannot_be_listed_is_reported_and_costs_no_clips(place, monkeypatch, code):
    index()
    (place / "clips" / "late.mp4").write_text("video")
    red = place / "clips" / "[red]"
    away = place / "away" if code == errno.ENOENT else None
    make_unlistable(monkeypatch, red, code, away)
    result = index("clips", "--prune")
    kept = "" if away is None else ", 1 out of reach"
    assert result.stdout.startswith(f"1 new, 0 changed, 1 unchanged, 2 unreadable{kept}; 3 clips in the gallery")
    assert f"unreadable: {red}: {os.strerror(code)}\n" in result.stdout
    assert str(red) not in result.stderr  # each message comes once


def test_query_prints_rank_score_name_and_weights(place):
    index()
    lines = run("query", "gallery", "video", "audio").stdout.splitlines()
    # e / (e + 1) = 0.731 for the modality that is asked for; e / sqrt(e^2 + 1) = 0.939 is the score of Eq. 4
    assert lines == [
        "query: video",
        "  1  0.939  [red]/dog [bold]1.mp4  changed 2020-01-01",
        "     video ██████░░ 0.73  audio ██░░░░░░ 0.27  subtitle – absent",
        "  2  0.000  cat.mp4  changed 2020-01-01",
        "     video – absent  audio ████████ 1.00  subtitle – absent",
        "query: audio",
        "  1  1.000  cat.mp4  changed 2020-01-01",
        "     video – absent  audio ████████ 1.00  subtitle – absent",
        "  2  0.939  [red]/dog [bold]1.mp4  changed 2020-01-01",
        "     video ██░░░░░░ 0.27  audio ██████░░ 0.73  subtitle – absent",
    ]


def test_only_the_modalities_named_are_searched_and_a_query_temperature_is_taken(place):
    index()
    _, first, weights = run("query", "gallery", "audio", "--modalities", "video, subtitle").stdout.splitlines()
    assert first == "  1  0.000  [red]/dog [bold]1.mp4  changed 2020-01-01"
    assert weights == "     video ████████ 1.00  audio ░░░░░░░░ 0.00  subtitle – absent"
    lines = run("query", "gallery", "video", "-k", "1", "--query-temperature", "inf").stdout.splitlines()
    assert lines[2] == "     video ████░░░░ 0.50  audio ████░░░░ 0.50  subtitle – absent"


def test_a_long_name_is_cut(place):
    (place / "clips" / "cat.mp4").rename(place / "clips" / f"{'x' * 100}-end.mp4")
    index()
    assert f"  1.000  ...{'x' * 61}-end.mp4  changed" in run("query", "gallery", "audio").stdout


def test_verify_names_a_changed_file_and_compact_leaves_no_removed_clip(place):
    (place / "clips" / "horse.mp4").write_text("video")
    index()
    assert "3 clips" in run("verify", "gallery").stdout
    run("remove", "gallery", "clips/cat.mp4")
    assert len(load_from_disk("gallery/clips")) == 3 and "clips: 2," in run("info", "gallery").stdout
    assert "is compact: " in run("compact", "gallery").stdout
    assert len(load_from_disk("gallery/clips")) == 2
    (file,) = (place / "gallery" / "clips").glob("*.arrow")
    os.truncate(file, 99)
    assert file.name in run("verify", "gallery", code=1).stderr


def test_a_gallery_that_names_no_model_or_one_that_moved_is_asked_with_one(place):
    Gallery.from_arrays(["a", "b", "c"], dict.fromkeys(MODALITIES, torch.eye(3)), path="theirs")
    index()
    (place / "model").rename(place / "moved")
    for gallery, refused, found in (
        ("theirs", "does not say which", "1.000  a"),
        ("gallery", "no model folder", "dog"),
    ):
        assert refused in run("query", gallery, "video", code=1).stderr
        assert found in run("query", gallery, "video", "--model", "moved").stdout
    assert "Name it by `model`" in run("index", "clips", "--output", "theirs", code=1).stderr
    (place / "moved" / "config.json").write_text('{"other": 1}')
    for gallery, refused in (("theirs", "nothing can be added"), ("gallery", "different models cannot be compared")):
        assert refused in run("index", "clips", "--model", "moved", "--output", gallery, code=1).stderr


def test_a_folder_in_which_nothing_is_new_needs_no_model_or_its_libraries_nor_do_the_facts_of_its_gallery(place):
    index()
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules))\n"
    code += "from scalar_retrieval.commands.scalar import run; run(sys.argv[1:])"
    for command, printed in (
        (["index", "clips", "--model", "model", "--output", "gallery"], "0 new, 0 changed, 2 unchanged, 1 unreadable"),
        (["info", "gallery"], "clips: 2, 3 dimensions"),
    ):
        finished = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
        assert printed in finished.stdout
        loaded = set(finished.stdout.splitlines()[-1].split())
        assert "pyarrow" in loaded
        assert not {"torch", "transformers", "datasets", "pandas", "pydantic", "httpx2", "ssl"} & loaded


def test_repair_says_what_it_did_and_the_gallery_is_whole_again(place):
    index()
    query = ("query", "gallery", "video", "audio")
    before = run(*query).stdout
    assert run("repair", "gallery").stdout == "gallery is intact: 2 clips.\n"
    (place / "gallery" / "gallery.json").write_text("{")
    for command in (query, ["info", "gallery"], ["index", "clips", "--output", "gallery"]):
        assert re.search("`scalar repair (/.*/)?gallery`", run(*command, code=1).stderr)
    reported = run("repair", "gallery").stdout
    assert "gallery.json was damaged" in reported and reported.endswith("gallery is intact: 2 clips.\n")
    assert run(*query).stdout == before and "2 unchanged" in index().stdout
    assert f"There is no gallery in '{place}/nowhere'" in run("repair", "nowhere", code=1).stderr


def test_a_query_that_nothing_matches_says_so_where_that_was_fitted(place):
    index()
    query = ("query", "gallery", "video")
    assert json.loads(run(*query, "--json").stdout)[0]["matches_well"] is None
    for least, matches_well in ((1.5, False), (0.5, True)):
        with GalleryWriter("gallery") as writer:
            fitted = {"num_clips": 2, "modalities": list(MODALITIES), "score_options": fitted_to(writer.metadata)}
            writer.metadata |= {"least_score": fitted | {"score": least}}
            writer.commit()
        assert json.loads(run(*query, "--json").stdout)[0]["matches_well"] == matches_well
        assert (NOTHING_MATCHES in run(*query).stdout) != matches_well
        assert f"least score of a match: {least} (fitted to 2 clips, by" in run("info", "gallery").stdout


def test_filters_limit_what_is_found_and_say_how_many(place):
    os.utime(place / "clips" / "[red]" / "dog [bold]1.mp4", (0, 86_400 * 365))
    index()
    for options, dog, cat in (
        (["--path", "c*", "--path", "dog*"], 1, 1),
        (["--has", "video"], 1, 0),
        (["--lacks", "video", "--lacks", "subtitle"], 0, 1),
        (["--before", "1971-01-02"], 1, 0),
        (["--after", "1971-01-02T00:00"], 0, 1),
    ):
        found = run("query", "gallery", "audio", *options)
        assert (found.stdout.count("[bold]1.mp4"), found.stdout.count("cat.mp4")) == (dog, cat), options
        assert ("Exact among 2 clips" if dog and cat else "Exact among 1 of 2 clips") in found.stderr
    reported = run("query", "gallery", "audio", "--path", "nowhere").stderr
    assert reported.startswith(f"No hits for 'audio': the filter leaves none of the 2 clips in {place}/gallery")
    assert f"no path matches; paths look like {place / 'clips' / 'cat.mp4'}." in reported
    reported = run("query", "gallery", "audio", "--min-duration", "1").stderr
    assert "2 clips were left out because it is not known how long they last." in reported


def test_hits_show_their_dates_and_can_be_sorted_by_them_and_info_counts_times_of_change(place):
    os.rename("clips/cat.mp4", "clips/VID_20190615_123011.mp4")
    index()
    for options, dates in (
        ([], ["2019-06-15", "changed 2020-01-01"]),
        (["--sort", "date"], ["changed 2020-01-01", "2019-06-15"]),
        (["--sort", "date", "-k", 1], ["2019-06-15"]),  # only the best hit by score is sorted
    ):
        result = run("query", "gallery", "audio", *options)
        assert [line.rpartition(".mp4  ")[2] for line in result.stdout.splitlines()[1::2]] == dates
        assert ("chosen by score, then sorted by date, newest first." in result.stderr) == bool(options)
    (answer,) = json.loads(run("query", "gallery", "audio", "--json", "--before", "2019-06-16").stdout)
    (hit,) = answer["hits"]
    assert (hit["date"], hit["is_recorded"], hit["place"]) == ("2019-06-15T12:30:11+00:00", True, None)
    dates = "dates: 2019-06-15 to 2020-01-01 (time of change only for 1 of 2 files)"
    assert dates in run("info", "gallery").stdout.splitlines()


def test_clips_like_one_or_like_a_file_of_another_place_are_found(place):
    index()
    (place / "else").mkdir()
    for name, content in (("sound.mp4", "audio"), ("nothing.mp4", "words")):
        (place / "else" / name).write_text(content)
    like = ["query", "gallery", "--like"]
    (reported,) = json.loads(run(*like, "else/sound.mp4", "--json").stdout)
    assert reported["like"] == "else/sound.mp4" and len(reported["hits"]) == 2  # all of them: it is no clip
    for options, message in (
        (["else/sound.mp4", "--modalities", "video"], "has none of the selected modalities"),
        (["else/nothing.mp4"], "Nothing in this file can be compared with clips. else/nothing.mp4: found none"),
    ):
        assert message in run(*like, *options, code=1).stderr
    (place / "model" / "model.safetensors").unlink()  # which a clip does not need
    first, second, *_ = run(*like, "cat.mp4").stdout.splitlines()
    # cat is a sound: for the picture, which it lacks, its sound is the query, too
    assert first == f"like: {place / 'clips' / 'cat.mp4'}"
    assert second == "  1  0.939  [red]/dog [bold]1.mp4  changed 2020-01-01"


def test_copies_are_shown_once_if_that_is_wanted(place):
    (place / "clips" / "copy.mp4").write_text("audio")
    index()
    unique = ("query", "gallery", "audio", "--unique")
    (reported,) = json.loads(run(*unique, "--json").stdout)
    assert [hit["copies"] for hit in reported["hits"]] == [[str(place / "clips" / "copy.mp4")], []]
    assert "     and 1 copy: copy.mp4\n" in run(*unique).stdout
