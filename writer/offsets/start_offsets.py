"""Finds a start's offsets: the topics' incarnations, where each partition reads on, what Kafka has lost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from headrace.writer.clients.kafka import Cluster, Topic
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core import logging
from headrace.writer.core.errors import FrontierLost, LogChanged, TopicMissing
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.core.units import instant, shift_instant
from headrace.writer.offsets.log_check import Diverging, LogCheck, fetch_log_ranges_of_parts
from headrace.writer.offsets.start_decision import (
    Begin,
    RecordGap,
    Refuse,
    decide,
    extend_incarnations,
    incarnation_number,
    incarnations,
    log_change,
    predecessors_of,
    recreated_topics,
    refusal,
    topics_without_id,
)
from headrace.writer.table.log.commits.starts import LogCut
from headrace.writer.table.log.snapshot import PipelineSnapshot

# Looks at a log that seems too short: right after a leader has changed it may (KAFKA-7703).
_LOOKS_MAX = 3
_LOOK_INTERVAL_S = 2.0


@dataclass(frozen=True)
class StartPosition:
    """Where a start reads on."""

    # Topic → id that it has now.
    topic_ids: Mapping[str, str]
    # Topic → ids of its incarnations, those that are new to the table included.
    incarnations: Mapping[str, Sequence[str]]
    parts: Mapping[Source, TopicPartition]
    # Parts that the table does not know, and where they begin.
    new_parts: Mapping[TopicPartition, int] = field(default_factory=dict)
    offsets: Mapping[Source, int] = field(default_factory=dict)
    # Between the frontier and these offsets.
    lost: Sequence[OffsetRange] = ()
    # Logs that Kafka cut below the frontier, and that go on as further incarnations.
    cuts: Sequence[LogCut] = ()

    @property
    def numbers(self) -> dict[str, int]:
        """Topic → number of its incarnation."""
        return {
            topic: incarnation_number(self.incarnations[topic], topic_id) for topic, topic_id in self.topic_ids.items()
        }


def find_start_position(
    settings: Pipeline,
    cluster: Cluster,
    topics: Mapping[str, Topic],
    snapshot: PipelineSnapshot,
    wait: Callable[[float], Any],
    check: LogCheck | None = None,
) -> StartPosition:
    """Compare the table's frontier with Kafka. `wait` waits some seconds; `check` compares logs, None: they are not.

    Raises LogChanged when the configuration or the log says to stop, BrokerUnreachable, ReadFailed.
    """
    table_ids = snapshot.incarnations()
    topic_ids = {topic.name: topic.id for topic in topics.values()}
    _check_topics(settings, table_ids, topic_ids)
    ids = incarnations(table_ids, topic_ids)
    parts = _parts(topics, ids)
    reason = orphan_reason(snapshot, {part.topic: part.incarnation for part in parts.values()})
    if reason:
        raise LogChanged(reason)
    frontier = {source: snapshot.frontier(part) for source, part in parts.items()}
    _check_frontiers(topics, table_ids, frontier)
    new_sources = [source for source, offset in frontier.items() if offset is None]
    new_offsets = _initial_offsets(settings, cluster, new_sources, snapshot)
    offsets: dict[TopicPartition, int] = {}
    for source, part in parts.items():
        committed_offset = frontier[source]
        offsets[part] = new_offsets[source] if committed_offset is None else committed_offset
    decision, diverging = _compare_with_kafka(settings, cluster, parts, offsets, snapshot, topic_ids, wait, check)
    cuts: list[LogCut] = []
    if check is not None and diverging:
        cuts = _find_cuts(settings, check, diverging, ids, topic_ids)
        for cut in tuple(cuts):
            cuts += _earlier_cuts(cut, snapshot)
        ids, begins = extend_incarnations(ids, topic_ids, offsets, cuts)
        parts = _parts(topics, ids)
        offsets = {part: offsets.get(part, begins.get(part, 0)) for part in parts.values()}
        new_offsets |= {source: offsets[part] for source, part in parts.items() if part in begins}
        decision = decide(offsets, fetch_log_ranges_of_parts(cluster, parts), settings.on_data_loss)
    match decision:
        case Begin(start_offsets):
            lost: Sequence[OffsetRange] = ()
        case RecordGap(lost, start_offsets):
            pass
        case Refuse(reason):
            raise LogChanged(reason)
        case _:
            assert_never(decision)
    return StartPosition(
        topic_ids,
        ids,
        parts,
        new_parts={parts[source]: offset for source, offset in new_offsets.items()},
        offsets={source: start_offsets[part] for source, part in parts.items()},
        lost=lost,
        cuts=cuts,
    )


def _compare_with_kafka(
    settings: Pipeline,
    cluster: Cluster,
    parts: Mapping[Source, TopicPartition],
    offsets: Mapping[TopicPartition, int],
    snapshot: PipelineSnapshot,
    topic_ids: Mapping[str, str],
    wait: Callable[[float], Any],
    check: LogCheck | None,
) -> tuple[Begin | RecordGap | Refuse, Diverging]:
    """Decide where parts read on, and find those whose logs diverge. Look again where a log seems to be too short."""
    for look in range(1, _LOOKS_MAX + 1):
        log_ranges = fetch_log_ranges_of_parts(cluster, parts)
        diverging = {} if check is None else check.diverging_parts(snapshot, log_ranges, topic_ids)
        continuing = {part: offset for part, offset in offsets.items() if part not in diverging}
        decision = decide(continuing, log_ranges, settings.on_data_loss)
        if not isinstance(decision, Refuse) and not diverging:
            break
        if look < _LOOKS_MAX:
            wait(_LOOK_INTERVAL_S)
    return decision, diverging


def _check_topics(settings: Pipeline, table_ids: Mapping[str, Sequence[str]], topic_ids: Mapping[str, str]) -> None:
    """Warn of topics that were created again, or have no id. Raises LogChanged where the configuration says to stop."""
    for topic, (table_id, topic_id) in recreated_topics(table_ids, topic_ids).items():
        if settings.on_topic_recreated == "stop":
            raise LogChanged(
                f"topic {topic!r} was deleted and created again (id {topic_id}, the table knows {table_id}). "
                "Set on_topic_recreated: start to read it from its beginning. If it is a copy of the same records in "
                "another cluster, `headrace topic adopt` goes on where the table ends."
            )
        incarnation = len(table_ids[topic]) + 1
        logging.warning("topic_recreated", topic=topic, id=topic_id, before=table_id, incarnation=incarnation)
    for topic in topics_without_id(topic_ids):
        logging.warning("topic_without_id", topic=topic, reason="its brokers are older than Kafka 2.8")


def orphan_reason(snapshot: PipelineSnapshot, numbers: Mapping[str, int]) -> str:
    """Return why incarnations are not read on whose logs were cut, and that went on as another; empty where none is.

    `numbers`: topic → number of the incarnation that the configured cluster has. Normally the one that went on is of
    the same id, and newer. After an adoption into another cluster it is of that one's id.
    """
    ids = snapshot.incarnations()
    for part in sorted(orphans.part for orphans in snapshot.orphans()):
        topic = part.topic
        if numbers.get(topic) == part.incarnation:
            return (
                f"topic {topic!r} has the id of its incarnation {part.incarnation} ({ids[topic][part.incarnation - 1]})"
                f". The log of {part.name} was cut then, and what followed was adopted as incarnation "
                f"{len(ids[topic])} ({ids[topic][-1]}), so the table does not know how far this cluster was read. "
                "Configure the cluster of that one, or say with `headrace topic adopt --offsets "
                "topic:partition=offset` where to read on in this one."
            )
    return ""


def _parts(topics: Mapping[str, Topic], ids: Mapping[str, Sequence[str]]) -> dict[Source, TopicPartition]:
    """Return the parts that are read. `ids`: of the incarnations of each topic."""
    return {
        (topic.name, partition): TopicPartition(topic.name, incarnation_number(ids[topic.name], topic.id), partition)
        for topic in topics.values()
        for partition in range(topic.partitions)
    }


def _find_cuts(
    settings: Pipeline,
    check: LogCheck,
    diverging: Diverging,
    ids: Mapping[str, Sequence[str]],
    topic_ids: Mapping[str, str],
) -> list[LogCut]:
    """Find where diverging logs go on. Raises LogChanged where the configuration says to stop, or nothing says it."""
    points = check.divergence_points(diverging, topic_ids)
    cuts = list[LogCut]()
    unknown = list[TopicPartition]()
    for part, (committed, _) in sorted(diverging.items()):
        point = points[part]
        if point is None:
            unknown.append(part)
        else:
            successor = len(ids[part.topic]) + 1
            cuts.append(LogCut(OffsetRange(part, point.offset, committed.frontier), successor, point.is_proven))
    reason = refusal(cuts, unknown, settings.on_data_loss)
    if reason is not None:
        raise LogChanged(reason)
    return cuts


def _earlier_cuts(cut: LogCut, snapshot: PipelineSnapshot) -> list[LogCut]:
    """Return what a cut below the beginning of its incarnation takes of those before it, which read the same log."""
    orphan_starts = {orphans.part: orphans.start for orphans in snapshot.orphans()}
    cuts = list[LogCut]()
    for part in predecessors_of(cut.part, snapshot.incarnations()):
        frontier = snapshot.frontier(part)
        if frontier is not None and cut.range.start < orphan_starts.get(part, frontier):
            cuts.append(replace(cut, range=OffsetRange(part, cut.range.start, frontier)))
    return cuts


def find_log_change(
    cluster: Cluster, names: Sequence[str], topic_ids: Mapping[str, str], offsets: Mapping[Source, int]
) -> str:
    """Ask Kafka why its logs are not those that a start found, or lack what is to be read next; empty while they are.

    `topic_ids`: topic → id at the start; `offsets`: where each partition is read on. Raises BrokerUnreachable.
    """
    try:
        ids_now = {topic.name: topic.id for topic in cluster.topics(names).values()}
        earliest = cluster.earliest(offsets)
        latest = cluster.latest(offsets)
    except TopicMissing as error:
        return str(error)
    reason = log_change(topic_ids, ids_now, offsets, latest)
    if reason:
        return reason
    for source, earliest_offset in earliest.items():
        if earliest_offset > offsets[source]:
            topic, partition = source
            return f"{topic}/{partition} begins at offset {earliest_offset}, beyond the table's {offsets[source]}"
    return ""


def _check_frontiers(
    topics: Mapping[str, Topic], table_ids: Mapping[str, Sequence[str]], frontier: Mapping[Source, int | None]
) -> None:
    """Raise FrontierLost when a topic that the table knows has no frontier: all of it would be read again.

    What makes a topic known, a start or an adoption, sets the frontier of its partitions in the same entry.
    """
    for topic in topics.values():
        has_frontier = any(frontier[topic.name, partition] is not None for partition in range(topic.partitions))
        if topic.id in table_ids.get(topic.name, ()) and topic.partitions and not has_frontier:
            raise FrontierLost(
                f"the table knows topic {topic.name!r}, but says of none of its partitions how far it was read: its "
                "log lost that, or was restored without it. `headrace supervisor` puts it together from the table's "
                "files and an older checkpoint (L4); nothing was read."
            )


def gap_hints(
    lost: Sequence[OffsetRange],
    snapshot: PipelineSnapshot,
    first_records: Mapping[Source, tuple[int, int]],
    margin: timedelta,
    now: datetime,
) -> list[dict[str, str | None]]:
    """Return between which event times lost records may have lain, for each range: what may be missing in a bucket.

    From how far the part had come before, to the broker's time of the first record that Kafka still has, with a margin
    on both sides. `first_records`: offset and milliseconds of that record, -1 where there is none. `from` is None where
    the part had no row before.
    """
    hints: list[dict[str, str | None]] = []
    for lost_range in lost:
        part = lost_range.part
        newest_us = snapshot.newest_event_time(part)
        start = None if newest_us is None else shift_instant(instant(newest_us), -margin).isoformat()
        _, timestamp_ms = first_records[part.source]
        until = now if timestamp_ms < 0 else instant(timestamp_ms * 1000)
        hints.append({"from": start, "until": shift_instant(until, margin).isoformat()})
    return hints


def _initial_offsets(
    settings: Pipeline, cluster: Cluster, sources: list[Source], snapshot: PipelineSnapshot
) -> dict[Source, int]:
    """Return the offsets where parts begin that the table has never seen.

    A further partition or incarnation of a topic that the table knows begins at 0: what Kafka does not hold of it any
    more was lost. Another topic begins where the configuration says; with its first record, once the pipeline is
    running.
    """
    table_ids = snapshot.incarnations()
    offsets = {source: 0 for source in sources if table_ids.get(source[0])}
    new = [source for source in sources if source not in offsets]
    if not new:
        return offsets
    position: Any = "earliest" if snapshot.epoch else settings.start
    match position:
        case "latest":
            offsets |= cluster.readable(new)
        case {"timestamp": timestamp}:
            readable = cluster.readable(new)
            for source, offset in cluster.offsets_at(timestamp, new).items():
                offsets[source] = min(offset, readable[source])
        case {"offsets": offsets_by_topic}:
            earliest = cluster.earliest(
                [(topic, partition) for topic, partition in new if partition not in offsets_by_topic.get(topic, {})]
            )
            for topic, partition in new:
                first_offset = earliest.get((topic, partition), 0)
                offsets[topic, partition] = offsets_by_topic.get(topic, {}).get(partition, first_offset)
        case _:
            offsets |= cluster.earliest(new)
    return offsets
