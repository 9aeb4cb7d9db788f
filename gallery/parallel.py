"""Several processes, of `accelerate launch`, that embed together: the first deals out work and writes, all embed.

Batches are dealt out in rounds: each process gets one, reads some rounds ahead, and hands over what it embedded of one
before it asks for another. So what is written, and in which order, is what one process would have written. The
processes talk through the CPU, wherever they compute: what they say is small, and a process that waits there is told
at once when another one has died. A machine that loses power or network closes no connection: nobody is told of that.
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
"""From batches to their results, in order; asks for so many more, the number, before it gives one."""

_KEPT = "What was embedded before is kept: give the same command again, and it goes on there."


def num_local_processes() -> int:
    """How many processes `accelerate launch` started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@dataclass(frozen=True)
class _Failure:
    """Why a process cannot go on."""

    message: str


class Crew:
    """
    The processes of a run, by default this one alone. To be made by all of them at the same place.

    In a `with` statement, those that wait for a process end when it leaves, although it may live on.

    Args:
        state (`PartialState`, *optional*): of `accelerate`, which makes several know each other.
    """

    def __init__(self, state: PartialState | None = None):
        self.size, self.is_main = (1, True) if state is None else (state.num_processes, state.is_main_process)
        self._state, self._group = state, None
        if self.size > 1:
            # The default of half an hour would end a run in which a process waits longer for another's batch.
            self._group = torch.distributed.new_group(backend="gloo", timeout=timedelta(days=7))
            self._on_term = signal.signal(signal.SIGTERM, _end) if self.is_main else None

    @classmethod
    def launched(cls) -> "Crew":
        """The processes that `accelerate launch` started, or this one if it was started by itself."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        # Without an accelerator, accelerate makes several processes know each other only if the CPU is asked for.
        return cls(PartialState(parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()))

    @property
    def device(self) -> torch.device:
        """
        Where this process computes.

        On a CPU that is "cpu" however many processes there are. `accelerate` numbers it, and `model.to("cpu:0")`
        copies weights that lie in a mapped file to other addresses, at which some machines add products in another
        order.
        """
        if self._state is None:
            from modeling_scalar.devices import default_device  # transformers come with it

            return default_device()
        return torch.device("cpu") if self._state.device.type == "cpu" else self._state.device

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._group is not None:
            torch.distributed.destroy_process_group(self._group)
            self._group = None  # which closes the connections
            if self.is_main:
                signal.signal(signal.SIGTERM, self._on_term)

    @contextmanager
    def together(self) -> Iterator[None]:
        """
        Wait for all processes at the end; if one fails, the first raises why and the others end.

        Raises:
            ValueError, OSError: what this process, the first one, raised.
            ValueError: another one has failed, or died.
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
                raise SystemExit(1)  # the launcher asks for the status; one message is enough
            raise caught or ValueError("\n".join(dict.fromkeys(failures)))

    def lead(self, batches: Iterator[Share], compute: Compute, ahead: int) -> Generator[list[Result], None, None]:
        """
        Deal out batches; called by the first process, which computes too.

        Args:
            batches (`Iterator`): what can be sent to other processes.
            compute ([`Compute`]): what is done with them.
            ahead (`int`): how many rounds are read ahead, by all processes.

        Yields:
            The results of so many batches, in their order, as there are processes, or as are left.

        Raises:
            ValueError: another process has failed, or died.
        """
        sizes: list[int] = []
        dealt: deque[Share | None] = deque()  # to this process, which has not asked for it
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
                    deal()  # so that others go on while these are written
                yield found[: sizes.pop(0)]

    def follow(self, compute: Compute) -> None:
        """
        Compute what [`Crew.lead`] deals out in the first process, until there is no more.

        Raises:
            SystemExit: this process or another one has failed, which the first process tells.
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
                    pass  # what the first process deals out before it asks for a result, and can be told
                self._collect(_Failure(str(error)))
                raise SystemExit(1) from error
        except KeyboardInterrupt:  # while it fails, too
            raise SystemExit(130) from None

    def _deal(self, shares: Sequence[Any] | None = None) -> Any:
        """Give each process its own of the shares that the first process has; returns that of this one."""
        if self.size == 1:
            return shares[0]
        found = [None]
        given = shares if self.is_main else None
        self._wait_for(lambda: torch.distributed.scatter_object_list(found, given, src=0, group=self._group))
        return found[0]

    def _collect(self, result: Any) -> list[Any] | None:
        """Give the first process what each has; only there is anything returned."""
        if self.size == 1:
            return [result]
        found = [None] * self.size if self.is_main else None
        self._wait_for(lambda: torch.distributed.gather_object(result, found, dst=0, group=self._group))
        return found

    def _wait_for(self, talk: Callable[[], None]) -> None:
        """Talk with the others in a thread: signals, such as Ctrl-C, are not heard where something waits in C++."""
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
            self._group = None  # the thread still waits with it
            raise


def _end(*_: object) -> NoReturn:
    """What the launcher's signal to end means: it sends it when one of the processes has died."""
    raise KeyboardInterrupt(f"The launcher ended this run; another process of it may have died. {_KEPT}")


__all__ = ["Compute", "Crew", "num_local_processes"]
