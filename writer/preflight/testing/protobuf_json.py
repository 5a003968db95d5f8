"""Makes messages of Protobuf of values as a test file has them: as JSON, by the rules of Protobuf."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.framing.message_marks import Style
from headrace.writer.protobuf.message_types import compile_types


class MessageEncoder:
    """Encodes values as one message of a schema."""

    def __init__(self, text: str, message: str | None) -> None:
        """`message`: full name; None: the only one that the file defines. Raises UnsupportedSchema."""
        from google.protobuf import message_factory

        from headrace.writer.protobuf.schema_files import open_pool

        types = compile_types(text)
        name = types.only_name if message is None else message
        names = types.names.values()
        if name not in names:
            raise UnsupportedSchema(f"it has no message {name!r}, but {', '.join(names)}")
        self._types = types
        self._name = name
        self._class = message_factory.GetMessageClass(open_pool(types.files).FindMessageTypeByName(name))

    @property
    def mark(self) -> bytes:
        """The bytes by which Confluent's framing names the message."""
        return self.mark_of("indexes")

    def mark_of(self, style: Style) -> bytes:
        """Return the bytes by which values name the message. Raises ValueError where they cannot."""
        for mark, name in self._types.marks(style).items():
            if name == self._name:
                return mark
        raise ValueError(f"message {self._name!r} lies in another one, which this wire format does not name")

    def __call__(self, value: Any) -> bytes:
        """Return a value as the message: by the names of its fields, times as ISO-8601 text. Raises ValueError."""
        from google.protobuf import json_format

        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is no object, as a message is")  # noqa: TRY004 - of a test file
        message = self._class()
        try:
            json_format.ParseDict(_plain(value), message)
        except json_format.ParseError as error:
            raise ValueError(str(error)) from error
        encoded: bytes = message.SerializeToString(deterministic=True)
        return encoded


def _plain(value: Any) -> Any:
    """Return a value of YAML as JSON has it: times as Protobuf's JSON writes them."""
    match value:
        case datetime():
            time = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case str():
            return value
        case Mapping():
            return {str(name): _plain(member) for name, member in value.items()}
        case Sequence():
            return [_plain(item) for item in value]
        case _:
            return value
