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

from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import LogChanged
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.core.text import join_first
from headrace.writer.offsets.log_check import log_check
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_decision import LogRange, Refuse, incarnation_numbers, recreated_topics
from headrace.writer.offsets.start_offsets import gap_hints, orphan_reason
from headrace.writer.table.factory import main_table
from headrace.writer.table.gap_records import open_gap
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

Asker = Literal["person", "automatic"]
# Partitions that a sentence names.
_SHOWN_MAX = 3
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
    # Of the offsets that it skips, those that Kafka still holds.
    offsets_in_kafka: int
    topic_ids: Mapping[str, str]


def decide(
    frontier: Mapping[TopicPartition, int],
    log_ranges: Mapping[TopicPartition, LogRange],
    asker: Asker,
    changed: Sequence[str] = (),
    cut: Collection[TopicPartition] = (),
) -> Skip | NothingToSkip | Refuse:
    """Choose what is skipped: of each part, all from its frontier to the end of its log.

    `log_ranges`: what Kafka holds of it, up to where committed records can be read. `changed`: topics whose id is not
    the one that the table knows. `cut`: parts whose log is not the one that the table was filled from. While Kafka
    holds a frontier, its records can still be read, and only a person may skip them.
    """
    if changed:
        return Refuse(
            f"{', '.join(changed)}: deleted and created again since the table saw it. Nothing of it can be skipped: a "
            "start reads the new log from its beginning."
        )
    if cut:
        return Refuse(
            f"Kafka's log was cut below what the table has of {_join(sorted(cut))}, and is another one now. Start "
            "the pipeline: it goes on where the log was cut, as on_data_loss says. Then skip."
        )
    shorter = [part for part, offset in frontier.items() if offset > log_ranges[part].end]
    if shorter:
        return Refuse(
            f"Kafka's log is shorter than what the table has of it: {_join(shorter)}. Restore the log, or let "
            "`headrace topic adopt` say where to read on."
        )
    ranges = tuple(
        OffsetRange(part, offset, log_ranges[part].end)
        for part, offset in frontier.items()
        if offset < log_ranges[part].end
    )
    if not ranges:
        return NothingToSkip()
    readable = [skipped.part for skipped in ranges if skipped.start >= log_ranges[skipped.part].earliest]
    if readable and asker == "automatic":
        return Refuse(
            f"Kafka still holds the frontier of {_join(readable)}: a new run from the table's frontier loses nothing. "
            "Only a person may skip to the latest records while that is so."
        )
    return Skip(ranges)


def preview_skip(config: Config, pipeline: str, cluster: Cluster, asker: Asker) -> SkipPreview:
    """Ask table and Kafka what a skip would do. Raises HeadraceError when there is no table, BrokerUnreachable."""
    table = _table(config, pipeline)
    snapshot = table.snapshot()
    table_ids = snapshot.incarnations()
    topics = cluster.topics(choose_topics(cluster, config.pipelines[pipeline].topics, table_ids).names)
    topic_ids = {topic.name: topic.id for topic in topics.values()}
    changed = list(recreated_topics(table_ids, topic_ids))
    numbers = incarnation_numbers(table_ids, topic_ids)
    frontier = {
        part: offset for part, offset in snapshot.parts().items() if numbers.get(part.topic) == part.incarnation
    }
    sources = {part.source: part for part in frontier}
    # The ends first, and once.
    ends = cluster.readable(sources)
    earliest = cluster.earliest(sources)
    log_ranges = {part: LogRange(earliest[source], ends[source]) for source, part in sources.items()}
    check = log_check(pipeline, config.kafka, partial(table.entries, -1))
    decision: Skip | NothingToSkip | Refuse
    reason = orphan_reason(snapshot, numbers)
    if reason:
        decision = Refuse(reason)
    else:
        cut = check.diverging_parts(snapshot, log_ranges, topic_ids)
        decision = decide(frontier, log_ranges, asker, changed, cut)
    offsets_in_kafka = 0
    if isinstance(decision, Skip):
        for skipped in decision.ranges:
            earliest_offset = log_ranges[skipped.part].earliest
            offsets_in_kafka += max(skipped.end - max(skipped.start, earliest_offset), 0)
    return SkipPreview(snapshot, decision, offsets_in_kafka, topic_ids)


def skip(
    config: Config, pipeline: str, preview: SkipPreview, *, by: str, reason: str, now: datetime, fence: bool = False
) -> tuple[int, Gap] | None:
    """Write the entry of a preview. Returns its version and the gap; None: there is nothing to skip.

    `fence`: a driver that answers is not waited for; the entry fences it. Raises LogChanged for what was refused,
    DriverAlive, Fenced when something was committed since the preview, CommitFailed.
    """
    match preview.decision:
        case Refuse(reason=why):
            raise LogChanged(why)
        case NothingToSkip():
            return None
        case Skip(ranges):
            if not fence:
                check_no_driver(config, pipeline, _FENCED)
        case _:
            assert_never(preview.decision)
    # Nothing is left behind the ranges: they end now.
    first_records: dict[Source, tuple[int, int]] = {skipped.part.source: (-1, -1) for skipped in ranges}
    hints = gap_hints(ranges, preview.snapshot, first_records, config.pipelines[pipeline].seal.out_of_orderness, now)
    topics = sorted({skipped.part.topic for skipped in ranges})
    facts = {
        "run": None,
        "at": now.isoformat(),
        "hints": hints,
        "by": by,
        "reason": reason,
        "topic_ids": {topic: preview.topic_ids[topic] for topic in topics},
    }
    # The supervisor would take its checkpoint for one that fell behind, and count a failure.
    newest_run = Checkpoints(config.checkpoints, pipeline, config.stores).newest() or 0
    epoch = preview.snapshot.epoch
    gap = Gap(uuid4().hex, epoch, ranges, "latest", facts, takes_over=True, closed_run=newest_run)
    version = open_gap(_table(config, pipeline), pipeline, preview.snapshot, gap)
    return version, gap


def _table(config: Config, pipeline: str) -> PipelineTable:
    table = main_table(pipeline, config)
    table.check_exists()
    return table


def _join(parts: Sequence[TopicPartition]) -> str:
    return join_first([part.name for part in parts], _SHOWN_MAX)
