"""A writer that logs in everywhere: Kafka by TLS both ways and SCRAM, a registry by TLS and a login, S3, its own HTTPS.

Then everything that it shows, says and writes is searched for the secrets that it was given.
"""

import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import psutil
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
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# Characters that are special to Java's parser of logins, to shells, to URLs and to XML.
KAFKA, REGISTRY, TOKEN = 'kafka"pass\\word$1&<', "registry:pass/w@rd%2", "the-token-of-live-records"
SECRETS = {"KAFKA_PASSWORD": KAFKA, "REGISTRY_PASSWORD": REGISTRY, "HTTP_TOKEN": TOKEN}


@dataclass(frozen=True)
class Ground:
    """What the writer is given to log in to."""

    site: Site
    topic: str
    lake: str
    ui: int


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
        (tmp_path / "spark-events").mkdir()
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
            "spark": {
                "conf": {
                    "spark.ui.enabled": "true", "spark.ui.port": str(ui), "spark.eventLog.enabled": "true",
                    "spark.eventLog.dir": f"file://{tmp_path}/spark-events", "spark.log.level": "INFO",
                    "spark.redaction.regex": "nothing-else",  # it adds to what is hidden
                },
            },
        }  # fmt: skip
        yield Ground(site, topic, f"{bucket}/lake/events", ui)


def created(cluster: SecuredBroker) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # its futures fail once it is collected
    admin.create_topics([NewTopic("events", 2, 1)])["events"].result(timeout=60)
    return "events"


def told(url: str) -> str:
    trusting = ssl._create_unverified_context()
    with urlopen(url, timeout=30, context=trusting if url.startswith("https") else None) as answer:
        return str(answer.read().decode(errors="replace"))


def verb(site: Site, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", words[0], str(site.config), *words[1:]],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def forms(secret: str) -> set[str]:
    """A secret as it is, and as URLs, JSON, HTML and basic authentication would have it."""
    html = secret.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    login = base64.b64encode(f"reader:{secret}".encode()).decode()
    java = secret.replace("\\", "\\\\").replace('"', '\\"')
    found = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], html, login, java, json.dumps(java)[1:-1]}
    return found | {repr(secret)[1:-1]}


def holds(text: str, secrets: Collection[str] = (*SECRETS.values(), SECRET)) -> list[str]:
    """Which secrets stand in a text."""
    return [form for secret in secrets for form in forms(secret) if form in text]


def ui_pages(port: int) -> dict[str, str]:
    """Spark's UI and its REST API: environment, plans, and all else."""
    root = f"http://127.0.0.1:{port}"
    app = json.loads(told(f"{root}/api/v1/applications"))[0]["id"]
    api = f"{root}/api/v1/applications/{app}"
    urls = [f"{root}/{page}/" for page in ("environment", "jobs", "stages", "executors", "SQL", "StreamingQuery")]
    urls += [f"{api}/{part}" for part in ("environment", "jobs", "stages", "allexecutors")]
    plans = f"{api}/sql?details=true&planDescription=true"
    urls += [plans, *(f"{root}/SQL/execution/?id={one['id']}" for one in json.loads(told(plans)))]
    return {url: told(url) for url in urls}


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def shown(workspace: Ground, writer: Writer) -> dict[str, str]:
    """Everything that a running writer shows, by where."""
    site = workspace.site
    url = json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"]
    found = {f"{url}{path}": told(url + path) for path in ("/status", "/metrics", "/healthz", "/buckets", "/")}
    found |= ui_pages(workspace.ui)
    family = [psutil.Process(writer.process.pid), *writer.family()]
    found["ps"] = "\n".join(command(process) for process in family)
    found["log"] = writer.output()
    found["headrace status"] = verb(site, "status", "--json")
    found["headrace validate"] = verb(site, "validate", "--json")
    for folder in ("checkpoints", "spark-events"):
        for path in (site.root / folder).rglob("*"):
            if path.is_file():
                found[str(path)] = path.read_bytes().decode(errors="replace")
    return found


def test_a_writer_that_logs_in_everywhere_loses_nothing_and_tells_no_secret(
    workspace: Ground, s3: ObjectServer, tmp_path: Path
) -> None:
    site = workspace.site
    site.fill(workspace.topic, 500, broken=5)
    writer = site.start()
    try:
        writer.until(lambda: writer.commits() > 0, 240)
        status = json.loads(verb(site, "status", "--json"))["pipelines"]["events"]
        assert status["source"] == "driver", "it is found and asked over HTTPS"
        assert json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"].startswith("https")
        found = shown(workspace, writer)
        assert len(json.loads(verb(site, "preview", "--json", "--records", "1").splitlines()[0])) > 3
        assert {place: held for place, text in found.items() if (held := holds(text))} == {}
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
        assert holds(writer.output()) == []
    finally:
        if writer.process.poll() is None:
            writer.kill()
    for path in (tmp_path / "spark-events").rglob("*"):
        assert not path.is_file() or holds(path.read_bytes().decode(errors="replace")) == []
    s3.download(workspace.lake, tmp_path / "copy" / "events")
    s3.download(f"{workspace.lake}_dead_letters", tmp_path / "copy" / "events_dead_letters")
    oracle.check(tmp_path / "copy" / "events", "events", site.ends(workspace.topic))
    says_why_a_login_fails_and_not_with_what(site)
    believes_no_broker_of_another_authority(site)


