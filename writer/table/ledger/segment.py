"""A segment of the ledger: the outcome of every offset in a range of table versions. Segments add up. Pure.

A segment is read from entries of the log, or from the ledger that outlives them; segments that follow each other are
merged. Offsets are kept as the entries have them: ranges that do not chain stay apart, so that they can be named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from headrace.writer.batch.task_report import EXITS
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.ledger.gap_record import GapRecord, merge_gap_records

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class CommittedRange:
    """Offsets of one part that commits carried one after the other, and what became of them."""

    range: OffsetRange
    # Versions of the table that hold it.
    first: int
    last: int
    # As `task_report.outcomes` has them.
    outcomes: Mapping[str, int] = field(default_factory=dict)
    # Offsets without a record, as the log held none there.
    without_records: int = 0
    # Offsets without a record, for an unchecked reason.
    unexplained: int = 0
    # The offsets were skipped on purpose: a recorded gap.
    gap: bool = False
    # The version of the specs by which its records were read; 0: there were none.
    specs: int = 0

    @property
    def sound(self) -> bool:
        """Each offset gave a record, is known to hold none, or lies in a gap; each record has one outcome."""
        records_read = self.outcomes.get("read", 0)
        offsets_without_record = self.range.count if self.gap else self.without_records + self.unexplained
        has_one_outcome = records_read == sum(self.outcomes.get(name, 0) for name in EXITS)
        return has_one_outcome and self.range.count == records_read + offsets_without_record

    def is_continued_by(self, later: "CommittedRange") -> bool:
        """Return whether a later range of the part touches this one, and both are sound and of one kind."""
        return (
            self.gap == later.gap
            and self.specs == later.specs
            and self.range.end == later.range.start
            and self.sound
            and later.sound
        )

    def join(self, later: "CommittedRange") -> "CommittedRange":
        """Return this range and the one that continues it as one."""
        names = sorted(self.outcomes.keys() | later.outcomes.keys())
        return replace(
            self,
            range=replace(self.range, end=later.range.end),
            last=later.last,
            without_records=self.without_records + later.without_records,
            unexplained=self.unexplained + later.unexplained,
            outcomes={name: self.outcomes.get(name, 0) + later.outcomes.get(name, 0) for name in names},
        )


@dataclass(frozen=True)
class Removal:
    """Rows that another client or a command removed from the table; None: their number is unknown."""

    version: int
    operation: str
    rows: int | None


@dataclass(frozen=True)
class RewoundRange:
    """The frontier of a part returned from the end of a range to its start: what commits carried counts as taken."""

    range: OffsetRange
    version: int

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return _range_to_json(self)


@dataclass(frozen=True)
class CutRange:
    """Offsets whose rows are of records that Kafka lost when it cut the log of a part."""

    range: OffsetRange
    version: int
    # The number of the incarnation that goes on from the start of the range.
    successor: int
    # Exactly these offsets were lost; else some of them may be in Kafka still, and come again.
    is_proven: bool

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return _range_to_json(self)


def _range_to_json(fact: RewoundRange | CutRange) -> dict[str, Any]:
    """Write a range and its facts as JSON values, with the fields of its part in place of the part."""
    fields = dict(vars(fact))
    offset_range: OffsetRange = fields.pop("range")
    version = {"version": fields.pop("version")}
    return {**version, "start": offset_range.start, "end": offset_range.end, **fields, **vars(offset_range.part)}


@dataclass(frozen=True)
class Answer:
    """The decision about another client's changes. `accepted`: they stay; else they were undone."""

    version: int
    # Each as `LedgerSegment.violations` has it.
    changes: tuple[str, ...]
    accepted: bool


@dataclass(frozen=True)
class LedgerSegment:
    """Entries [first, last] of a table's log, both included, as an account of offsets."""

    first: int
    last: int
    # When the first and the last entry were logged.
    began: datetime | None = None
    ended: datetime | None = None
    # The number of starts.
    starts: int = 0
    # The first offset of each part that was new here.
    first_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    committed_ranges: tuple[CommittedRange, ...] = ()
    # What replays and reprocesses changed of the outcomes.
    moves: Mapping[TopicPartition, Mapping[str, int]] = field(default_factory=dict)
    removals: tuple[Removal, ...] = ()
    # What makes the account invalid, each as a phrase.
    violations: tuple[str, ...] = ()
    # Rows that the table had when it was taken over; None: it was not, here.
    adopted_rows: int | None = None
    # By their ids, as far as these entries tell of them.
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)
    rewound_ranges: tuple[RewoundRange, ...] = ()
    answers: tuple[Answer, ...] = ()
    # Records that specs left out, by spec and rule.
    filter_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cut_ranges: tuple[CutRange, ...] = ()

    @property
    def accepts(self) -> bool:
        """It ends with an entry that accepts what other clients did."""
        return bool(self.answers) and self.answers[-1].accepted and self.answers[-1].version == self.last


