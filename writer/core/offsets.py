"""Value types for offsets: a topic partition with its incarnation, ranges of offsets, files of a bucket."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of one part."""

    part: TopicPartition
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"{self.part}: a range needs 0 <= start <= end, got [{self.start}, {self.end})")

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
