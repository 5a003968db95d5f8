"""What redo has still to do: letters and late rows that the main table's log has, and their own tables not yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from writer.ledger.deep import DataFile
from writer.ledger.told import Lake, Told
from writer.rooms.report import Span
from writer.tables.entry import Committed, landed, said
from writer.tables.parts import Part
from writer.tables.withdraw import count


@dataclass(frozen=True)
class Waiting:
    """Dead letters and late rows that the main table's log lists, and redo has not applied yet."""

    files: Sequence[DataFile]
    late: Sequence[DataFile]
    without: Mapping[Part, Sequence[Span]]  # letters that replays made rows, or rewinds take
    withdrawn: int
    commits: int
    rewound: int = 0  # of these letters, those that rewinds take
    late_without: Mapping[Part, Sequence[Span]] = field(default_factory=dict)
    late_rewound: int = 0  # late rows that rewinds take


def waiting(lake: Lake) -> Waiting:
    """Find what the log lists for the tables of letters and of late rows, after the versions that they have."""
    letters, late = lake.letters, lake.late
    at = {told.place: max(told.applied, lake.settled) for told in (letters, late)}
    entries = ((n, said(actions)[1]) for n, actions in lake.rows.table.entries(min(at.values())) if n <= lake.version)
    listed = [one for n, about in entries if (one := landed(n, about)) and (one.side_files or one.withdrawn)]
    files, rows = (
        [DataFile(f.path, f.rows) for one in listed if one.version > at[place] for f in one.side_files.get(place, ())]
        for place in (letters.place, late.place)
    )
    rewinds = [one for one in listed if one.facts["kind"] == "rewind"]
    replays = [one for one in listed if one.facts["kind"] != "rewind"]
    replayed, going = (_spans(commits, letters.place, at[letters.place]) for commits in (replays, rewinds))
    late_going = _spans(rewinds, late.place, at[late.place])
    rewound, late_rewound = _rows_at(letters, going), _rows_at(late, late_going)
    withdrawn = rewound + sum(end - start for spans in replayed.values() for start, end in spans)
    without = {part: [*replayed.get(part, ()), *going.get(part, ())] for part in {**replayed, **going}}
    pending = sum(
        any(one.version > until and (place in one.side_files or place in one.withdrawn) for place, until in at.items())
        for one in listed
    )
    return Waiting(files, rows, without, withdrawn, pending, rewound, late_going, late_rewound)


def _spans(commits: Sequence[Committed], place: str, applied: int) -> dict[Part, list[Span]]:
    """Return which offsets of the table at a place go, by commits that it does not have yet."""
    found: dict[Part, list[Span]] = {}
    for one in commits:
        for part, spans in one.withdrawn.get(place, {}).items() if one.version > applied else ():
            found.setdefault(part, []).extend(spans)
    return found


def _rows_at(told: Told, offsets: Mapping[Part, Sequence[Span]]) -> int:
    """Count rows at these offsets. What a rewind takes was there when it landed: nobody commits before its redo."""
    return sum(count(told.table.store, file, offsets) for file in told.files) if offsets else 0
