"""A server of tokens, as an OIDC provider is one: discovery, its keys, client credentials, and assertions.

Tokens are JWTs with RS256. A test tells it to fail, to be slow, to have another key or another clock.
"""

import base64
import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote_plus, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT_ID = "headrace"
# Characters that mean something in headers, forms, shells and Java's words.
CLIENT_SECRET = 's3cr:et/+ %ü"\\$'
AUDIENCE = "kafka"
SCOPE = "kafka"
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
JWT_PROOF = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True)
class SigningKey:
    """A key that signs tokens."""

    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65_537, 2_048))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return a JWT with RS256."""
        header = {"alg": "RS256", "typ": "JWT", "kid": self.id}
        content = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        signature = self.key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{content}.{_base64(signature)}"

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a JWT that this key has signed. Raises ValueError, InvalidSignature."""
        content, _, signature = token.rpartition(".")
        self.key.public_key().verify(_bytes_of(signature), content.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims: dict[str, Any] = json.loads(_bytes_of(content.partition(".")[2]))
        return claims

    @property
    def public(self) -> dict[str, str]:
        """The public part, as JWKS has it."""
        numbers = self.key.public_key().public_numbers()
        texts = {
            name: _base64(value.to_bytes((value.bit_length() + 7) // 8, "big"))
            for name, value in (("n", numbers.n), ("e", numbers.e))
        }
        return {"kty": "RSA", "kid": self.id, "use": "sig", "alg": "RS256", **texts}


class TokenServer:
    """A server on loopback, on a thread. A context manager. Its attributes may be changed while it runs."""

    def __init__(self, life_s: float = 60) -> None:
        """`life_s`: of its tokens."""
        self.life_s = life_s
        # It answers so many questions with 503.
        self.failures = 0
        # It answers so late, in seconds.
        self.delay_s = 0.0
        # By how much its clock is ahead, in seconds.
        self.skew_s = 0.0
        # Further claims of its tokens.
        self.further_claims = dict[str, Any]()
        # Its refusals repeat all that was sent to it.
        self.repeats_questions = False
        # Answers that it gives instead of its own, the first one first.
        self.answers = list[tuple[int, bytes]]()
        self.keys = [SigningKey()]
        # Signs what proves a workload.
        self.workload_key = SigningKey()
        # What it has given, and what it was asked: the way, and the fields of the question.
        self.tokens = list[str]()
        self.ways = list[str]()
        self.questions = list[dict[str, str]]()
        self.refusals = 0
        self.jwks_answers = 0
        self._http: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Its issuer."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def token_url(self) -> str:
        """Where tokens are asked for."""
        return f"{self.url}/token"

    @property
    def now_s(self) -> float:
        """The time by its clock."""
        return time.time() + self.skew_s

    def rotate_keys(self) -> None:
        """Sign with another key, and revoke all tokens that have the old one's signature."""
        self.keys = [SigningKey()]

    def claims(self, **others: Any) -> dict[str, Any]:
        """Return the claims of a token, good from now on."""
        now_s = self.now_s
        return {
            "iss": self.url,
            "sub": CLIENT_ID,
            "aud": AUDIENCE,
            "iat": int(now_s),
            "nbf": int(now_s),
            "exp": int(now_s + self.life_s),
            "scope": SCOPE,
            "jti": uuid.uuid4().hex,
            **self.further_claims,
            **others,
        }

    def sign(self, **others: Any) -> str:
        """Return a token with some claims of the test's own."""
        token = self.keys[0].sign(self.claims(**others))
        self.tokens.append(token)
        return token

    def sign_assertion(self, life_s: float = 60) -> str:
        """Return what proves a workload."""
        return self.workload_key.sign({"iss": "workloads", "sub": CLIENT_ID, "exp": int(self.now_s + life_s)})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; again on the port of before, after a stop."""
        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._http.daemon_threads = True
        self._port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=[0.05], daemon=True).start()

    def stop(self) -> None:
        """Be gone."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def answer_get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Answer for discovery and keys."""
        if path == "/.well-known/openid-configuration":
            return 200, {"issuer": self.url, "token_endpoint": self.token_url, "jwks_uri": f"{self.url}/jwks"}
        if path == "/jwks":
            self.jwks_answers += 1
            return 200, {"keys": [key.public for key in self.keys]}
        return 404, {}

    def answer_question(self, authorization: str, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer a question for a token."""
        time.sleep(self.delay_s)
        self.questions.append(fields)
        if self.failures > 0:
            self.failures -= 1
            return 503, {"error": "temporarily_unavailable"}
        way = self._way_of_proof(authorization, fields)
        if not way:
            return self._refuse(401, "invalid_client", authorization, fields)
        if fields.get("scope", SCOPE) != SCOPE:
            return self._refuse(400, "invalid_scope", authorization, fields)
        self.ways.append(way)
        token = self.sign(aud=fields.get("audience", AUDIENCE))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.life_s)}

    def _way_of_proof(self, authorization: str, fields: Mapping[str, str]) -> str:
        """Return how the client has proven itself; nothing where it has not."""
        kind, _, pair = authorization.partition(" ")
        if fields.get("grant_type") == JWT_GRANT:
            return "jwt_bearer" if self._is_workload(fields.get("assertion", "")) else ""
        if fields.get("grant_type") != "client_credentials":
            return ""
        if fields.get("client_assertion_type") == JWT_PROOF:
            return "client_assertion" if self._is_workload(fields.get("client_assertion", "")) else ""
        if kind == "Basic":
            user, _, secret = base64.b64decode(pair).decode().partition(":")
            is_client = (unquote_plus(user), unquote_plus(secret)) == (CLIENT_ID, CLIENT_SECRET)
            return "basic" if is_client else ""
        is_client = (fields.get("client_id"), fields.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        return "post" if is_client else ""

    def _is_workload(self, assertion: str) -> bool:
        try:
            return bool(self.workload_key.verify(assertion)["exp"] > self.now_s)
        except (ValueError, LookupError, InvalidSignature):
            return False

    def _refuse(
        self, status: int, error: str, authorization: str, fields: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        self.refusals += 1
        if self.repeats_questions:
            repeated = f"{authorization} {json.dumps(fields)} {fields.get('client_secret')}"
            return status, {"error": repeated, "error_description": repeated}
        return status, {"error": error}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, content = server.answer_get(urlsplit(self.path).path)
                self._send(status, json.dumps(content).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                fields = {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}
                if server.answers:
                    self._send(*server.answers.pop(0))
                    return
                status, content = server.answer_question(self.headers.get("Authorization", ""), fields)
                self._send(status, json.dumps(content).encode())

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(server.now_s if timestamp is None else timestamp, usegmt=True)

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                # A server that stops does not answer on connections that are kept.
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
