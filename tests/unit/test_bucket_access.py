"""What engines are told of tables in Google's and Azure's stores, and what is refused."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.errors import ConfigError
from headrace.writer.engines.caveats import Engine, notes
from headrace.writer.engines.druid_spec import table_task
from headrace.writer.engines.iceberg import trino_properties
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings

GOOGLE = "gs://lake/clicks"
AZURE = "az://lake/clicks"
FULL = "abfss://lake@shop1.dfs.core.windows.net/clicks"
STORES = StoreSettings(azure=AzureSettings("shop1"))


def table(form: str, location: str, stores: StoreSettings = STORES, **changes: Any) -> TableDescription:
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("hour", pa.string())])
    settings: dict[str, Any] = {
        "pipeline": "clicks", "location": location, "format": form, "columns": columns, "bucket_columns": ("hour",),
        "time_field": "at", "stores": stores, **changes,
    }  # fmt: skip
    return TableDescription(**settings)


def iceberg_table(location: str, stores: StoreSettings = STORES) -> TableDescription:
    catalog = Catalog.model_validate({"type": "rest", "uri": "https://catalog:8181"})
    metadata = f"{location}/metadata/3.metadata.json"
    return table("iceberg", location, stores, catalog=catalog, identifier=("shop", "clicks"), metadata=metadata)


def text(described: TableDescription, engine: Engine) -> str:
    statements = registration(described, engine, name=None, location=None)
    assert isinstance(statements, list)
    return "; ".join(statements)


def remarks(described: TableDescription, engine: Engine) -> str:
    return " ".join(notes(described, engine))


def test_engines_on_the_jvm_know_azure_by_container_and_account() -> None:
    for engine in ("trino", "spark"):
        assert f"'{FULL}'" in text(table("delta", AZURE), engine)
        assert f"'{FULL}'" in text(table("parquet", FULL, StoreSettings()), engine)
    assert "'gs://lake/clicks'" in text(table("delta", GOOGLE), "trino")
    assert "'gs://lake/clicks'" in text(table("delta", GOOGLE), "presto")
    assert "LOCATION 'gs://lake/clicks'" in text(table("parquet", GOOGLE), "spark")


def test_a_note_says_what_the_engine_needs_to_reach_the_cloud() -> None:
    google = table("delta", GOOGLE, StoreSettings(gcs=GcsSettings("https://storage.example.com")))
    assert "fs.native-gcs.enabled=true; gcs.endpoint=https://storage.example.com" in remarks(google, "trino")
    assert "hive.gcs.json-key-file-path" in remarks(google, "presto")
    assert "com.google.cloud.bigdataoss:gcs-connector" in remarks(google, "spark")
    assert "druid-google-extensions" in remarks(google, "druid")
    azure = table("delta", AZURE)
    assert "fs.native-azure.enabled=true" in remarks(azure, "trino")
    assert "hierarchical namespace" in remarks(azure, "trino")
    assert "org.apache.hadoop:hadoop-azure" in remarks(azure, "spark")
    assert "druid-azure-extensions" in remarks(azure, "druid")
    assert "hadoop-aws" not in remarks(azure, "spark") + remarks(google, "spark")
    assert "was not run against the cloud" in remarks(azure, "duckdb")


def test_duckdb_reaches_google_by_keys_of_its_own_and_azure_by_a_chain() -> None:
    google = text(table("parquet", GOOGLE), "duckdb")
    assert "INSTALL httpfs; LOAD httpfs; " in google
    assert "SECRET lake (TYPE gcs, KEY_ID '<id>', SECRET '<secret>')" in google
    assert "read_parquet('gs://lake/clicks/*/*.parquet'" in google
    assert "delta_scan('gs://lake/clicks')" in text(table("delta", GOOGLE), "duckdb")
    assert "DeltaTable(…).to_pyarrow_dataset()" in remarks(table("delta", GOOGLE), "duckdb")
    emulated = text(table("parquet", GOOGLE, StoreSettings(gcs=GcsSettings("http://storage:4443"))), "duckdb")
    assert "ENDPOINT 'storage:4443', USE_SSL false, URL_STYLE 'path'" in emulated
    for location in (AZURE, FULL):
        azure = text(table("delta", location), "duckdb")
        assert "INSTALL azure; LOAD azure; " in azure
        assert "SECRET lake (TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME 'shop1')" in azure
        assert "delta_scan('az://lake/clicks')" in azure


def test_druid_is_told_a_table_by_the_names_of_its_input_sources() -> None:
    google = table_task(table("parquet", GOOGLE), datasource="d", segment="hour")["spec"]["ioConfig"]["inputSource"]
    assert google == {"type": "google", "prefixes": ["gs://lake/clicks/"], "objectGlob": "**.parquet"}
    azure = table_task(table("parquet", FULL), datasource="d", segment="hour")["spec"]["ioConfig"]["inputSource"]
    assert azure == {
        "type": "azureStorage",
        "prefixes": ["azureStorage://shop1/lake/clicks/"],
        "objectGlob": "**.parquet",
    }


def test_trino_and_spark_are_told_how_an_iceberg_table_is_reached() -> None:
    google = iceberg_table(GOOGLE, StoreSettings(gcs=GcsSettings("http://storage:4443")))
    assert {"fs.native-gcs.enabled=true", "gcs.endpoint=http://storage:4443"} <= set(trino_properties(google))
    assert "SET `spark.sql.catalog.headrace.io-impl`=org.apache.iceberg.gcp.gcs.GCSFileIO" in text(google, "spark")
    assert "headrace.gcs.service.host`=http://storage:4443" in text(google, "spark")
    assert "iceberg-gcp-bundle" in remarks(google, "spark")
    azure = iceberg_table(FULL)
    assert "fs.native-azure.enabled=true" in trino_properties(azure)
    assert "io-impl`=org.apache.iceberg.azure.adlsv2.ADLSFileIO" in text(azure, "spark")
    assert "iceberg-azure-bundle" in remarks(azure, "spark")


@pytest.mark.parametrize(
    ("described", "engine", "reason"),
    [
        (table("delta", AZURE), "presto", "Presto's documentation names no settings for Azure"),
        (iceberg_table(FULL), "duckdb", "read the table with Trino or Spark"),
        (table("delta", GOOGLE), "druid", "a hook of type druid gives it the files"),
        (table("delta", AZURE, StoreSettings()), "trino", "names no account; set azure.account"),
        (
            table("delta", AZURE, StoreSettings(azure=AzureSettings("shop1", "http://azurite:10000/shop1"))),
            "spark",
            "which settings of an engine reach an account outside of blob.core.windows.net was not tried",
        ),
    ],
)
def test_what_an_engine_s_documentation_does_not_say_is_refused(
    described: TableDescription, engine: Engine, reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        registration(described, engine, name=None, location=None)
    assert reason in str(refused.value)
