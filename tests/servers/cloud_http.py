"""What the servers that play clouds share: HTTP with connections that stay open, ranges, and a control for tests.

A test reads at `/-/control` how many requests of each method came, and posts there what a server is to do.
"""

import argparse
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

CONTROL = "/-/control"


@dataclass(frozen=True)
class Behaviour:
    """What a test may ask of a server.

    `overwrites`: it ignores conditions. `answers_twice`: it says of a conditional PUT that it was done although an
    object is there, and keeps that object. `demand_tokens`: a request needs a bearer token that has not ended;
    `public_key`: in PEM, of a service account that may sign its own. `page_max`: so many names are on a page of a list.
    `copy_ms`: of Azure: a copy is answered as pending, and is complete so many milliseconds later.
    """

    overwrites: bool = False
    answers_twice: bool = False
    demand_tokens: bool = False
    public_key: str = ""
    page_max: int = 5_000
    copy_ms: int = 0


@dataclass(frozen=True)
class CloudRequest:
    """A request. `path`: as it was sent, quoted; `query`: unquoted."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    body: bytes
    target: str = ""

    def header(self, name: str) -> str:
        """Return a header's value, or an empty text."""
        return str(self.headers.get(name) or "")

    def metadata(self, prefix: str) -> dict[str, str]:
        """Return the headers of a prefix, without it, their names in lower case."""
        return {
            name[len(prefix) :].lower(): value
            for name, value in self.headers.items()
            if name.lower().startswith(prefix)
        }

    @property
    def names(self) -> tuple[str, str]:
        """The bucket and the object that the path names."""
        bucket, _, name = self.path.lstrip("/").partition("/")
        return unquote(bucket), unquote(name)


@dataclass(frozen=True)
class CloudAnswer:
    """An answer. A HEAD is answered with the length of its body alone."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An error that a cloud answers: a status and its word."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message or code


def json_answer(document: object, status: int = 200, **headers: str) -> CloudAnswer:
    """Return an answer of JSON."""
    return CloudAnswer(status, json.dumps(document).encode(), {"Content-Type": "application/json", **headers})


def xml_answer(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> CloudAnswer:
    """Return an answer of XML."""
    body = f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    return CloudAnswer(status, body, {"Content-Type": "application/xml", **(headers or {})})


def http_date(moment: datetime) -> str:
    """Return a moment as headers have it."""
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def asked_range(wanted: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of the range that a header asks for of an object; None: of all of it.

    Raises Refused for an empty range.
    """
    if not wanted.startswith("bytes=") or "," in wanted:
        return None
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if begin >= size or begin >= end:
        raise Refused(416, "InvalidRange")
    return begin, end


def range_answer(content: bytes, headers: Mapping[str, str], bounds: tuple[int, int] | None, size: int) -> CloudAnswer:
    """Return an answer of a content: of a whole object, or of a range of it. `size`: of the object."""
    if bounds is None:
        return CloudAnswer(200, content, headers)
    begin, end = bounds
    return CloudAnswer(206, content, {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{size}"})


def slice_answer(content: bytes, headers: Mapping[str, str], wanted: str) -> CloudAnswer:
    """Return an object's content, or the range of it that a header asks for. Raises Refused for an empty range."""
    bounds = asked_range(wanted, len(content))
    part = content if bounds is None else content[slice(*bounds)]
    return range_answer(part, headers, bounds, len(content))


class CloudServer(ThreadingHTTPServer):
    """A server on a free port of loopback. `answer` gets each request; what it raises as Refused is `refuse`'s."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        answer: Callable[[CloudRequest, Behaviour], CloudAnswer],
        refuse: Callable[[CloudRequest, Refused], CloudAnswer],
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.refuse = refuse
        self.behaviour = Behaviour()
        self.asked = Counter[str]()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def control(self, request: CloudRequest) -> CloudAnswer:
        """Take what a test asks for, and return how many requests came."""
        with self.lock:
            if request.body:
                self.behaviour = replace(self.behaviour, **json.loads(request.body))
            settings = {each.name: getattr(self.behaviour, each.name) for each in fields(Behaviour)}
            return json_answer({"asked": self.asked, "behaviour": settings})

    def handle_error(self, *_: Any) -> None:
        """The client is gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # An answer leaves in one piece.
    wbufsize = 1 << 16
    server: CloudServer

    def _any(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        request = CloudRequest(self.command, url.path, query, self.headers, self._body(), self.path)
        if url.path == CONTROL:
            self._send(self.server.control(request))
            return
        with self.server.lock:
            self.server.asked[self.command] += 1
        try:
            answer = self.server.answer(request, self.server.behaviour)
        except Refused as refused:
            answer = self.server.refuse(request, refused)
        self._send(answer)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _any  # noqa: N815 - the names that http.server looks for

    def handle_expect_100(self) -> bool:
        """Let the client send its body, at once. Where it has none, Azure's client cannot read two answers in one."""
        if self.headers.get("Content-Length") == "0":
            return True
        is_expected = super().handle_expect_100()
        self.wfile.flush()
        return is_expected

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(content)

    def _send(self, answer: CloudAnswer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        # A HEAD through a door has no body, and says the length of the object.
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Say nothing of a request."""


def serve(server: CloudServer) -> None:
    """Say where it listens, and serve until the process is killed."""
    with server:
        print(server.url, flush=True)
        server.serve_forever()


def read_options(description: str, *options: str) -> argparse.Namespace:
    """Read the options of a server's command line; each takes a text."""
    parser = argparse.ArgumentParser(description=description)
    for option in options:
        parser.add_argument(option, default="")
    return parser.parse_args()
