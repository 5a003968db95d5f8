"""The section `seal` of a pipeline: when buckets are closed and sealed, and what becomes of rows that come after."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from writer.config.base import Strict
from writer.core.units import Duration, Slack
from writer.storage import locations

Late = Literal["reopen", "late_table", "dead_letter"]


@dataclass(frozen=True)
class Policy:
    """When buckets are closed and sealed, as the configuration says."""

    out_of_orderness: timedelta
    allowed_lateness: timedelta
    idle_timeout: timedelta
    after: timedelta | None  # of wall clock after a bucket's end; None: only the watermark closes
    reopen_after: timedelta  # that a sealed bucket rests after a change, before its next manifest


class Seal(Strict):
    """When a bucket of event time is complete, and what becomes of rows that come after (docs/BUCKETS.md)."""

    enabled: bool = Field(True, description="close and seal buckets; without it none is, and no row is late")
    out_of_orderness: Slack = Field(
        timedelta(minutes=5), description="how far behind the newest of its partition an event may come, on time"
    )
    allowed_lateness: Slack = Field(
        timedelta(0), description="how long after its end, by the watermark, a bucket is left open"
    )
    idle_timeout: Duration = Field(
        timedelta(minutes=10), description="a partition without records for so long does not hold the watermark back"
    )
    after: Duration | None = Field(
        timedelta(hours=1),
        description="how long after its end a bucket is closed by the clock, if all that Kafka has is committed; null: "
        "never",
    )
    late: Late = Field(
        "reopen",
        description="what becomes of a row whose bucket is closed: reopen: it joins the bucket, which is sealed again; "
        "late_table: it goes to a table beside; dead_letter: to the dead letters",
    )
    late_table: Annotated[str, AfterValidator(locations.checked)] | None = Field(
        None, description="location of the table of late rows; default: location of the table + '_late'"
    )
    reopen_after: Slack = Field(
        timedelta(minutes=10), description="how long a sealed bucket rests after a change before it is sealed again"
    )
    success_file: bool | None = Field(
        None, description="put `_SUCCESS` into the folder of a sealed bucket; default: for tables in Parquet format"
    )

    @property
    def policy(self) -> Policy:
        """What the decisions are made by."""
        return Policy(self.out_of_orderness, self.allowed_lateness, self.idle_timeout, self.after, self.reopen_after)
