"""A thread that runs rounds: when they begin, and that closing it waits no longer than it says."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from headrace.writer.core.periodic_thread import PeriodicThread

HOUR_S = 3_600.0
# Longer than any of these tests lasts when it passes.
LONG_S = 30.0


class Rounds:
    """Counts rounds. Each waits for its turn while `gate` is not set."""

    def __init__(self, seconds: float = HOUR_S) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.over = 0
        self.finished = 0
        self._seconds = seconds

    def run(self) -> float:
        self.begun += 1
        assert self.gate.wait(2 * LONG_S)
        self.over += 1
        return self._seconds

    def finish(self) -> None:
        self.finished += 1

    def hang(self) -> None:
        """Let the next round wait, as one whose storage does not answer."""
        self.gate.clear()


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    rounds = Rounds()
    yield rounds
    rounds.gate.set()


def until_begun(rounds: Rounds, count: int) -> None:
    deadline_s = time.monotonic() + LONG_S
    while rounds.begun < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_the_first_round_begins_at_once_and_the_next_one_when_it_is_woken(rounds: Rounds) -> None:
    thread = PeriodicThread("rounds", rounds.run)
    assert not thread.has_started
    thread.start()
    assert thread.has_started
    until_begun(rounds, 1)
    thread.wake()
    until_begun(rounds, 2)
    assert thread.close(LONG_S)
    assert rounds.begun == 2


def test_a_round_says_when_the_next_one_begins() -> None:
    rounds = Rounds(seconds=0.001)
    thread = PeriodicThread("rounds", rounds.run)
    thread.start()
    until_begun(rounds, 3)
    assert thread.close(LONG_S)


def test_what_is_to_be_done_last_is_done_once_after_the_last_round(rounds: Rounds) -> None:
    thread = PeriodicThread("rounds", rounds.run, rounds.finish)
    thread.start()
    until_begun(rounds, 1)
    assert rounds.finished == 0
    assert thread.close(LONG_S)
    assert rounds.finished == 1


@pytest.mark.parametrize("within_s", [0.0, 0.2, -1.0])
def test_closing_waits_no_longer_than_it_says_for_a_round_that_hangs(rounds: Rounds, within_s: float) -> None:
    rounds.hang()
    thread = PeriodicThread("rounds", rounds.run)
    thread.start()
    until_begun(rounds, 1)
    began_s = time.monotonic()
    assert not thread.close(within_s)
    assert time.monotonic() - began_s < within_s + LONG_S / 4
    assert thread.is_closing
    rounds.gate.set()
    assert thread.close(LONG_S)
    assert rounds.begun == 1, "no round begins after it"


def test_one_that_never_began_is_closed_at_once(rounds: Rounds) -> None:
    assert PeriodicThread("rounds", rounds.run).close(LONG_S)
    assert rounds.begun == 0


def test_a_requested_round_is_one_that_begins_after_the_request(rounds: Rounds) -> None:
    rounds.hang()
    thread = PeriodicThread("rounds", rounds.run)
    thread.start()
    until_begun(rounds, 1)
    await_round = thread.request_round()
    assert not await_round(0.05), "the round that runs may have looked before"
    rounds.gate.set()
    assert await_round(LONG_S)
    assert rounds.over == 2
    assert thread.close(LONG_S)


def test_nobody_waits_for_a_round_of_a_thread_that_has_ended(rounds: Rounds) -> None:
    thread = PeriodicThread("rounds", rounds.run)
    thread.start()
    assert thread.close(LONG_S)
    began_s = time.monotonic()
    assert not thread.request_round()(LONG_S)
    assert time.monotonic() - began_s < LONG_S / 2


def test_what_may_wake_a_thread_that_has_ended_keeps_nothing_of_its_rounds() -> None:
    """A driver starts a pipeline many times, and the listeners of its commits are those of every start."""
    rounds = Rounds()
    thread = PeriodicThread("rounds", rounds.run, rounds.finish)
    thread.start()
    wake = thread.wake
    assert thread.close(LONG_S)
    assert rounds.finished == 1
    leftover = weakref.ref(rounds)
    del rounds, thread
    gc.collect()
    assert leftover() is None
    wake()
