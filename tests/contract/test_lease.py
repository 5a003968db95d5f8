"""What every keeper of leases promises. One suite, every adapter."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from recovery.holding import Held, Waiting
from recovery.lease import Leases, StoreLeases, Watched, free, watched
from tests.servers.objects import ObjectServer
from writer.stores.location import store_at

SHORT = timedelta(seconds=2)


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return f"{tmp_path}/checkpoints/clicks"
    server: ObjectServer = request.getfixturevalue("on_s3")
    return f"{server.bucket()}/checkpoints/clicks"


@pytest.fixture
def leases(location: str) -> Callable[[], Leases]:
    """Make one more who looks at the same lease."""
    return lambda: StoreLeases(store_at(location))


def never(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def test_there_is_none_until_somebody_takes_it_with_the_next_epoch(leases: Callable[[], Leases]) -> None:
    one, two = leases(), leases()
    assert one.look() is None
    assert one.take(1, "a")
    seen = two.look()
    assert seen is not None
    assert (seen.epoch, seen.holder, seen.released) == (1, "a", False)
    assert not two.take(1, "b")
    assert two.take(2, "b")
    assert not one.renew(1, "a"), "what is lost stays lost"
    assert two.renew(2, "b")
    newest = one.look()
    assert newest is not None
    assert (newest.epoch, newest.holder) == (2, "b")


def test_a_renewal_is_seen_and_standing_still_is_too(leases: Callable[[], Leases]) -> None:
    one, two = leases(), leases()
    assert one.take(1, "a")
    first = two.look()
    assert two.look() == first
    assert one.renew(1, "a")
    second = two.look()
    assert second != first
    assert one.renew(1, "a")
    assert two.look() != second
    one.release(1, "a")
    released = two.look()
    assert released is not None
    assert released.released


def test_of_many_who_take_it_at_once_one_has_it(leases: Callable[[], Leases]) -> None:
    for epoch in (1, 2, 3):
        won: list[int] = []
        ready = threading.Barrier(8)

        def grab(n: int, epoch: int = epoch, won: list[int] = won, ready: threading.Barrier = ready) -> None:
            mine = leases()
            ready.wait()
            if mine.take(epoch, str(n)):
                won.append(n)

        threads = [threading.Thread(target=grab, args=[n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


def test_a_straggler_does_not_take_a_number_that_is_long_past(leases: Callable[[], Leases]) -> None:
    one = leases()
    for epoch in range(1, 30):
        assert one.take(epoch, "a")
    assert not leases().take(3, "b"), "its object was cleaned up, but it is not the newest"
    newest = one.look()
    assert newest is not None
    assert newest.epoch == 29
    assert not one.renew(5, "a"), "many have held it since"


def test_only_silence_by_ones_own_clock_frees_a_lease(leases: Callable[[], Leases]) -> None:
    one = leases()
    assert one.take(1, "a")
    watch = watched(None, one.look(), 100.0)
    assert not free(watch, 119.9, timedelta(seconds=20))
    assert free(watch, 120.0, timedelta(seconds=20))
    assert one.renew(1, "a")
    assert watched(watch, one.look(), 119.0) == Watched(one.look(), 119.0)


def test_the_second_waits_says_for_whom_and_takes_over_at_a_release(leases: Callable[[], Leases]) -> None:
    first = Held({"clicks": leases()}, "host-a", expires_after=SHORT)
    assert first.take(never)
    waiting: list[Waiting] = []
    second = Held({"clicks": leases()}, "host-b", expires_after=SHORT)
    taken = threading.Thread(target=lambda: second.take(never, waiting.append))
    taken.start()
    time.sleep(2 * SHORT.total_seconds())
    assert second.epochs == {}, "the first renews it"
    assert [(w.pipeline, w.seen.holder, w.seen.epoch) for w in waiting] == [("clicks", "host-a", 1)]
    first.close()
    taken.join(10)
    assert second.epochs == {"clicks": 2}
    assert first.lost is None
    second.close()


def test_one_that_is_told_to_give_up_releases_what_it_has(leases: Callable[[], Leases], tmp_path: Path) -> None:
    other = StoreLeases(store_at(f"{tmp_path}/other"))
    assert other.take(1, "host-a")
    both = Held({"clicks": leases(), "views": other}, "host-b", expires_after=timedelta(hours=1))
    assert not both.take(lambda _: True)
    seen = leases().look()
    assert seen is not None
    assert seen.released


def removed(location: str) -> None:
    """Remove all that lies there, as somebody does who was told that checkpoints are disposable."""
    store = store_at(location)
    for name in list(store.list("_lease")):
        store.delete(f"_lease/{name}")


def test_a_lease_that_was_removed_is_put_anew_by_its_holder(leases: Callable[[], Leases], location: str) -> None:
    one, two = leases(), leases()
    assert one.take(4, "a")
    removed(location)
    assert one.renew(4, "a")
    newest = two.look()
    assert newest is not None
    assert (newest.epoch, newest.holder) == (4, "a")
    removed(location)
    assert two.take(7, "b")
    assert not one.renew(4, "a"), "who came meanwhile has it"


def test_leases_that_were_removed_go_on_above_what_the_table_knows(leases: Callable[[], Leases]) -> None:
    held = Held({"clicks": leases()}, "host-a", expires_after=SHORT, least=lambda _: 6)
    assert held.take(never)
    assert held.epochs == {"clicks": 7}
    held.close()
    again = Held({"clicks": leases()}, "host-b", expires_after=SHORT, least=lambda _: 6)
    assert again.take(never)
    assert again.epochs == {"clicks": 8}
    again.close()


HOLDER = """
import sys, time
from datetime import timedelta
from recovery.holding import Held
from recovery.lease import StoreLeases
from writer.stores.location import store_at
held = Held({"clicks": StoreLeases(store_at(sys.argv[1]))}, "paused", expires_after=timedelta(seconds=2))
held.take(lambda s: time.sleep(s))
print("taken", flush=True)
while held.lost is None:
    time.sleep(0.05)
print("lost", held.lost, flush=True)
"""


@pytest.mark.slow
def test_a_holder_that_was_stopped_past_its_time_finds_that_it_has_lost(location: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, location], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "taken\n"
        os.kill(process.pid, signal.SIGSTOP)
        heir = Held({"clicks": StoreLeases(store_at(location))}, "heir", expires_after=SHORT)
        assert heir.take(never)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "lost clicks\n"
        assert process.wait(10) == 0
        assert heir.lost is None
        heir.close()
    finally:
        process.kill()
        process.wait()
