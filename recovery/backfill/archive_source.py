"""Reads a gap's records from an archive: by the offsets of its rows, or by their event time.

With offsets it is exact: a row settles its own offset, and what the archive does not hold stays open. Without, rows
whose event time lies where the gap's may, each once by a key: about right, and the gap record says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.bucketers.timestamps import kafka_times
from headrace.recovery.backfill.archive_files import File, files, partitions
from headrace.recovery.backfill.source import Chunk, Source, SourceFailed, confirm_every_record, share_reads
from headrace.writer.batch.bucketing import TimeRule, times_of
from headrace.writer.batch.task import Piece, Read
from headrace.writer.batch.task_process import decode_table, encode_table
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.table.ledger.gap_record import EventTimeHint, GapRecord
from headrace.writer.table.row_removal import mask_spans, spans_of

_ROLES = ("topic", "partition", "offset", "time", "key", "value", "headers", "incarnation")
# Columns by their role in headrace's tables.
_TABLE_COLUMNS = {
    "topic": "_topic",
    "partition": "_partition",
    "offset": "_offset",
    "time": "_kafka_time",
    "incarnation": "_incarnation",
}
# Columns by their role in Spark's Kafka source.
_SPARK_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "time": "timestamp",
    "key": "key",
    "value": "value",
    "headers": "headers",
}
# Stands before the columns of decoded rows, which may have names of a record's columns.
_ROW_PREFIX = "row "
_TIMES = pa.timestamp("us", "UTC")


def open_archive(
    record_table: RecordTable,
    gap_record: GapRecord,
    locations: Sequence[str],
    columns: str | None,
    by_time: str | None,
) -> Source:
    """Open an archive. Raises ConfigError if its rows cannot be identified with these columns.

    `columns`: as --columns has them. `by_time`: as --by-time has its keys.
    """
    archive_files = files(locations, record_table.config.stores)
    record_columns = record_table.pipeline.schemas.record_columns.schema
    if by_time is not None:
        _check_decoded_rows(record_table)
        return ArchiveByEventTime(
            _archive_name(locations),
            archive_files,
            [key.strip() for key in by_time.split(",") if key.strip()],
            gap_record.opened.hints if gap_record.opened else (),
            record_table.pipeline.time_rule,
            record_table.settings.topics.among(record_table.table.snapshot().incarnations())[0],
            dict(gap_record.through),
            record_columns,
        )
    roles = column_roles(_column_names(archive_files), columns)
    if "value" not in roles:
        _check_decoded_rows(record_table)
    topics = {r.part.topic for r in (gap_record.opened.ranges if gap_record.opened else ())}
    if "topic" not in roles and len(topics) > 1:
        raise ConfigError("the gap has several topics; say with --columns topic=... which column names the topic")
    return ArchiveByOffset(_archive_name(locations), archive_files, roles, record_columns)


def _check_decoded_rows(record_table: RecordTable) -> None:
    """Raise ConfigError where rows that are decoded already cannot fill the table.

    They would come past the privacy policies, or no route says which table they are of.
    """
    if record_table.settings.privacy is not None:
        raise ConfigError(
            f"the archive's rows are decoded already, and pipeline {record_table.name!r} has privacy policies, "
            "which are for records as they come from Kafka. Take an archive with the records' values, or --from-kafka."
        )
    record_table.config.one_table(record_table.name)


def open_record_archive(record_table: RecordTable, locations: Sequence[str], columns: str | None) -> Source:
    """Open an archive of complete records: with key, value and time, and headers where rows are made of them too.

    Raises ConfigError for one that lacks a column.
    """
    archive_files = files(locations, record_table.config.stores)
    roles = column_roles(_column_names(archive_files), columns)
    needed = ["topic", "key", "value", "time"]
    if record_table.pipeline.needs_headers:
        needed.append("headers")
    missing = [role for role in needed if role not in roles]
    if missing:
        raise ConfigError(
            f"the archive {', '.join(locations)} has no column of the {missing[0]} of records; rows that are made anew "
            f"would lose it. Name it with --columns {missing[0]}=..., or take --from kafka or --from raw"
        )
    incarnations = record_table.table.snapshot().incarnations()
    recreated_topics = [topic for topic, ids in incarnations.items() if len(ids) > 1]
    if recreated_topics and "incarnation" not in roles:
        raise ConfigError(
            f"the archive {', '.join(locations)} does not say of which incarnation of topic {recreated_topics[0]!r} "
            "its records are, and that was created again: an offset means several records. Give it a column of the "
            "numbers in _incarnation and name that with --columns incarnation=..., or take --from raw"
        )
    record_columns = record_table.pipeline.schemas.record_columns.schema
    return ArchiveByOffset(_archive_name(locations), archive_files, roles, record_columns)


def _archive_name(locations: Sequence[str]) -> str:
    return f"archive {','.join(locations)}"


def _column_names(archive_files: Sequence[File]) -> list[str]:
    """Return the columns of an archive, by its first file; none where that is empty."""
    first = next(archive_files[0].batches(), None)
    return [] if first is None else list(first.column_names)


def column_roles(names: Sequence[str], option: str | None) -> dict[str, str]:
    """Return the column of each role: as given, or as headrace's tables or Spark's Kafka source name them.

    `option`: as --columns has it. Raises ConfigError.
    """
    if option is None:
        for columns in (_TABLE_COLUMNS, _SPARK_COLUMNS):
            if columns["partition"] in names and columns["offset"] in names:
                return {role: name for role, name in columns.items() if name in names}
        raise ConfigError(
            f"the archive has no offsets that can be recognised among its columns {', '.join(names)}. Say which with "
            "--columns partition=...,offset=..., or let --by-time bring rows by their event time."
        )
    roles = dict(pair.strip().partition("=")[::2] for pair in option.split(","))
    if odd := [role for role in roles if role not in _ROLES]:
        raise ConfigError(f"--columns: {odd[0]!r} is none of {', '.join(_ROLES)}")
    if missing := [role for role in ("partition", "offset") if role not in roles]:
        raise ConfigError(f"--columns does not say which column is the {missing[0]}")
    if absent := [name for name in roles.values() if name not in names]:
        raise ConfigError(f"--columns: the archive has no column {absent[0]!r}; it has {', '.join(names)}")
    return roles


@dataclass
class _ChunkRows:
    """Rows for one chunk."""

    records: list[pa.Table] = field(default_factory=list)
    offsets: OffsetSet = field(default_factory=OffsetSet)
    count: int = 0

    def add(self, part: TopicPartition, records: pa.Table) -> None:
        """Take records of a part."""
        self.records.append(records)
        self.offsets |= OffsetSet({part: spans_of(records.column("offset").to_numpy())})
        self.count += records.num_rows


class ArchiveByOffset:
    """An archive whose rows carry their offsets: exact. With a value it holds records, else decoded rows."""

    def __init__(
        self, name: str, archive_files: Sequence[File], roles: Mapping[str, str], record_columns: pa.Schema
    ) -> None:
        """`roles`: role → column of the archive. `record_columns`: the table's columns of keys and headers."""
        self.name = name
        self._files = archive_files
        self._roles = dict(roles)
        self._record_columns = record_columns

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return the offsets that it holds. Reads all of it."""
        available = OffsetSet()
        for file in self._files:
            for batch in file.batches():
                for part, rows in self._rows_by_part(batch, wanted, available):
                    offsets = rows.column(self._roles["offset"]).cast(pa.int64()).to_numpy()
                    available |= OffsetSet({part: spans_of(offsets)})
        return available

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks partition by partition; none reaches over two."""
        for _, partition_files in partitions(self._files):
            chunk_rows = _ChunkRows()
            for file in partition_files:
                for batch in file.batches():
                    for part, rows in self._rows_by_part(batch, left(), chunk_rows.offsets):
                        for start in range(0, rows.num_rows, rows_max):
                            chunk_rows.add(part, _to_records(rows.slice(start, rows_max), part, self._roles))
                            if chunk_rows.count >= rows_max:
                                yield self._chunk(chunk_rows)
                                chunk_rows = _ChunkRows()
            if chunk_rows.count:
                yield self._chunk(chunk_rows)

    def _rows_by_part(
        self, batch: pa.Table, wanted: OffsetSet, taken: OffsetSet
    ) -> Iterator[tuple[TopicPartition, pa.Table]]:
        """Yield the rows of a batch that are wanted and not taken yet, part by part, each offset once, in order.

        With the offsets 7, 5, 9, 5 of a part, [0, 8) wanted and none taken, its rows are the second and the first.
        """
        partition = batch.column(self._roles["partition"]).cast(pa.int64())
        offsets = batch.column(self._roles["offset"]).cast(pa.int64()).to_numpy()
        for part, spans in wanted.items():
            is_of_part = pc.equal(partition, part.partition)
            if "topic" in self._roles:
                topic = batch.column(self._roles["topic"]).cast(pa.string())
                is_of_part = pc.and_(is_of_part, pc.equal(topic, part.topic))
            if "incarnation" in self._roles:
                incarnation = batch.column(self._roles["incarnation"])
                is_of_part = pc.and_(is_of_part, pc.equal(incarnation, part.incarnation))
            is_chosen = pc.fill_null(is_of_part, False).to_numpy(zero_copy_only=False) & mask_spans(offsets, spans)
            if part in taken:
                is_chosen &= ~mask_spans(offsets, taken[part])
            rows = np.flatnonzero(is_chosen)
            _, first = np.unique(offsets[rows], return_index=True)
            if len(first):
                yield part, batch.take(pa.array(rows[first]))

    def _chunk(self, chunk_rows: _ChunkRows) -> Chunk:
        return Chunk(chunk_rows.offsets, partial(self._split, chunk_rows.records), confirm_every_record)

    def _split(self, tables: Sequence[pa.Table], tasks: int) -> list[list[Read]]:
        has_headers = "headers" in self._roles
        has_values = "value" in self._roles
        return [
            [ArchiveRead(table, self._record_columns, has_headers=has_headers, has_values=has_values) for table in part]
            for part in cut_tables(tables, tasks)
        ]


