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
)
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
from headrace.writer.storage.settings import S3Settings

_T = TypeVar("_T")
# Metadata of an object: which PUT it came by.
_PUT = "headrace-put"
# A bucket answers a request in tenths of a second.
_ANSWER_S_MAX = 10.0
_BACKOFF = Backoff(0.1, 5, jitter=0.5)
_TAKEN = 412
# Another conditional PUT is on its way.
_CONFLICT = 409
_UNKNOWN_HEADER = 501
_RETRY_STATUSES = {408, _CONFLICT, 425, 429, 500, 502, 503, 504}
_RETRY_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"}
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
        self._settings = resolve_settings(settings)

    def path(self, name: str) -> str:
        """Return where an object lies."""
        return f"{self.location}/{name}" if name else self.location

    def read(self, name: str) -> StoredObject | None:
        """Get the object, or None where there is none."""

        def get() -> StoredObject | None:
            answer = self._or_none(lambda: self._s3.get_object(**self._key(name)))
            if answer is None:
                return None
            return StoredObject(answer["Body"].read(), _mark_of(answer))

        return self._retry("read", name, get)

    def mark(self, name: str) -> Mark | None:
        """Return etag, size, time and token of the object, or None where there is none."""
        answer = self._head(name)
        if answer is None:
            return None
        return _mark_of(answer)

    def put(self, name: str, content: bytes) -> None:
        """Put the object."""
        request = {**self._key(name), "Metadata": {_PUT: uuid4().hex}}
        self._retry("write", name, lambda: self._s3.put_object(Body=content, **request))

    def put_if_absent(self, name: str, content: bytes, is_wanted: Callable[[], bool] = always) -> bool:
        """Put the object with `If-None-Match: *`."""
        token = uuid4().hex
        request = {**self._key(name), "Metadata": {_PUT: token}, "IfNoneMatch": "*"}
        # An earlier try may have put it, or may yet.
        in_doubt = False

        def put() -> bool:
            nonlocal in_doubt
            if not is_wanted():
                return in_doubt and self._is_ours(name, token)
            try:
                self._s3.put_object(Body=content, **request)
            except ClientError as error:
                status = _status(error)
                if status == _TAKEN:
                    return in_doubt and self._is_ours(name, token)
                if status == _UNKNOWN_HEADER:
                    raise self._not_exclusive(name, error) from error
                in_doubt = in_doubt or status != _CONFLICT
                raise
            except BotoCoreError as error:
                in_doubt = in_doubt or not isinstance(error, NotConnected)
                raise
            return True

        try:
            return self._retry("write", name, put)
        except Unanswered as error:
            if in_doubt:
                raise OutcomeUnknown(error.operation, error.path, error.answer, error.fix) from error
            raise

    def list(self, folder: str = "") -> Iterator[str]:
        """List a folder, a thousand names a request."""
        prefix = self._prefix
        if folder:
            prefix += f"{folder.rstrip('/')}/"
        continuation: dict[str, str] = {}
        while True:
            page = self._retry("list", folder, partial(self._list_page, prefix, continuation))
            for entry in page.get("CommonPrefixes", []):
                yield entry["Prefix"].removeprefix(prefix)
            for entry in page.get("Contents", []):
                # Some tools put an empty object in the place of a folder.
                if entry["Key"] != prefix:
                    yield entry["Key"].removeprefix(prefix)
            if not page.get("IsTruncated"):
                return
            continuation = {"ContinuationToken": page["NextContinuationToken"]}

    def copy(self, source: str, target: str) -> None:
        """Let S3 copy the object, up to 5 GiB."""
        self._retry("copy", target, partial(self._copy_object, source, target))

    def move(self, source: str, target: str) -> bool:
        """Let S3 copy the object, then delete the first."""
        if self._retry("copy", target, lambda: self._or_none(partial(self._copy_object, source, target))) is None:
            return False
        self.delete(source)
        return True

    def delete(self, name: str) -> None:
        """Delete the object, if it is there."""
        self._retry("delete", name, lambda: self._s3.delete_object(**self._key(name)))

    def sweep(self, folder: str, before: float) -> None:
        """Do nothing: a PUT that was broken off leaves nothing behind."""

    def files(self, name: str = "") -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return Arrow's own client of S3, which writes large files in parts, in the background."""
        settings = self._settings
        url = urlsplit(settings.endpoint or "")
        endpoint: dict[str, str] = {}
        if url.netloc:
            endpoint = {"endpoint_override": url.netloc + url.path, "scheme": url.scheme}
        attempts_max = 2 + int(settings.retry_timeout.total_seconds() / _BACKOFF.max_s)
        filesystem = fs.S3FileSystem(
            region=settings.region,
            background_writes=True,
            allow_delayed_open=True,
            force_virtual_addressing=not settings.path_style,
            connect_timeout=_request_timeout_s(settings),
            request_timeout=_request_timeout_s(settings),
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts_max),
            **endpoint,
        )
        return filesystem, f"{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def _s3(self) -> Any:
        return _client(self._settings)

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _copy_object(self, source: str, target: str) -> Any:
        return self._s3.copy_object(CopySource=self._key(source), **self._key(target))

    def _list_page(self, prefix: str, continuation: dict[str, str]) -> Any:
        return self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix, Delimiter="/", **continuation)

    def _head(self, name: str) -> Any | None:
        return self._retry("look at", name, lambda: self._or_none(lambda: self._s3.head_object(**self._key(name))))

    def _is_ours(self, name: str, token: str) -> bool:
        """Return whether the object that is there came by our PUT. Raises OutcomeUnknown when none is there."""
        answer = self._head(name)
        if answer is None:
            reason = "a try of it had no answer, and nothing is there"
            fix = "It may yet come: look again before it is written again."
            raise OutcomeUnknown("write", self.path(name), reason, fix)
        return bool(answer["Metadata"].get(_PUT) == token)

    def _or_none(self, call: Callable[[], Any]) -> Any | None:
        try:
            return call()
        except ClientError as error:
            if error.response["Error"].get("Code") in ("NoSuchKey", "404", "NotFound"):
                return None
            raise

    def _retry(self, operation: str, name: str, call: Callable[[], _T]) -> _T:
        """Return what the call returns; try again what may pass by itself. Raises StoreError."""
        retry_timeout = self._settings.retry_timeout.total_seconds()
        deadline = time.monotonic() + retry_timeout
        tries = 1
        while True:
            try:
                return call()
            except (ClientError, BotoCoreError) as error:
                reason = _message(error)
                fix = _fix(error)
                if not _may_pass(error):
                    raise StoreError(operation, self.path(name), reason, fix) from error
                wait = _BACKOFF.random_delay_s(tries - 1)
                if time.monotonic() + wait > deadline:
                    unit = "try" if tries == 1 else "tries"
                    answer = f"{reason}, after {tries} {unit} in {retry_timeout:g} s (s3.retry_timeout)"
                    raise Unanswered(operation, self.path(name), answer, fix) from error
            time.sleep(wait)
            tries += 1

    def _not_exclusive(self, name: str, error: Exception) -> NotExclusive:
        answer = f"{_message(error)}: it knows no conditional PUT (If-None-Match)"
        fix = "Choose a store that does: without it two writers lose each other's commits."
        return NotExclusive("write", self.path(name), answer, fix)


