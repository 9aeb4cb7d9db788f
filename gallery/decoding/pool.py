"""Decoders of media files: separate processes that run `program`.

A file that crashes a decoder or exceeds the [`Limits`] fails with an error that names it; the next one gets a fresh
decoder. Decoders are reused, start when they are first needed, and end with this process. They send bytes and JSON,
which are checked before use: a decoder that a file has taken over can return wrong pictures, but nothing worse.
"""

import atexit
import errno
import json
import math
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Lock, Timer, local
from typing import Any

import numpy as np

from gallery.decoding.answers import Answer, Nonsense, natural
from gallery.decoding.limits import LimitError, Limits
from modeling_scalar.media_scalar import MediaError, check_file, check_installed

if sys.platform == "linux":
    import fcntl

_PROGRAM = Path(__file__).with_name("start.py")
LIGHT_MEMORY = 2**28
"""Memory in bytes that a decoder may use while others run; one that needs more runs alone."""
_MOST_JSON = 2**16
_PIPE = 2**20  # size of pipes in bytes: frames are large
_MOST_THREADS = 8  # per decoder: more threads gain little


def num_processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Died(Exception):
    """The decoder ended."""


class _Overdue(Exception):
    """The decoder neither answers nor computes."""


class _Decoder:
    """A process that decodes, and the pipes to it."""

    def __init__(self):
        # The path of this interpreter is passed on and nothing else is looked up: a decoder starts in 0.1 s.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C must reach only this process
            )
        except OSError as error:
            raise RuntimeError(f"No decoder of media files can be started: {error}") from error
        self.source, self.sink = self.process.stdout, self.process.stdin
        if sys.platform == "linux":
            with suppress(OSError):  # the number of large pipes per user is limited
                fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, _PIPE)
        self.poll = None
        if hasattr(select, "poll"):
            self.poll = select.poll()
            self.poll.register(self.source, select.POLLIN)
        self.is_spent, self.patience = True, 60
        self.computed: list[bytes] = []  # clock ticks of the process, in user and system mode
        try:
            if self._receive()["kind"] != "ready":
                raise Nonsense
        except (_Died, Nonsense, _Overdue):
            code = self.close()
            raise RuntimeError(
                f"The decoder of media files did not start (exit code {code}). To see why, run "
                f"`{sys.executable} -S -P {_PROGRAM}`."
            ) from None

    def close(self) -> int:
        """End the process, whatever it is doing."""
        with suppress(OSError):
            self.process.kill()
        code = self.process.wait()
        self.release()
        return code

    def release(self) -> None:
        """Close the pipes."""
        for pipe in (self.source, self.sink):
            with suppress(OSError):
                pipe.close()

    def converse(self, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """Send a request and process the messages; returns the last one, `done`, `error` or `memory`."""
        self.is_spent, self.patience = True, math.ceil(4 * request["limits"]["time"])
        timer = None if self.poll else Timer(self.patience, self._give_up)
        try:
            if timer:
                timer.start()
            self._send(request)
            while (message := self._receive())["kind"] not in ("done", "error", "memory"):
                if message["size"] > answer.most_bytes():
                    raise Nonsense
                payload = np.empty(message["size"], np.uint8)
                self._read_into(memoryview(payload))
                if (reply := answer.receive(message["kind"], message, payload)) is not None:
                    self._send(reply)
            if message["kind"] == "done":
                answer.finish()
        except _Died:
            if self.patience < 0:
                raise _Overdue from None
            raise
        finally:
            if timer:
                timer.cancel()
        self.is_spent = message["kind"] == "memory" or request["is_heavy"]  # it may not free its memory
        return message

    def _give_up(self) -> None:
        self.patience = -1
        self.process.kill()

    def _send(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        data = memoryview(struct.pack(">I", len(data)) + data)
        try:
            while data:
                data = data[self.sink.write(data) :]
        except OSError as error:
            raise _Died from error

    def _read_into(self, buffer: memoryview) -> None:
        while buffer:
            # computing seconds are limited elsewhere; those while this process sleeps do not count
            while self.poll and not self.poll.poll(1000):
                self.patience -= not self._computes()
                if self.patience < 0:
                    raise _Overdue
            count = self.source.readinto(buffer)
            if not count:
                raise _Died
            buffer = buffer[count:]

    def _computes(self) -> bool:
        """Whether the process has computed since the last call, as far as that is known."""
        before = self.computed
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.process.pid}/stat").read_bytes().rpartition(b")")[2].split()
            self.computed = fields[11:13]
        return self.computed != before

    def _receive(self) -> dict[str, Any]:
        length = bytearray(4)
        self._read_into(memoryview(length))
        (length,) = struct.unpack(">I", length)
        if length > _MOST_JSON:
            raise Nonsense
        header = bytearray(length)
        self._read_into(memoryview(header))
        try:
            content = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise Nonsense from error
        if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
            raise Nonsense
        natural(content, "size")
        return content


