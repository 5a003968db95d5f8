"""Asks a schema registry over HTTP: again where it asks for patience, and many things side by side."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from writer.clients.http import Answer, HttpSession, RequestFailed, login as login_header
from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.errors import HeadraceError, file_error
from writer.schemas.registry_answers import without_user

NOT_FOUND = 404
_TOO_MANY = 429
_UNAVAILABLE = 503
PATIENCE_S = 30  # how long a registry may refuse every request before the caller is told
PROGRESS_S = 5  # between two log lines of requests that take long
_SIDE_BY_SIDE = 8  # requests at once: a registry is a shared service
_ANSWER_WITHIN_S = 10
_BACKOFF = Backoff(1, 8, jitter=0.5)  # where a registry refuses without saying for how long
_FAILED_STATUS = 500  # and above: another server of the registry may know better
_ITEM = TypeVar("_ITEM")
_RESULT = TypeVar("_RESULT")


class SchemaNotFound(HeadraceError):
    """The registry answers, and does not know this schema id."""


class ReferenceNotFound(SchemaNotFound):
    """The registry knows the schema id, and not a version that the schema refers to."""


class RegistryUnreachable(HeadraceError):
    """The registry does not answer, or sends no complete schema: the batch must wait."""

    def __init__(self, message: str, retry_after_s: float = 0) -> None:
        """`retry_after_s`: how long the registry asks to be left alone."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RegistryBusy(RequestFailed):
    """The registry refuses every request for longer than PATIENCE_S."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(f"it answers {status}, too many requests, and asks to wait {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Login:
    """The login for a registry, and the authority of its certificate."""

    user: str | None = None
    password: str = field(default="", repr=False)
    ca: Path | None = None

    @property
    def confluent_settings(self) -> dict[str, str]:
        """Settings of Confluent's client."""
        login = {} if self.user is None else {"basic.auth.user.info": f"{self.user}:{self.password}"}
        return login if self.ca is None else {**login, "ssl.ca.location": str(self.ca)}

    def trust_context(self) -> ssl.SSLContext:
        """Return what a certificate is checked by. Raises ConfigError for an authority that cannot be read."""
        try:
            return ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except OSError as error:  # ssl.SSLError is one
            text = f"registry.ca_file {self.ca} cannot be read ({error}). Give a PEM file of certificates."
            raise file_error(text, error) from error


@dataclass(frozen=True)
class _Server:
    """One server of a registry: its address without a login, and the header with the login."""

    address: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, url: str, login: Login) -> "_Server":
        """Take the login of the address itself, where it names a user."""
        parts = urlsplit(url.strip().rstrip("/"))
        user, password = login.user, login.password
        if parts.username is not None:
            user = unquote(parts.username)
            password = unquote(parts.password or "")
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return cls(address, login_header(user, SecretStr(password), None))


