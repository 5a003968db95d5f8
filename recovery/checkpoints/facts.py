"""Collects the facts of these checks from checkpoint, table and Kafka. Reads only; reports what does not answer."""

from collections.abc import Collection, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from recovery.checkpoints.checks import CheckFacts, TopicIds
from recovery.checkpoints.reader import Reading, read
from recovery.lease.factory import leases_of
from recovery.lease.kubernetes_api import ApiFailed
from writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from writer.config.pipelines import Config
from writer.config.topic_selection import TopicSelection
from writer.core.errors import ConfigError, TopicMissing
from writer.core.offsets import TopicPartition
from writer.kafka_reader.errors import ReadFailed
from writer.offsets import run_record
from writer.offsets.log_check import LogCheck, log_check
from writer.offsets.spark_checkpoint import Checkpoints, Offsets
from writer.offsets.start_decision import LogRange
from writer.storage.base import S3Settings
from writer.storage.locations import store_at
from writer.table.factory import main_table
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_LOOKS = 5  # at table and checkpoint, until no commit came between
_TIMEOUT = timedelta(seconds=10)  # of a broker that only the command line names


@dataclass(frozen=True)
class CheckpointFacts:
    """A pipeline's newest run, and its facts."""

    run: int | None
    location: str  # of its checkpoint; of all of the pipeline's where there is none
    facts: CheckFacts


def of_pipeline(config: Config, name: str, cluster: Cluster | BrokerUnreachable | None = None) -> CheckpointFacts:
    """Gather the facts of a pipeline: its newest run, its table, its topics. Raises StoreError.

    `cluster`: or the error that it is known not to answer by; None opens the configuration's.
    """
    settings = config.pipelines[name]
    checkpoints = Checkpoints(config.checkpoints, name, config.s3.settings)
    table, unknown = main_table(name, config), dict[str, str]()
    run, reading, snapshot = _steady(checkpoints, table, unknown, config.s3.settings)
    seen = None if run is None else run_record.read(checkpoints.store, run)
    known = snapshot.incarnations() if snapshot else {}
    cluster = cluster or Cluster(config.kafka.address, config.kafka.request_timeout)
    names = _topics(settings.topics, cluster, known)
    frontier = None if snapshot is None else newest_frontier(snapshot, names)
    known_topics = {topic for topic, _ in frontier or {}}
    lost = next((topic for topic in names if known.get(topic) and topic not in known_topics), None)
    closed = run if snapshot and run is not None and run <= snapshot.closed else None
    lease = _lease(config, name, checkpoints, unknown)
    facts = CheckFacts(reading, frontier, run_record=seen, lease=lease, lost=lost, closed=closed, unknown=unknown)
    ids = {topic: known[topic][-1] if known.get(topic) else None for topic in names}
    location = checkpoints.store.location if run is None else checkpoints.path(run)
    facts = _with_kafka(facts, cluster, ids)
    if snapshot is not None:
        check = log_check(name, config.kafka, partial(table.entries, -1))
        facts = _with_logs(replace(facts, stops_at_loss=settings.on_data_loss == "stop"), snapshot, check)
    return CheckpointFacts(run, location, facts)


def _with_logs(facts: CheckFacts, snapshot: PipelineSnapshot, check: LogCheck) -> CheckFacts:
    """Compare Kafka's logs with what the table knows them by."""
    facts = replace(facts, orphans=snapshot.orphans())
    same = {name: ids.now for name, ids in (facts.topics or {}).items() if ids.now is not None and ids.now == ids.known}
    known = snapshot.incarnations()
    log_ranges = {
        TopicPartition(topic, len(known.get(topic, ())), partition): log_range
        for (topic, partition), log_range in (facts.held or {}).items()
        if topic in same
    }
    try:
        diverging = sorted(check.diverging(snapshot, log_ranges, same))
    except ReadFailed as error:
        return replace(facts, unknown={**facts.unknown, "marks": str(error)})
    return replace(facts, diverging=[(part.topic, part.partition) for part in diverging])


