"""The protocol of a hook: it delivers one sealed version of a bucket, or raises the reason why not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from writer.core.files import BucketFile
from writer.engines.table_description import TableDescription
from writer.sealing.manifest import Manifest

Per = Literal["bucket", "interval", "table"]


@dataclass(frozen=True)
class SealedVersion:
    """One sealed version of a bucket, or its removal, and what a hook may ask of its table."""

    manifest: Manifest
    # The version of the table's log that sealed the bucket.
    entry: int
    table: TableDescription
    # Lists the files of all buckets of the interval, as of that version. Raises OSError.
    files: Callable[[], Sequence[BucketFile]]
    # Retention removed the bucket: it has no row any more.
    retired: bool = False


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

    def deliver(self, sealed: SealedVersion, state: Mapping[str, Any]) -> Receipt | StillRunning:
        """Deliver, or check a delivery that runs. `state`: of the last attempt.

        Raises HookFailed, RequestFailed, OSError.
        """
