"""Objects below a prefix of a bucket of any cloud. A conditional PUT creates an object only if it does not exist.

A request that fails by throttling, a time-out or a broken connection is sent again, with growing pauses drawn at
random, until `retry_timeout` ends. So the outcome of a PUT may be unknown meanwhile: each carries a token of its own in
the object's metadata, by which a later answer "there is one already" is told to mean ours or another's. An ETag says
nothing of that: some stores give the same content the same one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol
from uuid import uuid4

from pyarrow import fs

from headrace.writer.storage.base import (
    Mark,
    NotExclusive,
    OutcomeUnknown,
    StoredObject,
    StoreError,
    always,
)
from headrace.writer.storage.requests.counts import upload_requests
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.requests.sender import RequestSender

# A bucket answers a request in tenths of a second.
_ANSWER_S_MAX = 10.0


@dataclass(frozen=True)
class ObjectFacts:
    """What a bucket says of an object. `token`: of the PUT that it came by; empty: it has none. `size`: in bytes."""

    mark: Mark
    token: str
    size: int


@dataclass(frozen=True)
class Page:
    """Names of a folder, relative to it; those of folders end with a slash.

    `continuation`: of the next page. `requests`: how many were sent for it.
    """

    names: list[str]
    continuation: str | None = None
    requests: int = 1


class BucketClient(Protocol):
    """Requests to one bucket. Each operation sends one request, without a retry, and raises RequestFailed.

    `head` may say NO_OBJECT where there is no bucket either; all others say NO_BUCKET, with the bucket's name.

    Exceptions: `list_page` may send a request for each page of the answer, and its file system sends what it likes.

    `may_copy_later`: a copy may be answered before it is complete. Until then the target is empty.
    """

    # Whether the file system counts its requests itself.
    counts_files: bool
    may_copy_later: bool

    def get(self, key: str) -> tuple[bytes, ObjectFacts]:
        """Return an object's content."""

    def head(self, key: str) -> ObjectFacts:
        """Return what is known of an object."""

    def put(self, key: str, content: bytes, token: str, *, only_new: bool) -> None:
        """Put an object with a token in its metadata. `only_new`: only where none is."""

    def list_page(self, prefix: str, continuation: str | None, *, repeats: bool = False) -> Page:
        """Return names directly in a folder. `prefix`: empty, or the folder's with a slash at its end.

        `repeats`: a client that asks for several pages tries each of them again itself.
        """

    def copy(self, source: str, target: str) -> None:
        """Let the store copy an object, over whatever is there."""

    def delete(self, key: str) -> None:
        """Delete an object. Where none is, it may raise NO_OBJECT or nothing."""

    def files(self, sender: RequestSender) -> tuple[fs.FileSystem, str]:
        """Return a file system for large files, and the bucket's path in it. `sender`: of the table's requests."""


