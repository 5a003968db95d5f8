"""The names by which a catalog knows a table, its shadow, and tables that had its place before."""

import re
from collections.abc import Collection
from dataclasses import replace
from itertools import count

from writer.core import fault_points
from writer.core.catalog_table import CatalogTable
from writer.core.errors import ConfigError
from writer.storage.base import S3Settings
from writer.table.iceberg.catalog.catalog_client import CatalogClient


class TableNames:
    """The names in the namespace of a table: its own, `<name>_shadow`, and `<name>_before_<n>` from 1 on."""

    def __init__(self, place: CatalogTable, location: str, s3: S3Settings | None = None) -> None:
        """`location`: of the files, by which the catalog's client finds its storage."""
        self._place, self._location, self._s3 = place, location, s3
        pattern = rf"{re.escape(place.table)}(_shadow|_before_\d+)?"
        self._known = re.compile(pattern, re.IGNORECASE)  # Glue has names in lower case

    def find(self, location: str) -> str | None:
        """Return by which of the names the catalog knows the table at a location; None: by none of them."""
        return next((name for name in self._names() if self._at(name) == location), None)

    @property
    def main(self) -> str:
        """The table's own name."""
        return self._place.table

    def full(self, table: str) -> str:
        """Return a name with its namespace, as `table.name` has it."""
        return ".".join((*self._place.namespace, table))

    @property
    def shadow(self) -> str:
        """Name that a new shadow gets."""
        return f"{self._place.table}_shadow"

    def is_switched(self, shadow: str) -> bool:
        """Return whether the table at location `shadow` has the name, and no other."""
        return self._at(self.main) == shadow and not self._copies(shadow)

    def switch(self, first: str, shadow: str) -> None:
        """Give the table at location `shadow` the name, and the one at `first` a name of before. Safe to run again.

        Raises ConfigError where the name is a third table's.
        """
        main = self._client(self._place.table)
        there = main.location_there()
        if there not in (None, first, shadow):
            raise ConfigError(f"table {self._place} of the catalog lies at {there}, and is neither of the two tables.")
        for copy in self._copies(there):
            if there == shadow and self._client(copy).metadata_there() != main.metadata_there():
                main.forget()  # it was written by its other name since
                there = None
                break
            self._client(copy).forget()
        if there == first:
            main.rename(self._free(main.neighbours()))
            fault_points.point("between_renames")
        if there != shadow:
            name = self.find(shadow)
            assert name is not None, "the shadow has one of the names"
            self._client(name).rename(self._place.table)

    def _copies(self, location: str | None) -> list[str]:
        """Return other names of the table at a location that has the name: a rename broke off between its two steps."""
        if location is None or self._client(self.main).renames_at_once:
            return []
        others = (name for name in self._names() if name.casefold() != self.main.casefold())
        return [name for name in others if self._at(name) == location]

    def _names(self) -> list[str]:
        return sorted(filter(self._known.fullmatch, self._client(self.main).neighbours()))

    def _free(self, names: Collection[str]) -> str:
        before, taken = (f"{self.main}_before_{n}" for n in count(1)), {name.casefold() for name in names}
        return next(name for name in before if name.casefold() not in taken)

    def _at(self, table: str) -> str | None:
        return self._client(table).location_there()

    def _client(self, table: str) -> CatalogClient:
        return CatalogClient(replace(self._place, table=table), self._location, self._s3)
