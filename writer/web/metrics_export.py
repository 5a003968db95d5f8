"""Exports metrics: from the driver's progress to the text that Prometheus scrapes."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
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

from headrace.writer.status.lag import partition_lags
from headrace.writer.status.model import DURATION_BOUNDS
from headrace.writer.status.progress import Progress
from headrace.writer.storage.requests.counts import REQUEST_COUNTS
from headrace.writer.web.http_server import NOT_HERE, TEXT, Answer, Get, json_answer
from headrace.writer.web.metric_types import Metric, Reading, Source, Value
from headrace.writer.web.metrics_catalogue import CATALOGUE
from headrace.writer.web.store_metrics import read_store_metrics


class _StaticCollector(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def encode_families(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return the page of these families and its content type, in the format that the scraper prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StaticCollector(families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def metric_family(metric: Metric[Any], values: Iterable[Value]) -> Family:
    """Return a gauge or a counter, also without values. `values`: those of all labels, and the number."""
    family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = family_type(metric.name, metric.help, labels=metric.labels, unit=metric.base_unit)
    for label_values, number in values:
        family.add_metric(list(label_values), number)
    return family


def read_pipelines(metric: Metric[Source], pipelines: Mapping[str, Source]) -> Iterator[Value]:
    """Read a metric of each pipeline, by its name, which is the first label."""
    assert metric.read is not None, "a histogram is made otherwise"
    for name, source in pipelines.items():
        for labels, number in metric.read(source):
            yield (name, *labels), number


def exposition(
    progress_by_name: Mapping[str, Progress], accept: str, config: Mapping[str, Any] = MappingProxyType({})
) -> tuple[bytes, str]:
    """Return a driver's page and its content type. `config`: the last reading of its file, as `/status` has it."""
    return encode_families(families(progress_by_name, datetime.now(UTC), config), accept)


def families(
    progress_by_name: Mapping[str, Progress], now: datetime, config: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Family]:
    """Give every family of a driver's catalogue, those without a value too."""
    of_process: Mapping[str, Iterable[Value]] = {
        "headrace_build_info": [((version("headrace"), platform.python_version()), 1)],
        "headrace_config_last_reload_successful": [((), float(not config.get("error")))],
        "headrace_config_restart_needed": [((), float(len(config.get("restart", ()))))],
        **read_store_metrics(REQUEST_COUNTS.tally),
    }
    views = [progress.view() for progress in progress_by_name.values()]
    readings = {view.pipeline: Reading(view, partition_lags(view.logs, view.frontier, now), now) for view in views}
    for metric in CATALOGUE:
        if metric.read is None:
            yield _histogram(metric, readings.values())
        else:
            yield metric_family(metric, of_process.get(metric.name) or read_pipelines(metric, readings))


def _histogram(metric: Metric[Reading], readings: Iterable[Reading]) -> Family:
    """Return the histogram of durations. Prometheus wants each bound to count all that lies below it."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.base_unit)
    for reading in readings:
        below = 0
        buckets = []
        for bound, count in zip([*DURATION_BOUNDS, None], reading.view.durations, strict=True):
            below += count
            label = "+Inf" if bound is None else str(bound)
            buckets.append((label, below))
        family.add_metric([reading.view.pipeline], buckets, reading.view.duration_sum_seconds)
    return family


def operator_endpoints(
    verb: str,
    *,
    families: Callable[[], Iterable[Family]],
    status: Callable[[], dict[str, Any]],
    unhealthy: Callable[[], str],
) -> Get:
    """Return the GET handler of a process that watches drivers. `unhealthy`: why a person should act; empty: no need.

    `verb`: the command that runs it.
    """

    def get(path: str, accept: str) -> Answer:
        match path.split("?", 1)[0]:
            case "/metrics":
                body, content_type = encode_families(families(), accept)
                return HTTPStatus.OK, content_type, body
            case "/status":
                return json_answer(status())
            case "/healthz":
                why = unhealthy()
                if why:
                    return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{why}\n".encode()
                return HTTPStatus.OK, TEXT, b"ok\n"
            case "/":
                return HTTPStatus.OK, TEXT, f"{verb}\n\n/metrics\n/healthz\n/status\n".encode()
        return NOT_HERE

    return get
