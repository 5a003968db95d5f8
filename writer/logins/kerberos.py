"""Tickets of Kerberos by a keytab: each is kept in this process's memory, and renewed before it ends."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.writer.core.backoff import Backoff
from headrace.writer.logins import gssapi
from headrace.writer.logins.errors import LoginRefused, LoginUnavailable
from headrace.writer.logins.gssapi import GssContext, GssFailed

# Codes of krb5.h count from it.
_CODES_FROM = -1765328384
_SERVICE_UNAVAILABLE = _CODES_FROM + 29
_KDC_UNREACHABLE = _CODES_FROM + 156
_KDC_NAME_UNRESOLVED = _CODES_FROM + 220
# What may pass: a KDC is down, or the name of its machine is not found now.
_PASSING = (_SERVICE_UNAVAILABLE, _KDC_UNREACHABLE, _KDC_NAME_UNRESOLVED)
# What the library says where the tickets of its cache have ended, and the KDC gives no others.
_TICKETS_ENDED = _CODES_FROM + 32
# What the library says where it can fill no cache, for the keytab has no keys of the principal.
_NO_CREDENTIALS = _CODES_FROM + 195
# What to look at, by the code.
_KEYTAB_ADVICE = "The keytab is not of the principal's present keys: export it anew, and mount it everywhere"
_CLOCK_ADVICE = "Set this machine's clock"
_ADVICE = {
    _CODES_FROM + 1: "Let the KDC's administrator renew the principal",
    _CODES_FROM + 6: "Check kafka.security.login.principal, and its realm",
    _CODES_FROM + 7: "Check kafka.security.login.service, and that the KDC knows the broker by the host's name that "
    "it is reached by",
    _CODES_FROM + 18: "Let the KDC's administrator unlock the principal",
    _CODES_FROM + 23: "Let the KDC's administrator renew the principal's keys, and export the keytab anew",
    _CODES_FROM + 24: _KEYTAB_ADVICE,
    _CODES_FROM + 31: _KEYTAB_ADVICE,
    _CODES_FROM + 37: _CLOCK_ADVICE,
    _CODES_FROM + 148: _CLOCK_ADVICE,
    _CODES_FROM + 154: "Check the realm of kafka.security.login.principal, and that krb5.conf, or DNS, knows its KDC",
}
GENERAL_ADVICE = "Check kafka.security.login: principal, keytab, service; krb5.conf; and this machine's clock"
# Between two questions of a KDC that does not answer, whoever asks.
_PAUSE = Backoff(1, 30, jitter=0.5)
# Tickets that are refused later than so long after the first of them may be of keys that are rotated since.
_NEW_S = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class KerberosIdentity:
    """Who logs in, and by which keys. `config`: a krb5.conf, None for the machine's."""

    principal: str
    keytab: Path
    config: Path | None = None


class ServiceLogin:
    """A login at one service. Its first message is there already. `generation`: of the tickets that it is made with."""

    def __init__(self, context: GssContext, first_message: bytes, generation: int) -> None:
        self._context = context
        self.first_message = first_message
        self.generation = generation

    @property
    def is_complete(self) -> bool:
        """Whether both sides have proven who they are."""
        return self._context.is_complete

    def step(self, answer: bytes) -> bytes:
        """Take the service's message. Returns what to send. Raises LoginRefused."""
        return _ask(lambda: self._context.step(answer))

    def unwrap(self, message: bytes) -> bytes:
        """Check a message of the service, and return what is in it. Raises LoginRefused."""
        return _ask(lambda: self._context.unwrap(message))

    def wrap(self, message: bytes) -> bytes:
        """Protect a message by a checksum. Raises LoginRefused."""
        return _ask(lambda: self._context.wrap(message))


