"""A writer without Spark and Kafka that goes by the wall clock of its process, which is wrong and steps right.

python -m tests.support.stepped_clock_writer ROOT FORMAT FILE SECONDS...: carries a log into a table below ROOT, again
and again. FILE sets the clock, which steps by one of SECONDS at one of MOMENTS each time. Prints what became of the
logs, as JSON.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.writer.audit.audit import audit
from headrace.writer.core import fault_points
from headrace.writer.driver.sealing.rounds import Rounds
from headrace.writer.driver.sealing.steps import Closer, seal_due
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.progress import Progress
from headrace.writer.status.rate_limit import Throttle
from tests.support import oracle
from tests.support.faked_clock import FakedClock
from tests.support.local_driver import Driver, log
from tests.support.sample_records import event

BATCHES = 5
RECORDS = 6
LATE_BATCH = 3  # has a row of the first hour, whose bucket is sealed
SILENT_FROM = 3  # the second partition has no records from this batch on
RATE = 60  # records a second
REST = "while a sealed bucket with late rows rests"
MOMENTS = {
    "before a batch": "before_batch:2",
    "in the middle of a commit": "before_commit:2",
    "after a commit": "after_commit:2",
    REST: "after_commit:4",
}
SETTINGS: Mapping[str, Any] = {
    "event_time": {"field": "at", "max_age": "30 d", "max_ahead": "3 d"},
    "seal": {"out_of_orderness": "1 min", "idle_timeout": "1 s", "reopen_after": "1 s", "after": None},
    "commit": {"max_records_per_second": RATE},
}
_WAIT_S = 20.0


@dataclass
class Topic:
    """The log as Kafka has it; its records look new, whatever the clock says."""

    ends: dict[tuple[str, int], int] = field(default_factory=lambda: {("clicks", 0): 0, ("clicks", 1): 0})

    def sources(self, _: Any) -> list[tuple[str, int]]:
        return list(self.ends)

    def earliest(self, _: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(self.ends, 0)

    def latest(self, _: Any) -> dict[tuple[str, int], int]:
        return dict(self.ends)

    def first_records(self, instants_ms: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, int]]:
        return {source: (0, instant + 1) for source, instant in instants_ms.items()}


@dataclass(frozen=True)
class Result:
    """What became of the log."""

    step_s: float
    rows: int
    dead: int
    sealed: list[tuple[int, int, int, int]]  # hour of the bucket, version of its manifest, rows, late rows
    moment: str
    waits_s: list[tuple[float, float]]  # of each batch for the rate limit: seconds that it asks for, and that it took
    tally: dict[str, int]


class StepAtMoment(threading.Thread):
    """Steps the clock once the process has come to a moment, where it waits meanwhile."""

    def __init__(self, clock: FakedClock, flag: Path) -> None:
        super().__init__(daemon=True)
        self._clock = clock
        self._flag = flag

    def run(self) -> None:
        while not self._flag.exists():
            time.sleep(0.005)
        self._clock.show(timedelta(0))
        self._flag.unlink()


def carry(root: Path, form: str, step: timedelta, moment: str) -> Result:
    """Carry the log, seal what is complete, and judge the table."""
    before = oracle.tally.copy()
    driver = Driver(root, form, interval=2, **SETTINGS)
    topic = Topic()
    progress = Progress("clicks")
    driver.start(2)
    sealer = Sealer("clicks", driver.config)
    closer = Closer(LogEndWatch(topic, ["clicks"]), lambda: {"clicks": 1})
    rounds = Rounds(sealer, {"close": closer, "seal": seal_due}, progress)
    throttle = Throttle(
        driver.table.store, "clicks", driver.settings.commit, lambda limit: progress.set(rate_limit=limit)
    )
    throttle.begin([])
    waits_s = list[tuple[float, float]]()
    asked_s = 0.0
    began_s = time.monotonic()
    # By the machine's own clock, which brokers and producers have; the middle of an hour, so that all of it is one's.
    first = _right_now().replace(minute=30) - timedelta(hours=BATCHES)
    for batch in range(BATCHES):
        throttle.hold(threading.Event())
        # The throttle counts from here, too.
        released_s = time.monotonic()
        waits_s.append((asked_s, released_s - began_s))
        began_s = released_s
        fault_points.point("before_batch")
        started = datetime.now(UTC)
        oracle.check_rows(Path(driver.lake), "clicks")
        records = [_records(topic, partition, batch, first) for partition in range(2)]
        driver.carry(records, {partition: end for (_, partition), end in topic.ends.items()}, now=started)
        read = sum(batch_records.num_rows for batch_records in records)
        throttle.record_commit({"ranges": [{"read": read}], "started": started.isoformat(), "value_bytes": 0})
        asked_s = read / RATE
        rounds.once()
    deadline_s = time.monotonic() + _WAIT_S
    while not _is_complete(sealer) and time.monotonic() < deadline_s:
        time.sleep(0.05)
        rounds.once()
    oracle.check(Path(driver.lake), "clicks", topic.ends)
    account = audit(driver.config, "clicks", since=None, deep=True)
    assert account.adds_up, "; ".join(f"{p.description} {p.part} {p.spans}" for p in account.problems)
    sealed = [
        (
            round((_hour(manifest.bucket) - first).total_seconds() / 3_600),
            manifest.version,
            manifest.rows,
            manifest.late,
        )
        for manifest in sealer.manifests.all()
    ]
    rows = oracle.count(Path(driver.lake))
    dead = oracle.count(Path(driver.dead_letters))
    tally = asdict(oracle.tally.since(before))
    return Result(step.total_seconds(), rows, dead, sorted(sealed), moment, waits_s, tally)


def _records(topic: Topic, partition: int, batch: int, first: datetime) -> Any:
    start = topic.ends["clicks", partition]
    end = start if partition == 1 and batch >= SILENT_FROM else start + RECORDS
    topic.ends["clicks", partition] = end
    values: dict[int, bytes | None] = {}
    for offset in range(start, end):
        is_late = batch == LATE_BATCH and offset == start
        hour = 0 if is_late else batch
        values[offset] = (
            b"\0\0\0\0\1cut" if offset % 10 == 5 else event(offset, event_time=first + timedelta(hours=hour))
        )
    return log(values, partition, kafka_time=_right_now())


def _right_now() -> datetime:
    """Return the machine's time: a file that is written has it, whatever this process takes for the time."""
    with tempfile.NamedTemporaryFile() as file:
        return datetime.fromtimestamp(os.stat(file.name).st_mtime, UTC)  # noqa: PTH116 - of no other use


