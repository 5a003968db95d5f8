"""A gap record: the skipped offsets and the reason, which offsets were filled, how it ended. Pure.

A gap record is read from the entries of a table's log, or from the ledger that outlives them. Facts about one gap
record from several ranges of the history are merged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from headrace.writer.batch.task_report import EXITS, RAW, outcomes
from headrace.writer.core.offsets import OffsetRange, OffsetSet, Span, TopicPartition, count_offsets, merge_spans
from headrace.writer.core.units import from_iso, to_iso

Outcome = Literal["open", "done", "lost", "rewound"]


@dataclass(frozen=True)
class EventTimeHint:
    """The event times that the records of a range may have, margins included. `start` None: unknown."""

    start: datetime | None
    end: datetime


@dataclass(frozen=True)
class GapOpening:
    """The facts of the entry that skipped the offsets."""

    # The version of the table.
    version: int
    opened_at: datetime
    cause: str
    ranges: tuple[OffsetRange, ...]
    hints: tuple[EventTimeHint, ...]
    # The person or program that skipped them; empty: the writer itself.
    by: str
    reason: str
    # Topic → its id when they were skipped.
    topic_ids: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {
            "version": self.version,
            "at": to_iso(self.opened_at),
            "cause": self.cause,
            "by": self.by,
            "reason": self.reason,
            "topic_ids": dict(self.topic_ids),
            "ranges": [offset_range.to_json() for offset_range in self.ranges],
            "hints": [{"from": to_iso(hint.start), "until": to_iso(hint.end)} for hint in self.hints],
        }


@dataclass(frozen=True)
class GapEnd:
    """How a gap record ended."""

    # The version of the table.
    version: int
    how: Literal["done", "lost", "rewound"]
    ended_at: datetime | None
    by: str = ""
    reason: str = ""
    # Offsets that are not filled.
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return {
            "version": self.version,
            "how": self.how,
            "at": to_iso(self.ended_at),
            "by": self.by,
            "reason": self.reason,
            "left": self.left,
        }


@dataclass(frozen=True)
class BackfilledOffsets:
    """What backfills brought of one part. `offsets` counts each of them; more than `spans` hold were brought twice."""

    spans: tuple[Span, ...] = ()
    offsets: int = 0
    # Records that were read, and those by each of EXITS.
    outcomes: Mapping[str, int] = field(default_factory=dict)
    without_records: int = 0

    @property
    def sound(self) -> bool:
        """Each offset gave a record or is known to hold none, once; each record has one outcome."""
        records_read = self.outcomes.get("read", 0)
        return (
            self.offsets == count_offsets(self.spans)
            and self.offsets == records_read + self.without_records
            and records_read == sum(self.outcomes.get(name, 0) for name in EXITS)
        )

    def plus(self, other: "BackfilledOffsets") -> "BackfilledOffsets":
        """Add what another backfill brought."""
        names = (*outcomes(self.outcomes), *outcomes(other.outcomes))
        sums = {name: self.outcomes.get(name, 0) + other.outcomes.get(name, 0) for name in names}
        spans = tuple(merge_spans([*self.spans, *other.spans]))
        without_records = self.without_records + other.without_records
        return BackfilledOffsets(spans, self.offsets + other.offsets, sums, without_records)


@dataclass(frozen=True)
class GapRecord:
    """One gap, by a range of the table's history."""

    id: str
    # None: it was opened before this range of the history.
    opened: GapOpening | None = None
    backfilled: Mapping[TopicPartition, BackfilledOffsets] = field(default_factory=dict)
    # Rows that came by event time, without an offset.
    unplaced: int = 0
    files: int = 0
    # The number of fills and losses.
    changes: int = 0
    # Where records came from.
    sources: tuple[str, ...] = ()
    # Archive by event time → the last partition that was brought.
    through: Mapping[str, str] = field(default_factory=dict)
    # None: it did not end in this range of the history.
    ended: GapEnd | None = None

    @property
    def state(self) -> Outcome:
        """Whether its records are still to be brought or given up."""
        return self.ended.how if self.ended else "open"

    @property
    def skipped_ranges(self) -> tuple[OffsetRange, ...]:
        """The offsets that were skipped; none where it was opened before this range of the history."""
        return self.opened.ranges if self.opened else ()

    @property
    def offsets(self) -> int:
        """How many offsets were skipped."""
        return sum(offset_range.count for offset_range in self.skipped_ranges)

    @property
    def rows(self) -> int:
        """Rows that backfills brought."""
        return self.unplaced + sum(offsets.outcomes.get("rows", 0) for offsets in self.backfilled.values())

    @property
    def unfilled_offsets(self) -> OffsetSet:
        """The offsets that were skipped and are not filled."""
        filled_offsets = OffsetSet({part: backfilled.spans for part, backfilled in self.backfilled.items()})
        return OffsetSet.of(self.skipped_ranges) - filled_offsets


def parse_gap(version: int, facts: Mapping[str, Any]) -> GapRecord | None:
    """Return a log entry's facts about a gap record; None: the entry is not of a gap. `version`: of the entry."""
    match facts.get("kind"):
        case "gap":
            return GapRecord(facts["id"], _parse_opening(version, facts))
        case "fill":
            return _parse_fill(version, facts)
        case "lost":
            ended_at = from_iso(facts.get("at"))
            ended = GapEnd(version, "lost", ended_at, facts["by"], facts["reason"], facts["left"])
            return GapRecord(facts["gap"], changes=1, ended=ended)
    return None


