"""Skips to the end of Kafka's log, and records exactly the skipped offsets. One entry of the table's log.

The ends are asked for once. The entry moves the frontier to them and carries the gap; it raises the epoch, so a driver
that is still up is fenced by it. What begins afterwards begins at the frontier, as any start does. `decide` is pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal, assert_never
from uuid import uuid4

from writer.clients.driver_endpoint import check_no_driver
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core.errors import LogChanged
from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.core.text import join_first
from writer.offsets.log_check import log_check
from writer.offsets.start_decision import LogRange, Refuse, numbers_of
from writer.offsets.start_offsets import gap_hints, left_behind
from writer.table.factory import main_table
from writer.table.gap_records import open_gap
from writer.table.log.operations import Gap
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

Asker = Literal["person", "automatic"]
_SHOWN = 3  # partitions that a sentence names
_FENCED = "Stop it first, or say that it is to be fenced: its next commit then ends it with exit 4."


@dataclass(frozen=True)
class Skip:
    """Move the frontier over these ranges."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class NothingToSkip:
    """Everything that Kafka has is committed."""


@dataclass(frozen=True)
class SkipPreview:
    """What a skip would do, and all that it was decided by."""

    snapshot: PipelineSnapshot
    decision: Skip | NothingToSkip | Refuse
    held: int  # of the offsets that it skips, those that Kafka still holds
    topic_ids: Mapping[str, str]


def decide(
    frontier: Mapping[TopicPartition, int],
    held: Mapping[TopicPartition, LogRange],
    asker: Asker,
    changed: Sequence[str] = (),
    cut: Collection[TopicPartition] = (),
) -> Skip | NothingToSkip | Refuse:
    """Choose what is skipped: of each part, all from its frontier to the end of its log.

    `held`: what Kafka holds of it, up to where committed records can be read. `changed`: topics whose id is not the one
    that the table knows. `cut`: parts whose log is not the one that the table was filled from. While Kafka holds a
    frontier, its records can still be read, and only a person may skip them.
    """
    if changed:
        return Refuse(
            f"{', '.join(changed)}: deleted and created again since the table saw it. Nothing of it can be skipped: a "
            "start reads the new log from its beginning."
        )
    if cut:
        return Refuse(
            f"Kafka's log was cut below what the table has of {_listed(sorted(cut))}, and is another one now. Start "
            "the pipeline: it goes on where the log was cut, as on_data_loss says. Then skip."
        )
    beyond = [part for part, at in frontier.items() if at > held[part].end]
    if beyond:
        return Refuse(
            f"Kafka's log is shorter than what the table has of it: {_listed(beyond)}. Restore the log, or let "
            "`headrace topic adopt` say where to read on."
        )
    ranges = tuple(OffsetRange(part, at, held[part].end) for part, at in frontier.items() if at < held[part].end)
    if not ranges:
        return NothingToSkip()
    alive = [r.part for r in ranges if r.start >= held[r.part].earliest]
    if alive and asker == "automatic":
        return Refuse(
            f"Kafka still holds the frontier of {_listed(alive)}: a new run from the table's frontier loses nothing. "
            "Only a person may skip to the latest records while that is so."
        )
    return Skip(ranges)


def look(config: Config, pipeline: str, cluster: Cluster, asker: Asker) -> SkipPreview:
    """Ask table and Kafka what a skip would do. Raises HeadraceError when there is no table, BrokerUnreachable."""
    table = _table(config, pipeline)
    snapshot = table.snapshot()
    known = snapshot.incarnations()
    topics = cluster.topics(choose_topics(cluster, config.pipelines[pipeline].topics, known).names)
    ids = {topic.name: topic.id for topic in topics.values()}
    changed = [name for name, found in ids.items() if known.get(name) and found not in known[name]]
    read = numbers_of(known, ids)
    frontier = {part: at for part, at in snapshot.parts().items() if read.get(part.topic) == part.incarnation}
    sources = {(part.topic, part.partition): part for part in frontier}
    ends, earliest = cluster.readable(sources), cluster.earliest(sources)  # the ends first, and once
    held = {part: LogRange(earliest[source], ends[source]) for source, part in sources.items()}
    check = log_check(pipeline, config.kafka, partial(table.entries, -1))
    decision: Skip | NothingToSkip | Refuse
    if reason := left_behind(snapshot, read):
        decision = Refuse(reason)
    else:
        decision = decide(frontier, held, asker, changed, check.diverging(snapshot, held, ids))
    there = sum(r.end - max(r.start, held[r.part].earliest) for r in _ranges(decision) if r.end > held[r.part].earliest)
    return SkipPreview(snapshot, decision, there, ids)


def skip(
    config: Config, pipeline: str, found: SkipPreview, *, by: str, reason: str, now: datetime, fence: bool = False
) -> tuple[int, Gap] | None:
    """Write the entry that was looked at. Returns its version and the gap; None: there is nothing to skip.

    `fence`: a driver that answers is not waited for; the entry fences it. Raises LogChanged for what was refused,
    DriverAlive, Fenced when something was committed since the look, CommitFailed.
    """
    match found.decision:
        case Refuse(reason=why):
            raise LogChanged(why)
        case NothingToSkip():
            return None
        case Skip(ranges):
            if not fence:
                check_no_driver(config, pipeline, _FENCED)
        case _:
            assert_never(found.decision)
    left: dict[Source, tuple[int, int]] = {(r.part.topic, r.part.partition): (-1, -1) for r in ranges}  # they end now
    hints = gap_hints(ranges, found.snapshot, left, config.pipelines[pipeline].seal.out_of_orderness, now)
    ids = {topic: found.topic_ids[topic] for topic in sorted({r.part.topic for r in ranges})}
    about = {"run": None, "at": now.isoformat(), "hints": hints, "by": by, "reason": reason, "topic_ids": ids}
    gap = Gap(uuid4().hex, found.snapshot.epoch, ranges, "latest", about, takes_over=True)
    version = open_gap(_table(config, pipeline), pipeline, found.snapshot, gap)
    return version, gap


def _table(config: Config, pipeline: str) -> PipelineTable:
    table = main_table(pipeline, config)
    table.check_exists()
    return table


def _ranges(decision: Skip | NothingToSkip | Refuse) -> Sequence[OffsetRange]:
    return decision.ranges if isinstance(decision, Skip) else ()


def _listed(parts: Sequence[TopicPartition]) -> str:
    return join_first([part.name for part in parts], _SHOWN)
