"""Builds a pipeline's status from the table and Kafka, without its driver."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster, Topic, choose_topics
from headrace.writer.clients.supervisor_record import HaltRecord, find_halt
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.hooks.dispatcher import hook_health
from headrace.writer.hooks.outbox import Health
from headrace.writer.offsets.start_decision import incarnation_number, log_change
from headrace.writer.sealing.bucket_states import BucketCounts, add_counts
from headrace.writer.sealing.idleness import LogEndWatch, frontier_by_source
from headrace.writer.sealing.sealer import Sealer, sealed_targets
from headrace.writer.sealing.watermark import Watermark, watermark
from headrace.writer.status.lag import date_frontier, read_history, read_log_bounds
from headrace.writer.status.model import Commit, Logs, Totals, View, event_time_newest_of
from headrace.writer.status.pause import find_pause
from headrace.writer.status.progress import COMMITS_KEPT
from headrace.writer.status.rate_limit import EffectiveLimit, LimitState, configured_limit, effective_limit
from headrace.writer.status.table_facts import GapFacts, TableFactsReader
from headrace.writer.table.factory import all_tables, main_table
from headrace.writer.table.log.entries import Entry
from headrace.writer.table.log.foreign_writes import CommitFailed, one_line
from headrace.writer.table.log.snapshot import LogFormatTooNew, PipelineSnapshot
from headrace.writer.table.lost_tables import find_lost_side_tables
from headrace.writer.table.pipeline_tables import Tables, TargetState

_TABLES_AT_ONCE = 8
# Entries of the table's log that are read for the totals since the last start.
_ENTRIES_READ = 500


def view(name: str, config: Config, cluster: Cluster | BrokerUnreachable, now: datetime) -> View:
    """Build the status from the table and Kafka. What cannot be read is in `error` and left empty.

    `cluster`: or the error that it is known not to answer by. Then Kafka is not asked.
    """
    settings = config.pipelines[name]
    tables = all_tables(name, config)
    table = tables.main
    route = settings.route
    status = View(
        name,
        now,
        state="not started",
        rate_limit=LimitState(EffectiveLimit(configured_limit(settings.commit))),
        scheduling=settings.scheduling,
        max_held_bytes=None if route is None else route.held.max_bytes,
    )
    halt = find_halt(config.checkpoints, name, config.stores)
    errors: list[str] = []
    snapshot: PipelineSnapshot | None = None
    entries: list[Entry] = []
    try:
        limit = effective_limit(table.store, status.rate_limit.in_force.limit)
        status = replace(status, pause=find_pause(table.store), rate_limit=LimitState(limit))
        if table.exists():
            status = replace(status, buckets=len(table.buckets()))
            snapshot = table.snapshot()
        # A table that has no start has no gap.
        status = replace(status, gaps=GapFacts())
        if snapshot is not None and snapshot.epoch > 0:
            entries = table.history(_ENTRIES_READ)
            status = replace(status, gaps=GapFacts.of(snapshot))
            status = replace(status, state="unknown", hooks=_hooks(name, config, snapshot))
            status = replace(status, targets=_targets(settings, tables, snapshot))
            status = replace(status, bucket_counts=_bucket_counts(name, config, cluster, snapshot, now))
    except (CommitFailed, LogFormatTooNew, OSError, ValueError) as error:
        status = replace(status, state="unreadable")
        errors.append(one_line(error))
    if snapshot is not None and status.state == "unknown":
        status = _add_table_facts(status, TableFactsReader(name, config), snapshot, now, errors)
        errors += _lost_side_tables(settings, tables, snapshot)
    try:
        frontier, logs = ask_kafka(cluster, settings.topics, snapshot, now)
        status = replace(status, frontier=frontier, logs=logs, incarnations=_incarnations(snapshot, frontier))
    except HeadraceError as error:
        errors.append(str(error))
    ends = status.logs.samples[-1].ends if status.logs.samples else {}
    status = replace(status, error="; ".join(errors), log_moved=log_change({}, {}, status.frontier, ends))
    if snapshot is not None:
        status = _add_entries(status, snapshot, entries)
    if status.gaps is not None:
        status = replace(status, gaps=replace(status.gaps, read_at=now))
    halt = _current_halt(halt, entries)
    if halt is not None and status.state in ("unknown", "not started"):
        status = replace(status, state="failed")
    return replace(status, halt=halt)


def _add_table_facts(
    status: View, reader: TableFactsReader, snapshot: PipelineSnapshot, now: datetime, errors: list[str]
) -> View:
    """Add the records of gaps and what the tables hold. What cannot be read is left out, and told in `errors`."""
    try:
        status = replace(status, gaps=reader.gaps(snapshot))
    except (HeadraceError, OSError) as error:
        errors.append(one_line(error))
    try:
        status = replace(status, contents=reader.contents(snapshot, now))
    except (HeadraceError, OSError) as error:
        errors.append(one_line(error))
    return status


def _lost_side_tables(settings: Pipeline, tables: Tables, snapshot: PipelineSnapshot) -> list[str]:
    """Return why tables beside the log are lost, each with its fix. One that does not answer is not said to be."""
    with suppress(CommitFailed):
        lost = find_lost_side_tables(settings, tables.main, tables.side, snapshot)
        return [table.text for table in lost.values()]
    return []


def _current_halt(halt: HaltRecord | None, entries: Iterable[Entry]) -> HaltRecord | None:
    """Return a supervisor's halt, unless a driver was started by hand since then. `entries`: newest first."""
    driven = (entry.logged_at for entry in entries if entry.kind in ("start", "batch"))
    newest = next(driven, None)
    if halt is not None and newest is not None and newest > halt.since:
        return None
    return halt


