"""The protocol of a hook: it delivers one sealed version of a bucket, or raises the reason why not."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from headrace.writer.batch.staging.bucket_folders import HIVE_NULL
from headrace.writer.core.files import BucketFile
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.sealing.manifest import Manifest

Per = Literal["bucket", "interval", "table"]
# Between the values of a bucket of several columns, where Airflow's and Dagster's keys of several dimensions have it.
_BETWEEN_VALUES = "|"


@dataclass(frozen=True)
class SealedVersion:
    """One sealed version of a bucket, or its removal, and what a hook may ask of its table."""

    manifest: Manifest
    # The version of the table's log that sealed the bucket.
    entry: int
    table: TableDescription
    # Lists the files of all buckets of the interval, as of that version. Raises OSError.
    files: Callable[[], Sequence[BucketFile]]
    # Where the manifest lies.
    manifest_location: str
    # Retention removed the bucket: it has no row any more.
    retired: bool = False

    @property
    def delivery_id(self) -> str:
        """What tells this version of this bucket of this table from all others, the same for each delivery."""
        identity = json.dumps([self.table.id, self.manifest.bucket, self.manifest.version, self.entry])
        return f"msg_{hashlib.sha256(identity.encode()).hexdigest()[:32]}"

    @property
    def reason(self) -> str:
        """What happened to the bucket: `sealed`, `sealed again` or `retired`."""
        if self.retired:
            return "retired"
        if self.manifest.version > 1:
            return "sealed again"
        return "sealed"

    def facts(self) -> dict[str, Any]:
        """Return what an orchestrator shows of the version, and gives to its runs. JSON values."""
        manifest = self.manifest
        return {
            "reason": self.reason,
            "version": manifest.version,
            # Retention took them.
            "rows": 0 if self.retired else manifest.rows,
            "bucket": manifest.name,
            "manifest": self.manifest_location,
            "table": manifest.table,
            "table_version": self.entry,
            "with_gap": manifest.with_gap,
            "delivery": self.delivery_id,
        }


def partition_key(values: Mapping[str, str | None]) -> str:
    """Return the key of a bucket's partition: `2026-11-20T05`, or of several columns `2026-11-20T05|DE`.

    `values` by bucket column, in the order of the key. Of several, `|` and `%` are written as in a URL.
    """
    texts = [HIVE_NULL if value is None else value for value in values.values()]
    if len(texts) > 1:
        texts = [text.replace("%", "%25").replace(_BETWEEN_VALUES, "%7C") for text in texts]
    return _BETWEEN_VALUES.join(texts)


@dataclass(frozen=True)
class Receipt:
    """A delivery is complete. `summary`: in a few words, for the log."""

    summary: str


@dataclass(frozen=True)
class StillRunning:
    """The receiving system is still working: check again later. `state` survives a crash."""

    after: timedelta
    state: Mapping[str, Any] = field(default_factory=dict)


class HookFailed(Exception):
    """A delivery did not work; it is tried again. Its message says what, where, and what the server answered."""

    def __init__(self, why: str, *, after: timedelta | None = None, state: Mapping[str, Any] | None = None) -> None:
        """`after`: the pause that the server asks for; `state`: what the next attempt gets."""
        super().__init__(why)
        self.after = after
        self.state = state or {}


class Hook(Protocol):
    """A receiver of sealed versions. Idempotent: the same version of a bucket may come twice, after a crash."""

    # The name in the configuration.
    name: str
    # Where it delivers, without secrets.
    target: str
    # Whether a newer version of a bucket makes an older one that still waits superfluous.
    newest_only: bool
    # What one delivery is about. Of several seals of the same bucket, interval or table the newest may stand for all.
    per: Per
    # How many deliveries may run at a time.
    at_once: int

    def check(self) -> bool:
        """Ask the server whether a delivery can work, and change nothing. False: it takes deliveries alone.

        Raises HookFailed, RequestFailed.
        """

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt | StillRunning:
        """Deliver, or check a delivery that runs. `state`: of the last attempt.

        Raises HookFailed, RequestFailed, OSError.
        """
