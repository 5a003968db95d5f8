"""DuckDB, Spark and Trino read what was written to stores that play Google Cloud Storage and Azure Blob Storage.

They are told what `headrace ddl` prints, but for credentials. Trino asks Azure's own hosts alone, which no test plays.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.bench.engines.statement import Coordinator
from headrace.bench.job import delta_bundle
from headrace.writer.clients import java_artifacts
from headrace.writer.engines.registration import registration
from tests.engines.cloud_spark import ask_spark
from tests.servers import duckdb_extensions, parts
from tests.servers.cloud_stores import AzureStore, GcsStore, python_azure, python_gcs
from tests.servers.cloud_tokens import cloud_tokens
from tests.servers.trino import trino
from tests.support.cloud_lake import (
    BY_BUCKET,
    SUMS,
    CloudLake,
    expected_by_bucket,
    expected_sums,
    fill_cloud_lake,
)

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
# By this name of an account DuckDB's extension for Delta knows an emulator, whose address is in a variable.
ACCOUNT = "devstoreaccount1"
EMULATOR = "AZURITE_BLOB_STORAGE_URL"
# Of an Iceberg table in Azure DuckDB does not know the files' names.
DUCKDB = [("gs", "delta"), ("gs", "parquet"), ("gs", "iceberg"), ("az", "delta"), ("az", "parquet")]
Rows = Sequence[Sequence[Any]]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CloudLake]]:
    """The lakes in both clouds, by the kind of their locations."""
    root = tmp_path_factory.mktemp("clouds")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        servers: dict[str, GcsStore | AzureStore] = {
            "gs": stack.enter_context(python_gcs(root)),
            "az": stack.enter_context(python_azure(root, ACCOUNT)),
        }
        filled = {}
        for kind, server in servers.items():
            for variable, text in server.environment.items():
                patch.setenv(variable, text)
            (root / kind).mkdir()
            filled[kind] = fill_cloud_lake(server, root / kind)
        yield filled


def check_answers(sums: Rows, by_bucket: Rows) -> None:
    assert [tuple(map(int, row)) for row in sums] == expected_sums()
    assert [(note, int(count)) for note, count in by_bucket] == expected_by_bucket()


def statements_of(lake: CloudLake, form: str, engine: Any, name: str | None = None) -> list[str]:
    """Return what `headrace ddl` prints."""
    statements = registration(lake.description(form), engine, name=name, location=None)
    assert isinstance(statements, list)
    return statements


@pytest.mark.parametrize(("kind", "form"), DUCKDB)
def test_duckdb_reads_a_table_as_ddl_says(lakes: dict[str, CloudLake], kind: str, form: str) -> None:
    azure = lakes["az"].server
    assert isinstance(azure, AzureStore)
    secret = (
        f"CREATE OR REPLACE SECRET lake (TYPE azure, CONNECTION_STRING 'DefaultEndpointsProtocol=http;"
        f"AccountName={azure.account};AccountKey={azure.key};BlobEndpoint={azure.url};')"
    )
    told = [
        secret if kind == "az" and "SECRET lake" in statement else statement
        for statement in statements_of(lakes[kind], form, "duckdb")
    ]
    extensions = {"gs": ("httpfs",), "az": ("azure",)}[kind]
    extensions += {"delta": ("delta",), "iceberg": ("avro", "iceberg"), "parquet": ()}[form]
    env = {EMULATOR: azure.url.removesuffix(f"/{azure.account}")}

    def ask(sql: str) -> Rows:
        return duckdb_extensions.ask([*told, sql.format("clicks")], extensions, env)

    check_answers(ask(SUMS), ask(BY_BUCKET))


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_spark_reads_tables_as_ddl_says(lakes: dict[str, CloudLake], kind: str) -> None:
    azure = lakes["az"].server
    assert isinstance(azure, AzureStore)
    conf = {
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.gs.storage.root.url": f"{lakes['gs'].server.url}/",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": azure.key,
        f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.blob.core.windows.net": azure.key,
        "spark.hadoop.fs.azure.account.key": azure.key,
        "spark.hadoop.fs.azure.abfs.endpoint": azure.host,
        "spark.hadoop.fs.azure.always.use.https": "false",
        # By the Blob interface, which an account without a hierarchical namespace has alone.
        "spark.hadoop.fs.azure.account.hns.enabled": "false",
        "spark.hadoop.fs.azure.fns.account.service.type": "BLOB",
    }
    jars = [*sorted(java_artifacts.fetch(delta_bundle(), progress=print).glob("*.jar")), *parts.spark_clouds()]
    asked = []
    for form in ("delta", "parquet"):
        # The server has no TLS.
        told = [text.replace("abfss://", "abfs://") for text in statements_of(lakes[kind], form, "spark", f"t_{form}")]
        asked += [*told, SUMS.format(f"t_{form}"), BY_BUCKET.format(f"t_{form}")]
    answers = ask_spark(jars, conf, asked)
    selected = [rows for sql, rows in zip(asked, answers, strict=True) if sql.startswith("SELECT")]
    check_answers(*selected[:2])
    check_answers(*selected[2:])


@pytest.fixture(scope="module")
def trino_at_google(lakes: dict[str, CloudLake], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    local = tmp_path_factory.mktemp("local")
    # The catalog of the table is a file of SQLite, which Trino does not share.
    iceberg = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "testing_file_metastore",
        "iceberg.register-table-procedure.enabled": "true",
        "hive.metastore.catalog.dir": "local:///.iceberg",
        "fs.native-local.enabled": "true",
        "local.location": str(local),
    }
    with cloud_tokens() as tokens:
        settings = {
            "fs.native-gcs.enabled": "true",
            "gcs.endpoint": lakes["gs"].server.url,
            "gcs.project-id": "headrace-test",
            "gcs.json-key-file-path": str(tokens.service_account_file(local)),
        }
        with trino(tmp_path_factory.mktemp("trino"), local, iceberg=iceberg, clouds=settings) as server:
            yield server


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_trino_reads_a_table_at_google_as_ddl_says(
    lakes: dict[str, CloudLake], trino_at_google: Coordinator, form: str
) -> None:
    # Both catalogs know tables in one place, so their names differ.
    name = {"delta": "delta.lake.delta_clicks", "parquet": "hive.lake.parquet_clicks"}[form]
    for statement in statements_of(lakes["gs"], form, "trino", name):
        trino_at_google.ask(statement)
    check_answers(trino_at_google.ask(SUMS.format(name)).rows, trino_at_google.ask(BY_BUCKET.format(name)).rows)


def test_trino_reads_an_iceberg_table_at_google_that_is_registered(
    lakes: dict[str, CloudLake], trino_at_google: Coordinator
) -> None:
    trino_at_google.ask("CREATE SCHEMA IF NOT EXISTS headrace.lake")
    trino_at_google.ask(
        "CALL headrace.system.register_table(schema_name => 'lake', table_name => 'clicks', "
        f"table_location => '{lakes['gs'].location('iceberg')}')"
    )
    name = "headrace.lake.clicks"
    check_answers(trino_at_google.ask(SUMS.format(name)).rows, trino_at_google.ask(BY_BUCKET.format(name)).rows)
