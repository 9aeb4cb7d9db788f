"""Reads media files through decoders, processes of their own in which `media_scalar` runs.

A file that makes a decoder crash, or take more than the [`Limits`] allow, fails by name; the next one gets a fresh
decoder. Decoders are reused, started when they are first needed, and end with this process. What comes from them is
bytes and JSON, checked before it is used: a decoder that a file has taken over can give wrong pictures, no more.

What is random is drawn here: a decoder says how many frames there are and is told which to send.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Condition, Lock, Timer, local
from typing import Any

import numpy as np
import torch

from .media_scalar import SAMPLING_RATE, LimitError, Limits, MediaError, Window, av, check_file, to_float

if sys.platform == "linux":
    import fcntl

_PROGRAM = Path(__file__).with_name("media_scalar.py")
LIGHT_MEMORY = 2**28
"""What a decoder may take beside others, in bytes; one that needs more runs alone."""
_MOST_JSON = 2**16
_PIPE = 2**20  # bytes that wait in a pipe: frames are large
_MOST_THREADS = 8  # of one decoder: more gain little


def num_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def frame_indices(
    num_available: int, num_frames: int, training: bool = False, generator: torch.Generator | None = None
) -> list[int]:
    """Choose `num_frames` of `num_available` items (SCALAR, implementation details: uniformly sampled frames).

    The list of indices is padded with its last entry up to `num_frames` and split into `num_frames` chunks as
    `numpy.array_split` does; each chunk gives element `(len + 1) // 2 - 1`, in training a random one.

    Args:
        num_available (`int`): at least 1.
        num_frames (`int`): at least 1.
        training (`bool`): draw from each chunk instead of taking its middle.
        generator (`torch.Generator`): required in training; the same state gives the same indices.
    Returns:
        `list[int]` of length `num_frames`, ascending.
    Raises:
        ValueError: a count below 1, or `training` without a generator.
    """
    if num_available < 1 or num_frames < 1:
        raise ValueError(
            f"`num_available` and `num_frames` must be at least 1, got {num_available!r} and {num_frames!r}."
        )
    if training and generator is None:
        raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
    size, extra = divmod(max(num_available, num_frames), num_frames)
    chosen, start = [], 0
    for chunk in range(num_frames):
        length = size + (chunk < extra)
        # No draw where there is no choice: choosing again among frames already chosen then changes no later draw.
        draws = training and length > 1
        offset = int(torch.randint(length, (), generator=generator)) if draws else (length + 1) // 2 - 1
        chosen.append(min(start + offset, num_available - 1))
        start += length
    return chosen


def to_tensor(array: np.ndarray | torch.Tensor) -> torch.Tensor:
    """View an array as a tensor; copy it where torch cannot view it (read-only memory, negative strides)."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.require(array, requirements=["C", "W"]))


class _Died(Exception):
    """The decoder ended."""


class _Nonsense(Exception):
    """What the decoder says is not what was asked for."""


class _Overdue(Exception):
    """The decoder neither answers nor computes."""


class _NeedsMemory(Exception):
    """The light share of memory was not enough."""


class _Answer:
    """Takes what a decoder says about one request.

    With a `generator`, its state is set back where something drawn turns out not to be used.
    """

    def __init__(self, limits: Limits, generator: torch.Generator | None = None):
        self.limits, self.generator = limits, generator
        self.name = ""
        self.state = self.first_state = None if generator is None else generator.get_state()

    def take_back_draws(self) -> None:
        """Forget what was drawn since `self.state`."""
        if self.generator is not None:
            self.generator.set_state(self.state)

    def restart(self) -> None:
        """Forget everything: the request is made again."""
        self.state = self.first_state
        self.take_back_draws()

    def most_bytes(self) -> int:
        """How many bytes may follow a message."""
        return 0

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        """Take one message and the bytes after it; return what is to be answered."""
        raise _Nonsense

    def finish(self) -> None:
        """Check that nothing is missing."""


def _natural(content: dict[str, Any], name: str, least: int = 0) -> int:
    number = content.get(name)
    if type(number) is not int or not least <= number < 2**53:
        raise _Nonsense
    return number


