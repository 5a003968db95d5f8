"""`headrace init` on a real broker and registry: it writes what the topics hold, and `validate` finds it right."""

import json
import struct
from datetime import UTC, datetime

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import parse_schema, schemaless_writer
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.events import SCHEMAS, produce
from headrace.writer.demo.devstack.value_encoding import AvroEncoding
from tests.servers.secured import Authority, behind_login, broker

pytestmark = pytest.mark.slow


@pytest.fixture
def ran(bootstrap, registry_url, tmp_path, monkeypatch):
    """Run the command as into a pipe. Returns what it printed, or the sentence that it ended with."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=0):
        servers = ("--bootstrap-servers", bootstrap, "--registry-url", registry_url) if words[0] == "init" else ()
        result = CliRunner().invoke(app, [words[0], *servers, *words[1:]])
        error = result.exception
        assert (error.exit_code if isinstance(error, HeadraceError) else result.exit_code) == code, result.output
        return str(error) if isinstance(error, HeadraceError) else result.stdout

    return run


def test_a_configuration_that_init_writes_passes_validate(ran, topic, bootstrap, registry_url, tmp_path):
    clicks, installs = topic(2, prefix="Clicks"), topic(1, prefix="installs")
    for name, kind in ((clicks, "clicks"), (installs, "installs")):
        produce(bootstrap, AvroEncoding(registry_url), name, 300, now=datetime.now(UTC), kind=kind)
    shown = ran("init", "--topic", clicks, "--topic", installs)
    config = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())
    assert config["pipelines"].keys() == {clicks.lower(), installs}
    for name, pipeline in config["pipelines"].items():
        assert pipeline["topics"] == [clicks if name == clicks.lower() else installs]
        assert (pipeline["wire"], pipeline["event_time"]) == ("confluent", {"field": "event_time"})
        assert pipeline["table"] == {"location": str(tmp_path / "lake" / name)}
        assert f"{name}: 300 sampled values: Confluent header" in shown
    findings = json.loads(ran("validate", "--json"))["findings"]
    statuses = {check["check"]: check["status"] for check in findings}
    assert {statuses[check] for check in ("broker", "topics", "schemas", "wire", "decode", "event_time")} == {"ok"}
    assert "failed" not in statuses.values()
    before = (tmp_path / "pipelines.yaml").read_bytes()
    assert "exists, and stays as it is" in ran("init", "--topic", clicks, code=2)
    assert (tmp_path / "pipelines.yaml").read_bytes() == before


def test_the_event_time_is_the_field_with_believable_times_not_one_that_only_looks_like_it(
    ran, topic, bootstrap, registry_url, tmp_path
):
    name = topic(1)
    fields = {"id": "long", "event_date": "string", "received_at": "long", "at": "long", "valid_until_time": "long"}
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    inner = {"name": "head", "type": {"type": "record", "name": "H", "fields": [{"name": "made_at", "type": "long"}]}}
    schema["fields"].append(inner)
    with SchemaRegistryClient({"url": registry_url}) as registry:
        schema_id = registry.register_schema(f"{name}-value", Schema(json.dumps(schema), "AVRO"))
    now = int(datetime.now(UTC).timestamp())
    producer, parsed = Producer({"bootstrap.servers": bootstrap}), parse_schema(schema)
    for n in range(50):
        record = {
            "id": n, "event_date": "none", "received_at": now, "at": n, "valid_until_time": now + 10**9,
            "head": {"made_at": 1000 * (now - n)},
        }  # fmt: skip
        producer.produce(name, _encoded(parsed, schema_id, record))
    assert producer.flush(10) == 0
    shown = ran("init", "--topic", name, "--output", "other.yaml", "--lake", "s3://bucket/lake")
    config = yaml.safe_load((tmp_path / "other.yaml").read_text())["pipelines"][name]
    assert config["event_time"] == {"field": "head.made_at"}
    assert config["table"] == {"location": f"s3://bucket/lake/{name}"}
    assert "event time head.made_at, int64 in ms: " in shown
    assert "in 50 sampled rows; other times: received_at\n" in shown
    chosen = ran("init", "--topic", name, "--output", "third.yaml", "--event-time", "received_at")
    assert "event time received_at, as asked" in chosen


def test_an_empty_topic_goes_by_its_schema_and_without_one_it_asks(ran, topic, registry_url, tmp_path):
    name, bare = topic(1), topic(1)
    with SchemaRegistryClient({"url": registry_url}) as registry:
        registry.register_schema(f"{name}-value", Schema(json.dumps(SCHEMAS["clicks"]), "AVRO"))
    assert "event time event_time, by its name and type; there is no sample" in ran("init", "--topic", name)
    config = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())["pipelines"][name]
    assert (config["wire"], config["event_time"]["field"]) == ("auto", "event_time")
    assert "failed" not in {check["status"] for check in json.loads(ran("validate", "--json"))["findings"]}
    refused = ran("init", "--topic", bare, "--output", "bare.yaml", code=2)
    assert refused.endswith("Name the field with the event time: --event-time.")
    assert not (tmp_path / "bare.yaml").exists()


def test_a_topic_or_a_registry_that_is_not_there_is_a_sentence_and_no_file(ran, topic, tmp_path):
    assert "no-such-topic" in ran("init", "--topic", "no-such-topic", code=2)
    assert "127.0.0.1:1" in ran("init", "--topic", topic(1), "--registry-url", "http://127.0.0.1:1", code=1)
    assert "is no http:// or https:// URL" in ran("init", "--topic", "t", "--registry-url", "registry:8081", code=2)
    assert not list(tmp_path.iterdir())


def test_init_logs_in_and_the_file_refers_to_the_passwords(registry_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGISTRY_PASSWORD", "registry:pass/w@rd")
    (tmp_path / "kafka-password").write_text('kafka"pass\\word$1\n')
    authority = Authority(tmp_path / "certificates")
    client = authority.certificate("client").both
    with (
        broker(tmp_path / "broker", authority, "head race", 'kafka"pass\\word$1') as cluster,
        behind_login(registry_url, authority, "reader", "registry:pass/w@rd") as registry,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("clicks", 2, 1)])["clicks"].result(timeout=60)
        produce(cluster.bootstrap, AvroEncoding(registry_url), "clicks", 50, now=datetime.now(UTC), kind="clicks")
        result = CliRunner().invoke(
            app,
            [
                "init", "--topic", "clicks", "--bootstrap-servers", cluster.secured, "--security-protocol", "SASL_SSL",
                "--sasl-mechanism", "SCRAM-SHA-256", "--username", "head race", "--password-file", "kafka-password",
                "--ca-file", str(authority.ca), "--client-cert-file", str(client), "--registry-url", registry,
                "--registry-username", "reader", "--registry-password-env", "REGISTRY_PASSWORD",
                "--registry-ca-file", str(authority.ca),
            ],
        )  # fmt: skip
        assert result.exit_code == 0, (result.output, result.exception)
        page = (tmp_path / "pipelines.yaml").read_text()
        assert "pass\\word" not in page
        assert "pass/w@rd" not in page
        findings = json.loads(CliRunner().invoke(app, ["validate", "--json"]).stdout)["findings"]
    statuses = {check["check"]: check["status"] for check in findings}
    assert {statuses[check] for check in ("broker", "topics", "schemas", "wire", "decode", "event_time")} == {"ok"}


def _encoded(parsed, schema_id, record):
    import io

    out = io.BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(0, io.SEEK_END)
    schemaless_writer(out, parsed, record)
    return out.getvalue()
