"""Logins of HTTP servers: a password in the header (RFC 7617), or a bearer token (RFC 6750)."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import TokenRequest, token_source


class HttpLogin(Protocol):
    """What a request is sent with."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers of a request now. Raises LoginRefused, LoginUnavailable."""

    def renew(self) -> bool:
        """Take note of a refusal. Returns whether another try may have another login."""


@dataclass(frozen=True)
class BasicLogin:
    """A user and a password."""

    user: str
    password: Secret

    def headers(self) -> Mapping[str, str]:
        """Return the header with both. Raises LoginRefused."""
        pair = f"{self.user}:{self.password.read()}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    def renew(self) -> bool:
        """Return False: the password was read for the request."""
        return False


@dataclass(frozen=True)
class TokenLogin:
    """A token of this process's source for a request."""

    request: TokenRequest

    def headers(self) -> Mapping[str, str]:
        """Return the header with a token that is good now. Raises LoginRefused, LoginUnavailable."""
        return {"Authorization": f"Bearer {token_source(self.request).token().text}"}

    def renew(self) -> bool:
        """Let a token go that was refused. Returns whether it was an old one, so that another one may be taken."""
        return token_source(self.request).forget_refused()
