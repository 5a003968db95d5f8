"""Objects as files below a directory. A hard link creates an object only if it does not exist."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from pyarrow import fs

from headrace.writer.core import fault_points
from headrace.writer.core.errors import may_pass
from headrace.writer.storage.base import (
    Mark,
    NotExclusive,
    OutcomeUnknown,
    StoredObject,
    StoreError,
    Unanswered,
    always,
)
from headrace.writer.storage.disk_space import FULL_DISK_ERRORS, show_free_space

# What file systems without hard links answer.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FIXES = {
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there, or raise the quota.",
    errno.EACCES: "Let this user read and write there.",
    errno.EROFS: "Mount it to be written, or choose another location.",
}


class LocalStore:
    """Files below a directory that need not be there yet."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    def path(self, name: str) -> str:
        """Return where an object lies."""
        return f"{self.location}/{name}" if name else self.location

    def read(self, name: str) -> StoredObject | None:
        """Return the file, or None where there is none."""
        path = self.path(name)
        with _as_store_error("read", path):
            try:
                with open(path, "rb") as file:  # noqa: PTH123 - a commit counts its microseconds
                    return StoredObject(file.read(), _mark_of(os.fstat(file.fileno())))
            except FileNotFoundError:
                return None

    def mark(self, name: str) -> Mark | None:
        """Return inode, size and time of the file, or None where there is none."""
        path = self.path(name)
        with _as_store_error("look at", path):
            try:
                return _mark_of(os.stat(path))  # noqa: PTH116 - as above
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write the file under another name, then rename it."""
        path = self.path(name)
        with _as_store_error("write", path), _draft(path) as draft:
            _write(draft, content)
            os.replace(draft, path)  # noqa: PTH105

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        """Write the file under another name, then link it to its own: unlike a rename it fails where something is."""
        path = self.path(name)
        # A directory that was removed stays so.
        if not os.path.isdir(os.path.dirname(path)) and not is_wanted():  # noqa: PTH112, PTH120
            return False
        with _draft(path) as draft:
            with _as_store_error("write", path):
                _write(draft, content)
            return is_wanted() and _link(draft, path)

    def list(self, folder: str = "") -> Iterator[str]:
        """Yield the names in a directory; nothing if it does not exist."""
        path = self.path(folder)
        with (
            _as_store_error("list", path),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(path) as entries,
        ):
            for entry in entries:
                if not _is_draft(entry.name):
                    yield f"{entry.name}/" if entry.is_dir() else entry.name

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        path = self.path(target)
        with _as_store_error("copy", path), _draft(path) as draft:
            shutil.copyfile(self.path(source), draft)
            with open(draft, "rb") as file:  # noqa: PTH123
                os.fsync(file.fileno())
            os.replace(draft, path)  # noqa: PTH105

    def move(self, source: str, target: str) -> bool:
        """Rename a file."""
        path = self.path(target)
        with _as_store_error("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with _as_store_error("move", self.path(source)), suppress(FileNotFoundError):
            os.replace(self.path(source), path)  # noqa: PTH105
            return True
        return False

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self.path(name)
        with _as_store_error("delete", path), suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108

    def sweep(self, folder: str, before: float) -> None:
        """Remove drafts that were not touched since."""
        path = self.path(folder)
        with _as_store_error("sweep", path), suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                # The writer of a draft may live, and remove it meanwhile.
                with suppress(FileNotFoundError):
                    if _is_draft(entry.name) and entry.stat().st_mtime < before:
                        os.unlink(entry.path)  # noqa: PTH108

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return the local file system."""
        return fs.LocalFileSystem(), self.location

    def note_upload(self, name: str, size: int) -> None:
        """Do nothing: a disk takes no requests."""


@contextmanager
def _as_store_error(operation: str, path: str) -> Iterator[None]:
    """Raise an OSError as a StoreError: what was tried, where, and what to do."""
    trouble = fault_points.trouble()
    if trouble == "before":
        raise StoreError(operation, path, "it was asked to fail", "End the trouble.")
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "Look at the disk or mount below it.")
        answer = error.strerror or str(error)
        if error.errno in FULL_DISK_ERRORS:
            answer = f"{answer}, {show_free_space(path)}"
        error_class = Unanswered if may_pass(error) else StoreError
        raise error_class(operation, path, answer, fix) from error
    if trouble == "after":
        raise OutcomeUnknown(operation, path, "it was asked to lose its answer", "End the trouble.")


@contextmanager
def _draft(path: str) -> Iterator[str]:
    """Name a draft beside a file, and remove it at the end, if it is still there."""
    folder, _, name = path.rpartition("/")
    draft = f"{folder}/.{name}.{uuid4().hex}.tmp"
    with _as_store_error("write", path):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    try:
        yield draft
    finally:
        with suppress(OSError):
            os.unlink(draft)  # noqa: PTH108


def _write(path: str, content: bytes) -> None:
    with open(path, "xb") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(draft: str, path: str) -> bool:
    """Give a draft its name by a hard link. False when the name is taken. Raises NotExclusive."""
    with _as_store_error("write", path):
        try:
            os.link(draft, path)
        except FileExistsError:
            # A network mount may ask twice, and be told of its own link: then the draft has two names (link(2)).
            return os.stat(draft).st_nlink > 1  # noqa: PTH116
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            answer = f"{error.strerror}: no hard link could be made there"
            fix = "Choose a location on a file system that has hard links."
            raise NotExclusive("write", path, answer, fix) from error
    return True


def _is_draft(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _mark_of(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_size, status.st_mtime_ns
