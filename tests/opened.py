"""How a test opens a table of each format."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from writer.core.catalog_table import CatalogTable
from writer.storage.locations import on_s3
from writer.table.factory import table_at
from writer.table.table import PipelineTable

_OF_S3 = TemporaryDirectory(prefix="headrace-test-catalog-")
delta_table, parquet_table = partial(table_at, "delta"), partial(table_at, "parquet")


def in_catalog(location: str) -> CatalogTable:
    """Return the place of a local table in an SQLite catalog beside it."""
    place = Path(location)
    catalog = f"{_OF_S3.name}/catalog.db" if on_s3(location) else f"{place.parent}/catalog.db"
    settings = (("type", "sql"), ("uri", f"sqlite:///{catalog}"))
    return CatalogTable("headrace", ("lake",), place.name.replace("-", "_"), settings)


def iceberg_table(location: str, pipeline: str, **settings: Any) -> PipelineTable:
    if not on_s3(location):
        Path(location).parent.mkdir(parents=True, exist_ok=True)
    return table_at("iceberg", location, pipeline, catalog=in_catalog(location), **settings)


OPENED = {"delta": delta_table, "parquet": parquet_table, "iceberg": iceberg_table}  # table.format → how it is opened
