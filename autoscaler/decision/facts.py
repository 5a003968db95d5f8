"""The facts of an evaluation, as frozen dataclasses.

Lag and rates come from the driver's newest lag sample, never from a finished batch: that one is as old as itself. Where
no driver answers, or Kafka does not answer the driver, they come from Kafka and the table. Batches, limits and the
recovery level come from the driver's `/status`; when it does not answer, batches come from the table's log. Executors
come from the driver, or from the cluster. What is not known is None, and everything carries its age: a decision
holds on what is old or missing.
"""

from dataclasses import dataclass, field

from pydantic import AwareDatetime, ConfigDict

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Partition:
    """One partition: what waits in it."""

    __pydantic_config__ = _STRICT

    topic: str
    partition: int
    lag_offsets: int | None  # /status lag.partitions[].offsets
    lag_s: float | None = None  # /status lag.partitions[].seconds; None where nothing dated the oldest waiting record
    batches_unmoved: int = 0  # finished batches in a row over which its frontier stood while it had lag


@dataclass(frozen=True)
class Batch:
    """A finished batch: the facts of an entry in the table's log, `phases`, `tasks` and `work` among them."""

    __pydantic_config__ = _STRICT

    began: AwareDatetime
    ended: AwareDatetime
    rows: int  # records read
    seconds: float  # of the driver, from Spark's call to the end: phases look + tasks + commit + redo
    tasks_s: (
        float  # of that, while tasks worked: the longest, of each wave. An executor that had to warm up is overhead
    )
    tasks: int  # that Spark ran at most at once, had it the slots
    ranges: int  # pieces of the source: partitions, or more where they were cut
    slots: int  # task slots of the executors that were registered, mean while it ran
    skew: float | None = None  # longest task over the median

    def __post_init__(self) -> None:
        """Only a bug makes such a batch."""
        assert self.tasks > 0, "a batch has tasks"
        assert self.ranges > 0, "a batch reads ranges"
        assert self.slots > 0, "a batch ran on slots"


@dataclass(frozen=True)
class Pipeline:
    """One pipeline of the driver."""

    __pydantic_config__ = _STRICT

    name: str
    partitions: tuple[Partition, ...]
    arriving_per_s: float | None  # records, mean over the window
    arriving_lately_per_s: float | None  # records, mean over the last two minutes
    batches: tuple[Batch, ...]  # oldest first
    delay_max_s: float  # commit.max_delay: a record may wait so long for its batch to begin
    records_max: int  # commit.max_records: what one batch may take
    records_per_task: float | None = None  # that one carries at least: a batch has no more tasks
    partitions_per_task: int | None = None  # that one reads at most; None: the driver does not say
    min_partitions: int = 0  # a full batch is cut into so many ranges at least; 0: partitions are not cut
    trigger_s: float = 1.0  # batches begin no closer than this
    headroom_s: float | None = None  # /status lag.headroom_seconds: until retention takes what waits
    recovery_level: int = 0  # the level that recovery is on; 0: none
    failing: str | None = None  # the error of a batch that is tried again, or of storage or Kafka; None: all is well
    paused: bool = False
    rate_limit_per_s: float | None = None  # records that it may commit; None: as many as come
    age_s: float = 0.0  # of what the driver or the table's log said last
    lag_age_s: float = 0.0  # of the lag sample


@dataclass(frozen=True)
class Executors:
    """The executors of the application."""

    __pydantic_config__ = _STRICT

    wanted: int  # what Spark was asked for last
    registered: int  # that take tasks
    draining: int = 0  # that finish their tasks and go
    cores: int = 1  # of each
    cpus_per_task: int = 1
    gc_share: float | None = None  # of the tasks' time, of the worst
    quota: int | None = None  # how many the cluster grants; None: unknown
    age_s: float = 0.0

    @property
    def slots(self) -> int:
        """Tasks that one runs at once."""
        return max(1, self.cores // self.cpus_per_task)


@dataclass(frozen=True)
class Facts:
    """All that is known at an instant."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime
    executors: Executors | None  # None: neither driver nor cluster answered, or there is nothing to scale
    pipelines: tuple[Pipeline, ...] = field(default=())
    refused: str | None = None  # why executors cannot be scaled, and what to do; None: they can, or it is not known

    def __post_init__(self) -> None:
        """Instants have a zone."""
        assert self.at.tzinfo is not None, "the instant of facts has a zone"
