"""Seconds of commands that need no model: helps, refusals, an index without new files, and a query to a service.

    python -m evidence speed start [--files 1000] [--repeats 5] [--before FOLDER]

Each command is a process of its own, from the start of the interpreter to its end. The files are sounds with a title,
indexed with `light`. The fastest of `--repeats` runs counts, by the clock and by the processor; only the latter is
meaningful if other programs use the machine. `--before` is a checkout of an earlier commit, whose commands take turns
with these. A command that does not end as expected is an error.
"""

import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import wave
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evidence.speed.settings import StartConfig

_ROOT = Path(__file__).parents[2]
_RATE = 16_000

# What is measured: a heading, the command as it is typed, and its exit code; `URL` is the address of a service.
COMMANDS = [
    ("help", "--help", 0),
    ("help", "index --help", 0),
    ("help", "query --help", 0),
    ("help", "train --help", 0),
    ("help", "eval run --help", 0),
    ("help", "publish model --help", 0),
    ("help", "convert-vast --help", 0),
    ("refusal", "query gallery ''", 1),
    ("refusal", "query gallery rain --after yesterday", 1),
    ("refusal", "query gallery rain --modalities sound", 1),
    ("refusal", "index sounds --output gallery --segment 30", 1),
    ("refusal", "index empty --output new", 1),
    ("missing", "query nowhere rain", 1),
    ("missing", "train nowhere.yaml", 1),
    ("missing", "eval run --embeddings nowhere --output out", 1),
    ("missing", "eval calibrate --embeddings nowhere --output out", 1),
    ("missing", "publish gallery nowhere user/name", 1),
    ("nothing new", "index sounds --output gallery", 0),
    ("service", "query URL rain", 0),
]


def _argv(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "scalar_retrieval.commands.scalar", *arguments]


def _environment(checkout: Path, place: Path) -> dict[str, str]:
    """The package of a checkout, compiled once, as it is when it is installed."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _timed(arguments: Sequence[str], code: int, checkout: Path, place: Path) -> tuple[float, float]:
    """Run a command; the seconds that it took, and those of the processor."""
    environment = _environment(checkout, place)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(_argv(arguments), env=environment, cwd=place, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise ValueError(f"`scalar {' '.join(arguments)}` must end with {code}, got {done.returncode}: {done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _prepare(place: Path, num_files: int, checkout: Path) -> None:
    """Make a folder of sounds and its gallery."""
    for name in ("sounds", "empty"):
        (place / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(num_files):
        noise = rng.normal(0, 1000, _RATE // 2).astype("<i2")
        with wave.open(str(place / "sounds" / f"street music {number:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(_RATE)
            file.writeframes(noise.tobytes())
    _timed(["index", "sounds", "--output", "gallery"], 0, checkout, place)


@contextmanager
def _serving(place: Path) -> Iterator[str]:
    """Serve the gallery; yields the address."""
    command = _argv(["serve", "gallery", "--port", "0"])
    environment = _environment(_ROOT, place)
    with subprocess.Popen(command, env=environment, cwd=place, stdout=subprocess.PIPE, text=True) as service:
        try:
            words = service.stdout.readline().split()
            yield next(word for word in words if word.startswith("http"))
        finally:
            service.terminate()


def main(config: StartConfig) -> None:
    """Measure and print one line per command."""
    checkouts = {"now": _ROOT}
    if config.before is not None:
        checkouts["before"] = config.before.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        places = {}
        for name, checkout in checkouts.items():
            places[name] = Path(temporary, name)
            _prepare(places[name], config.files, checkout)
        print(f"{config.files} files, fastest of {config.repeats}: seconds by the clock, and of the processor")
        print(f"{'':<76}" + "".join(f"{name:>16}" for name in checkouts))
        with _serving(places["now"]) as address:
            for heading, command, code in COMMANDS:
                arguments = shlex.split(command.replace("URL", address))
                # The checkouts take turns, so that a slow moment of the machine meets all of them.
                taken = defaultdict(list)
                for _ in range(config.repeats):
                    for name, checkout in checkouts.items():
                        taken[name].append(_timed(arguments, code, checkout, places[name]))
                line = f"{heading:<12} scalar {command}"
                for runs in taken.values():
                    clock, processor = map(min, zip(*runs, strict=True))
                    line = f"{line:<76}{clock:>8.2f}{processor:>8.2f}"
                print(line, flush=True)
