"""The real writer with a login by tokens of ten seconds: kills, a server of tokens that is down, and every command."""

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.writer.demo.devstack.kafka import create_topics
from tests.servers.oauth_broker import OAuthBroker, oauth_broker
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support import oracle
from tests.support.oauth_site import ACLS, SECRET_NAME, grant, make_site, producing
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
LIFE_S = 10


@dataclass(frozen=True)
class Servers:
    """What a writer logs in to."""

    tokens: TokenServer
    broker: OAuthBroker
    registry_url: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, registry_url: str) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("oauth")
    with (
        pytest.MonkeyPatch.context() as patch,
        TokenServer(LIFE_S) as tokens,
        oauth_broker(folder / "broker", tokens, overrides=ACLS) as broker,
    ):
        patch.setenv(SECRET_NAME, CLIENT_SECRET)
        yield Servers(tokens, broker, registry_url)


@pytest.fixture
def make_topic(servers: Servers) -> Callable[..., str]:
    """A factory of topics that the writer may read, and commit offsets of to a group."""
    numbers = itertools.count()

    def make(group: str | None = None) -> str:
        name = f"events-{time.monotonic_ns()}-{next(numbers)}"
        create_topics(servers.broker.bootstrap, {name: 2})
        grant(servers.broker.bootstrap, name, group)
        return name

    return make


@pytest.fixture
def site(tmp_path: Path, servers: Servers) -> Site:
    return make_site(tmp_path, servers.broker, servers.tokens, servers.registry_url)