class _Pool:
    """Idle decoders, and the memory that active ones may use together."""

    def __init__(self):
        self.condition = Condition()
        self.line: list[object] = []
        self.taken = self.at_work = 0
        self.idle: list[_Decoder] = []
        self.all: set[_Decoder] = set()

    @contextmanager
    def room(self, memory: int, total: int) -> Iterator[None]:
        """Hold `memory` of `total` bytes, once the others leave it free; first come, first served."""
        ticket = object()
        with self.condition:
            self.line.append(ticket)
            try:
                self.condition.wait_for(
                    lambda: self.line[0] is ticket and (not self.taken or self.taken + memory <= total)
                )
                self.taken += memory
                self.at_work += 1
            finally:
                self.line.remove(ticket)
                self.condition.notify_all()
        try:
            yield
        finally:
            with self.condition:
                self.taken -= memory
                self.at_work -= 1
                self.condition.notify_all()

    @contextmanager
    def decoder(self, memory: int, total: int) -> Iterator[_Decoder]:
        """A decoder, once there is room for it."""
        with self.room(memory, total):
            decoder = None
            try:
                decoder = self._idle_decoder()
                if decoder is None:
                    decoder = _Decoder()
                    self.all.add(decoder)
                yield decoder
            finally:
                if decoder is not None and decoder.is_spent:
                    self.end(decoder)
                elif decoder is not None:
                    self.idle.append(decoder)

    def num_threads(self) -> int:
        """A decoder's share of the processors: more threads would cost memory and gain nothing."""
        return min(_MOST_THREADS, max(1, num_processors() // max(1, self.at_work)))

    def _idle_decoder(self) -> _Decoder | None:
        while self.idle:
            with suppress(IndexError):  # another thread was faster
                decoder = self.idle.pop()
                if decoder.process.poll() is None:
                    return decoder
                self.end(decoder)
        return None

    def end(self, decoder: _Decoder) -> None:
        """End a decoder and forget it."""
        self.all.discard(decoder)
        decoder.close()

    def close(self) -> None:
        """End all decoders."""
        self.idle.clear()
        for decoder in list(self.all):
            self.end(decoder)

    def after_fork(self) -> None:
        """Leave the decoders to the parent: if pipes stayed open here, they would not notice its end."""
        for decoder in list(self.all):
            decoder.process.returncode = 0  # not a child of this process: nothing to wait for
            decoder.release()
        self.__init__()


_pool = _Pool()
atexit.register(_pool.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


class Stopped(RuntimeError):
    """Reading was stopped by [`Stop`]."""


class Stop:
    """Stops the reading of a group of threads, for programs that are interrupted.

    A thread joins by calling `join`, and belongs to one group at a time. `set` ends the decoders of the group: current
    and later reading raises [`Stopped`].

    Args:
        num_threads (`int`): threads per decoder, if the caller does not specify them: 0 for its share of the
            processors. With more than one, frames of damaged videos may differ each time.
    """

    def __init__(self, num_threads: int = 0):
        self._lock, self._decoders, self.is_set = Lock(), set(), False
        self.num_threads = num_threads

    def join(self) -> None:
        """Add the calling thread to the group: the `initializer` of a pool of threads."""
        _thread.stop = self

    def set(self) -> None:
        """Stop current and later reading."""
        with self._lock:
            self.is_set = True
            for decoder in self._decoders:
                with suppress(OSError):
                    decoder.process.kill()

    @contextmanager
    def ending(self, decoder: _Decoder) -> Iterator[None]:
        """End a decoder as soon as this is set."""
        with self._lock:
            check_not_stopped()
            self._decoders.add(decoder)
        try:
            yield
        except _Died:
            check_not_stopped()
            raise
        finally:
            with self._lock:
                self._decoders.discard(decoder)


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
    """Hold a light share of the memory that decoders may use, for work on pictures in this process."""
    total = int(limits.memory)
    with _pool.room(min(LIGHT_MEMORY, total), total):
        yield


def ask(what: str, path: str | os.PathLike, answer: Answer, *, is_lenient: bool = False, **options: Any) -> Answer:
    """Let a decoder answer a request (`program._ANSWERS`), with a light share of memory, then with all of it. If
    lenient, the readable part of a damaged stream counts, and `answer.problem` says what is wrong."""
    check_installed()
    check_file(path)
    name, full, limits = os.fspath(path), os.path.abspath(path), answer.limits
    total = int(limits.memory)
    answer.name = name
    request = {"what": what, "path": full, "limits": asdict(limits), "options": options, "is_lenient": is_lenient}
    for memory, is_heavy in ((min(LIGHT_MEMORY, total), False), (total, True)):
        try:
            with _pool.decoder(memory, total) as decoder, _thread.stop.ending(decoder):
                if options.get("num_threads") == 0:
                    request["options"] = options | {"num_threads": _thread.stop.num_threads or _pool.num_threads()}
                message = decoder.converse(request | {"memory": memory, "is_heavy": is_heavy}, answer)
        except _Overdue:
            raise limits.exceeded(name, "time", "decoding does not respond") from None
        except Nonsense:
            raise MediaError(f"{name}: the decoder returned invalid data. The file is damaged.") from None
        except _Died:
            code = decoder.process.returncode
            if code == -getattr(signal, "SIGXCPU", math.inf):
                raise limits.exceeded(name, "time", f"decoding took over {limits.time:g} s of CPU time") from None
            if is_heavy and code == -getattr(signal, "SIGKILL", math.inf):
                raise limits.exceeded(
                    name, "memory", "the system ended the decoder, probably for lack of memory"
                ) from None
            if is_heavy:  # with the light share, it may have crashed for lack of memory
                how = f"the decoder crashed ({_ending(code)})"
                raise MediaError(f"{name}: {how}. The file is damaged, or too large for {total} bytes.") from None
        else:
            if message["kind"] == "done":
                answer.problem = _renamed(message, name, full) if is_lenient and "message" in message else None
                return answer
            if message["kind"] == "error":
                raise _error(message, name, full)
            if is_heavy:
                reason = _renamed(message, name, full) if "message" in message else f"{name}: decoding fails."
                raise limits.exceeded(reason.rstrip("."), "memory", f"{total} bytes of memory may be too few")
        answer.restart()
    raise AssertionError


def _ending(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _renamed(message: dict[str, Any], name: str, full: str) -> str:
    """A decoder's message on a file, with the name that the caller uses."""
    text = str(message.get("message"))
    return name + text[len(full) :] if text.startswith(full) else text


def _error(message: dict[str, Any], name: str, full: str) -> Exception:
    text = _renamed(message, name, full)
    if message.get("error") == "missing":
        return FileNotFoundError(f"No such media file: {name!r}.")
    if message.get("error") == "denied":
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    return (LimitError if message.get("error") == "limit" else MediaError)(text)


__all__ = ["LIGHT_MEMORY", "Stop", "Stopped", "ask", "check_not_stopped", "num_processors", "room_beside_decoders"]
