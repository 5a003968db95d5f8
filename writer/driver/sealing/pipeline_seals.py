"""Starts what runs beside the stream of one pipeline: for its table, or for each table of its route."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.driver.sealing.rounds import RetriedSteps, Rounds, Seals, Trouble
from headrace.writer.driver.sealing.steps import Closer, Step, beside_seals, seal_due
from headrace.writer.hooks.dispatcher import HookDispatcher, deliveries
from headrace.writer.hooks.outbox import Health
from headrace.writer.maintenance.compaction.compactor import Compactor, Run, here, in_spark
from headrace.writer.maintenance.compaction.plan import RewritePace
from headrace.writer.maintenance.retention import PeriodicRetention, settle_retentions
from headrace.writer.sealing.bucket_states import BucketCounts, add_counts
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.sealer import BucketSnapshot, Sealer, sealed_targets
from headrace.writer.status.progress import Progress
from headrace.writer.table.factory import all_tables, main_table

# At tables of a route, while no commit comes: what they cost does not grow with their number.
_LOOKS_PER_S = 4
# An answer of Kafka as young as this serves the next table, too.
_YOUNG_S = 1.0


def start(
    spark: Any, config: Config, pipeline: PipelineRun, cluster: Cluster, cleanup: ExitStack, *, once: bool
) -> None:
    """Start the threads that close, rewrite, seal and drop buckets, and those of hooks; `cleanup` ends them.

    `once`: Spark may be gone at the last round, and no other work waits for the driver's processor then.
    """
    name = pipeline.name
    progress = pipeline.progress
    # Tables of an earlier start may be others.
    progress.set(retention_waits={})
    run: Run = here
    if not once:
        run = in_spark(spark, f"rewrites of {name}", RewritePace(pipeline.config.compact.share))
    if pipeline.config.table.raw is not None:
        upkeep = Seals(_raw_upkeep(name, config.at_raw(name), progress, run), progress, len(config.pipelines))
        upkeep.start()
        cleanup.callback(upkeep.close, last=once)
    closer = Closer(LogEndWatch(cluster, list(pipeline.topic_ids)), lambda: pipeline.numbers)
    if pipeline.config.route is not None:
        closer.log_end_watch.young_s = _YOUNG_S
        rounds = TargetRounds(name, config, progress, closer, run)
        cleanup.callback(rounds.close, last=once)
        seals = Seals(rounds, progress, len(config.pipelines))
    else:
        delivery = HookDispatcher(name, deliveries(name, config), lambda hooks: progress.set(hooks=hooks))
        # Before anything is sealed. It closes after the seals.
        delivery.start()
        cleanup.callback(delivery.close, last=once)
        if not pipeline.config.seal.enabled:
            return
        sealer = Sealer(name, config)
        steps = _steps(sealer, config, closer, run, _periodic_retention(name, config, progress), delivery.follow)
        seals = Seals(Rounds(sealer, steps, progress), progress, len(config.pipelines))
    seals.start()
    cleanup.callback(seals.close, last=once)


def _steps(sealer: Sealer, config: Config, closer: Closer, run: Run, retention: Step, hooks: Step) -> dict[str, Step]:
    """Return what is done to the buckets of a table, in this order. `config`: where the table is the pipeline's."""
    return {
        "close": closer,
        **beside_seals(sealer, config, run),
        "seal": seal_due,
        "retention": retention,
        "hooks": hooks,
    }


def _periodic_retention(pipeline: str, config: Config, progress: Progress) -> PeriodicRetention:
    """Return the step that drops old buckets. `config`: where the table is the pipeline's. Raises HeadraceError."""
    retentions = settle_retentions(pipeline, config, datetime.now(UTC))
    return PeriodicRetention(pipeline, retentions, progress.set_retention_waits)


def _raw_upkeep(name: str, config: Config, progress: Progress, run: Run) -> RetriedSteps:
    """Return what merges and drops days of a raw table. `config`: where it is the pipeline's own."""
    table = main_table(name, config)
    compactor = Compactor(name, config.pipelines[name], table, config.stores)

    def merge(_: datetime) -> None:
        # There is no table where raw records were never kept.
        if table.exists():
            compactor.merge_open(run)

    drop = partial(_periodic_retention(name, config, progress), None)
    return RetriedSteps({"pipeline": name}, {"raw merge": merge, "raw retention": drop}, progress)


class TargetRounds:
    """The rounds of all tables of a route, one after the other. A table that is made gets its own with the next."""

    def __init__(self, pipeline: str, config: Config, progress: Progress, closer: Closer, run: Run) -> None:
        """`closer`, `run`: of all tables."""
        self._pipeline = pipeline
        self._config = config
        self._progress = progress
        self._closer = closer
        self._run = run
        # With views of their own: the stream's are not waited for.
        self._tables = all_tables(pipeline, config)
        self._rounds = dict[str, Rounds]()
        self._dispatchers = dict[str, HookDispatcher]()
        self._counts = dict[str, BucketCounts]()
        self._health = dict[str, Health]()

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds, when no commit wakes them."""
        return len(self._rounds) / _LOOKS_PER_S

    def once(self) -> None:
        """Run a round of each table."""
        # The next batch meets the error, too, and reports it.
        with suppress(HeadraceError, OSError):
            self._add_targets()
        for rounds in self._rounds.values():
            rounds.once()
        if self._counts:
            self._progress.set(bucket_counts=add_counts(self._counts))

    def _add_targets(self) -> None:
        """Begin the rounds of tables that were made since the last round. Raises HeadraceError, OSError."""
        snapshot = self._tables.main.snapshot()
        for name in sealed_targets(self._config.pipelines[self._pipeline], snapshot):
            if name in self._rounds:
                continue
            # The table is away; the next round tries again.
            with suppress(HeadraceError, OSError):
                self._rounds[name] = self._begin(name)

    def close(self, *, last: bool = False) -> None:
        """End the hooks; `last`: with one more round of theirs."""
        for dispatcher in self._dispatchers.values():
            dispatcher.close(last=last)

    def _begin(self, target: str) -> Rounds:
        config = self._config.at_target(self._pipeline, target)
        sealer = Sealer(self._pipeline, self._config, target, self._tables)
        retention = _periodic_retention(self._pipeline, config, self._progress)
        dispatcher = HookDispatcher(self._pipeline, deliveries(self._pipeline, config), self._health_report(target))
        dispatcher.start()
        self._dispatchers[target] = dispatcher
        steps = _steps(sealer, config, self._closer, self._run, retention, dispatcher.follow)
        return Rounds(sealer, steps, self._progress, partial(self._count, target))

    def _count(self, target: str, sealer: Sealer, snapshot: BucketSnapshot, now: datetime, trouble: Trouble) -> None:
        self._counts[target] = sealer.bucket_counts(snapshot, now, trouble)

    def _health_report(self, target: str) -> Callable[[Mapping[str, Health]], None]:
        """Return what shows the health of a target's hooks."""

        def report(health_by_hook: Mapping[str, Health]) -> None:
            hooks = {f"{target}/{hook}": health for hook, health in health_by_hook.items()}
            self._health = {**self._health, **hooks}
            self._progress.set(hooks=self._health)

        return report
