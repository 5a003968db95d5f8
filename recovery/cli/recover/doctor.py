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
from recovery.checkpoints.facts import collect_checkpoint_facts, collect_pipeline_facts
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
from writer.storage.locations import parse_location

_REMEDIES = {
    RecoveryLevel.WAIT: "wait until it answers",
    RecoveryLevel.RESTART: "start again",
    RecoveryLevel.NEW_RUN: "a new run from the table's frontier",
    RecoveryLevel.WALK_BACK: "an older checkpoint",
    RecoveryLevel.LATEST: "skip what is gone, and write it down",
}
# Remedies of a checkpoint that headrace did not write, where they differ.
_FOREIGN_REMEDIES = {RecoveryLevel.NEW_RUN: "a new checkpoint from where your sink ends"}
# The exit code when a check fails.
_CHECK_FAILED = 1


@dataclass(frozen=True)
class CheckpointExamination:
    """One checkpoint, and the results of its checks."""

    pipeline: str | None
    run: int | None
    checkpoint: str
    facts: CheckFacts
    checks: Sequence[Check]

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        level = leads_to(self.checks)
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "checkpoint": self.checkpoint,
            "leads_to": None if level is None else level.label,
            "halt": self.needs_person,
            "checks": [_check_to_dict(check) for check in self.checks],
        }

    @property
    def has_failed(self) -> bool:
        """A check has failed."""
        return any(check.ok is False for check in self.checks)

    @property
    def needs_person(self) -> bool:
        """A person must act."""
        return any(check.halt for check in self.checks)

    def remedy(self, level: RecoveryLevel) -> str:
        """Return what a recovery level does for it, as a phrase."""
        if self.facts.is_foreign and level in _FOREIGN_REMEDIES:
            return _FOREIGN_REMEDIES[level]
        return _REMEDIES[level]


def _check_to_dict(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "ok": check.ok,
        "message": check.message,
        "halt": check.halt,
        "level": None if check.level is None else check.level.label,
    }


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
        examinations = _examine_pipelines(config or default_config(), pipeline)
    else:
        examinations = [_examine_checkpoint(checkpoint, bootstrap_servers)]
    if as_json:
        emit_whole([examination.document() for examination in examinations])
    else:
        for examination in examinations:
            show(examination, console())
    if any(examination.has_failed for examination in examinations):
        raise typer.Exit(_CHECK_FAILED)


def show(examination: CheckpointExamination, out: Console) -> None:
    """Show the results, a line for each check."""
    title = examination.checkpoint
    if examination.pipeline:
        title = f"{examination.pipeline}: {title}"
    out.print(Text(title, "bold"), soft_wrap=True)
    width = max(len(check.name) for check in examination.checks)
    for check in examination.checks:
        line = f" {check.name:<{width}}  {check.message}{_consequence(check, examination)}"
        out.print(Text.assemble(_mark(check, out), line), soft_wrap=True)
    level = leads_to(examination.checks)
    style = "bold red"
    if examination.needs_person:
        message = "A person must act first."
    elif level is None:
        message = "All is well."
        style = ""
    else:
        message = f"Leads to {level.label}: {examination.remedy(level)}."
        if level is RecoveryLevel.WAIT:
            style = ""
    out.print(Text(message, style), "")


def _mark(check: Check, out: Console) -> tuple[str, str]:
    """Return the mark of a result, and its style."""
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    if check.ok is None:
        return marks["not_checked"], "dim"
    if check.ok:
        return marks["ok"], "green"
    return marks["failed"], "bold red"


def _consequence(check: Check, examination: CheckpointExamination) -> str:
    """Return what a check that failed leads to; empty for others."""
    if check.ok is not False:
        return ""
    if check.level is None:
        return " → a person must act"
    return f" → {check.level.label}, {examination.remedy(check.level)}"


def _examine_pipelines(path: Path, pipelines: list[str] | None) -> list[CheckpointExamination]:
    settings = load(path)
    # Probed once: all pipelines share the wait for a silent broker.
    cluster = probe_cluster(kafka_sample.open_cluster(settings.kafka))
    examinations = []
    for name in settings.chosen(pipelines):
        try:
            pipeline = collect_pipeline_facts(settings, name, cluster)
        except StoreError as error:
            examinations.append(_unreadable(name, f"{settings.checkpoints}/{name}", error))
            continue
        checks = preflight(pipeline.facts)
        examinations.append(CheckpointExamination(name, pipeline.run, pipeline.location, pipeline.facts, checks))
    return examinations


def _examine_checkpoint(checkpoint: str, bootstrap_servers: str | None) -> CheckpointExamination:
    try:
        location = parse_location(checkpoint)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        facts = collect_checkpoint_facts(location, bootstrap_servers, S3Settings().with_environment(os.environ))
    except StoreError as error:
        return _unreadable(None, location, error)
    if facts.content is not None and facts.content.is_missing:
        raise ConfigError(f"{location} holds no checkpoint; name the folder that has metadata and offsets in it")
    return CheckpointExamination(None, None, location, facts, preflight(facts))


def _unreadable(name: str | None, location: str, error: StoreError) -> CheckpointExamination:
    check = Check("storage", ok=False, message=str(error).rstrip("."), level=RecoveryLevel.WAIT)
    return CheckpointExamination(name, None, location, CheckFacts(None, is_foreign=name is None), [check])
