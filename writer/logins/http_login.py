"""Logins of HTTP servers: a password in the header (RFC 7617), or a bearer token (RFC 6750)."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.writer.core.http import Answer
from headrace.writer.logins.errors import LoginUnavailable
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import TokenRequest, token_source

_UNAUTHORIZED = 401
# Met by the requests that follow at once.
_REFUSED = "the server answered 401 to a token, and another one is asked for. Correct the login if that is refused, too"
# Sends a request with headers. Raises RequestFailed.
Send = Callable[[Mapping[str, str]], Answer]


class HttpLogin(Protocol):
    """What requests are sent with. It can be pickled."""

    def ask(self, server: str, send: Send, /) -> Answer:
        """Send a request with the login. `server`: its address, without a user.

        Raises LoginRefused, LoginUnavailable where there is none, RequestFailed.
        """


@dataclass(frozen=True)
class BasicLogin:
    """A user and a password."""

    user: str
    password: Secret

    def ask(self, _server: str, send: Send) -> Answer:
        """Send a request with both. Raises LoginRefused, RequestFailed."""
        pair = f"{self.user}:{self.password.read()}".encode()
        return send({"Authorization": f"Basic {base64.b64encode(pair).decode()}"})


@dataclass(frozen=True)
class TokenLogin:
    """A token of this process's source for a request."""

    request: TokenRequest

    def ask(self, server: str, send: Send) -> Answer:
        """Send a request with a token that is good now; one that is refused gives way to another for the next request.

        Raises LoginRefused, LoginUnavailable, RequestFailed.
        """
        source = token_source(self.request, server)
        token = source.token()
        answer = send({"Authorization": f"Bearer {token.text}"})
        if answer.status == _UNAUTHORIZED:
            source.refuse(token, LoginUnavailable(_REFUSED))
        else:
            source.accept(token)
        return answer
