"""How a test opens a table of each format."""

import atexit
import re
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.storage.locations import in_bucket
from headrace.writer.table.factory import table_at
from headrace.writer.table.table import PipelineTable

delta_table = partial(table_at, "delta")
parquet_table = partial(table_at, "parquet")


def in_catalog(location: str) -> CatalogTable:
    """Return the place of a local table in an SQLite catalog beside it."""
    path = Path(location)
    catalog = _of_bucket(location) if in_bucket(location) else f"{path.parent}/catalog.db"
    settings = (("type", "sql"), ("uri", f"sqlite:///{catalog}"))
    return CatalogTable("headrace", ("lake",), re.sub(r"\W", "_", path.name, flags=re.ASCII), settings)


def _of_bucket(location: str) -> str:
    """Return the file of a catalog of this bucket, for all processes of a test; it goes with the first of them."""
    path = Path(gettempdir(), f"headrace-test-{sha256(location.encode()).hexdigest()[:16]}.db")
    if not path.exists():
        atexit.register(path.unlink, missing_ok=True)
    return str(path)


def iceberg_table(location: str, pipeline: str, **settings: Any) -> PipelineTable:
    if not in_bucket(location):
        Path(location).parent.mkdir(parents=True, exist_ok=True)
    return table_at("iceberg", location, pipeline, catalog=in_catalog(location), **settings)


OPENED = {"delta": delta_table, "parquet": parquet_table, "iceberg": iceberg_table}  # table.format → how it is opened
