"""Collects the facts of these checks from checkpoint, table and Kafka. Reads only; reports what does not answer."""

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from headrace.recovery.checkpoints.checks import CheckFacts, TopicIds
from headrace.recovery.checkpoints.reader import CheckpointContent, read_checkpoint
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.errors import ConfigError, TopicMissing
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.kafka_reader.errors import ReadFailed
from headrace.writer.lease.factory import leases_of
from headrace.writer.lease.kubernetes_api import ApiFailed
from headrace.writer.offsets import run_record
from headrace.writer.offsets.log_check import LogCheck, fetch_log_ranges, log_check
from headrace.writer.offsets.spark_checkpoint import Checkpoints, Offsets
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.factory import all_tables, main_table
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.lost_tables import find_lost_side_tables
from headrace.writer.table.table import PipelineTable

# Table and checkpoint are read so often, until no commit came between.
_READS_MAX = 5
# Of a broker that only the command line names.
_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True)
class PipelineFacts:
    """A pipeline's newest run, and its facts."""

    run: int | None
    # The checkpoint of the run; all of the pipeline's where there is none.
    location: str
    facts: CheckFacts


@dataclass(frozen=True)
class _StoredState:
    """Checkpoint and table as of one moment."""

    run: int | None
    content: CheckpointContent | None
    # None: there is no table, or it does not answer.
    snapshot: PipelineSnapshot | None
    # `table` → the error.
    unanswered: Mapping[str, str] = field(default_factory=dict)


def collect_pipeline_facts(
    config: Config, name: str, cluster: Cluster | BrokerUnreachable | None = None
) -> PipelineFacts:
    """Collect the facts of a pipeline: its newest run, its table, its topics. Raises StoreError.

    `cluster`: or the error that it is known not to answer by; None opens the configuration's.
    """
    settings = config.pipelines[name]
    checkpoints = Checkpoints(config.checkpoints, name, config.stores)
    table = main_table(name, config)
    state = _read_stored_state(checkpoints, table, config.stores)
    snapshot = state.snapshot
    incarnations: Mapping[str, Sequence[str]] = {}
    if snapshot is not None:
        incarnations = snapshot.incarnations()
    cluster = cluster or Cluster(config.kafka.address, config.kafka.request_timeout)
    topics = _selected_topics(settings.topics, cluster, incarnations)
    stops_at_loss = settings.on_data_loss == "stop"
    facts = CheckFacts(state.content, unanswered=state.unanswered, stops_at_loss=stops_at_loss)
    location = checkpoints.store.location
    if state.run is not None:
        location = checkpoints.path(state.run)
        facts = replace(facts, run_record=run_record.read_run_record(checkpoints.store, state.run))
    if snapshot is None and "table" not in state.unanswered:
        facts = replace(facts, lost_table=run_record.find_lost_table(checkpoints.store, table.location))
    if snapshot is not None:
        facts = _with_table(facts, snapshot, topics, state.run)
        facts = _with_side_tables(facts, config, name, snapshot)
    facts = _with_lease(facts, config, name)
    facts = _with_kafka(facts, cluster, newest_topic_ids(topics, incarnations))
    if snapshot is not None:
        facts = _with_logs(facts, snapshot, log_check(name, config.kafka, partial(table.entries, -1)))
    return PipelineFacts(state.run, location, facts)


def collect_checkpoint_facts(location: str, address: str | None, stores: StoreSettings | None = None) -> CheckFacts:
    """Collect the facts of a checkpoint of which only the place is known. Raises StoreError."""
    content = read_checkpoint(store_at(location, stores))
    facts = CheckFacts(content, is_foreign=True)
    start = content.start_offsets()
    if address is None or start is None:
        return facts
    topics = sorted({topic for topic, _ in start})
    return _with_kafka(facts, Cluster(address, _TIMEOUT), dict.fromkeys(topics))


def newest_frontier(snapshot: PipelineSnapshot, topics: Container[str]) -> Offsets:
    """Return the frontier of the newest incarnation of each topic."""
    numbers = {topic: len(ids) for topic, ids in snapshot.incarnations().items() if topic in topics}
    return {
        part.source: offset
        for part, offset in snapshot.parts().items()
        if part.incarnation == numbers.get(part.topic, 0)
    }


