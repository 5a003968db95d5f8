"""Objects below a prefix of a bucket of any cloud. A conditional PUT creates an object only if it does not exist.

A request that fails by throttling, a time-out or a broken connection is sent again, with growing pauses drawn at
random, until `retry_timeout` ends. So the outcome of a PUT may be unknown meanwhile: each carries a token of its own in
the object's metadata, by which a later answer "there is one already" is told to mean ours or another's. An ETag says
nothing of that: some stores give the same content the same one.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar
from uuid import uuid4

from pyarrow import fs

from headrace.writer.core.backoff import Backoff
from headrace.writer.storage.base import (
    Mark,
    NotExclusive,
    OutcomeUnknown,
    StoredObject,
    StoreError,
    Unanswered,
    always,
)
from headrace.writer.storage.requests.budget import THROTTLED, budget_of
from headrace.writer.storage.requests.counts import (
    PAGE_NAMES_MAX,
    REQUEST_COUNTS,
    Request,
    purpose_of,
    upload_requests,
)

_T = TypeVar("_T")
# A bucket answers a request in tenths of a second.
_ANSWER_S_MAX = 10.0
BACKOFF = Backoff(0.1, 5, jitter=0.5)
# The kinds of requests, by the operation that they are of.
_KINDS = {"read": "get", "look at": "head", "write": "put", "list": "list", "copy": "copy", "delete": "delete"}


class FailureKind(Enum):
    """What the answer to a request says of the object."""

    # There is none under this key.
    NO_OBJECT = "no object"
    # One is there, so none was created.
    OBJECT_EXISTS = "object exists"
    # The store does not know the condition of the PUT.
    NO_CONDITION = "no condition"
    OTHER = "other"


class RequestFailed(Exception):
    """One request failed: what every client raises instead of its library's exceptions.

    `answer`, `fix`: for a message, without anything secret. `status`: of HTTP; 0: none was received. `may_pass`: the
    same request may succeed a moment later. `may_have_worked`: it may have taken effect, or may yet.
    """

    def __init__(
        self,
        answer: str,
        fix: str,
        *,
        kind: FailureKind = FailureKind.OTHER,
        status: int = 0,
        may_pass: bool = False,
        may_have_worked: bool = False,
    ) -> None:
        super().__init__(answer)
        self.answer = answer
        self.fix = fix
        self.kind = kind
        self.status = status
        self.may_pass = may_pass
        self.may_have_worked = may_have_worked


@dataclass(frozen=True)
class ObjectFacts:
    """What a bucket says of an object. `token`: of the PUT that it came by; empty: it has none. `size`: in bytes."""

    mark: Mark
    token: str
    size: int


@dataclass(frozen=True)
class Page:
    """Names of a folder, relative to it; those of folders end with a slash. `continuation`: of the next page."""

    names: list[str]
    continuation: str | None = None


class BucketClient(Protocol):
    """Requests to one bucket. Each operation sends one request, without a retry, and raises RequestFailed.

    Exceptions: `list_page` may send a request for each page of the answer, and retry them.

    `may_copy_later`: a copy may be answered before it is complete. Until then the target is empty.
    """

    may_copy_later: bool

    def get(self, key: str) -> tuple[bytes, ObjectFacts]:
        """Return an object's content."""

    def head(self, key: str) -> ObjectFacts:
        """Return what is known of an object."""

    def put(self, key: str, content: bytes, token: str, *, only_new: bool) -> None:
        """Put an object with a token in its metadata. `only_new`: only where none is."""

    def list_page(self, prefix: str, continuation: str | None) -> Page:
        """Return names directly in a folder. `prefix`: empty, or the folder's with a slash at its end."""

    def copy(self, source: str, target: str) -> None:
        """Let the store copy an object, over whatever is there."""

    def delete(self, key: str) -> None:
        """Delete an object. Where none is, it may raise NO_OBJECT or nothing."""

    def files(self) -> tuple[fs.FileSystem, str]:
        """Return a file system for large files, and the bucket's path in it."""


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
        self._retry_timeout_s = retry_timeout.total_seconds()
        self._setting = setting
        self._scheme = location.partition("://")[0]
        self._budget = budget_of(location, requests_per_second)

    def path(self, name: str) -> str:
        """Return where an object lies."""
        return f"{self.location}/{name}" if name else self.location

    def read(self, name: str) -> StoredObject | None:
        """Get the object, or None where there is none."""
        answer = self._find("read", name, partial(self._client.get, self._key(name)))
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
        self._retry("write", name, partial(self._send, "write", name, request))

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
                self._send("write", name, request)
            except RequestFailed as error:
                if error.kind is FailureKind.OBJECT_EXISTS:
                    return False
                if error.kind is FailureKind.NO_CONDITION:
                    raise self._not_exclusive(name, error) from error
                in_doubt = in_doubt or error.may_have_worked
                raise
            return True

        try:
            is_put = self._retry("write", name, put)
            return is_put or (in_doubt and self._is_ours(name, token))
        except Unanswered as error:
            if in_doubt:
                raise OutcomeUnknown(error.operation, error.path, error.answer, error.fix) from error
            raise

    def list(self, folder: str = "") -> Iterator[str]:
        """List a folder, page by page."""
        prefix = self._prefix
        if folder:
            prefix += f"{folder.rstrip('/')}/"
        continuation = None
        while True:
            request = partial(self._client.list_page, prefix, continuation)
            page = self._retry("list", folder, partial(self._send, "list", folder, request))
            # Some clients put several pages together.
            more_pages = (len(page.names) - 1) // PAGE_NAMES_MAX
            if more_pages > 0:
                self._count("list", folder, "ok", more_pages)
            yield from page.names
            continuation = page.continuation
            if continuation is None:
                return

    def copy(self, source: str, target: str) -> None:
        """Let the store copy the object."""
        request = partial(self._client.copy, self._key(source), self._key(target))
        self._retry("copy", target, partial(self._send, "copy", target, request))
        self._await_copy(source, target)

    def move(self, source: str, target: str) -> bool:
        """Let the store copy the object, then delete the first."""

        def copy() -> bool:
            self._client.copy(self._key(source), self._key(target))
            return True

        if not self._find("copy", target, copy):
            return False
        # A copy whose source is deleted before it is complete fails.
        self._await_copy(source, target)
        self.delete(source)
        return True

    def delete(self, name: str) -> None:
        """Delete the object, if it is there."""
        self._find("delete", name, partial(self._client.delete, self._key(name)))

    def sweep(self, folder: str, before: float) -> None:
        """Do nothing: a PUT that was broken off leaves nothing behind."""

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return a file system that writes large files in parts."""
        filesystem, bucket = self._client.files()
        return filesystem, f"{bucket}/{self._prefix}".rstrip("/")

    def note_upload(self, name: str, size: int) -> None:
        """Count the requests of an upload, as they are reckoned, and charge them to the budget."""
        requests = upload_requests(self._scheme, size)
        for kind, count in requests.items():
            self._count(kind, name, "ok", count)
        self._budget.charge(sum(requests.values()))

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _head(self, name: str) -> ObjectFacts | None:
        return self._find("look at", name, partial(self._client.head, self._key(name)))

    def _await_copy(self, source: str, target: str) -> None:
        """Wait until a copy that was answered is complete. Raises StoreError; Unanswered after `retry_timeout`."""
        if not self._client.may_copy_later:
            return

        def size_of(name: str) -> int:
            return self._send("look at", name, partial(self._client.head, self._key(name))).size

        def check_copy() -> None:
            if size_of(target) == 0 and size_of(source) > 0:
                raise RequestFailed(
                    f"the copy of {self.path(source)} is not complete",
                    "Its source is kept. The copy is asked for again by the next try.",
                    may_pass=True,
                )

        self._retry("copy", target, check_copy)

    def _is_ours(self, name: str, token: str) -> bool:
        """Return whether the object that is there came by our PUT. Raises OutcomeUnknown when none is there."""
        facts = self._head(name)
        if facts is None:
            reason = "a try of it had no answer, and nothing is there"
            fix = "It may yet come: look again before it is written again."
            raise OutcomeUnknown("write", self.path(name), reason, fix)
        return facts.token == token

    def _find(self, operation: str, name: str, request: Callable[[], _T]) -> _T | None:
        """Return the answer to a request, or None where there is no such object. Raises StoreError."""

        def find() -> _T | None:
            try:
                return self._send(operation, name, request)
            except RequestFailed as error:
                if error.kind is FailureKind.NO_OBJECT:
                    return None
                raise

        return self._retry(operation, name, find)

    def _send(self, operation: str, name: str, request: Callable[[], _T]) -> _T:
        """Send one request, and count it. Every request goes through here, and each retry of it once more."""
        outcome = "failed"
        try:
            answer = request()
            outcome = "ok"
        except RequestFailed as error:
            outcome = _outcome(error)
            raise
        finally:
            self._count(_KINDS[operation], name, outcome)
        return answer

    def _count(self, kind: str, name: str, outcome: str, requests: int = 1) -> None:
        request = Request(self._scheme, purpose_of(self.path(name)), kind, outcome)
        REQUEST_COUNTS.add(request, requests)

    def _await_turn(self) -> None:
        """Wait until the budget lets a request go."""
        waited_s = self._budget.await_turn()
        if waited_s:
            REQUEST_COUNTS.add_wait(self._scheme, waited_s)

    def _retry(self, operation: str, name: str, call: Callable[[], _T]) -> _T:
        """Return what the call returns; try again what may pass by itself. Raises StoreError.

        The time for it counts from the first try: until then nothing was asked that could go unanswered.
        """
        self._await_turn()
        deadline = time.monotonic() + self._retry_timeout_s
        tries = 1
        while True:
            try:
                return call()
            except RequestFailed as error:
                if error.status in THROTTLED:
                    self._budget.slow_down()
                if not error.may_pass:
                    raise StoreError(operation, self.path(name), error.answer, error.fix) from error
                pause_s = BACKOFF.random_delay_s(tries - 1)
                budget_s = self._budget.delay_s()
                if time.monotonic() + max(pause_s, budget_s) > deadline:
                    unit = "try" if tries == 1 else "tries"
                    answer = f"{error.answer}, after {tries} {unit} in {self._retry_timeout_s:g} s ({self._setting})"
                    if budget_s > pause_s:
                        answer += f"; the budget of {self._budget.describe()} leaves no further one in time"
                    raise Unanswered(operation, self.path(name), answer, error.fix) from error
            time.sleep(pause_s)
            self._await_turn()
            tries += 1

    def _not_exclusive(self, name: str, error: RequestFailed) -> NotExclusive:
        answer = f"{error.answer}: it knows no conditional PUT"
        fix = "Choose a store that does: without it two writers lose each other's commits."
        return NotExclusive("write", self.path(name), answer, fix)


def _outcome(error: RequestFailed) -> str:
    """Return by what a request is counted that failed."""
    if error.kind is FailureKind.NO_OBJECT:
        return "missing"
    if error.kind is FailureKind.OBJECT_EXISTS:
        return "exists"
    if error.status in THROTTLED:
        return "throttled"
    return "failed" if error.status else "unanswered"


def request_timeout_s(retry_timeout: timedelta) -> float:
    """Return how long one request waits, in seconds: a silent one must leave `retry_timeout` for others."""
    return min(_ANSWER_S_MAX, retry_timeout.total_seconds() / 3)


def one_line(text: str) -> str:
    """Return a text of an answer in one line, without a full stop at its end."""
    return " ".join(text.split()).rstrip(".")
