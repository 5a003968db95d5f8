"""The run record: what headrace stores about a run, because Spark keeps no checksum of its offset files.

`<checkpoints>/<pipeline>/witness/<run>.json`: why the run began and where, whose versions wrote it, the id that Spark
gave its query, and for each of its newest batches a checksum of the offset file as the writer acted on it. It lies
beside the run's directory, not in it: newer versions of Spark begin only in an empty one. Where it is missing, less is
known: then a start does not see that a table which is not there was there before.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from zlib import crc32

from headrace.writer.config.sections.connections import Recovery
from headrace.writer.core import logging
from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.offsets import checkpoint_backups
from headrace.writer.offsets.spark_checkpoint import Checkpoints, Offsets, offsets_by_topic
from headrace.writer.storage.base import Store
from headrace.writer.table.lost_tables import LostTable

_FORMAT = 1
# As many as Spark keeps of its own files (spark.py).
_BATCHES_MAX = 20
_FOLDER = "witness"


@dataclass(frozen=True)
class Stamp:
    """One batch: the checksum of its offset file, and the table's version that holds it. None: it was there before."""

    crc: int
    version: int | None


@dataclass(frozen=True)
class RunRecord:
    """The facts of one run."""

    run: int
    # Why it began.
    reason: str
    # When it began, ISO 8601.
    started_at: str
    # Where it began.
    offsets: Offsets
    versions: Mapping[str, str]
    # The location of the table that it writes to; empty: not recorded.
    table: str = ""
    # None: Spark has not started it yet.
    query_id: str | None = None
    # The newest.
    batches: Mapping[int, Stamp] = field(default_factory=dict)

    def with_batch(self, batch: int, stamp: Stamp, query_id: str | None) -> "RunRecord":
        """Return the record with one more batch, and without the oldest beyond the limit."""
        newest = sorted({**self.batches, batch: stamp}.items())[-_BATCHES_MAX:]
        return replace(self, batches=dict(newest), query_id=query_id)

    def differs(self, batch: int, content: bytes) -> bool:
        """Return whether a batch's offset file is another one than the writer acted on; False where it did not."""
        stamp = self.batches.get(batch)
        return stamp is not None and stamp.crc != crc32(content)


def new_run_record(run: int, reason: str, now: datetime, offsets: Offsets, table: str = "") -> RunRecord:
    """Return the record of a run that begins now. `table`: the location of its table."""
    versions = {name: version(name) for name in ("headrace", "pyspark")}
    return RunRecord(run, reason, now.isoformat(), offsets, versions, table)


def write_run_record(store: Store, run_record: RunRecord) -> None:
    """Write the record in place of the old one. `store`: of the pipeline's checkpoints. Raises StoreError."""
    batches = {
        str(batch): {"crc": f"{stamp.crc:08x}", "version": stamp.version} for batch, stamp in run_record.batches.items()
    }
    document = {
        "format": _FORMAT,
        "run": run_record.run,
        "reason": run_record.reason,
        "at": run_record.started_at,
        "offsets": offsets_by_topic(run_record.offsets),
        "versions": dict(run_record.versions),
        "table": run_record.table,
        "query_id": run_record.query_id,
        "batches": batches,
    }
    store.put(_object_name(run_record.run), (json.dumps(document) + "\n").encode())


def read_run_record(store: Store, run: int) -> RunRecord | None:
    """Return the record of a run; None where there is none, or it is not understood. Raises StoreError."""
    file = store.read(_object_name(run))
    if file is None:
        return None
    try:
        return _parse_run_record(json.loads(file.content))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _parse_run_record(raw: Mapping[str, Any]) -> RunRecord | None:
    if raw["format"] != _FORMAT:
        return None
    offsets = {}
    for topic, partitions in raw["offsets"].items():
        for partition, offset in partitions.items():
            offsets[topic, int(partition)] = offset
    return RunRecord(
        run=raw["run"],
        reason=raw["reason"],
        started_at=raw["at"],
        offsets=offsets,
        versions=raw["versions"],
        table=raw.get("table", ""),
        query_id=raw["query_id"],
        batches={int(batch): Stamp(int(stamp["crc"], 16), stamp["version"]) for batch, stamp in raw["batches"].items()},
    )


