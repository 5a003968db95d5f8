"""Checks what a start of a pipeline needs, and takes the pipeline over: its tables, its offsets, its run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.writer.clients import notifications
from headrace.writer.clients.java_artifacts import spark_release
from headrace.writer.commit import batch_limits, builder
from headrace.writer.commit.batch_limits import BatchEndings
from headrace.writer.commit.privacy import RecordedPrivacy, protected_paths, recorded_paths, recorded_privacy
from headrace.writer.config.sections.table import layout
from headrace.writer.core import logging
from headrace.writer.core.offsets import Source
from headrace.writer.driver.batches.pipeline_parts import PipelineParts
from headrace.writer.driver.start import topic_choice
from headrace.writer.driver.start.pipeline_start import (
    check_rules,
    choose_run_id,
    make_tables,
    new_run_reason,
    probe_locations,
    record_gap,
    refuse_lost_table,
    set_rules,
)
from headrace.writer.offsets import start_decision, start_offsets
from headrace.writer.offsets.spark_checkpoint import NewRun, Resume
from headrace.writer.scaling.spark_settings import offsets_per_range
from headrace.writer.schemas.format_detection import detected_unit
from headrace.writer.status.model import Commit
from headrace.writer.status.table_facts import GapFacts
from headrace.writer.table.log.entries import Entry
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.snapshot import PipelineSnapshot

# So many commits tell the size of records, the wire formats and the rate.
_RECENT_COMMITS = 10


@dataclass(frozen=True)
class Start:
    """Where a query begins: its checkpoint, and the offsets it is seeded with."""

    run: int
    checkpoint: str
    offsets: Mapping[Source, int]


def check_pipeline(parts: PipelineParts) -> None:
    """Look at what a start needs, without Spark: topics, schemas, event time, locations.

    Writes nothing but probe files. Raises BrokerUnreachable, CommitFailed, ConfigError, RegistryUnreachable,
    SchemaChanged.
    """
    settings = parts.settings
    parts.state.topics = topic_choice.topics_of_start(
        settings.topics, parts.cluster, parts.table, parts.progress, parts.notifier.send
    )
    parts.schemas.remember(recorded_paths(parts.name, parts.config), 0)
    parts.schemas.begin(parts.state.topics)
    privacy = None
    if parts.schemas.plan.privacy is not None:
        privacy = recorded_privacy(parts.name, parts.config)
    check_rules(parts.name, settings, parts.schemas, privacy)
    probe_locations(parts.name, parts.config)
    if parts.targets is None:
        parts.format.check_time(parts.schemas.plan)
        snapshot = parts.table.check(parts.bucket_columns, layout(settings.bucket))
    else:
        snapshot = parts.table.check(())
    if snapshot is None:
        refuse_lost_table(parts.table, parts.checkpoints)


def take_over(parts: PipelineParts, *, new_run: bool, once: bool, lease: int | None) -> Start:
    """Take a pipeline over, once it is checked. `lease`: epoch of the lease that a supervisor holds.

    Raises CheckpointUnusable, ConfigError, Fenced.
    """
    state = parts.state
    state.lease = lease
    # A topic may be another one since Spark began to start.
    topics = parts.cluster.topics(state.topics)
    side_table_ids = make_tables(parts.settings, parts.tables, parts.schemas.columns(), parts.bucket_columns)
    snapshot = parts.table.snapshot()
    # A log that lost its offsets alone still knows topics.
    if not (snapshot.epoch or snapshot.incarnations()):
        refuse_lost_table(parts.table, parts.checkpoints)
    parts.schemas.remember(protected_paths(parts.name, parts.config, snapshot), snapshot.privacy)
    parts.schemas.follow(snapshot.columns())
    check_rules(parts.name, parts.settings, parts.schemas, RecordedPrivacy.of(snapshot))
    position = start_offsets.find_start_position(
        parts.settings, parts.cluster, topics, snapshot, parts.stopping.wait, parts.log_check
    )
    state.position = position
    recent_batches = parts.table.recent_batches(_RECENT_COMMITS)
    recent_commits = [entry.facts for entry in recent_batches]
    _find_wire_formats(parts, recent_commits)
    reason = new_run_reason(position, snapshot, is_requested=new_run)
    decision = parts.checkpoints.choose(
        position.offsets, reason, snapshot.closed, can_replay=spark_release().replays_planned_batches
    )
    _raise_epoch(parts, decision, side_table_ids)
    _prepare_tables(parts, recent_commits)
    state.run = choose_run_id(parts.name, decision, state.epoch)
    run_reason = decision.reason if isinstance(decision, NewRun) else None
    parts.run_recorder.begin(state.run, run_reason, position.offsets)
    _notify_recreations(parts, snapshot)
    gap = _record_gap(parts)
    state.endings = _batch_endings(parts, decision, recent_commits, once=once)
    parts.tasks.count_schemas()
    _report_start(parts, recent_batches, gap)
    return Start(state.run, parts.checkpoints.path(state.run), position.offsets)


def _find_wire_formats(parts: PipelineParts, recent_commits: Sequence[Mapping[str, Any]]) -> None:
    """Find the wire formats: from earlier batches, else from waiting records."""
    parts.format.keep_wires(recent_commits, parts.schemas)
    offsets = parts.state.position.offsets
    ends = {} if parts.format.has_all_wires else parts.cluster.latest(offsets)
    waiting = {source: (min(offsets[source], end), end) for source, end in ends.items()}
    parts.format.look_for_wires(waiting, parts.schemas)


def _raise_epoch(parts: PipelineParts, decision: Resume | NewRun, side_table_ids: Mapping[str, str]) -> None:
    """Write the log entry of the start, and report the logs that were cut. Raises Fenced."""
    state = parts.state
    position = state.position
    closed_run = decision.run - 1 if isinstance(decision, NewRun) else 0
    state.epoch = parts.table.begin(
        position.new_parts, position.incarnations, closed_run, state.lease, position.cuts, side_table_ids
    )
    for cut in position.cuts:
        parts.notifier.send(notifications.log_cut(parts.name, cut.to_dict(), datetime.now(UTC)))
        logging.warning("log_cut", pipeline=parts.name, **cut.to_dict())


def _prepare_tables(parts: PipelineParts, recent_commits: Sequence[Mapping[str, Any]]) -> None:
    """Bring the tables and their log up to the settings, and learn from the last commits. Raises Fenced."""
    epoch = parts.state.epoch
    parts.state.specs = set_rules(parts.table, epoch, parts.settings, parts.schemas)
    if parts.targets is not None:
        parts.targets.begin(epoch)
    parts.tables.enter_raw(epoch, parts.settings.raw_place)
    parts.apply_side_files()
    parts.tasks.learn(recent_commits)
    parts.throttle.begin(recent_commits)
    parts.format.keep_unit(*detected_unit(recent_commits))
    parts.tasks.grow(epoch)


def _notify_recreations(parts: PipelineParts, snapshot: PipelineSnapshot) -> None:
    """Notify of the topics that were deleted and created again since the start before."""
    recreations = start_decision.recreated_topics(snapshot.incarnations(), parts.state.position.topic_ids)
    for topic, (id_before, topic_id) in recreations.items():
        event = notifications.topic_recreation(parts.name, topic, id_before, topic_id, datetime.now(UTC))
        parts.notifier.send(event)


def _record_gap(parts: PipelineParts) -> Gap | None:
    """Record the records that Kafka lost, and notify of them; None where it lost none."""
    state = parts.state
    if not state.position.lost:
        return None
    margin = parts.settings.seal.out_of_orderness
    gap, event = record_gap(parts.table, state.epoch, state.run, state.position, parts.cluster, margin)
    parts.notifier.send(event)
    return gap


def _batch_endings(
    parts: PipelineParts, decision: Resume | NewRun, recent_commits: Sequence[Mapping[str, Any]], *, once: bool
) -> BatchEndings:
    """Return when batches end from now on."""
    planned = parts.checkpoints.next_batch(decision.run) if isinstance(decision, Resume) else None
    commit = parts.settings.commit
    limits = batch_limits.limits(
        commit,
        parts.settings.roll.target_file_size,
        parts.tasks.bytes_per_row,
        once=once,
        offsets_per_range=offsets_per_range(parts.config, commit.max_offsets),
        rate_limit=parts.throttle.limit,
        value_bytes_each=builder.value_bytes_each(recent_commits),
    )
    return BatchEndings(limits, None if planned is None else planned.end, time.monotonic())


def _report_start(parts: PipelineParts, recent_batches: Sequence[Entry], gap: Gap | None) -> None:
    """Report the start to the progress and to the log. `gap`: that this start recorded."""
    state = parts.state
    position = state.position
    snapshot = parts.table.snapshot()
    parts.progress.record_start(
        epoch=state.epoch,
        run=state.run,
        frontier=position.offsets,
        limits=state.endings.limits.facts(),
        recent=[Commit(entry.version, entry.logged_at, entry.facts) for entry in recent_batches],
        buckets=parts.table.buckets(),
        gaps=GapFacts.of(snapshot),
        gap=None if gap is None else gap.entry_facts(),
        incarnations=position.numbers,
        log_cuts=snapshot.orphans(),
    )
    offsets = sum(position.offsets.values())
    logging.event("pipeline_started", pipeline=parts.name, epoch=state.epoch, run=state.run, offsets=offsets)
