"""Lists of files: CSV, JSON Lines, Parquet and saved data sets."""

import errno
import json
import os
import time

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset, DatasetDict
from typer.testing import CliRunner

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.file_lists import is_table
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.sources import (
    FileSelection,
    find_clips,
    find_files,
    read_list,
    title_of_name,
    words_of,
)
from tests.gallery.decoding.reading import write_media


def generated(path):
    """Link to a file that the system generates, or to what looks like one."""
    path.symlink_to("/proc/kmsg" if os.path.isfile("/proc/kmsg") else os.devnull)


def below(folder, *names):
    """Make files below a folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("media")


def make_unlistable(patch, folder, code=errno.EACCES, moved_to=None):
    """Have the system refuse to list a folder, as it does for other users than root, or move it when it is listed."""
    scandir = os.scandir

    def refuse(path="."):
        if str(path).endswith(folder.name) and os.path.realpath(path) == str(folder):
            if moved_to is not None:
                folder.rename(moved_to)
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    patch.setattr(os, "scandir", refuse)


def test_what_is_hidden_or_of_a_system_is_left_out_unless_it_is_named(tmp_path):
    hidden = [".trash/1.mp4", ".Trash-1000/files/2.mp4", "a/@eaDir/3.mp4", "$Recycle.Bin/4.mp4", "a/._5.mp4", ".6.mp4"]
    hidden += ["System Volume Information/7.mp4", "#recycle/9.mp4", "#snapshot/GMT/10.mp4", "lost+found/11.mp4"]
    below(tmp_path, *hidden, "a/8.mp4", "a/.nothing")
    skipped = f"{len(hidden)} hidden or system items left out; to index one, name it."
    assert lines_of(tmp_path) == (["a/8.mp4"], [skipped])
    for name in ("#recycle/9.mp4", ".trash/1.mp4"):  # which are named
        folder, _, file = name.partition("/")
        assert lines_of(tmp_path / folder) == ([file], [])


def lines_of(folder, **options):
    """What is found, and what is said of the rest."""
    selection = FileSelection(**options)
    found = [os.path.relpath(path, folder) for path in find_files([folder], selection)]
    return found, list(selection.lines())


def test_what_is_of_no_use_is_counted_a_line_for_each_reason(tmp_path):
    below(tmp_path, "a.mp4", "b.SWF", "c.mid", "d.mid", "GX01.LRV", "e.jpg", "e.png", "f.HEIC", "notes.txt", ".git/x")
    assert lines_of(tmp_path) == (
        ["a.mp4"],
        [
            "1 hidden or system item left out; to index one, name it.",
            "1 low-resolution film (1 .lrv) of a camera left out; to index one, name it.",
            "3 files (2 .mid, 1 .swf) left out, of types that are not read.",
            "3 pictures (1 .heic, 1 .jpg, 1 .png) left out; --pictures takes them.",
        ],
    )
    named = [f"{tmp_path}/{name}" for name in ("GX01.LRV", "e.jpg", "c.mid")]
    assert find_files(named) == named


def test_pictures_are_taken_if_asked_for_but_not_the_still_of_a_film(tmp_path):
    below(tmp_path, "IMG_1.HEIC", "img_1.MOV", "IMG_2.JPG", "a/IMG_1.jpg", "song.mp3", "song.png", "x.jpg", "x.mp4")
    found, lines = lines_of(tmp_path, pictures=True, exclude=["x.mp4"])
    assert found == ["IMG_2.JPG", "img_1.MOV", "song.mp3", "song.png", "x.jpg", "a/IMG_1.jpg"]
    assert lines == ["1 picture (1 .heic) left out, as each is beside a film of the same name."]


def test_a_file_of_text_is_no_film(tmp_path):
    texts = {"index.ts": b"export\n", "latin.mts": "// größer\n".encode("latin-1"), "go.mod": b"module a\n"}
    films = {"film.ts": b"G@\0\x10" + b"\xff" * 184, "film.mod": b"\0\0\1\xba!", "text.mp4": b"text", "empty.ts": b""}
    for name, content in (texts | films).items():
        (tmp_path / name).write_bytes(content)
    generated(tmp_path / "endless.ts")
    found, lines = lines_of(tmp_path)
    assert films.keys() <= set(found) and len(found) == len(films) + 1
    assert lines == ["3 files (1 .mod, 1 .mts, 1 .ts) left out: text, despite the name."]


def test_all_that_ffmpeg_reads_is_taken_by_its_extension(tmp_path):
    extensions = ".M2T .ac3 .amr .ape .caf .dv .f4v .m2v .m4b .mk3d .mka .mp2 .oga .qt .rm .wv"
    names = [f"a{extension}" for extension in extensions.split()]
    below(tmp_path, *names)
    assert lines_of(tmp_path) == (names, [])


TITLES = {
    "DCIM/Camera/VID_20250614_101522.mp4": "",
    "DCIM/100GOPRO/GX010042.MP4": "",
    "2019/2019-06/C0017.MP4": "",
    "x/IMG-20250101-WA0001.mp4": "",
    "x/PXL_20250614_101522123.NIGHT.jpg": "",
    "x/IMG_E0042(1).MOV": "",
    "x/signal-2025-06-14-101522_002.mp4": "",
    "x/WhatsApp Video 2025-06-14 at 10.15.22 AM.mp4": "",
    "x/Screen Recording 2025-06-14 at 10.15.22.mov": "",
    "x/550e8400-e29b-41d4-a716-446655440000.mp4": "",
    "x/d41d8cd98f00b204e9800998ecf8427e.mp4": "",
    "x/20250614.mp4": "",
    "BDMV/STREAM/00001.m2ts": "",
    "New Folder/SAM_0042.MP4": "",
    "x/trim.A1B2C3D4-E5F6-7890-ABCD-EF1234567890.MOV": "",
    "x/Screen_Recording_20250614-101522_YouTube.mp4": "You Tube",
    "x/NASA1969 landing [dQw4w9WgXcQ].mp4": "NASA1969 landing",
    "Norway fjords 2019/DSC_4411.MP4": "Norway fjords 2019",
    "2019-06-14 Birthday/IMG_0042.MOV": "Birthday",
    "x/20250614_birthday_Anna.mp4": "birthday Anna",
    "x/IMG_0042 birthday cake.mov": "birthday cake",
    "garden/red_tulips-inBloom.mp4": "red tulips in Bloom, garden",
    "sounds/rain-noise_inTheWood.v2.flac": "rain noise in The Wood v2, sounds",
    "x/2001 A Space Odyssey 1080p.mkv": "2001 A Space Odyssey",
    "x/Movie about dji.mp4": "Movie about",
    "春节/ß.mp4": "春节",
}


def test_a_hostile_name_takes_no_time():
    for part in ("IMG" + "1" * 900 + "x", "IMG" + "-1" * 500 + "x", "PXL1" + "-HDR1" * 200 + "x", "[" * 1000):
        began = time.process_time()
        words_of(part)
        assert time.process_time() - began < 0.2, part


@pytest.mark.parametrize("name", TITLES)
def test_a_title_of_a_name_is_what_a_person_wrote(name):
    assert title_of_name(f"/{name}") == TITLES[name]


def test_a_subfolder_that_cannot_be_listed_is_skipped_and_noted_but_not_one_that_is_named(tmp_path, monkeypatch):
    below(tmp_path, "private/2.mp4", "z/3.mp4", "4.mp4")
    make_unlistable(monkeypatch, tmp_path / "private")
    selection = FileSelection()
    assert find_files([tmp_path], selection) == [str(tmp_path / "4.mp4"), str(tmp_path / "z/3.mp4")]
    assert selection.unlisted == {str(tmp_path / "private"): "Permission denied"}
    # Nobody would see that something is missing.
    for arguments in (([tmp_path / "private"], selection), ([tmp_path],)):
        with pytest.raises(PermissionError):
            find_files(*arguments)


def test_what_is_excluded_is_left_out_wherever_it_is_named(tmp_path):
    below(tmp_path, "a/1.mp4", "a/drafts/2.mp4", "b/drafts/c/3.mp4", "b/4.gif", "drafts.mp4", "5.mp4")
    for exclude, found in (
        (["drafts/**", "*.gif"], ["5.mp4", "drafts.mp4", "a/1.mp4"]),
        ([str(tmp_path / "a")], ["5.mp4", "drafts.mp4", "b/4.gif", "b/drafts/c/3.mp4"]),
    ):
        assert lines_of(tmp_path, exclude=exclude)[0] == found
    (tmp_path / "list.csv").write_text("path,mood\na/1.mp4,\n5.mp4,good\n")
    paths = [tmp_path / "list.csv", tmp_path / "b/4.gif"]
    five = str(tmp_path / "5.mp4")
    assert find_clips(paths, FileSelection(["a", "*.gif"]), ["mood"]) == ([five], {five: {"mood": "good"}})


ROWS = [
    {"path": "clips/b.mp4", "subtitle": 'hello, "world"\nagain'},
    {"path": "a.mp4", "subtitle": None},
    {"path": "clips/c.mp4", "subtitle": "c.srt"},
    {"path": "2024-01-02", "subtitle": "007"},  # texts stay as they are
]


CSV = 'path,subtitle\nclips/b.mp4,"hello, ""world""\nagain"\na.mp4,\nclips/c.mp4,c.srt\n2024-01-02,007\n'
WRITERS = {
    "list.csv": lambda path: path.write_text(CSV),
    "list.JSONL": lambda path: path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n"),
    "list.json": lambda path: path.write_text(json.dumps(ROWS)),
    "list.parquet": lambda path: pa.parquet.write_table(pa.Table.from_pylist(ROWS), path),
    "list": Dataset.from_list(ROWS).save_to_disk,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_list_names_the_same_files_and_words_from_where_it_lies(tmp_path, name):
    (tmp_path / "c.srt").write_text("")
    WRITERS[name](tmp_path / name)
    assert is_table(tmp_path / name)
    files, unused = read_list(tmp_path / name)
    assert files == {
        str(tmp_path / "clips" / "b.mp4"): {"subtitle": 'hello, "world"\nagain'},
        str(tmp_path / "a.mp4"): {},
        str(tmp_path / "clips" / "c.mp4"): {"subtitle": str(tmp_path / "c.srt")},
        str(tmp_path / "2024-01-02"): {"subtitle": "007"},
    }
    assert unused == []


def test_a_column_of_media_of_datasets_names_its_files(tmp_path):
    media = pa.array([{"bytes": None, "path": "a.mp4"}, {"bytes": b"x", "path": "b.mp4"}])
    pa.parquet.write_table(pa.table({"video": media}), tmp_path / "list.parquet")
    files, _ = read_list(tmp_path / "list.parquet")
    assert [os.path.basename(path) for path in files] == ["a.mp4", "b.mp4"]


def test_a_list_is_distinguished_from_media_and_folders_by_its_name_and_what_it_holds(tmp_path):
    below(tmp_path, "folder/state.json", "folder/a.mp4")
    assert not is_table("x.mp4") and not is_table(tmp_path / "folder") and is_table("x.CSV")


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("a.csv", "", "a.csv"),
        ("a.csv", "file,subtitle\nx.mp4,\n", r"must have one column `path`.*got \['file', 'subtitle'\]"),
        ("a.csv", "path,path\nx,y\n", r"\['path'\] appear more than once"),
        ("a.csv", "path,subtitle\nx.mp4,well, well\n", "line 2: expected 2 cells, as in line 1, got 3"),
        ("a.csv", 'path,subtitle\nx.mp4,"a\nb"\n,c\n', "line 4, column `path`: expected the path of a file"),
        ("a.csv", 'path\n"x.mp4', "unexpected end of data"),
        ("a.csv", b"path\n\xff.mp4\n", "utf-8"),
        ("a.csv", "path\nx\0.mp4\n", "a.csv"),
        ("a.csv", "path,subtitle\nx.mp4,x.srt\n", "line 2, column `subtitle`: there is no file"),
        ("a.csv", "path,subtitle\nx.mp4,a\n./x.mp4,b\n", "line 3: what is before it has another `subtitle`"),
        ("a.jsonl", '{"path": "x"}\n{"path": \n', "line 2: "),
        ("a.jsonl", '{"path": "x"}\n\n["y"]\n', "line 3: expected an object"),
        ("a.jsonl", '{"path": [7]}\n', "line 1, column `path`: expected a text"),
        ("a.jsonl", '{"path": "x"}\n{"video": "y"}\n', r"got \['path', 'video'\]"),
        ("a.json", '{"path": "x"}', "expected a list of objects"),
        ("a.json", "[" * 100_000, "a.json"),
        ("a.parquet", "PAR1 no", "a.parquet"),
    ],
)
def test_a_wrong_list_is_an_error_that_names_it_and_the_line(tmp_path, name, content, reported):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=reported) as caught:
        read_list(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), generated])
def test_a_list_that_might_never_end_is_named_and_not_opened(tmp_path, make):
    make(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="a.csv: "):
        read_list(tmp_path / "a.csv")


def test_several_data_sets_in_one_and_damaged_ones_are_named(tmp_path):
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "sets")
    with pytest.raises(ValueError, match=f"Name one of them: {tmp_path / 'sets' / 'test'}"):
        read_list(tmp_path / "sets")
    next((tmp_path / "sets" / "test").glob("*.arrow")).write_bytes(b"no")
    with pytest.raises(ValueError, match=str(tmp_path / "sets" / "test")):
        read_list(tmp_path / "sets" / "test")


def test_the_time_for_a_header_grows_with_its_length(tmp_path):
    path = tmp_path / "list.csv"
    header = ",".join(["path", *map(str, range(100_000)), "7"])
    path.write_text(f"{header}\n")
    began = time.monotonic()
    with pytest.raises(ValueError, match="the columns \\['7'\\] appear more than once"):
        read_list(path)
    assert time.monotonic() - began < 5


def test_two_lists_that_disagree_are_named(tmp_path):
    lists = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in lists:
        path.write_text(f"path,subtitle\nx.mp4,{path.name}\n")
    with pytest.raises(ValueError, match=r"b\.csv: what is before it has another `subtitle`"):
        find_clips(lists, FileSelection())


@pytest.fixture
def place(tmp_path, tiny_model_dir):
    class Place(type(tmp_path)):
        model = tiny_model_dir

    write_media(tmp_path / "a.mp4")
    write_media(tmp_path / "b.mp4", seconds_of_audio=1)
    (tmp_path / "b.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na cat meows\n")
    return Place(tmp_path)


def index(place, *arguments):
    arguments = ("index", *arguments, "--model", place.model, "--output", place / "gallery")
    return CliRunner().invoke(app, list(map(str, arguments)))


def reported(result):
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


def test_what_a_list_says_is_embedded_and_again_only_when_it_says_something_else(place):
    def indexed(rows):
        (place / "list.csv").write_text(f"path,subtitle\n{rows}")
        result = index(place, place / "list.csv")
        gallery = Gallery.open(place / "gallery")
        rows = [gallery.row_of(str(place / name)) for name in ("a.mp4", "b.mp4")]
        return reported(result), gallery.modality_embeds()[rows, 2].float()

    counts, first = indexed("a.mp4,a dog barks\nnowhere.mp4,\nb.mp4,\n")
    assert "2 new, 0 changed, 0 unchanged, 1 unreadable" in counts
    assert "0 new, 0 changed, 1 unchanged" in indexed("a.mp4,a dog barks\n")[0]
    counts, second = indexed("a.mp4,a cat meows\n")  # as many letters
    assert "0 new, 1 changed, 0 unchanged" in counts and not torch.equal(first[0], second[0])
    torch.testing.assert_close(second[0], second[1])  # the same words, from the list and from a file
    assert "0 new, 1 changed, 0 unchanged" in indexed("a.mp4,b.srt\n")[0]
    assert "0 new, 0 changed, 1 unchanged" in indexed("a.mp4,b.srt\n")[0]
    assert "0 new, 1 changed, 0 unchanged" in reported(index(place, place / "a.mp4"))


def test_a_file_with_words_without_times_is_not_cut_into_windows(place):
    (place / "list.csv").write_text("path,subtitle\na.mp4,b.srt\n")
    assert "1 new" in reported(index(place, place / "list.csv", "--segment", "2"))
    (place / "list.csv").write_text("path,subtitle\na.mp4,a dog barks\n")
    assert "1 changed" in reported(index(place, place / "list.csv"))
    assert Gallery.open(place / "gallery").clip_ids == [str(place / "a.mp4")]
