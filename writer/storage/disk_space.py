"""Describes a full disk in an error: which location is on it, the free space, and what to do."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from writer.core.units import show_size
from writer.storage.base import StoreError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WORDS = tuple(os.strerror(number) for number in FULL)  # Java says the same
_LITTLE_BYTES = 2**20  # a disk that has less is taken for the one that was full, though a file was removed since
TABLE = "The table is as it was: make room there, then the same is written again."
CHECKPOINT = "Spark's checkpoint lies there: make room, then the same batch runs again; or set 'checkpoints' elsewhere."
SCRATCH = "Tasks spill rows there: make room, set SPARK_LOCAL_DIRS to a larger disk, or lower commit.max_records."


def free(path: str) -> str:
    """Return how much is free on the disk of a path, which need not be there: `0 B of 1.0 MiB are free`."""
    free_bytes, size_bytes = _room(path)
    return f"{show_size(free_bytes)} of {show_size(size_bytes)} are free"


def is_disk_full(text: str) -> bool:
    """Return whether an error means that a disk, or a quota, is full."""
    return any(words in text for words in _WORDS)


def full(location: str, text: str) -> StoreError | None:
    """Return the error for a full disk, if the text of another error means that; else None."""
    if "://" in location or not is_disk_full(text):
        return None
    return _error(errno.ENOSPC, location, {location: TABLE})


def full_of(places: Mapping[str, str]) -> str:
    """Return which of some places has no room left, and the fix; empty when each has. `places`: path → what to do."""
    found = _fullest(places)
    if found is None or _room(found)[0] >= _LITTLE_BYTES:
        return ""
    return str(_error(errno.ENOSPC, found, places))


@contextmanager
def naming_full_disk(places: Mapping[str, str]) -> Iterator[None]:
    """Name the place of a full disk, where a library does not. Raises StoreError.

    `places`: all that is written to inside; path → what to do when it is full. Those that are no path are passed over.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        found = _fullest(places) if error.errno in FULL else None
        if found is None or error.errno is None:
            raise
        raise _error(error.errno, found, places) from error


def scratch() -> str:
    """Return the directory that a task of this process spills to."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


def _error(number: int, path: str, places: Mapping[str, str]) -> StoreError:
    return StoreError("write", path, f"{os.strerror(number)}, {free(path)}", places[path])


def _fullest(places: Mapping[str, str]) -> str | None:
    return min((path for path in places if "://" not in path), key=lambda path: _room(path)[0], default=None)


def _room(path: str) -> tuple[int, int]:
    """Return the bytes that are free to this user, and all, on the disk of a path or of its nearest parent."""
    while not os.path.exists(path) and os.path.dirname(path) != path:  # noqa: PTH110, PTH120 - as the stores do
        path = os.path.dirname(path)  # noqa: PTH120
    found = os.statvfs(path or ".")
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
