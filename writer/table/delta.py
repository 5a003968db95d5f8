"""Delta Lake through delta-rs: creates a table, writes the log's checkpoints, reads rows."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.storage import disk_space
from headrace.writer.storage.locations import delta_options, store_at
from headrace.writer.storage.nesting import METADATA, is_iceberg
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.log import file_listing
from headrace.writer.table.log.log import Log, State, TableVersion

if TYPE_CHECKING:
    # It imports pandas, half a second.
    from pyarrow import dataset

LOG = "_delta_log"
# Delta's default.
_LOG_RETENTION = "interval 30 days"
_INTERVAL = re.compile(r"(?:interval )?(\d{1,8}) (microsecond|millisecond|second|minute|hour|day|week)s?")
# The log is cleaned up so often, or more often where its retention is short.
_CLEANUP_EVERY = timedelta(hours=1)
_CLEANUPS_OF_A_RETENTION = 24


class Delta:
    """A Delta table: readers see a file from the entry on that adds it."""

    in_catalog = False
    hidden = False
    folder = ""

    def __init__(self, location: str, checkpoint_interval: int, stores: StoreSettings | None = None) -> None:
        """Take the location; other clients that write to the table are told the interval, in versions."""
        self.location = location
        self.store = store_at(location, stores)
        self.log = Log(store_at(f"{location}/{LOG}", stores))
        self._checkpoint_interval = checkpoint_interval
        self._options = delta_options(location, stores)
        # When this process last cleaned up the log, on its monotonic clock; None: not yet.
        self._cleaned_up_s: float | None = None

    def obstacle(self) -> str:
        """Name the table of another format that lies there."""
        if any(is_iceberg(name) for name in self.store.list(METADATA)):
            return "an Iceberg table"
        return "a table in Parquet format" if any(self.store.list("_headrace/log")) else ""

    def create(self, name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> None:
        """Make the table, unless there is one."""
        # Owner and layout stand in the first entry, not in a property set later: of two starts that create the table
        # at once, the second may write its entry over what the first has set meanwhile.
        with _as_os_error(self.location, self.log):
            DeltaTable.create(
                self.location,
                schema=Schema.from_arrow(columns),
                partition_by=list(bucket_columns),
                mode="ignore",
                name=name,
                description=layout,
                configuration={"delta.checkpointInterval": str(self._checkpoint_interval)},
                storage_options=self._options,
            )

    def repair(self) -> None:
        """Do nothing: readers go by the log, or by the files alone."""

    def publish(self, table_version: TableVersion) -> None:
        """Do nothing: the entry is what readers go by."""

    def buckets(self, _: State) -> list[BucketKey]:
        """Return the buckets that have files. Looks at every file of the table."""
        with _as_os_error(self.location, self.log):
            table = self._open()
            columns = table.metadata().partition_columns
            return [tuple(values[column] for column in columns) for values in table.partitions()]

    def bucket_files(self, state: State, bucket: BucketKey | None) -> list[BucketFile]:
        """Return the files of a bucket: those of the newest checkpoint, with what later entries add and remove."""
        return file_listing.list_bucket_files(self.log, state, bucket)

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Do nothing: what the log names is there as it is."""

    def expire(self, before: datetime) -> None:
        """Do nothing: the log alone knows versions."""

    def referenced_paths(self, since: datetime) -> set[str]:  # noqa: ARG002
        """Return none: what a reader needs is named by entries."""
        return set()

    def foreign_paths(self) -> list[str]:
        """Return none: readers see what the log names."""
        return []

    def rows(self, _: State) -> "dataset.Dataset":
        """Return the rows, through delta-rs: for a filter on a column without bounds, it would find none."""
        with _as_os_error(self.location, self.log):
            return self._open().to_pyarrow_dataset()

    def tidy(self, state: State, *, keeps_entries: bool = False) -> None:
        """Write the log's checkpoint, and remove what has outlived its retention."""
        with _as_os_error(self.location, self.log):
            table = self._open()
            table.create_checkpoint()
            if not keeps_entries and self._is_cleanup_due(state.configuration):
                table.cleanup_metadata()
                self._cleaned_up_s = time.monotonic()

    def _is_cleanup_due(self, configuration: Mapping[str, str]) -> bool:
        """Return whether entries may have outlived their retention that had not at the last clean-up.

        A clean-up looks at each entry of the log. An entry stays for an hour longer at most.
        """
        if configuration.get("delta.enableExpiredLogCleanup") == "false":
            return False
        if self._cleaned_up_s is None:
            return True
        pause = min(_CLEANUP_EVERY, log_retention(configuration) / _CLEANUPS_OF_A_RETENTION)
        return time.monotonic() - self._cleaned_up_s >= pause.total_seconds()

    def _open(self) -> DeltaTable:
        """Open the table through delta-rs, which reads an entry for each of its files."""
        return DeltaTable(self.location, storage_options=self._options)


def log_retention(configuration: Mapping[str, str]) -> timedelta:
    """Return how long a table keeps entries of its log, as its properties say; zero where they say nonsense."""
    match = _INTERVAL.fullmatch(configuration.get("delta.logRetentionDuration", _LOG_RETENTION).strip().lower())
    if match is None:
        return timedelta(0)
    return timedelta(**{f"{match[2]}s": int(match[1])})


@contextmanager
def _as_os_error(location: str, log: Log) -> Iterator[None]:
    """Raise what delta-rs raises as what every store raises, with the name of a damaged checkpoint."""
    try:
        yield
    except DeltaError as error:
        raise (
            disk_space.full_disk_error(location, str(error)) or log.checkpoint_damage() or OSError(str(error))
        ) from error
