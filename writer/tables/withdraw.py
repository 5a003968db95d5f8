"""Takes rows out of a table by their offsets: the files that hold some are written again without them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writer.ledger.deep import DataFile
from writer.ledger.letters import among
from writer.rooms.columnar import Destination, StagedFile, let_go, open_file, parquet_writer
from writer.rooms.report import Span
from writer.rooms.statistics import delta_statistics
from writer.stores.base import OutcomeUnknown, Store
from writer.tables.base import BucketFile, Part
from writer.tables.entry import removed
from writer.tables.log import Action

_ROWS_AT_ONCE = 10_000
_PREFIX = "replay"


@contextmanager
def without(
    store: Store, files: Sequence[DataFile], offsets: Mapping[Part, Sequence[Span]], *, hidden: bool = False
) -> Iterator[tuple[list[Action], list[StagedFile]]]:
    """Stage what is left of the files that hold rows at these offsets. Gives their remove actions, and what is staged.

    The table has no bucket columns. If the block is left by an exception, what was staged is removed.
    `hidden`: stage where readers do not look.
    """
    gone: list[Action] = []
    rest: list[StagedFile] = []
    to = Destination(store, (), _PREFIX, 0, hidden=hidden)
    now = datetime.now(UTC)
    try:
        for file in files:
            touched, left = _left(to, file.path, offsets, now) if _reached(file, offsets) else (False, None)
            if touched:
                gone.append(removed(BucketFile(file.path, (), file.rows, file.bytes), (), now))
                rest += [left] if left else []
        yield gone, rest
    except OutcomeUnknown:
        raise  # an entry may name them by now, or may yet
    except BaseException:
        to.remove()
        raise


def _reached(file: DataFile, offsets: Mapping[Part, Sequence[Span]]) -> bool:
    low, high = file.offset_min, file.offset_max
    if low is None or high is None:
        return bool(offsets)
    return any(start <= high and end > low for spans in offsets.values() for start, end in spans)


def _left(
    to: Destination, path: str, offsets: Mapping[Part, Sequence[Span]], now: datetime
) -> tuple[bool, StagedFile | None]:
    """Write the rows of a file that stay, if some go. Returns whether some do, and the new file, if rows stay."""
    with open_file(to.store, path) as source:
        file = pq.ParquetFile(source)
        going = sum(int(_going(batch, offsets).sum()) for batch in _batches(file, ["_offset"]))
        if going in (0, file.metadata.num_rows):
            return going > 0, None
        target, sink = to.open(())
        writer = parquet_writer(sink, file.schema_arrow)
        try:
            for batch in _batches(file, None):
                writer.write_batch(batch.filter(pa.array(~_going(batch, offsets))))
            writer.close()
            metadata, size = writer.writer.metadata, sink.tell()
        finally:
            let_go(writer, sink)
    return True, StagedFile(target, (), metadata.num_rows, size, delta_statistics(metadata), now, now, {})


def _batches(file: pq.ParquetFile, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    place = ["_topic", "_incarnation", "_partition"]
    yield from file.iter_batches(_ROWS_AT_ONCE, columns=None if columns is None else [*place, *columns])


def _going(batch: pa.RecordBatch, offsets: Mapping[Part, Sequence[Span]]) -> np.ndarray:
    """Tell of each row whether it goes."""
    return np.asarray(np.logical_or.reduce([among(batch, part, spans) for part, spans in offsets.items()]))
