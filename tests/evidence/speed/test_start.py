"""The measurement of commands that need no model: what it runs, not how fast."""

from contextlib import nullcontext

import pytest

from evidence.speed import start
from evidence.speed.settings import StartConfig


@pytest.fixture
def quick(monkeypatch):
    """Without files and service."""
    monkeypatch.setattr(start, "_prepare", lambda place, *_: place.mkdir())
    monkeypatch.setattr(start, "_serving", lambda _: nullcontext("http://127.0.0.1:9"))


def test_every_command_has_a_row_with_the_seconds_of_both_checkouts(quick, monkeypatch, capsys):
    monkeypatch.setattr(start, "COMMANDS", [("help", "--help", 0), ("service", "query URL 'a dog'", 1)])
    start.main(StartConfig(files=1, repeats=1, before=start._ROOT))
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("1 files, fastest of 1") and head.split() == ["now", "before"]
    assert [row[:76].rstrip() for row in rows] == [
        "help         scalar --help",
        "service      scalar query URL 'a dog'",
    ]
    for row in rows:
        seconds = list(map(float, row[76:].split()))
        assert len(seconds) == 4 and min(seconds) > 0


def test_a_command_that_ends_otherwise_than_expected_is_an_error(quick, monkeypatch):
    monkeypatch.setattr(start, "COMMANDS", [("missing", "info nowhere", 0)])
    with pytest.raises(ValueError, match="`scalar info nowhere` must end with 0, got 1: .*no gallery in 'nowhere'"):
        start.main(StartConfig(files=1, repeats=1))