def _topics(selection: TopicSelection, cluster: Cluster | BrokerUnreachable, known: Collection[str]) -> list[str]:
    """Return the topics that are read; those of a pattern that the table knows, where Kafka does not say them."""
    if not isinstance(cluster, BrokerUnreachable):
        with suppress(BrokerUnreachable, TopicMissing):
            return choose_topics(cluster, selection, known).names
    return selection.among(known)


def _lease(config: Config, name: str, checkpoints: Checkpoints, unknown: dict[str, str]) -> str | None:
    try:
        seen = leases_of(config, name, checkpoints.store).look()
    except (ApiFailed, ConfigError) as error:  # no start waits for it: a supervisor that lost the lease is fenced
        unknown["lease"] = str(error)
        return None
    if seen is None:
        return None
    return f"epoch {seen.epoch}, {'released' if seen.released else 'taken'} by {seen.holder}"


def of_checkpoint(location: str, bootstrap: str | None, s3: S3Settings | None = None) -> CheckFacts:
    """Gather the facts of a checkpoint of which only the place is known. Raises StoreError."""
    reading = read(store_at(location, s3))
    facts = CheckFacts(reading, foreign=True)
    start = reading.start()
    if bootstrap is None or start is None:
        return facts
    return _with_kafka(facts, Cluster(bootstrap, _TIMEOUT), dict.fromkeys(sorted({topic for topic, _ in start})))


def newest_frontier(snapshot: PipelineSnapshot, topics: Container[str]) -> Offsets:
    """Return the frontier of the newest incarnation of each topic."""
    numbers = {topic: len(ids) for topic, ids in snapshot.incarnations().items() if topic in topics}
    return {
        (part.topic, part.partition): at
        for part, at in snapshot.parts().items()
        if part == TopicPartition(part.topic, numbers.get(part.topic, 0), part.partition)
    }


def _steady(
    checkpoints: Checkpoints, table: PipelineTable, unknown: dict[str, str], s3: S3Settings
) -> tuple[int | None, Reading | None, PipelineSnapshot | None]:
    """Read checkpoint and table as of one moment: a driver may be at work."""
    run, reading, before = None, None, _snapshot(table, unknown)
    for _ in range(_LOOKS):
        run = checkpoints.newest()
        reading = None if run is None else read(store_at(checkpoints.path(run), s3))
        after = _snapshot(table, unknown)
        if before is None or after is None or before.parts() == after.parts():
            return run, reading, after
        before = after
    return run, reading, before


def _with_kafka(facts: CheckFacts, cluster: Cluster | BrokerUnreachable, known: Mapping[str, str | None]) -> CheckFacts:
    """Ask Kafka for the topics, and for what it holds of where the next batch begins. `known`: topic → its id."""
    if isinstance(cluster, BrokerUnreachable):
        return _without_kafka(facts, cluster)
    start = facts.frontier or (facts.reading.start() if facts.reading else None) or {}
    try:
        topics = topic_ids(cluster, known)
        there = cluster.sources(name for name, ids in topics.items() if ids.now is not None)
        asked = sorted(start.keys() & set(there))
        earliest, ends = cluster.earliest(asked), cluster.latest(asked)
    except (BrokerUnreachable, TopicMissing) as error:
        return _without_kafka(facts, error)
    return replace(facts, topics=topics, held={source: LogRange(earliest[source], ends[source]) for source in asked})


def _without_kafka(facts: CheckFacts, error: BrokerUnreachable | TopicMissing) -> CheckFacts:
    return replace(facts, unknown={**facts.unknown, "kafka": str(error)})


def topic_ids(cluster: Cluster, known: Mapping[str, str | None]) -> dict[str, TopicIds]:
    """Ask for the ids that topics have now. `known`: topic → the id that the table knows. Raises BrokerUnreachable."""
    found = {}
    for name, id_ in known.items():
        try:
            found[name] = TopicIds(id_, cluster.topics([name])[name].id)
        except TopicMissing as error:
            found[name] = TopicIds(id_, None, str(error))
    return found


def _snapshot(table: PipelineTable, unknown: dict[str, str]) -> PipelineSnapshot | None:
    try:
        return table.snapshot() if table.exists() else None
    except CommitFailed as error:
        unknown["table"] = str(error)
        return None
