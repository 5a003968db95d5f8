"""What obstore raises has neither status nor code: its texts are read, and held to those of the installed version."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.writer.storage.clouds import obstore_client
from headrace.writer.storage.clouds.answers import AZURE, GOOGLE
from headrace.writer.storage.clouds.obstore_client import BucketAddress, ObstoreClient
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings

KEY = "c2VzYW1l"
GOOGLE_KEY = (
    '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "", "gcs_base_url": "%s"}'
)


class Answering(ThreadingHTTPServer):
    """Answers every request with one status and one word. `requests`: methods that came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.code = ""
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Answering

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(self.command)
        code = self.server.code
        body = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>It is so.\nRequestId:1\nTime:2</Message>"
            "<Details>some.permission is missing</Details><StringToSign>SIGNED</StringToSign></Error>"
        ).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _any  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing of a request."""


@pytest.fixture(scope="module")
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture(params=["gs", "az"])
def client(request: pytest.FixtureRequest, answering: Answering, monkeypatch: pytest.MonkeyPatch) -> ObstoreClient:
    answering.requests.clear()
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", GOOGLE_KEY % answering.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    timeout = timedelta(seconds=3)
    if request.param == "gs":
        return ObstoreClient(BucketAddress(GOOGLE, "gs://bucket", "bucket", timeout, endpoint=answering.url))
    return ObstoreClient(
        BucketAddress(AZURE, "az://box", "box", timeout, endpoint=f"{answering.url}/acc", account="acc")
    )


@contextmanager
def failing() -> Iterator[Callable[[], RequestFailed]]:
    with pytest.raises(RequestFailed) as failed:
        yield lambda: failed.value


def put_failure(client: ObstoreClient, answering: Answering, status: int, code: str) -> RequestFailed:
    answering.status = status
    answering.code = code
    with failing() as failure:
        client.put("a b", b"1", "token", only_new=True)
    assert answering.requests == ["PUT"], "a PUT is sent once"
    return failure()


@pytest.mark.parametrize(
    ("status", "code", "kind", "may_pass", "may_have_worked"),
    [
        (412, "PreconditionFailed", FailureKind.OBJECT_EXISTS, False, True),
        (409, "BlobAlreadyExists", FailureKind.OBJECT_EXISTS, False, False),
        (409, "Conflict", FailureKind.OTHER, True, False),
        (409, "BlobImmutableDueToPolicy", FailureKind.OTHER, False, False),
        (404, "NoSuchBucket", FailureKind.NO_BUCKET, False, True),
        (404, "ContainerNotFound", FailureKind.NO_BUCKET, False, True),
        (501, "NotImplemented", FailureKind.NO_CONDITION, False, True),
        (429, "TooMany", FailureKind.OTHER, True, True),
        (408, "RequestTimeout", FailureKind.OTHER, True, True),
        (500, "InternalError", FailureKind.OTHER, True, True),
        (503, "ServerBusy", FailureKind.OTHER, True, True),
        (400, "InvalidArgument", FailureKind.OTHER, False, True),
        (401, "Unauthorized", FailureKind.OTHER, False, True),
        (403, "AuthorizationFailure", FailureKind.OTHER, False, True),
    ],
)
def test_a_status_and_a_code_say_what_became_of_a_put(
    client: ObstoreClient,
    answering: Answering,
    status: int,
    code: str,
    kind: FailureKind,
    may_pass: bool,
    may_have_worked: bool,
) -> None:
    failure = put_failure(client, answering, status, code)
    assert (failure.status, failure.kind) == (status, kind)
    assert (failure.may_pass, failure.may_have_worked) == (may_pass, may_have_worked)
    # Azure's details may hold what was signed.
    said = "It is so. some.permission is missing" if client.cloud is GOOGLE else "It is so"
    account = ", in account acc" if client.cloud is AZURE else ""
    absence = f"there is no {client.cloud.bucket} '{client._address.bucket}': " if kind is FailureKind.NO_BUCKET else ""
    assert failure.answer == f"{absence}{status} {code} ({said}){account}"


def test_a_redirect_has_no_status(client: ObstoreClient, answering: Answering) -> None:
    failure = put_failure(client, answering, 301, "Moved")
    assert failure.answer.startswith("Received redirect without LOCATION")
    assert failure.fix.startswith("Look at the network")


def test_no_object_is_told_from_no_bucket(client: ObstoreClient, answering: Answering) -> None:
    answering.status = 404
    for answering.code in ("NoSuchKey", "BlobNotFound"):
        for request in (lambda: client.get("a"), lambda: client.head("a"), lambda: client.copy("a", "b")):
            with failing() as failure:
                request()
            assert (failure().status, failure().kind) == (404, FailureKind.NO_OBJECT)
    for answering.code in ("NoSuchBucket", "ContainerNotFound"):
        for request in (lambda: client.get("a"), lambda: client.list_page("a/", None), lambda: client.delete("a")):
            with failing() as failure:
                request()
            assert (failure().status, failure().kind, failure().may_pass) == (404, FailureKind.NO_BUCKET, False)
            assert "or correct the location" in failure().fix


def test_a_failure_names_the_account_where_the_location_names_none(answering: Answering, client: ObstoreClient) -> None:
    answering.status = 404
    answering.code = "ContainerNotFound"
    with failing() as failure:
        client.list_page("a/", None)
    assert failure().answer.endswith(", in account acc") == (client.cloud is AZURE)
    root = "abfss://box@acc.dfs.core.windows.net"
    address = BucketAddress(AZURE, root, "box", timedelta(seconds=3), endpoint=f"{answering.url}/acc", account="acc")
    with failing() as failure:
        ObstoreClient(address).list_page("a/", None)
    assert "in account" not in failure().answer


@pytest.mark.usefixtures("client")  # for credentials
def test_a_request_without_a_connection_did_nothing() -> None:
    address = BucketAddress(
        AZURE, "az://box", "box", timedelta(seconds=3), endpoint="http://127.0.0.1:9/acc", account="acc"
    )
    with failing() as failure:
        ObstoreClient(address).put("a", b"1", "token", only_new=True)
    assert failure().answer.startswith("no connection (")
    assert (failure().status, failure().may_pass, failure().may_have_worked) == (0, True, False)


def test_federated_identities_of_google_are_refused_with_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "external.json"
    key.write_text('{"type": "external_account", "audience": "sesame"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    with failing() as failure:
        ObstoreClient(BucketAddress(GOOGLE, "gs://federated", "federated", timedelta(seconds=3))).get("a")
    assert "external_account" in failure().fix
    assert not failure().may_pass
    assert "sesame" not in failure().answer


@pytest.mark.usefixtures("client")
def test_a_key_that_cannot_be_read_is_no_answer_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    address = BucketAddress(GOOGLE, "gs://bucket", "bucket", timedelta(seconds=3), service_account_file="/nothing.json")
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    with failing() as failure:
        ObstoreClient(address).get("a")
    assert "/nothing.json: No such file" in failure().answer
    assert "gcs.service_account_file" in failure().fix


def test_a_location_without_an_account_says_where_to_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(OSError, match=r"az:// names no account\. Set azure\.account"):
        store_at("az://box/lake", StoreSettings(azure=AzureSettings())).read("a")


def test_a_forked_process_says_that_it_cannot_use_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    obstore_client._first_user()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    settings = StoreSettings(gcs=GcsSettings("http://127.0.0.1:9", retry_timeout=timedelta(seconds=2)))
    with pytest.raises(OSError, match=r"this process was forked .*Start processes by spawn"):
        store_at("gs://forked/lake", settings).read("a")
