"""Describes pipelines as they are now: each by its driver, or by its table and Kafka where no driver answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from headrace.writer.clients.driver_endpoint import find_announcement, pipeline_of, status_at
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster, probe_cluster
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import iso
from headrace.writer.output.health import health
from headrace.writer.status import from_table
from headrace.writer.status.document import document
from headrace.writer.status.model import View

# A person waits for the answer.
_KAFKA_TIMEOUT_MAX = timedelta(seconds=5)
_RELEASES_AT_ONCE = 16
# Keys that a pipeline has in any release.
_PIPELINE_KEYS = {"state", "epoch", "lag", "rates", "limits", "totals", "commits", "last_commit"}


def collect_status(config: Config, names: Sequence[str], cluster: Cluster, now: datetime) -> dict[str, Any]:
    """Describe the pipelines of a configuration as they are now.

    Pipelines without a driver share one wait for a broker that does not answer.
    """
    status = document((), now)
    probed_cluster: Cluster | BrokerUnreachable | None = None
    # Several pipelines have one driver, which is asked once.
    ask_driver = cache(partial(status_at, fresh=True))
    find_driver = cache(partial(find_announcement, config.checkpoints, stores=config.stores))

    def driver_answers() -> Iterator[Mapping[str, Any]]:
        for driver in filter(None, map(find_driver, config.pipelines)):
            yield ask_driver(driver.url, driver.certificate) or {}

    for name in names:
        driver = find_driver(name)
        pipeline = None
        if driver is not None:
            pipeline = pipeline_of(ask_driver(driver.url, driver.certificate), driver, name)
        if pipeline is None:
            probed_cluster = probed_cluster or probe_cluster(cluster)
            view = from_table.view(name, config, probed_cluster, now)
            view = _add_failure(view, driver_answers())
            pipeline = document([view], now, source="lake")["pipelines"][name]
        answers = pipeline["source"] == "driver"
        status["pipelines"][name] = {
            **pipeline,
            "executors": pipeline.get("executors"),
            "config": pipeline.get("config"),
            "driver": driver and {**asdict(driver), "answers": answers},
        }
    return status


def _add_failure(view: View, answers: Iterable[Mapping[str, Any]]) -> View:
    """Add why a pipeline failed that no driver runs, where one says so that runs others of the configuration.

    `answers`: of drivers, to `/status`. One that another start has followed does not know how that ended.
    """
    if view.state not in ("unknown", "not started", "failed"):
        return view
    for answer in answers:
        pipeline = answer.get("pipelines", {}).get(view.pipeline, {})
        if pipeline.get("state") == "failed" and pipeline["epoch"] in (None, view.epoch):
            reasons = filter(None, (pipeline["error"], view.error))
            return replace(view, state="failed", error="; ".join(reasons))
    return view


def collect_releases(addresses: Sequence[str]) -> dict[str, Any]:
    """Describe several releases as they are now, all at once. `addresses`: URLs of drivers, or configuration files."""
    with ThreadPoolExecutor(_RELEASES_AT_ONCE) as threads:
        releases = dict(zip(addresses, threads.map(_collect_release, addresses), strict=True))
    return {"at": iso(datetime.now(UTC)), "releases": releases}


def open_cluster(config: Config) -> Cluster:
    """Open a cluster for a person who waits for its answer."""
    return Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_TIMEOUT_MAX))


def exit_code(status: Mapping[str, Any]) -> Literal[0, 1]:
    """Return 1 when a pipeline has failed or was given up, its table cannot be read, or a release does not answer."""
    for release in status.get("releases", {"": status}).values():
        if "error" in release:
            return 1
        for pipeline in release.get("pipelines", {}).values():
            if pipeline["state"] in ("failed", "unreadable") or pipeline.get("halted"):
                return 1
    return 0


def check_code(status: Mapping[str, Any]) -> Literal[0, 1]:
    """Return 1 when the health of a pipeline is critical, or a release does not answer: a person must act."""
    for release in status.get("releases", {"": status}).values():
        if "error" in release:
            return 1
        if any(health(pipeline).level == "critical" for pipeline in release.get("pipelines", {}).values()):
            return 1
    return 0


def _collect_release(address: str) -> dict[str, Any]:
    """Describe one release; what does not answer has an `error`."""
    if address.startswith(("http://", "https://")):
        url = address.rstrip("/")
        return _check_answer(status_at(url, fresh=True), url)
    try:
        config = load(Path(address))
        return collect_status(config, list(config.pipelines), open_cluster(config), datetime.now(UTC))
    except (HeadraceError, OSError) as error:
        return {"error": str(error)}


def _check_answer(answer: dict[str, Any] | None, url: str) -> dict[str, Any]:
    """Return what a driver answered at a URL; what is no driver's answer becomes an `error`."""
    if answer is None:
        return {"error": f"nothing at {url}/status answers as a driver does"}
    pipelines = answer.get("pipelines")
    if not isinstance(pipelines, dict):
        return {"error": _describe_stranger("another program")}
    if all(isinstance(pipeline, dict) and pipeline.keys() >= _PIPELINE_KEYS for pipeline in pipelines.values()):
        return answer
    return {"error": _describe_stranger("a supervisor" if "driver" in answer else "another program")}


def _describe_stranger(program: str) -> str:
    return f"{program} answers there. Give the URL of the driver (http.port)."
