"""A lake in a cloud that readers are asked about: one table of each format, with the same rows.

The last rows have a wider schema; a column of buckets has characters that paths must quote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.engines.table_description import TableDescription, describe_table
from headrace.writer.storage.settings import AzureSettings, StoreSettings
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings
from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.support.lake_stores import full_azure_name
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, value

FORMATS = ("delta", "parquet", "iceberg")
# Of the field `note`, which is a bucket too.
NOTES = ("plain", "a/b c", "50% ü")
HOURS = 3
ROWS_AN_HOUR = 20
COUNT = HOURS * ROWS_AN_HOUR
_BUCKET = {
    "type": "composite",
    "parts": [{"type": "event_time", "width": "1 h"}, {"type": "field", "field": "note"}],
}
# What each reader is asked: rows, the sum of their ids and of a column that came later; {} is what it selects from.
SUMS = "SELECT count(*), sum(id), sum(extra) FROM {}"
BY_BUCKET = "SELECT note_bucket, count(*) FROM {} WHERE hour = '2026-11-20T08' GROUP BY 1 ORDER BY 1"


def expected_sums() -> list[tuple[int, int, int]]:
    """Return the answer to SUMS."""
    return [(COUNT, sum(range(COUNT)), sum(range(COUNT - ROWS_AN_HOUR, COUNT)))]


def expected_by_bucket() -> list[tuple[str, int]]:
    """Return the answer to BY_BUCKET."""
    counts = {note: len(range(index, ROWS_AN_HOUR, len(NOTES))) for index, note in enumerate(NOTES)}
    return sorted(counts.items())


@dataclass(frozen=True)
class CloudLake:
    """Tables in one bucket. `drivers`: format → what wrote its table."""

    server: GcsStore | AzureStore
    drivers: Mapping[str, Driver]

    def location(self, form: str) -> str:
        """Return where a table lies, as the writer names it."""
        return self.drivers[form].lake

    def description(self, form: str) -> TableDescription:
        """Return what `headrace ddl` knows of a table; of one in Azure, as if the account had its address there."""
        driver = self.drivers[form]
        description = describe_table("clicks", driver.config, driver.table)
        if isinstance(self.server, AzureStore):
            return replace(description, stores=StoreSettings(azure=AzureSettings(self.server.account)))
        return description

    def iceberg_table(self, properties: Mapping[str, str]) -> Table:
        """Return the Iceberg table as pyiceberg opens it with properties of its own."""
        catalog_table = self._catalog_table()
        catalog = load_catalog(catalog_table.catalog, **{**dict(catalog_table.settings), **properties})
        return catalog.load_table(catalog_table.identifier)

    def own_properties(self) -> dict[str, str]:
        """Return the properties by which the writer lets pyiceberg reach the table's files."""
        return client_settings(self._catalog_table(), self.location("iceberg"), self.drivers["iceberg"].config.stores)

    def _catalog_table(self) -> CatalogTable:
        driver = self.drivers["iceberg"]
        catalog_table = driver.config.catalog_place("clicks", driver.lake)
        assert catalog_table is not None
        return catalog_table


def fill_cloud_lake(server: GcsStore | AzureStore, root: Path) -> CloudLake:
    """Write the tables into a new bucket, whose credentials stand in the environment. `root`: for what is local."""
    bucket = server.bucket()
    drivers = {}
    for form in FORMATS:
        folder = root / form
        folder.mkdir()
        is_full = isinstance(server, AzureStore) and form == "iceberg"
        home = full_azure_name(bucket, server.account) if is_full else bucket
        drivers[form] = _fill_table(f"{home}/lake/{form}", form, folder, _sections(server))
    return CloudLake(server, drivers)


def _sections(server: GcsStore | AzureStore) -> dict[str, Any]:
    """Return the sections of a configuration that say where the cloud is."""
    if isinstance(server, AzureStore):
        return {"azure": {"account": server.account, "endpoint": server.url}}
    return {"gcs": {"endpoint": server.url}}


def _fill_table(location: str, form: str, root: Path, sections: Mapping[str, Any]) -> Driver:
    schemas = Schemas({1: EVENT, 2: WIDER}, [1, 2])
    driver = Driver(root, form, sections=sections, table={"location": location}, bucket=_BUCKET, schemas=schemas)
    driver.start()
    for hour in range(HOURS):
        start = hour * ROWS_AN_HOUR
        schema_id, schema = (2, WIDER) if hour == HOURS - 1 else (1, EVENT)
        values = {start + index: value(schema_id, schema, _row(hour, index)) for index in range(ROWS_AN_HOUR)}
        driver.carry([log(values)], {0: start + ROWS_AN_HOUR})
    return driver


def _row(hour: int, index: int) -> dict[str, Any]:
    row_id = hour * ROWS_AN_HOUR + index
    event_time = NOW - timedelta(hours=HOURS + 1 - hour) + timedelta(seconds=index)
    return {"id": row_id, "at": event_time, "note": NOTES[index % len(NOTES)], "extra": row_id}
