"""Holds the records of a task by schema until they make a block that is worth a native call.

A decoder's call, and the steps behind it, have costs of their own for each block. Where the schemas of a topic
alternate, the records of an Arrow batch fall into blocks that are too small for them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

# Of an Arrow batch: so many records of one schema are a block.
_SHARE_OF_BATCH = 0.75
# Of all records that are held; a reader holds as many for an Arrow batch.
HELD_BYTES_MAX = 16 * 2**20
# The same where a route makes each schema's share of an Arrow batch small.
ROUTE_HELD_BYTES_MAX = 64 * 2**20


@dataclass
class _Held:
    """The records of one schema."""

    pieces: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class SchemaBlocks:
    """The records of a task that wait for others of their schema. `add` them, then `take_rest` once."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        """`bytes_max`: of all records that are waiting."""
        self._bytes_max = bytes_max
        self._held = dict[int, _Held]()
        self._bytes = 0

    def add(self, groups: Iterable[tuple[int, pa.Table]], batch_rows: int) -> Iterator[tuple[int, pa.Table]]:
        """Take in the records of an Arrow batch by their schema ids. Yields the blocks that are complete.

        `batch_rows`: of the Arrow batch. A schema that has most of it waits for nothing.
        """
        enough = _SHARE_OF_BATCH * batch_rows
        for schema_id, records in groups:
            if schema_id not in self._held and records.num_rows >= enough:
                yield schema_id, records
                continue
            waiting = self._held.setdefault(schema_id, _Held())
            size = records.nbytes
            waiting.pieces.append(records)
            waiting.rows += records.num_rows
            waiting.bytes += size
            self._bytes += size
            if waiting.rows >= enough:
                yield schema_id, self._take(schema_id)
        while self._bytes > self._bytes_max:
            largest = max(self._held, key=lambda schema_id: self._held[schema_id].bytes)
            yield largest, self._take(largest)

    def take_rest(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield all that is held."""
        while self._held:
            schema_id = next(iter(self._held))
            yield schema_id, self._take(schema_id)

    def _take(self, schema_id: int) -> pa.Table:
        waiting = self._held.pop(schema_id)
        self._bytes -= waiting.bytes
        if len(waiting.pieces) == 1:
            return waiting.pieces[0]
        return pa.concat_tables(waiting.pieces).combine_chunks()
