"""Finds which offsets the rows of a bucket have, and which buckets are meant."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow.compute as pc

from bucketers import Bucketer, interval
from recovery.reprocess.places import Collector, Places, size
from writer.batch.staging import table_file
from writer.batch.staging.bucket_folders import hive_value
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import BucketFile, BucketKey
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.row_removal import OFFSET_COLUMNS
from writer.table.table import PipelineTable

_ROWS_AT_ONCE = 65_536
_CAME = "_kafka_time"


@dataclass(frozen=True)
class BucketRows:
    """The rows of a bucket at one version of the table, by their offsets."""

    bucket: BucketKey
    files: Sequence[BucketFile] = ()
    places: Places = field(default_factory=dict)
    unplaced: int = 0  # rows that say no offset: adopted, or backfilled by event time
    came: datetime | None = None  # when the broker had the first of them; None: a row does not say

    @property
    def rows(self) -> int:
        """How many rows say an offset."""
        return size(self.places)


def rows_of(
    table: PipelineTable, snapshot: PipelineSnapshot, bucket: BucketKey, besides: Collection[str] = ()
) -> BucketRows:
    """Read the offsets of a bucket's rows; `besides`: paths of files that are left out.

    Raises HeadraceError where an offset is there twice, OSError, CommitFailed.
    """
    files = [file for file in table.bucket_files(snapshot, bucket) if file.path not in besides]
    found = Collector()
    unplaced = 0
    came = list[datetime]()
    is_dated = True
    for file in files:
        with table_file.open_parquet(table.store, file.path) as source:
            if not {*OFFSET_COLUMNS} <= {*source.names}:
                unplaced += source.metadata.num_rows
                continue
            names = [name for name in (*OFFSET_COLUMNS, _CAME) if name in source.names]
            for batch in source.iter_batches(_ROWS_AT_ONCE, names):
                found.add(batch)
                if _CAME in names:
                    times = batch.column(_CAME)
                    is_dated = is_dated and not times.null_count
                    came = [first for first in (*came, pc.min(times).as_py()) if first is not None]
    places = found.places()
    if (distinct := size(places)) != found.rows:
        raise HeadraceError(
            f"bucket {'/'.join(map(str, bucket))} of the table at {table.location} has {found.rows - distinct} rows "
            "whose offsets are there more than once; `headrace audit --deep` names them. Nothing of it was read again."
        )
    return BucketRows(bucket, files, places, unplaced + found.unplaced, min(came, default=None) if is_dated else None)


def chosen(buckets: Collection[BucketKey], wanted: str, bucketer: Bucketer, columns: Sequence[str]) -> list[BucketKey]:
    """Return the buckets that are meant by `A..B`, both included, or by one bucket; in the order of time.

    Raises ConfigError for what is none.
    """
    first, dots, last = wanted.partition("..")
    if not dots:
        exact = _key(first, columns)
        if exact is not None:
            return [bucket for bucket in buckets if bucket == exact]
        last = first
    known = sorted(buckets, key=str)
    if not known:
        return []
    begin, end = (_interval(text, known[0], bucketer, columns, wanted) for text in (first, last))
    if begin > end:
        raise ConfigError(f"--buckets {wanted}: {first} comes after {last}; name the earlier one first")
    spans = [(span, bucket) for bucket in known if (span := interval(bucketer, bucket)) is not None]
    ordered = sorted(spans, key=lambda one: (one[0], str(one[1])))
    return [bucket for span, bucket in ordered if begin <= span <= end]


def _key(text: str, columns: Sequence[str]) -> BucketKey | None:
    """Return the bucket that a text names in all its columns; None where it names fewer."""
    pieces = text.strip("/").split("/")
    if len(pieces) != len(columns):
        return None
    return tuple(hive_value(piece if "=" in piece else f"={piece}") for piece in pieces)


def _interval(
    text: str, like: BucketKey, bucketer: Bucketer, columns: Sequence[str], wanted: str
) -> tuple[datetime, datetime]:
    """Return the interval of a bucket by its label, with or without the column's name. Raises ConfigError."""
    name, equals, label = text.partition("=")
    for at, column in enumerate(columns):
        goes_by_time = interval(bucketer, (*like[:at], "", *like[at + 1 :])) is None
        if goes_by_time and (not equals or name == column):
            found = interval(bucketer, (*like[:at], label if equals else text, *like[at + 1 :]))
            if found is not None:
                return found
    raise ConfigError(
        f"--buckets {wanted}: {text!r} is no bucket of time of this table; write 2026-11-20T05..2026-11-20T07, or "
        f"one bucket as {'/'.join(f'{column}=…' for column in columns)}"
    )
