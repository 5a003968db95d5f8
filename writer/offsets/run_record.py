"""The run record: what headrace stores about a run, because Spark keeps no checksum of its offset files.

`<checkpoints>/<pipeline>/witness/<run>.json`: why the run began and where, whose versions wrote it, the id that Spark
gave its query, and for each of its newest batches a checksum of the offset file as the writer acted on it. It lies
beside the run's directory, not in it: newer versions of Spark begin only in an empty one. Nothing depends on it; where
it is missing, less is known.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from zlib import crc32

from writer.config.connections import Recovery
from writer.core import logging
from writer.core.errors import CheckpointUnusable
from writer.offsets import checkpoint_backups
from writer.offsets.spark_checkpoint import Checkpoints, Offsets, by_topic
from writer.storage.base import Store

_FORMAT = 1
_BATCHES_KEPT = 20  # as many as Spark keeps of its own files (spark.py)


@dataclass(frozen=True)
class Stamp:
    """One batch: the checksum of its offset file, and the table's version that holds it. None: it was there before."""

    crc: int
    version: int | None


@dataclass(frozen=True)
class RunRecord:
    """What is put down of one run."""

    run: int
    reason: str  # why it began
    at: str  # when it began, ISO 8601
    offsets: Offsets  # where it began
    versions: Mapping[str, str]
    query_id: str | None = None  # None: Spark had not started it yet
    batches: Mapping[int, Stamp] = field(default_factory=dict)  # the newest

    def with_batch(self, batch: int, stamp: Stamp, query_id: str | None) -> "RunRecord":
        """Return the record with one more batch, and without the oldest beyond the limit."""
        newest = sorted({**self.batches, batch: stamp}.items())[-_BATCHES_KEPT:]
        return replace(self, batches=dict(newest), query_id=query_id)

    def differs(self, batch: int, content: bytes) -> bool:
        """Return whether a batch's offset file is another one than the writer acted on; False where it did not."""
        known = self.batches.get(batch)
        return known is not None and known.crc != crc32(content)


def begun(run: int, reason: str, now: datetime, offsets: Offsets) -> RunRecord:
    """Return the record of a new run."""
    versions = {name: version(name) for name in ("headrace", "pyspark")}
    return RunRecord(run, reason, now.isoformat(), offsets, versions)


def write(store: Store, run_record: RunRecord) -> None:
    """Write the record in place of the old one. `store`: of the pipeline's checkpoints. Raises StoreError."""
    document = {
        "format": _FORMAT, "run": run_record.run, "reason": run_record.reason, "at": run_record.at,
        "offsets": by_topic(run_record.offsets), "versions": dict(run_record.versions), "query_id": run_record.query_id,
        "batches": {str(n): {"crc": f"{s.crc:08x}", "version": s.version} for n, s in run_record.batches.items()},
    }  # fmt: skip
    store.put(_name(run_record.run), (json.dumps(document) + "\n").encode())


def read(store: Store, run: int) -> RunRecord | None:
    """Return what was put down of a run; None where nothing was, or it is not understood. Raises StoreError."""
    found = store.read(_name(run))
    try:
        return None if found is None else _run_record(json.loads(found.content))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _run_record(raw: Mapping[str, Any]) -> RunRecord | None:
    if raw["format"] != _FORMAT:
        return None
    return RunRecord(
        raw["run"], raw["reason"], raw["at"],
        {(topic, int(p)): offset for topic, found in raw["offsets"].items() for p, offset in found.items()},
        raw["versions"], raw["query_id"],
        {int(n): Stamp(int(stamp["crc"], 16), stamp["version"]) for n, stamp in raw["batches"].items()},
    )  # fmt: skip


def _name(run: int) -> str:
    return f"witness/{run:06d}.json"


class RunRecorder:
    """Writes the record of a pipeline's run, and backs up its checkpoint. A failure is only logged."""

    def __init__(self, pipeline: str, checkpoints: Checkpoints, policy: Recovery) -> None:
        self._pipeline, self._checkpoints, self._policy = pipeline, checkpoints, policy
        self._run_record: RunRecord | None = None
        self._query_id: str | None = None  # of this start: Spark has read it, and goes on with it
        self._copied_s: float | None = None  # by the monotonic clock

    def begin(self, run: int, reason: str | None, offsets: Offsets) -> None:
        """Record that a run began. `reason`: None for a run that is continued."""
        now, self._query_id = datetime.now(UTC), None
        try:
            known = None if reason else read(self._checkpoints.store, run)
            self._run_record = known or begun(run, reason or "no reason was recorded", now, offsets)
            if known is None:
                write(self._checkpoints.store, self._run_record)
        except OSError as error:
            logging.warning("run_record_failed", pipeline=self._pipeline, run=run, error=str(error))

    def done(self, batch: int, version: int | None) -> None:
        """Record a batch that the table has. `version`: of the table; None: it had it before."""
        crc = None if self._run_record is None else self._checkpoints.crc(self._run_record.run, batch)
        if self._run_record is None or crc is None:
            return
        run, store = self._run_record.run, self._checkpoints.store
        try:
            self._query_id = self._query_id or self._checkpoints.query_id(run)
            self._run_record = self._run_record.with_batch(batch, Stamp(crc, version), self._query_id)
            write(store, self._run_record)
            self._copy(run, batch, datetime.now(UTC))
        except (OSError, CheckpointUnusable) as error:
            logging.warning("run_record_failed", pipeline=self._pipeline, run=run, batch=batch, error=str(error))

    def _copy(self, run: int, batch: int, now: datetime) -> None:
        """Make a copy when one is due, and let go of those beyond the policy."""
        policy = self._policy
        if not policy.checkpoint_backups or (
            self._copied_s is not None
            and time.monotonic() - self._copied_s < policy.checkpoint_backups_interval.total_seconds()
        ):
            return
        self._copied_s = time.monotonic()
        store = self._checkpoints.store
        checkpoint_backups.back_up(store, run, batch, now)
        for copy in checkpoint_backups.beyond(
            checkpoint_backups.backups(store), policy.checkpoint_backups, policy.checkpoint_backups_max_age, now
        ):
            checkpoint_backups.remove(store, copy)
