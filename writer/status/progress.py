"""The progress of a running pipeline: the pipeline writes it, any thread may read it at any moment.

Nothing here asks a server: a reader gets the facts as they were last written, and says how old they are.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.writer.columns.schema_plan import RejectedSchema, WriterSchema
from headrace.writer.core.files import BucketKey
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.core.periodic_thread import Await
from headrace.writer.sealing.retention_wait import RetentionWait
from headrace.writer.status.model import (
    DECODERS,
    DURATION_BOUNDS,
    Batch,
    Commit,
    Dates,
    Sample,
    View,
    assembly_time,
    event_time_newest,
    event_time_newest_of,
)
from headrace.writer.status.table_facts import GapFacts

# For rates and a look back. The table's log has all of them.
COMMITS_KEPT = 20


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
        self._now = now
        self._seconds = seconds
        self.pipeline = pipeline
        # Its `state` is the driver's own. A pause, or the wait for a lease, replaces it when it is read.
        self._view = View(pipeline, now())
        self._buckets: set[BucketKey] = set()
        self._listeners: list[Callable[[], None]] = []
        # By what a thread reads: what requests a round of it.
        self._readers: dict[str, Callable[[], Await]] = {}
        self._idle_since: float | None = None
        # Wall seconds of the batch, by phase.
        self._phases: dict[str, float] = {}
        self._phase_began = 0.0

    def record_start(
        self,
        *,
        epoch: int,
        run: int,
        frontier: Mapping[Source, int],
        limits: Mapping[str, Any],
        buckets: Iterable[BucketKey],
        recent: Iterable[Commit],
        gaps: GapFacts | None = None,
        gap: Mapping[str, Any] | None = None,
        incarnations: Mapping[str, int] | None = None,
        log_cuts: Iterable[OffsetRange] = (),
    ) -> None:
        """Record that the start commit is made. `recent`: earlier commits of the table, newest first.

        `gap`: facts of the gap of this start. `gaps`: of the table. `incarnations`: topic → number of the one that is
        read. `log_cuts`: offsets whose rows are of records that Kafka lost when it cut a log.
        """
        with self._lock:
            commits = self._with_own_commits(list(recent))
            self._buckets = set(buckets)
            self._set(
                epoch=epoch,
                epoch_began=self._now(),
                run=run,
                frontier=dict(frontier),
                limits=dict(limits),
                buckets=len(self._buckets),
                gaps=None if gaps is None else replace(gaps, read_at=self._now()),
                log_moved="",
                topics_appeared="",
                incarnations=dict(incarnations or {}),
                log_cuts=tuple(log_cuts),
                commits=tuple(commits[:COMMITS_KEPT]),
                committed_at=assembly_time(commits[0].facts) if commits else None,
                event_time_newest=event_time_newest_of(commit.facts for commit in commits),
            )
            if gap is not None:
                totals = self._view.totals.copy()
                totals.add_gap(gap)
                self._set(totals=totals)

    def set(self, **changes: Any) -> None:
        """Set facts of the view, by their names. Raises TypeError for a name that it does not have."""
        with self._lock:
            self._set(**changes)

    def set_running(self) -> None:
        """Record that the query has started."""
        with self._lock:
            self._set(state="running", error="")
            self._idle_since = self._seconds()

    def set_draining(self) -> None:
        """Record that it was asked to stop after the present batch."""
        with self._lock:
            if self._view.state in ("starting", "running"):
                self._set(state="draining")

    def record_restart(self, reason: str) -> None:
        """Record that it ended, and is about to be started again in this process. New topics are no error."""
        with self._lock:
            if reason == self._view.topics_appeared:
                self._set(error="", topic_restarts=self._view.topic_restarts + 1)
            else:
                self._set(error=reason, restarts=self._view.restarts + 1)
            self._set(state="starting", batch=None, topics_appeared="")
            self._idle_since = None

    def set_topics_beyond(self, topics: tuple[str, ...]) -> bool:
        """Set which topics match a pattern and are not read, for `topics.max`. Returns whether they changed."""
        with self._lock:
            changed = topics != self._view.topics_beyond
            self._set(topics_beyond=topics)
        return changed

    def record_stop(self) -> None:
        """Record that it ended as it was asked to, and waits for no lease."""
        self.set(state="stopped", batch=None, lease_wait=None)

    def record_failure(self, reason: str) -> None:
        """Record that it ended, and why. It waits for no lease, unless a supervisor says so afterwards."""
        self.set(state="failed", error=reason, batch=None, lease_wait=None)

    def set_schemas(self, schemas: Mapping[int, WriterSchema | RejectedSchema]) -> None:
        """Count the schemas of the plan by how they are decoded."""
        counts = dict.fromkeys(DECODERS, 0)
        for schema in schemas.values():
            if isinstance(schema, RejectedSchema):
                counts["rejected"] += 1
            elif schema.native:
                counts["native"] += 1
            else:
                counts["single"] += 1
        self.set(schemas=counts)

    def begin_batch(self, number: int, phase: str) -> None:
        """Record that a batch began with this phase. The time since the batch before it was waiting."""
        with self._lock:
            now = self._now()
            seconds = self._seconds()
            self._set(batch=Batch(number, now, phase, now, None))
            self._phases = {}
            if self._idle_since is not None:
                self._phases["wait"] = seconds - self._idle_since
            self._phase_began = seconds

    def enter_phase(self, phase: str, *, offsets: int | None = None) -> dict[str, float]:
        """Record that the batch entered its next phase. Returns the wall seconds of the phases before."""
        with self._lock:
            batch = self._leave_phase()
            if offsets is not None:
                batch = replace(batch, offsets=offsets)
            self._set(batch=replace(batch, phase=phase, phase_began=self._now()))
            return dict(self._phases)

    def skip_batch(self) -> None:
        """Record that the batch ended without a commit: the table had all of it."""
        with self._lock:
            self._end_batch()

    def record_commit(
        self, version: int, facts: Mapping[str, Any], frontier: Mapping[Source, int], buckets: Iterable[BucketKey]
    ) -> dict[str, float]:
        """Record that the batch is in the table, its dead letters too. Returns the wall seconds of all its phases."""
        with self._lock:
            self._end_batch()
            view = self._view
            now = self._now()
            phases = dict(self._phases)
            seconds = sum(phase_s for phase, phase_s in phases.items() if phase != "wait")
            durations = list(view.durations)
            durations[sum(seconds > bound for bound in DURATION_BOUNDS)] += 1
            event_times = [time for time in (view.event_time_newest, event_time_newest(facts)) if time is not None]
            totals = view.totals.copy()
            totals.add(facts)
            self._buckets |= set(buckets)
            self._set(
                committed_since_start=True,
                committed_at=now,
                totals=totals,
                commits=(Commit(version, now, facts, phases), *view.commits)[:COMMITS_KEPT],
                frontier={**view.frontier, **frontier},
                buckets=len(self._buckets),
                event_time_newest=max(event_times, default=None),
                durations=tuple(durations),
                duration_sum_seconds=view.duration_sum_seconds + seconds,
                duration_last_seconds=seconds,
            )
        for listener in self._listeners:
            listener()
        return phases

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call back after each commit, on the thread of the batch: return at once."""
        self._listeners.append(listener)

    def set_reader(self, facts: str, request_round: Callable[[], Await]) -> None:
        """Set what requests that facts are read anew, in place of the reader of an earlier start."""
        self._readers[facts] = request_round

    def request_facts(self) -> list[Await]:
        """Request that all facts are read anew. Returns at once, with what waits for each reader."""
        return [request_round() for request_round in list(self._readers.values())]

    def count_mirror_failure(self) -> None:
        """Count that the frontier could not be written to the consumer group."""
        with self._lock:
            self._set(offset_commit_failures=self._view.offset_commit_failures + 1)

    def shift_clock(self, step: timedelta) -> None:
        """Move the times of the wall clock along with its step, so that ages stay what they are; count the step."""
        with self._lock:
            self._view = self._view.shift_times(step)
            self._set(clock_steps=self._view.clock_steps + 1)

    def set_telemetry(self, receiver: str, sent: int, dropped: int) -> None:
        """Set how many commits were sent to a receiver, and how many were dropped."""
        with self._lock:
            self._set(telemetry={**self._view.telemetry, receiver: (sent, dropped)})

    def add_sample(self, sample: Sample, starts: Mapping[Source, int]) -> None:
        """Set where Kafka's logs begin and end. Removes samples that are older than the window."""
        with self._lock:
            view = self._view
            self._set(logs=replace(view.logs.with_sample(sample), starts=starts))
            if view.state != "running":
                return
            next_offsets = {source: max(view.frontier.get(source, 0), starts.get(source, 0)) for source in sample.ends}
            if all(end <= next_offsets[source] for source, end in sample.ends.items()):
                self._set(committed_since_start=True)

    def set_lag_history(self, interval: timedelta, earlier: tuple[Sample, ...]) -> None:
        """Set how often Kafka is asked, and where the logs ended before it was asked first."""
        with self._lock:
            self._set(logs=replace(self._view.logs.with_history(earlier), interval=interval))

    def set_retention(self, retention: Mapping[str, timedelta | None]) -> None:
        """Set how long the topics keep their records."""
        with self._lock:
            self._set(logs=replace(self._view.logs, retention=retention))

    def set_retention_waits(self, wait_by_table: Mapping[str, RetentionWait | None]) -> None:
        """Set which retentions wait to be accepted, of these tables; None: that of a table does not."""
        with self._lock:
            waits = {**self._view.retention_waits, **wait_by_table}
            self._set(retention_waits={table: wait for table, wait in waits.items() if wait is not None})

    def add_dates(self, dates: Dates) -> None:
        """Set the dates of the records at these offsets."""
        with self._lock:
            self._set(logs=replace(self._view.logs, dated={**self._view.logs.dated, **dates}))

    def view(self) -> View:
        """Return everything, as it is at this moment."""
        with self._lock:
            view = self._view
        if view.pause is not None and view.state in ("starting", "running"):
            return replace(view, state="paused")
        if view.lease_wait is not None and view.state in ("starting", "failed", "stopped"):
            return replace(view, state="waiting", error="")
        return view

    def _with_own_commits(self, recent: list[Commit]) -> list[Commit]:
        """Return commits of the table, newest first, and those before them that this process made."""
        own_commits = {commit.version: commit for commit in self._view.commits}
        # Of its own commits this process knows more than the table does.
        commits = [own_commits.get(commit.version, commit) for commit in recent]
        if not commits:
            return list(self._view.commits)
        oldest_version = commits[-1].version
        return [*commits, *(commit for commit in self._view.commits if commit.version < oldest_version)]

    def _set(self, **changes: Any) -> None:
        """Change fields of the view; the caller has the lock."""
        self._view = replace(self._view, **changes)

    def _leave_phase(self) -> Batch:
        batch = self._view.batch
        seconds = self._seconds()
        assert batch is not None, "a phase belongs to a batch"
        self._phases[batch.phase] = self._phases.get(batch.phase, 0.0) + seconds - self._phase_began
        self._phase_began = seconds
        return batch

    def _end_batch(self) -> None:
        self._leave_phase()
        self._idle_since = self._phase_began
        phases = dict(self._view.phases)
        for phase, seconds in self._phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
        self._set(batch=None, phases=phases)


class PipelineProgress(Mapping[str, Progress]):
    """The progress of each pipeline of a driver. Other threads may read it while pipelines come and go."""

    def __init__(self, pipelines: Iterable[str] = ()) -> None:
        self._progress = {name: Progress(name) for name in pipelines}

    def add(self, pipeline: str) -> None:
        """Add a pipeline that is new here."""
        # A reader keeps what it began to read.
        self._progress = {**self._progress, pipeline: Progress(pipeline)}

    def remove(self, pipeline: str) -> None:
        """Take a pipeline out."""
        self._progress = {name: progress for name, progress in self._progress.items() if name != pipeline}

    def __getitem__(self, pipeline: str) -> Progress:
        return self._progress[pipeline]

    def __iter__(self) -> Iterator[str]:
        return iter(self._progress)

    def __len__(self) -> int:
        return len(self._progress)

    def values(self) -> ValuesView[Progress]:
        """Return the progress of all, as of this moment."""
        return self._progress.values()
