"""Chooses the files of a bucket that are worth rewriting, and divides them into pieces of work. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.core.files import BucketFile
from headrace.writer.maintenance.rewrite import SHARE_MAX, SHARE_MIN

# Files of the target size in one piece of work: all of it is lost where another writer is first.
GROUP_FILES = 8
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Policy:
    """What is wanted of a bucket's files."""

    # In bytes.
    target_file_size: int
    # Small files that an open bucket may have; None: any number.
    max_open_files: int | None
    sort_by: tuple[str, ...] = ()
    dedupe: Dedupe | None = None


@dataclass(frozen=True)
class Piece:
    """Files that are rewritten together."""

    files: tuple[BucketFile, ...]
    # Paths of files whose size is no reason to rewrite them.
    well_sized: frozenset[str] = frozenset()
    sort_by: tuple[str, ...] = ()
    dedupe: Dedupe | None = None

    @property
    def bytes(self) -> int:
        """What it reads."""
        return sum(file.bytes for file in self.files)


def plan(files: Sequence[BucketFile], policy: Policy, *, closed: bool) -> list[Piece]:
    """Choose among the files of one bucket. Empty: they are as they should be.

    A closed bucket that is to be in order, or free of repeated rows, is looked at whole. Otherwise only files that are
    too small count, and only as many together as then make fewer.
    """
    small = [file for file in files if file.bytes < SHARE_MIN * policy.target_file_size]
    if closed and files and (policy.sort_by or policy.dedupe):
        well_sized = frozenset(file.path for file in files) - {file.path for file in small}
        return [Piece(tuple(files), well_sized, policy.sort_by, policy.dedupe)]
    if not closed and (policy.max_open_files is None or len(small) <= policy.max_open_files):
        return []
    return [Piece(tuple(group)) for group in _groups(small, policy.target_file_size)]


def _groups(files: Sequence[BucketFile], target_size: int) -> Iterator[list[BucketFile]]:
    """Cut small files, by their events' times, into groups of about the same size that make fewer files."""
    # One file alone cannot be merged.
    if len(files) <= 1:
        return
    size = sum(file.bytes for file in files)
    group_size_min = size / ceil(size / (GROUP_FILES * target_size))
    group: list[BucketFile] = []
    group_size = 0
    ordered = sorted(files, key=lambda file: (file.event_time_min or _EPOCH, file.path))
    for file in ordered:
        group.append(file)
        group_size += file.bytes
        if file is ordered[-1] or group_size >= group_size_min:
            if ceil(group_size / (SHARE_MAX * target_size)) < len(group):
                yield group
            group = []
            group_size = 0


@dataclass
class RewritePace:
    """Keeps the rewrites of one driver to a share of its slots, from job to job and from bucket to bucket."""

    # The share of all slots, over time.
    share: float
    # Seconds of one slot that all jobs took so far.
    busy_s: float = 0.0
    # When the next job may begin, by a clock that only rises.
    _due_s: float = 0.0

    def owed_s(self, now_s: float) -> float:
        """How long the next job has to wait."""
        return max(0.0, self._due_s - now_s)

    def took(self, wall_s: float, cpu_s: float, slots: int, now_s: float) -> None:
        """Note a job that is over. One that used several threads took more of the machine than its slot."""
        spent_s = max(wall_s, cpu_s)
        self.busy_s += spent_s
        self._due_s = now_s + pause_s(spent_s, self.share, slots)


def pause_s(spent_s: float, share: float, slots: int) -> float:
    """Seconds to wait after one slot was busy, so that over both its part of all slots is the share."""
    return max(0.0, spent_s * (1 / (share * slots) - 1))
