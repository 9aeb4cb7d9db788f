"""Media that people have and programs read wrongly: the small cases after public bug reports, made and checked."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")
def test_the_cases_of_public_bug_reports_are_read_rightly(shared_dir):
    scripts = shared_dir / "cases"
    if not scripts.is_dir():
        pytest.skip(f"no cases at {scripts}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        # As root, the check looks into a folder as another user, who must be able to reach it.
        os.chmod(place, 0o755)
        folder = f"{place}/cases"
        subprocess.run([sys.executable, scripts / "make_media.py", folder], check=True, timeout=300)
        # Each line is a file; its last word says whether it is read as it must be.
        check = [sys.executable, scripts / "check_cases.py", folder]
        checked = subprocess.run(check, stdout=subprocess.PIPE, text=True, timeout=300)
    lines = [line for line in checked.stdout.splitlines() if line.endswith(("OK", "FALSE"))]
    wrong = [line for line in lines if line.endswith("FALSE")]
    assert len(lines) >= 79 and wrong == []
