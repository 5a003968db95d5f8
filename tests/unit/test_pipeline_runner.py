"""How a driver begins, changes, drains and removes pipelines, round by round."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from headrace.writer.clients.supervisor_record import LeaseWait
from headrace.writer.config.loader import ConfigChanges
from headrace.writer.core.errors import Draining, Fenced, LibraryPanicked, LimitReached, Occupied
from headrace.writer.driver import pipeline_runner
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from headrace.writer.lease.holder import LeaseLoss
from headrace.writer.status.progress import PipelineProgress, Progress
from headrace.writer.web.endpoints import starts, surrenders
from tests.support.simulated_supervisor import EndlessPipeline, Query

NOW = datetime(2026, 11, 27, tzinfo=UTC)


class Driver:
    """Pipelines that run until they are drained, and what happened to them."""

    def __init__(self, *names: str, supervised: bool = False) -> None:
        self.board, self.log, self.asked, self.stop = (
            PipelineProgress(),
            list[str](),
            StartRequests(),
            threading.Event(),
        )
        self.reports = list[str]()
        self.runners = PipelineRunners(self._made, self.asked, self.board.remove, supervised=supervised)
        self.fails = set[str]()
        for name in names:
            self.runners.add(name)
            self.runners.begin(name)

    def _made(self, name: str) -> PipelineRunner:
        self.board.add(name)

        def begin(r: PipelineRunner, _: bool) -> None:
            self.log.append(f"{name} begins")
            if name in self.fails:
                raise RuntimeError("torn")
            r.pipeline, r.query = EndlessPipeline(), Query()  # type: ignore[assignment]
            r.cleanup.callback(self.log.append, f"{name} ends")

        return PipelineRunner(self.board[name], begin, report=lambda view, _, __: self.reports.append(view.pipeline))

    def beats(self, *steps: ConfigChanges | Callable[[], object]) -> None:
        """Let it run; one step at each look, at the end a stop."""
        left = list(steps)

        def beat() -> ConfigChanges | None:
            step = left.pop(0) if left else self.stop.set
            return step if isinstance(step, ConfigChanges) else step() and None  # type: ignore[func-returns-value]

        self.runners.watch(self.stop, beat)


def test_pipelines_come_change_and_go_beside_the_others() -> None:
    driver = Driver("clicks", "views")
    driver.beats(
        ConfigChanges(added=("orders",), changed=("views",)),
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
        *[lambda: None] * 2,
        ConfigChanges(removed=("views",)),
        lambda: None,
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
    )
    assert driver.log == [
        "clicks begins", "views begins", "runs ['clicks', 'orders', 'views']", "orders begins", "views ends",
        "views begins", "views ends", "runs ['clicks', 'orders']", "clicks ends", "orders ends",
    ]  # fmt: skip
    assert driver.reports == ["views", "clicks", "orders"], "one that begins anew has not ended"
    assert {one.view().state for one in driver.board.values()} == {"stopped"}


class _SlowPipeline(EndlessPipeline):
    """Its batch takes until `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def drain(self) -> bool:
        return self.free.is_set()


@pytest.mark.parametrize("supervised", [False, True])
def test_all_pipelines_are_exchanged_while_those_that_go_drain(supervised: bool) -> None:
    driver, slow = Driver("old", supervised=supervised), _SlowPipeline()
    driver.runners.all["old"].pipeline = slow  # type: ignore[assignment]
    post = starts(driver.board, "token", lambda *request: driver.asked.put(StartRequest(*request)))
    driver.beats(
        ConfigChanges(added=("new",), removed=("old",)),
        lambda: post("/pipelines/new/start?new_run=false&lease=1", "Bearer token") if supervised else None,
        slow.free.set,
        lambda: None,
        lambda: driver.log.append(f"runs {sorted(driver.board)}"),
    )
    assert driver.log == ["old begins", "new begins", "old ends", "runs ['new']", "new ends"]


def test_a_request_that_waits_keeps_a_driver_going_whose_pipelines_have_ended() -> None:
    driver = Driver("clicks", supervised=True)
    driver.runners.add("views")
    driver.asked.put(StartRequest("gone"))
    driver.asked.put(StartRequest("views"))
    driver.runners.all["clicks"].query.isActive = False
    driver.runners.watch(driver.stop, lambda: driver.stop.set() if "views begins" in driver.log else None)
    assert driver.log == ["clicks begins", "clicks ends", "views begins", "views ends"]


def test_a_pipeline_that_fails_at_its_start_keeps_no_other_from_starting() -> None:
    driver = Driver("old")
    driver.fails = {"first", "second"}
    driver.beats(ConfigChanges(added=("first", "second", "third"), removed=("old",)), *[lambda: None] * 3)
    begun = [line for line in driver.log if "third" in line or "old" in line]
    assert begun == ["old begins", "old ends", "third begins", "third ends"]


def test_many_that_change_begin_one_by_one_with_a_beat_between() -> None:
    names = [f"p{n}" for n in range(6)]
    driver, beats = Driver(*names), list[tuple[int, set[str]]]()
    del driver.log[:]

    def beat() -> ConfigChanges | None:
        begun = sum("begins" in line for line in driver.log)
        beats.append((begun, {driver.board[name].view().state for name in names}))
        if begun == len(names):
            driver.stop.set()
        return ConfigChanges(changed=tuple(names)) if len(beats) == 1 else None

    driver.runners.watch(driver.stop, beat)
    assert [begun for begun, _ in beats] == [0, 0, *range(len(names) + 1), *[len(names)] * (len(beats) - 9)]
    assert all("starting" in states for begun, states in beats[2:] if begun < len(names)), "a start may take longer"


def test_many_that_come_begin_one_by_one_too() -> None:
    driver, begun = Driver("clicks"), list[int]()
    names = tuple(f"p{n}" for n in range(4))
    count: Callable[[], object] = lambda: begun.append(len(driver.log) - 1)  # noqa: E731
    driver.beats(ConfigChanges(added=names), *[count] * 5)
    assert begun == [0, 1, 2, 3, 4]


def test_a_pipeline_is_starting_while_it_begins() -> None:
    driver = Driver("clicks", supervised=True)
    states = list[str]()
    runner = driver.runners.add("views")
    runner.progress.record_stop()
    runner._begin = lambda r, _: states.append(r.progress.view().state)
    runner.begin()
    assert states == ["starting"]


class PanicException(BaseException):
    """As pyo3 raises it where Rust panics."""


def test_a_panic_of_a_library_fails_the_pipeline_that_begins_alone() -> None:
    driver = Driver("clicks")
    runner = driver.runners.add("views")

    def begin(_: PipelineRunner, __: bool) -> None:
        raise PanicException("byte index 1 is not a char boundary of `Jane`")

    runner._begin = begin
    runner.begin()
    assert isinstance(runner.error, LibraryPanicked)
    assert "Jane" not in str(runner.error)


def test_one_whose_last_batch_fails_is_tried_with_its_new_settings() -> None:
    driver, slow = Driver("clicks", "views"), _SlowPipeline()
    runner = driver.runners.all["views"]
    runner.pipeline = slow  # type: ignore[assignment]

    def fail() -> None:
        slow.error = LimitReached("too many failed")  # type: ignore[assignment]
        runner.query.isActive = False

    shown: Callable[[], object] = lambda: driver.log.append(driver.board["views"].view().state)  # noqa: E731
    driver.beats(ConfigChanges(changed=("views",)), fail, lambda: None, shown)
    assert driver.log.count("views begins") == 2
    assert "running" in driver.log
    assert driver.reports == ["clicks", "views"], "only at the end"


def test_one_that_another_writer_replaced_does_not_begin_anew() -> None:
    driver, slow = Driver("clicks", "views"), _SlowPipeline()
    slow.owns_table = lambda: False  # type: ignore[method-assign]
    slow.free.set()
    driver.runners.all["views"].pipeline = slow  # type: ignore[assignment]
    driver.beats(ConfigChanges(changed=("views",)), lambda: None, lambda: None)
    assert driver.log.count("views begins") == 1
    assert driver.board["views"].view().state == "failed"


def test_one_that_is_put_back_while_it_drains_begins_anew() -> None:
    driver = Driver("clicks", "views")
    runner = driver.runners.all["views"]
    driver.runners.change(ConfigChanges(removed=("views",)))
    assert runner.removed
    driver.beats(ConfigChanges(added=("views",)), lambda: None, lambda: None)
    assert driver.log.count("views begins") == 2
    assert "views" in driver.board


def test_a_reload_starts_what_has_failed_once_more() -> None:
    driver = Driver("clicks", "views")
    driver.fails = {"orders"}
    driver.beats(
        ConfigChanges(added=("orders",)),
        lambda: None,
        driver.fails.clear,
        ConfigChanges(),
        lambda: None,
        lambda: driver.log.append(driver.board["orders"].view().state),
    )
    assert driver.log.count("orders begins") == 2
    assert "running" in driver.log


def test_a_supervisor_asks_for_the_start_of_one_that_comes() -> None:
    driver = Driver("clicks", supervised=True)
    driver.beats(
        ConfigChanges(added=("orders",)),
        lambda: driver.log.append(driver.board["orders"].view().state),
        lambda: driver.asked.put(StartRequest("orders", lease=7)),
        lambda: None,
        lambda: driver.log.append(str(driver.runners.all["orders"].lease)),
    )
    assert driver.log == ["clicks begins", "stopped", "orders begins", "7", "clicks ends", "orders ends"]


def test_a_reader_of_the_board_reads_it_to_its_end() -> None:
    board = PipelineProgress(["clicks", "views"])
    reading = iter(board.values())
    first = next(reading)
    board.remove("views")
    board.add("orders")
    assert [first.pipeline, *(one.pipeline for one in reading)] == ["clicks", "views"]
    assert [one.pipeline for one in board.values()] == list(board) == ["clicks", "orders"]
    assert isinstance(board["orders"], Progress)


def test_a_start_that_is_asked_for_after_a_change_is_made_with_the_newer_file() -> None:
    driver = Driver("clicks", supervised=True)
    driver.runners.add("views")
    asked_just_after_the_look: Callable[[], object] = lambda: driver.asked.put(StartRequest("views"))  # noqa: E731
    driver.beats(asked_just_after_the_look, lambda: driver.log.append("reads the file"), lambda: None)
    assert driver.log[:3] == ["clicks begins", "reads the file", "views begins"]


def test_a_start_that_a_stop_overtakes_ends_without_an_error() -> None:
    reports = list[BaseException | None]()
    progress = Progress("clicks")

    def begin(_: PipelineRunner, __: bool) -> None:
        raise Draining("a stop was asked for")

    def build_runner(_: str) -> PipelineRunner:
        return PipelineRunner(progress, begin, report=lambda _, error, __: reports.append(error))

    runners = PipelineRunners(build_runner, StartRequests())
    runners.add("clicks")
    runners.begin("clicks")
    runners.attend(lambda: None, stopping=True)
    assert reports == [None]
    assert progress.view().state == "stopped"
    assert not runners.are_waited_for


@pytest.mark.parametrize(
    ("phase", "line"), [("tasks", "batch_cancelled"), ("commit", "commit_awaited"), ("redo", "commit_awaited")]
)
def test_a_second_signal_cancels_the_jobs_of_a_batch_and_awaits_a_commit(
    phase: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    cancels = list[str]()
    hurry = threading.Event()
    pipeline = _SlowPipeline()

    def begin(runner: PipelineRunner, _: bool) -> None:
        runner.pipeline = pipeline  # type: ignore[assignment]
        runner.query = Query()
        runner.cancel = lambda: cancels.append(phase)

    progress = Progress("clicks")
    runner = PipelineRunner(progress, begin, is_hurried=hurry.is_set)
    runner.begin()
    progress.begin_batch(1, "look")
    progress.enter_phase(phase)
    runner.look(stopping=True)
    assert not cancels
    hurry.set()
    runner.look(stopping=True)
    runner.look(stopping=True)
    assert cancels == [phase, phase], "it may begin another job"
    assert caplog.text.count(line) == 1
    pipeline.free.set()
    runner.look(stopping=True)
    assert runner.look(stopping=True)
    assert runner.error is None


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_pipeline_whose_lease_is_lost_ends_after_its_batch_as_fenced_and_the_others_go_on() -> None:
    driver, slow = Driver("clicks", "views"), _SlowPipeline()
    driver.runners.all["clicks"].pipeline = slow  # type: ignore[assignment]
    loss = LeaseLoss("clicks", 3, "host/7")
    driver.beats(
        lambda: driver.asked.put(loss),
        *[lambda: None] * 3,
        lambda: driver.log.append("its batch is running"),
        slow.free.set,
        *[lambda: None] * 3,
        lambda: driver.log.append("views goes on"),
    )
    assert driver.log == ["clicks begins", "views begins", "its batch is running", "clicks ends", "views goes on",
                          "views ends"]  # fmt: skip
    error = driver.runners.all["clicks"].error
    assert isinstance(error, Fenced)
    assert "taken over by process host/7" in str(error)
    assert driver.runners.all["views"].error is None


def test_a_batch_of_a_pipeline_whose_lease_is_lost_is_cancelled_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, cancelled = PipelineRunner(Progress("clicks"), lambda *_: None), list[str]()
    runner.begin()
    runner.pipeline, runner.query = _SlowPipeline(), Query()  # type: ignore[assignment]
    runner.cancel = lambda: cancelled.append("cancelled")
    runner.surrender("host/7")
    runner.look(stopping=False)
    assert cancelled == []
    later_s = time.monotonic() + 11
    monkeypatch.setattr(pipeline_runner.time, "monotonic", lambda: later_s)
    runner.look(stopping=False)
    assert cancelled == ["cancelled"]


def test_a_loss_of_an_older_lease_ends_nothing_that_runs_under_a_newer_one() -> None:
    driver = Driver("clicks")
    driver.runners.all["clicks"].lease = 5
    driver.beats(
        lambda: driver.asked.put(LeaseLoss("clicks", 3, "host/7")),
        *[lambda: None] * 3,
        lambda: driver.log.append("runs"),
    )
    assert driver.log == ["clicks begins", "runs", "clicks ends"]
    assert driver.runners.all["clicks"].error is None


def test_a_pipeline_that_waits_for_its_lease_begins_when_it_is_free() -> None:
    is_free = threading.Event()
    log = list[str]()

    def begin(runner: PipelineRunner, _: bool) -> None:
        log.append("looks")
        if not is_free.is_set():
            raise Occupied("host/7 has it")
        runner.pipeline, runner.query = EndlessPipeline(), Query()  # type: ignore[assignment]

    runner = PipelineRunner(Progress("clicks"), begin)
    runner.begin(new_run=True)
    assert (runner.error, runner.query) == (None, None)
    assert runner.due_s is not None
    is_free.set()
    runner._due_s = 0.0
    assert not runner.look(stopping=False)
    assert runner.query is not None
    assert log == ["looks", "looks"]


def test_a_run_that_reads_once_does_not_wait_for_a_lease() -> None:
    def begin(runner: PipelineRunner, new_run: bool) -> None:  # noqa: ARG001 - the interface
        raise Occupied("host/7 has it")

    runner = PipelineRunner(Progress("clicks"), begin, waits=False)
    runner.begin()
    assert isinstance(runner.error, Occupied)


@pytest.mark.parametrize("end", ["stop", "failure", "start"])
def test_the_end_of_a_pipeline_is_told_once(end: str) -> None:
    ends = list[str]()

    def begin(runner: PipelineRunner, _: bool) -> None:
        if end == "start":
            raise RuntimeError("torn")
        runner.pipeline, runner.query = EndlessPipeline(), Query()  # type: ignore[assignment]

    runners = PipelineRunners(
        lambda name: PipelineRunner(Progress(name), begin, on_end=lambda: ends.append(name)), StartRequests()
    )
    runners.add("clicks")
    runners.begin("clicks")
    if end == "failure":
        runners.all["clicks"].pipeline.error = LimitReached("too many failed")  # type: ignore[union-attr]
        runners.all["clicks"].query.isActive = False
    for _ in range(4):
        runners.attend(lambda: None, stopping=end == "stop")
    assert ends == ["clicks"]


def test_only_the_supervisor_of_a_driver_may_end_a_pipeline() -> None:
    asked = list[tuple[str, int, str]]()
    progresses = PipelineProgress(["clicks"])
    post = surrenders(progresses, "token", lambda *loss: asked.append(loss))
    path = "/pipelines/clicks/surrender?lease=3&holder=host%2F7"
    assert post(path, "Bearer wrong") == (403, "text/plain; charset=utf-8", b"this needs the token of the supervisor\n")
    assert post("/pipelines/views/surrender?lease=3&holder=", "Bearer token")[0] == 404  # type: ignore[index]
    assert post("/pipelines/clicks/start", "Bearer token") is None
    assert asked == []
    assert post(path, "Bearer token")[0] == 202  # type: ignore[index]
    assert asked == [("clicks", 3, "host/7")]


def test_one_that_waits_for_its_lease_may_be_started_by_its_supervisor() -> None:
    progresses = PipelineProgress(["clicks"])
    progresses["clicks"].record_failure("fenced")
    progresses["clicks"].set(lease_wait=LeaseWait(NOW, "host/7 has its lease"))
    asked = list[str]()
    post = starts(progresses, "token", lambda name, *_: asked.append(name))
    assert progresses["clicks"].view().state == "waiting"
    assert post("/pipelines/clicks/start?new_run=false&lease=9", "Bearer token")[0] == 202  # type: ignore[index]
    assert asked == ["clicks"]


class _CountedQuery(Query):
    """A query that counts how often it is asked whether it runs."""

    asked = 0
    runs = True

    @property
    def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802 - Spark's name
        self.asked += 1
        return self.runs

    @isActive.setter
    def isActive(self, runs: bool) -> None:  # noqa: N802
        self.runs = runs


def test_queries_are_asked_in_turn_whether_they_run_and_one_that_failed_at_once() -> None:
    names = [f"p{n}" for n in range(10)]
    driver = Driver(*names)
    queries = [_CountedQuery() for _ in names]
    for name, query in zip(names, queries, strict=True):
        driver.runners.all[name].query = query
    for _ in range(5):
        driver.runners.attend(lambda: None, stopping=False)
    assert [query.asked for query in queries] == [2] * 10
    for query in queries[:2]:
        query.runs = False
    driver.runners.all["p1"].pipeline.error = LimitReached("too many failed")  # type: ignore[union-attr]
    driver.runners._asked_before = 2
    driver.runners.attend(lambda: None, stopping=False)
    assert [line for line in driver.log if "ends" in line] == ["p1 ends"]
    for _ in range(2):
        driver.runners.attend(lambda: None, stopping=False)
    assert [line for line in driver.log if "ends" in line] == ["p1 ends", "p0 ends"]
