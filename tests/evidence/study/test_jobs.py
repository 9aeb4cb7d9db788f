"""Tasks of several commands: what is left to do, how many run at a time, what happens when one fails or is stopped."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evidence.study.jobs import Stage, Task, execute

ROOT = Path(__file__).resolve().parents[3]


def python(script):
    return (sys.executable, "-c", script)


def writes(path):
    return python(f"open({str(path)!r}, 'w').write('x')")


def task(folder, *commands):
    """A task whose stages end with files named after their number; None stands for a command that writes its file."""
    stages = []
    for number, command in enumerate(commands):
        end = folder / f"{number}.done"
        stages.append(Stage(f"stage{number}", command or writes(end), end))
    return Task(folder.name, folder, tuple(stages))


def test_stages_follow_each_other_and_finished_ones_are_left_alone(tmp_path):
    tasks = [task(tmp_path / name, None, None) for name in ("done", "begun", "new")]
    for folder, files in ((tasks[0].folder, (0, 1)), (tasks[1].folder, (0,))):
        folder.mkdir()
        for number in files:
            (folder / f"{number}.done").write_text("before")
    assert [found.next and found.next.name for found in tasks] == [None, "stage1", "stage0"]
    assert execute(tasks, 1) == {}
    assert all(found.next is None for found in tasks)
    texts = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.glob("*/*.done")}
    assert texts == {
        "done/0.done": "before", "done/1.done": "before", "begun/0.done": "before", "begun/1.done": "x",
        "new/0.done": "x", "new/1.done": "x",
    }  # fmt: skip


def test_no_more_tasks_at_a_time_than_jobs(tmp_path):
    log = tmp_path / "log"
    script = (
        "import time\nopen({log!r}, 'a').write('+')\ntime.sleep(0.5)\nopen({log!r}, 'a').write('-')\n"
        "open({end!r}, 'w')"
    )
    tasks = []
    for number in range(4):
        folder = tmp_path / str(number)
        tasks.append(task(folder, python(script.format(log=str(log), end=str(folder / "0.done")))))
    assert execute(tasks, 2) == {}
    marks = log.read_text()
    counts = [marks[: i + 1].count("+") - marks[: i + 1].count("-") for i in range(len(marks))]
    assert len(marks) == 8 and max(counts) == 2


def test_a_failing_task_is_reported_with_its_error_and_the_others_go_on(tmp_path):
    fails = task(tmp_path / "fails", python("raise ValueError('the disk is full')"))
    silent = task(tmp_path / "silent", python("pass"), None)
    works = task(tmp_path / "works", None)
    failures = execute([fails, silent, works], jobs=2)
    assert failures == {
        fails: f"ValueError: the disk is full ({fails.folder / 'stage0.log'})",
        silent: f"nothing was logged ({silent.folder / 'stage0.log'})",
    }
    assert works.next is None


@pytest.mark.slow
def test_interruption_reaches_the_training_below_the_launcher_and_waits_for_its_checkpoint(tmp_path):
    """As accelerate does: a launcher that ends at once, and a training that saves first."""
    training = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1)\n    open(sys.argv[1] + '/saved', 'w')\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, save)\nopen(sys.argv[1] + '/ready', 'w')\ntime.sleep(60)"
    )
    launcher = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]]).wait()"
    script = (
        "import sys\nfrom pathlib import Path\nfrom types import SimpleNamespace\n"
        "from evidence.settings import StudyConfig\nfrom evidence.study import whole\n"
        "from evidence.study.jobs import Stage, Task, execute\n"
        f"def tasks():\n    for folder in map(Path, {[str(tmp_path / name) for name in 'ab']!r}):\n"
        f"        command = (sys.executable, '-c', {launcher!r}, str(folder), {training!r})\n"
        "        yield Task(folder.name, folder, (Stage('train', command, folder / 'end'),))\n"
        "whole._Study = lambda *_: SimpleNamespace(work=lambda: execute(list(tasks()), 2))\n"
        "from scalar_retrieval.commands.errors import run_command; run_command(lambda: whole.run_study(StudyConfig()))"
    )
    process = subprocess.Popen(python(script), stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 60
    while not all((tmp_path / name / "ready").is_file() for name in "ab") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.strip().endswith("Interrupted. The same command continues.")
    assert all((tmp_path / name / "saved").is_file() for name in "ab")
