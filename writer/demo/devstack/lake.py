"""The folder of the demo's tables: in a directory of this machine, or in a bucket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pyarrow import fs

from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.storage.base import Store, StoreError, Unanswered
from headrace.writer.storage.locations import in_bucket, parse_location, store_at
from headrace.writer.storage.nesting import enclosing_folders, location_of, parts
from headrace.writer.storage.probe import StoreSilent, probe
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.locations import is_table

# The object that marks a folder as a demo's own: all that is in it may be removed.
MARKER = "_headrace_demo"
_CONTENT = b"A lake of `headrace demo`: all that is in this folder is the demo's own.\n"
_REQUESTS_AT_ONCE = 8


class Lake:
    """A folder for the demo's tables alone. Its store is reached as `stores` says, once the configuration is checked.

    Nothing is asked or written before `claim`.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.stores = StoreSettings()
        self.is_claimed = False

    @property
    def in_bucket(self) -> bool:
        """Whether it lies in a bucket."""
        return in_bucket(self.location)

    def table(self, name: str) -> str:
        """Return the location of a table."""
        return f"{self.location}/{name}"

    def claim(self) -> None:
        """Mark the folder as this demo's. Raises ConfigError.

        The folder must be empty and inside no table, and its store must do what a table needs.
        """
        store = store_at(self.location, self.stores)
        try:
            if next(store.list(), None) is not None:
                raise ConfigError(f"{self.location} is not empty. Give --lake a folder that is new.")
            self._check_folders_above()
            probe(store, exclusive=True)
            # From here on something may be there, also after a signal.
            self.is_claimed = True
            if not store.put_if_absent(MARKER, _CONTENT):
                self.is_claimed = False
                raise ConfigError(f"another demo took {self.location} a moment ago. Give --lake a folder that is new.")
        except (StoreError, StoreSilent) as error:
            raise ConfigError(f"--lake cannot be used: {error}") from error

    def is_marked(self) -> bool:
        """Return whether a demo has marked the folder as its own. Raises StoreError."""
        return store_at(self.location, self.stores).mark(MARKER) is not None

    def usage(self) -> tuple[int, int]:
        """Return how many objects are in the folder, the marker among them, and their bytes. Raises StoreError."""
        sizes = [size for _, size in list_files(store_at(self.location, self.stores))]
        return len(sizes), sum(sizes)

    def remove(self) -> int:
        """Remove all that is in the folder, and return how many objects that were. Raises StoreError.

        If it is interrupted, it can be done again.
        """
        store = store_at(self.location, self.stores)
        names = [name for name, _ in list_files(store) if name != MARKER]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(store.delete, names))
        # The last, because it is what says that the rest may go.
        store.delete(MARKER)
        if not self.in_bucket:
            _remove_folders(Path(self.location))
        self.is_claimed = False
        return len(names) + 1

    def _check_folders_above(self) -> None:
        for folder in enclosing_folders(parts(self.location)):
            location = location_of(folder)
            try:
                is_inside = is_table(store_at(location, self.stores))
            except Unanswered:
                raise
            except StoreError:
                # Rights may begin below.
                continue
            if is_inside:
                raise ConfigError(f"{self.location} is inside the table at {location}. Give --lake another folder.")


def parse_lake(text: str, form: TableFormat = "delta") -> str:
    """Return the location that a user wrote for --lake, in its one form. Raises ConfigError.

    `form`: of the tables, some of which know no az://.
    """
    if "://" not in text:
        text = str(Path(text).absolute())
    try:
        location = parse_location(text)
    except ValueError as error:
        raise ConfigError(f"--lake cannot be used: {error}.") from None
    if form == "iceberg" and location.startswith("az://"):
        container, _, folder = location.removeprefix("az://").partition("/")
        raise ConfigError(
            f"--lake cannot be used: clients of Iceberg know no az://; write {location} as "
            f"abfss://{container}@<account>.dfs.core.windows.net/{folder}."
        )
    return location


def list_files(store: Store) -> Iterator[tuple[str, int]]:
    """Yield the names below a store's location, at any depth, and their sizes in bytes. Raises StoreError."""
    filesystem, root = store.files()
    try:
        infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    except StoreError:
        raise
    except OSError as error:
        raise StoreError("list", store.location, str(error), "Look at the store.") from error
    for info in infos:
        if info.is_file:
            yield info.path.removeprefix(f"{root}/"), info.size


def _remove_folders(directory: Path) -> None:
    """Remove a directory that holds folders alone, as far as that is allowed: it may be a mount point."""
    folders = sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True)
    for folder in (*folders, directory):
        with suppress(OSError):
            folder.rmdir()
