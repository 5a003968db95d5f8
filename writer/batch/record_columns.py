"""Columns that a row gets from its Kafka record beside the value: its key and its headers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.batch.schema_reader import DecodedKeys, KeyPlan
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.privacy.column_protection import (
    ColumnActions,
    ColumnPath,
    Protection,
    leaf_actions,
    protected_type,
)
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.privacy.policy import Action

HEADER_MAP = pa.map_(pa.string(), pa.binary())
TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
# The type of a key that is read by its own schema.
AVRO = "avro"


@dataclass(frozen=True)
class RecordColumns:
    """Which columns a table has of the keys and headers of its records; types by their names in TYPES.

    `key`: name of the column, and type or AVRO. `headers`: name of the column of all headers. `chosen`: name of the
    column, header, type. `keep_undecodable`: what does not have the type is null; without it the record is a dead
    letter. `keys`: for a key that is AVRO. `policies`: of columns, but that of an Avro key, whose schema has them.
    `key_source`: of the keys of the policies.
    """

    key: tuple[str, str] | None = None
    headers: str | None = None
    chosen: tuple[tuple[str, str, str], ...] = field(default=())
    keep_undecodable: bool = False
    keys: KeyPlan = field(default_factory=KeyPlan)
    policies: tuple[tuple[str, Action], ...] = ()
    key_source: KeySource | None = None

    @property
    def names(self) -> list[str]:
        """Names of all columns that there may be."""
        names = list[str]()
        if self.key is not None:
            names.append(self.key[0])
        if self.headers is not None:
            names.append(self.headers)
        return names + [name for name, _, _ in self.chosen]

    @property
    def avro_key(self) -> str | None:
        """Name of the column of a key that is read by its own Avro schema; None without one."""
        if self.key is None or self.key[1] != AVRO:
            return None
        return self.key[0]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, in the order of `build_arrays`. Without that of an Avro key while no schema of one is known."""
        return pa.schema(
            [
                (column.name, protected_type(column.type, (column.name,), self._places))
                for column in self._unprotected_schema
            ]
        )

    @property
    def protected(self) -> frozenset[str]:
        """Columns with values that are protected."""
        columns = {place[0] for place in self._places}
        if self.avro_key and self.keys.schemas.unmeasured:
            columns.add(self.avro_key)
        return frozenset(columns)

    @cached_property
    def _places(self) -> ColumnActions:
        """What is protected of the columns."""
        types = {column.name: column.type for column in self._unprotected_schema}
        places = dict[ColumnPath, Action]()
        for name, action in self.policies:
            if name in types and name != self.avro_key:
                places |= leaf_actions(types[name], (name,), action)
        return places

    @cached_property
    def _unprotected_schema(self) -> pa.Schema:
        columns = list[pa.Field]()
        if self.avro_key:
            columns += list(self.keys.schemas.columns)
        elif self.key is not None:
            columns.append(pa.field(self.key[0], TYPES[self.key[1]]))
        if self.headers is not None:
            columns.append(pa.field(self.headers, HEADER_MAP))
        columns += [pa.field(name, TYPES[kind]) for name, _, kind in self.chosen]
        return pa.schema(columns)

    @property
    def has_headers(self) -> bool:
        """Whether a column is of headers."""
        return self.headers is not None or bool(self.chosen)

    def build_arrays(
        self, records: pa.Table, read_keys: Callable[[pa.Table], DecodedKeys] | None = None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Return an array for each column, and by position the reason why a record cannot fill them.

        `read_keys`: decodes keys that are AVRO.
        """
        arrays, reasons = self._unprotected_arrays(records, read_keys)
        if self.keep_undecodable:
            reasons = {}
        if not self._places:
            return arrays, reasons
        assert self.key_source is not None, "the plan of a task with policies has the place of their keys"
        protection = Protection("", self._places, self.key_source)
        columns = protection.apply(pa.table(arrays, self.schema.names)).columns
        return [contiguous(column) for column in columns], reasons

    def _unprotected_arrays(
        self, records: pa.Table, read_keys: Callable[[pa.Table], DecodedKeys] | None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the arrays as the records have their values, and the reason for each that has another type."""
        arrays = list[pa.Array]()
        reasons = dict[int, str]()
        if self.avro_key:
            assert read_keys is not None, "keys that are Avro have a reader"
            keys = read_keys(records)
            if self.keys.schemas.columns.names:
                arrays.append(keys.column)
            reasons |= {position: f"the key: {why}" for position, why in keys.reasons.items()}
        elif self.key is not None:
            array, undecodable = _cast_values(contiguous(records.column("key")), self.key[1])
            arrays.append(array)
            reasons |= dict.fromkeys(undecodable, f"the key is no {self.key[1]}")
        if not self.has_headers:
            return arrays, reasons
        headers = _Headers.from_records(records)
        if self.headers is not None:
            arrays.append(headers.build_maps())
        for _, name, kind in self.chosen:
            array, undecodable = _cast_values(headers.header_values(name), kind)
            arrays.append(array)
            reasons |= dict.fromkeys(undecodable, f"the header {name!r} is no {kind}")
        return arrays, reasons


@dataclass(frozen=True)
class _Headers:
    """Headers of a batch, one of each name in a record: the last, as Kafka's `lastHeader` has it.

    `rows`: of each entry the position of its record, ascending. `are_null`: of each record whether it has no headers.
    """

    rows: np.ndarray
    names: pa.StringArray
    values: pa.BinaryArray
    are_null: np.ndarray

    @classmethod
    def from_records(cls, records: pa.Table) -> "_Headers":
        """Return the headers of records; rows of an archive come without.

        Of two records with `[a=1, b=2, a=3]` and null it has the rows `[0, 0]`, the names `[b, a]` and the values
        `[2, 3]`.
        """
        if "headers" in records.column_names:
            headers = contiguous(records.column("headers").cast(HEADERS))
        else:
            headers = pa.nulls(records.num_rows, HEADERS)
        rows = pc.list_parent_indices(headers)
        entries = headers.flatten()
        numbered = pa.table({"row": rows, "name": entries.field("key"), "number": np.arange(len(entries))})
        by_name = numbered.group_by(["row", "name"], use_threads=False).aggregate([("number", "max")])
        if by_name.num_rows < len(entries):
            last_numbers = contiguous(by_name.column("number_max")).sort()
            rows = rows.take(last_numbers)
            entries = entries.take(last_numbers)
        are_null = headers.is_null().to_numpy(zero_copy_only=False)
        return cls(rows.to_numpy(), entries.field("key"), entries.field("value"), are_null)

    def build_maps(self) -> pa.MapArray:
        """Return a map for each record; null for one without headers."""
        counts = np.bincount(self.rows, minlength=len(self.are_null))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        starts = pa.array(offsets, mask=np.append(self.are_null, False))
        return pa.MapArray.from_arrays(starts, self.names, self.values)

    def header_values(self, name: str) -> pa.BinaryArray:
        """Return the value of one header for each record; null where there is none."""
        has_name = pc.equal(self.names, name).to_numpy(zero_copy_only=False)
        entries = np.full(len(self.are_null), -1)
        entries[self.rows[has_name]] = np.flatnonzero(has_name)
        return self.values.take(pa.array(entries, mask=entries < 0))


def header_texts(records: pa.Table, name: str) -> pa.StringArray:
    """Return the value of one header for each record, the last of several; null where there is none, or no text."""
    return decode_texts(_Headers.from_records(records).header_values(name))


def decode_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; null where they are none."""
    return _cast_values(values, "string")[0]


def _cast_values(values: pa.BinaryArray, kind: str) -> tuple[pa.Array, list[int]]:
    """Return the values in a type, read from their text; null, and their positions, where they do not have it."""
    try:
        return _cast(values, kind), []
    except pa.ArrowInvalid:
        return _cast_one_by_one(values, kind)


def _cast_one_by_one(values: pa.BinaryArray, kind: str) -> tuple[pa.Array, list[int]]:
    """Cast values of which some do not have the type (cold)."""
    pieces = list[pa.Array]()
    undecodable = list[int]()
    for position in range(len(values)):
        try:
            pieces.append(_cast(values.slice(position, 1), kind))
        except pa.ArrowInvalid:
            pieces.append(pa.nulls(1, TYPES[kind]))
            undecodable.append(position)
    return pa.concat_arrays(pieces), undecodable


def _cast(values: pa.BinaryArray, kind: str) -> pa.Array:
    """Cast values that are of a type. Raises pa.ArrowInvalid.

    Arrow would read `0xffffffffffffffff` as the long -1, and `1e400` as an infinity.
    """
    if kind == "binary":
        return values
    texts = values.cast(pa.string())
    array = texts.cast(TYPES[kind])
    is_other: pa.Array | None = None
    if kind == "long":
        is_other = pc.match_substring_regex(texts, "[xX]")
    elif kind == "double":
        is_other = pc.and_(pc.is_inf(array), pc.match_substring_regex(texts, "[0-9]"))
    if is_other is not None and pc.any(is_other).as_py():
        raise pa.ArrowInvalid("a text is another number than Arrow makes of it")
    return array
