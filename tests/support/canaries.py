"""Known secrets in a field of every type, records that hold them, and a search of every byte for them.

What is text begins with STEM, so one search finds all of it; numbers, times and decimals are searched for as text, as
Avro's bytes, and as Parquet and Arrow have them. A boolean tells nothing by itself, and four bytes stand in any file.
"""

import io
import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from headrace.writer.avro.decoding.value_writer import write_long as varint
from tests.support.sample_records import TIME

STEM = "canaryzq"
_INSTANT = datetime(1931, 7, 9, 3, 14, 15, 926535, UTC)  # of all dates and timestamps
_US = round((_INSTANT - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
_MS = _US // 1000
_INT = 1_736_528_491
_LONG = 7_316_452_809_117_364
_TIME_US = 48_271_935_617
_FLOAT = 1736528.375
_DOUBLE = 7316452.809117364
_DIGITS = 918_273_645_546_372_819  # of a decimal of scale 2, so 9182736455463728.19
_BE = _DIGITS.to_bytes(8, "big")
# In bytes. Shorter content stands in any file by chance.
_SHORTEST = 5
_SHORTEST_BASE64 = 8


def _text(name: str) -> str:
    return f"{STEM}-{name}"


def _logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def _fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


_STRINGS = {"type": "array", "items": "string"}
# Fields by their names: type, and value as it is written where logical types are left out.
NATIVE: dict[str, tuple[Any, Any]] = {
    "text": ("string", _text("text")),
    "flag": ("boolean", True),
    "small": ("int", _INT),
    "number": ("long", _LONG),
    "single": ("float", _FLOAT),
    "real": ("double", _DOUBLE),
    "bytes": ("bytes", _text("bytes").encode()),
    "fixed": (_fixed("Fixed", 14), _text("fixed").encode()),
    "symbol": ({"type": "enum", "name": "Symbol", "symbols": ["OTHER", f"{STEM}_symbol"]}, f"{STEM}_symbol"),
    "uuid": (_logical("uuid", "string"), _text("uuid")),
    "uuid_fixed": (_fixed("Uuid", 16, logicalType="uuid"), f"{STEM}uuid0016".encode()),
    "day": (_logical("date", "int"), (_INSTANT.date() - date(1970, 1, 1)).days),
    **{
        f"{kind.replace('-', '_')}_{unit}": (_logical(f"{kind}-{unit}", "long"), at)
        for kind in ("timestamp", "local-timestamp")
        for unit, at in (("millis", _MS), ("micros", _US), ("nanos", _US * 1000))
    },
    "time_ms": (_logical("time-millis", "int"), _TIME_US // 1000),
    "time_us": (_logical("time-micros", "long"), _TIME_US),
    "duration": (_fixed("Duration", 12, logicalType="duration"), f"{STEM}-dur".encode()),
    "decimal": (_logical("decimal", "bytes", precision=38, scale=2), _BE),
    "decimal_fixed": (_fixed("Decimal", 8, logicalType="decimal", precision=18, scale=2), _BE),
    "decimal_long": (_logical("decimal", "bytes", precision=39, scale=2), _BE),
    "listed": (_STRINGS, [_text("item")]),
    "lists": ({"type": "array", "items": {"type": "array", "items": "long"}}, [[_LONG]]),
    "mapped": ({"type": "map", "values": "string"}, {_text("key"): _text("value")}),
    "maps": ({"type": "map", "values": _record("InMap", ("x", _STRINGS))}, {_text("key2"): {"x": [_text("in-map")]}}),
    "inner": (_record("Inner", ("x", "string"), ("y", {"type": "array", "items": _record("Deep", ("z", "string"))})),
              {"x": _text("inner"), "y": [{"z": _text("deep")}]}),
    "option": (["null", "string"], _text("option")),
    "optional": (["string", "null"], _text("optional")),
    "alone": (["string"], _text("alone")),
    "wide": (["int", "long"], ("long", _LONG)),
    "wide_real": (["float", "double", "null"], ("double", _DOUBLE)),
    "either": (["null", "string", "long"], _text("union")),
    "either_number": (["string", "long"], _LONG),
    "either_list": (["boolean", _STRINGS, {"type": "map", "values": "string"}], [_text("union-item")]),
    "either_map": (["boolean", _STRINGS, {"type": "map", "values": "string"}], {_text("union-key"): "v"}),
}  # fmt: skip
# These make fastavro decode the records of their schema.
BY_RECORD: dict[str, tuple[Any, Any]] = {
    "records": ([_record("Left", ("y", "string")), _record("Right", ("y", "long"))], ("Left", {"y": _text("left")})),
    "records_right": (["Left", "Right"], ("Right", {"y": _LONG})),
    "or_symbol": (["string", {"type": "enum", "name": "Sign", "symbols": [f"{STEM}_sign"]}], (
        "Sign", f"{STEM}_sign")),
    "or_fixed": (["bytes", _fixed("Four", 14)], ("Four", _text("four4").encode())),
    "decimal_longest": (_logical("decimal", "bytes", precision=77, scale=2), _BE),
    "with_null": (_record("WithNull", ("x", "string"), ("none", "null")), {"x": _text("beside-null"), "none": None}),
}  # fmt: skip
TAGS = ("HASH", "ENCRYPT", "DROP", "MASK")
_MAPS = ("mapped", "maps", "either_map", "either_list")  # which no mask fits
_CLEAR = [{"name": "at", "type": TIME}, {"name": "share", "type": "int"}]


def _fields(kinds: Mapping[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Tag the fields by turns; of record `inner` its own fields are tagged."""
    fields = []
    for index, (name, (kind, _)) in enumerate(kinds.items()):
        tag = "HASH" if name in _MAPS and TAGS[index % 4] == "MASK" else TAGS[index % 4]
        tags = {"confluent:tags": [tag]}
        if name == "inner":
            fields.append({"name": name, "type": {**kind, "fields": [{**field, **tags} for field in kind["fields"]]}})
        else:
            fields.append({"name": name, "type": kind, **tags})
    return fields


EVENT = {"type": "record", "name": "Event", "fields": [*_CLEAR, *_fields(NATIVE)]}
WIDER = {"type": "record", "name": "Event", "fields": [*_CLEAR, *_fields(NATIVE | BY_RECORD)]}
ODD = {"type": "record", "name": "Odd", "fields": [*_CLEAR, *_fields({"text": NATIVE["text"]})]}
KEY = {
    "type": "record",
    "name": "Key",
    "fields": [
        {"name": "user", "type": "string", "confluent:tags": ["HASH"]},
        {"name": "shard", "type": "int"},
    ],
}


def privacy(policy: str) -> dict[str, Any] | None:
    """Return policies of the tags: one for all, for `mixed` each its own, for `clear` none."""
    kinds = {"HASH": "hash", "ENCRYPT": "encrypt", "DROP": "drop", "MASK": {"mask": 4}}
    if policy == "clear":
        return None
    tags = kinds if policy == "mixed" else dict.fromkeys(TAGS, policy)
    return {"tags": tags, "fields": {"_key": "clear", "_headers": "hash", "attempt": "hash"}}


def _plain(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items() if key != "logicalType"}
    return [_plain(member) for member in part] if isinstance(part, list) else part


_PARSED = {
    schema_id: fastavro.parse_schema(_plain(schema))
    for schema_id, schema in ((1, EVENT), (2, WIDER), (3, ODD), (5, KEY))
}


def value(schema_id: int, time: datetime, share: int) -> bytes:
    """Return an Avro value of a schema, behind Confluent's header; `share` is a column that is not protected."""
    row = {name: content for name, (_, content) in (NATIVE | BY_RECORD).items()}
    row |= {"at": round(time.timestamp() * 1000), "share": share, "text": f"{STEM}-text{share}"}
    return _write_value(schema_id, row)


def key(number: int) -> bytes:
    return _write_value(5, {"user": _text("user"), "shard": number})


def _write_value(schema_id: int, row: Mapping[str, Any]) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, _PARSED[schema_id], dict(row))
    return out.getvalue()


# --- what is searched for -------------------------------------------------------------------------------------------

SHOWN = (  # as rows show them
    STEM,
    str(_INT),
    str(_LONG),
    str(_FLOAT),
    str(_DOUBLE),
    "1931-07-09",
    str(_TIME_US // 1000),
    f"{_DIGITS // 100}.{_DIGITS % 100}",
    re.sub("(.{8})(.{4})(.{4})(.{4})(.*)", r"\1-\2-\3-\4-\5", f"{STEM}uuid0016".encode().hex()),
)
TEXTS = (*SHOWN, str(_US)[1:12], str(_DIGITS))
RAW = (
    varint(_INT),
    varint(_LONG),
    varint(_TIME_US),
    *(varint(one) for one in (_MS, _US, _US * 1000)),
    *(struct.pack("<q", one) for one in (_LONG, _US, _MS * 1000, _TIME_US, _DIGITS)),
    struct.pack("<d", _DOUBLE),
    _BE,
)


def forms(secret: bytes, *, text: bool) -> set[bytes]:
    """Return how a secret may stand in a file: as it is, in hexadecimal, in UTF-16, in base64 of a longer text."""
    encodings = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    if text:
        encodings |= {secret.decode().encode(encoding) for encoding in ("utf-16-le", "utf-16-be")}
    for padding in range(3):
        encoded = b64encode(b"\0" * padding + secret)
        unpadded = encoded[-(-padding * 8 // 6) : (padding + len(secret)) * 8 // 6]
        if len(unpadded) >= _SHORTEST_BASE64:
            encodings |= {unpadded, unpadded.translate(bytes.maketrans(b"+/", b"-_"))}
    return encodings


NEEDLES = {
    form: repr(secret)
    for secret in (*TEXTS, *RAW)
    for form in forms(secret.encode() if isinstance(secret, str) else secret, text=isinstance(secret, str))
}
assert min(map(len, NEEDLES)) >= _SHORTEST


@dataclass(frozen=True)
class Hit:
    """A secret that was found."""

    name: str
    secret: str


def search(contents: Iterable[tuple[str, bytes]], more: Iterable[bytes] = ()) -> set[Hit]:
    """Look for each canary, and for `more` secrets, in each form in each content."""
    needles = NEEDLES | {form: "a key" for secret in more for form in forms(secret, text=False)}
    return {Hit(name, secret) for name, content in contents for form, secret in needles.items() if form in content}


def files(root: Path, but: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file below a folder, then what is compressed or encoded in it."""
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink() or not path.is_file() or name in but:
            continue
        content = path.read_bytes()
        yield name, name.encode() + b"\n" + content
        for inside in unpack(content):
            yield name, inside


def unpack(content: bytes) -> Iterator[bytes]:
    """Yield what a file holds besides its bytes; also of one that was not completed."""
    for read in (_parquet, _avro, _arrow):
        with suppress(pa.ArrowException, ValueError, OSError, EOFError, IndexError, KeyError):
            yield from read(content)
    for magic, decompressor in _COMPRESSED.items():
        for match in re.finditer(re.escape(magic), content):
            with suppress(zstandard.ZstdError, zlib.error):  # it only looks like a beginning
                yield decompressor().decompress(content[match.start() :])  # up to its end, or that of the file


# By what begins a file, or a page of one.
_COMPRESSED: Mapping[bytes, Callable[[], Any]] = {
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    b"\x1f\x8b\x08": lambda: zlib.decompressobj(31),
}


def _parquet(content: bytes) -> Iterator[bytes]:
    if content[:4] == b"PAR1":
        file = pq.ParquetFile(pa.py_buffer(content))
        yield spread(file.metadata.to_dict())
        yield spread(file.read().to_pylist())


def _avro(content: bytes) -> Iterator[bytes]:
    if content[:4] == b"Obj\x01":
        yield from map(spread, fastavro.reader(io.BytesIO(content)))


def _arrow(content: bytes) -> Iterator[bytes]:
    if content[:6] == b"ARROW1":
        content = content[8:]  # the rest of a file is a stream, also where its end is missing
    elif content[:4] != b"\xff\xff\xff\xff":
        return
    with pa.ipc.open_stream(content) as stream:
        for batch in stream:
            yield spread(batch.to_pylist())


def spread(value: object) -> bytes:
    """Write all that a value holds as text, and bytes as they are."""
    write: Callable[[object], bytes] = spread
    match value:
        case bytes():
            return value
        case dict():
            return b"\n".join(write(member) for pair in value.items() for member in pair)
        case list() | tuple():
            return b"\n".join(map(write, value))
        case datetime() | date():
            return value.isoformat().encode()
        case Decimal():
            return f"{value:f}".encode()
    return str(value).encode("utf-8", "surrogateescape")
