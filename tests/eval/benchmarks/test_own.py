"""Tables of the user's own: what is written is what is read."""

import json
import wave

import pandas
import pytest

from scalar_retrieval.eval.benchmarks.annotations import FEATURES
from scalar_retrieval.eval.benchmarks.registry import load_split
from scalar_retrieval.eval.embedding.embed_benchmark import embed_benchmark
from scalar_retrieval.gallery.gallery import GalleryWriter, MediaFile
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat
from scalar_retrieval.gallery.words.transcripts import Transcripts
from tests.gallery.test_subtitles import CUE, write_film

IDS = ["007", "1e5", "2020-01-01", "NA", "7"]  # what readers that guess types would change


def write(root, name, content):
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content, encoding="utf-8")
    return root / name


def media(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def rows_of(path, **options):
    return load_split("own", path, **options).dataset


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "jsonl"])
def test_ids_stay_as_they_are_written_and_nothing_is_absent(tmp_path, kind):
    media(tmp_path, *(f"videos/{name}.mp4" for name in IDS), "audios/007.wav")
    frame = pandas.DataFrame({"video_id": IDS, "caption": IDS, "subtitle": ["hello", None, None, "nan", None]})
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=kind == "jsonl")
    loaded = load_split("own", path)
    assert loaded.task == "retrieval" and loaded.dataset.features == FEATURES
    assert loaded.dataset["video_id"][:] == loaded.dataset["caption"][:] == IDS
    assert loaded.dataset["subtitle"][:] == ["hello", None, None, "nan", None]
    videos = [str(tmp_path / "videos" / f"{name}.mp4") for name in IDS]
    assert loaded.dataset["video_path"][:] == videos
    assert loaded.dataset["audio_path"][:] == [str(tmp_path / "audios" / "007.wav"), *videos[1:]]


def test_paths_are_relative_to_the_table_and_further_texts_are_called_as_their_modalities(tmp_path, monkeypatch):
    media(tmp_path / "set", "films/a.mp4", "b.mkv", "b.wav")
    content = "video_id,caption,path,audio_path,head\na,a dog,films/a.mp4,,Dogs\nb,,b.mkv,b.wav,\n"
    content += "a,hound,films/a.mp4,,Dogs\n"
    path = write(tmp_path / "set", "table.csv", content)
    with pytest.raises(ValueError, match=r"table\.csv, line 3, clip 'b': 'caption' must be a caption"):
        rows_of(path)
    path.write_text(content.replace("b,,", 'b,"a cat, black",'))
    monkeypatch.chdir(tmp_path)
    dataset = rows_of("set/table.csv", columns={"title": "head"})
    a, b, sound = (str(tmp_path / "set" / name) for name in ("films/a.mp4", "b.mkv", "b.wav"))
    rows = zip(*(dataset[name][:] for name in ("caption", "video_path", "audio_path", "title")), strict=True)
    assert sorted(rows) == [("a cat, black", b, sound, None), ("a dog", a, None, "Dogs"), ("hound", a, None, "Dogs")]
    path.write_text(content.replace("b,,", "b,x,").replace("hound,films/a.mp4,,Dogs", "hound,films/a.mp4,,Cats"))
    with pytest.raises(ValueError, match="gives other files or texts for the clip 'a'"):
        rows_of(path, columns={"title": "head"})


def test_a_list_of_paths_and_captions_is_enough(tmp_path):
    media(tmp_path, "films/a.mp4", "b.mkv", "b.srt", "films/words.vtt")
    path = write(tmp_path, "t.csv", "path,caption\nfilms/a.mp4,a dog\nb.mkv,a cat\n")
    assert rows_of(path)["video_id"][:] == ["films/a.mp4", "b.mkv"]
    assert rows_of(path)["video_path"][:] == [str(tmp_path / "films" / "a.mp4"), str(tmp_path / "b.mkv")]
    assert rows_of(path)["subtitle"][:] == [None, str(tmp_path / "b.srt")]  # as search takes it
    path.write_text("path,caption,subtitle\nb.mkv,a cat,films/words.vtt\n")
    assert rows_of(path)["subtitle"][:] == [str(tmp_path / "films" / "words.vtt")]


def transcribe(folder, file):
    """A gallery as `scalar index` leaves it once somebody has listened to a file."""
    with GalleryWriter(folder) as writer:
        writer.put_files([MediaFile(str(file), *clip_stat(str(file)), clip_sha256(str(file)))])
        writer.commit()
    transcript = Transcripts(folder).path_of(clip_sha256(str(file)))
    transcript.parent.mkdir()
    transcript.write_text("WEBVTT\n\n" + CUE.format("a bell").replace(",", "."))
    return str(transcript)


def test_what_is_said_is_what_search_reads_of_the_file_or_of_its_gallery(tmp_path):
    for name, tracks in (("said", ["a dog"]), ("named", ["a dog"]), ("heard", [])):
        write_film(tmp_path / f"{name}.mkv", tracks)
    write(tmp_path, "named.en.srt", CUE.format("a cat"))
    path = write(tmp_path, "t.csv", "path,caption\nsaid.mkv,one\nnamed.mkv,two\nheard.mkv,three\n")
    words = ["a dog", str(tmp_path / "named.en.srt")]
    assert rows_of(path)["subtitle"][:] == [*words, None]
    transcript = transcribe(tmp_path / "gallery", tmp_path / "heard.mkv")
    assert rows_of(path, words_of=tmp_path / "gallery")["subtitle"][:] == [*words, transcript]
    (tmp_path / "heard.mkv").write_bytes(b"another")  # of which nobody has heard
    assert rows_of(path, words_of=tmp_path / "gallery")["subtitle"][:] == [*words, None]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        rows_of(path, words_of=tmp_path / "nowhere")


