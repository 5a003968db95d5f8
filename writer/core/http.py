"""The HTTP client: limits each request in time and size; errors are one sentence without secrets.

A redirect is an answer like any other, unless `redirects` allows it: following it may send secrets to another server.
"""

import base64
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from pydantic import SecretStr

from headrace.writer.core.text import one_line

_BYTES_MAX = 16 * 2**20
# A message shows so many characters of an answer.
_TEXT_MAX = 300
_MOVED = (307, 308)
_MOVES_MAX = 3
_AFTER_MAX_S = 3600
_NO_PROXY = (
    "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY of the environment names no proxy that can be used. Write it as "
    "http://proxy:3128, and signs of a password by their codes, such as %2F for /"
)
# Of a request: the server that was asked first, and the names of the headers that the caller gave for it.
_OWN_HEADERS = "headrace.headers"
# They log URLs and headers, which have secrets in them.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class RequestFailed(Exception):
    """No whole answer came: not at all, not in time, or too much of it. Its message says where and why."""


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    # Names are in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004

    @property
    def after(self) -> timedelta | None:
        """How long the server asks to be left alone."""
        value = self.headers.get("retry-after", "")
        if not value.isdecimal():
            return None
        return timedelta(seconds=min(int(value), _AFTER_MAX_S))

    def json(self) -> Any:
        """Return the body as JSON. Raises RequestFailed."""
        try:
            return json.loads(self.body)
        # What is nested deeply is a RecursionError.
        except (ValueError, RecursionError) as error:
            raise RequestFailed(f"the answer is not JSON: {self.summary()}") from error

    def summary(self) -> str:
        """Return the status and the beginning of the body, on one line."""
        text = one_line(self.body.decode(errors="replace"), _TEXT_MAX)
        return f"{self.status}: {text}" if text else str(self.status)


class HttpSession:
    """Asks servers over connections that stay open between requests. Threads may share one."""

    def __init__(
        self, *, timeout_s: float, trust: ssl.SSLContext | None = None, proxies: bool = True, redirects: bool = False
    ) -> None:
        """`trust`: what a certificate is checked by; None: as this machine does.

        `proxies`: those of the environment are used. `redirects` are followed, the headers of the caller only to the
        same server. Raises RequestFailed for a proxy that cannot be used.
        """
        # The import is late, so that commands which ask nothing start without it.
        import httpx2

        self._timeout_s = timeout_s
        self._limit = _ReadLimit()
        try:
            self._client = httpx2.Client(
                verify=trust or ssl.create_default_context(),
                trust_env=proxies,
                timeout=timeout_s,
                follow_redirects=redirects,
                event_hooks={"request": [_drop_headers]},
            )
        except (ImportError, OSError, ValueError, httpx2.InvalidURL):
            # Their messages have a part of the address, in which there may be a password: it is raised without a cause.
            failure = RequestFailed(_NO_PROXY)
        else:
            return
        raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(
        self, url: str, *, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask once. Raises RequestFailed when no answer comes, or not in time, or with too much."""
        import httpx2

        sent = {"User-Agent": "headrace", "Accept-Encoding": "identity"}
        sent |= {name.title(): value for name, value in (headers or {}).items()}
        encoded = {name.encode(): value.encode("latin-1") for name, value in sent.items()}
        deadline = time.monotonic() + self._timeout_s
        self._limit.deadline_s = deadline
        extensions = {"trace": self._limit.trace, _OWN_HEADERS: (host(url), tuple(headers or ()))}
        try:
            with self._client.stream(method, url, content=body, headers=encoded, extensions=extensions) as response:
                return Answer(response.status_code, _body(response.iter_bytes(), deadline), dict(response.headers))
        except (httpx2.TimeoutException, TimeoutError) as error:
            raise RequestFailed(f"no answer from {host(url)} within {self._timeout_s:g} s") from error
        # The messages of these errors show a header, or the path.
        except (httpx2.LocalProtocolError, httpx2.InvalidURL):
            raise RequestFailed(
                f"cannot ask {host(url)}: HTTP forbids a header or the address of the request"
            ) from None
        except httpx2.RemoteProtocolError as error:
            why = f"its answer broke off, or is no HTTP ({_one_line(error)})"
            raise RequestFailed(f"cannot reach {host(url)}: {why}") from error
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise RequestFailed(f"cannot reach {host(url)}: {_one_line(error)}") from error


def ask(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    trust: ssl.SSLContext | None = None,
    proxies: bool = True,
    redirects: bool = False,
) -> Answer:
    """Ask once, over a connection of its own. Raises RequestFailed; the arguments are those of HttpSession."""
    if trust is None:
        trust = ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with HttpSession(timeout_s=timeout_s, trust=trust, proxies=proxies, redirects=redirects) as session:
        return session.ask(url, method=method, body=body, headers=headers)


def ask_leader(url: str, **how: Any) -> Answer:
    """Ask, and follow to where the server says that its leader is."""
    for _ in range(_MOVES_MAX):
        answer = ask(url, **how)
        if answer.status not in _MOVED or "location" not in answer.headers:
            return answer
        url = urljoin(url, answer.headers["location"])
    raise RequestFailed(f"{host(url)} sends from one server to the next; is a leader elected?")


def login(user: str | None, password: SecretStr | None, token: SecretStr | None) -> dict[str, str]:
    """Return the header with the login; none where there is none."""
    if token is not None:
        return {"Authorization": f"Bearer {token.get_secret_value()}"}
    if user is not None and password is not None:
        pair = f"{user}:{password.get_secret_value()}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def is_url(url: str, *, may_have_user: bool = False) -> bool:
    """Return whether a text is the URL of a server that can be asked."""
    if not re.match(r"https?://[^/?#\s]", url) or re.search(r"\s", url):
        return False
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        # The port, or the brackets of an IPv6 address.
        return False
    return has_host and (may_have_user or "@" not in parts.netloc)


def is_near(url: str) -> bool:
    """Return whether a server is on this machine, so that what is sent to it passes no network."""
    name = urlsplit(url).hostname or ""
    return name in ("localhost", "::1") or name.startswith("127.")


def host(url: str) -> str:
    """Name the server of a URL; what comes after may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class _ReadLimit(threading.local):
    """Until when the request of this thread may read: a server that sends a byte now and then holds nobody up."""

    deadline_s = 0.0

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take each connection as soon as it is open. `event`, `info`: as the HTTP client tells them."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            # It reads until a whole header is there, each time with the whole time limit.
            stream.read = self._limit_read(stream.read)

    def _limit_read(self, read: Callable[..., bytes]) -> Callable[..., bytes]:
        def read_in_time(max_bytes: int, timeout: float | None = None) -> bytes:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            return read(max_bytes, left_s if timeout is None else min(timeout, left_s))

        return read_in_time


def _drop_headers(request: Any) -> None:
    """Send the caller's headers to no other server than the one that was asked. The client itself knows of a login."""
    first_server, names = request.extensions[_OWN_HEADERS]
    if urlsplit(str(request.url)).hostname != urlsplit(first_server).hostname:
        for name in names:
            request.headers.pop(name, None)


def _body(pieces: Iterable[bytes], deadline: float) -> bytes:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > _BYTES_MAX:
            raise ValueError(f"an answer of more than {_BYTES_MAX // 2**20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(body)


def _one_line(error: BaseException) -> str:
    """Return the innermost cause: what the system calls it, without a number."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return one_line(getattr(error, "strerror", None) or str(error)) or type(error).__name__
