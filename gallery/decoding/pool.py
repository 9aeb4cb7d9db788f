"""Processes that read media files, and the reader that uses them.

A file that crashes its process, or makes it exceed the [`Limits`], fails with an error that names it; the next file
gets a fresh process. Processes are used again, start when they are first needed, and end with this one.

Each process has its own pipes. A pool that shares a queue is no choice: `pebble` ends with a process that is killed as
it sends, and neither it nor `concurrent.futures` starts in the workers of a `DataLoader`.
"""

import atexit
import copy
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock, Timer, local
from typing import Any, TypeVar

import numpy as np

import scalar_retrieval
from scalar_retrieval.modeling_scalar.media_scalar import (
    SAMPLING_RATE,
    Choose,
    MediaError,
    MediaReader,
    Prepare,
    Window,
    check_file,
    check_installed,
)
from scalar_retrieval.modeling_scalar.tracks_scalar import TEXT_FILES, AnyPath, Cue, join_lines

from .worker import Facts, Limits, firsts

LIGHT_MEMORY = 2**28
"""Memory in bytes that a file may take while others are read; one that needs more is read alone."""
_PLACE = Path(scalar_retrieval.__file__).parents[1]
"""The folder that the package stands in."""
_PROGRAM = "from scalar_retrieval.gallery.decoding.worker import serve; serve()"
_PATIENCE = 60.0  # seconds that a process may take to start
_PIECE = 30.0  # seconds read at a time
Processor = TypeVar("Processor")


def num_processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Stopped(RuntimeError):
    """Reading was stopped by [`Stop`]."""


class _ProcessEndedError(Exception):
    """The process ended before it answered."""


class _Worker:
    """A process that reads files, one after the other."""

    def __init__(self):
        # The path of this interpreter is passed on and nothing else is looked up: a process starts in 0.1 s. An
        # editable install is a file that `-S` does not read, so the package's place stands there, too.
        path = [str(_PLACE), *filter(None, sys.path)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-S", "-P", "-c", _PROGRAM]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C must reach only this process
        )
        self.is_late = False
        # It sends a message as soon as it is ready.
        try:
            self._receive(_PATIENCE)
        except _ProcessEndedError:
            code = self.end()
            raise RuntimeError(
                f"The process that reads media files did not start (exit code {code}). To see why, run "
                f"`{sys.executable} -S -P -c {_PROGRAM!r}`."
            ) from None

    def call(self, request: dict[str, Any], callbacks: dict[str, Callable[..., Any]]) -> tuple[str, Any]:
        """Send a request, answer calls, and return the kind of the answer and its content."""
        self._send(request)
        while True:
            kind, content = self._receive(4 * request["limits"].time)
            if kind not in callbacks:
                return kind, content
            # The process calls one of our functions. It waits only for a choice.
            answer = callbacks[kind](*content)
            if kind == "choose":
                self._send(answer)

    def _send(self, message: Any) -> None:
        try:
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
        except OSError as error:
            raise _ProcessEndedError from error

    def _receive(self, seconds: float) -> tuple[str, Any]:
        """Wait for a message; a process that sends none for too long is ended."""
        deadline = Timer(seconds, self._kill_late)
        deadline.daemon = True
        deadline.start()
        try:
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise _ProcessEndedError from error
        finally:
            deadline.cancel()

    def _kill_late(self) -> None:
        self.is_late = True
        self.process.kill()

    def end(self) -> int:
        """End the process, whatever it is doing."""
        self.process.kill()
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not sent cannot be
                pipe.close()