def _targets(settings: Pipeline, tables: Tables, snapshot: PipelineSnapshot) -> dict[str, TargetState]:
    """Return how far the tables of a route are, by name, from them and the log alone. Raises CommitFailed."""
    records = snapshot.targets()
    if not records:
        return {}
    current: set[int] = set()
    if settings.route is not None:
        rules = {number: settings.rule_of(record.name, record.location) for number, record in records.items()}
        current = {number for number, rule in rules.items() if rule is not None}
    tables.collect_pending()
    return tables.target_states(records.values(), current)


def ask_kafka(
    cluster: Cluster | BrokerUnreachable, topics: TopicSelection, snapshot: PipelineSnapshot | None, now: datetime
) -> tuple[dict[Source, int], Logs]:
    """Ask Kafka for all that a driver would know after some minutes, and the table for the frontier.

    A topic that was created again since the last start has no frontier yet. Raises BrokerUnreachable, ConfigError.
    """
    if isinstance(cluster, BrokerUnreachable):
        raise cluster
    incarnations = {} if snapshot is None else snapshot.incarnations()
    names = choose_topics(cluster, topics, incarnations).names
    # Kafka is asked for the topics in any case: one that is missing is an error.
    topics_now = cluster.topics(names)
    frontier = {} if snapshot is None else _table_frontier(topics_now.values(), snapshot)
    sample, starts = read_log_bounds(cluster, names, now)
    logs = Logs((sample,), starts, _retention(cluster, names))
    dates = date_frontier(cluster, logs, frontier, now)
    return frontier, replace(logs.with_history(read_history(cluster, sample)), dated=dates)


def _incarnations(snapshot: PipelineSnapshot | None, frontier: Iterable[Source]) -> dict[str, int]:
    """Return the number of the incarnation of each topic that Kafka has and the table was filled from."""
    ids_by_topic = {} if snapshot is None else snapshot.incarnations()
    return {topic: len(ids_by_topic[topic]) for topic, _ in frontier}


def _table_frontier(topics: Iterable[Topic], snapshot: PipelineSnapshot) -> dict[Source, int]:
    """Return the frontier of topics. A topic that was created again since the last start has none yet."""
    incarnations = snapshot.incarnations()
    frontier: dict[Source, int] = {}
    for topic in topics:
        ids = incarnations.get(topic.name, [])
        if topic.id not in ids:
            continue
        for partition in range(topic.partitions):
            part = TopicPartition(topic.name, incarnation_number(ids, topic.id), partition)
            offset = snapshot.frontier(part)
            if offset is not None:
                frontier[topic.name, partition] = offset
    return frontier


def logs_now(name: str, config: Config, cluster: Cluster, now: datetime) -> tuple[dict[Source, int], Logs]:
    """Read the frontier from the table and ask Kafka, as `ask_kafka` does. Raises HeadraceError, OSError."""
    table = main_table(name, config)
    snapshot = table.snapshot() if table.exists() else None
    return ask_kafka(cluster, config.pipelines[name].topics, snapshot, now)


