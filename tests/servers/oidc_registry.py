"""A registry that wants bearer tokens: Apicurio with OpenID Connect, which checks them by a token server's keys."""

import json
from pathlib import Path

from headrace.writer.core.http import Answer, RequestFailed, ask
from headrace.writer.demo.devstack.registry import READY_WITHIN, Registry
from tests.servers.token_server import TokenServer

AUDIENCE = "registry"
# What Apicurio calls the roles of those who read, and of those who write.
READER, WRITER = "sr-readonly", "sr-developer"
_ROLES = "groups"


class OidcRegistry(Registry):
    """A registry that nobody asks without a token of a server, with its audience and a role. It begins empty."""

    def __init__(self, directory: Path, tokens: TokenServer) -> None:
        super().__init__(directory)
        self._tokens = tokens
        self._settings = {
            "quarkus.oidc.tenant-enabled": "true",
            "quarkus.oidc.auth-server-url": tokens.url,
            "quarkus.oidc.client-id": AUDIENCE,
            "quarkus.oidc.token.audience": AUDIENCE,
            "quarkus.oidc.token.issuer": tokens.url,
            # A new key of the server is asked for soon.
            "quarkus.oidc.token.forced-jwk-refresh-interval": "1S",
            "quarkus.oidc.roles.role-claim-path": _ROLES,
            "apicurio.auth.role-based-authorization": "true",
        }

    def wait(self) -> None:
        """Return once it answers. Raises ServerFailed."""
        assert self._process is not None, "launch comes before wait"
        self._process.wait_until(self._takes_tokens, within=READY_WITHIN)

    def _takes_tokens(self) -> bool:
        try:
            return self.ask("/subjects", self.sign(READER)).ok
        except RequestFailed:
            return False

    def sign(self, role: str) -> str:
        """Return a token of a role for it."""
        return self._tokens.sign(aud=AUDIENCE, **claims_of(role))

    def ask(self, path: str, token: str) -> Answer:
        """Ask it with a token. Raises RequestFailed."""
        return ask(f"{self.url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout_s=10, proxies=False)

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema. Returns its id."""
        answer = ask(
            f"{self.url}/subjects/{subject}/versions",
            method="POST",
            body=json.dumps({"schema": schema}).encode(),
            headers={"Authorization": f"Bearer {self.sign(WRITER)}", "Content-Type": "application/json"},
            timeout_s=10,
            proxies=False,
        )
        assert answer.ok, answer.summary()
        return int(answer.json()["id"])


def claims_of(role: str) -> dict[str, list[str]]:
    """Return the claim that gives a role."""
    return {_ROLES: [role]}
