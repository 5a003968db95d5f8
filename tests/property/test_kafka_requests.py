"""Requests to brokers, byte by byte: written as the protocol says; answers are read as they were given, or Corrupt."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.errors import Corrupt
from headrace.writer.kafka_reader.protocol import FieldReader
from headrace.writer.kafka_reader.requests import group_offsets, list_offsets, metadata, topic_configs
from headrace.writer.kafka_reader.requests.group_offsets import Coordinator, GroupOffsets
from headrace.writer.kafka_reader.requests.list_offsets import LogOffset, OffsetQuestion
from headrace.writer.kafka_reader.requests.metadata import Leader
from headrace.writer.kafka_reader.requests.topic_configs import TopicConfig
from tests.support.example_counts import share

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SOURCES = st.tuples(TEXT, INT32)


class Bytes:
    """Reads and writes fields as Kafka's page of the protocol names them; nothing of the client is in it."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.position = 0

    def read(self, layout: str) -> Any:
        values = struct.unpack_from(f">{layout}", self.data, self.position)
        self.position += struct.calcsize(f">{layout}")
        return values if len(values) > 1 else values[0]

    def read_text(self) -> str | None:
        size = self.read("h")
        if size < 0:
            return None
        self.position += size
        return self.data[self.position - size : self.position].decode()

    def read_array(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.read("i"))]

    def read_topics(self, layout: str, *, metadata_after: bool = False) -> dict[Source, Any]:
        values = dict[Source, Any]()
        for _ in range(self.read("i")):
            topic = self.read_text() or ""
            for _ in range(self.read("i")):
                partition, *rest = self.read(layout) if len(layout) > 1 else (self.read(layout),)
                if metadata_after:
                    assert self.read_text() is None
                values[topic, partition] = tuple(rest)
        return values

    @property
    def is_read(self) -> bool:
        return self.position == len(self.data)


def text(value: str | None) -> bytes:
    raw = (value or "").encode()
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(raw)) + raw


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def topics(partitions: Mapping[Source, bytes]) -> bytes:
    names = dict.fromkeys(topic for topic, _ in partitions)
    return array([
        text(name) + array([item for (topic, _), item in partitions.items() if topic == name]) for name in names
    ])  # fmt: skip


def reader(data: bytes) -> FieldReader:
    return FieldReader(memoryview(data))


@given(st.dictionaries(SOURCES, st.tuples(INT32, INT64), max_size=9), st.booleans())
@settings(max_examples=share(200))
def test_a_question_for_offsets_is_written_as_the_protocol_says(
    questions: dict[Source, tuple[int, int]], committed: bool
) -> None:
    asked = [OffsetQuestion(*source, *numbers) for source, numbers in questions.items()]
    written = Bytes(list_offsets.request_body(asked, committed=committed))
    assert written.read("ib") == (-1, int(committed))
    assert written.read_topics("iiq") == questions
    assert written.is_read


@given(st.lists(TEXT, max_size=5, unique=True), st.lists(TEXT, max_size=5))
@settings(max_examples=share(200))
def test_a_question_for_settings_is_written_as_the_protocol_says(names: list[str], keys: list[str]) -> None:
    written = Bytes(topic_configs.request_body(names, keys))
    resources = written.read_array(
        lambda: (written.read("b"), written.read_text(), written.read_array(written.read_text))
    )
    assert resources == [(2, name, keys) for name in names]
    assert written.read("bb") == (0, 0), "without synonyms and documentation"
    assert written.is_read


@given(TEXT, st.dictionaries(SOURCES, INT64, max_size=9))
@settings(max_examples=share(200))
def test_requests_about_groups_are_written_as_the_protocol_says(group: str, offsets: dict[Source, int]) -> None:
    written = Bytes(group_offsets.coordinator_question(group).write(2))
    assert (written.read_text(), written.read("b"), written.is_read) == (group, 0, True)
    written = Bytes(group_offsets.fetch_question(group, offsets).write(5))
    assert written.read_text() == group
    assert written.read_topics("i") == dict.fromkeys(offsets, ())
    assert written.is_read
    written = Bytes(group_offsets.commit_question(group, offsets).write(7))
    assert written.read_text() == group
    assert (written.read("i"), written.read_text(), written.read_text()) == (-1, "", None), "by no member"
    partitions = written.read_topics("iqi", metadata_after=True)
    assert partitions == {source: (offset, -1) for source, offset in offsets.items()}
    assert written.is_read


@st.composite
def offset_answers(draw: st.DrawFn) -> tuple[bytes, dict[Source, LogOffset]]:
    answers = draw(st.dictionaries(SOURCES, st.builds(LogOffset, INT16, INT64, INT64), max_size=9))
    partitions = {
        source: struct.pack(">ihqqi", source[1], answer.error, answer.time_ms, answer.offset, 7)
        for source, answer in answers.items()
    }
    return struct.pack(">i", 0) + topics(partitions), answers


