"""`headrace reload`: lets a running writer read its configuration file again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.driver.reload_request import request_reload
from headrace.writer.maintenance.retention import Retention, pipeline_retentions
from headrace.writer.output.cli_options import ConfigFile, duration_of
from headrace.writer.output.command import command
from headrace.writer.output.report import Report, Screen, json_value
from headrace.writer.output.tables import label_grid, sentence
from headrace.writer.sealing.retention_wait import RetentionWait


@dataclass(frozen=True)
class ReloadReport(Report):
    """What the writers of a file say of their reading, and the shorter retentions that waited before it."""

    # As `/status` has it.
    reading: Mapping[str, Any]
    retention_waits: Sequence[RetentionWait]
    # Why other retentions are not known.
    retention_error: str
    is_accepted: bool

    def document(self) -> dict[str, Any]:
        """Return the reading with the retentions."""
        return {**self.reading, "retention_waits": json_value(self.retention_waits)}

    def render(self, out: Console) -> None:
        """Say what changes now, what at the next start, and what a shorter retention would drop."""
        changes = ("added", "changed", "removed")
        rows = [(change, ", ".join(self.reading[change])) for change in changes if self.reading[change]]
        if rows:
            out.print(label_grid(rows))
            sentence(out, "They begin, begin anew or drain now; `headrace status` shows how far they are.")
        else:
            sentence(out, "The file was read; its pipelines are as they were.")
        if self.reading["restart"]:
            keys = ", ".join(self.reading["restart"])
            sentence(out, f"These keys hold from the next start of the process: {keys}.")
        for wait in self.retention_waits:
            sentence(out, f"{wait.text}.")
        if self.retention_error:
            sentence(out, f"What a shorter retention would drop is not known: {self.retention_error}")
        if self.retention_waits and self.is_accepted:
            sentence(out, "With --yes the shorter retention is in force from now on.")
        elif self.retention_waits:
            sentence(out, "With --yes, or by `headrace retention --yes`, the shorter retention comes into force.")


@command(
    exits={0: "the file is in force", 1: "no writer was found here, or it does not answer in time", 2: "configuration"}
)
def reload(
    config: ConfigFile,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait until the file has been read.")] = "30 s",
    yes: Annotated[bool, typer.Option("--yes", help="Take a shorter `retention` into force, too.")] = False,
    *,
    screen: Screen,
) -> ReloadReport:
    """Let every writer that runs here on this file read it again, as SIGHUP does: supervisor, and with it its driver.

    Pipelines that are new begin, those that changed finish their batch and begin anew, those that are gone finish their
    batch and end; what had failed is tried again. The others go on. Keys outside `pipelines` and `defaults` hold until
    the process is started again; they are listed. An invalid file changes nothing, and the writer says so, too.

    A shorter `retention` is shown with what it would drop. The longer one stays in force until --yes, or until
    `headrace retention --yes`.

    It is run on the writer's machine, in Kubernetes with `kubectl exec`.
    """
    longest_wait = duration_of("--timeout", timeout)
    waits = _list_waits(config, datetime.now(UTC), is_needed=yes)
    if yes:
        for retention in waits.by_retention:
            retention.accept(datetime.now(UTC))
    reading = request_reload(config, longest_wait)
    report = ReloadReport(reading, list(waits.by_retention.values()), waits.error, is_accepted=yes)
    if reading["error"] is not None:
        if screen.as_json:
            screen.show(report)
        raise ConfigError(f"nothing was changed: {reading['error']}")
    return report


@dataclass(frozen=True)
class _RetentionWaits:
    """Retentions of a file that wait to be accepted, and why they are not known."""

    by_retention: Mapping[Retention, RetentionWait]
    error: str = ""


def _list_waits(path: Path, now: datetime, *, is_needed: bool) -> _RetentionWaits:
    """List the retentions of a file that wait to be accepted; none of an invalid file, which changes nothing.

    Raises HeadraceError where they are needed, and a table does not answer.
    """
    try:
        config = load(path)
    except ConfigError:
        return _RetentionWaits({})
    wait_by_retention: dict[Retention, RetentionWait] = {}
    try:
        for name in config.pipelines:
            for retention in pipeline_retentions(name, config):
                wait = retention.find_wait(now)
                if wait is not None:
                    wait_by_retention[retention] = wait
    except HeadraceError as error:
        # The writer drops nothing that was not accepted, so the rest of the file can be taken over.
        if is_needed:
            raise
        return _RetentionWaits(wait_by_retention, str(error))
    return _RetentionWaits(wait_by_retention)
