"""A disk that is full while semantic targets are made: the older ones are whole, and the same command goes on."""

import pytest

from tests.disks import small_disk

pytestmark = pytest.mark.slow


def test_targets_that_do_not_fit_leave_the_older_ones(commands, tiny_run, tmp_path):
    command = ["-m", "trainer.semantic_targets", "--benchmark", "miniature", "--root", tiny_run.folder / "data"]
    command += ["--encoder", "light"]
    with small_disk(tmp_path / "disk", 64 * 4096) as disk:
        output = disk / "targets.safetensors"
        made = commands.run(*command, "--neighbors", "2", "--output", output, timeout=60)
        assert made.code == 0, made.stderr
        before = output.read_bytes()
        with open(disk / "filling", "wb", buffering=0) as filling:
            try:
                while filling.write(bytes(4096)):
                    pass
            except OSError:
                pass
        failed = commands.run(*command, "--neighbors", "8", "--output", output, timeout=60)
        assert failed.code == 1 and "Traceback" not in failed.stderr, failed.stderr
        assert "targets.safetensors" in failed.stderr.splitlines()[-1]
        assert output.read_bytes() == before and len(list(disk.iterdir())) == 2
        (disk / "filling").unlink()
        assert commands.run(*command, "--neighbors", "8", "--output", output, timeout=60).code == 0
        assert output.read_bytes() != before
