"""Plans a rewind and decides whether it is allowed. Pure: facts in, a plan out.

Rows are found by their offsets: every row from the earlier frontier on goes, whatever file it is in by now. So what
left the table on purpose since then stays away, and a version whose files are gone can be returned to as well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from writer.core.files import BucketKey
from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.offsets.start_decision import LogRange
from writer.table.ledger.gap_record import GapRecord, part_of
from writer.table.log.entries import file_changes, parse_commit_info, unanswered_changes
from writer.table.log.foreign_writes import Change
from writer.table.log.log import Action

_SHOWN = 5  # ranges in a sentence
_ACCEPT = "`headrace table accept` keeps the table as it is."


@dataclass(frozen=True)
class EarlierVersion:
    """The table at the version to which it is to return."""

    version: int
    epoch: int
    frontier: Mapping[TopicPartition, int]
    at: datetime | None = None  # when it was written; None: its entry is gone


@dataclass(frozen=True)
class LaterEntries:
    """The log's facts about the versions after that one."""

    begins: Mapping[TopicPartition, int] = field(default_factory=dict)  # where parts begin that were new
    gaps: tuple[str, ...] = ()  # ids of the gap records that were opened
    sealed: frozenset[BucketKey] = frozenset()
    taken: Mapping[str, int] = field(default_factory=dict)  # rows that left on purpose, by why
    replays: int = 0
    moved: int | None = None  # version that gave topics other ids, or took the table over
    foreign: tuple[Change, ...] = ()  # what other clients did that moves rows, where no entry answers it
    after: int | None = None  # version after the first of these whose files are not of such a change


@dataclass(frozen=True)
class RewindFacts:
    """What is known when a plan is made."""

    then: EarlierVersion
    since: LaterEntries
    frontier: Mapping[TopicPartition, int]  # now
    numbers: Mapping[str, int]  # topic → number of its incarnation in Kafka; only of topics that the pipeline reads
    held: Mapping[Source, LogRange]  # of the parts that are read
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)
    missing: Sequence[str] = ()  # files that would come back, and are gone
    cut: Collection[TopicPartition] = ()  # parts whose log is not the one that the table was filled from


@dataclass(frozen=True)
class Plan:
    """What would go back. `obstacles`: why it cannot be; `unreadable`: what Kafka does not hold any more."""

    to: int
    ranges: tuple[OffsetRange, ...] = ()
    unreadable: tuple[OffsetRange, ...] = ()
    obstacles: tuple[str, ...] = ()
    deduped: int = 0  # rows that dedupe took since: another copy of theirs may be among those that go
    gaps: Mapping[str, int] = field(default_factory=dict)  # open gap records that would be over: id → offsets

    @property
    def offsets(self) -> int:
        """How many offsets go back."""
        return sum(r.end - r.start for r in self.ranges)

    @property
    def lossy(self) -> str:
        """Return what would not come back; empty where all does."""
        words = []
        if self.unreadable:
            count = sum(r.end - r.start for r in self.unreadable)
            words.append(f"Kafka does not hold {count:,} of these offsets any more ({_listed(self.unreadable)})")
        if self.deduped:
            words.append(
                f"dedupe took {self.deduped:,} rows since, and the copies that stayed may be among those that go"
            )
        return "; ".join(words)


def plan(facts: RewindFacts) -> Plan:
    """Return what would go back, and what is in the way."""
    then, since = facts.then, facts.since
    if then.epoch == 0:
        return Plan(then.version, obstacles=(f"version {then.version} is before the pipeline's first start.",))
    before = {**since.begins, **then.frontier}
    ranges, obstacles = [], list(_forbidden(facts))
    for part, at in sorted(facts.frontier.items()):
        back = before.get(part, at)
        if back > at:
            obstacles.append(
                f"the table ends at {at} of {part.full_name}, before {back}: it was rewound since. Choose a version "
                "after that."
            )
        elif back < at:
            ranges.append(OffsetRange(part, back, at))
    astray = [r for r in ranges if facts.numbers.get(r.part.topic) != r.part.incarnation]
    if astray:
        obstacles.append(
            f"{_listed(astray)} would not be read again: the pipeline does not read the topic any more, it was deleted "
            "and created again, or its log was cut. Choose a version after that; `headrace delete-rows` takes single "
            "rows out."
        )
    if cut := [r for r in ranges if r.part in facts.cut]:
        obstacles.append(
            f"Kafka's log was cut below what the table has of {_listed(cut)}, and is another one now: other records "
            "would come back. Start the pipeline: it goes on where the log was cut, as on_data_loss says."
        )
    unreadable = [lost for r in ranges if r not in astray for lost in _lost(r, facts.held)]
    gone = {gap: facts.gap_records[gap] for gap in since.gaps if gap in facts.gap_records}
    filled = [gap_record.id for gap_record in gone.values() if gap_record.rows or gap_record.carried]
    if filled:
        obstacles.append(
            f"gap {filled[0][:8]} was opened and filled since: what a backfill brought, Kafka does not hold. Choose a "
            "version after that."
        )
    open_gaps = {gap: gap_record.offsets for gap, gap_record in gone.items() if gap_record.state == "open"}
    deduped = since.taken.get("dedupe", 0) if ranges else 0
    return Plan(then.version, tuple(ranges), tuple(unreadable), tuple(obstacles), deduped, open_gaps)


