"""How metrics are served: from what a driver knows of its pipelines to the text that a scraper reads."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from writer.lag import lags
from writer.progress import Progress
from writer.surface.metrics import CATALOGUE
from writer.surface.reading import Metric, Reading
from writer.view import DURATION_BOUNDS


class Scrape(Collector):
    """Reads the pipelines at the moment of the scrape."""

    def __init__(self, board: Mapping[str, Progress], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._board, self._now = board, now

    def collect(self) -> Iterator[Family]:
        """Give every family of the catalogue, those without a value too."""
        now = self._now()
        views = [progress.view() for progress in self._board.values()]
        readings = [Reading(view, lags(view.logs, view.frontier, now), now) for view in views]
        for metric in CATALOGUE:
            yield _histogram(metric, readings) if metric.kind == "histogram" else _family(metric, readings)


def exposition(board: Mapping[str, Progress], accept: str) -> tuple[bytes, str]:
    """Return the page and its content type, in the format that the scraper prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(board))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(metric: Metric, readings: Iterable[Reading]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    if "pipeline" not in metric.labels:
        family.add_metric([version("headrace"), platform.python_version()], 1)
        return family
    for reading in readings:
        for values, number in metric.read(reading):
            family.add_metric([reading.view.pipeline, *values], number)
    return family


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