def resolve_settings(settings: S3Settings) -> S3Settings:
    """Return the settings with what the environment and the profile of this process say where they leave it open."""
    settings = settings.with_environment(os.environ)
    if not settings.region:
        settings = replace(settings, region=_profile_region())
    return settings


@cache
def _profile_region() -> str:
    try:
        return boto3.Session().region_name or "us-east-1"
    except BotoCoreError:
        # A profile that is not there is said where it is used.
        return "us-east-1"


@cache
def _client(settings: S3Settings) -> Any:
    """Return a client; it serves several threads. Its retries are off: they know no deadline."""
    config = Config(
        connect_timeout=_request_timeout_s(settings),
        read_timeout=_request_timeout_s(settings),
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        # Not every store that speaks S3 knows the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.Session().client("s3", endpoint_url=settings.endpoint, region_name=settings.region, config=config)


def _request_timeout_s(settings: S3Settings) -> float:
    """How long one request waits: a silent one must leave retry_timeout for others."""
    return min(_ANSWER_S_MAX, settings.retry_timeout.total_seconds() / 3)


def _may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        return _status(error) in _RETRY_STATUSES or error.response["Error"].get("Code") in _RETRY_CODES
    return isinstance(error, HTTPClientError | NotConnected | IncompleteReadError) and not isinstance(error, SSLError)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _message(error: Exception) -> str:
    """Return what was answered, without what a request carries: that holds the key's name and its signature."""
    if not isinstance(error, ClientError):
        return _one_line(str(error)) or type(error).__name__
    details = error.response["Error"]
    answer = str(_status(error))
    if details.get("Code", "") not in ("", answer):
        answer += f" {details['Code']}"
    message = _one_line(str(details.get("Message", "")))
    return f"{answer} ({message})" if message else answer


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _fix(error: Exception) -> str:
    is_refused = isinstance(error, _NO_CREDENTIALS)
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code"))
        if code in _FIXES:
            return _FIXES[code]
        is_refused = _status(error) in (401, 403)
    return _GRANT if is_refused else _REACH


def _mark_of(answer: Any) -> Mark:
    token = answer["Metadata"].get(_PUT, "")
    return answer["ETag"], answer["ContentLength"], answer["LastModified"].isoformat(), token
