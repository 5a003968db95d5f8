"""Lists the buckets of a table with their states, and waits for one to be sealed. Reads the lake alone."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import bucketers
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketKey, group_by_bucket
from writer.sealing.bucket_states import BucketState, ListedBucket, bucket_state, list_bucket, state_without_rows
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.sealer import Sealer
from writer.sealing.watermark import watermark
from writer.storage.locations import on_s3

_MANIFESTS_AT_ONCE = 16
# Between two reads of the table's log.
_POLL_INTERVAL_S = 1.0
_S3_POLL_INTERVAL_S = 5.0


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
