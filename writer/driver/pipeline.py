"""One pipeline of the driver: how it starts, and how it handles each micro-batch."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import bucketers
from writer.batch.task_report import Report
from writer.clients import notifications
from writer.clients.kafka import BrokerUnreachable, Cluster, next_records
from writer.commit import batch_limits, builder
from writer.commit.batch_limits import BatchEndings
from writer.commit.closed_buckets import slowest_event_time
from writer.commit.failed_records_limit import check_failed_records
from writer.commit.missing_offsets import RecordsMissed, check_answers, choose_questions
from writer.commit.privacy import (
    RecordedPrivacy,
    open_privacy,
    protected_paths,
    recorded_paths,
    recorded_privacy,
)
from writer.commit.targets import Targets
from writer.config.pipelines import Config
from writer.config.table_sections import layout
from writer.core import fault_points, logging
from writer.core.errors import Draining, Fenced, HeadraceError, LogMoved
from writer.core.files import StagedFile
from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.driver import topic_choice
from writer.driver.batch_queue import BatchQueue
from writer.driver.commit_report import CommitReport, rounded
from writer.driver.pipeline_start import check_rules, make_tables, probe_places, record_gap, run_of, set_rules, why_anew
from writer.driver.tasks import BatchDecision, Tasks, reader_of
from writer.offsets import start_decision, start_offsets
from writer.offsets.log_check import LogWatch, log_check
from writer.offsets.run_record import RunRecorder
from writer.offsets.spark_checkpoint import Checkpoints, NewRun, Offsets, Resume
from writer.scaling.spark_settings import records_per_range
from writer.schemas.format_detection import DetectedFormat, detected_unit
from writer.schemas.registry import SchemaSource
from writer.schemas.schema_id_check import IdMeanings
from writer.schemas.tracker import Schemas
from writer.status.pause import PauseGate
from writer.status.progress import Progress
from writer.status.rate_limit import Throttle
from writer.table.factory import all_tables
from writer.table.log.entries import entry_facts
from writer.table.log.foreign_writes import BucketsClosed, CommitFailed, PrivacyChanged
from writer.table.log.operations import Batch
from writer.table.log.snapshot import PipelineSnapshot


@dataclass(frozen=True)
class Start:
    """Where a query begins: its checkpoint, and the offsets it is seeded with."""

    run: int
    checkpoint: str
    offsets: Mapping[Source, int]


class PipelineRun:
    """A pipeline between its start and its end. `process` is called by Spark for each micro-batch, one at a time."""

    def __init__(
        self, name: str, config: Config, *, schemas: SchemaSource, cluster: Cluster, progress: Progress | None = None,
        notifier: notifications.Notifier | None = None, queue: BatchQueue | None = None,
    ) -> None:  # fmt: skip
        """`queue`: where the batches of the driver's pipelines wait."""
        self.name, self.config, self._kafka = name, config.pipelines[name], config.kafka
        self._whole = config
        self.progress = progress or Progress(name)
        self.cluster, self._notifier = cluster, notifier or notifications.Notifier()
        self._s3, self._cut = config.s3.settings, records_per_range(config, self.config.commit.max_records)
        self._tables = all_tables(name, config)
        self._table = self._tables.main
        self._checkpoints = Checkpoints(config.checkpoints, name, self._s3)
        self._observed = RunRecorder(name, self._checkpoints, config.recovery)
        self._bucket_columns = bucketers.build(self.config.bucket).columns
        self._draining = threading.Event()
        self._found = DetectedFormat(name, self.config, config.kafka)
        is_routed = self.config.route is not None
        self._schemas = Schemas(
            name, schemas, IdMeanings(name, config.registry, self._recorded), decode_only=is_routed,
            bucket_columns=() if is_routed else self._bucket_columns,
            record_columns=self.config.record_columns,
            rules=self.config.column_rules, unknown_id_timeout=self.config.schemas.unknown_id_timeout,
            specs=self.config.record_specs, privacy=open_privacy(name, config),
            stopping=self._draining, remembered_at=self._checkpoints.store,
            wire=self._found.wire, key_wire=self._found.key_wire,
        )  # fmt: skip
        self._targets = Targets(name, config, self._tables, self._schemas) if is_routed else None
        self._busy = threading.Lock()
        self._log_check = log_check(name, config.kafka, lambda: self._table.entries(-1))
        self._late = None if self.config.late_table is None else self._tables.side(self.config.late_table)
        tables = [self._table, *([self._late] if self._late else [])]
        turn = None if queue is None else partial(queue.turn, name, stopping=self._draining)
        self._tasks = Tasks(
            self.config, tables, self._schemas, self._found, self.progress, self._s3,
            reader_of(config.kafka, self.config, lambda: self.topic_ids, self._log_check.logs),
            (lambda: 1) if queue is None else queue.__len__, turn, self._targets,
        )  # fmt: skip
        self._throttle = Throttle(self._table.store, name, self.config.commit, self.progress.limited)
        self.gate = PauseGate(self._table.store, name, self.progress.paused, self._throttle.look)
        self._report = CommitReport(name, self.progress, self._notifier)
        self.progress.scheduled(self.config.scheduling)
        self.epoch = 0  # before the start commit
        self._lease: int | None = None
        self.error: BaseException | None = None

    def check(self) -> None:
        """Look at what a start needs, without Spark: topics, schemas, event time, places.

        Writes nothing but probe files. Raises BrokerUnreachable, CommitFailed, ConfigError, RegistryUnreachable,
        SchemaChanged.
        """
        self._topics = topic_choice.topics_of_start(
            self.config.topics, self.cluster, self._table, self.progress, self._notifier.send
        )
        self._schemas.remember(recorded_paths(self.name, self._whole), 0)
        self._schemas.begin(self._topics)
        recorded = None if self._schemas.plan.privacy is None else recorded_privacy(self.name, self._whole)
        check_rules(self.name, self.config, self._schemas, recorded)
        probe_places(self.name, self._whole)
        if self._targets is None:
            self._found.check_time(self._schemas.plan)
            self._table.check(self._bucket_columns, layout(self.config.bucket))
        else:
            self._table.check(())

    def start(self, *, new_run: bool, once: bool = False, lease: int | None = None) -> Start:
        """Take the pipeline over, once it is checked. `lease`: epoch of the lease that a supervisor holds.

        Raises CheckpointUnusable, ConfigError, Fenced.
        """
        self._lease = lease
        topics = self.cluster.topics(self._topics)  # again: one may be another since Spark began to start
        make_tables(self.config, self._tables, self._schemas.columns(), self._bucket_columns)
        snapshot = self._table.snapshot()
        self._schemas.remember(protected_paths(self.name, self._whole, snapshot), snapshot.privacy)
        self._schemas.follow(snapshot.columns())
        check_rules(self.name, self.config, self._schemas, RecordedPrivacy.of(snapshot))
        now = self._standing = start_offsets.find(
            self.config, self.cluster, topics, snapshot, self._draining.wait, self._log_check
        )
        recent = self._table.recent_commits(10)
        self._find_wire(recent)
        decision = self._checkpoints.choose(
            now.offsets, why_anew(self._standing, snapshot, asked=new_run), snapshot.closed
        )
        closed = decision.run - 1 if isinstance(decision, NewRun) else 0
        self.epoch = self._table.begin(now.fresh, now.incarnations, closed, lease, now.cuts)
        for cut in now.cuts:
            self._notifier.send(notifications.log_cut(self.name, cut.to_dict(), datetime.now(UTC)))
            logging.warning("log_cut", pipeline=self.name, **cut.to_dict())
        self._specs = set_rules(self._table, self.epoch, self.config, self._schemas)
        if self._targets is not None:
            self._targets.begin(self.epoch)
        self._tables.enter_raw(self.epoch, self.config.raw_place)
        self._apply_side_files()
        self._tasks.learn(recent)
        self._throttle.begin(recent)
        self._found.keep_unit(*detected_unit(recent))
        self._tasks.grow(self.epoch)
        run = self._run_id = run_of(self.name, decision, self.epoch)
        self._observed.begin(run, decision.reason if isinstance(decision, NewRun) else None, now.offsets)
        for topic, (before, found) in start_decision.reborn(snapshot.incarnations(), now.topic_ids).items():
            self._notifier.send(notifications.topic_recreation(self.name, topic, before, found, datetime.now(UTC)))
        gap = None
        if now.lost:
            margin = self.config.seal.out_of_orderness
            gap, event = record_gap(self._table, self.epoch, run, now, self.cluster, margin)
            self._notifier.send(event)
        self._endings = self._ends_of(decision, recent, once=once)
        self._tasks.count_schemas()
        begun = self._table.snapshot()
        self.progress.started(
            epoch=self.epoch, run=run, frontier=now.offsets, limits=self._endings.limits.facts(), recent=recent,
            buckets=self._table.buckets(), gaps=begun.gaps, gap_offsets_closed=begun.gap_offsets_closed,
            gap=None if gap is None else entry_facts(gap), incarnations=now.numbers,
            log_cuts=begun.orphans(),
        )  # fmt: skip
        logging.event(
            "pipeline_started", pipeline=self.name, epoch=self.epoch, run=run, offsets=sum(now.offsets.values())
        )
        return Start(run, self._checkpoints.path(run), now.offsets)

    def _recorded(self) -> Mapping[str, int]:
        """Return the `txn` values of the table; none before it is made. What cannot be opened, the start says."""
        with suppress(*([] if self.epoch else [CommitFailed])):
            return self._table.transactions()
        return {}

    def _find_wire(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Find the wire formats: from earlier batches, else from waiting records."""
        self._found.keep_wires(recent, self._schemas)
        begin = self._standing.offsets
        ends = {} if self._found.wires_known else self.cluster.latest(begin)
        waiting = {source: (min(begin[source], end), end) for source, end in ends.items()}
        self._found.look_for_wires(waiting, self._schemas)

    def _ends_of(self, decision: Resume | NewRun, recent: Sequence[Mapping[str, Any]], *, once: bool) -> BatchEndings:
        """When batches end from now on."""
        planned = self._checkpoints.planned(decision.run) if isinstance(decision, Resume) else None
        limits = batch_limits.limits(
            self.config.commit, self.config.roll.target_file_size, self._tasks.bytes_per_row, once=once,
            records_per_range=self._cut, rate_limit=self._throttle.limit,
            value_bytes_each=builder.value_bytes_each(recent),
        )  # fmt: skip
        return BatchEndings(limits, None if planned is None else planned.end, time.monotonic())

    @property
    def limits(self) -> batch_limits.Limits:
        """When batches end, as of this start."""
        return self._endings.limits

    def needs_headers(self) -> bool:
        """Return whether Spark must hand over the headers of records."""
        of_route = self._targets is not None and self._targets.needs_headers
        return self._found.needs_headers() or of_route or self.config.raw_place is not None

    def drain(self) -> bool:
        """Stop after the batch that is running. True when none is."""
        self._draining.set()
        self.progress.draining()
        free = self._busy.acquire(blocking=False)
        if free:
            self._busy.release()
        return free

    def owns_table(self) -> bool:
        """Return whether no other start came after this one; while the table cannot be read, none did."""
        with suppress(CommitFailed):
            try:
                if self.epoch:
                    self._table.check_owner(self._table.snapshot(), self.epoch)
            except Fenced:
                return False
        return True

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Topic → the id that this start read under."""
        return self._standing.topic_ids

    @property
    def numbers(self) -> Mapping[str, int]:
        """Topic → number of the incarnation that this start reads."""
        return self._standing.numbers

    def log_moved(self) -> str:
        """Ask Kafka whether its logs are still those of this start; empty if so, or if Kafka does not answer."""
        if not self.epoch:
            return ""
        with suppress(BrokerUnreachable):
            at = self.progress.view().frontier
            return start_offsets.moved(self.cluster, self._topics, self.topic_ids, at)
        return ""

    def log_watch(self) -> LogWatch:
        """Return what compares the logs of this start with the table while it runs."""
        return LogWatch(self._log_check, self.cluster, self._table.snapshot, self.topic_ids, self.numbers)

    def process(self, frame: Any, batch_id: int) -> None:
        """Carry one micro-batch from Kafka into the table. Called by Spark; what it raises ends the query."""
        try:
            with self._busy:
                self._throttle.hold(self._draining)
                self.gate.hold(self._draining)
                self._process(frame, batch_id)
        except BaseException as error:
            self.error = error  # Spark would hide it behind an error of its own
            raise
        fault_points.point("after_batch")

    def _process(self, frame: Any, batch_id: int) -> None:
        began = time.monotonic()
        now = datetime.now(UTC)
        if self._draining.is_set():
            raise Draining(f"pipeline {self.name!r} was asked to stop")
        self.progress.began(batch_id, "look")
        self._same_topics()
        snapshot = self._table.snapshot()
        self._table.check_owner(snapshot, self.epoch)
        self.progress.open_gaps(snapshot.gaps, snapshot.gap_offsets_closed)
        self._apply_side_files()
        start, end = self._checkpoints.range(self._run_id, batch_id)
        parts = {source: self._part(*source) for source in end}
        reached = {part: snapshot.frontier(part) for part in parts.values()}
        why = self._why(batch_id, start, end)
        committing = builder.ranges(start, end, reached, parts)
        if not committing:
            logging.event("batch_skipped", pipeline=self.name, batch=batch_id, reason="the table has all of it")
            self.progress.skipped()
            self._observed.done(batch_id, None)
            return
        waiting = {(r.part.topic, r.part.partition): (r.start, r.end) for r in committing}
        self._found.look_for_wires(waiting, self._schemas)
        self.progress.entered("tasks", offsets=sum(r.end - r.start for r in committing))
        fault_points.point("before_stage", self.name)
        starts = {source: begin for source, (begin, _) in waiting.items()}
        times = snapshot.closed_until, snapshot.closed_targets, slowest_event_time(snapshot, parts.values())
        marks = {source: mark for source, part in parts.items() if (mark := snapshot.mark(part)) is not None}
        frozen = BatchDecision(now, self.epoch, starts, self._standing.numbers, *times, marks)
        held = {} if self._lease is None else {"lease": self._lease}
        started = now.isoformat()
        about = {"run": self._run_id, "batch": batch_id, "started": started, **held, **why, **self._throttle.facts()}
        version, planned = self._carry(frame, snapshot, frozen, committing, about)
        self.progress.entered("redo")
        fault_points.point("before_redo")
        self._apply_side_files()
        self._tasks.learn([planned.facts])
        self._report.committed(version, planned, time.monotonic() - began)
        self._throttle.committed(planned.facts)
        try:
            self._tables.tidy(planned.side_files)
        except CommitFailed as error:
            logging.warning("cleanup_failed", pipeline=self.name, version=version, error=str(error))
        self._observed.done(batch_id, version)

    def _carry(
        self, frame: Any, snapshot: PipelineSnapshot, frozen: BatchDecision, committing: list[OffsetRange],
        about: Mapping[str, Any],
    ) -> tuple[int, Batch]:  # fmt: skip
        """Run the tasks and commit what they staged; repeat if buckets of theirs were closed meanwhile."""
        report = None
        # A pipeline at its rate limit needs no more slots, and larger files.
        behind = about["reason"] == "backlog" and not self.limits.rate_limit
        while True:
            if report is None:
                report = self._tasks.run(frame, frozen, committing, behind=behind)
                fault_points.point("after_stage")
                self._same_topics()
                self._check_account(report, committing)
                self._found.keep_unit(report.time_unit, f"batch {about['batch']} of run {self._run_id}")
                phases = rounded(self.progress.entered("commit"))
            facts = {
                **about, "tasks": report.tasks, "phases": phases, "former": self._report.former,
                "assembled": datetime.now(UTC).isoformat(),
                **self._found.facts(), **builder.target_facts(report), **builder.spec_facts(report, self._specs),
            }  # fmt: skip
            seen = {r.part: at for r in committing if (at := snapshot.newest_event_time(r.part)) is not None}
            planned = builder.batch(
                report, committing, epoch=self.epoch, settled=self._tables.settled,
                side=self._side_files(report), seen=seen, facts=facts,
                closed=(frozen.closed_until, frozen.closed_targets),
                meanings=self._schemas.confirm(report, time.monotonic()), privacy=self._schemas.privacy_version,
            )  # fmt: skip
            builder.check_age(frozen.now, datetime.now(UTC), self.config.table.orphan_retention)
            try:  # on what was read first: all that happened since is looked at
                return self._table.commit(snapshot, planned), planned
            except PrivacyChanged as error:
                snapshot = self._table.snapshot()
                self._schemas.remember(snapshot.protected_paths, snapshot.privacy)
                logging.event("batch_protected_anew", pipeline=self.name, batch=about["batch"], reason=str(error))
                self._discard(report)
                report = None
                self.progress.entered("tasks")
            except BucketsClosed:
                snapshot = self._table.snapshot()
                self._tables.apply_side_files()
                judged, closed = frozen, (snapshot.closed_until, snapshot.closed_targets)
                frozen = replace(frozen, closed_until=closed[0], closed_targets=closed[1])
                if late := self._tasks.closed_between(report, judged, frozen):
                    logging.event("batch_reclassified", pipeline=self.name, batch=about["batch"], buckets=late)
                    self._discard(report)
                    report = None
                    self.progress.entered("tasks")

    def catch_up(self) -> None:
        """Try again a target that refused, on a thread of its own, where no batch does. Returns at once."""
        if self._targets is not None and self._tables.is_retry_due and self._busy.acquire(blocking=False):
            threading.Thread(target=self._catch_up, name=f"targets of {self.name}", daemon=True).start()

    def _catch_up(self) -> None:
        try:
            with suppress(HeadraceError, OSError):  # of the log: the next batch says it
                self._apply_side_files()
        finally:
            self._busy.release()

    def _apply_side_files(self) -> None:
        self._tables.apply_side_files()
        if self._targets is not None:
            states, route = self._targets.states(), self._targets.section
            self._report.targets(states, self._targets.refused, self._targets.beyond, route)

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        with suppress(OSError):
            self._tables.discard(report.files, self._side_files(report))

    def _side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that tasks staged for the dead letters, the late rows and the tables of a route, by location."""
        of_targets = {} if self._targets is None else self._targets.side_files(report)
        return {**builder.side_files(self.config, report), **of_targets}

    def _why(self, batch_id: int, start: Offsets, end: Offsets) -> dict[str, Any]:
        """Return why Spark ended the batch here, and its limits."""
        ends = None
        with suppress(BrokerUnreachable):
            ends = self.cluster.readable(end)
        return self._endings.end_facts(batch_id, start, end, ends, time.monotonic())

    def _check_account(self, report: Report, committing: Sequence[OffsetRange]) -> None:
        """Raise RecordsMissed when Kafka holds records that were not read, LimitReached when too many failed."""
        asked, kafka = choose_questions(builder.find_missing_offsets(report, committing)), self._kafka
        try:
            check_answers(next_records(kafka.address, kafka.request_timeout, asked))
        except RecordsMissed as error:
            self._notifier.send(notifications.missed_records(self.name, str(error), datetime.now(UTC)))
            raise
        check_failed_records(self.name, report, self.config.limits)

    def _same_topics(self) -> None:
        """Raise when a topic was deleted and created again under this run: its offsets mean other records now."""
        now = {topic.name: topic.id for topic in self.cluster.topics(self._topics).values()}
        if why := start_decision.changed(self._standing.topic_ids, now, {}, {}):
            raise LogMoved(f"{why} while pipeline {self.name!r} ran")

    def _part(self, topic: str, partition: int) -> TopicPartition:
        return TopicPartition(topic, self._standing.numbers[topic], partition)
