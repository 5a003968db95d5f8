"""Keys of any Avro schema are read as fastavro reads them, each in its place, whatever stands between them."""

import json
from io import BytesIO

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.schema import UnsupportedSchema, parse
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.schema_reader import KeyPlan, KeyReader
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.framing.wire_format import CONFLUENT
from headrace.writer.schemas.record_source import KeyRecordSource
from headrace.writer.storage.disk_space import scratch
from tests.support.avro_kinds import Kind, kinds, with_unique_names
from tests.support.avro_records import record
from tests.support.example_counts import share

ID = 7
NO_KEY, NO_HEADER, CUT = "no key", "no header", "cut"


class One:
    """A registry with one schema."""

    def __init__(self, text: str) -> None:
        self._text = text

    def schema(self, schema_id: int) -> str:  # noqa: ARG002
        return self._text

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002
        return {ID: self._text}


@st.composite
def keys(draw: st.DrawFn) -> tuple[object, list[object]]:
    kind: Kind = draw(kinds())
    bad = st.sampled_from([NO_KEY, NO_HEADER, CUT]).map(lambda why: (why, None))
    values = st.lists(kind.values.map(lambda value: ("", value)) | bad, min_size=1, max_size=25)
    return with_unique_names(kind.schema), draw(values)


@settings(max_examples=share(60), suppress_health_check=list(HealthCheck))
@given(keys(), st.booleans())
def test_a_key_is_the_field_of_a_record_or_its_record_is_named(drawn, keep) -> None:
    schema, values = drawn
    text = KeyRecordSource(One(json.dumps(schema)), "_key").schema(ID)
    plan = SchemaPlan(pa.schema([])).extend(ID, text)
    known = plan.schemas[ID]
    if not isinstance(known, WriterSchema):
        assert not parses(schema)
        return
    parsed = parse_schema(schema)
    raw, sound = list[bytes | None](), dict[int, bytes]()
    for at, (why, value) in enumerate(values):
        out = BytesIO()
        out.write(CONFLUENT.value_header(ID))
        if not why:
            schemaless_writer(out, parsed, value)
            sound[at] = out.getvalue()
        raw.append({NO_KEY: None, NO_HEADER: b"\1", CUT: b"\0\0\0"}.get(why, out.getvalue()))
    whole = parse_schema(record("R", ("_key", with_unique_names(schema))))
    for at, value in sound.items():  # a record of one field has the encoding of the field
        out = BytesIO()
        schemaless_writer(out, whole, {"_key": values[at][1]})
        assert value == CONFLUENT.value_header(ID) + out.getvalue()
    expected = SingleDecoder(parse(known.text))(pa.array(sound.values(), pa.binary())).rows.column("_key").to_pylist()
    wanted = RecordColumns(("_key", "avro"), keep_undecodable=keep, keys=KeyPlan(plan))
    records = pa.table({"key": pa.array(raw, pa.binary()), "timestamp": pa.nulls(len(raw), pa.timestamp("us", "UTC"))})
    ((column,), reasons) = wanted.build_arrays(records, KeyReader(wanted.keys, scratch()).read)
    assert column.type == wanted.schema.field("_key").type
    placed = dict(zip(sound, expected, strict=True))
    assert repr(column.to_pylist()) == repr([placed.get(at) for at in range(len(raw))])
    assert set(reasons) == (
        set() if keep else {index for index, one in enumerate(values) if one[0] in (NO_HEADER, CUT)}
    )


def parses(schema: object) -> bool:
    """Return whether a record with such a field has a column."""
    try:
        parse(json.dumps(record("R", ("_key", schema))))
    except UnsupportedSchema:
        return False
    return True
