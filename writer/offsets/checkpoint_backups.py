"""Backs up checkpoints, for a table whose committed offsets are lost.

`<checkpoints>/<pipeline>/copies/<time>-<run>-<batch>/`: what Spark would need to go on: metadata, where the sources
began, and the newest two files of offsets and of commits.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.writer.storage.base import Store

_FOLDER = "copies"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-(\d{6})-(\d+)")
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# Files of a log that Spark reads.
_NEWEST_FILES = 2


@dataclass(frozen=True, order=True)
class CheckpointBackup:
    """One backup of a run's checkpoint, taken when `batch` was its newest."""

    run: int
    batch: int
    created_at: datetime

    @property
    def folder(self) -> str:
        """The folder of its files, below the pipeline's checkpoints."""
        return f"{_FOLDER}/{self.created_at:{_TIME_FORMAT}}-{self.run:06d}-{self.batch}"


def back_up(store: Store, run: int, batch: int, now: datetime) -> CheckpointBackup:
    """Copy what Spark would need of a run's checkpoint. Raises StoreError."""
    backup = CheckpointBackup(run, batch, now.astimezone(UTC).replace(microsecond=0))
    for name in _list_files(store, run):
        store.copy(f"{run:06d}/{name}", f"{backup.folder}/{name}")
    return backup


def list_backups(store: Store) -> list[CheckpointBackup]:
    """List the backups, those of the newest run and batch first. Raises StoreError."""
    matches = (_NAME.fullmatch(name.removesuffix("/")) for name in store.list(_FOLDER))
    backups = (_parse_name(match) for match in matches if match)
    return sorted(backups, reverse=True)


def expired_backups(
    backups: list[CheckpointBackup], max_count: int, max_age: timedelta, now: datetime
) -> list[CheckpointBackup]:
    """Return the backups that are to be removed: too many, or too old. The newest stays."""
    newest_first = sorted(backups, key=lambda backup: backup.created_at, reverse=True)
    return [
        backup
        for position, backup in enumerate(newest_first)
        if position > 0 and (position >= max_count or now - backup.created_at > max_age)
    ]


def remove_backup(store: Store, backup: CheckpointBackup) -> None:
    """Remove a backup. Raises OSError."""
    system, root = store.files()
    with suppress(FileNotFoundError):
        system.delete_dir(f"{root}/{backup.folder}")


def _parse_name(match: re.Match[str]) -> CheckpointBackup:
    created_at = datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
    return CheckpointBackup(int(match[2]), int(match[3]), created_at)


def _list_files(store: Store, run: int) -> Iterator[str]:
    """Yield the files that a backup of a run takes, relative to the run's directory."""
    directory = f"{run:06d}"
    if "metadata" in set(store.list(directory)):
        yield "metadata"
    for folder in ("offsets", "commits"):
        numbers = sorted(int(name) for name in store.list(f"{directory}/{folder}") if name.isdecimal())
        yield from (f"{folder}/{number}" for number in numbers[-_NEWEST_FILES:])
    for name in store.list(f"{directory}/sources"):
        source = name.removesuffix("/")
        if "0" in set(store.list(f"{directory}/sources/{source}")):
            yield f"sources/{source}/0"
