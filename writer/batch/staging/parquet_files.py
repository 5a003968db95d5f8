"""Writes rows of one bucket to Parquet files. Only this module knows how a file is encoded, named and rolled.

Names are unique per attempt: the file of a task that was presumed dead is an orphan, never a duplicate.
"""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from math import isnan
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.writer.batch.staging.bucket_folders import bucket_folder
from headrace.writer.core.files import BucketKey, StagedFile, staged_name
from headrace.writer.core.offsets import Source
from headrace.writer.storage.base import Store

# A log entry stays small also for tables of many hundred columns.
COLUMNS_MAX = 40
_TEXT_MAX = 32
_LAST_CHARACTER = "\U0010ffff"
_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Return Delta's `stats` JSON for one file: numRecords, minValues, maxValues, nullCount."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    schema = metadata.schema
    names = [schema.column(i).path for i in range(metadata.num_columns)]
    flat = [i for i, name in enumerate(names) if "." not in name]
    # The last columns are the provenance, which a record is looked up by.
    chosen = flat if len(flat) <= COLUMNS_MAX else flat[: COLUMNS_MAX - 5] + flat[-5:]
    row_groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    row_counts = [row_group.num_rows for row_group in row_groups]
    for i in chosen:
        groups = [row_group.column(i).statistics for row_group in row_groups]
        if not all(group is not None and group.has_null_count for group in groups):
            continue
        null_counts = [group.null_count for group in groups]
        nulls[names[i]] = sum(null_counts)
        bounds = value_bounds(
            [group for group, count, rows in zip(groups, null_counts, row_counts, strict=True) if count < rows]
        )
        if bounds is None:
            continue
        smallest = _floor(bounds[0])
        largest = _ceiling(bounds[1])
        if smallest is not None and largest is not None:
            low[names[i]] = smallest
            high[names[i]] = largest
    stats = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    # As text, not escaped: delta-rs reads the escapes of U+20000 to U+2FFFF as other, lower characters.
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def value_bounds(statistics: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column, by its statistics in each row group.

    None where one is not known, is NaN, or is no value of Python's: instants of other writers may lie beyond its years.
    """
    if not statistics or not all(group is not None and group.has_min_max for group in statistics):
        return None
    try:
        lows = [group.min for group in statistics]
        highs = [group.max for group in statistics]
    except (OverflowError, ValueError, pa.ArrowException):
        return None
    if isinstance(lows[0], float) and any(isnan(value) for value in (*lows, *highs)):
        return None
    return min(lows), max(highs)


def _floor(value: Any) -> Any:
    match value:
        case bool() | float() | bytes():
            return None
        case int():
            return value
        case str():
            return value[:_TEXT_MAX]
        case datetime():
            return _milliseconds(value)
        case date():
            return value.isoformat()
        case _:
            return None


def _ceiling(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return None if value[_TEXT_MAX] == _LAST_CHARACTER else value[:_TEXT_MAX] + _LAST_CHARACTER
    if isinstance(value, datetime) and value.microsecond % 1000:
        to_next_millisecond = timedelta(microseconds=1000 - value.microsecond % 1000)
        if value > _LAST_INSTANT - to_next_millisecond:
            return None
        return _milliseconds(value + to_next_millisecond)
    return _floor(value)


def _milliseconds(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


GROUP_ROWS_MAX = 1_000_000
# Of Arrow data.
GROUP_BYTES_MAX = 128 * 2**20
# Arrow bytes per Parquet byte, until the first row group has shown it: what random bytes have.
_SHRINK_GUESS = 1.0
_DELTA_ENCODED = {"_offset", "_kafka_time"}
_UNORDERED = {"FLOAT", "DOUBLE"}
# In so many rows a column with about 40,000 values and more, evenly spread, repeats itself in 1 of 20.
_SAMPLE_ROWS = 4096
_DISTINCT_SHARE = 0.95
# A file of fewer rows is written without dictionaries, and with Snappy: zstd prepares itself for each column, which is
# half of the cost of such a file. It is a fifth to a half larger, until it is merged with others.
SMALL_FILE_ROWS = 512
_LOCAL_BUFFER_BYTES = 64 * 2**10
# Arrow's text for an S3 error has this name.
_UPLOAD_ENDED = "NO_SUCH_UPLOAD"


@dataclass(frozen=True)
class Destination:
    """Where a task's files go and when they roll.

    `store`: of the table. `columns`: names of the bucket's parts. `target_file_size`: in bytes. `entropy_bits`: of the
    folder in front of a file's path. `hidden`: files are written where readers do not look; their paths say where they
    will be seen. `below`: folder of all files, below the store's location. `unmeasured`: columns whose least and
    largest values are written nowhere. `small_file_rows`: files of fewer rows are small ones of `parquet_writer`; 0:
    none is, for what is measured stands for larger files. `opened`: every path that was opened, for cleaning up.
    """

    store: Store
    columns: tuple[str, ...]
    prefix: str
    target_file_size: int
    entropy_bits: int = 0
    hidden: bool = False
    below: str = ""
    unmeasured: frozenset[str] = frozenset()
    small_file_rows: int = SMALL_FILE_ROWS
    opened: list[str] = field(default_factory=list)

    def open(self, key: BucketKey) -> tuple[str, Any]:
        """Open a new file in the bucket's directory. Returns its path under the root, and the stream."""
        name = uuid4()
        entropy = [f"{name.int:0128b}"[: self.entropy_bits]] if self.entropy_bits else []
        folders = filter(None, [self.below, *entropy, bucket_folder(self.columns, key, hive=self.hidden)])
        path = "/".join([*folders, f"{self.prefix}-{name.hex}.parquet"])
        written_path = self._written_path(path)
        self.opened.append(written_path)
        return path, self._open_stream(written_path)

    def _open_stream(self, path: str) -> Any:
        filesystem, root = self._files
        full_path = f"{root}/{path}"
        if not isinstance(filesystem, fs.LocalFileSystem):
            return filesystem.open_output_stream(full_path)
        # Without a buffer, each page of a column would be a write of its own.
        try:
            return filesystem.open_output_stream(full_path, buffer_size=_LOCAL_BUFFER_BYTES)
        except FileNotFoundError:
            # Elsewhere a directory would be an empty object of its own.
            filesystem.create_dir(full_path.rpartition("/")[0], recursive=True)
            return filesystem.open_output_stream(full_path, buffer_size=_LOCAL_BUFFER_BYTES)

    def close(self, path: str, sink: Any) -> None:
        """Close a file of `open`. Raises OSError.

        Where the answer to the end of an upload is lost, some stores say to its repetition that there is none such
        any more. Then the object shows whether it is whole: no other writer uses its name.
        """
        filesystem, root = self._files
        size = sink.tell()
        try:
            sink.close()
        except OSError as error:
            written_path = self._written_path(path)
            if _UPLOAD_ENDED not in str(error) or filesystem.get_file_info(f"{root}/{written_path}").size != size:
                raise

    def remove(self) -> None:
        """Remove every file opened here, as far as the storage lets it; what stays is an orphan."""
        # An error here is one of the storage itself, which is reported elsewhere.
        with suppress(OSError):
            for path in self.opened:
                self.store.delete(path)

    def _written_path(self, path: str) -> str:
        """Return where a file is written until its commit."""
        return staged_name(path) if self.hidden else path

    @cached_property
    def _files(self) -> tuple[fs.FileSystem, str]:
        return self.store.files()


class BucketFiles:
    """The Parquet files of one bucket, one open at a time, each closed at the target size."""

    def __init__(self, destination: Destination, key: BucketKey) -> None:
        self._destination = destination
        self._key = key
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0.0
        self._shrink = _SHRINK_GUESS
        self._file: OpenFile | None = None
        self._done: list[OpenFile] = []

    def add(self, rows: pa.Table, size: float | None = None) -> None:
        """Take rows; write a row group when there is enough for one. `size`: their bytes, where they are known."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes if size is None else size
        if self._waiting_bytes >= GROUP_BYTES_MAX:
            self.flush()

    def flush(self, *, is_last: bool = False) -> None:
        """Write what waits, rolling where the target size is reached. `is_last`: no more rows will come."""
        if not self._waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else pa.concat_tables(self._waiting)
        row_bytes = max(self._waiting_bytes / max(rows.num_rows, 1), 1)
        self._waiting = []
        self._waiting_bytes = 0.0
        first_row = 0
        while first_row < rows.num_rows:
            if self._file is None:
                is_small = is_last and rows.num_rows - first_row < self._destination.small_file_rows
                first = _slice_rows(rows, first_row, rows.num_rows)
                self._file = OpenFile(self._destination, self._key, first, is_small=is_small)
            file = self._file
            position = file.bytes
            group = _slice_rows(rows, first_row, self._group_rows(row_bytes, rows.num_rows - first_row, position))
            file.write(group)
            self._shrink = max(group.num_rows * row_bytes / max(file.bytes - position, 1), 0.1)
            file.rows_by_source.update(_count_by_source(group))
            first_row += group.num_rows
            if file.bytes >= 0.95 * self._destination.target_file_size:
                self._roll()

    def close(self, first: datetime, last: datetime) -> list[StagedFile]:
        """Write the rest and close. `first` and `last`: event times of the bucket's rows. Returns its files."""
        self.flush(is_last=True)
        self._roll()
        return [file.staged_file(first, last) for file in self._done]

    def discard(self) -> None:
        """Close the open file without its rows; it is removed later."""
        self._waiting = []
        if self._file is not None:
            self._file.discard()

    def _group_rows(self, row_bytes: float, rows: int, position: int) -> int:
        """Rows of the next row group: bounded by count, by memory, and by what the file may still take."""
        target_size = self._destination.target_file_size
        bytes_left = max(target_size - position, target_size / 20)
        by_file = int(bytes_left * self._shrink / row_bytes)
        return int(max(1, min(GROUP_ROWS_MAX, GROUP_BYTES_MAX / row_bytes, by_file, rows)))

    def _roll(self) -> None:
        if self._file is not None:
            self._file.close()
            self._done.append(self._file)
            self._file = None


def _slice_rows(rows: pa.Table, start: int, count: int) -> pa.Table:
    """Return some of the rows. A slice of a table makes one of each column."""
    if start == 0 and count >= rows.num_rows:
        return rows
    return rows.slice(start, count)


class OpenFile:
    """A Parquet file that is written, of its own name: `write`, then `close` and `staged_file`, or `discard`."""

    def __init__(
        self,
        destination: Destination,
        key: BucketKey,
        first: pa.Table,
        order: Sequence[pq.SortingColumn] = (),
        *,
        is_small: bool = False,
    ) -> None:
        """`first`: rows that will come, which show what they are like. `order`, `is_small`: of `parquet_writer`."""
        self._destination = destination
        self._key = key
        plain = frozenset[str]() if is_small else distinct_columns(first)
        self._path, self._sink = destination.open(key)
        try:
            self._writer = parquet_writer(
                self._sink,
                first.schema,
                plain=plain,
                order=order,
                unmeasured=destination.unmeasured,
                is_small=is_small,
            )
        except BaseException:
            _abandon(self._sink)
            raise
        self.rows = 0
        self.rows_by_source: Counter[Source] = Counter()

    @property
    def bytes(self) -> int:
        """Bytes that were written up to now, or of the whole file."""
        if self._sink.closed:
            return self._size
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows, as one row group where they are a million at the most."""
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._writer.close()
        self._size = self.bytes
        self._destination.close(self._path, self._sink)

    def staged_file(self, first: datetime, last: datetime) -> StagedFile:
        """Describe the file once it is closed. `first` and `last`: event times."""
        metadata = self._writer.writer.metadata
        statistics = delta_statistics(metadata)
        counts = dict(self.rows_by_source)
        return StagedFile(self._path, self._key, metadata.num_rows, self._size, statistics, first, last, counts)

    def discard(self) -> None:
        """Give the file up, whatever state it is in: a writer that is left open complains when it is collected."""
        _abandon(self._sink)
        # The storage may be the reason why the file is discarded.
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()


def _abandon(sink: Any) -> None:
    """End a stream whose file is given up: without a file where the stream can, else closed with what it has."""
    # The storage may be the reason why the file is given up.
    with suppress(OSError, ValueError, pa.ArrowException):
        getattr(sink, "abandon", sink.close)()


def parquet_writer(
    sink: Any,
    schema: pa.Schema,
    plain: frozenset[str] = frozenset(),
    order: Sequence[pq.SortingColumn] = (),
    unmeasured: frozenset[str] = frozenset(),
    *,
    is_small: bool = False,
) -> pq.ParquetWriter:
    """Open a writer with what every engine reads: zstd, microseconds, no Arrow schema inside.

    `plain`: columns that are not worth a dictionary; `order`: in which the rows will come. Floats have no statistics:
    those would leave NaN out, and readers for whom NaN is the largest value would pass over its rows. `unmeasured`:
    further columns without statistics. `is_small`: a file of few rows, without dictionaries, and with Snappy.
    """
    names = leaves(schema)
    return pq.ParquetWriter(
        sink,
        schema,
        compression="snappy" if is_small else "zstd",
        store_schema=False,
        use_dictionary=not is_small and [leaf for leaf in names if leaf not in _DELTA_ENCODED and leaf not in plain],
        write_statistics=_measured_leaves(schema, unmeasured),
        column_encoding={leaf: "DELTA_BINARY_PACKED" for leaf in names if leaf in _DELTA_ENCODED},
        sorting_columns=list(order) or None,
    )


@lru_cache(maxsize=1024)
def _measured_leaves(schema: pa.Schema, unmeasured: frozenset[str]) -> list[str]:
    return [
        leaf
        for leaf, kind in leaves(schema).items()
        if kind not in _UNORDERED and _column(leaf, schema) not in unmeasured
    ]


def unmeasured_columns(metadata: pq.FileMetaData) -> frozenset[str]:
    """Return the columns of a file of which something has no statistics, floats aside: protected ones."""
    schema = metadata.schema.to_arrow_schema()
    columns = set[str]()
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        for leaf in map(group.column, range(metadata.num_columns)):
            if not leaf.is_stats_set and leaf.physical_type not in _UNORDERED:
                columns.add(_column(leaf.path_in_schema, schema))
    return frozenset(columns)


def _column(leaf: str, schema: pa.Schema) -> str:
    """Return the column that a leaf is of; a name may have dots itself."""
    if leaf in schema.names:
        return leaf
    return leaf.partition(".")[0]


def distinct_columns(rows: pa.Table) -> frozenset[str]:
    """Columns without fields below them whose first rows hardly ever repeat a value, such as ids and positions.

    A dictionary of theirs would outgrow its page: it is built, given up, and had cost time and bytes. Those that are
    null throughout have none either: Presto cannot ask for nulls where a dictionary is empty.
    """
    sample = rows.slice(0, _SAMPLE_ROWS).combine_chunks()
    names = set[str]()
    for column_field, column in zip(sample.schema, sample.columns, strict=True):
        if pa.types.is_nested(column_field.type):
            continue
        distinct = len(pc.unique(column)) - bool(column.null_count)
        valid = sample.num_rows - column.null_count
        if distinct > _DISTINCT_SHARE * valid or not valid:
            names.add(column_field.name)
    return frozenset(names)


# Each file of a table asks for the same schema.
@lru_cache(maxsize=1024)
def leaves(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a Parquet file with these fields, nested ones by their path, and their physical types."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    parquet_schema = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = (parquet_schema.column(i) for i in range(len(parquet_schema.names)))
    return {leaf.path: leaf.physical_type for leaf in columns}


def _count_by_source(rows: pa.Table) -> dict[Source, int]:
    """Count rows by topic and partition."""
    if rows.num_rows < SMALL_FILE_ROWS:
        return Counter(zip(rows.column("_topic").to_pylist(), rows.column("_partition").to_pylist(), strict=True))
    groups = rows.group_by(["_topic", "_partition"], use_threads=False).aggregate([([], "count_all")]).to_pydict()
    sources = zip(groups["_topic"], groups["_partition"], strict=True)
    return dict(zip(sources, groups["count_all"], strict=True))


def open_file(store: Store, path: str) -> Any:
    """Open a file of a table to read it, where it lies: in its place, or still staged. Raises OSError."""
    filesystem, root = store.files(path)
    for candidate in (path, staged_name(path)):
        with suppress(FileNotFoundError):
            return filesystem.open_input_file(f"{root}/{candidate}")
    # It was moved between the two attempts, or is gone.
    return filesystem.open_input_file(f"{root}/{path}")
