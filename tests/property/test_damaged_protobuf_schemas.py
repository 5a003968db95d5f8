"""Whatever a registry holds as a Protobuf schema, it is taken or refused by a sentence, and stops no other schema.

Texts with words replaced, and serialized descriptors with bytes replaced, are read as a start reads them.
"""

import base64
import random
import re
import resource
import subprocess
import sys
from collections.abc import Mapping

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UNFORESEEN, UnsupportedSchema
from headrace.writer.formats.formats import FORMATS
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.protobuf.message_types import compile_types
from headrace.writer.protobuf.registered_schema import read_schema, wrap_schema
from headrace.writer.schemas.record_source import RecordSource
from headrace.writer.schemas.schema_id_check import fingerprint_of, registered_fingerprint
from tests.support.example_counts import share
from tests.support.protobuf_schemas import any_schema

GOOD = 1
ODD = 2
GOOD_TEXT = 'syntax = "proto3"; message Good { int32 a = 1; }'
OTHER = """syntax = "proto2"; package other;
message O { required int64 i = 1; optional group G = 2 { optional int32 x = 1; } }
"""
MAIN = """syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto"; import "other.proto";
message M { option deprecated = true; int32 a = 1; map<string, N> m = 2; repeated N n = 3 [debug_redact = true];
  oneof o { string s = 4; bytes b = 5; } google.protobuf.Timestamp t = 6; enum E { Z = 0; A = 1; } E e = 7;
  reserved 8, 10 to max; message N { M m = 1; other.O o = 2; } }
message P { optional double d = 1; } service S { rpc R(M) returns (P); }
"""
WORDS = re.findall(r'\s+|"[^"]*"|[A-Za-z0-9_.]+|.', MAIN, re.DOTALL)
JUNK = (
    "{", "}", '"', "'", "=", "0", "-1", "99999999999999999999", "1e9", "message", "enum", "oneof", "map<", ">", "\x00",
    "é", "\ud800", '"\\xff"', '"größe.proto"', "[", "]", "(", "import", '""', '"/etc/passwd"', "public", "option",
    "extend", "syntax", "edition", '"2023"', "..", "//", "/*", "inf",
)  # fmt: skip
NAMES = ("", "..", "/x", "\ud800.proto", "\udc80", "x" * 300, "schema.proto", "a", "other.proto/x", "größe.proto")


def damaged_text(rng: random.Random) -> str:
    words = list(WORDS)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        position = rng.randrange(len(words))
        match rng.randrange(4):
            case 0:
                words[position] = rng.choice(JUNK)
            case 1:
                del words[position]
            case 2:
                words.insert(position, rng.choice(JUNK))
            case _:
                words[position] = rng.choice(words)
    return "".join(words)


def damaged_descriptor(rng: random.Random) -> str:
    schema = any_schema(rng, groups=rng.random() < 0.3)
    content = bytearray(descriptor_pb2.FileDescriptorSet.FromString(schema.file_set).file[-1].SerializeToString())
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        position = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[position] = rng.randrange(256)
            case 1:
                content[position] = 0xFF
            case 2:
                del content[position : position + rng.choice([1, 2, 8])]
            case _:
                content[position:position] = rng.randbytes(rng.choice([1, 3]))
    return base64.b64encode(bytes(content)).decode()


def random_text(rng: random.Random) -> str:
    references = {"other.proto": OTHER}
    if rng.random() < 0.2:
        references[rng.choice(NAMES)] = rng.choice([OTHER, "", "\x00", damaged_text(rng)])
    if rng.random() < 0.5:
        return wrap_schema(damaged_text(rng), references)
    references = {}
    if rng.random() < 0.2:
        references[rng.choice(NAMES)] = damaged_descriptor(rng)
    return wrap_schema(damaged_descriptor(rng), references)


COMPILE = """
import sys
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.protobuf.message_types import compile_types
try:
    compile_types(sys.stdin.read())
except UnsupportedSchema as error:
    print(error)
"""


