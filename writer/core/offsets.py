"""Value types for offsets: a topic partition with its incarnation, ranges and sets of offsets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# Topic and partition.
Source = tuple[str, int]

# Offsets [start, end) of one partition, one record at each.
Span = tuple[int, int]


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of one incarnation of a topic: what a frontier belongs to."""

    topic: str
    incarnation: int
    partition: int

    @classmethod
    def from_dict(cls, account: Mapping[str, Any]) -> "TopicPartition":
        """Return the part that JSON values name, among others. Raises KeyError."""
        return cls(account["topic"], account["incarnation"], account["partition"])

    @property
    def source(self) -> Source:
        """Its topic and partition, as Kafka names it."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """Name it for a person, without its incarnation: clicks/0."""
        return source_name(self.source)

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

    @classmethod
    def from_json(cls, account: Mapping[str, Any]) -> "OffsetRange":
        """Return the range that JSON values name, among others. Raises KeyError, ValueError."""
        return cls(TopicPartition.from_dict(account), account["start"], account["end"])

    @property
    def name(self) -> str:
        """Name it for a person: clicks/0 [5, 9), clicks@2/0 [5, 9)."""
        return f"{self.part.full_name} [{self.start:,}, {self.end:,})"

    @property
    def span(self) -> Span:
        """Its offsets, without their part."""
        return self.start, self.end

    @property
    def count(self) -> int:
        """How many offsets it holds."""
        return self.end - self.start

    def has_offset(self, offset: int) -> bool:
        """Return whether an offset of its part lies in it."""
        return self.start <= offset < self.end

    def clip(self, span: Span) -> "OffsetRange":
        """Return what of it lies within a span; an empty range where nothing does."""
        start = max(self.start, span[0])
        return OffsetRange(self.part, start, max(start, min(self.end, span[1])))

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {**vars(self.part), "start": self.start, "end": self.end}


def source_name(source: Source) -> str:
    """Name a partition of a topic for a person: clicks/0."""
    topic, partition = source
    return f"{topic}/{partition}"


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order; those that touch or overlap become one, empty ones are left out."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def subtract_spans(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of spans without the offsets of `removed`, in order.

    Of [0, 5) and [8, 12) without [3, 9) are left [0, 3) and [9, 12).
    """
    remaining: list[Span] = []
    removed_spans = merge_spans(removed)
    index = 0
    for first, end in merge_spans(spans):
        start = first
        while index < len(removed_spans) and removed_spans[index][0] < end:
            removed_start, removed_end = removed_spans[index]
            if start < removed_start:
                remaining.append((start, removed_start))
            start = max(start, removed_end)
            if removed_end > end:
                # The next span may begin in it.
                break
            index += 1
        if start < end:
            remaining.append((start, end))
    return remaining


def count_offsets(spans: Iterable[Span]) -> int:
    """Count the offsets of spans; those that overlap count each."""
    return sum(end - start for start, end in spans)


def cut_ranges(ranges: Iterable[OffsetRange], size: int) -> list[list[OffsetRange]]:
    """Cut ranges into groups of `size` offsets, in their order; the last one may have fewer. Empty ones are left out.

    With the size 10, the ranges [0, 4) and [8, 20) of a part become the groups [0, 4) with [8, 14), and [14, 20).
    """
    groups: list[list[OffsetRange]] = []
    room = 0
    for offset_range in ranges:
        start = offset_range.start
        while start < offset_range.end:
            if not room:
                groups.append([])
                room = size
            end = min(offset_range.end, start + room)
            groups[-1].append(OffsetRange(offset_range.part, start, end))
            room -= end - start
            start = end
    return groups


class OffsetSet(Mapping[TopicPartition, Sequence[Span]]):
    """A set of offsets, by part: its spans in order, which neither touch nor overlap. It never changes.

    A part without offsets is not in it. Parts stand in the order in which they came.
    """

    def __init__(self, spans: Mapping[TopicPartition, Iterable[Span]] = MappingProxyType({})) -> None:
        merged = {part: tuple(merge_spans(part_spans)) for part, part_spans in spans.items()}
        self._spans = {part: part_spans for part, part_spans in merged.items() if part_spans}

    @classmethod
    def of(cls, ranges: Iterable[OffsetRange]) -> "OffsetSet":
        """Return the offsets of ranges."""
        spans: dict[TopicPartition, list[Span]] = {}
        for offset_range in ranges:
            spans.setdefault(offset_range.part, []).append(offset_range.span)
        return cls(spans)

    @classmethod
    def union(cls, sets: "Iterable[OffsetSet]") -> "OffsetSet":
        """Return the offsets that one of the sets has."""
        spans: dict[TopicPartition, list[Span]] = {}
        for offsets in sets:
            for part, part_spans in offsets.items():
                spans.setdefault(part, []).extend(part_spans)
        return cls(spans)

    @classmethod
    def from_json(cls, document: Iterable[Sequence[Any]]) -> "OffsetSet":
        """Read what `to_json` wrote. Raises TypeError, ValueError."""
        return cls(
            {
                TopicPartition(topic, incarnation, partition): [(start, end) for start, end in spans]
                for topic, incarnation, partition, spans in document
            }
        )

    def to_json(self) -> list[list[Any]]:
        """Return it as JSON values, part by part: [["clicks", 1, 0, [[5, 9], [12, 13]]]]."""
        return [
            [part.topic, part.incarnation, part.partition, [list(span) for span in spans]]
            for part, spans in self._spans.items()
        ]

    @property
    def count(self) -> int:
        """How many offsets there are."""
        return sum(count_offsets(spans) for spans in self._spans.values())

    def ranges(self) -> list[OffsetRange]:
        """Return the fewest ranges that hold the offsets, part by part, each part's in order."""
        ranges: list[OffsetRange] = []
        for part, spans in self._spans.items():
            ranges += [OffsetRange(part, start, end) for start, end in spans]
        return ranges

    def __or__(self, other: "OffsetSet") -> "OffsetSet":
        """Return the offsets that either has."""
        # Only the parts of the other are merged: many small sets are added to a large one.
        common = {part: tuple(merge_spans([*self.get(part, ()), *spans])) for part, spans in other.items()}
        union = OffsetSet()
        union._spans = {**self._spans, **common}
        return union

    def __sub__(self, other: "OffsetSet") -> "OffsetSet":
        """Return the offsets that the other has not."""
        return OffsetSet({part: subtract_spans(spans, other.get(part, ())) for part, spans in self._spans.items()})

    def __and__(self, other: "OffsetSet") -> "OffsetSet":
        """Return the offsets that both have."""
        return self - (self - other)

    def __getitem__(self, part: TopicPartition) -> Sequence[Span]:
        return self._spans[part]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __repr__(self) -> str:
        return f"OffsetSet({self._spans})"
