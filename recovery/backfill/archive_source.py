"""Reads a gap's records from an archive: by the offsets of its rows, or by their event time.

With offsets it is exact: a row settles its own offset, and what the archive does not hold stays open. Without, rows
whose event time lies where the gap's may, each once by a key: about right, and the gap record says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from bucketers.timestamps import kafka_times
from recovery.backfill.archive_files import File, files, partitions
from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.source import Chunk, Source, SourceFailed, in_full
from writer.avro.schema_plan import SchemaPlan
from writer.avro.wire_format import HEADERS
from writer.batch.bucketing import TimeRule, times_of
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetRange, Span, TopicPartition, joined
from writer.maintenance.local_pipeline import Piece
from writer.table.ledger.gap_record import EventTimeHint, GapRecord
from writer.table.row_removal import mask_spans, spans_of

_ROLES = ("topic", "partition", "offset", "time", "key", "value", "headers", "incarnation")
_OURS = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "time": "_kafka_time",
         "incarnation": "_incarnation"}  # fmt: skip
_KAFKAS = {"topic": "topic", "partition": "partition", "offset": "offset", "time": "timestamp", "key": "key",
           "value": "value", "headers": "headers"}  # fmt: skip
_TIMES = pa.timestamp("us", "UTC")


def opened(
    filling: BackfilledTable, gap_record: GapRecord, locations: Sequence[str], columns: str | None, by_time: str | None
) -> Source:
    """Open an archive. Raises ConfigError if its rows cannot be identified with these columns."""
    found = files(locations, filling.config.s3.settings)
    name = f"archive {','.join(locations)}"
    beside = filling.walk.schemas.record_columns.schema
    if by_time is not None:
        _check_privacy(filling)
        filling.config.one_table(filling.name)
        keys = [key.strip() for key in by_time.split(",") if key.strip()]
        hints = gap_record.opened.hints if gap_record.opened else ()
        topic = filling.settings.topics.among(filling.table.snapshot().incarnations())[0]
        return ArchiveByEventTime(
            name, found, keys, hints, filling.walk.time_rule, topic, dict(gap_record.through), beside
        )
    head = next(iter(found[0].batches()), pa.table({}))
    roles = columns_of(head.schema.names, columns)
    if "value" not in roles:
        _check_privacy(filling)
        filling.config.one_table(filling.name)
    parts = {r.part for r in (gap_record.opened.ranges if gap_record.opened else ())}
    if "topic" not in roles and len({part.topic for part in parts}) > 1:
        raise ConfigError("the gap has several topics; say with --columns topic=... which column names the topic")
    return ArchiveByOffset(name, found, roles, beside)


def _check_privacy(filling: BackfilledTable) -> None:
    """Raise ConfigError where rows that are decoded already would come past the privacy policies."""
    if filling.settings.privacy is not None:
        raise ConfigError(
            f"the archive's rows are decoded already, and pipeline {filling.name!r} has privacy policies, which are "
            "for records as they come from Kafka. Take an archive with the records' values, or --from-kafka."
        )


def of_records(filling: BackfilledTable, locations: Sequence[str], columns: str | None) -> Source:
    """Open an archive of whole records: with key, value and time, and headers where rows are made of them too.

    Raises ConfigError for one that lacks a column.
    """
    found = files(locations, filling.config.s3.settings)
    head = next(iter(found[0].batches()), pa.table({}))
    roles = columns_of(head.schema.names, columns)
    needed = ["topic", "key", "value", "time", *(["headers"] if filling.walk.needs_headers else [])]
    if missing := [role for role in needed if role not in roles]:
        raise ConfigError(
            f"the archive {', '.join(locations)} has no column of the {missing[0]} of records; rows that are made anew "
            f"would lose it. Name it with --columns {missing[0]}=..., or take --from kafka or --from raw"
        )
    several = [topic for topic, ids in filling.table.snapshot().incarnations().items() if len(ids) > 1]
    if several and "incarnation" not in roles:
        raise ConfigError(
            f"the archive {', '.join(locations)} does not say of which incarnation of topic {several[0]!r} its "
            "records are, and that was created again: an offset means several records. Give it a column of the numbers "
            "in _incarnation and name that with --columns incarnation=..., or take --from raw"
        )
    name = f"archive {','.join(locations)}"
    return ArchiveByOffset(name, found, roles, filling.walk.schemas.record_columns.schema)


def columns_of(names: Sequence[str], option: str | None) -> dict[str, str]:
    """Return the column of each role: as given, or as headrace's tables or Spark's Kafka source name them."""
    if option is None:
        for known in (_OURS, _KAFKAS):
            if all(known[role] in names for role in ("partition", "offset")):
                return {role: name for role, name in known.items() if name in names}
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
    spans: dict[TopicPartition, list[Span]] = field(default_factory=dict)
    count: int = 0


class ArchiveByOffset:
    """An archive whose rows carry their offsets: exact. With a value it holds records, else decoded rows."""

    def __init__(self, name: str, found: Sequence[File], roles: Mapping[str, str], beside: pa.Schema) -> None:
        """`roles`: role → column of the archive. `beside`: the table's columns of keys and headers."""
        self.name, self._files, self._roles, self._beside = name, found, dict(roles), beside

    def available(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the offsets that it holds. Reads all of it."""
        spans: dict[TopicPartition, list[Span]] = {}
        for file in self._files:
            for batch in file.batches():
                for part, rows in self._by_part(batch, wanted, spans):
                    offsets = rows.column(self._roles["offset"]).cast(pa.int64()).to_numpy()
                    spans[part] = joined([*spans.get(part, []), *spans_of(offsets)])
        return [OffsetRange(part, *span) for part, found in spans.items() for span in found]

    def chunks(self, left: Callable[[], Sequence[OffsetRange]], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks partition by partition; none reaches over two."""
        for _, found in partitions(self._files):
            held = _ChunkRows()
            for file in found:
                for batch in file.batches():
                    for part, rows in self._by_part(batch, left(), held.spans):
                        for at in range(0, rows.num_rows, rows_max):
                            self._hold(held, part, rows.slice(at, rows_max))
                            if held.count >= rows_max:
                                yield self._chunk(held)
                                held = _ChunkRows()
            if held.count:
                yield self._chunk(held)

    def _by_part(
        self, batch: pa.Table, wanted: Sequence[OffsetRange], taken: Mapping[TopicPartition, Sequence[Span]]
    ) -> Iterator[tuple[TopicPartition, pa.Table]]:
        """Yield the rows of a batch that are wanted and not taken yet, part by part, each offset once, in order."""
        spans: dict[TopicPartition, list[Span]] = {}
        for r in wanted:
            spans.setdefault(r.part, []).append((r.start, r.end))
        partition = batch.column(self._roles["partition"]).cast(pa.int64())
        offset = batch.column(self._roles["offset"]).cast(pa.int64()).to_numpy()
        for part, open_ in spans.items():
            mine = pc.equal(partition, part.partition)
            if "topic" in self._roles:
                mine = pc.and_(mine, pc.equal(batch.column(self._roles["topic"]).cast(pa.string()), part.topic))
            if "incarnation" in self._roles:
                mine = pc.and_(mine, pc.equal(batch.column(self._roles["incarnation"]), part.incarnation))
            keep = pc.fill_null(mine, False).to_numpy(zero_copy_only=False) & mask_spans(offset, open_)
            if taken.get(part):
                keep &= ~mask_spans(offset, taken[part])
            at = np.flatnonzero(keep)
            _, first = np.unique(offset[at], return_index=True)
            if len(first):
                yield part, batch.take(pa.array(at[first]))

    def _hold(self, held: _ChunkRows, part: TopicPartition, rows: pa.Table) -> None:
        table = _named(rows, part, self._roles)
        held.records.append(table)
        held.spans[part] = joined([*held.spans.get(part, []), *spans_of(table.column("offset").to_numpy())])
        held.count += rows.num_rows

    def _chunk(self, held: _ChunkRows) -> Chunk:
        return Chunk(held.spans, partial(self._read, held.records), in_full)

    def _read(self, held: Sequence[pa.Table], plan: SchemaPlan) -> Iterator[Piece]:
        for table in held:
            names = ["topic", "partition", "offset", "timestamp", "key", "value"]
            records = table.select([*names, *(["headers"] if "headers" in self._roles else [])])
            (batch,) = records.combine_chunks().to_batches()
            if "value" in self._roles:
                yield Piece(batch)
            else:
                yield Piece(batch, conformed(table, plan, self._beside))


def _named(rows: pa.Table, part: TopicPartition, roles: Mapping[str, str]) -> pa.Table:
    """Return rows with the columns of a record in front of their own."""
    count = rows.num_rows
    times = _instants(contiguous(rows.column(roles["time"]))) if "time" in roles else pa.nulls(count, _TIMES)
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    made = {
        "topic": pa.repeat(part.topic, count), "partition": pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        "offset": rows.column(roles["offset"]).cast(pa.int64()), "timestamp": times,
        "key": rows.column(roles["key"]).cast(pa.binary()) if "key" in roles else pa.nulls(count, pa.binary()),
        "value": rows.column(roles["value"]).cast(pa.binary()) if "value" in roles else empty,
    }  # fmt: skip
    if "headers" in roles:
        made["headers"] = rows.column(roles["headers"]).cast(HEADERS)
    rest = {} if "value" in roles else {f"row {name}": rows.column(name) for name in rows.column_names}
    return pa.table({**made, **rest})


def conformed(table: pa.Table, plan: SchemaPlan, beside: pa.Schema) -> pa.Table:
    """Give decoded rows exactly the plan's columns; those that the archive lacks are null. Raises SourceFailed.

    And those of keys and headers, where the archive has one of them: it is a copy of such a table.
    """
    is_copy = any(f"row {name}" in table.column_names for name in beside.names)
    schema = pa.schema([*plan.columns, *(beside if is_copy else [])])
    columns = []
    for column in schema:
        name = f"row {column.name}"
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
    """An archive that knows no offsets: rows where the gap's may be in event time, each once by its keys."""

    def __init__(
        self, name: str, found: Sequence[File], keys: Sequence[str], hints: Sequence[EventTimeHint], rule: TimeRule,
        topic: str, through: Mapping[str, str], beside: pa.Schema,
    ) -> None:  # fmt: skip
        """`through`: partitions that are whole already, by the name of the archive. `beside`: as ByOffset's."""
        self.name, self._files, self._keys, self._hints = name, found, list(keys), list(hints)
        self._rule, self._topic, self._through, self._beside = rule, topic, through.get(name), beside
        if not hints:
            raise ConfigError("the gap says nothing of event times, so no row of an archive can be told to be its")
        if not keys:
            raise ConfigError("--by-time needs the columns that tell one event from another")

    def available(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return all wanted offsets, because an archive by event time does not know them."""
        return list(wanted)

    def chunks(self, left: Callable[[], Sequence[OffsetRange]], rows_max: int) -> Iterator[Chunk]:  # noqa: ARG002
        """Yield chunks partition by partition, and one at the end that closes the gap record."""
        for partition, found in partitions(self._files):
            if self._through is not None and partition <= self._through:
                continue
            held: list[pa.Table] = []
            for file in found:
                for batch in file.batches():
                    held.append(batch)
                    if sum(table.num_rows for table in held) >= rows_max:
                        yield self._chunk(held, "")
                        held = []
            yield self._chunk(held, partition)
        yield Chunk({}, lambda _: iter(()), in_full, self._keys, last=True)

    def _chunk(self, held: Sequence[pa.Table], through: str) -> Chunk:
        return Chunk({}, partial(self._read, held), in_full, self._keys, through=through)

    def _read(self, held: Sequence[pa.Table], plan: SchemaPlan) -> Iterator[Piece]:
        if absent := [key for key in self._keys if key not in plan.columns.names]:
            raise ConfigError(f"--by-time: the table has no column {absent[0]!r}")
        for table in held:
            rows = conformed(table.rename_columns([f"row {name}" for name in table.column_names]), plan, self._beside)
            times, _ = times_of(rows, self._rule, pa.repeat(self._topic, rows.num_rows))
            mine = pa.repeat(pa.scalar(value=False), rows.num_rows)
            for hint in self._hints:
                within = pc.less(times, pa.scalar(hint.end, times.type))
                if hint.start is not None:
                    within = pc.and_(within, pc.greater_equal(times, pa.scalar(hint.start, times.type)))
                mine = pc.or_(mine, pc.fill_null(within, False))
            kept = rows.filter(mine)
            nothing = pa.RecordBatch.from_pydict({"timestamp": pa.nulls(kept.num_rows, _TIMES)})
            yield Piece(nothing, kept)


def _instants(values: pa.Array) -> pa.Array:
    """Read broker times: timestamps of any unit, or milliseconds since 1970 as Kafka has them."""
    if pa.types.is_integer(values.type):
        return kafka_times(values.cast(pa.int64()))
    if pa.types.is_timestamp(values.type):
        # Without a zone it is UTC; with one, the number counts in UTC as well.
        return kafka_times(values.cast(pa.int64()), values.type.unit)
    return kafka_times(values.cast(_TIMES).cast(pa.int64()), "us")
