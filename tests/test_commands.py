import errno

import pytest
import torch

from scalar_retrieval.commands.errors import FAULT, error_text, user_errors
from scalar_retrieval.commands.texts import plain


def reported(error, capsys):
    """The exit code and what is printed of an error."""
    with pytest.raises(SystemExit) as ended, user_errors():
        raise error
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("no"), OSError("no"), ImportError("no"), torch.OutOfMemoryError("no")])
def test_what_a_user_can_mend_is_one_line_and_a_traceback_is_shown_on_demand(error, capsys, monkeypatch):
    code, printed = reported(error, capsys)
    assert code == 1 and printed.startswith("Error: ") and "no" in printed and printed.count("\n") == 1
    monkeypatch.setenv("SCALAR_TRACEBACK", "1")
    assert "Traceback" in reported(error, capsys)[1]


def test_a_fault_of_ours_keeps_its_traceback_and_asks_to_report_it(capsys):
    code, printed = reported(KeyError("clip"), capsys)
    assert code == FAULT and "Traceback" in printed and "Please report it" in printed


def test_an_interrupt_is_reported_in_a_word(capsys):
    assert reported(KeyboardInterrupt("Nothing was sent."), capsys) == (130, "Interrupted. Nothing was sent.\n")


def test_a_full_disk_is_reported_with_the_file_and_what_helps():
    reported = error_text(OSError(errno.ENOSPC, "No space left on device", "/somewhere/gallery.json"))
    assert "disk is full" in reported and "/somewhere/gallery.json" in reported and "Free some space" in reported


def test_what_a_terminal_could_obey_is_escaped():
    assert plain("a\x1b[31mb\n\u202ec", "utf-8") == "a\\x1b[31mb\\n\\u202ec"
    assert plain("é", "ascii") == "\\xe9"
