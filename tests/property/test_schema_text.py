"""Whatever text a registry holds, it is admitted or rejected, on each way to a plan, and harms no other schema.

Avro's Java library is the witness of what is a schema, and of how its values are encoded.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.decoding.value_writer import write_samples
from headrace.writer.avro.schema_text import UNFORESEEN, UnsupportedSchema, parse_schema
from headrace.writer.columns.schema_plan import RejectedSchema
from tests.support.avro_java import AvroJudge
from tests.support.schema_admission import GOOD, WAYS, WIDER, Outcome, texts_by_id
from tests.support.schema_texts import random_text

# In the long profile 100,000 texts take some 20 minutes. Of each start only one or ten are odd.
pytestmark = pytest.mark.timeout(3600)
IS_LONG = settings.default.max_examples >= 1_000
TEXTS_OF_START = 10 if IS_LONG else 1
STARTS_OF_EXAMPLE = 10 if IS_LONG else 3
JUDGED_TEXTS = 20 if IS_LONG else 12
SECONDS_MAX = 20.0  # of the processor, for one text on one way; the largest takes a tenth of a second on its own
REASON_MAX = 1_100
SAMPLES = 6
BYTES_MAX = 2**20  # of the fixed types of a record; Java is given little memory
# What Java takes, and headrace does not: what no table can have, and what is larger than a schema of a table.
STRICTER = (
    "control character",
    "an empty name",
    "larger than any record",
    "more than 500 brackets",
    "characters, and may have",
    "levels deep",
    "parts; split it",
    "no symbols",
    "no list of symbols",
    "half of a pair",
    "negative size",
    "defined twice",
)


@pytest.fixture(scope="module")
def judge() -> Iterator[AvroJudge]:
    with AvroJudge() as witness:
        yield witness


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    counts = Counter[str]()
    yield counts
    print(dict(sorted(counts.items())))
    assert counts["route: WriterSchema"] > counts["texts"] // 8, "the texts are no test of what is admitted"


@pytest.fixture(scope="module")
def without() -> dict[str, Outcome]:
    return {name: way([]) for name, way in WAYS.items()}


def refusal_of(text: str) -> str | None:
    """Return why a text is no schema; None: it is one, of whatever type."""
    try:
        parse_schema(text)
    except UnsupportedSchema as error:
        return str(error)
    return None


def check_way(name: str, texts: list[str], without: Outcome) -> Counter[str]:
    """Take texts on one way. Each is admitted or rejected; where all are rejected, nothing changes for others."""
    began_s = time.process_time()
    outcome = WAYS[name](texts)
    assert time.process_time() - began_s < SECONDS_MAX
    for schema_id in texts_by_id(texts):
        known = outcome.schemas[schema_id]
        if isinstance(known, RejectedSchema):
            assert UNFORESEEN not in known.reason
            assert 10 < len(known.reason) < REASON_MAX
            assert known.reason.isprintable()
    kinds = Counter(type(outcome.schemas[schema_id]).__name__ for schema_id in texts_by_id(texts))
    if not kinds["WriterSchema"]:
        assert outcome.columns == without.columns
        for number in (GOOD, WIDER):
            assert type(outcome.schemas.get(number)) is type(without.schemas.get(number))
    return kinds


@given(seed=st.integers(0, 2**63))
@settings(print_blob=True)
def test_any_text_is_admitted_or_rejected_on_each_way(
    tally: Counter[str], without: dict[str, Outcome], seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(STARTS_OF_EXAMPLE):
        texts = [random_text(rng) for _ in range(TEXTS_OF_START)]
        tally["texts"] += len(texts)
        for name in WAYS:
            for kind, count in check_way(name, texts, without[name]).items():
                tally[f"{name}: {kind}"] += count


@given(seed=st.integers(0, 2**63))
@settings(print_blob=True)
def test_a_text_that_java_takes_is_a_schema_and_its_values_are_read_alike(judge: AvroJudge, seed: int) -> None:
    for number in range(JUDGED_TEXTS):
        text = random_text(random.Random(f"{seed} {number}"))
        is_schema = judge.accepts(text)
        refusal = refusal_of(text)
        if is_schema and refusal is not None:
            assert any(word in refusal for word in STRICTER), text
        if not is_schema or refusal is not None:
            continue
        try:
            record = avro.parse(text)
        except UnsupportedSchema:
            continue
        if avro.fixed_bytes(record, record.root) > BYTES_MAX:
            continue
        samples = list(write_samples(record, SAMPLES))
        for sample, rewritten in zip(samples, judge.rewrite(text, samples), strict=True):
            # Java keeps no order of a map's keys.
            assert rewritten is not None
            assert sorted(rewritten) == sorted(sample)
        decoded = SingleDecoder(record, header_bytes=0)(pa.array(samples, pa.binary()))
        assert not decoded.failures