def _parse_opening(version: int, facts: Mapping[str, Any]) -> GapOpening:
    ranges = map(OffsetRange.from_json, facts["ranges"])
    hints = (EventTimeHint(from_iso(hint["from"]), datetime.fromisoformat(hint["until"])) for hint in facts["hints"])
    return GapOpening(
        version,
        datetime.fromisoformat(facts["at"]),
        facts["cause"],
        tuple(ranges),
        tuple(hints),
        facts.get("by", ""),
        facts.get("reason", ""),
        dict(facts["topic_ids"]),
    )


def _parse_fill(version: int, facts: Mapping[str, Any]) -> GapRecord:
    backfilled: dict[TopicPartition, BackfilledOffsets] = {}
    for account in facts.get("ranges", ()):
        part = TopicPartition.from_dict(account)
        backfilled[part] = backfilled.get(part, BackfilledOffsets()).plus(_parse_backfilled_offsets(account))
    through = {}
    if facts.get("through"):
        through[facts["source"]] = facts["through"]
    ended = None
    if facts["done"]:
        ended = GapEnd(version, "done", from_iso(facts.get("at")), left=facts["left"])
    return GapRecord(
        facts["gap"],
        backfilled=backfilled,
        unplaced=facts.get("unplaced", 0),
        files=facts.get("files", 0),
        changes=1,
        sources=(facts["source"],),
        through=through,
        ended=ended,
    )


def gap_records_of_entry(version: int, facts: Mapping[str, Any]) -> dict[str, GapRecord]:
    """Return a log entry's facts about a gap record, by its id; empty: the entry is not of a gap."""
    gap_record = parse_gap(version, facts)
    return {gap_record.id: gap_record} if gap_record else {}


def gap_records_of_rewind(version: int, facts: Mapping[str, Any]) -> dict[str, GapRecord]:
    """Return a rewind's facts about gap records: those whose offsets it took back have ended."""
    gap_end = GapEnd(version, "rewound", from_iso(facts.get("at")))
    return {gap: GapRecord(gap, changes=1, ended=gap_end) for gap in facts["gaps"]}


def merge_gap_record(earlier: GapRecord, later: GapRecord) -> GapRecord:
    """Merge the facts of two ranges of the history about one gap record."""
    backfilled = dict(earlier.backfilled)
    for part, offsets in later.backfilled.items():
        backfilled[part] = backfilled.get(part, BackfilledOffsets()).plus(offsets)
    return replace(
        earlier,
        opened=earlier.opened or later.opened,
        backfilled=backfilled,
        unplaced=earlier.unplaced + later.unplaced,
        files=earlier.files + later.files,
        changes=earlier.changes + later.changes,
        sources=tuple(dict.fromkeys([*earlier.sources, *later.sources])),
        through={**earlier.through, **later.through},
        ended=later.ended or earlier.ended,
    )


def merge_gap_records(record_maps: Iterable[Mapping[str, GapRecord]]) -> dict[str, GapRecord]:
    """Merge the gap records of ranges of the history, by their ids, the oldest range first."""
    merged: dict[str, GapRecord] = {}
    for gap_records in record_maps:
        for gap, gap_record in gap_records.items():
            earlier = merged.get(gap)
            merged[gap] = gap_record if earlier is None else merge_gap_record(earlier, gap_record)
    return merged


def to_json(gap_record: GapRecord) -> dict[str, Any]:
    """Write a gap record as JSON values."""
    backfilled = [
        {
            **vars(part),
            "spans": [list(span) for span in offsets.spans],
            "offsets": offsets.offsets,
            "without_records": offsets.without_records,
            **offsets.outcomes,
        }
        for part, offsets in gap_record.backfilled.items()
    ]
    return {
        "id": gap_record.id,
        "unplaced": gap_record.unplaced,
        "files": gap_record.files,
        "changes": gap_record.changes,
        "sources": list(gap_record.sources),
        "through": dict(gap_record.through),
        "opened": gap_record.opened and gap_record.opened.to_json(),
        "carried": backfilled,
        "ended": gap_record.ended and gap_record.ended.to_json(),
    }


def from_json(document: Mapping[str, Any]) -> GapRecord:
    """Read what `to_json` wrote. Raises KeyError, TypeError, ValueError for anything else."""
    backfilled = {}
    for account in document["carried"]:
        counts = {name: account[name] for name in ("read", *EXITS, RAW) if name in account}
        backfilled[TopicPartition.from_dict(account)] = BackfilledOffsets(
            _parse_spans(account["spans"]), account["offsets"], counts, account["without_records"]
        )
    opened = document["opened"]
    ended = document["ended"]
    return GapRecord(
        document["id"],
        _parse_opening(opened["version"], opened) if opened else None,
        backfilled,
        document["unplaced"],
        document["files"],
        document["changes"],
        tuple(document["sources"]),
        dict(document["through"]),
        _parse_end(ended) if ended else None,
    )


def _parse_end(document: Mapping[str, Any]) -> GapEnd:
    fields = dict(document)
    return GapEnd(ended_at=from_iso(fields.pop("at")), **fields)


def _parse_backfilled_offsets(account: Mapping[str, Any]) -> BackfilledOffsets:
    """Return what an entry's account says of one part."""
    spans = _parse_spans(account["spans"])
    without_records = account.get("without_records", {}).get("offsets", 0)
    return BackfilledOffsets(tuple(merge_spans(spans)), count_offsets(spans), outcomes(account), without_records)


def _parse_spans(pairs: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    return tuple((int(start), int(end)) for start, end in pairs)
