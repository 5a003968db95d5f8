"""Builds a pipeline's status from the table and Kafka, without its driver."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from writer.clients.kafka import BrokerUnreachable, Cluster, choose_topics
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.config.topic_selection import TopicSelection
from writer.core.errors import HeadraceError
from writer.core.offsets import Source, TopicPartition
from writer.hooks.dispatcher import hook_health
from writer.hooks.outbox import Health
from writer.offsets.start_decision import incarnation_number, log_change
from writer.sealing.bucket_states import BucketCounts, add_counts
from writer.sealing.idleness import LogEndWatch, frontier_by_source
from writer.sealing.sealer import Sealer, sealed_targets
from writer.sealing.watermark import Watermark, watermark
from writer.status.lag import history, listen, settle
from writer.status.model import Commit, Logs, ShownState, Totals, View, event_time_newest
from writer.status.pause import standing
from writer.status.progress import COMMITS_KEPT
from writer.status.rate_limit import EffectiveLimit, LimitState, configured, standing as limit_standing
from writer.table.factory import all_tables, main_table
from writer.table.log.entries import Entry
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.snapshot import LogFormatTooNew, PipelineSnapshot
from writer.table.pipeline_tables import Tables, TargetState

_TABLES_AT_ONCE = 8
_ENTRIES_LOOKED_AT = 500  # of the table's log, for the totals since the last start


def view(name: str, config: Config, cluster: Cluster | BrokerUnreachable, now: datetime) -> View:
    """Build the status from the table and Kafka. What cannot be read is in `error` and left empty.

    `cluster`: or the error that it is known not to answer by. Then Kafka is not asked.
    """
    settings = config.pipelines[name]
    state: ShownState = "not started"
    trouble: list[str] = []
    tables = all_tables(name, config)
    table, targets = tables.main, dict[str, TargetState]()
    pause, in_force = None, EffectiveLimit(configured(settings.commit))
    found: BucketCounts | None = None
    snapshot, entries, buckets, frontier, logs = None, list[Entry](), 0, dict[Source, int](), Logs()
    hooks: Mapping[str, Health] = {}
    try:
        pause, in_force = standing(table.store), limit_standing(table.store, in_force.limit)
        if table.exists():
            snapshot, buckets = table.snapshot(), len(table.buckets())
        if snapshot is not None and snapshot.epoch > 0:
            state, entries, hooks = "unknown", table.history(_ENTRIES_LOOKED_AT), _hooks(name, config, snapshot)
            targets = _targets(settings, tables, snapshot)
            found = _bucket_counts(name, config, cluster, snapshot, now)
    except (CommitFailed, LogFormatTooNew, OSError, ValueError) as error:
        state = "unreadable"
        trouble.append(" ".join(str(error).split()))
    try:
        frontier, logs = ask_kafka(cluster, settings.topics, snapshot, now)
    except HeadraceError as error:
        trouble.append(str(error))
    blank = View(
        name, now, state=state, error="; ".join(trouble), frontier=frontier, logs=logs, pause=pause, hooks=hooks,
        buckets=buckets, bucket_counts=found, rate_limit=LimitState(in_force),
        scheduling=settings.scheduling, targets=targets,
        held_bytes_max=None if settings.route is None else settings.route.held.max_bytes,
    )  # fmt: skip
    ends = logs.samples[-1].ends if logs.samples else {}
    blank = replace(blank, log_moved=log_change({}, {}, frontier, ends))
    return blank if snapshot is None else _filled(blank, snapshot, entries)


def _targets(settings: Pipeline, tables: Tables, snapshot: PipelineSnapshot) -> dict[str, TargetState]:
    """Return how far the tables of a route are, by name, from them and the log alone. Raises CommitFailed."""
    known = snapshot.targets()
    if not known:
        return {}
    rules = known if settings.route is not None else ()
    current = {number for number in rules if settings.rule_of(known[number].name, known[number].location) is not None}
    tables.collect_pending()
    return tables.target_states(known.values(), current)


def ask_kafka(
    cluster: Cluster | BrokerUnreachable, topics: TopicSelection, snapshot: PipelineSnapshot | None, now: datetime
) -> tuple[dict[Source, int], Logs]:
    """Ask Kafka for all that a driver would know after some minutes, and the table for the frontier.

    A topic that was created again since the last start has no frontier yet. Raises BrokerUnreachable, ConfigError.
    """
    if isinstance(cluster, BrokerUnreachable):
        raise cluster
    numbers = {} if snapshot is None else snapshot.incarnations()
    names, frontier = choose_topics(cluster, topics, numbers).names, {}
    for topic in cluster.topics(names).values():
        ids = numbers.get(topic.name, [])
        for partition in range(topic.partitions) if topic.id in ids else ():
            part = TopicPartition(topic.name, incarnation_number(ids, topic.id), partition)
            at = snapshot.frontier(part) if snapshot else None
            if at is not None:
                frontier[topic.name, partition] = at
    sample, starts = listen(cluster, names, now)
    logs = Logs((sample,), starts, _retention(cluster, names))
    dated = settle(cluster, logs, frontier, now)
    return frontier, replace(logs.with_history(history(cluster, sample)), dated=dated)


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
        return _counts_of(Sealer(name, config), cluster, now) if settings.seal.enabled else None
    targets = sealed_targets(settings, snapshot)

    def counts_of(target: str) -> BucketCounts:
        try:
            return _counts_of(Sealer(name, config, target), cluster, now)
        except (HeadraceError, OSError) as error:  # one table is away: the others are shown
            trouble = (("look", " ".join(str(error).split())),)
            return BucketCounts(now, Watermark(None), None, 0, 0, 0, trouble=trouble)

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        counts = dict(zip(targets, pool.map(counts_of, targets), strict=True))
    return add_counts(counts) if targets else None


def _counts_of(sealer: Sealer, cluster: Cluster | BrokerUnreachable, now: datetime) -> BucketCounts:
    standing = sealer.follow(write=False)
    numbers = {topic: len(ids) for topic, ids in standing.progress.incarnations().items()}
    idle: frozenset[Source] = frozenset()
    if not isinstance(cluster, BrokerUnreachable):
        with suppress(HeadraceError):  # what is asked for the lag says it
            names = choose_topics(cluster, sealer.settings.topics, numbers).names
            numbers = {topic: number for topic, number in numbers.items() if topic in names}
            look = LogEndWatch(cluster, names).fetch(sealer.policy.idle_timeout, now)
            idle = look.idle_sources(frontier_by_source(standing, numbers))
    sealer.watermark = watermark(sealer.parts(standing, numbers, idle), sealer.policy.out_of_orderness)
    return sealer.bucket_counts(standing, now)


def _hooks(name: str, config: Config, snapshot: PipelineSnapshot) -> Mapping[str, Health]:
    """Return how the hooks are doing; those of a route's tables are named with their table."""
    if config.pipelines[name].route is None:
        return hook_health(name, config)
    targets = sealed_targets(config.pipelines[name], snapshot)
    found = dict[str, Mapping[str, Health]]()
    for target in targets:
        with suppress(HeadraceError, OSError):  # its table is away: the buckets say it
            found[target] = hook_health(name, config.at_target(name, target))
    return {f"{target}/{hook}": health for target, hooks in found.items() for hook, health in hooks.items()}


