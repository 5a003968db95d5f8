"""A writer that logs in everywhere: Kafka by TLS both ways and SCRAM, a registry by TLS and a login, S3, its own HTTPS.

Then everything that it shows, says and writes is searched for the secrets that it was given.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.demo.devstack.process import free_ports
from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.servers.cloud_tokens import cloud_tokens
from tests.servers.oauth_broker import oauth_broker
from tests.servers.objects import SECRET, ObjectServer
from tests.servers.secured import Authority, SecuredBroker, behind_login, broker
from tests.servers.token_server import CLIENT_SECRET, TokenServer
from tests.support import oracle
from tests.support.cloud_logins import CLOUD_LOGINS, JWT, CloudLogin, cloud_login
from tests.support.oauth_site import SECRET_NAME, make_site
from tests.support.shown_secrets import (
    Ground,
    collect_screens,
    find_in_places,
    find_secrets,
    read_files,
    run_command,
    spark_conf,
)
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# Characters that are special to Java's parser of logins, to shells, to URLs and to XML.
KAFKA, REGISTRY, TOKEN = 'kafka"pass\\word$1&<', "registry:pass/w@rd%2", "the-token-of-live-records"
SECRETS = {"KAFKA_PASSWORD": KAFKA, "REGISTRY_PASSWORD": REGISTRY, "HTTP_TOKEN": TOKEN}
ALL_SECRETS = (*SECRETS.values(), SECRET)


@pytest.fixture
def workspace(tmp_path: Path, registry_url: str, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    authority = Authority(tmp_path / "certificates")
    bucket = s3.bucket()
    (ui,) = free_ports(1)
    own = authority.certificate("driver")
    with (
        broker(tmp_path / "broker", authority, "head race", KAFKA) as cluster,
        behind_login(registry_url, authority, "reader", REGISTRY) as registry,
    ):
        site = Site(tmp_path, cluster.bootstrap, registry_url)
        topic = created(cluster)
        site.pipeline("events", [topic], table={"location": f"{bucket}/lake/events"}, commit={"max_delay": "1 s"})
        site.overrides = {
            "kafka": {
                "bootstrap_servers": cluster.secured, "request_timeout": "20 s", "lag_interval": "1 s",
                "security": {
                    "protocol": "sasl_ssl",
                    "login": {"type": "scram", "user": "head race", "password": "${env:KAFKA_PASSWORD}"},
                    "ca_file": str(authority.ca), "client_cert_file": str(authority.certificate("client").both),
                },
            },
            "registry": {
                "url": registry, "ca_file": str(authority.ca),
                "login": {"type": "basic", "user": "reader", "password": "${env:REGISTRY_PASSWORD}"},
            },
            "s3": {"endpoint": s3.url},
            "checkpoints": str(tmp_path / "checkpoints"),
            "http": {
                "port": 0, "certificate": str(own.certificate), "key": str(own.key), "expose_records": True,
                "token": "${env:HTTP_TOKEN}",
            },
            "spark": {"conf": spark_conf(tmp_path, ui)},
        }  # fmt: skip
        yield Ground(site, topic, f"{bucket}/lake/events", ui)


def created(cluster: SecuredBroker) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # its futures fail once it is collected
    admin.create_topics([NewTopic("events", 2, 1)])["events"].result(timeout=60)
    return "events"


def test_a_writer_that_logs_in_everywhere_loses_nothing_and_tells_no_secret(
    workspace: Ground, s3: ObjectServer, tmp_path: Path
) -> None:
    site = workspace.site
    site.fill(workspace.topic, 500, broken=5)
    writer = site.start()
    try:
        writer.until(lambda: writer.commits() > 0, 240)
        status = json.loads(run_command(site, "status", "--json"))["pipelines"]["events"]
        assert status["source"] == "driver", "it is found and asked over HTTPS"
        assert json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"].startswith("https")
        found = collect_screens(workspace, writer)
        assert len(json.loads(run_command(site, "preview", "--json", "--records", "1").splitlines()[0])) > 3
        assert find_in_places(found, ALL_SECRETS) == {}
        # The places are the right ones: what is no secret stands there.
        plans = next(text for place, text in found.items() if "planDescription" in place)
        assert "MicroBatchScan" in plans or "kafka" in plans.lower(), plans[:2_000]
        assert "spark.redaction.regex" in next(
            text for place, text in found.items() if "v1" in place and "env" in place
        )
        assert "headrace.yaml" in found["ps"]
        assert "sasl.jaas.config = [hidden]" in found["log"], "Kafka's own client says what it was given"
        writer.process.send_signal(signal.SIGTERM)
        assert writer.wait(120) == 0, writer.output()
        assert find_secrets(writer.output(), ALL_SECRETS) == []
    finally:
        if writer.process.poll() is None:
            writer.kill()
    assert find_in_places(dict(read_files(tmp_path / "spark-events")), ALL_SECRETS) == {}
    s3.download(workspace.lake, tmp_path / "copy" / "events")
    s3.download(f"{workspace.lake}_dead_letters", tmp_path / "copy" / "events_dead_letters")
    oracle.check(tmp_path / "copy" / "events", "events", site.ends(workspace.topic))
    says_why_a_login_fails_and_not_with_what(site)
    believes_no_broker_of_another_authority(site)


@dataclass(frozen=True)
class TokenGround:
    """A site whose login is by tokens. `assertions`: JWTs that prove the client, where no secret does."""

    ground: Ground
    tokens: TokenServer
    assertions: list[str]


@pytest.fixture(params=["secret", "client_credentials", "jwt_bearer"])
def token_ground(
    request: pytest.FixtureRequest, tmp_path: Path, registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TokenGround]:
    """A writer's site whose login is by tokens that live for ten seconds: for a secret, or an assertion by a grant."""
    monkeypatch.setenv(SECRET_NAME, CLIENT_SECRET)
    (ui,) = free_ports(1)
    with TokenServer(10) as tokens, oauth_broker(tmp_path / "broker", tokens) as cluster:
        site = make_site(tmp_path, cluster, tokens, registry_url)
        create_topics(cluster.bootstrap, {"events": 2})
        lake = site.pipeline("events", ["events"], commit={"max_delay": "1 s"})
        (tmp_path / "temporary").mkdir()
        site.overrides["spark"] = {"conf": spark_conf(tmp_path, ui)}
        proof = site.overrides["kafka"]["security"]["login"]
        assertions = list[str]()
        if request.param != "secret":
            file = tmp_path / "assertion"
            assertions.append(tokens.sign_assertion(3_600))
            file.write_text(assertions[0])
            del proof["client_secret"]
            proof |= {"assertion_file": str(file), "grant": request.param}
        yield TokenGround(Ground(site, "events", str(lake), ui), tokens, assertions)


