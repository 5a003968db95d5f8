"""Writes rows of one bucket to Parquet files. Only this module knows how a file is encoded, named and rolled.

Names are unique per attempt: the file of a task that was presumed dead is an orphan, never a duplicate.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
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

from writer.batch.staging.bucket_folders import bucket_folder
from writer.core.files import BucketKey, StagedFile
from writer.storage.base import Store

HELD_LATE = "_late"  # at the end of the folder where late rows of a table that refuses wait
COLUMNS_MAX = 40  # a log entry stays small also for tables of many hundred columns
_TEXT_MAX = 32
_LAST_CHARACTER = "\U0010ffff"
_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Return Delta's `stats` JSON for one file: numRecords, minValues, maxValues, nullCount."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    flat = [i for i, name in enumerate(names) if "." not in name]
    # The last columns are the provenance, which a record is looked up by.
    chosen = flat if len(flat) <= COLUMNS_MAX else flat[: COLUMNS_MAX - 5] + flat[-5:]
    for i in chosen:
        groups = [metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[names[i]] = sum(group.null_count for group in groups)
        bounds = value_bounds(
            group for g, group in enumerate(groups) if group.null_count < metadata.row_group(g).num_rows
        )
        if bounds is None:
            continue
        smallest, largest = _floor(bounds[0]), _ceiling(bounds[1])
        if smallest is not None and largest is not None:
            low[names[i]], high[names[i]] = smallest, largest
    stats = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    # As text, not escaped: delta-rs reads the escapes of U+20000 to U+2FFFF as other, lower characters.
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def value_bounds(groups: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column, by its statistics in each row group.

    None where one is not known, is NaN, or is no value of Python's: instants of other writers may lie beyond its years.
    """
    listed = list(groups)
    if not listed or any(group is None or not group.has_min_max for group in listed):
        return None
    try:
        least = min(group.min for group in listed)
        greatest = max(group.max for group in listed)
    except (OverflowError, ValueError, pa.ArrowException):
        return None
    has_nan = any(isinstance(group.min, float) and isnan(group.min + group.max) for group in listed)
    return None if has_nan else (least, greatest)


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
        up = timedelta(microseconds=1000 - value.microsecond % 1000)
        return None if value > _LAST_INSTANT - up else _milliseconds(value + up)
    return _floor(value)


