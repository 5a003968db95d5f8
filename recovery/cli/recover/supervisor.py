"""`headrace supervisor run` and `headrace supervisor explain`."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from headrace.recovery.escalation.decide import (
    DependencyUnavailable,
    Event,
    Failed,
    Frontier,
    Policy,
    attempt_times,
    decide,
)
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory, read
from headrace.recovery.supervisor import frontier_check
from headrace.recovery.supervisor.main import supervise
from headrace.recovery.supervisor.pipeline_state import describe
from headrace.recovery.supervisor.recovery_actions import actions
from headrace.recovery.supervisor.settings import policy, with_short_timeouts
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.signals import on_hangup
from headrace.writer.core.text import instant
from headrace.writer.core.units import show_duration
from headrace.writer.lease.factory import leases_of, pipeline_store
from headrace.writer.lease.lease import LeaseRecord
from headrace.writer.output.cli_options import ConfigFile, Pipelines, WatchConfig
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import PipelineNames
from headrace.writer.output.report import Report
from headrace.writer.output.tables import label_grid


@dataclass(frozen=True)
class LeaseLine:
    """The newest lease of a pipeline."""

    epoch: int
    holder: str
    # None: it does not say.
    taken_at: datetime | None
    released: bool

    @property
    def text(self) -> str:
        """What a person reads of it."""
        if self.released:
            return f"epoch {self.epoch}, released by {self.holder}"
        since = "" if self.taken_at is None else f" at {instant(self.taken_at)}"
        return f"epoch {self.epoch}, taken by {self.holder}{since}"


@dataclass(frozen=True)
class BudgetLine:
    """How much of the budget of a recovery level is used. `enabled`: whether it is done here by itself."""

    level: str
    enabled: bool
    used: int
    times_max: int
    within_seconds: float

    @property
    def text(self) -> str:
        """What a person reads of it."""
        text = f"{self.used} of {self.times_max} within {show_duration(timedelta(seconds=self.within_seconds))}"
        return text if self.enabled else f"{text}, not done here by itself"


@dataclass(frozen=True)
class RecoveryState:
    """What the supervisor has of one pipeline, and what it would do.

    `lease`: None: it was never held. `silent`: why the frontier is not known; None: it is.
    """

    at: datetime
    error: str | None
    lease: LeaseLine | None
    frontier: Frontier | None
    silent: str | None
    memory: Memory
    budgets: Mapping[str, BudgetLine]
    next: str

    @property
    def is_down(self) -> bool:
        """Whether the pipeline is given up, or what is kept of it cannot be read."""
        return bool(self.error or self.memory.state.halted)

    def render(self, name: str, out: Console) -> None:
        """Draw it, below the name of the pipeline."""
        state = self.memory.state
        rows: list[tuple[str, str]] = []
        if self.error is not None:
            rows.append(("unreadable", self.error))
        rows.append(("lease", self.lease.text if self.lease else "it was never held"))
        rows.append(("frontier", self.silent or str(self.frontier)))
        rows += _failure_rows(self.memory)
        rows.append(("level", "none" if state.level is None else state.level.name))
        rows.append(("halted", self.memory.halt_reason or "no"))
        rows += [(f"{label} {budget.level}", budget.text) for label, budget in self.budgets.items()]
        rows.append(("if it came again", self.next))
        out.print(Text(name, style="bold"))
        out.print(label_grid(rows))


@dataclass(frozen=True)
class RecoveryReport(Report):
    """What recovery knows of each pipeline, by its name."""

    pipelines: Mapping[str, RecoveryState]

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a pipeline is given up, or its state cannot be read."""
        return 1 if any(state.is_down for state in self.pipelines.values()) else 0

    def render(self, out: Console) -> None:
        """Draw each pipeline."""
        for name, state in self.pipelines.items():
            state.render(name, out)


def collect_state(config: Config, name: str, now: datetime) -> RecoveryState:
    """Collect what the supervisor has of one pipeline, and what it would do."""
    memory: Memory = Memory()
    lease: LeaseRecord | None = None
    error = None
    try:
        memory = read(pipeline_store(config, name))
        lease = leases_of(config, name).look()
    except (OSError, ConfigError) as unreadable:
        error = str(unreadable)
    rules = policy(config, actions(config))
    frontier, silence = _check_frontier(config, name)
    return RecoveryState(
        at=now,
        error=error,
        lease=_lease_line(lease),
        frontier=frontier,
        silent=silence,
        memory=memory,
        budgets=budgets(rules, memory, now),
        next=next_step(rules, memory, frontier, silence, now),
    )


