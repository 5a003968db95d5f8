"""What a running pipeline knows of itself."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from headrace.writer.columns.schema_plan import RejectedSchema, WriterSchema
from headrace.writer.status.model import DURATION_BOUNDS, Commit, Sample, Totals
from headrace.writer.status.progress import Progress
from tests.support.commit_facts import facts

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = ("clicks", 0), ("clicks", 1)


class Clock:
    """Both clocks of a Progress, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds

    def progress(self) -> Progress:
        return Progress("clicks", now=lambda: NOON + timedelta(seconds=self.seconds), seconds=lambda: self.seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock):
    progress = clock.progress()
    progress.record_start(epoch=3, run=2, frontier={A: 5, B: 0}, limits={"offsets_max": 9}, buckets=[("x",)], recent=[])
    progress.set_running()
    return progress


def carried(progress, clock, number=0, *, wait=1.0, look=2.0, tasks=30.0, commit=0.5, apply_side_files=0.25, **changes):
    clock.pass_(wait)
    progress.begin_batch(number, "look")
    clock.pass_(look)
    progress.enter_phase("tasks", offsets=10)
    clock.pass_(tasks)
    before = progress.enter_phase("commit")
    clock.pass_(commit)
    progress.enter_phase("redo")
    clock.pass_(apply_side_files)
    return before, progress.record_commit(7 + number, facts(**changes), {A: 15}, {("x",), ("y",)})


def test_a_pipeline_starts_runs_drains_and_stops(clock):
    progress = clock.progress()
    seen = [progress.view().state]
    progress.record_start(epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[])
    for event in (progress.set_running, progress.set_draining, progress.set_draining, progress.record_stop):
        event()
        seen.append(progress.view().state)
    assert seen == ["starting", "running", "draining", "draining", "stopped"]


def test_a_failed_pipeline_keeps_its_reason_whatever_is_asked_of_it(progress):
    progress.record_failure("the disk is full")
    progress.set_draining()
    view = progress.view()
    assert (view.state, view.error, view.batch) == ("failed", "the disk is full", None)


def test_the_batch_in_progress_is_seen_with_its_phase(progress, clock):
    assert progress.view().batch is None
    clock.pass_(5)
    progress.begin_batch(4, "look")
    clock.pass_(1)
    progress.enter_phase("tasks", offsets=10)
    batch = progress.view().batch
    assert (batch.number, batch.phase, batch.offsets) == (4, "tasks", 10)
    assert (batch.began, batch.phase_began) == (NOON + timedelta(seconds=5), NOON + timedelta(seconds=6))
    progress.enter_phase("commit")
    assert progress.view().batch.offsets == 10


def test_phases_are_measured_and_waiting_is_one_of_them(progress, clock):
    before, all_ = carried(progress, clock)
    assert before == {"wait": 1.0, "look": 2.0, "tasks": 30.0}
    assert all_ == {"wait": 1.0, "look": 2.0, "tasks": 30.0, "commit": 0.5, "redo": 0.25}
    carried(progress, clock, 1, wait=3.0)
    assert progress.view().phases == {"wait": 4.0, "look": 4.0, "tasks": 60.0, "commit": 1.0, "redo": 0.5}


def test_a_duration_leaves_out_the_waiting_and_is_counted_under_one_bound(progress, clock):
    carried(progress, clock, wait=500.0)
    view = progress.view()
    assert (view.duration_last_seconds, view.duration_sum_seconds) == (32.75, 32.75)
    assert sum(view.durations) == 1
    assert view.durations[DURATION_BOUNDS.index(60.0)] == 1


@pytest.mark.parametrize(("seconds", "place"), [(1.0, 0), (1.01, 1), (1800.0, 10), (1801.0, 11)])
def test_a_duration_at_a_bound_lies_below_it(progress, clock, seconds, place):
    carried(progress, clock, look=seconds, tasks=0, commit=0, apply_side_files=0)
    assert progress.view().durations[place] == 1


