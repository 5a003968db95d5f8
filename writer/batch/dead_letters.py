"""Builds dead letters: records that could not become rows, with their bytes and the reason, for a later replay."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema
from headrace.writer.batch.staging.parquet_files import Destination, OpenFile
from headrace.writer.batch.task_report import FailedRecords
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import Source
from headrace.writer.framing.wire_format import HEADERS, int64_id
from headrace.writer.privacy.record_sealing import RecordSealing

DEAD_LETTERS = pa.schema(
    [
        *PROVENANCE,
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int64()),
        # dead_letter: no row, or late; quarantined: its time is not believable.
        pa.field("outcome", pa.string()),
        pa.field("error", pa.string()),
        # Filled where the wire format needs them, because they may hold the schema id.
        pa.field("headers", HEADERS),
    ]
)
_FLUSH_BYTES = 16 * 2**20
# Of a task; random bytes look like as many schema ids.
_FAILURE_KINDS_MAX = 20


class DeadLetterFile:
    """A task's file of records that could not become rows, with the columns of the dead-letter table."""

    def __init__(
        self,
        destination: Destination,
        incarnations: Mapping[str, int],
        now: datetime,
        sealing: RecordSealing | None = None,
    ) -> None:
        """`sealing`: how their bytes are kept; None: as they are."""
        self._sealing = sealing
        self._destination = destination
        self._incarnations = incarnations
        self._now = now
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._file: OpenFile | None = None
        # Counted when the rows are written.
        self.counts: Counter[tuple[Source, str]] = Counter()
        self._failed_records: dict[tuple[str, int | None], FailedRecords] = {}

    def add(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take records with `reason(row)` for each."""
        if records.num_rows == 0:
            return
        count = records.num_rows
        columns = {
            "_topic": records.column("topic"),
            "_incarnation": incarnation_column(records, self._incarnations),
            "_partition": records.column("partition"),
            "_offset": records.column("offset"),
            "_kafka_time": records.column("timestamp").cast(schema.TIMESTAMP),
            "key": records.column("key"),
            "value": records.column("value"),
            "schema_id": pa.repeat(pa.scalar(int64_id(schema_id), pa.int64()), count),
            "outcome": pa.repeat(outcome, count),
            "error": pa.array([reason(row) for row in range(count)], pa.string()),
            "headers": _headers(records),
        }
        table = pa.table(columns, schema=DEAD_LETTERS)
        if self._sealing is not None:
            table = self._sealing.seal(table)
        self._count(outcome, schema_id, records, reason)
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes > _FLUSH_BYTES:
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
        return sorted(self._failed_records.values(), key=lambda failed: -failed.records)[:_FAILURE_KINDS_MAX]

    def _count(self, outcome: str, schema_id: int | None, records: pa.Table, reason: Callable[[int], str]) -> None:
        """Add records to those that they are like; remember the first one's reason and place."""
        failed = self._failed_records.get((outcome, schema_id))
        if failed is None:
            topic, partition, offset = (records.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
            failed = FailedRecords(outcome, schema_id, 0, reason(0), topic, partition, offset)
        self._failed_records[outcome, schema_id] = replace(failed, records=failed.records + records.num_rows)

    def abandon(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.discard()
        self._destination.remove()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        self._bytes = 0
        self._file = self._file or OpenFile(self._destination, (), rows)
        self._file.write(rows)
        groups = rows.group_by(["_topic", "_partition", "outcome"], use_threads=False).aggregate([([], "count_all")])
        # One turn a partition.
        for row in groups.to_pylist():
            outcome = "quarantined" if row["outcome"] == "quarantined" else "dead_letters"
            self.counts[(row["_topic"], row["_partition"]), outcome] += row["count_all"]


def incarnation_column(records: pa.Table, incarnations: Mapping[str, int]) -> pa.Array:
    """Return the incarnation of each record's topic."""
    topics = pa.array(list(incarnations), pa.string())
    positions = pc.index_in(records.column("topic"), value_set=topics).combine_chunks()
    return pa.array(list(incarnations.values()), pa.int32()).take(positions)


def _headers(records: pa.Table) -> pa.Array:
    if "headers" not in records.column_names:
        return pa.nulls(records.num_rows, HEADERS)
    return records.column("headers").cast(HEADERS)
