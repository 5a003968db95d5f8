"""From the reports of the tasks to one commit."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.writer.batch.lateness import LateTier
from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.commit.builder import batch, bytes_per_row, merge_reports, ranges, side_files
from headrace.writer.commit.task_plan import build_task_plan
from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.framing.wire_format import CONFLUENT
from tests.support.sample_records import config

A, B, C = ("clicks", 0), ("clicks", 1), ("views", 0)
PARTS = {A: TopicPartition("clicks", 1, 0), B: TopicPartition("clicks", 1, 1), C: TopicPartition("views", 2, 0)}
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLACES = {"table": {"location": "/lake", "dead_letters": "/dead"}, "seal": {"late_table": "/late"}}
SETTINGS = config(Path("/"), **PLACES).pipelines["clicks"]


def staged(rows: int, minutes: int = 0, source: Source = A) -> StagedFile:
    at = NOON + timedelta(minutes=minutes)
    return StagedFile(f"hour=x/{rows}.parquet", ("x",), rows, 100 * rows, "{}", at, at, {source: rows})


# --- ranges -----------------------------------------------------------------------------------------------------


def found(start, end, frontier) -> list[tuple[Source, int, int]]:
    parts = {PARTS[source]: offset for source, offset in frontier.items()}
    return [(r.part.source, r.start, r.end) for r in ranges(start, end, parts, PARTS)]


@pytest.mark.parametrize(
    ("start", "end", "frontier", "expected"),
    [
        ({A: 5}, {A: 9}, {A: 5}, [(A, 5, 9)]),
        ({A: 5, B: 2}, {A: 9, B: 3}, {A: 5, B: 2}, [(A, 5, 9), (B, 2, 3)]),
        ({A: 5, B: 2}, {A: 9, B: 2}, {A: 5, B: 2}, [(A, 5, 9)]),  # nothing new in one partition
        ({A: 5}, {A: 5}, {A: 5}, []),
        ({A: 3}, {A: 9}, {A: 5}, [(A, 5, 9)]),  # the overlap was dropped
        ({A: 3}, {A: 5}, {A: 5}, []),  # replayed whole
        ({A: 3}, {A: 4}, {A: 5}, []),  # older than the table
        ({A: 3}, {A: 9}, {A: None}, [(A, 3, 9)]),  # the table has never seen it
        ({A: 3}, {A: 3}, {A: None}, [(A, 3, 3)]),
        ({A: 3}, {A: 9}, {}, [(A, 3, 9)]),
        ({A: 0, B: 7, C: 1}, {A: 4, B: 9, C: 1}, {A: 2, B: None, C: 1}, [(A, 2, 4), (B, 7, 9)]),
    ],
)
def test_a_batch_commits_from_the_frontier_to_its_end(start, end, frontier, expected):
    assert found(start, end, frontier) == expected


def test_a_batch_that_starts_above_the_frontier_would_lose_records():
    with pytest.raises(CheckpointUnusable) as unusable:
        found({A: 5, B: 9}, {A: 7, B: 12}, {A: 5, B: 4})
    assert unusable.value.exit_code == 3
    assert str(unusable.value).startswith(
        "the table ends at offset 4 of clicks/1, but the batch starts at 9: 5 offsets would be skipped"
    )


def test_a_range_that_runs_backwards_cannot_be():
    with pytest.raises(ValueError, match="0 <= start <= end"):
        OffsetRange(PARTS[A], 5, 4)


# --- the commit -------------------------------------------------------------------------------------------------


def report_of(**counts: Counts) -> Report:
    names = {"a": A, "b": B, "c": C}
    return Report(counts={names[name]: count for name, count in counts.items()})


def assembled(report: Report, *committing: OffsetRange, seen=None, closed_until=None):
    return batch(
        report, list(committing), epoch=3, settled=11, side=side_files(SETTINGS, report), seen=seen or {},
        closed=(closed_until, {}), facts={"run": "r1"},
    )  # fmt: skip


@pytest.mark.parametrize(("first", "last"), [(4, 6), (5, 9), (0, 20), (9, 9)])
def test_an_offset_outside_the_range_is_a_bug(first, last):
    report = report_of(a=Counts(read=1, rows=1, offset_min=first, offset_max=last))
    with pytest.raises(AssertionError, match=r"lies (before|beyond)"):
        assembled(report, OffsetRange(PARTS[A], 5, 9))


def test_offsets_at_the_ends_of_the_range_are_inside():
    report = report_of(a=Counts(read=4, rows=4, offset_min=5, offset_max=8))
    assert assembled(report, OffsetRange(PARTS[A], 5, 9)).ranges == [OffsetRange(PARTS[A], 5, 9)]


def test_a_partition_of_which_all_was_skipped_needs_no_range():
    assert assembled(report_of(b=Counts(skipped=7))).ranges == []


def test_the_facts_account_for_every_range():
    report = report_of(
        a=Counts(read=10, rows=5, tombstones=1, dead_letters=3, quarantined=1, skipped=2, offset_min=5, offset_max=14),
    )
    report.files, report.spilled_bytes, report.time_unit = [staged(2, 5), staged(3, -5)], 17, "ms"
    report.dead_letter_files = [staged(4)]
    report.seconds, report.value_bytes = {"decode": 0.12345}, 900
    report.slots, report.ranges, report.took_s = 4, 12, [6.5, 2.0, 1.0]
    done = assembled(report, OffsetRange(PARTS[A], 5, 15), OffsetRange(PARTS[C], 0, 0))
    assert (done.epoch, done.settled, done.files) == (3, 11, report.files)
    assert done.side_files == {"/dead": report.dead_letter_files}
    nothing = {"read": 0, "rows": 0, "late": 0, "tombstones": 0, "dead_letters": 0, "quarantined": 0}
    clicks = {"read": 10, "rows": 5, "late": 0, "tombstones": 1, "dead_letters": 3, "quarantined": 1}
    assert done.facts == {
        "run": "r1",
        "ranges": [
            {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 5, "end": 15, **clicks},
            {"topic": "views", "incarnation": 2, "partition": 0, "start": 0, "end": 0, **nothing},
        ],
        "rows": 5,
        "bytes": 500,
        "files": 2,
        "buckets": 1,
        "dead_letter_files": 1,
        "dead_letter_bytes": 400,
        "work": {"slots": 4, "ranges": 12, "task_seconds_median": 2.0, "task_seconds_max": 6.5},
        "value_bytes": 900,
        "event_time_min": "2026-11-20T11:55:00+00:00",
        "event_time_max": "2026-11-20T12:05:00+00:00",
        "seconds": {"decode": 0.123},
        "spilled_bytes": 17,
        "time_unit": "ms",
        "late": {"behind": [0] * 12, "beyond": [0] * 12, "buckets": []},
        "late_files": 0,
        "late_bytes": 0,
        "closed_until": None,
    }


def test_a_commit_without_files_has_no_times_and_no_side_files():
    done = assembled(Report(), OffsetRange(PARTS[A], 5, 9))
    assert (done.facts["event_time_min"], done.facts["event_time_max"], done.facts["rows"]) == (None, None, 0)
    assert done.side_files == {}


def test_a_commit_says_how_far_its_parts_came_where_that_is_further():
    report = report_of(a=Counts(read=4, rows=4, offset_min=5, offset_max=8, spans=[(5, 9)], seen=70), c=Counts(seen=9))
    ranges = [OffsetRange(PARTS[A], 5, 9), OffsetRange(PARTS[C], 0, 0)]
    assert assembled(report, *ranges).newest_event_times == {PARTS[A]: 70, PARTS[C]: 9}
    assert assembled(report, *ranges, seen={PARTS[A]: 70, PARTS[C]: 8}).newest_event_times == {PARTS[C]: 9}


def test_late_rows_ride_along_to_their_table():
    report = report_of(a=Counts(read=5, late=5, offset_min=5, offset_max=9, spans=[(5, 10)]))
    report.late_files = [staged(5)]
    done = assembled(report, OffsetRange(PARTS[A], 5, 10), closed_until=NOON)
    assert done.side_files == {"/late": report.late_files}
    assert (done.facts["late_files"], done.facts["late_bytes"]) == (1, 500)
    assert (done.closed_until, done.facts["closed_until"]) == (NOON, NOON.isoformat())
    assert done.facts["ranges"][0]["late"] == 5


def test_every_commit_has_an_id_of_its_own():
    assert assembled(Report()).id != assembled(Report()).id


# --- adding up --------------------------------------------------------------------------------------------------


def test_reports_of_tasks_add_up():
    one = report_of(a=Counts(read=3, rows=2, tombstones=1, offset_min=5, offset_max=7), b=Counts(skipped=4))
    two = report_of(a=Counts(read=2, dead_letters=1, quarantined=1, skipped=9, offset_min=1, offset_max=2))
    three = report_of(b=Counts(read=1, rows=1, offset_min=0, offset_max=0))
    one.files, two.files, three.dead_letter_files = [staged(2)], [staged(1)], [staged(3)]
    one.seconds, two.seconds = {"decode": 1, "stage": 2}, {"decode": 3}
    one.unknown_schemas, three.unknown_schemas = {7}, {7, 9}
    one.spilled_bytes, two.spilled_bytes, two.time_unit = 5, 6, "ms"
    total = merge_reports([one, two, three])
    assert total.counts == {
        A: Counts(5, 9, 1, 2, 1, 1, offset_min=1, offset_max=7),
        B: Counts(1, 4, 0, 1, 0, 0, offset_min=0, offset_max=0),
    }
    assert [file.rows for file in total.files] == [2, 1]
    assert [file.rows for file in total.dead_letter_files] == [3]
    assert total.seconds == {"decode": 4, "stage": 2}
    assert total.unknown_schemas == {7, 9}
    assert total.tasks == 3
    assert (total.spilled_bytes, total.time_unit) == (11, "ms")


def test_the_report_of_no_task_is_empty():
    assert merge_reports([]) == Report()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], None),
        ([{}, {"rows": 0, "bytes": 7}], None),
        ([{"rows": 10, "bytes": 1000}], 100.0),
        ([{"rows": 10, "bytes": 1000}, {"rows": 30, "bytes": 600}, {"rows": 0, "bytes": 0}], 40.0),
        ([{"rows": 100, "bytes": 5}], 1.0),  # never below a byte, which a division could not bear
    ],
)
def test_bytes_per_row_come_from_commits_that_have_rows(facts, expected):
    assert bytes_per_row(facts) == expected


def test_records_that_specs_left_out_take_no_bytes_of_a_file() -> None:
    shaped = {"rows": 100, "bytes": 50_000, "ranges": [{"read": 1000, "filtered": 900}]}
    none_left = {"rows": 0, "bytes": 0, "ranges": [{"read": 1000, "filtered": 1000}]}
    assert bytes_per_row([shaped]) == 50
    assert bytes_per_row([shaped, none_left]) == 25
    assert bytes_per_row([none_left]) is None


# --- the plan of the tasks --------------------------------------------------------------------------------------


def test_a_plan_of_tasks_is_what_the_configuration_says() -> None:
    settings = config(
        Path("/"), table=PLACES["table"], seal={"late": "late_table", "late_table": "/late"},
        memory={"buffer": "3 MiB"}, roll={"target_file_size": "2 MiB"}, bucket={"type": "field", "field": "id"},
    ).pipelines["clicks"]  # fmt: skip
    schemas = SchemaPlan(pa.schema([("id", pa.int64())]))
    plan = build_task_plan(
        settings, None, schemas, CONFLUENT, "ms", now=NOON, prefix="7", incarnations={"clicks": 2}, hidden=True,
        record_columns=settings.columns.record_columns,
    )  # fmt: skip
    assert (plan.table, plan.dead_letters, plan.late_table) == ("/lake", "/dead", "/late")
    assert (plan.late, plan.out_of_orderness) == ((LateTier(None, "late_table"),), timedelta(minutes=5))
    assert (plan.budget, plan.target_file_size, plan.bucket) == (3 * 2**20, 2 * 2**20, settings.bucket)
    assert (plan.time_rule, plan.schemas, plan.frontier) == (settings.event_time.rule("ms"), schemas, {})
    assert (plan.closed_until, plan.hidden, plan.topic) == (None, True, None)
    assert plan.destination("/other", ("key",)).prefix == "7"
