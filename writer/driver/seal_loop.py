"""The thread that closes, compacts and seals buckets, and delivers hooks, beside the stream.

A plain list of steps, each of which looks at the table anew and does what is due; the stream never waits for them. What
fails is said, shown, and tried again later. Nothing lives here only: the next process finds all of it in the lake.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.errors import HeadraceError
from writer.driver.restart_policy import sentence
from writer.offsets.start_decision import numbers_of
from writer.sealing.bucket_grid import BucketOverview
from writer.sealing.idleness import Listener, frontier_of, held_back
from writer.sealing.rules import Ask, Close, Hold, Ready, to_close
from writer.sealing.sealer import BucketSnapshot, Sealer
from writer.sealing.watermark import PartitionEventTime, watermark
from writer.status.progress import Progress
from writer.table.gap_records import Oldest
from writer.table.log.foreign_writes import Resealed

_TICK = timedelta(seconds=5)  # between two rounds, when no commit wakes it
_BACKOFF = Backoff(5, 300)  # of a step that failed
_CLOSE_WITHIN_S = 5.0


Step = Callable[[Sealer, datetime], None]  # does what is due; raises what HeadraceErrors and OSErrors there are


@dataclass(frozen=True)
class Closer:
    """The step that closes what is due."""

    listener: Listener
    numbers: Callable[[], Mapping[str, int]]  # topic → number of the incarnation that is read

    def __call__(self, sealer: Sealer, now: datetime) -> None:
        """Close what is due. Raises BrokerUnreachable, CommitFailed, OSError."""
        standing, decision = self.decide(sealer, now)
        if isinstance(decision, Close):
            sealer.close(standing, decision.until, decision.reason, now)

    def decide(self, sealer: Sealer, now: datetime, *, keep: bool = True) -> tuple[BucketSnapshot, Close | Ask | Hold]:
        """Return what is to be closed, from the table and, where its answer matters, from Kafka.

        `keep`: as `Sealer.follow` has it. Raises BrokerUnreachable, CommitFailed, OSError.
        """
        standing, numbers = sealer.follow(keep=keep), self.numbers()
        decision = self._decided(sealer, standing, sealer.parts(standing, numbers, frozenset()), now, None)
        if isinstance(decision, Ask):
            look = self.listener.look(sealer.policy.idle_timeout, now)
            standing = sealer.follow(keep=keep)  # after the look: what it found to be there may be committed by now
            frontier = frontier_of(standing, numbers)
            parts = sealer.parts(standing, numbers, look.idle(frontier))
            decision = self._decided(sealer, standing, parts, now, look.caught_up(frontier))
        elif held_back(sealer.watermark, sealer.policy, now):  # it changes nothing that is due, and is shown
            with suppress(BrokerUnreachable):
                look = self.listener.recent(sealer.policy.idle_timeout, now)
                parts = sealer.parts(standing, numbers, look.idle(frontier_of(standing, numbers)))
                sealer.watermark = watermark(parts, sealer.policy.out_of_orderness)
        return standing, decision

    def _decided(
        self,
        sealer: Sealer,
        standing: BucketSnapshot,
        parts: Sequence[PartitionEventTime],
        now: datetime,
        caught_up: bool | None,
    ) -> Close | Ask | Hold:
        sealer.watermark = watermark(parts, sealer.policy.out_of_orderness)
        buckets = standing.unsealed.buckets.values()
        return to_close(sealer.policy, buckets, parts, standing.closed_until, now, caught_up=caught_up)


def seal_due(sealer: Sealer, now: datetime) -> None:
    """Seal what is due: the step. Raises CommitFailed, OSError."""
    ready = [state for state in sealer.due(sealer.follow(), now) if isinstance(state, Ready)]
    try:
        sealer.seal(ready, now)
    except Resealed as error:
        logging.event("seal_postponed", pipeline=sealer.pipeline, reason=str(error))


def numbers_now(sealer: Sealer, cluster: Cluster) -> dict[str, int]:
    """Return which incarnation of each topic the table reads, as Kafka has them now. Raises BrokerUnreachable."""
    known = sealer.table.snapshot().incarnations()
    names = choose_topics(cluster, sealer.settings.topics, known).names
    ids = {topic.name: topic.id for topic in cluster.topics(names).values()}
    return numbers_of(known, ids)


class Rounds:
    """Runs the steps one after the other, again and again; each that fails rests, longer each time."""

    def __init__(
        self, sealer: Sealer, steps: Mapping[str, Step], progress: Progress,
        *, now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.sealer, self._steps, self._progress, self._now = sealer, dict(steps), progress, now
        self._trouble: dict[str, str] = {}  # step → why it failed last
        self._rests: dict[str, tuple[int, datetime]] = {}  # step → failures in a row, and until when it rests
        self._overview = BucketOverview(sealer)
        self._oldest = Oldest(sealer.table, sealer.pipeline)

    def once(self) -> None:
        """Run every step that is due, and report the buckets. A paused pipeline commits nothing here."""
        paused = self._progress.view().pause is not None
        for name, step in () if paused else self._steps.items():
            if name not in self._rests or self._rests[name][1] <= self._now():
                self._attempt(name, step)
        with suppress(HeadraceError, OSError):  # it was said by a step
            now = self._now()
            trouble = list(self._trouble.items())
            standing = self.sealer.follow(keep=False)
            found = standing.snapshot
            self._progress.open_gaps(
                found.gaps, found.gap_offsets_closed
            )  # others fill them, while no record comes too
            self._progress.bucket_counts(self.sealer.bucket_counts(standing, now, trouble))
            self._progress.cells(self._overview.look(standing, now))
            self._progress.oldest_gap(self._oldest.look(found))

    def _attempt(self, name: str, step: Step) -> None:
        pipeline = self.sealer.pipeline
        try:
            step(self.sealer, self._now())
        except Exception as error:  # noqa: BLE001 - the stream must not notice
            words = sentence(error)
            failures, _ = self._rests.get(name, (0, None))
            if self._trouble.get(name) != words:
                logging.warning("sealing_failed", pipeline=pipeline, step=name, error=words)
            self._rests[name] = (failures + 1, self._now() + timedelta(seconds=_BACKOFF.delay_s(failures)))
            self._trouble[name] = words
            return
        self._rests.pop(name, None)
        if self._trouble.pop(name, None):
            logging.event("sealing_recovered", pipeline=pipeline, step=name)


class Seals:
    """The thread: a round after each commit, and every few seconds."""

    def __init__(self, rounds: Rounds, progress: Progress, *, tick: timedelta = _TICK) -> None:
        self._rounds, self._interval_s = rounds, tick.total_seconds()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"seals of {progress.pipeline}", daemon=True)
        progress.on_commit(self._wake.set)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, *, last: bool = False) -> None:
        """End after the step that runs; `last`: with one more round, for a job that is not there to do it later."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)
        if last and not self._thread.is_alive():
            self._rounds.once()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._rounds.once()
            self._wake.wait(self._interval_s)
            self._wake.clear()
