"""What engines are told of a table: its real columns, in their words. DuckDB executes its text here."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.writer.cli.look.ddl import run_ddl
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import sql
from headrace.writer.engines.caveats import notes
from headrace.writer.engines.druid_spec import bucket_task, interval_text
from headrace.writer.engines.iceberg import trino_properties
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import TableDescription, describe_table
from headrace.writer.engines.types import PRESTO, SPARK, TRINO
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import console
from headrace.writer.storage.settings import S3Settings, StoreSettings
from tests.support.sealed_lake import DAY, SealedLake

NESTED = pa.struct([("x", pa.int32()), ('od"d', pa.list_(pa.map_(pa.string(), pa.decimal128(38, 9))))])
INTERVAL = (DAY, DAY)


def table(form: str = "parquet", location: str = "/lake/clicks", **changes) -> TableDescription:
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("hour", pa.string())])
    return TableDescription(**{
        "pipeline": "clicks", "location": location, "format": form, "columns": columns, "bucket_columns": ("hour",),
        "time_field": "at", **changes,
    })  # fmt: skip


def own_table(config: Config) -> list[ChosenTable]:
    return [ChosenTable("clicks", None, config, config)]


def test_types_have_their_names_at_any_depth():
    assert TRINO.type(NESTED) == 'row("x" integer, "od""d" array(map(varchar, decimal(38,9))))'
    assert SPARK.type(NESTED) == 'STRUCT<`x`: INT, `od"d`: ARRAY<MAP<STRING, DECIMAL(38,9)>>>'
    assert [d.type(pa.timestamp("us", "UTC")) for d in (TRINO, PRESTO, SPARK)] == [
        "timestamp(6)",
        "timestamp",
        "TIMESTAMP",
    ]
    with pytest.raises(ConfigError, match="has no name"):
        TRINO.type(pa.duration("s"))


def test_duckdb_runs_its_text_and_finds_every_row_with_its_bucket(tmp_path: Path):
    lake = SealedLake(tmp_path, "parquet")
    lake.add(5, 100)
    lake.add(6, 3)
    lake.table.grow([pa.field("extra", pa.int64())], lake.epoch)
    description = describe_table("clicks", lake.config, lake.table)
    connection = duckdb.connect()
    for statement in registration(description, "duckdb", name='odd "name"', location=None):
        connection.execute(statement)
    what = "hour, count(*), count(DISTINCT _offset), sum(price), max(attrs.x)"
    asked = f'SELECT {what} FROM "odd ""name""" GROUP BY 1 ORDER BY 1'
    result_rows = connection.execute(asked).fetchall()
    assert [(hour, rows, distinct) for hour, rows, distinct, *_ in result_rows] == [
        ("2026-11-20T05", 100, 100), ("2026-11-20T06", 3, 3),
    ]  # fmt: skip


def test_each_engine_is_told_the_place_as_it_names_it():
    assert "local:///lake/clicks'" in registration(table("delta"), "trino", name=None, location=None)[-1]
    assert "'local:///x'" in registration(table("delta"), "trino", name=None, location="local:///x")[-1]
    assert (
        "external_location = 'file:///lake/clicks'"
        in registration(table("delta"), "presto", name=None, location=None)[-1]
    )
    assert "'s3://b/k'" in registration(table("delta", "s3://b/k"), "presto", name=None, location=None)[-1]
    assert "'s3a://b/k'" in registration(table("delta", "s3://b/k"), "spark", name=None, location=None)[-1]
    first = registration(table("parquet"), "trino", name="h.s.t", location=None)[0]
    assert first == "SET SESSION h.timestamp_precision = 'MICROSECONDS'"
    with pytest.raises(ConfigError, match="leave --location out"):
        registration(table(), "spark", name=None, location="x")
    with pytest.raises(ConfigError, match=r"catalog\.schema\.table"):
        registration(table(), "trino", name="clicks", location=None)


