"""Requests to an object store are counted by kind, and passed on as they are."""

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.bench.features.request_counter import RequestCounter, request_kind


@pytest.mark.parametrize(
    ("method", "target", "headers", "kind"),
    [
        ("GET", "/lake?list-type=2&prefix=t%2F&delimiter=%2F", [], "LIST"),
        ("GET", "/lake/?prefix=", [], "LIST"),
        ("GET", "/lake/t/1.parquet", ["Range"], "GET"),
        ("GET", "/lake/t/a?prefix=b", [], "GET"),
        ("HEAD", "/lake/t/1.parquet", [], "HEAD"),
        ("PUT", "/lake/t/1.parquet", ["If-None-Match"], "PUT"),
        ("PUT", "/lake/t/2.parquet", ["X-Amz-Copy-Source"], "COPY"),
        ("DELETE", "/lake/t/1.parquet", [], "DELETE"),
        ("POST", "/lake?delete", [], "DELETE"),
        ("POST", "/lake/t/1.parquet?uploads", [], "CREATE_UPLOAD"),
        ("PUT", "/lake/t/1.parquet?partNumber=2&uploadId=7", [], "UPLOAD_PART"),
        ("POST", "/lake/t/1.parquet?uploadId=7", [], "COMPLETE_UPLOAD"),
        ("POST", "/lake/t/1.parquet?select", [], "POST"),
        ("PUT", "/lake/t/2.parquet", ["x-goog-copy-source"], "COPY"),
        ("GET", "/shop1/lake?restype=container&comp=list&prefix=t%2F", [], "LIST"),
        ("GET", "/shop1/lake?restype=container", [], "GET"),
        ("PUT", "/shop1/lake/t/1.parquet", ["x-ms-blob-type"], "PUT"),
        ("PUT", "/shop1/lake/t/2.parquet", ["x-ms-copy-source"], "COPY"),
        ("PUT", "/shop1/lake/t/1.parquet?comp=block&blockid=MQ%3D%3D", [], "UPLOAD_PART"),
        ("PUT", "/shop1/lake/t/1.parquet?comp=blocklist", [], "COMPLETE_UPLOAD"),
        ("POST", "/shop1/lake?restype=container&comp=batch", [], "DELETE"),
        ("GET", "/shop1/lake/t/1.parquet?comp=blocklist", [], "GET"),
    ],
)
def test_requests_have_the_kinds_that_stores_charge_for(method, target, headers, kind):
    assert request_kind(method, target, headers) == kind


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", self.headers["Host"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "123")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_requests_are_passed_on_and_counted(endpoint):
    with RequestCounter(endpoint) as counter:
        netloc = counter.url.removeprefix("http://")
        connection = HTTPConnection(netloc, timeout=10)
        for body in (b"one", b""):
            connection.request("PUT", "/lake/t", body)
            answer = connection.getresponse()
            assert (answer.status, answer.read(), answer.getheader("ETag")) == (200, body, netloc)
        connection.request("PUT", "/lake/t", iter([b"in ", b"chunks"]))
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"in chunks")
        connection.request("HEAD", "/lake/t")
        answer = connection.getresponse()
        assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (404, b"", "123")
        assert counter.counts() == {"PUT": 3, "HEAD": 1}
        assert counter.body_bytes() == (3 + 9, 3 + 9)
        counter.clear()
        assert counter.counts() == {}
        connection.close()
