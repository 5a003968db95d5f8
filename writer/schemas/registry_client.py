"""Asks a schema registry over HTTP: again where it asks for patience, and many things side by side.

It checks the answers, and hides logins in what is said of them.
"""

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import ConfigError, HeadraceError, file_error
from headrace.writer.core.http import Answer, HttpSession, RequestFailed
from headrace.writer.logins.errors import LoginFailed
from headrace.writer.logins.hidden_secrets import hide_secrets
from headrace.writer.logins.http_login import BasicLogin, HttpLogin
from headrace.writer.logins.secret import Secret

_UNAUTHORIZED = 401
_FORBIDDEN = 403
NOT_FOUND = 404
_PROXY_LOGIN = 407
_TOO_MANY = 429
_UNAVAILABLE = 503
# How long a registry may refuse every request before the caller is told.
PATIENCE_S = 30
# Between two log lines of requests that take long.
PROGRESS_S = 5
_LOGIN_STATUS = (_UNAUTHORIZED, _FORBIDDEN, _PROXY_LOGIN)
# A registry is a shared service.
REQUESTS_AT_ONCE = 8
# Characters of an answer that is none, in a message.
SHOWN = 80
_ANSWER_WITHIN_S = 10
# Where a registry refuses without saying for how long.
_BACKOFF = Backoff(1, 8, jitter=0.5)
# From this status on another server of the registry may know better.
_FAILED_STATUS = 500
# The last @ ends the login: another may stand in a password, as may a slash.
_USER = re.compile(r"(?<=://)\S*@")
# What reading an answer raises that is not what it should be: another type, a part that is missing, a number that is
# none.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_ITEM = TypeVar("_ITEM")
_RESULT = TypeVar("_RESULT")


class SchemaNotFound(HeadraceError):
    """The registry answers, and does not know this schema id."""


class ReferenceNotFound(SchemaNotFound):
    """The registry knows the schema id, and not a version that the schema refers to."""


class UnreadableSchema(SchemaNotFound):
    """The registry knows the schema id, and the schema is one by which the pipeline cannot read values."""


class UnavailableSchema(SchemaNotFound):
    """The registry knows the schema id, and says that the schema is not to be used, or not yet."""