def _seconds(content: dict[str, Any]) -> float | None:
    seconds = content.get("seconds")
    if seconds is not None and not isinstance(seconds, (int, float)):
        raise _Nonsense
    return seconds


class _Frames(_Answer):
    def __init__(self, limits, num_frames, training, generator, prepare):
        super().__init__(limits, generator)
        self.num_frames, self.training, self.prepare = num_frames, training, prepare
        self.restart()

    def restart(self):
        super().restart()
        self.chosen: list[int] = []
        self.places = 0
        self.clear()

    def clear(self):
        self.kept: dict[int, Any] = {}
        self.size, self.use, self.bytes = None, None, 0

    def most_bytes(self):
        return 3 * int(self.limits.pixels)

    def receive(self, kind, content, payload):
        if kind == "choose" and self.num_frames is not None:
            self.take_back_draws()
            available = _natural(content, "available", 1)
            self.chosen = frame_indices(available, self.num_frames, self.training, self.generator)
            self.places = len(set(self.chosen))
            self.state = None if self.generator is None else self.generator.get_state()
            return {"chosen": self.chosen}
        if kind == "begin":
            self.take_back_draws()
            return self.clear()
        if kind != "frame":
            raise _Nonsense
        size, place = (_natural(content, "height", 1), _natural(content, "width", 1)), _natural(content, "place")
        if len(payload) != 3 * size[0] * size[1] or place in self.kept or self.size not in (None, size):
            raise _Nonsense
        if self.num_frames is not None and place >= self.places:
            raise _Nonsense
        if self.use is None:
            self.size, self.use = size, self.prepare(*size) if self.prepare else self.keep
        self.kept[place] = self.use(payload.reshape(*size, 3))
        return None

    def keep(self, frame: np.ndarray) -> np.ndarray:
        self.bytes += frame.nbytes
        if self.bytes > self.limits.memory:
            raise self.limits.exceeded(self.name, "memory", f"its frames take more than {self.limits.memory} bytes")
        return frame

    def order(self) -> list[int]:
        places = {index: place for place, index in enumerate(dict.fromkeys(self.chosen))}
        return list(range(len(self.kept))) if self.num_frames is None else [places[index] for index in self.chosen]

    def finish(self):
        if not set(self.order()) <= set(self.kept):
            raise _Nonsense

    def result(self) -> list[Any] | None:
        """What was kept of the chosen frames; `None` if there is no video."""
        return [self.kept[place] for place in self.order()] or None


@dataclass
class Contents:
    """
    What the header of a file says, as far as it is known.

    Args:
        seconds (`float`, *optional*): how long the file lasts.
        has_text (`bool`, *optional*): whether there is a text track in it.
    """

    seconds: float | None = None
    has_text: bool | None = None


class _Sound(_Answer):
    def __init__(self, limits, generator=None, choose=None, contents=None):
        super().__init__(limits, generator)
        self.choose, self.contents = choose, contents or Contents()
        self.restart()

    def restart(self):
        super().restart()
        self.pieces: list[np.ndarray] = []
        self.ranges: list[tuple[int, int]] | None = None
        self.available = self.bytes = 0

    def most_bytes(self):
        return int(self.limits.memory)

    def receive(self, kind, content, payload):
        if kind == "ranges" and self.choose is not None:
            self.pieces.clear()
            self.take_back_draws()
            self.available = _natural(content, "available")
            self.ranges = self.choose(self.available)
            return {"chosen": self.ranges}
        if kind == "contents":
            seconds, self.contents.has_text = _seconds(content), content.get("has_text") is not False
            if seconds is not None and 0 <= seconds <= self.limits.duration:
                self.contents.seconds = seconds
            return None
        if len(payload) % 2 or kind != ("sound" if self.ranges is None else "part"):
            raise _Nonsense
        self.pieces.append(payload.view(np.int16))
        self.bytes += 2 * len(payload)  # as float32
        if self.bytes > self.limits.memory:
            raise self.limits.exceeded(self.name, "memory", f"its sound takes more than {self.limits.memory} bytes")
        return None

    def finish(self):
        if self.ranges is not None and self.available:
            if [len(piece) for piece in self.pieces] != [stop - start for start, stop in self.ranges]:
                raise _Nonsense

    def samples(self) -> np.ndarray | None:
        """The whole track; `None` if there is none."""
        return to_float(np.concatenate(self.pieces)) if sum(map(len, self.pieces)) else None

    def parts(self) -> tuple[list[np.ndarray], int] | None:
        """The chosen parts and the number of samples of the whole; `None` if there is no track."""
        if self.ranges is None:
            waveform = self.samples()
            if waveform is None:
                return None
            return [waveform[start:stop] for start, stop in self.choose(len(waveform))], len(waveform)
        if not self.available:
            return None
        return [to_float(piece) for piece in self.pieces], self.available


