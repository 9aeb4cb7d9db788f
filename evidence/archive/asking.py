"""Indexes the archive, asks the questions, and reports the rank of each answer, by the commands that users type."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.archive.making import CHAPTER_SECONDS, read_contents, write_archive

_FILES = "files"
_GALLERY = "gallery"
_DEPTH = 1000  # hits per question: every clip of the archive


@dataclass(frozen=True)
class RankedAnswer:
    """
    The place of a question's answer among what was found.

    Args:
        question (`str`): its text.
        target (`str`): the file, and the chapter, that answers it.
        rank (`int`, *optional*): the rank of the answer among files, from 1; `None` if it was not found at all.
        by (`str`, *optional*): the modality with the largest weight in the answer.
        first (`str`, *optional*): the clip in the first place.
    """

    question: str
    target: str
    rank: int | None
    by: str | None
    first: str | None


def _run(*arguments: str) -> tuple[str, float]:
    """Run the command `scalar`; returns what it prints and the seconds of processor that it took."""
    # The processor time of children, which this process waits for.
    before = os.times()
    command = [sys.executable, "-m", "scalar_retrieval.commands.scalar", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    after = os.times()
    if done.returncode not in (0, 1):  # 1: some files cannot be read
        raise RuntimeError(f"`scalar {' '.join(arguments)}` ended with code {done.returncode}.")
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, seconds


def _is_answer(question: Mapping[str, Any], hit: Mapping[str, Any], folder: Path) -> bool:
    """Whether a hit is the file that answers a question, and for a chapter, whether its middle is in the hit."""
    if Path(hit["path"]) != folder / question["file"]:
        return False
    if "chapter" not in question:
        return True
    if hit["start"] is None:
        return False  # the whole film
    # The last window has no end.
    (film,) = (item for item in read_contents()["files"] if item["path"] == question["file"])
    titles = [chapter["title"] for chapter in film["chapters"]]
    middle = CHAPTER_SECONDS * (titles.index(question["chapter"]) + 0.5)
    return hit["start"] <= middle and (hit["stop"] is None or middle < hit["stop"])


def answer_of(question: Mapping[str, Any], hits: Sequence[Mapping[str, Any]], folder: Path) -> RankedAnswer:
    """Find the answer to a question among its hits, as `scalar query --json` prints them."""
    target = question["file"]
    if "chapter" in question:
        target += f" ({question['chapter']})"
    first = None
    if hits:
        first = os.path.relpath(hits[0]["clip_id"], folder)
    for hit in hits:
        if _is_answer(question, hit, folder):
            by = max(hit["weights"], key=lambda name: hit["weights"][name] or 0.0)
            return RankedAnswer(question["text"], target, hit["rank"], by, first)
    return RankedAnswer(question["text"], target, None, None, first)


def lines_of(answers: Sequence[RankedAnswer]) -> list[str]:
    """The answers as a table in Markdown, with R@1, R@5 and the mean reciprocal rank below it."""
    lines = ["| question | answer | rank | found by | first |", "|---|---|---|---|---|"]
    ranks = []
    for answer in answers:
        ranks.append(answer.rank or math.inf)
        first = answer.first
        if answer.rank == 1:
            first = ""  # the answer itself
        lines.append(f"| {answer.question} | {answer.target} | {answer.rank or '-'} | {answer.by or ''} | {first} |")

    # An answer that was not found has the reciprocal rank 0.
    num_early = sum(rank <= 5 for rank in ranks)
    reciprocal = sum(1 / rank for rank in ranks) / len(ranks)
    lines += ["", f"first: {ranks.count(1)} of {len(ranks)}; in the first five: {num_early}; MRR {reciprocal:.2f}"]
    return lines


def ask_archive(
    output: Path, videos: Path | None = None, options: Sequence[str] = (), print_line: Any = print
) -> list[RankedAnswer]:
    """
    Make the archive, unless it is there, index it, and ask.

    Args:
        output (`Path`): a folder for the files and the gallery; both are kept.
        videos (`Path`, *optional*): the folder with the clips that a person filmed; without it, their questions are
            left out.
        options (list of `str`): further options of `scalar index`, such as `--read-text`.
        print_line: prints a line.
    """
    output = output.absolute()
    folder = output / _FILES
    gallery = output / _GALLERY
    if not folder.exists():
        num_files = len(list(write_archive(folder, videos)))
        print_line(f"Wrote {num_files} files to {folder}.")
    # Index it by the command, as a user would.
    began = time.monotonic()
    report, seconds = _run("index", str(folder), "--output", str(gallery), *options)
    for line in report.splitlines():
        print_line(line)
    print_line(f"Indexed in {time.monotonic() - began:.0f} s, {seconds:.0f} s of processor time.")

    # The questions whose answers were written, all at once.
    questions = []
    for question in read_contents()["questions"]:
        if (folder / question["file"]).exists():
            questions.append(question)
    texts = [question["text"] for question in questions]
    found, seconds = _run("query", str(gallery), *texts, "--json", "-k", str(_DEPTH))
    print_line(f"Asked {len(texts)} questions in {seconds:.1f} s of processor time.")
    answers = []
    for question, answer in zip(questions, json.loads(found), strict=True):
        answers.append(answer_of(question, answer["hits"], folder))
    return answers


__all__ = ["RankedAnswer", "answer_of", "ask_archive", "lines_of"]