def _hour(bucket: tuple[str | None, ...]) -> datetime:
    label = str(bucket[0])
    return datetime.strptime(label, "%Y-%m-%dT%H").replace(tzinfo=UTC, minute=30)


def _is_complete(sealer: Sealer) -> bool:
    """Return whether all buckets but the newest are sealed: that is so once the silent partition counts as idle."""
    snapshot = sealer.follow(write=False)
    manifests = list(sealer.manifests.all())
    return len(manifests) == BATCHES - 1 and len(snapshot.unsealed.buckets) == 1


def main(root: Path, form: str, file: Path, *seconds: str) -> None:
    clock = FakedClock(file)
    steps = [timedelta(seconds=float(each)) for each in seconds]
    # A clock that is behind keeps buckets open, so that no row of theirs is late until it is right.
    cases = [(step, moment) for step in steps for moment in MOMENTS if moment != REST or step < timedelta(0)]
    results = []
    for number, (step, moment) in enumerate(cases):
        clock.show(-step)
        flag = root / f"{number}.flag"
        fault_points._passed.clear()
        os.environ["HEADRACE_FAULT"] = f"{MOMENTS[moment]}:{flag}"
        stepper = StepAtMoment(clock, flag)
        stepper.start()
        results.append(asdict(carry(root / str(number), form, step, moment)))
        assert not stepper.is_alive(), f"it never came to {MOMENTS[moment]}"
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
