"""Rewrites the files that hold given rows without them; selects rows of a table by their offsets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.batch.bucketing import TimeRule, times_of
from writer.batch.staging import table_file
from writer.batch.staging.parquet_files import Destination, OpenFile, unmeasured_columns
from writer.core.files import BucketFile, StagedFile
from writer.core.offsets import Span, TopicPartition, joined
from writer.storage.base import OutcomeUnknown, Store
from writer.table.log.entries import removed
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.log import Action

_ROWS_AT_ONCE = 65_536
_PREFIX = "replay"
PLACE = ["_topic", "_incarnation", "_partition", "_offset"]
Offsets = Mapping[TopicPartition, Sequence[Span]]


@dataclass
class RemovalResult:
    """Files after a removal of rows: those to remove, those that replace them, the number of rows."""

    removed: list[BucketFile] = field(default_factory=list)
    rest: list[StagedFile] = field(default_factory=list)
    rows: int = 0
    columns: Sequence[str] = ()  # of the table's buckets

    @property
    def gone(self) -> list[Action]:
        """The actions that remove the files."""
        now = datetime.now(UTC)
        return [removed(file, self.columns, now) for file in self.removed]


@contextmanager
def without(
    store: Store, files: Sequence[BucketFile], offsets: Offsets, *, columns: Sequence[str] = (),
    hidden: bool = False, folder: str = "", prefix: str = _PREFIX,
) -> Iterator[RemovalResult]:  # fmt: skip
    """Stage what is left of the files that hold rows at these offsets. The rest is as `leaving` has it."""
    counted, goes = partial(count, store, offsets=offsets), partial(at_offsets, offsets=offsets)
    with leaving(
        store, files, counted, goes, columns=columns, hidden=hidden, folder=folder, prefix=prefix
    ) as found:  # fmt: skip
        yield found


@contextmanager
def leaving(
    store: Store, files: Sequence[BucketFile], counted: Callable[[BucketFile], int],
    goes: Callable[[pa.RecordBatch], np.ndarray], *, columns: Sequence[str] = (),
    hidden: bool = False, folder: str = "", prefix: str = _PREFIX, rule: TimeRule | None = None,
) -> Iterator[RemovalResult]:  # fmt: skip
    """Stage what is left of files whose rows go: `counted` says how many of a file, `goes` which.

    `rule`: of event times, where the log has none of a file. `columns`: of the table's buckets. If the block is left by
    an exception, what was staged is removed, unless an entry may name it. `hidden`: stage where readers do not look.
    `folder`: of the table's files.
    """
    found = RemovalResult(columns=columns)
    to = Destination(store, tuple(columns), prefix, 0, hidden=hidden, below=folder)
    try:
        for file in files:
            if gone := counted(file):
                found.removed.append(file)
                found.rows += gone
                if (left := left_of(to, file, gone, goes, rule)) is not None:
                    found.rest.append(left)
        yield found
    except (OutcomeUnknown, CommitFailed):
        raise  # an entry may name them by now, or may yet
    except Exception:  # not where a person interrupts it: an entry may be there
        to.remove()
        raise


def count(store: Store, file: BucketFile, offsets: Offsets) -> int:
    """Count the rows of a file at these offsets. Raises OSError."""
    if not any(file.reaches(start, end) for spans in offsets.values() for start, end in spans):
        return 0
    with table_file.open_parquet(store, file.path) as source:
        if not {*PLACE} <= {*source.names}:
            return 0  # of a table that was taken over: its rows say no offset
        return sum(int(at_offsets(batch, offsets).sum()) for batch in source.iter_batches(_ROWS_AT_ONCE, PLACE))


def left_of(
    to: Destination, file: BucketFile, gone: int, goes: Callable[[pa.RecordBatch], np.ndarray],
    rule: TimeRule | None = None,
) -> StagedFile | None:  # fmt: skip
    """Write the rows of a file that stay, in the order that they have; None when none does.

    `goes` tells of each row whether it goes, `gone` how many do. Event times are those that the log has of the file,
    else those of the rows by `rule`, without it the present.
    """
    times, counted = _Times(rule, file), 0
    with table_file.open_parquet(to.store, file.path) as source:
        if gone == source.metadata.num_rows:
            return None
        written: OpenFile | None = None
        alike = replace(to, unmeasured=unmeasured_columns(source.metadata))
        try:
            for batch in source.iter_batches(_ROWS_AT_ONCE):
                out = goes(batch)
                counted += int(out.sum())
                left = pa.Table.from_batches([batch.filter(pa.array(~out))])
                written = written or OpenFile(alike, file.bucket, left)
                written.write(left)
                times.take(left)
            assert written is not None, "a file with rows has a batch"
            written.close()
        except BaseException:
            if written is not None:
                written.discard()
            raise
    assert counted == gone, f"{file.path}: {counted} rows went, {gone} were counted"
    return written.staged_file(*times.bounds())


class _Times:
    """First and last event time of a file: from the log, or from the rows if the log has none."""

    def __init__(self, rule: TimeRule | None, file: BucketFile) -> None:
        self._rule = rule
        known = (file.event_time_min, file.event_time_max)
        self._known = None if None in known else known
        self._found: list[datetime] = []

    def take(self, rows: pa.Table) -> None:
        rule = self._rule if self._known is None and rows.num_rows else None
        if rule is not None and rule.field.partition(".")[0] in rows.column_names:
            topics = rows.column("_topic") if "_topic" in rows.column_names else pa.nulls(rows.num_rows, pa.string())
            times, _ = times_of(rows, rule, topics)
            self._found += [t for t in pc.min_max(times).as_py().values() if t is not None]

    def bounds(self) -> tuple[datetime, datetime]:
        if self._known is not None and self._known[0] is not None and self._known[1] is not None:
            return self._known[0], self._known[1]
        unknown = datetime.now(UTC) if self._rule is None else datetime.fromtimestamp(0, UTC)
        return min(self._found, default=unknown), max(self._found, default=unknown)


def at_offsets(batch: pa.RecordBatch, offsets: Offsets) -> np.ndarray:
    """Return for each row whether it is at one of these offsets."""
    found = [among(batch, part, spans) for part, spans in offsets.items()]
    return np.asarray(np.logical_or.reduce(found)) if found else np.zeros(batch.num_rows, bool)


def spans_of(offsets: np.ndarray) -> list[Span]:
    """Cut offsets, in any order, where the next is not the one after."""
    ordered = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(ordered) != 1)
    starts, ends = [0, *(cuts + 1)], [*(cuts + 1), len(ordered)]
    return [(int(ordered[a]), int(ordered[b - 1]) + 1) for a, b in zip(starts, ends, strict=True) if a < b]


def places(rows: pa.Table) -> dict[TopicPartition, list[Span]]:
    """Return the offsets of rows by partition. Rows that say none are left out: they came from another writer."""
    known = pc.and_(*(pc.is_valid(rows.column(name)) for name in (PLACE[0], PLACE[3])))
    grouped = rows.filter(known).group_by(PLACE[:3], use_threads=False).aggregate([("_offset", "list")])
    found = {}
    for i in range(grouped.num_rows):  # one turn a part
        part = TopicPartition(*(grouped.column(name)[i].as_py() for name in PLACE[:3]))
        found[part] = spans_of(grouped.column("_offset_list")[i].values.to_numpy(zero_copy_only=False))
    return found


def together(each: Iterable[Offsets]) -> dict[TopicPartition, list[Span]]:
    """Put offsets by partition together."""
    found: dict[TopicPartition, list[Span]] = {}
    for offsets in each:
        for part, spans in offsets.items():
            found[part] = joined([*found.get(part, ()), *spans])
    return found


def inside(offsets: np.ndarray, among: Sequence[Span]) -> np.ndarray:
    """Return for each offset whether it lies in one of the spans."""
    starts, ends = (np.array(bounds, np.int64) for bounds in zip(*joined(among), strict=True))
    at = np.searchsorted(starts, offsets, side="right") - 1
    return np.asarray((at >= 0) & (offsets < ends[at]))


def among(dead_letters: pa.RecordBatch, part: TopicPartition, spans: Sequence[Span]) -> np.ndarray:
    """Return, for each dead letter, whether its offset is one of these."""
    place = zip(PLACE[:3], (part.topic, part.incarnation, part.partition), strict=True)
    here = [pc.equal(dead_letters.column(name), value).to_numpy(zero_copy_only=False) for name, value in place]
    inner = inside(dead_letters.column("_offset").to_numpy(zero_copy_only=False), spans)
    return np.asarray(np.logical_and.reduce([*here, inner]))
