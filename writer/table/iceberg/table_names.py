"""The names by which a catalog knows a table, its shadow, and tables that had its name before."""

import re
from collections.abc import Collection
from dataclasses import replace
from itertools import count

from headrace.writer.core import fault_points
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import ConfigError
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.iceberg.catalog.catalog_client import CatalogClient


class TableNames:
    """The names in the namespace of a table: its own, `<name>_shadow`, and `<name>_before_<n>` from 1 on."""

    def __init__(self, catalog_table: CatalogTable, location: str, stores: StoreSettings | None = None) -> None:
        """`location`: of the files, by which the catalog's client finds its storage."""
        self._catalog_table = catalog_table
        self._location = location
        self._stores = stores
        # Glue has names in lower case.
        self._pattern = re.compile(rf"{re.escape(catalog_table.table)}(_shadow|_before_\d+)?", re.IGNORECASE)

    def find(self, location: str) -> str | None:
        """Return by which of the names the catalog knows the table at a location; None: by none of them."""
        return next((name for name in self._names() if self._location_of(name) == location), None)

    @property
    def main(self) -> str:
        """The table's own name."""
        return self._catalog_table.table

    def full(self, table: str) -> str:
        """Return a name with its namespace, as `table.name` has it."""
        return ".".join((*self._catalog_table.namespace, table))

    @property
    def shadow(self) -> str:
        """Name that a new shadow gets."""
        return f"{self.main}_shadow"

    def is_switched(self, shadow: str) -> bool:
        """Return whether the table at location `shadow` has the name, and no other."""
        return self._location_of(self.main) == shadow and not self._copies(shadow)

    def switch(self, first: str, shadow: str) -> None:
        """Give the table at location `shadow` the name, and the one at `first` a name of before. Safe to run again.

        Raises ConfigError where the name is a third table's.
        """
        main = self._client(self.main)
        location = main.catalog_location()
        if location not in (None, first, shadow):
            raise ConfigError(
                f"table {self._catalog_table} of the catalog lies at {location}, and is neither of the two tables."
            )
        for copy in self._copies(location):
            client = self._client(copy)
            if location == shadow and client.catalog_metadata_file() != main.catalog_metadata_file():
                # The table was written by its other name since.
                main.forget()
                location = None
                break
            client.forget()
        if location == first:
            main.rename(self._free_name(main.list_tables()))
            fault_points.point("between_renames")
        if location != shadow:
            name = self.find(shadow)
            assert name is not None, "the shadow has one of the names"
            self._client(name).rename(self.main)

    def _copies(self, location: str | None) -> list[str]:
        """Return other names of the table at a location that has the name: a rename broke off between its two steps."""
        if location is None or self._client(self.main).renames_at_once:
            return []
        others = [name for name in self._names() if name.casefold() != self.main.casefold()]
        return [name for name in others if self._location_of(name) == location]

    def _names(self) -> list[str]:
        return sorted(filter(self._pattern.fullmatch, self._client(self.main).list_tables()))

    def _free_name(self, names: Collection[str]) -> str:
        taken = {name.casefold() for name in names}
        candidates = (f"{self.main}_before_{number}" for number in count(1))
        return next(name for name in candidates if name.casefold() not in taken)

    def _location_of(self, table: str) -> str | None:
        return self._client(table).catalog_location()

    def _client(self, table: str) -> CatalogClient:
        return CatalogClient(replace(self._catalog_table, table=table), self._location, self._stores)
