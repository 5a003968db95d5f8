"""What a message type holds, as a tree without names of types: from it come its columns, and how values are read.

proto2, proto3 and editions are one here: a field has a presence or none, and is a group or not. A message inside itself
ends the tree: such a field is the bytes of the message.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from headrace.writer.avro.schema_text import DEPTH_MAX, PARTS_MAX, UnsupportedSchema
from headrace.writer.privacy.policy import CONFLUENT_TAGS
from headrace.writer.protobuf.schema_files import open_pool

_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON_TEXTS = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_FIELD_OPTIONS = "google.protobuf.FieldOptions"
_FIELD_META = "confluent.field_meta"
_REDACT = "debug_redact"
# Words that a field of a record schema has itself.
_OWN_WORDS = frozenset(("name", "type", "default", "doc", "aliases", "order", "logicalType", "namespace"))
_OWN_PREFIX = "headrace."


@dataclass(frozen=True)
class Scalar:
    """A number, a boolean, a text or bytes. `type`: of FieldDescriptorProto."""

    type: int


@dataclass(frozen=True)
class Enum:
    """An enum: its names by their numbers. Of numbers with several names, the first."""

    names: Mapping[int, str]


@dataclass(frozen=True)
class Instant:
    """A Timestamp."""


@dataclass(frozen=True)
class TimeSpan:
    """A Duration."""


@dataclass(frozen=True)
class Wrapper:
    """A message around one scalar, which may be missing."""

    value: Scalar


@dataclass(frozen=True)
class JsonText:
    """A Struct, Value or ListValue, by its full name."""

    message: str


@dataclass(frozen=True)
class MessageBytes:
    """A message inside itself, as its own bytes. `parse` raises DecodeError for what is none."""

    name: str
    parse: Callable[[bytes], Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Message:
    """A message. `oneofs`: of several members, the numbers of each."""

    name: str
    members: "tuple[Member, ...]"
    oneofs: tuple[tuple[int, ...], ...] = ()

    @property
    def columns(self) -> "list[Member]":
        """The members that have a column: all but messages without one."""
        return [member for member in self.members if member.has_column]


Kind = Scalar | Enum | Instant | TimeSpan | Wrapper | JsonText | MessageBytes | Message


@dataclass(frozen=True)
class Member:
    """A field of a message."""

    name: str
    number: int
    kind: Kind
    shape: Literal["one", "list", "map"]
    # Unset is null; else it is the type's default.
    has_presence: bool
    is_group: bool = False
    # Of a map.
    key: Scalar | None = None
    # What its options say, as attributes of a field of a record schema.
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_column(self) -> bool:
        """Whether a value of it holds something that a table stores."""
        return not isinstance(self.kind, Message) or bool(self.kind.columns)


@lru_cache(maxsize=64)
def read_tree(file_set: bytes, message: str) -> Message:
    """Return the tree of a message type. Raises UnsupportedSchema."""
    pool = open_pool(file_set)
    try:
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        raise UnsupportedSchema(f"the schema has no message {message}") from None
    return _TreeReader(pool).read_message(descriptor, ())


def iterate_members(message: Message) -> Iterator[Member]:
    """Yield the members of a message, and of those inside it."""
    for member in message.members:
        yield member
        if isinstance(member.kind, Message):
            yield from iterate_members(member.kind)


class _TreeReader:
    """Reads descriptors of one pool."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._options = _OptionsReader(pool)
        self._parts = 0

    def read_message(self, descriptor: Descriptor, around: tuple[str, ...]) -> Message:
        """Return a message. `around`: the full names of those that it lies in."""
        around = (*around, descriptor.full_name)
        if len(around) > DEPTH_MAX:
            raise UnsupportedSchema(f"message {around[0]} is more than {DEPTH_MAX} levels deep; flatten it")
        members = tuple(self._read_member(part, around) for part in descriptor.fields)
        oneofs = (tuple(part.number for part in oneof.fields) for oneof in descriptor.oneofs)
        # Of one member: as an optional field has it, or no choice.
        choices = tuple(numbers for numbers in oneofs if len(numbers) > 1)
        return Message(descriptor.full_name, members, choices)

    def _read_member(self, part: FieldDescriptor, around: tuple[str, ...]) -> Member:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise UnsupportedSchema(f"message {around[0]} unfolds to more than {PARTS_MAX:,} parts; split it")
        attributes = self._options.read(part)
        entry = part.message_type
        if entry is not None and entry.GetOptions().map_entry:
            _check_entry(part, entry)
            kind = self._read_kind(entry.fields_by_name["value"], around)
            key = Scalar(entry.fields_by_name["key"].type)
            return Member(
                part.name,
                part.number,
                kind,
                "map",
                has_presence=False,
                key=key,
                attributes=attributes,
            )
        return Member(
            part.name,
            part.number,
            self._read_kind(part, around),
            "list" if part.is_repeated else "one",
            has_presence=part.has_presence,
            is_group=part.type == FieldDescriptor.TYPE_GROUP,
            attributes=attributes,
        )

    def _read_kind(self, part: FieldDescriptor, around: tuple[str, ...]) -> Kind:
        if part.enum_type is not None:
            return Enum(_names_by_number(part.enum_type))
        message = part.message_type
        if message is None:
            return Scalar(part.type)
        name = message.full_name
        is_group = part.type == FieldDescriptor.TYPE_GROUP
        if name in around:
            return MessageBytes(name, message_factory.GetMessageClass(message).FromString)
        if name in _WRAPPERS:
            return Wrapper(Scalar(message.fields_by_name["value"].type))
        if name == _TIMESTAMP:
            return Instant()
        if name == _DURATION:
            return TimeSpan()
        # A group has no bytes of its own.
        if name in _JSON_TEXTS and not is_group:
            return JsonText(name)
        return self.read_message(message, around)


