"""Lists the buckets of a table and their states, and says why one is not sealed yet. Reads the lake alone."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import bucketers
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketFile, BucketKey, group_by_bucket
from writer.core.text import instant, span
from writer.core.units import shift_instant
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.rules import SealBlocked, SealLater, Unsealed, is_closed
from writer.sealing.sealer import Sealer
from writer.sealing.watermark import watermark

ListedState = Literal["open", "closed", "sealed", "reopened"]
_MANIFESTS_AT_ONCE = 16


@dataclass(frozen=True)
class ListedBucket:
    """A bucket that has rows, as it is now."""

    key: BucketKey
    start: datetime | None
    end: datetime | None
    state: ListedState
    # None: another client wrote a file and does not say.
    rows: int | None
    files: int
    bytes: int
    # Rows that came after it was closed, since it began.
    late: int
    # The newest.
    manifest: Manifest | None
    # Why it is not sealed, or not again.
    reason: str
    # Rows that came late and did not join it, by policy (seal.late).
    elsewhere: Mapping[str, int]


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
        self.now = now
        self.snapshot = self.sealer.follow(write=False)
        numbers = {topic: len(ids) for topic, ids in self.snapshot.progress.incarnations().items()}
        parts = self.sealer.parts(self.snapshot, numbers, frozenset())
        self.watermark = watermark(parts, self.sealer.policy.out_of_orderness)

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
        buckets = [self._bucket(key, files[key], manifests.get(key)) for key in keys]
        last_time = datetime.max.replace(tzinfo=UTC)
        return sorted(buckets, key=lambda bucket: (bucket.start or last_time, tuple(map(str, bucket.key))))

    def explain(self, key: BucketKey, version: int) -> tuple[str, str]:
        """Return the state of a bucket, and why it is not sealed in this version yet.

        A bucket that is closed and has no row is `empty`.
        """
        unsealed = self.snapshot.unsealed.buckets.get(key)
        _, interval_end = self._interval(key)
        if unsealed is not None:
            return self._state(unsealed, interval_end, is_sealed=bool(unsealed.sealed)), self._reason(key, interval_end)
        manifest = self.sealer.manifests.newest(key)
        if manifest is not None:
            return (
                "sealed",
                f"its newest version is {manifest.version}, and nothing changed since; {version} is awaited",
            )
        if self._is_closed(interval_end):
            return "empty", ""
        return "open", f"no row of it came yet; {self._reason_to_stay_open(interval_end)}"

    def _interval(self, key: BucketKey) -> tuple[datetime | None, datetime | None]:
        return bucketers.interval(self.bucketer, key) or (None, None)

    def _ends_after(self, key: BucketKey, since: datetime) -> bool:
        _, interval_end = self._interval(key)
        return interval_end is None or interval_end > since

    def _is_closed(self, interval_end: datetime | None) -> bool:
        return interval_end is not None and is_closed(interval_end, self.snapshot.closed_until)

    def _bucket(self, key: BucketKey, files: Sequence[BucketFile], manifest: Manifest | None) -> ListedBucket:
        unsealed = self.snapshot.unsealed.buckets.get(key)
        start, interval_end = self._interval(key)
        state = self._state(unsealed, interval_end, is_sealed=manifest is not None)
        rows = [file.rows for file in files if file.rows is not None]
        return ListedBucket(
            key,
            start,
            interval_end,
            state,
            rows=sum(rows) if len(rows) == len(files) else None,
            files=len(files),
            bytes=sum(file.bytes for file in files),
            late=(manifest.late if manifest else 0) + (unsealed.late if unsealed else 0),
            manifest=manifest,
            reason="" if state in ("sealed", "open") else self._reason(key, interval_end),
            elsewhere=self.snapshot.unsealed.late_elsewhere(key, manifest),
        )

    def _state(self, unsealed: Unsealed | None, interval_end: datetime | None, *, is_sealed: bool) -> ListedState:
        if is_sealed and unsealed is None:
            return "sealed"
        if is_sealed:
            return "reopened"
        return "closed" if self._is_closed(interval_end) else "open"

    def _reason(self, key: BucketKey, interval_end: datetime | None) -> str:
        for decision in self.sealer.due(self.snapshot, self.now):
            if decision.bucket != key:
                continue
            match decision:
                case SealBlocked(why=why):
                    return why
                case SealLater(due=due):
                    return f"rows came after it was sealed; it is sealed again after {instant(due)}"
                case _:
                    return "it is about to be sealed, by a running driver or `headrace seal`"
        return self._reason_to_stay_open(interval_end)

    def _reason_to_stay_open(self, interval_end: datetime | None) -> str:
        """Return what the closing of an open bucket waits for."""
        if interval_end is None:
            return "it goes by no time, so nothing closes it"
        if not self.sealer.settings.seal.enabled:
            return "sealing is switched off (seal.enabled)"
        until = shift_instant(interval_end, self.sealer.policy.allowed_lateness)
        mark = self.watermark
        if mark.instant is None:
            cause = f": {mark.held_by.full_name} has no row yet" if mark.held_by else ""
            return f"it is closed when the watermark reaches {instant(until)}; there is none yet{cause}"
        if mark.instant >= until:
            return "it is about to be closed, by a running driver or `headrace seal`"
        cause = ""
        if mark.held_by:
            cause = f", held back by {mark.held_by.full_name} unless it is idle"
        return (
            f"it is closed when the watermark reaches {instant(until)}; it stands at {instant(mark.instant)}{cause}, "
            f"{span((until - mark.instant).total_seconds())} short"
        )
