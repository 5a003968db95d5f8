"""Lists the files that a bucket's rows are compared with, and remembers the buckets that hold repeats of them."""

from collections.abc import Callable, Collection, Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace import bucketers
from headrace.writer.batch.staging.key_window import ComparedBucket
from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.core.units import microseconds
from headrace.writer.maintenance.dedupe.neighbours import Interval, Neighbours, TableBucket, neighbours
from headrace.writer.maintenance.rewrite import Window
from headrace.writer.sealing.rules import is_closed
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable


@dataclass(frozen=True)
class Comparison:
    """What one bucket is compared with, at versions of the table and of that of late rows."""

    window: Window
    # By their numbers in the window.
    buckets: tuple[TableBucket, ...]
    # Files of other buckets of the same table.
    by: tuple[BucketFile, ...]
    # Tables that were listed, and their versions.
    versions: tuple[tuple[PipelineTable, int], ...]

    def is_outdated(self) -> bool:
        """Return whether a table changed since, so that a file of it may be gone."""
        return any(table.snapshot().version != version for table, version in self.versions)


class AcrossBuckets:
    """The buckets of a table and of its late rows, for dedupe within a window. Not for several threads."""

    def __init__(
        self,
        table: PipelineTable,
        late: PipelineTable,
        bucketer: bucketers.Bucketer,
        window: timedelta,
        read_unsealed: Callable[[], AbstractSet[BucketKey]],
    ) -> None:
        """`read_unsealed`: asked for buckets with rows that no manifest covers."""
        self.table = table
        self.late = late
        self._bucketer = bucketer
        self._window = window
        self._read_unsealed = read_unsealed
        # Buckets that this process judged, and that are not sealed yet.
        self._judged = set[BucketKey]()
        self._due = set[TableBucket]()
        self._intervals = dict[BucketKey, Interval | None]()

    def compare(self, own: TableBucket, snapshot: PipelineSnapshot) -> Comparison | None:
        """List what a bucket is compared with; None: its rows have no time. `snapshot`: of the bucket's table.

        Raises CommitFailed.
        """
        if self._interval(own.key) is None:
            return None
        snapshots = self._snapshots(own, snapshot)
        files: dict[TableBucket, list[BucketFile]] = {}
        for table, table_snapshot in snapshots:
            # Files are read where they lie.
            table.publish(table_snapshot.state.table_version)
            for key, bucket_files in group_by_bucket(table.bucket_files(table_snapshot)).items():
                files[TableBucket(key, late=table is self.late)] = bucket_files
        # Asked after the files were listed: so no bucket that was not judged passes for one that was.
        unsealed = self._read_unsealed()
        self._judged &= unsealed
        intervals = {}
        for bucket in files:
            interval = self._interval(bucket.key)
            if interval is not None:
                intervals[bucket] = interval
        chosen = neighbours(own, intervals, unsealed, self._window)
        _, main_snapshot = snapshots[0]
        window_files = []
        by: list[BucketFile] = []
        for number, bucket in enumerate(chosen.buckets[1:], start=1):
            location = self._table(bucket).location
            window_files += [(number, location, file.path) for file in files[bucket]]
            if bucket.late == own.late:
                by += files[bucket]
        window = Window(
            self._window // timedelta(microseconds=1),
            tuple(
                self._compared_bucket(bucket, intervals[bucket], chosen, unsealed, main_snapshot.closed_until)
                for bucket in chosen.buckets
            ),
            tuple(window_files),
        )
        versions = tuple((table, table_snapshot.version) for table, table_snapshot in snapshots)
        return Comparison(window, chosen.buckets, tuple(by), versions)

    def _snapshots(self, own: TableBucket, snapshot: PipelineSnapshot) -> list[tuple[PipelineTable, PipelineSnapshot]]:
        """Return the table and that of its late rows, if it exists, with what they hold."""
        if own.late:
            return [(self.table, self.table.snapshot()), (self.late, snapshot)]
        snapshots = [(self.table, snapshot)]
        if self.late.exists():
            snapshots.append((self.late, self.late.snapshot()))
        return snapshots

    def _compared_bucket(
        self,
        bucket: TableBucket,
        interval: Interval,
        chosen: Neighbours,
        unsealed: AbstractSet[BucketKey],
        closed_until: datetime | None,
    ) -> ComparedBucket:
        start, end = interval
        is_judged = (
            bucket.late or bucket.key in self._judged or (bucket.key not in unsealed and is_closed(end, closed_until))
        )
        return ComparedBucket(microseconds(start), microseconds(end), bucket.late, bucket in chosen.near, is_judged)

    def add_result(self, own: TableBucket, repeats_in: Collection[TableBucket]) -> None:
        """Note that a bucket's rows were judged, and which buckets hold repeats of them."""
        if not own.late:
            self._judged.add(own.key)
        self._due |= set(repeats_in)

    def take_due(self) -> list[TableBucket]:
        """Return the buckets that hold repeats of rows that were judged since the last call, in order."""
        due = sorted(self._due, key=lambda bucket: (bucket.late, tuple(map(str, bucket.key))))
        self._due = set()
        return due

    def _table(self, bucket: TableBucket) -> PipelineTable:
        return self.late if bucket.late else self.table

    def _interval(self, key: BucketKey) -> Interval | None:
        if key not in self._intervals:
            self._intervals[key] = bucketers.interval(self._bucketer, key)
        return self._intervals[key]
