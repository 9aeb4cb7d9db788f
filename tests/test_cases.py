"""Media that people have and programs read wrongly: the small cases after public bug reports, made and checked."""

import os
import shutil
import subprocess
import sys
import tempfile

import pytest


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")
def test_the_cases_of_public_bug_reports_are_read_rightly(shared_dir, commands, monkeypatch, capsys):
    scripts = shared_dir / "cases"
    if not scripts.is_dir():
        pytest.skip(f"no cases at {scripts}")
    monkeypatch.syspath_prepend(scripts)
    import check_cases

    def scalar(product, *arguments):
        outcome = commands.run("-m", "scalar_retrieval.search", *arguments, timeout=300)
        return outcome.stdout + outcome.stderr

    # The script in this process, and its commands in those that have imported everything
    monkeypatch.setattr(check_cases.Product, "scalar", scalar)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        # As root, the check looks into a folder as another user, who must be able to reach it.
        os.chmod(place, 0o755)
        folder = f"{place}/cases"
        subprocess.run([sys.executable, scripts / "make_media.py", folder], check=True, timeout=300)
        monkeypatch.setattr(sys, "argv", ["check_cases.py", folder])
        check_cases.main()
    # Each line is a file; its last word says whether it is read as it must be.
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(("OK", "FALSE"))]
    wrong = [line for line in lines if line.endswith("FALSE")]
    assert len(lines) >= 79 and wrong == []
