"""Decides where a pipeline reads on, from the table's committed offsets and what Kafka still has.

Pure: facts in, decision out. `writer/offsets/start_offsets.py` asks for the facts, the pipeline carries the
decision out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.core.text import join_first, plural
from headrace.writer.table.log.commits.starts import LogCut

# Partitions that a sentence names.
_SHOWN_MAX = 3
# Sixteen zero bytes: what a broker without topic ids (before 2.8) answers.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True)
class LogRange:
    """What Kafka holds of one partition: offsets [earliest, end)."""

    earliest: int
    end: int


@dataclass(frozen=True)
class Begin:
    """Read on from these offsets."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class RecordGap:
    """Kafka holds some records no longer: put these ranges down as a gap, then read on from these offsets."""

    lost: Sequence[OffsetRange]
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Refuse:
    """Do not start, or skip nothing. The reason is a sentence."""

    reason: str


def decide(
    frontier: Mapping[TopicPartition, int],
    log_ranges: Mapping[TopicPartition, LogRange],
    on_data_loss: Literal["record", "stop"],
) -> Begin | RecordGap | Refuse:
    """Choose where each part reads on.

    A frontier inside [earliest, end] is read from. Below it lies what retention took: a gap, exactly up to the earliest
    offset. Above it the log was cut back, and its offsets may mean other records by now: refused, never waited for.
    """
    shorter = [
        f"{part.name} ends at {log_ranges[part].end}, the table at {offset}"
        for part, offset in frontier.items()
        if offset > log_ranges[part].end
    ]
    if shorter:
        return Refuse(
            f"Kafka's log is shorter than what the table has of it: {_join(shorter)}. The log was cut back (an "
            "unclean leader election, a restored broker, another cluster), or the topic was created again on brokers "
            "without topic ids. Restore the log, or let `headrace topic adopt` say where to read on."
        )
    lost = [
        OffsetRange(part, offset, log_ranges[part].earliest)
        for part, offset in frontier.items()
        if offset < log_ranges[part].earliest
    ]
    if not lost:
        return Begin(dict(frontier))
    if on_data_loss == "stop":
        count = sum(lost_range.count for lost_range in lost)
        phrases = [f"[{lost_range.start}, {lost_range.end}) of {lost_range.part.name}" for lost_range in lost]
        return Refuse(
            f"Kafka no longer holds {count} offsets that the table does not have: {_join(phrases)}. "
            "Set on_data_loss: record to put them down as a gap and read on."
        )
    return RecordGap(lost, {part: max(offset, log_ranges[part].earliest) for part, offset in frontier.items()})


def refusal(
    cuts: Sequence[LogCut], unknown: Collection[TopicPartition], on_data_loss: Literal["record", "stop"]
) -> str | None:
    """Return why logs that were cut are not read on; None where they are. `unknown`: where, nothing says of these."""
    why = "Kafka's log was cut and grew again (an unclean leader election, or a volume that was restored)"
    if unknown:
        names = _join([part.name for part in sorted(unknown)])
        return (
            f"{why}, and nothing in the table's log says where: {names}. Restore the log, or say with `headrace topic "
            "adopt --offsets topic:partition=offset` where to read on."
        )
    if not cuts or on_data_loss == "record":
        return None
    ranges = _join([f"[{cut.range.start}, {cut.range.end}) of {cut.part.name}" for cut in cuts])
    return (
        f"{why}: the table has rows of offsets that are no longer what they were, at {ranges}. Restore the log, or set "
        "on_data_loss: record to keep these rows and read on from there, as a further incarnation of the topic."
    )


