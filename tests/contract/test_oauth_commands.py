"""Commands that log in by tokens, with the rights that docs/LOGINS.md names and no other."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.demo.devstack.kafka import create_topics
from tests.servers.oauth_broker import OAuthBroker, oauth_broker
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support.oauth_site import ACLS, SECRET_NAME, grant, make_site
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
Run = Callable[..., str]


@dataclass(frozen=True)
class Servers:
    """What commands log in to."""

    tokens: TokenServer
    broker: OAuthBroker
    registry_url: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, registry_url: str) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("oauth")
    with (
        pytest.MonkeyPatch.context() as patch,
        TokenServer() as tokens,
        oauth_broker(folder / "broker", tokens, overrides=ACLS) as broker,
    ):
        patch.setenv(SECRET_NAME, CLIENT_SECRET)
        create_topics(broker.bootstrap, {"readable": 2, "hidden": 1})
        grant(broker.bootstrap, "readable", "shown")
        yield Servers(tokens, broker, registry_url)


@pytest.fixture
def site(tmp_path: Path, servers: Servers) -> Site:
    return make_site(tmp_path, servers.broker, servers.tokens, servers.registry_url)


def run(*words: str | Path, code: int = 0) -> str:
    """Run a command in this process. Returns what it prints, or its error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    text = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        text += str(result.exception)
    assert (result.exit_code == 0) == (code == 0), text
    assert CLIENT_SECRET not in text
    return text


def failures(document: str) -> list[dict[str, str]]:
    return [finding for finding in json.loads(document)["findings"] if finding["status"] == "failed"]


def test_commands_log_in_by_tokens_with_read_and_describe_configs(site: Site, servers: Servers, tmp_path: Path) -> None:
    site.pipeline("events", ["readable"], commit_offsets_to_group="shown")
    site.fill("readable", 100, broken=2)
    config = site.config
    assert failures(run("validate", config, "--json")) == []
    assert len(run("preview", config, "--json", "--records", "2").splitlines()) == 2
    assert json.loads(run("status", config, "--json"))["pipelines"]["events"]["source"] == "lake"
    written = tmp_path / "init.yaml"
    broker = ("--bootstrap-servers", servers.broker.oauth, "--security-protocol", "sasl_plaintext")
    login = ("--token-url", servers.tokens.token_url, "--client-id", CLIENT_ID, "--client-secret-env", SECRET_NAME)
    registry = ("--registry-url", servers.registry_url)
    run("init", *broker, *login, *registry, "--scope", "kafka", "--topic", "readable", "--output", written)
    assert CLIENT_SECRET not in written.read_text()
    assert failures(run("validate", written, "--json")) == []
    assert set(servers.tokens.ways) == {"basic"}


def test_a_topic_without_rights_is_named(site: Site) -> None:
    site.pipeline("events", ["hidden"])
    findings = failures(run("validate", site.config, "--json", code=1))
    (finding,) = [finding for finding in findings if finding["check"] == "topics"]
    assert "hidden" in finding["message"]