class Source:
    def __init__(self, text: str) -> None:
        self.texts = {GOOD: GOOD_TEXT, ODD: text}

    def schema(self, schema_id: int) -> str:
        return self.texts[schema_id]

    def topic_schemas(self, topic: str) -> Mapping[int, str]:  # noqa: ARG002 - one topic
        return self.texts


def check_start(text: str, rng: random.Random) -> bool:
    """Read a text beside a good one, as a start does. Returns whether it is taken."""
    schema = read_schema(text)
    assert schema is not None
    assert all(isinstance(name, str) for name in schema.messages)
    fingerprint = fingerprint_of(text)
    assert registered_fingerprint(text) == fingerprint
    records = RecordSource(Source(text), ValueRules(formats=("protobuf",))).topic_schemas("t")
    assert UNFORESEEN not in records[ODD]
    with_good = {compile_types(GOOD_TEXT).only_name}
    for record_text in (record for schema_id, record in records.items() if schema_id not in (GOOD, ODD)):
        record = avro.parse(record_text)
        with_good.discard(record.root["name"])
        check_values(record, rng)
    assert not with_good
    return fingerprint is not None


def check_values(record: avro.Record, rng: random.Random) -> None:
    native = FORMATS["protobuf"].is_native(record)
    decoder = FORMATS["protobuf"].open_decoder(record, native=native, header_bytes=0, scratch="")
    values = [b"", *(rng.randbytes(rng.randrange(12)) for _ in range(5))]
    block = decoder.decode(pa.array(values, pa.binary()))
    block.rows.validate(full=True)
    assert sorted([*block.positions.to_pylist(), *block.failures]) == list(range(len(values)))


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_any_schema_is_taken_or_refused_and_stops_no_other() -> None:
    taken = 0
    # In the long profile 40,000 schemas.
    count = max(400, share(800))
    for seed in range(count):
        rng = random.Random(seed)
        taken += check_start(random_text(rng), rng)
    assert 0 < taken < count


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto2"; message M {' + "optional group G = 1 {" * 100_000 + "}" * 100_001,
        'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message O { optional O o = 1; } '
        "extend google.protobuf.MessageOptions { optional O x = 50000; } "
        "message M { option (x) = {" + "o {" * 1_000 + "}" * 1_000 + "}; optional int32 a = 1; }",
        'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message O { optional O o = 1; } '
        "extend google.protobuf.MessageOptions { optional O x = 50000; } "
        "message M { option (x) = {" + "o: <" * 100_000 + ">" * 100_000 + "}; optional int32 a = 1; }",
        # A text that does not end hides no brackets from protoc, which goes on behind its line.
        'syntax = "proto2"; message M { option x = "\\\n;' + "optional group G = 1 {" * 100_000,
        "/*/ " + "}" * 100_000 + ' */ syntax = "proto2"; message M {' + "optional group G = 1 {" * 100_000,
    ],
    ids=["groups", "options", "options in angles", "behind a text without an end", "behind a comment"],
)
def test_a_schema_that_would_end_the_process_is_refused(text: str) -> None:
    schema = wrap_schema(text, {})
    # In a process of its own, which is the one that would end.
    process = subprocess.run(
        [sys.executable, "-c", COMPILE], input=schema, text=True, capture_output=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr[-500:]
    assert "brackets inside one another" in process.stdout


def test_a_disk_that_is_full_is_no_fault_of_a_schema() -> None:
    text = 'syntax = "proto3"; message OnAFullDisk { int32 a = 1; }'
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fingerprint_of(text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fingerprint_of(text) is not None


@pytest.mark.parametrize("schema", ['syntax = "größe";', 'syntax = "proto3"; import "größe.proto"; message M {}'])
def test_what_protoc_says_of_other_letters_is_told(schema: str) -> None:
    with pytest.raises(UnsupportedSchema, match="größe"):
        compile_types(schema)


def test_a_schema_of_many_messages_is_read_in_time_that_grows_with_them() -> None:
    text = 'syntax = "proto3";' + "".join(f"message M{number} {{ int32 a = 1; }}" for number in range(4_000))
    with pytest.raises(UnsupportedSchema, match="4,000 messages"):
        _ = compile_types(text).only_name
    assert fingerprint_of(text) is not None
