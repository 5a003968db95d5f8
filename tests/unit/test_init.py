"""The file that `headrace init` writes, and the field that it takes for the event time; no server is asked."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.batch.record_steps import Group
from headrace.writer.cli.main import app
from headrace.writer.cli.run.init_logins import choose_broker_access, choose_registry_login, choose_token_login
from headrace.writer.config.loader import checked
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.local_pipeline import Sample
from headrace.writer.preflight.proposal import starter, topic_summary
from headrace.writer.preflight.proposal.column_proposal import ProposedColumn
from headrace.writer.preflight.proposal.topic_summary import TopicSummary, unread_pipeline

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
OPTIONS = ("init", "--bootstrap-servers", "127.0.0.1:1", "--registry-url", "http://127.0.0.1:1")


def written(topic="Clicks.eu", wire="confluent", field="event_time", lake="/srv/lake", **logins):
    return page_of({"clicks": TopicSummary(topic, ("avro",), "seen", wire, (), field, "times")}, lake, **logins)


def page_of(summaries, lake="/srv/lake", **logins):
    """Return the file for what topics show, by pipeline."""
    pipelines = {name: unread_pipeline(summary.topic) for name, summary in summaries.items()}
    begun = starter.settings("broker:9092", "http://registry:8081", lake, **logins, pipelines=pipelines)
    complete = starter.with_topics(begun, summaries)
    return starter.text(complete, checked(complete, "the topics"), summaries)


def test_the_file_is_a_configuration_also_with_every_key_that_stands_behind_a_comment():
    page = written()
    config = checked(yaml.safe_load(page), "the file").pipelines["clicks"]
    assert config.topics.names == ["Clicks.eu"]
    assert (config.event_time.field, config.wire.format) == ("event_time", "confluent")
    keys = re.findall(r"^ *# (start|format|max_age|max_ahead|retention): ", page, re.MULTILINE)
    assert len(keys) == 5
    whole = re.sub(r"^( *)# (start|format|max_age|max_ahead|retention): ", r"\1\2: ", page, flags=re.MULTILINE)
    assert checked(yaml.safe_load(whole), "the file").pipelines["clicks"].retention == timedelta(days=365)


@pytest.mark.parametrize(
    ("name", "value"),
    [("topic", "on"), ("topic", "a: b # c"), ("field", "1e3"), ("wire", {"format": "bare", "schema_id": 7})],
)
def test_a_value_that_yaml_would_read_as_another_is_quoted(name, value):
    pipeline = yaml.safe_load(written(**{name: value}))["pipelines"]["clicks"]
    assert {"topic": pipeline["topics"][0], "field": pipeline["event_time"]["field"], "wire": pipeline["wire"]}[
        name
    ] == value


JSON_COLUMNS = (
    ProposedColumn("id", "long"),
    ProposedColumn("at", "timestamp(ms)", "Milliseconds since 1970, by name and size."),
    ProposedColumn("off", None, "off: always null in the sample."),
    ProposedColumn("items", [(ProposedColumn("note", None, "# a: b"), ProposedColumn("on", "decimal(38, 0)"))]),
)


def json_summary(*formats):
    return TopicSummary("orders", formats, "seen", "confluent" if formats[0] == "avro" else None, JSON_COLUMNS, "at")


def test_a_file_of_json_names_no_registry_and_has_the_proposed_columns_with_their_notes():
    page = page_of({"orders": json_summary("json")})
    raw = yaml.safe_load(page)
    assert "registry" not in raw
    pipeline = raw["pipelines"]["orders"]
    declared = {"id": "long", "at": "timestamp(ms)", "items": [{"on": "decimal(38, 0)"}]}
    assert (pipeline["formats"], pipeline["columns"]) == (["json"], {"declared": declared})
    assert "wire" not in pipeline
    assert "        # Milliseconds since 1970, by name and size.\n        at: timestamp(ms)\n" in page
    assert "        # off: always null in the sample.\n" in page
    whole = re.sub(r"^( *)# (undeclared|misfit): ", r"\1\2: ", page, flags=re.MULTILINE)
    columns = checked(yaml.safe_load(whole), "the file").pipelines["orders"].columns
    assert (columns.undeclared, columns.misfit) == ("rest", "dead_letter")


def test_a_file_of_several_formats_names_the_registry():
    raw = yaml.safe_load(page_of({"orders": json_summary("avro", "json"), "others": json_summary("json")}))
    assert raw["registry"] == {"url": "http://registry:8081"}
    assert (raw["pipelines"]["orders"]["formats"], raw["pipelines"]["orders"]["wire"]) == (
        ["avro", "json"],
        "confluent",
    )


def test_a_file_of_raw_values_has_the_time_of_kafka():
    page = page_of({"blobs": TopicSummary("blobs", ("raw",), "as asked", None, (), "_kafka_time", "times")})
    pipeline = checked(yaml.safe_load(page), "the file").pipelines["blobs"]
    assert (pipeline.formats, pipeline.event_time.field, pipeline.columns.headers) == (
        ["raw"], "_kafka_time", "_headers",
    )  # fmt: skip


def chosen(rows):
    table = pa.Table.from_pylist(rows)
    records = pa.table({"topic": ["t"] * len(rows), "timestamp": pa.nulls(len(rows), pa.timestamp("us", "UTC"))})
    return topic_summary._choose_event_time(table.schema, Sample([Group(1, records, table)]), NOW)[0]


def ago(**by):
    return NOW - timedelta(**by)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"ingested_at": ago(hours=1), "event_ts": ago(hours=2)}, "event_ts"),
        ({"amount": 12.5, "when": ago(hours=2)}, "when"),
        ({"born": ago(days=9000), "seen": ago(days=3).isoformat()}, "seen"),
        ({"id": 41, "timestamp": int(ago(days=3).timestamp())}, "timestamp"),
        ({"created_at": ago(days=3), "event_time": ago(days=900)}, "created_at"),
    ],
)
def test_the_event_time_has_believable_values_and_then_the_better_name(row, field):
    assert chosen([row] * 10) == field


def test_a_sample_without_a_believable_time_names_no_field():
    with pytest.raises(ConfigError, match="no field of 3 sampled rows holds times of the last year"):
        chosen([{"id": 1, "born": ago(days=900)}] * 3)


def test_init_refuses_to_overwrite_a_file_and_two_topics_of_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelines.yaml").write_text("mine")
    refused = CliRunner().invoke(app, [*OPTIONS, "--topic", "clicks"]).exception
    assert str(refused) == "pipelines.yaml exists, and stays as it is. Give another --output, or remove it."
    twins = CliRunner().invoke(app, [*OPTIONS, "--topic", "a.b", "--topic", "a-b", "--output", "o.yaml"]).exception
    assert str(twins) == "topics a.b and a-b would both be pipeline 'a-b'. Give one at a time."
    assert [path.name for path in tmp_path.iterdir()] == ["pipelines.yaml"]
    assert (tmp_path / "pipelines.yaml").read_text() == "mine"


def test_a_login_is_written_as_a_reference_never_as_the_password(tmp_path, monkeypatch):
    (tmp_path / "kafka: secret").write_text("of-kafka\n")
    monkeypatch.setenv("REGISTRY_PASSWORD", "of-the-registry")
    monkeypatch.chdir(tmp_path)
    access = choose_broker_access("sasl_ssl", "plain", "head race", Path("kafka: secret"), ca_file=Path("ca.pem"))
    registry = choose_registry_login("reader", registry_password_env="REGISTRY_PASSWORD")
    page = written(security=access.security({}), registry=registry)
    assert "of-kafka" not in page
    assert "of-the-registry" not in page
    raw = yaml.safe_load(page)
    assert raw["kafka"]["security"] == {
        "protocol": "sasl_ssl", "login": {
            "type": "plain", "user": "head race", "password": f"${{file:{tmp_path}/kafka: secret}}",
        },
        "ca_file": f"{tmp_path}/ca.pem",
    }  # fmt: skip
    assert raw["registry"] == {
        "url": "http://registry:8081",
        "login": {"type": "basic", "user": "reader", "password": "${env:REGISTRY_PASSWORD}"},
    }  # fmt: skip
    config = checked(raw, "the file")
    assert config.kafka.security.login.secret.read() == "of-kafka"
    assert config.registry.login.secret.read() == "of-the-registry"


def test_a_login_by_tokens_is_written_with_the_file_of_its_secret_or_a_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", "the-secret")
    monkeypatch.chdir(tmp_path)
    access = choose_broker_access("sasl_ssl")
    url = "https://id.example.com/token"
    client = {"token_url": url, "client_id": "headrace"}
    token_login = choose_token_login(**client, client_secret_file=Path("secret"), scope="kafka read")
    assert access.security(token_login)["login"] == {
        "type": "oauth",
        "token_url": url,
        "client_id": "headrace",
        "client_secret_file": f"{tmp_path}/secret",
        "scope": "kafka read",
    }
    page = written(security=access.security(choose_token_login(**client, client_secret_env="CLIENT_SECRET")))
    assert "the-secret" not in page
    login = checked(yaml.safe_load(page), "the file").kafka.security.login
    assert login.client_secret.get_secret_value() == "the-secret"
    token_login = choose_token_login(token_file=Path("token"))
    assert access.security(token_login)["login"] == {"type": "oauth", "token_file": f"{tmp_path}/token"}


def test_without_a_login_the_file_has_no_section_for_it():
    assert "security:" not in written()
    assert choose_broker_access().security(choose_token_login()) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--username", "me"], "Give --username, and --password-file or --password-env."),
        (
            ["--username", "me", "--password-env", "B"],
            "does not fit --security-protocol plaintext. Give sasl_ssl or sasl_plaintext.",
        ),
        (["--security-protocol", "SASL_SSL"], "needs a login. Give --username, and --password-file or --password-env;"),
        (["--security-protocol", "sasl_ssl", "--username", "me"], "Give --username, and --password-file or"),
        (["--security-protocol", "ssl", "--sasl-mechanism", "PLAIN"], "Give --username, and --password-file or"),
        (["--token-file", "t"], "does not fit --security-protocol plaintext. Give sasl_ssl or sasl_plaintext."),
        (
            ["--security-protocol", "sasl_ssl", "--username", "me", "--password-env", "B", "--scope", "kafka"],
            "are of one by tokens. Give one login.",
        ),
        (
            ["--security-protocol", "sasl_ssl", "--client-id", "me"],
            "kafka.security.login: give 'token_url' or 'token_file', one of them",
        ),
        (
            ["--security-protocol", "sasl_ssl", "--token-url", "https://id/token", "--client-id", "me"],
            "kafka.security.login: give one of 'client_secret', 'client_secret_file' and 'assertion_file'",
        ),
        (["--client-secret-env", "pass/word"], "not the secret. Write --client-secret-env NAME."),
        (["--client-secret-file", "a", "--client-secret-env", "B"], "name one secret twice. Give one of them."),
        (["--ca-file", "ca.pem"], "do not fit --security-protocol plaintext. Give ssl or sasl_ssl."),
        (["--password-file", "a", "--password-env", "B"], "name one secret twice. Give one of them."),
        (["--password-env", "pass/word"], "not the secret. Write --password-env NAME."),
        (["--password-file", "a}b"], "has a } in its name"),
        (["--registry-username", "me"], "--registry-username goes with --registry-password-file"),
        (["--registry-password-env", "NONE"], "--registry-username goes with --registry-password-file"),
        (["--format", "raw", "--format", "json"], "--format raw takes every value as it is"),
        (["--format", "csv"], "--format csv is none of avro, json_schema, protobuf, json, raw. Give one of these."),
    ],
)
def test_options_of_a_login_that_do_not_fit_are_refused_before_a_server_is_asked(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, [*OPTIONS, "--topic", "clicks", *words]).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)
    assert "pass/word" not in str(error)
    assert not list(tmp_path.iterdir())


def test_options_of_a_registry_need_its_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["init", "--bootstrap-servers", "127.0.0.1:1", "--topic", "clicks", "--subjects", "topic_record_name"]
    error = CliRunner().invoke(app, words).exception
    assert str(error) == "--subjects is of a registry. Give --registry-url or --registry-glue."


def test_a_password_file_that_is_not_there_is_named(tmp_path):
    words = ["--security-protocol", "sasl_ssl", "--username", "me", "--password-file", str(tmp_path / "none")]
    error = CliRunner().invoke(app, [*OPTIONS, "--topic", "clicks", *words]).exception
    assert f"kafka.security.login.password: the file {tmp_path}/none cannot be read: No such file or directory." in str(
        error
    )
