"""Requests to a bucket of Google Cloud Storage, or a container of Azure Blob Storage, by obstore.

obstore's own retries are off: of a PUT that failed, was repeated and met itself they say that the object exists, and
they tell nothing of a store that throttles. Only the parts of an upload, and the pages of a list of which a later one
has failed, are tried again by obstore: it sends several of them in one call, and the others would be lost.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore
from pyarrow import fs

from headrace.writer.core.errors import panics_as_errors
from headrace.writer.storage.bucket_locations import split_bucket_location
from headrace.writer.storage.bucket_store import BucketStore, ObjectFacts, Page, request_timeout_s
from headrace.writer.storage.clouds.answers import AZURE, GOOGLE, Cloud, request_failure
from headrace.writer.storage.clouds.bucket_clients import FAILURES, BucketClients
from headrace.writer.storage.clouds.data_files import DataFiles, Objects
from headrace.writer.storage.clouds.lists import ask_folder
from headrace.writer.storage.missing_bucket import missing_bucket
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.requests.sender import BACKOFF, RequestSender
from headrace.writer.storage.settings import AzureSettings, GcsSettings

# The pauses between retries, and retry_timeout, end them sooner.
_RETRIES_MAX = 1_000
# An answer begins when all of the request has been sent: so much takes longer than others may.
_LARGE_BYTES = 2**22
_LARGE_TIMEOUT = timedelta(minutes=1)
# Of a whole answer.
_ANSWER_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class BucketAddress:
    """Where a bucket is, and how long it is waited for. Without credentials: obstore looks for them itself.

    `root`: the bucket as locations name it, `scheme://bucket`.
    """

    cloud: Cloud
    root: str
    bucket: str
    retry_timeout: timedelta
    endpoint: str | None = None
    account: str | None = None
    service_account_file: str | None = None


@dataclass(frozen=True)
class RequestRule:
    """How long one request may take until its answer begins, and whether obstore repeats it until `retry_timeout`."""

    answer_timeout: timedelta
    is_repeated: bool = False


def gcs_store(location: str, settings: GcsSettings) -> BucketStore:
    """Return the store of a location, which is `gs://bucket/prefix`. No request is sent yet."""
    address = gcs_address(location, settings)
    return BucketStore(
        location, ObstoreClient(address), settings.retry_timeout, "gcs.retry_timeout", settings.requests_per_second
    )


def azure_store(location: str, settings: AzureSettings) -> BucketStore:
    """Return the store of an az:// or abfss:// location. No request is sent yet."""
    address = azure_address(location, settings)
    return BucketStore(
        location, ObstoreClient(address), settings.retry_timeout, "azure.retry_timeout", settings.requests_per_second
    )


def gcs_address(location: str, settings: GcsSettings) -> BucketAddress:
    """Return where the bucket of a gs:// location is, with what this process's environment adds."""
    settings = settings.with_environment(os.environ)
    return BucketAddress(
        GOOGLE,
        _root_of(location),
        split_bucket_location(location).bucket,
        settings.retry_timeout,
        endpoint=settings.endpoint,
        service_account_file=settings.service_account_file,
    )


def azure_address(location: str, settings: AzureSettings) -> BucketAddress:
    """Return where the container of an az:// or abfss:// location is, with what this process's environment adds."""
    settings = settings.with_environment(os.environ)
    parsed = split_bucket_location(location)
    account = parsed.account or settings.account
    endpoint = settings.endpoint
    if account != settings.account and settings.account is not None:
        # The endpoint is of the other account, and obstore would take it from the environment.
        endpoint = f"https://{account}.blob.core.windows.net"
    return BucketAddress(
        AZURE, _root_of(location), parsed.bucket, settings.retry_timeout, endpoint=endpoint, account=account
    )


def _root_of(location: str) -> str:
    scheme, separator, path = location.partition("://")
    return scheme + separator + path.partition("/")[0]


