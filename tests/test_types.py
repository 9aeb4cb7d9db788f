"""Editors and type checkers know every public name, and what a program makes with them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scalar_retrieval

pytestmark = pytest.mark.e2e

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.py"))
UNKNOWN = re.compile(r"\b(Any|Unknown)\b")
ARRAY = "ndarray[tuple[Any, ...], dtype[Any]]"  # NumPy's own, of any shape and dtype


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the type checker says of the sessions, and of the types of all names."""
    folder = tmp_path_factory.mktemp("types")
    names = ", ".join(scalar_retrieval.__all__)
    revealed = "".join(f"reveal_type({name})\n" for name in scalar_retrieval.__all__)
    (folder / "names.py").write_text(f"from scalar_retrieval import {names}\n{revealed}")
    for session in SESSIONS:
        code = session.read_text(encoding="utf-8")
        revealed = "".join(f"reveal_type({name})\n" for name in re.findall(r"^(\w+) = ", code, re.MULTILINE))
        (folder / session.name).write_text(code + revealed)
    # As an editor sees them, in a folder of a user's with this environment
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["generalDiagnostics"]


def test_programs_have_no_errors_of_types(found):
    errors = [f"{Path(each['file']).name}: {each['message']}" for each in found if each["severity"] != "information"]
    assert not errors, "\n".join(errors)


def test_every_type_is_known(found):
    revealed = [each["message"] for each in found if each["message"].startswith("Type of")]
    assert len(revealed) > len(scalar_retrieval.__all__) + 10
    unknown = [message for message in revealed if UNKNOWN.search(message.replace(ARRAY, ""))]
    assert not unknown, "\n".join(unknown)
