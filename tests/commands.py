"""Run the project's commands in forked children of a process that has imported everything, each in milliseconds.

A child is a process of its own with real exit code, output, signals and memory; only the imports are shared. What a
command leaves running is killed with it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_IMPORTED = (
    "torch transformers peft accelerate datasets pyarrow typer tqdm yaml sklearn matplotlib eval.run eval.source "
    "eval.embedding.embed_benchmark eval.reports.report search.indexing gallery.gallery modeling_scalar "
    "modeling_scalar.loading trainer.scalar_trainer trainer.recipe trainer.features trainer.building "
    "trainer.record trainer.run trainer.semantic_targets hub_cards.hub.publishing"
).split()


@dataclass(frozen=True)
class Outcome:
    """How a command ended; `code` is negative for a signal that killed it, `peak` the bytes of its largest process."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    peak: int


class Running:
    """A command that was started; `pid` is its process and the number of its process group."""

    def __init__(self, commands: "Commands", pid: int, output: Path, argv: list[str]):
        self._commands, self.pid, self._output, self._argv = commands, pid, output, argv
        self._started = time.monotonic()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and to what it has started, unless it has ended."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def printed(self, stream: str = "stdout") -> str:
        """What it has printed until now."""
        return (self._output / stream).read_text(errors="backslashreplace")

    def wait(self, timeout: float = 20) -> Outcome:
        """Wait for the end; an AssertionError, and no process left, if it does not come in time (seconds)."""
        ended = self._commands._ended(self.pid, timeout)
        if ended is None:
            self.kill()
            self._commands._ended(self.pid, 10)
        code, peak = ended or (None, 0)
        texts = [self.printed(name) for name in ("stdout", "stderr")]
        assert ended, f"{self._argv} does not end within {timeout} s:\n{texts[0][-2000:]}\n{texts[1][-2000:]}"
        return Outcome(code, *texts, time.monotonic() - self._started, peak)


class Commands:
    """
    Start commands; to be closed.

    Args:
        folder (`Path`): a temporary one for what commands print.
    """

    def __init__(self, folder: Path):
        self._folder, self._count, self._results = folder, 0, {}
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT
        )
        self._buffer = b""

    def close(self) -> None:
        """End the process that has imported everything, and what it still runs."""
        self._process.stdin.close()
        self._process.wait(10)

    def _read(self, timeout: float) -> bool:
        """Read one message; False if none comes in time."""
        stop = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = stop - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return False
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, "the process of the commands has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        if "started" in message:
            self._started = message["started"]
            self._results.pop(self._started, None)  # of an earlier process with the same number
        else:
            self._results[message["pid"]] = (message["code"], message["peak"])
        return True

    def _ended(self, pid: int, timeout: float) -> tuple[int, int] | None:
        stop = time.monotonic() + timeout
        while pid not in self._results:
            if not self._read(max(0, stop - time.monotonic())):
                return None
        return self._results[pid]

    def start(self, *argv: object, cwd: Path | None = None, env: dict[str, str | None] | None = None) -> Running:
        """
        Start a command.

        Args:
            argv: `"-m", "search", "query", ...`, or `"train.py", ...`: what follows `python`. Names with a leading
                `-m` are modules, others are scripts of this repository.
            cwd (`Path`, *optional*): its working folder.
            env (`dict`, *optional*): variables to set, or to unset where None.
        """
        self._count += 1
        output = self._folder / str(self._count)
        output.mkdir(parents=True)
        for name in ("stdout", "stderr"):
            (output / name).touch()
        argv = [os.fsdecode(part) if isinstance(part, bytes | os.PathLike) else str(part) for part in argv]
        request = {"argv": argv, "cwd": str(cwd or self._folder), "env": env or {}, "output": str(output)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self._started = None
        while self._started is None:
            assert self._read(120), "the process of the commands does not answer"
        return Running(self, self._started, output, argv)

    def run(self, *argv: object, timeout: float = 20, **options: object) -> Outcome:
        """Start a command and wait for its end; see [`Commands.start`] and [`Running.wait`]."""
        return self.start(*argv, **options).wait(timeout)


# The process that has imported everything ---------------------------------------------------------------------------


def _become(request: dict) -> None:
    """In the child: be the command."""
    import runpy

    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    for name, value in request["env"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(os.path.join(request["output"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    # As for a process that was started: a non-interactive shell's background jobs would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *rest = request["argv"]
    if first == "-m":
        sys.argv = rest
        sys.path[0] = request["cwd"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        path = os.path.join(ROOT, first)
        sys.argv = [path, *rest]
        sys.path[0] = os.path.dirname(path)
        runpy.run_path(path, run_name="__main__")


def _serve() -> dict | None:
    """Start commands as asked for; a child returns what it is to be, the server returns None at its end."""
    import gc
    from importlib import import_module

    out = os.dup(1)  # nothing that a library prints may come between the messages
    os.dup2(2, 1)
    sys.path[0] = str(ROOT)
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()  # so that collecting does not copy the shared pages
    buffer, running, is_open = b"", set(), True

    def tell(**message: object) -> None:
        os.write(out, json.dumps(message).encode() + b"\n")

    while is_open or running:
        if is_open and select.select([0], [], [], 0.005 if running else None)[0]:
            more = os.read(0, 65536)
            is_open = bool(more)
            buffer += more
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                pid = os.fork()
                if not pid:
                    os.close(out)
                    return json.loads(line)
                try:
                    os.setpgid(pid, pid)  # in both, for either may come first
                except OSError:
                    pass
                running.add(pid)
                tell(started=pid)
        elif not is_open:
            for pid in running:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.005)
        while running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            running.discard(pid)
            tell(pid=pid, code=os.waitstatus_to_exitcode(status), peak=usage.ru_maxrss * 1024)
    return None


if __name__ == "__main__":
    command = _serve()
    if command is not None:
        _become(command)
