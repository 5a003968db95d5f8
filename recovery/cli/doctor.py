"""`headrace doctor`: checks whether a checkpoint can be continued, and shows the remedy. Changes nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from recovery.checkpoints.checks import Check, CheckFacts, leads_to, preflight
from recovery.checkpoints.facts import of_checkpoint, of_pipeline
from recovery.escalation.levels import RecoveryLevel
from writer.clients import kafka_sample
from writer.clients.kafka import probe_cluster
from writer.config.loader import load
from writer.core.config_location import SHOWN, default_config
from writer.core.errors import ConfigError
from writer.output.cli_options import Pipelines, json_option
from writer.output.tables import console, emit_whole
from writer.preflight.finding import MARKS, PLAIN_MARKS
from writer.storage.base import S3Settings, StoreError
from writer.storage.locations import checked

_WORDS = {
    RecoveryLevel.WAIT: "wait until it answers",
    RecoveryLevel.RESTART: "start again",
    RecoveryLevel.NEW_RUN: "a new run from the table's frontier",
    RecoveryLevel.WALK_BACK: "an older checkpoint",
    RecoveryLevel.LATEST: "skip what is gone, and write it down",
}
_OF_A_STRANGER = {RecoveryLevel.NEW_RUN: "a new checkpoint from where your sink ends"}
_FOUND = 1  # exit code


@dataclass(frozen=True)
class CheckpointExamination:
    """One checkpoint, and what was found."""

    pipeline: str | None
    run: int | None
    checkpoint: str
    facts: CheckFacts
    checks: Sequence[Check]

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        level = leads_to(self.checks)
        return {
            "pipeline": self.pipeline, "run": self.run, "checkpoint": self.checkpoint,
            "leads_to": None if level is None else level.label, "halt": any(check.halt for check in self.checks),
            "checks": [
                {
                    "name": check.name, "ok": check.ok, "message": check.message, "halt": check.halt,
                    "level": None if check.level is None else check.level.label,
                }
                for check in self.checks
            ],
        }  # fmt: skip


def doctor(
    config: Annotated[Path | None, typer.Argument(help="Configuration file (YAML).", show_default=SHOWN)] = None,
    pipeline: Pipelines = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="Instead: a checkpoint of any Spark query that reads Kafka; path or s3://."),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="With --checkpoint: the cluster that the query reads.")
    ] = None,
    as_json: Annotated[bool, json_option("a list with the checks of each checkpoint")] = False,
) -> None:
    """Examine Spark's checkpoints: can they be gone on from, and if not, which recovery level helps?

    Compares a checkpoint with itself, the table and Kafka, as each start of `headrace supervisor` does. Changes
    nothing.

    Exit codes: 0 all is well, 1 something was found, 2 configuration.
    """
    if config is not None and checkpoint is not None:
        raise ConfigError("name either a configuration file, or a checkpoint with --checkpoint")
    if checkpoint is None:
        found = _of_pipelines(config or default_config(), pipeline)
    else:
        found = [_of_place(checkpoint, bootstrap_servers)]
    if as_json:
        emit_whole([one.document() for one in found])
    else:
        for one in found:
            show(one, console())
    raise typer.Exit(_FOUND if any(check.ok is False for one in found for check in one.checks) else 0)


def show(one: CheckpointExamination, out: Console) -> None:
    """Show what was found, a line for each check."""
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    title = f"{one.pipeline}: " if one.pipeline else ""
    out.print(Text(f"{title}{one.checkpoint}", "bold"), soft_wrap=True)
    width = max(len(check.name) for check in one.checks)
    for check in one.checks:
        mark, style = {True: (marks["ok"], "green"), None: (marks["not_checked"], "dim")}.get(
            check.ok, (marks["failed"], "bold red")
        )
        out.print(
            Text.assemble((mark, style), f" {check.name:<{width}}  {check.message}{_lead(check, one)}"), soft_wrap=True
        )
    level, halt = leads_to(one.checks), any(check.halt for check in one.checks)
    if halt:
        message = "A person must act first."
    elif level is None:
        message = "All is well."
    else:
        message = f"Leads to {level.label}: {_words(level, one)}."
    out.print(Text(message, "bold red" if halt or level else ""), "")


def _lead(check: Check, one: CheckpointExamination) -> str:
    if check.ok is not False:
        return ""
    return " → a person must act" if check.level is None else f" → {check.level.label}, {_words(check.level, one)}"


def _words(level: RecoveryLevel, one: CheckpointExamination) -> str:
    return _OF_A_STRANGER.get(level, _WORDS[level]) if one.facts.foreign else _WORDS[level]


def _of_pipelines(path: Path, only: list[str] | None) -> list[CheckpointExamination]:
    settings = load(path)
    cluster = probe_cluster(
        kafka_sample.open_cluster(settings.kafka)
    )  # once: all pipelines share the wait for a silent broker
    found = []
    for name in settings.chosen(only):
        try:
            asked = of_pipeline(settings, name, cluster)
        except StoreError as error:
            found.append(_unreadable(name, f"{settings.checkpoints}/{name}", error))
            continue
        found.append(CheckpointExamination(name, asked.run, asked.location, asked.facts, preflight(asked.facts)))
    return found


def _of_place(place: str, bootstrap: str | None) -> CheckpointExamination:
    try:
        location = checked(place)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        facts = of_checkpoint(location, bootstrap, S3Settings().resolved(os.environ))
    except StoreError as error:
        return _unreadable(None, location, error)
    if facts.reading is not None and facts.reading.nothing:
        raise ConfigError(f"{location} holds no checkpoint; name the folder that has metadata and offsets in it")
    return CheckpointExamination(None, None, location, facts, preflight(facts))


def _unreadable(name: str | None, location: str, error: StoreError) -> CheckpointExamination:
    check = Check("storage", ok=False, message=str(error).rstrip("."), level=RecoveryLevel.WAIT)
    return CheckpointExamination(name, None, location, CheckFacts(None, foreign=name is None), [check])
