"""Carries each micro-batch of a pipeline from Kafka into its table: checks, tasks, commit, side files."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headrace.writer.batch.task_report import Report
from headrace.writer.clients import notifications
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.clients.next_records import next_records
from headrace.writer.commit import builder
from headrace.writer.commit.batch_limits import takes_every_slot
from headrace.writer.commit.closed_buckets import slowest_event_time
from headrace.writer.commit.failed_records_limit import check_failed_records
from headrace.writer.commit.missing_offsets import RecordsMissed, check_answers, choose_questions
from headrace.writer.core import fault_points, logging
from headrace.writer.core.errors import Draining, LogMoved
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.driver.batches.commit_report import round_phases
from headrace.writer.driver.batches.pipeline_parts import PipelineParts
from headrace.writer.driver.batches.tasks import BatchDecision
from headrace.writer.offsets import start_decision
from headrace.writer.offsets.spark_checkpoint import Offsets
from headrace.writer.table.log.foreign_writes import BucketsClosed, CommitFailed, PrivacyChanged
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.log.snapshot import PipelineSnapshot


class BatchProcessor:
    """Processes the micro-batches of a pipeline, one at a time."""

    def __init__(self, parts: PipelineParts) -> None:
        self._parts = parts
        self._state = parts.state

    def process(self, frame: Any, batch_id: int) -> None:
        """Carry one micro-batch from Kafka into the table. `frame`: the batch as Spark's source has it.

        Raises Draining when a stop is asked for, Fenced, LogMoved, RecordsMissed, LimitReached, SideTableLost,
        CommitFailed.
        """
        parts = self._parts
        begin_s = time.monotonic()
        now = datetime.now(UTC)
        if parts.stopping.is_set():
            raise Draining(f"pipeline {parts.name!r} was asked to stop")
        parts.progress.begin_batch(batch_id, "look")
        self._check_topics()
        snapshot = parts.table.snapshot()
        parts.table.check_owner(snapshot, self._state.epoch)
        parts.check_side_tables(snapshot)
        parts.apply_side_files()
        start, end = parts.checkpoints.batch_offsets(self._state.run, batch_id)
        partitions = {source: self._state.topic_partition(*source) for source in end}
        frontier = {partition: snapshot.frontier(partition) for partition in partitions.values()}
        end_facts = self._end_facts(batch_id, start, end)
        ranges = builder.ranges(start, end, frontier, partitions)
        if not ranges:
            logging.event("batch_skipped", pipeline=parts.name, batch=batch_id, reason="the table has all of it")
            parts.progress.skip_batch()
            parts.run_recorder.record_batch(batch_id, None)
            return
        waiting = {r.part.source: r.span for r in ranges}
        parts.format.look_for_wires(waiting, parts.schemas)
        parts.progress.enter_phase("tasks", offsets=sum(r.count for r in ranges))
        fault_points.point("before_stage", parts.name)
        decision = self._decide(now, snapshot, partitions, ranges)
        about = self._batch_facts(batch_id, now) | end_facts | parts.throttle.facts()
        version, batch = self._carry(frame, snapshot, decision, ranges, about)
        self._finish(batch_id, version, batch, begin_s)

    def _decide(
        self,
        now: datetime,
        snapshot: PipelineSnapshot,
        partitions: Mapping[Source, TopicPartition],
        ranges: Sequence[OffsetRange],
    ) -> BatchDecision:
        """Decide what all tasks of the batch go by."""
        marks = {source: snapshot.mark(partition) for source, partition in partitions.items()}
        return BatchDecision(
            now,
            self._state.epoch,
            {r.part.source: r.start for r in ranges},
            self._state.position.numbers,
            snapshot.closed_until,
            snapshot.closed_targets,
            slowest_event_time(snapshot, partitions.values()),
            {source: mark for source, mark in marks.items() if mark is not None},
        )

    def _batch_facts(self, batch_id: int, now: datetime) -> dict[str, Any]:
        """Return what the log entry tells of the batch's beginning."""
        facts: dict[str, Any] = {"run": self._state.run, "batch": batch_id, "started": now.isoformat()}
        if self._state.lease is not None:
            facts["lease"] = self._state.lease
        return facts

    def _end_facts(self, batch_id: int, start: Offsets, end: Offsets) -> dict[str, Any]:
        """Return why Spark ended the batch here, and its limits."""
        log_ends = None
        with suppress(BrokerUnreachable):
            log_ends = self._parts.cluster.readable(end)
        return self._state.endings.end_facts(batch_id, start, end, log_ends, time.monotonic())

    def _carry(
        self,
        frame: Any,
        snapshot: PipelineSnapshot,
        decision: BatchDecision,
        ranges: list[OffsetRange],
        about: Mapping[str, Any],
    ) -> tuple[int, Batch]:
        """Run the tasks and commit what they staged; repeat if buckets of theirs were closed meanwhile."""
        parts = self._parts
        report: Report | None = None
        while True:
            if report is None:
                report = self._run_tasks(frame, decision, ranges, about)
                phases = round_phases(parts.progress.enter_phase("commit"))
            batch = self._build_batch(
                report, snapshot, decision, ranges, {**about, "tasks": report.tasks, "phases": phases}
            )
            builder.check_age(decision.now, datetime.now(UTC), parts.settings.table.orphan_retention)
            # On the snapshot that was read first: all that happened since is looked at.
            try:
                return parts.table.append(batch, snapshot), batch
            except PrivacyChanged as error:
                snapshot = parts.table.snapshot()
                parts.schemas.remember(snapshot.protected_paths, snapshot.privacy)
                logging.event("batch_protected_anew", pipeline=parts.name, batch=about["batch"], reason=str(error))
                self._discard(report)
                report = None
            except BucketsClosed:
                snapshot = parts.table.snapshot()
                parts.tables.apply_side_files()
                decision_before = decision
                decision = replace(decision, closed_until=snapshot.closed_until, closed_targets=snapshot.closed_targets)
                buckets = parts.tasks.count_closed_buckets(report, decision_before, decision)
                if not buckets:
                    continue
                logging.event("batch_reclassified", pipeline=parts.name, batch=about["batch"], buckets=buckets)
                self._discard(report)
                report = None
            parts.progress.enter_phase("tasks")

    def _run_tasks(
        self, frame: Any, decision: BatchDecision, ranges: Sequence[OffsetRange], about: Mapping[str, Any]
    ) -> Report:
        """Run the tasks, and check what they report."""
        parts = self._parts
        limits = self._state.endings.limits
        is_spread = takes_every_slot(about["offsets"], about["waiting"], len(ranges), limits)
        report = parts.tasks.run(frame, decision, ranges, behind=is_spread, once=about["reason"] == "once")
        fault_points.point("after_stage")
        self._check_topics()
        self._check_account(report, ranges)
        parts.format.keep_unit(report.time_unit, f"batch {about['batch']} of run {self._state.run}")
        return report

    def _build_batch(
        self,
        report: Report,
        snapshot: PipelineSnapshot,
        decision: BatchDecision,
        ranges: list[OffsetRange],
        about: Mapping[str, Any],
    ) -> Batch:
        """Build the log entry of what the tasks staged."""
        parts = self._parts
        facts = {
            **about,
            "former": parts.report.former,
            "assembled": datetime.now(UTC).isoformat(),
            **parts.format.facts(),
            **builder.target_facts(report),
            **builder.spec_facts(report, self._state.specs),
        }
        event_times = {r.part: snapshot.newest_event_time(r.part) for r in ranges}
        return builder.batch(
            report,
            ranges,
            epoch=self._state.epoch,
            settled=parts.tables.settled,
            side=self._side_files(report),
            seen={partition: time for partition, time in event_times.items() if time is not None},
            facts=facts,
            closed=(decision.closed_until, decision.closed_targets),
            meanings=parts.schemas.confirm(report, time.monotonic()),
            privacy=parts.schemas.privacy_version,
        )

    def _finish(self, batch_id: int, version: int, batch: Batch, begin_s: float) -> None:
        """Apply the side files of a commit, and report it. `begin_s`: when the batch began, monotonic."""
        parts = self._parts
        parts.progress.enter_phase("redo")
        fault_points.point("before_redo")
        parts.apply_side_files()
        parts.tasks.learn([batch.facts])
        parts.report.report_commit(version, batch, time.monotonic() - begin_s)
        parts.throttle.record_commit(batch.facts)
        try:
            parts.tables.tidy(batch.side_files)
        except CommitFailed as error:
            logging.warning("cleanup_failed", pipeline=parts.name, version=version, error=str(error))
        parts.run_recorder.record_batch(batch_id, version)

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        with suppress(OSError):
            self._parts.tables.discard(report.files, self._side_files(report))

    def _side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that tasks staged for the dead letters, the late rows and the tables of a route, by location."""
        files = dict(builder.side_files(self._parts.settings, report))
        if self._parts.targets is not None:
            files |= self._parts.targets.side_files(report)
        return files

    def _check_account(self, report: Report, ranges: Sequence[OffsetRange]) -> None:
        """Raise RecordsMissed when Kafka holds records that were not read, LimitReached when too many failed."""
        parts = self._parts
        questions = choose_questions(builder.find_missing_offsets(report, ranges))
        kafka = parts.config.kafka
        try:
            check_answers(next_records(kafka.address, kafka.request_timeout, questions))
        except RecordsMissed as error:
            parts.notifier.send(notifications.missed_records(parts.name, str(error), datetime.now(UTC)))
            raise
        check_failed_records(parts.name, report, parts.settings.limits)

    def _check_topics(self) -> None:
        """Raise when a topic was deleted and created again under this run: its offsets mean other records now."""
        topics = self._parts.cluster.topics(self._state.topics).values()
        topic_ids = {topic.name: topic.id for topic in topics}
        change = start_decision.log_change(self._state.position.topic_ids, topic_ids, {}, {})
        if change:
            raise LogMoved(f"{change} while pipeline {self._parts.name!r} ran")