class ObstoreClient:
    """Requests to one bucket."""

    counts_files = True

    def __init__(self, address: BucketAddress) -> None:
        self.cloud = address.cloud
        # obstore does not say whether the status of a copy is "pending".
        self.may_copy_later = address.cloud is AZURE
        self._address = address
        self._metadata = address.cloud.metadata
        self._answer_timeout = timedelta(seconds=request_timeout_s(address.retry_timeout))

    def get(self, key: str) -> tuple[bytes, ObjectFacts]:
        """Get an object and its body."""
        with self._request_failures():
            answer = obstore.get(self._store, key)
            return bytes(answer.bytes()), self._facts(answer)

    def head(self, key: str) -> ObjectFacts:
        """Return etag, size, time, version and token of an object."""
        with self._request_failures():
            return self._facts(obstore.get(self._store, key, options={"head": True}))

    def put(self, key: str, content: bytes, token: str, *, only_new: bool) -> None:
        """Put an object; with `only_new`, by If-None-Match: * (Azure) or ifGenerationMatch 0 (Google)."""
        mode = "create" if only_new else "overwrite"
        attributes = {self._metadata: token}
        with self._request_failures():
            obstore.put(
                self._store_for(len(content)), key, content, mode=mode, attributes=attributes, use_multipart=False
            )

    def list_page(self, prefix: str, continuation: str | None, *, repeats: bool = False) -> Page:  # noqa: ARG002
        """Return all names of a folder: all pages are one."""
        folder = ask_folder(self._clients, prefix.rstrip("/"), repeats=repeats)
        names = [f"{path.removeprefix(prefix)}/" for path in folder.folders]
        names += [entry["path"].removeprefix(prefix) for entry in folder.objects]
        return Page(names, requests=folder.requests)

    def copy(self, source: str, target: str) -> None:
        """Let the store copy an object."""
        with self._request_failures():
            obstore.copy(self._store, source, target)

    def delete(self, key: str) -> None:
        """Delete an object. Google says where none is, Azure does not."""
        with self._request_failures():
            obstore.delete(self._store, key)

    def files(self, sender: RequestSender) -> tuple[fs.FileSystem, str]:
        """Return the data files of the bucket."""
        address = self._address
        objects = Objects(address.root, address.bucket, self._clients, sender, address.account or "")
        return DataFiles(objects), address.bucket

    @property
    def _clients(self) -> BucketClients:
        return BucketClients(
            ask=lambda: self._store,
            put=self._store_for,
            repeat=partial(self._open, RequestRule(_LARGE_TIMEOUT, is_repeated=True)),
            read_failure=self._read_failure,
            page_names_max=self.cloud.page_names_max,
        )

    def _read_failure(self, error: Exception) -> RequestFailed:
        """Return what an exception of obstore says, with the bucket that is missing, or the account."""
        failure = request_failure(error, self.cloud)
        if failure.kind is FailureKind.NO_BUCKET:
            answer, fix = missing_bucket(self._address.bucket, self.cloud.bucket, failure.answer)
            failure.answer = answer
            failure.fix = fix
        if self._address.account and self._address.root.startswith("az://"):
            failure.answer += f", in account {self._address.account}"
        return failure

    @property
    def _store(self) -> Any:
        return self._open(RequestRule(self._answer_timeout))

    def _store_for(self, size: int) -> Any:
        """Return the client that puts so many bytes."""
        return self._store if size < _LARGE_BYTES else self._open(RequestRule(_LARGE_TIMEOUT))

    def _open(self, rule: RequestRule) -> Any:
        """Return obstore's client. Raises what obstore raises, RequestFailed."""
        _forbid_use_after_fork()
        return _open_store(self._address, rule)

    def _facts(self, answer: Any) -> ObjectFacts:
        token = answer.attributes.get(self._metadata, "")
        meta = answer.meta
        mark = (meta["e_tag"] or "", meta["size"], meta["last_modified"].isoformat(), meta["version"] or "", token)
        return ObjectFacts(mark, token, meta["size"])

    @contextmanager
    def _request_failures(self) -> Iterator[None]:
        """Raise RequestFailed for what obstore raises."""
        try:
            with panics_as_errors("obstore"):
                yield
        except FAILURES as error:
            raise self._read_failure(error) from None


@cache
def _open_store(address: BucketAddress, rule: RequestRule) -> Any:
    """Return obstore's client of a bucket, which serves several threads. Raises what obstore raises, RequestFailed."""
    options = {
        "connect_timeout": timedelta(seconds=request_timeout_s(address.retry_timeout)),
        "read_timeout": rule.answer_timeout,
        "timeout": _ANSWER_TIMEOUT,
        # Only a URL of the settings, the environment or a key says http://.
        "allow_http": True,
    }
    retries: dict[str, Any] = {"max_retries": 0}
    if rule.is_repeated:
        pauses = {
            "init_backoff": timedelta(seconds=BACKOFF.first_s),
            "max_backoff": timedelta(seconds=BACKOFF.max_s),
            "base": 2,
        }
        retries = {"max_retries": _RETRIES_MAX, "retry_timeout": address.retry_timeout, "backoff": pauses}
    if address.cloud.scheme == GOOGLE.scheme:
        google = {"base_url": address.endpoint, "service_account": address.service_account_file}
        config = {name: value for name, value in google.items() if value}
        return GCSStore(address.bucket, config=config, client_options=options, retry_config=retries)
    if address.account is None:
        raise RequestFailed(
            "az:// names no account", "Set azure.account, or AZURE_STORAGE_ACCOUNT_NAME, to the storage account."
        )
    azure = {"account_name": address.account, "endpoint": address.endpoint}
    config = {name: value for name, value in azure.items() if value}
    return AzureStore(address.bucket, config=config, client_options=options, retry_config=retries)


@cache
def _first_user() -> int:
    """Return the process that used obstore first, of this one and those that it was forked from."""
    return os.getpid()


def _forbid_use_after_fork() -> None:
    """Raise RequestFailed where this process was forked from one that had used obstore: a request would hang."""
    if _first_user() != os.getpid():
        raise RequestFailed(
            "this process was forked from one that had used obstore, and has none of its threads",
            "Start processes by spawn.",
        )
