"""Late rows in a task: where they go, how late they are, how far each part has come."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.writer.batch.lateness import BOUNDS_S, Lateness, LateTier
from headrace.writer.batch.task import run
from headrace.writer.core.units import instant
from tests.support.task_topic import KAFKA_TIME, NOW, SCHEMAS, Topic, files_below, place, plan, read, report_of, written

__all__ = ["plan", "written"]
CLOSED_UNTIL = datetime(2026, 11, 20, 9, tzinfo=UTC)


def late_rows(written: Topic) -> dict[tuple[str, int, int], str]:
    """Rows that lie in hours that end by then, and their buckets."""
    return {at: f"{row['at']:%Y-%m-%dT%H}" for at, row in written.rows.items() if row["at"] < CLOSED_UNTIL}


@pytest.mark.parametrize("budget", [1_000, 2**20], ids=["spilling", "ample"])
@pytest.mark.parametrize("size", [97, 5000])
@pytest.mark.parametrize("policy", ["reopen", "late_table", "dead_letter"])
def test_rows_of_closed_buckets_go_where_the_policy_says(written, plan, policy, size, budget, tmp_path):
    plan = replace(
        plan,
        closed_until=CLOSED_UNTIL,
        late=(LateTier(None, policy),),
        late_table=str(tmp_path / "late"),
        budget=budget,
    )
    report, late = report_of(written, plan, size), late_rows(written)
    assert 0 < len(late) < len(written.rows)
    assert all(counts.is_balanced() for counts in report.counts.values())
    rows = {place(row) for row in read(plan.table, report.files).to_pylist()}
    dead_letters = {place(row): row for row in read(plan.dead_letters, report.dead_letter_files).to_pylist()}
    aside = {place(row): row for row in read(str(tmp_path / "late"), report.late_files).to_pylist()} if (
        report.late_files
    ) else {}  # fmt: skip
    assert rows == written.rows.keys() - (set() if policy == "reopen" else late.keys())
    assert aside.keys() == (late.keys() if policy == "late_table" else set())
    assert dead_letters.keys() - written.dead_letters.keys() - written.quarantined.keys() == (
        late.keys() if policy == "dead_letter" else set()
    )
    assert sum(report.late.beyond) == len(late)
    assert report.late.buckets == (Counter((hour,) for hour in late.values()) if policy == "reopen" else {})
    for at in late if policy == "dead_letter" else ():
        when = f"late: at is {written.rows[at]['at']:%Y-%m-%d %H:%M:%S}.000000Z, in a bucket that was closed by"
        assert dead_letters[at]["error"].startswith(when)
        assert dead_letters[at]["outcome"] == "dead_letter"
        assert dead_letters[at]["value"] == {r[:3]: r[3] for r in written.records}[at]
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
    ahead = replace(plan, time_rule=replace(plan.time_rule, max_ahead=timedelta(hours=3)))
    accepted = Topic()
    for _ in range(3):
        accepted.put("clicks", 0, "future")  # two hours ahead: believed now
    assert instant(report_of(accepted, ahead).counts["clicks", 0].seen) == NOW
    supervised = replace(ahead, now=NOW + timedelta(hours=9))
    assert instant(report_of(accepted, supervised).counts["clicks", 0].seen) == KAFKA_TIME


def test_a_failure_leaves_no_late_file(written, plan, tmp_path):
    def corrupt() -> Iterator[pa.RecordBatch]:
        yield from written.batches()
        raise ConnectionError("the broker is gone")

    late = str(tmp_path / "late")
    plan = replace(plan, budget=1_000, closed_until=CLOSED_UNTIL, late=(LateTier(None, "late_table"),), late_table=late)
    with pytest.raises(ConnectionError, match="the broker is gone"):
        list(run(corrupt(), plan))
    assert files_below(plan.table) == files_below(plan.dead_letters) == files_below(late) == []


def test_a_batch_has_rows_of_each_tier(written, plan, tmp_path):
    tiers = (LateTier(timedelta(hours=1), "reopen"), LateTier(timedelta(hours=2), "late_table"))
    plan = replace(plan, closed_until=CLOSED_UNTIL, late=(*tiers, LateTier(None, "dead_letter")))
    report, late = report_of(written, replace(plan, late_table=str(tmp_path / "late")), 97), late_rows(written)
    past = {
        at: CLOSED_UNTIL - datetime.fromisoformat(f"{hour}:00:00+00:00") - timedelta(hours=1)
        for at, hour in late.items()
    }
    beside = {at for at, by in past.items() if timedelta(hours=1) < by <= timedelta(hours=2)}
    dead = {at for at, by in past.items() if by > timedelta(hours=2)}
    assert min(len(beside), len(dead), len(late) - len(beside) - len(dead)) > 0
    assert {place(row) for row in read(plan.table, report.files).to_pylist()} == written.rows.keys() - beside - dead
    assert {place(row) for row in read(str(tmp_path / "late"), report.late_files).to_pylist()} == beside
    dead_letters = {place(row) for row in read(plan.dead_letters, report.dead_letter_files).to_pylist()}
    assert dead_letters - written.dead_letters.keys() - written.quarantined.keys() == dead
    assert report.late.by_policy == {
        "reopen": len(late) - len(beside) - len(dead), "late_table": len(beside), "dead_letter": len(dead),
    }  # fmt: skip
    assert all(counts.is_balanced() for counts in report.counts.values())
    assert Lateness.from_json(report.late.to_json()) == report.late
