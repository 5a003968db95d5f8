"""Opens the catalog that knows an Iceberg table by name, loads the table, and commits to it.

The catalog decides what was committed: a commit holds when it moved the table's pointer, and only its word counts.
"""

import gzip
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AssertCreate,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from requests import Session
from requests.exceptions import RequestException

from headrace.writer.core.catalog_table import DATA, CatalogTable
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.storage.damage import naming_damage
from headrace.writer.storage.locations import in_bucket, on_s3, store_at
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.iceberg.catalog.bucket_file_io import bucket_properties
from headrace.writer.table.iceberg.catalog.catalog_errors import (
    CatalogUnanswered,
    Retries,
    describe_error,
    describe_refusal,
)
from headrace.writer.table.iceberg.metadata.data_files import canonical_path
from headrace.writer.table.iceberg.metadata.manifests import METADATA_PATH
from headrace.writer.table.iceberg.metadata.schema import MAPPING, mapping_of
from headrace.writer.table.iceberg.metadata.snapshots import LOCATION, LOG_LOCATION, VERSION

_T = TypeVar("_T")
# What a damaged metadata file makes pyiceberg raise, where no server reads it.
_DAMAGE = (ValueError, ValidationError, LookupError, TypeError, AttributeError, EOFError, zlib.error, gzip.BadGzipFile)
# What pyiceberg loads for the files of a table in S3.
_FILE_IO = "headrace.writer.table.iceberg.catalog.s3_file_io.FewRequestsFileIO"
_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 30.0


