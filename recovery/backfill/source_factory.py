"""Creates the sources of a backfill from the command's options and the table."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.recovery.backfill.kafka_source import KafkaSource, Segment
from headrace.recovery.backfill.raw_source import RawPlace, RawSource
from headrace.writer.clients import kafka_sample
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.offsets.log_check import log_check
from headrace.writer.table.kafka_timestamps import read_kafka_timestamps
from headrace.writer.table.ledger.gap_record import GapRecord

_MIRROR = re.compile(r"^(?P<bootstrap>[^/]+)/(?P<topic>[A-Za-z0-9._-]+)$")
_PAIR = re.compile(r"^(?:(?P<topic>[A-Za-z0-9._-]+)/)?(?P<partition>\d+):(?P<offset>\d+)=(?P<mirror_offset>\d+)$")
# Rows that are compared on each side of a gap.
_COMPARED_ROWS = 5


def kafka(record_table: RecordTable) -> KafkaSource:
    """Return the gap's own topic."""
    config = record_table.config
    snapshot = record_table.table.snapshot()
    check = log_check(record_table.name, config.kafka, partial(record_table.table.entries, -1))
    return KafkaSource(
        config.kafka,
        headers=record_table.pipeline.needs_headers,
        raw=record_table.raw is not None,
        ids=snapshot.incarnations(),
        cut=partial(check.diverging_parts, snapshot),
    )


def raw(record_table: RecordTable, location: str) -> RawSource:
    """Return a raw table: of a pipeline that had the same topics. Raises ConfigError if there is none."""
    location = location.rstrip("/")
    snapshot = record_table.table.snapshot()
    place = RawPlace(record_table.name, record_table.config, location)
    return RawSource(place, own=location in snapshot.raw_locations, ids=snapshot.incarnations())


def mirror(record_table: RecordTable, gap_record: GapRecord, address: str, mappings: Sequence[str]) -> KafkaSource:
    """Return a copy of the topic, with mapped offsets. `address`: BOOTSTRAP/TOPIC. Raises ConfigError."""
    match = _MIRROR.match(address)
    if match is None:
        raise ConfigError(f"--from-mirror {address!r} is no mirror; write broker-1:9092,broker-2:9092/topic")
    ranges = gap_record.opened.ranges if gap_record.opened else ()
    # The mappings are checked before the registry is asked for schemas.
    segments = mirror_segments(ranges, mappings, match["topic"])
    kafka = record_table.config.kafka.model_copy(update={"bootstrap_servers": match["bootstrap"]})
    return KafkaSource(
        kafka,
        headers=record_table.pipeline.needs_headers,
        raw=record_table.raw is not None,
        ids={},
        segments=segments,
        name=f"mirror {address}",
        has_same_times=_time_comparison(record_table, kafka),
    )


def mirror_segments(ranges: Sequence[OffsetRange], mappings: Sequence[str], topic: str) -> list[Segment]:
    """Return where the ranges of a gap are in a mirror, by pairs of offsets. Raises ConfigError.

    A pair holds up to the next one of its partition, and the first also for the offsets before it. With the ranges
    [0, 10) of partition 0 and the pairs 0:2=102 and 0:6=206, offsets [0, 6) are 100 further in the mirror, and offsets
    [6, 10) are 200 further.
    """
    mirror_offsets = _parse_mappings(ranges, mappings)
    segments = []
    for r in ranges:
        pairs = sorted(mirror_offsets.get(r.part, {}).items())
        for index, (offset, mirror_offset) in enumerate(pairs):
            shift = mirror_offset - offset
            # The mirror begins at 0.
            start = max(r.start, -shift)
            if index > 0:
                start = max(start, offset)
            end = r.end
            if index + 1 < len(pairs):
                end = min(end, pairs[index + 1][0])
            if start < end:
                segments.append(Segment(OffsetRange(r.part, start, end), (topic, r.part.partition), shift))
    return segments


def _parse_mappings(ranges: Sequence[OffsetRange], mappings: Sequence[str]) -> Mapping[TopicPartition, dict[int, int]]:
    """Return the mirror's offset of each mapped offset, by part."""
    topics = sorted({r.part.topic for r in ranges})
    mirror_offsets: dict[TopicPartition, dict[int, int]] = {}
    for text in mappings:
        match = _PAIR.match(text)
        if match is None:
            raise ConfigError(f"--map {text!r} maps no offset; write 0:5000=1200 or clicks/0:5000=1200")
        if match["topic"] is None and len(topics) > 1:
            raise ConfigError(f"the gap has several topics; write --map {topics[0]}/{text}")
        topic = match["topic"] or (topics[0] if topics else "")
        source = (topic, int(match["partition"]))
        parts = [r.part for r in ranges if r.part.source == source]
        if not parts:
            raise ConfigError(f"--map {text!r}: the gap has no offsets of {topic}/{match['partition']}")
        mirror_offsets.setdefault(parts[0], {})[int(match["offset"])] = int(match["mirror_offset"])
    return mirror_offsets


def _time_comparison(record_table: RecordTable, kafka: Kafka) -> Callable[[Segment], bool | None]:
    """Return what compares the times of the table's rows next to a segment with those of the mirror's records.

    It returns None when there is nothing to compare.
    """

    def has_same_times(segment: Segment) -> bool | None:
        part = segment.range.part
        before = (max(0, segment.range.start - _COMPARED_ROWS), segment.range.start)
        after = (segment.range.end, segment.range.end + _COMPARED_ROWS)
        verdicts = []
        for first, end in (before, after):
            # The mirror begins at 0.
            start = max(first, -segment.shift)
            if start >= end:
                continue
            row_times = read_kafka_timestamps(record_table.table, part, start, end)
            if not row_times:
                continue
            mirror_span = (start + segment.shift, end + segment.shift)
            records = kafka_sample.read(kafka, {segment.source: mirror_span})
            offsets = [offset - segment.shift for offset in records.column("offset").to_pylist()]
            record_times = dict(zip(offsets, records.column("timestamp").to_pylist(), strict=True))
            common = row_times.keys() & record_times.keys()
            if common:
                verdicts.append(all(record_times[offset] == row_times[offset] for offset in common))
        return all(verdicts) if verdicts else None

    return has_same_times
