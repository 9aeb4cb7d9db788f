"""The archive of a new user: how its answers are ranked, and that it can be made, indexed and asked."""

import shutil
from pathlib import Path

import pytest

from evidence.archive.asking import RankedAnswer, answer_of, ask_archive, lines_of
from evidence.archive.making import read_contents

FILM = "films/documentary.mkv"
FOLDER = Path("/archive")


def hit(path, rank, start=None, stop=None):
    clip_id = path if start is None else f"{path}#t={start},{stop}"
    weights = {"title": 0.25, "subtitle": 0.75, "video": None}
    place = {"path": str(FOLDER / path), "start": start, "stop": stop}
    return {**place, "rank": rank, "clip_id": str(FOLDER / clip_id), "weights": weights}


def question(file, chapter=None):
    return {"text": "?", "file": file} | ({} if chapter is None else {"chapter": chapter})


def test_a_chapter_is_found_by_the_window_that_holds_its_middle():
    """The second chapter lasts from 75 to 150 s: its middle is at 112.5 s."""
    asked = question(FILM, "The storm")
    hits = [hit("talks/a1.mp4", 1), hit(FILM, 2, 0.0, 75.0), hit(FILM, 3, 110.0, 112.5), hit(FILM, 4, 112.0, None)]
    found = answer_of(asked, hits, FOLDER)
    assert (found.rank, found.by, found.first) == (4, "subtitle", "talks/a1.mp4")
    assert answer_of(asked, [hit(FILM, 1)], FOLDER).rank is None, "the whole film is no answer"


def test_a_file_is_found_whole_or_by_any_of_its_windows():
    assert answer_of(question("talks/a1.mp4"), [hit("talks/a2.mp4", 1), hit("talks/a1.mp4", 2)], FOLDER).rank == 2
    assert answer_of(question(FILM), [hit(FILM, 1, 30.0, 60.0)], FOLDER).rank == 1
    missing = answer_of(question("talks/a1.mp4"), [], FOLDER)
    assert (missing.rank, missing.by, missing.first) == (None, None, None)


def test_the_last_line_counts_what_was_found():
    ranks = (1, 2, None, 10)
    lines = lines_of([RankedAnswer("?", "a.mp4", rank, "title", "b.mp4") for rank in ranks])
    assert lines[-1] == "first: 1 of 4; in the first five: 2; MRR 0.40"  # (1 + 1/2 + 1/10) / 4


def test_every_question_names_a_file_and_a_chapter_that_exist():
    contents = read_contents()
    files = {item["path"]: item for item in contents["files"]}
    for asked in contents["questions"]:
        chapters = [chapter["title"] for chapter in files[asked["file"]].get("chapters", ())]
        assert ("chapter" in asked) == bool(chapters) and asked.get("chapter") in [*chapters, None]
    assert len({asked["text"] for asked in contents["questions"]}) == len(contents["questions"]) >= 30


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
def test_a_new_user_finds_most_of_an_archive(tmp_path, shared_dir):
    """With the default model and no extra: speech and the words of slides cannot be found."""
    lines = []
    answers = ask_archive(tmp_path, shared_dir / "data" / "videos", print_line=lines.append)
    assert any("3 unreadable" in line for line in lines)
    found = {answer.target for answer in answers if answer.rank == 1}
    assert {"phone/video1.mp4", "phone/video2.mp4", "sounds/rain noise.mkv", "camera/MVI_0102.mp4"} <= found
    assert sum(FILM in target for target in found) >= 6, "chapters of the long film"
    assert len(found) >= 18