def budgets(rules: Policy, memory: Memory, now: datetime) -> dict[str, BudgetLine]:
    """Return by level how much of its budget is used."""
    return {
        level.label: BudgetLine(
            level=level.name,
            enabled=level in rules.actions and (level != RecoveryLevel.LATEST or rules.latest_allowed),
            used=len(attempt_times(memory.state, level, budget, now)),
            times_max=budget.times_max,
            within_seconds=budget.within.total_seconds(),
        )
        for level, budget in rules.budgets.items()
    }


def next_step(rules: Policy, memory: Memory, frontier: Frontier | None, silence: str | None, now: datetime) -> str:
    """Return what would be done if the last failure came again now; pauses are at their longest.

    `silence`: why the frontier is not known; None: it is.
    """
    failure = memory.failure
    if failure is None:
        return "nothing failed yet, as far as is kept"
    event: Event = Failed(failure.verdict, frontier or Frontier.HELD, failure.run)
    if silence is not None and not failure.halt:
        event = DependencyUnavailable(silence)
    return describe(decide(rules, memory.state, event, now, 1.0))


def _lease_line(record: LeaseRecord | None) -> LeaseLine | None:
    if record is None:
        return None
    return LeaseLine(record.epoch, record.holder, record.taken_at, record.released)


def _check_frontier(config: Config, name: str) -> tuple[Frontier | None, str | None]:
    """Return the state of the table's frontier, or why it is not known."""
    try:
        return frontier_check.frontier(config, name), None
    except frontier_check.FrontierUnknown as error:
        return None, str(error)


def _failure_rows(memory: Memory) -> list[tuple[str, str]]:
    """Describe the last failure; no rows if nothing failed."""
    failure = memory.failure
    if failure is None:
        return []
    level = RecoveryLevel.RESTART if failure.level is None else failure.level
    consequence = "a person must act" if failure.halt else f"begins at {level.name}"
    return [
        ("last failure", f"{instant(failure.time)}, exit code {failure.exit_code}"),
        ("message", failure.error or "nothing"),
        ("class", f"{failure.row}: {failure.message} ({consequence})"),
        ("decided then", memory.action),
    ]


@command(
    exits={
        0: "done or drained",
        1: "nothing is left to be tried",
        2: "configuration",
        3: "nothing is left to be tried for a checkpoint",
        4: "another writer without a lease has taken over",
        5: "a limit",
    }
)
def run(
    config: ConfigFile,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the command of the driver, if it is not `headrace run CONFIG`."),
    ] = None,
    pipeline: Pipelines = None,
    watch_config: WatchConfig = False,
) -> int:
    """Start the writer, watch it, and start it again by the recovery levels. Can be process 1 of a container.

    Takes the lease of each pipeline before its start; one whose lease another process has waits for it. SIGTERM and
    SIGINT drain the driver.
    SIGHUP, or `headrace reload`, lets it and the driver read the file again: pipelines come, change and go one by one.
    Without a command runs `headrace run CONFIG`. Answers at 127.0.0.1:9644 (`supervisor` in the configuration).

    An exit code that is not listed below is that of the driver.
    """
    logging.set_up()
    reload = threading.Event()
    on_hangup(reload)
    return supervise(ReloadableConfig(config, pipeline, reload, watched=watch_config), command or [])


@command(
    exits={0: "shown", 1: "a pipeline is given up, or what is kept of it cannot be read", 2: "configuration"},
)
def explain(pipelines: PipelineNames) -> RecoveryReport:
    """Show what the supervisor knows of a pipeline's failures, the budgets that are used, and what it would do now.

    Changes nothing; needs no supervisor that runs.
    """
    return explain_recovery(pipelines.config, pipelines.names)


def explain_recovery(config: Config, names: Sequence[str]) -> RecoveryReport:
    """Collect what recovery knows of each pipeline. Raises ConfigError."""
    impatient = with_short_timeouts(config)
    return RecoveryReport({name: collect_state(impatient, name, datetime.now(UTC)) for name in names})
