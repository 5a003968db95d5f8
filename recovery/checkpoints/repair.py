"""L2: repairs a checkpoint in place: backs it up and removes corrupt files, once for each run.

Only a file whose loss costs nothing goes: the newest offsets when the table proves that nothing of their batch was
committed; the newest commit, as the table drops what it has when its batch runs again; checksums without their file;
directories where Spark is to write a file.
`plan` decides and is pure, `repair` carries it out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from recovery.checkpoints.reader import Reading, read
from writer.offsets import checkpoint_backups
from writer.offsets.spark_checkpoint import Checkpoints, Offsets
from writer.storage.base import S3Settings, below
from writer.storage.locations import store_at


@dataclass(frozen=True)
class RemoveFiles:
    """Take these files away."""

    names: Sequence[str]


@dataclass(frozen=True)
class NoRepair:
    """Do not touch it: another level helps, or nothing is wrong."""

    reason: str


@dataclass(frozen=True)
class RepairResult:
    """What was done: the files that are gone, and where a copy of all lies."""

    run: int
    removed: Sequence[str]
    copy: str


def plan(reading: Reading, frontier: Offsets | None) -> RemoveFiles | NoRepair:
    """Choose the files of a checkpoint to remove. `frontier`: of the table; None: unknown."""
    last, corrupt = reading.last, {found.name for found in reading.corrupt}
    if reading.newer:
        return NoRepair(f"{reading.newer[0].name} was written by a newer Spark")
    names = [*reading.orphans, *reading.directories]
    newest_commit = f"commits/{reading.committed[-1]}" if reading.committed else ""
    newest_plan = f"offsets/{last}" if last is not None else ""
    beyond_repair = sorted(corrupt - {newest_commit, newest_plan})
    if beyond_repair:
        return NoRepair(f"{beyond_repair[0]} is corrupt, and nothing stands for it")
    if last and last - 1 not in reading.planned:
        return NoRepair(f"offsets/{last - 1} is missing, and nothing stands for it")
    if reading.committed and reading.committed[-1] > (-1 if last is None else last):
        return NoRepair(f"offsets/{reading.committed[-1]} is missing, and its batch was done")
    if newest_plan in corrupt:
        start = reading.start()
        if reading.finished:
            return NoRepair(f"{newest_plan} is corrupt, and its batch was done")
        if frontier is None:
            return NoRepair(f"{newest_plan} is corrupt, and the table does not show whether its batch was committed")
        if start != frontier:
            return NoRepair(
                f"{newest_plan} is corrupt, and the table does not prove that nothing of its batch was committed"
            )
        names += [newest_plan, _checksum(newest_plan)]
    if newest_commit in corrupt:
        if last is None or reading.committed[-1] != last:
            return NoRepair(f"{newest_commit} is corrupt, and is not of the newest batch")
        names += [newest_commit, _checksum(newest_commit)]
    return RemoveFiles(names) if names else NoRepair("nothing in it is corrupt or in the way")


def repair(
    checkpoints: Checkpoints, run: int, frontier: Offsets | None, now: datetime, s3: S3Settings | None = None
) -> RepairResult | NoRepair:
    """Fix a run's checkpoint, if that is safe. Nothing may be running from it. Raises StoreError.

    All its files are copied aside before one of them goes.
    """
    there = store_at(checkpoints.path(run), s3)
    reading = read(there)
    decision = plan(reading, frontier)
    if isinstance(decision, NoRepair):
        return decision
    copy = checkpoint_backups.back_up(checkpoints.store, run, reading.last or 0, now, whole=True)
    repaired = RepairResult(run, decision.names, f"{checkpoints.store.location}/{copy.folder}")
    if not checkpoints.store.put_if_absent(f"mended/{run:06d}.json", _to_json(repaired, now)):
        checkpoint_backups.remove(checkpoints.store, copy)
        return NoRepair(f"run {run} was repaired before, and broke again")
    for name in decision.names:
        for each in [*below(there, name), name] if name.endswith("/") else [name]:
            there.delete(each)
    return repaired


def _to_json(repaired: RepairResult, now: datetime) -> bytes:
    document = {"run": repaired.run, "at": now.isoformat(), "removed": list(repaired.removed), "copy": repaired.copy}
    return (json.dumps(document) + "\n").encode()


def _checksum(name: str) -> str:
    folder, _, number = name.rpartition("/")
    return f"{folder}/.{number}.crc"
