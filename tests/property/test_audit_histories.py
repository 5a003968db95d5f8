"""An audit adds up after any history of a sound table, and never where a person took or doubled a row or a range."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.audit.audit import Audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.table.log.foreign_writes import NothingToClose
from headrace.writer.table.log.operations.seals import Closing, Sealing
from headrace.writer.table.table import PipelineTable
from tests.support.audits import OLD, describe_problems, run_audit
from tests.support.backfill_gaps import fill_from_archives, skip_offsets, write_archive
from tests.support.example_counts import share
from tests.support.local_driver import Driver, log
from tests.support.reverted_change import revert_change
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW, event

INTERVAL = 3  # entries between two checkpoints: pages of the ledger begin early
PARTITIONS = 3
TABLES = st.fixed_dictionaries(
    {"form": st.sampled_from(["delta", "parquet"]), "raw": st.booleans(), "late": st.booleans()}
)
# Records of "later" are quarantined: their event time is to come, also by the true clock, which backfills read.
KINDS = ("row", "row", "row", "tombstone", "cut", "old", "hole", "later")
LATER = datetime(2126, 11, 23, 12, tzinfo=UTC)
BATCHES = st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.lists(st.sampled_from(KINDS), max_size=5)), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), BATCHES),
        st.tuples(st.just("batch"), BATCHES),
        st.tuples(st.just("start"), st.integers(1, PARTITIONS)),
        st.tuples(st.just("rewind"), st.integers(1, 6)),
        st.tuples(st.just("gap"), st.integers(1, 3)),
        st.tuples(
            st.sampled_from(["compact", "delete", "delete_rows", "close", "seal", "replay", "backfill"]), st.none()
        ),
    ),
    min_size=1,
    max_size=8,
)


@dataclass
class Log:
    """What Kafka holds of a partition, by offset, as kinds."""

    kinds: list[str] = field(default_factory=list)

    def records(self, start: int) -> dict[int, bytes | None]:
        values = {
            offset: {"tombstone": None, "cut": b"\0\0\0\0\1cut"}.get(kind, event(offset, event_time=self._time(kind)))
            for offset, kind in enumerate(self.kinds)
            if kind != "hole"
        }
        return {offset: value for offset, value in values.items() if offset >= start}

    def _time(self, kind: str) -> datetime:
        return {"old": OLD, "later": LATER - timedelta(minutes=1)}.get(kind, NOW - timedelta(minutes=1))


class History:
    """A table with a history, beside what it should hold: the offsets that have a row, by partition."""

    def __init__(self, root: Path, form: str = "delta", *, raw: bool = False, late: bool = False) -> None:
        """`raw`: records are kept, too. `late`: rows of closed buckets go to a table of their own."""
        self.root, self.form = root, form
        self.settings = {"table": {"raw": {"location": str(root / "lake" / "raw")}}} if raw else {}
        self.settings |= {"seal": {"late": "late_table"}} if late else {}
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.ends = dict[int, int]()
        self.states = dict[int, dict[int, int]]()  # version → ends of partitions, as the table had them
        self.skipped = set[tuple[int, int]]()
        self.deleted = set[tuple[int, int]]()
        self.replayed = set[tuple[int, int]]()
        self.restart()
        self.start(1)

    def restart(self) -> None:
        self.driver = Driver(self.root, self.form, interval=INTERVAL, **self.settings)

    def start(self, partitions: int) -> None:
        self.restart()
        self.driver.start(partitions)
        for partition in range(partitions):
            self.ends.setdefault(partition, 0)
        self.note()

    def note(self) -> None:
        self.states[self.driver.table.snapshot().version] = dict(self.ends)

    def batch(self, batch: list[tuple[int, list[str]]]) -> None:
        """Commit what comes for some partitions; one that is new may come with no record."""
        for partition, kinds in batch:
            self.logs[partition].kinds += kinds
        partitions = 1 + max([*self.ends, *(partition for partition, _ in batch)])
        ends = {p: len(self.logs[p].kinds) for p in range(partitions)}
        records = [log(self.logs[p].records(self.ends.get(p, 0)), p) for p in sorted(ends)]
        self.driver.carry(records, ends)
        self.ends |= ends
        self.note()

    def gap(self, offsets: int) -> None:
        """Skip what a partition has before it is read."""
        for partition in self.ends:
            start = len(self.logs[partition].kinds)
            self.logs[partition].kinds += ["row"] * offsets
            self.skipped |= {(partition, offset) for offset in range(min(start, self.ends[partition]), start + offsets)}
        ends = [len(self.logs[p].kinds) for p in sorted(self.ends)]
        skip_offsets(self.driver, *ends)
        self.ends = dict(zip(sorted(self.ends), ends, strict=True))
        self.start(len(self.ends))

    def rewind(self, back_by: int) -> None:
        versions = sorted(self.states)[:-1]
        if not versions:
            return
        to = versions[max(len(versions) - back_by, 0)]
        partitions = max(self.ends) + 1
        if revert_change(self.driver, to, cluster=Cluster(1_000, partitions=partitions)) != 0:
            return
        self.ends = {p: self.states[to].get(p, 0) for p in self.ends}
        self.states = {version: ends for version, ends in self.states.items() if version <= to}
        for known in (self.skipped, self.deleted, self.replayed):
            known -= {(p, offset) for p, offset in known if offset >= self.ends[p]}
        self.start(max(self.ends) + 1)

    def compact(self, _: None) -> None:
        snapshot = self.driver.table.snapshot()
        compactor = Compactor("clicks", self.driver.settings, self.driver.table, None)
        planned = compactor.plan(snapshot, self.driver.table.buckets(), open_too=True)
        for pieces in planned.values():
            list(compactor.carry_out(snapshot, pieces, here))

    def close(self, _: None) -> None:
        """Close all buckets: rows that come from then on are late."""
        closing = Closing(uuid4().hex, NOW, {"reason": "watermark"})
        # A second close finds them closed.
        with suppress(NothingToClose):
            self.driver.table.append(closing, self.driver.table.snapshot())

    def delete(self, _: None) -> None:
        """Let another client delete a row of each partition, where it can."""
        if self.form == "delta":
            self.deleted |= {(p, offset) for p, offset in self.read(self.driver.table) if offset == 1}
            DeltaTable(self.driver.lake).delete("_offset = 1")

    def delete_rows(self, _: None) -> None:
        """Delete a row of each partition, wherever it is: in the table, late, or a dead letter that can be decoded."""
        request = DeletionRequest("clicks", where("id = 2"), NOW, with_dead_letters=True)
        run_deletion(self.driver.config, request, self.driver.schemas, write=True)
        self.deleted |= {(p, 2) for p, end in self.ends.items() if end > 2 and (p, 2) not in self.skipped}

    def seal(self, _: None) -> None:
        """Enter that all buckets are sealed."""
        manifests = [{"bucket": list(bucket), "version": 1} for bucket in self.driver.table.buckets()]
        if manifests:
            self.driver.table.append(Sealing(uuid4().hex, manifests), self.driver.table.snapshot())

    def replay(self, _: None) -> None:
        """Replay all dead letters on a day on which those are of the past that were to come."""
        DeadLetterReplay("clicks", self.driver.config, self.driver.schemas).run(Selection(), LATER)
        self.replayed |= {
            (p, offset)
            for p, end in self.ends.items()
            for offset in range(end)
            if self.logs[p].kinds[offset] == "later"
        } - self.skipped  # fmt: skip

    def backfill(self, _: None) -> None:
        """Fill all gaps from an archive that has all of the topic."""
        with TemporaryDirectory() as root:
            for partition, kafka_log in enumerate(self.logs):
                write_archive(Path(root), kafka_log.records(0), partition=partition)
            fill_from_archives(self.driver, Path(root, "archive"))
        self.skipped.clear()

    def read(self, table: PipelineTable) -> list[tuple[int, int]]:
        """Return the partitions and offsets of the rows of a table."""
        rows = table.rows().to_table(columns=["_partition", "_offset"]).to_pylist()
        return [(row["_partition"], row["_offset"]) for row in rows]

    def rows(self) -> set[tuple[int, int]]:
        return {
            (p, offset)
            for p, end in self.ends.items()
            for offset in range(end)
            if self.logs[p].kinds[offset] == "row" or (p, offset) in self.replayed
        } - self.skipped - self.deleted  # fmt: skip

    def check(self) -> Audit:
        """Assert that the audit adds up, and that the table has exactly the rows that it should."""
        found = run_audit(self.driver)
        assert found.adds_up, describe_problems(found)
        assert run_audit(self.driver, deep=False).adds_up
        late = filter(None, [self.driver.settings.late_table])
        tables = [self.driver.table, *(self.driver.side(place) for place in late)]
        assert sorted(row for table in tables for row in self.read(table)) == sorted(self.rows())
        return found


@settings(max_examples=share(40), suppress_health_check=list(HealthCheck))
@given(steps=STEPS, tables=TABLES)
def test_an_audit_adds_up_after_any_history(steps: list[tuple[str, object]], tables: dict[str, Any]) -> None:
    with TemporaryDirectory() as root:
        history = History(Path(root), **tables)
        history.check()
        for name, argument in steps:
            getattr(history, name)(argument)
            history.check()


def change_file(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows in the place of a file's, under the same name, as a fault of the storage or a person does."""
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def without_first(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def with_first_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def with_first_in_place_of_last(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, rows.num_rows - 1), rows.slice(0, 1)])


