"""Tokens of this process: each is kept for most of its life, and asked for anew before it ends."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.logins.errors import LoginFailed, LoginUnavailable

# Of a token's life, after which another one is asked for: the fifth that is left is for a server that does not answer.
_RENEWAL_SHARE = 0.8
# A token that ends so soon is not shown any more: it is on its way for a moment.
_LEFT_MIN_S = 1.0
# A token that is refused later than so long after it was asked for may have been revoked: another one may be taken.
NEW_S = 5
# Between two questions of a server of tokens that fails, whoever asks.
_PAUSE = Backoff(1, 30, jitter=0.5)


@dataclass(frozen=True)
class Token:
    """A bearer token, and between which times of this machine's clock it is good (seconds since the epoch)."""

    text: str = field(repr=False)
    asked_s: float
    end_s: float

    @property
    def renewal_s(self) -> float:
        """When another one should be asked for."""
        return self.asked_s + _RENEWAL_SHARE * (self.end_s - self.asked_s)


class TokenRequest(Protocol):
    """How a token is come by. It can be pickled, compared and hashed: equal requests share their tokens."""

    def __hash__(self) -> int: ...

    def ask(self) -> Token:
        """Ask once. Raises LoginRefused, LoginUnavailable."""


class TokenSource:
    """The tokens of one request. Threads share it."""

    def __init__(self, request: TokenRequest, now: Callable[[], float] = time.time) -> None:
        """`now`: seconds since the epoch."""
        self._request = request
        self._now = now
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._failures = 0
        self._pause_end_s = 0.0
        self._failure: LoginFailed | None = None

    def token(self) -> Token:
        """Return a token that is good now; an old one while the server fails and it lasts.

        Raises LoginRefused, LoginUnavailable.
        """
        with self._lock:
            now_s = self._now()
            if self._token is not None and now_s < self._token.renewal_s:
                return self._token
            try:
                self._token = self._ask(now_s)
            except LoginFailed as error:
                if self._token is None or now_s > self._token.end_s - _LEFT_MIN_S:
                    raise
                logging.warning("token_renewal_failed", error=str(error), left_s=round(self._token.end_s - now_s))
            return self._token

    def forget(self, token: Token) -> None:
        """Let a token go that was refused, so that the next one is another."""
        with self._lock:
            if self._token == token:
                self._token = None

    def forget_refused(self) -> bool:
        """Let go of the token that is kept, for it was refused. Returns whether it was kept for a while."""
        with self._lock:
            token = self._token
            self._token = None
        return token is not None and self._now() - token.asked_s > NEW_S

    def _ask(self, now_s: float) -> Token:
        """Ask the server, unless it failed a moment ago."""
        if self._failure is not None and now_s < self._pause_end_s:
            raise self._failure
        try:
            token = self._request.ask()
        except LoginFailed as error:
            self._failure = error
            self._pause_end_s = now_s + _PAUSE.random_delay_s(self._failures)
            self._failures += 1
            raise
        self._failure = None
        self._failures = 0
        if token.end_s < now_s + _LEFT_MIN_S:
            raise LoginUnavailable(
                f"the token has ended {now_s - token.end_s:.0f} s ago by this machine's clock. Renew it, and compare "
                "the clock."
            )
        return token


@cache
def token_source(request: TokenRequest) -> TokenSource:
    """Return this process's source for a request."""
    return TokenSource(request)
