"""Columns of keys and headers: what Python says of each record, whatever comes."""

from math import inf

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.writer.batch.record_columns import TYPES, RecordColumns
from headrace.writer.framing.wire_format import HEADERS

NAMES = st.sampled_from(["trace", "count", "", "é"])
TEXTS = st.sampled_from([
    b"12", b"-3", b"1.5", b"true", b"text", b"", b"\xff", b"0x10", b"0XFFFFFFFFFFFFFFFF", b"1e400", b"-1e999", b"-inf",
    b"0007", b"9223372036854775808", b"1e-400", "\u0663".encode(),
])  # fmt: skip
VALUES = st.none() | st.binary(max_size=4) | TEXTS


def records_of(values: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[list]:
    headers = st.none() | st.lists(st.tuples(NAMES, values), max_size=4)
    return st.lists(st.tuples(st.none() | values, headers), max_size=8)


READ = {
    "binary": lambda value: value,
    "string": lambda value: value.decode(),
    "long": int,
    "double": float,
}


def table(records: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None]], chunks: int = 1) -> pa.Table:
    headers = [None if h is None else [{"key": k, "value": v} for k, v in h] for _, h in records]
    whole = pa.table({"key": pa.array([k for k, _ in records], pa.binary()), "headers": pa.array(headers, HEADERS)})
    cut = len(records) // chunks if chunks > 1 else len(records)
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])


def columns(wanted: RecordColumns, records: pa.Table) -> tuple[dict[str, list[object]], dict[int, str]]:
    arrays, reasons = wanted.build_arrays(records)
    found = pa.table(arrays, schema=wanted.schema) if arrays else pa.table({})
    return {name: found.column(name).to_pylist() for name in found.column_names}, reasons


@given(records_of(VALUES), st.integers(1, 2))
def test_headers_are_a_map_in_which_the_last_of_a_name_counts(records, chunks) -> None:
    found, reasons = columns(RecordColumns(headers="_headers"), table(records, chunks))
    assert not reasons
    expected = [None if headers is None else dict(headers) for _, headers in records]
    assert [None if header is None else dict(header) for header in found["_headers"]] == expected
    assert all(header is None or len(dict(header)) == len(header) for header in found["_headers"])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", ["binary", "string"])
@given(records=records_of(VALUES))
def test_a_key_has_its_type_or_its_record_is_named(records, kind, keep) -> None:
    found, reasons = columns(RecordColumns(key=("_key", kind), keep_undecodable=keep), table(records))
    undecodable = {index for index, (key, _) in enumerate(records) if key is not None and not _reads(key, kind)}
    for at, (key, _) in enumerate(records):
        assert found["_key"][at] == (None if key is None or at in undecodable else READ[kind](key))
    assert set(reasons) == (set() if keep else undecodable)


@pytest.mark.parametrize("kind", TYPES)
@given(records=records_of(st.none() | TEXTS))
def test_a_chosen_header_has_its_type_or_its_record_is_named(records, kind) -> None:
    wanted = RecordColumns(chosen=(("trace_id", "trace", kind),))
    found, reasons = columns(wanted, table(records))
    for index, (_, headers) in enumerate(records):
        value = dict(headers or []).get("trace")
        if index in reasons:
            assert value is not None
            assert found["trace_id"][index] is None
            assert reasons[index] == f"the header 'trace' is no {kind}"
        elif value is None:
            assert found["trace_id"][index] is None
        elif kind in READ:
            assert found["trace_id"][index] == READ[kind](value)
            assert kind != "double" or found["trace_id"][index] not in (inf, -inf) or value == b"-inf"
    assert kind != "binary" or not reasons


def test_records_without_headers_of_an_archive_have_null_columns() -> None:
    wanted = RecordColumns(headers="_headers", chosen=(("trace_id", "trace", "string"),))
    found, reasons = columns(wanted, table([(b"k", None)] * 2).select(["key"]))
    assert (found, reasons) == ({"_headers": [None, None], "trace_id": [None, None]}, {})


def _reads(value: bytes, kind: str) -> bool:
    try:
        READ[kind](value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        ("long", b"0x10", None), ("long", b"0xffffffffffffffff", None), ("long", b"007", 7),
        ("double", b"1e400", None), ("double", b"-1E999", None), ("double", b"-inf", -inf), ("double", b"1e-400", 0.0),
    ],
)  # fmt: skip
def test_a_number_is_not_another_than_its_text_says(kind: str, text: bytes, number: float | None) -> None:
    records = [(None, [("trace", value)]) for value in (b"5", text, b"6")]
    found, reasons = columns(RecordColumns(chosen=(("trace_id", "trace", kind),)), table(records))
    assert found["trace_id"] == [5, number, 6]
    assert reasons == ({} if number is not None else {1: f"the header 'trace' is no {kind}"})