@st.composite
def config_answers(draw: st.DrawFn) -> tuple[bytes, dict[str, TopicConfig]]:
    values = st.dictionaries(TEXT, st.none() | TEXT, max_size=4)
    answers = draw(st.dictionaries(TEXT, st.builds(TopicConfig, INT16, values), max_size=4))
    results = []
    for name, config in answers.items():
        entries = []
        for key, value in config.settings.items():
            synonyms = draw(st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=2))
            more = array([text(synonym) + text(other) + b"\5" for synonym, other in synonyms])
            entries.append(text(key) + text(value) + b"\0\5\0" + more + b"\2" + text(draw(st.none() | TEXT)))
        message = draw(st.none() | TEXT)
        results.append(struct.pack(">h", config.error) + text(message) + b"\2" + text(name) + array(entries))
    return struct.pack(">i", 0) + array(results), answers


@st.composite
def coordinator_answers(draw: st.DrawFn) -> tuple[bytes, Coordinator]:
    answer = draw(st.builds(Coordinator, INT16, st.builds(BrokerAddress, TEXT, INT32)))
    head = struct.pack(">ih", 0, answer.error) + text(draw(st.none() | TEXT)) + struct.pack(">i", draw(INT32))
    return head + text(answer.address.host) + struct.pack(">i", answer.address.port), answer


@st.composite
def group_answers(draw: st.DrawFn) -> tuple[bytes, GroupOffsets]:
    answers = draw(
        st.dictionaries(SOURCES, st.tuples(st.integers(-2, 2**63 - 1), st.sampled_from([0, 0, 3])), max_size=9)
    )
    partitions = {
        source: struct.pack(">iqi", source[1], offset, -1) + text(draw(st.none() | TEXT)) + struct.pack(">h", error)
        for source, (offset, error) in answers.items()
    }
    error = draw(INT16)
    committed = {source: offset for source, (offset, refusal) in answers.items() if offset >= 0 and not refusal}
    return struct.pack(">i", 0) + topics(partitions) + struct.pack(">h", error), GroupOffsets(error, committed)


@st.composite
def commit_answers(draw: st.DrawFn) -> tuple[bytes, dict[Source, int]]:
    answers = draw(st.dictionaries(SOURCES, INT16, max_size=9))
    partitions = {source: struct.pack(">ih", source[1], error) for source, error in answers.items()}
    return struct.pack(">i", 0) + topics(partitions), answers


ANSWERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[FieldReader], object]]] = {
    "ListOffsets": (offset_answers(), list_offsets.answer),
    "DescribeConfigs": (config_answers(), topic_configs.answer),
    "FindCoordinator": (coordinator_answers(), group_offsets.coordinator),
    "OffsetFetch": (group_answers(), group_offsets.offsets),
    "OffsetCommit": (commit_answers(), group_offsets.commit_errors),
}


@pytest.mark.parametrize("name", ANSWERS)
@given(st.data())
@settings(max_examples=share(150))
def test_an_answer_is_read_as_it_was_given_and_one_that_ends_early_is_corrupt(name: str, data: st.DataObject) -> None:
    answers, read = ANSWERS[name]
    encoded, expected = data.draw(answers)
    assert read(reader(encoded)) == expected
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Corrupt, match="an answer of a broker"):
        read(reader(encoded[:end]))


@pytest.mark.parametrize("name", [*ANSWERS, "Metadata"])
@given(st.binary(max_size=200))
@settings(max_examples=share(300))
def test_bytes_that_are_no_answer_are_corrupt_or_an_answer_and_never_a_flood(name: str, data: bytes) -> None:
    read = (lambda fields: metadata.answer(fields, 12)) if name == "Metadata" else ANSWERS[name][1]
    try:
        answer = read(reader(data))
    except Corrupt:
        return
    assert answer is not None


@pytest.mark.parametrize("version", [9, 10, 12])
def test_metadata_counts_partitions_with_and_without_a_leader(version: int) -> None:
    def partition(index: int, node: int) -> bytes:
        return struct.pack(">hiii", 5 if node < 0 else 0, index, node, 4) + b"\1\1\1\0"

    topic_id = bytes(range(16)) if version >= 10 else b""
    broker = b"\x02" + struct.pack(">i", 1) + b"\2h" + struct.pack(">i", 9092) + b"\0\0"
    found = b"\0\0\2a" + topic_id + b"\0\4" + partition(0, 1) + partition(1, -1) + partition(2, 8) + b"\0\0\0\0\0"
    gone = b"\0\3\2b" + bytes(len(topic_id)) + b"\0\1" + b"\0\0\0\0\0"
    rights = b"\0\0\0\0" if version <= 10 else b""
    encoded = b"\0\0\0\0" + broker + b"\0" + struct.pack(">i", 1) + b"\3" + found + gone + rights + b"\0"
    answer = metadata.answer(reader(encoded), version)
    assert answer.partitions == {"a": 3}
    assert answer.leaders == {("a", 0): Leader(1, 4)}, "broker 8 is not there"
    assert answer.errors == {"b": 3}
    assert answer.brokers == {1: BrokerAddress("h", 9092)}


def test_all_topics_are_asked_for_by_a_null_and_none_by_an_empty_list() -> None:
    assert metadata.question(None).write(12)[:1] == b"\0"
    assert metadata.question([]).write(12)[:1] == b"\1"
    assert metadata.question(["b", "a"]).write(9)[:1] == b"\3"
