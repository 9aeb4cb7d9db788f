"""The archive of a new user: how its answers are ranked, and that it can be made, indexed and asked."""

import re
import shutil
from pathlib import Path

import pytest

from evidence.archive.asking import RankedAnswer, answer_of, ask_archive, lines_of
from evidence.archive.making import read_contents

FILM = "films/documentary.mkv"
FOLDER = Path("/archive")


def test_a_file_is_found_by_any_window_and_a_chapter_by_the_one_that_holds_its_middle():
    """The second chapter lasts from 75 to 150 s: its middle is at 112.5 s."""
    hits = []
    for rank, (start, stop) in enumerate([(0.0, 75.0), (110.0, 112.5), (112.0, None)], start=1):
        weights = {"title": 0.25, "subtitle": 0.75, "video": None}
        name = str(FOLDER / FILM)
        span = {"start": start, "stop": stop, "rank": rank, "weights": weights}
        hits.append({"path": name, "clip_id": f"{name}#t={start},{stop}", **span})
    found = answer_of({"text": "?", "file": FILM, "chapter": "The storm"}, hits, FOLDER)
    assert (found.rank, found.by, found.first) == (3, "subtitle", f"{FILM}#t=0.0,75.0")
    assert answer_of({"text": "?", "file": "talks/a1.mp4"}, hits, FOLDER).rank is None


RESULTS = Path(__file__).resolve().parents[2] / "evidence" / "archive" / "results"
WITH = {"nothing else": "README.md", "`--read-text`": "read_text.md"}


def answers_in(name):
    """The answers of a shipped table, as `python -m evidence archive` printed them."""
    answers = []
    for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()[2:]:
        if line.startswith("|"):
            text, target, rank, by, first = (cell.strip() for cell in line.strip("|").split("|"))
            answers.append(RankedAnswer(text, target, None if rank == "-" else int(rank), by or None, first))
    return answers


@pytest.mark.parametrize("name", WITH.values())
def test_shipped_answers_are_to_all_questions_and_give_their_last_line(name):
    answers = answers_in(name)
    assert [answer.question for answer in answers] == [asked["text"] for asked in read_contents()["questions"]]
    assert lines_of(answers)[-1] == (RESULTS / name).read_text(encoding="utf-8").splitlines()[-1]


def test_pages_say_what_the_shipped_answers_say():
    """Wherever a page has the table of what is found, or the sentence on what found it."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (RESULTS.parents[2] / "docs").glob("*.md"))
    for title, name in WITH.items():
        counts = re.findall(r"\d+\.?\d*", lines_of(answers_in(name))[-1].replace("of 33", ""))
        for row in re.findall(rf"^\| {title} \|(.*)\|$", pages, re.MULTILINE):
            assert [cell.strip() for cell in row.split("|")] == counts
    by = [answer.by for answer in answers_in("README.md") if answer.rank == 1]
    expected = [str(len(by)), *(str(by.count(modality)) for modality in ("title", "subtitle", "video"))]
    said = r"(\d+) clips that come first, (\d+) are found by title, (\d+) by subtitle and (\d+) by picture"
    for numbers in re.findall(said, " ".join(pages.split())):
        assert list(numbers) == expected


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
