"""`headrace reload`: lets a running writer read its configuration file again."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from writer.clients.driver_endpoint import announced, status_at
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.signals import process
from writer.core.units import show_duration
from writer.output.cli_options import AsJson, ConfigFile, duration_of
from writer.output.tables import console, emit_whole, labelled, sentence
from writer.web.http_server import url_of

_LOOK_S = 0.2  # between two looks at the answer


def reload(
    config: ConfigFile,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait until the file has been read.")] = "30 s",
    as_json: AsJson = False,
) -> None:
    """Let the running writer read its file again, as SIGHUP does: the supervisor, and with it the driver.

    Pipelines that are new begin, those that changed finish their batch and begin anew, those that are gone finish their
    batch and end; what had failed is tried again. The others go on. Keys outside `pipelines` and `defaults` hold until
    the process is started again; they are listed. An invalid file changes nothing.

    It is run on the writer's machine, in Kubernetes with `kubectl exec`.

    Exit codes: 0 the file is in force, 1 no writer was found here, or it does not answer in time, 2 configuration.
    """
    within, settings = duration_of("--timeout", timeout), load(config)
    url, certificate, before = _running(settings)
    about = before["config"]
    _check_same(about, config)
    os.kill(about["process"]["pid"], signal.SIGHUP)
    found = _answer(url, certificate, about["reads"], within)
    if as_json:
        emit_whole(found)
    if found["error"] is not None:
        raise ConfigError(f"nothing was changed: {found['error']}")
    if not as_json:
        _show(found)


def _running(config: Config) -> tuple[str, str, dict[str, Any]]:
    """Return URL and certificate of the driver of these pipelines, else of its supervisor, and the `/status` there.

    Raises HeadraceError.
    """
    places = [announced(config.checkpoints, name, config.s3.settings) for name in config.pipelines]
    known = {driver.url: driver.certificate for driver in places if driver is not None}
    scheme, certificate = "https" if config.http.tls else "http", str(config.http.certificate or "")
    for section in (config.http, config.supervisor):  # none of these pipelines may have begun yet
        if section.port:
            known.setdefault(url_of(section.host, section.port, scheme), certificate)
    for url, certificate in known.items():
        status = status_at(url, certificate)
        if status is not None and "config" in status:
            return url, certificate, status
    raise HeadraceError(
        "no driver and no supervisor answer for these pipelines: nothing runs, http.enabled is false, or the "
        "checkpoints are others. A writer that is started reads the file anyway; to one that runs, send SIGHUP."
    )


def _check_same(about: dict[str, Any], path: Path) -> None:
    """Raise HeadraceError unless the process is on this machine, and reads this file."""
    there, here = about["process"], process(about["process"]["pid"])
    if there != here:
        raise HeadraceError(
            f"the writer is process {there['pid']} on {there['host']}, and not of this machine. Run `headrace reload` "
            "there (kubectl exec), or send it SIGHUP."
        )
    if Path(about["file"]).resolve() != path.resolve():
        raise ConfigError(f"the writer that runs reads {about['file']}, not {path}. Name that file.")


def _answer(url: str, certificate: str, reads: int, within: timedelta) -> dict[str, Any]:
    """Wait until the driver has read its file. Returns what it says of that. Raises HeadraceError."""
    deadline_s = time.monotonic() + within.total_seconds()
    while time.monotonic() < deadline_s:
        status = status_at(url, certificate) or {}
        found: dict[str, Any] = status.get("config", {})
        if found.get("reads", 0) > reads:
            return found
        time.sleep(_LOOK_S)
    raise HeadraceError(
        f"the writer has not read its file within {show_duration(within)}; it may be starting a pipeline. `headrace "
        "status` shows how it is."
    )


def _show(found: dict[str, Any]) -> None:
    rows = [(what, ", ".join(found[what])) for what in ("added", "changed", "removed") if found[what]]
    if rows:
        console().print(labelled(rows))
        sentence(console(), "They begin, begin anew or drain now; `headrace status` shows how far they are.")
    else:
        sentence(console(), "The file was read; its pipelines are as they were.")
    if found["restart"]:
        sentence(console(), f"These keys hold from the next start of the process: {', '.join(found['restart'])}.")
