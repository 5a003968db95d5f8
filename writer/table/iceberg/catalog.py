"""Opens the catalog that knows an Iceberg table by name, loads the table, and commits to it.

The catalog decides what was committed: a commit holds when it moved the table's pointer, and only its word counts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
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

from writer.core.catalog_table import CatalogTable
from writer.core.errors import ConfigError, HeadraceError
from writer.storage.base import S3Settings
from writer.storage.locations import on_s3
from writer.table.iceberg.schema import MAPPING, mapping_of
from writer.table.log.foreign_writes import one_line


class CatalogUnanswered(OSError):
    """The catalog failed, or did not answer. Whether it did what it was asked, only its own word tells."""


class CommitRefused(Exception):
    """The catalog refused a commit: the table is not any more what the commit was made for. Nothing was committed."""


class CatalogClient:
    """One table of a catalog. Each operation asks once; all raise CatalogUnanswered."""

    def __init__(self, place: CatalogTable, location: str, s3: S3Settings | None = None) -> None:
        self.place, self.location = place, location
        self._settings = {**dict(place.settings), **file_settings(location, s3)}

    def load(self) -> Table | None:
        """Read the newest metadata; None where there is no such table. Raises ConfigError for another location's."""
        with self._asking():
            table = None
            with suppress(NoSuchTableError, NoSuchNamespaceError):
                table = self._catalog().load_table(self.place.identifier)
        if table is not None and table.location().removeprefix("file://").rstrip("/") != self.location:
            raise ConfigError(
                f"table {self.place} of catalog {self.place.catalog!r} lies at {table.location()}, and the "
                f"configuration says {self.location}. Correct table.location, or table.name."
            )
        return table

    def create(self, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        """Make the table, and its namespace where that is missing. False where there is a table of that name."""
        with self._asking():
            catalog = self._with_namespace()
            try:
                table = catalog.create_table(
                    self.place.identifier, schema, self.location, spec,
                    properties={**properties, MAPPING: mapping_of(schema)},
                )  # fmt: skip
            except TableAlreadyExistsError:
                return False
            if (mapping := mapping_of(table.schema())) != table.properties.get(MAPPING):  # it gave out ids of its own
                update = SetPropertiesUpdate(updates={MAPPING: mapping})
                catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
        return True

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
                self.place.identifier, schema, self.location, spec, properties=dict(properties)
            )
            table = made._table  # noqa: SLF001 - its commit is what commits here, too
            mapping = SetPropertiesUpdate(updates={MAPPING: mapping_of(table.schema())})
            try:
                catalog.commit_table(table, (AssertCreate(),), (*made._updates, mapping, *fill(table)))  # noqa: SLF001
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise CommitRefused(one_line(error)) from error

    def commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Commit to the table if it is still as required. Raises CommitRefused.

        Metadata files that the table's properties no longer keep are removed.
        """
        with self._asking():
            try:
                answer = self._catalog().commit_table(table, requirements, updates)
            except CommitFailedException as error:
                raise CommitRefused(one_line(error)) from error
        with suppress(Exception):  # committed all the same; what stays is an orphan
            # Of pyiceberg's own commits, only Transaction's obey the property; here is what it calls.
            self._catalog()._delete_old_metadata(table.io, table.metadata, answer.metadata)  # noqa: SLF001

    def _with_namespace(self) -> Catalog:
        """Return the catalog, with the table's namespace in it."""
        catalog = self._catalog()
        for depth in range(1, len(self.place.namespace) + 1):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self.place.namespace[:depth])
        return catalog

    def _catalog(self) -> Catalog:
        return _opened(self.place.catalog, tuple(sorted(self._settings.items())))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise what a catalog's client raises, in whatever words, as what every storage raises."""
        try:
            yield
        except (HeadraceError, OSError, CommitRefused):
            raise
        except Exception as error:
            raise CatalogUnanswered(
                f"catalog {self.place.catalog!r} did not answer for table {self.place}: {type(error).__name__}: "
                f"{one_line(error)}"
            ) from error


_SQLITE = "sqlite:///"


@cache
def _opened(name: str, settings: tuple[tuple[str, str], ...]) -> Catalog:
    found = dict(settings)
    if (uri := found.get("uri", "")).startswith(_SQLITE):
        Path(uri.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(name, **found)


def file_settings(location: str, s3: S3Settings | None = None) -> dict[str, str]:
    """Return how pyiceberg reaches the files of a table."""
    if not on_s3(location):
        return {}
    from writer.storage.s3 import resolved

    settings = resolved(s3 or S3Settings())
    found = {"s3.region": settings.region or "", "s3.force-virtual-addressing": str(not settings.path_style).lower()}
    return found | ({"s3.endpoint": settings.endpoint} if settings.endpoint else {})
