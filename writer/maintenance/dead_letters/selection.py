"""Selects, groups and shows dead letters for `headrace dlq`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.lateness import LATE
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.staging.table_file import TableFile
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetSet, Span
from headrace.writer.storage.base import Store
from headrace.writer.table.row_removal import mask_offsets

_ROWS_AT_ONCE = 1_000


class DeadLettersGone(HeadraceError, FileNotFoundError):
    """A file of dead letters does not exist any more: it was removed, or a replay rewrote it, since it was listed."""


@dataclass(frozen=True)
class Selection:
    """Which dead letters are meant; what is None does not matter."""

    # One of dead_letter and quarantined.
    outcome: str | None = None
    # A part of it, case ignored.
    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    offsets: Span | None = None
    schema_id: int | None = None
    # By the broker's time.
    since: datetime | None = None
    until: datetime | None = None
    # Only those at these offsets.
    within: OffsetSet | None = None
    # None that was only late.
    without_late: bool = False

    def filter(self, dead_letters: pa.RecordBatch) -> pa.RecordBatch:
        """Return those that are meant."""
        masks = [*self._equality_masks(dead_letters), *self._range_masks(dead_letters)]
        if self.reason is not None:
            masks.append(pc.match_substring(dead_letters.column("error"), self.reason, ignore_case=True))
        if self.within is not None:
            masks.append(pa.array(mask_offsets(dead_letters, self.within)))
        if self.without_late:
            is_late = pc.starts_with(dead_letters.column("error"), LATE)
            masks.append(pc.invert(pc.fill_null(is_late, False)))
        if not masks:
            return dead_letters
        return dead_letters.filter(reduce(pc.and_, masks))

    def _equality_masks(self, dead_letters: pa.RecordBatch) -> Iterator[pa.Array]:
        values = {
            "outcome": self.outcome,
            "_topic": self.topic,
            "_partition": self.partition,
            "schema_id": self.schema_id,
        }
        for name, value in values.items():
            if value is not None:
                yield pc.equal(dead_letters.column(name), value)

    def _range_masks(self, dead_letters: pa.RecordBatch) -> Iterator[pa.Array]:
        offsets = dead_letters.column("_offset")
        times = dead_letters.column("_kafka_time")
        if self.offsets is not None:
            yield pc.and_(pc.greater_equal(offsets, self.offsets[0]), pc.less(offsets, self.offsets[1]))
        if self.since is not None:
            yield pc.greater_equal(times, pa.scalar(self.since, times.type))
        if self.until is not None:
            yield pc.less(times, pa.scalar(self.until, times.type))


def read_dead_letters(
    store: Store,
    files: Sequence[BucketFile],
    selection: Selection,
    *,
    without: OffsetSet | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the chosen dead letters, a small batch at a time; `without`: offsets that are left out."""
    columns = columns or DEAD_LETTERS.names
    for file in files:
        if selection.offsets is not None and not file.reaches(*selection.offsets):
            continue
        with _open_file(store, file) as source:
            names = [name for name in columns if name in source.names]
            for batch in source.iter_batches(_ROWS_AT_ONCE, names):
                dead_letters = selection.filter(_cast_columns(batch, columns))
                if without:
                    is_left_out = mask_offsets(dead_letters, without)
                    dead_letters = dead_letters.filter(pa.array(~is_left_out))
                if dead_letters.num_rows:
                    yield dead_letters


@contextmanager
def _open_file(store: Store, file: BucketFile) -> Iterator[TableFile]:
    try:
        with table_file.open_parquet(store, file.path) as source:
            yield source
    except FileNotFoundError as error:
        raise DeadLettersGone(
            f"{store.path(file.path)} is gone, and the table names it. Restore it; without it the "
            "dead letters that it held are lost."
        ) from error


def split_by_incarnation(dead_letters: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each incarnation of the topics with its dead letters: a task has one of each topic."""
    for incarnation in pc.unique(dead_letters.column("_incarnation")).to_pylist():
        yield incarnation, dead_letters.filter(pc.equal(dead_letters.column("_incarnation"), incarnation))


def to_records(dead_letters: pa.Table) -> pa.Table:
    """Return dead letters as the records that a task got."""
    names = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_kafka_time": "timestamp"}
    same_names = ["key", "value", "headers"]
    return dead_letters.select([*names, *same_names]).rename_columns([*names.values(), *same_names])


def _cast_columns(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Give dead letters the table's types, by any writer of the file; null where it lacks a column."""
    columns = []
    for name in names:
        column_type = DEAD_LETTERS.field(name).type
        if name in batch.schema.names:
            columns.append(batch.column(name).cast(column_type))
        else:
            columns.append(pa.nulls(batch.num_rows, column_type))
    return pa.record_batch(columns, names=list(names))
