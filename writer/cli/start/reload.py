"""`headrace reload`: lets a running writer read its configuration file again."""

from typing import Annotated, Any

import typer

from writer.core.errors import ConfigError
from writer.driver.reload_request import request_reload
from writer.output.cli_options import AsJson, ConfigFile, duration_of
from writer.output.tables import console, emit_whole, label_grid, sentence


def reload(
    config: ConfigFile,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait until the file has been read.")] = "30 s",
    as_json: AsJson = False,
) -> None:
    """Let every writer that runs here on this file read it again, as SIGHUP does: supervisor, and with it its driver.

    Pipelines that are new begin, those that changed finish their batch and begin anew, those that are gone finish their
    batch and end; what had failed is tried again. The others go on. Keys outside `pipelines` and `defaults` hold until
    the process is started again; they are listed. An invalid file changes nothing, and the writer says so, too.

    It is run on the writer's machine, in Kubernetes with `kubectl exec`.

    Exit codes: 0 the file is in force, 1 no writer was found here, or it does not answer in time, 2 configuration.
    """
    reading = request_reload(config, duration_of("--timeout", timeout))
    if as_json:
        emit_whole(reading)
    if reading["error"] is not None:
        raise ConfigError(f"nothing was changed: {reading['error']}")
    if not as_json:
        _show(reading)


def _show(reading: dict[str, Any]) -> None:
    rows = [(change, ", ".join(reading[change])) for change in ("added", "changed", "removed") if reading[change]]
    if rows:
        console().print(label_grid(rows))
        sentence(console(), "They begin, begin anew or drain now; `headrace status` shows how far they are.")
    else:
        sentence(console(), "The file was read; its pipelines are as they were.")
    if reading["restart"]:
        sentence(console(), f"These keys hold from the next start of the process: {', '.join(reading['restart'])}.")