def test_a_commit_moves_the_frontier_the_totals_and_the_buckets(progress, clock):
    carried(progress, clock)
    carried(progress, clock, 1)
    view = progress.view()
    assert view.frontier == {A: 15, B: 0}
    assert view.buckets == 2
    assert [commit.version for commit in view.commits] == [8, 7]
    assert view.committed_at == view.commits[0].at == NOON + timedelta(seconds=clock.seconds)
    assert view.totals.records == {
        "read": 18,
        "rows": 12,
        "late_table": 0,
        "dead_letters": 4,
        "quarantined": 2,
        "tombstones": 0,
        "filtered": 0,
    }
    assert view.totals.steps == {"decode": 1.0, "stage": 0.5}
    assert (view.totals.files, view.totals.bytes, view.totals.offsets_without_records) == (4, 1200, 2)
    assert view.totals.commits == {"size": 2}
    assert view.batch is None


def test_a_skipped_batch_commits_nothing(progress, clock):
    progress.begin_batch(0, "look")
    clock.pass_(1)
    progress.skip_batch()
    view = progress.view()
    assert (view.batch, view.commits, sum(view.durations)) == (None, (), 0)
    assert view.phases["look"] == 1.0


def test_the_progress_of_earlier_starts_is_known_at_once(clock):
    progress = clock.progress()
    older = facts(event_time_max="2026-11-20T11:30:00+00:00")
    newest = facts(assembled="2026-11-20T11:50:00+00:00", event_time_max=None)
    progress.record_start(
        epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[Commit(9, NOON, newest), Commit(7, NOON, older)]
    )
    view = progress.view()
    assert view.committed_at == NOON - timedelta(minutes=10)
    assert view.event_time_newest == NOON - timedelta(minutes=30)
    assert [commit.version for commit in view.commits] == [9, 7]
    assert view.totals == Totals()


def test_a_restart_in_the_process_forgets_no_commit(progress, clock):
    for batch in range(15):
        clock.pass_(1)
        progress.begin_batch(batch, "look")
        progress.record_commit(100 + batch, facts(), {}, [])
    before = progress.view()
    restart = {"epoch": 4, "run": 2, "frontier": {}, "limits": {}, "buckets": []}
    told = [Commit(commit.version, NOON, commit.facts) for commit in before.commits]
    progress.record_start(**restart, recent=[Commit(115, NOON, facts()), *told[:9]])
    assert progress.view().commits == (Commit(115, NOON, facts()), *before.commits)
    progress.record_start(**restart, recent=[])
    assert len(progress.view().commits) == 16, "the log of the table may be shorter than the life of the driver"


def test_a_late_batch_does_not_move_the_newest_event_time_back(progress, clock):
    carried(progress, clock)
    carried(progress, clock, 1, event_time_max="2026-11-20T03:00:00+00:00")
    carried(progress, clock, 2, event_time_max=None)
    assert progress.view().event_time_newest == NOON - timedelta(hours=1)


def test_schemas_are_counted_by_decoder(progress):
    native, single = WriterSchema("{}", native=True, columns={}), WriterSchema("{}", native=False, columns={})
    progress.set_schemas({1: native, 2: single, 3: single, 4: RejectedSchema("no")})
    assert progress.view().schemas == {"native": 1, "single": 2, "rejected": 1}


def test_samples_leave_after_an_hour(progress):
    for minutes in (0, 30, 59, 61):
        progress.add_sample(Sample(NOON + timedelta(minutes=minutes), {A: minutes}), {A: 0})
    assert [sample.ends[A] for sample in progress.view().logs.samples] == [30, 59, 61]


def test_a_view_does_not_change_any_more(progress, clock):
    before = progress.view()
    carried(progress, clock)
    assert (before.frontier, before.totals, before.commits) == ({A: 5, B: 0}, Totals(), ())


def test_readers_and_the_writer_do_not_disturb_each_other(progress, clock):
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            view = progress.view()
            if view.totals.files != 2 * sum(view.totals.commits.values()):
                wrong.append(view)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(200):
        carried(progress, clock, number)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert progress.view().totals.files == 400


def test_listeners_hear_of_each_commit(progress, clock):
    heard = []
    progress.on_commit(lambda: heard.append(progress.view().frontier[A]))
    carried(progress, clock)
    assert heard == [15]
