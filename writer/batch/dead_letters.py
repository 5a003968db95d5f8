"""Builds dead letters: records that could not become rows, with their bytes and the reason, for a later replay."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from writer.avro import schema
from writer.avro.schema_plan import PROVENANCE
from writer.avro.wire_format import HEADERS, int64_id
from writer.batch.staging.parquet_files import Destination, OpenFile
from writer.batch.task_report import FailedRecords
from writer.core.files import StagedFile
from writer.core.offsets import Source
from writer.privacy.record_sealing import RecordSealing

DEAD_LETTERS = pa.schema(
    [
        *PROVENANCE,
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int64()),
        pa.field("outcome", pa.string()),  # dead_letter: no row, or late; quarantined: its time is not believable
        pa.field("error", pa.string()),
        pa.field("headers", HEADERS),  # where the wire format needs them: an id may stand there
    ]
)
_DEAD_FLUSH_BYTES = 16 * 2**20
_POISON_KINDS_MAX = 20  # of a task; random bytes look like as many schema ids


class DeadLetterFile:
    """A task's file of records that could not become rows, with the columns of the dead-letter table."""

    def __init__(
        self, destination: Destination, incarnations: Mapping[str, int], now: datetime,
        sealing: RecordSealing | None = None,
    ) -> None:  # fmt: skip
        """`sealing`: how their bytes are kept; None: as they are."""
        self._sealing = sealing
        self._to, self._incarnations, self._now = destination, incarnations, now
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._file: OpenFile | None = None
        self.counts: Counter[tuple[Source, str]] = Counter()  # filled when the rows are written
        self._alike: dict[tuple[str, int | None], FailedRecords] = {}

    def add(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take records with `reason(row)` for each."""
        if records.num_rows == 0:
            return
        size = records.num_rows
        columns = [
            records.column("topic"), incarnation_column(records, self._incarnations), records.column("partition"),
            records.column("offset"), records.column("timestamp").cast(schema.TIMESTAMP), records.column("key"),
            records.column("value"), pa.repeat(pa.scalar(int64_id(schema_id), pa.int64()), size),
            pa.repeat(outcome, size), pa.array([reason(i) for i in range(size)], pa.string()),
            _headers(records),
        ]  # fmt: skip
        table = pa.table(columns, schema=DEAD_LETTERS)
        table = table if self._sealing is None else self._sealing.sealed(table)
        self._count(outcome, schema_id, records, reason)
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes > _DEAD_FLUSH_BYTES:
            self._flush()

    def finish(self) -> list[StagedFile]:
        """Complete the file, if there is one."""
        self._flush()
        if self._file is None:
            return []
        self._file.close()
        return [self._file.staged_file(self._now, self._now)]

    def failed_records(self) -> list[FailedRecords]:
        """What came here, most first, as far as it helps to find what is wrong."""
        return sorted(self._alike.values(), key=lambda alike: -alike.records)[:_POISON_KINDS_MAX]

    def _count(self, outcome: str, schema_id: int | None, records: pa.Table, reason: Callable[[int], str]) -> None:
        """Add records to those that they are like; remember the first one's reason and place."""
        alike = self._alike.get((outcome, schema_id))
        if alike is None:
            topic, partition, offset = (records.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
            alike = FailedRecords(outcome, schema_id, 0, reason(0), topic, partition, offset)
        self._alike[outcome, schema_id] = replace(alike, records=alike.records + records.num_rows)

    def abandon(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.discard()
        self._to.remove()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._bytes = [], 0
        self._file = self._file or OpenFile(self._to, (), rows)
        self._file.write(rows)
        written = rows.group_by(["_topic", "_partition", "outcome"], use_threads=False).aggregate([([], "count_all")])
        for row in written.to_pylist():  # one turn a partition
            outcome = "quarantined" if row["outcome"] == "quarantined" else "dead_letters"
            self.counts[(row["_topic"], row["_partition"]), outcome] += row["count_all"]


def incarnation_column(records: pa.Table, incarnations: Mapping[str, int]) -> pa.Array:
    """Return the incarnation of each record's topic."""
    at = pc.index_in(records.column("topic"), value_set=pa.array(list(incarnations), pa.string())).combine_chunks()
    return pa.array(list(incarnations.values()), pa.int32()).take(at)


def _headers(records: pa.Table) -> pa.Array:
    if "headers" not in records.column_names:
        return pa.nulls(records.num_rows, HEADERS)
    return records.column("headers").cast(HEADERS)
