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
        self._folder, self._count, self._results, self._started = folder, 0, {}, None
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }  # fmt: skip
        requests, answers = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(requests[0]), str(answers[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT,
            pass_fds=(requests[0], answers[1]),
        )  # fmt: skip
        os.close(requests[0])
        os.close(answers[1])
        here = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ends = {False: here, True: (requests[1], answers[0])}  # by whether it cannot find the project
        self._buffers = dict.fromkeys((here[1], answers[0]), b"")

    def close(self) -> None:
        """End the processes that have imported everything, and what they still run."""
        # By an empty line: a process that a test has forked may hold the pipes open.
        for requests, _ in self._ends.values():
            os.write(requests, b"\n")
        for end in self._ends[True]:
            os.close(end)
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _read(self, timeout: float) -> bool:
        """Read what either process tells; False if nothing comes in time."""
        ready = select.select(list(self._buffers), [], [], timeout)[0]
        for end in ready:
            more = os.read(end, 65536)
            assert more, "the process of the commands has ended"
            *lines, self._buffers[end] = (self._buffers[end] + more).split(b"\n")
            for message in map(json.loads, lines):
                if "started" in message:
                    self._started = message["started"]
                    self._results.pop(self._started, None)  # of an earlier process with the same number
                else:
                    self._results[message["pid"]] = (message["code"], message["peak"])
        return bool(ready)

    def _ended(self, pid: int, timeout: float) -> tuple[int, int] | None:
        stop = time.monotonic() + timeout
        while pid not in self._results:
            if not self._read(max(0, stop - time.monotonic())):
                return None
        return self._results[pid]

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
            argv: `"-m", "scalar_retrieval.search", "query", ...`, or `"train.py", ...`: what follows `python`. Names
            with a leading
                `-m` are modules, others are scripts of this repository.
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
        self._started = None
        os.write(self._ends[is_elsewhere][0], json.dumps(request).encode() + b"\n")
        while self._started is None:
            assert self._read(120), "the process of the commands does not answer"
        return Running(self, self._started, output, argv)

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
    buffer, running, is_open = b"", set(), True

    def tell(**message: object) -> None:
        os.write(answers, json.dumps(message).encode() + b"\n")

    while is_open or running:
        if is_open and select.select([requests], [], [], 0.005 if running else None)[0]:
            more = os.read(requests, 65536)
            is_open = bool(more)
            *lines, buffer = (buffer + more).split(b"\n")
            for line in lines:
                if not line:
                    is_open = False
                    break
                pid = os.fork()
                if not pid:
                    os.close(requests)
                    os.close(answers)
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


def _main() -> dict | None:
    """Import the libraries, part from the process that cannot find the project, and import the project; then serve."""
    import gc
    from importlib import import_module

    gc.disable()  # importing leaves no garbage
    here, elsewhere = (os.dup(0), os.dup(1)), tuple(map(int, sys.argv[1:]))
    os.dup2(2, 1)  # nothing that a library prints may come between the messages
    sys.path[:2] = [os.devnull]  # the place of the folder of what runs; that of PYTHONPATH comes later
    for name in _LIBRARIES:
        import_module(name)
    is_elsewhere = not os.fork()
    ends, others = (elsewhere, here) if is_elsewhere else (here, elsewhere)
    for end in others:
        os.close(end)
    if is_elsewhere:
        del os.environ["PYTHONPATH"]
        sys.path[:] = [place for place in sys.path if not os.path.isdir(os.path.join(place, "scalar_retrieval"))]
    else:
        sys.path[:1] = [str(ROOT)] * 2
        for name in (*_IMPORTED, *(f"scalar_retrieval.{name}" for name in _OURS)):
            import_module(name)
    gc.freeze()  # so that collecting does not copy the shared pages
    gc.enable()
    return _serve(*ends)


if __name__ == "__main__":
    command = _main()
    if command is not None:
        _become(command)
