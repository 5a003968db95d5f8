"""Lists the buckets of a table with their states, all or the newest, and waits for one to be sealed.

It reads the lake alone, and changes nothing.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import bucketers
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketKey, group_by_bucket
from writer.sealing.bucket_states import BucketState, ListedBucket, bucket_state, list_bucket, state_without_rows
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.sealer import BucketSnapshot, Sealer
from writer.sealing.watermark import watermark
from writer.storage.locations import on_s3

_MANIFESTS_AT_ONCE = 16
# Between two reads of the table's log.
_POLL_INTERVAL_S = 1.0
_S3_POLL_INTERVAL_S = 5.0
# A fortnight of hours, and some.
CELLS_MAX = 400
# Manifests that one refresh reads; the others come with the next ones.
_MANIFESTS_READ_MAX = 40
# A pause is so many times as long as a refresh: listing a large table costs processor time that the stream needs.
_PAUSE_FACTOR = 20
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)


class BucketListing:
    """The buckets of one pipeline at one moment. Changes nothing."""

    def __init__(self, name: str, config: Config, now: datetime, target: str | None = None) -> None:
        """Read the table. Raises ConfigError where there is no table yet, CommitFailed, OSError."""
        self.sealer = Sealer(name, config, target)
        self.bucketer = self.sealer.bucketer
        if not self.sealer.table.exists():
            raise ConfigError(
                f"the table at {self.sealer.table.location} does not exist yet. Start the pipeline (`headrace run`)."
            )
        self.refresh(now)

    def refresh(self, now: datetime) -> None:
        """Read the table once more. Raises CommitFailed, OSError."""
        self.snapshot = self.sealer.follow(write=False)
        numbers = {topic: len(ids) for topic, ids in self.snapshot.progress.incarnations().items()}
        parts = self.sealer.parts(self.snapshot, numbers, frozenset())
        self.watermark = watermark(parts, self.sealer.policy.out_of_orderness)
        self.facts = self.sealer.seal_facts(self.snapshot, self.watermark, now)

    def bucket_name(self, key: BucketKey) -> str:
        """Return the bucket's name: the folders of its files."""
        return bucket_path(self.bucketer.columns, key)

    def list_buckets(self, since: datetime | None) -> list[ListedBucket]:
        """Return the buckets that end after an instant, the earliest first; those that go by no time come last."""
        files = group_by_bucket(self.sealer.table.bucket_files(self.snapshot.table_snapshot))
        keys = [key for key in files if since is None or self._ends_after(key, since)]
        unsealed = self.snapshot.unsealed.buckets
        sealed_keys = [key for key in keys if key not in unsealed or unsealed[key].sealed]
        with ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as threads:
            manifests = dict(zip(sealed_keys, threads.map(self.sealer.manifests.newest, sealed_keys), strict=True))
        columns = self.bucketer.columns
        buckets = [
            list_bucket(self.facts, columns, key, self._interval(key), files[key], manifests.get(key)) for key in keys
        ]
        last_time = datetime.max.replace(tzinfo=UTC)
        return sorted(buckets, key=lambda bucket: (bucket.start or last_time, tuple(map(str, bucket.key))))

    def state(self, key: BucketKey) -> BucketState:
        """Return the state of a bucket, also of one that has no rows."""
        if key in self.snapshot.unsealed.buckets:
            return bucket_state(self.facts, key)
        manifest = self.sealer.manifests.newest(key)
        if manifest is not None:
            return BucketState("sealed", f"its newest version is {manifest.version}, and nothing changed since")
        interval = self._interval(key)
        return state_without_rows(self.facts, interval[1] if interval else None)

    def _interval(self, key: BucketKey) -> tuple[datetime, datetime] | None:
        return bucketers.interval(self.bucketer, key)

    def _ends_after(self, key: BucketKey, since: datetime) -> bool:
        interval = self._interval(key)
        return interval is None or interval[1] > since


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
        intervals = {key: bucketers.interval(self._bucketer, key) for key in files}
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


@dataclass(frozen=True)
class WaitResult:
    """What a bucket is at the end of the wait."""

    state: BucketState
    # None unless it is sealed in the version that was waited for, or a newer one.
    manifest: Manifest | None = None


def wait_for_seal(listing: BucketListing, bucket: BucketKey, version: int, timeout: timedelta) -> WaitResult:
    """Read the table again and again until the bucket is sealed in a version, or the time is over.

    A bucket that is closed and has no row counts as its first version. Raises CommitFailed, OSError.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    interval_s = _POLL_INTERVAL_S
    if on_s3(listing.sealer.table.location):
        interval_s = _S3_POLL_INTERVAL_S
    while True:
        manifest = listing.sealer.manifests.newest(bucket)
        if manifest is not None and manifest.version >= version:
            return WaitResult(BucketState("sealed"), manifest)
        state = listing.state(bucket)
        if state.name == "empty" and version == 1:
            return WaitResult(state)
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            if state.name == "sealed":
                state = replace(state, why=f"{state.why}; {version} is awaited")
            return WaitResult(state)
        time.sleep(min(interval_s, remaining_s))
        listing.refresh(datetime.now(UTC))
