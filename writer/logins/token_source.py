"""Tokens of this process: each is kept for most of its life, and asked for anew before it ends."""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.logins.errors import LoginFailed, LoginUnavailable

# Of a token's life, after which another one is asked for: the fifth that is left is for a server that does not answer.
_RENEWAL_SHARE = 0.8
# A token that ends so soon is not shown any more: it is on its way for a moment.
_LEFT_MIN_S = 1.0
# Between two questions, where the server fails or a broker refuses its tokens, whatever number of threads asks.
_PAUSE = Backoff(1, 30, jitter=0.5)
# As a server asks for it. Without a token the pipelines stand still.
_SERVER_PAUSE_MAX_S = 120.0


@dataclass(frozen=True)
class Token:
    """A bearer token, and between which times of this machine's clock it is good (seconds since the epoch).

    `skew_s`: by how much this machine's clock is ahead of the server's that gave it, None where that is not known.
    `kept_s`: so long it is kept at most before another one is asked for, in seconds; 0: it is asked for each time.
    """

    text: str = field(repr=False)
    asked_s: float
    end_s: float
    skew_s: float | None = None
    kept_s: float = math.inf

    def renewal_s(self, share: float) -> float:
        """When another one should be asked for: after a share of its life."""
        return self.asked_s + min(share * (self.end_s - self.asked_s), self.kept_s)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled. Raises TypeError."""
        raise TypeError("a token stays in its process: each process asks for its own")


class TokenRequest(Protocol):
    """How a token is come by. It can be pickled, compared and hashed: equal requests share tokens for one server."""

    def __hash__(self) -> int: ...

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses its tokens: a sentence without its full stop."""

    def ask(self) -> Token:
        """Ask once. Raises LoginRefused, LoginUnavailable."""


class TokenSource:
    """The tokens of one request. Threads share it."""

    def __init__(
        self,
        request: TokenRequest,
        now: Callable[[], float] = time.time,
        renewal_share: float = _RENEWAL_SHARE,
        pause: Backoff = _PAUSE,
    ) -> None:
        """`now`: seconds since the epoch. `renewal_share`: of a token's life, after which another one is asked for.

        `pause`: between two questions while the server fails, or a broker refuses its tokens.
        """
        self._request = request
        self._pause = pause
        self._renewal_share = renewal_share
        self._now = now
        # Held by the thread that asks for a token.
        self._asking = threading.Lock()
        self._token: Token | None = None
        self._was_accepted = False
        self._failures = 0
        self._failure: LoginFailed | None = None
        # The failure that was logged last: in a pause it is met again and again.
        self._logged_failure: LoginFailed | None = None
        self._pause_begin_s = 0.0
        self._pause_end_s = 0.0

    @property
    def was_accepted(self) -> bool:
        """Whether a broker has accepted one of its tokens."""
        return self._was_accepted

    def token(self) -> Token:
        """Return a token that is good now; an old one while another is asked for, or the server fails, and it lasts.

        Raises LoginRefused, LoginUnavailable.
        """
        now_s = self._now()
        token = self._token
        if token is not None and now_s < token.renewal_s(self._renewal_share):
            return token
        is_good = token is not None and now_s < token.end_s - _LEFT_MIN_S
        if not self._asking.acquire(blocking=not is_good):
            # Another thread asks. The server may be slow, and this one has what it needs.
            assert token is not None
            return token
        try:
            return self._renew()
        finally:
            self._asking.release()

    def accept(self, token: Token) -> None:
        """Note that a broker has accepted a token."""
        if self._is_kept(token):
            self._was_accepted = True
            self._failures = 0

    def refuse(self, token: Token, error: LoginFailed) -> None:
        """Let a token go that a broker refuses, so that the next one is another.

        For a moment, `error` is raised instead of asking for it.
        """
        with self._asking:
            if self._is_kept(token):
                self._token = None
                self._begin_pause(error)

    def _is_kept(self, token: Token) -> bool:
        """Return whether a token is the one that is kept, though it may have been read again meanwhile."""
        current = self._token
        return current is not None and current.text == token.text

    def _renew(self) -> Token:
        """Return the token that is kept, or another one where it is time. Raises LoginRefused, LoginUnavailable."""
        # The wait for another thread may have been long.
        now_s = self._now()
        token = self._token
        if token is not None and now_s < token.renewal_s(self._renewal_share):
            return token
        try:
            self._token = self._ask(now_s)
        except LoginFailed as error:
            if token is None or now_s > token.end_s - _LEFT_MIN_S:
                raise
            if error is not self._logged_failure:
                self._logged_failure = error
                logging.warning("token_not_renewed", error=str(error), left_s=round(token.end_s - now_s))
            return token
        return self._token

    def _ask(self, now_s: float) -> Token:
        """Ask the server, unless it failed a moment ago. Raises LoginRefused, LoginUnavailable."""
        # A clock that was set back meanwhile would make the pause longer.
        if self._failure is not None and self._pause_begin_s <= now_s < self._pause_end_s:
            # Many meet it: without the traces of those before.
            raise self._failure.with_traceback(None)
        try:
            token = self._request.ask()
            _check_end(token, self._now())
        except LoginFailed as error:
            self._begin_pause(error)
            raise
        self._failure = None
        return token

    def _begin_pause(self, error: LoginFailed) -> None:
        """Let the next question wait, for longer after each failure."""
        self._failure = error
        self._pause_begin_s = self._now()
        pause_s = self._pause.random_delay_s(self._failures)
        if isinstance(error, LoginUnavailable):
            pause_s = max(pause_s, min(error.retry_after_s, _SERVER_PAUSE_MAX_S))
        self._pause_end_s = self._pause_begin_s + pause_s
        self._failures += 1


def _check_end(token: Token, now_s: float) -> None:
    """Raise LoginUnavailable for a token that has ended, or ends within a moment."""
    left_s = token.end_s - now_s
    if left_s < 0:
        raise LoginUnavailable(
            f"the token ended {-left_s:.0f} s ago by this machine's clock. Renew it, and compare the clock."
        )
    if left_s < _LEFT_MIN_S:
        raise LoginUnavailable(
            f"the token lives for {left_s:.1f} s more, too short for a login. Let the server of tokens give a longer "
            "life."
        )


# Those of this process, by request and by who is shown the tokens: one may refuse what another one takes.
SOURCES: dict[tuple[TokenRequest, str], TokenSource] = {}
_sources_lock = threading.Lock()


def token_source(request: TokenRequest, shown_to: str) -> TokenSource:
    """Return this process's source for a request. `shown_to`: the server, or the cluster, that takes the tokens."""
    with _sources_lock:
        return SOURCES.setdefault((request, shown_to), TokenSource(request))


def _begin_anew() -> None:
    """Let a forked child have tokens and locks of its own: another thread of the parent may have had the locks."""
    global _sources_lock  # noqa: PLW0603 - a lock cannot be opened by another thread
    _sources_lock = threading.Lock()
    SOURCES.clear()


os.register_at_fork(after_in_child=_begin_anew)
