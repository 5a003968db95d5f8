"""Finds a start's offsets: the topics' incarnations, where each partition reads on, what Kafka has lost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from writer.clients.kafka import Cluster, Topic
from writer.config.pipeline import Pipeline
from writer.core import logging
from writer.core.errors import FrontierLost, LogChanged, TopicMissing
from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.core.units import instant, shifted
from writer.offsets.log_check import Diverging, LogCheck
from writer.offsets.start_decision import (
    Begin,
    Gap,
    LogRange,
    Refuse,
    changed,
    decide,
    go_on,
    incarnations,
    number,
    predecessors_of,
    reborn,
    refusal,
    without_id,
)
from writer.table.log.operations import LogCut
from writer.table.log.snapshot import PipelineSnapshot

_LOOKS = 3  # at a log that seems too short: right after a leader has changed it may (KAFKA-7703)
_LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class StartPosition:
    """Where a start reads on."""

    topic_ids: Mapping[str, str]  # topic → id that it has now
    incarnations: Mapping[str, Sequence[str]]  # those that are new to the table included
    parts: Mapping[Source, TopicPartition]
    fresh: Mapping[TopicPartition, int] = field(
        default_factory=dict
    )  # parts that the table does not know, and where they begin
    offsets: Mapping[Source, int] = field(default_factory=dict)
    lost: Sequence[OffsetRange] = ()  # between the frontier and these offsets
    cuts: Sequence[LogCut] = ()  # logs that Kafka cut below the frontier, and that go on as further incarnations

    @property
    def numbers(self) -> dict[str, int]:
        """Topic → number of its incarnation."""
        return {topic: number(self.incarnations[topic], found) for topic, found in self.topic_ids.items()}


def find(
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
    known, now = snapshot.incarnations(), {topic.name: topic.id for topic in topics.values()}
    _check_topics(settings, known, now)
    ids = incarnations(known, now)
    parts = _parts(topics, ids)
    if reason := left_behind(snapshot, {part.topic: part.incarnation for part in parts.values()}):
        raise LogChanged(reason)
    frontier = {source: snapshot.frontier(part) for source, part in parts.items()}
    _check_frontiers(topics, known, frontier)
    fresh = _initial(settings, cluster, [s for s, at in frontier.items() if at is None], snapshot)
    at = {part: fresh[s] if (known_at := frontier[s]) is None else known_at for s, part in parts.items()}
    for look in range(1, _LOOKS + 1):
        held = _held(cluster, parts)
        diverging = {} if check is None else check.diverging(snapshot, held, now)
        decision = decide({part: at[part] for part in at if part not in diverging}, held, settings.on_data_loss)
        if not (isinstance(decision, Refuse) or diverging) or look == _LOOKS:
            break
        wait(_LOOK_AGAIN_S)
    cuts: list[LogCut] = []
    if check is not None and diverging:
        cuts = _cuts(settings, check, diverging, ids, now)
        cuts += [older for cut in cuts for older in _cuts_before(cut, snapshot)]
        ids, begins = go_on(ids, now, at, cuts)
        parts = _parts(topics, ids)
        at = {part: at.get(part, begins.get(part, 0)) for part in parts.values()}
        fresh |= {source: at[part] for source, part in parts.items() if part in begins}
        decision = decide(at, _held(cluster, parts), settings.on_data_loss)
    match decision:
        case Begin(offsets):
            lost: Sequence[OffsetRange] = ()
        case Gap(lost, offsets):
            pass
        case Refuse(reason):
            raise LogChanged(reason)
        case _:
            assert_never(decision)
    begin = {source: offsets[part] for source, part in parts.items()}
    return StartPosition(now, ids, parts, {parts[s]: o for s, o in fresh.items()}, begin, lost, cuts)


def _check_topics(settings: Pipeline, known: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> None:
    """Warn of topics that were created again, or have no id. Raises LogChanged where the configuration says to stop."""
    for topic, (before, found) in reborn(known, now).items():
        if settings.on_topic_recreated == "stop":
            raise LogChanged(
                f"topic {topic!r} was deleted and created again (id {found}, the table knows {before}). "
                "Set on_topic_recreated: start to read it from its beginning. If it is a copy of the same records in "
                "another cluster, `headrace topic adopt` goes on where the table ends."
            )
        logging.warning("topic_recreated", topic=topic, id=found, before=before, incarnation=len(known[topic]) + 1)
    for topic in without_id(now):
        logging.warning("topic_without_id", topic=topic, reason="its brokers are older than Kafka 2.8")


def left_behind(snapshot: PipelineSnapshot, numbers: Mapping[str, int]) -> str:
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
        (topic.name, partition): TopicPartition(topic.name, number(ids[topic.name], topic.id), partition)
        for topic in topics.values()
        for partition in range(topic.partitions)
    }


def _cuts(
    settings: Pipeline,
    check: LogCheck,
    diverging: Diverging,
    ids: Mapping[str, Sequence[str]],
    topic_ids: Mapping[str, str],
) -> list[LogCut]:
    """Find where diverging logs go on. Raises LogChanged where the configuration says to stop, or nothing says it."""
    points = check.points(diverging, topic_ids)
    cuts = list[LogCut]()
    unknown = list[TopicPartition]()
    for part, (one, _) in sorted(diverging.items()):
        if (point := points[part]) is None:
            unknown.append(part)
        else:
            successor = len(ids[part.topic]) + 1
            cuts.append(LogCut(part, successor, point.offset, one.frontier, point.is_proven))
    if (reason := refusal(cuts, unknown, settings.on_data_loss)) is not None:
        raise LogChanged(reason)
    return cuts


def _cuts_before(cut: LogCut, snapshot: PipelineSnapshot) -> list[LogCut]:
    """Return what a cut below the beginning of its incarnation takes of those before it, which read the same log."""
    known = {orphans.part: orphans.start for orphans in snapshot.orphans()}
    cuts = list[LogCut]()
    for part in predecessors_of(cut.part, snapshot.incarnations()):
        frontier = snapshot.frontier(part)
        if frontier is not None and cut.offset < known.get(part, frontier):
            cuts.append(replace(cut, part=part, frontier=frontier))
    return cuts


def moved(cluster: Cluster, names: Sequence[str], ids: Mapping[str, str], at: Mapping[Source, int]) -> str:
    """Ask Kafka why its logs are not those that a start found, or lack what is to be read next; empty while they are.

    `ids`: of the topics, as they were found; `at`: where each is read on. Raises BrokerUnreachable.
    """
    try:
        now = {topic.name: topic.id for topic in cluster.topics(names).values()}
        earliest, ends = cluster.earliest(at), cluster.latest(at)
    except TopicMissing as error:
        return str(error)
    if why := changed(ids, now, at, ends):
        return why
    gone = next((source for source, offset in earliest.items() if offset > at[source]), None)
    return (
        "" if gone is None else f"{gone[0]}/{gone[1]} begins at offset {earliest[gone]}, beyond the table's {at[gone]}"
    )


def _check_frontiers(
    topics: Mapping[str, Topic], known: Mapping[str, Sequence[str]], frontier: Mapping[Source, int | None]
) -> None:
    """Raise FrontierLost when a topic that the table knows has no frontier: all of it would be read again.

    What makes a topic known, a start or an adoption, sets the frontier of its partitions in the same entry.
    """
    for topic in topics.values():
        has_frontier = any(frontier[topic.name, p] is not None for p in range(topic.partitions))
        if topic.id in known.get(topic.name, ()) and topic.partitions and not has_frontier:
            raise FrontierLost(
                f"the table knows topic {topic.name!r}, but says of none of its partitions how far it was read: its "
                "log lost that, or was restored without it. `headrace supervisor` puts it together from the table's "
                "files "
                "and an older checkpoint (L4); nothing was read."
            )


def gap_hints(
    lost: Sequence[OffsetRange],
    snapshot: PipelineSnapshot,
    left: Mapping[Source, tuple[int, int]],
    margin: timedelta,
    now: datetime,
) -> list[dict[str, str | None]]:
    """Return between which event times lost records may have lain, for each range: what may be missing in a bucket.

    From how far the part had come before, to the broker's time of the first record that is `left` (offset and
    milliseconds; -1: none is), with a margin on both sides. `from` is None where the part had no row before.
    """
    hints: list[dict[str, str | None]] = []
    for r in lost:
        seen, (_, stamp_ms) = snapshot.newest_event_time(r.part), left[r.part.topic, r.part.partition]
        until = now if stamp_ms < 0 else instant(stamp_ms * 1000)
        start = None if seen is None else shifted(instant(seen), -margin).isoformat()
        hints.append({"from": start, "until": shifted(until, margin).isoformat()})
    return hints


def _initial(
    settings: Pipeline, cluster: Cluster, sources: list[Source], snapshot: PipelineSnapshot
) -> dict[Source, int]:
    """Offsets where parts begin that the table has never seen.

    A further partition or incarnation of a topic that the table knows begins at 0: what Kafka does not hold of it any
    more was lost. Another topic begins where the configuration says; with its first record, once the pipeline is
    running.
    """
    known = snapshot.incarnations()
    begun = [source for source in sources if known.get(source[0])]
    new = [source for source in sources if not known.get(source[0])]
    if not new:
        return dict.fromkeys(begun, 0)
    position: Any = "earliest" if snapshot.epoch else settings.start
    match position:
        case "latest":
            found = cluster.readable(new)
        case {"timestamp": when}:
            readable = cluster.readable(new)
            found = {source: min(offset, readable[source]) for source, offset in cluster.offsets_at(when, new).items()}
        case {"offsets": wanted}:
            given = {(t, p): o for t, ps in wanted.items() for p, o in ps.items()}
            rest = cluster.earliest([s for s in new if s not in given])
            found = {source: given.get(source, rest.get(source, 0)) for source in new}
        case _:
            found = cluster.earliest(new)
    return {**dict.fromkeys(begun, 0), **found}


def _held(cluster: Cluster, parts: Mapping[Source, TopicPartition]) -> dict[TopicPartition, LogRange]:
    earliest, ends = cluster.earliest(parts), cluster.latest(parts)
    return {part: LogRange(earliest[source], ends[source]) for source, part in parts.items()}