def merge_runs(segments: Iterable[LedgerSegment]) -> list[LedgerSegment]:
    """Merge the segments that follow each other. Where versions are missing between them, a new one begins.

    So it does after an acceptance: what follows is proven apart.
    """
    runs: list[list[LedgerSegment]] = []
    previous: LedgerSegment | None = None
    for segment in segments:
        if previous is not None and previous.last + 1 == segment.first and not previous.accepts:
            runs[-1].append(segment)
        else:
            runs.append([segment])
        previous = segment
    return [merge_segments(run) for run in runs]


def clear_before_adoption(segments: Sequence[LedgerSegment]) -> list[LedgerSegment]:
    """Return the segments with nothing in those before the table was taken over: another writer's are no account."""
    adoptions = [index for index, segment in enumerate(segments) if segment.adopted_rows is not None]
    adoption = max(adoptions, default=0)
    cleared = [
        LedgerSegment(segment.first, segment.last, segment.began, segment.ended) for segment in segments[:adoption]
    ]
    return [*cleared, *segments[adoption:]]


def merge_segments(segments: Sequence[LedgerSegment]) -> LedgerSegment:
    """Merge segments that follow each other."""
    segments = clear_before_adoption(segments)
    committed_ranges: list[CommittedRange] = []
    removals: list[Removal] = []
    violations: list[str] = []
    rewound_ranges: list[RewoundRange] = []
    answers: list[Answer] = []
    cut_ranges: list[CutRange] = []
    for segment in segments:
        committed_ranges += segment.committed_ranges
        removals += segment.removals
        violations += segment.violations
        rewound_ranges += segment.rewound_ranges
        answers += segment.answers
        cut_ranges += segment.cut_ranges
    adopted_rows = (segment.adopted_rows for segment in segments if segment.adopted_rows is not None)
    return LedgerSegment(
        first=segments[0].first,
        last=segments[-1].last,
        began=next((segment.began for segment in segments if segment.began), None),
        ended=next((segment.ended for segment in reversed(segments) if segment.ended), None),
        starts=sum(segment.starts for segment in segments),
        first_offsets=first_offsets(segments),
        committed_ranges=_join_ranges(committed_ranges),
        moves=sum_moves(segments),
        removals=tuple(removals),
        violations=tuple(violations),
        adopted_rows=next(adopted_rows, None),
        gap_records=merge_gap_records(segment.gap_records for segment in segments),
        rewound_ranges=tuple(rewound_ranges),
        answers=tuple(answers),
        filter_counts=sum_filter_counts(segments),
        cut_ranges=tuple(cut_ranges),
    )


def first_offsets(segments: Iterable[LedgerSegment]) -> dict[TopicPartition, int]:
    """Return the first offset of each part that was new in one of the segments."""
    offsets: dict[TopicPartition, int] = {}
    for segment in segments:
        for part, offset in segment.first_offsets.items():
            offsets.setdefault(part, offset)
    return offsets


def sum_moves(segments: Iterable[LedgerSegment]) -> dict[TopicPartition, dict[str, int]]:
    """Add up what replays and reprocesses changed of the outcomes, by part and outcome."""
    return _sum_counts(segment.moves for segment in segments)


def sum_filter_counts(segments: Iterable[LedgerSegment]) -> dict[str, dict[str, int]]:
    """Add up what specs left out, by spec and rule."""
    return _sum_counts(segment.filter_counts for segment in segments)


def _sum_counts(count_maps: Iterable[Mapping[_Key, Mapping[str, int]]]) -> dict[_Key, dict[str, int]]:
    sums: dict[_Key, dict[str, int]] = {}
    for count_map in count_maps:
        for key, counts in count_map.items():
            key_sums = sums.setdefault(key, {})
            for name, count in counts.items():
                key_sums[name] = key_sums.get(name, 0) + count
    return sums


def _join_ranges(committed_ranges: Iterable[CommittedRange]) -> tuple[CommittedRange, ...]:
    """Join what touches and is sound, part by part; all other ranges stay as they are.

    Of one part, [0, 5) and [5, 9) become [0, 9); [12, 14) after them stays apart.
    """
    joined_ranges: list[CommittedRange] = []
    # The index in `joined_ranges` of a part's last range.
    last_index: dict[TopicPartition, int] = {}
    for committed_range in committed_ranges:
        index = last_index.get(committed_range.range.part)
        if index is not None and joined_ranges[index].is_continued_by(committed_range):
            joined_ranges[index] = joined_ranges[index].join(committed_range)
        else:
            last_index[committed_range.range.part] = len(joined_ranges)
            joined_ranges.append(committed_range)
    return tuple(joined_ranges)