@pytest.fixture
def token_ground(
    tmp_path: Path, registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Ground, TokenServer]]:
    """A writer's site whose login is by tokens that live for ten seconds."""
    monkeypatch.setenv(SECRET_NAME, CLIENT_SECRET)
    (ui,) = free_ports(1)
    with TokenServer(10) as tokens, oauth_broker(tmp_path / "broker", tokens) as cluster:
        site = make_site(tmp_path, cluster, tokens, registry_url)
        create_topics(cluster.bootstrap, {"events": 2})
        lake = site.pipeline("events", ["events"], commit={"max_delay": "1 s"})
        (tmp_path / "spark-events").mkdir()
        (tmp_path / "temporary").mkdir()
        site.overrides["spark"] = {"conf": {
            "spark.ui.enabled": "true", "spark.ui.port": str(ui), "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{tmp_path}/spark-events", "spark.log.level": "INFO",
            "spark.redaction.regex": "nothing-else",
        }}  # fmt: skip
        yield Ground(site, "events", str(lake), ui), tokens


def test_a_writer_with_tokens_tells_neither_its_secret_nor_a_token(
    token_ground: tuple[Ground, TokenServer], tmp_path: Path
) -> None:
    ground, tokens = token_ground
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
        found = shown(ground, writer)
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
    for folder in ("lake", "spark-events", "checkpoints", "temporary"):
        for path in (tmp_path / folder).rglob("*"):
            if path.is_file():
                found[str(path)] = path.read_bytes().decode(errors="replace")
    found["wrong secret"] = refused_login(site)
    # A token that is cut is one, too: its signature is its end.
    secrets = [CLIENT_SECRET, *tokens.tokens, *(token.rpartition(".")[2] for token in tokens.tokens)]
    assert len(tokens.tokens) > 3
    assert {place: held for place, text in found.items() if (held := holds(text, secrets))} == {}
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
    (tmp_path / "spark-events").mkdir()
    site.overrides["spark"] = {"conf": {
        "spark.ui.enabled": "true", "spark.ui.port": str(ui), "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}/spark-events", "spark.log.level": "INFO",
    }}  # fmt: skip
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
        found = shown(ground, writer)
        login.refuse()
        site.fill(ground.topic, 100, seed=8)
        refused = subprocess.run(
            [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert refused.returncode != 0
        found["refused"] = refused.stdout + refused.stderr
        assert "Traceback" not in found["refused"]
        assert ground.lake in found["refused"]
    finally:
        if writer.process.poll() is None:
            writer.kill()
    found["log"] = writer.output()
    for path in (tmp_path / "spark-events").rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_bytes().decode(errors="replace")
    server.tell(demand_tokens=False)
    for key in server.keys(ground.lake):
        if key.endswith(".json"):
            found[key] = server.read(f"{ground.lake}/{key}").decode(errors="replace")
    assert {place: held for place, text in found.items() if (held := holds(text, login.secrets))} == {}
    assert [place for place, text in found.items() if JWT.search(text)] == []


def refused_login(site: Site) -> str:
    """Return what `validate` says where the secret is another, which the server of tokens repeats."""
    wrong = "not-this-secret-of-the-client"
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
        capture_output=True, text=True, timeout=400, check=False, env={**os.environ, SECRET_NAME: wrong},
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "Traceback" not in text
    assert holds(text, [wrong]) == []
    return text


def says_why_a_login_fails_and_not_with_what(site: Site) -> None:
    """Wrong passwords: each place says which setting to look at, and neither the wrong nor the right one."""
    wrong = {"KAFKA_PASSWORD": "not-this-one-kafka", "REGISTRY_PASSWORD": "not-this-one-registry"}
    for name, fix in (("KAFKA_PASSWORD", "kafka.security"), ("REGISTRY_PASSWORD", "registry.")):
        site.overrides["kafka"]["request_timeout"] = "5 s"
        done = subprocess.run(
            [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
            capture_output=True, text=True, timeout=400, check=False, env={**os.environ, name: wrong[name]},
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert fix in said, said
        assert wrong[name] not in said
        assert holds(said) == []
        assert not re.search(r"Traceback", said)


def believes_no_broker_of_another_authority(site: Site) -> None:
    site.overrides["kafka"]["security"]["ca_file"] = str(Authority(site.root / "others").ca)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "kafka.security" in done.stdout, done.stdout