@pytest.mark.parametrize("engine", ["trino", "presto", "spark"])
def test_columns_of_the_bucket_come_last_also_where_the_table_grew(engine: str):
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("hour", pa.string()), ("extra", pa.int64())])
    (made,) = (s for s in registration(table(columns=columns), engine, name=None, location=None) if "CREATE TABLE" in s)
    assert made.index("at") < made.index("extra") < made.index("hour")


REST = {"type": "rest", "uri": "https://catalog:8181"}


def iceberg_table(location: str = "/lake/clicks", **catalog: Any) -> TableDescription:
    columns = pa.schema([("id", pa.int64()), ("_partition", pa.int32()), ("hour", pa.string()), ("at", pa.date32())])
    return table(
        "iceberg", location, columns=columns, catalog=Catalog.model_validate(REST | catalog),
        identifier=("shop", "web", "clicks"), metadata="/lake/clicks/metadata/3.metadata.json",
    )  # fmt: skip


def test_an_iceberg_table_is_a_view_with_the_names_of_other_formats():
    def text(engine: str, made: TableDescription) -> str:
        return "; ".join(registration(made, engine, name=None, location=None))

    description = iceberg_table()
    assert text("trino", description) == (
        'CREATE OR REPLACE VIEW "headrace"."shop.web"."clicks_view" AS SELECT "id", "_kafka_partition" AS '
        '"_partition", "at", "hour" FROM "headrace"."shop.web"."clicks"'
    )
    assert text("spark", description).startswith(
        "SET `spark.sql.catalog.headrace`=org.apache.iceberg.spark.SparkCatalog; "
        "SET `spark.sql.catalog.headrace.cache-enabled`=false; SET `spark.sql.catalog.headrace.type`=rest; "
    )
    assert "FROM `headrace`.`shop`.`web`.`clicks`" in text("spark", description)
    assert "ATTACH '' AS \"headrace\" (TYPE iceberg, ENDPOINT 'https://catalog:8181'" in text("duckdb", description)
    assert "SUPPORT_NESTED_NAMESPACES true" in text("duckdb", description)
    assert "iceberg.rest-catalog.nested-namespace-enabled=true" in trino_properties(description)
    sqlite = {"type": "sql", "uri": "sqlite:////lake/catalog.db"}
    assert "FROM iceberg_scan('/lake/clicks/metadata/3.metadata.json')" in text("duckdb", iceberg_table(**sqlite))
    for engine, sentence in (("presto", "was not tried"), ("druid", "a hook of type druid")):
        with pytest.raises(ConfigError, match=sentence):
            text(engine, description)
    with pytest.raises(ConfigError, match="it is for one machine"):
        text("spark", iceberg_table(**sqlite))


def test_the_command_names_the_newest_metadata_file(tmp_path: Path):
    lake = SealedLake(tmp_path, "iceberg")
    lake.add(5, 3)
    (printed,) = run_ddl(own_table(lake.config), "duckdb").document()["tables"]
    metadata = max(Path(lake.table.location, "metadata").glob("*.metadata.json"), key=lambda file: file.name)
    assert f"iceberg_scan('{metadata}')" in printed["statements"][-1]
    assert any("shows the table as it is now" in note for note in printed["notes"])


