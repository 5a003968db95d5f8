"""Columns that a row gets from its Kafka record beside the value: its key and its headers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from writer.avro.wire_format import HEADERS
from writer.batch.schema_reader import DecodedKeys, KeyPlan
from writer.privacy.column_protection import Place, Places, Protection, leaves, protected_type
from writer.privacy.keyring import KeySource
from writer.privacy.policy import Action

HEADER_MAP = pa.map_(pa.string(), pa.binary())
TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(), "string": pa.string(), "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip
AVRO = "avro"  # type of a key that its own schema decides over


@dataclass(frozen=True)
class RecordColumns:
    """Which columns a table has of the keys and headers of its records; types by their names in TYPES."""

    key: tuple[str, str] | None = None  # name of the column, type, or AVRO
    headers: str | None = None  # name of the column of all headers
    chosen: tuple[tuple[str, str, str], ...] = field(default=())  # name of the column, header, type
    keep_undecodable: bool = False  # null for what does not have the type; else the record is a dead letter
    keys: KeyPlan = field(default_factory=KeyPlan)  # for a key that is AVRO
    policies: tuple[tuple[str, Action], ...] = ()  # of columns, but that of an Avro key, whose schema has them
    key_source: KeySource | None = None  # of the keys of the policies

    @property
    def names(self) -> list[str]:
        """Names of all columns that there may be."""
        key = [] if self.key is None else [self.key[0]]
        return [*key, *([] if self.headers is None else [self.headers]), *(name for name, _, _ in self.chosen)]

    @property
    def avro_key(self) -> str | None:
        """Name of the column of a key that is read by its own Avro schema; None without one."""
        return self.key[0] if self.key is not None and self.key[1] == AVRO else None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, in the order of `of`. Without that of an Avro key while no schema of one is known."""
        kinds = [(one.name, protected_type(one.type, (one.name,), self._places)) for one in self._unprotected]
        return pa.schema(kinds)

    @property
    def protected(self) -> frozenset[str]:
        """Columns with values that are protected."""
        places = {place[0] for place in self._places}
        return frozenset({*places, self.avro_key} if self.avro_key and self.keys.schemas.unmeasured else places)

    @cached_property
    def _places(self) -> Places:
        """What is protected of the columns."""
        kinds, found = {one.name: one.type for one in self._unprotected}, dict[Place, Action]()
        for name, action in self.policies:
            if name in kinds and name != self.avro_key:
                found |= leaves(kinds[name], (name,), action)
        return found

    @cached_property
    def _unprotected(self) -> pa.Schema:
        key = [] if self.key is None or self.avro_key else [pa.field(self.key[0], TYPES[self.key[1]])]
        key += list(self.keys.schemas.columns) if self.avro_key else []
        headers = [] if self.headers is None else [pa.field(self.headers, HEADER_MAP)]
        return pa.schema([*key, *headers, *(pa.field(name, TYPES[kind]) for name, _, kind in self.chosen)])

    @property
    def has_headers(self) -> bool:
        """Whether a column is of headers."""
        return self.headers is not None or bool(self.chosen)

    def of(
        self, records: pa.Table, read: Callable[[pa.Table], DecodedKeys] | None = None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Return an array for each column, and by position the reason why a record cannot fill them.

        `read`: decodes keys that are AVRO.
        """
        arrays, reasons = self._arrays(records, read)
        if not self._places:
            return arrays, reasons
        assert self.key_source is not None, "the plan of a task with policies has the place of their keys"
        protection = Protection("", self._places, self.key_source)
        return [contiguous(c) for c in protection.apply(pa.table(arrays, self.schema.names)).columns], reasons

    def _arrays(
        self, records: pa.Table, read: Callable[[pa.Table], DecodedKeys] | None
    ) -> tuple[list[pa.Array], dict[int, str]]:
        arrays, reasons = list[pa.Array](), dict[int, str]()
        if self.avro_key:
            assert read is not None, "keys that are Avro have a reader"
            keys = read(records)
            arrays += [keys.column] if self.keys.schemas.columns.names else []
            reasons |= {at: f"the key: {why}" for at, why in keys.reasons.items()}
        elif self.key is not None:
            array, undecodable = _typed(contiguous(records.column("key")), self.key[1])
            arrays.append(array)
            reasons |= dict.fromkeys(undecodable, f"the key is no {self.key[1]}")
        if not self.has_headers:
            return arrays, {} if self.keep_undecodable else reasons
        unique = _Headers.of(records)
        if self.headers is not None:
            arrays.append(unique.maps())
        for _, name, kind in self.chosen:
            array, undecodable = _typed(unique.values_of(name), kind)
            arrays.append(array)
            reasons |= dict.fromkeys(undecodable, f"the header {name!r} is no {kind}")
        return arrays, {} if self.keep_undecodable else reasons


@dataclass(frozen=True)
class _Headers:
    """Headers of a batch, one of each name in a record: the last, as Kafka's `lastHeader` has it."""

    rows: np.ndarray  # of each entry: the position of its record, ascending
    names: pa.StringArray
    values: pa.BinaryArray
    are_null: np.ndarray  # of each record: it has no headers

    @classmethod
    def of(cls, records: pa.Table) -> "_Headers":
        there = "headers" in records.column_names  # rows of an archive come without
        headers = contiguous(records.column("headers").cast(HEADERS) if there else pa.nulls(records.num_rows, HEADERS))
        rows, entries = pc.list_parent_indices(headers), headers.flatten()
        at = pa.table({"row": rows, "name": entries.field("key"), "at": np.arange(len(entries))})
        last = at.group_by(["row", "name"], use_threads=False).aggregate([("at", "max")]).column("at_max")
        if len(last) < len(entries):
            kept = contiguous(last).sort()
            rows, entries = rows.take(kept), entries.take(kept)
        none = headers.is_null().to_numpy(zero_copy_only=False)
        return cls(rows.to_numpy(), entries.field("key"), entries.field("value"), none)

    def maps(self) -> pa.MapArray:
        """Return a map for each record; null for one without headers."""
        counts = np.bincount(self.rows, minlength=len(self.are_null))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        starts = pa.array(offsets, mask=np.append(self.are_null, False))
        return pa.MapArray.from_arrays(starts, self.names, self.values)

    def values_of(self, name: str) -> pa.BinaryArray:
        """Return the value of one header for each record; null where there is none."""
        mine = pc.equal(self.names, name).to_numpy(zero_copy_only=False)
        found = np.full(len(self.are_null), -1)
        found[self.rows[mine]] = np.flatnonzero(mine)
        return self.values.take(pa.array(found, mask=found < 0))


def header_text(records: pa.Table, name: str) -> pa.StringArray:
    """Return the value of one header for each record, the last of several; null where there is none, or no text."""
    return text_of(_Headers.of(records).values_of(name))


def text_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; null where they are none."""
    return _typed(values, "string")[0]


def _typed(values: pa.BinaryArray, kind: str) -> tuple[pa.Array, list[int]]:
    """Return the values in a type, read from their text; null, and their positions, where they do not have it."""
    try:
        return _cast(values, kind), []
    except pa.ArrowInvalid:  # some do not: one by one (cold)
        found, undecodable = list[pa.Array](), list[int]()
        for position in range(len(values)):
            try:
                found.append(_cast(values.slice(position, 1), kind))
            except pa.ArrowInvalid:
                found.append(pa.nulls(1, TYPES[kind]))
                undecodable.append(position)
        return pa.concat_arrays(found), undecodable


def _cast(values: pa.BinaryArray, kind: str) -> pa.Array:
    return values if kind == "binary" else values.cast(pa.string()).cast(TYPES[kind])
