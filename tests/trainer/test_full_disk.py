"""A disk that is full while training is prepared: the older state is whole, and the same command goes on."""

import pytest

from tests.disks import small_disk

pytestmark = pytest.mark.slow


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_features_go_on_where_the_disk_was_full(commands, tiny_run, tmp_path):
    command = ["-m", "trainer.cache_features", "--model", tiny_run.folder / "model", "--benchmark", "miniature"]
    command += ["--root", tiny_run.folder / "data", "--views", "2", "--batch-size", "3"]
    whole = commands.run(*command, "--output", tmp_path / "whole", timeout=60)
    assert whole.code == 0, whole.stderr
    pages = -(-(tmp_path / "whole" / "features.arrow").stat().st_size // 4096)
    with small_disk(tmp_path / "disk", 3 * pages * 4096) as disk:
        # Enough for the table, of which the command asks first, but not for what describes it.
        (disk / "filling").write_bytes(bytes(2 * pages * 4096))
        failed = commands.run(*command, "--output", disk / "features", timeout=60)
        assert failed.code == 1 and "Traceback" not in failed.stderr, failed.stderr
        assert str(disk / "features") in failed.stderr.splitlines()[-1]
        (disk / "filling").unlink()
        again = commands.run(*command, "--output", disk / "features", timeout=60)
        assert again.code == 0, again.stderr
        assert contents(disk / "features") == contents(tmp_path / "whole")


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
