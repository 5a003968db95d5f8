"""Buckets of objects in memory, and the protocol of whatever keeps objects behind the servers that play clouds."""

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from tests.servers.cloud_http import Behaviour, Refused


@dataclass(frozen=True)
class CloudObject:
    """An object. `generation`: greater than that of each object before it; `size`: of the whole content, in bytes."""

    name: str
    content: bytes
    generation: int
    size: int
    md5: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"

    @property
    def modified(self) -> datetime:
        """When it was put."""
        return datetime.fromtimestamp(self.generation / 1_000_000, UTC)


@dataclass(frozen=True)
class NewObject:
    """An object to put. `generation`: it is put only in the place of that one, and 0 is none; None: in any case."""

    bucket: str
    name: str
    content: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    generation: int | None = None


@dataclass(frozen=True)
class Listing:
    """A page of a list. `token`: where the next one begins, or empty."""

    objects: list[CloudObject]
    folders: list[str]
    token: str = ""


@dataclass(frozen=True)
class ListQuestion:
    """Which names are listed: those from `start` on, `after` a name, or behind the page that gave `token`."""

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    after: str = ""
    token: str = ""
    size_max: int = 1_000


class Backend(Protocol):
    """Keeps objects. All operations raise Refused, in the words of Google Cloud Storage."""

    def create_bucket(self, bucket: str) -> None: ...

    def put(self, new: NewObject) -> CloudObject:
        """Put an object. Raises Refused(412) if its condition does not hold."""

    def read(self, bucket: str, name: str) -> CloudObject: ...

    def look(self, bucket: str, name: str) -> CloudObject:
        """Return an object, perhaps without its content."""

    def content(self, bucket: str, stored: CloudObject, bounds: tuple[int, int] | None) -> bytes:
        """Return the content of an object that was looked at, or a range of it."""

    def delete(self, bucket: str, name: str) -> None: ...

    def list(self, bucket: str, question: ListQuestion) -> Listing: ...


class MemoryBackend:
    """Objects in this process."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, CloudObject]] = {}
        self._lock = threading.Lock()
        self._newest = 0

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket. Raises Refused if it is there."""
        with self._lock:
            if bucket in self.buckets:
                raise Refused(409, "BucketAlreadyExists")
            self.buckets[bucket] = {}

    def remove_bucket(self, bucket: str) -> None:
        """Remove a bucket that is empty."""
        with self._lock:
            if self.objects(bucket):
                raise Refused(409, "BucketNotEmpty")
            del self.buckets[bucket]

    def objects(self, bucket: str) -> dict[str, CloudObject]:
        """Return the objects of a bucket."""
        if bucket not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        return self.buckets[bucket]

    def put(self, new: NewObject) -> CloudObject:
        """Put an object. Looking whether one is there and putting is one step."""
        md5 = hashlib.md5(new.content, usedforsecurity=False).digest()
        content_type = new.content_type or "application/octet-stream"
        with self._lock:
            objects = self.objects(new.bucket)
            if new.generation is not None and self._generation(objects, new.name) != new.generation:
                raise Refused(412, "PreconditionFailed")
            self._newest = max(time.time_ns() // 1_000, self._newest + 1)
            stored = CloudObject(
                new.name, new.content, self._newest, len(new.content), md5, dict(new.metadata), content_type
            )
            objects[new.name] = stored
            return stored

    def read(self, bucket: str, name: str) -> CloudObject:
        """Return an object."""
        stored = self.objects(bucket).get(name)
        if stored is None:
            raise Refused(404, "NoSuchKey")
        return stored

    look = read

    def content(self, bucket: str, stored: CloudObject, bounds: tuple[int, int] | None) -> bytes:  # noqa: ARG002 - of the protocol
        """Return the content of an object, or a range of it."""
        return stored.content if bounds is None else stored.content[slice(*bounds)]

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object."""
        with self._lock:
            if self.objects(bucket).pop(name, None) is None:
                raise Refused(404, "NoSuchKey")

    def list(self, bucket: str, question: ListQuestion) -> Listing:
        """Return a page of names in the order of their UTF-8."""
        objects = self.objects(bucket)
        with self._lock:
            names = [name for name in objects if name.startswith(question.prefix)]
        page = Listing([], [])
        for name, folder in _entries(sorted(names, key=str.encode), question):
            entry = folder or name
            if len(page.objects) + len(page.folders) == question.size_max:
                return Listing(page.objects, page.folders, entry)
            if folder:
                page.folders.append(folder)
            elif stored := objects.get(name):
                page.objects.append(stored)
        return page

    @staticmethod
    def _generation(objects: Mapping[str, CloudObject], name: str) -> int:
        stored = objects.get(name)
        return 0 if stored is None else stored.generation


def _entries(names: list[str], question: ListQuestion) -> Iterator[tuple[str, str]]:
    """Yield the names that a list has from its begin on, each with its folder: once for each folder."""
    seen = ""
    length = len(question.prefix)
    for name in names:
        folder = ""
        if question.delimiter and question.delimiter in name[length:]:
            inner = name[length:].partition(question.delimiter)[0]
            folder = f"{question.prefix}{inner}{question.delimiter}"
        # A token is the first entry of the next page, which may be a folder.
        if (folder or name).encode() < question.token.encode() or name.encode() < question.start.encode():
            continue
        if name.encode() <= question.after.encode() or (folder and folder == seen):
            continue
        seen = folder
        yield name, folder


def put_as_asked(backend: Backend, new: NewObject, behaviour: Behaviour) -> CloudObject:
    """Put an object, or lie about it, as a test has asked for. Raises Refused."""
    if behaviour.overwrites:
        return backend.put(replace(new, generation=None))
    try:
        return backend.put(new)
    except Refused as refused:
        if refused.status == 412 and behaviour.answers_twice:
            return backend.look(new.bucket, new.name)
        raise
