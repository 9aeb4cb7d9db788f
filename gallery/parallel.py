"""Processes started by `accelerate launch` that embed together: the first one deals out work and writes, all embed.

Batches are dealt out in rounds: each process gets one, reads some rounds ahead, and delivers its results for one batch
before it requests another. So the same is written, in the same order, as by one process. The processes communicate
through the CPU, wherever they compute: their messages are small, and a process that waits learns at once if another
one dies. If a machine loses power or network, no connection is closed, and the others do not learn of it.
"""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from threading import Thread
from typing import Any, NoReturn, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

Share, Result = TypeVar("Share"), TypeVar("Result")
Compute = Callable[[Iterable[Share], int], Generator[Result, None, None]]
"""From batches to their results, in order; the number says how many batches to request ahead of a result."""

_KEPT = "What was embedded before is saved: run the same command again to continue."


def num_local_processes() -> int:
    """The number of processes that `accelerate launch` started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@dataclass(frozen=True)
class _Failure:
    """Why a process cannot continue."""

    message: str


class Crew:
    """
    The processes of a run, by default only this one. All of them must create it at the same point.

    In a `with` statement, the waiting processes end when this one leaves it, even if it lives on.

    Args:
        state (`PartialState`, *optional*): state of `accelerate`, through which processes find each other.
    """

    def __init__(self, state: PartialState | None = None):
        self.size, self.is_main = (1, True) if state is None else (state.num_processes, state.is_main_process)
        self._state, self._group = state, None
        if self.size > 1:
            # The default of half an hour would end a run in which a process waits longer for a batch of another one.
            self._group = torch.distributed.new_group(backend="gloo", timeout=timedelta(days=7))
            self._on_term = signal.signal(signal.SIGTERM, _end) if self.is_main else None

    @classmethod
    def launched(cls) -> "Crew":
        """The processes that `accelerate launch` started, or only this one if it was started directly."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        # Without an accelerator, accelerate connects several processes only if the CPU is requested.
        return cls(PartialState(parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()))

    @property
    def device(self) -> torch.device:
        """
        Where this process computes.

        On a CPU this is "cpu" for any number of processes. `accelerate` numbers it, and `model.to("cpu:0")` copies
        weights in a mapped file to other addresses, where some machines add products in another order.
        """
        if self._state is None:
            from modeling_scalar.model_identity import default_device  # it imports transformers

            return default_device()
        return torch.device("cpu") if self._state.device.type == "cpu" else self._state.device

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._group is not None:
            torch.distributed.destroy_process_group(self._group)
            self._group = None  # this closes the connections
            if self.is_main:
                signal.signal(signal.SIGTERM, self._on_term)

    @contextmanager
    def together(self) -> Iterator[None]:
        """
        Wait for all processes at the end; if one fails, the first one raises the reason and the others end.

        Raises:
            ValueError, OSError: raised by this process, the first one.
            ValueError: another process has failed or died.
            SystemExit: in all but the first.
        """
        caught = None
        try:
            yield
        except (OSError, ValueError) as error:
            caught = error
        found = self._collect(None if caught is None else _Failure(str(caught)))
        failures = [one.message for one in found or () if one is not None]
        if self._deal([bool(failures)] * self.size):
            if not self.is_main:
                raise SystemExit(1)  # for the launcher; one message is enough
            raise caught or ValueError("\n".join(dict.fromkeys(failures)))

    def lead(self, batches: Iterator[Share], compute: Compute, ahead: int) -> Generator[list[Result], None, None]:
        """
        Deal out batches; called by the first process, which also computes.

        Args:
            batches (`Iterator`): anything that can be sent to other processes.
            compute ([`Compute`]): what to do with them.
            ahead (`int`): number of rounds that all processes read ahead.

        Yields:
            The results of a round, in order: one batch per process, fewer at the end.

        Raises:
            ValueError: another process has failed or died.
        """
        sizes: list[int] = []
        dealt: deque[Share | None] = deque()  # to this process, which has not requested it yet
        self._deal([ahead] * self.size)

        def deal() -> None:
            shares = list(islice(batches, self.size))
            sizes.append(len(shares))
            padded = [*shares, *[[]] * (self.size - len(shares))] if shares else [None] * self.size
            dealt.append(self._deal(padded))

        def mine() -> Iterator[Share]:
            while True:
                if not dealt:
                    deal()
                if (share := dealt.popleft()) is None:
                    return
                yield share

        with closing(compute(mine(), ahead)) as results:
            for result in results:
                found = self._collect(result)
                if failures := [one.message for one in found if isinstance(one, _Failure)]:
                    raise ValueError("\n".join(dict.fromkeys(failures)))
                if sizes[-1]:
                    deal()  # so that others continue while these are written
                yield found[: sizes.pop(0)]

    def follow(self, compute: Compute) -> None:
        """
        Compute what [`Crew.lead`] deals out in the first process, until nothing is left.

        Raises:
            SystemExit: this process or another one has failed; the first process reports it.
        """
        num_dealt = num_done = 0

        def mine() -> Iterator[Share]:
            nonlocal num_dealt
            while (share := self._deal()) is not None:
                num_dealt += 1
                yield share

        shares = mine()
        try:
            ahead = self._deal()
            try:
                with closing(compute(shares, ahead)) as results:
                    for result in results:
                        self._collect(result)
                        num_done += 1
            except (OSError, ValueError) as error:
                for _ in islice(shares, num_done + ahead + 1 - num_dealt):
                    pass  # receive what the first process deals out before it collects results
                self._collect(_Failure(str(error)))
                raise SystemExit(1) from error
        except KeyboardInterrupt:  # also while it fails
            raise SystemExit(130) from None

    def _deal(self, shares: Sequence[Any] | None = None) -> Any:
        """Give each process its part of the shares that the first process has; returns that of this one."""
        if self.size == 1:
            return shares[0]
        found = [None]
        given = shares if self.is_main else None
        self._wait_for(lambda: torch.distributed.scatter_object_list(found, given, src=0, group=self._group))
        return found[0]

    def _collect(self, result: Any) -> list[Any] | None:
        """Send the result of each process to the first; returns them there, `None` elsewhere."""
        if self.size == 1:
            return [result]
        found = [None] * self.size if self.is_main else None
        self._wait_for(lambda: torch.distributed.gather_object(result, found, dst=0, group=self._group))
        return found

    def _wait_for(self, talk: Callable[[], None]) -> None:
        """Communicate in a thread: signals such as Ctrl-C are not handled while C++ code waits."""
        said: Future[None] = Future()

        def run() -> None:
            try:
                said.set_result(talk())
            except BaseException as error:
                said.set_exception(error)

        Thread(target=run, daemon=True).start()
        try:
            said.result()
        except RuntimeError as error:
            if not self.is_main:
                raise SystemExit(1) from error
            raise ValueError(f"Another process of this run has ended. {_KEPT}") from error
        except KeyboardInterrupt:
            self._group = None  # the thread is still waiting on it
            raise


def _end(*_: object) -> NoReturn:
    """Handle the signal by which the launcher ends a run when one of its processes has died."""
    raise KeyboardInterrupt(f"The launcher ended this run; another process of it may have died. {_KEPT}")


__all__ = ["Compute", "Crew", "num_local_processes"]