def _forbidden(facts: RewindFacts) -> Sequence[str]:
    since = facts.since
    found = []
    if since.moved is not None:
        found.append(
            f"version {since.moved} gave topics other ids, or took the table over: offsets before it are not those of "
            "Kafka's logs now. Choose a version after that."
        )
    if since.foreign and since.after is not None:
        found.append(
            f"{since.foreign[0]}, and version {since.after} changed files after it, which would be taken back too. "
            f"{_ACCEPT}"
        )
    if facts.missing:
        more = f" and {len(facts.missing) - 1:,} more" if len(facts.missing) > 1 else ""
        found.append(
            f"the files that {since.foreign[0]} took out are gone ({facts.missing[0]}{more}): a VACUUM removed them. "
            f"Choose the version that a RESTORE went back to. {_ACCEPT}"
        )
    return found


def _lost(r: OffsetRange, held: Mapping[Source, LogRange]) -> Sequence[OffsetRange]:
    """Return what of a range Kafka does not hold."""
    there = held.get((r.part.topic, r.part.partition), LogRange(r.end, r.end))
    spans = [(r.start, min(r.end, there.earliest)), (max(r.start, there.end, there.earliest), r.end)]
    return [OffsetRange(r.part, start, end) for start, end in spans if start < end]


def since(entries: Sequence[tuple[int, Sequence[Action]]], frontiers: Mapping[str, TopicPartition]) -> LaterEntries:
    """Read the entries after a version, oldest first.

    `frontiers`: name of each part's `txn` → the part.
    """
    begins: dict[TopicPartition, int] = {}
    gaps: list[str] = []
    sealed: set[BucketKey] = set()
    taken: dict[str, int] = {}
    replays, moved, after = 0, None, None
    foreign = unanswered_changes(entries)
    refused = {change.version for change in foreign}
    for version, actions in entries:
        about = parse_commit_info(actions)[1]
        if refused and version > min(refused) and version not in refused and file_changes(actions):
            after = version if after is None else after
        match about.get("kind"):
            case "start":
                set_ = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if a.get("txn")}
                _first(begins, {frontiers[name]: at for name, at in set_.items() if name in frontiers})
            case "batch":
                _first(begins, {part_of(r): r["start"] for r in about["ranges"]})
            case "gap":
                _first(begins, {part_of(r): r["start"] for r in about["ranges"]})
                gaps.append(about["id"])
            case "seal":
                sealed |= {tuple(manifest["bucket"]) for manifest in about["manifests"]}
            case "rewrite" if about.get("taken"):
                why = about["taken"]["why"]
                taken[why] = taken.get(why, 0) + about["taken"]["rows"]
            case "replay":
                replays += 1
            case "adopt" | "take":
                moved = version
    return LaterEntries(begins, tuple(gaps), frozenset(sealed), taken, replays, moved, tuple(foreign), after)


def _first(known: dict[TopicPartition, int], found: Mapping[TopicPartition, int]) -> None:
    """Note where parts begin that were not known."""
    for part, at in found.items():
        known.setdefault(part, at)


def _listed(ranges: Sequence[OffsetRange]) -> str:
    shown = ", ".join(f"{r.part.full_name} [{r.start}, {r.end})" for r in ranges[:_SHOWN])
    return shown + (f" and {len(ranges) - _SHOWN} more" if len(ranges) > _SHOWN else "")
