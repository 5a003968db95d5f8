"""Creates the sources of a backfill from the command's options and the table."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.kafka_source import Segment, Topic
from recovery.backfill.raw_source import RawTable
from writer.clients import kafka_sample
from writer.config.connections import Kafka
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetRange, TopicPartition
from writer.offsets.log_check import log_check
from writer.table.factory import side_table
from writer.table.kafka_timestamps import read_kafka_timestamps
from writer.table.ledger.gap_record import GapRecord

_MIRROR = re.compile(r"^(?P<bootstrap>[^/]+)/(?P<topic>[A-Za-z0-9._-]+)$")
_PAIR = re.compile(r"^(?:(?P<topic>[A-Za-z0-9._-]+)/)?(?P<partition>\d+):(?P<here>\d+)=(?P<there>\d+)$")
_COMPARED = 5  # rows on each side of a gap


def kafka(filling: BackfilledTable) -> Topic:
    """The gap's own topic."""
    snapshot = filling.table.snapshot()
    check = log_check(filling.name, filling.config.kafka, partial(filling.table.entries, -1))
    return Topic(
        filling.config.kafka,
        headers=filling.walk.needs_headers,
        raw=filling.raw is not None,
        ids=snapshot.incarnations(),
        cut=partial(check.diverging, snapshot),
    )


def raw(filling: BackfilledTable, location: str) -> RawTable:
    """A raw table: of a pipeline that had the same topics. Raises ConfigError where there is none."""
    place = location.rstrip("/")
    snapshot = filling.table.snapshot()
    table = side_table(filling.name, filling.config, place)
    return RawTable(table, own=place in snapshot.raw_places, ids=snapshot.incarnations())


def mirror(filling: BackfilledTable, gap_record: GapRecord, where: str, mapped: Sequence[str]) -> Topic:
    """A copy of the topic, with mapped offsets. Raises ConfigError."""
    found = _MIRROR.match(where)
    if found is None:
        raise ConfigError(f"--from-mirror {where!r} is no mirror; write broker-1:9092,broker-2:9092/topic")
    segments = segmented(gap_record.opened.ranges if gap_record.opened else (), mapped, found["topic"])
    settings = filling.config.kafka.model_copy(update={"bootstrap_servers": found["bootstrap"]})
    return Topic(
        settings, headers=filling.walk.needs_headers, raw=filling.raw is not None, ids={}, segments=segments,
        name=f"mirror {where}", same=_comparing(filling, settings),
    )  # fmt: skip


def segmented(ranges: Sequence[OffsetRange], mapped: Sequence[str], topic: str) -> list[Segment]:
    """Return where the ranges of a gap stand in a mirror, by pairs of offsets. Raises ConfigError.

    A pair holds up to the next one of its partition, and the first also for what is before it.
    """
    pairs = _pairs(ranges, mapped)
    found = []
    for r in ranges:
        mine = sorted(pairs.get(r.part, {}).items())
        for at, (here, there) in enumerate(mine):
            start = r.start if at == 0 else max(r.start, here)
            end = mine[at + 1][0] if at + 1 < len(mine) else r.end
            start = max(start, here - there)  # the mirror begins at 0
            if start < min(end, r.end):
                found.append(Segment(r.part, start, min(end, r.end), (topic, r.part.partition), there - here))
    return found


def _pairs(ranges: Sequence[OffsetRange], mapped: Sequence[str]) -> Mapping[TopicPartition, dict[int, int]]:
    topics = sorted({r.part.topic for r in ranges})
    found: dict[TopicPartition, dict[int, int]] = {}
    for text in mapped:
        matched = _PAIR.match(text)
        if matched is None:
            raise ConfigError(f"--map {text!r} maps no offset; write 0:5000=1200 or clicks/0:5000=1200")
        if matched["topic"] is None and len(topics) > 1:
            raise ConfigError(f"the gap has several topics; write --map {topics[0]}/{text}")
        topic = matched["topic"] or (topics[0] if topics else "")
        parts = [r.part for r in ranges if (r.part.topic, r.part.partition) == (topic, int(matched["partition"]))]
        if not parts:
            raise ConfigError(f"--map {text!r}: the gap has no offsets of {topic}/{matched['partition']}")
        found.setdefault(parts[0], {})[int(matched["here"])] = int(matched["there"])
    return found


def _comparing(filling: BackfilledTable, kafka: Kafka) -> Callable[[Segment], bool | None]:
    """Compare the times of the table's rows next to a segment with the mirror's records; None: nothing to compare."""

    def same(s: Segment) -> bool | None:
        verdicts = []
        for start, end in ((max(0, s.start - _COMPARED), s.start), (s.end, s.end + _COMPARED)):
            first = max(start, -s.shift)
            if first >= end:
                continue
            rows = read_kafka_timestamps(filling.table, s.part, first, end)
            if not rows:
                continue
            there = kafka_sample.read(kafka, {s.source: (first + s.shift, end + s.shift)})
            offsets = (at - s.shift for at in there.column("offset").to_pylist())
            times = dict(zip(offsets, there.column("timestamp").to_pylist(), strict=True))
            if rows.keys() & times.keys():
                verdicts.append(all(times[at] == when for at, when in rows.items() if at in times))
        return all(verdicts) if verdicts else None

    return same
