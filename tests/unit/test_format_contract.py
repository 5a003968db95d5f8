"""What every format of values promises, whatever library decodes it."""

import json
import os
import random
import resource
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.avro import schema as avro
from headrace.writer.formats.format import ValueDecoder
from headrace.writer.formats.formats import FORMATS, format_of
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import compile_files
from tests.support.protobuf_schemas import message_class

HEADER = b"\x00\x00\x00\x00\x07"
EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
    ],
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
DECLARED = {"id": "long", "text": "string", "tags": ["string"], "counts": {"*": "long"}}
PROTOBUF = compile_files(
    {
        "event.proto": """syntax = "proto3";
        message Event {
          int64 id = 1; optional string text = 2; repeated string tags = 3; map<string, int64> counts = 4;
        }
        """
    },
    "event.proto",
)
ROWS = [
    {
        "id": number,
        "text": None if number % 3 else f"text {number}",
        "tags": ["a"] * (number % 4),
        "counts": {"k": number},
    }
    for number in range(60)
]


@dataclass(frozen=True)
class FormatCase:
    """A format: the record schema of its values, and how a row becomes one."""

    name: str
    text: str

    def open(self, header_bytes: int = 0) -> ValueDecoder:
        record = avro.parse(self.text)
        adapter = format_of(record)
        native = adapter.is_native(record)
        return adapter.open_decoder(record, native=native, header_bytes=header_bytes, scratch=tempfile.gettempdir())

    def encode(self, row: dict[str, Any]) -> bytes:
        if self.name == "protobuf":
            return message_class(PROTOBUF, "Event")(**row).SerializeToString()
        if self.name != "avro":
            return json.dumps(row).encode()
        out = BytesIO()
        schemaless_writer(out, parse_schema(EVENT), row)
        return out.getvalue()


def record_text(formats: tuple[Any, ...], document: Any) -> str:
    return ValueRules(formats).record_text(json.dumps(document))


CASES = [
    FormatCase("avro", record_text(("avro",), EVENT)),
    FormatCase("json_schema", record_text(("json_schema",), JSON_SCHEMA)),
    FormatCase("json", str(ValueRules(("json",), DECLARED).unnamed_schema)),
    FormatCase("protobuf", protobuf_record(PROTOBUF, "Event")),
    FormatCase("raw", str(ValueRules(("raw",)).unnamed_schema)),
]
DECODING = [case for case in CASES if case.name != "raw"]


def by_name(case: FormatCase) -> str:
    return case.name


def test_every_format_is_tried_here() -> None:
    assert {format_of(avro.parse(case.text)).name for case in CASES} == set(FORMATS)


@pytest.mark.parametrize("header", [b"", HEADER], ids=["bare", "framed"])
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_row_i_is_value_i_with_and_without_a_header(case: FormatCase, header: bytes) -> None:
    values = pa.array([header + case.encode(row) for row in ROWS], pa.binary())
    block = case.open(len(header)).decode(values)
    assert block.failures == {}
    assert block.positions.to_pylist() == list(range(len(ROWS)))
    if case.name != "raw":
        assert block.rows.column("id").to_pylist() == [row["id"] for row in ROWS]
        assert block.rows.column("counts").to_pylist(maps_as_pydicts="strict") == [row["counts"] for row in ROWS]


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_a_slice_and_no_values_are_blocks(case: FormatCase) -> None:
    values = pa.array([case.encode(row) for row in ROWS], pa.binary())
    decoder = case.open()
    whole = decoder.decode(values).rows
    for start, count in ((0, 0), (1, 3), (5, 40), (59, 1)):
        block = decoder.decode(values.slice(start, count))
        assert block.rows.equals(whole.slice(start, count))
        assert block.rows.schema == whole.schema


@pytest.mark.parametrize("case", DECODING, ids=by_name)
def test_a_bad_value_fails_alone_and_its_reason_has_nothing_of_it(case: FormatCase) -> None:
    secret = "canary-4711"
    encoded = [case.encode(row) for row in ROWS]
    # An empty message is a sound one of Protobuf.
    empty = b"\x00" if case.name == "protobuf" else b""
    bad = {3: encoded[3][:-2], 17: empty, 30: b"\xff" * 40, 45: secret.encode() * 3}
    values = [bad.get(position, value) for position, value in enumerate(encoded)]
    decoder = case.open()
    block = decoder.decode(pa.array(values, pa.binary()))
    assert set(block.failures) == set(bad)
    sound = [position for position in range(len(ROWS)) if position not in bad]
    assert block.positions.to_pylist() == sound
    assert block.rows.column("id").to_pylist() == sound
    assert all(reason and secret not in reason for reason in block.failures.values())
    assert not decoder.unresponsive


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_a_child_decodes_after_its_parent_did(case: FormatCase) -> None:
    values = pa.array([case.encode(row) for row in ROWS], pa.binary())
    assert case.open().decode(values).rows.num_rows == len(ROWS)
    child = os.fork()
    if child == 0:
        rows = -1
        try:
            rows = case.open().decode(values).rows.num_rows
        finally:
            os._exit(0 if rows == len(ROWS) else 1)
    ends_s = time.monotonic() + 60
    ended = 0
    status = 1
    while not ended and time.monotonic() < ends_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended, "a library of the format hangs after a fork"
    assert status == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", DECODING, ids=by_name)
def test_random_bytes_cost_neither_the_process_nor_time_nor_memory(case: FormatCase) -> None:
    """A panic of a library is no Exception: whatever it is, it stays a reason."""
    rng = random.Random(case.name)
    encoded = [case.encode(row) for row in ROWS]
    decoder = case.open()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    for _ in range(60):
        values = list(encoded)
        positions = rng.sample(range(len(ROWS)), 6)
        for position in positions:
            values[position] = rng.randbytes(rng.choice([1, 9, 200, 5000]))
        block = decoder.decode(pa.array(values, pa.binary()))
        good = sorted(set(range(len(ROWS))) - set(positions))
        assert set(good) <= set(block.positions.to_pylist())
    assert time.process_time() - began_s < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) < 300 * 1024
