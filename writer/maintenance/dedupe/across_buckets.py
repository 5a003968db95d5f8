"""Lists the files that a bucket's rows are compared with, and remembers the buckets that hold repeats of them."""

from collections.abc import Callable, Collection, Iterator, Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

import bucketers
from writer.batch.staging.key_window import ComparedBucket
from writer.core.files import BucketFile, BucketKey, group_by_bucket
from writer.core.units import microseconds
from writer.maintenance.dedupe.neighbours import BucketPlace, Interval, neighbours
from writer.maintenance.rewrite import Window
from writer.sealing.rules import is_closed
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable


@dataclass(frozen=True)
class Comparison:
    """What one bucket is compared with, at versions of the table and of that of late rows."""

    window: Window
    places: tuple[BucketPlace, ...]  # by their numbers in the window
    by: tuple[BucketFile, ...]  # of other buckets of the same table
    seen: tuple[tuple[PipelineTable, int], ...]  # tables that were listed, and their versions

    def is_outdated(self) -> bool:
        """Return whether a table changed since, so that a file of it may be gone."""
        return any(table.snapshot().version != version for table, version in self.seen)


class AcrossBuckets:
    """The buckets of a table and of its late rows, for dedupe within a window. Not for several threads."""

    def __init__(
        self, table: PipelineTable, late: PipelineTable, bucketer: bucketers.Bucketer, window: timedelta,
        unsealed: Callable[[], AbstractSet[BucketKey]],
    ) -> None:  # fmt: skip
        """`unsealed`: asked for buckets with rows that no manifest covers."""
        self.table, self.late = table, late
        self._bucketer, self._window = bucketer, window
        self._unsealed = unsealed
        self._judged = set[BucketKey]()  # by this process, and not sealed yet
        self._due = set[BucketPlace]()
        self._intervals = dict[BucketKey, Interval | None]()

    def compared(self, own: BucketPlace, snapshot: PipelineSnapshot) -> Comparison | None:
        """List what a bucket is compared with; None: its rows have no time. `snapshot`: of the bucket's table.

        Raises CommitFailed.
        """
        if self._interval(own.bucket) is None:
            return None
        seen = [(self.table, self.table.snapshot() if own.late else snapshot)]
        if own.late or self.late.exists():
            seen.append((self.late, snapshot if own.late else self.late.snapshot()))
        files: dict[BucketPlace, list[BucketFile]] = {}
        for (table, at), late in zip(seen, (False, True), strict=False):
            table.publish(at.state.table_version)  # files are read in their place
            files |= {BucketPlace(b, late): its for b, its in group_by_bucket(table.bucket_files(at)).items()}
        unsealed = self._unsealed()  # after the files were listed: none that was not judged passes for one that was
        self._judged &= unsealed
        spans = {place: span for place in files if (span := self._interval(place.bucket)) is not None}
        chosen = neighbours(own, spans, unsealed, self._window)
        until = seen[0][1].closed_until

        def facts(place: BucketPlace) -> ComparedBucket:
            start, end = spans[place]
            judged = place.bucket in self._judged or (place.bucket not in unsealed and is_closed(end, until))
            return ComparedBucket(
                microseconds(start), microseconds(end), place.late, place in chosen.near, judged or place.late
            )

        listed = tuple(
            (number, self._table(place).location, file.path)
            for number, place in enumerate(chosen.places) if number for file in files[place]
        )  # fmt: skip
        window = Window(self._window // timedelta(microseconds=1), tuple(map(facts, chosen.places)), listed)
        by = tuple(f for place in chosen.places[1:] if place.late == own.late for f in files[place])
        return Comparison(window, chosen.places, by, tuple((table, at.version) for table, at in seen))

    def judged(self, own: BucketPlace, due: Collection[BucketPlace]) -> None:
        """Take the result for a bucket: its rows were judged; `due`: what holds repeats of them."""
        self._judged |= set() if own.late else {own.bucket}
        self._due |= set(due)

    def due(self) -> Iterator[BucketPlace]:
        """Return the places that hold repeats of rows that were judged since the last call, in order."""
        due, self._due = self._due, set()
        return iter(sorted(due, key=lambda place: (place.late, tuple(map(str, place.bucket)))))

    def _table(self, place: BucketPlace) -> PipelineTable:
        return self.late if place.late else self.table

    def _interval(self, bucket: BucketKey) -> Interval | None:
        if bucket not in self._intervals:
            self._intervals[bucket] = bucketers.interval(self._bucketer, bucket)
        return self._intervals[bucket]
