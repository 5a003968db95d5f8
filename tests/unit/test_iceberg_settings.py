"""What the configuration says of Iceberg tables and their catalog, and by which rules their columns grow."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError
from requests import HTTPError, Response
from rich.console import Console

from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.staging.raw_records import RAW_BUCKET_COLUMNS, RAW_COLUMNS
from headrace.writer.cli.run.validate import run_validate
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import ICEBERG_RESERVED, Catalog
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.table.iceberg.catalog.catalog_errors import describe_error, without_secrets
from tests.support.sample_records import EVENT, NOW, Schemas, config

SQL = {"type": "sql", "uri": "sqlite:////lake/catalog.db"}


def iceberg(tmp_path: Path, **pipeline: Any) -> Config:
    return config(tmp_path, table={"location": "/lake/clicks-eu", "format": "iceberg"}, **pipeline)


@pytest.mark.parametrize(
    ("catalog", "sentence"),
    [
        ({"type": "hive"}, "a Hive Metastore changes a table without a condition"),
        ({"type": "sql"}, "needs a 'uri' with an absolute path"),
        ({"type": "sql", "uri": "sqlite:///catalog.db"}, "needs a 'uri' with an absolute path"),
        ({"type": "sql", "uri": "postgresql+psycopg2://me:sesame@db/lake"}, "a password does not belong into 'uri'"),
        ({**SQL, "password": "sesame"}, "'password' is of type sql, and of the user that 'uri' names"),
        ({"type": "rest", "uri": "catalog:8181"}, "needs a 'uri' such as https://catalog:8181"),
        ({"type": "glue", "options": {"glue.secret-access-key": "sesame"}}, "would be a secret in plain text"),
        ({"type": "rest", "uri": "https://c", "options": {"token": "sesame"}}, "would be a secret in plain text"),
        ({"type": "rest", "uri": "https://c", "options": {"Token": "sesame"}}, "would be a secret in plain text"),
        ({"type": "rest", "uri": "https://c", "options": {"client_secret": "sesame"}}, "would be a secret in plain"),
        ({"type": "rest", "uri": "https://c", "options": {"header.Authorization": "sesame"}}, "would be a secret in"),
        ({"type": "rest", "uri": "https://c", "options": {"header.X-Api-Key": "sesame"}}, "would be a secret in plain"),
        (
            {"type": "rest", "uri": "https://c", "options": {"oauth2-server-uri": "https://me:sesame@login/token"}},
            "would be a secret in plain text",
        ),
        ({**SQL, "token": "sesame"}, "'token', 'credential' and 'warehouse' are of type rest, not sql"),
    ],
)
def test_a_catalog_that_cannot_work_is_a_sentence_without_its_secret(catalog: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as error:
        Catalog.model_validate(catalog)
    assert sentence in str(error.value)
    assert "sesame" not in str(error.value)


def test_a_password_reaches_the_client_and_no_text() -> None:
    found = Catalog.model_validate(
        {"type": "sql", "uri": "postgresql+psycopg2://me@db:5432/lake", "password": "ses@me"}
    ).place("/lake/clicks", None, is_main=True)
    assert dict(found.settings)["uri"] == "postgresql+psycopg2://me:ses%40me@db:5432/lake"
    assert "ses" not in repr(found)
    assert "ses" not in str(found)


def test_a_secret_that_a_server_sends_back_reaches_no_text() -> None:
    for settings in ({"type": "rest", "uri": "https://c", "credential": "me:sesame"},
                     {"type": "rest", "uri": "https://c", "token": "sesame"},
                     {"type": "sql", "uri": "postgresql+psycopg2://me@db/lake", "password": "sesame"}):  # fmt: skip
        place = Catalog.model_validate(settings).place("/lake/clicks", None, is_main=True)
        assert without_secrets("it sent sesame, and me:sesame", place).count("sesame") == 0


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7), ("Thu, 01 Jan 2026 00:00:00 GMT", 0), ("soon", 0), ("", 0), ("-1", 0)]
)
def test_a_catalog_is_given_the_time_that_it_asks_for(value: str, seconds: float) -> None:
    answer = Response()
    answer.headers["Retry-After"] = value
    place = Catalog.model_validate({"type": "rest", "uri": "https://c"}).place("/lake/clicks", None, is_main=True)
    found = describe_error(HTTPError("429", response=answer), place)
    assert (found.pause_s, found.may_pass) == (seconds, True)


def test_a_table_is_called_as_its_folder_or_as_it_is_told(tmp_path: Path) -> None:
    named = config(
        tmp_path, table={"location": "/lake/clicks-eu", "format": "iceberg", "name": "shop.web.clicks"}
    )  # fmt: skip
    places = [(one, location) for one in (iceberg(tmp_path), named) for location in one.pipelines["clicks"].locations]
    assert [str(one.catalog_place("clicks", location)) for one, location in places] == [
        "headrace.clicks___eu", "headrace.clicks___eu_dead_letters",
        "shop.web.clicks", "shop.web.clicks___eu_dead_letters",
    ]  # fmt: skip
    assert config(tmp_path).catalog_place("clicks", "/lake/clicks") is None, "a Delta table is in no catalog"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"route": {"targets": {"a": "/lake/x/events", "b": "/lake/y/Events"}}},
            "/lake/x/events and /lake/y/Events would both be table headrace.Events; set table.name",
        ),
        (
            {"route": {"targets": {"*": "/lake/{name}/events"}}},
            r"route\.targets\.\*: its tables would be one in the catalog; set a name such as s",
        ),
        (
            {"route": {"targets": {"a": {"location": "/lake/a", "format": "delta", "name": "shop.a"}}}},
            r"route\.targets\.a: table\.name is a name in a catalog",
        ),
        ({"route": {"targets": {"a": {"location": "/lake/a", "name": "{name}"}}}}, "is no namespace and table"),
        ({"route": {"targets": {"a": {"location": "/lake/a", "name": "s.{nam}"}}}}, "{nam} is not known"),
        (
            {"hooks": [{"type": "trino", "url": "http://t:1", "table": "a.b.c"}]},
            "hooks.trino: Trino finds an Iceberg table, and each commit, by its name in the catalog",
        ),
        (
            {"table": {"location": "/lake/clicks", "format": "iceberg", "readers": ["trino", "presto"]}},
            "table.readers: presto was not tried with Iceberg tables",
        ),
        ({"table": {"location": "/lake/clicks", "name": "a.b"}}, "table.name is a name in a catalog"),
        (
            {"table": {"location": "/lake/clicks", "format": "iceberg", "dead_letters": "/other/clicks"}},
            "/lake/clicks and /other/clicks would both be table headrace.clicks; set table.name",
        ),
    ],
)
def test_a_setting_that_does_not_fit_iceberg_tables_is_refused_with_a_sentence(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        config(tmp_path, **{"table": {"location": "/lake/clicks", "format": "iceberg"}, **change})


def test_tables_of_a_route_have_names_in_the_catalog(tmp_path: Path) -> None:
    targets = {
        "a": {"location": "/lake/a", "seal": {"late": "late_table"}}, "b": {"location": "/lake/b", "format": "delta"},
        "c": {"location": "/lake/c", "name": "web.c"}, "com.*": {"location": "/lake/{full_name}"},
        "*": {"location": "/lake/{namespace}/{name}", "name": "{namespace}.t_{name}"},
    }  # fmt: skip
    table = {"location": "/lake/log", "format": "iceberg", "name": "shop.app"}
    found = config(tmp_path, table=table, route={"targets": targets})
    route = found.pipelines["clicks"]
    assert {place: str(found.catalog_place("clicks", place)) for place in route.locations} == {
        "/lake/log": "shop.app", "/lake/log_dead_letters": "shop.log_dead_letters", "/lake/a": "shop.a",
        "/lake/a_late": "shop.a_late", "/lake/b": "None", "/lake/c": "web.c",
    }  # fmt: skip
    twice = "aa3c1c30d71eee93_94298089369a6d09"  # of the folder, whose name has a digest, too
    made = [("com.*", "com.x.Click"), ("*", "org.x/y.Cl-ick"), ("*", "x" * 300)]
    names = [str(found.in_catalog(route.of_target(*one).table)) for one in made]
    assert names[:2] == ["shop.com__x__Click", f"org_x_y_{twice}.t_Cl___ick"]
    assert len(names[2]) < 220, "as catalogs take it"


def test_an_iceberg_table_needs_a_catalog(tmp_path: Path) -> None:
    raw = iceberg(tmp_path).model_dump(mode="json", exclude_unset=True)
    del raw["catalog"]
    with pytest.raises(ValidationError, match=r"pipelines\.clicks\.table\.format: iceberg needs a section `catalog`"):
        Config.model_validate(raw)


def grown(tmp_path: Path, had: pa.DataType, kind: Any) -> pa.DataType | str:
    """Admit a schema whose field `n` has a type, to a table that has a column `n`. Returns its type, or the reason."""
    rules = iceberg(tmp_path).pipelines["clicks"].column_rules
    text = f'{{"type": "record", "name": "R", "fields": [{{"name": "n", "type": {kind}}}]}}'
    plan = SchemaPlan(pa.schema([("n", had)]), rules.reserved, widen=rules.widen).extend(1, text)
    known = plan.schemas[1]
    return known.reason if isinstance(known, RejectedSchema) else plan.columns.field("n").type


def _decimal(precision: int, scale: int) -> str:
    return f'{{"type": "bytes", "logicalType": "decimal", "precision": {precision}, "scale": {scale}}}'


@pytest.mark.parametrize(
    ("had", "kind", "now"),
    [
        (pa.int32(), '"long"', pa.int64()),
        (pa.float32(), '"double"', pa.float64()),
        (pa.decimal128(9, 2), _decimal(12, 2), pa.decimal128(12, 2)),
        (pa.int32(), '"double"', "which Iceberg does not widen to double"),
        (pa.decimal128(9, 2), _decimal(12, 4), "which Iceberg does not widen to decimal128"),
    ],
)
def test_a_column_is_widened_as_iceberg_can(tmp_path: Path, had: pa.DataType, kind: str, now: Any) -> None:
    found = grown(tmp_path, had, kind)
    assert found == now or (isinstance(found, str) and str(now) in found)


def test_no_field_takes_a_name_that_iceberg_keeps_for_itself(tmp_path: Path) -> None:
    rules = iceberg(tmp_path).pipelines["clicks"].column_rules
    plan = SchemaPlan(pa.schema([]), rules.reserved, widen=rules.widen)
    found = plan.extend(1, '{"type": "record", "name": "R", "fields": [{"name": "_pos", "type": "long"}]}')
    assert isinstance(found.schemas[1], RejectedSchema)
    assert "_pos" in found.schemas[1].reason


@pytest.mark.parametrize(
    ("change", "key", "name"),
    [
        ({"bucket": {"type": "event_time", "width": "1 h", "column": "_file"}}, "bucket.column", "_file"),
        ({"bucket": {"type": "field", "field": "note", "column": "_partition"}}, "bucket.column", "_partition"),
        (
            {"bucket": {"type": "composite", "parts": [
                {"type": "event_time", "width": "1 d"},
                {"type": "field", "field": "note", "column": "_Kafka_Partition"},
            ]}},
            "bucket.column", "_Kafka_Partition",
        ),
        ({"columns": {"key": {"type": "string", "name": "_row_id"}}}, "columns.key.name", "_row_id"),
        ({"columns": {"headers": "_file"}}, "columns.headers", "_file"),
        ({"columns": {"header_columns": {"_POS": "trace"}}}, "columns.header_columns._POS", "_POS"),
        ({"specs": {"Event": {"rename": {"note": "_deleted"}}}}, "specs.Event.rename.note", "_deleted"),
        ({"specs": {"*": {"derive": {"_spec_id": "id + 1"}}}}, "specs.*.derive._spec_id", "_spec_id"),
        (
            {"route": {"targets": {"Event": {"location": "/lake/events", "columns": {"headers": "_pos"}}}}},
            "route.targets.Event: columns.headers", "_pos",
        ),
    ],
)  # fmt: skip
def test_a_column_that_the_configuration_names_like_one_of_iceberg_is_refused(
    tmp_path: Path, change: dict[str, Any], key: str, name: str
) -> None:
    path = tmp_path / "headrace.yaml"
    raw = json.loads(config(tmp_path).model_dump_json(exclude_unset=True))
    raw["pipelines"]["clicks"] |= change
    Config.model_validate(raw)  # a Delta table takes them
    raw["pipelines"]["clicks"]["table"]["format"] = "iceberg"
    path.write_text(yaml.safe_dump(raw))
    report = run_validate(path, None, offline=True, records=0, now=NOW, out=Console(quiet=True))
    finding = report.findings[0]
    assert (report.exit_code, finding.check, finding.status) == (2, "file", "failed")
    assert f"{key}: {name!r} is the name of a column that" in finding.message
    assert f"give yours another, such as {name.lstrip('_')!r}" in finding.message
    with pytest.raises(ConfigError, match="is the name of a column that"):  # as a start loads it
        load(path)


def test_no_column_of_headrace_beside_a_row_is_called_as_one_of_iceberg() -> None:
    names = {name.lower() for name in (*DEAD_LETTERS.names, *RAW_COLUMNS.names, *RAW_BUCKET_COLUMNS)}
    assert not names & ICEBERG_RESERVED


def test_an_iceberg_log_of_a_route_decodes_what_a_table_of_another_format_may_hold(tmp_path: Path) -> None:
    fields = [*EVENT["fields"], {"name": "_file", "type": "string"}]
    route = {"targets": {"Event": {"location": str(tmp_path / "events"), "format": "delta"}}}
    schemas = Schemas({1: {**EVENT, "fields": fields}}, [1])
    found = open_local_pipeline("clicks", iceberg(tmp_path, route=route), schemas, before_route=True)
    assert not isinstance(found.plan.schemas[1], RejectedSchema)
