"""The protocol of a table format, with an adapter for each."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.storage.base import Store
from headrace.writer.table.log.log import Log, State, TableVersion

if TYPE_CHECKING:
    # Imports pandas, which takes half a second.
    from pyarrow import dataset


class Format(Protocol):
    """What one table format does in its own way. All operations raise OSError where the storage fails."""

    # Where the table lies.
    location: str
    # Of what lies below the location.
    store: Store
    # A catalog names its newest entry.
    in_catalog: bool
    # Files wait for their commit where readers do not look.
    hidden: bool
    # Of the files, below the location; empty: the location.
    folder: str
    log: Log

    def obstacle(self) -> str:
        """Name what lies at the location and keeps a table of this format from being made there; empty: nothing."""

    def create(self, name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> None:
        """Make the table, unless another start makes it at the same time."""

    def repair(self) -> None:
        """Put right what another client changed beside the log, if storage and catalog allow it now."""

    def publish(self, table_version: TableVersion) -> None:
        """Let readers see the files that an entry adds, and no longer those that it removes. Safe to run again.

        The files of all entries before it are published. Raises ForeignChange when one of the files is gone.
        """

    def buckets(self, state: State) -> list[BucketKey]:
        """Buckets that have files."""

    def rows(self, state: State) -> "dataset.Dataset":
        """Return the rows, with the table's columns."""

    def bucket_files(self, state: State, bucket: BucketKey | None) -> list[BucketFile]:
        """Files that a version of the table names, of one bucket or of all, from its log alone. For one thread."""

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Raise LiveDeleteFiles where other clients deleted rows that these files still have."""

    def foreign_paths(self) -> list[str]:
        """Paths of files that readers of the table see and that no entry of its log ever named."""

    def expire(self, before: datetime) -> None:
        """Forget versions of the table from before this time, but the newest, where readers may still ask for them."""

    def referenced_paths(self, since: datetime) -> set[str]:
        """Paths below the location that versions since this time need, and the newest: what no entry may name."""

    def tidy(self, state: State, *, keeps_entries: bool = False) -> None:
        """Write the log's checkpoint at this state, and remove unneeded objects, but no entry if `keeps_entries`."""