class CredentialCache:
    """The tickets of one identity. Threads share it: one of them asks the KDC, and the others wait for its answer.

    The library empties the cache for a moment when it renews tickets, so that no two may use it at a time.
    """

    def __init__(self, identity: KerberosIdentity, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds of any clock that does not step."""
        self._identity = identity
        self._now = now
        self._lock = threading.Lock()
        self._generation = 0
        self._first_s: float | None = None
        self._failures = 0
        self._failure = ""
        self._pause_end_s = 0.0

    @contextmanager
    def open_login(self, service: str, host: str) -> Iterator[ServiceLogin]:
        """Begin a login at a service of a host. Raises LoginRefused, LoginUnavailable."""
        with ExitStack() as stack:
            with self._lock:
                context, first_message = self._begin(service, host, stack)
                generation = self._generation
            yield ServiceLogin(context, first_message, generation)

    def forget(self, login: ServiceLogin) -> bool:
        """Let the tickets go that a service refused, unless they are new. Returns whether the next ones are others."""
        with self._lock:
            if login.generation != self._generation:
                return True
            if self._first_s is None or self._now() < self._first_s + _NEW_S:
                return False
            self._empty()
            return True

    def _empty(self) -> None:
        """Begin another cache. The caller has the lock."""
        gssapi.destroy_credentials(self._name)
        self._generation += 1
        self._first_s = None

    @property
    def _name(self) -> str:
        """The name of the cache in the library, of this process and this identity."""
        digest = hashlib.sha256(repr(self._identity).encode()).hexdigest()[:16]
        return f"MEMORY:headrace-{os.getpid()}-{digest}-{self._generation}"

    def _begin(self, service: str, host: str, stack: ExitStack) -> tuple[GssContext, bytes]:
        """Open what the login needs, and make its first step. `stack` closes it. The caller has the lock."""
        now_s = self._now()
        if now_s < self._pause_end_s:
            raise LoginUnavailable(self._failure)
        try:
            begun = _ask(lambda: self._ask_anew_if_ended(service, host, stack))
        except LoginUnavailable as error:
            self._failure = str(error)
            self._pause_end_s = self._now() + _PAUSE.random_delay_s(self._failures)
            self._failures += 1
            raise
        self._failures = 0
        if self._first_s is None:
            self._first_s = now_s
        return begun

    def _ask_anew_if_ended(self, service: str, host: str, stack: ExitStack) -> tuple[GssContext, bytes]:
        """Raises GssFailed, LoginRefused; with the KDC's reason, where tickets have ended and it gives no others."""
        try:
            return self._ask_credentials(service, host, stack)
        except GssFailed as error:
            if error.code != _TICKETS_ENDED:
                raise
        # An empty cache lets the library ask the KDC again, and say why it gives none.
        self._empty()
        return self._ask_credentials(service, host, stack)

    def _ask_credentials(self, service: str, host: str, stack: ExitStack) -> tuple[GssContext, bytes]:
        """Raises GssFailed, LoginRefused."""
        identity = self._identity
        _choose_config(identity.config)
        _check_keytab(identity.keytab)
        principal = stack.enter_context(gssapi.open_name(identity.principal, gssapi.PRINCIPAL_NAME))
        try:
            credentials = stack.enter_context(gssapi.open_credentials(principal, identity.keytab, self._name))
        except GssFailed as error:
            if error.code != _NO_CREDENTIALS:
                raise
            raise LoginRefused(
                f"the keytab {identity.keytab} has no keys of {identity.principal}, or is no keytab. Check "
                "kafka.security.login: principal and keytab"
            ) from error
        service_name = stack.enter_context(gssapi.open_name(f"{service}@{host}", gssapi.SERVICE_NAME))
        context = stack.enter_context(gssapi.open_context(service_name, credentials))
        return context, context.step(b"")


_caches: dict[KerberosIdentity, CredentialCache] = {}
_caches_lock = threading.Lock()


def credential_cache(identity: KerberosIdentity) -> CredentialCache:
    """Return this process's cache for an identity."""
    with _caches_lock:
        return _caches.setdefault(identity, CredentialCache(identity))


def _begin_anew() -> None:
    """Let a forked child have tickets and locks of its own: another thread of the parent may have had the locks."""
    global _caches_lock  # noqa: PLW0603 - a lock cannot be opened by another thread
    _caches_lock = threading.Lock()
    _caches.clear()


os.register_at_fork(after_in_child=_begin_anew)


def _choose_config(config: Path | None) -> None:
    """Let the library read a krb5.conf. It knows no other way than the environment."""
    if config is not None and os.environ.get("KRB5_CONFIG") != str(config):
        os.environ["KRB5_CONFIG"] = str(config)


def _check_keytab(keytab: Path) -> None:
    """Raises LoginRefused for one that cannot be read; the library's words do not say why."""
    try:
        keytab.open("rb").close()
    except OSError as error:
        raise LoginRefused(
            f"the keytab {keytab} cannot be read: {error.strerror}. Mount it on the driver and on every executor."
        ) from error


def _ask(question: Callable[[], Answer]) -> Answer:
    """Ask the library. Raises LoginRefused, LoginUnavailable."""
    try:
        return question()
    except GssFailed as error:
        raise login_failure(str(error), error.code) from error


def login_failure(reason: str, code: int) -> LoginRefused | LoginUnavailable:
    """Return the error for what the library says. `code`: of krb5.h."""
    if code in _PASSING:
        return LoginUnavailable(f"the login kerberos fails ({reason}). Check that the KDC is up, and krb5.conf")
    return LoginRefused(f"the login kerberos fails ({reason}). {_ADVICE.get(code, GENERAL_ADVICE)}")