class RegistryUnreachable(HeadraceError):
    """The registry does not answer, refuses the login, or sends no complete schema: the batch must wait."""

    def __init__(self, message: str, retry_after_s: float = 0) -> None:
        """`retry_after_s`: how long the registry asks to be left alone."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RegistryBusy(RequestFailed):
    """The registry refuses every request for longer than PATIENCE_S."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(f"it answers {status}, too many requests, and asks to wait {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class LoginRefused(RequestFailed):
    """The registry, or a proxy before it, answers, and refuses the login. Its message names the setting, and no secret.

    The body of such an answer is not shown: it may repeat what was sent.
    """

    def __init__(self, status: int, *, has_login: bool, is_in_url: bool) -> None:
        """`has_login`: one was sent; `is_in_url`: the one that registry.url names."""
        settings = "the login in registry.url" if is_in_url else "registry.login"
        if status == _PROXY_LOGIN:
            text = "407, the proxy before it wants a login. Give one in HTTPS_PROXY or HTTP_PROXY of the environment"
        elif not has_login:
            text = f"{status}, and none was sent. Set registry.login"
        elif status == _UNAUTHORIZED:
            text = f"401. Correct {settings}"
        else:
            text = f"403, the user may not read there. Grant it the right to read subjects, or correct {settings}"
        super().__init__(text)


class NoLogin(RequestFailed):
    """Nothing was sent, for there is no password or token now. Its message names the setting, and no secret."""


@dataclass(frozen=True)
class Login:
    """How a registry is asked: with which login, headers and certificates.

    `certificate`: a file with a key, without a password, and its certificates. `headers`: further ones.
    """

    http: HttpLogin | None = None
    ca: Path | None = None
    certificate: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def trust_context(self) -> ssl.SSLContext:
        """Return what a certificate is checked by, and what is shown. Raises ConfigError for files without either."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except OSError as error:
            # ssl.SSLError is an OSError, too.
            text = f"registry.ca_file {self.ca} cannot be read ({error}). Give a PEM file of certificates."
            raise file_error(text, error) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, password=_no_password)
            except (OSError, ValueError) as error:
                raise file_error(
                    f"registry.client_cert_file {self.certificate} cannot be used ({error}). Give a PEM file with a "
                    "key, without a password, and its certificates.",
                    error,
                ) from error
        return context


def _no_password() -> str:
    raise ValueError("the key wants a password")


@dataclass(frozen=True)
class _Server:
    """One server of a registry: its address without a login, and the login of the address, or else of the registry."""

    address: str
    login: HttpLogin | None
    # Whether the login is that of the address itself.
    is_login_in_url: bool

    @classmethod
    def parse(cls, url: str, login: Login) -> "_Server":
        """Take the login of the address itself, where it names a user."""
        parts = urlsplit(url.strip().rstrip("/"))
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        if parts.username is None:
            return cls(address, login.http, is_login_in_url=False)
        password = Secret("registry.url", unquote(parts.password or ""))
        return cls(address, BasicLogin(unquote(parts.username), password), is_login_in_url=True)


class RegistryClient:
    """Asks the servers of one registry. Threads may share it.

    A refusal (429, or 503 with Retry-After) pauses all requests for as long as the registry asks.
    """

    def __init__(self, url: str, login: Login) -> None:
        """`url`: of one server, or of several, separated by commas.

        Raises ConfigError for an unreadable authority, and for a proxy that cannot be used.
        """
        self._servers = [_Server.parse(address, login) for address in url.split(",") if address.strip()]
        self._headers = login.headers
        try:
            self._session = HttpSession(timeout_s=_ANSWER_WITHIN_S, trust=login.trust_context(), redirects=True)
        except RequestFailed as error:
            raise ConfigError(f"the registry at {self.url} cannot be asked: {error}.") from error
        self._lock = threading.Lock()
        # No request is sent before this moment, monotonic.
        self._resume_s = 0.0
        # When the newest request was answered that was not refused, monotonic.
        self._answered_s = 0.0

    @property
    def url(self) -> str:
        """The first server's address, without a login."""
        return self._servers[0].address

    def ask(self, path: str) -> Answer:
        """Return the answer to a GET request: one that succeeds, or 404.

        Raises LoginRefused, RegistryBusy, and RequestFailed for any other.
        """
        began_s = time.monotonic()
        attempt = 0
        while True:
            time.sleep(max(0.0, self._resume_s - time.monotonic()))
            server, answer = self._ask_servers(path)
            now_s = time.monotonic()
            if not _is_refusal(answer):
                self._answered_s = now_s
                return _check_answer(server, answer)
            pause_s = _BACKOFF.random_delay_s(attempt)
            if answer.after is not None:
                pause_s = answer.after.total_seconds()
            waited_s = now_s - max(began_s, self._answered_s)
            if waited_s + pause_s > PATIENCE_S:
                raise RegistryBusy(answer.status, pause_s)
            with self._lock:
                self._resume_s = max(self._resume_s, now_s + pause_s)
            attempt += 1

    def _ask_servers(self, path: str) -> tuple[_Server, Answer]:
        """Ask one server after the other, each twice at most: a connection may have been closed meanwhile.

        Returns the answer, and the server that gave it.
        """
        failure: RequestFailed | None = None
        last_answer: tuple[_Server, Answer] | None = None
        for server in self._servers:
            for _ in range(2):
                try:
                    answer = self._ask_server(server, path)
                except RequestFailed as error:
                    failure = error
                    continue
                last_answer = (server, answer)
                if answer.status < _FAILED_STATUS:
                    return last_answer
                break
        if last_answer is None:
            assert failure is not None, "a registry has a server"
            raise failure
        return last_answer

    def _ask_server(self, server: _Server, path: str) -> Answer:
        """Ask with the login of the server. Raises RequestFailed."""

        def send(login_headers: Mapping[str, str]) -> Answer:
            answer = self._session.ask(f"{server.address}/{path}", headers={**self._headers, **login_headers})
            return _hide_login(answer, login_headers.get("Authorization", ""))

        if server.login is None:
            return send({})
        try:
            return server.login.ask(server.address, send)
        except LoginFailed as error:
            raise NoLogin(f"registry.login: {error}") from error


def _hide_login(answer: Answer, authorization: str) -> Answer:
    """Return an answer that is shown, for it is no success, without the login that it may repeat."""
    if answer.ok or answer.status == NOT_FOUND or not authorization:
        return answer
    scheme, _, sent = authorization.partition(" ")
    secrets = [sent]
    if scheme == "Basic":
        secrets.append(base64.b64decode(sent).decode().partition(":")[2])
    return replace(answer, body=hide_secrets(answer.body.decode(errors="replace"), *secrets).encode())


def ask_each(items: Sequence[_ITEM], ask: Callable[[_ITEM], _RESULT], subject: str) -> Iterator[tuple[_ITEM, _RESULT]]:
    """Yield the answer about each item, in order, some requests side by side. Raises what `ask` raises.

    Logs how far it is every PROGRESS_S. `subject`: whose versions are asked for.
    """
    if len(items) <= 1:
        yield from ((item, ask(item)) for item in items)
        return
    shown_s = time.monotonic()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="registry") as pool:
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
    versions: Sequence[_ITEM], read: Callable[[_ITEM], tuple[int, str] | None], subject: str
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
    for _, result in ask_each(versions, read_or_refuse, subject):
        if isinstance(result, SchemaNotFound):
            logging.warning("schema_incomplete", subject=subject, reason=str(result))
        elif result is not None:
            schema_id, text = result
            texts[schema_id] = text
    return texts