def drop_range(history: History) -> None:
    """Take the newest range that has offsets out of the account: of the ledger, or of the log where that goes on."""
    lake = Path(history.driver.lake)
    pages = sorted(lake.glob("_headrace/ledger/*/*.json"))
    covered = json.loads(pages[-1].read_text())["last"] if pages else -1
    folder = lake / ("_delta_log" if history.form == "delta" else "_headrace/log")
    for path in sorted(folder.glob("*[0-9].json"), reverse=True):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
        facts = json.loads(info.get("headrace", "{}"))
        if int(path.stem) > covered and facts.get("kind") == "batch" and drop_one(facts["ranges"]):
            info["headrace"] = json.dumps(facts)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            return
    page = json.loads(pages[-1].read_text())
    assert drop_one(page["committed_ranges"])
    pages[-1].write_text(json.dumps(page))


def drop_one(ranges: list[dict[str, int]]) -> bool:
    """Remove the last range with offsets. Returns whether there is one."""
    with_offsets = [one for one in ranges if one["start"] < one["end"]]
    if with_offsets:
        ranges.remove(with_offsets[-1])
    return bool(with_offsets)


@pytest.mark.parametrize("change", [without_first, with_first_twice, with_first_in_place_of_last])
@settings(max_examples=share(25), suppress_health_check=list(HealthCheck))
@given(data=st.data(), steps=STEPS, tables=TABLES)
def test_a_row_that_is_gone_or_doubled_by_hand_never_adds_up(
    change: Callable[[pa.Table], pa.Table], data: st.DataObject, steps: list[tuple[str, object]], tables: dict[str, Any]
) -> None:
    with TemporaryDirectory() as root:
        history = History(Path(root), **tables)
        for name, argument in [*steps, ("batch", [(0, ["row", "row", "cut"])])]:
            getattr(history, name)(argument)
        named = history.driver.settings
        beside = filter(None, [history.driver.dead_letters, named.raw_place, named.late_table])
        files = [
            Path(table.location, file.path)
            for table in (history.driver.table, *(history.driver.side(place) for place in beside))
            for file in table.bucket_files(table.snapshot())
            if change is not with_first_in_place_of_last or (file.rows or 0) > 1
        ]
        change_file(data.draw(st.sampled_from(files)), change)
        history.restart()
        assert not run_audit(history.driver).adds_up


@settings(max_examples=share(25), suppress_health_check=list(HealthCheck))
@given(steps=STEPS, tables=TABLES)
def test_a_range_of_offsets_that_the_log_lacks_never_adds_up(
    steps: list[tuple[str, object]], tables: dict[str, Any]
) -> None:
    with TemporaryDirectory() as root:
        history = History(Path(root), **tables)
        for name, argument in [*steps, ("batch", [(1, ["row"]), (2, ["tombstone"])])]:
            getattr(history, name)(argument)
        drop_range(history)
        history.restart()
        assert not run_audit(history.driver, deep=False).adds_up


def test_a_range_that_begins_at_a_batch_begins_at_the_first_offset_of_the_partition(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.batch([(0, ["row"]), (1, [])])
    found = history.check()
    assert [(line.part, *line.range.span) for line in found.reconciliation.lines] == [
        (TopicPartition("clicks", 1, 0), 0, 1), (TopicPartition("clicks", 1, 1), 0, 0),
    ]  # fmt: skip
