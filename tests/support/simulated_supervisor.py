"""A supervisor and its driver in one thread, which read one file at moments that a test chooses. Without Spark."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from headrace.recovery.escalation.diagnosis import DriverHealth, PipelineHealth
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.state import Memory
from headrace.recovery.supervisor import supervisor as module
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.recovery.supervisor.supervisor import Reloads, Supervisor
from headrace.writer.clients.notifications import Event
from headrace.writer.config import loader
from headrace.writer.config.loader import ConfigChanges, ReloadableConfig
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, exit_code
from headrace.writer.core.signals import StopEvents
from headrace.writer.driver import pipeline_runner
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from headrace.writer.driver.supervisor_channel import ChannelFolder, ExitReport, Order
from headrace.writer.lease.holder import LeaseHolder, LeaseLoss
from headrace.writer.lease.lease import LeaseRecord
from headrace.writer.status.model import View
from headrace.writer.status.progress import PipelineProgress, Progress
from headrace.writer.web.endpoints import starts, surrenders
from headrace.writer.web.http_server import first_of

BROKEN = 13  # a pipeline with this setting fails at its start


class Clock:
    """The time of both processes. It passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class OneLease:
    """A lease that is free, or that another process renews."""

    foreign = False
    # Whether its storage does not answer.
    silent = False

    def __init__(self) -> None:
        self.epoch = 0

    def look(self) -> LeaseRecord | None:
        self._ask()
        if not self.foreign and self.epoch == 0:
            return None
        return LeaseRecord(self.epoch, "other/1", None, released=not self.foreign)

    def take(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        self._ask()
        self.epoch = epoch
        return True

    def renew(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        self._ask()
        return not self.foreign

    def release(self, epoch: int, holder: str) -> None:
        pass

    def lose(self) -> None:
        """Let another process take it over."""
        self.epoch += 1
        self.foreign = True

    def _ask(self) -> None:
        if self.silent:
            raise OSError("it does not answer")


class SentEvents:
    """Takes what people would be told."""

    def __init__(self) -> None:
        self.events = list[Event]()

    def send(self, event: Event) -> None:
        self.events.append(event)

    def close(self, within: object) -> bool:  # noqa: ARG002 - nothing waits
        return True


class Query:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.isActive = True

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False


class EndlessPipeline:
    """A pipeline that goes on until it drains, which it does at once."""

    error: BaseException | None = None

    def drain(self) -> bool:
        return True

    def catch_up(self) -> None:
        pass

    def owns_table(self) -> bool:
        return True


class RunningPipeline(EndlessPipeline):
    """One whose batch takes so many more rounds once it drains."""

    def __init__(self, progress: Progress, rounds: Callable[[], int]) -> None:
        self._progress = progress
        self._rounds = rounds
        self._make_runner = 0

    def drain(self) -> bool:
        self._progress.set_draining()
        self._make_runner += 1
        return self._make_runner > self._rounds()


class SimulatedDriver:
    """The rounds of a driver's main thread, and what its supervisor sees of it."""

    pid = 1

    def __init__(self, release: "Release", orders: Mapping[str, Order]) -> None:
        self._release = release
        self._requested = threading.Event()
        self.stop = threading.Event()
        self.file = ReloadableConfig(release.path, release.only, self._requested, missing_ok=True)
        self.board = PipelineProgress(self.file.names)
        self.asked = StartRequests()
        self.code: int | None = None
        self._ending = False
        # What arrives just after the driver looked at the file.
        self._late = list[Callable[[], None]]()
        self._words = dict[str, ExitReport]()
        self.running = dict[str, int]()  # pipeline → the setting that it runs with
        self.runners = PipelineRunners(self._make_runner, self.asked, self.board.remove, supervised=True)
        self._post = first_of(
            starts(self.board, "token", lambda *request: self._arrive(partial(self.asked.put, StartRequest(*request)))),
            surrenders(self.board, "token", lambda *loss: self._arrive(partial(self.asked.put, LeaseLoss(*loss)))),
        )
        for name in self.file.names:
            self.runners.add(name)
            self.board[name].record_stop()
        for name, order in orders.items():
            if order.start and name in self.board:
                self.runners.all[name].lease = order.lease
                self.runners.begin(name)

    def round(self) -> None:
        """Make one round. It answers for one more when all have ended."""
        if self.code is not None:
            return
        if self._ending:
            errors = [runner.error for runner in self.runners.all.values()]
            self.code = max((exit_code(error) for error in errors), default=0)
        elif self.runners.is_going(self.stop):
            self.runners.attend(self._beat, stopping=self.stop.is_set())
        else:
            self._ending = True

    def _beat(self) -> ConfigChanges | None:
        changes = self.file.read_again()
        arrivals = self._late
        self._late = []
        for arrive in arrivals:
            arrive()
        return changes

    def _arrive(self, arrive: Callable[[], None]) -> None:
        if self._release.signals_come_late or self._late:  # nothing overtakes what was sent before
            self._late.append(arrive)
        else:
            arrive()

    def kill(self) -> None:
        self.code = -9
        self.running.clear()

    def exit_code(self) -> int | None:
        return self.code

    def exit_reports(self) -> dict[str, ExitReport]:
        reports = self._words
        self._words = {}
        return reports

    def health(self) -> DriverHealth:
        healths = {name: PipelineHealth(progress.view().state, 1.0, 1, 1, 0) for name, progress in self.board.items()}
        return DriverHealth(60.0, 0.1, healths if self.code is None else {})

    def reload(self) -> None:
        self._arrive(self._requested.set)

    def drain(self) -> None:
        self.stop.set()

    def dump_stacks(self) -> str:
        return ""

    def start(self, pipeline: str, *, new_run: bool, lease: int | None) -> bool:
        if self.code is not None:
            return False
        lease_parameter = "" if lease is None else f"&lease={lease}"
        answer = self._post(
            f"/pipelines/{pipeline}/start?new_run={str(new_run).lower()}{lease_parameter}", "Bearer token"
        )
        return answer is not None and answer[0] == 202

    def surrender(self, pipeline: str, lease: int, holder: str) -> bool:
        answer = self._post(f"/pipelines/{pipeline}/surrender?lease={lease}&holder={quote(holder)}", "Bearer token")
        return answer is not None and answer[0] == 202

    def fail(self, name: str, error: Exception) -> None:
        """Let a pipeline fail with this error."""
        runner = self.runners.all[name]
        runner.pipeline.error = error  # type: ignore[union-attr]
        runner.query.isActive = False

    def _make_runner(self, name: str) -> PipelineRunner:
        if name not in self.board:
            self.board.add(name)

        def begin(runner: PipelineRunner, _: bool) -> None:
            setting = self.file.config.pipelines[name].commit.max_offsets
            if setting == BROKEN:
                raise ConfigError("it is broken")
            self.running[name] = setting
            runner.pipeline = RunningPipeline(  # type: ignore[assignment]
                runner.progress, lambda: self._release.drain_rounds
            )
            runner.query = Query()
            runner.cleanup.callback(self.running.pop, name, None)

        def report(view: View, error: BaseException | None, removed: bool) -> None:
            time = datetime.now(UTC).isoformat()
            self._words[view.pipeline] = ExitReport(
                view.pipeline, exit_code(error), str(error or ""), "", time, removed=removed
            )

        return PipelineRunner(self.board[name], begin, report=report)


class Release:
    """A file, the supervisor that reads it, and its drivers."""

    def __init__(self, root: Path, pipelines: Mapping[str, int], only: list[str] | None = None) -> None:
        self.path = root / "pipelines.yaml"
        self.only = only
        self.drain_rounds = 1
        self._root = root
        self.signals_come_late = False  # just after the driver looked whether there was one
        self.clock = Clock()
        self.leases = dict[str, OneLease]()
        # What a check before a start finds: pipeline → verdict. `checks`: how many were made.
        self.obstacles = dict[str, Verdict]()
        self.checks = 0
        self.drivers = list[SimulatedDriver]()
        self.sent = SentEvents()
        self.requested = threading.Event()
        self.write(pipelines)
        self.file = ReloadableConfig(self.path, only, self.requested)
        self.held = LeaseHolder({name: self.lease(name) for name in self.file.names}, "me/1")
        self.supervisor = Supervisor(
            self.file.config,
            {name: SupervisedPipeline(name) for name in self.file.names},
            list,
            folder=ChannelFolder(root),
            lease_holder=self.held,
            notifier=self.sent,
            actions={},  # type: ignore[arg-type]
            events=StopEvents(),
            reloads=Reloads(self.file, self._admit, lambda _: {}),
            check_before_start=self._check_before_start,
            jitter=lambda: 0.0,
            read_memory=lambda *_: Memory(),
        )

    def lease(self, name: str) -> OneLease:
        return self.leases.setdefault(name, OneLease())

    def _check_before_start(self, _: Config, name: str) -> Verdict | None:
        self.checks += 1
        return self.obstacles.get(name)

    def _admit(self, name: str) -> SupervisedPipeline:
        self.held.add(name, self.lease(name))
        return SupervisedPipeline(name)

    def drive(self, _: ChannelFolder, __: Sequence[str], orders: Mapping[str, Order]) -> SimulatedDriver:
        """Stands for the class of a driver's process."""
        self.drivers.append(SimulatedDriver(self, orders))
        return self.drivers[-1]

    def write(self, pipelines: Mapping[str, int]) -> None:
        """Write the file: pipeline → `commit.max_offsets`."""
        raw: dict[str, Any] = {
            "kafka": {"bootstrap_servers": "x:1"},
            "registry": {"url": "http://x"},
            "checkpoints": str(self._root / "checkpoints"),
            "defaults": {
                "table": {"location": f"{self._root}/lake/{{pipeline}}"},
                "event_time": {"field": "at"},
                "topics": ["{pipeline}"],
            },
            "pipelines": {name: {"commit": {"max_offsets": setting}} for name, setting in pipelines.items()},
        }
        self.path.write_text(yaml.safe_dump(raw))

    def reload(self, pipelines: Mapping[str, int]) -> None:
        """Write the file, and send the supervisor SIGHUP."""
        self.write(pipelines)
        self.requested.set()

    def step(self, seconds: float = 0.2) -> int | None:
        """Let the supervisor make a step, and time pass."""
        self.clock.now_s += seconds
        return self.supervisor._step()

    def round(self) -> None:
        """Let the driver make a round."""
        if self.drivers:
            self.drivers[-1].round()

    def go(self, steps: int, seconds: float = 0.5) -> int | None:
        """Let both work for so many steps. Returns the exit code of the supervisor, if it ends."""
        for _ in range(steps):
            if (code := self.step(seconds)) is not None:
                return code
            self.round()
        return None

    @property
    def running(self) -> dict[str, int]:
        """What runs: pipeline → setting."""
        return {} if not self.drivers or self.drivers[-1].code is not None else dict(self.drivers[-1].running)


@contextmanager
def release(root: Path, pipelines: Mapping[str, int], only: list[str] | None = None) -> Iterator[Release]:
    """Make a release that has not begun yet."""
    simulated_release = Release(root, pipelines, only)
    with pytest.MonkeyPatch.context() as patched:
        for module_with_time in (module, loader, pipeline_runner):
            patched.setattr(module_with_time, "time", simulated_release.clock)
        patched.setattr(module, "Driver", simulated_release.drive)
        patched.setattr(module, "reap", lambda _: None)
        try:
            yield simulated_release
        finally:
            simulated_release.held.close()
