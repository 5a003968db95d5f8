"""Avro 1.12's binary encoding, written out: what a value may hold, and where its parts lie. Slow, and in its own words.

It shares nothing with what it judges but the parsed schema.
"""

from dataclasses import dataclass, field
from typing import Any

from headrace.writer.avro.schema import Record

FIXED_BYTES = {"float": 4, "double": 8}


class Forbidden(Exception):
    """What the specification forbids; the text is its kind."""


@dataclass(frozen=True)
class Part:
    """A stretch of a value: `boolean`, `int`, `long`, `length`, `index`, `count`, `size`, `text`, `content`."""

    kind: str
    start: int
    end: int


@dataclass
class Value:
    """Bytes on their way through a schema."""

    record: Record
    data: bytes
    position: int = 0
    parts: list[Part] = field(default_factory=list)

    def read(self) -> None:
        """Walk the value to its end. Raises Forbidden."""
        self._any(self.record.root)
        if self.position < len(self.data):
            raise Forbidden("surplus")

    def _any(self, schema: Any) -> None:
        schema = self.record.resolve(schema)
        if isinstance(schema, list):
            self._any(schema[self._index(len(schema))])
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            for each in schema["fields"]:
                self._any(each["type"])
        elif kind == "array":
            self._blocks(schema["items"], has_keys=False)
        elif kind == "map":
            self._blocks(schema["values"], has_keys=True)
        elif kind == "string":
            self._text()
        elif kind == "bytes":
            length = self._length()
            if length == 0 and schema != "bytes" and schema.get("logicalType") == "decimal":
                raise Forbidden("decimal")
            self._take(length, "content")
        elif kind == "enum":
            self._index(len(schema["symbols"]))
        elif kind == "fixed":
            self._take(schema["size"], "content")
        elif kind in ("int", "long"):
            self._number(kind, 32 if kind == "int" else 64)
        elif kind == "boolean":
            if self._take(1, "boolean") not in (b"\0", b"\1"):
                raise Forbidden("boolean")
        elif kind != "null":
            self._take(FIXED_BYTES[kind], "content")

    def _blocks(self, items: Any, *, has_keys: bool) -> None:
        while count := self._number("count", 64):
            size = None
            if count < 0:
                size = self._number("size", 64)
                begin = self.position
                if size < 0:
                    raise Forbidden("size")
            if abs(count) > len(self.data) - self.position:
                raise Forbidden("count")
            for _ in range(abs(count)):
                if has_keys:
                    self._text()
                self._any(items)
            if size is not None and self.position - begin != size:
                raise Forbidden("size")

    def _text(self) -> None:
        try:
            self._take(self._length(), "text").decode("utf-8", "strict")
        except UnicodeDecodeError:
            raise Forbidden("text") from None

    def _length(self) -> int:
        length = self._number("length", 64)
        if length < 0:
            raise Forbidden("length")
        return length

    def _index(self, count: int) -> int:
        index = self._number("index", 32)
        if index not in range(count):
            raise Forbidden("index")
        return index

    def _number(self, kind: str, bits: int) -> int:
        start = self.position
        raw = 0
        while True:
            byte = self._byte()
            raw += (byte % 128) * 128 ** (self.position - start - 1)
            if byte < 128:
                break
        if self.position - start > -(-bits // 7):
            raise Forbidden("long number")
        if raw >= 2**bits:
            raise Forbidden("bits")
        self.parts.append(Part(kind, start, self.position))
        return raw // 2 if raw % 2 == 0 else -(raw // 2) - 1

    def _byte(self) -> int:
        if self.position >= len(self.data):
            raise Forbidden("truncated")
        self.position += 1
        return self.data[self.position - 1]

    def _take(self, count: int, kind: str) -> bytes:
        start = self.position
        self.position += count
        if self.position > len(self.data):
            raise Forbidden("truncated")
        self.parts.append(Part(kind, start, self.position))
        return self.data[start : self.position]


def forbidden(record: Record, data: bytes) -> str | None:
    """Return the kind of what the specification forbids of a value; None: nothing."""
    try:
        Value(record, data).read()
    except Forbidden as kind:
        return str(kind)
    return None


def parts_of(record: Record, data: bytes) -> list[Part]:
    """Return the parts of a sound value, in their order."""
    value = Value(record, data)
    value.read()
    return value.parts


def number(value: int, *, longer: int = 0) -> bytes:
    """Encode a number, with so many bytes more than it needs."""
    raw = 2 * value if value >= 0 else -2 * value - 1
    groups = [raw % 128]
    while raw := raw // 128:
        groups.append(raw % 128)
    groups += [0] * longer
    return bytes([*(group + 128 for group in groups[:-1]), groups[-1]])
