"""A table's place in a catalog, which knows it by name."""

from dataclasses import dataclass, field
from datetime import timedelta

RETRY_TIMEOUT = timedelta(minutes=1)  # a batch waits for it; the commit itself tries again after it


@dataclass(frozen=True)
class CatalogTable:
    """A table by its name in a catalog."""

    catalog: str  # name of the catalog: an SQL catalog tells the tables of several apart by it
    namespace: tuple[str, ...]
    table: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)  # of the catalog's client; a secret may be in them
    retry_timeout: timedelta = RETRY_TIMEOUT  # how long an operation is tried again

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace and table."""
        return (*self.namespace, self.table)

    @property
    def key(self) -> str:
        """What tells it from other tables of the catalog, as engines do: without regard to upper and lower case."""
        return str(self).casefold()

    def __str__(self) -> str:
        return ".".join(self.identifier)
