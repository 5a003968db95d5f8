"""Rewrites the files that hold given rows without them; selects rows of a table by their offsets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.batch.bucketing import TimeRule, times_of
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.staging.parquet_files import Destination, OpenFile, unmeasured_columns
from headrace.writer.core.errors import SchemaChanged
from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetSet, Span, TopicPartition, merge_spans
from headrace.writer.storage.base import Store
from headrace.writer.table.log.appender import LostRace, TableConverted, TableSuperseded
from headrace.writer.table.log.entries import remove_action
from headrace.writer.table.log.foreign_writes import FilesGone, LiveDeleteFiles, Overtaken, TableUnwritable
from headrace.writer.table.log.log import Action

_BATCH_ROWS = 65_536
_PREFIX = "replay"
PARTITION_COLUMNS = ["_topic", "_incarnation", "_partition"]
OFFSET_COLUMNS = [*PARTITION_COLUMNS, "_offset"]
RowMask = Callable[[pa.RecordBatch], np.ndarray]
# Errors by which the log refuses an entry: it was not written, and will not be.
REFUSALS = (
    FilesGone,
    LiveDeleteFiles,
    LostRace,
    Overtaken,
    SchemaChanged,
    TableConverted,
    TableSuperseded,
    TableUnwritable,
)


@dataclass
class RemovalResult:
    """Files after a removal of rows: those to remove, those that replace them, the number of rows.

    `columns`: of the table's buckets.
    """

    removed: list[BucketFile] = field(default_factory=list)
    rewritten: list[StagedFile] = field(default_factory=list)
    rows: int = 0
    columns: Sequence[str] = ()
    # Removes what was staged: for a caller that fails before the log is given an entry that names it. Raises OSError.
    discard: Callable[[], None] = lambda: None

    @property
    def remove_actions(self) -> list[Action]:
        """The actions that remove the files."""
        now = datetime.now(UTC)
        return [remove_action(file, self.columns, now) for file in self.removed]


@contextmanager
def stage_without_offsets(
    store: Store,
    files: Sequence[BucketFile],
    offsets: OffsetSet,
    *,
    columns: Sequence[str] = (),
    hidden: bool = False,
    folder: str = "",
    prefix: str = _PREFIX,
) -> Iterator[RemovalResult]:
    """Stage what is left of the files that hold rows at these offsets, for an entry that the block appends.

    `columns`: of the table's buckets. `hidden`: stage where readers do not look. `folder`: of the table's files. What
    was staged is removed if staging fails, or the log refuses the entry. A block that may fail before it appends does
    that part within `discard_on_failure(removal.discard)`.
    """
    destination = Destination(store, tuple(columns), prefix, 0, hidden=hidden, below=folder)
    with discard_on_failure(destination.remove):
        result = stage_remaining_rows(
            destination,
            files,
            partial(count_rows, store, offsets=offsets),
            partial(mask_offsets, offsets=offsets),
        )
    result.discard = destination.remove
    with discard_on_refusal(result.discard):
        yield result


def stage_remaining_rows(
    destination: Destination,
    files: Sequence[BucketFile],
    count_removed: Callable[[BucketFile], int],
    mask_removed: RowMask,
    rule: TimeRule | None = None,
) -> RemovalResult:
    """Stage what is left of files when rows are removed from them. Raises OSError.

    `count_removed` returns how many rows of a file go, `mask_removed` which rows of a batch. `rule`: of event times,
    where the log has none of a file.
    """
    result = RemovalResult(columns=destination.columns)
    for file in files:
        removed_rows = count_removed(file)
        if not removed_rows:
            continue
        result.removed.append(file)
        result.rows += removed_rows
        staged = write_remaining_rows(destination, file, removed_rows, mask_removed, rule)
        if staged is not None:
            result.rewritten.append(staged)
    return result


@contextmanager
def discard_on_failure(discard: Callable[[], None]) -> Iterator[None]:
    """Call `discard` for what the block staged if it fails, or a person interrupts it. It appends no entry."""
    try:
        yield
    except BaseException:
        _discard(discard)
        raise


@contextmanager
def discard_on_refusal(discard: Callable[[], None]) -> Iterator[None]:
    """Call `discard` for what was staged if the log refuses the entry that the block appends.

    After any other failure an entry may name it: the answer may be unknown, or a look at the log failed.
    """
    try:
        yield
    except REFUSALS:
        _discard(discard)
        raise


def _discard(discard: Callable[[], None]) -> None:
    # An error here is one of the storage itself, and would hide why the block ended. What stays is an orphan.
    with suppress(OSError):
        discard()


def reaches_offsets(file: BucketFile, offsets: OffsetSet) -> bool:
    """Return whether a file may have rows at one of these offsets, by its bounds."""
    return any(file.reaches(*span) for spans in offsets.values() for span in spans)


def count_rows(store: Store, file: BucketFile, offsets: OffsetSet) -> int:
    """Count the rows of a file at these offsets. Raises OSError."""
    if not reaches_offsets(file, offsets):
        return 0
    with table_file.open_parquet(store, file.path) as source:
        if not {*OFFSET_COLUMNS} <= {*source.names}:
            # The file is of a table that was taken over: its rows have no offsets.
            return 0
        batches = source.iter_batches(_BATCH_ROWS, OFFSET_COLUMNS)
        return sum(int(mask_offsets(batch, offsets).sum()) for batch in batches)


def write_remaining_rows(
    destination: Destination,
    file: BucketFile,
    removed_rows: int,
    mask_removed: RowMask,
    rule: TimeRule | None = None,
) -> StagedFile | None:
    """Write the rows of a file that stay, in the order that they have. Returns None when none does.

    `mask_removed` returns for each row whether it goes, `removed_rows` is how many do. Event times are those that the
    log has of the file, else those of the rows by `rule`, without it the present.
    """
    event_times = _EventTimes(rule, file)
    masked_rows = 0
    with table_file.open_parquet(destination.store, file.path) as source:
        if removed_rows == source.metadata.num_rows:
            return None
        output: OpenFile | None = None
        file_destination = replace(destination, unmeasured=unmeasured_columns(source.metadata))
        try:
            for batch in source.iter_batches(_BATCH_ROWS):
                mask = mask_removed(batch)
                masked_rows += int(mask.sum())
                rows = pa.Table.from_batches([batch.filter(pa.array(~mask))])
                output = output or OpenFile(file_destination, file.bucket, rows)
                output.write(rows)
                event_times.add(rows)
            assert output is not None, "a file with rows has a batch"
            output.close()
        except BaseException:
            if output is not None:
                output.discard()
            raise
    assert masked_rows == removed_rows, f"{file.path}: {masked_rows} rows went, {removed_rows} were counted"
    return output.staged_file(*event_times.bounds())


class _EventTimes:
    """First and last event time of a file: from the log, or from the rows if the log has none."""

    def __init__(self, rule: TimeRule | None, file: BucketFile) -> None:
        self._rule = rule
        self._logged: tuple[datetime, datetime] | None = None
        if file.event_time_min is not None and file.event_time_max is not None:
            self._logged = (file.event_time_min, file.event_time_max)
        self._times: list[datetime] = []

    def add(self, rows: pa.Table) -> None:
        rule = self._rule
        if rule is None or self._logged is not None or not rows.num_rows:
            return
        if rule.field.partition(".")[0] not in rows.column_names:
            return
        topics = pa.nulls(rows.num_rows, pa.string())
        if "_topic" in rows.column_names:
            topics = rows.column("_topic")
        times, _ = times_of(rows, rule, topics)
        self._times += [time for time in pc.min_max(times).as_py().values() if time is not None]

    def bounds(self) -> tuple[datetime, datetime]:
        if self._logged is not None:
            return self._logged
        default = datetime.now(UTC) if self._rule is None else datetime.fromtimestamp(0, UTC)
        return min(self._times, default=default), max(self._times, default=default)


def mask_offsets(batch: pa.RecordBatch, offsets: OffsetSet) -> np.ndarray:
    """Return for each row whether it is at one of these offsets."""
    masks = [_mask_part(batch, part, spans) for part, spans in offsets.items()]
    if not masks:
        return np.zeros(batch.num_rows, bool)
    return np.asarray(np.logical_or.reduce(masks))


def spans_of(offsets: np.ndarray) -> list[Span]:
    """Return the spans of offsets, in any order: a span ends where the next offset is missing.

    Example: [7, 3, 4, 4, 8] → [(3, 5), (7, 9)].
    """
    return spans_of_rising(np.unique(offsets))


def spans_of_rising(offsets: np.ndarray, spans_max: int | None = None) -> list[Span]:
    """Return the spans of offsets that rise, each once; with `spans_max` the first few."""
    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) != 1)[:spans_max]
    starts = offsets[np.concatenate(([0], cuts + 1))]
    ends = offsets[np.concatenate((cuts, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))[:spans_max]


def offsets_by_partition(rows: pa.Table) -> OffsetSet:
    """Return the offsets of rows by partition. Rows that have none are left out: they came from another writer."""
    has_offset = pc.and_(pc.is_valid(rows.column("_topic")), pc.is_valid(rows.column("_offset")))
    by_partition = rows.filter(has_offset).group_by(PARTITION_COLUMNS, use_threads=False)
    grouped = by_partition.aggregate([("_offset", "list")])
    spans: dict[TopicPartition, list[Span]] = {}
    # One turn for each partition.
    for i in range(grouped.num_rows):
        part = TopicPartition(*(grouped.column(name)[i].as_py() for name in PARTITION_COLUMNS))
        spans[part] = spans_of(grouped.column("_offset_list")[i].values.to_numpy(zero_copy_only=False))
    return OffsetSet(spans)


def mask_spans(offsets: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Return for each offset whether it lies in one of the spans."""
    merged = merge_spans(spans)
    if not merged:
        return np.zeros(len(offsets), bool)
    starts, ends = (np.array(bounds, np.int64) for bounds in zip(*merged, strict=True))
    indices = np.searchsorted(starts, offsets, side="right") - 1
    return np.asarray((indices >= 0) & (offsets < ends[indices]))


def _mask_part(batch: pa.RecordBatch, part: TopicPartition, spans: Sequence[Span]) -> np.ndarray:
    """Return for each row whether it is of this partition, at one of these offsets."""
    values = zip(PARTITION_COLUMNS, (part.topic, part.incarnation, part.partition), strict=True)
    masks = [pc.equal(batch.column(name), value).to_numpy(zero_copy_only=False) for name, value in values]
    masks.append(mask_spans(batch.column("_offset").to_numpy(zero_copy_only=False), spans))
    return np.asarray(np.logical_and.reduce(masks))
