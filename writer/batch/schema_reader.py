"""Decodes values and keys by the schemas of a plan, each group of them by the schema id that it names."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from writer.avro import schema
from writer.avro.decoding.block_decoder import NativeDecoder
from writer.avro.decoding.decode import decode
from writer.avro.decoding.record_decoder import DecodedBlock, SingleDecoder
from writer.avro.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from writer.avro.wire_format import CONFLUENT, Wire, keys_as_values, refusal_reasons, show_id, split_by_schema_id
from writer.privacy.field_decryption import Decryption

Decoders = dict[int, tuple[NativeDecoder | None, SingleDecoder]]


class SchemaReader:
    """Decodes values behind the header of a wire format. Keeps a decoder for each schema id."""

    def __init__(self, plan: SchemaPlan, wire: Wire, scratch: str, decoders: Decoders | None = None) -> None:
        """`scratch`: folder for the native decoder. `decoders`: of an earlier reader with the same wire format."""
        self.plan, self.wire, self._scratch = plan, wire, scratch
        self._decoders: Decoders = {} if decoders is None else decoders
        self.lacking = set[int]()  # ids of schemas by which a value was encrypted with a key that the plan lacks

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return any(native is not None and native.unresponsive for native, _ in self._decoders.values())

    def decoded(self, values: pa.Array, schema_id: int, known: WriterSchema) -> DecodedBlock:
        """Decode a block of values of one schema, headers included.

        Decrypt what producers encrypted, then protect what it has policies for.
        """
        found = decode(values, *self._decoder(schema_id, known))
        if (decryption := self.plan.decryption(schema_id)) is not None:
            found = self._opened(found, schema_id, decryption)
        return found if known.protection is None else replace(found, rows=known.protection.apply(found.rows))

    def _opened(self, found: DecodedBlock, schema_id: int, decryption: Decryption) -> DecodedBlock:
        opened = decryption.opened(found.rows)
        if opened.lacks_keys:
            self.lacking.add(schema_id)
        if not opened.failures:
            return replace(found, rows=opened.rows)
        keep = np.ones(opened.rows.num_rows, dtype=bool)
        keep[list(opened.failures)] = False
        failures = {found.positions[at].as_py(): why for at, why in opened.failures.items()}
        mask = pa.array(keep)
        return DecodedBlock(opened.rows.filter(mask), found.positions.filter(mask), {**found.failures, **failures})

    def older(self, times: pa.ChunkedArray, schema_id: int) -> tuple[pa.ChunkedArray, str] | None:
        """Tell of each record, by its Kafka time, whether it is older than the id's meaning, and say so.

        None where the id has had one meaning only.
        """
        since: datetime | None = self.plan.since.get(schema_id)
        if since is None:
            return None
        older = pc.fill_null(pc.less(times, pa.scalar(since, times.type)), False)
        meaning = f"schema id {show_id(schema_id)} means another schema since {since:%Y-%m-%dT%H:%M:%SZ}"
        return older, f"{meaning}, this record is older"

    def _decoder(self, schema_id: int, known: WriterSchema) -> tuple[NativeDecoder | None, SingleDecoder]:
        if schema_id not in self._decoders:
            record = schema.parse(known.text)
            before = self.wire.header_bytes
            native = NativeDecoder(record, scratch=self._scratch, header_bytes=before) if known.native else None
            self._decoders[schema_id] = (native, SingleDecoder(record, header_bytes=before))
        return self._decoders[schema_id]


@dataclass(frozen=True)
class KeyPlan:
    """How keys that are Avro are read: each schema is that of the one field of a record, whose column they fill."""

    schemas: SchemaPlan = field(default_factory=lambda: SchemaPlan(pa.schema([])))
    wire: Wire = CONFLUENT


class DecodedKeys(NamedTuple):
    """The keys of some records."""

    column: pa.Array  # null for a record without a key, and for one whose key is not decoded
    reasons: dict[int, str]  # position of a record → why its key is not decoded
    unknown: set[int]  # schema ids that the plan lacks; where there are some, the column is not to be used
    used: set[int]  # schema ids by which keys were decoded


class KeyReader:
    """Decodes the keys of records by their own schemas."""

    def __init__(
        self, plan: KeyPlan, scratch: str, decoders: Decoders | None = None, shown: Callable[[str], str] = str
    ) -> None:
        """`decoders`: of an earlier reader of keys with the same wire format. `shown`: a reason as it may be shown."""
        self._shown = shown
        self._reader = SchemaReader(plan.schemas, plan.wire, scratch, decoders)
        self._plan = plan.schemas

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._reader.unresponsive

    def read(self, records: pa.Table) -> DecodedKeys:
        """Decode the keys of records with `key`, `timestamp` and, where the wire format needs them, `headers`."""
        kind = self._plan.columns.field(0).type if self._plan.columns.names else pa.null()
        found = DecodedKeys(pa.nulls(records.num_rows, kind), {}, set(), set())
        places, pieces = list[pa.Array](), list[pa.Array]()
        for schema_id, group in split_by_schema_id(keys_as_values(records), self._reader.wire):
            at = contiguous(group.column("position"))
            known = None if schema_id is None else self._plan.schemas.get(schema_id)
            if schema_id is None:
                reasons = refusal_reasons(group, self._reader.wire, "key")
                found.reasons.update(zip(at.to_pylist(), reasons, strict=True))  # cold, as all that fails
            elif known is None:
                found.unknown.add(schema_id)
            elif isinstance(known, RejectedSchema):
                found.reasons.update(dict.fromkeys(at.to_pylist(), known.reason))
            else:
                place, column = self._group(group, schema_id, known, found)
                places.append(place)
                pieces.append(column)
        return found._replace(column=_placed(found.column, places, pieces))

    def _group(
        self, group: pa.Table, schema_id: int, known: WriterSchema, found: DecodedKeys
    ) -> tuple[pa.Array, pa.Array]:
        """Decode the keys of one schema. Returns the positions of their records, and the keys."""
        found.used.add(schema_id)
        if (old := self._reader.older(group.column("timestamp"), schema_id)) is not None:
            older, why = old
            found.reasons.update(dict.fromkeys(group.filter(older).column("position").to_pylist(), why))
            group = group.filter(pc.invert(older))
        at = contiguous(group.column("position"))
        decoded = self._reader.decoded(contiguous(group.column("value")), schema_id, known)
        found.unknown.update(self._reader.lacking)
        found.reasons.update({at[position].as_py(): self._shown(why) for position, why in decoded.failures.items()})
        return at.take(decoded.positions), contiguous(conform(decoded.rows, known, self._plan).column(0))


def _placed(nothing: pa.Array, places: list[pa.Array], pieces: list[pa.Array]) -> pa.Array:
    """Put pieces of a column to their places; null where none comes. `nothing`: the column without any."""
    if sum(map(len, places)) == 0:
        return nothing
    if len(places) == 1 and len(places[0]) == len(nothing):  # nearly always: all keys by one schema, in their order
        return pieces[0]
    order = np.full(len(nothing), -1)
    order[pa.concat_arrays(places).to_numpy()] = np.arange(sum(map(len, places)))
    return pa.concat_arrays(pieces).take(pa.array(order, mask=order < 0))
