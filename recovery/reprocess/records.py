"""Reads the records at the offsets of rows from sources of a backfill, each once, and notes which were there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.source import Source
from writer.avro.schema_plan import SchemaPlan
from writer.core.offsets import OffsetRange, Span, TopicPartition, joined
from writer.maintenance.local_pipeline import Piece
from writer.table.row_removal import Offsets, inside, spans_of

RECORDS_AT_ONCE = 500_000  # that a source gives at a time
_SKIPPED_MAX = 10_000  # records between two wanted ones that are read along, and dropped


class Records:
    """Records at some offsets, of one incarnation of each topic."""

    def __init__(
        self, sources: Sequence[Source], wanted: Offsets, paced: Callable[[Iterable[Piece]], Iterable[Piece]] = iter
    ) -> None:
        """`paced` slows pieces down."""
        assert len({part.topic for part in wanted}) == len({(part.topic, part.incarnation) for part in wanted})
        self._sources, self._wanted, self._paced = sources, wanted, paced
        self.found: dict[TopicPartition, list[Span]] = {}  # offsets whose records came

    def pieces(self, plan: SchemaPlan) -> Iterator[Piece]:
        """Yield the records, from the beginning. Raises SourceFailed, BrokerUnreachable, OSError."""
        self.found = {}
        asked = coarse(self._wanted)
        for source in self._sources:
            for chunk in source.chunks(lambda: asked, RECORDS_AT_ONCE):
                for piece in self._paced(chunk.read(plan)):
                    if (records := self._new(piece.records)).num_rows:
                        yield Piece(records)

    def _new(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that are wanted and did not come yet, each once."""
        offsets = records.column("offset").to_numpy(zero_copy_only=False)
        keep = np.zeros(records.num_rows, bool)
        for part, spans in self._wanted.items():
            of_part = pc.and_(
                pc.equal(records.column("topic"), part.topic), pc.equal(records.column("partition"), part.partition)
            )
            mine = of_part.to_numpy(zero_copy_only=False)
            if not mine.any():
                continue
            mine &= inside(offsets, spans)
            if part in self.found:
                mine &= ~inside(offsets, self.found[part])
            at = np.flatnonzero(mine)
            _, first = np.unique(offsets[at], return_index=True)
            keep[at[first]] = True
            if len(first):
                self.found[part] = joined([*self.found.get(part, ()), *spans_of(offsets[at])])
        return records.filter(pa.array(keep))


def coarse(wanted: Offsets) -> list[OffsetRange]:
    """Return ranges that hold all of these offsets, few of which are far apart: what a source reads in one go."""
    found = []
    for part, spans in sorted(wanted.items()):
        ranges: list[Span] = []
        for start, end in joined(spans):
            if ranges and start - ranges[-1][1] <= _SKIPPED_MAX:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        found += [OffsetRange(part, start, end) for start, end in ranges]
    return found


def by_incarnation(offsets: Offsets) -> Mapping[int, Offsets]:
    """Put the parts of each incarnation together: a task knows one of each topic."""
    found: dict[int, dict[TopicPartition, Sequence[Span]]] = {}
    for part, spans in offsets.items():
        found.setdefault(part.incarnation, {})[part] = spans
    return found
