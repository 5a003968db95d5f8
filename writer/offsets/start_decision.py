"""Decides where a pipeline reads on, from the table's committed offsets and what Kafka still has.

Pure: facts in, decision out. `writer/offsets/start_offsets.py` asks for the facts, the pipeline carries the
decision out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.core.text import join_first, plural
from writer.table.log.operations import LogCut

_SHOWN = 3  # partitions that a sentence names
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # sixteen zero bytes: what a broker without topic ids (before 2.8) answers


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
class Gap:
    """Kafka holds some records no longer: put these ranges down as a gap, then read on from these offsets."""

    lost: Sequence[OffsetRange]
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Refuse:
    """Do not start, or skip nothing. The reason is a sentence."""

    reason: str


def decide(
    frontier: Mapping[TopicPartition, int],
    held: Mapping[TopicPartition, LogRange],
    on_data_loss: Literal["record", "stop"],
) -> Begin | Gap | Refuse:
    """Choose where each part reads on.

    A frontier inside [earliest, end] is read from. Below it lies what retention took: a gap, exactly up to the earliest
    offset. Above it the log was cut back, and its offsets may mean other records by now: refused, never waited for.
    """
    beyond = [part for part, at in frontier.items() if at > held[part].end]
    if beyond:
        what = _listed([f"{p.name} ends at {held[p].end}, the table at {frontier[p]}" for p in beyond])
        return Refuse(
            f"Kafka's log is shorter than what the table has of it: {what}. The log was cut back (an unclean leader "
            "election, a restored broker, another cluster), or the topic was created again on brokers without topic "
            "ids. Restore the log, or let `headrace topic adopt` say where to read on."
        )
    lost = [OffsetRange(part, at, held[part].earliest) for part, at in frontier.items() if at < held[part].earliest]
    if not lost:
        return Begin(dict(frontier))
    if on_data_loss == "stop":
        what = _listed([f"[{r.start}, {r.end}) of {r.part.name}" for r in lost])
        return Refuse(
            f"Kafka no longer holds {sum(r.end - r.start for r in lost)} offsets that the table does not have: {what}. "
            "Set on_data_loss: record to put them down as a gap and read on."
        )
    return Gap(lost, {part: max(at, held[part].earliest) for part, at in frontier.items()})


def refusal(
    cuts: Sequence[LogCut], unknown: Collection[TopicPartition], on_data_loss: Literal["record", "stop"]
) -> str | None:
    """Return why logs that were cut are not read on; None where they are. `unknown`: where, nothing says of these."""
    why = "Kafka's log was cut and grew again (an unclean leader election, or a volume that was restored)"
    if unknown:
        what = _listed([part.name for part in sorted(unknown)])
        return (
            f"{why}, and nothing in the table's log says where: {what}. Restore the log, or say with `headrace topic "
            "adopt --offsets topic:partition=offset` where to read on."
        )
    if not cuts or on_data_loss == "record":
        return None
    what = _listed([f"[{cut.offset}, {cut.frontier}) of {cut.part.name}" for cut in cuts])
    return (
        f"{why}: the table has rows of offsets that are no longer what they were, at {what}. Restore the log, or set "
        "on_data_loss: record to keep these rows and read on from there, as a further incarnation of the topic."
    )


def go_on(
    ids: Mapping[str, Sequence[str]],
    now: Mapping[str, str],
    frontier: Mapping[TopicPartition, int],
    cuts: Sequence[LogCut],
) -> tuple[dict[str, list[str]], dict[TopicPartition, int]]:
    """Let topics with a log that was cut go on as further incarnations. `now`: topic → id.

    Returns the ids of all incarnations, where these topics' ids stand once more, and where the parts of the new ones
    begin: where the log was cut, or else at the frontier, as the others of the topic go on.
    """
    longer = {topic: list(known) for topic, known in ids.items()}
    for topic in {cut.part.topic for cut in cuts}:
        longer[topic].append(now[topic])
    offsets = {cut.part: cut.offset for cut in cuts}
    begins = {
        replace(part, incarnation=len(longer[part.topic])): offsets.get(part, offset)
        for part, offset in frontier.items()
        if len(longer[part.topic]) > len(ids[part.topic])
    }
    return longer, begins


def incarnations(known: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> dict[str, list[str]]:
    """Topic → ids of its incarnations, with those that the table has not seen yet. `now`: topic → id."""
    ids = {topic: list(before) for topic, before in known.items()}
    for topic, found in now.items():
        before = ids.setdefault(topic, [])
        if found not in before:
            before.append(found)
    return ids


def number(ids: Sequence[str], topic_id: str) -> int:
    """Number of the incarnation that has this id, from 1; of the last, where an adoption began one with the same id."""
    return len(ids) - list(ids)[::-1].index(topic_id)


def predecessors_of(part: TopicPartition, ids: Mapping[str, Sequence[str]]) -> list[TopicPartition]:
    """Return a part in the earlier incarnations of its topic that have the same id, newest first."""
    of_topic = ids.get(part.topic, ())
    earlier = range(min(part.incarnation, len(of_topic)) - 1, 0, -1)
    return [replace(part, incarnation=n) for n in earlier if of_topic[n - 1] == of_topic[part.incarnation - 1]]


def reborn(known: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Topics that were deleted and created again since the table saw them: the id it knows, and the one there is."""
    return {t: (known[t][-1], found) for t, found in now.items() if known.get(t) and found not in known[t]}


def changed(
    began: Mapping[str, str], now: Mapping[str, str], frontier: Mapping[Source, int], ends: Mapping[Source, int]
) -> str:
    """Return why the logs are not those that a run began with; empty while they are.

    `began` and `now`: topic → id. The frontier must be older than the ends: it may only grow beyond them later.
    """
    for topic, found in now.items():
        if began.get(topic, found) != found:
            return f"topic {topic!r} was deleted and created again (id {found}, it was {began[topic]})"
    for source, end in ends.items():
        if end < frontier.get(source, 0):
            missing = frontier[source] - end
            return f"the log of {source[0]}/{source[1]} ends at {end:,}, {plural(missing, 'offset')} before the table"
    return ""


def without_id(now: Mapping[str, str]) -> list[str]:
    """Topics without ids from their brokers: a re-created one is noticed only if its log became shorter."""
    return sorted(topic for topic, found in now.items() if found == _NO_ID)


def numbers_of(known: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> dict[str, int]:
    """Return the number of the incarnation that each topic is now, by topic; none for one that the table knows not."""
    return {topic: number(known[topic], found) for topic, found in now.items() if found in known.get(topic, ())}


def _listed(found: Sequence[str]) -> str:
    return join_first(found, _SHOWN, "; ")
