"""One task from Kafka's records to files and counts, without Spark."""

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer

from writer.rooms.assign import TimeRule
from writer.rooms.deadletters import DEAD_LETTERS
from writer.rooms.late import BOUNDS_S
from writer.rooms.plan import PROVENANCE, SchemaPlan
from writer.rooms.report import Counts, Report, Source
from writer.rooms.task import REPORT, TaskPlan, run, skip
from writer.units import instant

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KAFKA_TIME = datetime(2026, 11, 20, 12, 0, 1, tzinfo=UTC)
EVENT = {
    "type": "record", "name": "Event",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}  # fmt: skip
WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int"}]}
PAIR = {  # a union of two records, which only fastavro reads
    "type": "record", "name": "Pair",
    "fields": [
        {"name": "id", "type": "int"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "body", "type": [
            {"type": "record", "name": "L", "fields": [{"name": "l", "type": "int"}]},
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "int"}]},
        ]},
    ],
}  # fmt: skip
UNKNOWN = 77
SCHEMAS = (
    SchemaPlan(pa.schema([]), frozenset({*PROVENANCE.names, "hour"}))
    .extend(1, json.dumps(EVENT))
    .extend(2, json.dumps(WIDER))
    .extend(3, json.dumps(PAIR))
    .extend(4, json.dumps({**EVENT, "fields": [{"name": "id", "type": "string"}]}))
)
TEXT = {1: EVENT, 2: WIDER, 3: PAIR}


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def avro_value(schema_id: int, row: dict[str, Any]) -> bytes:
    out = BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    schemaless_writer(out, parse_schema(TEXT[schema_id]), row)
    return out.getvalue()


@dataclass
class Topic:
    """What a producer wrote, and what should become of it, by (topic, partition, offset)."""

    records: list[tuple[str, int, int, bytes | None]] = field(default_factory=list)
    rows: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    letters: dict[tuple[str, int, int], str] = field(default_factory=dict)
    quarantined: dict[tuple[str, int, int], str] = field(default_factory=dict)
    tombstones: list[tuple[str, int, int]] = field(default_factory=list)

    def put(self, topic: str, partition: int, kind: str) -> None:
        offset = sum(r[:2] == (topic, partition) for r in self.records)
        at = (topic, partition, offset)
        when = NOW - timedelta(minutes=7 * offset)
        row = {"id": offset, "at": when, "note": None if offset % 3 else f"note {offset}"}
        value: bytes | None = None
        match kind:
            case "event":
                value, self.rows[at] = avro_value(1, row), row
            case "wider":
                value, self.rows[at] = avro_value(2, {**row, "extra": offset}), {**row, "extra": offset}
            case "pair":
                side = "L" if offset % 2 else "R"
                value = avro_value(3, {"id": offset, "at": when, "body": (side, {side.lower(): offset})})
                body = {
                    "member0": {"l": offset} if offset % 2 else None,
                    "member1": None if offset % 2 else {"r": offset},
                }
                self.rows[at] = {"id": offset, "at": when, "body": body}
            case "old" | "future":
                when = NOW + (timedelta(hours=2) if kind == "future" else timedelta(days=-40))
                value, self.quarantined[at] = (
                    avro_value(1, {**row, "at": when}),
                    f"at is {when:%Y-%m-%d %H:%M:%S}.000000Z",
                )
            case "bare":
                value, self.letters[at] = b"{}", "no Confluent header"
            case "json":
                value, self.letters[at] = b'{"id": 5}', "no Confluent header"
            case "empty":
                value, self.letters[at] = b"", "no Confluent header"
            case "cut":
                value, self.letters[at] = avro_value(1, row)[:-1], "the value ends before the record does"
            case "surplus":
                value, self.letters[at] = avro_value(1, row) + b"??", "2 surplus bytes after the record"
            case "never":
                sound = avro_value(1, row)[:5]
                value, self.letters[at] = sound + b"\2" + b"\xff" * 9 + b"\1\0", "years 1 to 9999"
            case "rejected":
                value = struct.pack(">bI", 0, 4) + b"\2x"
                self.letters[at] = "schema id 4: field 'id' is string, but column 'id' holds int64"
            case "unknown":
                value = struct.pack(">bI", 0, UNKNOWN) + b"\2x"
            case "tombstone":
                self.tombstones.append(at)
        self.records.append((topic, partition, offset, value))

    def batches(self, size: int = 97) -> Iterator[pa.RecordBatch]:
        """As Spark reads: one partition after the other, in batches that do not care where one ends."""
        ordered = sorted(self.records, key=lambda r: r[:3])
        for at in range(0, len(ordered), size):
            part = ordered[at : at + size]
            yield pa.record_batch(
                {
                    "topic": pa.array([r[0] for r in part], pa.string()),
                    "partition": pa.array([r[1] for r in part], pa.int32()),
                    "offset": pa.array([r[2] for r in part], pa.int64()),
                    "timestamp": pa.array([KAFKA_TIME] * len(part), pa.timestamp("us", "UTC")),
                    "key": pa.array([f"{r[1]}-{r[2]}".encode() for r in part], pa.binary()),
                    "value": pa.array([r[3] for r in part], pa.binary()),
                }
            )


