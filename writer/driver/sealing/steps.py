"""What is done to the buckets of a table beside the stream: steps that close, seal, and look at the table anew."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core import logging
from writer.maintenance.compaction import Run
from writer.maintenance.dedupe.late_rows import compactor_of
from writer.offsets.start_decision import incarnation_numbers
from writer.sealing.idleness import LogEndWatch, frontier_by_source, is_held_back
from writer.sealing.rules import AskKafka, Close, KeepOpen, SealNow, choose_close
from writer.sealing.sealer import BucketSnapshot, Sealer
from writer.sealing.watermark import PartitionEventTime, watermark
from writer.table.log.foreign_writes import Resealed

Step = Callable[[Sealer, datetime], None]  # does what is due; raises what HeadraceErrors and OSErrors there are


@dataclass(frozen=True)
class Closer:
    """The step that closes what is due."""

    listener: LogEndWatch
    numbers: Callable[[], Mapping[str, int]]  # topic → number of the incarnation that is read

    def __call__(self, sealer: Sealer, now: datetime) -> None:
        """Close what is due. Raises BrokerUnreachable, CommitFailed, OSError."""
        standing, decision = self.decide(sealer, now)
        if isinstance(decision, Close):
            sealer.close(standing, decision.until, decision.reason, now)

    def decide(
        self, sealer: Sealer, now: datetime, *, keep: bool = True
    ) -> tuple[BucketSnapshot, Close | AskKafka | KeepOpen]:
        """Return what is to be closed, from the table and, where its answer matters, from Kafka.

        `keep`: as `Sealer.follow` has it. Raises BrokerUnreachable, CommitFailed, OSError.
        """
        standing, numbers = sealer.follow(write=keep), self.numbers()
        decision = self._decided(sealer, standing, sealer.parts(standing, numbers, frozenset()), now, None)
        if isinstance(decision, AskKafka):
            look = self.listener.fetch(sealer.policy.idle_timeout, now)
            standing = sealer.follow(write=keep)  # after the look: what it found to be there may be committed by now
            frontier = frontier_by_source(standing, numbers)
            parts = sealer.parts(standing, numbers, look.idle_sources(frontier))
            decision = self._decided(sealer, standing, parts, now, look.has_caught_up(frontier))
        elif is_held_back(sealer.watermark, sealer.policy, now):  # it changes nothing that is due, and is shown
            with suppress(BrokerUnreachable):
                look = self.listener.fetch_recent(sealer.policy.idle_timeout, now)
                parts = sealer.parts(standing, numbers, look.idle_sources(frontier_by_source(standing, numbers)))
                sealer.watermark = watermark(parts, sealer.policy.out_of_orderness)
        return standing, decision

    def _decided(
        self,
        sealer: Sealer,
        standing: BucketSnapshot,
        parts: Sequence[PartitionEventTime],
        now: datetime,
        caught_up: bool | None,
    ) -> Close | AskKafka | KeepOpen:
        sealer.watermark = watermark(parts, sealer.policy.out_of_orderness)
        buckets = standing.unsealed.buckets.values()
        return choose_close(sealer.policy, buckets, parts, standing.closed_until, now, caught_up=caught_up)


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
    known = sealer.log.snapshot().incarnations()
    names = choose_topics(cluster, sealer.settings.topics, known).names
    ids = {topic.name: topic.id for topic in cluster.topics(names).values()}
    return incarnation_numbers(known, ids)
