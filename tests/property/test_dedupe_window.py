"""Rows deduped across buckets, in whatever order buckets are sealed: plain Python is the oracle."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.audit.audit import audit
from headrace.writer.batch.staging.key_window import ComparedBucket, KeyFilter, mark_repeats_in_window
from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.driver.sealing.steps import beside_seals
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dedupe.neighbours import TableBucket, neighbours
from headrace.writer.maintenance.rewrite import Job
from headrace.writer.sealing.rules import SealNow
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.log.foreign_writes import NothingToClose
from headrace.writer.table.log.operations.seals import Closing
from tests.support.example_counts import share
from tests.support.local_driver import Died, Driver, log
from tests.support.sample_records import EVENT, NOW, value

HOUR, HOURS = timedelta(hours=1), 10
BASE = NOW - HOURS * HOUR
MUCH_LATER = datetime.now(UTC) + timedelta(days=3_650)  # no bucket rests


class Row(NamedTuple):
    came: int
    offset: int
    key: int
    hour: int


def standing(rows: Sequence[Row], hours: int) -> list[Row]:
    """Judge rows one after the other, as they came: one goes where a row of its key that stays is near."""
    stay: list[Row] = []
    for row in sorted(rows):
        near = (one for one in stay if one.key == row.key and abs(one.hour - row.hour) <= hours)
        if row.hour < 0 or next(near, None) is None:
            stay.append(row)
    return stay


# --- the rows of one bucket -------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(60))
@given(
    st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 6)), max_size=40),
    st.integers(1, 4), st.integers(1, 3), st.sampled_from([32 * 2**20]),
)  # fmt: skip
def test_rows_of_a_bucket_go_by_those_that_stay(tmp_path_factory, made, hours, batch_rows, budget) -> None:
    """Chains, nulls, equal times; each batch a few rows, so that keys lie across them."""
    numbers = sorted({hour for _, _, hour in made} | {3}, key=lambda hour: (hour != 3, hour))
    rows = [Row(came, n, -1 if key is None else key, hour) for n, (came, key, hour) in enumerate(made)]
    rows.sort(key=lambda row: (row.hour != 3, row.offset))
    buckets = [ComparedBucket(h * 3_600_000_000, (h + 1) * 3_600_000_000, sealed=True) for h in numbers]
    own = sum(row.hour == 3 for row in rows)

    def batches() -> Iterator[tuple[int, pa.RecordBatch]]:
        for hour in numbers:
            mine = [row for row in rows if row.hour == hour]
            for at in range(0, len(mine), batch_rows):
                some = mine[at : at + batch_rows]
                yield numbers.index(hour), pa.record_batch({
                    "id": pa.array([None if r.key < 0 else r.key for r in some], pa.int64()),
                    "_kafka_time": pa.array([NOW + timedelta(seconds=r.came) for r in some], pa.timestamp("us", "UTC")),
                    "_topic": ["clicks"] * len(some), "_incarnation": pa.array([1] * len(some), pa.int32()),
                    "_partition": pa.array([0] * len(some), pa.int32()), "_offset": [r.offset for r in some],
                })  # fmt: skip

    width = (hours - 1) * 3_600_000_000 + 1  # of two buckets that are `hours` apart, less lies between
    found, repeats_in = mark_repeats_in_window(
        batches(), buckets, own, Dedupe(("id",)), width, tmp_path_factory.mktemp("scratch"), budget
    )
    stay = {row.offset for row in standing([r for r in rows if r.key >= 0], hours)}
    wanted = [row.key >= 0 and row.offset not in stay for row in rows if row.hour == 3]
    assert found.of(0, own).tolist() == wanted
    gone = {row.hour for row in rows if row.key >= 0 and row.offset not in stay}
    assert {numbers[n] for n in repeats_in} <= gone - {3}


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.lists(st.integers(-(2**63), 2**63 - 1))),
        st.tuples(st.sampled_from([pa.string(), pa.binary()]), st.lists(st.text())),
        st.tuples(st.just(pa.float64()), st.lists(st.floats())),
        st.tuples(st.just(pa.timestamp("us", "UTC")), st.lists(st.integers(0, 2**50))),
        st.tuples(st.just(pa.bool_()), st.lists(st.booleans())),
        st.tuples(st.just(pa.decimal128(20, 2)), st.lists(st.decimals(0, 999, places=2))),
    )
)
def test_a_filter_of_keys_passes_over_none_that_was_added(made) -> None:
    kind, given_ = made
    keys = pa.array([one.encode() if kind == pa.binary() else one for one in given_], kind)
    beside = pa.array(np.arange(len(keys)) % 3)
    filter_ = KeyFilter(len(keys), 2**20)
    filter_.add([keys, beside])
    assert all(filter_.may_have([keys, beside]).to_pylist())
    at = len(keys) // 3
    assert all(filter_.may_have([keys.slice(at), beside.slice(at)]).to_pylist())


def test_a_filter_of_keys_passes_over_most_others() -> None:
    filter_, some = KeyFilter(1000, 2**20), [f"2026-user-{n:06}" for n in range(3000)]
    filter_.add([pa.array(some[:1000])])
    assert sum(filter_.may_have([pa.array(some[1000:])]).to_pylist()) < 300


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.sets(st.integers(0, 30)), st.integers(1, 5))
def test_the_comparison_reaches_on_through_buckets_that_were_not_judged(hours, unjudged, window) -> None:
    spans = {TableBucket((str(h),)): (BASE + h * HOUR, BASE + (h + 1) * HOUR) for h in hours}
    found = neighbours(TableBucket((str(hours[0]),)), spans, {(str(h),) for h in unjudged}, window * HOUR)
    assert found.buckets[0] == TableBucket((str(hours[0]),))
    wanted, new = {hours[0]}, {hours[0]}
    while new:
        near = {h for h in hours for n in new if abs(h - n) <= window and (n in unjudged or n == hours[0])}
        new = near - wanted
        wanted |= near
    assert {int(bucket.key[0] or 0) for bucket in found.buckets} == wanted
    assert {int(bucket.key[0] or 0) for bucket in found.near} == {h for h in hours if abs(h - hours[0]) <= window}


# --- a table ----------------------------------------------------------------------------------------------------

ROWS = st.tuples(
    st.just("rows"), st.lists(st.tuples(st.integers(0, 2), st.integers(0, HOURS - 2)), min_size=1, max_size=6)
)
STEPS = st.lists(
    st.one_of(
        ROWS, ROWS, st.tuples(st.just("close"), st.integers(1, HOURS)), st.tuples(st.just("seal"), st.integers(0, 5)),
        st.tuples(st.just("seal anew"), st.integers(0, 5)), st.tuples(st.just("broken"), st.integers(0, 5)),
        st.tuples(st.just("compact"), st.integers(0, 5)), st.tuples(st.just("late"), st.just(0)),
        st.tuples(st.just("seal all"), st.integers(0, 5)),
    ),
    min_size=3, max_size=10,
)  # fmt: skip
SEALED = [("rows", [(0, 1), (1, 3), (2, 6)]), ("close", 7), ("seal all", 2)]
CAME = st.lists(st.integers(0, 9), min_size=14, max_size=14)


class Table:
    """A table that goes through steps, beside a record of every row that came."""

    def __init__(self, root: Path, form: str, hours: int, late: str) -> None:
        rule = {"key": ["id"], "window": f"{hours} h"}
        self.driver = Driver(
            root, form, compact={"at_seal": True, "dedupe": rule}, seal={"late": late, "reopen_after": "0 s"}
        )
        self.driver.start()
        self.rows, self.late, self.closed = list[Row](), list[Row](), 0
        self.new_process()

    def new_process(self) -> None:
        self.sealer = Sealer("clicks", self.driver.config)
        self.steps = beside_seals(self.sealer, self.driver.config, self.run)
        self.dies_at = -1

    def run(self, jobs: Sequence[Job]) -> Iterator[Any]:
        for found in here(jobs):
            self.dies_at -= 1
            if self.dies_at == 0:
                raise Died
            yield found

    def take(self, kind: str, what: Any, came: int) -> None:
        if kind == "rows":
            self.carry(what, came)
        elif kind == "close":
            self.close(what)
        elif kind == "compact":
            Compactor("clicks", self.driver.settings, self.driver.table, None).merge_open(here)
            self.plainly_compacted(what)
        elif kind == "late":
            self.steps["late rows"](self.sealer, MUCH_LATER)
        elif kind == "seal all":
            self.seal_all(what)
        elif due := sorted(self.due()):
            if kind == "seal anew":
                self.new_process()
            self.seal(due[what % len(due)], dies=kind == "broken")

    def carry(self, made: Sequence[tuple[int, int]], came: int) -> None:
        at = len(self.rows) + len(self.late)
        new = [Row(came, at + n, key, hour) for n, (key, hour) in enumerate(made)]
        for row in new:
            is_late = self.driver.settings.late_table and row.hour < self.closed
            (self.late if is_late else self.rows).append(row)
        values = {r.offset: value(1, EVENT, {"id": r.key, "at": BASE + r.hour * HOUR, "note": None}) for r in new}
        self.driver.carry([log(values, kafka_time=NOW + timedelta(seconds=came))], {0: at + len(new)})

    def close(self, hours: int) -> None:
        self.closed = max(self.closed, hours)
        table, until = self.driver.table, BASE + hours * HOUR
        # A second close finds them closed.
        with suppress(NothingToClose):
            table.append(Closing(uuid4().hex, until, {"reason": "watermark"}), table.snapshot())

    def due(self) -> list[Any]:
        return [s.bucket for s in self.sealer.due(self.sealer.follow(), MUCH_LATER) if isinstance(s, SealNow)]

    def seal(self, bucket: Any, *, dies: bool = False) -> None:
        self.dies_at = 1 + len(bucket[0]) % 2 if dies else -1
        try:
            if dies:  # at a job, or after all of them
                self.sealer.prepare[0](bucket)
            else:
                self.sealer.seal([SealNow(bucket)], MUCH_LATER)
        except Died:
            self.new_process()

    def seal_all(self, order: int) -> None:
        while due := sorted(self.due()):
            self.seal(due[order % len(due)])
            order = order * 7 + 3

    def plainly_compacted(self, number: int) -> None:
        """Compact a bucket as one that knows no window does."""
        compactor, snapshot = Compactor("clicks", self.driver.settings, self.driver.table, None), self.driver.table
        at = snapshot.snapshot()
        for bucket in compactor.buckets(at)[number : number + 1]:
            list(compactor.carry_out(at, compactor.plan(at, [bucket], open_too=True)[bucket], here))

    def finish(self, order: int) -> None:
        self.close(HOURS)
        self.seal_all(order)
        self.steps["late rows"](self.sealer, MUCH_LATER + HOUR)

    def offsets(self, *, late: bool = False) -> list[int]:
        place = self.driver.settings.late_table
        if late and place is None:
            return []
        table = self.driver.side(place) if late and place else self.driver.table
        return sorted(table.rows().to_table(columns=["_offset"]).column("_offset").to_pylist())

    def check(self) -> None:
        report = audit(self.driver.config, "clicks", since=None, deep=True)
        assert report.adds_up, report.problems
        gone = len(self.rows) - len(self.offsets())
        assert report.rows_taken.get("dedupe", 0) == gone
        assert report.late_taken.get("dedupe", 0) == len(self.late) - len(self.offsets(late=True))
        assert sum(one.deduped for one in self.sealer.manifests.all()) == gone


FORM = "delta"


@settings(max_examples=share(12), suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(1, 4), st.integers(0, 5))
def test_the_order_of_sealing_does_not_matter(steps, hours, order) -> None:
    """Records come in the order of Kafka's time: late ones, chains of repeats, seals that are broken off."""
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder), FORM, hours, "reopen")
        for came, (kind, what) in enumerate(steps):
            table.take(kind, what, came)
        table.finish(order)
        assert table.offsets() == sorted(row.offset for row in standing(table.rows, hours))
        table.check()


