"""Decimals as Kafka Connect writes them by one JSON Schema: base64 of the unscaled number, or a number."""

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import DecodedBlock
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json.json_schema import record_text

DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.type": "bytes",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "price": {"oneOf": [{"type": "null"}, DECIMAL]},
        "user": {"type": "object", "properties": {"price": DECIMAL}},
        "prices": {"type": "array", "items": DECIMAL},
        "by_name": {"type": "object", "additionalProperties": DECIMAL},
    },
}


def decode(values: list[bytes], misfit: Any = "dead_letter") -> DecodedBlock:
    """Decode values, first together and then each alone, with one outcome."""
    record = avro.parse(record_text(json.dumps(SCHEMA), {}, undeclared="rest", misfit=misfit))
    decoder = FORMATS["json"].open_decoder(record, native=True, header_bytes=0, scratch="")
    column = pa.array(values, pa.binary())
    block = decoder.decode(column)
    alone = decoder.single(column)  # type: ignore[attr-defined]
    assert block.rows.equals(alone.rows)
    assert block.failures == alone.failures
    return block


def base64_of(unscaled: int) -> str:
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


@pytest.mark.parametrize("unscaled", [0, 1, -1, 127, 128, -128, -129, 150, 9_999_999_999, -9_999_999_999])
def test_a_decimal_is_read_in_both_formats_of_connect(unscaled: int) -> None:
    expected = Decimal(unscaled).scaleb(-2)
    for text in (json.dumps(base64_of(unscaled)), f"{expected:f}"):
        value = f'{{"price":{text},"user":{{"price":{text}}},"prices":[{text},null],"by_name":{{"x":{text}}}}}'
        (row, _) = decode([value.encode(), b"{}"]).rows.to_pylist()
        assert row["price"] == row["user"]["price"] == expected
        assert row["prices"] == [expected, None]
        assert row["by_name"] == [("x", expected)]


def test_a_base64_text_of_digits_is_no_number() -> None:
    # These are the bytes D7 6D F8.
    values = [b'{"price":"1234"}'] * 40
    assert decode(values).rows.column("price").to_pylist() == [Decimal("-26588.24")] * 40


@pytest.mark.parametrize(
    "text", ['""', '"1.5"', '"12"', '"!"', '"AAAAAAAAAAAAAAAAAAAAAAAA"', "1.555", "true", "[]", '"O5rKAAAA"']
)
def test_a_text_that_is_no_such_decimal_fails_alone(text: str) -> None:
    block = decode([b'{"price":1}'] * 20 + [f'{{"price":{text}}}'.encode()] + [b'{"price":1}'] * 20)
    assert list(block.failures) == [20]
    assert block.failures[20].startswith("$.price: expected ")
    assert decode([f'{{"price":{text}}}'.encode()], "null").rows.to_pylist()[0]["rest"] == f'{{"price":{text}}}'