class RegistryClient:
    """Asks the servers of one registry. Threads may share it.

    A refusal (429, or 503 with Retry-After) pauses all requests for as long as the registry asks.
    """

    def __init__(self, url: str, login: Login) -> None:
        """`url`: of one server, or of several, separated by commas. Raises ConfigError for an unreadable authority."""
        self._servers = [_Server.parse(address, login) for address in url.split(",") if address.strip()]
        self._session = HttpSession(timeout_s=_ANSWER_WITHIN_S, trust=login.trust_context(), redirects=True)
        self._lock = threading.Lock()
        self._resume_s = 0.0  # no request before this moment, monotonic
        self._answered_s = 0.0  # when the newest request was answered that was not refused, monotonic

    @property
    def url(self) -> str:
        """The first server's address, without a login."""
        return self._servers[0].address

    def ask(self, path: str) -> Answer:
        """Return the answer to a GET request: one that succeeds, or 404.

        Raises RequestFailed for any other, and RegistryBusy.
        """
        began_s = time.monotonic()
        attempt = 0
        while True:
            time.sleep(max(0.0, self._resume_s - time.monotonic()))
            answer = self._ask_servers(path)
            now_s = time.monotonic()
            if not _is_refusal(answer):
                self._answered_s = now_s
                return _checked_answer(answer)
            pause_s = _BACKOFF.random_delay_s(attempt) if answer.after is None else answer.after.total_seconds()
            waited_s = now_s - max(began_s, self._answered_s)
            if waited_s + pause_s > PATIENCE_S:
                raise RegistryBusy(answer.status, pause_s)
            with self._lock:
                self._resume_s = max(self._resume_s, now_s + pause_s)
            attempt += 1

    def _ask_servers(self, path: str) -> Answer:
        """Ask one server after the other, each twice at most: a connection may have been closed meanwhile."""
        failure: RequestFailed | None = None
        answer: Answer | None = None
        for server in self._servers:
            for _ in range(2):
                try:
                    answer = self._session.ask(f"{server.address}/{path}", headers=server.headers)
                except RequestFailed as error:
                    failure = error
                    continue
                if answer.status < _FAILED_STATUS:
                    return answer
                break
        if answer is None:
            assert failure is not None, "a registry has a server"
            raise failure
        return answer

    def ask_each(
        self, items: Sequence[_ITEM], ask: Callable[[_ITEM], _RESULT], subject: str
    ) -> Iterator[tuple[_ITEM, _RESULT]]:
        """Yield the answer about each item, in order, some requests side by side. Raises what `ask` raises.

        Logs how far it is every PROGRESS_S. `subject`: whose versions are asked for.
        """
        if len(items) <= 1:
            yield from ((item, ask(item)) for item in items)
            return
        shown_s = time.monotonic()
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="registry") as pool:
            futures = [pool.submit(ask, item) for item in items]
            try:
                for number, (item, future) in enumerate(zip(items, futures, strict=True), 1):
                    yield item, future.result()
                    if time.monotonic() - shown_s >= PROGRESS_S:
                        shown_s = time.monotonic()
                        logging.event("schemas_requested", subject=subject, versions=number, of=len(items))
            finally:
                pool.shutdown(cancel_futures=True)


def read_versions(
    client: RegistryClient, versions: Sequence[_ITEM], read: Callable[[_ITEM], tuple[int, str] | None], subject: str
) -> dict[int, str]:
    """Return the texts of a subject's versions by schema id, in order. Raises RegistryUnreachable.

    One that cannot be put together is left out, with a log line. `read`: None for one that was removed.
    """

    def read_or_refuse(version: _ITEM) -> tuple[int, str] | SchemaNotFound | None:
        try:
            return read(version)
        except SchemaNotFound as error:
            return error

    texts: dict[int, str] = {}
    for _, result in client.ask_each(versions, read_or_refuse, subject):
        if isinstance(result, SchemaNotFound):
            logging.warning("schema_incomplete", subject=subject, reason=str(result))
        elif result is not None:
            schema_id, text = result
            texts[schema_id] = text
    return texts


def _checked_answer(answer: Answer) -> Answer:
    if not answer.ok and answer.status != NOT_FOUND:
        raise RequestFailed(f"it answered {answer.summary()}")
    return answer


def _is_refusal(answer: Answer) -> bool:
    """Return whether a server asks to be asked later."""
    return answer.status == _TOO_MANY or (answer.status == _UNAVAILABLE and answer.after is not None)


def unreachable_error(url: str, error: Exception, settings: str) -> RegistryUnreachable:
    """Return what to raise where a registry gives no answer. `settings`: of the configuration, to check."""
    retry_after_s = error.retry_after_s if isinstance(error, RegistryBusy) else 0
    if isinstance(error, RegistryBusy):
        return RegistryUnreachable(
            without_user(f"the schema registry at {url} refuses requests: {error}. Raise its rate limit, or wait."),
            retry_after_s,
        )
    return RegistryUnreachable(
        without_user(f"the schema registry at {url} does not answer ({error}). Check {settings} and that it is up.")
    )