class _Pool:
    """Idle processes, and the memory that active ones may use together."""

    def __init__(self):
        self.condition = Condition()
        self.queue: list[object] = []
        self.taken = 0
        self.idle: list[_Worker] = []
        self.all: set[_Worker] = set()

    @contextmanager
    def room(self, memory: int, total: int) -> Iterator[None]:
        """Hold `memory` of `total` bytes, once the others leave it free; first come, first served."""
        ticket = object()

        def is_next() -> bool:
            return self.queue[0] is ticket and (not self.taken or self.taken + memory <= total)

        with self.condition:
            self.queue.append(ticket)
            try:
                self.condition.wait_for(is_next)
                self.taken += memory
            finally:
                # The next one in the queue may fit in, too.
                self.queue.remove(ticket)
                self.condition.notify_all()
        try:
            yield
        finally:
            with self.condition:
                self.taken -= memory
                self.condition.notify_all()

    def worker(self) -> _Worker:
        """An idle process, or a new one."""
        # An idle process may have ended since.
        with suppress(IndexError):
            while True:
                worker = self.idle.pop()
                if worker.process.poll() is None:
                    return worker
                self.end(worker)
        worker = _Worker()
        self.all.add(worker)
        return worker

    def end(self, worker: _Worker) -> int:
        """End a process and forget it."""
        self.all.discard(worker)
        return worker.end()

    def close(self) -> None:
        """End all processes."""
        self.idle.clear()
        for worker in list(self.all):
            self.end(worker)

    def after_fork(self) -> None:
        """Leave the processes to the parent: if pipes stayed open here, they would not notice its end."""
        for worker in list(self.all):
            worker.process.returncode = 0  # not a child of this process: nothing to wait for
            worker.release()
        # Begin anew, with a condition that no thread holds.
        self.__init__()


