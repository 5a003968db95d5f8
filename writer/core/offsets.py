"""Value types for offsets: a topic partition with its incarnation, ranges of offsets, the mark of a log."""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

# Parts of a mark's fingerprint.
_SHAPE_BITS = 31
_CONTENT_BITS = 32


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of one incarnation of a topic: what a frontier belongs to."""

    topic: str
    incarnation: int
    partition: int

    @property
    def name(self) -> str:
        """Name it for a person, without its incarnation: clicks/0."""
        return source_name((self.topic, self.partition))

    @property
    def full_name(self) -> str:
        """Name it with its incarnation, if that is not the first: clicks@2/0."""
        if self.incarnation == 1:
            return self.name
        return f"{self.topic}@{self.incarnation}/{self.partition}"


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of a topic partition."""

    part: TopicPartition
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"{self.part}: a range needs 0 <= start <= end, got [{self.start}, {self.end})")

    @property
    def name(self) -> str:
        """Name it for a person: clicks/0 [5, 9), clicks@2/0 [5, 9)."""
        return f"{self.part.full_name} [{self.start:,}, {self.end:,})"

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        return {**vars(self.part), "start": self.start, "end": self.end}


# Topic and partition.
Source = tuple[str, int]

# Offsets [start, end), one record at each.
Span = tuple[int, int]


def source_name(source: Source) -> str:
    """Name a partition of a topic for a person: clicks/0."""
    topic, partition = source
    return f"{topic}/{partition}"


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order; those that touch or overlap become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract_spans(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of spans without the offsets of `removed`, in order."""
    remaining: list[Span] = []
    removed_spans = merge_spans(removed)
    for first, end in merge_spans(spans):
        start = first
        for removed_start, removed_end in removed_spans:
            if removed_end <= start or removed_start >= end:
                continue
            if removed_start > start:
                remaining.append((start, removed_start))
            start = max(start, removed_end)
        if start < end:
            remaining.append((start, end))
    return remaining


class LogMark(NamedTuple):
    """What a log is known by: the batch that holds the last record before an offset.

    The epoch of the leader that appended it does not do alone: a volume that was restored repeats its epochs.
    The upper 31 bits of the fingerprint are of what compaction keeps of a batch, its shape: first and last offset,
    producer, first sequence number. The lower 32 bits are of the newest timestamp and the checksum of its records.
    """

    leader_epoch: int
    fingerprint: int
    # Compaction took records out of it, or wrote it anew: its checksum says nothing.
    is_compacted: bool = False
    # Its checksum does not fit: it may be the batch of an earlier mark, but it is no evidence of another batch.
    is_damaged: bool = False

    def contradicts(self, earlier: "LogMark") -> bool:
        """Return whether this batch shows that the log is not the one of an earlier mark."""
        return not self.is_damaged and not self.continues(earlier)

    def continues(self, earlier: "LogMark") -> bool:
        """Return whether this batch, as the log has it now, is the one of an earlier mark."""
        if self.leader_epoch != earlier.leader_epoch or self.shape != earlier.shape:
            return False
        return self.is_compacted or earlier.is_compacted or self.fingerprint == earlier.fingerprint

    @property
    def shape(self) -> int:
        """The part of the fingerprint that compaction leaves as it is."""
        return self.fingerprint >> _CONTENT_BITS


def mark_of_header(
    *,
    leader_epoch: int,
    offsets: Span,
    producer: tuple[int, int, int],
    newest_ms: int,
    checksum: int,
    is_compacted: bool,
    is_damaged: bool,
) -> LogMark:
    """Make a mark of the header of a record batch.

    `offsets`: the first and the last; `producer`: id, epoch and first sequence number, -1 each where there is none.
    """
    shape = _bits(struct.pack(">qqqqq", *offsets, *producer), _SHAPE_BITS)
    content = _bits(struct.pack(">qq", newest_ms, checksum), _CONTENT_BITS)
    return LogMark(leader_epoch, shape << _CONTENT_BITS | content, is_compacted, is_damaged)


def _bits(data: bytes, count: int) -> int:
    """Return the first bits of the SHA-256 of some bytes."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> (64 - count)
