"""Brokers for whole suites with or without a login: HEADRACE_TEST_LOGIN=oauth lets every writer of the suite log in.

Tests produce and administer over the open listener, `Broker.bootstrap`. With the login, a broker has a further one that
wants tokens, and a site's configuration names that one (`with_login`).
"""

import atexit
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from headrace.writer.demo.devstack.kafka import Broker
from tests.servers.oauth_broker import add_listener
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, SCOPE, TokenServer

LOGIN = os.environ.get("HEADRACE_TEST_LOGIN", "none")
# Several end in each test.
_LIFE_S = 10
# Open listener → the listener of the same broker that wants a login.
_LISTENERS = dict[str, str]()

assert LOGIN in ("none", "oauth"), f"HEADRACE_TEST_LOGIN={LOGIN} is not known: oauth, or none"


def add_login(broker: Broker) -> Broker:
    """Give a broker that is not launched yet the listener that the suite's login wants. Returns the broker."""
    if LOGIN == "oauth":
        _LISTENERS[broker.bootstrap] = add_listener(broker, _token_server())
    return broker


def with_login(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `kafka` of a configuration with the suite's login.

    It stays as it is where it has a login, or names no broker that has a listener for one.
    """
    addresses = str(kafka.get("bootstrap_servers")).split(",")
    if "security" in kafka or not _LISTENERS.keys() >= set(addresses):
        return dict(kafka)
    login = {
        "type": "oauth",
        "token_url": _token_server().token_url,
        "client_id": CLIENT_ID,
        "client_secret_file": str(_secret_file()),
        "scope": SCOPE,
    }
    return {
        **kafka,
        "bootstrap_servers": ",".join(_LISTENERS[address] for address in addresses),
        "security": {"protocol": "sasl_plaintext", "login": login},
    }


def writer_address(bootstrap: str) -> str:
    """Return where a writer connects to brokers that a test knows by their open listeners."""
    return str(with_login({"bootstrap_servers": bootstrap})["bootstrap_servers"])


@cache
def _token_server() -> TokenServer:
    """Return the server of this process's tokens. It runs until the process ends."""
    server = TokenServer(_LIFE_S)
    server.start()
    return server


@cache
def _secret_file() -> Path:
    """Return a file with the client's secret, which goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="headrace-login-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "client-secret"
    path.write_text(CLIENT_SECRET, encoding="utf-8")
    return path
