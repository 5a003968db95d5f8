"""Reads ranges of partitions to their ends, from whichever brokers lead them, and accounts for each offset."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from headrace.writer.core.backoff import Backoff
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.kafka_reader import record_batches
from headrace.writer.kafka_reader.cluster import Cluster
from headrace.writer.kafka_reader.columns import ColumnChoice, columns
from headrace.writer.kafka_reader.errors import (
    AccessDenied,
    Corrupt,
    LogDiverged,
    LostRecords,
    ReadFailed,
    TopicGone,
    Unavailable,
    damaged_batch,
)
from headrace.writer.kafka_reader.protocol import ErrorCode, error_name
from headrace.writer.kafka_reader.record_batches import Batch, EmptyRun, MissingReason
from headrace.writer.kafka_reader.record_buffer import BATCH_BYTES_MAX, RecordBuffer
from headrace.writer.kafka_reader.requests.fetch import PartitionAnswer, PartitionQuestion
from headrace.writer.kafka_reader.requests.metadata import is_gone

_NO_RIGHTS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_RETRIES = Backoff(first_s=0.05, max_s=2.0, jitter=0.2)
# Between two questions who leads, while other partitions are read.
_LEADERS_INTERVAL_S = 0.1
# Asked for at least, of a partition.
_PARTITION_BYTES_MIN = 64 * 1024
_PARTITIONS_OF_REQUEST_MAX = 1000
# Until an answer has shown it.
_BYTES_PER_OFFSET_GUESS = 256
# So much more is asked for than is expected.
_MARGIN = 1.25


@dataclass(frozen=True)
class ReadLimits:
    """How much is asked for and held at once, and for how long a silent cluster is waited for.

    `fetch_bytes`: of one answer. `fetch_wait_ms`: for which a broker may hold an answer back while it has no records.
    `rows`: of an Arrow batch, which may be larger by one record batch. `buffer_bytes`: of the records of an Arrow
    batch; likewise. `record_batch_bytes_max`: of one record batch, decompressed. `retry_timeout_s`: without any range
    having moved.
    """

    fetch_bytes: int = 8 * 2**20
    fetch_wait_ms: int = 500
    rows: int = 25_000
    buffer_bytes: int = 16 * 2**20
    record_batch_bytes_max: int = BATCH_BYTES_MAX
    retry_timeout_s: float = 60

    def __post_init__(self) -> None:
        if min(vars(self).values()) <= 0:
            raise ValueError(f"limits of a reader must be positive, got {self}")


@dataclass
class RangeEvidence:
    """What became of each offset of a range: a record that was handed over, or a reason why it has none.

    `by_topic_id`: all records were asked for by the topic's id, so they are of this incarnation. `before`: the mark of
    the batch that holds the offset before the range, where it was asked for. `last`: the mark of the batch that holds
    the last offset of the range; None: no batch does.
    """

    range: OffsetRange
    by_topic_id: bool = True
    records: int = 0
    missing: dict[MissingReason, int] = field(default_factory=lambda: dict.fromkeys(MissingReason, 0))
    before: LogMark | None = None
    last: LogMark | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all offsets of the range are accounted for."""
        return self.records + sum(self.missing.values()) == self.range.count


class _Position:
    """How far a range has been read."""

    def __init__(self, offset_range: OffsetRange, *, asks_before: bool) -> None:
        self.range = offset_range
        self.offset = offset_range.start
        # Whether the batch before the range is still to be looked at.
        self.asks_before = asks_before and offset_range.start > 0
        # Of the leader that appended what was read last; -1: nothing was read.
        self.last_epoch = -1
        self.source: Source = offset_range.part.source
        self.evidence = RangeEvidence(offset_range)
        # The broker that the leader named to be asked instead of itself.
        self.replica: int | None = None
        # Bytes of the next record batch, where an answer did not hold all of it.
        self.next_batch_bytes = 0
        # The last one, since records came.
        self.failure: ReadFailed | None = None

    @property
    def remaining(self) -> int:
        """How many offsets of the range are still to be read."""
        return self.range.end - self.offset

    @property
    def is_pending(self) -> bool:
        """Whether a broker is still to be asked for it."""
        return self.remaining > 0 or self.asks_before

    @property
    def state(self) -> tuple[int, int | None, int, bool]:
        """What the next question depends on: another one may be asked at once."""
        return self.offset, self.replica, self.next_batch_bytes, self.asks_before

    @property
    def offset_to_ask(self) -> int:
        """From which offset records are asked for."""
        return self.offset - int(self.asks_before)

    @property
    def location(self) -> tuple[str, int, int]:
        """Topic, partition and offset, for an error."""
        return (*self.source, self.offset)

    def __str__(self) -> str:
        return f"{self.range.part.name} at offset {self.offset} of [{self.range.start}, {self.range.end})"


