"""`headrace supervisor run` and `headrace supervisor explain`."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from recovery.escalation.decide import DependencyUnavailable, Event, Failed, Frontier, Policy, attempt_times, decide
from recovery.escalation.levels import RecoveryLevel
from recovery.escalation.state import Memory, document, read
from recovery.supervisor import frontier_check
from recovery.supervisor.main import supervise
from recovery.supervisor.pipeline_state import describe
from recovery.supervisor.recovery_actions import actions
from recovery.supervisor.settings import policy, store, with_short_timeouts
from writer.cli.config_command import ConfigCommand
from writer.config.loader import ReloadableConfig, load
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.signals import on_hangup
from writer.core.text import instant, iso
from writer.core.units import show_duration
from writer.lease.factory import leases_of
from writer.lease.lease import LeaseRecord
from writer.output.cli_options import AsJson, ConfigFile, Pipelines, WatchConfig
from writer.output.tables import emit_whole, label_grid


def run_explain(config: Config, names: Sequence[str], *, as_json: bool, console: Console) -> int:
    """Show the pipelines. Returns 1 when one is given up, or its state cannot be read."""
    documents = {name: collect_state(with_short_timeouts(config), name, datetime.now(UTC)) for name in names}
    if as_json:
        emit_whole(documents)
    else:
        for name, state in documents.items():
            _show(console, name, state)
    return int(any(state["error"] or state["memory"]["state"]["halted"] for state in documents.values()))


def collect_state(config: Config, name: str, now: datetime) -> dict[str, Any]:
    """Describe what the supervisor has of one pipeline, and what it would do, as JSON values."""
    state_store = store(config, name)
    memory: Memory = Memory()
    lease: LeaseRecord | None = None
    error = None
    try:
        memory = read(state_store)
        lease = leases_of(config, name, state_store).look()
    except (OSError, ConfigError) as unreadable:
        error = str(unreadable)
    rules = policy(config, actions(config))
    frontier, silence = _check_frontier(config, name)
    return {
        "at": iso(now),
        "error": error,
        "lease": lease and {"epoch": lease.epoch, "holder": lease.holder, "released": lease.released},
        "frontier": frontier.value if frontier else None,
        "silent": silence,
        "memory": document(memory),
        "budgets": budgets(rules, memory, now),
        "next": next_step(rules, memory, frontier, silence, now),
    }


def budgets(rules: Policy, memory: Memory, now: datetime) -> dict[str, dict[str, Any]]:
    """Return by level how much of its budget is used; null where the level has no action here."""
    return {
        level.label: {
            "level": level.name,
            "enabled": level in rules.actions and (level != RecoveryLevel.LATEST or rules.latest_allowed),
            "used": len(attempt_times(memory.state, level, budget, now)),
            "times_max": budget.times_max,
            "within_seconds": budget.within.total_seconds(),
        }
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


def _check_frontier(config: Config, name: str) -> tuple[Frontier | None, str | None]:
    """Return the state of the table's frontier, or why it is not known."""
    try:
        return frontier_check.frontier(config, name), None
    except frontier_check.FrontierUnknown as error:
        return None, str(error)


def _show(console: Console, name: str, document: dict[str, Any]) -> None:
    """Show one pipeline. `document`: of `collect_state`."""
    state = document["memory"]["state"]
    rows: list[tuple[str, str]] = []
    if document["error"]:
        rows.append(("unreadable", document["error"]))
    rows.append(("lease", _lease_text(document["lease"])))
    rows.append(("frontier", document["silent"] or document["frontier"]))
    rows += _failure_rows(document["memory"])
    rows.append(("level", state["level"] or "none"))
    rows.append(("halted", state["halted"] or "no"))
    for label, budget in document["budgets"].items():
        within = show_duration(timedelta(seconds=budget["within_seconds"]))
        text = f"{budget['used']} of {budget['times_max']} within {within}"
        if not budget["enabled"]:
            text += ", not done here by itself"
        rows.append((f"{label} {budget['level']}", text))
    rows.append(("if it came again", document["next"]))
    console.print(Text(name, style="bold"))
    console.print(label_grid(rows))


def _lease_text(lease: dict[str, Any] | None) -> str:
    if lease is None:
        return "it was never held"
    verb = "released" if lease["released"] else "taken"
    return f"epoch {lease['epoch']}, {verb} by {lease['holder']}"


def _failure_rows(memory: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the last failure; no rows if nothing failed. `memory`: as JSON values."""
    failure = memory["failure"]
    if failure is None:
        return []
    consequence = f"begins at {failure['level'] or RecoveryLevel.RESTART.name}"
    if failure["halt"]:
        consequence = "a person must act"
    return [
        ("last failure", f"{instant(failure['at'])}, exit code {failure['exit_code']}"),
        ("message", failure["error"] or "nothing"),
        ("class", f"{failure['row']}: {failure['message']} ({consequence})"),
        ("decided then", memory["action"]),
    ]


supervisor = typer.Typer(
    no_args_is_help=True, help="Keep the writer going: supervise it, and say what recovery would do."
)


@supervisor.command(cls=ConfigCommand)
def run(
    config: ConfigFile,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: the command of the driver, if it is not `headrace run CONFIG`."),
    ] = None,
    pipeline: Pipelines = None,
    watch_config: WatchConfig = False,
) -> None:
    """Start the writer, watch it, and start it again by the recovery levels. Can be process 1 of a container.

    Takes the lease of each pipeline before its start; one whose lease another supervisor has waits for it. SIGTERM and
    SIGINT drain the driver.
    SIGHUP, or `headrace reload`, lets it and the driver read the file again: pipelines come, change and go one by one.
    Without a command runs `headrace run CONFIG`. Answers at 127.0.0.1:9644 (`supervisor` in the configuration).

    Exit codes: 0 done or drained, 2 configuration, 4 another supervisor or writer has taken over, 5 a limit, 1 or 3
    nothing is left to be tried; else that of the driver.
    """
    logging.set_up()
    reload = threading.Event()
    on_hangup(reload)
    raise typer.Exit(supervise(ReloadableConfig(config, pipeline, reload, watched=watch_config), command or []))


@supervisor.command()
def explain(
    config: ConfigFile,
    pipeline: Pipelines = None,
    as_json: AsJson = False,
) -> None:
    """Show what the supervisor knows of a pipeline's failures, the budgets that are used, and what it would do now.

    Changes nothing; needs no supervisor that runs.

    Exit codes: 0 shown, 1 a pipeline is given up, or what is kept of it cannot be read, 2 configuration.
    """
    settings = load(config)
    console = Console(highlight=False)
    raise typer.Exit(run_explain(settings, settings.chosen(pipeline), as_json=as_json, console=console))
