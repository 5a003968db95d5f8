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
from recovery.lease.factory import leases_of
from recovery.lease.lease import LeaseRecord
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
from writer.output.cli_options import AsJson, ConfigFile, Pipelines, WatchConfig
from writer.output.tables import emit_whole, label_grid


def run_explain(config: Config, names: Sequence[str], *, as_json: bool, console: Console) -> int:
    """Show the pipelines. Returns 1 when one is given up, or what is kept of it cannot be read."""
    documents = {name: collect(with_short_timeouts(config), name, datetime.now(UTC)) for name in names}
    if as_json:
        emit_whole(documents)
    else:
        for name, one in documents.items():
            _show(console, name, one)
    return int(any(one["error"] or one["memory"]["state"]["halted"] for one in documents.values()))


def collect(config: Config, name: str, now: datetime) -> dict[str, Any]:
    """Describe one pipeline as JSON values."""
    place, error = store(config, name), None
    memory: Memory = Memory()
    lease: LeaseRecord | None = None
    try:
        memory = read(place)
        lease = leases_of(config, name, place).look()
    except (OSError, ConfigError) as failed:
        error = str(failed)
    rules = policy(config, actions(config))
    frontier, silent = _frontier(config, name)
    return {
        "at": iso(now),
        "error": error,
        "lease": lease and {"epoch": lease.epoch, "holder": lease.holder, "released": lease.released},
        "frontier": frontier.value if frontier else None,
        "silent": silent,
        "memory": document(memory),
        "budgets": budgets(rules, memory, now),
        "next": next_step(rules, memory, frontier, silent, now),
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


def next_step(rules: Policy, memory: Memory, frontier: Frontier | None, silent: str | None, now: datetime) -> str:
    """Return what would be done if the last failure came again now; pauses are at their longest."""
    known = memory.failure
    if known is None:
        return "nothing failed yet, as far as is kept"
    event: Event = Failed(known.verdict, frontier or Frontier.HELD, known.run)
    if silent is not None and not known.halt:
        event = DependencyUnavailable(silent)
    return describe(decide(rules, memory.state, event, now, 1.0))


def _frontier(config: Config, name: str) -> tuple[Frontier | None, str | None]:
    try:
        return frontier_check.frontier(config, name), None
    except frontier_check.FrontierUnknown as error:
        return None, str(error)


def _show(console: Console, name: str, documents: dict[str, Any]) -> None:
    memory, lease = documents["memory"], documents["lease"]
    state, failure = memory["state"], memory["failure"]
    console.print(Text(name, style="bold"))
    rows: list[tuple[str, str]] = []
    if documents["error"]:
        rows.append(("unreadable", documents["error"]))
    held = "it was never held"
    if lease is not None:
        held = f"epoch {lease['epoch']}, {'released by' if lease['released'] else 'taken by'} {lease['holder']}"
    rows.append(("lease", held))
    rows.append(("frontier", documents["silent"] or documents["frontier"]))
    if failure is not None:
        what = "a person must act" if failure["halt"] else f"begins at {failure['level'] or RecoveryLevel.RESTART.name}"
        rows.append(("last failure", f"{instant(failure['at'])}, exit code {failure['exit_code']}"))
        rows.append(("message", failure["error"] or "nothing"))
        rows.append(("class", f"{failure['row']}: {failure['message']} ({what})"))
        rows.append(("decided then", memory["action"]))
    rows.append(("level", state["level"] or "none"))
    rows.append(("halted", state["halted"] or "no"))
    for label, one in documents["budgets"].items():
        spent = f"{one['used']} of {one['times_max']} within {show_duration(timedelta(seconds=one['within_seconds']))}"
        rows.append((f"{label} {one['level']}", spent + ("" if one["enabled"] else ", not done here by itself")))
    rows.append(("if it came again", documents["next"]))
    console.print(label_grid(rows))


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
