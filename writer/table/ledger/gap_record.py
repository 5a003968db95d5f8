"""A gap record: the skipped offsets and the reason, which offsets were filled, how it ended. Pure.

A gap record is drawn from the entries of a table's log, or from the ledger that outlives them; what two stretches of
the history say of one gap record is put together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from writer.batch.task_report import EXITS, RAW, outcomes
from writer.core.offsets import OffsetRange, Span, TopicPartition, joined, without
from writer.core.units import from_iso, to_iso

Outcome = Literal["open", "done", "lost", "rewound"]


@dataclass(frozen=True)
class EventTimeHint:
    """The event times that the records of a range may have, margins included. `start` None: unknown."""

    start: datetime | None
    end: datetime


@dataclass(frozen=True)
class GapOpening:
    """The facts of the entry that skipped the offsets."""

    version: int
    at: datetime
    cause: str
    ranges: tuple[OffsetRange, ...]
    hints: tuple[EventTimeHint, ...]
    by: str  # empty: the writer itself
    reason: str
    topic_ids: Mapping[str, str]  # topic → its id when they were skipped


@dataclass(frozen=True)
class GapEnd:
    """How a gap record ended."""

    version: int
    how: Literal["done", "lost", "rewound"]
    at: datetime | None
    by: str = ""
    reason: str = ""
    left: int = 0  # offsets that are not filled


@dataclass(frozen=True)
class BackfilledOffsets:
    """What backfills brought of one part. `offsets` counts each of them; more than `spans` hold were brought twice."""

    spans: tuple[Span, ...] = ()
    offsets: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)  # read, and EXITS
    without_records: int = 0

    @property
    def sound(self) -> bool:
        """Each offset gave a record or is known to hold none, once; each record has one outcome."""
        read = self.outcomes.get("read", 0)
        once = self.offsets == sum(end - start for start, end in self.spans)
        return (
            once
            and self.offsets == read + self.without_records
            and read == sum(self.outcomes.get(name, 0) for name in EXITS)
        )

    def plus(self, other: "BackfilledOffsets") -> "BackfilledOffsets":
        """Add what another backfill brought."""
        names = (*outcomes(self.outcomes), *outcomes(other.outcomes))
        sums = {name: self.outcomes.get(name, 0) + other.outcomes.get(name, 0) for name in names}
        spans = tuple(joined([*self.spans, *other.spans]))
        return BackfilledOffsets(
            spans, self.offsets + other.offsets, sums, self.without_records + other.without_records
        )


@dataclass(frozen=True)
class GapRecord:
    """One gap, by a range of the table's history."""

    id: str
    opened: GapOpening | None = None  # None: before this stretch
    carried: Mapping[TopicPartition, BackfilledOffsets] = field(default_factory=dict)
    unplaced: int = 0  # rows that came by event time, without an offset
    files: int = 0
    changes: int = 0  # fills and losses
    sources: tuple[str, ...] = ()  # where records came from
    through: Mapping[str, str] = field(default_factory=dict)  # archive by event time → last partition that was brought
    ended: GapEnd | None = None

    @property
    def state(self) -> Outcome:
        """Whether its records are still to be brought or given up."""
        return self.ended.how if self.ended else "open"

    @property
    def offsets(self) -> int:
        """How many offsets were skipped."""
        return sum(r.end - r.start for r in self.opened.ranges) if self.opened else 0

    @property
    def rows(self) -> int:
        """Rows that backfills brought."""
        return self.unplaced + sum(one.outcomes.get("rows", 0) for one in self.carried.values())

    def left(self) -> list[OffsetRange]:
        """Return the offsets that are not filled, in order."""
        found = []
        for r in self.opened.ranges if self.opened else ():
            known = self.carried.get(r.part, BackfilledOffsets())
            found += [OffsetRange(r.part, start, end) for start, end in without([(r.start, r.end)], known.spans)]
        return found


def oldest(gap_records: Iterable[GapRecord]) -> datetime | None:
    """Return when the oldest open one was opened; None: none is open."""
    return min((one.opened.at for one in gap_records if one.state == "open" and one.opened), default=None)


def parse_gap(version: int, about: Mapping[str, Any]) -> GapRecord | None:
    """Return a log entry's facts about a gap record; None: the entry is not of a gap."""
    match about.get("kind"):
        case "gap":
            ranges = tuple(OffsetRange(part_of(r), r["start"], r["end"]) for r in about["ranges"])
            hints = tuple(
                EventTimeHint(from_iso(hint["from"]), datetime.fromisoformat(hint["until"])) for hint in about["hints"]
            )
            opened = GapOpening(
                version, datetime.fromisoformat(about["at"]), about["cause"], ranges, hints, about.get("by", ""),
                about.get("reason", ""), dict(about["topic_ids"]),
            )  # fmt: skip
            return GapRecord(about["id"], opened)
        case "fill":
            carried: dict[TopicPartition, BackfilledOffsets] = {}
            for r in about.get("ranges", ()):
                carried[part_of(r)] = carried.get(part_of(r), BackfilledOffsets()).plus(_carried(r))
            through = {about["source"]: about["through"]} if about.get("through") else {}
            ended = GapEnd(version, "done", from_iso(about.get("at")), left=about["left"]) if about["done"] else None
            return GapRecord(
                about["gap"], None, carried, about.get("unplaced", 0), about.get("files", 0), 1, (about["source"],),
                through, ended,
            )  # fmt: skip
        case "lost":
            ended = GapEnd(version, "lost", from_iso(about.get("at")), about["by"], about["reason"], about["left"])
            return GapRecord(about["gap"], changes=1, ended=ended)
    return None