class CatalogClient:
    """One table of a catalog.

    Each operation raises CatalogUnanswered. What may pass is tried again, but for a commit: its outcome is in the log.
    """

    def __init__(self, catalog_table: CatalogTable, location: str, stores: StoreSettings | None = None) -> None:
        self.catalog_table = catalog_table
        self.location = location
        self._stores = stores
        self._settings = client_settings(catalog_table, location, stores)

    def load(self) -> Table | None:
        """Read the newest metadata; None where there is no such table. Raises ConfigError for other locations."""
        table = self._retry(self._load)
        if table is None:
            return None
        if _files_location(table) != self.location:
            raise ConfigError(
                f"table {self.catalog_table} of catalog {self.catalog_table.catalog!r} lies at {table.location()}, and "
                f"the configuration says {self.location}. Correct table.location, or table.name."
            )
        if VERSION in table.properties:
            self._check_log_location(table.properties.get(LOG_LOCATION))
        return table

    def _check_log_location(self, log_location: str | None) -> None:
        configured = self.catalog_table.log_location
        if log_location != configured:
            raise ConfigError(
                f"the log of table {self.catalog_table} lies at {log_location or self.location}, and the configuration "
                f"says {configured or self.location}. Correct catalog.log_location."
            )

    def catalog_location(self) -> str | None:
        """Return where the table of this name lies, whatever the configuration says; None where there is none."""
        table = self._retry(self._load)
        return None if table is None else _files_location(table)

    def catalog_metadata_file(self) -> str | None:
        """Return which metadata file the catalog has for the name; None where there is none."""
        table = self._retry(self._load)
        return None if table is None else str(table.metadata_location)

    def list_tables(self) -> list[str]:
        """Return the names of all tables in the namespace; none where there is no such namespace."""
        return self._retry(self._list_tables)

    @property
    def renames_at_once(self) -> bool:
        """Whether a rename is one step. Glue has none: a new name is made, then the old one removed."""
        return self._settings["type"] != "glue"

    def rename(self, table: str) -> None:
        """Give the table another name in its namespace. Asks once; `catalog_location` says what became of it."""
        name = (*self.catalog_table.namespace, table)
        with self._convert_errors():
            catalog = self._catalog()
            if self.renames_at_once:
                catalog.rename_table(self.catalog_table.identifier, name)
                return
            # pyiceberg's own rename takes both names away where an answer is lost.
            current = catalog.load_table(self.catalog_table.identifier)
            catalog.register_table(name, current.metadata_location)
        self.forget()

    def forget(self) -> None:
        """Take the name out of the catalog. All files stay."""
        with self._convert_errors(), suppress(NoSuchTableError):
            self._catalog().drop_table(self.catalog_table.identifier)

    def create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> None:
        """Make the table unless there is one of that name, and its namespace where that is missing.

        Which table there is, its properties say: a try without an answer may have made it.
        """
        self._retry(lambda: self._create(schema, spec, properties))

    def has_namespace(self) -> bool:
        """Return whether the namespace of the table is there."""
        return self._retry(self._has_namespace)

    def create_with_snapshot(
        self,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
        add_snapshot: Callable[[Table], tuple[TableUpdate, ...]],
    ) -> None:
        """Make the table with its first snapshot, in one commit. Raises CommitRefused where there is one of that name.

        `add_snapshot` takes the table as it is about to be made, and returns the updates that add the snapshot.
        """
        with self._convert_errors():
            catalog = self._catalog_with_namespace()
            transaction = catalog.create_table_transaction(
                self.catalog_table.identifier,
                schema,
                self.location,
                spec,
                properties={**properties, **self._location_properties()},
            )
            # The commit of pyiceberg's transaction commits the same table and updates.
            table = transaction._table  # noqa: SLF001
            updates = (*transaction._updates, *add_snapshot(table))  # noqa: SLF001
            try:
                catalog.commit_table(table, (AssertCreate(),), updates)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise describe_refusal(error, self.catalog_table) from error

    def commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Commit to the table if it is still as required. Asks once. Raises CommitRefused.

        Metadata files that the table's properties no longer keep are removed.
        """
        with self._convert_errors():
            try:
                answer = self._catalog().commit_table(table, requirements, updates)
            except CommitFailedException as error:
                raise describe_refusal(error, self.catalog_table) from error
        # It is committed all the same, and a file that stays is an orphan.
        with suppress(Exception):
            # Of pyiceberg's own commits, only those of Transaction obey the property. It calls this method.
            self._catalog()._delete_old_metadata(table.io, table.metadata, answer.metadata)  # noqa: SLF001

    def retries(self) -> Retries:
        """Return the pauses between the tries of an operation that begins now."""
        return Retries(self.catalog_table)

    def _retry(self, ask: Callable[[], _T]) -> _T:
        retries = self.retries()
        while True:
            try:
                with self._convert_errors():
                    return ask()
            except CatalogUnanswered as error:
                retries.pause(error)

    def _has_namespace(self) -> bool:
        if self._is_missing():
            return False
        return bool(self._catalog().namespace_exists(self.catalog_table.namespace))

    def _list_tables(self) -> list[str]:
        if self._is_missing():
            return []
        try:
            identifiers = self._catalog().list_tables(self.catalog_table.namespace)
        except NoSuchNamespaceError:
            return []
        return [identifier[-1] for identifier in identifiers]

    def _load(self) -> Table | None:
        if self._is_missing():
            return None
        catalog = self._catalog()
        try:
            return catalog.load_table(self.catalog_table.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as error:
            raise self._missing_metadata(catalog, error) from error
        except _DAMAGE:
            if self._settings["type"] == "rest":
                # The server reads the file; what is wrong is its answer.
                raise
            path = _metadata_file(catalog, self.catalog_table)
            with naming_damage(
                path or f"the newest metadata file in {self.location}/metadata", "a metadata file of Iceberg"
            ):
                raise

    def _missing_metadata(self, catalog: Catalog, error: FileNotFoundError) -> FileNotFoundError:
        """Return the error for a metadata file that is not there. Raises StoreError where its bucket is missing."""
        # Arrow's client of S3 does not tell the one from the other.
        list(store_at(self.location, self._stores).list())
        path = _metadata_file(catalog, self.catalog_table) or str(error)
        return FileNotFoundError(
            f"the metadata file that the catalog names for table {self.catalog_table} is not there: {path}. Restore "
            "the table, or register its newest metadata file"
        )

    def _create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> None:
        catalog = self._catalog_with_namespace()
        try:
            table = catalog.create_table(
                self.catalog_table.identifier,
                schema,
                self.location,
                spec,
                properties={**properties, **self._location_properties(), MAPPING: mapping_of(schema)},
            )
        except TableAlreadyExistsError:
            table = catalog.load_table(self.catalog_table.identifier)
            if not properties.items() <= table.properties.items():
                return
        mapping = mapping_of(table.schema())
        if mapping != table.properties.get(MAPPING):
            # The catalog gave out ids of its own.
            update = SetPropertiesUpdate(updates={MAPPING: mapping})
            catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))

    def _location_properties(self) -> dict[str, str]:
        """Return properties that name the location of the files: a REST catalog may give the table another one."""
        if self._settings["type"] != "rest":
            return {}
        return {
            LOCATION: self.location,
            "write.data.path": f"{self.location}/{DATA}",
            METADATA_PATH: f"{self.location}/metadata",
        }

    def _catalog_with_namespace(self) -> Catalog:
        """Return the catalog, with the table's namespace in it."""
        catalog = self._catalog()
        namespace = self.catalog_table.namespace
        for depth in range(1, len(namespace) + 1):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(namespace[:depth])
        return catalog

    def _is_missing(self) -> bool:
        """Return whether the catalog is a file that is not there: to look for a table makes none."""
        file = _sqlite_file(self._settings)
        return file is not None and not file.exists()

    def _catalog(self) -> Catalog:
        return open_catalog(self.catalog_table.catalog, tuple(sorted(self._settings.items())))

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Raise whatever a catalog's client raises as what every storage raises."""
        try:
            yield
        except RequestException as error:
            # It is an OSError, too.
            raise describe_error(error, self.catalog_table) from error
        except (HeadraceError, OSError):
            raise
        except Exception as error:
            raise describe_error(error, self.catalog_table) from error


