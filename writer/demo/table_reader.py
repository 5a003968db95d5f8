"""Reads the demo's table as others do: its log, entry by entry, and its rows, with DuckDB."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.storage.locations import store_at
from headrace.writer.table import delta, parquet
from headrace.writer.table.log.log import Action, Log


@dataclass(frozen=True)
class Commit:
    """One entry of the log that carries a batch, and the writer's facts about it."""

    version: int
    # The columns of the table at this version.
    columns: tuple[str, ...]
    # The `txn` actions of the entry.
    frontier: Mapping[str, int]
    facts: Mapping[str, Any]


class TableLog:
    """The log of a table of either format, as far as it has been read. Without a table, it is empty."""

    def __init__(self, location: Path) -> None:
        self._logs = [Log(store_at(f"{location}/{folder}")) for folder in (delta.LOG, parquet.LOG)]
        self.version = -1
        # Paths of the data files that the table names.
        self.files: set[str] = set()
        # The version of each `txn` id.
        self.transactions: dict[str, int] = {}
        self.columns: tuple[str, ...] = ()
        self.commits: list[Commit] = []

    def follow(self) -> bool:
        """Read the entries that are new. Returns whether there were any."""
        before = self.version
        while (actions := self._entry(self.version + 1)) is not None:
            self._read(actions)
            self.version += 1
        return self.version > before

    def _entry(self, version: int) -> Sequence[Action] | None:
        for log in self._logs:
            actions = log.entry(version)
            if actions is not None:
                return actions
        return None

    def _read(self, actions: Sequence[Action]) -> None:
        added: set[str] = set()
        versions: dict[str, int] = {}
        facts: Mapping[str, Any] = {}
        for action in actions:
            match action:
                case {"add": {"path": path}}:
                    added.add(unquote(path))
                case {"remove": {"path": path}}:
                    self.files.discard(unquote(path))
                case {"txn": {"appId": name, "version": version}}:
                    versions[name] = version
                case {"metaData": {"schemaString": schema}}:
                    self.columns = tuple(field["name"] for field in json.loads(schema)["fields"])
                case {"commitInfo": {"headrace": text}}:
                    facts = json.loads(text)
        self.files |= added
        self.transactions |= versions
        if facts.get("kind") == "batch":
            self.commits.append(Commit(self.version + 1, self.columns, versions, facts))


@dataclass(frozen=True)
class ReadTable:
    """The files of a table: those that an Iceberg scan or a Delta version names, or those in its folders."""

    files: list[Path]
    # The scan of an Iceberg table: its rows come by the catalog's column ids, not by the files' names.
    scan: Any = None

    @classmethod
    def at(cls, location: Path, catalog_table: CatalogTable | None) -> "ReadTable":
        """Look at a table. `catalog_table`: of an Iceberg table in its catalog; one that is not there has no files."""
        if catalog_table is not None:
            return _scan_iceberg(catalog_table)
        if not DeltaTable.is_deltatable(str(location)):
            return cls(sorted(location.rglob("*.parquet")))
        paths = pa.table(DeltaTable(location).get_add_actions())["path"].to_pylist()
        return cls([location / unquote(path) for path in paths])

    def show_as(self, db: Any, view: str, columns: Mapping[str, str]) -> None:
        """Make a view of DuckDB of the rows, with these columns and types; one that the table lacks is null."""
        if not self.files:
            nulls = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns.items())
            db.execute(f"CREATE VIEW {view} AS SELECT {nulls} WHERE false")
            return
        if self.scan is None:
            files = ", ".join(_quote(str(file)) for file in self.files)
            options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false"
            source = f"read_parquet([{files}], {options})"
        else:
            source = f"{view}_scan"
            db.register(source, self._scanned_rows(columns))
        present = {column for column, *_ in db.execute(f"DESCRIBE FROM {source}").fetchall()}
        values = {column: column if column in present else "NULL" for column in columns}
        casts = ", ".join(f"CAST({values[column]} AS {kind}) AS {column}" for column, kind in columns.items())
        db.execute(f"CREATE VIEW {view} AS SELECT {casts} FROM {source}")  # noqa: S608 - our own names

    def _scanned_rows(self, columns: Iterable[str]) -> pa.Table:
        field_names = self.scan.table_metadata.schema().column_names
        columns_by_field = {NAMES_IN_ICEBERG.get(column, column): column for column in columns}
        rows = self.scan.select(*(field for field in columns_by_field if field in field_names)).to_arrow()
        return rows.rename_columns([columns_by_field[field] for field in rows.column_names])


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _scan_iceberg(catalog_table: CatalogTable) -> ReadTable:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(catalog_table.catalog, **dict(catalog_table.settings))
    if not catalog.table_exists(catalog_table.identifier):
        return ReadTable([])
    scan = catalog.load_table(catalog_table.identifier).scan()
    return ReadTable(sorted(Path(task.file.file_path.removeprefix("file://")) for task in scan.plan_files()), scan)
