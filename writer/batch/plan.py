"""What the driver gives to a task: all that it must decide in the same way when it is tried again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from headrace.bucketers.zone_data import ZoneData
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.lateness import LateTier
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.route import Route
from headrace.writer.batch.staging.parquet_files import SMALL_FILE_ROWS, Destination
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core.files import HELD_LATE
from headrace.writer.core.offsets import Source
from headrace.writer.core.units import shift_instant
from headrace.writer.framing.wire_format import CONFLUENT, Wire
from headrace.writer.privacy.record_sealing import RecordSealing
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings


@dataclass(frozen=True)
class TaskPlan:
    """The plan of a task, for the rows of one table."""

    now: datetime
    frontier: Mapping[Source, int]
    incarnations: Mapping[str, int]
    schemas: SchemaPlan
    time_rule: TimeRule
    bucket: Mapping[str, Any]
    # Time zones of buckets and clocks, as the driver has them.
    zones: tuple[ZoneData, ...] = field(default=(), kw_only=True)
    # Location of the table.
    table: str
    # Location of the dead-letter table.
    dead_letters: str
    prefix: str
    # Bytes of rows in memory.
    budget: int
    target_file_size: int
    # The only topic, whose name no batch carries.
    topic: str | None = None
    entropy_bits: int = 0
    # Files wait for their commit where readers do not look.
    hidden: bool = False
    # Folder of the tables' files, below their locations.
    folder: str = ""
    stores: StoreSettings | None = None
    small_file_rows: int = SMALL_FILE_ROWS
    wire: Wire = CONFLUENT
    # A record without a value becomes a row.
    keeps_tombstones: bool = False
    # Rows of buckets that end by then are late; None: no row is.
    closed_until: datetime | None = None
    # How far the event times of all partitions have come.
    seen: datetime | None = None
    out_of_orderness: timedelta = timedelta(0)
    late: tuple[LateTier, ...] = (LateTier(None, "reopen"),)
    # Location of the table of late rows.
    late_table: str | None = None
    # How records are kept that are kept as Kafka has them.
    sealing: RecordSealing | None = None
    # Location of the raw table; None: records are not kept as Kafka has them.
    raw: str | None = None
    record_columns: RecordColumns = field(default_factory=RecordColumns)
    # To several tables; then `schemas` only decodes, and the table gets no rows.
    route: Route | None = None
    # Plans of the targets, by the names that the route knows.
    targets: Mapping[str, "TaskPlan"] = field(default_factory=dict)
    # Number of a route's table in the pipeline's log.
    number: int = 0
    # The location where files of a table that refuses wait; empty for another.
    held_location: str = ""
    # The report says what the table's storage refuses, and the task goes on.
    may_refuse: bool = False

    @property
    def watermark(self) -> datetime | None:
        """By which tiers of late rows count; None: some partition has none, or it is not known here."""
        if self.seen is None:
            return None
        return shift_instant(self.seen, -self.out_of_orderness)

    def destination(self, location: str, columns: tuple[str, ...] = (), entropy_bits: int = 0) -> Destination:
        """Where files of a table go. `columns`: of its buckets."""
        written_location = location
        if self.held_location:
            written_location = self.held_location if location == self.table else f"{self.held_location}{HELD_LATE}"
        return Destination(
            store_at(written_location, self.stores),
            columns,
            self.prefix,
            self.target_file_size,
            entropy_bits,
            self.hidden,
            self.folder,
            unmeasured=self.schemas.unmeasured | self.record_columns.protected,
            small_file_rows=self.small_file_rows,
        )
