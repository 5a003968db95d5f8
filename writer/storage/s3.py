"""Objects of an S3 bucket. A conditional PUT creates an object only if it does not exist.

An operation that fails by throttling, a time-out or a broken connection is tried again, with growing pauses drawn at
random, until the settings' retry_timeout ends. So the outcome of a PUT may be unknown meanwhile: each carries a token
of its own in the object's metadata, by which a later answer "there is one already" is told to mean ours or another's.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError as NotConnected,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)  # fmt: skip
from pyarrow import fs

from writer.core.backoff import Backoff
from writer.storage.base import (
    Mark,
    NotExclusive,
    OutcomeUnknown,
    S3Settings,
    StoredObject,
    StoreError,
    Unanswered,
    always,
)

_T = TypeVar("_T")
_PUT = "headrace-put"  # metadata of an object: which PUT it came by
_ANSWER_S_MAX = 10.0  # a request to a bucket answers in tenths of a second
_BACKOFF = Backoff(0.1, 5, jitter=0.5)
_TAKEN, _CONFLICT, _UNKNOWN_HEADER = 412, 409, 501
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}  # 409: another conditional PUT is on its way
_PASSING_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)
_GRANT = (
    "Let these credentials do s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there, or give others "
    "(environment, profile or role: the standard chain of AWS)."
)
_REACH = "Look at the network, and at s3.endpoint and s3.region."
_FIXES = {
    "NoSuchBucket": "Make the bucket, or correct the location.",
    "PermanentRedirect": "Set s3.region to the bucket's.",
    "AuthorizationHeaderMalformed": "Set s3.region to the bucket's.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
}


class S3Store:
    """Objects below a prefix of a bucket."""

    def __init__(self, location: str, settings: S3Settings) -> None:
        """Take the location as `s3://bucket/prefix`. No request is sent yet."""
        self.location = location.rstrip("/")
        self._bucket, _, prefix = self.location.partition("://")[2].partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = resolved(settings)

    def path(self, name: str) -> str:
        """Return where an object lies."""
        return f"{self.location}/{name}" if name else self.location

    def read(self, name: str) -> StoredObject | None:
        """Get the object, or None where there is none."""

        def get() -> StoredObject | None:
            found = self._or_none(lambda: self._s3.get_object(**self._key(name)))
            return None if found is None else StoredObject(found["Body"].read(), _mark_of(found))

        return self._tried("read", name, get)

    def mark(self, name: str) -> Mark | None:
        """Return etag, size, time and token of the object, or None where there is none."""
        found = self._head(name)
        return None if found is None else _mark_of(found)

    def put(self, name: str, content: bytes) -> None:
        """Put the object."""
        about = {**self._key(name), "Metadata": {_PUT: uuid4().hex}}
        self._tried("write", name, lambda: self._s3.put_object(Body=content, **about))

    def put_if_absent(self, name: str, content: bytes, still: Callable[[], bool] = always) -> bool:
        """Put the object with `If-None-Match: *`."""
        token = uuid4().hex
        about = {**self._key(name), "Metadata": {_PUT: token}, "IfNoneMatch": "*"}
        doubt = False  # an earlier try may have put it, or may yet

        def put() -> bool:
            nonlocal doubt
            if not still():
                return doubt and self._ours(name, token)
            try:
                self._s3.put_object(Body=content, **about)
            except ClientError as error:
                status = _status(error)
                if status == _TAKEN:
                    return doubt and self._ours(name, token)
                if status == _UNKNOWN_HEADER:
                    raise self._not_exclusive(name, error) from error
                doubt = doubt or status != _CONFLICT
                raise
            except BotoCoreError as error:
                doubt = doubt or not isinstance(error, NotConnected)
                raise
            return True

        try:
            return self._tried("write", name, put)
        except Unanswered as error:
            if doubt:
                raise OutcomeUnknown(error.operation, error.path, error.answer, error.fix) from error
            raise

    def list(self, folder: str = "") -> Iterator[str]:
        """List a folder, a thousand names a request."""
        prefix = self._prefix + (f"{folder.rstrip('/')}/" if folder else "")
        more: dict[str, str] = {}
        while True:
            page = self._tried("list", folder, partial(self._page, prefix, more))
            for found in page.get("CommonPrefixes", []):
                yield found["Prefix"].removeprefix(prefix)
            for found in page.get("Contents", []):
                if found["Key"] != prefix:  # an empty object that some tools put in the place of a folder
                    yield found["Key"].removeprefix(prefix)
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def copy(self, source: str, target: str) -> None:
        """Let S3 copy the object, up to 5 GiB."""
        self._tried("copy", target, partial(self._copied, source, target))

    def move(self, source: str, target: str) -> bool:
        """Let S3 copy the object, then delete the first."""
        if self._tried("copy", target, lambda: self._or_none(partial(self._copied, source, target))) is None:
            return False
        self.delete(source)
        return True

    def delete(self, name: str) -> None:
        """Delete the object, if it is there."""
        self._tried("delete", name, lambda: self._s3.delete_object(**self._key(name)))

    def sweep(self, folder: str, before: float) -> None:
        """Do nothing: a PUT that was broken off leaves nothing behind."""

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return Arrow's own client of S3, which writes large files in parts, in the background."""
        settings = self._settings
        where = urlsplit(settings.endpoint or "")
        endpoint = {"endpoint_override": where.netloc + where.path, "scheme": where.scheme} if where.netloc else {}
        tries = 2 + int(settings.retry_timeout.total_seconds() / _BACKOFF.max_s)
        filesystem = fs.S3FileSystem(
            region=settings.region, background_writes=True, allow_delayed_open=True,
            force_virtual_addressing=not settings.path_style,
            connect_timeout=_answer_s(settings), request_timeout=_answer_s(settings),
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=tries), **endpoint,
        )  # fmt: skip
        return filesystem, f"{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def _s3(self) -> Any:
        return _client(self._settings)

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _copied(self, source: str, target: str) -> Any:
        return self._s3.copy_object(CopySource=self._key(source), **self._key(target))

    def _page(self, prefix: str, more: dict[str, str]) -> Any:
        return self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix, Delimiter="/", **more)

    def _head(self, name: str) -> Any | None:
        return self._tried("look at", name, lambda: self._or_none(lambda: self._s3.head_object(**self._key(name))))

    def _ours(self, name: str, token: str) -> bool:
        """Return whether the object that is there came by our PUT. Raises OutcomeUnknown when none is there."""
        found = self._head(name)
        if found is None:
            raise OutcomeUnknown(
                "write", self.path(name), "a try of it had no answer, and nothing is there",
                "It may yet come: look again before it is written again.",
            )  # fmt: skip
        return bool(found["Metadata"].get(_PUT) == token)

    def _or_none(self, call: Callable[[], Any]) -> Any | None:
        try:
            return call()
        except ClientError as error:
            if error.response["Error"].get("Code") in ("NoSuchKey", "404", "NotFound"):
                return None
            raise

    def _tried(self, operation: str, name: str, call: Callable[[], _T]) -> _T:
        """Return what the call returns; try again what may pass by itself. Raises StoreError."""
        retry_timeout = self._settings.retry_timeout.total_seconds()
        deadline, tries = time.monotonic() + retry_timeout, 1
        while True:
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                reason, fix = _message(error), _fix(error)
                if not _passing(error):
                    raise StoreError(operation, self.path(name), reason, fix) from error
                wait = _BACKOFF.random_delay_s(tries - 1)
                if time.monotonic() + wait > deadline:
                    many = "try" if tries == 1 else "tries"
                    text = f"{reason}, after {tries} {many} in {retry_timeout:g} s (s3.retry_timeout)"
                    raise Unanswered(operation, self.path(name), text, fix) from error
            time.sleep(wait)
            tries += 1

    def _not_exclusive(self, name: str, error: Exception) -> NotExclusive:
        return NotExclusive(
            "write", self.path(name), f"{_message(error)}: it knows no conditional PUT (If-None-Match)",
            "Choose a store that does: without it two writers lose each other's commits.",
        )  # fmt: skip


