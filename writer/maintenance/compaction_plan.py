"""Chooses the files of a bucket that are worth rewriting, and divides them into pieces of work. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from writer.batch.staging.sorting import Dedupe
from writer.core.files import BucketFile
from writer.maintenance.rewrite import SHARE_MAX, SHARE_MIN

GROUP_FILES = 8  # of the target size, in one piece of work: all of it is lost where another writer is first
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Policy:
    """What is wanted of a bucket's files."""

    target_file_size: int  # bytes
    open_files_max: int | None  # small files that an open bucket may have; None: any number
    sort_by: tuple[str, ...] = ()
    dedupe: Dedupe | None = None


@dataclass(frozen=True)
class Piece:
    """Files that are rewritten together."""

    files: tuple[BucketFile, ...]
    whole: frozenset[str] = frozenset()  # paths of those that are no reason by their size
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
        whole = frozenset(file.path for file in files) - {file.path for file in small}
        return [Piece(tuple(files), whole, policy.sort_by, policy.dedupe)]
    if not closed and (policy.open_files_max is None or len(small) <= policy.open_files_max):
        return []
    return [Piece(tuple(group)) for group in _groups(small, policy.target_file_size)]


def _groups(small: Sequence[BucketFile], target: int) -> Iterator[list[BucketFile]]:
    """Cut small files, by their events' times, into groups of about the same size that make fewer files."""
    if len(small) < 2:  # noqa: PLR2004 - nothing to merge
        return
    size = sum(file.bytes for file in small)
    share = size / ceil(size / (GROUP_FILES * target))
    group: list[BucketFile] = []
    done = 0
    ordered = sorted(small, key=lambda file: (file.event_time_min or _EPOCH, file.path))
    for at, file in enumerate(ordered):
        group.append(file)
        done += file.bytes
        if at + 1 == len(ordered) or done >= share:
            if ceil(sum(f.bytes for f in group) / (SHARE_MAX * target)) < len(group):
                yield group
            group, done = [], 0


@dataclass
class RewritePace:
    """Keeps the rewrites of one driver to a share of its slots, from job to job and from bucket to bucket."""

    share: float  # of all slots, over time
    busy_s: float = 0.0  # what all jobs took so far, of one slot
    _due_s: float = 0.0  # of a clock that only rises: when the next job may begin

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
