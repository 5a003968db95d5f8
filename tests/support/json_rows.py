"""Rows of JSON values as the columns of a declaration have them, read an object at a time, and their protection."""

import json
import stat
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.json.declared import declared_record
from headrace.writer.privacy.column_protection import Protection
from headrace.writer.privacy.keyring import KeyId, KeyringPlace, KeySource, fingerprint
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy

HASH_KEY = b"k" * 32
ENCRYPTION_KEY = b"e" * 32
_LONG_MAX = 2**63


class _Misfit(Exception):
    """A value that does not fit its column."""


def write_keyring(folder: Path) -> KeySource:
    """Return the source of a keyring that is written to a folder."""
    place = folder / "keys.json"
    place.write_text(json.dumps({
        "hash": {"primary": "h1", "keys": {"h1": b64encode(HASH_KEY).decode()}},
        "encrypt": {"primary": "k1", "keys": {"k1": b64encode(ENCRYPTION_KEY).decode()}},
    }))  # fmt: skip
    place.chmod(stat.S_IRUSR)
    ids = KeyId("h1", fingerprint(HASH_KEY)), KeyId("k1", fingerprint(ENCRYPTION_KEY))
    return KeySource(KeyringPlace(str(place)), None, *ids)


def rows_of(declared: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of objects, of which undeclared members and those that do not fit go to `rest`."""
    return [_read_object(declared, value) for value in values]


def protect(text: str, rows: Sequence[Mapping[str, Any]], privacy: Privacy) -> pa.Table:
    """Return what is left of rows of a record schema."""
    table = pa.Table.from_pylist(list(rows), _columns(text))
    protection = protection_of(text, privacy)
    if protection is None:
        return table
    protected = protection.apply(table)
    assert protected.schema.equals(_columns(protection.text)), "the rows are those of the protected schema"
    protected.validate(full=True)
    return protected


def protection_of(text: str, privacy: Privacy) -> Protection | None:
    """Return what is protected of a record schema; None: nothing. Raises PrivacyError."""
    record = avro.parse(text)
    return privacy.with_schemas([record]).protection(record)


def privacy_of(keys: KeySource, fields: Mapping[str, Any], tags: Mapping[str, Any] | None = None) -> Privacy:
    """Return policies of paths and tags, as a configuration has them."""
    by_path = tuple((path, Action.of(setting)) for path, setting in fields.items())
    by_tag = tuple((tag, Action.of(setting)) for tag, setting in (tags or {}).items())
    return Privacy(Policies(fields=by_path, tags=by_tag), keys)


def declared_text(declared: Mapping[str, Any]) -> str:
    """Return the record schema of a declaration, in which all that fits no column goes to `rest`."""
    return declared_record(declared, "rest", "null")


def _columns(text: str) -> pa.Schema:
    return pa.schema(list(avro.table_fields(avro.parse(text)).items()))


def _read_object(declared: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Misfit
    row: dict[str, Any] = {}
    rest = {name: member for name, member in value.items() if name not in declared}
    for name, kind in declared.items():
        member = value.get(name)
        try:
            row[name] = None if member is None else _read(kind, member)
        except _Misfit:
            row[name] = None
            rest[name] = member
    row["rest_" if "rest" in declared else "rest"] = _write_rest(rest) if rest else None
    return row


def _write_rest(members: Mapping[str, Any]) -> str:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))


def _read(kind: Any, value: Any) -> Any:
    if isinstance(kind, list):
        if not isinstance(value, list):
            raise _Misfit
        return [None if item is None else _read(kind[0], item) for item in value]
    if isinstance(kind, dict) and list(kind) == ["*"]:
        if not isinstance(value, dict):
            raise _Misfit
        return {name: None if item is None else _read(kind["*"], item) for name, item in value.items()}
    if isinstance(kind, dict):
        return _read_object(kind, value)
    if kind == "json":
        return json.dumps(value)
    is_long = type(value) is int and -_LONG_MAX <= value < _LONG_MAX
    fits = is_long if kind == "long" else isinstance(value, str)
    if not fits:
        raise _Misfit
    return value
