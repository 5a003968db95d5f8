"""Exports metrics: from the driver's progress to the text that Prometheus scrapes."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from writer.status.lag import lags
from writer.status.model import DURATION_BOUNDS
from writer.status.progress import Progress
from writer.web.http_server import NOT_HERE, TEXT, Answer, Get, json_answer
from writer.web.metric_types import Metric, Reading, Value
from writer.web.metrics_catalogue import CATALOGUE


class _StaticCollector(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def encoded(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return the page of these families and its content type, in the format that the scraper prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StaticCollector(families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def family(name: str, kind: str, about: str, labels: Sequence[str], values: Iterable[Value]) -> Family:
    """Return a gauge or a counter; without values it is told too. `values`: those of all labels, and the number."""
    made = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, about, labels=labels)
    for given, number in values:
        made.add_metric(list(given), number)
    return made


def exposition(
    board: Mapping[str, Progress], accept: str, config: Mapping[str, Any] = MappingProxyType({})
) -> tuple[bytes, str]:
    """Return a driver's page and its content type. `config`: the last reading of its file, as `/status` has it."""
    return encoded(families(board, datetime.now(UTC), config), accept)


def families(
    board: Mapping[str, Progress], now: datetime, config: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Family]:
    """Give every family of a driver's catalogue, those without a value too."""
    of_process: Mapping[str, Iterable[Value]] = {
        "headrace_build_info": [((version("headrace"), platform.python_version()), 1)],
        "headrace_config_last_reload_successful": [((), float(not config.get("error")))],
        "headrace_config_restart_needed": [((), float(len(config.get("restart", ()))))],
    }
    views = [progress.view() for progress in board.values()]
    readings = [Reading(view, lags(view.logs, view.frontier, now), now) for view in views]
    for metric in CATALOGUE:
        if metric.read is None:
            yield _histogram(metric, readings)
        else:
            values = of_process.get(metric.name) or _values(metric.read, readings)
            yield family(metric.name, metric.kind, metric.help, metric.labels, values)


def _values(read: Callable[[Reading], Iterable[Value]], readings: Iterable[Reading]) -> Iterator[Value]:
    for reading in readings:
        for labels, number in read(reading):
            yield (reading.view.pipeline, *labels), number


def _histogram(metric: Metric, readings: Iterable[Reading]) -> Family:
    """Prometheus wants each bound to count all that lies below it."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for reading in readings:
        below, buckets = 0, []
        for bound, count in zip([*DURATION_BOUNDS, None], reading.view.durations, strict=True):
            below += count
            buckets.append(("+Inf" if bound is None else str(bound), below))
        family.add_metric([reading.view.pipeline], buckets, reading.view.duration_sum_seconds)
    return family


def board(
    verb: str, *, families: Callable[[], Iterable[Family]], status: Callable[[], dict[str, Any]],
    unhealthy: Callable[[], str],
) -> Get:  # fmt: skip
    """Answer a GET. `unhealthy`: why a person should act; empty while it is well."""

    def get(path: str, accept: str) -> Answer:
        match path.split("?", 1)[0]:
            case "/metrics":
                body, content_type = encoded(families(), accept)
                return HTTPStatus.OK, content_type, body
            case "/status":
                return json_answer(status())
            case "/healthz":
                why = unhealthy()
                code = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
                return code, TEXT, f"{why or 'ok'}\n".encode()
            case "/":
                return HTTPStatus.OK, TEXT, f"{verb}\n\n/metrics\n/healthz\n/status\n".encode()
        return NOT_HERE

    return get
