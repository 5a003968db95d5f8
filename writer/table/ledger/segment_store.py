"""Stores ledger segments beside the table's log, one for each clean-up, beyond the log's retention.

A page is put once, under the number of its first version, or not at all. If two writers write the next page at once,
one of the two stays, and a reader continues where it ends. Each table id has a folder: a table made anew begins a new
ledger.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.units import from_iso
from headrace.writer.storage.base import Store
from headrace.writer.table.ledger import gap_record
from headrace.writer.table.ledger.segment import (
    Answer,
    CommittedRange,
    LedgerSegment,
    Removal,
    merge_runs,
)
from headrace.writer.table.ledger.segment_reader import (
    RowCounts,
    parse_cut_range,
    parse_exits,
    parse_rewound_range,
    read_segments,
)
from headrace.writer.table.log.log import Action

# Delta's readers and VACUUM pass over names that begin with an underscore.
FOLDER = "_headrace/ledger"
# Of the pages that this version of headrace writes and reads.
FORMAT = 1


class LedgerUnreadable(HeadraceError):
    """A page of the ledger is not what this version of headrace writes."""


class LedgerStore:
    """The pages of one table."""

    def __init__(self, store: Store, table_id: str, pipeline: str) -> None:
        """Open the ledger of a table; `store` is the table's."""
        self._store = store
        self._folder = f"{FOLDER}/{table_id}"
        self._table_id = table_id
        self._pipeline = pipeline

    def pages(self) -> list[LedgerSegment]:
        """Return the pages, oldest first. Raises LedgerUnreadable, OSError."""
        return [self._page(name) for name in self._names()]

    def last_version(self) -> int:
        """Return the newest version that a page holds; -1 when there is none. Raises as `pages` does."""
        names = self._names()
        if not names:
            return -1
        return self._page(names[-1]).last

    def write(self, entries: Iterable[tuple[int, Sequence[Action]]], row_counts: RowCounts) -> None:
        """Write these entries as the next segment, and one more after each missing version. Raises OSError."""
        for segment in merge_runs(read_segments(entries, self._pipeline, row_counts)):
            document = to_json(segment, self._pipeline, self._table_id)
            page = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
            if not self._store.put_if_absent(f"{self._folder}/{segment.first:020}.json", page.encode()):
                # Another writer's page is there; it says the same, and perhaps more.
                return

    def _names(self) -> list[str]:
        return sorted(name for name in self._store.list(self._folder) if name.endswith(".json"))

    def _page(self, name: str) -> LedgerSegment:
        stored_object = self._store.read(f"{self._folder}/{name}")
        path = self._store.path(f"{self._folder}/{name}")
        try:
            document = json.loads(stored_object.content if stored_object else b"")
        except ValueError as error:
            raise LedgerUnreadable(f"{path} is not JSON: {error}. Restore it from a backup.") from error
        return from_json(document, path)


def to_json(segment: LedgerSegment, pipeline: str, table_id: str) -> dict[str, Any]:
    """Write a segment as JSON values: a page of the ledger."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "pipeline": pipeline,
        "table": table_id,
        "first": segment.first,
        "last": segment.last,
        "began": segment.began and segment.began.isoformat(),
        "ended": segment.ended and segment.ended.isoformat(),
        "starts": segment.starts,
        "begins": [{**vars(part), "offset": offset} for part, offset in segment.first_offsets.items()],
        "committed_ranges": [_committed_range_to_json(committed_range) for committed_range in segment.committed_ranges],
        "moves": [{**vars(part), **exits} for part, exits in segment.moves.items()],
        "removals": [vars(removal) for removal in segment.removals],
        "strange": list(segment.violations),
        "adopted": segment.adopted_rows,
        "gap_records": [gap_record.to_json(record) for record in segment.gap_records.values()],
        "backs": [rewound_range.to_json() for rewound_range in segment.rewound_ranges],
        "answers": [vars(answer) for answer in segment.answers],
        "filtered": segment.filter_counts,
    }
    if segment.cut_ranges:
        document["cuts"] = [cut_range.to_json() for cut_range in segment.cut_ranges]
    return document


def _committed_range_to_json(committed_range: CommittedRange) -> dict[str, Any]:
    """Write a range as JSON values, with the fields of its part at the end."""
    fields = dict(vars(committed_range))
    offset_range: OffsetRange = fields.pop("range")
    offsets = {"part": None, "start": offset_range.start, "end": offset_range.end}
    return {**offsets, **fields, **vars(offset_range.part)}


def from_json(document: Mapping[str, Any], path: str) -> LedgerSegment:
    """Read what `to_json` wrote to a path. Raises LedgerUnreadable."""
    if document.get("format") != FORMAT:
        raise LedgerUnreadable(
            f"{path} has the format {document.get('format')!r}, this headrace knows {FORMAT}. Use the one that wrote "
            "it."
        )
    try:
        return _parse_segment(document)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerUnreadable(
            f"{path} is not a page of the ledger: {type(error).__name__} {error}. Restore it from a backup."
        ) from error


def _parse_segment(document: Mapping[str, Any]) -> LedgerSegment:
    gap_records = [gap_record.from_json(record) for record in document["gap_records"]]
    return LedgerSegment(
        document["first"],
        document["last"],
        from_iso(document["began"]),
        from_iso(document["ended"]),
        document["starts"],
        {TopicPartition.from_dict(begin): begin["offset"] for begin in document["begins"]},
        tuple(_parse_committed_range(fields) for fields in document["committed_ranges"]),
        {TopicPartition.from_dict(move): parse_exits(move) for move in document["moves"]},
        tuple(Removal(**fields) for fields in document["removals"]),
        tuple(document["strange"]),
        document["adopted"],
        {record.id: record for record in gap_records},
        tuple(parse_rewound_range(fields, fields["version"]) for fields in document["backs"]),
        tuple(_parse_answer(fields) for fields in document["answers"]),
        document["filtered"],
        tuple(parse_cut_range(fields, fields["version"]) for fields in document.get("cuts", ())),
    )


def _parse_committed_range(fields: Mapping[str, Any]) -> CommittedRange:
    return CommittedRange(
        OffsetRange.from_json(fields),
        fields["first"],
        fields["last"],
        fields["outcomes"],
        fields["without_records"],
        fields["unexplained"],
        fields["gap"],
        fields["specs"],
    )


def _parse_answer(fields: Mapping[str, Any]) -> Answer:
    return Answer(fields["version"], tuple(fields["changes"]), fields["accepted"])
