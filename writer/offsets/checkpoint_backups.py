"""Backs up checkpoints, for a table whose committed offsets are lost.

`<checkpoints>/<pipeline>/copies/<time>-<run>-<batch>/`: what Spark would need to go on: metadata, where the sources
began, and the newest two files of offsets and of commits.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from writer.storage.base import Store

_FOLDER = "copies"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-(\d{6})-(\d+)")
_TIME = "%Y%m%dT%H%M%SZ"
_NEWEST = 2  # files of a log that Spark reads


@dataclass(frozen=True, order=True)
class Copy:
    """One copy of a run's checkpoint, taken when `batch` was its newest."""

    run: int
    batch: int
    at: datetime

    @property
    def folder(self) -> str:
        """Where it lies, below the pipeline's checkpoints."""
        return f"{_FOLDER}/{self.at:{_TIME}}-{self.run:06d}-{self.batch}"


def back_up(store: Store, run: int, batch: int, now: datetime) -> Copy:
    """Copy what Spark would need of a run's checkpoint. Raises StoreError."""
    copy = Copy(run, batch, now.astimezone(UTC).replace(microsecond=0))
    for name in _names(store, run):
        store.copy(f"{run:06d}/{name}", f"{copy.folder}/{name}")
    return copy


def backups(store: Store) -> list[Copy]:
    """List the copies there are, those of the newest run and batch first. Raises StoreError."""
    found = (_NAME.fullmatch(name.removesuffix("/")) for name in store.list(_FOLDER))
    copies = (Copy(int(m[2]), int(m[3]), datetime.strptime(m[1], _TIME).replace(tzinfo=UTC)) for m in found if m)
    return sorted(copies, reverse=True)


def beyond(copies: list[Copy], count_max: int, age_max: timedelta, now: datetime) -> list[Copy]:
    """Return the copies that are to go: too many, or too old. The newest stays."""
    newest = sorted(copies, key=lambda copy: copy.at, reverse=True)
    return [copy for i, copy in enumerate(newest) if i > 0 and (i >= count_max or now - copy.at > age_max)]


def remove(store: Store, copy: Copy) -> None:
    """Remove a copy. Raises OSError."""
    system, root = store.files()
    with suppress(FileNotFoundError):
        system.delete_dir(f"{root}/{copy.folder}")


def _names(store: Store, run: int) -> Iterator[str]:
    base = f"{run:06d}"
    there = set(store.list(base))
    yield from ("metadata",) if "metadata" in there else ()
    for folder in ("offsets", "commits"):
        numbers = sorted(int(name) for name in store.list(f"{base}/{folder}") if name.isdigit())
        yield from (f"{folder}/{number}" for number in numbers[-_NEWEST:])
    for source in store.list(f"{base}/sources"):
        if "0" in set(store.list(f"{base}/sources/{source.removesuffix('/')}")):
            yield f"sources/{source.removesuffix('/')}/0"
