"""Lists the buckets of a table with their states, all or the newest, and waits for some to be sealed.

It reads the lake alone, and changes nothing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from headrace import bucketers
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketKey, group_by_bucket
from headrace.writer.sealing.bucket_selection import BucketSelection, choose_buckets
from headrace.writer.sealing.bucket_states import (
    BucketState,
    ListedBucket,
    bucket_state,
    list_bucket,
    state_without_rows,
)
from headrace.writer.sealing.manifest import Manifest, bucket_path
from headrace.writer.sealing.rules import is_closed
from headrace.writer.sealing.sealer import BucketSnapshot, Sealer
from headrace.writer.sealing.watermark import watermark
from headrace.writer.storage.locations import in_bucket

_MANIFESTS_AT_ONCE = 16
# Between two reads of the table's log.
_POLL_INTERVAL_S = 1.0
_BUCKET_POLL_INTERVAL_S = 5.0
# Buckets that are not closed, of one wait: over a year of hours.
_AWAITED_MAX = 10_000
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

    def list_buckets(self, since: datetime | None, selections: Sequence[BucketSelection] = ()) -> list[ListedBucket]:
        """Return the buckets that end after an instant, the earliest first; those that go by no time come last.

        Only those that are selected, where there are selections.
        """
        files = group_by_bucket(self.sealer.table.bucket_files(self.snapshot.table_snapshot))
        selected_keys = choose_buckets(files, selections)
        keys = [key for key in selected_keys if since is None or self._ends_after(key, since)]
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

    def keys(self) -> list[BucketKey]:
        """Return the buckets that have rows."""
        return list(group_by_bucket(self.sealer.table.bucket_files(self.snapshot.table_snapshot)))

    def interval_start(self, key: BucketKey) -> datetime | None:
        """Return when a bucket begins; None where it goes by no time."""
        interval = self._interval(key)
        if interval is None:
            return None
        return interval[0]

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
class AwaitedBucket:
    """A bucket that a wait is for, as it was last read."""

    name: str
    # None: no row of it came, and more columns than those that go by time say which bucket it is.
    key: BucketKey | None
    state: BucketState
    # The newest, if that is the version that is awaited or a newer one.
    manifest: Manifest | None = None
    # Nothing of it is awaited any more: it is sealed, or closed without a row.
    is_complete: bool = False


class SealWait:
    """The wait for buckets to be sealed: each that has rows, and each that may still get some."""

    def __init__(self, listing: BucketListing, selection: BucketSelection, version: int) -> None:
        """Take the version of the manifests that are awaited. Raises ConfigError where it is of several buckets."""
        if version > 1 and selection.key is None:
            raise ConfigError(f"--version {version} is of one bucket, and {selection.text!r} may be several")
        self._listing = listing
        self._selection = selection
        self._version = version
        # Of buckets that are sealed in that version, which they stay.
        self._manifests: dict[BucketKey, Manifest] = {}

    def run(self, timeout: timedelta) -> list[AwaitedBucket]:
        """Read the table again and again until all are complete, or the time is over. Raises CommitFailed, OSError.

        A bucket that is closed and has no row counts as its first version. Raises ConfigError for too many buckets.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()
        interval_s = _POLL_INTERVAL_S
        if in_bucket(self._listing.sealer.table.location):
            interval_s = _BUCKET_POLL_INTERVAL_S
        while True:
            buckets = self.look()
            remaining_s = deadline_s - time.monotonic()
            if all(bucket.is_complete for bucket in buckets) or remaining_s <= 0:
                return buckets
            time.sleep(min(interval_s, remaining_s))
            self._listing.refresh(datetime.now(UTC))

    def look(self) -> list[AwaitedBucket]:
        """Return the buckets as the table has them now, the earliest first.

        A closed one without rows is among them only if it is the one that is named.
        """
        named_key = self._selection.key
        if named_key is not None:
            self._read_manifests([named_key])
            return [self._describe(named_key)]
        keys = self._selection.choose(self._listing.keys())
        unsealed = self._listing.snapshot.unsealed.buckets
        self._read_manifests([key for key in keys if key not in unsealed or unsealed[key].sealed])
        return [*(self._describe(key) for key in keys), *self._slots_without_rows(keys)]

    def _read_manifests(self, keys: Sequence[BucketKey]) -> None:
        """Read the newest manifests of buckets, and keep those of the version that is awaited, or of a newer one."""
        missing = [key for key in keys if key not in self._manifests]
        with ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as threads:
            manifests = list(threads.map(self._listing.sealer.manifests.newest, missing))
        for key, manifest in zip(missing, manifests, strict=True):
            if manifest is not None and manifest.version >= self._version:
                self._manifests[key] = manifest

    def _describe(self, key: BucketKey) -> AwaitedBucket:
        name = self._listing.bucket_name(key)
        manifest = self._manifests.get(key)
        if manifest is not None:
            return AwaitedBucket(name, key, BucketState("sealed"), manifest, is_complete=True)
        state = self._listing.state(key)
        if state.name == "sealed":
            state = replace(state, why=f"{state.why}; {self._version} is awaited")
        return AwaitedBucket(name, key, state, is_complete=state.name == "empty" and self._version == 1)

    def _slots_without_rows(self, keys: Sequence[BucketKey]) -> list[AwaitedBucket]:
        """Return the buckets that are not closed, and of which no row came yet. Raises ConfigError for too many."""
        closed_until = self._listing.snapshot.closed_until
        slots = list(islice(self._selection.slots(closed_until), _AWAITED_MAX + 1))
        if len(slots) > _AWAITED_MAX:
            raise ConfigError(
                f"{self._selection.text!r} are more than {_AWAITED_MAX:,} buckets that are not closed; name fewer"
            )
        starts = {self._listing.interval_start(key) for key in keys}
        buckets: list[AwaitedBucket] = []
        for slot in slots:
            start, slot_end = slot.interval or (None, None)
            if start in starts or (slot_end is not None and is_closed(slot_end, closed_until)):
                continue
            key = slot.values if slot.columns == tuple(self._listing.bucketer.columns) else None
            state = state_without_rows(self._listing.facts, slot_end)
            buckets.append(AwaitedBucket(slot.name, key, state))
        return buckets
