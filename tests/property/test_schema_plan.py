"""The schema plan against Avro's own resolution, as fastavro does it between a writer and a reader."""

import json
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.decoding.decode import decode
from headrace.writer.framing.wire_format import header
from tests.support.example_counts import share

EMPTY = SchemaPlan(pa.schema([]))
ARROW = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
VALUES = {
    "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1), "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32), "double": st.floats(), "bytes": st.binary(max_size=8),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
}  # fmt: skip
PROMOTED = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"),
}  # fmt: skip
WIDENED = {
    ("int", "long"): "long",
    ("int", "float"): "double",
    ("int", "double"): "double",
    ("float", "double"): "double",
}


def schema(*fields: tuple[str, Any] | tuple[str, Any, list[str]]) -> str:
    listed = [{"name": f[0], "type": f[1], **({"aliases": f[2]} if len(f) > 2 else {})} for f in fields]
    return json.dumps({"type": "record", "name": "Event", "fields": listed})


def encode_rows(text: str, rows: list[dict[str, Any]]) -> list[bytes]:
    out = []
    for row in rows:
        sink = BytesIO()
        sink.write(header(1))
        schemaless_writer(sink, parse_schema(json.loads(text)), row)
        out.append(sink.getvalue())
    return out


def decode_rows(plan: SchemaPlan, schema_id: int, rows: list[dict[str, Any]]) -> pa.Table:
    """The rows that a table of this plan gets from these records."""
    known = plan.schemas[schema_id]
    assert isinstance(known, WriterSchema), known
    record = avro.parse(known.text)
    values = pa.array(encode_rows(known.text, rows), pa.binary())
    decoded = decode(values, NativeDecoder(record) if known.native else None, SingleDecoder(record))
    assert not decoded.failures
    return conform(decoded.rows, known, plan)


def reason(plan: SchemaPlan, schema_id: int) -> str:
    known = plan.schemas[schema_id]
    assert isinstance(known, RejectedSchema)
    return known.reason


@pytest.mark.parametrize("writer", sorted(VALUES))
@pytest.mark.parametrize("column", sorted(VALUES))
def test_a_field_is_promoted_or_widens_its_column_or_is_rejected(writer, column):
    """As Avro says with the column as the reader; but bytes do not become text: they need not be UTF-8."""
    table = EMPTY.extend(1, schema(("id", "long"), ("a", column)))
    plan = table.extend(2, schema(("a", writer), ("id", "long")))
    reader = column if writer == column or (writer, column) in PROMOTED else WIDENED.get((column, writer))
    if reader is None:
        assert plan.columns.equals(table.columns)
        assert reason(plan, 2) == f"schema id 2: field 'a' is {ARROW[writer]}, but column 'a' holds {ARROW[column]}"
        return
    assert plan.columns.field("a").type == ARROW[reader]

    @settings(max_examples=share(15))
    @given(st.sampled_from([(1, column), (2, writer)]), st.data())
    def values_are_fastavros(which: tuple[int, str], data: st.DataObject) -> None:
        schema_id, kind = which
        rows = [
            {"a": value, "id": i} for i, value in enumerate(data.draw(st.lists(VALUES[kind], min_size=1, max_size=20)))
        ]
        conformed = decode_rows(plan, schema_id, rows)
        writers = parse_schema(json.loads(plan.schemas[schema_id].text))
        readers = parse_schema(json.loads(schema(("id", "long"), ("a", reader))))
        expected = []
        for value in encode_rows(plan.schemas[schema_id].text, rows):
            read = schemaless_reader(BytesIO(value[5:]), writers, readers)["a"]
            # fastavro hands over Python's float, which is a double; the column rounds to what a float can be.
            expected.append(pa.scalar(float(read) if reader in ("float", "double") else read, ARROW[reader]).as_py())
        assert repr(conformed["a"].to_pylist()) == repr(expected)
        assert conformed["id"].to_pylist() == list(range(len(rows)))

    values_are_fastavros()


def test_a_column_stays_as_narrow_as_it_is_where_wider_is_not_wanted():
    table = SchemaPlan(pa.schema([]), widen="none").extend(1, schema(("a", "int"), ("b", "long")))
    plan = table.extend(2, schema(("a", "long"))).extend(3, schema(("b", "int")))
    assert plan.columns.equals(table.columns)
    sentence = "field 'a' is int64, but column 'a' holds int32, and schemas.widen is 'reject'"
    assert reason(plan, 2) == f"schema id 2: {sentence}"
    assert decode_rows(plan, 3, [{"b": 1}])["b"].to_pylist() == [1]


