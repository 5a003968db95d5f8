"""Under which subjects, in which contexts, a registry has the schemas of a topic. Pure.

The strategy of the producers names the subjects. A context of a registry numbers its schemas itself, so one id may mean
another schema in each. A registry lists the subject `clicks-value` of the context `.eu` as `:.eu:clicks-value`; one
without a context is of the default context, `.`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from headrace.writer.avro import schema_text
from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.config.sections.registry import FULL_NAME, Strategy
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import Part
from headrace.writer.json.envelope import read_envelope
from headrace.writer.json.json_schema import title_of
from headrace.writer.protobuf.registered_schema import read_schema

# Group of Apicurio's artifacts; Confluent's API has no other.
DEFAULT_GROUP = "default"
DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


class UnclearContext(ConfigError):
    """The schemas of a topic are in a context that the configuration does not name."""


class Subject(NamedTuple):
    """Where versions of a schema are: an artifact of a group in Apicurio, a subject in all others."""

    name: str
    # Full name that its schemas must have; None: any.
    record: str | None = None
    group: str = DEFAULT_GROUP


@dataclass(frozen=True)
class Subjects:
    """The strategy by which producers name subjects, of values or of keys. `records`: topic → full names."""

    strategy: Strategy = "topic_name"
    records: Mapping[str, Sequence[str]] = field(default_factory=dict)
    part: Part = "value"

    def of_keys(self) -> "Subjects":
        """Return the subjects of keys: by the names of topics, whatever those of values are."""
        return Subjects(part="key")

    def of_topic(self, topic: str) -> list[Subject] | None:
        """Return the subjects of a topic; None where only a list of all subjects tells them."""
        if self.strategy == "topic_name":
            return [Subject(f"{topic}-{self.part}")]
        records = self.records.get(topic)
        if records is None:
            return None
        prefix = "" if self.strategy == "record_name" else f"{topic}-"
        return [Subject(prefix + record, record) for record in records]

    def choose(self, topic: str, listing: Iterable[tuple[str, str]]) -> list[Subject]:
        """Return those of a list of (group, subject) that may be the topic's, as `<topic>-<full name of a record>`.

        No full name has a dash, so those of a topic that begins with this topic's name are not among them. Whether the
        schemas have that name, their texts tell.
        """
        prefix = f"{topic}-"
        subjects: list[Subject] = []
        for group, name in listing:
            if not name.startswith(prefix):
                continue
            record = name.removeprefix(prefix)
            if group != DEFAULT_GROUP:
                record = f"{group}.{record}"
            if FULL_NAME.fullmatch(record):
                subjects.append(Subject(name, record, group))
        return subjects

    def of_schema(self, topic: str, text: str) -> str:
        """Return the subject of a topic that has a schema."""
        if self.strategy == "topic_name":
            return f"{topic}-{self.part}"
        name = full_name(text) or ""
        return name if self.strategy == "record_name" else f"{topic}-{name}"

    def describe(self, topics: Iterable[str]) -> str:
        """Name the subjects of topics, for a person."""
        names: list[str] = []
        for topic in topics:
            subjects = self.of_topic(topic)
            if subjects is None:
                names.append(f"{topic}-<full name of a record>")
            else:
                names.append(", ".join(subject.name for subject in subjects))
        return ", ".join(names)


def with_apicurio_groups(subjects: Iterable[Subject]) -> list[Subject]:
    """Add where Apicurio's own serializers put these: the namespace of the record is the group of its artifact."""
    all_subjects: list[Subject] = []
    for subject in subjects:
        all_subjects.append(subject)
        namespace, dot, name = (subject.record or "").rpartition(".")
        if dot and subject.record is not None and subject.group == DEFAULT_GROUP:
            all_subjects.append(Subject(subject.name.removesuffix(subject.record) + name, subject.record, namespace))
    return all_subjects


def fits(subject: Subject, text: str) -> bool:
    """Return whether a schema is one of the subject's record. A Protobuf schema may have others besides."""
    if subject.record is None:
        return True
    protobuf = read_schema(text)
    if protobuf is not None:
        return subject.record in protobuf.messages
    return full_name(text) == subject.record


@lru_cache(maxsize=4096)
def full_name(text: str) -> str | None:
    """Return the full name of a schema, of a JSON Schema its title, of a Protobuf schema that of its first message.

    None where it has none.
    """
    protobuf = read_schema(text)
    if protobuf is not None:
        return next(iter(protobuf.messages), None)
    json_schema = read_envelope(text)
    try:
        if json_schema is not None:
            return title_of(json_schema[0])
        schema = read_json(text)
    except UnsupportedSchema:
        return None
    # An object around a type has no name of its own.
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict):
        schema = schema["type"]
    return schema_text.full_name(schema) if isinstance(schema, dict) else None


def oldest_first(texts: Mapping[int, str], subjects: Sequence[Subject]) -> dict[int, str]:
    """Order the schemas of several subjects by their ids, which count up; those of one are in order."""
    return dict(texts) if len(subjects) == 1 else dict(sorted(texts.items()))


def find_contexts(subjects: Subjects, topic: str, listing: Iterable[str]) -> list[str]:
    """Return the contexts that have a subject of a topic, sorted.

    `listing`: every subject, as the registry names it.
    """
    names_by_context: dict[str, set[str]] = {}
    for full_subject in listing:
        context = DEFAULT_CONTEXT
        name = full_subject
        qualified = _QUALIFIED.fullmatch(full_subject)
        if qualified is not None:
            context, name = qualified.groups()
        names_by_context.setdefault(context, set()).add(name)
    return sorted(context for context, names in names_by_context.items() if _has_subject(subjects, topic, names))


def _has_subject(subjects: Subjects, topic: str, names: set[str]) -> bool:
    """Return whether one of the names is a subject of a topic."""
    topic_subjects = subjects.of_topic(topic)
    if topic_subjects is None:
        return bool(subjects.choose(topic, ((DEFAULT_GROUP, name) for name in names)))
    return any(subject.name in names for subject in topic_subjects)


def describe_choice(subjects: Subjects, topic: str, contexts: Iterable[str]) -> str:
    """Say that the configuration names none of several contexts, and how it does."""
    others = [context for context in contexts if context != DEFAULT_CONTEXT]
    return (
        f"the registry has {subjects.describe([topic])} in the context {' and '.join(others)}, and registry.url names "
        f"no context. Set registry.context to the one that the producers use, such as {others[0]}, or to "
        f"'{DEFAULT_CONTEXT}' for the default one"
    )


def check_contexts(subjects: Subjects, topic: str, contexts: Iterable[str]) -> None:
    """Raise UnclearContext where only contexts that the configuration does not name have subjects of a topic.

    An id of a record would then be looked up in the default context, where it means another schema, or none.
    """
    names = list(contexts)
    if names and DEFAULT_CONTEXT not in names:
        raise UnclearContext(f"{describe_choice(subjects, topic, names)}.")
