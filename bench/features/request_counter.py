"""Passes requests to an object store on, and counts them by kind, with the bytes of their bodies."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive"}
_TIMEOUT_S = 60
_COPY_HEADERS = {"x-amz-copy-source", "x-goog-copy-source", "x-ms-copy-source"}
# By method and `comp`.
_AZURE_KINDS = {
    ("GET", "list"): "LIST",
    ("PUT", "block"): "UPLOAD_PART",
    ("PUT", "blocklist"): "COMPLETE_UPLOAD",
    ("POST", "batch"): "DELETE",
}


class RequestCounter:
    """A server on loopback that passes on what it gets, as a context. Signatures stay valid: the host's name does."""

    def __init__(self, endpoint: str) -> None:
        """Take the URL of the store, over plain HTTP; that of an Azure ends with the account."""
        self._counts = Counter[str]()
        self._bytes = (0, 0)
        self._lock = threading.Lock()
        upstream = urlsplit(endpoint)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(upstream.netloc, self._count))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}{upstream.path.rstrip('/')}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="requests", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> dict[str, int]:
        """Return the requests since `clear`, by kind."""
        with self._lock:
            return dict(self._counts)

    def body_bytes(self) -> tuple[int, int]:
        """Return the bytes of bodies since `clear`: of requests, and of answers."""
        with self._lock:
            return self._bytes

    def clear(self) -> None:
        """Begin to count at zero."""
        with self._lock:
            self._counts.clear()
            self._bytes = (0, 0)

    def _count(self, kind: str, sent: int, received: int) -> None:
        with self._lock:
            self._counts[kind] += 1
            self._bytes = (self._bytes[0] + sent, self._bytes[1] + received)


def request_kind(method: str, target: str, header_names: Iterable[str]) -> str:
    """Return what a request is to a store, by which it costs: LIST, GET, HEAD, PUT, COPY, DELETE; else its method.

    Steps of an upload in parts are CREATE_UPLOAD, UPLOAD_PART, COMPLETE_UPLOAD. Stores: S3, the XML API of Google Cloud
    Storage, and Azure's Blob API, whose parts are blocks, and whose `comp` says what is asked.

    >>> request_kind("GET", "/lake?list-type=2&prefix=t%2F", [])
    'LIST'
    >>> request_kind("PUT", "/lake/t/1", ["x-amz-copy-source"])
    'COPY'
    >>> request_kind("PUT", "/account/lake/t/1?comp=block&blockid=MQ", [])
    'UPLOAD_PART'
    """
    url = urlsplit(target)
    names = {name.lower() for name in header_names}
    query = parse_qs(url.query, keep_blank_values=True)
    if "comp" in query:
        return _AZURE_KINDS.get((method, query["comp"][0]), method)
    if method == "GET" and re.fullmatch(r"/[^/]+/?", url.path) and "prefix" in query:
        return "LIST"
    if method == "PUT" and not _COPY_HEADERS.isdisjoint(names):
        return "COPY"
    if method == "PUT" and "partNumber" in query:
        return "UPLOAD_PART"
    if method == "POST":
        steps = {"delete": "DELETE", "uploads": "CREATE_UPLOAD", "uploadId": "COMPLETE_UPLOAD"}
        return next((kind for name, kind in steps.items() if name in query), method)
    return method


class _Handler(BaseHTTPRequestHandler):
    """Passes the requests of one connection on."""

    protocol_version = "HTTP/1.1"
    # Set by `_handler`.
    netloc: str
    count: Callable[[str, int, int], None]
    _upstream: HTTPConnection | None = None

    def pass_on(self) -> None:
        """Send a request on, and its answer back."""
        body = self._body()
        if self._upstream is None:
            self._upstream = HTTPConnection(self.netloc, timeout=_TIMEOUT_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
        self._upstream.request(self.command, self.path, body, headers)
        answer = self._upstream.getresponse()
        content = answer.read()
        # Before the answer goes on: who has it may ask for the counts.
        self.count(request_kind(self.command, self.path, self.headers.keys()), len(body), len(content))
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_HEADERS | {"content-length"}:
                self.send_header(name, value)
        # That of a HEAD is the object's.
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self) -> bytes:
        """Read the body of a request, whole or in chunks (RFC 9112, 7.1)."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        # Trailers end with an empty line.
        while self.rfile.readline().strip():
            pass
        return body

    def finish(self) -> None:
        """End the connection."""
        super().finish()
        if self._upstream is not None:
            self._upstream.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815 - http.server's names


def _handler(netloc: str, count: Callable[[str, int, int], None]) -> type[_Handler]:
    return type("_CountingHandler", (_Handler,), {"netloc": netloc, "count": staticmethod(count)})
