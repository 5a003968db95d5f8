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
from headrace.writer.demo.devstack.events import SCHEMAS, generate, produce
from headrace.writer.demo.devstack.protobuf_encoding import ProtobufEncoding
from headrace.writer.demo.devstack.value_encoding import AvroEncoding
from tests.servers.secured import Authority, behind_login, broker

pytestmark = pytest.mark.slow


@pytest.fixture
def ran_alone(bootstrap, tmp_path, monkeypatch):
    """Run the command as into a pipe, without a registry. Returns what it printed, or the sentence of its end."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=0):
        servers = ("--bootstrap-servers", bootstrap) if words[0] == "init" else ()
        result = CliRunner().invoke(app, [words[0], *servers, *words[1:]])
        error = result.exception
        assert (error.exit_code if isinstance(error, HeadraceError) else result.exit_code) == code, (
            error,
            result.output,
        )
        return str(error) if isinstance(error, HeadraceError) else result.stdout

    return run


@pytest.fixture
def ran(ran_alone, registry_url):
    """Run the command with a registry."""

    def run(*words, code=0):
        registry = ("--registry-url", registry_url) if words[0] == "init" else ()
        return ran_alone(words[0], *registry, *words[1:], code=code)

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
        assert (pipeline["formats"], pipeline["wire"]) == (["avro"], "confluent")
        assert pipeline["event_time"] == {"field": "event_time"}
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


def send(bootstrap, topic, values):
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def order(number, now):
    """Return an order as JSON, by a producer without a schema."""
    document = {
        "id": number, "orderId": f"A-{number}", "created_at": 1000 * (now - number), "total": 12.5 if number % 2 else 3,
        "customer": {"name": "Anna Schmidt", "since": "2019-05-07", "note": None},
        "items": [{"sku": "x", "count": number}], "by_shop": {f"{number + 1000}": {"n": 1}}, "ID": 7,
    }  # fmt: skip
    return json.dumps(document).encode()


def test_json_without_a_schema_gets_proposed_columns_and_needs_no_registry(ran_alone, topic, bootstrap, tmp_path):
    name = topic(2)
    now = int(datetime.now(UTC).timestamp())
    send(bootstrap, name, [order(number, now) for number in range(60)])
    shown = ran_alone("init", "--topic", name)
    page = (tmp_path / "pipelines.yaml").read_text()
    config = yaml.safe_load(page)
    assert "registry" not in config
    pipeline = config["pipelines"][name]
    assert (pipeline["formats"], "wire" in pipeline) == (["json"], False)
    assert pipeline["event_time"] == {"field": "created_at"}
    assert pipeline["columns"]["declared"] == {
        "id": "long", "orderId": "string", "created_at": "timestamp(ms)", "total": "double",
        "customer": {"name": "string", "since": "date"}, "items": [{"sku": "string", "count": "long"}],
        "by_shop": {"*": {"n": "long"}},
    }  # fmt: skip
    assert list(pipeline["columns"]["declared"])[:3] == ["id", "orderId", "created_at"]
    assert "# ID: another column is called so but for upper case; the member stays in rest." in page
    assert "Anna" not in page
    assert f"{name}: 60 sampled values: JSON objects that name no schema\n" in shown
    assert f"{name}: 9 proposed columns of JSON, to be edited\n" in shown
    statuses = {check["check"]: check["status"] for check in json.loads(ran_alone("validate", "--json"))["findings"]}
    assert {statuses[check] for check in ("broker", "topics", "wire", "decode", "event_time")} == {"ok"}
    assert "failed" not in statuses.values()


def test_json_without_a_time_has_that_of_its_records(ran_alone, topic, bootstrap, tmp_path):
    name = topic(1)
    send(bootstrap, name, [b'{"id": 1, "born": "1998-07-05"}'] * 30)
    assert "event time _kafka_time, the time of the record in Kafka, for no field of 30" in ran_alone(
        "init", "--topic", name
    )
    config = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())["pipelines"][name]
    assert config["event_time"] == {"field": "_kafka_time"}
    statuses = {check["check"]: check["status"] for check in json.loads(ran_alone("validate", "--json"))["findings"]}
    assert (statuses["decode"], statuses["event_time"]) == ("ok", "ok")


def test_a_topic_of_avro_and_json_has_both_formats_and_no_member_against_the_schemas(
    ran, ran_alone, topic, bootstrap, registry_url, tmp_path
):
    name = topic(1)
    now = int(datetime.now(UTC).timestamp())
    fields = [
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "shop", "type": "string"},
    ]
    schema = {"type": "record", "name": "Click", "fields": fields}
    with SchemaRegistryClient({"url": registry_url}) as registry:
        schema_id = registry.register_schema(f"{name}-value", Schema(json.dumps(schema), "AVRO"))
    record = _encoded(parse_schema(schema), schema_id, {"event_time": 1000 * now, "shop": "x"})
    document = json.dumps({"event_time": 1000 * now, "shop": {"of": "another type"}, "source": "web"}).encode()
    send(bootstrap, name, [record, record, document] * 50)
    assert "Give the registry of their schemas" in ran_alone(
        "init", "--topic", name, "--format", "avro", "--format", "json", code=2
    )
    shown = ran("init", "--topic", name)
    page = (tmp_path / "pipelines.yaml").read_text()
    pipeline = yaml.safe_load(page)["pipelines"][name]
    assert (pipeline["formats"], pipeline["wire"]) == (["avro", "json"], "confluent")
    assert pipeline["event_time"] == {"field": "event_time"}
    assert pipeline["columns"]["declared"] == {"event_time": "timestamp(ms)", "source": "string"}
    assert "# shop: the registry's schemas have a column of this name and another type" in page
    assert "150 sampled values: 100 with a Confluent header" in shown
    statuses = {check["check"]: check["status"] for check in json.loads(ran("validate", "--json"))["findings"]}
    assert {statuses[check] for check in ("schemas", "wire", "decode", "event_time")} == {"ok"}


def test_json_that_names_a_json_schema_is_read_by_it(ran, topic, bootstrap, registry_url, tmp_path):
    name = topic(1)
    properties = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    schema = json.dumps({"type": "object", "title": "Order", "properties": properties})
    with SchemaRegistryClient({"url": registry_url}) as registry:
        schema_id = registry.register_schema(f"{name}-value", Schema(schema, "JSON"))
    value = json.dumps({"id": 1, "at": datetime.now(UTC).isoformat()}).encode()
    send(bootstrap, name, [struct.pack(">bI", 0, schema_id) + value] * 30)
    assert "event time at, timestamp" in ran("init", "--topic", name)
    pipeline = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())["pipelines"][name]
    assert (pipeline["formats"], pipeline["wire"]) == (["json_schema"], "confluent")
    assert "columns" not in pipeline
    statuses = {check["check"]: check["status"] for check in json.loads(ran("validate", "--json"))["findings"]}
    assert {statuses[check] for check in ("schemas", "wire", "decode", "event_time")} == {"ok"}


def test_protobuf_is_read_by_the_schema_that_it_names(ran, topic, bootstrap, registry_url, tmp_path):
    name = topic(1)
    encode = ProtobufEncoding(registry_url).open_encoder(name, "clicks")
    values = [encode(record) for _, record in generate("clicks", 30, now=datetime.now(UTC))]
    send(bootstrap, name, values)
    assert "event time event_time, timestamp" in ran("init", "--topic", name)
    pipeline = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())["pipelines"][name]
    assert (pipeline["formats"], pipeline["wire"]) == (["protobuf"], "confluent")
    findings = json.loads(ran("validate", "--json"))["findings"]
    statuses = {check["check"]: check["status"] for check in findings}
    assert {statuses[check] for check in ("schemas", "wire", "decode", "event_time")} == {"ok"}
    shown = json.loads(ran("schema", "plan", "--id", str(int.from_bytes(values[0][1:5], "big")), "--json"))
    assert (shown["compatible"], shown["decoder"]) == (True, "native")


def test_values_of_no_format_are_raw_only_if_that_is_asked_for(ran, ran_alone, topic, bootstrap, tmp_path):
    name = topic(1)
    send(bootstrap, name, [b"<order>Anna</order>"] * 30)
    for refused in (ran("init", "--topic", name, code=2), ran_alone("init", "--topic", name, code=2)):
        assert refused.startswith(f"{name}: none of 30 values has a wire format that can be seen")
        assert "The values: 30 like XML. " in refused
        assert refused.endswith("To keep the values as they are, undecoded, give --format raw")
        assert "Anna" not in refused
    assert not list(tmp_path.iterdir())
    assert "event time _kafka_time" in ran_alone("init", "--topic", name, "--format", "raw")
    config = yaml.safe_load((tmp_path / "pipelines.yaml").read_text())
    assert "registry" not in config
    assert config["pipelines"][name]["formats"] == ["raw"]
    statuses = {check["check"]: check["status"] for check in json.loads(ran_alone("validate", "--json"))["findings"]}
    assert (statuses["decode"], statuses["event_time"]) == ("ok", "ok")


def test_an_empty_topic_shows_no_columns_of_json(ran_alone, topic, tmp_path):
    name = topic(1)
    assert "the topic holds no values yet" in ran_alone("init", "--topic", name, "--format", "json", code=2)
    assert "--registry-url" in ran_alone("init", "--topic", name, code=2)
    assert not list(tmp_path.iterdir())
    ran_alone("init", "--topic", name, "--format", "raw")
    assert yaml.safe_load((tmp_path / "pipelines.yaml").read_text())["pipelines"][name]["formats"] == ["raw"]


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
