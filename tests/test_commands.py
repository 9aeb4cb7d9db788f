import errno

import pytest
import torch

from scalar_retrieval.commands.errors import FAULT, error_text, user_errors
from scalar_retrieval.commands.texts import plain


@pytest.mark.parametrize("error", [ValueError("no"), OSError("no"), ImportError("no"), torch.OutOfMemoryError("no")])
def test_what_a_user_can_mend_is_one_line(error, capsys):
    with pytest.raises(SystemExit) as ended, user_errors():
        raise error
    printed = capsys.readouterr().err
    assert ended.value.code == 1
    assert printed.startswith("Error: ") and "no" in printed and printed.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback_and_asks_to_report_it(capsys):
    with pytest.raises(SystemExit) as ended, user_errors():
        raise KeyError("clip")
    printed = capsys.readouterr().err
    assert ended.value.code == FAULT
    assert "Traceback" in printed and printed.endswith(
        "This is a bug in the program. Please report it with the command and the lines above.\n"
    )


def test_an_interrupt_is_reported_in_a_word(capsys):
    with pytest.raises(SystemExit) as ended, user_errors():
        raise KeyboardInterrupt("Nothing was sent.")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted. Nothing was sent.\n"


def test_a_traceback_of_an_expected_error_is_shown_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("SCALAR_TRACEBACK", "1")
    with pytest.raises(SystemExit), user_errors():
        raise ValueError("no")
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_reported_with_the_file_and_what_helps():
    reported = error_text(OSError(errno.ENOSPC, "No space left on device", "/somewhere/gallery.json"))
    assert "disk is full" in reported and "/somewhere/gallery.json" in reported and "Free some space" in reported


def test_what_a_terminal_could_obey_is_escaped():
    assert plain("a\x1b[31mb\n\u202ec", "utf-8") == "a\\x1b[31mb\\n\\u202ec"
    assert plain("é", "ascii") == "\\xe9"
