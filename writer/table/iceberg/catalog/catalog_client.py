"""Opens the catalog that knows an Iceberg table by name, loads the table, and commits to it.

The catalog decides what was committed: a commit holds when it moved the table's pointer, and only its word counts.
"""

import gzip
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
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
from requests.exceptions import RequestException

from writer.core.catalog_table import DATA, CatalogTable
from writer.core.errors import ConfigError, HeadraceError
from writer.storage.base import S3Settings
from writer.storage.damage import naming_damage
from writer.storage.locations import on_s3
from writer.table.iceberg.catalog.catalog_errors import CatalogUnanswered, Retries, described, refused
from writer.table.iceberg.catalog.rest_client import rest_client
from writer.table.iceberg.metadata.data_files import canonical
from writer.table.iceberg.metadata.manifests import METADATA_PATH
from writer.table.iceberg.metadata.schema import MAPPING, mapping_of
from writer.table.iceberg.metadata.snapshots import LOCATION, LOG_LOCATION, VERSION

_T = TypeVar("_T")
# What a damaged metadata file makes pyiceberg raise, where no server reads it.
_DAMAGE = (ValueError, ValidationError, LookupError, TypeError, AttributeError, EOFError, zlib.error, gzip.BadGzipFile)


class CatalogClient:
    """One table of a catalog.

    Each operation raises CatalogUnanswered. What may pass is tried again, but for a commit: its outcome is in the log.
    """

    def __init__(self, place: CatalogTable, location: str, s3: S3Settings | None = None) -> None:
        self.place, self.location = place, location
        self._settings = client_settings(place, location, s3)

    def load(self) -> Table | None:
        """Read the newest metadata; None where there is no such table. Raises ConfigError for other locations."""
        table = self._tried(self._load)
        if table is not None and not self._lies_there(table):
            raise ConfigError(
                f"table {self.place} of catalog {self.place.catalog!r} lies at {table.location()}, and the "
                f"configuration says {self.location}. Correct table.location, or table.name."
            )
        if table is not None and VERSION in table.properties:
            known = table.properties.get(LOG_LOCATION)
            if known != self.place.log_location:
                raise ConfigError(
                    f"the log of table {self.place} lies at {known or self.location}, and the configuration says "
                    f"{self.place.log_location or self.location}. Correct catalog.log_location."
                )
        return table

    def location_there(self) -> str | None:
        """Return where the table of this name lies, whatever the configuration says; None where there is none."""
        table = self._tried(self._load)
        return None if table is None else _location_of(table)

    def metadata_there(self) -> str | None:
        """Return which metadata file the catalog has for the name; None where there is none."""
        table = self._tried(self._load)
        return None if table is None else str(table.metadata_location)

    def neighbours(self) -> list[str]:
        """Return the names of all tables in the namespace; none where there is no such namespace."""
        return self._tried(self._neighbours)

    @property
    def renames_at_once(self) -> bool:
        """Whether a rename is one step. Glue has none: a new name is made, then the old one removed."""
        return self._settings["type"] != "glue"

    def rename(self, table: str) -> None:
        """Give the table another name in its namespace. Asks once; what became of it, `location_there` says."""
        name = (*self.place.namespace, table)
        with self._asking():
            if self.renames_at_once:
                self._catalog().rename_table(self.place.identifier, name)
                return
            # Not pyiceberg's: where an answer is lost, it takes both names away.
            self._catalog().register_table(name, self._catalog().load_table(self.place.identifier).metadata_location)
        self.forget()

    def forget(self) -> None:
        """Take the name out of the catalog. All files stay."""
        with self._asking(), suppress(NoSuchTableError):
            self._catalog().drop_table(self.place.identifier)

    def create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> None:
        """Make the table unless there is one of that name, and its namespace where that is missing.

        Which table there is, its properties say: a try without an answer may have made it.
        """
        self._tried(lambda: self._create(schema, spec, properties))

    def has_namespace(self) -> bool:
        """Return whether the namespace of the table is there."""
        return self._tried(self._has_namespace)

    def create_filled(
        self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str],
        fill: Callable[[Table], tuple[TableUpdate, ...]],
    ) -> None:  # fmt: skip
        """Make the table with its first snapshot, in one commit. Raises CommitRefused where there is one of that name.

        `fill` takes the table as it is about to be made, and returns what adds the snapshot.
        """
        with self._asking():
            catalog = self._with_namespace()
            made = catalog.create_table_transaction(
                self.place.identifier, schema, self.location, spec, properties={**properties, **self._whereabouts()}
            )
            table = made._table  # noqa: SLF001 - its commit is what commits here, too
            try:
                catalog.commit_table(table, (AssertCreate(),), (*made._updates, *fill(table)))  # noqa: SLF001
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise refused(error, self.place) from error

    def commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Commit to the table if it is still as required. Asks once. Raises CommitRefused.

        Metadata files that the table's properties no longer keep are removed.
        """
        with self._asking():
            try:
                answer = self._catalog().commit_table(table, requirements, updates)
            except CommitFailedException as error:
                raise refused(error, self.place) from error
        with suppress(Exception):  # committed all the same; what stays is an orphan
            # Of pyiceberg's own commits, only Transaction's obey the property; here is what it calls.
            self._catalog()._delete_old_metadata(table.io, table.metadata, answer.metadata)  # noqa: SLF001

    def retries(self) -> Retries:
        """Return the pauses between the tries of an operation that begins now."""
        return Retries(self.place)

    def _tried(self, ask: Callable[[], _T]) -> _T:
        retries = self.retries()
        while True:
            try:
                with self._asking():
                    return ask()
            except CatalogUnanswered as error:
                retries.pause(error)

    def _has_namespace(self) -> bool:
        return not self._is_to_be_made() and bool(self._catalog().namespace_exists(self.place.namespace))

    def _neighbours(self) -> list[str]:
        if not self._is_to_be_made():
            with suppress(NoSuchNamespaceError):
                return [name[-1] for name in self._catalog().list_tables(self.place.namespace)]
        return []

    def _load(self) -> Table | None:
        if self._is_to_be_made():
            return None
        catalog = self._catalog()
        try:
            return catalog.load_table(self.place.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except _DAMAGE:
            if self._settings["type"] == "rest":
                # The server reads the file; what is wrong is its answer.
                raise
            path = _metadata_file(catalog, self.place) or f"the newest metadata file in {self.location}/metadata"
            with naming_damage(path, "a metadata file of Iceberg"):
                raise

    def _create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> None:
        catalog = self._with_namespace()
        try:
            table = catalog.create_table(
                self.place.identifier, schema, self.location, spec,
                properties={**properties, **self._whereabouts(), MAPPING: mapping_of(schema)},
            )  # fmt: skip
        except TableAlreadyExistsError:
            table = catalog.load_table(self.place.identifier)
            if not properties.items() <= table.properties.items():
                return
        if (mapping := mapping_of(table.schema())) != table.properties.get(MAPPING):  # it gave out ids of its own
            update = SetPropertiesUpdate(updates={MAPPING: mapping})
            catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))

    def _lies_there(self, table: Table) -> bool:
        return _location_of(table) == self.location

    def _whereabouts(self) -> dict[str, str]:
        """Return properties that name the location of the files: a REST catalog may give the table another one."""
        place = self.location
        if self._settings["type"] != "rest":
            return {}
        return {LOCATION: place, "write.data.path": f"{place}/{DATA}", METADATA_PATH: f"{place}/metadata"}

    def _with_namespace(self) -> Catalog:
        """Return the catalog, with the table's namespace in it."""
        catalog = self._catalog()
        for depth in range(1, len(self.place.namespace) + 1):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self.place.namespace[:depth])
        return catalog

    def _is_to_be_made(self) -> bool:
        """Return whether the catalog is a file that is not there: to look for a table makes none."""
        file = _sqlite_file(self._settings)
        return file is not None and not file.exists()

    def _catalog(self) -> Catalog:
        return _opened(self.place.catalog, tuple(sorted(self._settings.items())))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise what a catalog's client raises, in whatever words, as what every storage raises."""
        try:
            yield
        except RequestException as error:  # an OSError
            raise described(error, self.place) from error
        except (HeadraceError, OSError):
            raise
        except Exception as error:
            raise described(error, self.place) from error