def resolved(settings: S3Settings) -> S3Settings:
    """Return the settings with what the environment and the profile of this process say where they leave it open."""
    known = settings.resolved(os.environ)
    return known if known.region else replace(known, region=_profile_region())


@cache
def _profile_region() -> str:
    try:
        return boto3.Session().region_name or "us-east-1"
    except BotoCoreError:  # a profile that is not there is said where it is used
        return "us-east-1"


@cache
def _client(settings: S3Settings) -> Any:
    """Return a client; it serves several threads. Its retries are off: they know no deadline."""
    config = Config(
        connect_timeout=_answer_s(settings),
        read_timeout=_answer_s(settings),
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        request_checksum_calculation="when_required",  # not every store that speaks S3 knows the newer ones
        response_checksum_validation="when_required",
    )
    return boto3.Session().client("s3", endpoint_url=settings.endpoint, region_name=settings.region, config=config)


def _answer_s(settings: S3Settings) -> float:
    """How long one request waits: a silent one must leave retry_timeout for others."""
    return min(_ANSWER_S_MAX, settings.retry_timeout.total_seconds() / 3)


def _passing(error: Exception) -> bool:
    """Return whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        return _status(error) in _PASSING or error.response["Error"].get("Code") in _PASSING_CODES
    return isinstance(error, HTTPClientError | NotConnected | IncompleteReadError) and not isinstance(error, SSLError)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _message(error: Exception) -> str:
    """Return what was answered, without what a request carries: that holds the key's name and its signature."""
    if isinstance(error, ClientError):
        reason = error.response["Error"]
        code, message = reason.get("Code", ""), " ".join(str(reason.get("Message", "")).split()).rstrip(".")
        status = _status(error)
        return f"{status} {code if code != str(status) else ''}".rstrip() + (f" ({message})" if message else "")
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _fix(error: Exception) -> str:
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code"))
        return _FIXES.get(code, _GRANT if _status(error) in (401, 403) else _REACH)
    return _GRANT if isinstance(error, _NO_CREDENTIALS) else _REACH


def _mark_of(found: Any) -> Mark:
    token = found["Metadata"].get(_PUT, "")
    return found["ETag"], found["ContentLength"], found["LastModified"].isoformat(), token
