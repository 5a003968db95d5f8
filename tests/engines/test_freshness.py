"""How old an event is when an analyst can first see it: from the producer to Trino, measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

import pytest
from confluent_kafka import Producer

from headrace.bench.engines.statement import Coordinator
from headrace.bench.engines.trino import register
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
MAX_DELAY = timedelta(minutes=1)
WORK_MAX = timedelta(minutes=1)  # for a batch and a query beside it; seen: a few seconds on a quiet machine
PRODUCE_FOR = 2.2 * MAX_DELAY  # over two commits at least
EVERY = timedelta(milliseconds=500)


@dataclass
class Watched:
    """When each event was given to Kafka, and when it was first seen, by its offset. Seconds of one clock."""

    produced: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)

    def found(self, newest: int) -> None:
        """Note that all up to an offset are visible now."""
        now = time.monotonic()
        self.seen.update({offset: now for offset in self.produced if offset <= newest and offset not in self.seen})

    def ages_s(self) -> list[float]:
        """How old the events were when they were first seen, in order."""
        return sorted(self.seen[offset] - self.produced[offset] for offset in self.produced)


def test_an_event_is_seen_in_trino_within_the_delay_of_a_commit_and_a_batch(
    lakes: Path, bootstrap: str, registry_url: str, topic: Callable[..., str], trino: Coordinator,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = topic(1, prefix="fresh")
    site = Site(lakes / "fresh_site", bootstrap, registry_url)
    site.root.mkdir()
    location = lakes / "fresh"
    site.pipeline(
        "events", [name], table={"location": str(location)}, commit={"max_delay": f"{MAX_DELAY.total_seconds():g} s"}
    )
    events = site.values(name, 1 + PRODUCE_FOR // EVERY)
    site.send(name, events[:1])  # what is there at the start is committed at once
    writer = site.start()
    writer.until(lambda: writer.commits() > 0, 300)
    register(trino, "fresh", "local:///fresh")
    watched = _watched(writer, trino, name, events, Producer({"bootstrap.servers": bootstrap}))
    commits = writer.commits()
    writer.stop()
    ages = watched.ages_s()
    summary = f"median {median(ages):.1f} s, p95 {ages[int(0.95 * len(ages))]:.1f} s, most {ages[-1]:.1f} s"
    with capsys.disabled():
        print(f"\nfreshness in Trino at max_delay {MAX_DELAY}: {summary}, of {len(ages)} events in {commits} commits")
    assert len(ages) == len(events) - 1
    assert ages[-1] <= (MAX_DELAY + WORK_MAX).total_seconds()
    assert commits <= 2 + PRODUCE_FOR / MAX_DELAY + 1, "the delay held commits back, or there is nothing to measure"


def _watched(
    writer: Writer, trino: Coordinator, topic: str, events: list[tuple[bytes, bytes]], producer: Producer
) -> Watched:
    """Produce an event every so often, and ask Trino all the time how far it sees, until it has seen all."""
    watched, began = Watched(), time.monotonic()

    def step() -> bool:
        offset = len(watched.produced) + 1  # its offset: the topic has one partition and no other producer
        if offset < len(events) and time.monotonic() >= began + offset * EVERY.total_seconds():
            watched.produced[offset] = time.monotonic()
            producer.produce(topic, events[offset][1], events[offset][0])
            assert producer.flush(30) == 0
        ((newest,),) = trino.ask("SELECT max(_offset) FROM delta.lake.fresh").rows
        watched.found(newest)
        return len(watched.seen) == len(events) - 1

    writer.until(step, (PRODUCE_FOR + MAX_DELAY + 3 * WORK_MAX).total_seconds())
    return watched
