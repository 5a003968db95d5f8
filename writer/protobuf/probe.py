"""Probes whether ptars can be trusted with a message type."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import BlockRefused
from headrace.writer.protobuf.block_decoder import ProtobufBlockDecoder
from headrace.writer.protobuf.message_tree import (
    Enum,
    Instant,
    Kind,
    Member,
    Message,
    Scalar,
    TimeSpan,
    Wrapper,
)
from headrace.writer.protobuf.record_schema import tree_of
from headrace.writer.protobuf.single_decoder import ProtobufSingleDecoder
from headrace.writer.protobuf.wire_schema import has_groups, wire_class, wire_name

_PROBES = 24
# Values of all samples together; a message type may have thousands of fields.
_VALUES_MAX = 50_000
_NUMBERS = (0, 1, -1, 127, 128, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS = (0.0, -0.0, 1.5, -2.25, 3.0e38, float("inf"), float("-inf"), 0.25)
_TEXTS = ("", "a", "Zürich", "\N{EARTH GLOBE EUROPE-AFRICA}", "\0", "x" * 200)
_CONTENTS = (b"", b"\x00", b"\xff" * 40)
_SECONDS = (0, 1, -1, 1_790_000_000, -62_135_596_800, 253_402_300_799)
_INT32 = (-(2**31), 2**31 - 1)
_UINT32 = (0, 2**32 - 1)
_UINT64 = (0, 2**64 - 1)
# Of 64 bits with a sign, where a type is not here.
_RANGES = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_SFIXED32: _INT32,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_FIXED32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
}


def is_native(record: avro.Record) -> bool:
    """Compare ptars with google.protobuf on generated messages. A message type with groups is not tried."""
    tree = tree_of(record)
    if has_groups(tree):
        return False
    values = pa.array(write_samples(tree, _PROBES), pa.binary())
    single = ProtobufSingleDecoder(record, tree)
    expected = single(values)
    if expected.failures:
        return False
    try:
        rows, _ = ProtobufBlockDecoder(record, tree, single)(values)
    except BlockRefused:
        return False
    return bool(rows.equals(expected.rows))


def write_samples(tree: Message, count: int) -> list[bytes]:
    """Return serialized messages of a type: an empty one, one with all fields, others with some; each time the same."""
    writer = _SampleWriter(random.Random(tree.name))  # noqa: S311 - no secret
    message_class = wire_class(tree)
    samples: list[bytes] = []
    for number in range(count):
        if writer.values > _VALUES_MAX:
            break
        message = message_class()
        if number > 0:
            writer.fill(message, tree, chance=1.0 if number == 1 else 0.7)
        samples.append(message.SerializeToString(deterministic=True))
    return samples


class _SampleWriter:
    """Gives fields values, and counts them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.values = 0

    def fill(self, message: Any, tree: Message, chance: float) -> None:
        """Fill fields with a chance each; of a oneof, one."""
        chosen_numbers = {self._rng.choice(numbers) for numbers in tree.oneofs}
        left_out = {number for numbers in tree.oneofs for number in numbers} - chosen_numbers
        for member in tree.members:
            if self._rng.random() <= chance and member.number not in left_out:
                self._fill_member(message, member, chance)

    def _fill_member(self, message: Any, member: Member, chance: float) -> None:
        name = wire_name(member.number)
        part = getattr(message, name)
        match member.shape:
            case "one" if _is_message(member.kind):
                part.SetInParent()
                self._fill_message(part, member.kind, chance)
            case "one":
                setattr(message, name, self._scalar(member.kind))
            case "list":
                for _ in range(self._rng.choice((1, 2, 3))):
                    if _is_message(member.kind):
                        self._fill_message(part.add(), member.kind, chance)
                    else:
                        part.append(self._scalar(member.kind))
            case "map":
                assert member.key is not None
                for key in self._rng.sample(_examples(member.key.type), self._rng.choice((1, 2))):
                    entry = part.add(key=key)
                    if _is_message(member.kind):
                        entry.value.SetInParent()
                        self._fill_message(entry.value, member.kind, chance)
                    else:
                        entry.value = self._scalar(member.kind)

    def _fill_message(self, message: Any, kind: Kind, chance: float) -> None:
        match kind:
            case Message():
                self.fill(message, kind, chance)
            case Wrapper():
                message.value = self._scalar(kind.value)
            case Instant() | TimeSpan():
                message.seconds = self._rng.choice(_SECONDS)
                message.nanos = self._rng.choice((0, 1_000, 999_999_999))
                if message.seconds < 0 and isinstance(kind, TimeSpan):
                    message.nanos = -message.nanos
        self.values += 1

    def _scalar(self, kind: Kind) -> Any:
        self.values += 1
        match kind:
            case Enum():
                return self._rng.choice([*kind.names, 7_654_321])
            case Scalar():
                return self._rng.choice(_examples(kind.type))
        # A JSON text, or the bytes of a message: an empty one is sound.
        return b""


def _examples(scalar: int) -> Sequence[Any]:
    """Return values of a scalar type."""
    match scalar:
        case FieldDescriptor.TYPE_STRING:
            return _TEXTS
        case FieldDescriptor.TYPE_BYTES:
            return _CONTENTS
        case FieldDescriptor.TYPE_BOOL:
            return (False, True)
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            return _FLOATS
    lowest, highest = _RANGES.get(scalar, (-(2**63), 2**63 - 1))
    return [number for number in _NUMBERS if lowest <= number <= highest]


def _is_message(kind: Kind) -> bool:
    return isinstance(kind, Message | Wrapper | Instant | TimeSpan)