WIDER = {("int32", "int64"), ("int32", "double"), ("float", "double")}
NAMES = [f"c{i}" for i in range(8)]


@settings(max_examples=share(40))
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(ARROW)), min_size=1), max_size=4))
def test_columns_are_only_ever_appended_and_a_row_is_null_where_its_writer_has_none(schemas):
    plan = EMPTY
    for schema_id, fields in enumerate(schemas):
        before, plan = plan.columns, plan.extend(schema_id, schema(*fields.items()))
        assert plan.columns.names[: len(before)] == before.names
        for name in before.names:
            was, is_now = before.field(name).type, plan.columns.field(name).type
            assert was == is_now or (str(was), str(is_now)) in WIDER
        known = plan.schemas[schema_id]
        if isinstance(known, RejectedSchema):
            assert plan.columns.equals(before)
            continue
        new = [name for name in fields if name not in before.names]
        assert plan.columns.names == [*before.names, *new]
    zero = {"boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}
    for schema_id, fields in enumerate(schemas):
        if isinstance(plan.schemas[schema_id], WriterSchema):
            rows = decode_rows(plan, schema_id, [{name: zero[kind] for name, kind in fields.items()}] * 3)
            assert rows.schema.equals(plan.columns)
            assert rows.num_rows == 3
            for name in rows.column_names:
                assert rows[name].null_count == (0 if name in fields else 3)


def test_an_alias_leads_a_renamed_field_to_its_column():
    plan = EMPTY.extend(1, schema(("id", "long"), ("user", "string")))
    plan = plan.extend(2, schema(("account", "string", ["login", "user"]), ("id", "long")))
    assert plan.columns.names == ["id", "user"]
    rows = decode_rows(plan, 2, [{"account": "ann", "id": 5}])
    assert rows.to_pylist() == [{"id": 5, "user": "ann"}]


def test_a_name_that_is_a_column_comes_before_its_aliases():
    plan = EMPTY.extend(1, schema(("a", "int"), ("b", "int"))).extend(2, schema(("b", "int", ["a"])))
    assert decode_rows(plan, 2, [{"b": 1}]).to_pylist() == [{"a": None, "b": 1}]


def test_two_schemas_of_one_batch_are_settled_in_order():
    plan = EMPTY.extend(1, schema(("a", "long"))).extend(2, schema(("b", "int"))).extend(3, schema(("b", "string")))
    assert plan.columns.names == ["a", "b"]
    assert reason(plan, 3) == "schema id 3: field 'b' is string, but column 'b' holds int32"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([("ID", "long")], "field 'ID' differs from column 'id' only in case"),
        ([("x", "int"), ("X", "int")], "field 'X' differs from column 'x' only in case"),
        ([("_offset", "long")], "field '_offset' has a name that headrace keeps for itself; rename it"),
        ([("Hour", "string")], "field 'Hour' has a name that headrace keeps for itself; rename it"),
        ([("id", "string")], "field 'id' is string, but column 'id' holds int64"),
        ([("old", "string", ["id"])], "field 'old' is string, but column 'id' holds int64"),
        ([("id", "long"), ("old", "long", ["id"])], "two fields would fill column 'id'"),
        ([("point", {"type": "record", "name": "P", "fields": [{"name": "x", "type": "string"}]})],
         "field 'point.x' is string, but column 'point.x' holds int32"),
        ([("point", {"type": "record", "name": "P", "fields": [{"name": "X", "type": "int"}]})],
         "field 'point.X' differs from column 'point.x' only in case"),
        ([("point", {"type": "array", "items": "int"})],
         "field 'point' is list<element: int32>, but column 'point' holds struct<x: int32>"),
        ([("none", "null")], "none of its fields holds a value; a table has no column for it"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_fill_the_columns_is_rejected_with_a_sentence(fields, sentence):
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    table = SchemaPlan(pa.schema([]), frozenset({"_offset", "hour"})).extend(
        1, schema(("id", "long"), ("point", point))
    )
    plan = table.extend(2, schema(*fields))
    assert reason(plan, 2) == f"schema id 2: {sentence}"
    assert plan.columns.equals(table.columns)
    assert plan.schemas[1] == table.schemas[1]


def test_text_that_is_no_schema_is_rejected():
    assert reason(EMPTY.extend(9, "{"), 9).startswith("schema id 9: not an Avro schema: ")
    assert reason(EMPTY.extend(9, '"string"'), 9).startswith("schema id 9: the root is string, not a record")
