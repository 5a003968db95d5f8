"""Reads the demo's table as others do: its log, entry by entry, and its rows, with DuckDB."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.lake import list_files
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import delta_options, in_bucket, store_at
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table import delta, parquet
from headrace.writer.table.log.log import Action, Log

_REQUESTS_AT_ONCE = 8


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

    def __init__(self, location: str | Path, stores: StoreSettings | None = None) -> None:
        self._logs = [Log(store_at(f"{location}/{folder}", stores)) for folder in (delta.LOG, parquet.LOG)]
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
class TableFile:
    """A data file of a table. `name`: its path below the table, or in full."""

    name: str
    bytes: int

    @property
    def folder(self) -> str:
        """Return the name of the folder that it lies in."""
        return self.name.rpartition("/")[0].rpartition("/")[2]


@dataclass(frozen=True)
class ReadTable:
    """The files of a table: those that an Iceberg scan or a Delta version names, or those in its folders."""

    files: list[TableFile]
    # Where DuckDB finds the files by their names: the table, or copies of what lies in a bucket.
    directory: Path | None = None
    # The scan of an Iceberg table: its rows come by the catalog's column ids, not by the files' names.
    scan: Any = None

    def show_as(self, db: Any, view: str, columns: Mapping[str, str]) -> None:
        """Make a view of DuckDB of the rows, with these columns and types; one that the table lacks is null."""
        if not self.files:
            nulls = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns.items())
            db.execute(f"CREATE VIEW {view} AS SELECT {nulls} WHERE false")
            return
        if self.directory is not None:
            files = ", ".join(_quote(str(self.directory / file.name)) for file in self.files)
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


class LakeReader:
    """Opens the tables of a lake for DuckDB, which reads files of this machine: those of a bucket are copied first."""

    def __init__(self, copies: Path, stores: StoreSettings | None = None) -> None:
        """Take a directory for the copies, which must be kept until DuckDB has read them."""
        self._copies = copies
        self._stores = stores

    def open(self, location: str, catalog_table: CatalogTable | None = None) -> ReadTable:
        """Look at a table; one that is not there has no files. `catalog_table`: of an Iceberg table in its catalog.

        Raises StoreError, and HeadraceError for a file that is not there.
        """
        if catalog_table is not None:
            return self._scan_iceberg(location, catalog_table)
        store = store_at(location, self._stores)
        options = delta_options(location, self._stores)
        if DeltaTable.is_deltatable(location, options):
            actions = pa.table(DeltaTable(location, storage_options=options).get_add_actions())
            # A row for each file of the demo's table, some dozens.
            sizes = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
            files = [TableFile(unquote(path), size) for path, size in sizes]
        else:
            listed = sorted(file for file in list_files(store) if _is_data_file(file[0]))
            files = list(starmap(TableFile, listed))
        if not in_bucket(location):
            return ReadTable(files, Path(location))
        return ReadTable(files, self._copy(store, [file.name for file in files]))

    def _copy(self, store: Store, names: Iterable[str]) -> Path:
        directory = Path(tempfile.mkdtemp(dir=self._copies))

        def copy(name: str) -> None:
            stored = store.read(name)
            if stored is None:
                raise HeadraceError(f"{store.path(name)} is not there, and its table names it.")
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.content)

        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(copy, names))
        return directory

    def _scan_iceberg(self, location: str, catalog_table: CatalogTable) -> ReadTable:
        from pyiceberg.catalog import load_catalog

        from headrace.writer.table.iceberg.catalog.catalog_client import client_settings

        settings = client_settings(catalog_table, location, self._stores)
        catalog = load_catalog(catalog_table.catalog, **settings)
        if not catalog.table_exists(catalog_table.identifier):
            return ReadTable([])
        scan = catalog.load_table(catalog_table.identifier).scan()
        files = [TableFile(task.file.file_path, task.file.file_size_in_bytes) for task in scan.plan_files()]
        return ReadTable(sorted(files, key=attrgetter("name")), scan=scan)


@contextmanager
def open_lake(stores: StoreSettings | None = None, scratch: Path | None = None) -> Iterator[LakeReader]:
    """Open the tables of a lake until the block ends. `scratch`: for copies; None: the system's directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-", dir=scratch) as copies:
        yield LakeReader(Path(copies), stores)


def _is_data_file(name: str) -> bool:
    return name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in name.split("/"))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
