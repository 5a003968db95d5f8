"""A file with a token that is always good, for a client that cannot ask for one itself."""

import os
import threading
import time
from pathlib import Path
from typing import Self

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.logins.errors import LoginFailed, LoginRefused
from headrace.writer.logins.jwt_claims import read_claims
from headrace.writer.logins.token_source import Token, TokenRequest

# Of a token's life, after which the file gets another. Java's client of Kafka reads the file anew at four fifths.
_RENEWAL_SHARE = 0.5
# Of what is left of it: a request that still gives the old token is asked no sooner again.
_LEFT_SHARE = 0.1
_PAUSE = Backoff(1, 30, jitter=0.5)
_INTERVAL_MIN_S = 0.1
# Claims without which Java's client of Kafka takes no token.
_JAVA_CLAIMS = ("exp", "sub")


class TokenFileRenewal:
    """Writes the tokens of a request into a file that only the owner reads. A context manager, to be entered once."""

    def __init__(self, request: TokenRequest, path: Path) -> None:
        """`path`: in a folder that only the owner enters."""
        self._request = request
        self._path = path
        self._new_path = path.with_suffix(".new")
        self._failures = 0
        self._renewal_s = 0.0
        # So that nothing is written once the file is gone.
        self._writing = threading.Lock()
        self._is_closed = False
        self._thread = PeriodicThread("token-file", self._renew)

    def __enter__(self) -> Self:
        """Write the first token. Raises LoginRefused, LoginUnavailable, OSError."""
        token = self._request.ask()
        _check_java_claims(token)
        self._write(token)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A round may wait for the server, and nothing waits for the round.
        self._thread.close(0)
        with self._writing:
            self._is_closed = True
            self._path.unlink(missing_ok=True)
            self._new_path.unlink(missing_ok=True)

    def _renew(self) -> float:
        """Write another token where it is time. Returns the seconds until then."""
        if time.time() >= self._renewal_s:
            try:
                self._write(self._request.ask())
            except (LoginFailed, OSError) as error:
                logging.warning("token_file_not_renewed", error=str(error))
                self._failures += 1
                return _PAUSE.random_delay_s(self._failures - 1)
            self._failures = 0
        return max(_INTERVAL_MIN_S, self._renewal_s - time.time())

    def _write(self, token: Token) -> None:
        with self._writing:
            if self._is_closed:
                return
            descriptor = os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(token.text)
            self._new_path.replace(self._path)
        now_s = time.time()
        renewal_s = token.asked_s + _RENEWAL_SHARE * (token.end_s - token.asked_s)
        self._renewal_s = max(renewal_s, now_s + _LEFT_SHARE * (token.end_s - now_s))


def _check_java_claims(token: Token) -> None:
    """Raise LoginRefused for a token that Java's client of Kafka does not take."""
    claims = read_claims(token.text)
    if missing := [name for name in _JAVA_CLAIMS if not claims.get(name)]:
        raise LoginRefused(
            "Spark's own client of Kafka takes only tokens that are JWTs with the claims exp and sub, and this one has "
            f"no {missing[0]}. Let the server of tokens give such tokens for kafka.security.login."
        )
