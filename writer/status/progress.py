"""What a running pipeline knows of itself: written by the pipeline, read by the surface at any moment, from any thread.

Nothing here asks anybody: a reader gets the facts as they were last written, and says how old they are.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from writer.avro.schema_plan import Rejected, WriterSchema
from writer.core.files import BucketKey
from writer.core.offsets import Source
from writer.hooks.outbox import Health
from writer.sealing.bucket_states import BucketCounts, BucketState
from writer.status.model import (
    DECODERS,
    DURATION_BOUNDS,
    Batch,
    Commit,
    Dates,
    Logs,
    Sample,
    State,
    Totals,
    View,
    assembled,
    event_time_newest,
)
from writer.status.pause import Pause

COMMITS_KEPT = 20  # for rates and a look back; the lake has them all


class Progress:
    """The one place where a pipeline writes down how far it is."""

    def __init__(
        self,
        pipeline: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` tells the time, `seconds` measures: it never jumps."""
        self._lock = threading.Lock()
        self._now, self._seconds = now, seconds
        self.pipeline, self._since = pipeline, now()
        self._state: State = "starting"
        self._error = ""
        self._epoch: int | None = None
        self._run: int | None = None
        self._frontier: dict[Source, int] = {}
        self._limits: Mapping[str, Any] = {}
        self._commits: deque[Commit] = deque(maxlen=COMMITS_KEPT)
        self._committed_at: datetime | None = None
        self._event_time_newest: datetime | None = None
        self._totals = Totals()
        self._phase_totals: dict[str, float] = {}
        self._durations = [0] * (len(DURATION_BOUNDS) + 1)
        self._duration_sum = 0.0
        self._duration_last: float | None = None
        self._schemas: Mapping[str, int] = {}
        self._buckets: set[BucketKey] = set()
        self._offset_commit_failures = 0
        self._logs = Logs()
        self._gaps = (0, 0)
        self._gap_offsets_closed: int | None = None
        self._gap_oldest: datetime | None = None
        self._incarnations: Mapping[str, int] = {}
        self._gap_last: Mapping[str, Any] | None = None
        self._restarts = 0
        self._log_moved = ""
        self._pause: Pause | None = None
        self._bucket_counts: BucketCounts | None = None
        self._cells: tuple[BucketState, ...] = ()
        self._recovery: tuple[Mapping[str, Any], ...] = ()
        self._hooks: Mapping[str, Health] = {}
        self._committed_since_start = False
        self._listeners: list[Callable[[], None]] = []
        self._batch: Batch | None = None
        self._began = 0.0  # of the batch, as the measuring clock has it
        self._idle_since: float | None = None
        self._phases: dict[str, float] = {}
        self._phase_began = 0.0

    def started(
        self,
        *,
        epoch: int,
        run: int,
        frontier: Mapping[Source, int],
        limits: Mapping[str, Any],
        buckets: Iterable[BucketKey],
        recent: Iterable[Mapping[str, Any]],
        gaps: tuple[int, int] = (0, 0),
        gap_offsets_closed: int | None = None,
        gap: Mapping[str, Any] | None = None,
        incarnations: Mapping[str, int] | None = None,
    ) -> None:
        """The start commit is made. `recent` are the facts of earlier commits, newest first; `gap` those of this start.

        `gaps` are those that are open: their number, and the offsets they hold; `gap_offsets_closed`: offsets of gaps
        that are over. `incarnations`: topic → number of the one that is read.
        """
        earlier = list(recent)
        with self._lock:
            self._epoch, self._run = epoch, run
            self._frontier, self._limits, self._buckets = dict(frontier), dict(limits), set(buckets)
            self._gaps, self._log_moved, self._incarnations = gaps, "", dict(incarnations or {})
            self._gap_offsets_closed = gap_offsets_closed
            if gap is not None:
                self._gap_last = gap
                self._totals.add_gap(gap)
            self._committed_at = next((assembled(facts) for facts in earlier), None)
            self._event_time_newest = max((t for f in earlier if (t := event_time_newest(f))), default=None)

    def running(self) -> None:
        """The query has started."""
        with self._lock:
            self._state, self._error = "running", ""
            self._idle_since = self._seconds()

    def paused(self, pause: Pause | None) -> None:
        """Somebody asked that nothing is committed, or it is over."""
        with self._lock:
            self._pause = pause

    def waits(self, frontier: Mapping[Source, int], logs: Logs) -> None:
        """Note how far a pipeline is that is held before its start: nobody else listens yet."""
        with self._lock:
            self._frontier, self._logs = dict(frontier), logs

    def draining(self) -> None:
        """It was asked to stop after the batch that is running."""
        with self._lock:
            if self._state in ("starting", "running"):
                self._state = "draining"

    def restarting(self, why: str) -> None:
        """It ended, and is about to be started again in this process."""
        with self._lock:
            self._state, self._error, self._batch = "starting", why, None
            self._idle_since = None
            self._restarts += 1

    def moved(self, why: str) -> None:
        """Kafka said that the logs are not those that this start began with."""
        with self._lock:
            self._log_moved = why

    def stopped(self) -> None:
        """It ended as it was asked to."""
        with self._lock:
            self._state, self._batch = "stopped", None

    def failed(self, why: str) -> None:
        """It ended, and why."""
        with self._lock:
            self._state, self._error, self._batch = "failed", why, None

    def admitted(self, schemas: Mapping[int, WriterSchema | Rejected]) -> None:
        """Count the schemas of the plan by how they are decoded."""
        found = dict.fromkeys(DECODERS, 0)
        for known in schemas.values():
            found["rejected" if isinstance(known, Rejected) else "native" if known.native else "fastavro"] += 1
        with self._lock:
            self._schemas = found

    def began(self, number: int, phase: str) -> None:
        """Note a batch that began with this phase; what was between it and the one before was waiting."""
        with self._lock:
            now, seconds = self._now(), self._seconds()
            self._batch = Batch(number, now, phase, now, None)
            self._phases = {} if self._idle_since is None else {"wait": seconds - self._idle_since}
            self._began = self._phase_began = seconds

    def entered(self, phase: str, *, offsets: int | None = None) -> dict[str, float]:
        """Note that the batch entered its next phase. Returns the wall seconds of the phases before."""
        with self._lock:
            assert self._batch is not None, "a phase belongs to a batch"
            self._leave()
            known = self._batch.offsets if offsets is None else offsets
            self._batch = Batch(self._batch.number, self._batch.began, phase, self._now(), known)
            return dict(self._phases)

    def skipped(self) -> None:
        """The batch ended without a commit: the table had all of it."""
        with self._lock:
            self._end()

    def committed(
        self, version: int, facts: Mapping[str, Any], frontier: Mapping[Source, int], buckets: Iterable[BucketKey]
    ) -> dict[str, float]:
        """Note that the batch is in the table, its dead letters too. Returns the wall seconds of all its phases."""
        with self._lock:
            self._end()
            self._committed_since_start = True
            done = dict(self._phases)
            seconds = sum(spent for phase, spent in done.items() if phase != "wait")
            self._commits.appendleft(Commit(version, self._now(), facts, done))
            self._committed_at = self._now()
            self._totals.add(facts)
            self._frontier |= frontier
            self._buckets |= set(buckets)
            newest = [t for t in (self._event_time_newest, event_time_newest(facts)) if t is not None]
            self._event_time_newest = max(newest, default=None)
            self._durations[sum(seconds > bound for bound in DURATION_BOUNDS)] += 1
            self._duration_sum, self._duration_last = self._duration_sum + seconds, seconds
        for listener in self._listeners:
            listener()
        return done

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call back after each commit, on the thread of the batch: return at once."""
        self._listeners.append(listener)

    def bucket_counts(self, found: BucketCounts) -> None:
        """Somebody looked how the buckets are."""
        with self._lock:
            self._bucket_counts = found

    def cells(self, found: tuple[BucketState, ...]) -> None:
        """Somebody looked at the buckets one by one."""
        with self._lock:
            self._cells = found

    def recovered(self, decisions: tuple[Mapping[str, Any], ...]) -> None:
        """A supervisor told what it decided about this pipeline, newest first."""
        with self._lock:
            self._recovery = decisions

    def open_gaps(self, gaps: tuple[int, int], settled: int) -> None:
        """Note how many gaps are open by now, and the offsets they hold: others fill them and give them up.

        `settled`: offsets of gaps that are over, in the table's life.
        """
        with self._lock:
            self._gaps, self._gap_offsets_closed = gaps, settled

    def oldest_gap(self, opened: datetime | None) -> None:
        """Note when the oldest gap that is open was opened."""
        with self._lock:
            self._gap_oldest = opened

    def mirror_failed(self) -> None:
        """The frontier could not be written to the consumer group."""
        with self._lock:
            self._offset_commit_failures += 1

    def hooked(self, hooks: Mapping[str, Health]) -> None:
        """Note how the hooks are doing, all of them."""
        with self._lock:
            self._hooks = hooks

    def heard(self, sample: Sample, starts: Mapping[Source, int]) -> None:
        """Kafka said where the logs end and begin. Samples that are older than the window go."""
        with self._lock:
            self._logs = replace(self._logs.with_sample(sample), starts=starts)
            if self._state == "running" and all(
                end <= max(self._frontier.get(source, 0), starts.get(source, 0)) for source, end in sample.ends.items()
            ):
                self._committed_since_start = True

    def measured(self, interval: timedelta, earlier: tuple[Sample, ...]) -> None:
        """Note how often Kafka is asked, and where the logs ended before it was asked first."""
        with self._lock:
            self._logs = replace(self._logs.with_history(earlier), interval=interval)

    def kept(self, retention: Mapping[str, timedelta | None]) -> None:
        """Kafka said how long the topics keep their records."""
        with self._lock:
            self._logs = replace(self._logs, retention=retention)

    def dated(self, found: Dates) -> None:
        """Kafka said how old the records at these offsets are."""
        with self._lock:
            self._logs = replace(self._logs, dated={**self._logs.dated, **found})

    def view(self) -> View:
        """Everything, as it is at this moment."""
        with self._lock:
            return View(
                pipeline=self.pipeline, state=self._seen(), since=self._since, error=self._error, epoch=self._epoch,
                run=self._run, batch=self._batch, frontier=dict(self._frontier), limits=self._limits,
                commits=tuple(self._commits), committed_at=self._committed_at,
                event_time_newest=self._event_time_newest, totals=self._totals.copy(),
                phases=dict(self._phase_totals), durations=tuple(self._durations),
                duration_sum_seconds=self._duration_sum, duration_last_seconds=self._duration_last,
                schemas=self._schemas, buckets=len(self._buckets), offset_commit_failures=self._offset_commit_failures,
                logs=self._logs, gaps=self._gaps, gap_offsets_closed=self._gap_offsets_closed,
                gap_oldest=self._gap_oldest, gap_last=self._gap_last, restarts=self._restarts,
                log_moved=self._log_moved, incarnations=self._incarnations, pause=self._pause,
                bucket_counts=self._bucket_counts, hooks=self._hooks,
                committed_since_start=self._committed_since_start, cells=self._cells, recovery=self._recovery,
            )  # fmt: skip

    def _seen(self) -> State:
        return "paused" if self._pause is not None and self._state in ("starting", "running") else self._state

    def _leave(self) -> None:
        assert self._batch is not None, "a phase belongs to a batch"
        seconds = self._seconds()
        phase = self._batch.phase
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds - self._phase_began
        self._phase_began = seconds

    def _end(self) -> None:
        self._leave()
        for phase, spent in self._phases.items():
            self._phase_totals[phase] = self._phase_totals.get(phase, 0.0) + spent
        self._batch, self._idle_since = None, self._phase_began
