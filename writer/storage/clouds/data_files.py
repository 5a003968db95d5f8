"""Large files of a bucket as a file system of Arrow's, over obstore.

Arrow's own file systems of Google and Azure look for credentials in other places than obstore, and leave a visible part
of a file when its writer fails. Here a file is there when its stream was closed, whole, and never before.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from pyarrow import fs

from headrace.writer.storage.base import StoreError
from headrace.writer.storage.bucket_store import FailureKind, RequestFailed

_TYPE = "headrace-obstore"
# One upload has so many parts on the way, and they are all that it keeps in memory.
_PARTS_ON_THE_WAY = 2
_PART_BYTES = 10 * 2**20
# The pages of a column are small, and each write is a call from Arrow into Python.
_BUFFER_BYTES = 2**20
# What obstore raises: its own exceptions, and Python's; a writer that closes raises a bare OSError.
FAILURES = (BaseError, OSError, ValueError)
# Answers to the repeated end of an upload whose first answer was lost.
_UPLOAD_ENDED = "NoSuchUpload"


class DataFiles(fs.PyFileSystem):  # type: ignore[misc]
    """Objects of one bucket. Paths begin with the bucket's name."""

    def __init__(self, objects: "Objects") -> None:
        super().__init__(objects)
        self._objects = objects

    def open_output_stream(
        self,
        path: str,
        compression: str | None = "detect",  # noqa: ARG002 - of Arrow's signature
        buffer_size: int | None = None,  # noqa: ARG002 - of Arrow's signature
        metadata: dict[str, str] | None = None,  # noqa: ARG002 - of Arrow's signature
    ) -> "Upload":
        """Open an object to write it. It appears when the stream is closed; an exception in its block abandons it."""
        return Upload(self._objects.open_sink(path))


class Upload(pa.BufferedOutputStream):  # type: ignore[misc]
    """The stream of an object that is written. Only `close` completes it: one that is dropped leaves no object."""

    def __init__(self, sink: "Sink") -> None:
        super().__init__(pa.PythonFile(sink, mode="w"), _BUFFER_BYTES)
        self._sink = sink

    def close(self) -> None:
        """Send the rest, and complete the object. Raises OSError."""
        self._sink.is_wanted = True
        super().close()

    def abandon(self) -> None:
        """Leave no object behind. What is written afterwards is refused."""
        self._sink.close()
        # What is buffered is refused by the sink, which is closed.
        with suppress(OSError, ValueError, pa.ArrowException):
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class Sink(io.RawIOBase):
    """A file of Python's for Arrow, over obstore's writer. Arrow closes it also when the stream is collected."""

    def __init__(self, objects: "Objects", key: str) -> None:
        self._objects = objects
        self._key = key
        self._size = 0
        # Whether the object is to be there once this is closed.
        self.is_wanted = False
        self._writer: Any = None
        with objects.failures("write", key):
            self._writer = obstore.open_writer(
                objects.store, key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_ON_THE_WAY
            )

    def write(self, data: Any) -> int:
        """Take bytes; a part is sent when there is enough for one."""
        size = len(data)
        with self._objects.failures("write", self._key):
            # Arrow's buffers say that they hold signed bytes, which obstore refuses.
            self._writer.write(memoryview(data).cast("B"))
        self._size += size
        return size

    def writable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Return how many bytes were written, where that is asked for. Raises OSError."""
        if (offset, whence) != (0, io.SEEK_CUR):
            raise io.UnsupportedOperation("an object is written from its first byte to its last")
        return self._size

    def close(self) -> None:
        """Complete the object where it is wanted, else end the upload without one. Raises OSError."""
        if self.closed:
            return
        super().close()
        if self._writer is None:
            return
        if not self.is_wanted:
            with self._objects.failures("write", self._key):
                self._writer.__exit__(InterruptedError, InterruptedError("abandoned"), None)
            return
        try:
            with self._objects.failures("write", self._key):
                self._writer.close()
        except OSError as error:
            # The end of an upload was repeated. The object shows whether it is whole: no other writer uses its name.
            if _UPLOAD_ENDED not in str(error) or self._objects.size_of(self._key) != self._size:
                raise


class Source(io.RawIOBase):
    """A file of Python's for Arrow, over ranges of an object."""

    def __init__(self, objects: "Objects", key: str) -> None:
        """Ask for the size. Raises FileNotFoundError."""
        self._objects = objects
        self._key = key
        self._size = objects.size_of(key)
        self._position = 0

    def read(self, size: int | None = -1) -> Any:
        """Return the next bytes, without a copy of them."""
        left = self._size - self._position
        length = left if size is None or size < 0 else min(size, left)
        if length <= 0:
            return b""
        with self._objects.failures("read", self._key):
            data = obstore.get_range(self._objects.store, self._key, start=self._position, length=length)
        self._position += length
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the file, and return it."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = starts[whence] + offset
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


