"""Measures a pipeline's traffic: events a second by the broker's clock, sizes and buckets from a sample."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, ExitCode, HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import instant, plural, span
from headrace.writer.maintenance.local_pipeline import LocalPipeline, open_local_pipeline
from headrace.writer.preflight.capacity.sizing import StepCost, Traffic
from headrace.writer.preflight.samples.processor_time import MEASURED_S, measure_steps
from headrace.writer.preflight.samples.route_sample import open_part, split
from headrace.writer.preflight.samples.staged_sample import StagedSample, raw_record_bytes, stage_sample
from headrace.writer.schemas.registry import SchemaSource, source

_WINDOW = timedelta(hours=1)
# The window has as many slices, to find the busiest.
_SLICES = 12
# Tables of a route whose steps are measured: those with most records.
_MEASURED_TABLES = 8
# A topic whose newest record is older is measured as it was then.
_QUIET = timedelta(minutes=5)


class NothingToMeasure(HeadraceError):
    """The topics hold nothing that could be sized."""

    exit_code = ExitCode.CONFIGURATION


@dataclass(frozen=True)
class ArrivalPace:
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


def arrival_pace(cluster: Cluster, topics: list[str], newest: datetime, now: datetime) -> ArrivalPace:
    """Ask the broker which offsets it had when, over the last hour that had any. `newest`: the last record's time."""
    sources = cluster.sources(topics)
    end = now if now - newest < _QUIET else newest + timedelta(milliseconds=1)
    end_ms = int(end.timestamp() * 1000)
    stamps = (stamp for offset, stamp in cluster.first_records(dict.fromkeys(sources, 0)).values() if offset >= 0)
    first_ms = min((stamp for stamp in stamps if stamp <= end_ms), default=0)
    start = max(end - _WINDOW, datetime.fromtimestamp(first_ms / 1000, UTC))
    marks = [start + (end - start) * part / _SLICES for part in range(_SLICES)]
    counts = [
        *(sum(cluster.offsets_at(mark, sources).values()) for mark in marks),
        sum(cluster.latest(sources).values()),
    ]
    slice_s = max((end - start).total_seconds() / _SLICES, 1e-3)
    busiest = max(after - before for before, after in pairwise(counts)) / slice_s
    return ArrivalPace(counts[-1] - counts[0], start, end, busiest)


@dataclass(frozen=True)
class Measurement:
    """The traffic of a pipeline, and of a route that of each table."""

    traffic: Traffic
    looked_at: str
    # By target: its share of the traffic, and the settings of the table.
    tables: Mapping[str, tuple[Traffic, Pipeline]]
    # Why the rows and files of some targets are not known.
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class _Part:
    """Sampled records of one table as files."""

    staged: StagedSample
    columns: int
    settings: Pipeline
    values: int
    # The share of all records of the sample.
    share: float
    # None: it is not measured.
    steps: StepCost | None = None

    def shares(self) -> dict[BucketKey, float]:
        """Return the share of all records that goes to each bucket."""
        rows = Counter[BucketKey]()
        for file in self.staged.report.files:
            rows[file.bucket] += file.rows
        return {key: self.share * count / self.staged.rows for key, count in rows.items()}


def measure_traffic(
    name: str, config: Config, cluster: Cluster, records: int, now: datetime, given_per_s: float | None
) -> Measurement:
    """Measure a pipeline's traffic, and that of each table of its route. Raises NothingToMeasure, HeadraceError."""
    settings = config.pipelines[name]
    schemas = source(config.registry_of(name))
    topics = choose_topics(cluster, settings.topics).names
    batch = kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, records))
    local_pipeline = open_local_pipeline(name, config, schemas, topics=topics, before_route=settings.route is not None)
    parts, left_out = _parts(local_pipeline, schemas, batch, now)
    # A sample is small, so Python objects do no harm.
    times = [time for time in batch.column("timestamp").to_pylist() if time is not None]
    if not parts or not times:
        raise NothingToMeasure(
            f"no record of {', '.join(topics)} becomes a row, so there is nothing to size {name!r} by. "
            "`headrace validate` says why."
        )
    per_s = given_per_s
    how = "given by --events-per-second"
    if per_s is None:
        per_s, how = _arrival_rate(arrival_pace(cluster, topics, max(times), now), now)
    values = batch.num_rows - batch.column("value").null_count
    value_bytes = pc.sum(pc.binary_length(batch.column("value"))).as_py()
    partitions = len(cluster.sources(topics)) if config.kafka.reader == "spark" else 0
    traffic = _traffic(list(parts.values()), per_s, how, value_bytes / values, values, partitions)
    traffic = replace(traffic, reader=config.kafka.reader)
    if settings.raw_place:
        traffic = replace(traffic, raw_bytes=raw_record_bytes(local_pipeline, batch, now))
    tables = {target: (_of_part(part, per_s, how), part.settings) for target, part in parts.items() if settings.route}
    scope = f"the newest {plural(values, 'record')} of {', '.join(topics)} ({local_pipeline.settle_wire(batch).format})"
    dropped = values - sum(part.staged.rows for part in parts.values())
    looked_at = f"{scope}, {instant(min(times))} to {instant(max(times))}"
    if dropped:
        looked_at += f"; {dropped:,} of them are no rows"
    return Measurement(traffic, looked_at, tables, left_out)