def _check_answer(server: _Server, answer: Answer) -> Answer:
    """Return an answer that succeeds, or 404. Raises LoginRefused, and RequestFailed for any other."""
    if answer.status in _LOGIN_STATUS:
        raise LoginRefused(answer.status, has_login=server.login is not None, is_in_url=server.is_login_in_url)
    if not answer.ok and answer.status != NOT_FOUND:
        raise RequestFailed(f"it answered {answer.summary()}")
    return answer


def _is_refusal(answer: Answer) -> bool:
    """Return whether a server asks to be asked later."""
    return answer.status == _TOO_MANY or (answer.status == _UNAVAILABLE and answer.after is not None)


def unreachable_error(url: str, error: Exception, settings: str) -> RegistryUnreachable:
    """Return what to raise where a registry gives no answer. `settings`: of the configuration, to check."""
    if isinstance(error, LoginRefused):
        return RegistryUnreachable(without_user(f"the schema registry at {url} refuses the login: it answers {error}."))
    if isinstance(error, NoLogin):
        reason = str(error).removesuffix(".")
        return RegistryUnreachable(
            without_user(f"the schema registry at {url} is not asked without a login: {reason}.")
        )
    if isinstance(error, RegistryBusy):
        return RegistryUnreachable(
            without_user(f"the schema registry at {url} refuses requests: {error}. Raise its rate limit, or wait."),
            error.retry_after_s,
        )
    return RegistryUnreachable(
        without_user(f"the schema registry at {url} does not answer ({error}). Check {settings} and that it is up.")
    )


def envelope_text(answer: object) -> str:
    """Return the text in a schema's envelope, whatever it says: the parser refuses what is no schema.

    Raises ValueError for an answer that is no envelope, or an empty one.
    """
    text = answer.get("schema") if isinstance(answer, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError("it sent no schema")
    return text


def document_text(text: str, kind: str | None) -> str:
    """Return a text that came without an envelope. Raises ValueError for nothing, and for a part or a proxy's page.

    `kind`: type of the schema, as a header of the answer names it; None: it has no such header, so the text must show
    that it is a schema.
    """
    if not text.strip():
        raise ValueError("it sent no schema")
    if kind is None:
        try:
            is_empty = not read_json(text)
        except UnsupportedSchema:
            raise ValueError(f"it sent no whole schema, but {text[:SHOWN]!r}") from None
        if is_empty:
            raise ValueError(f"it sent an empty schema, {text[:SHOWN]}")
    return text


def read_list(answer: object, items: str) -> list[Any]:
    """Return an answer that is a list. Raises ValueError. `items`: what it lists, as a noun."""
    if not isinstance(answer, list):
        raise ValueError(f"it sent no list of {items}, but {str(answer)[:SHOWN]!r}")  # noqa: TRY004 - of an answer
    return answer


def names_absence(content: bytes) -> bool:
    """Tell Apicurio's 404, such as ArtifactNotFoundException, from that of any path, NotFoundException."""
    name = str(_members(content).get("name"))
    return name.removesuffix("NotFoundException") not in ("", name)


def has_absence_code(content: bytes) -> bool:
    """Tell the 404 of Confluent's API, such as 40401 (no subject) or 40403 (no schema), from that of any path."""
    code = _members(content).get("error_code")
    return isinstance(code, int) and is_absence_code(code)


def is_absence_code(code: int) -> bool:
    """Return whether an error code of Confluent's API says that there is no such thing."""
    return code // 100 == NOT_FOUND


def _members(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def without_user(text: str) -> str:
    """Remove user and password from every URL in a text."""
    return _USER.sub("***@", text)
