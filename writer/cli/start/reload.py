"""`headrace reload`: lets a running writer read its configuration file again."""

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from writer.clients.driver_endpoint import find_announcement, status_at
from writer.config.loader import Addresses, addresses, load
from writer.core.errors import ConfigError, HeadraceError
from writer.core.signals import process
from writer.core.units import show_duration
from writer.output.cli_options import AsJson, ConfigFile, duration_of
from writer.output.tables import console, emit_whole, label_grid, sentence
from writer.web.http_server import url_of

_LOOK_S = 0.2  # between two looks at the answer


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
    within, invalid = duration_of("--timeout", timeout), None
    try:
        load(config)
    except ConfigError as error:
        invalid = error  # the writer has to read it anyway: its log, metrics and alert tell of a file
    try:
        writers = _running(config)
    except HeadraceError:
        if invalid is not None:
            raise invalid from None
        raise
    for one in writers:
        one.signal()
    found = _merged([one.answer(within) for one in writers])
    if as_json:
        emit_whole(found)
    if found["error"] is not None:
        raise ConfigError(f"nothing was changed: {found['error']}")
    if not as_json:
        _show(found)


@dataclass(frozen=True)
class _Writer:
    """A process that runs the file: where it or its driver answers, and what it said there of its last reading."""

    url: str
    certificate: str
    about: dict[str, Any]

    def signal(self) -> None:
        """Send it SIGHUP. Raises HeadraceError."""
        pid = self.about["process"]["pid"]
        try:
            os.kill(pid, signal.SIGHUP)
        except OSError as error:
            raise HeadraceError(
                f"the writer, process {pid}, cannot be signalled: {error.strerror}. Run this as its user."
            ) from error

    def answer(self, within: timedelta) -> dict[str, Any]:
        """Wait until it has read its file. Returns what it says of that. Raises HeadraceError."""
        deadline_s = time.monotonic() + within.total_seconds()
        while time.monotonic() < deadline_s:
            found: dict[str, Any] = (status_at(self.url, self.certificate) or {}).get("config", {})
            if found.get("reads", 0) > self.about["reads"]:
                return found
            time.sleep(_LOOK_S)
        raise HeadraceError(
            f"the writer at {self.url} has not read its file within {show_duration(within)}; it may be starting a "
            "pipeline. `headrace status` shows how it is."
        )


def _running(path: Path) -> list[_Writer]:
    """Return the processes of this machine that run a file, each once. Raises HeadraceError where there is none."""
    found: dict[int, _Writer] = {}
    others: list[HeadraceError] = []
    for url, certificate in _urls(addresses(path)).items():
        about = (status_at(url, certificate) or {}).get("config") or {}
        if "process" not in about:
            continue
        if (other := _other(about, path)) is not None:
            others.append(other)
        else:
            found.setdefault(about["process"]["pid"], _Writer(url, certificate, about))
    if found:
        return list(found.values())
    if others:
        raise others[0]
    raise HeadraceError(
        "no driver and no supervisor answer for these pipelines: nothing runs, http.enabled is false, or the "
        "checkpoints are others. A writer that is started reads the file anyway; to one that runs, send SIGHUP."
    )


def _urls(known: Addresses) -> dict[str, str]:
    """Return the URLs where drivers, else their supervisors may answer, with their certificates."""
    found: dict[str, str] = {}
    for name in known.pipelines if known.checkpoints else ():
        if (driver := find_announcement(known.checkpoints, name, known.s3.settings)) is not None:
            found[driver.url] = driver.certificate
    scheme, certificate = "https" if known.http.tls else "http", str(known.http.certificate or "")
    for section in (known.http, known.supervisor):  # none of these pipelines may have begun yet
        if section.port:
            found.setdefault(url_of(section.host, section.port, scheme), certificate)
    return found


def _other(about: dict[str, Any], path: Path) -> HeadraceError | None:
    """Return why a process is not meant; None where it is on this machine, and reads this file."""
    there = about["process"]
    if there != process(there["pid"]):
        return HeadraceError(
            f"the writer is process {there['pid']} on {there['host']}, and not of this machine. Run `headrace reload` "
            "there (kubectl exec), or send it SIGHUP."
        )
    if Path(about["file"]).resolve() != path.resolve():
        return ConfigError(f"the writer that runs reads {about['file']}, not {path}. Name that file.")
    return None


def _merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what several processes say as one says it: the first of them, with what any of them changed."""
    lists = {
        what: list(dict.fromkeys(name for one in answers for name in one[what]))
        for what in ("added", "changed", "removed", "restart")
    }
    return {**answers[0], **lists, "error": next((one["error"] for one in answers if one["error"]), None)}


def _show(found: dict[str, Any]) -> None:
    rows = [(what, ", ".join(found[what])) for what in ("added", "changed", "removed") if found[what]]
    if rows:
        console().print(label_grid(rows))
        sentence(console(), "They begin, begin anew or drain now; `headrace status` shows how far they are.")
    else:
        sentence(console(), "The file was read; its pipelines are as they were.")
    if found["restart"]:
        sentence(console(), f"These keys hold from the next start of the process: {', '.join(found['restart'])}.")
