"""What is known of a PUT whose answer was lost, of a list that breaks off, and of a file whose upload failed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from pyarrow import fs

from headrace.writer.lease.lease import StoreLeases
from headrace.writer.storage.base import OutcomeUnknown, StoreError
from headrace.writer.storage.bucket_store import BucketStore, ObjectFacts, Page
from headrace.writer.storage.clouds import obstore_client
from headrace.writer.storage.clouds.answers import GOOGLE
from headrace.writer.storage.clouds.bucket_clients import BucketClients
from headrace.writer.storage.clouds.data_files import PART_BYTES, DataFiles, Objects
from headrace.writer.storage.clouds.obstore_client import BucketAddress, ObstoreClient
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.requests.sender import RequestSender
from headrace.writer.storage.s3 import S3Client, resolve_settings
from headrace.writer.storage.settings import S3Settings
from tests.servers.objects import CREDENTIALS
from tests.servers.scripted import HttpRequest, Reply, serve_script

LOST = RequestFailed("no answer in time", "Look.", may_pass=True, may_have_worked=True)
BUSY = RequestFailed("503", "Wait.", status=503, may_pass=True, may_have_worked=True)
DENIED = RequestFailed("403 Forbidden", "Grant it.", status=403, may_have_worked=True)
GOOGLE_KEY = (
    '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "", "gcs_base_url": "%s"}'
)


def google_client(url: str) -> ObstoreClient:
    return ObstoreClient(BucketAddress(GOOGLE, "gs://bucket", "bucket", timedelta(seconds=3), endpoint=url))


EXISTS = RequestFailed("412", "", kind=FailureKind.OBJECT_EXISTS, status=412)


class Bucket:
    """Answers each PUT, and each HEAD, with the next of its answers."""

    def __init__(self, puts: list[RequestFailed | None], heads: list[RequestFailed | None] | None = None) -> None:
        self._puts = puts
        self._heads = heads or []

    def put(self, *_: object, **__: bool) -> None:
        failure = self._puts.pop(0)
        if failure is not None:
            raise failure

    def head(self, _: str) -> ObjectFacts:
        failure = self._heads.pop(0)
        if failure is not None:
            raise failure
        return ObjectFacts(("etag",), "another's")

    def get(self, _: str) -> tuple[bytes, ObjectFacts]:
        raise RequestFailed("404", "", kind=FailureKind.NO_OBJECT, status=404)


def store_of(bucket: Bucket) -> BucketStore:
    return BucketStore("s3://doubts/lake", bucket, timedelta(seconds=5), "s3.retry_timeout")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket([LOST, DENIED]),
        Bucket([BUSY, DENIED]),
        Bucket([LOST, EXISTS], [DENIED]),
        Bucket([LOST, EXISTS], [RequestFailed("404", "", kind=FailureKind.NO_OBJECT, status=404)]),
    ],
    ids=["login ends", "throttled, then login ends", "nobody may look", "nothing is there"],
)
def test_a_put_without_an_answer_stays_unknown_whatever_is_answered_later(bucket: Bucket) -> None:
    with pytest.raises(OutcomeUnknown):
        store_of(bucket).put_if_absent("entry", b"x")


def test_a_put_that_is_refused_at_once_did_not_happen() -> None:
    with pytest.raises(StoreError, match="403 Forbidden") as refused:
        store_of(Bucket([DENIED])).put_if_absent("entry", b"x")
    assert not isinstance(refused.value, OutcomeUnknown)


# --- what S3 answers -----------------------------------------------------------------------------------------------


@contextmanager
def s3_client(*replies: Reply, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    queue = list(replies)

    def answer(_: HttpRequest) -> Reply:
        return queue.pop(0)

    with serve_script(answer) as server:
        settings = resolve_settings(S3Settings(server.url, "us-east-1", retry_timeout=timedelta(seconds=3)))
        yield S3Client("bucket", settings)


DATE = {"Last-Modified": "Sat, 28 Nov 2026 08:00:00 GMT", "ETag": '"e"'}


@pytest.mark.parametrize("name", ["x-amz-meta-headrace-put", "X-Amz-Meta-Headrace-Put", "X-AMZ-META-HEADRACE-PUT"])
def test_an_object_is_known_as_ours_however_a_store_writes_names_of_headers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = Reply(200, b"x", {**DATE, name: "token"})
    with s3_client(reply, monkeypatch=monkeypatch) as client:
        _, facts = client.get("entry")
    assert facts.token == "token"


def error_body(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>It is so.</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "ExpiredToken"), (400, "InvalidToken"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch")],
)
def test_credentials_that_are_not_valid_are_not_blamed_on_the_network(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = Reply(status, error_body(code))
    with s3_client(reply, monkeypatch=monkeypatch) as client, pytest.raises(RequestFailed) as failed:
        client.get("entry")
    assert "give valid credentials" in failed.value.fix.lower()
    assert "network" not in failed.value.fix


def test_a_list_that_breaks_off_is_a_failure_and_no_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>"
    refused = pytest.raises(RequestFailed, match="where the list goes on")
    with s3_client(Reply(200, page), monkeypatch=monkeypatch) as client, refused:
        client.list_page("", None)


@pytest.mark.parametrize("name", ["a//b", "./a", "a\nb"])
def test_a_name_that_no_object_can_have_is_not_blamed_on_credentials(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", GOOGLE_KEY % "http://127.0.0.1:9")
    client = google_client("http://127.0.0.1:9")
    with pytest.raises(RequestFailed, match="Could not parse path") as refused:
        client.get(name)
    assert refused.value.fix == "Give it another name."


# --- files ---------------------------------------------------------------------------------------------------------


class FailingWriter:
    """A writer of obstore's that fails to take some bytes, and completes the object if it is told to."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, _: memoryview) -> int:
        raise OSError("a part was refused")

    def close(self) -> None:
        self._writer.close()

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)


