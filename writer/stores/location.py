"""From a location to the store that holds it. The one place that reads schemes."""

from writer.stores.base import Store
from writer.stores.local import LocalStore


def store_at(location: str) -> Store:
    """Return the store of what lies below a location: an absolute path."""
    return LocalStore(location)