@settings(max_examples=share(12), suppress_health_check=list(HealthCheck))
@given(STEPS, CAME, st.integers(0, 5))
def test_the_order_in_which_records_come_does_not_matter_within_the_window(steps, came, order) -> None:
    """Records with an older Kafka time come later, as of a backfill: sealed buckets lose their repeats of them."""
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder), FORM, HOURS, "reopen")
        for (kind, what), at in zip([*SEALED, *steps], came, strict=False):
            table.take(kind, what, at)
        table.finish(order)
        assert table.offsets() == sorted(row.offset for row in standing(table.rows, HOURS))
        table.check()


@settings(max_examples=share(12), suppress_health_check=list(HealthCheck))
@given(STEPS, CAME, st.integers(0, 5))
def test_late_rows_go_by_rows_of_the_table(steps, came, order) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder), FORM, HOURS, "late_table")
        for (kind, what), at in zip([*SEALED, *steps], came, strict=False):
            table.take(kind, what, at)
        table.finish(order)
        stay = standing(table.rows, HOURS)
        assert table.offsets() == sorted(row.offset for row in stay)
        others = [row for row in table.late if row.key not in {one.key for one in stay}]
        assert table.offsets(late=True) == sorted(row.offset for row in standing(others, HOURS))
        table.check()


@pytest.mark.slow
def test_many_rows_of_one_key_are_judged_in_bounded_memory(tmp_path: Path) -> None:
    """A key that each row has: what is held of it is what stays."""
    size, count = 50_000, 40
    buckets = [ComparedBucket(h * 3_600_000_000, (h + 1) * 3_600_000_000) for h in range(2)]
    batch = pa.record_batch({
        "id": pa.repeat("x", size), "_kafka_time": pa.repeat(pa.scalar(NOW, pa.timestamp("us", "UTC")), size),
        "_topic": pa.repeat("clicks", size), "_incarnation": pa.repeat(pa.scalar(1, pa.int32()), size),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), size), "_offset": pa.array(np.arange(size)),
    })  # fmt: skip
    batches = ((n // (count // 2), batch) for n in range(count))
    found, _ = mark_repeats_in_window(batches, buckets, size * count // 2, Dedupe(("id",)), 1, tmp_path, 32 * 2**20)
    gone = sum(int(found.of(at, size).sum()) for at in range(0, size * count // 2, size))
    assert gone == size * count // 2 - 1
