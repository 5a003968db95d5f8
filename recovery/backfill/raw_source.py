"""Reads a gap's records from a raw table: those that its files hold at the gap's offsets, day by day."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.backfill.source import Chunk, SourceFailed, confirm_every_record
from headrace.writer.batch.staging import table_file
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, group_by_bucket
from headrace.writer.core.offsets import OffsetSet, TopicPartition, cut_ranges
from headrace.writer.maintenance.local_pipeline import Piece
from headrace.writer.privacy.record_sealing import keys_of
from headrace.writer.table.log.foreign_writes import Overtaken, one_line
from headrace.writer.table.row_removal import OFFSET_COLUMNS, mask_offsets, offsets_by_partition, reaches_offsets
from headrace.writer.table.table import PipelineTable

_BATCH_ROWS = 25_000
# Columns of a raw table → columns of records, as Spark's Kafka source names them.
_KAFKA_NAMES = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_kafka_time": "timestamp",
    "timestamp_type": "timestampType",
    "key": "key",
    "value": "value",
    "headers": "headers",
}


class RawSource:
    """A raw table as a source. An offset that it does not have stays open."""

    def __init__(self, table: PipelineTable, *, own: bool, ids: Mapping[str, Sequence[str]] | None = None) -> None:
        """`own`: it is the raw table of the pipeline that is filled. `ids`: of the topics as that pipeline has them.

        Raises ConfigError where there is none.
        """
        self.name = f"raw {table.location}"
        self._table = table
        self._own = own
        self._ids = ids or {}
        # The version at which its files were listed.
        self._version = -1
        if not table.exists():
            raise ConfigError(
                f"--from-raw {table.location}: there is no table in the format of the pipeline's (table.format)."
            )

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return which of these offsets it has. Reads their places alone. Raises SourceFailed, Overtaken."""
        with self._explain_lost_files():
            return OffsetSet.union(self._wanted_offsets(file, wanted) for file in self._files(wanted))

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks of the days, oldest first; none reaches over two. Raises SourceFailed, Overtaken."""
        days = group_by_bucket(self._files(left()))
        for day in sorted(days, key=str):
            with self._explain_lost_files():
                offsets = OffsetSet.union(self._wanted_offsets(file, left()) for file in days[day])
            for chunk_ranges in cut_ranges(sorted(offsets.ranges(), key=attrgetter("part")), rows_max):
                spans = OffsetSet.of(chunk_ranges)
                yield Chunk(spans, partial(self._read, days[day], spans), confirm_every_record, raw=not self._own)

    def _files(self, wanted: OffsetSet) -> list[BucketFile]:
        snapshot = self._table.snapshot()
        # Also publishes files of an entry whose writer died.
        self._table.publish(snapshot.state.table_version)
        self._version = snapshot.version
        self._check_topics(wanted, snapshot.incarnations())
        files = self._table.bucket_files(snapshot)
        return [file for file in files if reaches_offsets(file, wanted)]

    def _check_topics(self, wanted: OffsetSet, raw_ids: Mapping[str, Sequence[str]]) -> None:
        """Raise SourceFailed where its log says that one number of an incarnation means two topics.

        `raw_ids`: ids of the topics by its log; none where its pipeline has not noted them.
        """
        if self._own:
            return
        for topic, number in sorted({(part.topic, part.incarnation) for part in wanted}):
            table_id = list(self._ids.get(topic, ()))[number - 1 : number]
            raw_id = list(raw_ids.get(topic, ()))[number - 1 : number]
            if raw_ids.get(topic) and table_id and table_id != raw_id:
                raise SourceFailed(
                    f"{self.name} has records of another topic {topic!r}, which was created again: incarnation "
                    f"{number} is {''.join(raw_id) or 'none'} there and {''.join(table_id)} here, so offsets mean "
                    "other records. Bring them from an archive of those that are."
                )

    @contextmanager
    def _explain_lost_files(self) -> Iterator[None]:
        """Raise Overtaken where another process took a file since it was listed, SourceFailed if it is lost."""
        try:
            yield
        except FileNotFoundError as error:
            if self._table.snapshot().version != self._version:
                raise Overtaken(f"files of {self.name} were written anew while they were read: look again") from error
            raise SourceFailed(f"{self.name} names a file that is gone: {one_line(error)}. Restore it.") from error

    def _wanted_offsets(self, file: BucketFile, wanted: OffsetSet) -> OffsetSet:
        """Return the wanted offsets that a file has. Raises SourceFailed where it is not known whose they are."""
        with table_file.open_parquet(self._table.store, file.path) as source:
            batches = source.iter_batches(_BATCH_ROWS, OFFSET_COLUMNS)
            file_offsets = OffsetSet.union(offsets_by_partition(pa.Table.from_batches([batch])) for batch in batches)
        for part in file_offsets:
            self._check_incarnation(part, wanted)
        return file_offsets & wanted

    def _check_incarnation(self, part: TopicPartition, wanted: OffsetSet) -> None:
        """Raise SourceFailed where another pipeline's raw table has records of another incarnation of the topic."""
        if self._own:
            return
        incarnations = {other.incarnation for other in wanted if other.topic == part.topic} - {part.incarnation}
        if incarnations:
            raise SourceFailed(
                f"{self.name} has records of incarnation {part.incarnation} of topic {part.topic!r}, the gap is of "
                f"incarnation {min(incarnations)}: whether these are the same records is not known. Bring them from "
                "an archive of those that are."
            )

    def _read(self, files: Sequence[BucketFile], offsets: OffsetSet, plan: SchemaPlan) -> Iterator[Piece]:
        for file in files:
            if not reaches_offsets(file, offsets):
                continue
            with self._explain_lost_files(), table_file.open_parquet(self._table.store, file.path) as source:
                for batch in source.iter_batches(_BATCH_ROWS, [*_KAFKA_NAMES, "_incarnation"]):
                    rows = batch.filter(pa.array(mask_offsets(batch, offsets)))
                    if rows.num_rows:
                        ordered = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in OFFSET_COLUMNS]))
                        records = ordered.select(list(_KAFKA_NAMES)).rename_columns(list(_KAFKA_NAMES.values()))
                        yield Piece(self._unseal(records, plan))

    def _unseal(self, records: pa.RecordBatch, plan: SchemaPlan) -> pa.RecordBatch:
        """Return records as Kafka had them. Raises SourceFailed where a key is lost: they would be dead letters."""
        if plan.privacy is not None:
            records = plan.privacy.sealing.unseal(records)
        lost_keys = keys_of(records)
        if lost_keys:
            raise SourceFailed(
                f"{self.name} has records that are encrypted with key {', '.join(sorted(lost_keys))}, which the "
                "keyring (keys) has not, or has as another key. Add it again, or bring the records from elsewhere."
            )
        return records
