"""Collects bucket states for the page: the newest buckets by time, refreshed at a limited rate."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from bucketers import interval
from writer.core.files import BucketKey, group_by_bucket
from writer.sealing.bucket_states import BucketState, bucket_state
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.sealer import BucketSnapshot, Sealer

CELLS_MAX = 400  # a fortnight of hours, and some
_READ_AT_ONCE = 40  # manifests in one look; the others come with the next ones
_REST = 20  # times as long as a look takes, it rests: listing a large table costs processor time that the stream wants
_FIRST = datetime.min.replace(tzinfo=UTC)


class BucketOverview:
    """Looks at the buckets of a table now and then. Not for several threads."""

    def __init__(self, sealer: Sealer, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the sealer whose thread looks, and a clock in seconds."""
        self._sealer = sealer
        self._bucketer = sealer.bucketer
        self._manifests: dict[BucketKey, Manifest] = {}
        self._cells: tuple[BucketState, ...] = ()
        self._version = -1
        self._clock = clock
        self._due_s = 0.0

    def look(self, standing: BucketSnapshot, now: datetime) -> tuple[BucketState, ...]:
        """Return the newest buckets, the earliest first. Raises CommitFailed, OSError."""
        began_s = self._clock()
        version = standing.snapshot.state.table_version[1]
        if began_s < self._due_s:
            return self._cells
        missing = any(c.state == "sealed" and c.version is None for c in self._cells)
        waiting = any(c.state in ("closed", "blocked", "reopened") for c in self._cells)  # its reason may pass
        if version == self._version and not missing and not waiting:
            return self._cells
        self._cells, self._version = self._looked(standing, now), version
        self._due_s = began_s + _REST * (self._clock() - began_s)
        return self._cells

    def _looked(self, standing: BucketSnapshot, now: datetime) -> tuple[BucketState, ...]:
        files = group_by_bucket(self._sealer.table.bucket_files(standing.snapshot))
        spans = {key: interval(self._bucketer, key) for key in files}
        newest = sorted(files, key=lambda key: (spans[key] or (_FIRST,))[0])[-CELLS_MAX:]
        unsealed = standing.unsealed.buckets
        states = {state.bucket: state for state in self._sealer.due(standing, now)}
        self._read(key for key in reversed(newest) if key not in unsealed or unsealed[key].sealed)
        return tuple(
            bucket_state(
                bucket_path(self._sealer.columns, key), spans[key], files[key], unsealed.get(key), states.get(key),
                standing.closed_until, self._manifests.get(key),
            )
            for key in newest
        )  # fmt: skip

    def _read(self, wanted: Iterable[BucketKey]) -> None:
        """Take the manifests that this process wrote itself, and read some of the others."""
        self._manifests |= {manifest.bucket: manifest for manifest in self._sealer.sealed}
        for key in [key for key in wanted if key not in self._manifests][:_READ_AT_ONCE]:
            if (found := self._sealer.manifests.newest(key)) is not None:
                self._manifests[key] = found