class RangeReader:
    """Reads each range once, in order of offsets within a range. Iterate over it once, then look at the evidence.

    A request asks a broker for as many partitions as fit into one answer. A partition that moves to another broker is
    followed, and whatever else may pass is tried again, until nothing has come for `retry_timeout_s`.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[OffsetRange],
        choice: ColumnChoice | None = None,
        *,
        topic_ids: Mapping[str, UUID] | None = None,
        limits: ReadLimits | None = None,
        rack: str = "",
        with_before: bool = False,
        committed: bool = True,
    ) -> None:
        """`topic_ids`: of the incarnations that the ranges are of. Without them, of those that are there now.

        `rack`: where this task runs, so that a replica near to it may be read. `with_before`: the evidence names the
        batch before each range, too. `committed`: of transactions, only what is committed is read. Raises ValueError
        for two ranges of one partition.
        """
        self._cluster = cluster
        self._choice = choice or ColumnChoice()
        self._limits = limits or ReadLimits()
        self._committed = committed
        self._positions = [_Position(offset_range, asks_before=with_before) for offset_range in ranges]
        self._evidence = {position.source: position.evidence for position in self._positions}
        if len(self._evidence) < len(self._positions):
            raise ValueError("a reader takes one range of each partition")
        self._topic_ids = dict(topic_ids or {})
        self._rack = rack
        self._buffer = RecordBuffer(self._limits.record_batch_bytes_max)
        # Leaders are to be asked for again, but not before a time.
        self._is_stale = False
        self._ask_from_s = 0.0
        self._silent_since_s = time.monotonic()
        self._retries = 0
        self._is_throttled = False
        # Bytes that answers had, and the offsets that they were of.
        self._answer_bytes = _BYTES_PER_OFFSET_GUESS
        self._answer_offsets = 1

    @property
    def evidence(self) -> list[RangeEvidence]:
        """What became of the offsets of each range, in the order of the ranges. Complete once all rows are read."""
        return [position.evidence for position in self._positions]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises ReadFailed: LostRecords, TopicGone, Corrupt, Unavailable and the others."""
        self._silent_since_s = time.monotonic()
        while pending := [position for position in self._positions if position.is_pending]:
            self._is_throttled = False
            states = [position.state for position in pending]
            self._learn_leaders(pending)
            for node, positions in self._group_by_broker(pending).items():
                for position, answer in self._fetch(node, positions):
                    yield from self._take_answer(node, position, answer)
            new_states = [position.state for position in pending]
            if [offset for offset, *_ in new_states] != [offset for offset, *_ in states]:
                self._silent_since_s = time.monotonic()
                self._retries = 0
            else:
                self._pause(pending, asks_differently=new_states != states)
        if self._buffer.count:
            yield self._flush()
        assert all(evidence.is_complete for evidence in self.evidence), self.evidence

    def _learn_leaders(self, pending: Sequence[_Position]) -> None:
        """Ask who leads, where that is not known or may have changed. Raises AccessDenied, UnsupportedBroker."""
        cluster = self._cluster
        is_stale = self._is_stale or any(cluster.leader(position.source) is None for position in pending)
        if is_stale and time.monotonic() >= self._ask_from_s:
            self._ask_from_s = time.monotonic() + _LEADERS_INTERVAL_S
            try:
                cluster.ask_leaders({position.source[0] for position in pending})
            except Unavailable as error:
                for position in pending:
                    position.failure = error
            else:
                self._is_stale = False
        for position in pending:
            topic = position.source[0]
            if topic in cluster.metadata.errors:
                self._record_failure(position, cluster.metadata.errors[topic])
            elif topic in cluster.metadata.topic_ids:
                self._topic_ids.setdefault(topic, cluster.metadata.topic_ids[topic])

    def _group_by_broker(self, pending: Sequence[_Position]) -> dict[int, list[_Position]]:
        """Sort ranges by the broker to ask; those without one are left out, and leaders are asked for again."""
        groups = dict[int, list[_Position]]()
        metadata = self._cluster.metadata
        for position in pending:
            topic = position.source[0]
            leader = self._cluster.leader(position.source)
            if leader is None or topic in metadata.errors:
                self._is_stale = True
                position.failure = position.failure or Unavailable(f"{position}: it has no leader", *position.location)
            elif topic in metadata.topic_ids and self._topic_ids[topic] != metadata.topic_ids[topic]:
                self._record_failure(position, ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                node = leader.node if position.replica is None else position.replica
                groups.setdefault(node, []).append(position)
        return groups

    def _fetch(self, node: int, positions: Sequence[_Position]) -> Iterator[tuple[_Position, PartitionAnswer]]:
        """Ask a broker for records of some of these ranges. Raises UnsupportedBroker, AccessDenied, Corrupt."""
        requests = _choose_requests(positions, self._answer_bytes / self._answer_offsets, self._limits.fetch_bytes)
        limits = self._limits
        questions = [
            PartitionQuestion(
                *position.source, self._epoch(position), position.offset_to_ask, bytes_max, position.last_epoch
            )
            for position, bytes_max in requests
        ]
        self._silent_since_s += self._cluster.pause(node)
        try:
            fetch_answer = self._cluster.fetch(
                node,
                questions,
                self._topic_ids,
                wait_ms=limits.fetch_wait_ms,
                bytes_max=limits.fetch_bytes,
                rack=self._rack,
                committed=self._committed,
            )
        except OSError as error:
            self._is_stale = True
            for position, _ in requests:
                position.failure = Unavailable(f"{position}: no answer of broker {node} ({error})", *position.location)
                self._leave_replica(position)
            return
        self._is_throttled |= fetch_answer.throttled_ms > 0
        for position, _ in requests:
            answer = fetch_answer.partitions.get(position.source)
            if fetch_answer.error:
                self._record_failure(position, fetch_answer.error)
            elif answer is not None:
                position.evidence.by_topic_id &= fetch_answer.by_id
                yield position, answer

    def _take_answer(self, node: int, position: _Position, answer: PartitionAnswer) -> Iterator[pa.RecordBatch]:
        """Take what an answer has of a range. Yields rows when enough have come.

        Raises LostRecords, LogDiverged, Corrupt.
        """
        if answer.error:
            self._handle_error(node, position, answer)
            return
        if answer.diverges_at is not None:
            raise LogDiverged(
                f"{position}: the log was cut at offset {answer.diverges_at}, and what was read from there on is no "
                "longer in it.",
                *position.location,
            )
        if answer.preferred_replica >= 0:
            position.replica = answer.preferred_replica
        if position.asks_before and record_batches.whole_batch_bytes(answer.records):
            mark = record_batches.mark_at(answer.records, position.source, position.offset - 1)
            position.evidence.before = mark
            position.asks_before = False
            if mark is not None and mark.is_damaged:
                # What is in it was read before it was damaged. Where the range begins, the broker's index says.
                return
        start = position.offset
        for item in record_batches.cut_batches(answer, position.source, position.offset, position.range.end):
            _check_begin(position, item)
            after = min(item.after, position.range.end)
            if isinstance(item, EmptyRun):
                position.evidence.missing[item.reason] += after - position.offset
            else:
                self._buffer.add(item, position.range)
            position.offset = after
            position.last_epoch = max(position.last_epoch, item.leader_epoch)
            if self._buffer.count >= self._limits.rows or self._buffer.size >= self._limits.buffer_bytes:
                yield self._flush()
        if position.offset > start:
            position.failure = None
            position.next_batch_bytes = 0
            if not position.remaining:
                position.evidence.last = record_batches.mark_at(answer.records, position.source, position.range.end - 1)
            self._answer_bytes += len(answer.records)
            self._answer_offsets += position.offset - start
        else:
            position.next_batch_bytes = record_batches.incomplete_bytes(answer)
            # A replica may be behind.
            if position.replica == node:
                position.replica = None

    def _flush(self) -> pa.RecordBatch:
        """Empty the buffer into columns, and account for its records. Raises Corrupt."""
        rows, counts = columns(self._buffer, self._choice)
        for item, count in zip(self._buffer.batches, counts.tolist(), strict=True):
            evidence = self._evidence[item.source]
            evidence.records += count
            offsets = min(item.batch.after, item.range.end) - max(item.batch.base, item.range.start)
            evidence.missing[MissingReason.COMPACTED] += offsets - count
        self._buffer.clear()
        return rows

    def _handle_error(self, node: int, position: _Position, answer: PartitionAnswer) -> None:
        """Act on a broker's error about a partition. Raises LostRecords, AccessDenied."""
        if position.replica == node:
            self._leave_replica(position)
        elif answer.error == ErrorCode.OFFSET_OUT_OF_RANGE and position.asks_before:
            # Retention may have taken the record before the range, and no other.
            position.asks_before = False
            return
        elif answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            begin = f" and begins at {answer.log_start}" if answer.log_start > position.offset else ""
            raise LostRecords(
                f"{position}: the log does not hold it{begin}. Retention or a deletion took the records, or the log "
                "was truncated.",
                *position.location,
            )
        self._record_failure(position, answer.error)

    def _record_failure(self, position: _Position, error: int) -> None:
        """Remember a failure that may pass. Raises AccessDenied for one that does not."""
        topic = position.source[0]
        name = error_name(error)
        if error in _NO_RIGHTS:
            raise AccessDenied(
                f"{position}: {name}: give the user of kafka.security READ on topic {topic}", *position.location
            )
        self._is_stale = True
        if is_gone(error):
            position.failure = TopicGone(
                f"{position}: {name}: the topic, or the incarnation of it that the range is of, does not exist; it was "
                "deleted, or created again",
                *position.location,
            )
        else:
            kind = Corrupt if error == ErrorCode.CORRUPT_MESSAGE else Unavailable
            position.failure = kind(f"{position}: the broker says {name}", *position.location)

    def _leave_replica(self, position: _Position) -> None:
        """Go back to the leader, which names no replica to readers without a rack."""
        if position.replica is not None:
            position.replica = None
            self._rack = ""

    def _epoch(self, position: _Position) -> int:
        leader = self._cluster.leader(position.source)
        return -1 if leader is None else leader.epoch

    def _pause(self, pending: Sequence[_Position], *, asks_differently: bool) -> None:
        """Wait before the same is tried again. Raises the last failure when nothing has come for too long."""
        silent_s = time.monotonic() - self._silent_since_s
        if silent_s > self._limits.retry_timeout_s:
            for position in pending:
                if position.failure is not None:
                    raise position.failure
            raise Unavailable(f"{pending[0]}: brokers gave nothing for {silent_s:.0f} s", *pending[0].location)
        if not asks_differently and not self._is_throttled:
            time.sleep(_RETRIES.random_delay_s(self._retries))
            self._retries += 1


def _check_begin(position: _Position, item: Batch | EmptyRun) -> None:
    """Raise Corrupt where offsets are missing behind a damaged batch, which may hold them."""
    before = position.evidence.before
    is_first = position.offset == position.range.start
    lacks_batch = isinstance(item, EmptyRun) and item.leader_epoch < 0
    if is_first and lacks_batch and before is not None and before.is_damaged:
        reason = "the checksum of the record batch before it does not fit, and no other batch begins here"
        raise damaged_batch(position.source, position.offset, reason)


def _choose_requests(
    positions: Sequence[_Position], bytes_per_offset: float, fetch_bytes: int
) -> list[tuple[_Position, int]]:
    """Choose the ranges that one request asks for, and how many bytes of each.

    So many that they are expected to fill two answers: a few of a dense topic, all of a sparse one. First is a range
    whose next record batch was larger than what was asked for: only the first one's is given whole in any case.
    """
    requests = list[tuple[_Position, int]]()
    expected_bytes = 0.0
    for position in sorted(positions, key=lambda position: position.next_batch_bytes == 0):
        position_bytes = position.remaining * bytes_per_offset * _MARGIN
        bytes_max = max(_PARTITION_BYTES_MIN, min(int(position_bytes), fetch_bytes), position.next_batch_bytes)
        requests.append((position, bytes_max))
        expected_bytes += position_bytes
        if expected_bytes >= 2 * fetch_bytes or len(requests) == _PARTITIONS_OF_REQUEST_MAX:
            break
    return requests