def _parts(
    local_pipeline: LocalPipeline, schemas: SchemaSource, batch: pa.RecordBatch, now: datetime
) -> tuple[dict[str, _Part], dict[str, str]]:
    """Stage a sample, of a route by target. Returns what became rows, and why other targets are left out."""
    parts = dict[str, _Part]()
    left_out = dict[str, str]()
    if batch.num_rows == 0:
        return parts, left_out
    if local_pipeline.config.pipelines[local_pipeline.name].route is None:
        part = _part(local_pipeline, batch, now, 1.0, MEASURED_S)
        if part is not None:
            parts[local_pipeline.name] = part
        return parts, left_out
    target_parts = sorted(split(local_pipeline, batch).parts, key=lambda part: -part.records.num_rows)
    for number, target_part in enumerate(target_parts):
        count = target_part.records.num_rows
        measured_s = MEASURED_S / _MEASURED_TABLES if number < _MEASURED_TABLES else 0.0
        try:
            part = _part(
                open_part(local_pipeline.name, target_part, schemas),
                target_part.records,
                now,
                count / batch.num_rows,
                measured_s,
            )
        # The route names a field that is no event time, for example.
        except ConfigError as error:
            left_out[target_part.target] = str(error)
            continue
        if part is None:
            left_out[target_part.target] = (
                f"{plural(count, 'record')} in the sample, and none becomes a row. `headrace validate` says why."
            )
        else:
            parts[target_part.target] = part
    return parts, left_out


def _part(
    local_pipeline: LocalPipeline, batch: pa.RecordBatch, now: datetime, share: float, measured_s: float
) -> _Part | None:
    """Stage the records of one table; None where none becomes a row. `measured_s`: 0: its cost is not measured."""
    staged = stage_sample(local_pipeline, batch, now)
    values = batch.num_rows - batch.column("value").null_count
    settings = local_pipeline.config.pipelines[local_pipeline.name]
    if not staged.rows:
        return None
    steps = measure_steps(local_pipeline, batch, now, measured_s) if measured_s else None
    return _Part(staged, len(local_pipeline.plan.columns), settings, values, share, steps)


def _of_part(part: _Part, per_s: float, how: str) -> Traffic:
    """Return the traffic of one table of a route. `per_s`, `how`: of the pipeline."""
    alone = replace(part, share=1.0)
    how = f"{part.share:.1%} of {per_s:,.1f}/s; {how}"
    return _traffic([alone], per_s * part.share, how, part.staged.value_bytes / part.values, part.values, 0)


def _traffic(
    parts: Sequence[_Part], per_s: float, how: str, event_bytes: float, values: int, partitions: int
) -> Traffic:
    """Put tables together: means are those of a record, so that a sum over the tables is that of the whole."""
    daily_buckets = [buckets_per_day(part.settings.bucket, list(part.shares())) for part in parts]
    share = sum(part.share for part in parts)
    return Traffic(
        events_per_s=per_s,
        events_how=how,
        event_bytes=event_bytes,
        columns=round(sum(part.columns * part.share for part in parts) / share),
        row_bytes=sum(part.staged.row_bytes * part.share for part in parts),
        row_bytes_parquet=sum(part.staged.bytes / part.staged.rows * part.share for part in parts),
        sampled_how=f"mean of {plural(values, 'record')}",
        bucket_shares=sorted((share for part in parts for share in part.shares().values()), reverse=True),
        buckets_per_day=None if None in daily_buckets else sum(filter(None, daily_buckets)),
        partitions_for_spark=partitions,
        steps=_mean_cost(parts),
    )


def _mean_cost(parts: Sequence[_Part]) -> StepCost | None:
    """Return what the steps cost for a record, on the mean of the tables that were measured; None: none was."""
    measured = [(part.share, part.steps) for part in parts if part.steps is not None]
    if not measured:
        return None
    share = sum(share for share, _ in measured)
    seconds = sum(share * steps.seconds for share, steps in measured) / share
    return StepCost(seconds, sum(steps.records for _, steps in measured))


def _arrival_rate(pace: ArrivalPace, now: datetime) -> tuple[float, str]:
    if pace.end == now:
        window = f"the last {span(pace.seconds)}"
    else:
        window = f"the {span(pace.seconds)} before {instant(pace.end)}"
    slice_s = pace.seconds / _SLICES
    return pace.per_s, f"{pace.offsets:,} offsets in {window}; busiest {span(slice_s)}: {pace.busiest_per_s:,.0f}"


def buckets_per_day(spec: Mapping[str, Any], keys: Sequence[BucketKey]) -> float | None:
    """Return how many buckets begin in a day, by their width and the other parts of `keys`. None: not by event time."""
    if spec["type"] == "event_time":
        return float(timedelta(days=1) / spec["width"])
    position = 0
    for part in spec.get("parts", []):
        if part["type"] == "event_time":
            others = len(set(keys)) / len({key[position] for key in keys})
            return float(others * (timedelta(days=1) / part["width"]))
        position += len(bucketers.build(part).columns)
    return None
