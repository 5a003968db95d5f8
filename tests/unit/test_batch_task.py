"""One task from Kafka's records to files and counts, without Spark."""

import errno
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.skip import skip
from headrace.writer.batch.staging.spill_buffer import ScratchFailed, Stage
from headrace.writer.batch.task import run
from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.offsets import Source
from tests.support.task_topic import (
    KAFKA_TIME,
    SCHEMAS,
    UNKNOWN,
    Topic,
    files_below,
    place,
    plan,
    read,
    report_of,
    written,
)

__all__ = ["plan", "written"]


@pytest.mark.parametrize("size", [97, 7, 5000])
@pytest.mark.parametrize("budget", [1_000, 2**20], ids=["spilling", "ample"])
def test_every_record_is_a_row_a_dead_letter_or_counted(written, plan, size, budget):
    report = report_of(written, replace(plan, budget=budget), size)
    assert (report.spilled_bytes > 0) == (budget == 1_000)
    for source in (("clicks", 0), ("clicks", 2), ("views", 0)):
        here = [sum(at[:2] == source for at in kept) for kept in (
            written.rows, written.tombstones, written.dead_letters, written.quarantined,
        )]  # fmt: skip
        assert report.counts[source] == Counts(350, 0, here[1], here[0], here[2], here[3], 0, 349)
        assert report.counts[source].is_balanced()

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
    dead_letters = read(plan.dead_letters, report.dead_letter_files)
    assert dead_letters.schema.equals(DEAD_LETTERS)
    values = {r[:3]: r[3] for r in written.records}
    found = {place(row): row for row in dead_letters.to_pylist()}
    assert found.keys() == written.dead_letters.keys() | written.quarantined.keys()
    for at, row in found.items():
        assert row["value"] == values[at]
        assert row["key"] == f"{at[1]}-{at[2]}".encode()
        assert (row["_incarnation"], row["_kafka_time"]) == ({"clicks": 1, "views": 3}[at[0]], KAFKA_TIME)
        if at in written.dead_letters:
            assert row["outcome"] == "dead_letter"
            assert written.dead_letters[at] in row["error"], row
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


def test_records_below_the_frontier_are_skipped(written, plan):
    frontier = {("clicks", 0): 100, ("clicks", 2): 350, ("views", 0): 0}
    report = report_of(written, replace(plan, frontier=frontier))
    for (topic, partition), first in frontier.items():
        counts = report.counts[topic, partition]
        assert (counts.skipped, counts.read) == (first, 350 - first)
        assert (counts.offset_min, counts.offset_max) == ((first, 349) if first < 350 else (None, None))
    kept = {place(row) for row in read(plan.table, report.files).to_pylist()}
    assert kept == {at for at in written.rows if at[2] >= frontier[at[:2]]}
    dead_letters = {place(row) for row in read(plan.dead_letters, report.dead_letter_files).to_pylist()}
    assert dead_letters == {at for at in {**written.dead_letters, **written.quarantined} if at[2] >= frontier[at[:2]]}


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


def test_a_failure_leaves_no_file(written, plan):
    def corrupt() -> Iterator[pa.RecordBatch]:
        yield from written.batches()
        raise ConnectionError("the broker is gone")

    with pytest.raises(ConnectionError, match="the broker is gone"):
        list(run(corrupt(), replace(plan, budget=1_000)))
    assert files_below(plan.table) == files_below(plan.dead_letters) == []


def test_a_local_disk_that_refuses_is_no_refusal_of_a_route_s_table(written, plan, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "run-0.arrow")

    monkeypatch.setattr(Stage, "_spill", fail)
    with pytest.raises(ScratchFailed, match=r"Input/output error: 'run-0\.arrow'"):
        report_of(written, replace(plan, budget=1_000, may_refuse=True))
    assert files_below(plan.table) == []


def test_a_route_s_table_whose_storage_refuses_is_reported(written, plan, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    report = report_of(written, replace(plan, table=str(tmp_path / "file" / "table"), may_refuse=True))
    assert "Not a directory" in report.refused


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
