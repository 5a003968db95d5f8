"""The plain form of a message type, as libraries read it: one file of proto3 that imports nothing.

Whoever reads values by it reads them alike, whatever the syntax of the schema. The values on the wire are the same:

- An enum is an int32: numbers without a name stay, also where the schema's enum is closed.
- Timestamp and Duration are seconds and nanoseconds, so that their ranges can be looked at.
- A wrapper is a message of one field.
- A map is its entries, in the order of the value.
- Struct, Value, ListValue, and a message inside itself, are bytes. Where one stands twice in a value, the last counts.
- Text is UTF-8, as proto3 demands.

A schema with groups has no such form in proto3; it is written in proto2, for google.protobuf alone.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headrace.writer.protobuf.message_tree import (
    Enum,
    Instant,
    Kind,
    Member,
    Message,
    MessageBytes,
    Scalar,
    TimeSpan,
    Wrapper,
    iterate_members,
)

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "headrace"
_TIME = "Time"
SECONDS = "seconds"
NANOS = "nanos"
KEY = "key"
VALUE = "value"


def wire_name(number: int) -> str:
    """Return the name of a field in the plain form: those of a schema may be alike, once they are in camel case."""
    return f"f{number}"


def has_groups(tree: Message) -> bool:
    """Return whether a message has a group, at any depth."""
    return any(member.is_group for member in iterate_members(tree))


def wire_descriptor(tree: Message) -> Descriptor:
    """Return the descriptor of the plain form of a message type, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    writer = _FileWriter(is_proto3=not has_groups(tree))
    name = writer.add_message(tree)
    pool.AddSerializedFile(writer.file.SerializeToString())
    return pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")


def wire_class(tree: Message) -> Any:
    """Return google.protobuf's class of the plain form of a message type."""
    return message_factory.GetMessageClass(wire_descriptor(tree))


class _FileWriter:
    """Writes the file, in which all has names of its own."""

    def __init__(self, *, is_proto3: bool) -> None:
        syntax = "proto3" if is_proto3 else "proto2"
        self.file = descriptor_pb2.FileDescriptorProto(name="headrace.proto", package=_PACKAGE, syntax=syntax)
        self._is_proto3 = is_proto3
        # Of the messages that are being added, by the names in the schema.
        self._names_around: dict[str, str] = {}
        time = self.file.message_type.add(name=_TIME)
        time.field.add(name=SECONDS, number=1, type=_Field.TYPE_INT64, label=_Field.LABEL_OPTIONAL)
        time.field.add(name=NANOS, number=2, type=_Field.TYPE_INT32, label=_Field.LABEL_OPTIONAL)

    def add_message(self, message: Message) -> str:
        """Add a message and those inside it. Returns its name."""
        proto = self._add_type("M")
        self._names_around[message.name] = proto.name
        oneof_by_number: dict[int, int] = {}
        for index, numbers in enumerate(message.oneofs):
            proto.oneof_decl.add(name=f"o{index}")
            oneof_by_number |= dict.fromkeys(numbers, index)
        for member in message.members:
            part = self._add_field(proto, member)
            if member.number in oneof_by_number:
                part.oneof_index = oneof_by_number[member.number]
        if self._is_proto3:
            self._mark_presence(proto, message)
        del self._names_around[message.name]
        return str(proto.name)

    def _add_type(self, prefix: str) -> Any:
        return self.file.message_type.add(name=f"{prefix}{len(self.file.message_type)}")

    def _add_field(self, proto: Any, member: Member) -> Any:
        part = proto.field.add(name=wire_name(member.number), number=member.number)
        part.label = _Field.LABEL_OPTIONAL if member.shape == "one" else _Field.LABEL_REPEATED
        if member.shape == "map":
            self._set_message(part, self._add_entry(member))
            return part
        self._set_type(part, member.kind)
        if member.is_group:
            # A group inside itself has no bytes of its own.
            if isinstance(member.kind, MessageBytes):
                self._set_message(part, self._names_around[member.kind.name])
            part.type = _Field.TYPE_GROUP
        return part

    def _add_entry(self, member: Member) -> str:
        """Add the message of a map's entries. Returns its name."""
        assert member.key is not None
        entry = self._add_type("E")
        entry.field.add(name=KEY, number=1, label=_Field.LABEL_OPTIONAL, type=member.key.type)
        self._set_type(entry.field.add(name=VALUE, number=2, label=_Field.LABEL_OPTIONAL), member.kind)
        return str(entry.name)

    def _set_type(self, part: Any, kind: Kind) -> None:
        match kind:
            case Scalar():
                part.type = kind.type
            case Enum():
                part.type = FieldDescriptor.TYPE_INT32
            case Instant() | TimeSpan():
                self._set_message(part, _TIME)
            case Wrapper():
                wrapper = self._add_type("W")
                wrapper.field.add(name=VALUE, number=1, label=_Field.LABEL_OPTIONAL, type=kind.value.type)
                self._set_message(part, wrapper.name)
            case Message():
                self._set_message(part, self.add_message(kind))
            case _:
                part.type = _Field.TYPE_BYTES

    def _set_message(self, part: Any, name: str) -> None:
        part.type = _Field.TYPE_MESSAGE
        part.type_name = f".{_PACKAGE}.{name}"

    def _mark_presence(self, proto: Any, message: Message) -> None:
        """Make fields optional that have a presence: each is the only member of a oneof behind the others."""
        for part, member in zip(proto.field, message.members, strict=True):
            if member.has_presence and not part.HasField("oneof_index") and part.type != _Field.TYPE_MESSAGE:
                part.proto3_optional = True
                part.oneof_index = len(proto.oneof_decl)
                proto.oneof_decl.add(name=f"_{part.name}")
