"""Remembers beside a table which retention is in force, so that a shorter one drops nothing before it is accepted.

The configuration alone cannot say so: a file that was changed and a restart look like any other start.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.writer.core.text import instant, iso, plural
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.storage.base import Store

RECORD = "_headrace/retention.json"


@dataclass(frozen=True)
class RetentionWait:
    """A retention that is configured and not in force, because it is shorter: what it would drop of a table."""

    # Location of the table.
    table: str
    configured: timedelta
    # None: every bucket is kept.
    in_force: timedelta | None
    buckets: int
    # None: the log does not say it of each file.
    rows: int | None
    bytes: int
    # Begin of the oldest bucket.
    oldest: datetime | None

    @property
    def text(self) -> str:
        """What it would drop, and what is in force, as a phrase."""
        effect = "no bucket yet"
        if self.oldest is not None:
            rows = "an unknown number of rows" if self.rows is None else plural(self.rows, "row")
            effect = (
                f"{plural(self.buckets, 'bucket')} ({rows}, {show_size(self.bytes)}, from {instant(self.oldest)} on)"
            )
        state = "every bucket is kept"
        if self.in_force is not None:
            state = f"{show_duration(self.in_force)} stays in force"
        return f"retention {show_duration(self.configured)} would drop {effect} of {self.table}; {state}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "table": self.table,
            "retention_seconds": self.configured.total_seconds(),
            "in_force_seconds": None if self.in_force is None else self.in_force.total_seconds(),
            "buckets": self.buckets,
            "rows": self.rows,
            "bytes": self.bytes,
            "oldest": None if self.oldest is None else iso(self.oldest),
            "text": self.text,
        }


def read_retention(store: Store) -> timedelta | None:
    """Return the retention that was accepted for a table; None: none was, or it cannot be read. Raises StoreError."""
    record = store.read(RECORD)
    if record is not None:
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            return timedelta(seconds=json.loads(record.content)["kept_for_seconds"])
    return None


def write_retention(store: Store, kept_for: timedelta, now: datetime) -> None:
    """Let a retention be in force for a table from now on. Raises StoreError."""
    document = {"kept_for_seconds": kept_for.total_seconds(), "at": iso(now)}
    store.put(RECORD, f"{json.dumps(document)}\n".encode())


def forget_retention(store: Store) -> None:
    """Let no retention be in force for a table, so that a later one waits. Raises StoreError."""
    if store.read(RECORD) is not None:
        store.delete(RECORD)
