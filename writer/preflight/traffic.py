"""Measures a pipeline's traffic: events a second by the broker's clock, sizes and buckets from a sample."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core.errors import ConfigError, ExitCode, HeadraceError
from writer.core.files import BucketKey
from writer.core.text import instant, plural, span
from writer.maintenance.local_pipeline import LocalPipeline, opened
from writer.preflight.samples.route_sample import opened_part, split
from writer.preflight.samples.staged_sample import Staged, raw_record_bytes, staged
from writer.preflight.sizing import Traffic
from writer.schemas.registry import SchemaSource, source

_WINDOW = timedelta(hours=1)
_SLICES = 12  # of the window, to find the busiest
_QUIET = timedelta(minutes=5)  # a topic whose newest record is older is looked at as it was then


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


def pace(cluster: Cluster, topics: list[str], newest: datetime, now: datetime) -> ArrivalPace:
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
    tables: Mapping[str, tuple[Traffic, Pipeline]]  # by target: its share, and the settings of the table
    left_out: Mapping[str, str]  # targets whose rows and files are not known, and why


@dataclass(frozen=True)
class _Part:
    """Sampled records of one table as files."""

    staged: Staged
    columns: int
    settings: Pipeline
    values: int
    share: float  # of all records of the sample

    def shares(self) -> dict[BucketKey, float]:
        """Return the share of all records that goes to each bucket."""
        rows = Counter[BucketKey]()
        for file in self.staged.report.files:
            rows[file.bucket] += file.rows
        return {key: self.share * count / self.staged.rows for key, count in rows.items()}


def measured(
    name: str, config: Config, cluster: Cluster, records: int, now: datetime, given_per_s: float | None
) -> Measurement:
    """Measure a pipeline's traffic, and that of each table of its route. Raises NothingToMeasure, HeadraceError."""
    settings, schemas = config.pipelines[name], source(config.registry)
    topics = choose_topics(cluster, settings.topics).names
    batch = kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, records))
    walk = opened(name, config, schemas, topics=topics, before_route=settings.route is not None)
    parts, left_out = _parts(walk, schemas, batch, now)
    times = [time for time in batch.column("timestamp").to_pylist() if time is not None]  # cold: a sample
    if not parts or not times:
        raise NothingToMeasure(
            f"no record of {', '.join(topics)} becomes a row, so there is nothing to size {name!r} by. "
            "`headrace validate` says why."
        )
    per_s, how = (given_per_s, "given by --events-per-second")
    if per_s is None:
        per_s, how = _words(pace(cluster, topics, max(times), now), now)
    values = batch.num_rows - batch.column("value").null_count
    sent = pc.sum(pc.binary_length(batch.column("value"))).as_py()
    partitions = len(cluster.sources(topics)) if config.kafka.reader == "spark" else 0
    whole = _traffic(list(parts.values()), per_s, how, sent / values, values, partitions)
    if settings.raw_place:
        whole = replace(whole, raw_bytes=raw_record_bytes(walk, batch, now))
    tables = {target: (_of_part(part, per_s, how), part.settings) for target, part in parts.items() if settings.route}
    which = f"the newest {plural(values, 'record')} of {', '.join(topics)} ({walk.settled(batch).format})"
    left = values - sum(part.staged.rows for part in parts.values())
    looked_at = f"{which}, {instant(min(times))} to {instant(max(times))}"
    looked_at += f"; {left:,} of them are no rows" if left else ""
    return Measurement(whole, looked_at, tables, left_out)


def _parts(
    walk: LocalPipeline, schemas: SchemaSource, batch: pa.RecordBatch, now: datetime
) -> tuple[dict[str, _Part], dict[str, str]]:
    """Stage a sample, of a route by target. Returns what became rows, and why other targets are left out."""
    found, left_out = dict[str, _Part](), dict[str, str]()
    if batch.num_rows == 0:
        return found, left_out
    if walk.config.pipelines[walk.name].route is None:
        part = _part(walk, batch, now, 1.0)
        return ({} if part is None else {walk.name: part}), left_out
    for one in split(walk, batch).parts:
        count = one.records.num_rows
        try:
            part = _part(opened_part(walk.name, one, schemas), one.records, now, count / batch.num_rows)
        except ConfigError as error:  # such as an event time that is none
            left_out[one.target] = str(error)
            continue
        if part is None:
            left_out[one.target] = (
                f"{plural(count, 'record')} in the sample, and none becomes a row. `headrace validate` says why."
            )
        else:
            found[one.target] = part
    return found, left_out


def _part(walk: LocalPipeline, batch: pa.RecordBatch, now: datetime, share: float) -> _Part | None:
    """Stage the records of one table; None where none becomes a row."""
    found = staged(walk, batch, now)
    values = batch.num_rows - batch.column("value").null_count
    settings = walk.config.pipelines[walk.name]
    return _Part(found, len(walk.plan.columns), settings, values, share) if found.rows else None


def _of_part(part: _Part, per_s: float, how: str) -> Traffic:
    """Return the traffic of one table of a route. `per_s`, `how`: of the pipeline."""
    alone = replace(part, share=1.0)
    how = f"{part.share:.1%} of {per_s:,.1f}/s; {how}"
    return _traffic([alone], per_s * part.share, how, part.staged.value_bytes / part.values, part.values, 0)


def _traffic(
    parts: Sequence[_Part], per_s: float, how: str, event_bytes: float, values: int, partitions: int
) -> Traffic:
    """Put tables together: means are those of a record, so that a sum over the tables is that of the whole."""
    of_day = [buckets_per_day(part.settings.bucket, list(part.shares())) for part in parts]
    share = sum(part.share for part in parts)
    return Traffic(
        events_per_s=per_s, events_how=how, event_bytes=event_bytes,
        columns=round(sum(part.columns * part.share for part in parts) / share),
        row_bytes=sum(part.staged.row_bytes * part.share for part in parts),
        row_bytes_parquet=sum(part.staged.bytes / part.staged.rows * part.share for part in parts),
        sampled_how=f"mean of {plural(values, 'record')}",
        bucket_shares=sorted((share for part in parts for share in part.shares().values()), reverse=True),
        buckets_per_day=None if None in of_day else sum(one for one in of_day if one is not None),
        partitions_for_spark=partitions,
    )  # fmt: skip


def _words(pace: ArrivalPace, now: datetime) -> tuple[float, str]:
    before = "" if pace.end == now else f" before {instant(pace.end)}"
    window = f"the {'' if before else 'last '}{span(pace.seconds)}{before}"
    slice_s = pace.seconds / _SLICES
    return pace.per_s, f"{pace.offsets:,} offsets in {window}; busiest {span(slice_s)}: {pace.busiest_per_s:,.0f}"


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
