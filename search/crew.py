"""Several processes, of `accelerate launch`, that index together: the first finds the files and writes, all embed.

Batches are dealt out in rounds: each process gets one, reads some rounds ahead, and hands over what it embedded of one
before it asks for another. So what is written, and in which order, is what one process would have written. The
processes talk through the CPU, wherever they compute: what they say is small, and a process that waits there is told
at once when another one has died. A machine that loses power or network closes no connection: nobody is told of that.
"""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch

if TYPE_CHECKING:
    from accelerate import PartialState

Share, Result = TypeVar("Share"), TypeVar("Result")

_KEPT = "What was embedded before is kept: give the same command again, and it goes on there."


@dataclass(frozen=True)
class _Failure:
    """Why a process cannot go on."""

    message: str


class Crew:
    """
    The processes of a run. To be made by all of them at the same place.

    Args:
        state (`PartialState`): of [`~gallery.parallel.start_processes`].
        ahead (`int`): how many rounds are read ahead; that of the first process counts.
    """

    def __init__(self, state: "PartialState", ahead: int):
        self.size, self.is_main = state.num_processes, state.is_main_process
        self._group = torch.distributed.new_group(backend="gloo", timeout=timedelta(days=7))
        self.ahead = self._deal([ahead] * self.size)
        if self.is_main:
            signal.signal(signal.SIGTERM, _end)

    def lead(
        self,
        batches: Iterator[Share],
        compute: Callable[[Iterable[Share]], Generator[Result, None, None]],
    ) -> Generator[list[Result], None, None]:
        """
        Deal out batches; called by the first process, which computes too.

        Args:
            batches (`Iterator`): what can be sent to other processes.
            compute (`Callable`): from batches to their results, in order; asks for `ahead` more before it gives one.

        Yields:
            The results of so many batches, in their order, as there are processes, or as are left.

        Raises:
            ValueError: another process has failed, or died.
        """
        sizes: list[int] = []

        def mine() -> Iterator[Share]:
            while shares := list(islice(batches, self.size)):
                sizes.append(len(shares))
                yield self._deal([*shares, *[[]] * (self.size - len(shares))])
            self._deal([None] * self.size)

        with closing(compute(mine())) as results:
            for result in results:
                found = self._collect(result)
                if failures := [one.message for one in found if isinstance(one, _Failure)]:
                    raise ValueError("\n".join(dict.fromkeys(failures)))
                yield found[: sizes.pop(0)]

    def follow(self, compute: Callable[[Iterable[Share]], Generator[Result, None, None]]) -> None:
        """
        Compute what is dealt out, until there is no more.

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
            try:
                with closing(compute(shares)) as results:
                    for result in results:
                        self._collect(result)
                        num_done += 1
            except (OSError, ValueError) as error:
                for _ in islice(shares, num_done + self.ahead + 1 - num_dealt):
                    pass  # what the first process deals out before it asks for a result, and can be told
                self._collect(_Failure(str(error)))
                raise SystemExit(1) from error
        except KeyboardInterrupt:  # while it fails, too
            raise SystemExit(130) from None

    def _deal(self, shares: Sequence[Any] | None = None) -> Any:
        """Give each process its own of the shares that the first process has; returns that of this one."""
        found = [None]
        given = shares if self.is_main else None
        self._wait_for(lambda: torch.distributed.scatter_object_list(found, given, src=0, group=self._group))
        return found[0]

    def _collect(self, result: Any) -> list[Any] | None:
        """Give the first process what each has; only there is anything returned."""
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


def _end(*_: object) -> NoReturn:
    """What the launcher's signal to end means: it sends it when one of the processes has died."""
    raise KeyboardInterrupt(f"The launcher ended this run; another process of it may have died. {_KEPT}")


__all__ = ["Crew"]
