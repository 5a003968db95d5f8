"""`headrace doctor`: checks whether a checkpoint can be continued, and shows the remedy. Changes nothing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from headrace.recovery.checkpoints.checks import Check, leads_to, preflight
from headrace.recovery.checkpoints.facts import collect_checkpoint_facts, collect_pipeline_facts
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import probe_cluster
from headrace.writer.config.loader import load
from headrace.writer.core.config_location import SHOWN, default_config
from headrace.writer.core.errors import ConfigError
from headrace.writer.output.cli_options import Pipelines
from headrace.writer.output.command import command
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.preflight.checks.finding import MARKS, PLAIN_MARKS
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.locations import parse_location
from headrace.writer.storage.settings import StoreSettings

_REMEDIES: Mapping[RecoveryLevel, str] = {
    RecoveryLevel.WAIT: "wait until it answers",
    RecoveryLevel.RESTART: "start again",
    RecoveryLevel.NEW_RUN: "a new run from the table's frontier",
    RecoveryLevel.WALK_BACK: "an older checkpoint",
    RecoveryLevel.LATEST: "skip what is gone, and write it down",
}
# Remedies of a checkpoint that headrace did not write, where they differ.
_FOREIGN_REMEDIES: Mapping[RecoveryLevel, str] = {RecoveryLevel.NEW_RUN: "a new checkpoint from where your sink ends"}


@dataclass(frozen=True)
class CheckLine:
    """The result of a check. `ok`: None: it could not be made; `level`: the recovery level that helps, if one does."""

    name: str
    ok: bool | None
    message: str
    halt: bool
    level: str | None
    # What a check that failed leads to; empty for others.
    consequence: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class CheckpointExamination:
    """One checkpoint, and the results of its checks.

    `leads_to`: the recovery level that helps; None: none is needed, or a person must act: `halt`.
    """

    pipeline: str | None
    run: int | None
    checkpoint: str
    leads_to: str | None
    halt: bool
    checks: Sequence[CheckLine]
    # What that level does, as a phrase.
    remedy: str | None = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw the results, a line for each check."""
        title = self.checkpoint
        if self.pipeline:
            title = f"{self.pipeline}: {title}"
        out.print(Text(title, "bold"), soft_wrap=True)
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            line = f" {check.name:<{width}}  {check.message}{check.consequence}"
            out.print(Text.assemble(_mark(check.ok, out), line), soft_wrap=True)
        style = ""
        message = "All is well."
        if self.halt:
            style = "bold red"
            message = "A person must act first."
        elif self.leads_to is not None:
            message = f"Leads to {self.leads_to}: {self.remedy}."
            if self.leads_to != RecoveryLevel.WAIT.label:
                style = "bold red"
        out.print(Text(message, style), "")


@dataclass(frozen=True)
class DoctorReport(Report):
    """The checkpoints that were examined."""

    checkpoints: Sequence[CheckpointExamination]

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a check has failed."""
        has_failures = any(check.ok is False for examination in self.checkpoints for check in examination.checks)
        return 1 if has_failures else 0

    def render(self, out: Console) -> None:
        """Draw each checkpoint."""
        for examination in self.checkpoints:
            examination.render(out)


@command(exits={0: "all is well", 1: "something was found", 2: "configuration"})
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
) -> DoctorReport:
    """Examine Spark's checkpoints: can they be gone on from, and if not, which recovery level helps?

    Compares a checkpoint with itself, the table and Kafka, as each start of `headrace supervisor` does. Changes
    nothing.
    """
    if checkpoint is None:
        return DoctorReport(_examine_pipelines(config or default_config(), pipeline))
    if config is not None:
        raise ConfigError("name either a configuration file, or a checkpoint with --checkpoint")
    return DoctorReport([_examine_checkpoint(checkpoint, bootstrap_servers)])


def _mark(ok: bool | None, out: Console) -> tuple[str, str]:
    """Return the mark of a result, and its style."""
    marks = MARKS if out.encoding.startswith("utf") else PLAIN_MARKS
    if ok is None:
        return marks["not_checked"], "dim"
    if ok:
        return marks["ok"], "green"
    return marks["failed"], "bold red"


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
        examinations.append(_examination(name, pipeline.run, pipeline.location, checks))
    return examinations


def _examine_checkpoint(checkpoint: str, bootstrap_servers: str | None) -> CheckpointExamination:
    try:
        location = parse_location(checkpoint)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        facts = collect_checkpoint_facts(location, bootstrap_servers, StoreSettings().with_environment(os.environ))
    except StoreError as error:
        return _unreadable(None, location, error)
    if facts.content is not None and facts.content.is_missing:
        raise ConfigError(f"{location} holds no checkpoint; name the folder that has metadata and offsets in it")
    return _examination(None, None, location, preflight(facts))


def _unreadable(name: str | None, location: str, error: StoreError) -> CheckpointExamination:
    check = Check("storage", ok=False, message=str(error).rstrip("."), level=RecoveryLevel.WAIT)
    return _examination(name, None, location, [check])


def _examination(
    pipeline: str | None, run: int | None, checkpoint: str, checks: Sequence[Check]
) -> CheckpointExamination:
    """Return what the checks of a checkpoint lead to. `pipeline`: None: headrace did not write it."""
    remedies = {**_REMEDIES, **_FOREIGN_REMEDIES} if pipeline is None else _REMEDIES
    level = leads_to(checks)
    return CheckpointExamination(
        pipeline=pipeline,
        run=run,
        checkpoint=checkpoint,
        leads_to=None if level is None else level.label,
        halt=any(check.halt for check in checks),
        checks=[_line(check, remedies) for check in checks],
        remedy=None if level is None else remedies[level],
    )


def _line(check: Check, remedies: Mapping[RecoveryLevel, str]) -> CheckLine:
    level = None if check.level is None else check.level.label
    return CheckLine(check.name, check.ok, check.message, check.halt, level, _consequence(check, remedies))


def _consequence(check: Check, remedies: Mapping[RecoveryLevel, str]) -> str:
    """Return what a check that failed leads to; empty for others."""
    if check.ok is not False:
        return ""
    if check.level is None:
        return " → a person must act"
    return f" → {check.level.label}, {remedies[check.level]}"
