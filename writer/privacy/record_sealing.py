"""Keeps records that are kept as Kafka has them, such as dead letters, encrypted as a whole, or without their bytes.

Of each record these columns: `key`, `value`, and names and values of `headers`. A null stays one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from writer.privacy.encryption import VERSION, CannotDecrypt, decrypted, encrypted, key_id_of
from writer.privacy.keyring import Keyring, KeySource, keyring

HIDDEN = b"(protected)"
_SEALED = f"{VERSION}.".encode()
_BYTES, _HEADERS = ("key", "value"), "headers"
# Reasons that quote nothing of a record.
_SAYS_NOTHING = re.compile(
    r"the value ends before the record does|\d+ surplus bytes after the record|a decimal of more than \d+ digits"
    r"|(field '\S+': )?(a number of more than \d+ (bytes|bits)|a negative length|text that is not UTF-8"
    r"|a boolean that is neither 0 nor 1|the index of a union has no branch|the index of an enum has no symbol"
    r"|a block of (a negative size|more items than there are bytes)|a block whose size is not that of its items"
    r"|a decimal of no bytes)"
    r"|a date or timestamp outside the years 1 to 9999|field '\S+' does not decrypt with the KEK '\S+': [a-z ,]+"
)
_NO_REASON = "the value is not what its schema says; why is left out, for it may quote the record"


@dataclass(frozen=True)
class RecordSealing:
    """How the bytes of records are kept."""

    keys: KeySource | None  # None: not at all

    def sealed(self, records: pa.Table) -> pa.Table:
        """Return records as they are kept."""
        if (keys := self.keys) is None:
            return _changed(records, lambda values: pa.nulls(len(values), values.type))
        assert keys.encrypt is not None, "a start checks that there is the key"
        key = keyring(keys).encryption_keys[keys.encrypt.id]
        return _changed(records, partial(_encrypted, key_id=keys.encrypt.id, key=key))

    def unsealed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as Kafka had them. What is not encrypted stays, and what a lost key encrypted."""
        if self.keys is None or not any(_holds_sealed(records, name) for name in _BYTES):
            return records
        found = _changed(pa.Table.from_batches([records]), partial(_decrypted, ring=keyring(self.keys)))
        return pa.record_batch([contiguous(column) for column in found.columns], schema=records.schema)

    @staticmethod
    def reason(why: str) -> str:
        """Return why a value does not decode, as far as that quotes nothing of it."""
        return why if _SAYS_NOTHING.fullmatch(why) else _NO_REASON


def keys_of(records: pa.RecordBatch) -> set[str]:
    """Return the ids of the keys that keys and values of these records are encrypted with."""
    columns = [records.column(name) for name in _BYTES if _holds_sealed(records, name)]
    texts = [pc.drop_null(one.filter(pc.starts_with(one, _SEALED))).to_pylist() for one in columns]  # cold: read again
    return {found for each in texts for text in each if (found := key_id_of(text.decode(errors="replace")))}


@dataclass(frozen=True)
class RecordScreen:
    """What a screen shows of records as Kafka has them: each such value passes through it."""

    hides: bool  # the pipeline has privacy: that there are bytes, and none of them

    def text(self, value: str) -> str:
        """Return a text that is of a record: of its bytes, or a header's."""
        return HIDDEN.decode() if self.hides else value

    def table(self, records: pa.Table) -> pa.Table:
        """Return records, of a dead letter or a raw table. Why a record has no row is left out if it may quote it."""
        if not self.hides:
            return records
        if {"value", "error"} <= set(records.column_names):
            records = self._without_quotes(records)
        return _changed(records, lambda values: pc.if_else(values.is_valid(), HIDDEN, pa.scalar(None, values.type)))

    def reasons(self, records: pa.Table) -> list[str]:
        """Return why records have no row: those that were kept before there was privacy may be quoted there."""
        shown = self._without_quotes(records) if self.hides else records
        return list(shown.column("error").to_pylist())  # cold: dead letters only

    def described(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what is said of records, such as their `key` and `value_hex`."""
        shown = {"key": HIDDEN.decode(), "value_hex": HIDDEN} if self.hides else {}
        return [
            {name: shown.get(name, value) if value is not None else None for name, value in record.items()}
            for record in records
        ]

    @staticmethod
    def _without_quotes(records: pa.Table) -> pa.Table:
        values = contiguous(records.column("value"))
        is_sealed = pc.coalesce(pc.starts_with(values, _SEALED), pa.scalar(value=True))  # null: without its bytes
        is_clear = pc.invert(is_sealed)
        decodes = pc.equal(records.column("outcome"), "dead_letter")
        reasons = [
            RecordSealing.reason(why) if may_quote else why
            for why, may_quote in zip(
                records.column("error").to_pylist(), pc.and_(is_clear, decodes).to_pylist(), strict=True
            )
        ]
        return records.set_column(records.schema.get_field_index("error"), "error", pa.array(reasons, pa.string()))


def _holds_sealed(records: pa.RecordBatch, name: str) -> bool:
    return name in records.schema.names and bool(pc.any(pc.starts_with(records.column(name), _SEALED)).as_py())


def _changed(records: pa.Table, change: Callable[[pa.BinaryArray], pa.BinaryArray]) -> pa.Table:
    for name in (*_BYTES, _HEADERS):
        at = records.schema.get_field_index(name)
        if at < 0:
            continue
        values = contiguous(records.column(at))
        made = _headers(values, change) if name == _HEADERS else change(values)
        records = records.set_column(at, records.schema.field(at), made)
    return records


def _headers(headers: pa.ListArray, change: Callable[[pa.BinaryArray], pa.BinaryArray]) -> pa.ListArray:
    if headers.null_count == len(headers):
        return headers
    if headers.offset:
        headers = headers.take(pa.arange(0, len(headers)))
    pairs, kind = headers.values, headers.type
    names = change(pairs.field(0).cast(pa.binary())).fill_null(b"")  # a header has a name
    values = [names.cast(pa.string()), change(pairs.field(1))]
    inner = pa.StructArray.from_arrays(values, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(headers.offsets, inner, type=kind, mask=headers.is_null())


def _encrypted(values: pa.BinaryArray, *, key_id: str, key: bytes) -> pa.BinaryArray:
    return encrypted(values, key_id, key).cast(pa.binary())


def _decrypted(values: pa.BinaryArray, *, ring: Keyring) -> pa.BinaryArray:
    return pa.array([_opened(value, ring) for value in values.to_pylist()], pa.binary())  # cold: records read again


def _opened(value: bytes | None, ring: Keyring) -> bytes | None:
    if value is None or not value.startswith(_SEALED):
        return value
    text = value.decode(errors="replace")
    key = ring.encryption_keys.get(key_id_of(text) or "")
    if key is None:
        return value
    try:
        return decrypted(text, key)
    except CannotDecrypt:
        return value