def run_headrace(*words: str | Path, code: int = 0) -> str:
    """Run a command of headrace. Returns what it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == code, f"{words}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def run_once(site: Site) -> None:
    """Run the writer to its end, in a JVM of its own: one that is shared began without the address of this login."""
    site.once(env={"HEADRACE_LOG": "text"})


def all_records(site: Site, topic: str) -> int:
    return sum(site.ends(topic).values())


def wait_for_all(writer: Writer, site: Site, topic: str, lake: Path) -> None:
    """Wait until the table has all records of the topic."""
    expected = all_records(site, topic)
    writer.until(lambda: oracle.count(lake) >= expected, 120)


def test_a_stream_with_tokens_of_ten_seconds_survives_a_kill_and_a_server_that_is_down(
    site: Site, servers: Servers, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    lake = site.pipeline("events", [topic], commit={"max_delay": "1 s"})
    messages = iter(site.values(topic, 20_000))
    given_before = len(servers.tokens.tokens)
    with producing(lambda: site.send(topic, itertools.islice(messages, 20))):
        writer = site.start()
        writer.until(lambda: writer.commits() >= 3)
        writer.kill()
        writer = site.start()
        writer.until(lambda: writer.commits() >= 2)
        # Less than what is left of each token that is shown.
        servers.tokens.stop()
        time.sleep(0.4 * LIFE_S)
        servers.tokens.start()
        commits = writer.commits()
        writer.until(lambda: writer.commits() >= commits + LIFE_S)
    wait_for_all(writer, site, topic, lake)
    writer.stop()
    oracle.check(lake, "events", site.ends(topic))
    assert len(servers.tokens.tokens) - given_before > 5


def test_each_command_logs_in_by_tokens_with_the_documented_rights(
    site: Site, servers: Servers, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic("shown")
    lake = site.pipeline("events", [topic], commit_offsets_to_group="shown")
    site.fill(topic, 500, broken=3)
    findings = json.loads(run_headrace("validate", site.config, "--json"))["findings"]
    assert [finding for finding in findings if finding["status"] == "failed"] == []
    run_once(site)
    site.fill(topic, 200, seed=8)
    assert json.loads(run_headrace("status", site.config, "--json"))["pipelines"]["events"]["lag"]["offsets"] == 200
    run_headrace("gaps", "open", site.config, "--reason", "only new events matter", "--yes")
    run_once(site)
    run_headrace("backfill", site.config, "--yes")
    assert len(run_headrace("preview", site.config, "--json", "--records", "2").splitlines()) == 2
    run_headrace("audit", site.config, "--deep")
    oracle.check(lake, "events", site.ends(topic))
    written = tmp_path / "init.yaml"
    broker = ("--bootstrap-servers", servers.broker.oauth, "--security-protocol", "sasl_plaintext")
    login = ("--token-url", servers.tokens.token_url, "--client-id", CLIENT_ID, "--client-secret-env", SECRET_NAME)
    registry = ("--registry-url", servers.registry_url)
    run_headrace("init", *broker, *login, *registry, "--scope", "kafka", "--topic", topic, "--output", written)
    assert CLIENT_SECRET not in written.read_text()
    findings = json.loads(run_headrace("validate", written, "--json"))["findings"]
    assert [finding for finding in findings if finding["status"] == "failed"] == []
    assert set(servers.tokens.ways) == {"basic"}


def test_a_topic_without_rights_is_named_for_both_clients(site: Site, servers: Servers) -> None:
    create_topics(servers.broker.bootstrap, {"hidden": 1})
    site.pipeline("events", ["hidden"])
    findings = json.loads(run_headrace("validate", site.config, "--json", code=2))["findings"]
    failed = {finding["check"]: finding["message"] for finding in findings if finding["status"] == "failed"}
    assert "hidden" in failed["topics"]
    assert failed["spark_login"].endswith("may not ask for 1 topic: hidden")


def test_spark_s_own_source_reads_for_longer_than_a_token_lives(site: Site, make_topic: Callable[..., str]) -> None:
    site.overrides["kafka"]["reader"] = "spark"
    topic = make_topic()
    lake = site.pipeline("events", [topic], commit={"max_delay": "1 s"})
    site.fill(topic, 300)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    # Java logs in again in between.
    time.sleep(1.2 * LIFE_S)
    site.fill(topic, 300, seed=8)
    wait_for_all(writer, site, topic, lake)
    writer.stop()
    oracle.check(lake, "events", site.ends(topic))


def play_fault(chance: random.Random, writer: Writer, site: Site, tokens: TokenServer) -> Writer:
    """Let a fault happen, and the writer commit again. Returns the writer that runs then."""
    match chance.choice(("kill", "short silence", "long silence", "new key", "slow")):
        case "kill":
            writer.kill()
        case "short silence":
            tokens.stop()
            time.sleep(chance.uniform(1, 0.4 * LIFE_S))
            tokens.start()
        case "long silence":
            tokens.stop()
            time.sleep(chance.uniform(LIFE_S, 2 * LIFE_S))
            tokens.start()
        case "new key":
            tokens.rotate_keys()
        case "slow":
            tokens.delay_s = 2
            time.sleep(LIFE_S)
            tokens.delay_s = 0
    begin_s = time.monotonic()
    commits = writer.commits()
    while writer.commits() < commits + 5:
        if writer.process.poll() is not None:
            # As a supervisor does: Java's client gives up where its token has ended.
            writer = site.start()
            commits = 0
        assert time.monotonic() - begin_s < 240, writer.output()
        time.sleep(0.2)
    time.sleep(chance.uniform(0, LIFE_S))
    return writer


@pytest.mark.timeout(1_500)
def test_ten_minutes_of_tokens_kills_and_silence_lose_and_double_nothing(
    site: Site, servers: Servers, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    lake = site.pipeline("events", [topic], commit={"max_delay": "1 s"})
    messages = iter(site.values(topic, 60_000))
    chance = random.Random(7)
    end_s = time.monotonic() + 600
    with producing(lambda: site.send(topic, itertools.islice(messages, 20))):
        writer = site.start()
        while time.monotonic() < end_s:
            writer = play_fault(chance, writer, site, servers.tokens)
            oracle.check_rows(lake, "events")
    wait_for_all(writer, site, topic, lake)
    writer.stop()
    oracle.check(lake, "events", site.ends(topic))
