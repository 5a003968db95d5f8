"""Reads ledger segments from the entries of a table's log. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from headrace.writer.batch.task_report import EXITS, outcomes
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.ledger.gap_record import gap_records_of_entry, gap_records_of_rewind
from headrace.writer.table.ledger.segment import Answer, CommittedRange, CutRange, LedgerSegment, Removal, RewoundRange
from headrace.writer.table.log.entries import answered_changes, file_changes, parse_commit_info
from headrace.writer.table.log.foreign_writes import Change, foreign_change
from headrace.writer.table.log.log import Action

# Version of the table → rows of each file that it names, by path.
RowCounts = Callable[[int], Mapping[str, int | None]]
_PART_NAME = re.compile(r"^(?P<topic>[^/]+)@(?P<incarnation>\d+)/(?P<partition>\d+)$")


def no_row_counts(_: int) -> Mapping[str, int | None]:
    """Know the rows of no file."""
    return {}


def read_segments(
    entries: Iterable[tuple[int, Sequence[Action]]], pipeline: str, row_counts: RowCounts = no_row_counts
) -> Iterator[LedgerSegment]:
    """Read entries, oldest first: a segment of each. `row_counts` is asked where an entry does not say what it took."""
    for version, actions in entries:
        try:
            yield _read_segment(version, actions, pipeline, row_counts)
        except (KeyError, TypeError, ValueError) as error:
            violation = f"version {version} says nothing that can be read: {error!r}"
            yield LedgerSegment(version, version, violations=(violation,))


def _read_segment(version: int, actions: Sequence[Action], pipeline: str, row_counts: RowCounts) -> LedgerSegment:
    """Return the segment of one entry. Raises KeyError, TypeError, ValueError for facts that cannot be read."""
    info, facts = parse_commit_info(actions)
    logged_at = datetime.fromtimestamp(info["timestamp"] / 1000, UTC) if "timestamp" in info else None
    segment = LedgerSegment(version, version, logged_at, logged_at)
    match facts.get("kind"):
        case "start" | "adopt" as kind:
            cuts = tuple(parse_cut_range(cut, version) for cut in facts.get("cuts", ()))
            frontiers = _frontiers(actions, pipeline)
            return replace(segment, starts=int(kind == "start"), first_offsets=frontiers, cut_ranges=cuts)
        case "side" | "rewrite":
            # The main commit of dead letters has the account, but for how many a rewind took.
            return replace(segment, removals=_removals(version, facts))
        case "batch":
            specs = facts.get("specs", {}).get("version", 0)
            ranges = tuple(_committed_range(account, version, specs) for account in facts.get("ranges", ()))
            return replace(segment, committed_ranges=ranges, filter_counts=_filter_counts(facts))
        case "gap":
            gap_records = gap_records_of_entry(version, facts)
            return replace(segment, committed_ranges=_skipped_ranges(version, facts), gap_records=gap_records)
        case "fill" | "lost":
            gap_records = gap_records_of_entry(version, facts)
            return replace(segment, gap_records=gap_records, filter_counts=_filter_counts(facts))
        case "replay" | "reprocess":
            moves = {TopicPartition.from_dict(move): parse_exits(move) for move in facts["moves"]}
            return replace(segment, moves=moves, filter_counts=_filter_counts(facts))
        case "take":
            return replace(segment, adopted_rows=int(facts["rows"]))
        case "rewind":
            return replace(
                segment,
                removals=_removals(version, facts),
                rewound_ranges=tuple(parse_rewound_range(account, version) for account in facts["ranges"]),
                gap_records=gap_records_of_rewind(version, facts),
                answers=_answers(version, facts, accepted=False),
            )
        case "accept":
            answers = _answers(version, facts, accepted=True)
            return replace(segment, removals=_removals(version, facts), answers=answers)
        case None:
            return _read_foreign_entry(segment, info, actions, row_counts)
        case kind if file_changes(actions) or _frontiers(actions, pipeline):
            violation = f"version {version} is of the kind {kind!r}, which a newer headrace writes"
            return replace(segment, violations=(violation,))
        case _:
            # Such as new columns: neither rows nor offsets.
            return segment


def parse_exits(move: Mapping[str, Any]) -> dict[str, int]:
    """Return by how many records each exit changes, for those that change."""
    return {name: move[name] for name in EXITS if move.get(name)}


def parse_rewound_range(account: Mapping[str, Any], version: int) -> RewoundRange:
    """Return a range that the entry of a version rewound."""
    return RewoundRange(OffsetRange.from_json(account), version)


def parse_cut_range(cut: Mapping[str, Any], version: int) -> CutRange:
    """Return a cut that the entry of a version tells of."""
    return CutRange(OffsetRange.from_json(cut), version, cut["successor"], cut["is_proven"])


def _frontiers(actions: Sequence[Action], pipeline: str) -> dict[TopicPartition, int]:
    """Return the frontiers that an entry sets."""
    frontiers = {}
    for action in actions:
        transaction = action.get("txn") or {}
        owner, _, name = transaction.get("appId", "").partition("/")
        match = _PART_NAME.match(name)
        if owner == pipeline and match:
            part = TopicPartition(match["topic"], int(match["incarnation"]), int(match["partition"]))
            frontiers[part] = transaction["version"]
    return frontiers


def _filter_counts(facts: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    return dict(facts.get("specs", {}).get("filtered", {}))


def _committed_range(account: Mapping[str, Any], version: int, specs: int) -> CommittedRange:
    """Return a range that a batch carried. `specs`: the version of the specs by which its records were read."""
    counts = outcomes(account)
    offset_range = OffsetRange.from_json(account)
    offsets_without_record = offset_range.count - counts["read"]
    explained = account.get("without_records", {}).get("offsets", 0)
    return CommittedRange(
        offset_range,
        version,
        version,
        counts,
        without_records=explained,
        unexplained=0 if explained else max(0, offsets_without_record),
        specs=specs,
    )


def _skipped_ranges(version: int, facts: Mapping[str, Any]) -> tuple[CommittedRange, ...]:
    """Return the ranges of a gap."""
    return tuple(
        CommittedRange(OffsetRange.from_json(account), version, version, gap=True) for account in facts["ranges"]
    )


def _removals(version: int, facts: Mapping[str, Any]) -> tuple[Removal, ...]:
    """Return the rows that an entry took on purpose; where they only moved there are none."""
    removed_rows = facts.get("taken")
    if not removed_rows or not removed_rows["rows"]:
        return ()
    return (Removal(version, str(removed_rows["why"]), int(removed_rows["rows"])),)


def _read_foreign_entry(
    segment: LedgerSegment, info: Mapping[str, Any], actions: Sequence[Action], row_counts: RowCounts
) -> LedgerSegment:
    """Return the segment with what the entry of another client did."""
    change = foreign_change(info, segment.first)
    if change is not None:
        return replace(segment, violations=(describe_change(change),))
    operation = str(info.get("operation"))
    if operation != "DELETE" or not any("remove" in action for action in actions):
        return segment
    metrics = info.get("operationMetrics", {})
    deleted_rows = [metrics[name] for name in ("numDeletedRows", "num_deleted_rows") if name in metrics]
    if deleted_rows:
        rows: int | None = int(deleted_rows[0])
    else:
        rows = _count_removed_rows(actions, row_counts(segment.first - 1))
    return replace(segment, removals=(Removal(segment.first, operation, rows),))


def _answers(version: int, facts: Mapping[str, Any], *, accepted: bool) -> tuple[Answer, ...]:
    changes = tuple(map(describe_change, answered_changes(facts)))
    if not changes:
        return ()
    return (Answer(version, changes, accepted),)


def describe_change(change: Change) -> str:
    """Say how another client's change makes the account invalid, as a phrase."""
    return f"{change}: rows moved, offsets did not"


def _count_removed_rows(actions: Sequence[Action], rows_before: Mapping[str, int | None]) -> int | None:
    """Return the rows of the files that an entry removes, less those of the files that it adds.

    `rows_before`: of the files that the version before names, by path. None where the rows of a file are unknown.
    """
    rows_removed: list[int | None] = []
    rows_added: list[int | None] = []
    for action in actions:
        match action:
            case {"remove": {"path": path}}:
                rows_removed.append(rows_before.get(unquote(path)))
            case {"add": {"stats": stats}}:
                rows_added.append(json.loads(stats or "{}").get("numRecords"))
    if None in rows_removed or None in rows_added:
        return None
    return sum(rows or 0 for rows in rows_removed) - sum(rows or 0 for rows in rows_added)