class _Text(_Answer):
    text: str | None = None

    def most_bytes(self):
        return int(self.limits.memory)

    def receive(self, kind, content, payload):
        if kind != "text":
            raise _Nonsense
        try:
            self.text = payload.tobytes().decode()
        except UnicodeDecodeError as error:
            raise _Nonsense from error


class _Header(_Answer):
    promised = False
    seconds: float | None = None

    def receive(self, kind, content, payload):
        if kind != "header" or not isinstance(content.get("promised"), bool):
            raise _Nonsense
        self.promised, self.seconds = content["promised"], _seconds(content)


class _Decoder:
    """A process that decodes, and the pipes to it."""

    def __init__(self):
        # The path of this process is given on and nothing else is looked up, so that a decoder starts in 0.1 s.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            raise RuntimeError(f"No decoder of media files can be started: {error}") from error
        self.source, self.sink = self.process.stdout, self.process.stdin
        if sys.platform == "linux":
            with suppress(OSError):  # a user may have only so many large pipes
                fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, _PIPE)
        self.poll = None
        if hasattr(select, "poll"):
            self.poll = select.poll()
            self.poll.register(self.source, select.POLLIN)
        self.is_spent, self.patience = True, 60
        self.computed: list[bytes] = []  # clock ticks of the process, for itself and in the system
        try:
            if self._receive()["kind"] != "ready":
                raise _Nonsense
        except (_Died, _Nonsense, _Overdue):
            code = self.close()
            raise RuntimeError(
                f"The decoder of media files did not start (exit code {code}): see what `{sys.executable} -S -P "
                f"{_PROGRAM}` says."
            ) from None

    def close(self) -> int:
        """End the process, whatever it does."""
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

    def converse(self, request: dict[str, Any], answer: _Answer) -> dict[str, Any]:
        """Make a request and pass on what comes; returns the last message, `done`, `error` or `memory`."""
        self.is_spent, self.patience = True, math.ceil(4 * request["limits"]["time"])
        timer = None if self.poll else Timer(self.patience, self._give_up)
        try:
            if timer:
                timer.start()
            self._send(request)
            while (message := self._receive())["kind"] not in ("done", "error", "memory"):
                if message["size"] > answer.most_bytes():
                    raise _Nonsense
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
        self.is_spent = message["kind"] == "memory" or request["is_heavy"]  # it may hold on to what it took
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
            # seconds in which it computes are limited elsewhere, those in which this process sleeps do not count
            while self.poll and not self.poll.poll(1000):
                self.patience -= not self._computes()
                if self.patience < 0:
                    raise _Overdue
            count = self.source.readinto(buffer)
            if not count:
                raise _Died
            buffer = buffer[count:]

    def _computes(self) -> bool:
        """Whether the process has computed since this was last asked, as far as that is known."""
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
            raise _Nonsense
        header = bytearray(length)
        self._read_into(memoryview(header))
        try:
            content = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise _Nonsense from error
        if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
            raise _Nonsense
        _natural(content, "size")
        return content


class _Pool:
    """Decoders that wait for work, and the memory that those at work may take together."""

    def __init__(self):
        self.condition = Condition()
        self.line: list[object] = []
        self.taken = self.at_work = 0
        self.idle: list[_Decoder] = []
        self.all: set[_Decoder] = set()

    @contextmanager
    def decoder(self, memory: int, total: int) -> Iterator[_Decoder]:
        """A decoder, as soon as those at work leave `memory` of `total` bytes; first come, first served."""
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
            with self.condition:
                if decoder is not None and not decoder.is_spent:
                    self.idle.append(decoder)
                self.taken -= memory
                self.at_work -= 1
                self.condition.notify_all()

    def num_threads(self) -> int:
        """The share of a decoder in the processors: threads beyond it would cost and gain nothing."""
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
        """Leave the decoders to the parent: with a pipe to them open here, they would not notice its end."""
        for decoder in list(self.all):
            decoder.process.returncode = 0  # no child of this process: nothing to wait for
            decoder.release()
        self.__init__()


