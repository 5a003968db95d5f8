"""How engines name and reach tables in Google's and Azure's stores, as their documentation says. No cloud was asked.

What an engine's documentation does not say is refused: a text that nobody has tried is worse than none.
"""

from headrace.writer.core.errors import ConfigError
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.storage.bucket_locations import BucketLocation, split_bucket_location
from headrace.writer.storage.locations import on_azure

_AZURE_HOST = "blob.core.windows.net"


def on_google(location: str) -> bool:
    """Return whether a location lies in Google Cloud Storage."""
    return location.startswith("gs://")


def azure_parts(table: TableDescription) -> tuple[str, BucketLocation]:
    """Return the account of a table in Azure, and the parts of its location. Raises ConfigError."""
    parts = split_bucket_location(table.location)
    azure = table.stores.azure
    account = parts.account or azure.account
    if account is None:
        raise ConfigError(f"{table.location} names no account; set azure.account")
    is_own = account == azure.account
    if is_own and azure.endpoint and azure.endpoint.rstrip("/") != f"https://{account}.{_AZURE_HOST}":
        raise ConfigError(
            f"azure.endpoint is {azure.endpoint}: which settings of an engine reach an account outside of "
            f"{_AZURE_HOST} was not tried"
        )
    return account, parts


def hadoop_location(table: TableDescription) -> str:
    """Return a table's location as Spark, Trino and Presto name it. Raises ConfigError.

    s3://lake/clicks -> s3://lake/clicks, az://lake/clicks -> abfss://lake@account.dfs.core.windows.net/clicks
    """
    if not on_azure(table.location):
        return table.location
    account, parts = azure_parts(table)
    return f"abfss://{parts.bucket}@{account}.dfs.core.windows.net/{parts.folder}"


def duckdb_location(table: TableDescription) -> str:
    """Return a table's location as DuckDB names it; the account is in its secret. Raises ConfigError."""
    if not on_azure(table.location):
        return table.location
    _, parts = azure_parts(table)
    return f"az://{parts.bucket}/{parts.folder}"


def trino_settings(table: TableDescription) -> dict[str, str]:
    """Return the settings by which a catalog of Trino reaches a table's files. Raises ConfigError."""
    if on_google(table.location):
        settings = {"fs.native-gcs.enabled": "true"}
        if table.stores.gcs.endpoint:
            settings["gcs.endpoint"] = table.stores.gcs.endpoint
        return settings
    if on_azure(table.location):
        azure_parts(table)
        return {"fs.native-azure.enabled": "true"}
    return {}


def check_engine(table: TableDescription, engine: str) -> None:
    """Raise ConfigError where an engine's documentation does not know a table of this format in this cloud."""
    if engine == "presto" and on_azure(table.location):
        raise ConfigError(
            "Presto's documentation names no settings for Azure Blob Storage; read the table with Trino or Spark"
        )
    if engine == "duckdb" and on_azure(table.location) and table.format == "iceberg":
        raise ConfigError(
            "DuckDB's documentation does not know the names by which an Iceberg table calls its files in Azure; read "
            "the table with Trino or Spark"
        )
    is_cloud = on_google(table.location) or on_azure(table.location)
    if engine == "druid" and is_cloud and table.format == "delta":
        raise ConfigError(
            "Druid's Delta input source was tried with disks and S3 alone; a hook of type druid gives it the files of "
            "each sealed bucket"
        )


def duckdb_setup(table: TableDescription) -> list[str]:
    """Return the statements that let DuckDB reach files in Google's or Azure's store. Raises ConfigError."""
    if on_google(table.location):
        # DuckDB speaks to Google by its interface of S3, which takes keys of its own.
        options = ["TYPE gcs", "KEY_ID '<id>'", "SECRET '<secret>'"]
        if endpoint := table.stores.gcs.endpoint:
            scheme, _, address = endpoint.partition("://")
            options += [f"ENDPOINT '{address}'", f"USE_SSL {str(scheme == 'https').lower()}", "URL_STYLE 'path'"]
        return ["INSTALL httpfs", "LOAD httpfs", f"CREATE OR REPLACE SECRET lake ({', '.join(options)})"]
    if on_azure(table.location):
        account, _ = azure_parts(table)
        secret = f"TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME '{account}'"
        return ["INSTALL azure", "LOAD azure", f"CREATE OR REPLACE SECRET lake ({secret})"]
    return []


def druid_prefixes(table: TableDescription) -> dict[str, object] | None:
    """Return Druid's input source of all files of a table in a cloud; None elsewhere. Raises ConfigError."""
    if on_google(table.location):
        return {"type": "google", "prefixes": [f"{table.location}/"], "objectGlob": "**.parquet"}
    if on_azure(table.location):
        account, parts = azure_parts(table)
        prefix = f"azureStorage://{account}/{parts.bucket}/{parts.folder}/"
        return {"type": "azureStorage", "prefixes": [prefix], "objectGlob": "**.parquet"}
    return None


def druid_objects(table: TableDescription, paths: list[str]) -> dict[str, object] | None:
    """Return Druid's input source of files of a table in a cloud, by name; None elsewhere. Raises ConfigError."""
    if on_google(table.location):
        parts = split_bucket_location(table.location)
        objects = [{"bucket": parts.bucket, "path": f"{parts.folder}/{path}"} for path in paths]
        return {"type": "google", "objects": objects}
    if on_azure(table.location):
        account, parts = azure_parts(table)
        # There the account stands for the bucket, and the path begins with the container.
        names = [f"{parts.bucket}/{parts.folder}/{path}" for path in paths]
        return {"type": "azureStorage", "objects": [{"bucket": account, "path": name} for name in names]}
    return None
