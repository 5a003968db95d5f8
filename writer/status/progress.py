"""The progress of a running pipeline: the pipeline writes it, any thread may read it at any moment.

Nothing here asks a server: a reader gets the facts as they were last written, and says how old they are.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from writer.avro.schema_plan import RejectedSchema, WriterSchema
from writer.config.pipeline_sections import Scheduling
from writer.core.files import BucketKey
from writer.core.offsets import OffsetRange, Source
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
    View,
    assembled,
    event_time_newest,
)
from writer.status.pause import Pause
from writer.status.rate_limit import LimitState
from writer.table.pipeline_tables import TargetState

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
        """`now` returns the time, `seconds` a monotonic clock."""
        self._lock = threading.Lock()
        self._now, self._seconds = now, seconds
        self.pipeline = pipeline
        self._view = View(pipeline, now())  # its `state` is the driver's own: a pause is laid over it when it is read
        self._buckets: set[BucketKey] = set()
        self._listeners: list[Callable[[], None]] = []
        self._idle_since: float | None = None
        self._phases: dict[str, float] = {}  # of the batch
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
        log_cuts: Iterable[OffsetRange] = (),
    ) -> None:
        """The start commit is made. `recent` are the facts of earlier commits, newest first; `gap` those of this start.

        `gaps` are those that are open: their number, and the offsets they hold; `gap_offsets_closed`: offsets of gaps
        that are over. `incarnations`: topic → number of the one that is read. `log_cuts`: offsets whose rows are of
        records that Kafka lost when it cut a log.
        """
        earlier = list(recent)
        with self._lock:
            self._buckets = set(buckets)
            self._set(
                epoch=epoch, run=run, frontier=dict(frontier), limits=dict(limits), buckets=len(self._buckets),
                gaps=gaps, gap_offsets_closed=gap_offsets_closed, log_moved="", topics_appeared="",
                incarnations=dict(incarnations or {}), log_cuts=tuple(log_cuts),
                committed_at=next((assembled(facts) for facts in earlier), None),
                event_time_newest=max((t for f in earlier if (t := event_time_newest(f))), default=None),
            )  # fmt: skip
            if gap is not None:
                totals = self._view.totals.copy()
                totals.add_gap(gap)
                self._set(gap_last=gap, totals=totals)

    def starting(self) -> None:
        """It is about to be started in this process."""
        self._note(state="starting", batch=None)

    def running(self) -> None:
        """The query has started."""
        with self._lock:
            self._set(state="running", error="")
            self._idle_since = self._seconds()

    def paused(self, pause: Pause | None) -> None:
        """Set or clear the pause."""
        self._note(pause=pause)

    def limited(self, limit: LimitState) -> None:
        """Set how the rate limit stands."""
        self._note(rate_limit=limit)

    def scheduled(self, scheduling: Scheduling) -> None:
        """Set what the pipeline gets of the task slots."""
        self._note(scheduling=scheduling)

    def waits(self, frontier: Mapping[Source, int], logs: Logs) -> None:
        """Set the lag of a pipeline that is held before its start."""
        self._note(frontier=dict(frontier), logs=logs)

    def draining(self) -> None:
        """It was asked to stop after the batch that is running."""
        with self._lock:
            if self._view.state in ("starting", "running"):
                self._set(state="draining")

    def restarting(self, why: str) -> None:
        """It ended, and is about to be started again in this process."""
        with self._lock:
            wanted = why == self._view.topics_appeared
            count = "topic_restarts" if wanted else "restarts"
            counted = {count: getattr(self._view, count) + 1}
            self._set(state="starting", error="" if wanted else why, batch=None, topics_appeared="", **counted)
            self._idle_since = None

    def moved(self, why: str) -> None:
        """Kafka's logs are not those of this start any more."""
        self._note(log_moved=why)

    def appeared(self, why: str) -> None:
        """There are topics to read that this start does not read."""
        self._note(topics_appeared=why)

    def beyond(self, topics: tuple[str, ...]) -> bool:
        """Set which topics match a pattern and are not read, for `topics.max`. True when others did before."""
        with self._lock:
            changed = topics != self._view.topics_beyond
            self._set(topics_beyond=topics)
        return changed

    def applied(
        self, targets: Mapping[str, TargetState], without_table: Mapping[str, int], held_bytes_max: int | None
    ) -> None:
        """Set how far the tables of a route are, by name, and how many names have none, by WITHOUT_TABLE."""
        self._note(targets=dict(targets), without_table=dict(without_table), held_bytes_max=held_bytes_max)

    def stopped(self) -> None:
        """It ended as it was asked to."""
        self._note(state="stopped", batch=None)

    def failed(self, why: str) -> None:
        """It ended, and why."""
        self._note(state="failed", error=why, batch=None)

    def admitted(self, schemas: Mapping[int, WriterSchema | RejectedSchema]) -> None:
        """Count the schemas of the plan by how they are decoded."""
        found = dict.fromkeys(DECODERS, 0)
        for known in schemas.values():
            found["rejected" if isinstance(known, RejectedSchema) else "native" if known.native else "single"] += 1
        self._note(schemas=found)

    def began(self, number: int, phase: str) -> None:
        """Note a batch that began with this phase; what was between it and the one before was waiting."""
        with self._lock:
            now, seconds = self._now(), self._seconds()
            self._set(batch=Batch(number, now, phase, now, None))
            self._phases = {} if self._idle_since is None else {"wait": seconds - self._idle_since}
            self._phase_began = seconds

    def entered(self, phase: str, *, offsets: int | None = None) -> dict[str, float]:
        """Note that the batch entered its next phase. Returns the wall seconds of the phases before."""
        with self._lock:
            batch = self._leave()
            known = batch.offsets if offsets is None else offsets
            self._set(batch=Batch(batch.number, batch.began, phase, self._now(), known))
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
            before, done, at = self._view, dict(self._phases), self._now()
            seconds = sum(spent for phase, spent in done.items() if phase != "wait")
            durations = list(before.durations)
            durations[sum(seconds > bound for bound in DURATION_BOUNDS)] += 1
            newest = [t for t in (before.event_time_newest, event_time_newest(facts)) if t is not None]
            totals = before.totals.copy()
            totals.add(facts)
            self._buckets |= set(buckets)
            self._set(
                committed_since_start=True, committed_at=at, totals=totals,
                commits=(Commit(version, at, facts, done), *before.commits)[:COMMITS_KEPT],
                frontier={**before.frontier, **frontier}, buckets=len(self._buckets),
                event_time_newest=max(newest, default=None), durations=tuple(durations),
                duration_sum_seconds=before.duration_sum_seconds + seconds, duration_last_seconds=seconds,
            )  # fmt: skip
        for listener in self._listeners:
            listener()
        return done

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call back after each commit, on the thread of the batch: return at once."""
        self._listeners.append(listener)

    def bucket_counts(self, found: BucketCounts) -> None:
        """Set the counts of the buckets."""
        self._note(bucket_counts=found)

    def cells(self, found: tuple[BucketState, ...]) -> None:
        """Set the states of single buckets."""
        self._note(cells=found)

    def recovered(self, decisions: tuple[Mapping[str, Any], ...]) -> None:
        """Set the supervisor's decisions about this pipeline, newest first."""
        self._note(recovery=decisions)

    def open_gaps(self, gaps: tuple[int, int], settled: int) -> None:
        """Note how many gaps are open by now, and the offsets they hold: others fill them and give them up.

        `settled`: offsets of gaps that are over, in the table's life.
        """
        self._note(gaps=gaps, gap_offsets_closed=settled)

    def oldest_gap(self, opened: datetime | None) -> None:
        """Note when the oldest gap that is open was opened."""
        self._note(gap_oldest=opened)

    def mirror_failed(self) -> None:
        """The frontier could not be written to the consumer group."""
        with self._lock:
            self._set(offset_commit_failures=self._view.offset_commit_failures + 1)

    def clock_stepped(self, step: timedelta) -> None:
        """Move what was noted by the wall clock along with its step, so that ages stay what they are; count it."""
        with self._lock:
            view = self._view
            committed_at = None if view.committed_at is None else view.committed_at + step
            batch = view.batch
            if batch is not None:
                batch = replace(batch, began=batch.began + step, phase_began=batch.phase_began + step)
            self._set(
                since=view.since + step, committed_at=committed_at, batch=batch, logs=view.logs.shifted(step),
                clock_steps=view.clock_steps + 1,
            )  # fmt: skip

    def hooked(self, hooks: Mapping[str, Health]) -> None:
        """Note how the hooks are doing, all of them."""
        self._note(hooks=hooks)

    def telemetry(self, receiver: str, sent: int, dropped: int) -> None:
        """Note of how many commits a receiver got what it takes, and of how many not."""
        with self._lock:
            self._set(telemetry={**self._view.telemetry, receiver: (sent, dropped)})

    def sampled(self, sample: Sample, starts: Mapping[Source, int]) -> None:
        """Set where Kafka's logs begin and end. Removes samples that are older than the window."""
        with self._lock:
            before = self._view
            self._set(logs=replace(before.logs.with_sample(sample), starts=starts))
            if before.state == "running" and all(
                end <= max(before.frontier.get(source, 0), starts.get(source, 0)) for source, end in sample.ends.items()
            ):
                self._set(committed_since_start=True)

    def measured(self, interval: timedelta, earlier: tuple[Sample, ...]) -> None:
        """Note how often Kafka is asked, and where the logs ended before it was asked first."""
        with self._lock:
            self._set(logs=replace(self._view.logs.with_history(earlier), interval=interval))

    def kept(self, retention: Mapping[str, timedelta | None]) -> None:
        """Set how long the topics keep their records."""
        with self._lock:
            self._set(logs=replace(self._view.logs, retention=retention))

    def dated(self, found: Dates) -> None:
        """Set the age of the records at these offsets."""
        with self._lock:
            self._set(logs=replace(self._view.logs, dated={**self._view.logs.dated, **found}))

    def view(self) -> View:
        """Everything, as it is at this moment."""
        with self._lock:
            view = self._view
        held = view.pause is not None and view.state in ("starting", "running")
        return replace(view, state="paused") if held else view

    def _note(self, **changes: Any) -> None:
        """Change fields of the view, under the lock."""
        with self._lock:
            self._set(**changes)

    def _set(self, **changes: Any) -> None:
        """Change fields of the view; the caller has the lock."""
        self._view = replace(self._view, **changes)

    def _leave(self) -> Batch:
        batch, seconds = self._view.batch, self._seconds()
        assert batch is not None, "a phase belongs to a batch"
        self._phases[batch.phase] = self._phases.get(batch.phase, 0.0) + seconds - self._phase_began
        self._phase_began = seconds
        return batch

    def _end(self) -> None:
        self._leave()
        self._idle_since = self._phase_began
        before = self._view.phases
        spent = {phase: before.get(phase, 0.0) + seconds for phase, seconds in self._phases.items()}
        self._set(batch=None, phases={**before, **spent})


class PipelineProgress(Mapping[str, Progress]):
    """The progress of each pipeline of a driver. Other threads may read it while pipelines come and go."""

    def __init__(self, pipelines: Iterable[str] = ()) -> None:
        self._known = {name: Progress(name) for name in pipelines}

    def add(self, pipeline: str) -> None:
        """Add a pipeline that is new here."""
        self._known = {**self._known, pipeline: Progress(pipeline)}  # a reader keeps what it began to read

    def remove(self, pipeline: str) -> None:
        """Take a pipeline out."""
        self._known = {name: progress for name, progress in self._known.items() if name != pipeline}

    def __getitem__(self, pipeline: str) -> Progress:
        return self._known[pipeline]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def values(self) -> ValuesView[Progress]:
        """Return the progress of all, as of this moment."""
        return self._known.values()
