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
class Sealed:
    """One sealed version of a bucket, or its end, and what a hook may ask of its table."""

    manifest: Manifest
    entry: int  # version of the table's log that sealed it
    table: TableDescription
    files: Callable[[], Sequence[BucketFile]]  # of all buckets of its interval, as of that version. Raises OSError
    retired: bool = False  # retention took the bucket: it holds no row any more


@dataclass(frozen=True)
class Delivered:
    """It is delivered. `what`: in a few words, for the log."""

    what: str


@dataclass(frozen=True)
class StillRunning:
    """The receiving system is still working: check again later. `state` survives a crash."""

    what: str
    after: timedelta
    state: Mapping[str, Any] = field(default_factory=dict)


class HookFailed(Exception):
    """A delivery did not work; it is tried again. Its message says what, where, and what was answered."""

    def __init__(self, why: str, *, after: timedelta | None = None, state: Mapping[str, Any] | None = None) -> None:
        """`after`: how long the other side asks to be left alone; `state`: what the next try is given."""
        super().__init__(why)
        self.after, self.state = after, state or {}


class Hook(Protocol):
    """A receiver of sealed versions. Idempotent: the same version of a bucket may come twice, after a crash."""

    name: str  # in the configuration
    target: str  # where it delivers, without secrets
    newest_only: bool  # a newer version of a bucket makes an older one that still waits superfluous
    per: Per  # what one delivery is about: of several seals of the same, one that is newest may stand for all
    at_once: int  # most deliveries that may be under way

    def deliver(self, sealed: Sealed, state: Mapping[str, Any]) -> Delivered | StillRunning:
        """Deliver, or look how it goes. `state` is of the last try. Raises HookFailed, RequestFailed, OSError."""
