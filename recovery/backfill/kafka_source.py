"""Reads a gap's records from Kafka: the same offsets of the topic, or mapped ones of a mirror."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.backfill.read_order import cut_into_chunks, cut_into_slices, instants
from headrace.recovery.backfill.source import Chunk, SourceFailed, confirm_every_record
from headrace.writer.batch.task import Piece, Read
from headrace.writer.clients import native_kafka
from headrace.writer.clients.kafka import Cluster
from headrace.writer.clients.next_records import next_records
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.commit.missing_offsets import MissingOffsets, RecordsMissed, check_answers, choose_questions
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.offsets import OffsetRange, OffsetSet, Source, Span, TopicPartition, source_name
from headrace.writer.kafka_reader.cluster import Cluster as BrokerCluster, ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.errors import LostRecords, OldRecordFormat
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.offsets.log_check import fetch_log_ranges_of_parts
from headrace.writer.offsets.start_decision import LogRange, incarnation_number

FindCuts = Callable[[Mapping[TopicPartition, LogRange], Mapping[str, str]], Collection[TopicPartition]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Rows of an Arrow batch.
_BATCH_ROWS = 25_000


@dataclass(frozen=True)
class Segment:
    """A range of a part, and how far from its offsets the same records are in another log.

    `source`: the other log. `shift`: the offset in the other log less the offset of the part.
    """

    range: OffsetRange
    source: Source
    shift: int

    @property
    def source_span(self) -> Span:
        """Offsets in the other log."""
        return self.range.start + self.shift, self.range.end + self.shift

    def clip(self, span: Span) -> "Segment | None":
        """Return what is within a span of the part; None: nothing."""
        clip = self.range.clip(span)
        return Segment(clip, self.source, self.shift) if clip.count else None


@dataclass(frozen=True)
class LogReading:
    """How records of a cluster are read. `topic_ids`: of the incarnations that are read; others are then not read."""

    address: ClusterAddress
    limits: ReadLimits
    topic_ids: Mapping[str, UUID]
    columns: ColumnChoice

    def fetch(self, cluster: BrokerCluster, source: Source, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in order. Offsets without a record give none.

        Raises SourceFailed for offsets that the log no longer holds and for records in a format from before Kafka 0.11,
        ReadFailed.
        """
        topic, partition = source
        offset_range = OffsetRange(TopicPartition(topic, 0, partition), *span)
        try:
            yield from RangeReader(
                cluster,
                [offset_range],
                self.columns,
                topic_ids=self.topic_ids,
                limits=self.limits,
                rack=self.address.rack,
            )
        except LostRecords as error:
            raise SourceFailed(
                f"the log of {error.topic}/{error.partition} no longer holds offset {error.offset}: retention was "
                "faster. Nothing of it was committed, and what is left may come from a mirror or an archive."
            ) from error
        except OldRecordFormat as error:
            raise SourceFailed(
                f"{error.topic}/{error.partition} has records in a format from before Kafka 0.11 at offset "
                f"{error.offset}, which a backfill does not read. They may come from a mirror or an archive."
            ) from error


@dataclass(frozen=True)
class KafkaRead:
    """Reads the records of segments, one after the other, in whichever process."""

    reading: LogReading
    segments: Sequence[Segment]

    def __call__(self, _: SchemaPlan) -> Iterator[Piece]:
        """Yield the records, with the places that they have in the gap. Raises as `LogReading.fetch` does."""
        with self.reading.address.open() as cluster:
            for segment in self.segments:
                for batch in self.reading.fetch(cluster, segment.source, segment.source_span):
                    yield Piece(_rename_part(batch, segment))


