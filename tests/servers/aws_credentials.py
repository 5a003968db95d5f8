"""Who gives credentials of AWS: a container's agent, an instance's metadata and STS, played on one port."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.servers.msk_proxy import AccessKey

ROLE = "arn:aws:iam::123456789012:role/headrace"
# As long as real ones.
AGENT_TOKEN = "the-agents-token." * 4
IDENTITY_TOKEN = f"eyJhbGciOiJSUzI1NiJ9.{'the-pods-token-' * 40}.its-signature"
_STS = """\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
 <AssumeRoleWithWebIdentityResult><Credentials>
  <AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
  <SessionToken>{token}</SessionToken><Expiration>{end}</Expiration>
 </Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
_STS_ERROR = """\
<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"""


@dataclass
class CredentialServer:
    """Gives another key at each question. `keys`: those that it has given; `life`: how long it says they are good."""

    url: str
    life: timedelta = timedelta(hours=1)
    # Status, and STS's code, instead of a key.
    failure: tuple[int, str] | None = None
    keys: dict[str, AccessKey] = field(default_factory=dict)

    def give(self) -> dict[str, str]:
        number = len(self.keys) + 1
        key = AccessKey(f"secret-of-{number}", f"session/token+of={number}")
        self.keys[f"ASIAROLE{number}"] = key
        end = (datetime.now(UTC) + self.life).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"id": f"ASIAROLE{number}", "secret": key.secret, "token": key.session_token, "end": end}


@contextmanager
def web_identity(folder: Path, server: CredentialServer) -> Iterator[None]:
    """Let this process, and what it starts, have the role of a web identity, and nothing else of AWS."""
    (folder / "identity").write_text(IDENTITY_TOKEN)
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in {
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_ROLE_ARN": ROLE, "AWS_REGION": "us-east-1",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "identity"), "AWS_ENDPOINT_URL_STS": server.url,
        }.items():  # fmt: skip
            environment.setenv(name, value)
        yield


@contextmanager
def credential_server() -> Iterator[CredentialServer]:
    """Run it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/agent" and self.headers.get("Authorization") != AGENT_TOKEN:
                self._send(403, "no")
            elif self.path == "/latest/meta-data/iam/security-credentials/":
                self._send(200, "headrace")
            else:
                self._give_json()

        def do_PUT(self) -> None:
            self._send(200, "a-token-of-the-instance")

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if server.failure is not None:
                # It repeats what it was asked.
                message = f"{form['WebIdentityToken'][0]} is not taken"
                self._send(server.failure[0], _STS_ERROR.format(code=server.failure[1], message=message))
            elif (form["RoleArn"], form["WebIdentityToken"]) != ([ROLE], [IDENTITY_TOKEN]):
                self._send(403, _STS_ERROR.format(code="AccessDenied", message="said by STS"))
            else:
                self._send(200, _STS.format(**server.give()))

        def _give_json(self) -> None:
            if server.failure is not None:
                self._send(server.failure[0], f"not for {self.headers.get('Authorization')}")
                return
            given = server.give()
            names = {"id": "AccessKeyId", "secret": "SecretAccessKey", "token": "Token", "end": "Expiration"}
            content = {name: given[key] for key, name in names.items()}
            self._send(200, dumps({"Code": "Success", "Type": "AWS-HMAC", **content}))

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = CredentialServer(f"http://127.0.0.1:{http.server_port}")
    threading.Thread(target=http.serve_forever, args=[0.1], daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
