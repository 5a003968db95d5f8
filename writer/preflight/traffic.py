"""Measures a pipeline's traffic: events a second by the broker's clock, sizes and buckets from a sample."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

import bucketers
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config, Pipeline
from writer.core.errors import ExitCode, HeadraceError
from writer.core.files import BucketKey
from writer.core.text import instant, plural, span
from writer.maintenance.local_pipeline import LocalPipeline, opened
from writer.preflight.route_sample import opened_part, split
from writer.preflight.sizing import Traffic
from writer.preflight.staged_sample import Staged, staged
from writer.schemas.registry import source

_WINDOW = timedelta(hours=1)
_SLICES = 12  # of the window, to find the busiest
_QUIET = timedelta(minutes=5)  # a topic whose newest record is older is looked at as it was then


class NothingToMeasure(HeadraceError):
    """The topics hold nothing that could be sized."""

    exit_code = ExitCode.CONFIGURATION


@dataclass(frozen=True)
class Pace:
    """How many records came, over which time, and how many in the busiest slice of it."""

    offsets: int
    start: datetime
    end: datetime
    busiest_per_s: float

    @property
    def per_s(self) -> float:
        """Records per second on the mean."""
        return self.offsets / self.seconds

    @property
    def seconds(self) -> float:
        """Length of the measured time."""
        return max((self.end - self.start).total_seconds(), 1e-3)


def pace(cluster: Cluster, topics: list[str], newest: datetime, now: datetime) -> Pace:
    """Ask the broker which offsets it had when, over the last hour that had any. `newest`: the last record's time."""
    sources = cluster.sources(topics)
    end = now if now - newest < _QUIET else newest + timedelta(milliseconds=1)
    first = [at for offset, at in cluster.found(dict.fromkeys(sources, 0)).values() if offset >= 0]
    start = max(end - _WINDOW, datetime.fromtimestamp(min(first) / 1000, UTC)) if first else end - _WINDOW
    marks = [start + (end - start) * part / _SLICES for part in range(_SLICES)]
    counts = [*(sum(cluster.at(mark, sources).values()) for mark in marks), sum(cluster.latest(sources).values())]
    slice_s = max((end - start).total_seconds() / _SLICES, 1e-3)
    busiest = max(after - before for before, after in pairwise(counts)) / slice_s
    return Pace(counts[-1] - counts[0], start, end, busiest)


def measured(
    name: str, config: Config, cluster: Cluster, records: int, now: datetime, given_per_s: float | None
) -> dict[str, tuple[Traffic, str, Pipeline]]:
    """Measure a pipeline's traffic, or that of each table of its route, by its share of the sampled records.

    Returns by `pipeline` or `pipeline/target` the traffic, a phrase: what was looked at, and the settings. Raises
    NothingToMeasure, HeadraceError.
    """
    settings, schemas = config.pipelines[name], source(config.registry)
    topics = choose_topics(cluster, settings.topics).names
    batch = kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, records))
    walk = opened(name, config, schemas, topics=topics, before_route=settings.route is not None)
    if settings.route is None:
        return {name: (*_measured(walk, cluster, topics, batch, now, given_per_s), settings)}
    parts = split(walk, batch).parts if batch.num_rows else []
    if not parts:
        raise _nothing(name, topics)
    found = {}
    for part in parts:
        share = part.records.num_rows / batch.num_rows
        of_part = opened_part(name, part, schemas)
        found[f"{name}/{part.target}"] = (
            *_measured(of_part, cluster, topics, part.records, now, given_per_s, share),
            part.config.pipelines[name],
        )
    return found


def _nothing(name: str, topics: Sequence[str]) -> NothingToMeasure:
    return NothingToMeasure(
        f"no record of {', '.join(topics)} becomes a row, so there is nothing to size {name!r} by. "
        "`headrace validate` says why."
    )


def _measured(
    walk: LocalPipeline, cluster: Cluster, topics: list[str], batch: pa.RecordBatch, now: datetime,
    given_per_s: float | None, share: float = 1.0,
) -> tuple[Traffic, str]:  # fmt: skip
    """Measure the traffic of one table. `share`: of the topics' records, that go there."""
    config = walk.config
    times = [time for time in batch.column("timestamp").to_pylist() if time is not None]  # cold: a sample
    found = staged(walk, batch, now) if batch.num_rows else None
    if found is None or not found.rows or not times:
        raise _nothing(walk.name, topics)
    per_s, how = (given_per_s, "given by --events-per-second")
    if per_s is None:
        per_s, how = _words(pace(cluster, topics, max(times), now), now)
    how = how if share == 1 else f"{share:.1%} of {per_s:,.1f}/s; {how}"
    values = batch.num_rows - batch.column("value").null_count
    rows = Counter[BucketKey]()
    for file in found.report.files:
        rows[file.bucket] += file.rows
    sampled = plural(values, "record")
    traffic = Traffic(
        events_per_s=per_s * share, events_how=how, event_bytes=found.value_bytes / values,
        columns=len(walk.plan.columns),
        row_bytes=found.row_bytes, row_bytes_parquet=found.bytes / found.rows, sampled_how=f"mean of {sampled}",
        bucket_shares=[count / found.rows for _, count in rows.most_common()],
        buckets_per_day=buckets_per_day(config.pipelines[walk.name].bucket, list(rows)),
        partitions_for_spark=len(cluster.sources(topics)) if config.kafka.reader == "spark" else 0,
    )  # fmt: skip
    which = f"the newest {sampled} of {', '.join(topics)} ({walk.settled(batch).format})"
    message = f"{which}, {instant(min(times))} to {instant(max(times))}"
    return traffic, message + _left_out(found, values)


def _words(pace: Pace, now: datetime) -> tuple[float, str]:
    before = "" if pace.end == now else f" before {instant(pace.end)}"
    window = f"the {'' if before else 'last '}{span(pace.seconds)}{before}"
    slice_s = pace.seconds / _SLICES
    return pace.per_s, f"{pace.offsets:,} offsets in {window}; busiest {span(slice_s)}: {pace.busiest_per_s:,.0f}"


def _left_out(found: Staged, values: int) -> str:
    left = values - found.rows
    return f"; {left:,} of them are no rows" if left else ""


def buckets_per_day(spec: Mapping[str, Any], keys: Sequence[BucketKey]) -> float | None:
    """How many buckets a day begins, from their width and the other parts seen. None: not by event time."""
    if spec["type"] == "event_time":
        return float(timedelta(days=1) / spec["width"])
    at = 0
    for part in spec.get("parts", []):
        if part["type"] == "event_time":
            others = len(set(keys)) / len({key[at] for key in keys})
            return float(others * (timedelta(days=1) / part["width"]))
        at += len(bucketers.build(part).columns)
    return None
