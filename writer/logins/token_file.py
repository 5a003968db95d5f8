"""A file with a token that is always good, for a client that cannot ask for one itself."""

import os
import time
from pathlib import Path
from typing import Self

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.logins.errors import LoginFailed
from headrace.writer.logins.token_source import Token, TokenRequest

# Of a token's life, after which the file gets another. Java's client of Kafka reads the file anew at four fifths.
_RENEWAL_SHARE = 0.5
_PAUSE = Backoff(1, 30, jitter=0.5)


class TokenFileWriter:
    """Writes the tokens of a request into a file that only the owner reads. A context manager."""

    def __init__(self, request: TokenRequest, path: Path) -> None:
        """`path`: in a folder that only the owner enters."""
        self._request = request
        self._path = path
        self._failures = 0
        self._renewal_s = 0.0
        self._thread = PeriodicThread("token-file", self._renew)

    def __enter__(self) -> Self:
        """Write the first token. Raises LoginRefused, LoginUnavailable."""
        self._write(self._request.ask())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close(0)
        self._path.unlink(missing_ok=True)

    def _renew(self) -> float:
        """Write another token where it is time. Returns the seconds until then."""
        if time.time() >= self._renewal_s:
            try:
                self._write(self._request.ask())
                self._failures = 0
            except (LoginFailed, OSError) as error:
                logging.warning("token_file_not_renewed", error=str(error))
                self._failures += 1
                return _PAUSE.random_delay_s(self._failures - 1)
        return max(0.1, self._renewal_s - time.time())

    def _write(self, token: Token) -> None:
        beside = self._path.with_suffix(".new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(token.text)
        beside.replace(self._path)
        self._renewal_s = token.asked_s + _RENEWAL_SHARE * (token.end_s - token.asked_s)
