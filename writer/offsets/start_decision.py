"""Decides where a pipeline reads on, from the table's committed offsets and what Kafka still has.

Pure: facts in, decision out. `writer/offsets/start_offsets.py` asks for the facts, the pipeline carries the
decision out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.core.text import listed

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
            return f"{source[0]}/{source[1]} ends at offset {end}, before the table's {frontier[source]}"
    return ""


def without_id(now: Mapping[str, str]) -> list[str]:
    """Topics without ids from their brokers: a re-created one is noticed only if its log became shorter."""
    return sorted(topic for topic, found in now.items() if found == _NO_ID)


def numbers_of(known: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> dict[str, int]:
    """Return the number of the incarnation that each topic is now, by topic; none for one that the table knows not."""
    return {topic: number(known[topic], found) for topic, found in now.items() if found in known.get(topic, ())}


def _listed(found: Sequence[str]) -> str:
    return listed(found, _SHOWN, "; ")