@dataclass(frozen=True)
class ArchiveRead:
    """Hands over records that the command has read from an archive, in whichever process.

    `rows`: as `_to_records` returns them. `record_columns`: the table's columns of keys and headers.
    """

    rows: pa.Table
    record_columns: pa.Schema
    has_headers: bool
    has_values: bool

    def __call__(self, plan: SchemaPlan) -> Iterator[Piece]:
        """Yield the records; those without values with the rows that they are. Raises SourceFailed."""
        names = ["topic", "partition", "offset", "timestamp", "key", "value"]
        if self.has_headers:
            names.append("headers")
        (records,) = self.rows.select(names).combine_chunks().to_batches()
        if self.has_values:
            yield Piece(records)
        else:
            yield Piece(records, _cast_to_plan(self.rows, plan, self.record_columns))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rows": encode_table(self.rows)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, rows=decode_table(state["rows"]))


def cut_tables(tables: Sequence[pa.Table], parts: int) -> list[list[pa.Table]]:
    """Cut rows into so many parts of equal numbers of rows, in their order. None is empty.

    Tables of 5 and 1 rows become, in two parts, one of 3 rows, and ones of 2 rows and 1 row.
    """
    size = max(1, -(-sum(table.num_rows for table in tables) // parts))
    groups: list[list[pa.Table]] = []
    room = 0
    for table in tables:
        start = 0
        while start < table.num_rows:
            if not room:
                groups.append([])
                room = size
            part = table.slice(start, room)
            groups[-1].append(part)
            room -= part.num_rows
            start += part.num_rows
    return groups


def _to_records(rows: pa.Table, part: TopicPartition, roles: Mapping[str, str]) -> pa.Table:
    """Return an archive's rows as records of a part. Those without values have their own columns behind."""
    count = rows.num_rows
    records = {
        "topic": pa.repeat(part.topic, count),
        "partition": pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        "offset": rows.column(roles["offset"]).cast(pa.int64()),
        "timestamp": pa.nulls(count, _TIMES),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.repeat(pa.scalar(b"", pa.binary()), count),
    }
    if "time" in roles:
        records["timestamp"] = _to_timestamps(contiguous(rows.column(roles["time"])))
    if "key" in roles:
        records["key"] = rows.column(roles["key"]).cast(pa.binary())
    if "value" in roles:
        records["value"] = rows.column(roles["value"]).cast(pa.binary())
    if "headers" in roles:
        records["headers"] = rows.column(roles["headers"]).cast(HEADERS)
    if "value" not in roles:
        records |= {f"{_ROW_PREFIX}{name}": rows.column(name) for name in rows.column_names}
    return pa.table(records)


def _cast_to_plan(table: pa.Table, plan: SchemaPlan, record_columns: pa.Schema) -> pa.Table:
    """Give decoded rows exactly the plan's columns; those that the archive lacks are null. Raises SourceFailed.

    And those of keys and headers, where the archive has one of them: it is a copy of such a table.
    """
    is_copy = any(f"{_ROW_PREFIX}{name}" in table.column_names for name in record_columns.names)
    schema = pa.schema([*plan.columns, *(record_columns if is_copy else [])])
    columns = []
    for column in schema:
        name = f"{_ROW_PREFIX}{column.name}"
        if name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, column.type))
            continue
        values = table.column(name)
        try:
            columns.append(values if values.type == column.type else values.cast(column.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceFailed(
                f"column {column.name} is {values.type} in the archive, and cannot become the table's {column.type}: "
                f"{error}. Write the archive anew with that type, or bring its records with value=..."
            ) from error
    return pa.table(columns, schema=schema)


class ArchiveByEventTime:
    """An archive without offsets: rows where the gap's may be in event time, each once by its keys."""

    def __init__(
        self,
        name: str,
        archive_files: Sequence[File],
        keys: Sequence[str],
        hints: Sequence[EventTimeHint],
        rule: TimeRule,
        topic: str,
        through: Mapping[str, str],
        record_columns: pa.Schema,
    ) -> None:
        """`through`: partitions that are complete already, by the name of the archive.

        `record_columns`: the table's columns of keys and headers. Raises ConfigError.
        """
        self.name = name
        self._files = archive_files
        self._keys = list(keys)
        self._hints = list(hints)
        self._rule = rule
        self._topic = topic
        self._through = through.get(name)
        self._record_columns = record_columns
        if not hints:
            raise ConfigError("the gap says nothing of event times, so no row of an archive can be told to be its")
        if not keys:
            raise ConfigError("--by-time needs the columns that tell one event from another")

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return all wanted offsets, because an archive by event time does not have them."""
        return wanted

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:  # noqa: ARG002
        """Yield chunks partition by partition, and one at the end that closes the gap record."""
        for partition, partition_files in partitions(self._files):
            if self._through is not None and partition <= self._through:
                continue
            tables: list[pa.Table] = []
            for file in partition_files:
                for batch in file.batches():
                    tables.append(batch)
                    if sum(table.num_rows for table in tables) >= rows_max:
                        yield self._chunk(tables, "")
                        tables = []
            yield self._chunk(tables, partition)
        yield Chunk(OffsetSet(), share_reads([]), confirm_every_record, self._keys, last=True)

    def _chunk(self, tables: Sequence[pa.Table], through: str) -> Chunk:
        reads = share_reads([partial(self._read, tables)])
        return Chunk(OffsetSet(), reads, confirm_every_record, self._keys, through=through)

    def _read(self, tables: Sequence[pa.Table], plan: SchemaPlan) -> Iterator[Piece]:
        if absent := [key for key in self._keys if key not in plan.columns.names]:
            raise ConfigError(f"--by-time: the table has no column {absent[0]!r}")
        for table in tables:
            named_rows = table.rename_columns([f"{_ROW_PREFIX}{name}" for name in table.column_names])
            rows = _cast_to_plan(named_rows, plan, self._record_columns)
            times, _ = times_of(rows, self._rule, pa.repeat(self._topic, rows.num_rows))
            chosen_rows = rows.filter(self._is_hinted(times))
            no_records = pa.RecordBatch.from_pydict({"timestamp": pa.nulls(chosen_rows.num_rows, _TIMES)})
            yield Piece(no_records, chosen_rows)

    def _is_hinted(self, times: pa.Array) -> pa.Array:
        """Return for each event time whether the gap may have records of it. Without a time it has none."""
        is_hinted = pa.repeat(pa.scalar(value=False), len(times))
        for hint in self._hints:
            within = pc.less(times, pa.scalar(hint.end, times.type))
            if hint.start is not None:
                within = pc.and_(within, pc.greater_equal(times, pa.scalar(hint.start, times.type)))
            is_hinted = pc.or_(is_hinted, pc.fill_null(within, False))
        return is_hinted


def _to_timestamps(values: pa.Array) -> pa.Array:
    """Read broker times: timestamps of any unit, or milliseconds since 1970 as Kafka has them."""
    if pa.types.is_integer(values.type):
        return kafka_times(values.cast(pa.int64()))
    if pa.types.is_timestamp(values.type):
        # Without a zone it is UTC; with one, the number counts in UTC as well.
        return kafka_times(values.cast(pa.int64()), values.type.unit)
    return kafka_times(values.cast(_TIMES).cast(pa.int64()), "us")
