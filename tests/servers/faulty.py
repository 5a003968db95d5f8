"""A proxy in front of an object store or a schema registry that fails as these fail: throttling, broken connections,
delays, answers that get lost, and answers that say 200 and are none.

It counts the requests of each method, as `tests.servers.cloud_http` does.

A process of its own: a client in native code may hold the interpreter's lock while it waits for an answer.
"""

import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

SLOW_DOWN = "slow_down"  # 503, nothing was done
RESET = "reset"  # the connection breaks before anything is done
LOST = "lost"  # it is done, and the answer gets lost
ERROR_THEN_TAKEN = "error_then_taken"  # it is done and answered 500: the repeat of a conditional PUT meets the object
DELAY = "delay"  # it is done and answered, late
SILENT = "silent"  # it is done, and no answer comes while the client waits
STRIP = "strip"  # a condition is ignored
TOO_MANY = "too_many"  # 429, nothing was done
UNKNOWN = "unknown"  # 501 to a condition
DENIED = "denied"  # 403, as AWS words it
EMPTY = "empty"  # 200 and an empty object
PAGE = "page"  # 200 and a page for people
CUT = "cut"  # the first half of the answer, as if it were all
FAULTS = (SLOW_DOWN, RESET, LOST, DELAY)
_CONTROL = "/-/control"
# Conditions of a PUT: of S3 and Azure, and of Google Cloud Storage.
_CONDITIONS = frozenset({"if-none-match", "x-goog-if-generation-match"})
_INTERNAL_ERROR = "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
_DELAY_S = 0.2
_SILENCE_S = 2.0
_ANSWERS = {
    SLOW_DOWN: (503, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"),
    TOO_MANY: (429, "<Error><Code>SlowDown</Code><Message>The object was changed too often.</Message></Error>"),
    EMPTY: (200, "{}"),
    PAGE: (200, "<html><body>The service is being upgraded.</body></html>"),
    UNKNOWN: (501, "<Error><Code>NotImplemented</Code><Message>A header implies what is not there.</Message></Error>"),
    DENIED: (
        403,
        (
            "<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message>"
            "<AWSAccessKeyId>THE-KEY-ID</AWSAccessKeyId><StringToSign>THE-STRING</StringToSign></Error>"
        ),
    ),
}


@dataclass
class Faults:
    """What the proxy at a URL is told to do to the requests that come."""

    url: str

    def first(self, fault: str, count: int, method: str = "PUT", after: int = 0) -> None:
        """Do this to the next requests of a method, `after` so many of them, and let all others pass."""
        self._tell(kind="first", fault=fault, count=count, method=method, after=after)

    def always(self, fault: str) -> None:
        """Do this to all requests."""
        self._tell(kind="always", fault=fault)

    def draw(self, seed: int, share: float, faults: tuple[str, ...] = FAULTS) -> None:
        """Do something to this share of the requests, drawn by a seed."""
        self._tell(kind="seeded", seed=seed, share=share, faults=faults)

    def calm(self) -> None:
        """Let all requests pass."""
        self._tell(kind="calm")

    def reset(self) -> None:
        """The same, and forget what was done."""
        self._tell(kind="reset")

    @property
    def done(self) -> Counter[str]:
        """Fault → how often it happened."""
        with urlopen(f"{self.url}{_CONTROL}") as answer:
            return Counter(json.loads(answer.read())["done"])

    def _tell(self, **rule: Any) -> None:
        with urlopen(Request(f"{self.url}{_CONTROL}", json.dumps(rule).encode())):
            pass


@contextmanager
def proxy(upstream: str, directory: Path) -> Iterator[Faults]:
    """Run a proxy in front of a server until the end of the block."""
    from tests.servers.objects import run_server

    log = directory / "proxy.log"
    with run_server([sys.executable, __file__, upstream], log, r"http://127\.0\.0\.1:\d+") as url:
        yield Faults(url)


def make_rule(rule: dict[str, Any]) -> Callable[[str], str | None]:
    """Return what happens to a request of a method."""
    match rule:
        case {"kind": "first", "fault": fault, "count": count, "method": method, "after": after}:
            left = [fault] * count + [None] * after
            return lambda request_method: left.pop() if request_method == method and left else None
        case {"kind": "always", "fault": fault}:
            return lambda _: fault
        case {"kind": "seeded", "seed": seed, "share": share, "faults": faults}:
            draw = random.Random(seed)
            return lambda _: draw.choice(faults) if draw.random() < share else None
    return lambda _: None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(upstream)
        self.rule = make_rule({})
        self.done = Counter[str]()
        self.asked = Counter[str]()
        self.lock = threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """The client is gone, or we broke the connection."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _any(self) -> None:
        body = self._body()
        if self.path == _CONTROL:
            return self._control(body)
        with self.server.lock:
            self.server.asked[self.command] += 1
            fault = self.server.rule(self.command)
            if fault in (STRIP, UNKNOWN) and _CONDITIONS.isdisjoint(map(str.lower, self.headers)):
                fault = None
            if fault:
                self.server.done[fault] += 1
        if fault in _ANSWERS:
            return self._answer(*_ANSWERS[fault])
        if fault == RESET:
            return self._break()
        if fault == DELAY:
            time.sleep(_DELAY_S)
        status, headers, content = self._forward(body, strip=fault == STRIP)
        if fault == SILENT:
            time.sleep(_SILENCE_S)
        if fault in (LOST, SILENT):
            return self._break()
        if fault == ERROR_THEN_TAKEN:
            return self._answer(500, _INTERNAL_ERROR)
        return self._pass_on(status, headers, content[: len(content) // 2] if fault == CUT else content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

    def handle_expect_100(self) -> bool:
        """Let the client send its body. Where it has none, Azure's client cannot read two answers in one packet."""
        return self.headers.get("Content-Length") == "0" or super().handle_expect_100()

    def _control(self, body: bytes) -> None:
        if self.command == "POST":
            rule = json.loads(body)
            self.server.rule = make_rule(rule)
            if rule["kind"] == "reset":
                self.server.done.clear()
        with self.server.lock:
            answer = json.dumps({"done": self.server.done, "asked": self.server.asked})
        self._answer(200, answer)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _forward(self, body: bytes, *, strip: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        to = self.server.upstream
        connection = HTTPConnection(to.hostname or "", to.port, timeout=30)
        dropped = {"connection", "expect", "transfer-encoding", "content-length"}
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in dropped | (_CONDITIONS if strip else set()):
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _pass_on(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        size = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                size = value
            elif name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    def _break(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        """Say nothing of a request."""


if __name__ == "__main__":
    with Server(sys.argv[1]) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()
