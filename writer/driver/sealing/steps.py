"""What is done to the buckets of a table beside the stream: steps that close, seal, and look at the table anew."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.maintenance.compaction.compactor import Run
from headrace.writer.maintenance.compaction.late_rows import compactor_of
from headrace.writer.offsets.start_decision import incarnation_numbers
from headrace.writer.sealing.idleness import LogEndWatch, frontier_by_source, is_held_back
from headrace.writer.sealing.rules import AskKafka, Close, KeepOpen, SealNow, choose_close
from headrace.writer.sealing.sealer import BucketSnapshot, Sealer
from headrace.writer.sealing.watermark import PartitionEventTime, watermark
from headrace.writer.table.log.foreign_writes import Resealed

# Does what is due. Raises HeadraceError, OSError.
Step = Callable[[Sealer, datetime], None]
Decision = Close | AskKafka | KeepOpen


@dataclass(frozen=True)
class Closer:
    """The step that closes what is due. `numbers` returns the incarnation of each topic that is read."""

    log_end_watch: LogEndWatch
    numbers: Callable[[], Mapping[str, int]]

    def __call__(self, sealer: Sealer, now: datetime) -> None:
        """Close what is due. Raises BrokerUnreachable, CommitFailed, OSError."""
        snapshot, decision = self.decide(sealer, now)
        if isinstance(decision, Close):
            sealer.close(snapshot, decision.until, decision.reason, now)

    def decide(self, sealer: Sealer, now: datetime, *, write: bool = True) -> tuple[BucketSnapshot, Decision]:
        """Return what is to be closed, from the table and, where its answer matters, from Kafka.

        `write`: as `Sealer.follow` has it. Raises BrokerUnreachable, CommitFailed, OSError.
        """
        snapshot = sealer.follow(write=write)
        numbers = self.numbers()
        partitions = sealer.parts(snapshot, numbers, frozenset())
        decision = self._decide_by_watermark(sealer, snapshot, partitions, now, None)
        if isinstance(decision, AskKafka):
            answer = self.log_end_watch.fetch(sealer.policy.idle_timeout, now)
            # After the answer: the records that it counts may be committed by now.
            snapshot = sealer.follow(write=write)
            frontier = frontier_by_source(snapshot, numbers)
            partitions = sealer.parts(snapshot, numbers, answer.idle_sources(frontier))
            decision = self._decide_by_watermark(sealer, snapshot, partitions, now, answer.has_caught_up(frontier))
        elif is_held_back(sealer.watermark, sealer.policy, now):
            # The answer changes nothing that is due, and is shown.
            with suppress(BrokerUnreachable):
                answer = self.log_end_watch.fetch_recent(sealer.policy.idle_timeout, now)
                partitions = sealer.parts(snapshot, numbers, answer.idle_sources(frontier_by_source(snapshot, numbers)))
                sealer.watermark = watermark(partitions, sealer.policy.out_of_orderness)
        return snapshot, decision

    def _decide_by_watermark(
        self,
        sealer: Sealer,
        snapshot: BucketSnapshot,
        partitions: Sequence[PartitionEventTime],
        now: datetime,
        caught_up: bool | None,
    ) -> Decision:
        sealer.watermark = watermark(partitions, sealer.policy.out_of_orderness)
        buckets = snapshot.unsealed.buckets.values()
        return choose_close(sealer.policy, buckets, partitions, snapshot.closed_until, now, caught_up=caught_up)


def beside_seals(sealer: Sealer, config: Config, run: Run) -> dict[str, Step]:
    """Rewrite buckets before they are sealed, if so configured. Returns the steps for open buckets and late rows.

    `config`: where the table is the pipeline's own.
    """
    if not sealer.settings.compacts_at_seal:
        return {}
    compactor, late_rows = compactor_of(sealer, config)
    sealer.prepare.append(partial(compactor.before_seal, run=run))
    steps: dict[str, Step] = {"merge": lambda _sealer, _now: compactor.merge_open(run)}
    if late_rows is not None:
        steps["late rows"] = lambda _sealer, _now: late_rows.dedupe(run)
    return steps


def seal_due(sealer: Sealer, now: datetime) -> None:
    """Seal what is due: the step. Raises CommitFailed, OSError."""
    ready = [state for state in sealer.due(sealer.follow(), now) if isinstance(state, SealNow)]
    try:
        sealer.seal(ready, now)
    except Resealed as error:
        logging.event("seal_postponed", **sealer.about, reason=str(error))


def numbers_now(sealer: Sealer, cluster: Cluster) -> dict[str, int]:
    """Return which incarnation of each topic the table reads, as Kafka has them now. Raises BrokerUnreachable."""
    incarnations = sealer.log.snapshot().incarnations()
    names = choose_topics(cluster, sealer.settings.topics, incarnations).names
    ids = {topic.name: topic.id for topic in cluster.topics(names).values()}
    return incarnation_numbers(incarnations, ids)
