"""What the driver gives to a task: all that it must decide in the same way when it is tried again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bucketers.zone_data import ZoneData
from writer.avro.schema_plan import SchemaPlan
from writer.avro.wire_format import CONFLUENT, Wire
from writer.batch.bucketing import TimeRule
from writer.batch.lateness import LateTier
from writer.batch.record_columns import RecordColumns
from writer.batch.route import Route
from writer.batch.staging.parquet_files import HELD_LATE, Destination
from writer.core.offsets import Source
from writer.core.units import shifted
from writer.privacy.record_sealing import RecordSealing
from writer.storage.base import S3Settings
from writer.storage.locations import store_at


@dataclass(frozen=True)
class TaskPlan:
    """The plan of a task, for the rows of one table."""

    now: datetime
    frontier: Mapping[Source, int]
    incarnations: Mapping[str, int]
    schemas: SchemaPlan
    time_rule: TimeRule
    bucket: Mapping[str, Any]
    zones: tuple[ZoneData, ...] = field(default=(), kw_only=True)  # of buckets and clocks, as the driver has them
    table: str  # location
    dead_letters: str  # location
    prefix: str
    budget: int  # bytes of rows in memory
    target_file_size: int
    topic: str | None = None  # the only one, whose name no batch carries
    entropy_bits: int = 0
    hidden: bool = False  # files wait for their commit where readers do not look
    folder: str = ""  # of the tables' files, below their locations
    s3: S3Settings | None = None
    wire: Wire = CONFLUENT
    closed_until: datetime | None = None  # rows of buckets that end by then are late; None: no row is
    seen: datetime | None = None  # how far the event times of all partitions have come
    out_of_orderness: timedelta = timedelta(0)
    late: tuple[LateTier, ...] = (LateTier(None, "reopen"),)
    late_table: str | None = None  # location
    sealing: RecordSealing | None = None  # of records that are kept as Kafka has them
    raw: str | None = None  # location of the raw table; None: records are not kept as Kafka has them
    record_columns: RecordColumns = field(default_factory=RecordColumns)
    route: Route | None = None  # to several tables; then `schemas` only decodes, and the table gets no rows
    targets: Mapping[str, "TaskPlan"] = field(default_factory=dict)  # plans of these, by the names that the route knows
    number: int = 0  # of a route's table, in the pipeline's log
    held: str = ""  # of a table that refuses: the location where its files wait
    may_refuse: bool = False  # what its storage refuses, the report says, and the task goes on to its end

    @property
    def watermark(self) -> datetime | None:
        """By which tiers of late rows count; None: some partition has none, or it is not known here."""
        return None if self.seen is None else shifted(self.seen, -self.out_of_orderness)

    def destination(self, location: str, columns: tuple[str, ...] = (), entropy_bits: int = 0) -> Destination:
        """Where files of a table go. `columns`: of its buckets."""
        held = "" if not self.held else self.held if location == self.table else f"{self.held}{HELD_LATE}"
        store = store_at(held or location, self.s3)
        size = self.target_file_size
        unmeasured = self.schemas.unmeasured | self.record_columns.protected
        return Destination(
            store, columns, self.prefix, size, entropy_bits, self.hidden, self.folder, unmeasured=unmeasured
        )  # fmt: skip
