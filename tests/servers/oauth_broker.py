"""A broker that takes tokens: a listener with OAUTHBEARER, which checks them against the keys of a token server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.demo.devstack.process import free_ports
from tests.servers.token_server import AUDIENCE, TokenServer

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_LISTENER = "listener.name.oauth"


@dataclass(frozen=True)
class OAuthBroker:
    """A broker with two doors: one open, for the test; one for tokens."""

    bootstrap: str  # of the open one
    oauth: str


@contextmanager
def oauth_broker(
    folder: Path, tokens: TokenServer, *, session_ms: int = 0, overrides: Mapping[str, str] | None = None
) -> Iterator[OAuthBroker]:
    """Run a broker that takes the tokens of a server. `session_ms`: the longest session, 0: as long as the token lives.

    `overrides`: lines of server.properties.
    """
    server = Broker(folder)
    address = add_listener(server, tokens, session_ms=session_ms)
    server._settings |= overrides or {}
    with server:
        yield OAuthBroker(server.bootstrap, address)


def add_listener(server: Broker, tokens: TokenServer, *, session_ms: int = 0) -> str:
    """Give a broker that is not launched yet a further listener, for the tokens of a server. Returns its address."""
    (port,) = free_ports(1)
    address = f"{server.host}:{port}"
    jwks = f"{tokens.url}/jwks"
    settings = server._settings
    # Kafka asks no other address for keys.
    server._jvm_options = [*server._jvm_options, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}"]
    for name, value in (
        ("listeners", f"OAUTH://{address}"),
        ("advertised.listeners", f"OAUTH://{address}"),
        ("listener.security.protocol.map", "OAUTH:SASL_PLAINTEXT"),
    ):
        settings[name] = f"{settings[name]},{value}"
    settings |= {
        "inter.broker.listener.name": "PLAINTEXT",
        f"{_LISTENER}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{_LISTENER}.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        f"{_LISTENER}.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        # Without it, Kafka 4.1 asks for no keys and takes forged tokens. It takes the listener's prefix alone.
        f"{_LISTENER}.sasl.oauthbearer.jwt.validator.class": f"{_OAUTH}.BrokerJwtValidator",
        f"{_LISTENER}.sasl.oauthbearer.jwks.endpoint.url": jwks,
        # A new key of the server is known soon.
        f"{_LISTENER}.sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
        f"{_LISTENER}.sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "100",
        f"{_LISTENER}.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{_LISTENER}.sasl.oauthbearer.expected.issuer": tokens.url,
        f"{_LISTENER}.oauthbearer.connections.max.reauth.ms": str(session_ms),
    }
    return address
