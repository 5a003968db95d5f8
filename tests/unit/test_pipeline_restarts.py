"""A pipeline over its starts in one process: what ends it, what starts it again, and that it ends for good."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.core.errors import ConfigError, Draining, Fenced, HeadraceError, LogChanged, LogMoved, TopicMissing
from headrace.writer.driver import pipeline_runner
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from headrace.writer.status.progress import Progress
from headrace.writer.table.log.foreign_writes import CommitFailed


class Query:
    def __init__(self, error: BaseException | None) -> None:
        self.isActive, self._error = False, error

    def exception(self) -> BaseException | None:
        return self._error


class Pipeline:
    """A pipeline whose end a test decides."""

    def __init__(self, *, error: BaseException | None = None, moved: str = "", owner: bool = True) -> None:
        self.error, self._moved, self._owner = error, moved, owner

    def owns_table(self) -> bool:
        return self._owner

    def catch_up(self) -> None:
        pass

    def find_log_change(self) -> str:
        return self._moved


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PipelineRunner]:
    """Make a pipeline whose starts end as listed: with an error, in the query (Pipeline or Query), or well (None)."""
    clock = [0.0]
    monkeypatch.setattr(pipeline_runner.time, "monotonic", lambda: clock[0])

    def made(*ends: object) -> PipelineRunner:
        left = list(ends)

        def begin(r: PipelineRunner, _: bool) -> None:
            end = left.pop(0) if left else AssertionError("one start too many")
            clock[0] += 5.0
            if isinstance(end, BaseException):
                raise end
            r.pipeline = end if isinstance(end, Pipeline) else Pipeline()  # type: ignore[assignment]
            r.query = end if isinstance(end, Query) else Query(None)

        r = PipelineRunner(Progress("clicks"), begin)
        r.begin()
        return r

    return made


def ended(r: PipelineRunner) -> BaseException | None:
    for _ in range(100):
        if r.look(stopping=False):
            return r.error
        r._due_s = 0.0 if r._due_s is not None else None
    raise AssertionError("it does not end")


def running(runners: dict[str, PipelineRunner], asked: StartRequests | None = None, **options: Any) -> PipelineRunners:
    """Pipelines that a test has begun, as a driver watches them."""
    found = PipelineRunners(lambda name: runners[name], asked or StartRequests(), **options)
    for name, runner in list(runners.items()):
        found.add(name)
        if runner.error is None and runner.query is not None:
            found._unfinished[name] = runner
    return found


def test_a_pipeline_that_ended_well_is_not_started_again(starts: Callable[..., PipelineRunner]) -> None:
    r = starts(None)
    assert ended(r) is None
    assert r.progress.view().state == "stopped"


def test_a_log_that_moved_starts_it_again_and_is_forgotten(starts: Callable[..., PipelineRunner]) -> None:
    r = starts(Pipeline(error=LogMoved("created again")), None)
    assert not r.look(stopping=False)
    view = r.progress.view()
    assert (view.state, view.error, view.restarts) == ("starting", "created again", 1)
    assert ended(r) is None
    assert (r.progress.view().state, r.progress.view().restarts) == ("stopped", 1)


def test_spark_saying_so_starts_it_again(starts: Callable[..., PipelineRunner]) -> None:
    lost = RuntimeError("the query ended")
    lost.__cause__ = RuntimeError("[KAFKA_DATA_LOSS] Some data may have been lost")
    assert ended(starts(Query(lost), None)) is None


def test_kafka_saying_so_starts_it_again_whatever_spark_said(starts: Callable[..., PipelineRunner]) -> None:
    odd = RuntimeError("java.util.NoSuchElementException: None.get")
    assert ended(starts(Pipeline(error=odd, moved="clicks/0 begins at offset 9, beyond the table's 4"), None)) is None
    assert ended(starts(Pipeline(error=odd), None)) is odd


def test_a_partition_that_appears_while_spark_plans_starts_it_again(starts: Callable[..., PipelineRunner]) -> None:
    new = RuntimeError("java.util.NoSuchElementException: key not found: clicks-3")
    assert ended(starts(Query(new), None)) is None


def test_a_topic_on_its_way_and_a_broker_after_it_are_waited_for(starts: Callable[..., PipelineRunner]) -> None:
    gone, silent = TopicMissing("topic 'clicks' does not exist"), BrokerUnreachable("no broker answers")
    assert ended(starts(Pipeline(error=gone), gone, silent, gone, None)) is None


def test_a_server_that_is_away_while_it_is_started_again_is_waited_for_and_a_later_batch_is_not(
    starts: Callable[..., PipelineRunner],
) -> None:
    moved, away = LogMoved("a topic appeared"), CommitFailed("the table took no commit")
    assert ended(starts(Pipeline(error=moved), away, away, None)) is None
    assert ended(starts(Pipeline(error=moved), *[away] * 20)) is away
    assert ended(starts(Pipeline(error=moved), Pipeline(error=away))) is away


def test_a_crash_loop_ends_with_the_error_and_the_number_of_restarts(
    starts: Callable[..., PipelineRunner], caplog: pytest.LogCaptureFixture
) -> None:
    moved = LogMoved("created again")
    r = starts(*[Pipeline(error=moved)] * 20)
    assert ended(r) is moved
    assert "it was started again 6 times within 10 minutes" in caplog.text
    assert r.progress.view().restarts == 6
    assert r.progress.view().state == "failed"


@pytest.mark.parametrize(
    "error", [ConfigError("no such field"), LogChanged("set on_data_loss: record"), BrokerUnreachable("silence")]
)
def test_other_errors_end_it(starts: Callable[..., PipelineRunner], error: Exception) -> None:
    assert ended(starts(Pipeline(error=error))) is error


def test_a_start_that_refuses_after_a_restart_ends_it(starts: Callable[..., PipelineRunner]) -> None:
    refused = LogChanged("set on_topic_recreated: start")
    assert ended(starts(Pipeline(error=LogMoved("created again")), refused)) is refused


def test_one_that_was_replaced_is_not_started_again(starts: Callable[..., PipelineRunner]) -> None:
    assert isinstance(ended(starts(Pipeline(error=LogMoved("created again"), owner=False))), Fenced)


def test_a_stop_between_two_starts_is_heeded(starts: Callable[..., PipelineRunner]) -> None:
    r = starts(Pipeline(error=LogMoved("created again")))
    assert not r.look(stopping=False)
    assert r.look(stopping=True)
    assert (r.error, r.progress.view().state) == (None, "stopped")


def test_a_drain_is_no_failure(starts: Callable[..., PipelineRunner]) -> None:
    assert ended(starts(Pipeline(error=Draining("asked to stop")))) is None


def test_topics_that_appear_are_no_restarts_and_their_batch_is_not_cancelled(
    starts: Callable[..., PipelineRunner],
) -> None:
    class Busy(Pipeline):
        drained = 0

        def drain(self) -> bool:
            self.drained += 1
            return self.drained == 3  # after the batch that runs

    class Running(Query):
        def __init__(self) -> None:
            super().__init__(None)
            self.isActive = True

        def stop(self) -> None:
            self.isActive = False

    cancelled: list[str] = []
    r = starts(*[None] * 20)
    for n in range(10):  # more often than a log may change
        progress, r.query = r.progress, Running()
        r.pipeline, r.cancel = Busy(), lambda: cancelled.append("a batch")  # type: ignore[assignment]
        progress.record_start(
            epoch=n, run=n, frontier={}, limits={}, buckets=[], recent=[], incarnations=dict.fromkeys(range(n), 1)
        )  # fmt: skip
        progress.set(topics_appeared="1 topic to read appeared: b")
        for _ in range(10):
            assert not r.look(stopping=False)
            if r._due_s is not None:
                break
        view = progress.view()
        assert (view.state, view.error, view.restarts, view.topic_restarts) == ("starting", "", 0, n + 1)
        r._due_s = 0.0
        assert not r.look(stopping=False)
    assert cancelled == []


def test_a_query_of_a_log_that_moved_is_told_to_end(starts: Callable[..., PipelineRunner]) -> None:
    r = starts(None, None)

    class Idle(Query):
        isActive = True  # noqa: N815 - Spark's name

        def __init__(self) -> None:
            self._error = None

        def stop(self) -> None:
            self.isActive = False

    class Obedient(Pipeline):
        def drain(self) -> bool:
            return True

    r.query, r.pipeline = Idle(), Obedient()  # type: ignore[assignment]
    assert not r.look(stopping=False)
    assert r.query.isActive
    r.progress.set(log_moved="the log of clicks/0 ends at 3, 1 offset before the table")
    assert not r.look(stopping=False)
    assert not r.query.isActive
    assert not r.look(stopping=False)
    assert r.progress.view().error == "the log of clicks/0 ends at 3, 1 offset before the table"


class Batch(Query):
    """A query whose batch runs until its jobs are cancelled, and then fails as Spark lets it."""

    CANCELLED = "SparkException: Job 4 cancelled part of cancelled job group"

    def __init__(self, *, error: BaseException | None = None) -> None:
        super().__init__(None)
        self.isActive, self.cancelled, self._then = True, 0, error or RuntimeError(self.CANCELLED)

    def cancel(self) -> None:
        self.cancelled += 1
        self.isActive, self._error = False, self._then


class Busy(Pipeline):
    def drain(self) -> bool:
        return False


def carrying(starts: Callable[..., PipelineRunner], batch: Batch, *after: object) -> PipelineRunner:
    """Make a pipeline that carries a batch; `after`: how its next starts end."""
    r = starts(Busy(), *after)
    r.query, r.cancel = batch, batch.cancel
    return r


def test_the_batch_of_a_topic_that_is_gone_is_cancelled_and_the_pipeline_starts_again(
    starts: Callable[..., PipelineRunner],
) -> None:
    batch = Batch()
    r = carrying(starts, batch, None)
    assert not r.look(stopping=False)
    assert not batch.cancelled
    r.progress.set(log_moved="topic 'clicks' does not exist")
    assert not r.look(stopping=False)
    assert batch.cancelled == 1
    assert not r.look(stopping=False)
    assert (r.progress.view().error, r.progress.view().restarts) == ("topic 'clicks' does not exist", 1)
    assert ended(r) is None


def test_a_batch_is_cancelled_once_a_stop_has_waited_for_stop_timeout_and_that_is_no_failure(
    starts: Callable[..., PipelineRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch()
    r = carrying(starts, batch)
    r._stop_timeout_s = 30.0
    for now_s in (100.0, 129.9):
        monkeypatch.setattr(pipeline_runner.time, "monotonic", lambda now_s=now_s: now_s)
        assert not r.look(stopping=True)
        assert not batch.cancelled
    monkeypatch.setattr(pipeline_runner.time, "monotonic", lambda: 130.0)
    assert not r.look(stopping=True)
    assert batch.cancelled == 1
    assert r.look(stopping=True)
    assert (r.error, r.progress.view().state) == (None, "stopped")


@pytest.mark.parametrize("error", [Fenced("another writer runs"), LogChanged("set on_data_loss: record")])
def test_an_error_of_the_batch_itself_is_not_hidden_by_its_cancelling(
    starts: Callable[..., PipelineRunner], error: HeadraceError
) -> None:
    r = carrying(starts, Batch(error=error))
    r.progress.set(log_moved="topic 'clicks' does not exist")
    assert not r.look(stopping=False)
    assert r.look(stopping=True)
    assert r.error is error


def test_a_batch_that_ends_before_stop_timeout_is_not_cancelled_and_its_failure_counts(
    starts: Callable[..., PipelineRunner],
) -> None:
    batch, corrupt = Batch(), OSError("the disk is full")
    r = carrying(starts, batch)
    assert not r.look(stopping=True)
    batch.isActive, batch._error = False, corrupt
    assert r.look(stopping=True)
    assert (r.error, batch.cancelled) == (corrupt, 0)


def test_a_pipeline_whose_next_batch_began_before_its_query_ended_starts_again(
    starts: Callable[..., PipelineRunner],
) -> None:
    batch = Batch(error=Draining("asked to stop"))
    r = carrying(starts, batch, None)
    r.progress.set(log_moved="the log of clicks/0 ends at 3, 1 offset before the table")
    assert not r.look(stopping=False)
    assert ended(r) is None
    assert r.progress.view().restarts == 1


def test_one_that_has_ended_is_started_again_beside_the_others_when_asked(
    starts: Callable[..., PipelineRunner],
) -> None:
    class Going(Query):
        isActive = True  # noqa: N815 - Spark's name

        def __init__(self) -> None:
            self._error = None

    well, sick = starts(None), starts(RuntimeError("torn"), None)
    well.query = Going()
    assert sick.error is not None
    sick.fail()
    asked, looks = StartRequests(), []

    def beat() -> None:
        looks.append(sick.progress.view().state)
        if len(looks) == 2:
            asked.put(StartRequest("sick", new_run=True))
        if looks[-1] == "stopped":
            well.query.isActive = False
        assert len(looks) < 100

    running({"well": well, "sick": sick}, asked).watch(threading.Event(), beat)
    assert looks[:2] == ["failed", "failed"]
    assert {r.progress.view().state for r in (well, sick)} == {"stopped"}


def test_one_that_is_drained_by_a_supervisor_says_that_it_was_replaced() -> None:
    told: list[BaseException | None] = []

    def begin(r: PipelineRunner, _: bool) -> None:
        r.pipeline, r.query = Pipeline(owner=False), Query(None)  # type: ignore[assignment]

    alone, supervised = (
        PipelineRunner(Progress("clicks"), begin, report=report) for report in (None, lambda _, e, __: told.append(e))
    )
    for r in (alone, supervised):
        r.begin()
        assert r.look(stopping=True)
    assert alone.error is None
    assert isinstance(supervised.error, Fenced)
    assert told == [supervised.error]


def test_how_it_ended_is_told_with_all_causes() -> None:
    told: list[tuple[str, BaseException | None]] = []

    def begin(_: PipelineRunner, __: bool) -> None:
        raise ConfigError("no such field")

    r = PipelineRunner(Progress("clicks"), begin, report=lambda view, error, _: told.append((view.pipeline, error)))
    r.begin()
    r.fail()
    assert told == [("clicks", r.error)]


def test_all_are_waited_for(starts: Callable[..., PipelineRunner]) -> None:
    both = [starts(None), starts(None)]
    running({"clicks": both[0], "views": both[1]}).watch(threading.Event())
    assert {r.progress.view().state for r in both} == {"stopped"}
