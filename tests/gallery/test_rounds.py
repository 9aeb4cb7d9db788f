"""What the processes of a crew say to each other, each in turn: played by threads, none of which may wait in vain."""

import os
import signal
import threading
from collections import deque
from functools import partial

import pytest

from gallery.parallel import Crew

AHEAD = 2


class Table:
    """Where players meet: all must want the same at the same time, and who has left is missed by the others."""

    def __init__(self, size):
        self.size, self.condition, self.given, self.rounds, self.has_left = size, threading.Condition(), {}, [], False

    def meet(self, place, what, thing):
        with self.condition:
            number = len(self.rounds)
            self.given[place] = (what, thing)
            if len(self.given) == self.size:
                self.rounds.append(self.given)
                self.given = {}
                self.condition.notify_all()
            is_reported = self.condition.wait_for(lambda: len(self.rounds) > number or self.has_left, timeout=20)
            assert is_reported, f"{place} waits in vain"
            if len(self.rounds) == number:
                raise RuntimeError("Connection closed by peer")
            given = self.rounds[number]
        assert {kind for kind, _ in given.values()} == {what}, f"some want to {given}"
        return [given[place][1] for place in range(self.size)]

    def leave(self):
        with self.condition:
            self.has_left = True
            self.condition.notify_all()


class Player(Crew):
    def __init__(self, table, place, size):
        self.table, self.place, self.size, self.is_main = table, place, size, place == 0

    def _deal(self, shares=None):
        return self._say("deal", shares)[0][self.place]

    def _collect(self, result):
        return self._say("collect", result)

    def _say(self, what, thing):
        said = []
        self._wait_for(lambda: said.extend(self.table.meet(self.place, what, thing)))
        return said


def computing(batches, ahead, fails_at=None, error=None):
    """Squares, as late as they are computed by readers; fails once it has been asked for so many shares, or has
    given so many results."""
    waiting, asked, given = deque(), 0, 0

    def look():
        if fails_at in (("asked", asked), ("given", given)):
            raise error

    look()
    for batch in batches:
        waiting.append([number * number for number in batch])
        asked += 1
        look()
        if len(waiting) > ahead:
            yield waiting.popleft()
            given += 1
            look()
    while waiting:
        yield waiting.popleft()
        given += 1


def play(size, num_batches, place=None, fails_at=None, error=None):
    """What the first process got of so many batches, and how each ended."""
    table, got, ends = Table(size), [], [None] * size

    def run(number):
        player = Player(table, number, size)
        options = {"fails_at": fails_at, "error": error} if number == place else {}
        try:
            if number:
                player.follow(partial(computing, **options))
            else:
                batches = ([start, start + 1] for start in range(num_batches))
                for results in player.lead(batches, partial(computing, **options), AHEAD):
                    got.extend(results)
        except BaseException as end:
            ends[number] = end
        finally:
            table.leave()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return got, ends


def reported(num_batches):
    return [[start**2, (start + 1) ** 2] for start in range(num_batches)]


@pytest.mark.parametrize("num_batches", [0, 1, 2, 3, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_are_those_of_one_process_in_order(size, num_batches):
    got, ends = play(size, num_batches)
    assert got == reported(num_batches) and ends == [None] * size


MOMENTS = [("asked", number) for number in range(5)] + [("given", number) for number in range(4)]


@pytest.mark.parametrize("num_rounds", [1, 2, 4, 7])
@pytest.mark.parametrize("fails_at", MOMENTS)
@pytest.mark.parametrize("place", [1, 2])
def test_whenever_a_process_fails_the_first_one_says_why(fails_at, place, num_rounds):
    what, number = fails_at
    got, ends = play(3, 3 * num_rounds - 1, place, fails_at, OSError("too many open files"))
    assert got == reported(3 * num_rounds - 1)[: len(got)]
    if number <= (num_rounds if what == "asked" else max(0, num_rounds - AHEAD)):
        assert isinstance(ends[0], ValueError) and str(ends[0]) == "too many open files"
        assert isinstance(ends[place], SystemExit) and ends[place].code == 1
        assert num_rounds == 1 or isinstance(ends[3 - place], SystemExit)  # the only round was all that it had to do
        assert len(got) == (max(0, number - AHEAD - 1) if what == "asked" else number) * 3
    else:  # it had less to do
        assert ends == [None] * 3 and len(got) == 3 * num_rounds - 1


@pytest.mark.parametrize("fails_at", MOMENTS)
@pytest.mark.parametrize(("place", "error"), [(0, ValueError("damaged")), (1, RuntimeError("a fault of ours"))])
def test_whenever_a_process_dies_all_others_end(fails_at, place, error):
    got, ends = play(3, 20, place, fails_at, error)
    assert got == reported(20)[: len(got)] and len(got) < 20
    assert ends[place] is error and isinstance(ends[2], SystemExit)
    assert place == 0 or "Another process of this run has ended" in str(ends[0])


@pytest.mark.parametrize("moment", ["deal", "collect"])
def test_ctrl_c_while_a_process_tells_of_its_failure_ends_it_quietly(moment):
    class Interrupted(Player):
        def _say(self, what, thing):
            if what == moment:
                raise KeyboardInterrupt
            return [[None, 0]]

    def fail(shares, ahead):
        raise OSError("too many open files")
        yield

    with pytest.raises((SystemExit, KeyboardInterrupt)) as end:  # the latter would end the tests
        Interrupted(None, 1, 2).follow(fail)
    assert end.type is SystemExit and end.value.code == 130


def test_ctrl_c_is_heard_while_a_process_waits_for_another():
    player, threads, answer = Player(Table(2), 0, 2), [], threading.Event()

    def talk():
        threads.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)
        answer.wait(20)

    with pytest.raises(KeyboardInterrupt):
        player._wait_for(talk)
    assert len(threads) == 1 and threads[0] is not threading.main_thread() and threads[0].is_alive()
    answer.set()
    threads[0].join(20)