def _check_entry(part: FieldDescriptor, entry: Descriptor) -> None:
    """Raise UnsupportedSchema for a map whose entries are none, as no text of Protobuf can have it."""
    fields = {field.number: field.name for field in entry.fields}
    if not part.is_repeated or fields != {1: "key", 2: "value"}:
        raise UnsupportedSchema(f"{part.full_name} is a map whose entries are not a key and a value")


class _OptionsReader:
    """Reads the options of fields that policies of privacy may name."""

    def __init__(self, pool: DescriptorPool) -> None:
        try:
            self._options = message_factory.GetMessageClass(pool.FindMessageTypeByName(_FIELD_OPTIONS))
        except KeyError:
            # No file of the schema defines options.
            self._options = None

    def read(self, part: FieldDescriptor) -> dict[str, Any]:
        """Return attributes: Confluent's tags, `debug_redact`, and own options that are `true` or a text."""
        own_options = part.GetOptions()
        attributes: dict[str, Any] = {}
        if own_options.debug_redact:
            attributes[_REDACT] = True
        if self._options is None:
            return attributes
        # A pool has extensions of its own options alone.
        options = self._options.FromString(own_options.SerializeToString())
        for option, setting in options.ListFields():
            if option.full_name == _FIELD_META:
                attributes |= _read_tags(setting)
            elif option.is_extension and _is_word(option.full_name) and _is_setting(setting):
                attributes[option.full_name] = setting
        return attributes


def _read_tags(meta: Any) -> dict[str, Any]:
    """Return the tags of Confluent's Meta, as registries write them into Avro schemas."""
    tags = list(getattr(meta, "tags", ()))
    return {CONFLUENT_TAGS: tags} if tags else {}


def _is_word(name: str) -> bool:
    return name not in _OWN_WORDS and name != CONFLUENT_TAGS and not name.startswith(_OWN_PREFIX)


def _is_setting(setting: Any) -> bool:
    return setting is True or isinstance(setting, str)


def _names_by_number(enum: EnumDescriptor) -> dict[int, str]:
    names: dict[int, str] = {}
    for symbol in enum.values:
        names.setdefault(symbol.number, symbol.name)
    return names
