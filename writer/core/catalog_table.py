"""A table's place in a catalog, which knows it by name."""

from dataclasses import dataclass, field
from datetime import timedelta

# The one folder, beside `metadata`, that every catalog allows below a table.
DATA = "data"
# A batch waits for it; the commit itself tries again after it.
RETRY_TIMEOUT = timedelta(minutes=1)


@dataclass(frozen=True)
class CatalogTable:
    """A table by its name in a catalog."""

    # Name of the catalog: an SQL catalog tells the tables of several apart by it.
    catalog: str
    namespace: tuple[str, ...]
    table: str
    # Of the catalog's client. A secret may be in them.
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    # How long an operation is tried again.
    retry_timeout: timedelta = RETRY_TIMEOUT
    # Where `_headrace` lies; None: in the table's location.
    log_location: str | None = None

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace and table."""
        return (*self.namespace, self.table)

    @property
    def folder(self) -> str:
        """Return the folder of the table's files, below its location; empty: the location."""
        return DATA if self.log_location else ""

    @property
    def key(self) -> str:
        """The name that tells it from other tables of the catalog, as engines do: in lower case."""
        return str(self).casefold()

    def __str__(self) -> str:
        return ".".join(self.identifier)


def written_locations(location: str, catalog_table: CatalogTable | None) -> tuple[tuple[str, bool], ...]:
    """Return where a table at a location is written to, and for each place whether its log is there."""
    if catalog_table is None or catalog_table.log_location is None:
        return ((location, True),)
    return ((f"{location}/{DATA}", False), (catalog_table.log_location, True))
