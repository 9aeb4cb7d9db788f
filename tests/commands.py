"""Run the project's commands in forked children of a process that has imported everything, each in milliseconds.

A child is a process of its own with real exit code, output, signals and memory; only the imports are shared. What a
command leaves running is killed with it. Programs that must not find this project are children of another process,
which has imported nothing of it, and cannot.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LIBRARIES = (
    "torch datasets evaluate transformers.models.auto.processing_auto transformers.models.bert.modeling_bert".split()
)
_IMPORTED = "peft accelerate datasets pyarrow typer tqdm yaml sklearn matplotlib evidence.miniature.benchmark".split()
_OURS = (
    "eval.measuring eval.source eval.embedding.embed_benchmark eval.reports.report search.indexing gallery.gallery "
    "modeling_scalar.loading trainer.scalar_trainer trainer.recipe trainer.cache_features trainer.run "
    "trainer.semantic_targets hub_cards.publishing"
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
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def printed(self, stream: str = "stdout") -> str:
        """What it has printed until now."""
        return (self._output / stream).read_text(errors="backslashreplace")

    def wait(self, timeout: float = 20) -> Outcome:
        """Wait for the end; an AssertionError, and no process left, if it does not come in time (seconds)."""
        ended = self._commands._ended(self.pid, timeout)
        if not ended:
            self.kill()
            self._commands._ended(self.pid, 10)
        texts = [self.printed(name) for name in ("stdout", "stderr")]
        assert ended, f"{self._argv} does not end within {timeout} s:\n{texts[0][-2000:]}\n{texts[1][-2000:]}"
        code, peak = ended
        return Outcome(code, *texts, time.monotonic() - self._started, peak)


class Commands:
    """
    Start commands; to be closed.

    Args:
        folder (`Path`): a temporary one for what commands print.
    """

    def __init__(self, folder: Path):
        self._folder, self._count, self._buffer = folder, 0, b""
        self._outcomes = {}  # code and peak by process; empty while it runs
        self._last = None  # the process that was started last
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }  # fmt: skip
        here, elsewhere, answers = os.pipe(), os.pipe(), os.pipe()
        ends = here[0], elsewhere[0], answers[1]
        command = [sys.executable, __file__, *map(str, ends)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT, pass_fds=ends)
        for end in ends:
            os.close(end)
        self._requests = here[1], elsewhere[1]  # by whether a command cannot find the project
        self._answers = answers[0]

    def close(self) -> None:
        """End the processes that have imported everything, and what they still run."""
        for pid, outcome in self._outcomes.items():
            if not outcome:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        # By an empty line: a process that a test has forked may hold the pipes open.
        for end in self._requests:
            os.write(end, b"\n")
            os.close(end)
        self._process.wait(10)
        os.close(self._answers)

    def _read(self, timeout: float) -> bool:
        """Read what the processes tell; False if nothing comes in time."""
        if not select.select([self._answers], [], [], timeout)[0]:
            return False
        more = os.read(self._answers, 65536)
        assert more, "the processes of the commands have ended"
        *lines, self._buffer = (self._buffer + more).split(b"\n")
        for pid, *outcome in map(json.loads, lines):
            self._outcomes[pid] = outcome
            if not outcome:
                self._last = pid
        return True

    def _ended(self, pid: int, timeout: float) -> list[int]:
        """The code and the peak of a process; nothing if it does not end in time."""
        stop = time.monotonic() + timeout
        while not self._outcomes[pid] and self._read(max(0, stop - time.monotonic())):
            pass
        return self._outcomes[pid]

    def start(
        self,
        *argv: object,
        cwd: Path | None = None,
        env: dict[str, str | None] | None = None,
        is_elsewhere: bool = False,
    ) -> Running:
        """
        Start a command.

        Args:
            argv: `"-m", "scalar_retrieval.search", "query", ...`, or `"train.py", ...`: what follows `python`. After
                `-m` comes a module, otherwise a script of this repository.
            cwd (`Path`, *optional*): its working folder.
            env (`dict`, *optional*): variables to set, or to unset where None.
            is_elsewhere (`bool`): it cannot find this project, and finds the libraries imported.
        """
        self._count += 1
        output = self._folder / str(self._count)
        output.mkdir(parents=True)
        for name in ("stdout", "stderr"):
            (output / name).touch()
        argv = [os.fsdecode(part) if isinstance(part, bytes | os.PathLike) else str(part) for part in argv]
        request = {"argv": argv, "cwd": str(cwd or self._folder), "env": env or {}, "output": str(output)}
        self._last = None
        os.write(self._requests[is_elsewhere], json.dumps(request).encode() + b"\n")
        while self._last is None:
            assert self._read(120), "the process of the commands does not answer"
        return Running(self, self._last, output, argv)

    def run(self, *argv: object, timeout: float = 20, **options: object) -> Outcome:
        """Start a command and wait for its end; see [`Commands.start`] and [`Running.wait`]."""
        return self.start(*argv, **options).wait(timeout)


# The processes that have imported everything -----------------------------------------------------------------------


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


def _serve(requests: int, answers: int) -> dict | None:
    """Start commands as asked for; a child returns what it is to be, the server returns None at its end."""

    def tell(*message: int) -> None:
        os.write(answers, json.dumps(message).encode() + b"\n")

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    for line in os.fdopen(requests):
        if not line.strip():
            break
        if os.fork():
            continue
        # A keeper of one command, which tells how it begins and ends
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if not pid:
            os.close(answers)
            return json.loads(line)
        with suppress(OSError):
            os.setpgid(pid, pid)  # in both, for either may come first
        tell(pid)
        _, status, usage = os.wait4(pid, 0)
        tell(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
        os._exit(0)
    return None


def _main(here: str, elsewhere: str, answers: str) -> dict | None:
    """Import the libraries, part from the process that cannot find the project, and import the project; then serve."""
    import gc
    from importlib import import_module

    gc.disable()  # importing leaves no garbage
    sys.path[:2] = [os.devnull]  # the place of the folder of what runs; that of PYTHONPATH comes later
    for name in _LIBRARIES:
        import_module(name)
    is_elsewhere = not os.fork()
    if is_elsewhere:
        del os.environ["PYTHONPATH"]
        sys.path[:] = [place for place in sys.path if not os.path.isdir(os.path.join(place, "scalar_retrieval"))]
    else:
        sys.path[:1] = [str(ROOT)] * 2
        for name in (*_IMPORTED, *(f"scalar_retrieval.{name}" for name in _OURS)):
            import_module(name)
    gc.freeze()  # so that collecting does not copy the shared pages
    gc.enable()
    return _serve(int(elsewhere if is_elsewhere else here), int(answers))


if __name__ == "__main__":
    command = _main(*sys.argv[1:])
    if command is not None:
        _become(command)
