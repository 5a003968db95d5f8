"""Access tokens of OAuth 2: by client credentials, by a JWT that proves the client, or from a file.

Sources: RFC 6749 (4.4 client credentials, 2.3.1 the client's password), RFC 7523 (2.1 a JWT as grant, 2.2 as proof of
the client), RFC 7519 (claims of a JWT).
"""

import base64
import math
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote_plus, urlencode

from headrace.writer.core import http
from headrace.writer.logins.clock_skew import measure_skew, skew_text
from headrace.writer.logins.errors import LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.jwt_claims import read_claims, read_time
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import Token

Grant = Literal["client_credentials", "jwt_bearer"]
ClientAuth = Literal["basic", "post"]
_ANSWER_WITHIN_S = 10
# Where neither the server nor the token says it, as RFC 6749 (5.1) allows.
_LIFE_S = 300
# Another one is asked for then at the latest: what a server says of it may be no number of seconds.
_LIFE_MAX_S = 86_400
# Of a token, in characters. Brokers take 512 KiB by default (`sasl.server.max.receive.size`).
_LENGTH_MAX = 256 * 1024
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_JWT_PROOF = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# A server that refuses with these, or with a status of its own failures, may give a token later.
_PASSING_STATUS = (408, 425, 429)
_FAILED_STATUS = 500
_PASSING_ERRORS = ("temporarily_unavailable", "server_error", "slow_down")
# Of RFC 6749 (5.2), RFC 8707 and RFC 6750. Other words of an answer may repeat what was sent.
_ERRORS = (
    "access_denied",
    "interaction_required",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "invalid_target",
    "unauthorized_client",
    "unsupported_grant_type",
    *_PASSING_ERRORS,
)
# As RFC 6750 (2.1) writes tokens.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


@dataclass(frozen=True)
class OAuthRequest:
    """A question to a server of tokens. `proof`: a file with the JWT that proves the client, such as a workload's."""

    url: str
    client_id: str | None = None
    client_secret: Secret | None = None
    client_auth: ClientAuth = "basic"
    grant: Grant = "client_credentials"
    proof: Secret | None = None
    scope: str | None = None
    # Further fields of the question, such as audience.
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca: Path | None = None

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses its tokens."""
        return (
            "Check kafka.security.login: scope, audience, the client's rights, and the clocks of the broker, the "
            "token's server and this machine"
        )

    def ask(self) -> Token:
        """Ask the server. Raises LoginRefused, LoginUnavailable."""
        asked_s = time.time()
        fields, headers = self._question()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers["Accept"] = "application/json"
        try:
            answer = http.ask(
                self.url,
                method="POST",
                body=urlencode(fields).encode(),
                headers=headers,
                timeout_s=_ANSWER_WITHIN_S,
                trust=self._trust(),
            )
        except http.RequestFailed as error:
            raise LoginUnavailable(
                f"no token: {error}. Check token_url and its ca_file, and that the server is up."
            ) from error
        if not answer.ok:
            raise self._refusal(answer, asked_s)
        return self._read(answer, asked_s)

    def _question(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fields of the body, and headers. Raises LoginRefused for a file that cannot be read."""
        fields = dict(self.parameters)
        headers = dict[str, str]()
        if self.scope is not None:
            fields["scope"] = self.scope
        if self.grant == "jwt_bearer":
            fields["grant_type"] = _JWT_GRANT
        else:
            fields["grant_type"] = self.grant
        if self.proof is not None:
            fields |= self._proof_fields(self.proof.read())
        client_id = self.client_id or ""
        if self.client_secret is not None and self.client_auth == "basic":
            headers["Authorization"] = _basic(client_id, self.client_secret.read())
        elif self.client_secret is not None:
            fields |= {"client_id": client_id, "client_secret": self.client_secret.read()}
        elif client_id:
            fields["client_id"] = client_id
        return fields, headers

    def _proof_fields(self, proof: str) -> dict[str, str]:
        if self.grant == "jwt_bearer":
            return {"assertion": proof}
        return {"client_assertion_type": _JWT_PROOF, "client_assertion": proof}

    def _trust(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.ca))
        # ssl.SSLError is an OSError.
        except OSError as error:
            raise LoginRefused(
                f"the ca_file {self.ca} of token_url cannot be read ({error}). Give a PEM file."
            ) from error

    def _refusal(self, answer: http.Answer, asked_s: float) -> LoginFailed:
        """Return the error for an answer without a token."""
        name = _error_name(answer)
        text = str(answer.status)
        if name:
            text = f"{answer.status}, {name}"
        reason = f"{http.host(self.url)} gives no token (it answers {text})"
        if answer.status in _PASSING_STATUS or answer.status >= _FAILED_STATUS or name in _PASSING_ERRORS:
            after_s = 0.0 if answer.after is None else answer.after.total_seconds()
            return LoginUnavailable(f"{reason}. It is asked again.", after_s)
        skew = skew_text(measure_skew(answer.headers, asked_s), http.host(self.url))
        return LoginRefused(f"{reason}. Check token_url, client_id, its secret or file, and scope.{skew}")

    def _read(self, answer: http.Answer, asked_s: float) -> Token:
        """Return the token of an answer, which is not shown, for it may be a token.

        Raises LoginUnavailable, and LoginRefused for a refusal that comes with a status of success.
        """
        try:
            document = answer.json()
        except http.RequestFailed:
            document = None
        text = document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(text, str):
            if _error_name(answer):
                raise self._refusal(answer, asked_s)
            raise LoginUnavailable(
                f"{http.host(self.url)} answers {answer.status} without an access_token. Check token_url."
            )
        if len(text) > _LENGTH_MAX:
            raise LoginUnavailable(
                f"{http.host(self.url)} gives an access_token of {len(text):,} characters, and brokers take fewer. "
                "Let it put less into the token, such as fewer groups and roles."
            )
        if not _TOKEN.fullmatch(text):
            raise LoginUnavailable(
                f"{http.host(self.url)} gives an access_token with characters that no token has. Check token_url."
            )
        end_s = _end_s(read_claims(text), _life_s(document.get("expires_in")), asked_s)
        return Token(text, asked_s, min(end_s, asked_s + _LIFE_MAX_S), measure_skew(answer.headers, asked_s))


