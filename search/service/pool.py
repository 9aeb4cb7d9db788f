"""Threads whose end nobody waits for: what they ask may not answer for a while."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any


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


__all__ = ["Pool"]
