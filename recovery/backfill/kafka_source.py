"""Reads a gap's records from Kafka: the same offsets of the topic, or mapped ones of a mirror."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.kafka_fetch import fetched
from recovery.backfill.read_order import aligned, instants
from recovery.backfill.source import Chunk, SourceFailed, in_full
from writer.avro.schema_plan import SchemaPlan
from writer.clients.kafka import Cluster, next_records
from writer.commit.missing_offsets import MissingOffsets, RecordsMissed, check, questions
from writer.config.connections import Kafka
from writer.core.offsets import OffsetRange, Source, Span, TopicPartition
from writer.maintenance.local_pipeline import Piece
from writer.offsets.start_decision import LogRange, number

FindCuts = Callable[[Mapping[TopicPartition, LogRange], Mapping[str, str]], Collection[TopicPartition]]


@dataclass(frozen=True)
class Segment:
    """Offsets [start, end) of a part, and how far from them the same records stand in another log."""

    part: TopicPartition
    start: int
    end: int
    source: Source  # where they stand
    shift: int  # offset there less offset here

    def clipped(self, r: OffsetRange) -> "Segment | None":
        """Return what lies in a range; None: nothing."""
        start, end = max(self.start, r.start), min(self.end, r.end)
        mine = r.part == self.part and start < end
        return Segment(self.part, start, end, self.source, self.shift) if mine else None


class Topic:
    """The gap's own topic, as far as Kafka still holds it; or a mirror, where segments say which offsets are which."""

    def __init__(
        self, kafka: Kafka, *, headers: bool, raw: bool = False, ids: Mapping[str, Sequence[str]],
        segments: Sequence[Segment] | None = None, name: str = "kafka",
        same: Callable[[Segment], bool | None] = lambda _: None,
        cut: FindCuts = lambda *_: (),
    ) -> None:  # fmt: skip
        """`ids`: incarnations of each topic, as the table knows them. `same`: compares what lies around a segment.

        `cut`: names parts whose log is not the one that the table was filled from, by what Kafka holds and topic ids.

        `raw`: the records are kept in the raw table, too.
        """
        self.name = name
        self._kafka, self._headers, self._raw = kafka, headers, raw
        self._cluster = Cluster(kafka.address, kafka.request_timeout)
        self._ids, self._given, self._same, self._cut = ids, segments, same, cut
        self._now_ids: dict[str, str] = {}  # of the topics whose offsets were asked for

    def available(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return what Kafka holds of these offsets now. Raises BrokerUnreachable, TopicMissing for a mirror."""
        return [OffsetRange(one.part, one.start, one.end) for one in self._segments(wanted)]

    def chunks(self, left: Callable[[], Sequence[OffsetRange]], rows_max: int) -> Iterator[Chunk]:
        """Yield slices that are aligned by the broker's time, oldest first."""
        segments = self._segments(left())
        if not segments:
            return
        for one in segments:
            if self._same(one) is False:
                raise SourceFailed(
                    f"records of {one.source[0]}/{one.source[1]} around {one.start + one.shift} have other times than "
                    f"the table's rows around offset {one.start} of {one.part.topic}/{one.part.partition}: the "
                    "mapping is wrong. Correct --map."
                )
        for ranges in aligned(
            [OffsetRange(s.part, s.start, s.end) for s in segments], self._marks(segments, rows_max), rows_max
        ):
            mine = [cut for r in ranges for s in segments if (cut := s.clipped(r))]
            spans: dict[TopicPartition, list[Span]] = {}
            for cut in mine:
                spans.setdefault(cut.part, []).append((cut.start, cut.end))
            yield Chunk(spans, partial(self._read, mine), partial(self._confirm, mine), raw=self._raw)

    def _segments(self, wanted: Sequence[OffsetRange]) -> list[Segment]:
        """Return the wanted offsets that exist, in the other log's offsets."""
        if self._given is None:
            given = self._own(wanted)
        else:
            given = [cut for r in wanted for s in self._given if (cut := s.clipped(r))]
        sources = {one.source for one in given}
        earliest, ends = self._cluster.earliest(sources), self._cluster.latest(sources)
        found = []
        for one in given:
            start = max(one.start, earliest[one.source] - one.shift)
            end = min(one.end, ends[one.source] - one.shift)
            if start < end:
                found.append(Segment(one.part, start, end, one.source, one.shift))
        return sorted(found, key=lambda s: (s.part, s.start))

    def _own(self, wanted: Sequence[OffsetRange]) -> list[Segment]:
        """Return the ranges of the topic's present incarnation; the offsets of others mean other records."""
        names = sorted({r.part.topic for r in wanted})
        topics = self._cluster.topics(names)
        self._now_ids |= {name: topic.id for name, topic in topics.items()}
        now = {n: number(self._ids[n], topics[n].id) for n in names if topics[n].id in self._ids.get(n, ())}
        own = [
            Segment(r.part, r.start, r.end, (r.part.topic, r.part.partition), 0)
            for r in wanted
            if now.get(r.part.topic) == r.part.incarnation and r.part.partition < topics[r.part.topic].partitions
        ]
        self._check_logs({segment.source: segment.part for segment in own})
        return own

    def _check_logs(self, parts: Mapping[Source, TopicPartition]) -> None:
        """Raise SourceFailed where a log was cut: its offsets mean other records, perhaps those of the gap."""
        earliest, ends = self._cluster.earliest(parts), self._cluster.latest(parts)
        log_ranges = {part: LogRange(earliest[source], ends[source]) for source, part in parts.items()}
        if cut := self._cut(log_ranges, self._now_ids):
            raise SourceFailed(
                f"Kafka's log was cut below what the table has of {min(cut).name}, and is another one now. Start the "
                "pipeline first; then bring the records of the gap from a mirror or an archive."
            )

    def _marks(self, segments: Sequence[Segment], rows_max: int) -> list[dict[TopicPartition, int]]:
        """Ask each log where it stands at instants of the time that the segments hold."""
        offsets = sum(s.end - s.start for s in segments)
        ends = self._edges(segments)
        if offsets <= rows_max or not ends:
            return []
        marks: list[dict[TopicPartition, int]] = []
        for when in instants(min(ends), max(ends), offsets, rows_max):
            at = self._cluster.first_records({s.source: int(when.timestamp() * 1000) for s in segments})
            mark: dict[TopicPartition, int] = {}
            for s in segments:
                there = at[s.source][0]
                here = s.end if there < 0 else min(max(there - s.shift, s.start), s.end)
                if there >= 0 and there - s.shift < s.start:
                    continue  # of another segment of the part
                mark[s.part] = max(mark.get(s.part, 0), here)
            marks.append({p: max(o, marks[-1].get(p, 0)) if marks else o for p, o in mark.items()})
        return marks

    def _edges(self, segments: Sequence[Segment]) -> list[datetime]:
        """Return the broker's times of the first and the last record of each segment, where there is one."""
        found: list[datetime] = []
        for s in segments:
            for start in {s.start, s.end - 1}:
                there = {s.source: (start + s.shift, start + s.shift + 1)}
                for batch in fetched(self._kafka, there, headers=False, topic_ids=self._now_ids):
                    times = batch.column("timestamp").drop_null().to_pylist()
                    found += [time for time in times if time > datetime(1970, 1, 1, tzinfo=UTC)]
        return found

    def _read(self, segments: Sequence[Segment], _: SchemaPlan) -> Iterator[Piece]:
        for s in segments:
            wanted = {s.source: (s.start + s.shift, s.end + s.shift)}
            for batch in fetched(self._kafka, wanted, headers=self._headers, raw=self._raw, topic_ids=self._now_ids):
                yield Piece(_renamed(batch, s))

    def _confirm(self, segments: Sequence[Segment], without_records: Sequence[MissingOffsets]) -> None:
        """Ask another client for the offsets that gave no record. In a mirror each shifts what comes after it."""
        if self._given is not None:
            in_full(without_records)
            return
        earliest = self._cluster.earliest({s.source for s in segments})
        if gone := [s for s in segments if without_records and earliest[s.source] > s.start]:
            raise SourceFailed(
                f"retention took offsets of {gone[0].source[0]}/{gone[0].source[1]} while they were read. Nothing of "
                "the chunk was committed; the next look sees what is left."
            )
        try:
            check(next_records(self._kafka.address, self._kafka.request_timeout, questions(without_records)))
        except RecordsMissed as error:
            raise SourceFailed(str(error)) from error


def _renamed(batch: pa.RecordBatch, s: Segment) -> pa.RecordBatch:
    """Give records the names that they have in the gap."""
    if s.shift == 0 and s.source == (s.part.topic, s.part.partition):
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["topic"] = pa.repeat(s.part.topic, batch.num_rows)
    columns["partition"] = pa.repeat(pa.scalar(s.part.partition, pa.int32()), batch.num_rows)
    columns["offset"] = pc.subtract(columns["offset"], s.shift)
    return pa.RecordBatch.from_pydict(columns)
