"""The DescribeConfigs request: settings of topics. Source: https://kafka.apache.org/protocol, version 3."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.writer.kafka_reader.protocol import Api, FieldReader, short_array, short_text
from headrace.writer.kafka_reader.requests.question import Question

_TOPIC = 2
# Neither synonyms nor documentation.
_WITHOUT_MORE = b"\0\0"


@dataclass(frozen=True)
class TopicConfig:
    """Settings of a topic by their names; a value may be null."""

    error: int
    settings: Mapping[str, str | None]


def question(topics: Iterable[str], names: Sequence[str]) -> Question[dict[str, TopicConfig]]:
    """Return the question for some settings of topics, which any broker answers."""
    body = request_body(topics, names)
    return Question(Api.DESCRIBE_CONFIGS, lambda _: body, lambda reader, _: answer(reader))


def request_body(topics: Iterable[str], names: Sequence[str]) -> bytes:
    """Write the question."""
    keys = short_array(map(short_text, names))
    return short_array(struct.pack(">b", _TOPIC) + short_text(topic) + keys for topic in topics) + _WITHOUT_MORE


def answer(reader: FieldReader) -> dict[str, TopicConfig]:
    """Read the answer. Raises Corrupt."""
    # The request is never throttled for long.
    _throttled_ms = reader.number("i")
    configs = dict[str, TopicConfig]()
    for _ in reader.short_count():
        error = reader.number("h")
        _message = reader.short_text()
        _type = reader.number("b")
        topic = reader.short_text() or ""
        settings = dict[str, str | None]()
        for _ in reader.short_count():
            name, value = _setting(reader)
            settings[name] = value
        configs[topic] = TopicConfig(error, settings)
    return configs


def _setting(reader: FieldReader) -> tuple[str, str | None]:
    name = reader.short_text() or ""
    value = reader.short_text()
    _is_read_only, _source, _is_sensitive = reader.numbers("bbb")
    # Synonyms: names, values and sources.
    for _ in reader.short_count():
        reader.short_text()
        reader.short_text()
        reader.number("b")
    _type = reader.number("b")
    _documentation = reader.short_text()
    return name, value