class BucketStore:
    """Objects below a prefix of a bucket."""

    def __init__(
        self,
        location: str,
        client: BucketClient,
        retry_timeout: timedelta,
        setting: str,
        requests_per_second: float | None = None,
    ) -> None:
        """Take the location as `scheme://bucket/prefix`. `setting`: the name of `retry_timeout` in the configuration.

        `requests_per_second`: of all stores of the table in this process; None: there is no limit. No request is sent
        yet.
        """
        self.location = location.rstrip("/")
        prefix = self.location.partition("://")[2].partition("/")[2]
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = client
        self._scheme = location.partition("://")[0]
        self._sender = RequestSender(location, retry_timeout, setting, requests_per_second)

    def path(self, name: str) -> str:
        """Return where an object lies."""
        return f"{self.location}/{name}" if name else self.location

    def read(self, name: str) -> StoredObject | None:
        """Get the object, or None where there is none."""
        answer = self._sender.find("read", self.path(name), partial(self._client.get, self._key(name)))
        if answer is None:
            return None
        content, facts = answer
        return StoredObject(content, facts.mark)

    def mark(self, name: str) -> Mark | None:
        """Return what tells the object from others of its name, or None where there is none."""
        facts = self._head(name)
        return None if facts is None else facts.mark

    def put(self, name: str, content: bytes) -> None:
        """Put the object."""
        request = partial(self._client.put, self._key(name), content, uuid4().hex, only_new=False)
        self._sender.ask("write", self.path(name), request)

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        """Put the object by a PUT with the condition that none is there."""
        token = uuid4().hex
        request = partial(self._client.put, self._key(name), content, token, only_new=True)
        # An earlier try may have put it, or may yet.
        in_doubt = False

        def put() -> bool:
            nonlocal in_doubt
            if not is_wanted():
                return False
            try:
                self._sender.send("write", self.path(name), request)
            except RequestFailed as error:
                if error.kind is FailureKind.OBJECT_EXISTS:
                    return False
                if error.kind is FailureKind.NO_CONDITION:
                    raise self._not_exclusive(name, error) from error
                # What a store refuses for good was not put by this try.
                in_doubt = in_doubt or (error.may_have_worked and error.may_pass)
                raise
            return True

        try:
            is_put = self._sender.retry("write", self.path(name), put)
            return is_put or (in_doubt and self._is_ours(name, token))
        except StoreError as error:
            # A later refusal, as of a login that ended meanwhile, says nothing of an earlier try.
            if in_doubt and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(error.operation, error.path, error.answer, error.fix) from error
            raise

    def list(self, folder: str = "") -> Iterator[str]:
        """List a folder, page by page."""
        prefix = self._prefix
        if folder:
            prefix += f"{folder.rstrip('/')}/"
        path = self.path(folder)
        continuation = None
        continuations = set[str]()
        repeats = False

        def ask() -> Page:
            nonlocal repeats
            try:
                return self._client.list_page(prefix, continuation, repeats=repeats)
            except RequestFailed as error:
                # To begin anew at each page that is throttled may never come to an end.
                repeats = repeats or error.is_later_page
                raise

        while True:
            page = self._sender.ask("list", path, ask)
            self._sender.count_unpaced("list", path, page.requests - 1)
            yield from page.names
            continuation = page.continuation
            if continuation is None:
                return
            if continuation in continuations:
                # What it has behind this page would never come.
                answer = "the list has no end: it names the same next page again"
                raise StoreError("list", path, answer, "Choose a store that speaks S3.")
            continuations.add(continuation)

    def copy(self, source: str, target: str) -> None:
        """Let the store copy the object."""
        request = partial(self._client.copy, self._key(source), self._key(target))
        self._sender.ask("copy", self.path(target), request)
        self._await_copy(source, target)

    def move(self, source: str, target: str) -> bool:
        """Let the store copy the object, then delete the first."""

        def copy() -> bool:
            self._client.copy(self._key(source), self._key(target))
            return True

        if not self._sender.find("copy", self.path(target), copy):
            return False
        # A copy whose source is deleted before it is complete fails.
        self._await_copy(source, target)
        self.delete(source)
        return True

    def delete(self, name: str) -> None:
        """Delete the object, if it is there."""
        self._sender.find("delete", self.path(name), partial(self._client.delete, self._key(name)))

    def sweep(self, folder: str, before: float) -> None:
        """Do nothing: a PUT that was broken off leaves nothing behind."""

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return a file system that writes large files in parts."""
        filesystem, bucket = self._client.files(self._sender)
        return filesystem, f"{bucket}/{self._prefix}".rstrip("/")

    def note_upload(self, name: str, size: int) -> None:
        """Count the requests of an upload, as they are reckoned, and charge them to the budget.

        Nothing where the file system has counted them.
        """
        if self._client.counts_files:
            return
        for kind, count in upload_requests(self._scheme, size).items():
            self._sender.count_unpaced(kind, self.path(name), count)

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _head(self, name: str) -> ObjectFacts | None:
        """Return what is known of an object, or None where there is none.

        A HEAD that finds nothing is answered without a body, which would tell a missing bucket from a missing object.
        Then a GET asks.
        """
        facts = self._sender.find("look at", self.path(name), partial(self._client.head, self._key(name)))
        if facts is None:
            answer = self._sender.find("read", self.path(name), partial(self._client.get, self._key(name)))
            facts = None if answer is None else answer[1]
        return facts

    def _await_copy(self, source: str, target: str) -> None:
        """Wait until a copy that was answered is complete. Raises StoreError; Unanswered after `retry_timeout`."""
        if not self._client.may_copy_later:
            return

        def size_of(name: str) -> int:
            return self._sender.send("look at", self.path(name), partial(self._client.head, self._key(name))).size

        def check_copy() -> None:
            if size_of(target) == 0 and size_of(source) > 0:
                raise RequestFailed(
                    f"the copy of {self.path(source)} is not complete",
                    "Its source is kept. The copy is asked for again by the next try.",
                    may_pass=True,
                )

        self._sender.retry("copy", self.path(target), check_copy)

    def _is_ours(self, name: str, token: str) -> bool:
        """Return whether the object that is there came by our PUT. Raises OutcomeUnknown when none is there."""
        facts = self._head(name)
        if facts is None:
            reason = "a try of it had no answer, and nothing is there"
            fix = "It may yet come: look again before it is written again."
            raise OutcomeUnknown("write", self.path(name), reason, fix)
        return facts.token == token

    def _not_exclusive(self, name: str, error: RequestFailed) -> NotExclusive:
        answer = f"{error.answer}: it knows no conditional PUT"
        fix = "Choose a store that does: without it two writers lose each other's commits."
        return NotExclusive("write", self.path(name), answer, fix)


def request_timeout_s(retry_timeout: timedelta) -> float:
    """Return how long one request waits, in seconds: a silent one must leave `retry_timeout` for others."""
    return min(_ANSWER_S_MAX, retry_timeout.total_seconds() / 3)


def one_line(text: str) -> str:
    """Return a text of an answer in one line, without a full stop at its end."""
    return " ".join(text.split()).rstrip(".")