def _metadata_file(catalog: Catalog, place: CatalogTable) -> str | None:
    """Return which file an SQL catalog names for a table that cannot be loaded; None of other catalogs."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    if not isinstance(catalog, SqlCatalog):
        return None
    query = select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(place.namespace),
        IcebergTables.table_name == place.table,
    )
    with Session(catalog.engine) as session:
        return session.scalar(query)


def _location_of(table: Table) -> str:
    return canonical(table.properties.get(LOCATION) or table.location()).rstrip("/")


_SQLITE = "sqlite:///"
_OPENING = threading.Lock()  # the first client makes the tables of an SQL catalog


def _opened(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    with _OPENING:
        return _open(name, settings)


@cache
def _open(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    found = dict(settings)
    if found["type"] == "rest":
        return rest_client(name, found)
    if (file := _sqlite_file(found)) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(name, **found)


def _sqlite_file(settings: Mapping[str, str]) -> Path | None:
    uri = settings.get("uri", "")
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]) if uri.startswith(_SQLITE) else None


def client_settings(place: CatalogTable, location: str, s3: S3Settings | None = None) -> dict[str, str]:
    """Return pyiceberg's settings for a table: how it reaches the catalog, and the files."""
    settings = dict(place.settings)
    asks_aws = settings["type"] == "glue" or settings.get("rest.sigv4-enabled", "").lower() == "true"
    if asks_aws and "client.region" not in settings:  # botocore alone does not know AWS_REGION
        from writer.storage.s3 import resolved

        settings["client.region"] = resolved(s3 or S3Settings()).region or ""
    return {**settings, **file_settings(location, s3)}


def file_settings(location: str, s3: S3Settings | None = None) -> dict[str, str]:
    """Return how pyiceberg reaches the files of a table."""
    if not on_s3(location):
        return {}
    from writer.storage.s3 import resolved

    settings = resolved(s3 or S3Settings())
    found = {"s3.region": settings.region or "", "s3.force-virtual-addressing": str(not settings.path_style).lower()}
    return found | ({"s3.endpoint": settings.endpoint} if settings.endpoint else {})