def _milliseconds(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


GROUP_ROWS_MAX = 1_000_000
GROUP_BYTES_MAX = 128 * 2**20  # of Arrow data
_SHRINK_GUESS = 1.0  # Arrow bytes per Parquet byte, until the first row group has shown it: what random bytes have
_DELTA_ENCODED = {"_offset", "_kafka_time"}
_UNORDERED = {"FLOAT", "DOUBLE"}
_SAMPLE_ROWS = 4096  # in which a column with about 40,000 values and more, evenly spread, repeats itself in 1 of 20
_DISTINCT_SHARE = 0.95
_ENDED = "NO_SUCH_UPLOAD"  # of Arrow's words for an S3 error


@dataclass(frozen=True)
class Destination:
    """Where a task's files go and when they roll. `opened` remembers every path, for cleaning up."""

    store: Store  # of the table
    columns: tuple[str, ...]  # names of the bucket's parts
    prefix: str
    target_file_size: int  # bytes
    entropy_bits: int = 0  # of the folder in front of a file's path
    hidden: bool = False  # write files where readers do not look; their paths say where they will be seen
    below: str = ""  # folder of all files, below the store's location
    unmeasured: frozenset[str] = frozenset()  # columns whose least and largest values stand nowhere
    opened: list[str] = field(default_factory=list)

    def open(self, key: BucketKey) -> tuple[str, Any]:
        """Open a new file in the bucket's directory. Returns its path under the root, and the stream."""
        filesystem, root = self._files
        name = uuid4()
        entropy = [f"{name.int:0128b}"[: self.entropy_bits]] if self.entropy_bits else []
        folders = filter(None, [self.below, *entropy, bucket_folder(self.columns, key, hive=self.hidden)])
        path = "/".join([*folders, f"{self.prefix}-{name.hex}.parquet"])
        at = staged_name(path) if self.hidden else path
        if isinstance(filesystem, fs.LocalFileSystem):  # elsewhere a directory would be an empty object of its own
            filesystem.create_dir(f"{root}/{at}".rpartition("/")[0], recursive=True)
        self.opened.append(at)
        return path, filesystem.open_output_stream(f"{root}/{at}")

    def close(self, path: str, sink: Any) -> None:
        """Close a file of `open`. Raises OSError.

        Where the answer to the end of an upload is lost, some stores say to its repetition that there is none such
        any more. Then the object shows whether it is whole: no other writer uses its name.
        """
        (filesystem, root), size = self._files, sink.tell()
        try:
            sink.close()
        except OSError as error:
            at = staged_name(path) if self.hidden else path
            if _ENDED not in str(error) or filesystem.get_file_info(f"{root}/{at}").size != size:
                raise

    def remove(self) -> None:
        """Remove every file opened here, as far as the storage lets it; what stays is an orphan."""
        with suppress(OSError):  # the storage itself failed
            for path in self.opened:
                self.store.delete(path)

    @cached_property
    def _files(self) -> tuple[fs.FileSystem, str]:
        return self.store.files()


class BucketFiles:
    """The Parquet files of one bucket, one open at a time, each closed at the target size."""

    def __init__(self, destination: Destination, key: BucketKey) -> None:
        self._to, self._key = destination, key
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

    def flush(self) -> None:
        """Write what waits, rolling where the target size is reached."""
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        row_bytes = max(self._waiting_bytes / max(rows.num_rows, 1), 1)
        self._waiting, self._waiting_bytes = [], 0.0
        at = 0
        while at < rows.num_rows:
            file = self._file = self._file or OpenFile(self._to, self._key, rows.slice(at))
            start = file.bytes
            group = rows.slice(at, self._group_rows(row_bytes, rows.num_rows - at, start))
            file.write(group)
            self._shrink = max(group.num_rows * row_bytes / max(file.bytes - start, 1), 0.1)
            file.rows_by_source.update(_by_source(group))
            at += group.num_rows
            if file.bytes >= 0.95 * self._to.target_file_size:
                self._roll()

    def close(self, first: datetime, last: datetime) -> list[StagedFile]:
        """Write the rest and close. `first` and `last`: event times of the bucket's rows. Returns its files."""
        self.flush()
        self._roll()
        return [file.staged(first, last) for file in self._done]

    def discard(self) -> None:
        """Close the open file without its rows; it is removed later."""
        self._waiting = []
        if self._file is not None:
            self._file.discard()

    def _group_rows(self, row_bytes: float, rows: int, position: int) -> int:
        """Rows of the next row group: bounded by count, by memory, and by what the file may still take."""
        left = max(self._to.target_file_size - position, self._to.target_file_size / 20)
        by_file = int(left * self._shrink / row_bytes)
        return int(max(1, min(GROUP_ROWS_MAX, GROUP_BYTES_MAX / row_bytes, by_file, rows)))

    def _roll(self) -> None:
        if self._file is not None:
            self._file.close()
            self._done.append(self._file)
            self._file = None


class OpenFile:
    """A Parquet file that is written, under a name of its own: `write`, then `close` and `staged`, or `discard`."""

    def __init__(
        self, to: Destination, key: BucketKey, first: pa.Table, order: Sequence[pq.SortingColumn] = ()
    ) -> None:
        """`first`: rows that will come, which show what they are like. `order`: as `parquet_writer` has it."""
        self._to, self._key = to, key
        plain = distinct_columns(first)
        self._path, self._sink = to.open(key)
        try:
            self._writer = parquet_writer(
                self._sink, first.schema, plain=plain, order=order, unmeasured=to.unmeasured
            )  # fmt: skip
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                self._sink.close()
            raise
        self.rows = 0
        self.rows_by_source: Counter[tuple[str, int]] = Counter()

    @property
    def bytes(self) -> int:
        """Bytes that were written up to now, or of the whole file."""
        return self._size if self._sink.closed else int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows, as one row group where they are a million at the most."""
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._writer.close()
        self._size = self.bytes
        self._to.close(self._path, self._sink)

    def staged(self, first: datetime, last: datetime) -> StagedFile:
        """Describe the file once it is closed. `first` and `last`: event times."""
        metadata = self._writer.writer.metadata
        statistics = delta_statistics(metadata)
        counts = dict(self.rows_by_source)
        return StagedFile(self._path, self._key, metadata.num_rows, self._size, statistics, first, last, counts)

    def discard(self) -> None:
        """Close the file, whatever state it is in: a writer that is left open complains when it is collected."""
        for each in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException):  # the storage may be why we are here
                each.close()


def parquet_writer(
    sink: Any, schema: pa.Schema, plain: frozenset[str] = frozenset(), order: Sequence[pq.SortingColumn] = (),
    unmeasured: frozenset[str] = frozenset(),
) -> pq.ParquetWriter:  # fmt: skip
    """Open a writer with what every engine reads: zstd, microseconds, no Arrow schema inside.

    `plain`: columns that are not worth a dictionary; `order`: in which the rows will come. Floats have no statistics:
    those would leave NaN out, and readers for whom NaN is the largest value would pass over its rows. `unmeasured`:
    further columns without statistics.
    """
    names = leaves(schema)
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        store_schema=False,
        use_dictionary=[leaf for leaf in names if leaf not in _DELTA_ENCODED and leaf not in plain],
        write_statistics=[
            leaf for leaf, kind in names.items() if kind not in _UNORDERED and _column(leaf, schema) not in unmeasured
        ],
        column_encoding={leaf: "DELTA_BINARY_PACKED" for leaf in names if leaf in _DELTA_ENCODED},
        sorting_columns=list(order) or None,
    )


def unmeasured_in(metadata: pq.FileMetaData) -> frozenset[str]:
    """Return the columns of a file of which something has no statistics, floats aside: protected ones."""
    found = (
        metadata.row_group(g).column(i) for g in range(metadata.num_row_groups) for i in range(metadata.num_columns)
    )
    names = metadata.schema.to_arrow_schema()
    return frozenset(
        _column(leaf.path_in_schema, names)
        for leaf in found
        if not leaf.is_stats_set and leaf.physical_type not in _UNORDERED
    )


def _column(leaf: str, schema: pa.Schema) -> str:
    """Return the column that a leaf is of; a name may have dots itself."""
    return leaf if leaf in schema.names else leaf.partition(".")[0]


def distinct_columns(rows: pa.Table) -> frozenset[str]:
    """Columns without fields below them whose first rows hardly ever repeat a value, such as ids and positions.

    A dictionary of theirs would outgrow its page: it is built, given up, and had cost time and bytes. Those that are
    null throughout have none either: Presto cannot ask for nulls where a dictionary is empty.
    """
    sample = rows.slice(0, _SAMPLE_ROWS).combine_chunks()
    found = (
        (field.name, len(pc.unique(column)) - bool(column.null_count), sample.num_rows - column.null_count)
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_nested(field.type)
    )
    return frozenset(name for name, distinct, valid in found if distinct > _DISTINCT_SHARE * valid or not valid)


@lru_cache(maxsize=1024)  # the same for every file of a table
def leaves(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a Parquet file with these fields, nested ones by their path, and their physical types."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    found = (columns.column(i) for i in range(len(columns.names)))
    return {leaf.path: leaf.physical_type for leaf in found}


def _by_source(rows: pa.Table) -> dict[tuple[str, int], int]:
    counted = rows.group_by(["_topic", "_partition"], use_threads=False).aggregate([([], "count_all")]).to_pydict()
    return dict(zip(zip(counted["_topic"], counted["_partition"], strict=True), counted["count_all"], strict=True))


def staged_name(path: str) -> str:
    """Where a file waits for its commit: below a name that Hive's readers pass over, and no *.parquet for the rest."""
    return f"_headrace/staged/{path.rpartition('/')[2]}.staged"


def open_file(store: Store, path: str) -> Any:
    """Open a file of a table to read it, where it lies: in its place, or still staged. Raises OSError."""
    filesystem, root = store.files(path)
    for at in (path, staged_name(path)):
        with suppress(FileNotFoundError):
            return filesystem.open_input_file(f"{root}/{at}")
    return filesystem.open_input_file(f"{root}/{path}")  # moved between the two looks, or gone
