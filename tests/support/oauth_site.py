"""A site whose writer logs in, by tokens or else, and a producer that goes on beside it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.servers.oauth_broker import OAuthBroker
from tests.servers.token_server import CLIENT_ID, TokenServer
from tests.support.writer_process import Site

# Environment variable with the client's secret.
SECRET_NAME = "KAFKA_CLIENT_SECRET"
# Lines of server.properties: nobody has a right that was not granted; the open door is the test's.
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def make_site(root: Path, broker: OAuthBroker, tokens: TokenServer, registry_url: str, **kafka: Any) -> Site:
    """Return a site on a broker's door for tokens. `kafka`: further keys of its section."""
    login = {
        "type": "oauth",
        "token_url": tokens.token_url,
        "client_id": CLIENT_ID,
        "client_secret": f"${{env:{SECRET_NAME}}}",
        "scope": "kafka",
    }
    return make_login_site(root, broker.bootstrap, broker.oauth, registry_url, login, **kafka)


def make_login_site(
    root: Path, bootstrap: str, address: str, registry_url: str, login: Mapping[str, Any], **kafka: Any
) -> Site:
    """Return a site on a broker's door that wants a login.

    `bootstrap`: the broker's open door, for the test; `address`: that one; `kafka`: further keys of its section.
    """
    site = Site(root, bootstrap, registry_url)
    site.overrides["kafka"] = {
        "bootstrap_servers": address,
        "request_timeout": "10 s",
        "lag_interval": "1 s",
        "reader": site.reader,
        "security": {"protocol": "sasl_plaintext", "login": dict(login)},
        **kafka,
    }
    return site


def grant(bootstrap: str, topic: str, group: str | None = None) -> None:
    """Give the client the rights on a topic that docs/LOGINS.md names, and on a group that offsets are committed to."""
    rules = [
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.TOPIC, topic, AclOperation.DESCRIBE_CONFIGS),
    ]
    if group is not None:
        rules.append((ResourceType.GROUP, group, AclOperation.READ))
    bindings = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{CLIENT_ID}", "*", operation, AclPermissionType.ALLOW
        )
        for kind, name, operation in rules
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(timeout=30)


@contextmanager
def producing(send: Callable[[], None], pause_s: float = 0.5) -> Iterator[None]:
    """Call a function again and again, on a thread, until the block ends."""
    has_ended = threading.Event()
    failures = list[BaseException]()

    def run() -> None:
        while not has_ended.wait(pause_s) and not failures:
            try:
                send()
            except Exception as error:  # noqa: BLE001 - the block raises it
                failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join(60)
    assert not failures, failures
