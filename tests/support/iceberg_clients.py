"""Iceberg tables as other clients see and change them."""

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import LessThan
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from tests.support.local_driver import Driver


def overwrite_rows(driver: Driver, gone: int, offset: int | None) -> None:
    """Delete some of the first rows by a rewrite of their file, as another client does, and put one in their place."""
    other = client_table(driver)
    remaining = other.scan(LessThan("_offset", 10)).to_arrow().sort_by("_offset").slice(gone)
    new = remaining.slice(0, 1).set_column(
        remaining.schema.get_field_index("_offset"), remaining.schema.field("_offset"), pa.array([offset], pa.int64())
    )
    files = _dataframe_to_data_files(other.metadata, pa.concat_tables([remaining, new]), other.io)
    with other.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        for task in other.scan(LessThan("_offset", 10)).plan_files():
            snapshot.delete_data_file(task.file)
        for file in files:
            snapshot.append_data_file(file)


def client_table(driver: Driver) -> Table:
    catalog_table = driver.config.catalog_place("clicks", driver.lake)
    assert catalog_table is not None
    return load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).load_table(catalog_table.identifier)