def records_of(version: int, about: Mapping[str, Any]) -> dict[str, GapRecord]:
    """Return a log entry's facts about a gap record, by its id; empty: the entry is not of a gap."""
    found = parse_gap(version, about)
    return {found.id: found} if found else {}


def rewound(version: int, about: Mapping[str, Any]) -> dict[str, GapRecord]:
    """Return a rewind's facts about gap records: those whose offsets it took back have ended."""
    at = from_iso(about.get("at"))
    return {gap: GapRecord(gap, changes=1, ended=GapEnd(version, "rewound", at)) for gap in about["gaps"]}


def merged(one: GapRecord, after: GapRecord) -> GapRecord:
    """Merge the facts of two ranges of the history about a gap record; `after` is the later one."""
    carried = dict(one.carried)
    for part, more in after.carried.items():
        carried[part] = carried.get(part, BackfilledOffsets()).plus(more)
    return replace(
        one, opened=one.opened or after.opened, carried=carried, unplaced=one.unplaced + after.unplaced,
        files=one.files + after.files, changes=one.changes + after.changes,
        sources=tuple(dict.fromkeys([*one.sources, *after.sources])), through={**one.through, **after.through},
        ended=after.ended or one.ended,
    )  # fmt: skip


def together(committed_ranges: Iterable[Mapping[str, GapRecord]]) -> dict[str, GapRecord]:
    """Put the gap records of stretches of the history together, oldest stretch first."""
    found: dict[str, GapRecord] = {}
    for gap_records in committed_ranges:
        for key, gap_record in gap_records.items():
            found[key] = merged(found[key], gap_record) if key in found else gap_record
    return found


def to_json(gap_record: GapRecord) -> dict[str, Any]:
    """Write a gap record as JSON values."""
    opened, ended = gap_record.opened, gap_record.ended
    return {
        "id": gap_record.id, "unplaced": gap_record.unplaced, "files": gap_record.files, "changes": gap_record.changes,
        "sources": list(gap_record.sources), "through": dict(gap_record.through),
        "opened": opened and {
            "version": opened.version, "at": to_iso(opened.at), "cause": opened.cause, "by": opened.by,
            "reason": opened.reason, "topic_ids": dict(opened.topic_ids),
            "ranges": [r.to_dict() for r in opened.ranges],
            "hints": [{"from": to_iso(h.start), "until": to_iso(h.end)} for h in opened.hints],
        },
        "carried": [
            {**vars(part), "spans": [list(s) for s in c.spans], "offsets": c.offsets,
            "without_records": c.without_records, **c.outcomes}
            for part, c in gap_record.carried.items()
        ],
        "ended": ended and {**vars(ended), "at": to_iso(ended.at)},
    }  # fmt: skip


def from_json(raw: Mapping[str, Any]) -> GapRecord:
    """Read what `to_json` wrote. Raises KeyError, TypeError, ValueError for anything else."""
    opened, ended = raw["opened"], raw["ended"]
    known = opened and parse_gap(opened["version"], {**opened, "kind": "gap", "id": raw["id"]})
    carried = {
        part_of(c): BackfilledOffsets(
            _spans(c["spans"]), c["offsets"], {n: c[n] for n in ("read", *EXITS, RAW) if n in c}, c["without_records"]
        )
        for c in raw["carried"]
    }
    return GapRecord(
        raw["id"], known.opened if known else None, carried, raw["unplaced"], raw["files"], raw["changes"],
        tuple(raw["sources"]), dict(raw["through"]), GapEnd(**{**ended,
        "at": from_iso(ended["at"])}) if ended else None,
    )  # fmt: skip


def _carried(raw: Mapping[str, Any]) -> BackfilledOffsets:
    spans = _spans(raw["spans"])
    offsets = sum(end - start for start, end in spans)
    return BackfilledOffsets(
        tuple(joined(spans)), offsets, outcomes(raw), raw.get("without_records", {}).get("offsets", 0)
    )


def _spans(raw: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    return tuple((int(start), int(end)) for start, end in raw)


def part_of(raw: Mapping[str, Any]) -> TopicPartition:
    """Return the part that an account in an entry speaks of."""
    return TopicPartition(raw["topic"], raw["incarnation"], raw["partition"])
