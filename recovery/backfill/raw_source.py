"""Reads a gap's records from a raw table: those that its files hold at the gap's offsets, day by day.

The command reads which offsets each row group of the files holds. The reads that tasks share have a row group each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.backfill.source import Chunk, SourceFailed, confirm_every_record, share_reads
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, group_by_bucket
from headrace.writer.core.offsets import OffsetSet, TopicPartition, cut_ranges
from headrace.writer.privacy.record_sealing import keys_of
from headrace.writer.storage.locations import store_at
from headrace.writer.table.factory import side_table
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


@dataclass(frozen=True)
class RawPlace:
    """Where a raw table is, for any process. `pipeline`: whose configuration says how it is reached."""

    pipeline: str
    config: Config
    location: str

    @property
    def name(self) -> str:
        """How it is named as a source."""
        return f"raw {self.location}"

    def open(self) -> PipelineTable:
        """Return the table, which need not be there."""
        return side_table(self.pipeline, self.config, self.location)

    @contextmanager
    def open_file(self, path: str, version: int) -> Iterator[table_file.TableFile]:
        """Open a file that was listed at a version of the table.

        Raises Overtaken where another process took it since, SourceFailed if it is lost, OSError.
        """
        try:
            with table_file.open_parquet(store_at(self.location, self.config.stores), path) as file:
                yield file
        except FileNotFoundError as error:
            if self.open().snapshot().version != version:
                raise Overtaken(f"files of {self.name} were written anew while they were read: look again") from error
            raise SourceFailed(f"{self.name} names a file that is gone: {one_line(error)}. Restore it.") from error


@dataclass(frozen=True)
class RawRead:
    """Reads the records of one row group at some offsets, in whichever process.

    `version`: of the table, at which the file was listed.
    """

    place: RawPlace
    version: int
    path: str
    row_group: int
    offsets: OffsetSet

    def __call__(self, plan: SchemaPlan) -> Iterator[Piece]:
        """Yield the records. Raises Overtaken, SourceFailed, OSError."""
        with self.place.open_file(self.path, self.version) as file:
            for batch in file.iter_batches(_BATCH_ROWS, [*_KAFKA_NAMES, "_incarnation"], [self.row_group]):
                rows = batch.filter(pa.array(mask_offsets(batch, self.offsets)))
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
                f"{self.place.name} has records that are encrypted with key {', '.join(sorted(lost_keys))}, which the "
                "keyring (keys) has not, or has as another key. Add it again, or bring the records from elsewhere."
            )
        return records

    def clip(self, offsets: OffsetSet) -> "RawRead":
        """Return what reads those of its records that are at some offsets."""
        return replace(self, offsets=self.offsets & offsets)


class RawSource:
    """A raw table as a source. An offset that it does not have stays open."""

    def __init__(self, place: RawPlace, *, own: bool, ids: Mapping[str, Sequence[str]] | None = None) -> None:
        """`own`: it is the raw table of the pipeline that is filled. `ids`: of the topics as that pipeline has them.

        Raises ConfigError where there is none.
        """
        self.name = place.name
        self._place = place
        self._table = place.open()
        self._own = own
        self._ids = ids or {}
        # The version at which its files were listed.
        self._version = -1
        if not self._table.exists():
            raise ConfigError(
                f"--from-raw {place.location}: there is no table in the format of the pipeline's (table.format)."
            )

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return which of these offsets it has. Reads their places alone. Raises SourceFailed, Overtaken."""
        return OffsetSet.union(read.offsets for read in self._reads(self._files(wanted), wanted))

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks of the days, oldest first; none reaches over two. Raises SourceFailed, Overtaken."""
        days = group_by_bucket(self._files(left()))
        for day in sorted(days, key=str):
            reads = list(self._reads(days[day], left()))
            offsets = OffsetSet.union(read.offsets for read in reads)
            for chunk_ranges in cut_ranges(sorted(offsets.ranges(), key=attrgetter("part")), rows_max):
                spans = OffsetSet.of(chunk_ranges)
                clips = [read.clip(spans) for read in reads]
                yield Chunk(
                    spans,
                    share_reads([clip for clip in clips if clip.offsets]),
                    confirm_every_record,
                    raw=not self._own,
                )

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

    def _reads(self, files: Sequence[BucketFile], wanted: OffsetSet) -> Iterator[RawRead]:
        """Yield what reads the wanted records of each row group. Raises SourceFailed, Overtaken.

        SourceFailed, where it is not known of which incarnation they are.
        """
        for file in files:
            with self._place.open_file(file.path, self._version) as source:
                for group in range(source.metadata.num_row_groups):
                    batches = source.iter_batches(_BATCH_ROWS, OFFSET_COLUMNS, [group])
                    offsets = OffsetSet.union(offsets_by_partition(pa.Table.from_batches([batch])) for batch in batches)
                    for part in offsets:
                        self._check_incarnation(part, wanted)
                    if wanted_offsets := offsets & wanted:
                        yield RawRead(self._place, self._version, file.path, group, wanted_offsets)

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