@dataclass(frozen=True)
class StaticToken:
    """A token that is there already; in a file something else writes it anew in time, such as Kubernetes."""

    secret: Secret

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses the token."""
        return (
            "Check kafka.security.login: that what writes token_file asks for a token with the broker's audience, and "
            "the clocks of the broker and this machine"
        )

    def ask(self) -> Token:
        """Read it. Raises LoginRefused for a file without a token, LoginUnavailable for one that has ended."""
        text = self.secret.read()
        if len(text) > _LENGTH_MAX:
            raise LoginRefused(f"{self.secret} holds {len(text):,} characters, more than a token has. Give a token.")
        if not _TOKEN.fullmatch(text):
            raise LoginRefused(f"{self.secret} holds characters that no token has. Give the access token, alone.")
        now_s = time.time()
        # A file is read at each login: what is in it may be replaced at any time.
        kept_s = math.inf if self.secret.file is None else 0.0
        claims = read_claims(text)
        end_s = read_time(claims, "exp")
        if end_s is None:
            # Not a JWT: it is looked at again in time.
            return Token(text, now_s, now_s + _LIFE_S, kept_s=kept_s)
        if end_s < now_s:
            raise LoginUnavailable(
                f"the token of {self.secret} ended {now_s - end_s:.0f} s ago by this machine's clock. What writes it "
                "is late, or the clock is wrong."
            )
        return Token(text, read_time(claims, "iat") or now_s, end_s, kept_s=kept_s)


def _error_name(answer: http.Answer) -> str:
    """Return the code of a refusal where it is one that is known; else nothing."""
    try:
        document = answer.json()
    except http.RequestFailed:
        return ""
    name = document.get("error") if isinstance(document, dict) else None
    return name if name in _ERRORS else ""


def _end_s(claims: Mapping[str, Any], life_s: float, asked_s: float) -> float:
    """Return when a token ends by this machine's clock. `life_s`: as the server says it; 0: it does not."""
    end_s = read_time(claims, "exp")
    start_s = read_time(claims, "iat")
    if not life_s:
        return end_s or asked_s + _LIFE_S
    # Whatever the server's clock says, its token does not live longer than from its beginning to its end.
    if end_s is not None and start_s is not None and start_s < end_s:
        life_s = min(life_s, end_s - start_s)
    return asked_s + life_s


def _life_s(expires_in: object) -> float:
    """Return how long a token lives, in seconds; 0 where the answer does not say it. Some servers write it as text."""
    if not isinstance(expires_in, str | int | float) or isinstance(expires_in, bool):
        return 0
    try:
        life_s = float(expires_in)
    except (ValueError, OverflowError):
        return 0
    return life_s if math.isfinite(life_s) and life_s > 0 else 0


def _basic(user: str, password: str) -> str:
    """Return the header of a client's password; both are form-encoded first (RFC 6749, 2.3.1)."""
    pair = f"{quote_plus(user)}:{quote_plus(password)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
