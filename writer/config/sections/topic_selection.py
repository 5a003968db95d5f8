"""Which topics a pipeline reads, by name or by pattern, and where a new pipeline begins to read them."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from headrace.writer.config.base import Strict
from headrace.writer.core.units import parse_instant

# Beginning of the topics that Kafka keeps for itself.
_INTERNAL = "__"
_POSITIONS = "must be earliest, latest, {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"


class TopicChoice(NamedTuple):
    """Topics of a cluster that are read, and those that match the pattern but are more than `max`."""

    names: list[str]
    beyond: list[str]


class TopicSelection(Strict):
    """Topics by name, by pattern, or both. A list is short for `names`."""

    names: list[str] = Field(default_factory=list, description="topics to read; a list alone is short for this")
    pattern: str | None = Field(
        None,
        description="regular expression of the whole name: topics that match are read, from their first record where "
        "they appear later. None that begins with `__` matches",
    )
    without: list[str] = Field(
        default_factory=list,
        alias="except",
        description="regular expressions of whole names: topics that match one of them are not read by the pattern",
    )
    max: int = Field(500, ge=1, description="most topics that are read; further ones that match are named, not read")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        if isinstance(raw, list):
            return {"names": raw}
        return raw

    @field_validator("pattern", "without")
    @classmethod
    def _compiles(cls, value: str | list[str] | None) -> str | list[str] | None:
        patterns = value or ()
        if isinstance(value, str):
            patterns = [value]
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}; a dot is written \\.") from error
        return value

    @model_validator(mode="after")
    def _selects_some(self) -> "TopicSelection":
        if not self.names and self.pattern is None:
            raise ValueError("name at least one topic, or give a 'pattern'")
        if self.pattern is None and self.without:
            raise ValueError("'except' takes topics out of what a 'pattern' matches, and there is none")
        if len(self.names) > self.max:
            raise ValueError(f"{len(self.names)} topics are named, and 'max' is {self.max}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """Let the JSON schema take a list, too."""
        return {"anyOf": [{"type": "array", "items": {"type": "string"}}, handler(core)]}

    @property
    def only(self) -> str | None:
        """The only topic, whose name no record has to carry; None where there are, or may be, several."""
        if self.pattern is None and len(self.names) == 1:
            return self.names[0]
        return None

    def includes(self, topic: str) -> bool:
        """Return whether the topic is named or matches the pattern."""
        return topic in self.names or self._matches(topic)

    def among(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that are named, then those of `topics` that match the pattern, in order."""
        return [*self.names, *sorted({topic for topic in topics if self._matches(topic)} - set(self.names))]

    def choose(self, existing: Iterable[str], earlier: Iterable[str] = ()) -> TopicChoice:
        """Return what is read of the topics that exist.

        Where they are more than `max`, those that were read `earlier` come first, in that order.
        """
        topics = self.among(existing)
        # A topic that is named twice has its first rank.
        ranks = {topic: rank for rank, topic in reversed(list(enumerate([*self.names, *earlier])))}
        last_rank = len(ranks) + len(topics)
        read = set(sorted(topics, key=lambda topic: ranks.get(topic, last_rank))[: self.max])
        return TopicChoice(
            [topic for topic in topics if topic in read], [topic for topic in topics if topic not in read]
        )

    def _matches(self, topic: str) -> bool:
        return (
            self.pattern is not None
            and not topic.startswith(_INTERNAL)
            and re.fullmatch(self.pattern, topic) is not None
            and not any(re.fullmatch(pattern, topic) for pattern in self.without)
        )

    def __str__(self) -> str:
        """Name the topics for a person."""
        names = list(self.names)
        if self.pattern is not None:
            names.append(f"topics like {self.pattern}")
        return ", ".join(names)


def start_position(value: Any) -> Any:
    """Read where a new pipeline begins; timestamps are aware UTC then. Raises ValueError."""
    match value:
        case "earliest" | "latest":
            return value
        case {"timestamp": when, **rest} if not rest:
            return {"timestamp": _instant(when)}
        case {"offsets": dict() as topics, **rest} if not rest:
            return {"offsets": {str(topic): _offsets(partitions) for topic, partitions in topics.items()}}
    raise ValueError(_POSITIONS)


def _instant(when: Any) -> datetime:
    try:
        return parse_instant(when)
    except ValueError as error:
        raise ValueError(f"timestamp {when!r} is none; it {_POSITIONS}") from error


def _offsets(partitions: Any) -> dict[int, int]:
    try:
        offsets = {int(partition): int(offset) for partition, offset in partitions.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"offsets {partitions!r} are not numbers by partition; it {_POSITIONS}") from error
    if min([*offsets, *offsets.values()], default=0) < 0:
        raise ValueError(f"offsets {partitions!r} are below zero; it {_POSITIONS}")
    return offsets
