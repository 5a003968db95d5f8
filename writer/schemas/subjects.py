"""Under which subjects a registry has the schemas of a topic, by the strategy of its producers. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from writer.avro import schema_text
from writer.avro.schema_text import UnsupportedSchema, read_json
from writer.avro.wire_format import Part
from writer.config.connections import FULL_NAME, Strategy

DEFAULT_GROUP = "default"  # of Apicurio's artifacts; Confluent's API knows no other


class Subject(NamedTuple):
    """Where versions of a schema are: an artifact of a group in Apicurio, a subject in all others."""

    name: str
    record: str | None = None  # full name that its schemas must have; None: any
    group: str = DEFAULT_GROUP


@dataclass(frozen=True)
class Subjects:
    """The strategy by which producers name subjects, of values or of keys."""

    strategy: Strategy = "topic_name"
    records: Mapping[str, Sequence[str]] = field(default_factory=dict)  # topic → full names of its records
    part: Part = "value"

    def of_keys(self) -> "Subjects":
        """Return the subjects of keys: by the names of topics, whatever those of values are."""
        return Subjects(part="key")

    def named(self, topic: str) -> list[Subject] | None:
        """Return the subjects of a topic; None where only a list of all subjects tells them."""
        if self.strategy == "topic_name":
            return [Subject(f"{topic}-{self.part}")]
        records = self.records.get(topic)
        if records is None:
            return None
        before = "" if self.strategy == "record_name" else f"{topic}-"
        return [Subject(before + record, record) for record in records]

    def among(self, topic: str, listed: Iterable[tuple[str, str]]) -> list[Subject]:
        """Return those of a list of (group, subject) that may be the topic's, as `<topic>-<full name of a record>`.

        No full name has a dash, so those of a topic that begins with this topic's name are not among them. Whether the
        schemas have that name, their texts tell.
        """
        before, found = f"{topic}-", []
        for group, name in listed:
            record = name.removeprefix(before) if group == DEFAULT_GROUP else f"{group}.{name.removeprefix(before)}"
            if name.startswith(before) and FULL_NAME.fullmatch(record):
                found.append(Subject(name, record, group))
        return found

    def of_schema(self, topic: str, text: str) -> str:
        """Return the subject of a topic that has a schema."""
        if self.strategy == "topic_name":
            return f"{topic}-{self.part}"
        name = full_name(text) or ""
        return name if self.strategy == "record_name" else f"{topic}-{name}"

    def words(self, topics: Iterable[str]) -> str:
        """Name the subjects of topics, for a person."""
        named = {topic: self.named(topic) for topic in topics}
        return ", ".join(
            f"{topic}-<full name of a record>" if found is None else ", ".join(one.name for one in found)
            for topic, found in named.items()
        )


def in_apicurio(subjects: Iterable[Subject]) -> list[Subject]:
    """Add where Apicurio's own serializers put these: the namespace of the record is the group of its artifact."""
    found = list[Subject]()
    for one in subjects:
        found.append(one)
        space, dot, name = (one.record or "").rpartition(".")
        if dot and one.record is not None and one.group == DEFAULT_GROUP:
            found.append(Subject(one.name.removesuffix(one.record) + name, one.record, space))
    return found


def fits(subject: Subject, text: str) -> bool:
    """Return whether a schema is one of the subject's record."""
    return subject.record is None or full_name(text) == subject.record


@lru_cache(maxsize=4096)
def full_name(text: str) -> str | None:
    """Return the full name of a schema; None where it has none."""
    try:
        schema = read_json(text)
    except UnsupportedSchema:
        return None
    # An object around a type has no name of its own.
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict):
        schema = schema["type"]
    return schema_text.full_name(schema) if isinstance(schema, dict) else None


def oldest_first(found: Mapping[int, str], subjects: Sequence[Subject]) -> dict[int, str]:
    """Order the schemas of several subjects by their ids, which count up; those of one are in order."""
    return dict(found if len(subjects) == 1 else sorted(found.items()))
