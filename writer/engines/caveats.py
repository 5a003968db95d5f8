"""Warnings about how an engine reads a table, and settings that its catalog needs."""

from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from headrace.writer.engines import bucket_access
from headrace.writer.engines.iceberg import login_of, trino_properties
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.engines.types import of_records
from headrace.writer.storage.locations import in_bucket, on_azure, on_s3

Engine = Literal["trino", "presto", "druid", "spark", "duckdb"]


def notes(table: TableDescription, engine: Engine) -> list[str]:
    """Return the notes for a table, each a sentence. What was tried is in docs/ENGINES.md."""
    catalog_notes = _iceberg_catalog if table.format == "iceberg" else _catalog
    return [*catalog_notes(table, engine), *_reaching(table, engine), *_reading(table, engine)]


def _catalog(table: TableDescription, engine: Engine) -> Iterator[str]:
    local = not in_bucket(table.location)
    match engine:
        case "trino":
            if table.format == "delta":
                yield "The catalog is of connector delta_lake, with delta.register-table-procedure.enabled=true."
            else:
                yield (
                    "The catalog is of connector hive, with hive.parquet.use-column-names=true. New folders become "
                    "partitions when sync_partition_metadata is called: a hook of type trino does it after each seal."
                )
            if local:
                yield (
                    "Trino names local files below local.location of its catalog; this text takes it to be /. "
                    "Say --location otherwise, such as local:///clicks."
                )
        case "presto":
            if table.format == "delta":
                yield "The catalog is of connector delta; the column dummy is not read, the columns come from the log."
            else:
                yield (
                    "The catalog is of connector hive-hadoop2, with hive.parquet.use-column-names=true. New folders "
                    "become partitions when sync_partition_metadata is called: a hook of type presto does it after "
                    "each seal."
                )
        case "spark":
            if table.format == "delta":
                yield "The session has Delta's extension and catalog (io.delta:delta-spark)."
            if on_s3(table.location):
                yield "The session has S3A (org.apache.hadoop:hadoop-aws)."
        case "duckdb":
            if table.format == "delta":
                yield "INSTALL fetches DuckDB's extension delta once."
        case "druid":
            extensions = ["druid-deltalake-extensions"] if table.format == "delta" else ["druid-parquet-extensions"]
            if extension := _druid_extension(table.location):
                extensions.append(extension)
            yield f"Druid loads {' and '.join(extensions)}."
            yield "A hook of type druid ingests each bucket when it is sealed; this task ingests the whole table once."


def _iceberg_catalog(table: TableDescription, engine: Engine) -> Iterator[str]:
    assert table.catalog is not None, "the configuration of an Iceberg table has a catalog"
    name = table.catalog.name
    signs = table.catalog.type == "rest" and login_of(table.catalog) == "sigv4"
    yield "Iceberg reserves _partition: the table's column is _kafka_partition, and the view calls it _partition."
    match engine:
        case "trino":
            yield f"etc/catalog/{name}.properties has: {'; '.join(trino_properties(table))}."
            if signs:
                yield "From Trino 477 on it is iceberg.rest-catalog.security=SIGV4, in place of sigv4-enabled."
        case "spark":
            yield "The session has org.apache.iceberg:iceberg-spark-runtime-4.0_2.13 of Spark's own version."
            if signs:
                yield "For requests that are signed it has org.apache.iceberg:iceberg-aws-bundle, too."
        case "duckdb":
            yield "INSTALL fetches DuckDB's extensions iceberg and avro once. Its version is 1.5 at least."
            if signs:
                yield "DuckDB signs for the service and region that the endpoint's host names. It was not run so."
            if table.catalog.type != "rest":
                yield "The view shows the table as it is now: ask for this text again when it has changed."
    if table.catalog.type != "rest" and engine != "duckdb":
        yield f"This was run with a catalog of type rest, and not with {table.catalog.type}."


def _reaching(table: TableDescription, engine: Engine) -> Iterator[str]:
    """Yield what an engine needs to reach files in Google's and Azure's stores."""
    on_google = bucket_access.on_google(table.location)
    if not (on_google or on_azure(table.location)):
        return
    match engine:
        case "trino" if table.format != "iceberg":
            settings = "; ".join(f"{key}={value}" for key, value in bucket_access.trino_settings(table).items())
            yield f"The catalog has {settings}, and the credentials that Trino's documentation names."
        case "presto":
            yield "The catalog has hive.gcs.json-key-file-path, the key of a service account."
        case "spark" if table.format == "iceberg":
            bundle = "iceberg-gcp-bundle" if on_google else "iceberg-azure-bundle"
            yield f"The session has org.apache.iceberg:{bundle} of the runtime's version, too."
        case "spark":
            if on_google:
                yield "The session has Google's connector (com.google.cloud.bigdataoss:gcs-connector)."
            else:
                yield "The session has ABFS (org.apache.hadoop:hadoop-azure)."
        case "duckdb" if on_google:
            yield "<id> and <secret> are a key for Google's interface of S3 (HMAC), which DuckDB speaks."
            if table.format == "delta":
                yield (
                    "Users of DuckDB 1.5.5 report that Google answers 403 to delta_scan (duckdb/duckdb-delta, issue "
                    "255). If it does, let DuckDB query DeltaTable(…).to_pyarrow_dataset() of delta-rs."
                )
    if engine == "trino" and not on_google:
        yield "Trino asks for an account with a hierarchical namespace."
    yield "This text follows the engine's documentation; it was not run against the cloud."


def _druid_extension(location: str) -> str | None:
    if on_s3(location):
        return "druid-s3-extensions"
    if bucket_access.on_google(location):
        return "druid-google-extensions"
    if on_azure(location):
        return "druid-azure-extensions"
    return None


def _reading(table: TableDescription, engine: Engine) -> Iterator[str]:
    kinds = [column.type for column in table.columns]
    if engine == "presto" and any(map(pa.types.is_timestamp, kinds)):
        yield "Presto cuts timestamps to milliseconds."
    if engine == "druid" and table.format == "delta":
        names = [column.name for column in table.data if pa.types.is_decimal(column.type) or of_records(column.type)]
        if names:
            yield (
                "This task reads by Druid's Delta input source, which fails over lists of records, and over decimals "
                f"once they were widened: {', '.join(names)}. A hook of type druid reads the files themselves."
            )
    if engine == "druid":
        yield "Druid cuts timestamps to milliseconds, and keeps all but the event time as numbers of them."
        for is_kind, sentence in (
            (pa.types.is_decimal, "doubles: lay other dimensions over in `spec` to keep them exact"),
            (pa.types.is_nested, "JSON or arrays (type auto)"),
            (pa.types.is_binary, "text in base64"),
        ):
            names = [column.name for column in table.data if is_kind(column.type)]
            if names:
                yield f"In Druid {', '.join(names)} become {sentence}."