def extend_incarnations(
    ids: Mapping[str, Sequence[str]],
    topic_ids: Mapping[str, str],
    frontier: Mapping[TopicPartition, int],
    cuts: Sequence[LogCut],
) -> tuple[dict[str, list[str]], dict[TopicPartition, int]]:
    """Let topics with a log that was cut go on as further incarnations. `topic_ids`: topic → id that it has now.

    Returns the ids of all incarnations, where these topics' ids stand once more, and where the parts of the new ones
    begin: where the log was cut, or else at the frontier, as the others of the topic go on.
    """
    extended_ids = {topic: list(incarnation_ids) for topic, incarnation_ids in ids.items()}
    cut_topics = {cut.part.topic for cut in cuts}
    for topic in cut_topics:
        extended_ids[topic].append(topic_ids[topic])
    cut_offsets = {cut.part: cut.range.start for cut in cuts}
    start_offsets = {
        replace(part, incarnation=len(extended_ids[part.topic])): cut_offsets.get(part, offset)
        for part, offset in frontier.items()
        if part.topic in cut_topics
    }
    return extended_ids, start_offsets


def incarnations(table_ids: Mapping[str, Sequence[str]], topic_ids: Mapping[str, str]) -> dict[str, list[str]]:
    """Return topic → ids of its incarnations, with those that the table has not seen yet.

    `table_ids`: topic → ids that the table knows, oldest first. `topic_ids`: topic → id that it has now.
    """
    ids = {topic: list(incarnation_ids) for topic, incarnation_ids in table_ids.items()}
    for topic, topic_id in topic_ids.items():
        incarnation_ids = ids.setdefault(topic, [])
        if topic_id not in incarnation_ids:
            incarnation_ids.append(topic_id)
    return ids


def incarnation_number(ids: Sequence[str], topic_id: str) -> int:
    """Return the number of the incarnation that has this id, from 1; of the last, where an adoption repeats the id."""
    return len(ids) - list(ids)[::-1].index(topic_id)


def predecessors_of(part: TopicPartition, ids: Mapping[str, Sequence[str]]) -> list[TopicPartition]:
    """Return a part in the earlier incarnations of its topic that have the same id, newest first."""
    incarnation_ids = ids.get(part.topic, ())
    earlier_numbers = range(min(part.incarnation, len(incarnation_ids)) - 1, 0, -1)
    return [
        replace(part, incarnation=number)
        for number in earlier_numbers
        if incarnation_ids[number - 1] == incarnation_ids[part.incarnation - 1]
    ]


def recreated_topics(
    table_ids: Mapping[str, Sequence[str]], topic_ids: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return topics that were deleted and created again since the table saw them: the table's id, and the id now."""
    return {
        topic: (table_ids[topic][-1], topic_id)
        for topic, topic_id in topic_ids.items()
        if table_ids.get(topic) and topic_id not in table_ids[topic]
    }


def log_change(
    start_ids: Mapping[str, str],
    topic_ids: Mapping[str, str],
    frontier: Mapping[Source, int],
    ends: Mapping[Source, int],
) -> str:
    """Return why the logs are not those that a run began with; empty while they are.

    `start_ids` and `topic_ids`: topic → id. The frontier must be older than the ends: it may only grow beyond them
    later.
    """
    for topic, topic_id in topic_ids.items():
        if start_ids.get(topic, topic_id) != topic_id:
            return f"topic {topic!r} was deleted and created again (id {topic_id}, it was {start_ids[topic]})"
    for source, end in ends.items():
        if end < frontier.get(source, 0):
            missing = frontier[source] - end
            return f"the log of {source[0]}/{source[1]} ends at {end:,}, {plural(missing, 'offset')} before the table"
    return ""


def topics_without_id(topic_ids: Mapping[str, str]) -> list[str]:
    """Return topics without ids from their brokers: a re-created one is noticed only if its log became shorter."""
    return sorted(topic for topic, topic_id in topic_ids.items() if topic_id == _NO_ID)


def incarnation_numbers(table_ids: Mapping[str, Sequence[str]], topic_ids: Mapping[str, str]) -> dict[str, int]:
    """Return the number of the incarnation that each topic is now, by topic; none for one that the table knows not."""
    return {
        topic: incarnation_number(table_ids[topic], topic_id)
        for topic, topic_id in topic_ids.items()
        if topic_id in table_ids.get(topic, ())
    }


def _join(phrases: Sequence[str]) -> str:
    return join_first(phrases, _SHOWN_MAX, "; ")