def test_a_writer_with_tokens_tells_neither_its_proof_nor_a_token(token_ground: TokenGround, tmp_path: Path) -> None:
    ground, tokens = token_ground.ground, token_ground.tokens
    site = ground.site
    site.fill("events", 300, broken=3)
    tokens.repeats_questions = True
    writer = site.start(env={"TMPDIR": str(tmp_path / "temporary")})
    try:
        writer.until(lambda: writer.commits() > 0, 240)
        given = len(tokens.tokens)
        writer.until(lambda: len(tokens.tokens) > given, 60)
        tokens.stop()
        writer.until(lambda: "token_not_renewed" in writer.output(), 60)
        tokens.start()
        given = len(tokens.tokens)
        writer.until(lambda: len(tokens.tokens) > given, 60)
        found = collect_screens(ground, writer)
        assert "sasl.oauthbearer.token.endpoint.url = http://127.0.0.1:" in found["log"], (
            "Kafka's own client says what it was given"
        )
        writer.process.send_signal(signal.SIGTERM)
        assert writer.wait(120) == 0, writer.output()
        found["log"] = writer.output()
    finally:
        if writer.process.poll() is None:
            writer.kill()
    # All that lies on the disk then: the lake, the event log, what is temporary. The broker's folder is the broker's.
    folders = ("lake", "spark-events", "checkpoints", "temporary")
    found |= read_files(*(tmp_path / folder for folder in folders))
    found["wrong proof"] = refused_login(token_ground)
    # A token that is cut is one, too: its signature is its end.
    jwts = [*tokens.tokens, *token_ground.assertions]
    secrets = [CLIENT_SECRET, *jwts, *(jwt.rpartition(".")[2] for jwt in jwts)]
    assert len(tokens.tokens) > 3
    assert find_in_places(found, secrets) == {}
    # Java's secret for the driver's endpoint, which is made up at the start.
    assert [place for place, text in found.items() if re.search(r'clientSecret="?[\w-]{20}', text)] == []
    oracle.check(Path(ground.lake), "events", site.ends("events"))