class Objects(fs.FileSystemHandler):  # type: ignore[misc]
    """What Arrow asks of a file system. Folders are beginnings of names."""

    def __init__(
        self,
        bucket: str,
        scheme: str,
        open_store: Callable[[], Any],
        read_failure: Callable[[Exception], RequestFailed],
    ) -> None:
        """`open_store`: of one bucket, with retries. `read_failure`: says what an exception of obstore means."""
        self._bucket = bucket
        self._scheme = scheme
        self._open_store = open_store
        self._read_failure = read_failure

    @property
    def store(self) -> Any:
        """The bucket."""
        return self._open_store()

    @contextmanager
    def failures(self, operation: str, key: str) -> Iterator[None]:
        """Raise FileNotFoundError or StoreError for what obstore raises."""
        try:
            yield
        except RequestFailed as error:
            self._raise(operation, key, error)
        except FAILURES as error:
            self._raise(operation, key, self._read_failure(error))

    def _raise(self, operation: str, key: str, failure: RequestFailed) -> NoReturn:
        path = f"{self._scheme}://{self._bucket}/{key}"
        if failure.kind is FailureKind.NO_OBJECT:
            raise FileNotFoundError(f"cannot {operation} {path}: {failure.answer}") from None
        raise StoreError(operation, path, failure.answer, failure.fix) from None

    def size_of(self, key: str) -> int:
        """Return the bytes of an object. Raises FileNotFoundError, StoreError."""
        with self.failures("look at", key):
            return int(obstore.head(self.store, key)["size"])

    def open_sink(self, path: str) -> Sink:
        """Begin an object."""
        return Sink(self, self._key(path))

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:  # noqa: ARG002 - of Arrow's signature
        """Return a stream for callers within Arrow, whose every close completes the object."""
        sink = self.open_sink(path)
        sink.is_wanted = True
        return pa.PythonFile(sink, mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """Refuse."""
        raise NotImplementedError(f"nothing can be appended to {path}: objects are written whole")

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open an object to read ranges of it."""
        return pa.PythonFile(Source(self, self._key(path)), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open an object to read it."""
        return self.open_input_file(path)

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        """Describe files and folders."""
        return [self._describe(path) for path in paths]

    def _describe(self, path: str) -> fs.FileInfo:
        key = self._key(path)
        try:
            with self.failures("look at", key):
                meta = obstore.head(self.store, key)
            return fs.FileInfo(path, fs.FileType.File, size=meta["size"], mtime=meta["last_modified"])
        except FileNotFoundError:
            is_folder = bool(self._below(key, recursive=False))
            return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Describe what is in a folder."""
        infos = self._below(self._key(selector.base_dir), recursive=selector.recursive)
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(f"there is nothing in {self._scheme}://{selector.base_dir}")
        return infos

    def _below(self, key: str, *, recursive: bool) -> list[fs.FileInfo]:
        with self.failures("list", key):
            if recursive:
                objects = [entry for page in obstore.list(self.store, key or None) for entry in page]
                folders = sorted({folder for entry in objects for folder in _folders_of(entry["path"], key)})
            else:
                listed = obstore.list_with_delimiter(self.store, key or None)
                objects = list(listed["objects"])
                folders = list(listed["common_prefixes"])
        infos = [fs.FileInfo(f"{self._bucket}/{folder}", fs.FileType.Directory) for folder in folders]
        infos += [
            fs.FileInfo(
                f"{self._bucket}/{entry['path']}", fs.FileType.File, size=entry["size"], mtime=entry["last_modified"]
            )
            for entry in objects
        ]
        return infos

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: there are no folders."""

    def delete_dir(self, path: str) -> None:
        """Delete what is below a folder."""
        key = self._key(path)
        for info in self._below(key, recursive=True):
            if info.is_file:
                self.delete_file(info.path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:  # noqa: ARG002 - of Arrow's signature
        """Delete what is below a folder."""
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        """Refuse."""
        raise NotImplementedError("a whole bucket is not emptied")

    def delete_file(self, path: str) -> None:
        """Delete an object."""
        key = self._key(path)
        with self.failures("delete", key):
            obstore.delete(self.store, key)

    def move(self, src: str, dest: str) -> None:
        """Copy an object, then delete the first. Raises OSError where the copy is not complete yet."""
        self.copy_file(src, dest)
        # Azure may answer a copy before it is complete, and needs the first until then.
        if self.size_of(self._key(dest)) != self.size_of(self._key(src)):
            raise OSError(f"the copy of {self._scheme}://{src} is not complete: move it again")
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        """Let the store copy an object."""
        with self.failures("copy", self._key(dest)):
            obstore.copy(self.store, self._key(src), self._key(dest))

    def get_type_name(self) -> str:
        """Return what this is called."""
        return _TYPE

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objects) and (self._scheme, self._bucket) == (other._scheme, other._bucket)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _key(self, path: str) -> str:
        bucket, _, key = path.partition("/")
        if bucket != self._bucket:
            raise ValueError(f"{path} is not in {self._scheme}://{self._bucket}")
        return key.rstrip("/")


def _folders_of(path: str, base: str) -> Iterator[str]:
    """Yield the folders of an object that lie below another."""
    first = len(base) + 1 if base else 0
    yield from (path[:index] for index in range(first, len(path)) if path[index] == "/")
