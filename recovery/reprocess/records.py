"""Reads the records at the offsets of rows from sources of a backfill, each once, and notes which were there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.source import Source
from recovery.reprocess.places import Places, positions, ranges
from writer.avro.schema_plan import SchemaPlan
from writer.core.offsets import TopicPartition
from writer.maintenance.local_pipeline import Piece

RECORDS_AT_ONCE = 500_000  # that a source gives at a time


class Records:
    """Records at some offsets, of one incarnation of each topic."""

    def __init__(
        self, sources: Sequence[Source], wanted: Places, paced: Callable[[Iterable[Piece]], Iterable[Piece]] = iter
    ) -> None:
        """`paced` slows pieces down."""
        assert len({part.topic for part in wanted}) == len({(part.topic, part.incarnation) for part in wanted})
        self._sources, self._wanted, self._paced = sources, wanted, paced
        self._parts = {(part.topic, part.partition): part for part in wanted}
        self._came: dict[TopicPartition, np.ndarray] = {}  # for each wanted offset whether its record came

    def pieces(self, plan: SchemaPlan) -> Iterator[Piece]:
        """Yield the records, from the beginning. Raises SourceFailed, BrokerUnreachable, OSError."""
        self._came = {part: np.zeros(len(offsets), bool) for part, offsets in self._wanted.items()}
        asked = ranges(self._wanted)
        for source in self._sources:
            for chunk in source.chunks(lambda: asked, RECORDS_AT_ONCE):
                for piece in self._paced(chunk.read(plan)):
                    if (records := self._new(piece.records)).num_rows:
                        yield Piece(records)

    def found(self) -> dict[TopicPartition, np.ndarray]:
        """Return the offsets whose records came."""
        return {part: self._wanted[part][came] for part, came in self._came.items() if came.any()}

    def _new(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that are wanted and did not come yet, each once."""
        topics, partitions = records.column("topic"), records.column("partition")
        offsets, keep = records.column("offset").to_numpy(zero_copy_only=False), np.zeros(records.num_rows, bool)
        for source in product(pc.unique(topics).to_pylist(), pc.unique(partitions).to_pylist()):
            part = self._parts.get(source)
            if part is None:
                continue
            of_part = pc.and_(pc.equal(topics, part.topic), pc.equal(partitions, part.partition))
            at = np.flatnonzero(of_part.to_numpy(zero_copy_only=False))
            there, came = positions(offsets[at], self._wanted[part]), self._came[part]
            new = (there >= 0) & ~came[there]
            at, there = at[new], there[new]
            _, first = np.unique(there, return_index=True)
            came[there] = True
            keep[at[first]] = True
        return records.filter(pa.array(keep))


def by_incarnation(places: Places) -> Mapping[int, Places]:
    """Put the parts of each incarnation together: a task knows one of each topic."""
    found: dict[int, dict[TopicPartition, np.ndarray]] = {}
    for part, offsets in places.items():
        found.setdefault(part.incarnation, {})[part] = offsets
    return found
