"""The message types of a Protobuf schema, by the bytes by which values name them. Only the driver compiles."""

import hashlib
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from headrace.writer.avro.schema_text import UnsupportedSchema, refuse_unforeseen
from headrace.writer.core.text import join_first
from headrace.writer.framing.message_indexes import write_indexes
from headrace.writer.framing.message_marks import Style, write_name, write_place
from headrace.writer.protobuf.registered_schema import (
    MAIN_FILE,
    RegisteredSchema,
    read_schema,
    read_serialized_text,
)

# In a sentence.
_NAMES_SHOWN = 5
_TYPES = "headrace.message_types"


@dataclass(frozen=True)
class MessageTypes:
    """The messages of a schema's file. `files`: serialized descriptors. `names`: full names by their indexes.

    `entries`: full names of the entries of maps, which no value is, and which count among the messages.
    """

    files: bytes
    names: Mapping[tuple[int, ...], str]
    entries: Collection[str] = ()

    @property
    def only(self) -> tuple[int, ...] | None:
        """The indexes of the message that the file defines, if it defines one; others may lie inside it."""
        outer = [indexes for indexes in self.names if len(indexes) == 1]
        return outer[0] if len(outer) == 1 else None

    @property
    def only_name(self) -> str:
        """The full name of that message. Raises UnsupportedSchema where the file defines several."""
        if self.only is None:
            names = [name for indexes, name in self.names.items() if len(indexes) == 1]
            raise UnsupportedSchema(
                f"it defines {len(names):,} messages, {join_first(names, _NAMES_SHOWN)}; nothing says which is meant"
            )
        return self.names[self.only]

    def marks(self, style: Style) -> dict[bytes, str]:
        """Return the full names by the bytes by which values name them."""
        match style:
            case "indexes":
                return {write_indexes(indexes): name for indexes, name in self.names.items()}
            case "place":
                all_names = sorted([*self.names.values(), *self.entries])
                ranked = enumerate(all_names)
                return {write_place(rank): name for rank, name in ranked if name not in self.entries}
            case "name":
                return {write_name(short_name): name for short_name, name in self._outer_names().items()}
            case "header_name":
                return {short_name.encode(): name for short_name, name in self._outer_names().items()}

    def _outer_names(self) -> dict[str, str]:
        """Return the full names by those without the package: Apicurio's serializers find no message inside another."""
        names = [name for indexes, name in self.names.items() if len(indexes) == 1]
        return {name.rpartition(".")[2]: name for name in names}

    @cached_property
    def fingerprint(self) -> int:
        """What the schema means, as a number of 63 bits that a table's log keeps: what each of its messages means.

        Tables keep it for good: the spelling must never change.
        """
        from headrace.writer.protobuf.fingerprint import message_fingerprints

        meanings = message_fingerprints(self.files, self.names.values())
        text = json.dumps(meanings, sort_keys=True, separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    @property
    def text(self) -> str:
        """The full names by the message indexes of Confluent's serializers, as one text, which `read_types` reads."""
        return self.text_of("indexes")

    def text_of(self, style: Style) -> str:
        """Return `marks` as one text, which `read_types` reads."""
        return json.dumps({_TYPES: {mark.hex(): name for mark, name in self.marks(style).items()}})


@lru_cache(maxsize=1024)
def compile_types(text: str) -> MessageTypes:
    """Return the message types of a Protobuf schema as its source hands it over. Raises UnsupportedSchema, OSError."""
    with refuse_unforeseen():
        return _compile_types(text)


def _compile_types(text: str) -> MessageTypes:
    schema = read_schema(text)
    if schema is None:
        raise UnsupportedSchema("it is no Protobuf schema")
    try:
        files = _compile(schema)
    except ImportError as error:
        raise UnsupportedSchema(f"it is Protobuf, and {error.name} is not installed: headrace[protobuf]") from None
    names: dict[tuple[int, ...], str] = {}
    entries: list[str] = []
    for indexes, name, is_entry in _message_names(files):
        if is_entry:
            entries.append(name)
        else:
            names[indexes] = name
    if not names:
        raise UnsupportedSchema("its file defines no message")
    return MessageTypes(files, names, tuple(entries))


def _compile(schema: RegisteredSchema) -> bytes:
    """Return a serialized FileDescriptorSet of a schema's files. Raises UnsupportedSchema."""
    from headrace.writer.protobuf.schema_files import compile_files, read_serialized

    serialized = {name: read_serialized_text(text) for name, text in schema.files.items()}
    descriptors = {name: content for name, content in serialized.items() if content is not None}
    texts = {name: text for name, text in schema.files.items() if name not in descriptors}
    if not descriptors:
        return compile_files(texts, MAIN_FILE)
    if texts:
        raise UnsupportedSchema(
            f"{join_first(list(descriptors), _NAMES_SHOWN)} is a serialized descriptor, and "
            f"{join_first(list(texts), _NAMES_SHOWN)} is text; register all of its files by one client"
        )
    return read_serialized(descriptors, MAIN_FILE)


def read_types(text: str) -> Mapping[bytes, str] | None:
    """Return the full names of messages by the bytes by which values name them; None of any other text."""
    if _TYPES not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or set(document) != {_TYPES}:
        return None
    return {bytes.fromhex(mark): name for mark, name in document[_TYPES].items()}


def _message_names(files: bytes) -> Iterator[tuple[tuple[int, ...], str, bool]]:
    """Yield indexes and full name of each message of the last file, and whether it is the entry of a map."""
    from google.protobuf import descriptor_pb2

    main = descriptor_pb2.FileDescriptorSet.FromString(files).file[-1]
    pending: deque[tuple[tuple[int, ...], str, Any]] = deque(
        ((index,), main.package, message) for index, message in enumerate(main.message_type)
    )
    while pending:
        indexes, space, message = pending.popleft()
        name = f"{space}.{message.name}" if space else message.name
        yield indexes, name, message.options.map_entry
        pending += [((*indexes, index), name, inner) for index, inner in enumerate(message.nested_type)]
