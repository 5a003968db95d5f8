"""Access tokens of OAuth 2: by client credentials, by a JWT that proves the client, or from a file.

Sources: RFC 6749 (4.4 client credentials, 2.3.1 the client's password), RFC 7523 (2.1 a JWT as grant, 2.2 as proof of
the client), RFC 7519 (claims of a JWT).
"""

import base64
import binascii
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote_plus, urlencode

from headrace.writer.core import http
from headrace.writer.logins.errors import LoginRefused, LoginUnavailable
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_source import Token

Grant = Literal["client_credentials", "jwt_bearer"]
ClientAuth = Literal["basic", "post"]
_ANSWER_WITHIN_S = 10
# Where neither the server nor the token says it, as RFC 6749 (5.1) allows.
_LIFE_S = 300
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_JWT_PROOF = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# A server that refuses with these may give a token later.
_TOO_MANY = 429
_FAILED_STATUS = 500
# A clock that is further away is named where a token is refused.
_SKEW_MAX_S = 30


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
    parameters: tuple[tuple[str, str], ...] = ()
    ca: Path | None = None

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
            raise LoginUnavailable(f"no token: {error}. Check token_url, and that the server is up.") from error
        if not answer.ok:
            raise self._refusal(answer, asked_s)
        return self._read(answer, asked_s)

    def _question(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fields of the body, and headers."""
        fields = {"grant_type": self.grant if self.grant == "client_credentials" else _JWT_GRANT}
        headers = dict[str, str]()
        if self.scope is not None:
            fields["scope"] = self.scope
        fields |= dict(self.parameters)
        if self.proof is not None and self.grant == "jwt_bearer":
            fields["assertion"] = self.proof.read()
        elif self.proof is not None:
            fields |= {"client_assertion_type": _JWT_PROOF, "client_assertion": self.proof.read()}
        if self.client_secret is None:
            if self.client_id is not None:
                fields["client_id"] = self.client_id
        elif self.client_auth == "post":
            fields |= {"client_id": self.client_id or "", "client_secret": self.client_secret.read()}
        else:
            headers["Authorization"] = _basic(self.client_id or "", self.client_secret.read())
        return fields, headers

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

    def _refusal(self, answer: http.Answer, asked_s: float) -> LoginRefused | LoginUnavailable:
        """Say why the server gives none. Its words may repeat what was sent, so only its code of the error is shown."""
        code = ""
        try:
            document = answer.json()
        except http.RequestFailed:
            document = None
        if isinstance(document, dict) and str(document.get("error", "")).replace("_", "").isalnum():
            code = f", {document['error']}"
        refusal = f"{http.host(self.url)} gives no token (it answers {answer.status}{code})"
        if answer.status == _TOO_MANY or answer.status >= _FAILED_STATUS:
            return LoginUnavailable(f"{refusal}. It is asked again.")
        skew = _skew_text(self.url, answer.headers, asked_s)
        return LoginRefused(f"{refusal}. Check token_url, client_id, its secret or file, and scope.{skew}")

    def _read(self, answer: http.Answer, asked_s: float) -> Token:
        try:
            document = answer.json()
            text = document["access_token"]
            life_s = float(document.get("expires_in") or 0)
        except (http.RequestFailed, LookupError, TypeError, ValueError, AttributeError) as error:
            # The answer itself may be a token.
            raise LoginUnavailable(
                f"{http.host(self.url)} answers {answer.status} without an access_token. Check token_url."
            ) from error
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text or not text:
            raise LoginUnavailable(f"{http.host(self.url)} gives an access_token that is none. Check token_url.")
        if life_s > 0:
            return Token(text, asked_s, asked_s + life_s)
        return Token(text, asked_s, _claim_s(text, "exp") or asked_s + _LIFE_S)


@dataclass(frozen=True)
class StaticToken:
    """A token that is there already; in a file something else writes it anew in time, such as Kubernetes."""

    secret: Secret

    def ask(self) -> Token:
        """Read it. Raises LoginRefused for a file without a token, LoginUnavailable for one that has ended."""
        text = self.secret.read()
        now_s = time.time()
        end_s = _claim_s(text, "exp")
        if end_s is None:
            # Not a JWT: it is looked at again in time.
            return Token(text, now_s, now_s + _LIFE_S)
        if end_s < now_s:
            where = self.secret.key if self.secret.file is None else self.secret.file
            raise LoginUnavailable(
                f"the token of {where} ended {now_s - end_s:.0f} s ago by this machine's clock. What writes it is "
                "late, or the clock is wrong."
            )
        return Token(text, _claim_s(text, "iat") or now_s, end_s)


def _basic(user: str, password: str) -> str:
    """Return the header of a client's password; both are form-encoded first (RFC 6749, 2.3.1)."""
    pair = f"{quote_plus(user)}:{quote_plus(password)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _claim_s(token: str, name: str) -> float | None:
    """Return a time of a JWT, in seconds since the epoch; None where it has none, or is no JWT."""
    try:
        part = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims[name])
    except (LookupError, TypeError, ValueError, binascii.Error):
        return None


def _skew_text(url: str, headers: Mapping[str, str], asked_s: float) -> str:
    """Say how far this machine's clock is from the server's, where that may be the reason."""
    try:
        skew_s = asked_s - parsedate_to_datetime(headers["date"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return ""
    if abs(skew_s) < _SKEW_MAX_S:
        return ""
    return f" This machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} {http.host(url)}'s."
