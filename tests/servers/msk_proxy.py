"""The login of Amazon MSK by IAM, played before a plaintext broker.

It takes OAUTHBEARER whose token is a signed request, and checks the signature itself, as AWS documents Signature
Version 4 for query strings: host, action, scope, life, session token. It knows neither policies of IAM nor STS.
"""

import base64
import binascii
import calendar
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.demo.devstack.process import LOOPBACK, free_ports

REGION = "eu-central-1"
MECHANISM = b"OAUTHBEARER"
_HANDSHAKE, _VERSIONS, _AUTHENTICATE = 17, 18, 36
_LIFE_S_MAX = 900
_AHEAD_S_MAX = 300
_ACCESS_DENIED = 58
_UNSUPPORTED_MECHANISM = 33


@dataclass(frozen=True)
class AccessKey:
    """What a key of AWS signs with. `session_token`: of an assumed role."""

    secret: str
    session_token: str = ""


@dataclass(frozen=True)
class Login:
    """A login that was accepted: by which key, of which agent, how long its token was good then, and until when."""

    key_id: str
    agent: str
    left_s: float
    end_s: float
    fields: frozenset[str]
    token: str = field(repr=False)


class MskProxy:
    """Takes logins by IAM on a port, and hands on what follows. A context manager.

    `session_s`: how long a login lasts at most; clients have to log in again before (KIP-368).
    """

    def __init__(self, port: int, broker_port: int, *, session_s: float = _LIFE_S_MAX) -> None:
        self.keys: dict[str, AccessKey] = {}
        self.session_s = session_s
        self.logins: list[Login] = []
        self.refusals: list[str] = []
        # Connections that were closed because their session was over.
        self.expirations = 0
        # How far its clock is ahead of this machine's.
        self.skew_s = 0.0
        self._broker_port = broker_port
        self._listener = socket.create_server((LOOPBACK, port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def check(self, token: str) -> tuple[Login, float]:
        """Check a token. Returns the login, and when the token ends. Raises ValueError with the reason."""
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
        url = urlsplit(text)
        query = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=True))
        if url.scheme != "https" or url.hostname != f"kafka.{REGION}.amazonaws.com" or url.path not in ("", "/"):
            raise ValueError(f"it is for {url.hostname}")
        if query["Action"] != "kafka-cluster:Connect" or query["X-Amz-Algorithm"] != "AWS4-HMAC-SHA256":
            raise ValueError("action or algorithm")
        key_id, date, *scope = query["X-Amz-Credential"].split("/")
        if scope != [REGION, "kafka-cluster", "aws4_request"] or not query["X-Amz-Date"].startswith(date):
            raise ValueError("the scope")
        begun_s = calendar.timegm(time.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
        life_s = int(query["X-Amz-Expires"])
        now_s = time.time() + self.skew_s
        if not 0 < life_s <= _LIFE_S_MAX or not begun_s - _AHEAD_S_MAX <= now_s < begun_s + life_s:
            raise ValueError("it is not valid now")
        key = self.keys.get(key_id)
        if key is None or query.get("X-Amz-Security-Token", "") != key.session_token:
            raise ValueError("the key or its session token is not known")
        if not hmac.compare_digest(_signature(url, query, key.secret, [date, *scope]), query["X-Amz-Signature"]):
            raise ValueError("the signature")
        end_s = begun_s + life_s
        return Login(key_id, query["User-Agent"], end_s - time.time(), end_s, frozenset(query), token), end_s

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session = _Session()
        with suppress(OSError), client, socket.create_connection((LOOPBACK, self._broker_port)) as broker:
            while not session.is_over:
                request = _receive(client)
                api, _version, number = struct.unpack_from(">hhi", request)
                if api in (_HANDSHAKE, _AUTHENTICATE):
                    answer = self._log_in(session, api, request)
                elif api != _VERSIONS and time.time() > session.end_s:
                    self.expirations += session.end_s > 0
                    return
                else:
                    _send(broker, request)
                    _send(client, _without_newer_logins(_receive(broker), api))
                    continue
                _send(client, struct.pack(">i", number) + answer)

    def _log_in(self, session: "_Session", api: int, request: bytes) -> bytes:
        """Answer a message of a login."""
        (size,) = struct.unpack_from(">h", request, 8)
        body = request[10 + max(size, 0) :]
        if api == _HANDSHAKE:
            code = 0 if body[2:] == MECHANISM else _UNSUPPORTED_MECHANISM
            return struct.pack(">hi", code, 1) + _text(MECHANISM)
        message = body[4:]
        if message == b"\x01":
            session.is_over = True
            return struct.pack(">h", _ACCESS_DENIED) + _text(b"Access denied") + struct.pack(">iq", 0, 0)
        try:
            fields = dict(part.split("=", 1) for part in message.decode().split("\x01") if "=" in part)
            login, end_s = self.check(fields["auth"].removeprefix("Bearer "))
        except (ValueError, KeyError, binascii.Error) as error:
            self.refusals.append(str(error))
            # A refusal is an answer without an error code (RFC 7628, 3.2.2).
            status = json.dumps({"status": "invalid_token"}).encode()
            return struct.pack(">hhi", 0, -1, len(status)) + status + struct.pack(">q", 0)
        self.logins.append(login)
        session.end_s = min(end_s, time.time() + self.session_s)
        return struct.pack(">hhiq", 0, -1, 0, int(1000 * (session.end_s - time.time())))


@dataclass
class _Session:
    """A connection's login: until when it lasts; nothing is passed on before the first."""

    end_s: float = field(default=0.0)
    is_over: bool = False


def _signature(url: SplitResult, query: dict[str, str], secret: str, scope: list[str]) -> str:
    """Sign a query as AWS's documents have it. The agent is added behind the signature."""
    names = sorted(query.keys() - {"X-Amz-Signature", "User-Agent"})
    canonical_query = "&".join(f"{quote(name, safe='-_.~')}={quote(query[name], safe='-_.~')}" for name in names)
    empty_body = hashlib.sha256(b"").hexdigest()
    canonical = "\n".join(["GET", "/", canonical_query, f"host:{url.hostname}\n", "host", empty_body])
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], "/".join(scope), digest])
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _without_newer_logins(answer: bytes, api: int) -> bytes:
    """Let clients log in by version 1 of SaslAuthenticate, whose fields are read here."""
    if api != _VERSIONS:
        return answer
    return answer.replace(struct.pack(">hhh", _AUTHENTICATE, 0, 2), struct.pack(">hhh", _AUTHENTICATE, 0, 1), 1)


