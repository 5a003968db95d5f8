"""A sample of JSON is decoded by the columns that it proposes: no value of it becomes a dead letter."""

import json
import tempfile

import pyarrow as pa
from hypothesis import given, strategies as st

from headrace.writer.avro.schema import parse
from headrace.writer.formats.formats import format_of
from headrace.writer.json.declared import declared_record
from headrace.writer.preflight.proposal.column_proposal import declaration, propose_columns
from headrace.writer.preflight.proposal.member_statistics import collect_statistics, parse_object
from tests.support.json_objects import NOW, OBJECTS, RESERVED

NUMBERS = st.sampled_from(
    ["0", "-0", "1", "1795737600", "1795737600123", "1795737600.25", "1e3", "1.0", "-1E-7", "9223372036854775807",
     "9223372036854775808", "-9223372036854775808", "1e400", "1e-400", "0.1234567890123456789", "9" * 38, "9" * 39,
     "1E+2", "9007199254740993", "1.5e308"]
)  # fmt: skip
DATES = st.one_of(
    st.dates().map(str), st.sampled_from(["2026-02-30", "0001-01-01", "9999-12-31", "0000-01-01", "2026-11-20"])
)
HOURS = st.sampled_from(
    ["", "05:37", "05", "05:37:30", "24:00", "23:59:60", "05:37:30.1", "05:37:30.1234567890", "05:37:30.", "05:37:30,5"]
)
OFFSETS = st.sampled_from(["", "Z", "z", "+01", "+0100", "+01:00", "-23:59", "+24:00", "+1:00", " UTC", "+01:00:30"])
TIMES = st.tuples(DATES, st.sampled_from(["T", " ", "t", ""]), HOURS, OFFSETS).map("".join).map(json.dumps)
MEMBERS = st.dictionaries(
    st.sampled_from(["a", "at", "b"]),
    st.one_of(NUMBERS, TIMES, st.just("null"), NUMBERS.map("[{}]".format), TIMES.map("[{}]".format)),
)
TEXTS = st.lists(
    MEMBERS.map(lambda members: "{" + ",".join(f'"{name}": {value}' for name, value in members.items()) + "}"),
    max_size=4,
)


@given(st.one_of(TEXTS, OBJECTS.map(lambda objects: [json.dumps(value) for value in objects])))
def test_no_value_of_the_sample_is_a_misfit(texts):
    parsed = {text: members for text in texts if (members := parse_object(text.encode())) is not None}
    declared = declaration(propose_columns(collect_statistics(parsed.values()), RESERVED, NOW))
    if not declared:
        return
    record = parse(declared_record(declared, "rest", "dead_letter"))
    values = pa.array([text.encode() for text in parsed], pa.binary())
    with tempfile.TemporaryDirectory() as scratch:
        decoder = format_of(record).open_decoder(record, native=True, header_bytes=0, scratch=scratch)
        block = decoder.decode(values)
    assert not block.failures, declared
    assert block.rows.num_rows == len(parsed)