def _bucket_counts(
    name: str, config: Config, cluster: Cluster | BrokerUnreachable, snapshot: PipelineSnapshot, now: datetime
) -> BucketCounts | None:
    """Return how the buckets are, of all tables, and write nothing; None: they are not sealed.

    Where Kafka does not answer, no partition counts as idle.
    """
    settings = config.pipelines[name]
    if settings.route is None:
        if not settings.seal.enabled:
            return None
        return _counts_of(Sealer(name, config), cluster, now)
    targets = sealed_targets(settings, snapshot)

    def counts_of(target: str) -> BucketCounts:
        try:
            return _counts_of(Sealer(name, config, target), cluster, now)
        except (HeadraceError, OSError) as error:
            # One table cannot be reached: the others are shown.
            trouble = (("look", " ".join(str(error).split())),)
            return BucketCounts(now, Watermark(None), None, 0, 0, 0, trouble=trouble)

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        counts = dict(zip(targets, pool.map(counts_of, targets), strict=True))
    if not targets:
        return None
    return add_counts(counts)


def _counts_of(sealer: Sealer, cluster: Cluster | BrokerUnreachable, now: datetime) -> BucketCounts:
    snapshot = sealer.follow(write=False)
    numbers = {topic: len(ids) for topic, ids in snapshot.progress.incarnations().items()}
    idle: frozenset[Source] = frozenset()
    if not isinstance(cluster, BrokerUnreachable):
        # The questions for the lag report the error.
        with suppress(HeadraceError):
            names = choose_topics(cluster, sealer.settings.topics, numbers).names
            numbers = {topic: number for topic, number in numbers.items() if topic in names}
            look = LogEndWatch(cluster, names).fetch(sealer.policy.idle_timeout, now)
            idle = look.idle_sources(frontier_by_source(snapshot, numbers))
    sealer.watermark = watermark(sealer.parts(snapshot, numbers, idle), sealer.policy.out_of_orderness)
    return sealer.bucket_counts(snapshot, now)


def _hooks(name: str, config: Config, snapshot: PipelineSnapshot) -> Mapping[str, Health]:
    """Return how the hooks are doing; those of a route's tables are named with their table."""
    if config.pipelines[name].route is None:
        return hook_health(name, config)
    targets = sealed_targets(config.pipelines[name], snapshot)
    health_by_target: dict[str, Mapping[str, Health]] = {}
    for target in targets:
        # Its table cannot be reached: the buckets report it.
        with suppress(HeadraceError, OSError):
            health_by_target[target] = hook_health(name, config.at_target(name, target))
    health_by_hook: dict[str, Health] = {}
    for target, hooks in health_by_target.items():
        health_by_hook |= {f"{target}/{hook}": health for hook, health in hooks.items()}
    return health_by_hook


def _retention(cluster: Cluster, topics: list[str]) -> Mapping[str, timedelta | None]:
    # It needs a right that the other questions do not need.
    with suppress(HeadraceError):
        return cluster.retention(topics)
    return {}


def _add_entries(status: View, snapshot: PipelineSnapshot, entries: list[Entry]) -> View:
    """Add the log's last commits, and the sums since the last start. `entries`: newest first."""
    commits = [Commit(entry.version, entry.logged_at, entry.facts) for entry in entries if entry.kind == "batch"]
    start_index = next((index for index, entry in enumerate(entries) if entry.kind == "start"), len(entries))
    totals = Totals()
    for entry in entries[:start_index]:
        if entry.kind == "batch":
            totals.add(entry.facts)
        elif entry.kind == "gap":
            totals.add_gap(entry.facts)
    status = replace(
        status,
        epoch=snapshot.epoch,
        totals=totals,
        commits=tuple(commits[:COMMITS_KEPT]),
        event_time_newest=event_time_newest_of(commit.facts for commit in commits),
        log_cuts=tuple(snapshot.orphans()),
    )
    if start_index < len(entries):
        status = replace(status, epoch_began=entries[start_index].logged_at)
    if entries:
        oldest_of_start = entries[min(start_index, len(entries) - 1)]
        status = replace(status, since=oldest_of_start.logged_at)
    if commits:
        newest = commits[0]
        limits = newest.facts.get("limits", {})
        status = replace(status, run=newest.facts["run"], limits=limits, committed_at=newest.at)
    return status
