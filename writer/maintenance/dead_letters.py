"""Selects, groups and shows dead letters for `headrace dlq`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.batch.dead_letters import DEAD_LETTERS
from writer.batch.lateness import LATE
from writer.batch.staging import table_file
from writer.batch.staging.table_file import TableFile
from writer.core.errors import HeadraceError
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition
from writer.storage.base import Store
from writer.table.row_removal import Offsets, mask_offsets, mask_partition_offsets, spans_of

_ROWS_AT_ONCE = 1_000
_PLACE = ("_topic", "_incarnation", "_partition")


class DeadLettersGone(HeadraceError, FileNotFoundError):
    """A file of dead letters does not exist any more: it was removed, or a replay rewrote it, since it was listed."""


@dataclass(frozen=True)
class Selection:
    """Which dead letters are meant; what is None does not matter."""

    outcome: str | None = None  # dead_letter, quarantined
    reason: str | None = None  # part of it, case ignored
    topic: str | None = None
    partition: int | None = None
    offsets: Span | None = None
    schema_id: int | None = None
    since: datetime | None = None  # by the broker's time
    until: datetime | None = None
    within: Offsets | None = None  # at these offsets
    without_late: bool = False  # none that was only late

    def of(self, dead_letters: pa.RecordBatch) -> pa.RecordBatch:
        """Return those that are meant."""
        equal = {
            "outcome": self.outcome, "_topic": self.topic, "_partition": self.partition, "schema_id": self.schema_id,
        }  # fmt: skip
        kept = [pc.equal(dead_letters.column(name), value) for name, value in equal.items() if value is not None]
        if self.reason is not None:
            kept.append(pc.match_substring(dead_letters.column("error"), self.reason, ignore_case=True))
        if self.offsets is not None:
            at = dead_letters.column("_offset")
            kept.append(pc.and_(pc.greater_equal(at, self.offsets[0]), pc.less(at, self.offsets[1])))
        if self.within is not None:
            kept.append(pa.array(mask_offsets(dead_letters, self.within)))
        if self.without_late:
            kept.append(pc.invert(pc.fill_null(pc.starts_with(dead_letters.column("error"), LATE), False)))
        times = dead_letters.column("_kafka_time")
        if self.since is not None:
            kept.append(pc.greater_equal(times, pa.scalar(self.since, times.type)))
        if self.until is not None:
            kept.append(pc.less(times, pa.scalar(self.until, times.type)))
        return dead_letters.filter(reduce(pc.and_, kept)) if kept else dead_letters


def read(
    store: Store,
    files: Sequence[BucketFile],
    selection: Selection,
    *,
    without: Mapping[TopicPartition, Sequence[Span]] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the chosen dead letters, a small batch at a time; `without`: offsets that are left out."""
    for file in files:
        if selection.offsets is not None and not file.reaches(*selection.offsets):
            continue
        with _opened(store, file) as source:
            there = [name for name in columns or DEAD_LETTERS.names if name in source.names]
            for batch in source.iter_batches(_ROWS_AT_ONCE, there):
                found = selection.of(_shaped(batch, columns or DEAD_LETTERS.names))
                for part, spans in (without or {}).items():
                    found = found.filter(pa.array(~mask_partition_offsets(found, part, spans)))
                if found.num_rows:
                    yield found


@contextmanager
def _opened(store: Store, file: BucketFile) -> Iterator[TableFile]:
    try:
        with table_file.open_parquet(store, file.path) as found:
            yield found
    except FileNotFoundError as error:
        raise DeadLettersGone(
            f"{store.path(file.path)} is gone, and the table names it. Restore it; without it the "
            "dead letters that it held are lost."
        ) from error


def as_read(dead_letters: pa.Table) -> pa.Table:
    """Return dead letters as the records that a task got."""
    names = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_kafka_time": "timestamp"}
    kept = ["key", "value", "headers"]
    return dead_letters.select([*names, *kept]).rename_columns([*names.values(), *kept])


def _shaped(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Give dead letters the table's types, by any writer of the file; null where it lacks a column."""
    columns = [
        batch.column(name).cast(DEAD_LETTERS.field(name).type)
        if name in batch.schema.names
        else pa.nulls(batch.num_rows, DEAD_LETTERS.field(name).type)
        for name in names
    ]
    return pa.record_batch(columns, names=list(names))


def places(dead_letters: pa.Table | pa.RecordBatch) -> dict[TopicPartition, list[Span]]:
    """Return the offsets of dead letters, as ranges by partition."""
    found: dict[TopicPartition, list[Span]] = {}
    listed = pa.table(dead_letters.select([*_PLACE, "_offset"])).group_by(list(_PLACE), use_threads=False)
    for row in listed.aggregate([("_offset", "list")]).to_pylist():  # one turn a part
        part = TopicPartition(*(row[name] for name in _PLACE))
        found[part] = spans_of(np.array(row["_offset_list"], np.int64))
    return found
