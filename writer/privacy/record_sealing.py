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

from headrace.bucketers.arrow import contiguous
from headrace.writer.privacy.encryption import VERSION, CannotDecrypt, decrypt_text, encrypt_values, key_id_of
from headrace.writer.privacy.keyring import Keyring, KeySource, open_keyring

HIDDEN = b"(protected)"
_SEALED = f"{VERSION}.".encode()
_BYTES_COLUMNS = ("key", "value")
_HEADERS = "headers"
# Reasons that quote nothing of a record.
_QUOTES_NOTHING = re.compile(
    r"the value ends before the record does|\d+ surplus bytes after the record|a decimal of more than \d+ digits"
    r"|(field '\S+': )?(a number of more than \d+ (bytes|bits)|a negative length|text that is not UTF-8"
    r"|a boolean that is neither 0 nor 1|the index of a union has no branch|the index of an enum has no symbol"
    r"|a block of (a negative size|more items than there are bytes)|a block whose size is not that of its items"
    r"|a decimal of no bytes)"
    r"|a date or timestamp outside the years 1 to 9999|field '\S+' does not decrypt with the KEK '\S+': [a-z ,]+"
)
# Of JSON. The place before it is left out: it may have names of members, and those of a map are data. The last words
# are the decoder's, which have none.
_WANTED = (
    r"(?:an integer(?: of \d+ bits)?|a number(?: of \d+ bits| that fits into decimal128\(\d+, \d+\))?|true or false"
    r"|text|text in base64|an ISO (?:date|time)|a time as a number|a time in the years 1 to 9999|an array|an object)"
)
_KIND = (
    r"(?:an? (?:object|array|number|number with a fraction|larger one)|another (?:text|one)|text|true or false|null)"
)
_JSON_REASON = re.compile(
    rf"(?:.*: )?(expected {_WANTED}, not {_KIND}|the member stands there twice|no column is declared for it"
    r"|it is not UTF-8|the value is empty|it has too many levels inside one another"
    r"|it is no JSON: [A-Za-z`,. ]+(?:: [a-z` ]+)?)",
    re.DOTALL,
)
_NO_REASON = "the value is not what its schema says; why is left out, for it may quote the record"


