"""Lists the newest buckets by time for the page, at a limited rate."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from bucketers import interval
from writer.core.files import BucketKey, group_by_bucket
from writer.sealing.bucket_states import ListedBucket, list_bucket
from writer.sealing.manifest import Manifest
from writer.sealing.sealer import BucketSnapshot, Sealer

# A fortnight of hours, and some.
CELLS_MAX = 400
# Manifests that one refresh reads; the others come with the next ones.
_MANIFESTS_READ_MAX = 40
# A pause is so many times as long as a refresh: listing a large table costs processor time that the stream needs.
_PAUSE_FACTOR = 20
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)


class BucketOverview:
    """Looks at the buckets of a table now and then. Not for several threads."""

    def __init__(self, sealer: Sealer, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the sealer whose thread looks, and a clock in seconds."""
        self._sealer = sealer
        self._bucketer = sealer.bucketer
        self._manifests: dict[BucketKey, Manifest] = {}
        self._buckets: tuple[ListedBucket, ...] = ()
        self._version = -1
        self._clock = clock
        self._due_s = 0.0

    def refresh(self, snapshot: BucketSnapshot, now: datetime) -> tuple[ListedBucket, ...]:
        """Return the newest buckets, the earliest first. Raises CommitFailed, OSError."""
        started_s = self._clock()
        if started_s < self._due_s:
            return self._buckets
        version = snapshot.table_snapshot.state.table_version[1]
        lacks_manifest = any(bucket.version is None for bucket in self._buckets)
        # The reason that such a bucket is not sealed may pass.
        is_waiting = any(bucket.state.name in ("closed", "blocked", "reopened") for bucket in self._buckets)
        if version == self._version and not lacks_manifest and not is_waiting:
            return self._buckets
        self._buckets = self._list_buckets(snapshot, now)
        self._version = version
        self._due_s = started_s + _PAUSE_FACTOR * (self._clock() - started_s)
        return self._buckets

    def _list_buckets(self, snapshot: BucketSnapshot, now: datetime) -> tuple[ListedBucket, ...]:
        files = group_by_bucket(self._sealer.table.bucket_files(snapshot.table_snapshot))
        intervals = {key: interval(self._bucketer, key) for key in files}
        newest = sorted(files, key=lambda key: (intervals[key] or (_FIRST_TIME,))[0])[-CELLS_MAX:]
        unsealed = snapshot.unsealed.buckets
        self._read_manifests(key for key in reversed(newest) if key not in unsealed or unsealed[key].sealed)
        facts = self._sealer.seal_facts(snapshot, self._sealer.watermark, now)
        columns = self._sealer.columns
        return tuple(
            list_bucket(facts, columns, key, intervals[key], files[key], self._manifests.get(key)) for key in newest
        )

    def _read_manifests(self, buckets: Iterable[BucketKey]) -> None:
        """Take the manifests that this process wrote itself, and read some of the others."""
        self._manifests |= {manifest.bucket: manifest for manifest in self._sealer.sealed}
        missing = [key for key in buckets if key not in self._manifests]
        for key in missing[:_MANIFESTS_READ_MAX]:
            manifest = self._sealer.manifests.newest(key)
            if manifest is not None:
                self._manifests[key] = manifest
