"""One question over HTTP, as hooks ask it: bounded in time and size, and told in one sentence when it fails."""

import base64
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pydantic import SecretStr

_BYTES_MAX = 16 * 2**20
_PIECE = 64 * 2**10
_SHOWN = 300  # characters of an answer in a message
_MOVED = (307, 308)
_MOVES_MAX = 3
_AFTER_MAX_S = 3600


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def ok(self) -> bool:
        """The server did what it was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004

    @property
    def after(self) -> timedelta | None:
        """How long the server asks to be left alone."""
        said = self.headers.get("retry-after", "")
        return timedelta(seconds=min(int(said), _AFTER_MAX_S)) if said.isdigit() else None

    def json(self) -> Any:
        """Return the body as JSON. Raises HookFailed."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise HookFailed(f"the answer is not JSON: {self.shown()}") from error

    def shown(self) -> str:
        """The status and the beginning of the body, on one line."""
        text = " ".join(self.body.decode(errors="replace").split())
        return f"{self.status}" + (f": {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}" if text else "")


class _Stay(HTTPRedirectHandler):
    """A redirect is an answer like any other: who follows it blindly sends a GET, and secrets to strangers."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = build_opener(_Stay)


def straight(trust: ssl.SSLContext | None) -> OpenerDirector:
    """Return a client that asks without a proxy, and trusts so; None: as this machine does."""
    return build_opener(_Stay, ProxyHandler({}), *([] if trust is None else [HTTPSHandler(context=trust)]))


def ask(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    opener: OpenerDirector = _OPENER,
) -> Answer:
    """Ask once. Raises HookFailed when nobody answers, or not in time, or with too much."""
    request = Request(url, data=body, method=method, headers={"User-Agent": "headrace", **(headers or {})})  # noqa: S310 - the configured URL
    deadline = time.monotonic() + timeout_s
    try:
        try:
            response = opener.open(request, timeout=timeout_s)
        except HTTPError as error:
            response = error
        with response:
            return Answer(response.status, _body(response, deadline), _lower(response.headers))
    except TimeoutError as error:
        raise HookFailed(f"no answer from {host(url)} within {timeout_s:g} s") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise HookFailed(f"no answer from {host(url)} within {timeout_s:g} s") from error
        raise HookFailed(f"cannot reach {host(url)}: {_one_line(reason)}") from error


def ask_leader(url: str, **how: Any) -> Answer:
    """Ask, and follow to where the server says that its leader is."""
    for _ in range(_MOVES_MAX):
        answer = ask(url, **how)
        if answer.status not in _MOVED or "location" not in answer.headers:
            return answer
        url = urljoin(url, answer.headers["location"])
    raise HookFailed(f"{host(url)} sends from one server to the next; is a leader elected?")


def login(user: str | None, password: SecretStr | None, token: SecretStr | None) -> dict[str, str]:
    """Return the header that says who asks; none where nobody is to be named."""
    if token is not None:
        return {"Authorization": f"Bearer {token.get_secret_value()}"}
    if user is not None and password is not None:
        pair = f"{user}:{password.get_secret_value()}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {}


def host(url: str) -> str:
    """Name the server of a URL; what comes after may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _body(response: Any, deadline: float) -> bytes:
    pieces, size = [], 0
    while piece := response.read1(_PIECE):
        size += len(piece)
        if size > _BYTES_MAX:
            raise ValueError(f"an answer of more than {_BYTES_MAX // 2**20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
        pieces.append(piece)
    if response.length:  # of its Content-Length
        raise ValueError("its answer broke off")
    return b"".join(pieces)


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _one_line(error: object) -> str:
    said = getattr(error, "strerror", None) or str(error)
    return " ".join(said.split()) or type(error).__name__


NO_STATE: Mapping[str, Any] = {}


class HookFailed(Exception):
    """A delivery did not work; it is tried again. Its message says what, where, and what was answered."""

    def __init__(self, why: str, *, after: timedelta | None = None, state: Mapping[str, Any] = NO_STATE) -> None:
        """`after`: how long the other side asks to be left alone; `state`: what the next try is told."""
        super().__init__(why)
        self.after, self.state = after, state