def newest_topic_ids(topics: Collection[str], incarnations: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """Return topic → the id of its newest incarnation; None for a topic that the table does not know."""
    ids: dict[str, str | None] = dict.fromkeys(topics)
    for topic in topics:
        if incarnations.get(topic):
            ids[topic] = incarnations[topic][-1]
    return ids


def fetch_topic_ids(cluster: Cluster, stored_ids: Mapping[str, str | None]) -> dict[str, TopicIds]:
    """Ask for the ids that topics have now. `stored_ids`: topic → the table's id. Raises BrokerUnreachable."""
    topics = {}
    for name, stored_id in stored_ids.items():
        try:
            topics[name] = TopicIds(stored_id, cluster.topics([name])[name].id)
        except TopicMissing as error:
            topics[name] = TopicIds(stored_id, None, str(error))
    return topics


def _with_logs(facts: CheckFacts, snapshot: PipelineSnapshot, check: LogCheck) -> CheckFacts:
    """Compare Kafka's logs with what the table knows them by."""
    facts = replace(facts, orphaned_rows=snapshot.orphans())
    unchanged_ids = {
        name: ids.current
        for name, ids in (facts.topics or {}).items()
        if ids.current is not None and ids.current == ids.stored
    }
    incarnations = snapshot.incarnations()
    log_ranges = {
        TopicPartition(topic, len(incarnations.get(topic, ())), partition): log_range
        for (topic, partition), log_range in (facts.log_ranges or {}).items()
        if topic in unchanged_ids
    }
    try:
        diverging = sorted(check.diverging_parts(snapshot, log_ranges, unchanged_ids))
    except ReadFailed as error:
        return replace(facts, unanswered={**facts.unanswered, "marks": str(error)})
    return replace(facts, diverging=[part.source for part in diverging])


def _selected_topics(
    selection: TopicSelection, cluster: Cluster | BrokerUnreachable, stored_topics: Collection[str]
) -> list[str]:
    """Return the topics that are read; those of a pattern that the table knows, where Kafka does not say them."""
    if not isinstance(cluster, BrokerUnreachable):
        with suppress(BrokerUnreachable, TopicMissing):
            return choose_topics(cluster, selection, stored_topics).names
    return selection.among(stored_topics)


def _with_table(facts: CheckFacts, snapshot: PipelineSnapshot, topics: Collection[str], run: int | None) -> CheckFacts:
    """Add what the table says: how far topics were read, which topic it lost, and whether the run is over."""
    frontier = newest_frontier(snapshot, topics)
    incarnations = snapshot.incarnations()
    topics_with_offsets = {topic for topic, _ in frontier}
    lost_topics = [topic for topic in topics if incarnations.get(topic) and topic not in topics_with_offsets]
    if lost_topics:
        facts = replace(facts, lost_topic=lost_topics[0])
    if run is not None and run <= snapshot.closed:
        facts = replace(facts, closed_run=run)
    return replace(facts, frontier=frontier)


def _with_side_tables(facts: CheckFacts, config: Config, name: str, snapshot: PipelineSnapshot) -> CheckFacts:
    """Add the tables beside the log that were lost. A start says which one does not answer."""
    tables = all_tables(name, config)
    with suppress(CommitFailed):
        lost = find_lost_side_tables(config.pipelines[name], tables.main, tables.side, snapshot)
        return replace(facts, lost_side_tables=tuple(lost.values()))
    return facts


def _with_lease(facts: CheckFacts, config: Config, name: str) -> CheckFacts:
    """Look which process has the lease. No start waits for it: a supervisor that lost the lease is fenced."""
    try:
        record = leases_of(config, name).look()
    except (ApiFailed, ConfigError) as error:
        return replace(facts, unanswered={**facts.unanswered, "lease": str(error)})
    if record is None:
        return facts
    action = "released" if record.released else "taken"
    return replace(facts, lease=f"epoch {record.epoch}, {action} by {record.holder}")


def _read_stored_state(checkpoints: Checkpoints, table: PipelineTable, stores: StoreSettings) -> _StoredState:
    """Read checkpoint and table as of one moment: a driver may be at work."""
    before = _read_snapshot(table)
    for _ in range(_READS_MAX):
        run = checkpoints.newest()
        content = None
        if run is not None:
            content = read_checkpoint(store_at(checkpoints.path(run), stores))
        after = _read_snapshot(table)
        if not isinstance(before, PipelineSnapshot) or not isinstance(after, PipelineSnapshot):
            break
        if before.parts() == after.parts():
            break
        before = after
    if isinstance(after, CommitFailed):
        return _StoredState(run, content, None, {"table": str(after)})
    return _StoredState(run, content, after)


def _read_snapshot(table: PipelineTable) -> PipelineSnapshot | CommitFailed | None:
    """Read the table's newest snapshot; None where there is no table, the error where it does not answer."""
    try:
        return table.snapshot() if table.exists() else None
    except CommitFailed as error:
        return error


def _with_kafka(
    facts: CheckFacts, cluster: Cluster | BrokerUnreachable, stored_ids: Mapping[str, str | None]
) -> CheckFacts:
    """Ask Kafka for the topics, and for what it holds of where the next batch begins. `stored_ids`: topic → its id."""
    if isinstance(cluster, BrokerUnreachable):
        return _without_kafka(facts, cluster)
    # Where the table has no offsets, the checkpoint says where the next batch begins.
    start = facts.frontier or {}
    if not start and facts.content is not None:
        start = facts.content.start_offsets() or {}
    try:
        topics = fetch_topic_ids(cluster, stored_ids)
        sources = cluster.sources(name for name, ids in topics.items() if ids.current is not None)
        known_sources = sorted(start.keys() & set(sources))
        log_ranges = fetch_log_ranges(cluster, known_sources)
    except (BrokerUnreachable, TopicMissing) as error:
        return _without_kafka(facts, error)
    return replace(facts, topics=topics, log_ranges=log_ranges)


def _without_kafka(facts: CheckFacts, error: BrokerUnreachable | TopicMissing) -> CheckFacts:
    return replace(facts, unanswered={**facts.unanswered, "kafka": str(error)})
