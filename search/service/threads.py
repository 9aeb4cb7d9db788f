"""Where the calls of requests wait: each kind in threads of its own, so that none keeps another kind waiting."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

SEARCHES = min(4, os.cpu_count() or 1)
"""At once: each takes all cores that torch may use."""
_READERS = 8
_ASKING = 4  # at once: which file a clip is of
_END_SECONDS = 3.0  # to wait for a search, which may wait for an engine


async def call_in(pool: Executor, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a thread of a pool."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))


class Pool(Executor):
    """
    A pool of threads that neither the end of the service nor that of the process waits for, as it does for those of a
    `ThreadPoolExecutor`.

    Args:
        most (`int`): threads; they start when they are needed.
        name (`str`): what they are called.
    """

    def __init__(self, most: int, name: str):
        self._most, self._name, self._is_closed, self._lock = most, name, False, Lock()
        self._calls: SimpleQueue[tuple[Future, Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future:
        """Call a function in a thread."""
        future: Future = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("The service is about to end.")
            self._calls.put((future, partial(function, *arguments, **options)))
            if len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function  # which would be kept until the next call

    def end(self, seconds: float) -> None:
        """Take no more calls, drop those that nobody makes yet, and wait so long for the others."""
        with self._lock:
            self._is_closed = True
            with suppress(Empty):
                while True:
                    self._calls.get_nowait()[0].cancel()
            for _ in self._threads:
                self._calls.put(None)
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


class Threads:
    """The pools: of what may wait for an engine none waits for another, and nothing else does."""

    def __init__(self):
        self.model, self.files = ThreadPoolExecutor(1, "model"), ThreadPoolExecutor(_READERS, "read")
        self.searches, self.summaries, self.paths = (
            Pool(SEARCHES, "search"), Pool(_ASKING, "about"), Pool(_ASKING, "path")
        )  # fmt: skip

    def end(self) -> None:
        """Wait for the model and for files, and only a little for what may wait for an engine."""
        until = time.monotonic() + _END_SECONDS
        for pool in (self.model, self.files):
            pool.shutdown(wait=True, cancel_futures=True)
        for pool in (self.searches, self.summaries, self.paths):
            pool.end(until - time.monotonic())


__all__ = ["SEARCHES", "Pool", "Threads", "call_in"]