@dataclass(frozen=True)
class RecordSealing:
    """How the bytes of records are kept."""

    # None: the bytes are not kept.
    keys: KeySource | None

    def seal(self, records: pa.Table) -> pa.Table:
        """Return records as they are kept."""
        keys = self.keys
        if keys is None:
            return _change_bytes(records, lambda values: pa.nulls(len(values), values.type))
        assert keys.encrypt is not None, "a start checks that there is the key"
        key = open_keyring(keys).encryption_keys[keys.encrypt.id]
        return _change_bytes(records, partial(_encrypt, key_id=keys.encrypt.id, key=key))

    def unseal(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as Kafka had them. What is not encrypted stays, and what a lost key encrypted."""
        if self.keys is None or not any(_has_sealed(records, name) for name in _BYTES_COLUMNS):
            return records
        table = _change_bytes(pa.Table.from_batches([records]), partial(_decrypt, keyring=open_keyring(self.keys)))
        return pa.record_batch([contiguous(column) for column in table.columns], schema=records.schema)

    @staticmethod
    def reason(why: str) -> str:
        """Return why a value does not decode, as far as that quotes nothing of it."""
        if _QUOTES_NOTHING.fullmatch(why):
            return why
        json_reason = _JSON_REASON.fullmatch(why)
        if json_reason is not None:
            return json_reason[1]
        return _NO_REASON


def keys_of(records: pa.RecordBatch) -> set[str]:
    """Return the ids of the keys that keys and values of these records are encrypted with."""
    key_ids = set[str]()
    for name in _BYTES_COLUMNS:
        if not _has_sealed(records, name):
            continue
        column = records.column(name)
        # Not on the hot path: these are records that are read again.
        for text in pc.drop_null(column.filter(pc.starts_with(column, _SEALED))).to_pylist():
            key_id = key_id_of(text.decode(errors="replace"))
            if key_id:
                key_ids.add(key_id)
    return key_ids


@dataclass(frozen=True)
class RecordScreen:
    """What a screen shows of records as Kafka has them: each such value passes through it."""

    # The pipeline has privacy: a screen shows that there are bytes, and none of them.
    hides: bool

    def text(self, value: str) -> str:
        """Return a text that is of a record: of its bytes, or a header's."""
        if self.hides:
            return HIDDEN.decode()
        return value

    def table(self, records: pa.Table) -> pa.Table:
        """Return records, of a dead letter or a raw table. Why a record has no row is left out if it may quote it."""
        if not self.hides:
            return records
        if {"value", "error"} <= set(records.column_names):
            records = self._without_quotes(records)
        return _change_bytes(records, _hide)

    def reasons(self, records: pa.Table) -> list[str]:
        """Return why records have no row: those that were kept before there was privacy may be quoted there."""
        shown = records
        if self.hides:
            shown = self._without_quotes(records)
        # Not on the hot path: dead letters only.
        return list(shown.column("error").to_pylist())

    def hide_values(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what is said of records, such as their `key` and `value_hex`."""
        hidden = {"key": HIDDEN.decode(), "value_hex": HIDDEN} if self.hides else {}
        return [
            {name: None if value is None else hidden.get(name, value) for name, value in record.items()}
            for record in records
        ]

    @staticmethod
    def _without_quotes(records: pa.Table) -> pa.Table:
        values = contiguous(records.column("value"))
        # A null is a record that was kept without its bytes.
        is_sealed = pc.coalesce(pc.starts_with(values, _SEALED), pa.scalar(value=True))
        is_dead_letter = pc.equal(records.column("outcome"), "dead_letter")
        may_quote = pc.and_(pc.invert(is_sealed), is_dead_letter)
        errors = zip(records.column("error").to_pylist(), may_quote.to_pylist(), strict=True)
        reasons = [RecordSealing.reason(error) if quotes else error for error, quotes in errors]
        return records.set_column(records.schema.get_field_index("error"), "error", pa.array(reasons, pa.string()))


def _has_sealed(records: pa.RecordBatch, name: str) -> bool:
    return name in records.schema.names and bool(pc.any(pc.starts_with(records.column(name), _SEALED)).as_py())


def _change_bytes(records: pa.Table, change: Callable[[pa.BinaryArray], pa.BinaryArray]) -> pa.Table:
    for name in (*_BYTES_COLUMNS, _HEADERS):
        index = records.schema.get_field_index(name)
        if index < 0:
            continue
        values = contiguous(records.column(index))
        changed = _change_headers(values, change) if name == _HEADERS else change(values)
        records = records.set_column(index, records.schema.field(index), changed)
    return records


def _hide(values: pa.BinaryArray) -> pa.BinaryArray:
    return pc.if_else(values.is_valid(), HIDDEN, pa.scalar(None, values.type))


def _change_headers(headers: pa.ListArray, change: Callable[[pa.BinaryArray], pa.BinaryArray]) -> pa.ListArray:
    if headers.null_count == len(headers):
        return headers
    if headers.offset:
        headers = headers.take(pa.arange(0, len(headers)))
    pairs = headers.values
    # A header has a name: it is empty where its bytes are not kept.
    names = change(pairs.field(0).cast(pa.binary())).fill_null(b"")
    values = change(pairs.field(1))
    changed = pa.StructArray.from_arrays([names.cast(pa.string()), values], fields=list(headers.type.value_type))
    return pa.ListArray.from_arrays(headers.offsets, changed, type=headers.type, mask=headers.is_null())


def _encrypt(values: pa.BinaryArray, *, key_id: str, key: bytes) -> pa.BinaryArray:
    return encrypt_values(values, key_id, key).cast(pa.binary())


def _decrypt(values: pa.BinaryArray, *, keyring: Keyring) -> pa.BinaryArray:
    # Not on the hot path: these are records that are read again.
    return pa.array([_decrypt_value(value, keyring) for value in values.to_pylist()], pa.binary())


def _decrypt_value(value: bytes | None, keyring: Keyring) -> bytes | None:
    if value is None or not value.startswith(_SEALED):
        return value
    text = value.decode(errors="replace")
    key = keyring.encryption_keys.get(key_id_of(text) or "")
    if key is None:
        return value
    try:
        return decrypt_text(text, key)
    except CannotDecrypt:
        return value
