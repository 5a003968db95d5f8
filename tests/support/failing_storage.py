"""A storage whose n-th operation fails: before it took effect, after it, or with the process that asked for it."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

import headrace.writer.table.iceberg.iceberg  # noqa: F401  the writer imports it late, and would keep the first test's store_at
from headrace.writer.storage.base import Mark, OutcomeUnknown, Store, StoredObject, StoreError, always
from headrace.writer.storage.locations import in_bucket, store_at

FAILED, LOST, KILLED_BEFORE, KILLED_AFTER = MODES = (
    "an operation fails",
    "its answer is lost",
    "killed before it",
    "killed after it",
)


class Killed(BaseException):
    """The process is gone: nothing that it would do now reaches the storage."""


@dataclass
class Storage:
    """Counts what is asked of all stores, and fails the operation number `at` (from 0; -1: none)."""

    at: int = -1
    mode: str = FAILED
    done: list[str] = field(default_factory=list)
    dead: bool = False
    counting: threading.Lock = field(default_factory=threading.Lock)  # files are published by several threads on S3

    def ask(self, name: str, where: str, action: Callable[[], Any]) -> Any:
        """Do it, unless it is its turn to fail."""
        with self.counting:
            if self.dead:
                raise Killed
            self.done.append(name)
            turn = len(self.done) - 1 == self.at
            self.dead = turn and self.mode == KILLED_BEFORE
        if self.dead:
            raise Killed
        if not turn:
            return action()
        if self.mode == FAILED:
            raise StoreError(name, where, "it was its turn to fail", "Try again.")
        action()
        if self.mode == KILLED_AFTER:
            self.dead = True
            raise Killed
        raise OutcomeUnknown(name, where, "its answer was lost", "Look.")

    def below(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand between the writer and its stores."""
        for name, module in list(sys.modules.items()):
            if name.startswith("headrace.writer.") and getattr(module, "store_at", None) is store_at:
                monkeypatch.setattr(module, "store_at", lambda *given: FailingStore(store_at(*given), self))


@dataclass(frozen=True)
class FailingStore:
    """A store behind which stands the real one."""

    real: Store
    storage: Storage

    @property
    def location(self) -> str:
        return self.real.location

    def _ask(self, operation: str, name: str, *more: Any) -> Any:
        return self.storage.ask(
            operation, f"{self.location}/{name}", lambda: getattr(self.real, operation)(name, *more)
        )

    def read(self, name: str) -> StoredObject | None:
        return self._ask("read", name)

    def mark(self, name: str) -> Mark | None:
        return self._ask("mark", name)

    def put(self, name: str, content: bytes) -> None:
        self._ask("put", name, content)

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        return self._ask("put_if_absent", name, content, is_wanted)

    def path(self, name: str) -> str:
        return self.real.path(name)

    def list(self, folder: str = "") -> Iterator[str]:
        return iter(self.storage.ask("list", f"{self.location}/{folder}", lambda: list(self.real.list(folder))))

    def copy(self, source: str, target: str) -> None:
        self._ask("copy", source, target)

    def move(self, source: str, target: str) -> bool:
        if not in_bucket(self.location):
            return bool(self._ask("move", source, target))
        if self.real.mark(source) is None:
            return False
        self.copy(source, target)  # as S3 moves: by two requests, and it may fail between them
        self.delete(source)
        return True

    def delete(self, name: str) -> None:
        self._ask("delete", name)

    def sweep(self, folder: str, before: float) -> None:
        self._ask("sweep", folder, before)

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:
        filesystem, root = self.real.files(name)
        return fs.PyFileSystem(Files(filesystem, self.storage)), root

    def note_upload(self, name: str, size: int) -> None:
        self.real.note_upload(name, size)


class Files(fs.FileSystemHandler):
    """Large files: opening one and completing it are operations."""

    def __init__(self, real: fs.FileSystem, storage: Storage) -> None:
        self._real = real
        self._storage = storage

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return self._real.normalize_path(path)

    def get_file_info(self, paths: list[str]) -> Any:
        return self._real.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self._real.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._real.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._real.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._real.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self._real.delete_dir_contents("/", accept_root_dir=True)

    def delete_file(self, path: str) -> None:
        self._real.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self._real.move(source, target)

    def copy_file(self, source: str, target: str) -> None:
        self._real.copy_file(source, target)

    def open_input_stream(self, path: str) -> Any:
        return self._storage.ask("open", path, lambda: self._real.open_input_stream(path))

    def open_input_file(self, path: str) -> Any:
        return self._storage.ask("open", path, lambda: self._real.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        def opened() -> Any:
            if isinstance(self._real, fs.LocalFileSystem):
                self._real.create_dir(path.rpartition("/")[0], recursive=True)
            return self._real.open_output_stream(path, metadata=metadata)

        return pa.PythonFile(Stream(self._storage.ask("create", path, opened), path, self._storage), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self._real.open_append_stream(path, metadata=metadata)


@dataclass
class Stream:
    """A file that is being written; it is there when it is closed."""

    real: Any
    path: str
    storage: Storage
    closed: bool = False

    def write(self, content: bytes) -> int:
        if self.storage.dead:
            raise Killed
        return self.real.write(content)

    def tell(self) -> int:
        return self.real.tell()

    def flush(self) -> None:
        self.real.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.storage.ask("complete", self.path, self.real.close)
