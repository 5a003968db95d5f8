"""Gives the tokens of a login to Java's client of Kafka in the same machine, which cannot ask for all of them itself.

Java of Kafka 3.9 reads a file with a token once, and never again. It does ask a server of tokens for another one, and
this is such a server: on loopback, for one client, whose secret is made up at the start.
"""

import base64
import hmac
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.logins.errors import LoginRefused, LoginUnavailable
from headrace.writer.logins.jwt_claims import read_claims
from headrace.writer.logins.token_source import Token, TokenRequest, TokenSource

_LOOPBACK = "127.0.0.1"
_PATH = "/token"
# Of a token's life, after which Java gets another one. It asks after four fifths of that of its own.
_RENEWAL_SHARE = 0.5
# Claims without which Java takes no token.
_JAVA_CLAIMS = ("exp", "sub")
_BODY_BYTES_MAX = 64 * 1024
# While there is no token, Java's question is left open for so long: after a refusal Java would rest for ten seconds. A
# query that is stopped meanwhile waits for the answer.
_HOLD_S = 5.0
_LOOK_S = 0.2
# Between two questions to the server of tokens: what Java waits for holds up all batches.
_PAUSE = Backoff(1, 5, jitter=0.5)


class TokenEndpoint:
    """A server of tokens for one client in this machine. It runs until the process ends."""

    client_id = "headrace"

    def __init__(self, request: TokenRequest, hold_s: float = _HOLD_S) -> None:
        """`request`: how its tokens are come by. `hold_s`: how long a question waits while there is no token."""
        self._hold_s = hold_s
        self.client_secret = secrets.token_urlsafe(32)
        # Why the last question got no token, as it was logged; empty: it got one.
        self._logged_failure = ""
        self._source = TokenSource(request, renewal_share=_RENEWAL_SHARE, pause=_PAUSE)
        self._server = ThreadingHTTPServer((_LOOPBACK, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="token-endpoint", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://{_LOOPBACK}:{self._server.server_port}{_PATH}"

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def check(self) -> None:
        """Look whether there is a token that Java takes. Raises LoginRefused, LoginUnavailable."""
        claims = read_claims(self._source.token().text)
        if missing := [name for name in _JAVA_CLAIMS if not claims.get(name)]:
            raise LoginRefused(
                "Spark's own client of Kafka takes only tokens that are JWTs with the claims exp and sub, and this one "
                f"has no {missing[0]}. Let the server of tokens give such tokens for kafka.security.login."
            )

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Return status and content for a question."""
        pair = f"{self.client_id}:{self.client_secret}"
        expected = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if path != _PATH or not hmac.compare_digest(authorization.encode(), expected.encode()):
            return 401, {"error": "invalid_client"}
        try:
            token = self._wait_for_token()
        except LoginRefused as error:
            self._log_failure(str(error))
            return 400, {"error": "invalid_request"}
        except LoginUnavailable as error:
            self._log_failure(str(error))
            return 503, {"error": "temporarily_unavailable"}
        if self._logged_failure:
            self._logged_failure = ""
            logging.event("token_given_to_spark")
        return 200, _document(token)

    def _log_failure(self, text: str) -> None:
        """Log why there is no token, once: Java asks again every few seconds."""
        if text != self._logged_failure:
            self._logged_failure = text
            logging.warning("token_not_given_to_spark", error=text)

    def _wait_for_token(self) -> Token:
        """Return a token once there is one. Raises LoginRefused, and LoginUnavailable after a while."""
        end_s = time.monotonic() + self._hold_s
        while True:
            try:
                return self._source.token()
            except LoginUnavailable:
                if time.monotonic() >= end_s:
                    raise
            time.sleep(_LOOK_S)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            # A client that sends nothing holds a thread for so long, in seconds.
            timeout = 10

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "0")
                if length.isdecimal():
                    self.rfile.read(min(int(length), _BODY_BYTES_MAX))
                status, content = endpoint.answer(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log no question: the log is for events."""

        return Handler


def _document(token: Token) -> dict[str, Any]:
    life_s = max(1, round(token.end_s - token.asked_s))
    return {"access_token": token.text, "token_type": "Bearer", "expires_in": life_s}
