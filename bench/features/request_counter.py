"""Passes requests to an S3 on, and counts them by kind, with the bytes of their bodies."""

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


class RequestCounter:
    """A server on loopback that passes on what it gets, as a context. Signatures stay valid: the host's name does."""

    def __init__(self, endpoint: str) -> None:
        """Take the URL of the S3, over plain HTTP."""
        self._counts = Counter[str]()
        self._bytes = (0, 0)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(urlsplit(endpoint).netloc, self._count))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

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
    """Return what a request is to S3, by which it costs: LIST, GET, HEAD, PUT, COPY, DELETE; others by their method.

    Steps of an upload in parts are CREATE_UPLOAD, UPLOAD_PART, COMPLETE_UPLOAD.

    >>> request_kind("GET", "/lake?list-type=2&prefix=t%2F", [])
    'LIST'
    >>> request_kind("PUT", "/lake/t/1", ["x-amz-copy-source"])
    'COPY'
    """
    url = urlsplit(target)
    names = {name.lower() for name in header_names}
    query = parse_qs(url.query, keep_blank_values=True)
    if method == "GET" and re.fullmatch(r"/[^/]+/?", url.path) and "prefix" in query:
        return "LIST"
    if method == "PUT" and "x-amz-copy-source" in names:
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
