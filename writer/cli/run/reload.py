"""`headrace reload`: lets a running writer read its configuration file again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from writer.config.loader import load
from writer.core.errors import ConfigError, HeadraceError
from writer.driver.reload_request import request_reload
from writer.maintenance.retention import Retention, pipeline_retentions
from writer.output.cli_options import AsJson, ConfigFile, duration_of
from writer.output.tables import console, emit_whole, label_grid, sentence
from writer.sealing.retention_wait import RetentionWait


def reload(
    config: ConfigFile,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait until the file has been read.")] = "30 s",
    yes: Annotated[bool, typer.Option("--yes", help="Take a shorter `retention` into force, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let every writer that runs here on this file read it again, as SIGHUP does: supervisor, and with it its driver.

    Pipelines that are new begin, those that changed finish their batch and begin anew, those that are gone finish their
    batch and end; what had failed is tried again. The others go on. Keys outside `pipelines` and `defaults` hold until
    the process is started again; they are listed. An invalid file changes nothing, and the writer says so, too.

    A shorter `retention` is shown with what it would drop. The longer one stays in force until --yes, or until
    `headrace retention --yes`.

    It is run on the writer's machine, in Kubernetes with `kubectl exec`.

    Exit codes: 0 the file is in force, 1 no writer was found here, or it does not answer in time, 2 configuration.
    """
    waits = _list_waits(config, datetime.now(UTC), is_needed=yes)
    if yes:
        for retention in waits.by_retention:
            retention.accept(datetime.now(UTC))
    reading = request_reload(config, duration_of("--timeout", timeout))
    reading["retention_waits"] = [wait.to_json() for wait in waits.by_retention.values()]
    if as_json:
        emit_whole(reading)
    if reading["error"] is not None:
        raise ConfigError(f"nothing was changed: {reading['error']}")
    if not as_json:
        _show(reading)
        _show_retentions(waits, accepted=yes)


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


def _show_retentions(waits: _RetentionWaits, *, accepted: bool) -> None:
    for wait in waits.by_retention.values():
        sentence(console(), f"{wait.text}.")
    if waits.error:
        sentence(console(), f"What a shorter retention would drop is not known: {waits.error}")
    if waits.by_retention and accepted:
        sentence(console(), "With --yes the shorter retention is in force from now on.")
    elif waits.by_retention:
        sentence(console(), "With --yes, or by `headrace retention --yes`, the shorter retention comes into force.")


def _show(reading: dict[str, Any]) -> None:
    rows = [(change, ", ".join(reading[change])) for change in ("added", "changed", "removed") if reading[change]]
    if rows:
        console().print(label_grid(rows))
        sentence(console(), "They begin, begin anew or drain now; `headrace status` shows how far they are.")
    else:
        sentence(console(), "The file was read; its pipelines are as they were.")
    if reading["restart"]:
        sentence(console(), f"These keys hold from the next start of the process: {', '.join(reading['restart'])}.")