class KafkaSource:
    """The gap's own topic, as far as Kafka still holds it; or a mirror, where segments say which offsets are which."""

    def __init__(
        self,
        kafka: Kafka,
        *,
        headers: bool,
        raw: bool = False,
        ids: Mapping[str, Sequence[str]],
        segments: Sequence[Segment] | None = None,
        name: str = "kafka",
        has_same_times: Callable[[Segment], bool | None] = lambda _: None,
        cut: FindCuts = lambda *_: (),
    ) -> None:
        """`ids`: incarnations of each topic, as the table has them. `raw`: the raw table keeps the records, too.

        `has_same_times`: compares the records around a segment with the table's rows; None: nothing to compare.
        `cut`: names parts whose log is not the one that the table was filled from, by what Kafka holds and topic ids.
        """
        self.name = name
        self._kafka = kafka
        self._headers = headers
        self._raw = raw
        self._cluster = Cluster(kafka.address, kafka.request_timeout)
        self._ids = ids
        self._mirror_segments = segments
        self._has_same_times = has_same_times
        self._cut = cut
        # Ids of the topics whose offsets were asked for, as Kafka has them now.
        self._topic_ids: dict[str, str] = {}

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return what Kafka holds of these offsets now. Raises BrokerUnreachable, TopicMissing for a mirror."""
        return OffsetSet.of(segment.range for segment in self._segments(wanted))

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        """Yield slices that are aligned by the broker's time, oldest first."""
        segments = self._segments(left())
        if not segments:
            return
        for segment in segments:
            self._check_times(segment)
        ranges = [segment.range for segment in segments]
        for chunk_ranges in cut_into_chunks(ranges, self._marks(segments, rows_max), rows_max):
            chunk_segments = _clip_segments(segments, chunk_ranges)
            yield Chunk(
                OffsetSet.of(segment.range for segment in chunk_segments),
                partial(self._split, chunk_segments),
                partial(self._confirm, chunk_segments),
                raw=self._raw,
            )

    def _split(self, segments: Sequence[Segment], tasks: int) -> list[list[Read]]:
        """Return a read for each of so many tasks, of which the first has the oldest records of each partition."""
        reading = self._reading(ColumnChoice(headers=self._headers, raw=self._raw))
        slices = cut_into_slices([segment.range for segment in segments], tasks)
        return [[KafkaRead(reading, _clip_segments(segments, ranges))] for ranges in slices]

    def _reading(self, columns: ColumnChoice) -> LogReading:
        """Return how records are read of the topics whose ids were asked for."""
        limits = native_kafka.limits(self._kafka, _BATCH_ROWS)
        return LogReading(self._kafka.address, limits, native_kafka.topic_ids(self._topic_ids), columns)

    def _check_times(self, segment: Segment) -> None:
        """Raise SourceFailed where the records around a segment are not those of the table's rows."""
        if self._has_same_times(segment) is False:
            raise SourceFailed(
                f"records of {source_name(segment.source)} around {segment.source_span[0]} have other times than the "
                f"table's rows around offset {segment.range.start} of {segment.range.part.name}: the mapping is wrong. "
                "Correct --map."
            )

    def _segments(self, wanted: OffsetSet) -> list[Segment]:
        """Return the wanted offsets that exist, in the other log's offsets."""
        if self._mirror_segments is None:
            candidates = self._topic_segments(wanted.ranges())
        else:
            candidates = _clip_segments(self._mirror_segments, wanted.ranges())
        sources = {segment.source for segment in candidates}
        earliest = self._cluster.earliest(sources)
        ends = self._cluster.latest(sources)
        clips = [
            segment.clip((earliest[segment.source] - segment.shift, ends[segment.source] - segment.shift))
            for segment in candidates
        ]
        segments = [clip for clip in clips if clip is not None]
        return sorted(segments, key=lambda segment: (segment.range.part, segment.range.start))

    def _topic_segments(self, wanted: Sequence[OffsetRange]) -> list[Segment]:
        """Return the ranges of the topic's present incarnation; the offsets of others mean other records."""
        names = sorted({r.part.topic for r in wanted})
        topics = self._cluster.topics(names)
        self._topic_ids |= {name: topic.id for name, topic in topics.items()}
        incarnations = {
            name: incarnation_number(self._ids[name], topics[name].id)
            for name in names
            if topics[name].id in self._ids.get(name, ())
        }
        segments = [
            Segment(r, r.part.source, 0)
            for r in wanted
            if incarnations.get(r.part.topic) == r.part.incarnation
            and r.part.partition < topics[r.part.topic].partitions
        ]
        self._check_logs({segment.source: segment.range.part for segment in segments})
        return segments

    def _check_logs(self, parts: Mapping[Source, TopicPartition]) -> None:
        """Raise SourceFailed where a log was cut: its offsets mean other records, perhaps those of the gap."""
        if cut := self._cut(fetch_log_ranges_of_parts(self._cluster, parts), self._topic_ids):
            raise SourceFailed(
                f"Kafka's log was cut below what the table has of {min(cut).name}, and is another one now. Start the "
                "pipeline first; then bring the records of the gap from a mirror or an archive."
            )

    def _marks(self, segments: Sequence[Segment], rows_max: int) -> list[dict[TopicPartition, int]]:
        """Ask each log for its offsets at instants of the time that the segments hold."""
        offsets = sum(segment.range.count for segment in segments)
        times = self._edge_times(segments)
        if offsets <= rows_max or not times:
            return []
        marks: list[dict[TopicPartition, int]] = []
        for instant in instants(min(times), max(times), offsets, rows_max):
            mark = self._offsets_at(instant, segments)
            if marks:
                mark = {part: max(offset, marks[-1].get(part, 0)) for part, offset in mark.items()}
            marks.append(mark)
        return marks

    def _offsets_at(self, instant: datetime, segments: Sequence[Segment]) -> dict[TopicPartition, int]:
        """Ask for the first offset of each part at or after an instant, within its segments."""
        instant_ms = int(instant.timestamp() * 1000)
        first_records = self._cluster.first_records({segment.source: instant_ms for segment in segments})
        offsets: dict[TopicPartition, int] = {}
        for segment in segments:
            part = segment.range.part
            source_offset = first_records[segment.source][0]
            offset = segment.range.end
            # Below 0: the log has no record so late.
            if source_offset >= 0:
                offset = min(source_offset - segment.shift, segment.range.end)
                if offset < segment.range.start:
                    # The offset is in another segment of the part.
                    continue
            offsets[part] = max(offsets.get(part, 0), offset)
        return offsets

    def _edge_times(self, segments: Sequence[Segment]) -> list[datetime]:
        """Return the broker's times of the first and the last record of each segment that has one."""
        edge_times: list[datetime] = []
        reading = self._reading(ColumnChoice())
        with reading.address.open() as cluster:
            for segment in segments:
                start, end = segment.source_span
                for offset in {start, end - 1}:
                    for batch in reading.fetch(cluster, segment.source, (offset, offset + 1)):
                        times = batch.column("timestamp").drop_null().to_pylist()
                        edge_times += [time for time in times if time > _EPOCH]
        return edge_times

    def _confirm(self, segments: Sequence[Segment], without_records: Sequence[MissingOffsets]) -> None:
        """Ask once more for the offsets that gave no record. In a mirror each shifts what comes after it."""
        if self._mirror_segments is not None:
            confirm_every_record(without_records)
            return
        earliest = self._cluster.earliest({segment.source for segment in segments})
        removed = [segment for segment in segments if earliest[segment.source] > segment.range.start]
        if without_records and removed:
            raise SourceFailed(
                f"retention took offsets of {source_name(removed[0].source)} while they were read. Nothing of the "
                "chunk was committed; the next look sees what is left."
            )
        try:
            check_answers(
                next_records(self._kafka.address, self._kafka.request_timeout, choose_questions(without_records))
            )
        except RecordsMissed as error:
            raise SourceFailed(str(error)) from error


def _clip_segments(segments: Sequence[Segment], ranges: Sequence[OffsetRange]) -> list[Segment]:
    """Return what segments have of ranges, range by range."""
    clips: list[Segment | None] = []
    for r in ranges:
        clips += [segment.clip(r.span) for segment in segments if segment.range.part == r.part]
    return [clip for clip in clips if clip is not None]


def _rename_part(batch: pa.RecordBatch, segment: Segment) -> pa.RecordBatch:
    """Give records the topic, partition and offsets that they have in the gap."""
    part = segment.range.part
    if segment.shift == 0 and segment.source == part.source:
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["topic"] = pa.repeat(part.topic, batch.num_rows)
    columns["partition"] = pa.repeat(pa.scalar(part.partition, pa.int32()), batch.num_rows)
    columns["offset"] = pc.subtract(columns["offset"], segment.shift)
    return pa.RecordBatch.from_pydict(columns)
