"""Reads a gap's records from a raw table: those that its files hold at the gap's offsets, day by day."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.source import Chunk, SourceFailed, in_full
from writer.avro.schema_plan import SchemaPlan
from writer.batch.staging import table_file
from writer.core.errors import ConfigError
from writer.core.files import BucketFile, by_bucket
from writer.core.offsets import OffsetRange, Span, TopicPartition, joined, without
from writer.maintenance.local_pipeline import Piece
from writer.privacy.record_sealing import keys_of
from writer.table.log.foreign_writes import Overtaken, one_line
from writer.table.row_removal import OFFSET_COLUMNS, Offsets, mask_offsets, merge_offsets, offsets_by_partition
from writer.table.table import PipelineTable

_ROWS_AT_ONCE = 25_000
_AS_KAFKA = {
    "_topic": "topic", "_partition": "partition", "_offset": "offset", "_kafka_time": "timestamp",
    "timestamp_type": "timestampType", "key": "key", "value": "value", "headers": "headers",
}  # fmt: skip


class RawTable:
    """A raw table as a source. An offset that it does not have stays open."""

    def __init__(self, table: PipelineTable, *, own: bool, ids: Mapping[str, Sequence[str]] | None = None) -> None:
        """`own`: it is the raw table of the pipeline that is filled. `ids`: of the topics as that knows them.

        Raises ConfigError where there is none.
        """
        self.name, self._table, self._own = f"raw {table.location}", table, own
        self._ids = ids or {}
        self._version = -1  # at which its files were listed
        if not table.exists():
            raise ConfigError(
                f"--from-raw {table.location}: there is no table in the format of the pipeline's (table.format)."
            )

    def available(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return which of these offsets it has. Reads their places alone. Raises SourceFailed, Overtaken."""
        with self._reading():
            found = merge_offsets(self._held(file, wanted) for file in self._files(wanted))
        return [OffsetRange(part, start, end) for part, spans in sorted(found.items()) for start, end in spans]

    def chunks(self, left: Callable[[], Sequence[OffsetRange]], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks of the days, oldest first; none reaches over two. Raises SourceFailed, Overtaken."""
        days = by_bucket(self._files(left()))
        for day in sorted(days, key=str):
            with self._reading():
                held = merge_offsets(self._held(file, left()) for file in days[day])
            for spans in _cut(held, rows_max):
                yield Chunk(spans, partial(self._read, days[day], spans), in_full, raw=not self._own)

    def _files(self, wanted: Sequence[OffsetRange]) -> list[BucketFile]:
        snapshot = self._table.snapshot()
        self._table.publish(snapshot.state.place)  # of an entry whose writer died, too
        self._version = snapshot.version
        self._check_topics(wanted, snapshot.incarnations())
        files = self._table.bucket_files(snapshot)
        return [file for file in files if any(file.reaches(r.start, r.end) for r in wanted)]

    def _check_topics(self, wanted: Sequence[OffsetRange], there: Mapping[str, Sequence[str]]) -> None:
        """Raise SourceFailed where its log says that one number of an incarnation means two topics.

        `there`: ids of the topics by its log; none where its pipeline has not noted them.
        """
        for topic, number in sorted({(r.part.topic, r.part.incarnation) for r in wanted}):
            here, others = (ids.get(topic, ())[number - 1 : number] for ids in (self._ids, there))
            if there.get(topic) and here and not self._own and list(here) != list(others):
                raise SourceFailed(
                    f"{self.name} has records of another topic {topic!r}, which was created again: incarnation "
                    f"{number} is {''.join(others) or 'none'} there and {''.join(here)} here, so offsets mean other "
                    "records. Bring them from an archive of those that are."
                )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise Overtaken where another process took a file since it was listed, SourceFailed if it is lost."""
        try:
            yield
        except FileNotFoundError as error:
            if self._table.snapshot().version != self._version:
                raise Overtaken(f"files of {self.name} were written anew while they were read: look again") from error
            raise SourceFailed(f"{self.name} names a file that is gone: {one_line(error)}. Restore it.") from error

    def _held(self, file: BucketFile, wanted: Sequence[OffsetRange]) -> dict[TopicPartition, list[Span]]:
        """Return the wanted offsets that a file has. Raises SourceFailed where it is not known whose they are."""
        with table_file.open_parquet(self._table.store, file.path) as source:
            batches = source.iter_batches(_ROWS_AT_ONCE, OFFSET_COLUMNS)
            there = merge_offsets(offsets_by_partition(pa.Table.from_batches([batch])) for batch in batches)
        topics = {r.part.topic for r in wanted}
        found: dict[TopicPartition, list[Span]] = {}
        for part, spans in there.items():
            asked = [(r.start, r.end) for r in wanted if r.part == part]
            mine = without(spans, without(spans, asked))
            others = {r.part.incarnation for r in wanted if r.part.topic == part.topic} - {part.incarnation}
            if part.topic in topics and others and not self._own:
                raise SourceFailed(
                    f"{self.name} has records of incarnation {part.incarnation} of topic {part.topic!r}, the gap is of "
                    f"incarnation {min(others)}: whether these are the same records is not known. Bring them from an "
                    "archive of those that are."
                )
            if mine:
                found[part] = joined(mine)
        return found

    def _read(self, files: Sequence[BucketFile], spans: Offsets, plan: SchemaPlan) -> Iterator[Piece]:
        for file in files:
            if not any(file.reaches(start, end) for each in spans.values() for start, end in each):
                continue
            with self._reading(), table_file.open_parquet(self._table.store, file.path) as source:
                for batch in source.iter_batches(_ROWS_AT_ONCE, [*_AS_KAFKA, "_incarnation"]):
                    mine = batch.filter(pa.array(mask_offsets(batch, spans)))
                    if mine.num_rows:
                        ordered = mine.take(pc.sort_indices(mine, [(name, "ascending") for name in OFFSET_COLUMNS]))
                        as_kafka = ordered.select(list(_AS_KAFKA)).rename_columns(list(_AS_KAFKA.values()))
                        yield Piece(self._unsealed(as_kafka, plan))

    def _unsealed(self, records: pa.RecordBatch, plan: SchemaPlan) -> pa.RecordBatch:
        """Return records as Kafka had them. Raises SourceFailed where a key is lost: they would be dead letters."""
        found = records if plan.privacy is None else plan.privacy.sealing.unsealed(records)
        if lost := keys_of(found):
            raise SourceFailed(
                f"{self.name} has records that are encrypted with key {', '.join(sorted(lost))}, which the keyring "
                "(keys) has not, or has as another key. Add it again, or bring the records from elsewhere."
            )
        return found


def _cut(held: Offsets, rows_max: int) -> Iterator[dict[TopicPartition, list[Span]]]:
    """Cut offsets into pieces of so many at most."""
    piece: dict[TopicPartition, list[Span]] = {}
    room = rows_max
    for part, spans in sorted(held.items()):
        for first, last in spans:
            start = first
            while start < last:
                end = min(last, start + room)
                piece.setdefault(part, []).append((start, end))
                room -= end - start
                start = end
                if not room:
                    yield piece
                    piece, room = {}, rows_max
    if piece:
        yield piece
