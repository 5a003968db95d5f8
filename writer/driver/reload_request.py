"""Lets the writers of this machine that run a configuration file read it again."""

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.writer.clients.driver_endpoint import find_announcement, status_at
from headrace.writer.config.loader import Addresses, addresses, load
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.signals import describe_process
from headrace.writer.core.units import show_duration
from headrace.writer.web.http_server import url_of

# Between two requests for the answer.
_POLL_INTERVAL_S = 0.2
_LISTS = ("added", "changed", "removed", "restart")


@dataclass(frozen=True)
class _Writer:
    """A process that runs the file: where it or its driver answers, and what it said there of its last reading."""

    url: str
    certificate: str
    last_reading: dict[str, Any]

    @property
    def pid(self) -> int:
        """Id of the process."""
        return int(self.last_reading["process"]["pid"])

    def signal(self) -> None:
        """Send it SIGHUP. Raises HeadraceError."""
        try:
            os.kill(self.pid, signal.SIGHUP)
        except OSError as error:
            raise HeadraceError(
                f"the writer, process {self.pid}, cannot be signalled: {error.strerror}. Run this as its user."
            ) from error

    def wait_for_reading(self, timeout: timedelta) -> dict[str, Any]:
        """Wait until it has read its file. Returns what it says of that. Raises HeadraceError."""
        deadline_s = time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline_s:
            status = status_at(self.url, self.certificate) or {}
            reading: dict[str, Any] = status.get("config", {})
            if reading.get("reads", 0) > self.last_reading["reads"]:
                return reading
            time.sleep(_POLL_INTERVAL_S)
        raise HeadraceError(
            f"the writer at {self.url} has not read its file within {show_duration(timeout)}; it may be starting a "
            "pipeline. `headrace status` shows how it is."
        )


def request_reload(path: Path, timeout: timedelta) -> dict[str, Any]:
    """Let all writers that run a file read it. Returns what they say of it, as JSON values.

    Raises HeadraceError where none runs or one does not answer in time, ConfigError where none runs an invalid file.
    """
    invalid: ConfigError | None = None
    try:
        load(path)
    except ConfigError as error:
        # The writer has to read it anyway: its log, metrics and alert tell of a file.
        invalid = error
    try:
        writers = _find_writers(path)
    except HeadraceError:
        if invalid is not None:
            raise invalid from None
        raise
    for writer in writers:
        writer.signal()
    return _merge_readings([writer.wait_for_reading(timeout) for writer in writers])


def _find_writers(path: Path) -> list[_Writer]:
    """Return the processes of this machine that run a file, each once. Raises HeadraceError where there is none."""
    writers: dict[int, _Writer] = {}
    refusals: list[HeadraceError] = []
    for url, certificate in _list_urls(addresses(path)).items():
        reading = (status_at(url, certificate) or {}).get("config") or {}
        if "process" not in reading:
            continue
        refusal = _check_process(reading, path)
        if refusal is not None:
            refusals.append(refusal)
        else:
            writer = _Writer(url, certificate, reading)
            writers.setdefault(writer.pid, writer)
    if writers:
        return list(writers.values())
    if refusals:
        raise refusals[0]
    raise HeadraceError(
        "no driver and no supervisor answer for these pipelines: nothing runs, http.enabled is false, or the "
        "checkpoints are others. A writer that is started reads the file anyway; to one that runs, send SIGHUP."
    )


def _list_urls(file: Addresses) -> dict[str, str]:
    """Return the URLs where drivers, else their supervisors may answer, with their certificates."""
    urls: dict[str, str] = {}
    if file.checkpoints:
        for name in file.pipelines:
            driver = find_announcement(file.checkpoints, name, file.stores)
            if driver is not None:
                urls[driver.url] = driver.certificate
    scheme = "https" if file.http.tls else "http"
    certificate = str(file.http.certificate or "")
    # None of these pipelines may have begun yet.
    for section in (file.http, file.supervisor):
        if section.port:
            urls.setdefault(url_of(section.host, section.port, scheme), certificate)
    return urls


def _check_process(reading: dict[str, Any], path: Path) -> HeadraceError | None:
    """Return why a process is not meant; None where it is on this machine, and reads this file."""
    writer = reading["process"]
    if writer != describe_process(writer["pid"]):
        return HeadraceError(
            f"the writer is process {writer['pid']} on {writer['host']}, and not of this machine. Run `headrace "
            "reload` there (kubectl exec), or send it SIGHUP."
        )
    if Path(reading["file"]).resolve() != path.resolve():
        return ConfigError(f"the writer that runs reads {reading['file']}, not {path}. Name that file.")
    return None


def _merge_readings(readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what several processes say as one says it: the first of them, with what any of them changed."""
    merged = dict(readings[0])
    for key in _LISTS:
        names: dict[str, None] = {}
        for reading in readings:
            names |= dict.fromkeys(reading[key])
        merged[key] = list(names)
    merged["error"] = next((reading["error"] for reading in readings if reading["error"]), None)
    return merged
