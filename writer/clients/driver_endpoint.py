"""Finds a running driver by a file beside its pipeline's checkpoints, and checks whether it answers."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.writer.clients import tls
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.http import Answer, RequestFailed, ask
from headrace.writer.core.text import iso
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings

_DRIVER = "driver.json"
_ANSWER_WITHIN_S = 2.0


class DriverAlive(HeadraceError):
    """A driver of the pipeline runs, and must not."""


@dataclass(frozen=True)
class Driver:
    """A driver that serves a pipeline: what stands in `<checkpoints>/<pipeline>/driver.json`."""

    url: str
    pid: int
    # When this process began to serve.
    started: str
    epoch: int
    # The certificate of HTTPS, as a path on the driver's machine; empty: HTTP.
    certificate: str = ""


def announce(checkpoints: str, pipeline: str, driver: Driver, stores: StoreSettings | None = None) -> None:
    """Write where the driver is found. A reader gets the old file or the new one, whole."""
    store_at(f"{checkpoints}/{pipeline}", stores).put(_DRIVER, (json.dumps(asdict(driver)) + "\n").encode())


def retract(checkpoints: str, pipeline: str, driver: Driver, stores: StoreSettings | None = None) -> None:
    """Remove the file, unless another driver has written its own by now."""
    # A file that stays names no running driver, as after a kill.
    with suppress(OSError):
        if read_announcement(checkpoints, pipeline, stores) == driver:
            store_at(f"{checkpoints}/{pipeline}", stores).delete(_DRIVER)


def find_announcement(checkpoints: str, pipeline: str, stores: StoreSettings | None = None) -> Driver | None:
    """Read where the driver is found; None when none says so, or nothing can be read there."""
    with suppress(OSError):
        return read_announcement(checkpoints, pipeline, stores)
    return None


def read_announcement(checkpoints: str, pipeline: str, stores: StoreSettings | None = None) -> Driver | None:
    """Read where the driver is found; None when none says so. It may be gone: a killed driver leaves its file.

    Raises StoreError.
    """
    stored = store_at(f"{checkpoints}/{pipeline}", stores).read(_DRIVER)
    try:
        return None if stored is None else Driver(**json.loads(stored.content))
    except (ValueError, TypeError):
        return None


def ask_at(
    url: str, certificate: str = "", *, timeout_s: float, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """Ask a driver or a supervisor, without a proxy. `certificate`: see `tls.client_context`. Raises RequestFailed."""
    try:
        trust = tls.client_context(certificate)
    except (OSError, ValueError) as error:
        raise RequestFailed(f"the certificate of {url}, {certificate}, cannot be read: {error}") from error
    return ask(url, method=method, headers=headers, timeout_s=timeout_s, trust=trust, proxies=False)


def status_at(
    url: str, certificate: str = "", timeout_s: float = _ANSWER_WITHIN_S, *, fresh: bool = False
) -> dict[str, Any] | None:
    """Return the JSON document that a process of headrace serves at `url`/status; None when none answers with one.

    `fresh`: a driver looks at its tables before, for a second at most.
    """
    path = "/status?fresh=true" if fresh else "/status"
    try:
        answer = ask_at(f"{url}{path}", certificate, timeout_s=timeout_s)
        if not answer.ok:
            return None
        document = answer.json()
    except RequestFailed:
        return None
    return document if isinstance(document, dict) else None


def driver_status(driver: Driver, pipeline: str) -> dict[str, Any] | None:
    """Return the `/status` of the driver of a pipeline; None when none answers there, or another one does."""
    document = status_at(driver.url, driver.certificate) or {}
    try:
        is_same = document["pipelines"][pipeline]["epoch"] == driver.epoch
    except (LookupError, TypeError):
        return None
    return document if is_same else None


def ask_driver(driver: Driver, pipeline: str) -> dict[str, Any] | None:
    """Return a pipeline's part of `driver_status`, with `executors`, `config` and `at`."""
    return pipeline_of(status_at(driver.url, driver.certificate), driver, pipeline)


def pipeline_of(document: dict[str, Any] | None, driver: Driver, pipeline: str) -> dict[str, Any] | None:
    """Return the part of a pipeline of what was answered at a driver's URL; None where another driver answered."""
    try:
        part = (document or {})["pipelines"][pipeline]
        if document is None or part["epoch"] != driver.epoch:
            return None
    except (LookupError, TypeError):
        return None
    return {**part, "executors": document.get("executors"), "config": document.get("config"), "at": document["at"]}


def this_driver(url: str, epoch: int, certificate: str = "") -> Driver:
    """Describe this process."""
    return Driver(url, os.getpid(), iso(datetime.now(UTC)), epoch, certificate)


def answers(config: Config, pipeline: str) -> Driver | None:
    """Return the driver that runs a pipeline; None when none is announced, or none answers there. Raises StoreError."""
    driver = read_announcement(config.checkpoints, pipeline, config.stores)
    if driver is None or ask_driver(driver, pipeline) is None:
        return None
    return driver


def check_no_driver(config: Config, pipeline: str, fix: str) -> None:
    """Raise DriverAlive when a driver of the pipeline answers, HeadraceError when it cannot be told whether one runs.

    `fix`: what is to be done about a driver.
    """
    try:
        driver = answers(config, pipeline)
    except StoreError as error:
        raise HeadraceError(f"it cannot be told whether a driver of pipeline {pipeline!r} runs: {error}") from error
    if driver is not None:
        raise DriverAlive(f"a driver of pipeline {pipeline!r} runs (process {driver.pid}, {driver.url}). {fix}")