GOOD = ["event", "event", "event", "wider", "event", "event", "pair"]
BAD = ["bare", "cut", "old", "tombstone", "surplus", "rejected", "never", "future", "json", "empty"]


@pytest.fixture
def written() -> Topic:
    topic = Topic()
    for i in range(350):
        for name, partition in (("clicks", 0), ("clicks", 2), ("views", 0)):
            kind = BAD[i // 11 % len(BAD)] if i % 11 == partition else GOOD[i % len(GOOD)]
            topic.put(name, partition, kind)
    return topic


@pytest.fixture
def plan(tmp_path) -> TaskPlan:
    return TaskPlan(
        now=NOW, frontier={}, incarnations={"clicks": 1, "views": 3}, schemas=SCHEMAS,
        time_rule=TimeRule("at", "auto", timedelta(days=30), timedelta(hours=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1)}, bucket_columns=("hour",),
        table=str(tmp_path / "table"), dead_letters=str(tmp_path / "dead"), prefix="000001",
        budget=2**20, target_file_size=2**20,
    )  # fmt: skip


def report_of(topic: Topic, plan: TaskPlan, size: int = 97) -> Report:
    (batch,) = run(topic.batches(size), plan)
    assert batch.schema.equals(REPORT)
    return Report.from_json(batch["report"][0].as_py())


def read(folder: str, files: list[Any]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(Path(folder) / file.path).read() for file in files])


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["_topic"], row["_partition"], row["_offset"]


