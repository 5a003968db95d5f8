"""An HTTP server that answers as it is told, and remembers what it was asked."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers.network_hosts import THIS_HOST, Host


@dataclass(frozen=True)
class HttpRequest:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer; a body that is not bytes is sent as JSON."""

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)


class Scripted:
    """What the server does: `answer` decides."""

    def __init__(self, answer: Callable[[HttpRequest], Reply]) -> None:
        self.answer = answer
        self.asked: list[HttpRequest] = []
        self.url = ""


@contextmanager
def serve_script(
    answer: Callable[[HttpRequest], Reply], tls: ssl.SSLContext | None = None, host: Host = THIS_HOST
) -> Iterator[Scripted]:
    """Serve on a host until the end of the block; with `tls`, over HTTPS."""
    script = Scripted(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = HttpRequest(self.command, self.path, headers, self.rfile.read(length))
            script.asked.append(asked)
            reply = script.answer(asked)
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), "Connection": "close", **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: object) -> None:
            pass

    with host.enter():
        server = ThreadingHTTPServer((host.address, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    script.url = f"http{'s' if tls else ''}://{host.address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
