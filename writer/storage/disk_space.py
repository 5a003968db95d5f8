"""Describes a full disk in an error: which location is on it, the free space, and what to do."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.writer.core.units import show_size
from headrace.writer.storage.base import StoreError

FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
# Java has the same texts.
_FULL_DISK_TEXTS = tuple(os.strerror(number) for number in FULL_DISK_ERRORS)
# A disk that has less is taken for the one that was full, though a file was removed since.
_LITTLE_BYTES = 2**20
TABLE = "The table is as it was: make room there, then the same is written again."
CHECKPOINT = "Spark's checkpoint lies there: make room, then the same batch runs again; or set 'checkpoints' elsewhere."
SCRATCH = "Tasks spill rows there: make room, set SPARK_LOCAL_DIRS to a larger disk, or lower commit.max_offsets."


def show_free_space(path: str) -> str:
    """Return how much is free on the disk of a path, which need not be there: `0 B of 1.0 MiB are free`."""
    free_bytes, size_bytes = _disk_bytes(path)
    return f"{show_size(free_bytes)} of {show_size(size_bytes)} are free"


def is_disk_full(text: str) -> bool:
    """Return whether an error means that a disk, or a quota, is full."""
    return any(full_disk_text in text for full_disk_text in _FULL_DISK_TEXTS)


def full_disk_error(location: str, text: str) -> StoreError | None:
    """Return the error for a full disk, if the text of another error means that; else None."""
    if "://" in location or not is_disk_full(text):
        return None
    return _error(errno.ENOSPC, location, {location: TABLE})


def describe_full_disk(fixes: Mapping[str, str]) -> str:
    """Return which of some paths has no room left, and the fix; empty when each has. `fixes`: path → what to do."""
    path = _fullest_path(fixes)
    if path is None or _disk_bytes(path)[0] >= _LITTLE_BYTES:
        return ""
    return str(_error(errno.ENOSPC, path, fixes))


@contextmanager
def name_full_disk(fixes: Mapping[str, str]) -> Iterator[None]:
    """Name the path of a full disk, where a library does not. Raises StoreError.

    `fixes`: all that is written to inside; path → what to do when it is full. Those that are no path are passed over.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if error.errno not in FULL_DISK_ERRORS:
            raise
        path = _fullest_path(fixes)
        if path is None:
            raise
        raise _error(error.errno, path, fixes) from error


def scratch() -> str:
    """Return the directory that a task of this process spills to."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


def _error(number: int, path: str, fixes: Mapping[str, str]) -> StoreError:
    return StoreError("write", path, f"{os.strerror(number)}, {show_free_space(path)}", fixes[path])


def _fullest_path(fixes: Mapping[str, str]) -> str | None:
    """Return the path with the least free space; None where none is of a disk."""
    return min((path for path in fixes if "://" not in path), key=lambda path: _disk_bytes(path)[0], default=None)


def _disk_bytes(path: str) -> tuple[int, int]:
    """Return the bytes that are free to this user, and all, on the disk of a path or of its nearest parent."""
    while not os.path.exists(path) and os.path.dirname(path) != path:  # noqa: PTH110, PTH120 - as the stores do
        path = os.path.dirname(path)  # noqa: PTH120
    disk = os.statvfs(path or ".")
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