_pool = _Pool()
atexit.register(_pool.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


class Stopped(RuntimeError):
    """Reading was given up by [`Stop`]."""


class Stop:
    """Gives up what a group of threads is reading, as a program must that was interrupted.

    Threads belong to it after they called `join`, and each to one at a time. `set` ends their decoders: what they are
    reading, and whatever they begin to read later, raises [`Stopped`].

    Args:
        num_threads (`int`): of each decoder, where a thread does not ask for a number: 0 for its share of the
            processors. With more than one, damaged pictures are not the same each time.
    """

    def __init__(self, num_threads: int = 0):
        self._lock, self._decoders, self.is_set = Lock(), set(), False
        self.num_threads = num_threads

    def join(self) -> None:
        """Make the calling thread one of the group: the `initializer` of a pool of threads."""
        _thread.stop = self

    def set(self) -> None:
        """End what is being read."""
        with self._lock:
            self.is_set = True
            for decoder in self._decoders:
                with suppress(OSError):
                    decoder.process.kill()

    @contextmanager
    def ending(self, decoder: _Decoder) -> Iterator[None]:
        """End a decoder as soon as this is set."""
        with self._lock:
            if self.is_set:
                raise Stopped("Reading was given up.")
            self._decoders.add(decoder)
        try:
            yield
        except _Died:
            if self.is_set:
                raise Stopped("Reading was given up.") from None
            raise
        finally:
            with self._lock:
                self._decoders.discard(decoder)


class _Thread(local):
    """What is known of a thread."""

    def __init__(self):
        self.stop = Stop()


_thread = _Thread()


def _ask(what: str, path: str | os.PathLike, answer: _Answer, **options: Any) -> _Answer:
    """Let a decoder answer a request (`media_scalar._ANSWERS`), with a light share of memory, else with all of it."""
    if av is None:
        raise ImportError("Reading media files needs PyAV: `pip install av`. Or pass decoded frames and waveforms.")
    check_file(path)
    name, full, limits = os.fspath(path), os.path.abspath(path), answer.limits
    total = int(limits.memory)
    answer.name = name
    request = {"what": what, "path": full, "limits": asdict(limits), "options": options}
    for memory, is_heavy in ((min(LIGHT_MEMORY, total), False), (total, True)):
        try:
            with _pool.decoder(memory, total) as decoder, _thread.stop.ending(decoder):
                if options.get("num_threads") == 0:
                    request["options"] = options | {"num_threads": _thread.stop.num_threads or _pool.num_threads()}
                message = decoder.converse(request | {"memory": memory, "is_heavy": is_heavy}, answer)
        except _Overdue:
            raise limits.exceeded(name, "time", "decoding waits for too long") from None
        except _Nonsense:
            raise MediaError(f"{name}: the decoder said what makes no sense. The file is damaged.") from None
        except _Died:
            code = decoder.process.returncode
            if code == -getattr(signal, "SIGXCPU", math.inf):
                raise limits.exceeded(name, "time", f"decoding computes for more than {limits.time:g} s") from None
            if is_heavy and code == -getattr(signal, "SIGKILL", math.inf):
                raise limits.exceeded(
                    name, "memory", "the system ended the decoder, for want of memory it seems"
                ) from None
            if is_heavy:  # with the light share, it may have crashed for want of memory
                how = f"the decoder crashed ({_ending(code)})"
                raise MediaError(f"{name}: {how}. The file is damaged, or too large for {total} bytes.") from None
        else:
            if message["kind"] == "done":
                return answer
            if message["kind"] == "error":
                raise _error(message, name, full)
            if is_heavy:
                told = _renamed(message, name, full) if "message" in message else f"{name}: decoding fails."
                raise limits.exceeded(told.rstrip("."), "memory", f"{total} bytes of memory may be too few")
        answer.restart()
    raise AssertionError


def _ending(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _renamed(message: dict[str, Any], name: str, full: str) -> str:
    """What a decoder says of a file, by the name that it was asked for."""
    text = str(message.get("message"))
    return name + text[len(full) :] if text.startswith(full) else text


def _error(message: dict[str, Any], name: str, full: str) -> Exception:
    text = _renamed(message, name, full)
    if message.get("error") == "missing":
        return FileNotFoundError(f"No such media file: {name!r}.")
    if message.get("error") == "denied":
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    return (LimitError if message.get("error") == "limit" else MediaError)(text)


@contextmanager
def _drawing(answer: _Answer) -> Iterator[None]:
    """Where reading fails, what was drawn for nothing is taken back."""
    try:
        yield
    except BaseException:
        answer.take_back_draws()
        raise


def read_frames(
    path: str | os.PathLike,
    num_frames: int | None = None,
    *,
    training: bool = False,
    generator: torch.Generator | None = None,
    seek: str = "index",
    num_threads: int = 0,
    limits: Limits | None = None,
    window: Window | None = None,
) -> np.ndarray | None:
    """Read frames of the first video stream, chosen by `frame_indices` over its shown frames.

    The packets are listed first, without decoding them: their number shows a truncated file, their timestamps name
    the frames. `seek="index"` then decodes from the keyframe before each chosen frame; `seek="scan"` decodes from the
    start. Both give the same bits on every stream that decodes. Where timestamps are missing or repeated the frames
    are counted by decoding them all. The display rotation that phones write is applied: frames are upright.

    Args:
        path (`str` or `os.PathLike`): a local media file.
        num_frames (`int`, *optional*): how many; all if `None` (mind the memory: 3 bytes a pixel).
        training (`bool`), generator (`torch.Generator`): see `frame_indices`.
        seek (`str`): `"index"` or `"scan"`.
        num_threads (`int`): decoding threads; 0 for as many as there are processors for each file that is being read,
            at most 8.
        limits ([`Limits`], *optional*): what reading may take.
        window (`tuple[float, float | None]`, *optional*): choose among the frames that are seen from one second of the
            file to another, None for its end.
    Returns:
        `np.ndarray` of shape `(num_frames, height, width, 3)`, uint8 RGB; `None` if the file has no video: no video
        stream (an attached picture is none), or one without a single frame.
    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not a media file, fewer packets than the container promises, or decoding fails.
        LimitError: it needs more than the limits allow.
    """
    options = {"training": training, "generator": generator, "seek": seek, "num_threads": num_threads}
    frames = prepare_frames(path, None, num_frames, limits=limits, window=window, **options)
    return None if frames is None else np.stack(frames)


def prepare_frames(
    path: str | os.PathLike,
    prepare: Callable[[int, int], Callable[[np.ndarray], Any]] | None,
    num_frames: int | None = None,
    *,
    training: bool = False,
    generator: torch.Generator | None = None,
    seek: str = "index",
    num_threads: int = 0,
    limits: Limits | None = None,
    window: Window | None = None,
) -> list[Any] | None:
    """Read frames as `read_frames` does and keep of each what `prepare` makes of it: one whole frame at a time.

    Args:
        prepare (`Callable`): called with the height and the width before the first frame; what it returns is called
            with each, an array `(height, width, 3)`, in any order, once for a frame that is chosen several times.
    Returns:
        `list` of what was made of the chosen frames, in their order; `None` if the file has no video.
    """
    if seek not in ("index", "scan"):
        raise ValueError(f"`seek` must be 'index' or 'scan', got {seek!r}.")
    answer = _Frames(limits or Limits(), num_frames, training, generator, prepare)
    with _drawing(answer):
        options = {"num_frames": num_frames, "seek": seek, "num_threads": num_threads, "window": window}
        _ask("frames", path, answer, **options)
        return answer.result()


def read_audio(
    path: str | os.PathLike, limits: Limits | None = None, window: Window | None = None
) -> np.ndarray | None:
    """Read the whole first audio track, or what is heard in a window.

    Args:
        path (`str` or `os.PathLike`): a local media file.
        limits ([`Limits`], *optional*): what reading may take.
        window (`tuple[float, float | None]`, *optional*): from which second of the file to which, None for its end.
            Of a track longer than a minute it is found as `read_audio_parts` finds parts.
    Returns:
        `np.ndarray` of shape `(samples,)`, float32 in [-1, 1], 16 kHz, the mean of the channels in 16 bits; `None` if
        the file has no audio: no audio track, or one without a single sample.
    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not a media file, fewer packets than the container promises, or decoding fails.
        LimitError: it needs more than the limits allow.
    """
    return _ask("sound", path, _Sound(limits or Limits()), whole=True, window=window).samples()


def read_audio_parts(
    path: str | os.PathLike,
    choose: Callable[[int], list[tuple[int, int]]],
    generator: torch.Generator | None = None,
    limits: Limits | None = None,
    window: Window | None = None,
    contents: Contents | None = None,
    sampling_rate: int = SAMPLING_RATE,
) -> tuple[list[np.ndarray], int] | None:
    """Read of the first audio track only what is needed; of a track of ten minutes or more, decode only that.

    The parts are those of the waveform of `read_audio` to the bit, but in long tracks: there they are placed by
    timestamps, and a codec that carries something over from one packet to the next is given two seconds to recover
    it. PCM and FLAC with a clock as fine as their samples (wav, flac, mp4) are still exact; in Matroska and flv parts
    are placed within a millisecond. A track without steady timestamps is decoded in order.

    Args:
        choose (`Callable`): from the number of samples to ranges `(start, stop)` within it.
        generator (`torch.Generator`, *optional*): what `choose` draws from.
        limits ([`Limits`], *optional*): what reading may take.
        window (`tuple[float, float | None]`, *optional*): as in `read_audio`; what it holds is the track then.
        contents ([`Contents`], *optional*): is filled in, as far as the file opens.
        sampling_rate (`int`): of the samples, in Hz. At another than 16 kHz long tracks are decoded in order.
    Returns:
        The parts, float32 as in `read_audio`, and the number of samples of the track; `None` if there is no audio.
    """
    answer = _Sound(limits or Limits(), generator, choose, contents)
    with _drawing(answer):
        return _ask("sound", path, answer, whole=False, window=window, rate=sampling_rate).parts()


def read_subtitle(path: str | os.PathLike, limits: Limits | None = None, window: Window | None = None) -> str:
    """Read an `.srt` or `.vtt` file as one plain string, without markup and timings; consecutive equal lines merge.

    Of a window, in seconds, it is what is shown at some time of it.

    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not UTF-8, or text without a single timed cue.
        LimitError: it needs more than the limits allow.
    """
    return _ask("subtitle_file", path, _Text(limits or Limits()), window=window).text


def read_subtitle_track(
    path: str | os.PathLike, limits: Limits | None = None, window: Window | None = None
) -> str | None:
    """Read the first text track inside a media file as `read_subtitle` reads a file; `None` if it has no text track.

    Tracks of pictures (DVD, Blu-ray) are not text.
    """
    return _ask("subtitle_track", path, _Text(limits or Limits()), window=window).text


def read_header(path: str | os.PathLike, kind: str, limits: Limits | None = None) -> tuple[bool, float | None]:
    """Whether the header of a file promises a stream, `"video"` or `"audio"`, and the file's duration in seconds."""
    answer = _ask("header", path, _Header(limits or Limits()), stream=kind)
    return answer.promised, answer.seconds


def read_duration(path: str | os.PathLike, limits: Limits | None = None) -> float | None:
    """How many seconds a file lasts, from the beginning of its first stream; `None` if nothing tells.

    Raises:
        FileNotFoundError: there is no such file.
        MediaError: not a media file.
        LimitError: it says that it lasts longer than the limits allow.
    """
    return _ask("duration", path, _Header(limits or Limits())).seconds


__all__ = [
    "LIGHT_MEMORY",
    "Contents",
    "Stop",
    "Stopped",
    "frame_indices",
    "num_processors",
    "prepare_frames",
    "read_audio",
    "read_audio_parts",
    "read_duration",
    "read_frames",
    "read_header",
    "read_subtitle",
    "read_subtitle_track",
    "to_tensor",
]