def files_below(folder: str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [97, 7, 5000])
@pytest.mark.parametrize("budget", [1_000, 2**20], ids=["spilling", "ample"])
def test_every_record_is_a_row_a_letter_or_counted(written, plan, size, budget):
    report = report_of(written, replace(plan, budget=budget), size)
    assert (report.spilled_bytes > 0) == (budget == 1_000)
    for source in (("clicks", 0), ("clicks", 2), ("views", 0)):
        here = [sum(at[:2] == source for at in kept) for kept in (
            written.rows, written.tombstones, written.letters, written.quarantined,
        )]  # fmt: skip
        assert report.counts[source] == Counts(350, 0, here[1], here[0], here[2], here[3], 0, 349)
        assert report.counts[source].balanced()

    table = read(plan.table, report.files)
    assert table.schema.names == [*SCHEMAS.columns.names, *PROVENANCE.names]
    rows = {place(row): row for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    assert rows.keys() == written.rows.keys()
    for at, row in rows.items():
        mine = {name: row[name] for name in SCHEMAS.columns.names}
        assert mine == dict.fromkeys(SCHEMAS.columns.names) | written.rows[at]
        assert (row["_incarnation"], row["_kafka_time"]) == ({"clicks": 1, "views": 3}[at[0]], KAFKA_TIME)
    for file in report.files:
        hours = {f"{row['at']:%Y-%m-%dT%H}" for row in read(plan.table, [file]).to_pylist()}
        assert hours == set(file.bucket)


def test_the_only_topic_need_not_stand_in_the_batches(written, plan):
    alone = Topic()
    alone.records = [record for record in written.records if record[0] == "views"]
    named = report_of(alone, plan)
    nameless = (batch.drop_columns(["topic"]) for batch in alone.batches())
    (batch,) = run(nameless, replace(plan, topic="views"))
    report = Report.from_json(batch["report"][0].as_py())
    assert report.counts == named.counts
    assert report.counts.keys() == {("views", 0)}
    assert read(plan.table, report.files).equals(read(plan.table, named.files))


def test_a_dead_letter_keeps_the_bytes_and_the_reason(written, plan):
    report = report_of(written, plan)
    letters = read(plan.dead_letters, report.dead_letter_files)
    assert letters.schema.equals(DEAD_LETTERS)
    values = {r[:3]: r[3] for r in written.records}
    found = {place(row): row for row in letters.to_pylist()}
    assert found.keys() == written.letters.keys() | written.quarantined.keys()
    for at, row in found.items():
        assert row["value"] == values[at]
        assert row["key"] == f"{at[1]}-{at[2]}".encode()
        assert (row["_incarnation"], row["_kafka_time"]) == ({"clicks": 1, "views": 3}[at[0]], KAFKA_TIME)
        if at in written.letters:
            assert row["outcome"] == "dead_letter"
            assert written.letters[at] in row["error"], row
        else:
            assert row["outcome"] == "quarantined"
            assert row["error"] == f"{written.quarantined[at]}, outside [2026-10-21T12:00:00Z, 2026-11-20T13:00:00Z]"
        expected = None if row["error"].startswith("no Confluent") else struct.unpack(">I", values[at][1:5])[0]
        assert row["schema_id"] == expected


def test_a_task_that_runs_again_gives_the_same_rows_in_other_files(written, plan):
    one, two = report_of(written, plan), report_of(written, plan)
    assert one.counts == two.counts
    keys = [("_topic", "ascending"), ("_partition", "ascending"), ("_offset", "ascending")]
    assert read(plan.table, one.files).sort_by(keys).equals(read(plan.table, two.files).sort_by(keys))
    left, right = read(plan.dead_letters, one.dead_letter_files), read(plan.dead_letters, two.dead_letter_files)
    assert left.sort_by(keys).equals(right.sort_by(keys))
    paths = [file.path for report in (one, two) for file in (*report.files, *report.dead_letter_files)]
    assert len(set(paths)) == len(paths)


def test_what_lies_below_the_frontier_is_skipped(written, plan):
    frontier = {("clicks", 0): 100, ("clicks", 2): 350, ("views", 0): 0}
    report = report_of(written, replace(plan, frontier=frontier))
    for (topic, partition), first in frontier.items():
        counts = report.counts[topic, partition]
        assert (counts.skipped, counts.read) == (first, 350 - first)
        assert (counts.offset_min, counts.offset_max) == ((first, 349) if first < 350 else (None, None))
    kept = {place(row) for row in read(plan.table, report.files).to_pylist()}
    assert kept == {at for at in written.rows if at[2] >= frontier[at[:2]]}
    letters = {place(row) for row in read(plan.dead_letters, report.dead_letter_files).to_pylist()}
    assert letters == {at for at in {**written.letters, **written.quarantined} if at[2] >= frontier[at[:2]]}


def test_a_partition_that_comes_in_two_pieces_the_later_first_is_skipped_by_offset():
    offsets = [30, 31, 32, 10, 11, 12]
    records = pa.table({
        "topic": ["clicks"] * 6, "partition": pa.array([0] * 6, pa.int32()), "offset": offsets, "value": [b"v"] * 6,
    })  # fmt: skip
    counts: defaultdict[Source, Counts] = defaultdict(Counts)
    kept = skip(records, {("clicks", 0): 12}, counts)
    assert kept.column("offset").to_pylist() == [30, 31, 32, 12]
    assert counts["clicks", 0] == Counts(read=4, skipped=2, offset_min=12, offset_max=32)


def test_an_unknown_schema_is_reported_and_nothing_stays(written, plan):
    written.put("views", 0, "unknown")
    report = report_of(written, replace(plan, budget=1_000))
    assert report.unknown_schemas == {UNKNOWN}
    assert (report.files, report.dead_letter_files) == ([], [])
    assert files_below(plan.table) == files_below(plan.dead_letters) == []


CLOSED_UNTIL = datetime(2026, 11, 20, 9, tzinfo=UTC)


def late_rows(written: Topic) -> dict[tuple[str, int, int], str]:
    """Rows that lie in hours that end by then, and their buckets."""
    return {at: f"{row['at']:%Y-%m-%dT%H}" for at, row in written.rows.items() if row["at"] < CLOSED_UNTIL}


@pytest.mark.parametrize("budget", [1_000, 2**20], ids=["spilling", "ample"])
@pytest.mark.parametrize("size", [97, 5000])
@pytest.mark.parametrize("policy", ["reopen", "late_table", "dead_letter"])
def test_rows_of_closed_buckets_go_where_the_policy_says(written, plan, policy, size, budget, tmp_path):
    plan = replace(plan, closed_until=CLOSED_UNTIL, late=policy, late_table=str(tmp_path / "late"), budget=budget)
    report, late = report_of(written, plan, size), late_rows(written)
    assert 0 < len(late) < len(written.rows)
    assert all(counts.balanced() for counts in report.counts.values())
    rows = {place(row) for row in read(plan.table, report.files).to_pylist()}
    letters = {place(row): row for row in read(plan.dead_letters, report.dead_letter_files).to_pylist()}
    aside = {place(row): row for row in read(str(tmp_path / "late"), report.late_files).to_pylist()} if (
        report.late_files
    ) else {}  # fmt: skip
    assert rows == written.rows.keys() - (set() if policy == "reopen" else late.keys())
    assert aside.keys() == (late.keys() if policy == "late_table" else set())
    assert letters.keys() - written.letters.keys() - written.quarantined.keys() == (
        late.keys() if policy == "dead_letter" else set()
    )
    assert sum(report.late.beyond) == len(late)
    assert report.late.buckets == (Counter((hour,) for hour in late.values()) if policy == "reopen" else {})
    for at in late if policy == "dead_letter" else ():
        when = f"late: at is {written.rows[at]['at']:%Y-%m-%d %H:%M:%S}.000000Z, in a bucket that was closed by"
        assert letters[at]["error"].startswith(when)
        assert letters[at]["outcome"] == "dead_letter"
        assert letters[at]["value"] == {r[:3]: r[3] for r in written.records}[at]
    for at, row in aside.items():
        assert {name: row[name] for name in SCHEMAS.columns.names} == (
            dict.fromkeys(SCHEMAS.columns.names) | written.rows[at]
        )
    for source, counts in report.counts.items():
        assert counts.late == sum(at[:2] == source for at in aside)


def test_a_bucket_that_ends_at_the_instant_is_closed_and_the_next_is_not(plan):
    topic = Topic()
    for _ in range(40):
        topic.put("clicks", 0, "event")
    early = report_of(topic, replace(plan, closed_until=NOW))
    assert sum(early.late.beyond) == sum(row["at"] < NOW for row in topic.rows.values()) == 39
    later = report_of(topic, replace(plan, closed_until=NOW - timedelta(microseconds=1)))
    assert sum(later.late.beyond) == sum(row["at"] < NOW - timedelta(hours=1) for row in topic.rows.values())


def test_how_late_rows_are_is_counted_in_bins(written, plan):
    report = report_of(written, replace(plan, closed_until=CLOSED_UNTIL))
    expected = [0] * (len(BOUNDS_S) + 1)
    for row in written.rows.values():
        expected[sum((KAFKA_TIME - row["at"]).total_seconds() >= bound for bound in BOUNDS_S)] += 1
    assert report.late.behind == expected
    beyond = [0] * (len(BOUNDS_S) + 1)
    for hour in late_rows(written).values():
        end = datetime.fromisoformat(f"{hour}:00:00+00:00") + timedelta(hours=1)
        beyond[sum((CLOSED_UNTIL - end).total_seconds() >= bound for bound in BOUNDS_S)] += 1
    assert report.late.beyond == beyond


def test_a_partition_has_come_as_far_as_its_rows_and_no_further_than_broker_and_clock(written, plan):
    """What is quarantined, such as events from the future, moves nothing."""
    report = report_of(written, plan)
    for source, counts in report.counts.items():
        times = [row["at"] for at, row in written.rows.items() if at[:2] == source]
        assert instant(counts.seen) == min(max(times), KAFKA_TIME, NOW)
    ahead = replace(plan, time_rule=replace(plan.time_rule, ahead_max=timedelta(hours=3)))
    accepted = Topic()
    for _ in range(3):
        accepted.put("clicks", 0, "future")  # two hours ahead: believed now
    assert instant(report_of(accepted, ahead).counts["clicks", 0].seen) == NOW
    patient = replace(ahead, now=NOW + timedelta(hours=9))
    assert instant(report_of(accepted, patient).counts["clicks", 0].seen) == KAFKA_TIME


def test_a_failure_leaves_no_late_file(written, plan, tmp_path):
    def torn() -> Iterator[pa.RecordBatch]:
        yield from written.batches()
        raise ConnectionError("the broker is gone")

    late = str(tmp_path / "late")
    plan = replace(plan, budget=1_000, closed_until=CLOSED_UNTIL, late="late_table", late_table=late)
    with pytest.raises(ConnectionError, match="the broker is gone"):
        list(run(torn(), plan))
    assert files_below(plan.table) == files_below(plan.dead_letters) == files_below(late) == []


def test_a_failure_leaves_no_file(written, plan):
    def torn() -> Iterator[pa.RecordBatch]:
        yield from written.batches()
        raise ConnectionError("the broker is gone")

    with pytest.raises(ConnectionError, match="the broker is gone"):
        list(run(torn(), replace(plan, budget=1_000)))
    assert files_below(plan.table) == files_below(plan.dead_letters) == []


def test_an_event_time_that_is_no_time_stops_the_task(written, plan):
    rule = TimeRule("nowhere", "auto", timedelta(days=30), timedelta(hours=1))
    with pytest.raises(ValueError, match="'nowhere' is not in the record"):
        report_of(written, replace(plan, time_rule=rule))
    assert files_below(plan.table) == []


def test_a_report_says_the_same_after_its_journey(written, plan):
    report = report_of(written, plan)
    assert Report.from_json(report.to_json()) == report
    assert report.files
    assert report.dead_letter_files
    assert report.time_unit == "logical"
    assert set(report.seconds) == {"skip", "decode", "conform", "assign", "stage", "columnar"}


def test_a_task_without_records_reports_nothing(plan):
    report = report_of(Topic(), plan)
    assert (report.files, report.counts) == ([], {})
    assert files_below(plan.table) == []
