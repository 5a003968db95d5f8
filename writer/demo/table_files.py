"""What readers of a demo's table see, in any format."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from writer.batch.staging.table_file import NAMES_IN_ICEBERG
from writer.core.catalog_table import CatalogTable


@dataclass(frozen=True)
class ReadTable:
    """The files of a table: those that an Iceberg scan or a Delta version names, or those in its folders."""

    files: list[Path]
    scan: Any = None  # of an Iceberg table: its rows come by the catalog's column ids, not by the files' names

    @classmethod
    def at(cls, location: Path, place: CatalogTable | None) -> "ReadTable":
        """Look at a table. `place`: of an Iceberg table in its catalog; one that is not there has no files."""
        if place is not None:
            return _scanned(place)
        if not DeltaTable.is_deltatable(str(location)):
            return cls(sorted(location.rglob("*.parquet")))
        paths = pa.table(DeltaTable(location).get_add_actions())["path"].to_pylist()
        return cls([location / unquote(path) for path in paths])

    def load(self, db: Any, name: str, columns: Iterable[str]) -> None:
        """Insert the rows into a table of DuckDB, with those of the columns that there are."""
        if not self.files:
            return
        if self.scan is None:
            options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false"
            source, values = f"read_parquet($1, {options})", [[str(file) for file in self.files]]
        else:
            known = self.scan.table_metadata.schema().column_names
            wanted = {NAMES_IN_ICEBERG.get(column, column): column for column in columns}
            rows = self.scan.select(*(theirs for theirs in wanted if theirs in known)).to_arrow()
            db.register("scanned", rows.rename_columns([wanted[theirs] for theirs in rows.column_names]))
            source, values = "scanned", []
        there = {column for column, *_ in db.execute(f"DESCRIBE FROM {source}", values).fetchall()}
        names = ", ".join(column for column in columns if column in there)
        db.execute(f"INSERT INTO {name} BY NAME SELECT {names} FROM {source}", values)  # noqa: S608 - our own names


def _scanned(place: CatalogTable) -> ReadTable:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(place.catalog, **dict(place.settings))
    if not catalog.table_exists(place.identifier):
        return ReadTable([])
    scan = catalog.load_table(place.identifier).scan()
    return ReadTable(sorted(Path(one.file.file_path.removeprefix("file://")) for one in scan.plan_files()), scan)
