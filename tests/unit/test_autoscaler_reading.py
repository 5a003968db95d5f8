"""From what driver and Kafka say to facts."""

from datetime import UTC, datetime, timedelta
from typing import Any

from autoscaler.decision.policy import Policy
from autoscaler.runtime.status_parser import Heard, Known, batches, executors, moved, pipeline

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
POLICY = Policy()


def heard(*samples: tuple[float, int]) -> Heard:
    """Samples of one partition: seconds before NOW, end of the log."""
    found = Heard()
    for ago_s, end in samples:
        found = found.with_sample(NOW - timedelta(seconds=ago_s), {("clicks", 0): end}, 3_600)
    return found


def commit(version: int, ago_s: float, **more: Any) -> dict[str, Any]:
    ended = NOW - timedelta(seconds=ago_s)
    return {
        "version": version, "at": ended.isoformat(), "began": (ended - timedelta(seconds=10)).isoformat(),
        "read": 1_000, "tasks": 4, "phases": {"wait": 50.0, "look": 1.0, "tasks": 7.0, "commit": 1.5, "redo": 0.5},
        "work": {"slots": 4, "ranges": 12, "task_seconds_median": 2.0, "task_seconds_max": 5.0}, **more,
    }  # fmt: skip


def told(*commits: dict[str, Any], frontier: int | None = 900, **more: Any) -> dict[str, Any]:
    part = {"topic": "clicks", "partition": 0, "frontier": frontier, "offsets": 77, "seconds": 3.0}
    return {
        "at": NOW.isoformat(), "error": "", "pause": None, "commits": list(commits),
        "lag": {"partitions": [part], "headroom_seconds": 3_600.0},
        "limits": {
            "records_max": 1_000, "records_per_range": 300, "records_per_task": 50, "delay_max_seconds": 60.0,
            "partitions_per_task": 100,
        }, **more,
    }  # fmt: skip


def read(said: dict[str, Any], known: Known, **more: Any):
    return pipeline("clicks", said, known, POLICY, NOW, topics_heard_s=0.0, **more)


def test_rates_are_means_between_samples_that_reach_far_enough():
    assert heard((600, 0), (120, 48_000), (0, 60_000)).per_s(600) == 100
    assert heard((600, 0), (120, 48_000), (0, 60_000)).per_s(120) == 100
    assert heard((60, 0), (0, 60_000)).per_s(120) is None, "nobody knows what came before"
    assert heard((0, 60_000)).per_s(120) is None
    assert Heard().per_s(120) is None


def test_of_old_samples_one_stays_so_that_the_window_is_whole():
    found = Heard()
    for second in range(0, 1_000, 10):
        found = found.with_sample(NOW + timedelta(seconds=second), {("clicks", 0): second}, 100)
    assert len(found.samples) == 11
    assert found.per_s(100) == 1


def test_a_topic_that_is_shorter_than_before_brought_nothing():
    assert heard((600, 500), (0, 20)).per_s(600) == 0


def test_lag_is_kafkas_end_less_the_frontier_not_what_the_driver_heard():
    known = Known(heard((600, 0), (0, 1_000)))
    (part,) = read(told(), known).partitions
    assert (part.lag_offsets, part.lag_s) == (100, 3.0)
    (never,) = read(told(frontier=None), known).partitions
    assert never.lag_offsets == 77


def test_limits_say_how_many_ranges_and_tasks_a_full_batch_has():
    found = read(told(), Known(heard((600, 0), (0, 1_000))))
    assert (found.records_max, found.min_partitions, found.records_per_task) == (1_000, 4, 50)
    assert found.partitions_per_task == 100
    assert (found.delay_max_s, found.headroom_s, found.arriving_per_s) == (60, 3_600, 1_000 / 600)


def test_a_batch_is_what_its_commit_says():
    (one,) = batches([commit(7, 5)])
    assert (one.seconds, one.tasks_s, one.tasks, one.ranges, one.slots, one.skew) == (10, 5, 4, 12, 4, 2.5)
    assert (one.began, one.ended, one.rows) == (NOW - timedelta(seconds=15), NOW - timedelta(seconds=5), 1_000)


def test_commits_that_do_not_say_what_their_tasks_did_are_left_out_and_the_oldest_is_first():
    old = [commit(1, 50, work=None), commit(2, 40, tasks=None), commit(3, 30, began=None)]
    found = batches([commit(5, 10), commit(4, 20), *old])
    assert [one.ended for one in found] == [NOW - timedelta(seconds=20), NOW - timedelta(seconds=10)]


def test_tasks_beyond_the_slots_run_in_waves():
    work = {"slots": 2, "ranges": 500, "task_seconds_median": 2.0, "task_seconds_max": 2.5}
    (one,) = batches([commit(7, 5, tasks=5, work=work)])
    assert one.tasks_s == 7.0, "what the phase took, below three waves of 2.5 s"
    phases = {"wait": 1.0, "look": 1.0, "tasks": 9.0, "commit": 1.0, "redo": 0.0}
    (one,) = batches([commit(7, 5, tasks=5, work=work, phases=phases)])
    assert one.tasks_s == 7.5


def test_two_tasks_show_no_skew():
    assert batches([commit(7, 5, tasks=2)])[0].skew is None


def test_a_partition_that_stands_still_counts_the_commits_since():
    known = moved(Known(heard((600, 0), (0, 1_000))), told(commit(3, 60)))
    for version in (4, 5):
        said = told(commit(version, 10), commit(version - 1, 20))
        known = moved(known, said)
    said = told(commit(5, 10), commit(4, 20), commit(3, 60))
    assert read(said, known).partitions[0].batches_unmoved == 2
    later = told(commit(6, 5), frontier=950)
    assert read(later, moved(known, later)).partitions[0].batches_unmoved == 0


def test_a_failure_a_pause_and_recovery_are_passed_on():
    known = Known(heard((600, 0), (0, 1_000)))
    assert read(told(error="503 Slow Down"), known).failing == "503 Slow Down"
    assert read(told(pause={"by": "me"}), known).paused
    assert read(told(), known, recovery_level=2).recovery_level == 2


SAID = {
    "refused": None, "age_seconds": 1.0, "requested": None, "registered": 3, "draining": [{"id": "4"}], "cores": 2,
    "cpus_per_task": 1, "short_seconds": None, "gc_share": 0.05, "failed_tasks": 0, "lost": 0, "gone": 0,
}  # fmt: skip


def test_executors_that_nobody_wanted_yet_are_those_that_are_there():
    found = executors(SAID, POLICY)
    assert found is not None
    assert (found.wanted, found.registered, found.draining, found.slots, found.quota) == (3, 3, 1, 2, None)


def test_without_an_answer_there_are_no_facts_of_executors():
    assert executors(None, POLICY) is None
    assert executors({**SAID, "refused": "local[*]"}, POLICY) is None
    assert executors({**SAID, "age_seconds": None}, POLICY) is None


def test_executors_that_do_not_come_for_long_are_a_quota():
    waits = executors({**SAID, "requested": 8, "short_seconds": POLICY.start_max_s}, POLICY)
    refused = executors({**SAID, "requested": 8, "short_seconds": POLICY.start_max_s + 1}, POLICY)
    assert waits is not None
    assert refused is not None
    assert (waits.quota, refused.quota) == (None, 3)
