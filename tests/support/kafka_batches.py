"""An encoder of Kafka's record batches for tests: as the format says, one field after the other, slow and plain."""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import google_crc32c
import pyarrow as pa

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Rec:
    """A record as it is produced."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def row(self) -> dict[str, object]:
        """What a reader makes of it, without its topic."""
        headers = [{"key": name.decode(errors="replace"), "value": value} for name, value in self.headers]
        return {
            "offset": self.offset,
            "timestamp": self.time_ms,
            "key": self.key,
            "value": self.value,
            "headers": headers or None,
        }


@dataclass(frozen=True)
class Raw:
    """A record batch as it is in a log; its offsets are [base, after)."""

    records: tuple[Rec, ...]
    base: int
    after: int
    codec: str = "none"
    producer: int = -1
    transactional: bool = False
    control: bool = False
    append_time_ms: int | None = None  # LogAppendTime
    form: int = 2
    count: int | None = field(default=None)  # what the header says, if it is not the truth
    leader_epoch: int = 7
    sequence: int = 0  # of the first record
    delete_horizon: bool = False  # compaction has set when its tombstones go

    def encode(self) -> bytes:
        body = compress(self.codec, b"".join(record(rec, self.base, self.first_ms) for rec in self.records))
        times = [rec.time_ms for rec in self.records] or [0]
        max_ms = max(times) if self.append_time_ms is None else self.append_time_ms
        attributes = ["none", "gzip", "snappy", "lz4", "zstd"].index(self.codec.removesuffix("-xerial"))
        attributes |= 0x08 * (self.append_time_ms is not None) | 0x10 * self.transactional | 0x20 * self.control
        attributes |= 0x40 * self.delete_horizon
        count = len(self.records) if self.count is None else self.count
        last = self.after - self.base - 1
        producer = (self.producer, 0, self.sequence)
        checked = struct.pack(">hiqqqhii", attributes, last, self.first_ms, max_ms, *producer, count)
        crc = google_crc32c.value(checked + body)
        return (
            struct.pack(">qiibI", self.base, 9 + len(checked) + len(body), self.leader_epoch, self.form, crc)
            + checked
            + body
        )

    @property
    def first_ms(self) -> int:
        return self.records[0].time_ms if self.records else 0

    @property
    def rows(self) -> list[dict[str, object]]:
        if self.append_time_ms is None:
            return [rec.row for rec in self.records]
        return [replace(rec, time_ms=self.append_time_ms).row for rec in self.records]


def batch(base: int, values: Sequence[bytes | None], **fields: object) -> Raw:
    """A batch of records with consecutive offsets and no keys."""
    records = tuple(Rec(base + index, 1_700_000_000_000 + index, None, value) for index, value in enumerate(values))
    return Raw(records, base, base + len(values), **fields)  # type: ignore[arg-type]


def marker(base: int, producer: int) -> Raw:
    """The control batch at the end of a transaction."""
    commit = Rec(base, 1_700_000_000_000, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return Raw((commit,), base, base + 1, producer=producer, transactional=True, control=True)


def record(rec: Rec, base: int, first_ms: int) -> bytes:
    fields = b"\0" + zigzag(rec.time_ms - first_ms) + zigzag(rec.offset - base)
    fields += nullable(rec.key) + nullable(rec.value) + zigzag(len(rec.headers))
    fields += b"".join(nullable(name) + nullable(value) for name, value in rec.headers)
    return zigzag(len(fields)) + fields


def nullable(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def zigzag(value: int) -> bytes:
    # A difference of two times may need 65 bits. It wraps, as Java's long does.
    signed = (value + 2**63) % 2**64 - 2**63
    remaining = (signed << 1) ^ (signed >> 63)
    out = bytearray()
    remaining &= 2**64 - 1
    while remaining >= 0x80:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    return bytes(out) + bytes([remaining])


def compress(codec: str, body: bytes) -> bytes:
    match codec:
        case "none":
            return body
        case "gzip":
            return gzip.compress(body, mtime=0)
        case "snappy":
            return bytes(pa.Codec("snappy").compress(body))
        case "snappy-xerial":
            blocks = [
                bytes(pa.Codec("snappy").compress(body[start : start + 100])) for start in range(0, len(body), 100)
            ]
            header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
            return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
        case _:
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, codec) as stream:
                stream.write(body)
            return bytes(sink.getvalue())
