"""Sections about resources: the size and the time of a batch, memory, failed records, and shares of the task slots."""

from datetime import timedelta

from pydantic import Field

from headrace.writer.config.base import Strict
from headrace.writer.core.units import Duration, Size


class Commit(Strict):
    """When a micro-batch is committed: enough offsets wait, or the delay is over, whichever is first."""

    max_delay: Duration = Field(
        timedelta(minutes=10), description="a record waits at most this long for its commit to begin"
    )
    max_offsets: int = Field(
        5_000_000, ge=1, description="at most this many offsets in one commit, as Spark's maxOffsetsPerTrigger"
    )
    max_records_per_second: int | None = Field(
        None,
        ge=1,
        description="at most this many records read a second, over time; `headrace limit` sets another at once",
    )
    max_bytes_per_second: Size | None = Field(
        None, description="at most so much a second of the records' values, over time, such as `10 MB`"
    )
    min_offsets: int | None = Field(
        None, ge=1, description="commit at once when this many offsets wait; default: enough for one file"
    )


class Memory(Strict):
    """What a task may hold."""

    buffer: Size = Field(256 * 2**20, description="rows of all open buckets of one task; beyond it they spill to disk")
    batch_records: int = Field(
        25_000,
        ge=1,
        description="most records in one Arrow batch, with a route 16 times as many; fewer where they are large",
    )


class Limits(Strict):
    """What stops the pipeline with exit code 5, so that a person looks."""

    max_failed_ratio: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a batch's records that may be dead letters or quarantined; those that are late, or that "
        "no key of `route.targets` is for, count on neither side; 1: any",
    )
    min_failed_records: int = Field(
        1000, ge=1, description="as long as fewer records of a batch are, their share does not matter"
    )


class Scheduling(Strict):
    """How the pipelines of a driver share its task slots: Spark's pools, and turns where slots are fewer."""

    weight: int = Field(1, ge=1, description="time of task slots beside the other pipelines; 2: twice as much as 1")
    min_share: int = Field(
        0, ge=0, description="slots that its tasks get before those of others; from 1 on, its batches go first"
    )