def newest_run_record(store: Store) -> RunRecord | None:
    """Return the record of the newest run; None where there is none, or it is not understood. Raises StoreError."""
    names = (name.removesuffix(".json") for name in store.list(_FOLDER) if name.endswith(".json"))
    runs = [int(name) for name in names if name.isdecimal()]
    return read_run_record(store, max(runs)) if runs else None


def find_lost_table(store: Store, table: str) -> LostTable | None:
    """Return how a table was lost that is not there; None where no run has written to it.

    `store`: of the pipeline's checkpoints. `table`: the location at which there is none. Raises StoreError.
    """
    record = newest_run_record(store)
    if record is None or record.table != table:
        return None
    return LostTable(
        f"the table at {table} is not there any more: run {record.run}, begun at {record.started_at}, wrote to it "
        f"({store.path(_object_name(record.run))}). It was removed, or its bucket or disk was made anew. Its log held "
        "how far Kafka was read, so no start begins in silence where `start` says",
        "Restore the table with its log, or correct table.location. To begin an empty one where `start` says, move "
        f"{store.location} away.",
    )


def _object_name(run: int) -> str:
    return f"{_FOLDER}/{run:06d}.json"


class RunRecorder:
    """Writes the record of a pipeline's run, and backs up its checkpoint. A failure is only logged."""

    def __init__(self, pipeline: str, table: str, checkpoints: Checkpoints, policy: Recovery) -> None:
        """`table`: its location."""
        self._pipeline = pipeline
        self._table = table
        self._checkpoints = checkpoints
        self._policy = policy
        self._run_record: RunRecord | None = None
        # Of this start: Spark has read it, and goes on with it.
        self._query_id: str | None = None
        # By the monotonic clock.
        self._last_backup_s: float | None = None

    def begin(self, run: int, reason: str | None, offsets: Offsets) -> None:
        """Record that a run began. `reason`: None for a run that is continued."""
        now = datetime.now(UTC)
        self._query_id = None
        try:
            previous = None if reason else read_run_record(self._checkpoints.store, run)
            if previous is not None and previous.table == self._table:
                self._run_record = previous
                return
            if previous is not None:
                # The table was moved, and its run goes on.
                self._run_record = replace(previous, table=self._table)
            else:
                self._run_record = new_run_record(run, reason or "no reason was recorded", now, offsets, self._table)
            write_run_record(self._checkpoints.store, self._run_record)
        except OSError as error:
            logging.warning("run_record_failed", pipeline=self._pipeline, run=run, error=str(error))

    def record_batch(self, batch: int, version: int | None) -> None:
        """Record a batch that the table has. `version`: of the table; None: it had it before."""
        if self._run_record is None:
            return
        run = self._run_record.run
        crc = self._checkpoints.crc(run, batch)
        if crc is None:
            return
        store = self._checkpoints.store
        try:
            self._query_id = self._query_id or self._checkpoints.query_id(run)
            self._run_record = self._run_record.with_batch(batch, Stamp(crc, version), self._query_id)
            write_run_record(store, self._run_record)
            self._back_up_if_due(run, batch, datetime.now(UTC))
        except (OSError, CheckpointUnusable) as error:
            logging.warning("run_record_failed", pipeline=self._pipeline, run=run, batch=batch, error=str(error))

    def _back_up_if_due(self, run: int, batch: int, now: datetime) -> None:
        """Back the checkpoint up when that is due, and remove the backups beyond the policy."""
        policy = self._policy
        if not policy.checkpoint_backups:
            return
        now_s = time.monotonic()
        interval_s = policy.checkpoint_backups_interval.total_seconds()
        if self._last_backup_s is not None and now_s - self._last_backup_s < interval_s:
            return
        self._last_backup_s = now_s
        store = self._checkpoints.store
        checkpoint_backups.back_up(store, run, batch, now)
        backups = checkpoint_backups.list_backups(store)
        for backup in checkpoint_backups.expired_backups(
            backups, policy.checkpoint_backups, policy.checkpoint_backups_max_age, now
        ):
            checkpoint_backups.remove_backup(store, backup)