@dataclass(frozen=True)
class CloudGround:
    """A site whose table lies in a cloud, and how it logs in there."""

    ground: Ground
    server: GcsStore | AzureStore
    login: CloudLogin


@pytest.fixture(params=CLOUD_LOGINS)
def cloud_ground(
    request: pytest.FixtureRequest,
    site: Site,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CloudGround]:
    """A lake in a cloud that is reached by one kind of credentials."""
    kind = str(request.param)
    server: GcsStore | AzureStore = request.getfixturevalue("azure" if kind.startswith("azure") else "gcs")
    lake = f"{server.bucket()}/lake/events"
    (ui,) = free_ports(1)
    name = topic(2)
    site.pipeline("events", [name], table={"location": lake}, commit={"max_delay": "1 s"})
    site.overrides["spark"] = {"conf": spark_conf(tmp_path, ui)}
    if isinstance(server, AzureStore):
        site.overrides["azure"] = {"account": server.account, "endpoint": server.url}
    else:
        site.overrides["gcs"] = {"endpoint": server.url}
    with cloud_tokens(3_600) as tokens:
        login = cloud_login(kind, server, lake, tokens, tmp_path)
        for variable, value in {**server.address, **login.environment}.items():
            monkeypatch.setenv(variable, value)
        try:
            yield CloudGround(Ground(site, name, lake, ui), server, login)
        finally:
            server.tell(demand_tokens=False, public_key="")


def test_a_writer_in_a_cloud_tells_no_credential(cloud_ground: CloudGround, tmp_path: Path) -> None:
    ground, server, login = cloud_ground.ground, cloud_ground.server, cloud_ground.login
    site = ground.site
    site.fill(ground.topic, 300, broken=3)
    writer = site.start()
    try:
        writer.until(lambda: writer.commits() > 0, 240)
        found = collect_screens(ground, writer)
        login.refuse()
        site.fill(ground.topic, 100, seed=8)
        found["refused"] = run_command(site, "validate", "--json", code=2)
        assert "Traceback" not in found["refused"]
        assert ground.lake in found["refused"]
    finally:
        if writer.process.poll() is None:
            writer.kill()
    found["log"] = writer.output()
    found |= read_files(tmp_path / "spark-events")
    server.tell(demand_tokens=False)
    for key in server.keys(ground.lake):
        if key.endswith(".json"):
            found[key] = server.read(f"{ground.lake}/{key}").decode(errors="replace")
    assert find_in_places(found, login.secrets) == {}
    assert [place for place, text in found.items() if JWT.search(text)] == []


def refused_login(token_ground: TokenGround) -> str:
    """Return what `validate` says where secret or assertion are others, which the server of tokens repeats."""
    wrong = "not-this-secret-of-the-client"
    for assertion in token_ground.assertions:
        file = token_ground.ground.site.root / "assertion"
        assert file.read_text() == assertion
        wrong = TokenServer().sign_assertion()
        file.write_text(wrong)
    text = run_command(token_ground.ground.site, "validate", "--json", code=2, env={**os.environ, SECRET_NAME: wrong})
    assert "gives no token (it answers 401" in text
    assert "Traceback" not in text
    assert find_secrets(text, [wrong]) == []
    return text


def says_why_a_login_fails_and_not_with_what(site: Site) -> None:
    """Wrong passwords: each place says which setting to look at, and neither the wrong nor the right one."""
    wrong = {"KAFKA_PASSWORD": "not-this-one-kafka", "REGISTRY_PASSWORD": "not-this-one-registry"}
    for name, fix in (("KAFKA_PASSWORD", "kafka.security"), ("REGISTRY_PASSWORD", "registry.")):
        site.overrides["kafka"]["request_timeout"] = "5 s"
        said = run_command(site, "validate", "--json", code=2, env={**os.environ, name: wrong[name]})
        assert fix in said, said
        assert wrong[name] not in said
        assert find_secrets(said, ALL_SECRETS) == []
        assert not re.search(r"Traceback", said)


def believes_no_broker_of_another_authority(site: Site) -> None:
    site.overrides["kafka"]["security"]["ca_file"] = str(Authority(site.root / "others").ca)
    said = run_command(site, "validate", "--json", code=2)
    assert "kafka.security" in said, said