@pytest.mark.parametrize(
    "catalog",
    [
        {"credential": "me:sesame"}, {"token": "sesame"},
        {"type": "sql", "uri": "postgresql+psycopg2://me@db:5432/lake", "password": "sesame"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["trino", "spark", "duckdb"])
def test_a_secret_of_the_catalog_is_a_placeholder(engine: str, catalog: dict[str, str]):
    description = iceberg_table("s3://lake/clicks", **catalog)
    printed = "; ".join([*registration(description, engine, name=None, location=None), *notes(description, engine)])
    assert "sesame" not in printed
    assert ("<secret>" in printed) == (engine != "duckdb" or "password" not in catalog)


def told(known: TableDescription) -> dict[str, str]:
    """What each engine is told of a catalog and a login."""
    text_by_engine: dict[str, str] = {"trino": "; ".join(trino_properties(known))}
    return text_by_engine | {
        engine: "; ".join(registration(known, engine, name=None, location=None)) for engine in ("spark", "duckdb")
    }


def test_engines_sign_their_requests_where_headrace_does():
    arn = "arn:aws:s3tables:eu-central-1:111122223333:bucket/lake"
    description = iceberg_table(
        "s3://lake/clicks", uri="https://s3tables.eu-central-1.amazonaws.com/iceberg", warehouse=arn,
        options={"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables", "client.region": "eu-central-1"},
    )  # fmt: skip
    text_by_engine = told(description)
    for line in ("sigv4-enabled=true", "signing-name=s3tables", f"warehouse={arn}"):
        assert f"iceberg.rest-catalog.{line}" in text_by_engine["trino"]
    assert "s3.region=eu-central-1" in text_by_engine["trino"]
    for line in ("rest.auth.type`=sigv4", "rest.signing-name`=s3tables", "rest.signing-region`=eu-central-1"):
        assert f"SET `spark.sql.catalog.headrace.{line}" in text_by_engine["spark"]
    assert f"ATTACH '{arn}' AS \"headrace\"" in text_by_engine["duckdb"]
    assert "AUTHORIZATION_TYPE 'sigv4', SECRET lake" in text_by_engine["duckdb"]
    assert "OAUTH2" not in text_by_engine["trino"]
    notes_by_engine = {engine: " ".join(notes(description, engine)) for engine in ("trino", "spark", "duckdb")}
    assert "From Trino 477 on it is iceberg.rest-catalog.security=SIGV4" in notes_by_engine["trino"]
    assert "iceberg-aws-bundle" in notes_by_engine["spark"]
    assert "It was not run so." in notes_by_engine["duckdb"]


def test_engines_ask_for_a_token_where_headrace_does():
    options = {"scope": "PRINCIPAL_ROLE:ALL", "oauth2-server-uri": "https://login/token"}
    text_by_engine = told(iceberg_table(credential="me:sesame", options=options))
    for line in ("credential=<secret>", "scope=PRINCIPAL_ROLE:ALL", "server-uri=https://login/token"):
        assert f"iceberg.rest-catalog.oauth2.{line}" in text_by_engine["trino"]
    for line in ("credential`=<secret>", "scope`=PRINCIPAL_ROLE:ALL", "oauth2-server-uri`=https://login/token"):
        assert f"SET `spark.sql.catalog.headrace.{line}" in text_by_engine["spark"]
    assert (
        "(TYPE iceberg, CLIENT_ID '<id>', CLIENT_SECRET '<secret>', OAUTH2_SCOPE 'PRINCIPAL_ROLE:ALL', "
        "OAUTH2_SERVER_URI 'https://login/token')"
    ) in text_by_engine["duckdb"]
    asked = "OAUTH2_SCOPE 'catalog', OAUTH2_SERVER_URI 'https://catalog:8181/v1/oauth/tokens')"
    assert asked in told(iceberg_table(credential="me:sesame"))["duckdb"], "as headrace asks"
    bearer = told(iceberg_table(token="sesame", options=options))
    assert "oauth2.token=<secret>" in bearer["trino"]
    assert "scope" not in bearer["trino"], "Trino refuses it without a credential"


def test_duckdb_reaches_a_store_that_is_not_aws():
    stores = StoreSettings(S3Settings("http://127.0.0.1:9000", "eu-central-1", path_style=True))
    text = "; ".join(sql.duckdb(table("parquet", "s3://b/it's", stores=stores), "t"))
    assert "ENDPOINT '127.0.0.1:9000', USE_SSL false, REGION 'eu-central-1', URL_STYLE 'path'" in text
    assert "'s3://b/it''s/*/*.parquet'" in text


def test_druid_is_told_objects_of_s3_by_their_exact_names():
    stores = StoreSettings(S3Settings("http://127.0.0.1:9000", "eu-central-1", path_style=True))
    task = bucket_task(
        table("delta", "s3://b/k", stores=stores), ["hour=a%2Fb/x.parquet"], INTERVAL, datasource="d", task_id="t",
        input_source={"properties": {"accessKeyId": {"type": "environment", "variable": "KEY"}}}, spec={},
    )  # fmt: skip
    source = task["spec"]["ioConfig"]["inputSource"]
    assert source["objects"] == [{"bucket": "b", "path": "k/hour=a%2Fb/x.parquet"}]
    assert source["endpointConfig"] == {"url": "http://127.0.0.1:9000", "signingRegion": "eu-central-1"}
    assert source["properties"]["accessKeyId"]["variable"] == "KEY"
    assert interval_text(INTERVAL) == "2026-11-20T00:00:00.000Z/2026-11-20T00:00:00.000Z"


@pytest.mark.parametrize(
    ("kind", "unit", "expected"),
    [
        (pa.timestamp("us", "UTC"), "auto", "millis"), (pa.date32(), "auto", "millis"),
        (pa.string(), "logical", "auto"),
        (pa.int64(), "us", "micro"), (pa.int64(), "s", "posix"), (pa.int32(), "ms", "millis"),
        (pa.int64(), "ns", "nano"),
        (pa.float64(), "auto", "posix"),
    ],
)  # fmt: skip
def test_druid_is_told_how_the_event_time_is_meant(kind: pa.DataType, unit: str, expected: str):
    columns = pa.schema([("meta", pa.struct([("at", kind)])), ("hour", pa.string())])
    spec = registration(table(columns=columns, time_field="meta.at", time_unit=unit), "druid", name=None, location=None)
    schema, io = spec["spec"]["dataSchema"], spec["spec"]["ioConfig"]
    assert schema["timestampSpec"] == {"column": "__headrace_time", "format": expected}
    assert io["inputFormat"]["flattenSpec"]["fields"][-1]["expr"] == "$.meta.at"


def test_a_unit_that_is_not_known_yet_is_asked_for():
    columns = pa.schema([("at", pa.int64()), ("hour", pa.string())])
    with pytest.raises(ConfigError, match=r"set pipelines\.clicks\.event_time\.unit"):
        registration(table(columns=columns), "druid", name=None, location=None)
    with pytest.raises(ConfigError, match="is no column"):
        registration(table(time_field="nope"), "druid", name=None, location=None)


def test_notes_say_what_an_engine_reads_otherwise():
    columns = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2)), ("tags", pa.list_(pa.int32()))]
    )
    text = " ".join(notes(table("delta", columns=columns), "druid"))
    assert "price become doubles" in text
    assert "tags become JSON or arrays" in text
    assert "over decimals once they were widened: price." in text
    assert "Delta input source" not in " ".join(notes(table("parquet", columns=columns), "druid"))
    assert "Presto cuts timestamps to milliseconds." in notes(table(), "presto")