def memory_objects(store: MemoryStore, root: str, account: str = "") -> Objects:
    pick_store = partial(pick, store)
    clients = BucketClients(pick_store, pick_store, pick_store, no_failure, 1_000)
    sender = RequestSender(root, timedelta(seconds=3), "retry_timeout")
    return Objects(root, root.rpartition("/")[2], clients, sender, account)


def test_a_file_whose_last_bytes_were_refused_is_not_there() -> None:
    store = MemoryStore()
    stream = DataFiles(memory_objects(store, "gs://bucket")).open_output_stream("bucket/part.parquet")
    stream.write(b"a" * PART_BYTES)
    upload = stream._sink._upload
    upload._writer = FailingWriter(upload._writer)
    stream.write(b"rest")
    with pytest.raises(OSError, match="a part was refused"):
        stream.close()
    assert [entry["path"] for page in store.list() for entry in page] == []


def test_a_copy_between_containers_of_one_name_goes_to_the_other_account() -> None:
    stores = [MemoryStore(), MemoryStore()]
    files = [
        DataFiles(memory_objects(store, "az://lake", account))
        for store, account in zip(stores, ("first", "second"), strict=True)
    ]
    stores[0].put("held/a.parquet", b"rows")
    fs.copy_files("lake/held/a.parquet", "lake/a.parquet", source_filesystem=files[0], destination_filesystem=files[1])
    assert bytes(stores[1].get("a.parquet").bytes()) == b"rows"


def pick(store: MemoryStore, *_: int) -> MemoryStore:
    return store


def no_failure(error: Exception) -> RequestFailed:
    return RequestFailed(str(error), "Look.")


# --- a process that was forked -------------------------------------------------------------------------------------


def test_a_store_that_was_used_before_a_fork_is_refused_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_script(lambda _: Reply(200, b"x", DATE)) as server:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", GOOGLE_KEY % server.url)
        client = google_client(server.url)
        assert client.get("a")[0] == b"x"
        obstore_client._first_user()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.get("a")
            except RequestFailed as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert wait_for(child) == 0


def wait_for(child: int) -> int | None:
    """Return the status of a process; None: it hangs."""
    for _ in range(500):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


def test_a_forked_process_has_connections_of_its_own_to_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    client = S3Client("bucket", resolve_settings(S3Settings("http://127.0.0.1:9", "us-east-1")))
    parents = client._s3
    assert client._s3 is parents
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert client._s3 is not parents


class EndlessBucket(Bucket):
    """Names the same next page on every page."""

    def list_page(self, *_: object, **__: bool) -> Page:
        return Page(["00000000000000000000.json"], "next")


def test_a_list_that_names_the_same_next_page_again_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot list s3://doubts/lake/_delta_log: the list has no end"):
        list(store_of(EndlessBucket([])).list("_delta_log"))


class PanicException(BaseException):
    """As pyo3 raises it where Rust panics."""


def panic(*_: object, **__: object) -> None:
    raise PanicException("byte index 1 is not a char boundary of `Jane`")


@pytest.mark.parametrize(
    ("function", "request_of"),
    [
        ("get", lambda store: store.read("a")),
        ("put", lambda store: store.put("a", b"x")),
        ("list_with_delimiter", lambda store: list(store.list())),
        ("delete", lambda store: store.delete("a")),
        ("list", lambda store: store.files()[0].get_file_info(fs.FileSelector("bucket/lake", recursive=True))),
        ("get_range", lambda store: store.files()[0].open_input_file("bucket/lake/a").read()),
        ("open_writer", lambda store: store.files()[0].open_output_stream("bucket/lake/a").write(b"x" * PART_BYTES)),
    ],
)
def test_a_panic_of_obstore_is_a_request_that_failed(
    monkeypatch: pytest.MonkeyPatch, function: str, request_of: Callable[[BucketStore], object]
) -> None:
    client = google_client("http://127.0.0.1:9")
    memory = MemoryStore()
    obstore.put(memory, "lake/a", b"x")
    monkeypatch.setattr(obstore_client, "_open_store", lambda *_: memory)
    monkeypatch.setattr(obstore, function, panic)
    store = BucketStore("gs://bucket/lake", client, timedelta(seconds=3), "gcs.retry_timeout")
    with pytest.raises(StoreError, match=r"obstore panicked, which is a bug of it; standard error says where. Report"):
        request_of(store)


def bucket_is_gone(asked: HttpRequest) -> Reply:
    """Answer as S3 does: a HEAD has no body that could say what is missing."""
    body = b"" if asked.method == "HEAD" else b"<Error><Code>NoSuchBucket</Code><Message>Gone.</Message></Error>"
    return Reply(404, body)


def test_a_lease_says_that_its_bucket_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with serve_script(bucket_is_gone) as server:
        settings = resolve_settings(S3Settings(endpoint=server.url, region="us-east-1", path_style=True))
        store = BucketStore("s3://doubts/lake", S3Client("doubts", settings), timedelta(seconds=5), "s3.retry_timeout")
        leases = StoreLeases(store)
        for request in (
            lambda: store.mark("a"),
            leases.look,
            lambda: leases.renew(1, "a"),
            lambda: leases.take(1, "a"),
        ):
            with pytest.raises(
                StoreError, match=r"there is no bucket 'doubts': 404 NoSuchBucket \(Gone\)\. Make the bucket"
            ):
                request()
