"""All value formats, and the one that a record schema names."""

from collections.abc import Mapping

from headrace.writer.avro.schema import Record
from headrace.writer.formats.avro_format import AvroFormat
from headrace.writer.formats.format import Format
from headrace.writer.formats.json_format import JsonFormat
from headrace.writer.formats.protobuf_format import ProtobufFormat
from headrace.writer.formats.raw_format import RawFormat

AVRO = AvroFormat()
# By the name in a record schema.
FORMATS: Mapping[str, Format] = {known.name: known for known in (AVRO, JsonFormat(), ProtobufFormat(), RawFormat())}
# Attribute of the root of a record schema.
FORMAT = "headrace.format"


def format_of(record: Record) -> Format:
    """Return the format of values that a record schema describes."""
    return FORMATS[record.root.get(FORMAT, AVRO.name)]
