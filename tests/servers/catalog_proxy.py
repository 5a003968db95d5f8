"""A proxy in front of a REST catalog: it wants a login, as catalogs do, and it fails, as catalogs and networks do."""

import json
import socket
import struct
import threading
import time
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote_plus, urlsplit
from uuid import uuid4

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REFUSED = "refuses"  # 409, nothing was done
THROTTLED = "throttles"  # 429 with Retry-After, nothing was done
BUSY = "is overloaded"  # 503, nothing was done
LOST = "forgets the answer"  # it is done, and the connection breaks
FAILED = "fails after the commit"  # it is done, and the answer is 500, 502 or 504
TWICE = "answers twice"  # it is done twice, and the second answer, a refusal, arrives
FAULTS = (REFUSED, THROTTLED, BUSY, LOST, FAILED, TWICE)
RETRY_AFTER_S = 1
_TOKENS = "/v1/oauth/tokens"
_BEFORE = {
    REFUSED: (409, "CommitFailedException"),
    THROTTLED: (429, "TooManyRequestsException"),
    BUSY: (503, "SlowDownException"),
}
Headers = Any


class Login(Protocol):
    """Decides who may ask."""

    def refusal(self, method: str, url: str, headers: Headers, body: bytes) -> tuple[int, str]:
        """Return the status and the words of a refusal; status 0: none."""
        ...


@dataclass
class OAuth:
    """Gives tokens to one client, and lets in who has one that is neither too old nor revoked."""

    client_id: str
    secret: str
    scope: str = "catalog"
    life_s: float = 3600
    expired_status: int = 401
    given: dict[str, float] = field(default_factory=dict)  # token → when it expires, by the monotonic clock

    def revoke(self) -> None:
        """Take back all tokens, and give no more."""
        self.given.clear()
        self.secret = uuid4().hex

    def token(self, headers: Headers, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer who asks for a token. Who asks stands in the body, or in a header (RFC 6749, 2.3.1)."""
        parameters = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if (basic := headers.get("Authorization", "")).startswith("Basic "):
            names = b64decode(basic.removeprefix("Basic ")).decode().split(":", 1)
            parameters |= dict(zip(("client_id", "client_secret"), map(unquote_plus, names), strict=True))
        expected = ("client_credentials", self.client_id, self.secret, self.scope)
        if tuple(parameters.get(name) for name in ("grant_type", "client_id", "client_secret", "scope")) != expected:
            # Some servers say back what they got.
            client = f"{parameters.get('client_id')} with {parameters.get('client_secret')}"
            return 401, {"error": "invalid_client", "error_description": f"no such client: {client}"}
        token = f"token-{uuid4().hex}"
        self.given[token] = time.monotonic() + self.life_s
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": int(self.life_s)}

    def refusal(self, _method: str, _url: str, headers: Headers, _body: bytes) -> tuple[int, str]:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.given:
            return 401, f"no such token: {token}"
        return (self.expired_status, "the token expired") if self.given[token] < time.monotonic() else (0, "")


@dataclass(frozen=True)
class SigV4:
    """Lets in whose signature is right for a region and a service."""

    key: str
    secret: str
    region: str
    service: str

    def refusal(self, method: str, url: str, headers: Headers, body: bytes) -> tuple[int, str]:
        given = headers.get("Authorization", "").removeprefix("AWS4-HMAC-SHA256 ")
        parts = dict(part.partition("=")[::2] for part in given.split(", "))
        if parts.get("Credential", "").split("/")[2:4] != [self.region, self.service]:
            return 403, "Credential should be scoped to another region or service"
        address, _, query = url.partition("?")
        signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
        params = {name: values[0] for name, values in parse_qs(query).items()}
        request = AWSRequest(method, address, signed, body, params)
        request.context["timestamp"] = headers["X-Amz-Date"]
        signer = SigV4Auth(Credentials(self.key, self.secret), self.service, self.region)
        # The last line is the body's digest. botocore takes it from the header, where Java's SDK has it in base64.
        head, _, _ = signer.canonical_request(request).rpartition("\n")
        canonical = f"{head}\n{sha256(body).hexdigest()}"
        signature = signer.signature(signer.string_to_sign(request, canonical), request)
        return (0, "") if signature == parts["Signature"] else (403, "The request signature does not match")


class CatalogProxy(ThreadingHTTPServer):
    """The proxy. `next_commits`: what happens to the commits that come; others pass."""

    daemon_threads = True

    def __init__(self, upstream: str, login: Login | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.login = login
        self.next_commits: deque[str] = deque()
        self.done: Counter[str] = Counter()
        self.asked_at: list[float] = []  # by the monotonic clock
        self.down_until = 0.0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def go_down(self, seconds: float) -> None:
        """Break every connection for so long."""
        self.down_until = time.monotonic() + seconds

    def handle_error(self, *_: Any) -> None:
        """The client is gone, or we broke the connection."""


@contextmanager
def catalog_proxy(upstream: str, login: Login | None = None) -> Iterator[CatalogProxy]:
    """Run a proxy in front of a catalog until the end of the block."""
    server = CatalogProxy(upstream, login)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CatalogProxy

    def _any(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.asked_at.append(time.monotonic())
        if time.monotonic() < server.down_until:
            server.done["is down"] += 1
            return self._break()
        if self.path == _TOKENS and isinstance(server.login, OAuth):
            status, answer = server.login.token(self.headers, body)
            return self._answer(status, answer)
        if server.login is not None:
            status, why = server.login.refusal(self.command, f"{server.url}{self.path}", self.headers, body)
            if status:
                return self._refuse(status, "NotAuthorizedException", why)
        is_commit = self.command == "POST" and "/tables" in self.path  # of a new table, too
        fault = server.next_commits.popleft() if is_commit and server.next_commits else ""
        return self._fail(fault, body) if fault else self._pass_on(*self._forward(body))

    do_GET = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815 - the names that http.server looks for

    def _fail(self, fault: str, body: bytes) -> None:
        self.server.done[fault] += 1
        if fault in _BEFORE:
            return self._refuse(*_BEFORE[fault], "it was told to")
        self._forward(body)
        if fault == LOST:
            return self._break()
        if fault == TWICE:
            return self._pass_on(*self._forward(body))
        return self._refuse((500, 502, 504)[self.server.done[FAILED] % 3], "CommitStateUnknownException", "no idea")

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        to = self.server.upstream
        connection = HTTPConnection(to.hostname or "", to.port, timeout=60)
        kind = self.headers.get("Content-Type", "application/json")
        try:
            connection.request(self.command, self.path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            return 502, b""
        finally:
            connection.close()

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": kind, "code": status}})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        self._pass_on(status, json.dumps(answer).encode())

    def _pass_on(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == _BEFORE[THROTTLED][0]:
            self.send_header("Retry-After", str(RETRY_AFTER_S))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _break(self) -> None:
        """Close the connection as a network does: with a reset, and without an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass
