"""A table's place in a catalog, which knows it by name."""

from dataclasses import dataclass, field
from datetime import timedelta

DATA = "data"  # the one folder, beside `metadata`, that every catalog allows below a table
RETRY_TIMEOUT = timedelta(minutes=1)  # a batch waits for it; the commit itself tries again after it


@dataclass(frozen=True)
class CatalogTable:
    """A table by its name in a catalog."""

    catalog: str  # name of the catalog: an SQL catalog tells the tables of several apart by it
    namespace: tuple[str, ...]
    table: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)  # of the catalog's client; a secret may be in them
    retry_timeout: timedelta = RETRY_TIMEOUT  # how long an operation is tried again
    log_location: str | None = None  # where `_headrace` lies; None: in the table's location

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
        """What tells it from other tables of the catalog, as engines do: without regard to upper and lower case."""
        return str(self).casefold()

    def __str__(self) -> str:
        return ".".join(self.identifier)


def written(location: str, in_catalog: CatalogTable | None) -> tuple[tuple[str, bool], ...]:
    """Return where a table at a location is written to, and whether its log is there."""
    log = in_catalog.log_location if in_catalog else None
    return ((f"{location}/{DATA}", False), (log, True)) if log else ((location, True),)
