"""The facts of an evaluation, as frozen dataclasses.

Lag and rates come from the driver's newest lag sample, never from a finished batch: that one is as old as itself. Where
no driver answers, or Kafka does not answer the driver, they come from Kafka and the table. Batches, limits and the
recovery level come from the driver's `/status`; when it does not answer, batches come from the table's log. Executors
come from the driver, or from the cluster. A missing fact is None, and everything carries its age: a decision
holds on what is old or missing.

Facts are saved as JSON by the names of their fields.
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
    # From /status lag.partitions[].offsets.
    lag_offsets: int | None
    # From /status lag.partitions[].seconds; None where nothing dated the oldest waiting record.
    lag_s: float | None = None
    # Finished batches in a row over which its frontier stood while it had lag.
    batches_unmoved: int = 0


@dataclass(frozen=True)
class Batch:
    """A finished batch: the facts of an entry in the table's log, `phases`, `tasks` and `work` among them."""

    __pydantic_config__ = _STRICT

    began: AwareDatetime
    ended: AwareDatetime
    # Offsets that were committed: what Kafka says of arrivals and of the lag is in offsets, too.
    offsets: int
    # The driver's time from Spark's call to the end: phases look + tasks + commit + redo.
    seconds: float
    # Part of `seconds` in which tasks worked: the longest task of each wave. An executor's warm-up is overhead.
    tasks_s: float
    # The most tasks that Spark ran at once, had it the slots.
    tasks: int
    # Pieces of the source: partitions, or more where they were cut.
    ranges: int
    # Task slots of the registered executors, mean while the batch ran.
    slots: int
    # The longest task over the median one.
    skew: float | None = None

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
    # Records a second, mean over the window.
    arriving_per_s: float | None
    # Records a second, mean over the last two minutes.
    arriving_lately_per_s: float | None
    # Oldest first.
    batches: tuple[Batch, ...]
    # `commit.max_delay`: how long a record may wait until its batch begins.
    delay_max_s: float
    # `commit.max_offsets`: the most that one batch may take.
    offsets_max: int
    # The least that one task carries: a batch has no more tasks.
    offsets_per_task: float | None = None
    # The most that one task reads; None where the driver does not say.
    partitions_per_task: int | None = None
    # The least number of ranges into which a full batch is cut; 0 where partitions are not cut.
    min_partitions: int = 0
    # Batches begin no closer than this.
    trigger_s: float = 1.0
    # From /status lag.headroom_seconds: the time until retention takes what waits.
    headroom_s: float | None = None
    # The level that recovery is on; 0: none.
    recovery_level: int = 0
    # The error of a batch that is tried again, or of storage or Kafka; None while all is well.
    failing: str | None = None
    paused: bool = False
    # The most offsets a second that it may commit; None: as many as come.
    rate_limit_per_s: float | None = None
    # Age of what the driver or the table's log said last.
    age_s: float = 0.0
    # Age of the lag sample.
    lag_age_s: float = 0.0


@dataclass(frozen=True)
class Executors:
    """The executors of the application."""

    __pydantic_config__ = _STRICT

    # The number that Spark was asked for last.
    wanted: int
    # Those that take tasks.
    registered: int
    # Those that finish their tasks and go.
    draining: int = 0
    # Of each executor.
    cores: int = 1
    cpus_per_task: int = 1
    # Share of the tasks' time that garbage collection takes, of the worst executor.
    gc_share: float | None = None
    # How many the cluster grants; None: unknown.
    quota: int | None = None
    age_s: float = 0.0

    @property
    def slots(self) -> int:
        """Tasks that one executor runs at once."""
        return max(1, self.cores // self.cpus_per_task)


@dataclass(frozen=True)
class Facts:
    """All facts of one instant."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime
    # None: neither driver nor cluster answered, or there is nothing to scale.
    executors: Executors | None
    pipelines: tuple[Pipeline, ...] = field(default=())
    # Why executors cannot be scaled, and what to do; None: they can, or nobody knows.
    refused: str | None = None

    def __post_init__(self) -> None:
        """Instants have a zone."""
        assert self.at.tzinfo is not None, "the instant of facts has a zone"