def _retention(cluster: Cluster, topics: list[str]) -> Mapping[str, timedelta | None]:
    with suppress(HeadraceError):  # it needs a right that the rest does not
        return cluster.retention(topics)
    return {}


def _filled(blank: View, snapshot: PipelineSnapshot, entries: list[Entry]) -> View:
    """Add the log's last commits, and the sums since the last start."""
    batches = [entry for entry in entries if entry.kind == "batch"]
    start = next((i for i, entry in enumerate(entries) if entry.kind == "start"), len(entries))
    totals = Totals()
    for entry in entries[:start]:
        if entry.kind == "batch":
            totals.add(entry.facts)
        elif entry.kind == "gap":
            totals.add_gap(entry.facts)
    newest = batches[0] if batches else None
    return replace(
        blank, epoch=snapshot.epoch, totals=totals,
        since=entries[min(start, len(entries) - 1)].logged_at if entries else blank.since,
        run=newest.facts["run"] if newest else None, limits=newest.facts.get("limits", {}) if newest else {},
        commits=tuple(Commit(entry.version, entry.logged_at, entry.facts) for entry in batches[:COMMITS_KEPT]),
        committed_at=newest.logged_at if newest else None,
        event_time_newest=max((t for e in batches if (t := event_time_newest(e.facts))), default=None),
        gaps=snapshot.gaps, log_cuts=tuple(snapshot.orphans()),
        gap_last=next((entry.facts for entry in entries if entry.kind == "gap"), None),
    )  # fmt: skip
