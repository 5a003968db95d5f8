"""Plans a rewind and decides whether it is allowed. Pure: facts in, a plan out.

Rows are found by their offsets: every row from the earlier frontier on goes, whatever file it is in by now. So rows
that left the table on purpose since then stay away, and a version whose files are gone can be returned to as well.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from headrace.writer.core.files import BucketKey
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.core.text import join_first
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.entries import file_changes, parse_commit_info, unanswered_changes
from headrace.writer.table.log.foreign_writes import Change
from headrace.writer.table.log.log import Action

# Ranges in a sentence.
_RANGES_SHOWN = 5
_ACCEPT = "`headrace table accept` keeps the table as it is."


@dataclass(frozen=True)
class EarlierVersion:
    """The table at the version to which it is to return. `written_at`: None if its entry is gone."""

    version: int
    epoch: int
    frontier: Mapping[TopicPartition, int]
    written_at: datetime | None = None


@dataclass(frozen=True)
class LaterEntries:
    """The log's facts about the versions after that one."""

    # The first offset of each part that was new.
    first_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    # Ids of the gap records that were opened.
    gaps: tuple[str, ...] = ()
    sealed: frozenset[BucketKey] = frozenset()
    # Rows that left on purpose, by why.
    removed_rows: Mapping[str, int] = field(default_factory=dict)
    replays: int = 0
    # The version that gave topics other ids, or took the table over.
    adoption: int | None = None
    # Changes by other clients that move rows, where no entry answers them.
    foreign_changes: tuple[Change, ...] = ()
    # The version after the first of these whose files are not of such a change.
    later_change: int | None = None


@dataclass(frozen=True)
class RewindFacts:
    """The facts by which a plan is made."""

    earlier: EarlierVersion
    later: LaterEntries
    # As it is now.
    frontier: Mapping[TopicPartition, int]
    # Topic → number of its incarnation in Kafka; only of topics that the pipeline reads.
    incarnations: Mapping[str, int]
    # Of the parts that are read.
    log_ranges: Mapping[Source, LogRange]
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)
    # Paths of files that would come back, and are gone.
    missing_files: Sequence[str] = ()
    # Parts whose log is not the one that the table was filled from.
    cut_parts: Collection[TopicPartition] = ()


@dataclass(frozen=True)
class RewindPlan:
    """What would go back. `obstacles`: why it cannot be; `unreadable`: what Kafka does not hold any more.

    `deduped`: rows that dedupe removed since; another copy of theirs may be among those that go. `gaps`: open gap
    records that would end, id → offsets.
    """

    to: int
    ranges: tuple[OffsetRange, ...] = ()
    unreadable: tuple[OffsetRange, ...] = ()
    obstacles: tuple[str, ...] = ()
    deduped: int = 0
    gaps: Mapping[str, int] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many offsets go back."""
        return sum(r.count for r in self.ranges)

    @property
    def losses(self) -> str:
        """Return what would not come back, as a phrase; empty where all does."""
        losses = []
        if self.unreadable:
            count = sum(r.count for r in self.unreadable)
            ranges = _list_ranges(self.unreadable)
            losses.append(f"Kafka does not hold {count:,} of these offsets any more ({ranges})")
        if self.deduped:
            losses.append(
                f"dedupe took {self.deduped:,} rows since, and the copies that stayed may be among those that go"
            )
        return "; ".join(losses)


def plan_rewind(facts: RewindFacts) -> RewindPlan:
    """Return what would go back, and what is in the way."""
    earlier = facts.earlier
    if earlier.epoch == 0:
        return RewindPlan(
            earlier.version, obstacles=(f"version {earlier.version} is before the pipeline's first start.",)
        )
    ranges = _ranges_back(facts)
    unread = [r for r in ranges if facts.incarnations.get(r.part.topic) != r.part.incarnation]
    unreadable: list[OffsetRange] = []
    for r in ranges:
        if r not in unread:
            unreadable += _unreadable_ranges(r, facts.log_ranges)
    gap_records = [facts.gap_records[gap] for gap in facts.later.gaps if gap in facts.gap_records]
    obstacles = [
        *_later_obstacles(facts),
        *_frontier_obstacles(facts),
        *_log_obstacles(facts, ranges, unread),
        *_gap_obstacles(gap_records),
    ]
    return RewindPlan(
        earlier.version,
        tuple(ranges),
        tuple(unreadable),
        tuple(obstacles),
        deduped=facts.later.removed_rows.get("dedupe", 0) if ranges else 0,
        gaps={gap_record.id: gap_record.offsets for gap_record in gap_records if gap_record.state == "open"},
    )


def _earlier_offset(facts: RewindFacts, part: TopicPartition, offset: int) -> int:
    """Return the frontier to which a part returns; of one that was new since, where it began."""
    first_offset = facts.later.first_offsets.get(part, offset)
    return facts.earlier.frontier.get(part, first_offset)


def _ranges_back(facts: RewindFacts) -> list[OffsetRange]:
    """Return the offsets that go back, of the parts whose frontier is later now."""
    ranges = []
    for part, offset in sorted(facts.frontier.items()):
        earlier_offset = _earlier_offset(facts, part, offset)
        if earlier_offset < offset:
            ranges.append(OffsetRange(part, earlier_offset, offset))
    return ranges


def _frontier_obstacles(facts: RewindFacts) -> Iterator[str]:
    for part, offset in sorted(facts.frontier.items()):
        earlier_offset = _earlier_offset(facts, part, offset)
        if earlier_offset > offset:
            yield (
                f"the table ends at {offset} of {part.full_name}, before {earlier_offset}: it was rewound since. "
                "Choose a version after that."
            )


def _log_obstacles(facts: RewindFacts, ranges: Sequence[OffsetRange], unread: Sequence[OffsetRange]) -> Iterator[str]:
    """Yield why Kafka's logs would not give the records again. `unread`: ranges of topics that are not read now."""
    if unread:
        yield (
            f"{_list_ranges(unread)} would not be read again: the pipeline does not read the topic any more, it was "
            "deleted and created again, or its log was cut. Choose a version after that; `headrace delete-rows` takes "
            "single rows out."
        )
    cut_ranges = [r for r in ranges if r.part in facts.cut_parts]
    if cut_ranges:
        yield (
            f"Kafka's log was cut below what the table has of {_list_ranges(cut_ranges)}, and is another one now: "
            "other records would come back. Start the pipeline: it goes on where the log was cut, as on_data_loss says."
        )


