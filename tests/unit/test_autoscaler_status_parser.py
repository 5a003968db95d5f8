"""From what driver and Kafka say to facts."""

from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.autoscaler.decision.facts import Pipeline
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime.status_parser import (
    Frontiers,
    parse_batches,
    parse_executors,
    parse_pipeline,
    update_frontiers,
)
from headrace.writer.status.lag_sample import AppendedOffsets, Lag, LagSample

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
POLICY = Policy()


def sample(frontier: int | None = 900) -> LagSample:
    """A sample of one partition, and how its log grew over ten minutes."""
    part = Lag("clicks", 0, 77, 3.0, 900, 3_600.0, frontier)
    grown = (AppendedOffsets(NOW - timedelta(seconds=600), 0), AppendedOffsets(NOW, 1_000))
    return LagSample(NOW, partitions=(part,), appended=grown)


def commit(version: int, ago_s: float, **more: Any) -> dict[str, Any]:
    ended = NOW - timedelta(seconds=ago_s)
    return {
        "version": version, "at": ended.isoformat(), "began": (ended - timedelta(seconds=10)).isoformat(),
        "read": 1_000, "offsets": 1_000, "tasks": 4,
        "phases": {"wait": 50.0, "look": 1.0, "tasks": 7.0, "commit": 1.5, "redo": 0.5},
        "work": {"slots": 4, "ranges": 12, "task_seconds_median": 2.0, "task_seconds_max": 5.0}, **more,
    }  # fmt: skip


def told(*commits: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "at": NOW.isoformat(), "error": "", "pause": None, "commits": list(commits),
        "limits": {
            "offsets_max": 1_000, "offsets_per_range": 300, "offsets_per_task": 50, "delay_max_seconds": 60.0,
            "partitions_per_task": 100,
        }, **more,
    }  # fmt: skip


def read(
    said: dict[str, Any], lag: LagSample | None = None, frontiers: Frontiers | None = None, **more: Any
) -> Pipeline:
    return parse_pipeline("clicks", said, lag or sample(), frontiers or {}, POLICY, age_s=2.0, lag_age_s=9.0, **more)


def test_lag_is_that_of_the_sample() -> None:
    (part,) = read(told()).partitions
    assert (part.lag_offsets, part.lag_s) == (77, 3.0)
    assert read(told(), LagSample()).partitions == ()
    assert (read(told()).age_s, read(told()).lag_age_s) == (2, 9)


def test_limits_say_how_many_ranges_and_tasks_a_full_batch_has():
    found = read(told())
    assert (found.offsets_max, found.min_partitions, found.offsets_per_task) == (1_000, 4, 50)
    assert found.partitions_per_task == 100
    assert (found.delay_max_s, found.headroom_s, found.arriving_per_s) == (60, 3_600, 1_000 / 600)


def test_a_rate_limit_in_bytes_goes_by_the_mean_of_the_values():
    totals = {"records": {"read": 1_000}, "value_bytes": 50_000, "offsets_without_records": {}}
    limit = {"records_per_second": 300, "bytes_per_second": 10_000}
    assert read(told(rate_limit=None)).rate_limit_per_s is None
    assert read(told(rate_limit=limit, totals=totals)).rate_limit_per_s == 200
    assert read(told(rate_limit={**limit, "bytes_per_second": 10**6}, totals=totals)).rate_limit_per_s == 300
    transactions = {**totals, "offsets_without_records": {"control": 400, "aborted": 100}}
    assert read(told(rate_limit=limit, totals=transactions)).rate_limit_per_s == 300, "three offsets for two records"
    unknown = {**totals, "records": {"read": 0}, "value_bytes": 0}
    assert read(told(rate_limit=limit, totals=unknown)).rate_limit_per_s == 300


def test_a_batch_that_waited_for_others_did_not_take_longer():
    queued = commit(7, 5.0)
    (one,) = parse_batches([{**queued, "phases": {**queued["phases"], "queue": 90.0}}])
    assert one.seconds == 10.0


def test_a_batch_is_what_its_commit_says():
    (one,) = parse_batches([commit(7, 5)])
    assert (one.seconds, one.tasks_s, one.tasks, one.ranges, one.slots, one.skew) == (10, 5, 4, 12, 4, 2.5)
    assert (one.began, one.ended, one.offsets) == (NOW - timedelta(seconds=15), NOW - timedelta(seconds=5), 1_000)


def test_commits_that_do_not_say_what_their_tasks_did_are_left_out_and_the_oldest_is_first():
    old = [commit(1, 50, work=None), commit(2, 40, tasks=None), commit(3, 30, began=None)]
    found = parse_batches([commit(5, 10), commit(4, 20), *old])
    assert [one.ended for one in found] == [NOW - timedelta(seconds=20), NOW - timedelta(seconds=10)]


def test_tasks_beyond_the_slots_run_in_waves():
    work = {"slots": 2, "ranges": 500, "task_seconds_median": 2.0, "task_seconds_max": 2.5}
    (one,) = parse_batches([commit(7, 5, tasks=5, work=work)])
    assert one.tasks_s == 7.0, "what the phase took, below three waves of 2.5 s"
    phases = {"wait": 1.0, "look": 1.0, "tasks": 9.0, "commit": 1.0, "redo": 0.0}
    (one,) = parse_batches([commit(7, 5, tasks=5, work=work, phases=phases)])
    assert one.tasks_s == 7.5


def test_two_tasks_show_no_skew():
    assert parse_batches([commit(7, 5, tasks=2)])[0].skew is None


def test_a_partition_that_stands_still_counts_the_commits_since() -> None:
    frontiers = update_frontiers({}, [commit(3, 60)], sample())
    for version in (4, 5):
        frontiers = update_frontiers(frontiers, [commit(version, 10), commit(version - 1, 20)], sample())
    said = told(commit(5, 10), commit(4, 20), commit(3, 60))
    assert read(said, frontiers=frontiers).partitions[0].batches_unmoved == 2
    later = told(commit(6, 5))
    frontiers = update_frontiers(frontiers, later["commits"], sample(950))
    assert read(later, frontiers=frontiers).partitions[0].batches_unmoved == 0


def test_a_failure_a_pause_and_recovery_are_passed_on() -> None:
    assert read(told(error="503 Slow Down")).failing == "503 Slow Down"
    assert read(told(pause={"by": "me"})).paused
    assert read(told(), recovery_level=2).recovery_level == 2


SAID = {
    "refused": None, "age_seconds": 1.0, "requested": None, "registered": 3, "draining": [{"id": "4"}], "cores": 2,
    "cpus_per_task": 1, "short_seconds": None, "gc_share": 0.05, "failed_tasks": 0, "lost": 0, "gone": 0,
}  # fmt: skip


def test_before_a_request_the_executors_are_those_that_are_registered():
    found = parse_executors(SAID, POLICY)
    assert found is not None
    assert (found.wanted, found.registered, found.draining, found.slots, found.quota) == (3, 3, 1, 2, None)


def test_without_an_answer_there_are_no_facts_of_executors():
    assert parse_executors(None, POLICY) is None
    assert parse_executors({**SAID, "refused": "local[*]"}, POLICY) is None
    assert parse_executors({**SAID, "age_seconds": None}, POLICY) is None


def test_executors_that_do_not_come_for_long_are_a_quota():
    waits = parse_executors({**SAID, "requested": 8, "short_seconds": POLICY.max_start_s}, POLICY)
    refused = parse_executors({**SAID, "requested": 8, "short_seconds": POLICY.max_start_s + 1}, POLICY)
    assert waits is not None
    assert refused is not None
    assert (waits.quota, refused.quota) == (None, 3)