_pool = _Pool()
atexit.register(_pool.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


class Stop:
    """Stops the reading of a group of threads, for programs that are interrupted.

    A thread joins by calling `join`, and belongs to one group at a time. `set` ends what its threads read: current and
    later reading raises [`Stopped`].
    """

    def __init__(self):
        self._lock = Lock()
        self._workers = set()
        self.is_set = False

    def join(self) -> None:
        """Add the calling thread to the group: the `initializer` of a pool of threads."""
        _thread.stop = self

    def set(self) -> None:
        """Stop current and later reading."""
        with self._lock:
            self.is_set = True
            for worker in self._workers:
                worker.process.kill()

    @contextmanager
    def threads(self, number: int) -> Iterator[ThreadPoolExecutor]:
        """New threads of the group; in the end, all of its reading stops."""
        executor = ThreadPoolExecutor(number, initializer=self.join)
        try:
            yield executor
        finally:
            self.set()
            executor.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def ending(self, worker: _Worker) -> Iterator[None]:
        """End a process as soon as this is set."""
        # With the lock, so that a process is either not used any more, or killed by `set`.
        with self._lock:
            check_not_stopped()
            self._workers.add(worker)
        try:
            yield
        except _ProcessEndedError:
            check_not_stopped()  # it ended because of this
            raise
        finally:
            with self._lock:
                self._workers.discard(worker)


class _Thread(local):
    """State of a thread."""

    def __init__(self):
        self.stop = Stop()


_thread = _Thread()


def check_not_stopped() -> None:
    """Raise [`Stopped`] in a thread whose reading was stopped."""
    if _thread.stop.is_set:
        raise Stopped("Reading was stopped.")


@contextmanager
def room_beside_decoders(limits: Limits) -> Iterator[None]:
    """Hold a light share of the memory that the processes may use, for work on pictures in this process."""
    total = int(limits.memory)
    with _pool.room(min(LIGHT_MEMORY, total), total):
        yield


class SandboxedReader(MediaReader):
    """Reads files in other processes, within limits; otherwise as
    [`~scalar_retrieval.modeling_scalar.media_scalar.MediaReader`] does.

    A file that makes its process crash, hang or exceed limits fails with a MediaError that names it; the next one gets
    a fresh process. [`~scalar_retrieval.gallery.decoding.Stop`] stops the reading of threads.

    Args:
        limits ([`Limits`], *optional*): limits on reading a stream; exceeding one is a `LimitError`.
    """

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.preview: Callable[[np.ndarray], None] | None = None  # see [`with_preview`]

    def _call(self, method: str, path: AnyPath, callbacks: dict[str, Callable] | None = None, **options: Any) -> Any:
        """Call a method of a reader in another process, and return what it returns."""
        check_installed()
        check_file(path)
        limits = self.limits
        name = os.path.abspath(path)
        total = int(limits.memory)
        callbacks = callbacks or {}
        # Functions stay in this process: the other one gets their names, by which it calls them.
        request = {
            "method": method,
            "path": name,
            "options": options,
            "limits": limits,
            "calls": list(callbacks),
            "is_lenient": self._report is not None,
        }
        # With a light share of memory first, so that many files are read at once, then with all of it.
        for memory, is_alone in ((min(LIGHT_MEMORY, total), False), (total, True)):
            kind = None  # that of a process that ended
            with _pool.room(memory, total):
                worker = _pool.worker()
                try:
                    with suppress(_ProcessEndedError), _thread.stop.ending(worker):
                        kind, content = worker.call(request | {"memory": memory}, callbacks)
                finally:
                    # Whatever happened, the process waits for other files or ends: it may not free its memory.
                    if kind in ("result", "error") and not is_alone:
                        _pool.idle.append(worker)
                    else:
                        code = _pool.end(worker)
            # Try again only if more memory may help.
            if kind == "result":
                answer, problems = content
                for problem in problems:
                    self._report(problem)
                return answer
            if kind == "error":
                raise content
            if worker.is_late:
                raise limits.exceeded(name, "time", "decoding does not respond")
            if code == -getattr(signal, "SIGXCPU", math.inf):
                raise limits.exceeded(name, "time", f"decoding took over {limits.time:g} s of CPU time")

        # Not even all the memory was enough, or the process crashed.
        if kind == "memory":
            reason = (content or f"{name}: decoding fails").rstrip(".")
            raise limits.exceeded(reason, "memory", f"{total} bytes of memory may be too few")
        if code == -getattr(signal, "SIGKILL", math.inf):
            raise limits.exceeded(name, "memory", "the system ended the decoder, probably for lack of memory")
        ending = f"exit code {code}"
        with suppress(ValueError):
            ending = signal.Signals(-code).name
        raise MediaError(
            f"{name}: the decoder crashed ({ending}). The file is damaged, or too large for {total} bytes."
        )

    def read_frames(
        self, path: AnyPath, choose: Choose | None = None, window: Window | None = None, prepare: Prepare | None = None
    ) -> list[Any] | None:
        """Read frames as [`MediaReader.read_frames`] does."""
        choose = choose or range
        chosen = []
        kept = []
        process = None

        # The process calls these, and each of them again if it chooses again because of damage.
        def select(available: int) -> list[int]:
            nonlocal chosen
            chosen = list(choose(available))
            return chosen

        def begin(height: int, width: int) -> None:
            nonlocal process
            kept.clear()
            if prepare is not None:
                process = prepare(height, width)

        def receive(picture: np.ndarray) -> None:
            # Each chosen frame comes once, in order.
            if self.preview is not None and len(kept) == sorted(set(chosen)).index(chosen[len(chosen) // 2]):
                self.preview(picture)
            if process is not None:
                picture = process(picture)
            kept.append(picture)

        callbacks = {"choose": select, "prepare": begin, "frame": receive}
        if self._call("read_frames", path, callbacks, window=window) is None:
            return None
        # A frame may be chosen several times, and comes once.
        pictures = dict(zip(sorted(set(chosen)), kept, strict=True))
        return [pictures[index] for index in chosen]

    def read_pictures(
        self, path: AnyPath, pace: float, side: int, window: Window | None = None
    ) -> list[tuple[float, np.ndarray]]:
        """Read frames for other purposes than the model: few, small, and with the second at which each appears.

        Args:
            path: a local media file.
            pace (`float`): interval in seconds. The first frame of each interval from 0 on is read, and if a window
                begins within an interval, the first frame visible in the window.
            side (`int`): maximum width and height in pixels; larger frames are shrunk.
            window (`tuple[float, float | None]`, *optional*): as in `read_frames`.

        Returns:
            The seconds in the file, and uint8 frames `(height, width, 3)`, in order; none if there is no video.
        """
        return self._call("read_pictures", path, pace=pace, side=side, window=window)

    def _pieces(self, path: AnyPath, pace: float) -> list[Window | None]:
        """Windows of a file that cover it, so short that no file is too long for the limits, each a whole number of
        intervals."""
        length = pace * max(1, _PIECE // pace)
        num_pieces = math.ceil((self.read_duration(path) or 0.0) / length)
        if num_pieces <= 1:
            return [None]
        return [(number * length, (number + 1) * length) for number in range(num_pieces)]

    def sample_frames(self, path: AnyPath, pace: float, side: int) -> Iterator[tuple[float, np.ndarray]]:
        """All that `read_pictures` returns for a file, read in chunks, so that no file is too long for the limits."""
        last = -math.inf
        for window in self._pieces(path, pace):
            for second, picture in self.read_pictures(path, pace, side, window):
                if second > last:  # one that stays is visible in the next chunk, too
                    yield second, picture
                    last = second

    def sample_colours(
        self, path: AnyPath, pace: float, side: int, on_progress: Callable[[float], None] = lambda second: None
    ) -> list[tuple[float, np.ndarray]]:
        """The histograms of the frames that `sample_frames` returns: of each colour channel of 16 bins, shares that
        add up to 1. Several processes read chunks at once; `on_progress` is called with the second that is reached."""

        def read(window: Window | None) -> list[tuple[float, np.ndarray]]:
            return self._call("read_colours", path, pace=pace, side=side, window=window)

        # Threads that belong to the group of this one, so that they stop with it.
        pieces = self._pieces(path, pace)
        found = []
        with ThreadPoolExecutor(num_processors(), initializer=_thread.stop.join) as executor:
            for window, piece in zip(pieces, executor.map(read, pieces), strict=True):
                found += piece
                if window is not None:
                    on_progress(window[1])
        # An interval may be cut by the first keyframe of a chunk.
        return [found[place] for place in firsts([second for second, _ in found], pace)]

    def read_audio(self, path: AnyPath, window: Window | None = None, rate: int = SAMPLING_RATE) -> np.ndarray | None:
        """Read the main audio track as [`MediaReader.read_audio`] does."""
        return self._call("read_audio", path, window=window, rate=rate)

    def read_audio_parts(
        self, path: AnyPath, choose: Choose, window: Window | None = None, rate: int = SAMPLING_RATE
    ) -> tuple[list[np.ndarray], int] | None:
        """Read parts of the main audio track as [`MediaReader.read_audio_parts`] does."""
        return self._call("read_audio_parts", path, {"choose": choose}, window=window, rate=rate)

    def cues_of_file(self, path: AnyPath) -> list[Cue]:
        """The cues of a subtitle file."""
        return self._call("cues_of_file", path)

    def cues_of_track(self, path: AnyPath) -> list[Cue] | None:
        """The cues of the text track of a media file; `None` if there is none."""
        return self._call("cues_of_track", path)

    def read_cues(self, path: AnyPath) -> list[tuple[float, float, str]]:
        """The cues of a subtitle file, or of the subtitle of a media file: start and end in seconds, and words."""
        read = self.cues_of_file if os.fspath(path).lower().endswith(TEXT_FILES) else self.cues_of
        texts = []
        for start, stop, lines in read(path) or ():
            text = join_lines(lines)
            if text:
                texts.append((start, stop, text))
        return sorted(texts)

    def read_facts(self, path: AnyPath) -> Facts:
        """What the header of a media file says: its title, its chapters, and whether it has pictures and sound."""
        return self._call("read_facts", path)

    def read_duration(self, path: AnyPath) -> float | None:
        """The length of a file in seconds, from the start of its first stream; `None` if unknown.

        Raises:
            FileNotFoundError: there is no such file.
            MediaError: not a media file.
            LimitError: it claims to be longer than the limits allow.
        """
        return self._call("read_duration", path)


def sandboxed(processor: Processor, limits: Limits | None = None, on_error: str | None = None) -> Processor:
    """Return a processor that reads files through a [`SandboxedReader`].

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): is not changed.
        limits ([`Limits`], *optional*): of the reader; by default those it has.
        on_error (`str`, *optional*): what to do about a damaged stream, `"raise"` or `"missing"`, see
            [`~scalar_retrieval.modeling_scalar.media_scalar.MediaReader`]; by default as before.
    """
    if on_error not in (None, "raise", "missing"):
        raise ValueError(f"`on_error` must be 'raise' or 'missing', got {on_error!r}.")
    before = processor.reader
    if isinstance(before, SandboxedReader) and limits is None:
        reader = copy.copy(before)
    else:
        reader = SandboxedReader(limits)
    reader.on_error = on_error or before.on_error
    processor = copy.copy(processor)
    processor.reader = reader
    return processor


def tolerant(processor: Processor) -> Processor:
    """Return a processor that reads files through a [`SandboxedReader`] and treats damaged streams as missing, as a
    search does."""
    return sandboxed(processor, on_error="missing")


def with_preview(processor: Processor, preview: Callable[[np.ndarray], None]) -> Processor:
    """Return a processor that passes on one decoded frame of each video that it reads.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): reads through a [`SandboxedReader`]; is not
            changed.
        preview (`Callable`): called with the middle one of the chosen frames, uint8 `(height, width, 3)`, RGB and
            upright; called again if reading restarts.
    """
    processor = copy.copy(processor)
    processor.reader = copy.copy(processor.reader)
    processor.reader.preview = preview
    return processor
