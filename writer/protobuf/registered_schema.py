"""A Protobuf schema as its source has it: the text of a file, and of those that it imports. Pure.

A registry has one schema for all messages of a file. Which of them a value is, its framing says. Confluent's clients,
but for Java's, register the descriptor of a file, serialized and in base64; some registries hand it over as it is.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.protobuf.attributes import FORMAT, PROTOBUF

_ENCRYPTING_RULE = "encrypting_rule"
# Name of a file whose registry has none for it.
MAIN_FILE = "schema.proto"
# As protoc reads it: a text ends with its line at the latest, whatever stands before the end, and a comment that
# nothing closes with the file.
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*(?:.*?\*/|.*))"""
    r"""|(?P<token>"(?:\\[^\n]|[^"\\\n])*"?|'(?:\\[^\n]|[^'\\\n])*'?|[A-Za-z0-9_.]+|.)""",
    re.DOTALL,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
# How a text begins that is Protobuf's.
_FIRST_WORDS = frozenset(["syntax", "edition", "package", "import", "option", "message", "enum", "service", "extend"])


@dataclass(frozen=True)
class RegisteredSchema:
    """The text of a file, and of those that it imports by their names.

    `encrypting_rule`: the name of a rule by which producers encrypt values.
    """

    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    encrypting_rule: str | None = None

    @property
    def files(self) -> Mapping[str, str]:
        """The texts of all files by their names; the schema's own is MAIN_FILE."""
        return {**self.references, MAIN_FILE: self.text}

    @property
    def messages(self) -> list[str]:
        """Full names of the messages that the file defines, but for those inside others."""
        serialized = read_serialized_text(self.text)
        if serialized is not None:
            return _messages_of(serialized)
        package = ""
        names: list[str] = []
        depth = 0
        for word, name in pairwise([*tokenize(self.text), ""]):
            if word in ("{", "}"):
                depth += {"{": 1, "}": -1}[word]
            elif depth == 0 and word == "package":
                package = f"{name}."
            elif depth == 0 and word == "message":
                names.append(name)
        return [package + name for name in names]


def read_serialized_text(text: str) -> bytes | None:
    """Return the serialized descriptor that a text is in base64; None of a text as .proto files have it."""
    text = text.strip()
    if not _BASE64.fullmatch(text):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _messages_of(serialized: bytes) -> list[str]:
    """Return the full names of the messages of a descriptor; none without Protobuf's libraries, or of other bytes."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError
    except ImportError:
        return []
    try:
        file = FileDescriptorProto.FromString(serialized)
    except DecodeError:
        return []
    names = [message.name for message in file.message_type]
    # What is not UTF-8 is of bytes.
    if not all(isinstance(name, str) for name in (file.package, *names)):
        return []
    package = f"{file.package}." if file.package else ""
    return [package + name for name in names]


def imported_names(schema_text: str) -> list[str]:
    """Return the names of the files that a file imports, in their order."""
    tokens = tokenize(schema_text)
    names: list[str] = []
    for place, word in enumerate(tokens):
        # `public`, `weak` or `option` may stand between.
        following = [name for name in tokens[place + 1 : place + 3] if name[0] in "\"'"]
        if word == "import" and following:
            names.append(following[0][1:-1])
    return names


def wrap_schema(schema_text: str, references: Mapping[str, str], encrypting_rule: str | None = None) -> str:
    """Return a Protobuf schema with its references as one text: what a source of schemas hands over.

    `encrypting_rule`: the name of a rule by which producers encrypt values.
    """
    document = {FORMAT: PROTOBUF, "schema": schema_text, "references": dict(references)}
    if encrypting_rule is not None:
        document[_ENCRYPTING_RULE] = encrypting_rule
    return json.dumps(document)


@lru_cache(maxsize=1024)
def read_schema(text: str) -> RegisteredSchema | None:
    """Return the Protobuf schema that a source handed over; None where a text is none.

    A plain text of Protobuf, as a file has it, is one without references.
    """
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return RegisteredSchema(text) if _is_protobuf(text) else None
    if not isinstance(document, dict) or document.get(FORMAT) != PROTOBUF:
        return None
    schema_text = document.get("schema")
    references = document.get("references")
    if not isinstance(schema_text, str) or not isinstance(references, dict):
        return None
    if not all(isinstance(reference, str) for reference in references.values()):
        return None
    encrypting_rule = document.get(_ENCRYPTING_RULE)
    return RegisteredSchema(schema_text, references, encrypting_rule if isinstance(encrypting_rule, str) else None)


def message_of(text: str) -> str | None:
    """Return the full name of the message that a record schema is of; None where it is not of Protobuf."""
    if PROTOBUF not in text:
        return None
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return None
    if not isinstance(document, dict) or document.get(FORMAT) != PROTOBUF or "schema" in document:
        return None
    return str(document.get("name"))


def _is_protobuf(text: str) -> bool:
    first = next(iter(tokenize(text[:10_000])), "")
    return first in _FIRST_WORDS


def tokenize(text: str) -> list[str]:
    """Return the words of a text: no spaces, no comments. A text in quotes is one word."""
    return [match["token"] for match in _TOKEN.finditer(text) if match["token"] is not None]
