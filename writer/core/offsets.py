"""Value types for offsets: a topic partition with its incarnation, ranges of offsets, the mark of a log."""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

_SHAPE_BITS, _CONTENT_BITS = 31, 32  # of a mark's fingerprint


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of one incarnation of a topic: what a frontier belongs to."""

    topic: str
    incarnation: int
    partition: int

    @property
    def name(self) -> str:
        """Name it for a person, without its incarnation: clicks/0."""
        return f"{self.topic}/{self.partition}"

    @property
    def full_name(self) -> str:
        """Name it with its incarnation, if that is not the first: clicks@2/0."""
        if self.incarnation == 1:
            return self.name
        return f"{self.topic}@{self.incarnation}/{self.partition}"


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of one part."""

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


Source = tuple[str, int]  # topic, partition

Span = tuple[int, int]  # offsets [start, end), one record at each


def joined(spans: Iterable[Span]) -> list[Span]:
    """Put spans in order, and those that touch or overlap into one."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """Return what is left of spans when others are taken out."""
    out: list[Span] = []
    gone = joined(taken)
    for first, last in joined(spans):
        start, end = first, last
        for a, b in gone:
            if b <= start or a >= end:
                continue
            if a > start:
                out.append((start, a))
            start = max(start, b)
        if start < end:
            out.append((start, end))
    return out


class LogMark(NamedTuple):
    """What a log is known by: the batch that holds the last record before an offset.

    The epoch of the leader that appended it does not do alone: a volume that was restored repeats its epochs.
    The upper 31 bits of the fingerprint are of what compaction keeps of a batch, its shape: first and last offset,
    producer, first sequence number. The lower 32 bits are of the newest timestamp and the checksum of its records.
    """

    leader_epoch: int
    fingerprint: int
    is_compacted: bool = False  # compaction took records out of it, or wrote it anew: its checksum says nothing
    is_damaged: bool = (
        False  # its checksum does not fit: it may be the batch that is known, but is evidence of no other
    )

    def contradicts(self, known: "LogMark") -> bool:
        """Return whether this batch shows that the log is not the one that is known from before."""
        return not self.is_damaged and not self.continues(known)

    def continues(self, known: "LogMark") -> bool:
        """Return whether this batch, as the log has it now, is the one that is known from before."""
        if self.leader_epoch != known.leader_epoch or self.shape != known.shape:
            return False
        return self.is_compacted or known.is_compacted or self.fingerprint == known.fingerprint

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