def _receive(peer: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read(peer, 4))
    return _read(peer, size)


def _read(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = peer.recv(size - len(content))
        if not part:
            raise ConnectionResetError
        content += part
    return content


def _send(peer: socket.socket, content: bytes) -> None:
    peer.sendall(struct.pack(">i", len(content)) + content)


def _text(content: bytes) -> bytes:
    return struct.pack(">h", len(content)) + content


@dataclass(frozen=True)
class MskCluster:
    """A broker with two doors: one open, for the test, and the one behind the proxy."""

    bootstrap: str
    iam: str
    proxy: MskProxy


@contextmanager
def msk_cluster(folder: Path, *, session_s: float = _LIFE_S_MAX) -> Iterator[MskCluster]:
    """Run a real broker, and MSK's login before it."""
    port, hidden = free_ports(2)
    server = Broker(folder)
    server._settings |= {
        "listeners": f"{server._settings['listeners']},HIDDEN://{LOOPBACK}:{hidden}",
        "advertised.listeners": f"PLAINTEXT://{server.bootstrap},HIDDEN://{LOOPBACK}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,HIDDEN:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with server, MskProxy(port, hidden, session_s=session_s) as proxy:
        yield MskCluster(server.bootstrap, f"{LOOPBACK}:{port}", proxy)