@pytest.mark.parametrize("column", ["path", "audio_path"])
def test_clips_with_speech_alone_are_embedded_by_the_words_of_a_gallery(tmp_path, column):
    """The model `light` does not hear; the error says where the words come from."""
    with wave.open(str(tmp_path / "heard.wav"), "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 16_000))
    table = write(tmp_path, "t.csv", f"video_id,{column},caption\na,heard.wav,a bell\n")
    job = {"model": "light", "benchmark": "own", "root": table, "progress": False}
    with pytest.raises(ValueError, match=r"1 clips have nothing .*--words-of GALLERY.*--embeddings GALLERY"):
        embed_benchmark(tmp_path / "without", **job)
    transcribe(tmp_path / "gallery", tmp_path / "heard.wav")
    gallery = embed_benchmark(tmp_path / "with", **job, words_of=tmp_path / "gallery")
    assert gallery.presence_counts() == {"video": 0, "subtitle": 1}


def test_a_share_is_held_out_by_the_ids_alone(tmp_path):
    names = [f"clip {number}" for number in range(400)]
    media(tmp_path, *(f"{name}.mp4" for name in names))

    def sides(names, share=0.25):
        rows = "".join(f"{name},{name}.mp4,{caption}\n" for name in names for caption in "ab")
        path = write(tmp_path, "t.csv", "video_id,path,caption\n" + rows)
        return [rows_of(path, split=split, holdout=share)["video_id"][:] for split in ("train", "test")]

    train, test = sides(names)
    assert sorted(train + test) == sorted(2 * names) and not set(train) & set(test)
    assert 70 <= len(set(test)) <= 130
    others = sides([*reversed(names[100:]), *names[:50]])  # in another order, and without some
    assert [set(side) for side in others] == [set(side) - {*names[50:100]} for side in (train, test)]
    assert set(sides(names, 0.1)[1]) < set(test)


def test_several_captions_are_several_rows_of_one_clip(tmp_path):
    media(tmp_path, "videos/a.mp4", "videos/b.mp4")
    captions = ["a", ["one", "two"]], ["b", "three"], ["a", "four\u2028five"]  # a separator that is no end of a line
    lines = [json.dumps({"video_id": name, "caption": said}, ensure_ascii=False) for name, said in captions]
    path = write(tmp_path, "t.jsonl", "\n".join(lines) + "\n\n")
    assert rows_of(path)["video_id"][:] == ["a", "a", "a", "b"]
    assert rows_of(path)["caption"][:] == ["one", "two", "four\u2028five", "three"]
    assert rows_of(path, captions="first")["caption"][:] == ["one", "three"]


def test_clips_without_their_files_are_named_or_left_out(tmp_path):
    media(tmp_path, "here.mp4")
    content = "video_id,caption,video_path,subtitle\na,one,here.mp4,\nb,two,gone.mp4,hi\nc,three,,\nd,four,,speech\n"
    path = write(tmp_path, "t.csv", content)
    with pytest.raises(
        FileNotFoundError, match=r"2 of 4 clips lack a file: b \(.*gone\.mp4\), c \(no file is named\)"
    ):
        rows_of(path)
    loaded = load_split("own", path, on_missing="leave_out")
    assert loaded.left_out == ["b", "c"] and loaded.dataset["video_id"][:] == ["a", "d"]
    assert loaded.dataset[1]["video_path"] is None and loaded.dataset[1]["subtitle"] == "speech"


def test_a_data_set_folder_is_read_by_split(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    media(tmp_path, "set/videos/a.mp4", "set/videos/b.mp4")
    for split, names in (("train", ["b"]), ("test", ["a", "b"])):
        frame = pandas.DataFrame({"clip": names, "caption": [["one", "two"]] * len(names)})
        frame.to_parquet(tmp_path / "set" / f"{split}.parquet")
    options = {"columns": {"video_id": "clip"}, "captions": "first"}
    assert rows_of(tmp_path / "set", **options)["video_id"][:] == ["a", "b"]
    videos = rows_of(tmp_path / "set", split="train", **options)["video_path"][:]
    assert videos == [str(tmp_path / "set" / "videos" / "b.mp4")]
    with pytest.raises(ValueError, match="validation"):
        rows_of(tmp_path / "set", split="validation", **options)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("clip,caption\na,b\n", None, r"\['clip', 'caption'\], but not \['path'\]\. .* `path` or `video_id`"),
        ("a,b\n", {"path": "a", "video_path": "b"}, "`path` and `video_path` name the same"),
        ("a,b\n", {"path": "c", "caption": "b"}, r"columns \['a', 'b'\], but not \['c'\]"),
        ("video_id,caption\na,b,c\n", None, "line 2: expected 2 cells, as in line 1, got 3"),
        ('{"video_id": ["a"]}', None, "expected a list of objects, one per row, got dict"),
        ('[{"video_id": null, "caption": "a"}]', None, "row 1: 'video_id' must be text, got None"),
    ],
)
def test_a_table_that_is_wrong_says_what_is(tmp_path, content, columns, message):
    path = write(tmp_path, "t.json" if "{" in content else "t.csv", content)
    with pytest.raises(ValueError, match=message):
        rows_of(path, columns=columns)
