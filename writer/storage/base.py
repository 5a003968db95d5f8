"""The protocol of a storage: one contract suite, an adapter for each kind.

StoreError (an OSError)   an operation failed: which, where, what was answered, what to do
├── Unanswered            it failed in a way that may pass: throttled or timed out for as long as it was tried, or a
│   │                     disk that is full, read-only or in error
│   └── OutcomeUnknown    and whether it took effect, only reading can tell
└── NotExclusive          the store cannot put an object only where none is, in one step
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyarrow import fs

# Tells one object from another of the same name.
Mark = tuple[str | int, ...]


class StoreError(OSError):
    """An operation of a store failed."""

    def __init__(self, operation: str, path: str, answer: str, fix: str) -> None:
        """Take what was tried, where, what the store answered, and what to do."""
        super().__init__(f"cannot {operation} {path}: {answer}. {fix}")
        self.operation = operation
        self.path = path
        self.answer = answer
        self.fix = fix

    def __reduce__(self) -> tuple[type["StoreError"], tuple[str, str, str, str]]:
        """Say how to make it again: a process of a task hands it to its command."""
        return type(self), (self.operation, self.path, self.answer, self.fix)


class Unanswered(StoreError):
    """It failed in a way that may pass: throttling, for as long as it was tried, or a full or read-only disk."""


class OutcomeUnknown(Unanswered):
    """No answer arrived in time; only reading shows whether the operation took effect."""


class NotExclusive(StoreError):
    """The store cannot put an object only where none is, in one step."""


@dataclass(frozen=True)
class StoredObject:
    """An object as it was read, whole."""

    content: bytes
    mark: Mark


def always() -> bool:
    """Return True: nothing else speaks against it."""
    return True


class Store(Protocol):
    """Objects below a location. A name is relative to it, its folders divided by slashes.

    An object is there whole or not at all. All operations raise StoreError, after what may pass by itself was tried
    again for a while.
    """

    # Where this store's objects lie, as a person writes it; no slash at its end.
    location: str

    def path(self, name: str) -> str:
        """Return where an object lies, as a person writes it."""

    def read(self, name: str) -> StoredObject | None:
        """Return the object, or None where there is none."""

    def mark(self, name: str) -> Mark | None:
        """Return the mark of the object as it is now, or None where there is none."""

    def put(self, name: str, content: bytes) -> None:
        """Put the object in the place of whatever is there."""

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        """Put the object where none is. False when one is there, or `is_wanted` says no at the last moment.

        Raises NotExclusive; OutcomeUnknown when it may have been put, or may yet be.
        """

    def list(self, folder: str = "") -> Iterator[str]:
        """Yield the names directly in a folder, in any order; names of folders end with a slash."""

    def copy(self, source: str, target: str) -> None:
        """Put a copy of one object under another name, without carrying it through this process where that can be."""

    def move(self, source: str, target: str) -> bool:
        """Put an object under another name. At every moment it stands, whole, under one of the two at least.

        False when there is none under the first name. Broken off, it can be done again.
        """

    def delete(self, name: str) -> None:
        """Remove the object, if it is there."""

    def sweep(self, folder: str, before: float) -> None:
        """Remove what writers that died have left half-written in a folder.

        `before`: when it was last touched, in seconds since 1970.
        """

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:
        """Return a file system for large files, and the path of this location in it.

        `name`: of what is asked for, where a table's own folder lies in another store than its files.
        """

    def note_upload(self, name: str, size: int) -> None:
        """Note that a file of so many bytes was written by `files`: its requests are counted by that."""
