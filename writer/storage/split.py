"""A store of a table whose own folder, `_headrace`, lies in another store than its files."""

from collections.abc import Callable, Iterator

from pyarrow import fs

from headrace.writer.storage.base import Mark, Store, StoredObject, always

OWN = "_headrace"


class SplitStore:
    """Objects of a table, by name: those below `_headrace` are in one store, all others in another.

    What takes two names takes both of one store. Each operation raises what that store raises.
    """

    def __init__(self, files: Store, own: Store) -> None:
        self.location = files.location
        self._files = files
        self._own = own

    def path(self, name: str) -> str:
        """As of a store."""
        return self._store_of(name).path(name)

    def read(self, name: str) -> StoredObject | None:
        """As of a store."""
        return self._store_of(name).read(name)

    def mark(self, name: str) -> Mark | None:
        """As of a store."""
        return self._store_of(name).mark(name)

    def put(self, name: str, content: bytes) -> None:
        """As of a store."""
        self._store_of(name).put(name, content)

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        """As of a store."""
        return self._store_of(name).put_if_absent(name, content, is_wanted)

    def list(self, folder: str = "") -> Iterator[str]:
        """As of a store; of the table's folder, the names in both."""
        if folder:
            yield from self._store_of(folder).list(folder)
        else:
            yield from {*self._files.list(), *self._own.list()}

    def copy(self, source: str, target: str) -> None:
        """As of a store."""
        self._store_of(source).copy(source, target)

    def move(self, source: str, target: str) -> bool:
        """As of a store."""
        return self._store_of(source).move(source, target)

    def delete(self, name: str) -> None:
        """As of a store."""
        self._store_of(name).delete(name)

    def sweep(self, folder: str, before: float) -> None:
        """As of a store."""
        self._store_of(folder).sweep(folder, before)

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:
        """As of a store: that in which the name lies."""
        return self._store_of(name).files(name)

    def note_upload(self, name: str, size: int) -> None:
        """As of a store."""
        self._store_of(name).note_upload(name, size)

    def _store_of(self, name: str) -> Store:
        return self._own if name.partition("/")[0] == OWN else self._files
