"""Requests to an S3 bucket, by boto3, and large files, by Arrow. A PUT with `If-None-Match: *` creates an object only.

boto3's own retries are off: they know no deadline, and they hide that a PUT may have worked.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

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

from headrace.writer.storage.bucket_store import BucketStore, ObjectFacts, Page, one_line, request_timeout_s
from headrace.writer.storage.missing_bucket import missing_bucket
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.requests.sender import BACKOFF, RequestSender
from headrace.writer.storage.settings import S3Settings

# Metadata of an object: which PUT it came by.
_PUT = "headrace-put"
_EXISTS = 412
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
    "PermanentRedirect": "Set s3.region to the bucket's.",
    "AuthorizationHeaderMalformed": "Set s3.region to the bucket's.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
}
# Of credentials that are none, or none any longer.
_LOGIN_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_GIVE = (
    "Give valid credentials (environment, profile or role: the standard chain of AWS), on the driver and on every "
    "executor."
)
_NO_RULES = "NoSuchLifecycleConfiguration"
_MISSING_CODES = {"NoSuchKey", "404", "NotFound"}
_NO_BUCKET = "NoSuchBucket"


def s3_store(location: str, settings: S3Settings) -> BucketStore:
    """Return the store of a location, which is `s3://bucket/prefix`. No request is sent yet."""
    settings = resolve_settings(settings)
    bucket = location.partition("://")[2].partition("/")[0]
    return BucketStore(
        location,
        S3Client(bucket, settings),
        settings.retry_timeout,
        "s3.retry_timeout",
        settings.requests_per_second,
    )


class S3Client:
    """Requests to one bucket."""

    # Arrow's client tells nothing of them.
    counts_files = False
    may_copy_later = False

    def __init__(self, bucket: str, settings: S3Settings) -> None:
        """Take settings that are resolved."""
        self._bucket = bucket
        self._settings = settings

    def get(self, key: str) -> tuple[bytes, ObjectFacts]:
        """Get an object and its body."""
        with self._request_failures():
            answer = self._s3.get_object(**self._name(key))
            return answer["Body"].read(), _facts(answer)

    def head(self, key: str) -> ObjectFacts:
        """Return etag, size, time and token of an object."""
        with self._request_failures():
            return _facts(self._s3.head_object(**self._name(key)))

    def put(self, key: str, content: bytes, token: str, *, only_new: bool) -> None:
        """Put an object; with `only_new`, by `If-None-Match: *`."""
        request: dict[str, Any] = {**self._name(key), "Metadata": {_PUT: token}}
        if only_new:
            request["IfNoneMatch"] = "*"
        with self._request_failures():
            self._s3.put_object(Body=content, **request)

    def list_page(self, prefix: str, continuation: str | None, *, repeats: bool = False) -> Page:  # noqa: ARG002
        """Return up to a thousand names."""
        request: dict[str, str] = {"Bucket": self._bucket, "Prefix": prefix, "Delimiter": "/"}
        if continuation is not None:
            request["ContinuationToken"] = continuation
        with self._request_failures():
            page = self._s3.list_objects_v2(**request)
        names = [entry["Prefix"].removeprefix(prefix) for entry in page.get("CommonPrefixes", [])]
        # Some tools put an empty object in the place of a folder.
        keys = [entry["Key"] for entry in page.get("Contents", []) if entry["Key"] != prefix]
        names += [key.removeprefix(prefix) for key in keys]
        if not page.get("IsTruncated"):
            return Page(names)
        if "NextContinuationToken" not in page:
            # What it has behind this page would be taken for missing.
            raise RequestFailed("it does not say where the list goes on", "Choose a store that speaks S3.")
        return Page(names, page["NextContinuationToken"])

    def copy(self, source: str, target: str) -> None:
        """Let S3 copy an object, up to 5 GiB."""
        with self._request_failures():
            self._s3.copy_object(CopySource=self._name(source), **self._name(target))

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        with self._request_failures():
            self._s3.delete_object(**self._name(key))

    def lifecycle_rules(self) -> list[dict[str, Any]]:
        """Return the bucket's lifecycle rules, as boto3 has them."""
        with self._request_failures():
            try:
                rules: list[dict[str, Any]] = self._s3.get_bucket_lifecycle_configuration(Bucket=self._bucket)["Rules"]
            except ClientError as error:
                if error.response["Error"].get("Code") == _NO_RULES:
                    return []
                raise
        return rules

    def files(self, sender: RequestSender) -> tuple[fs.FileSystem, str]:  # noqa: ARG002 - of the protocol
        """Return Arrow's own client of S3, which writes large files in parts, in the background."""
        settings = self._settings
        url = urlsplit(settings.endpoint or "")
        endpoint: dict[str, str] = {}
        if url.netloc:
            endpoint = {"endpoint_override": url.netloc + url.path, "scheme": url.scheme}
        attempts_max = 2 + int(settings.retry_timeout.total_seconds() / BACKOFF.max_s)
        timeout_s = request_timeout_s(settings.retry_timeout)
        filesystem = fs.S3FileSystem(
            region=settings.region,
            background_writes=True,
            allow_delayed_open=True,
            force_virtual_addressing=not settings.path_style,
            connect_timeout=timeout_s,
            request_timeout=timeout_s,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts_max),
            **endpoint,
        )
        return filesystem, self._bucket

    @contextmanager
    def _request_failures(self) -> Iterator[None]:
        """Raise RequestFailed for what boto3 raises."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            status = _status(error) if isinstance(error, ClientError) else 0
            kind = _kind(error)
            answer = _message(error)
            fix = _fix(error)
            if kind is FailureKind.NO_BUCKET:
                answer, fix = missing_bucket(self._bucket, "bucket", answer)
            raise RequestFailed(
                answer,
                fix,
                kind=kind,
                status=status,
                may_pass=_may_pass(error),
                may_have_worked=not isinstance(error, NotConnected) and status != _CONFLICT,
            ) from error

    @property
    def _s3(self) -> Any:
        # A forked process has connections of its own: answers to two processes would mix.
        return _client(self._settings, os.getpid())

    def _name(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": key}


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
def _client(settings: S3Settings, process: int) -> Any:  # noqa: ARG001 - tells the clients of processes apart
    """Return a client; it serves several threads. Its retries are off: they know no deadline."""
    config = Config(
        connect_timeout=request_timeout_s(settings.retry_timeout),
        read_timeout=request_timeout_s(settings.retry_timeout),
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        # Not every store that speaks S3 knows the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.Session().client("s3", endpoint_url=settings.endpoint, region_name=settings.region, config=config)


def _kind(error: Exception) -> FailureKind:
    if not isinstance(error, ClientError):
        return FailureKind.OTHER
    code = error.response["Error"].get("Code")
    if code == _NO_BUCKET:
        return FailureKind.NO_BUCKET
    if code in _MISSING_CODES:
        return FailureKind.NO_OBJECT
    kinds = {_EXISTS: FailureKind.OBJECT_EXISTS, _UNKNOWN_HEADER: FailureKind.NO_CONDITION}
    return kinds.get(_status(error), FailureKind.OTHER)


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
        return one_line(str(error)) or type(error).__name__
    details = error.response["Error"]
    answer = str(_status(error))
    if details.get("Code", "") not in ("", answer):
        answer += f" {details['Code']}"
    message = one_line(str(details.get("Message", "")))
    return f"{answer} ({message})" if message else answer


def _fix(error: Exception) -> str:
    is_refused = isinstance(error, _NO_CREDENTIALS)
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code"))
        if code in _FIXES:
            return _FIXES[code]
        if code in _LOGIN_CODES:
            return _GIVE
        is_refused = _status(error) in (401, 403)
    return _GRANT if is_refused else _REACH


def _facts(answer: Any) -> ObjectFacts:
    # Some stores write the names of headers with capitals.
    metadata = {name.lower(): value for name, value in answer["Metadata"].items()}
    token = metadata.get(_PUT, "")
    size = answer["ContentLength"]
    return ObjectFacts((answer["ETag"], size, answer["LastModified"].isoformat(), token), token, size)
