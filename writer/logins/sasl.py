"""The logins of brokers: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628), GSSAPI (RFC 4752)."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.exchange import Exchange
from headrace.writer.logins.kerberos import KerberosIdentity, ServiceLogin, credential_cache
from headrace.writer.logins.scram import prove_password
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import Token, TokenRequest, token_source

_SEPARATOR = "\x01"
# A token that is refused later than so long after it was asked for may have been revoked: another one may be taken.
_NEW_S = 5
# A broker's words in a message.
_SHOWN = 200
# Of the security layers that GSSAPI offers: none, which is all that Kafka has.
_NO_LAYER = 1
_OFFER_BYTES = 4


@dataclass(frozen=True)
class PlainLogin:
    """A user and a password, sent as they are."""

    user: str
    password: Secret

    @property
    def mechanism(self) -> str:
        """PLAIN."""
        return "PLAIN"

    def log_in(self, _host: str, exchange: Exchange) -> None:
        """Send both. Raises LoginRefused, OSError."""
        exchange(f"\0{self.user}\0{self.password.read()}".encode())


@dataclass(frozen=True)
class ScramLogin:
    """A user, and the proof of a password."""

    user: str
    password: Secret
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

    def log_in(self, _host: str, exchange: Exchange) -> None:
        """Prove it. Raises LoginRefused, OSError."""
        prove_password(self.mechanism, self.user, self.password.read(), exchange)


@dataclass(frozen=True)
class BearerLogin:
    """A token. `extensions`: further words for the broker, such as logicalCluster (KIP-342)."""

    request: TokenRequest
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def mechanism(self) -> str:
        """OAUTHBEARER."""
        return "OAUTHBEARER"

    def log_in(self, _host: str, exchange: Exchange) -> None:
        """Show the token. Raises LoginRefused, LoginUnavailable, OSError."""
        source = token_source(self.request)
        token = source.token()
        extensions = "".join(f"{name}={value}{_SEPARATOR}" for name, value in self.extensions)
        try:
            answer = exchange(f"n,,{_SEPARATOR}auth=Bearer {token.text}{_SEPARATOR}{extensions}{_SEPARATOR}".encode())
        except LoginRefused as error:
            source.forget(token)
            raise _refusal(token, str(error)) from error
        if not answer:
            return
        # A refusal is an answer without an error code; the broker fails after one more message (RFC 7628, 3.2.3).
        source.forget(token)
        with suppress(OSError, LoginRefused):
            exchange(_SEPARATOR.encode())
        raise _refusal(token, answer.decode(errors="replace").replace(token.text, "<token>")[:_SHOWN])


@dataclass(frozen=True)
class KerberosLogin:
    """A ticket of Kerberos. `service`: the first part of the brokers' principal."""

    identity: KerberosIdentity
    service: str = "kafka"

    @property
    def mechanism(self) -> str:
        """GSSAPI."""
        return "GSSAPI"

    def log_in(self, host: str, exchange: Exchange) -> None:
        """Prove the principal, and let the broker prove its own. Raises LoginRefused, LoginUnavailable, OSError."""
        cache = credential_cache(self.identity)
        with cache.open_login(self.service, host) as login:
            try:
                _prove_principal(login, exchange)
            except LoginRefused as error:
                if not cache.forget(login):
                    raise
                raise LoginUnavailable(f"{error}. Other tickets are asked for") from error


def _prove_principal(login: ServiceLogin, exchange: Exchange) -> None:
    """Exchange the messages of a login, and choose no layer of encryption. Raises LoginRefused, OSError."""
    answer = exchange(login.first_message)
    while not login.is_complete:
        # The last message may be empty: it asks for the broker's offer.
        answer = exchange(login.step(answer))
    offer = login.unwrap(answer)
    if len(offer) != _OFFER_BYTES or not offer[0] & _NO_LAYER:
        raise LoginRefused("the broker wants a security layer of GSSAPI, which Kafka does not have")
    # No layer, no largest message, no other name to act as.
    exchange(login.wrap(bytes([_NO_LAYER, 0, 0, 0])))


def _refusal(token: Token, reason: str) -> LoginFailed:
    """Return the error for a token that the broker refuses."""
    age_s = time.time() - token.asked_s
    if age_s > _NEW_S:
        return LoginUnavailable(f"the broker refuses a token of {age_s:.0f} s ago ({reason}). Another one is asked for")
    return LoginRefused(
        f"the broker refuses the token ({reason}). Check kafka.security.login: scope, audience, the client's rights, "
        "and this machine's clock"
    )
