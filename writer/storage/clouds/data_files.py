"""Large files of a bucket as a file system of Arrow's, over obstore.

Arrow's own file systems of Google and Azure look for credentials in other places than obstore, and leave a visible part
of a file when its writer fails. Here a file is there when its stream was closed, whole, and never before.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import obstore
import pyarrow as pa
from pyarrow import fs

from headrace.writer.core.errors import panics_as_errors
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.clouds.bucket_clients import FAILURES, BucketClients
from headrace.writer.storage.clouds.lists import list_below, list_folder
from headrace.writer.storage.requests.counts import PART_BYTES, upload_requests
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.requests.sender import RequestSender

_T = TypeVar("_T")
_TYPE = "headrace-obstore"
# One upload has so many parts on the way, and they are all that it keeps in memory.
_PARTS_ON_THE_WAY = 2
# The pages of a column are small, and each write is a call from Arrow into Python.
_BUFFER_BYTES = 2**20
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
    """A file of Python's for Arrow: one PUT of all its bytes, or, from a part's size on, obstore's writer in parts.

    Arrow closes it also when the stream is collected.
    """

    def __init__(self, objects: "Objects", key: str) -> None:
        self._objects = objects
        self._key = key
        self._size = 0
        # Whether the object is to be there once this is closed.
        self.is_wanted = False
        # Whether bytes are missing: Arrow closes a stream also where its last bytes were refused.
        self._is_incomplete = False
        # The bytes of an object that may stay below the size of a part.
        self._waiting = bytearray()
        self._upload: PartUpload | None = None

    def write(self, data: Any) -> int:
        """Take bytes; a part is sent when there is enough for one."""
        # Arrow's buffers say that they hold signed bytes, which obstore refuses.
        content = memoryview(data).cast("B")
        self._is_incomplete = True
        self._take(content)
        self._is_incomplete = False
        self._size += len(content)
        return len(content)

    def _take(self, content: memoryview) -> None:
        if self._upload is not None:
            self._upload.write(content)
            return
        self._waiting += content
        if len(self._waiting) >= PART_BYTES:
            self._upload = PartUpload(self._objects, self._key)
            self._upload.write(memoryview(self._waiting))
            self._waiting = bytearray()

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
        is_whole = self.is_wanted and not self._is_incomplete
        if self._upload is None:
            if is_whole:
                self._objects.put(self._key, self._waiting)
            return
        if not is_whole:
            self._upload.abandon()
            return
        try:
            self._upload.complete()
        except OSError as error:
            # The end of an upload was repeated. The object shows whether it is whole: no other writer uses its name.
            if _UPLOAD_ENDED not in str(error) or self._objects.size_of(self._key) != self._size:
                raise


class PartUpload:
    """An upload in parts by obstore, which tries each of its requests again itself, and does not tell how often.

    Each request waits for its turn, and all are counted once the upload has ended: one that fails with its tries.
    """

    def __init__(self, objects: "Objects", key: str) -> None:
        self._objects = objects
        self._key = key
        self._size = 0
        self._turns = 0
        with objects.failures("write", key):
            self._writer = obstore.open_writer(
                objects.clients.repeat(), key, buffer_size=PART_BYTES, max_concurrency=_PARTS_ON_THE_WAY
            )

    def write(self, content: memoryview) -> None:
        """Send the parts that are full by now. Raises StoreError."""
        self._size += len(content)
        requests = self._requests(self._size - self._size % PART_BYTES)
        self._await_turns(requests.get("create_upload", 0) + requests["upload_part"])
        with self._failures("upload_part"):
            self._writer.write(content)

    def complete(self) -> None:
        """Send the rest, and complete the object. Raises StoreError."""
        requests = self._requests(self._size)
        self._await_turns(sum(requests.values()))
        with self._failures("complete_upload"):
            self._writer.close()
        self._count(requests)

    def abandon(self) -> None:
        """Leave no object behind. Raises StoreError."""
        with self._failures("delete"):
            self._writer.__exit__(InterruptedError, InterruptedError("abandoned"), None)
        requests = self._requests(self._size - self._size % PART_BYTES)
        # Azure drops parts that no list has named by itself.
        ending = {"delete": 1} if "create_upload" in requests else {}
        self._count({**requests, "complete_upload": 0, **ending})

    def _requests(self, size: int) -> dict[str, int]:
        return upload_requests(self._objects.scheme, size)

    def _await_turns(self, requests: int) -> None:
        """Wait for the turns of an upload that has sent so many requests then."""
        while self._turns < requests:
            self._objects.sender.await_turn()
            self._turns += 1

    def _count(self, requests: Mapping[str, int]) -> None:
        for kind, count in requests.items():
            if count:
                self._objects.sender.count(kind, self._objects.path(self._key), requests=count)

    @contextmanager
    def _failures(self, kind: str) -> Iterator[None]:
        """Count what obstore has given up, and raise StoreError."""
        try:
            with panics_as_errors("obstore"):
                yield
        except FAILURES as error:
            failure = self._objects.clients.read_failure(error)
            self._objects.sender.note_failure(kind, self._objects.path(self._key), failure)
            self._objects.raise_failure("write", self._key, failure)


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
        data = self._objects.range_of(self._key, self._position, length)
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
        self, root: str, bucket: str, clients: BucketClients, sender: RequestSender, account: str = ""
    ) -> None:
        """`root`: the bucket as locations name it, `scheme://bucket`. `sender`: of the requests to one table.

        `account`: of Azure, where containers of two accounts may have one name.
        """
        self._root = root
        self._bucket = bucket
        self._account = account
        self.scheme = root.partition("://")[0]
        self.clients = clients
        self.sender = sender

    def path(self, key: str) -> str:
        """Return where an object lies, as a person writes it."""
        return f"{self._root}/{key}"

    @contextmanager
    def failures(self, operation: str, key: str) -> Iterator[None]:
        """Raise FileNotFoundError or StoreError for what obstore raises."""
        try:
            with panics_as_errors("obstore"):
                yield
        except RequestFailed as error:
            self.raise_failure(operation, key, error)
        except FAILURES as error:
            self.raise_failure(operation, key, self.clients.read_failure(error))

    def raise_failure(self, operation: str, key: str, failure: RequestFailed) -> NoReturn:
        """Raise FileNotFoundError or StoreError for a failure."""
        if failure.kind is FailureKind.NO_OBJECT:
            raise FileNotFoundError(f"cannot {operation} {self.path(key)}: {failure.answer}") from None
        raise StoreError(operation, self.path(key), failure.answer, failure.fix) from None

    def ask(self, operation: str, key: str, request: Callable[[Any], _T]) -> _T:
        """Return the answer to a request, which gets a client. Raises FileNotFoundError, StoreError."""

        def send() -> _T:
            try:
                with panics_as_errors("obstore"):
                    return request(self.clients.ask())
            except FAILURES as error:
                raise self.clients.read_failure(error) from None

        def find() -> _T:
            try:
                return self.sender.send(operation, self.path(key), send)
            except RequestFailed as error:
                if error.kind is FailureKind.NO_OBJECT:
                    self.raise_failure(operation, key, error)
                raise

        return self.sender.retry(operation, self.path(key), find)

    def size_of(self, key: str) -> int:
        """Return the bytes of an object. Raises FileNotFoundError, StoreError."""
        try:
            return int(self._meta(key)["size"])
        except FileNotFoundError:
            # The answer to a HEAD does not tell a missing bucket from a missing object; that to a GET does.
            self.range_of(key, 0, 1)
            raise

    def range_of(self, key: str, start: int, length: int) -> Any:
        """Return bytes of an object, without a copy of them. Raises FileNotFoundError, StoreError."""
        return self.ask("read", key, lambda client: obstore.get_range(client, key, start=start, length=length))

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Put an object whole. Raises FileNotFoundError, StoreError."""
        self.ask("write", key, lambda _: obstore.put(self.clients.put(len(content)), key, content, use_multipart=False))

    def _meta(self, key: str) -> Any:
        return self.ask("look at", key, lambda client: obstore.head(client, key))

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
            meta = self._meta(key)
            return fs.FileInfo(path, fs.FileType.File, size=meta["size"], mtime=meta["last_modified"])
        except FileNotFoundError:
            is_folder = bool(self._below(key, recursive=False))
            return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Describe what is in a folder."""
        infos = self._below(self._key(selector.base_dir), recursive=selector.recursive)
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(f"there is nothing in {self.path(self._key(selector.base_dir))}")
        return infos

    def _below(self, key: str, *, recursive: bool) -> list[fs.FileInfo]:
        if recursive:
            objects = list_below(self.clients, self.sender, self.path(key), key)
            folders = sorted({folder for entry in objects for folder in _folders_of(entry["path"], key)})
        else:
            folder = list_folder(self.clients, self.sender, self.path(key), key)
            objects = folder.objects
            folders = folder.folders
        infos = [fs.FileInfo(f"{self._bucket}/{name}", fs.FileType.Directory) for name in folders]
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
        self.ask("delete", key, lambda client: obstore.delete(client, key))

    def move(self, src: str, dest: str) -> None:
        """Copy an object, then delete the first. Raises OSError where the copy is not complete yet."""
        self.copy_file(src, dest)
        # Azure may answer a copy before it is complete, and needs the first until then.
        if self.size_of(self._key(dest)) != self.size_of(self._key(src)):
            raise OSError(f"the copy of {self.scheme}://{src} is not complete: move it again")
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        """Let the store copy an object."""
        source = self._key(src)
        target = self._key(dest)
        self.ask("copy", target, lambda client: obstore.copy(client, source, target))

    def get_type_name(self) -> str:
        """Return what this is called."""
        return _TYPE

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Objects):
            return False
        # Arrow lets one store copy between equal ones.
        return (self._root, self._account) == (other._root, other._account)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _key(self, path: str) -> str:
        bucket, _, key = path.partition("/")
        if bucket != self._bucket:
            raise ValueError(f"{path} is not in {self._root}")
        return key.rstrip("/")


def _folders_of(path: str, base: str) -> Iterator[str]:
    """Yield the folders of an object that lie below another."""
    first = len(base) + 1 if base else 0
    yield from (path[:index] for index in range(first, len(path)) if path[index] == "/")
