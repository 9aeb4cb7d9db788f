"""The service is started again where the system ends it, and ends on request."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gallery.gallery import verify_gallery
from search.__main__ import app
from search.service import keeper
from search.service.server import listen
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav
from tests.search.serving import write_gallery

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
import os, signal, socket, sys, time
from pathlib import Path
from search.service import keeper
keeper._PAUSE = 0.05
starts, listener = Path("starts"), socket.socket(fileno=int(sys.argv[1]))
keeper.keep_running("videos")
with starts.open("a") as file:
    print(os.getpid(), file=file, flush=True)
number = len(starts.read_text().split())
"""


@pytest.fixture
def start(tmp_path):
    """Starts a program that is kept running; its children add their numbers to the file `starts`."""
    started = []

    def start(program, listener):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", BEGIN + textwrap.dedent(program), str(listener.fileno())],
                pass_fds=[listener.fileno()], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def children(place, count):
    """The numbers of the children, once there are so many."""
    stop = time.monotonic() + 20
    while len(found := (place / "starts").read_text().split() if (place / "starts").exists() else []) < count:
        assert time.monotonic() < stop
        time.sleep(0.01)
    return list(map(int, found))


def is_gone(pid):
    stop = time.monotonic() + 20
    while time.monotonic() < stop:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


ANSWER_THE_THIRD_TIME = """
if number == 1:
    connection, _ = listener.accept()
    os.kill(os.getpid(), signal.SIGBUS)
if number == 2:
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
connection, _ = listener.accept()
connection.sendall(b"here")
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_is_killed_is_started_again_and_refuses_nobody(start, tmp_path, number):
    with closing(listen("127.0.0.1", 0)) as listener:
        process = start(ANSWER_THE_THIRD_TIME, listener)
        first, second = (socket.create_connection(listener.getsockname()) for _ in range(2))
        with first, second:
            second.settimeout(20)
            assert second.recv(10) == b"here"
        process.send_signal(number)  # to the parent alone
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and is_gone(children(tmp_path, 3)[2])
    assert "ended by SIGBUS; restarting it. Probably a file of videos was modified in place" in errors
    assert "`scalar verify videos` names it" in errors and "could not start" in errors and "Traceback" not in errors


def test_a_service_that_is_killed_again_and_again_is_given_up(start, tmp_path):
    with closing(listen("127.0.0.1", 0)) as listener:
        process = start("os.kill(os.getpid(), signal.SIGKILL)", listener)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 1 and len(children(tmp_path, 5)) == 5
    assert errors.count("ended by SIGKILL; restarting it") == 4
    assert "ended 5 times within 10 minutes" in errors and "`scalar verify videos`" in errors


def test_a_service_that_cannot_start_the_first_time_is_not_tried_again(start, tmp_path):
    with closing(listen("127.0.0.1", 0)) as listener:
        process = start("sys.exit(3)", listener)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors, len(children(tmp_path, 1))) == (3, "", 1)


def test_a_service_ends_with_the_process_that_keeps_it(start, tmp_path):
    with closing(listen("127.0.0.1", 0)) as listener:
        process = start("time.sleep(60)", listener)
        (child,) = children(tmp_path, 1)
        process.kill()
        assert is_gone(child)


def test_nobody_asks_for_an_accelerator_before_the_service_has_its_process(tmp_path, monkeypatch):
    """A process that has asked for one cannot pass it on to a child."""

    class KeptError(Exception):
        pass

    def keep(_):
        raise KeptError

    write_gallery(tmp_path)
    for name in ("torch.accelerator.is_available", "torch.cuda.is_available", "torch.cuda.device_count"):
        monkeypatch.setattr(name, lambda: pytest.fail("asked"))
    monkeypatch.setattr(keeper, "keep_running", keep)
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "gallery"), "--port", "0", "--allow-uploads"])
    assert isinstance(result.exception.__context__ or result.exception, KeptError), result.output


@pytest.mark.slow
def test_a_gallery_that_is_changed_in_place_ends_no_service(commands, tmp_path):
    encoder = write_joint_encoder(tmp_path / "encoder")
    for number in range(40):
        (tmp_path / f"{number}.wav").write_bytes(wav(tone(4_000 + number)))
    gallery = tmp_path / "gallery"
    indexed = CliRunner().invoke(app, ["index", str(tmp_path), "--model", str(encoder), "--output", str(gallery)])
    assert indexed.exit_code == 0, indexed.output
    running = commands.start("-m", "search", "serve", gallery, "--port", 0, "--device", "cpu")

    def printed(pattern, stream="stdout", seconds=60):
        stop = time.monotonic() + seconds
        while not (found := re.search(pattern, running.printed(stream))):
            assert time.monotonic() < stop, running.printed("stderr")
            time.sleep(0.05)
        return found

    address = printed(r"Serving 40 clips at (http://127\.0\.0\.1:\d+/)")[1]

    def ask():
        request = urllib.request.Request(
            f"{address}api/search", b'{"query": "a dog"}', {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    shard = max((gallery / "clips").glob("*.arrow"), key=lambda path: path.stat().st_size)
    whole = shard.read_bytes()
    assert b'"hits":[{' in ask()
    os.truncate(shard, 0)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        ask()
    printed("ended by SIGBUS; restarting it", "stderr")
    with pytest.raises(ValueError, match=re.escape(str(shard))):
        verify_gallery(gallery)
    printed("could not start", "stderr")
    shard.write_bytes(whole)
    assert b'"hits":[{' in ask()  # it waited for the service
    running.kill(signal.SIGINT)
    outcome = running.wait()
    assert outcome.code == 0 and "Traceback" not in outcome.stderr and "Interrupted" not in outcome.stderr