def test_without_a_table_there_are_no_columns_to_tell(tmp_path: Path):
    lake = SealedLake(tmp_path)
    elsewhere = lake.config.model_copy(update={"pipelines": {"clicks": lake.settings.model_copy(
        update={"table": lake.settings.table.model_copy(update={"location": str(tmp_path / "none")})}
    )}})  # fmt: skip
    with pytest.raises(ConfigError, match="does not exist yet"):
        run_ddl(own_table(elsewhere), "spark")


def test_statements_are_printed_whole_with_notes_as_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lake = SealedLake(tmp_path)
    run_ddl(own_table(lake.config), "trino").render(console())
    *_, made, registered = capsys.readouterr().out.strip().splitlines()
    assert made == "CREATE SCHEMA IF NOT EXISTS delta.lake;"
    assert registered.startswith("CALL delta.system.register_table(")
    run_ddl(own_table(lake.config), "druid", name="other").render(console())
    notes_by_engine = capsys.readouterr()
    assert json.loads(notes_by_engine.out)["spec"]["dataSchema"]["dataSource"] == "other"
    assert notes_by_engine.err.startswith("# Druid loads")
    (printed,) = run_ddl(own_table(lake.config), "spark").document()["tables"]
    assert (printed["pipeline"], printed["target"], printed["spec"]) == ("clicks", None, None)
    assert printed["statements"][0].startswith("CREATE TABLE IF NOT EXISTS clicks USING delta")
