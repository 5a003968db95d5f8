"""Several processes that want one lease: in any order of takes, take-overs, renewals and ends nobody fights."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from headrace.writer.lease import holder as holder_module
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.lease import StoreLeases
from headrace.writer.storage.base import Mark, StoredObject

EXPIRY_S = 20
PROCESSES = range(3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["try", "take over", "renew", "end"]), st.sampled_from(PROCESSES)),
        st.tuples(st.just("pass"), st.integers(1, 2 * EXPIRY_S)),
    ),
    max_size=60,
)


class MemoryStore:
    """Objects in memory. A mark counts the puts."""

    def __init__(self) -> None:
        self._objects = dict[str, StoredObject]()
        self._puts = 0

    def read(self, name: str) -> StoredObject | None:
        return self._objects.get(name)

    def mark(self, name: str) -> Mark | None:
        stored = self._objects.get(name)
        return None if stored is None else stored.mark

    def put(self, name: str, content: bytes) -> None:
        self._puts += 1
        self._objects[name] = StoredObject(content, (self._puts,))

    def put_if_absent(self, name: str, content: bytes) -> bool:
        if name in self._objects:
            return False
        self.put(name, content)
        return True

    def list(self, folder: str) -> Iterator[str]:
        return iter([name.removeprefix(f"{folder}/") for name in self._objects])

    def delete(self, name: str) -> None:
        self._objects.pop(name, None)


class NoThread:
    """In the place of the thread that renews: the steps do."""

    has_started = True
    is_closing = False

    def close(self, within_s: float) -> bool:  # noqa: ARG002 - the interface of a thread
        return True


class Clock:
    """A monotonic clock that passes when a step says so."""

    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Oracle:
    """Who has the lease, and when that process last showed that it lives. None: nobody, or it was given back."""

    process: int | None = None
    shown_s: float = 0.0


def make_holders() -> list[LeaseHolder]:
    store = MemoryStore()
    holders = []
    for process in PROCESSES:
        leases = StoreLeases(store)  # type: ignore[arg-type]
        holder = LeaseHolder({"clicks": leases}, f"host/{process}", expires_after=timedelta(seconds=EXPIRY_S))
        holder._thread = NoThread()  # type: ignore[assignment]
        holders.append(holder)
    return holders


def play(step: str, process: int, holders: list[LeaseHolder], oracle: Oracle, now_s: float) -> None:
    """Make one step of a process, and judge it by the oracle."""
    holder = holders[process]
    had_it = bool(holder.epochs)
    is_owner = oracle.process == process
    if step == "renew":
        holder.renew()
        assert bool(holder.epochs) == (had_it and is_owner), "what is lost stays lost, and is noticed at a renewal"
        if is_owner and had_it:
            oracle.shown_s = now_s
    elif step == "try":
        took_it = holder.try_take("clicks") and not had_it
        is_silent = now_s - oracle.shown_s >= EXPIRY_S
        assert not took_it or oracle.process is None or is_silent, "it took the lease of a process that lives"
        assert had_it or took_it or oracle.process is not None, "a lease that was given back is taken at once"
        if took_it:
            oracle.process = process
            oracle.shown_s = now_s
    elif step == "take over" and not had_it:
        assert holder.take_over("clicks")
        oracle.process = process
        oracle.shown_s = now_s
    elif step == "end":
        holder.release("clicks")
        assert not holder.epochs
        if is_owner and had_it:
            oracle.process = None


@given(STEPS)
def test_a_lease_is_taken_from_no_process_that_renews_it_but_by_a_take_over(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(holder_module, "time", clock)
        holders = make_holders()
        oracle = Oracle()
        for step, value in steps:
            if step == "pass":
                clock.now_s += value
            else:
                play(step, value, holders, oracle, clock.now_s)
        for holder in holders:
            holder.renew()
        owners = [process for process, holder in enumerate(holders) if holder.epochs]
        assert len(owners) <= 1
        assert not owners or owners == [oracle.process]
        # Who has it dies. Another one that looks again and again has it once it was silent for long enough.
        heir = holders[next(process for process in PROCESSES if process not in owners)]
        heir.try_take("clicks")
        clock.now_s += EXPIRY_S
        assert heir.try_take("clicks")


@given(st.lists(st.sampled_from(PROCESSES), min_size=1, max_size=12))
def test_who_lost_a_lease_waits_for_as_long_as_it_is_renewed(take_overs: list[int]) -> None:
    """Each take-over is followed by many looks of those who lost."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(holder_module, "time", clock)
        holders = make_holders()
        for process in take_overs:
            assert holders[process].take_over("clicks")
            for _ in range(10):
                clock.now_s += EXPIRY_S / 4
                for holder in holders:
                    holder.renew()
                for other in PROCESSES:
                    assert holders[other].try_take("clicks") == (other == process)
        losses = sum(holder.losses["clicks"] for holder in holders)
        changes = sum(before != after for before, after in pairwise(take_overs))
        assert losses == changes, "one for each take-over by another process"
