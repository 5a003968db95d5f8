"""A sample of topics in old and new formats: only the old ones are read without their headers."""

from collections.abc import Mapping, Set as AbstractSet

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.writer.clients.kafka_sample import Reader, read_by_format
from headrace.writer.core.offsets import Source, Span
from headrace.writer.kafka_reader.errors import AccessDenied, OldRecordFormat, UnsupportedBroker

TOPICS = ("a", "b", "c")
SOURCES = st.tuples(st.sampled_from(TOPICS), st.integers(0, 3))


def batch(source: Source, span: Span, reader: str) -> pa.RecordBatch:
    """Return a row that says who read what."""
    return pa.record_batch(
        [[source[0]], [source[1]], [span[0]], [reader]], names=["topic", "partition", "from", "reader"]
    )


def native(old_topics: AbstractSet[str]) -> Reader:
    """Return a reader that meets the format of old topics."""

    def read(spans: Mapping[Source, Span]) -> list[pa.RecordBatch]:
        for source in spans:
            if source[0] in old_topics:
                raise OldRecordFormat("old", *source, 0)
        return [batch(source, span, "native") for source, span in spans.items()]

    return read


def consumer(spans: Mapping[Source, Span]) -> list[pa.RecordBatch]:
    return [batch(source, span, "consumer") for source, span in spans.items()]


@given(st.dictionaries(SOURCES, st.tuples(st.integers(0, 9), st.just(10))), st.sets(st.sampled_from(TOPICS)))
def test_each_partition_is_read_once_and_those_of_old_topics_alone_by_the_consumer(
    spans: dict[Source, Span], old_topics: set[str]
) -> None:
    batches = read_by_format(spans, native(old_topics), consumer)
    rows = sorted(tuple(each.to_pylist()[0].values()) for each in batches)
    assert rows == sorted(
        (topic, partition, start, "consumer" if topic in old_topics else "native")
        for (topic, partition), (start, _) in spans.items()
    )


def test_an_old_broker_is_read_by_the_consumer_and_a_refusal_is_raised() -> None:
    def fail(error: Exception) -> Reader:
        def read(_: Mapping[Source, Span]) -> list[pa.RecordBatch]:
            raise error

        return read

    spans = {("a", 0): (0, 5), ("b", 1): (2, 5)}
    batches = read_by_format(spans, fail(UnsupportedBroker("old")), consumer)
    assert [each.column("reader").to_pylist() for each in batches] == [["consumer"], ["consumer"]]
    with pytest.raises(AccessDenied):
        read_by_format(spans, fail(AccessDenied("no")), consumer)
