"""The logins of brokers: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628), GSSAPI (RFC 4752)."""

import base64
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from headrace.writer.logins.clock_skew import SKEW_MIN_S, skew_text
from headrace.writer.logins.errors import BrokerRefused, LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.exchange import Exchange
from headrace.writer.logins.hidden_secrets import hide_secrets
from headrace.writer.logins.jwt_claims import read_claims, read_time
from headrace.writer.logins.kerberos import GENERAL_ADVICE, KerberosIdentity, ServiceLogin, credential_cache
from headrace.writer.logins.scram import prove_password
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import Token, TokenRequest, token_source

_SEPARATOR = "\x01"
# Who is shown tokens: a process has one cluster.
_BROKERS = "kafka"
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

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses it."""
        return f"Check kafka.security.login: user and {self.password}"

    def log_in(self, _host: str, exchange: Exchange) -> None:
        """Send both. Raises LoginRefused, OSError."""
        password = self.password.read()
        message = f"\0{self.user}\0{password}".encode()
        try:
            exchange(message)
        except BrokerRefused as error:
            # It is raised below, without the cause: that may repeat what was sent.
            reason = hide_secrets(error.reason, base64.b64encode(message).decode(), password)
        else:
            return
        raise BrokerRefused(reason)


@dataclass(frozen=True)
class ScramLogin:
    """A user, and the proof of a password."""

    user: str
    password: Secret
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses it."""
        return f"Check kafka.security.login: user, {self.password}, and mechanism"

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

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses it."""
        return self.request.advice

    def log_in(self, _host: str, exchange: Exchange) -> None:
        """Show the token. Raises LoginRefused, LoginUnavailable, OSError."""
        source = token_source(self.request, _BROKERS)
        token = source.token()
        if reason := self._show(token, exchange):
            error = _refusal(token, reason, self.advice, was_accepted=source.was_accepted)
            source.refuse(token, error)
            raise error
        source.accept(token)

    def _show(self, token: Token, exchange: Exchange) -> str:
        """Return the broker's reason to refuse a token; none where it accepts it. Raises OSError."""
        extensions = "".join(f"{name}={value}{_SEPARATOR}" for name, value in self.extensions)
        message = f"n,,{_SEPARATOR}auth=Bearer {token.text}{_SEPARATOR}{extensions}{_SEPARATOR}"
        try:
            answer = exchange(message.encode())
        except BrokerRefused as error:
            return _shown_reason(error.reason, token)
        if not answer:
            return ""
        # A refusal is an answer without an error code; the broker fails after one more message (RFC 7628, 3.2.3).
        with suppress(OSError, BrokerRefused):
            exchange(_SEPARATOR.encode())
        return _shown_reason(answer.decode(errors="replace"), token)


@dataclass(frozen=True)
class KerberosLogin:
    """A ticket of Kerberos. `service`: the first part of the brokers' principal."""

    identity: KerberosIdentity
    service: str = "kafka"

    @property
    def mechanism(self) -> str:
        """GSSAPI."""
        return "GSSAPI"

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses it."""
        return GENERAL_ADVICE

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


def _shown_reason(reason: str, token: Token) -> str:
    """Return a broker's reason without the token, which it may repeat."""
    return hide_secrets(reason.replace(token.text, "<token>"), token.text) or "without a reason"


def _refusal(token: Token, reason: str, advice: str, *, was_accepted: bool) -> LoginFailed:
    """Return the error for a token that a broker refuses. `was_accepted`: it has accepted one of this source before."""
    clock = _clock_text(token)
    if was_accepted:
        # It was revoked, or the broker does not know a new key of the server yet.
        return LoginUnavailable(f"the broker refuses the token ({reason}).{clock} Another one is asked for")
    return LoginRefused(f"the broker refuses the token ({reason}).{clock} {advice}")


def _clock_text(token: Token) -> str:
    """Say what is wrong with a token by the clocks, where something is; for a message."""
    now_s = time.time()
    claims = read_claims(token.text)
    end_s = read_time(claims, "exp")
    start_s = read_time(claims, "nbf") or read_time(claims, "iat")
    if end_s is not None and end_s < now_s:
        return f" By this machine's clock it ended {now_s - end_s:.0f} s ago."
    if start_s is not None and start_s > now_s + SKEW_MIN_S:
        return f" By this machine's clock it begins in {start_s - now_s:.0f} s."
    return skew_text(token.skew_s, "the token's server")