def _gap_obstacles(gap_records: Sequence[GapRecord]) -> Iterator[str]:
    filled = [gap_record.id for gap_record in gap_records if gap_record.rows or gap_record.backfilled]
    if filled:
        yield (
            f"gap {filled[0][:8]} was opened and filled since: what a backfill brought, Kafka does not hold. Choose a "
            "version after that."
        )


def _later_obstacles(facts: RewindFacts) -> Iterator[str]:
    """Yield what later entries of the log have that cannot be taken back."""
    later = facts.later
    if later.adoption is not None:
        yield (
            f"version {later.adoption} gave topics other ids, or took the table over: offsets before it are not those "
            "of Kafka's logs now. Choose a version after that."
        )
    if later.foreign_changes and later.later_change is not None:
        yield (
            f"{later.foreign_changes[0]}, and version {later.later_change} changed files after it, which would be "
            f"taken back too. {_ACCEPT}"
        )
    missing_files = facts.missing_files
    if missing_files:
        files = join_first(missing_files, 1)
        yield (
            f"the files that {later.foreign_changes[0]} took out are gone ({files}): a VACUUM removed them. Choose the "
            f"version that a RESTORE went back to. {_ACCEPT}"
        )


def _unreadable_ranges(r: OffsetRange, log_ranges: Mapping[Source, LogRange]) -> Sequence[OffsetRange]:
    """Return what of a range Kafka does not hold: what is before its log, and what is after it."""
    log_range = log_ranges.get(r.part.source, LogRange(r.end, r.end))
    before = (r.start, min(r.end, log_range.earliest))
    after = (max(r.start, log_range.end, log_range.earliest), r.end)
    return [OffsetRange(r.part, *span) for span in (before, after) if span[0] < span[1]]


def read_later_entries(
    entries: Sequence[tuple[int, Sequence[Action]]], frontiers: Mapping[str, TopicPartition]
) -> LaterEntries:
    """Read the entries after a version, oldest first.

    `frontiers`: name of each part's `txn` → the part.
    """
    first_offsets: dict[TopicPartition, int] = {}
    gaps: list[str] = []
    sealed: set[BucketKey] = set()
    removed_rows: Counter[str] = Counter()
    replays = 0
    adoption = None
    for version, actions in entries:
        facts = parse_commit_info(actions)[1]
        match facts.get("kind"):
            case "start":
                for part, offset in _start_offsets(actions, frontiers).items():
                    first_offsets.setdefault(part, offset)
            case "batch" | "gap":
                for r in facts["ranges"]:
                    first_offsets.setdefault(TopicPartition.from_dict(r), r["start"])
                if facts["kind"] == "gap":
                    gaps.append(facts["id"])
            case "seal":
                sealed |= {tuple(manifest["bucket"]) for manifest in facts["manifests"]}
            case "rewrite" if facts.get("taken"):
                removed_rows[facts["taken"]["why"]] += facts["taken"]["rows"]
            case "replay":
                replays += 1
            case "adopt" | "take":
                adoption = version
    foreign_changes = unanswered_changes(entries)
    return LaterEntries(
        first_offsets,
        tuple(gaps),
        frozenset(sealed),
        dict(removed_rows),
        replays,
        adoption,
        tuple(foreign_changes),
        _later_change(entries, foreign_changes),
    )


def _start_offsets(actions: Sequence[Action], frontiers: Mapping[str, TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets that an entry sets, by part. `frontiers`: name of each part's `txn` → the part."""
    txns = [action["txn"] for action in actions if action.get("txn")]
    return {frontiers[txn["appId"]]: txn["version"] for txn in txns if txn["appId"] in frontiers}


def _later_change(entries: Sequence[tuple[int, Sequence[Action]]], foreign_changes: Sequence[Change]) -> int | None:
    """Return the first version after a foreign change that changed files and is no such change."""
    foreign_versions = {change.version for change in foreign_changes}
    if not foreign_versions:
        return None
    for version, actions in entries:
        if version > min(foreign_versions) and version not in foreign_versions and file_changes(actions):
            return version
    return None


def _list_ranges(ranges: Sequence[OffsetRange]) -> str:
    return join_first([offset_range.name for offset_range in ranges], _RANGES_SHOWN)
