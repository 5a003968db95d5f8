"""Which files readers of a demo's table see, in any format."""

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from writer.core.catalog_table import CatalogTable


def files_of(location: Path, place: CatalogTable | None) -> list[Path]:
    """Return the files of a table: those that an Iceberg scan or a Delta version names, or those in its folders."""
    if place is not None:
        return _scanned(place)
    if not DeltaTable.is_deltatable(str(location)):
        return sorted(location.rglob("*.parquet"))
    return [location / unquote(path) for path in pa.table(DeltaTable(location).get_add_actions())["path"].to_pylist()]


def _scanned(place: CatalogTable) -> list[Path]:
    """Files that a scan of an Iceberg table names; none where there is no such table."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(place.catalog, **dict(place.settings))
    if not catalog.table_exists(place.identifier):
        return []
    planned = catalog.load_table(place.identifier).scan().plan_files()
    return sorted(Path(one.file.file_path.removeprefix("file://")) for one in planned)
