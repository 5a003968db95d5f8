"""Waits until a bucket is sealed, or closed without a row. From the lake alone."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from writer.core.files import BucketKey
from writer.sealing.bucket_listing import BucketListing
from writer.sealing.manifest import Manifest
from writer.storage.locations import on_s3

# Between two reads of the table's log.
_POLL_INTERVAL_S = 1.0
_S3_POLL_INTERVAL_S = 5.0


@dataclass(frozen=True)
class WaitResult:
    """What a bucket is at the end of the wait, and why it is not sealed."""

    state: str
    reason: str = ""
    # None unless it is sealed in the version that was waited for, or a newer one.
    manifest: Manifest | None = None
    # It is closed and never had a row, so that nothing of it is ever sealed.
    is_empty: bool = False


def wait_for_seal(listing: BucketListing, bucket: BucketKey, version: int, timeout: timedelta) -> WaitResult:
    """Read the table again and again until the bucket is sealed in a version, or the time is over.

    A bucket that is closed and has no row counts as its first version. Raises CommitFailed, OSError.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    is_on_s3 = on_s3(listing.sealer.table.location)
    interval_s = _S3_POLL_INTERVAL_S if is_on_s3 else _POLL_INTERVAL_S
    while True:
        manifest = listing.sealer.manifests.newest(bucket)
        if manifest is not None and manifest.version >= version:
            return WaitResult("sealed", manifest=manifest)
        state, reason = listing.explain(bucket, version)
        if state == "empty" and version == 1:
            return WaitResult(state, is_empty=True)
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            return WaitResult(state, reason)
        time.sleep(min(interval_s, remaining_s))
        listing.refresh(datetime.now(UTC))