def _metadata_file(catalog: Catalog, table: CatalogTable) -> str | None:
    """Return which file an SQL catalog names for a table that cannot be loaded; None of other catalogs."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    if not isinstance(catalog, SqlCatalog):
        return None
    query = select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(table.namespace),
        IcebergTables.table_name == table.table,
    )
    with Session(catalog.engine) as session:
        return session.scalar(query)


def _files_location(table: Table) -> str:
    return canonical_path(table.properties.get(LOCATION) or table.location()).rstrip("/")


_SQLITE = "sqlite:///"
# The first client makes the tables of an SQL catalog.
_OPEN_LOCK = threading.Lock()


def open_catalog(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    """Return the client of a catalog, one for all tables. `settings`: pyiceberg's, in the order of their names."""
    with _OPEN_LOCK:
        return _load_catalog(name, settings)


@cache
def _load_catalog(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    by_name = dict(settings)
    if by_name["type"] == "rest":
        return _rest_client(name, by_name)
    file = _sqlite_file(by_name)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(name, **by_name)


def _sqlite_file(settings: Mapping[str, str]) -> Path | None:
    uri = settings.get("uri", "")
    if not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE).partition("?")[0])


def client_settings(table: CatalogTable, location: str, stores: StoreSettings | None = None) -> dict[str, str]:
    """Return pyiceberg's settings for a table: how it reaches the catalog, and the files."""
    settings = dict(table.settings)
    asks_aws = settings["type"] == "glue" or settings.get("rest.sigv4-enabled", "").lower() == "true"
    if asks_aws and "client.region" not in settings:
        # botocore alone does not know AWS_REGION.
        from headrace.writer.storage.s3 import resolve_settings

        settings["client.region"] = resolve_settings((stores or StoreSettings()).s3).region or ""
    return {**settings, **file_settings(location, stores), **_named_file_io(settings)}


def _named_file_io(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the client of files that a configuration names, if it does."""
    return {name: settings[name] for name in (PY_IO_IMPL,) if name in settings}


def file_settings(location: str, stores: StoreSettings | None = None) -> dict[str, str]:
    """Return how pyiceberg reaches the files of a table."""
    if not in_bucket(location):
        return {}
    if not on_s3(location):
        return bucket_properties(stores or StoreSettings())
    from headrace.writer.storage.s3 import resolve_settings

    s3_settings = resolve_settings((stores or StoreSettings()).s3)
    settings = {
        PY_IO_IMPL: _FILE_IO,
        "s3.region": s3_settings.region or "",
        "s3.force-virtual-addressing": str(not s3_settings.path_style).lower(),
    }
    if s3_settings.endpoint:
        settings["s3.endpoint"] = s3_settings.endpoint
    return settings


def _rest_client(name: str, settings: Mapping[str, str]) -> RestCatalog:
    """Return the client of a REST catalog. Raises what pyiceberg's raises: it asks for the catalog's settings."""
    defaults = {
        # Otherwise there are ten, as late as the server likes.
        "rest.sigv4.max-retries": "0",
        # It is pyiceberg's default, of which it warns.
        "oauth2-server-uri": f"{settings['uri'].rstrip('/')}/v1/oauth/tokens",
    }
    return _RestClient(name, **{**defaults, **settings})


class _RestClient(RestCatalog):
    """A REST catalog whose requests end in time, those for a token too: pyiceberg's own wait without limit."""

    def _config_headers(self, session: Session) -> None:
        # A session is set up by this method first, before it asks for a token.
        super()._config_headers(session)
        timeout = (_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S)
        session.request = partial(session.request, timeout=timeout)  # type: ignore[method-assign]
