"""Decodes values and keys by the schemas of a plan, each group of them by the schema id that it names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.avro import schema
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.decoding.block import DecodedBlock, concat_blocks
from headrace.writer.formats.format import ValueDecoder
from headrace.writer.formats.formats import format_of
from headrace.writer.framing.compression import (
    INFLATED_BYTES_MAX,
    INFLATED_KEY_BYTES_MAX,
    PlainPart,
    split_plain,
)
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    NO_WIRE,
    UNNAMED,
    Wire,
    keys_as_values,
    refusal_reasons,
    show_id,
    split_by_schema_id,
)
from headrace.writer.privacy.field_decryption import Decryption

Decoders = dict[int, ValueDecoder]


class SchemaReader:
    """Decodes values behind the header of a wire format. Keeps a decoder for each schema id."""

    def __init__(
        self,
        plan: SchemaPlan,
        wire: Wire,
        scratch: str,
        decoders: Decoders | None = None,
        inflated_bytes_max: int = INFLATED_BYTES_MAX,
    ) -> None:
        """`scratch`: folder for the native decoder. `decoders`: of an earlier reader with the same wire format.

        `inflated_bytes_max`: of one value that a producer has compressed.
        """
        self._inflated_bytes_max = inflated_bytes_max
        self.plan = plan
        self.wire = wire
        self._scratch = scratch
        self._decoders: Decoders = {} if decoders is None else decoders
        # Ids of schemas by which a value was encrypted with a key that the plan lacks.
        self.ids_without_key = set[int]()

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return any(decoder.unresponsive for decoder in self._decoders.values())

    def decode_parts(
        self, values: pa.Array, schema_id: int, writer_schema: WriterSchema
    ) -> Iterator[tuple[int, int, DecodedBlock]]:
        """Decode values of one schema, headers included: a block at once, or where they are compressed, in parts.

        Yields the position of the first value of a part, the one behind its last, and what was decoded. Decrypts what
        producers encrypted, then protects what the schema has policies for.
        """
        for part in split_plain(values, self._wire_of(schema_id), self._inflated_bytes_max):
            yield part.start, part.stop, self._decode_part(part, schema_id, writer_schema)

    def decode_block(self, values: pa.Array, schema_id: int, writer_schema: WriterSchema) -> DecodedBlock:
        """Decode values of one schema, all parts joined."""
        parts = self.decode_parts(values, schema_id, writer_schema)
        return concat_blocks([(start, block) for start, _, block in parts])

    def _decode_part(self, part: PlainPart, schema_id: int, writer_schema: WriterSchema) -> DecodedBlock:
        block = self._decoder(schema_id, writer_schema).decode(part.values)
        if part.positions is not None:
            failures = {part.positions[row].as_py(): why for row, why in block.failures.items()}
            block = replace(
                block,
                positions=part.positions.take(block.positions),
                failures=dict(sorted({**part.failures, **failures}.items())),
            )
        decryption = self.plan.decryption(schema_id)
        if decryption is not None:
            block = self._decrypt_block(block, schema_id, decryption)
        if writer_schema.protection is None:
            return block
        return replace(block, rows=writer_schema.protection.apply(block.rows))

    def _decrypt_block(self, block: DecodedBlock, schema_id: int, decryption: Decryption) -> DecodedBlock:
        decrypted = decryption.decrypt(block.rows)
        if decrypted.lacks_keys:
            self.ids_without_key.add(schema_id)
        if not decrypted.failures:
            return replace(block, rows=decrypted.rows)
        is_decrypted = np.ones(decrypted.rows.num_rows, dtype=bool)
        is_decrypted[list(decrypted.failures)] = False
        mask = pa.array(is_decrypted)
        failures = {block.positions[row].as_py(): why for row, why in decrypted.failures.items()}
        return replace(
            block,
            rows=decrypted.rows.filter(mask),
            positions=block.positions.filter(mask),
            failures={**block.failures, **failures},
        )

    def find_older(self, times: pa.ChunkedArray, schema_id: int) -> tuple[pa.ChunkedArray, str] | None:
        """Tell of each record, by its Kafka time, whether it is older than the id's meaning, and say so.

        None where the id has had one meaning only.
        """
        since: datetime | None = self.plan.since.get(schema_id)
        if since is None:
            return None
        is_older = pc.fill_null(pc.less(times, pa.scalar(since, times.type)), False)
        meaning = f"schema id {show_id(schema_id)} means another schema since {since:%Y-%m-%dT%H:%M:%SZ}"
        return is_older, f"{meaning}, this record is older"

    def _decoder(self, schema_id: int, writer_schema: WriterSchema) -> ValueDecoder:
        if schema_id not in self._decoders:
            record = schema.parse(writer_schema.text)
            header_bytes = 0
            if schema_id != UNNAMED:
                header_bytes = self.wire.bytes_before(schema_id)
            self._decoders[schema_id] = format_of(record).open_decoder(
                record, native=writer_schema.native, header_bytes=header_bytes, scratch=self._scratch
            )
        return self._decoders[schema_id]

    def _wire_of(self, schema_id: int) -> Wire:
        """Return the wire format of the values that have an id."""
        if schema_id == UNNAMED:
            return NO_WIRE
        wire, _ = self.wire.of_id(schema_id)
        return wire


@dataclass(frozen=True)
class KeyPlan:
    """How keys that are Avro are read: each schema is that of the one field of a record, whose column they fill."""

    schemas: SchemaPlan = field(default_factory=lambda: SchemaPlan(pa.schema([])))
    wire: Wire = CONFLUENT


class DecodedKeys(NamedTuple):
    """The keys of some records.

    `column`: null for a record without a key, and for one whose key is not decoded. `reasons`: why a key is not
    decoded, by the position of its record. `unknown_ids`: schema ids that the plan lacks; where there are some, the
    column is not to be used. `used_ids`: schema ids by which keys were decoded.
    """

    column: pa.Array
    reasons: dict[int, str]
    unknown_ids: set[int]
    used_ids: set[int]


class KeyReader:
    """Decodes the keys of records by their own schemas."""

    def __init__(
        self,
        plan: KeyPlan,
        scratch: str,
        decoders: Decoders | None = None,
        show_reason: Callable[[str], str] = str,
    ) -> None:
        """`decoders`: of an earlier reader of keys with the same wire format.

        `show_reason`: returns a reason as it may be shown.
        """
        self._show_reason = show_reason
        self._reader = SchemaReader(plan.schemas, plan.wire, scratch, decoders, INFLATED_KEY_BYTES_MAX)
        self._plan = plan.schemas

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._reader.unresponsive

    def read(self, records: pa.Table) -> DecodedKeys:
        """Decode the keys of records with `key`, `timestamp` and, where the wire format needs them, `headers`."""
        kind = self._plan.columns.field(0).type if self._plan.columns.names else pa.null()
        keys = DecodedKeys(pa.nulls(records.num_rows, kind), {}, set(), set())
        positions = list[pa.Array]()
        pieces = list[pa.Array]()
        for schema_id, group in split_by_schema_id(keys_as_values(records), self._reader.wire):
            group_positions = contiguous(group.column("position"))
            writer_schema = None if schema_id is None else self._plan.schemas.get(schema_id)
            if schema_id is None:
                reasons = refusal_reasons(group, self._reader.wire, "key")
                keys.reasons.update(zip(group_positions.to_pylist(), reasons, strict=True))
            elif writer_schema is None:
                keys.unknown_ids.add(schema_id)
            elif isinstance(writer_schema, RejectedSchema):
                keys.reasons.update(dict.fromkeys(group_positions.to_pylist(), writer_schema.reason))
            else:
                decoded_positions, column = self._decode_group(group, schema_id, writer_schema, keys)
                positions.append(decoded_positions)
                pieces.append(column)
        return keys._replace(column=_merge_pieces(keys.column, positions, pieces))

    def _decode_group(
        self, group: pa.Table, schema_id: int, writer_schema: WriterSchema, keys: DecodedKeys
    ) -> tuple[pa.Array, pa.Array]:
        """Decode the keys of one schema. Returns the positions of their records, and the keys."""
        keys.used_ids.add(schema_id)
        older = self._reader.find_older(group.column("timestamp"), schema_id)
        if older is not None:
            is_older, why = older
            keys.reasons.update(dict.fromkeys(group.filter(is_older).column("position").to_pylist(), why))
            group = group.filter(pc.invert(is_older))
        positions = contiguous(group.column("position"))
        block = self._reader.decode_block(contiguous(group.column("value")), schema_id, writer_schema)
        keys.unknown_ids.update(self._reader.ids_without_key)
        keys.reasons.update({positions[row].as_py(): self._show_reason(why) for row, why in block.failures.items()})
        return positions.take(block.positions), contiguous(conform(block.rows, writer_schema, self._plan).column(0))


def _merge_pieces(nulls: pa.Array, positions: list[pa.Array], pieces: list[pa.Array]) -> pa.Array:
    """Put pieces of a column to the positions of their records; null where none comes. `nulls`: the column without any.

    The pieces `["a", "b"]` at `[2, 0]` and `["c"]` at `[3]` make `["b", null, "a", "c"]`.
    """
    count = sum(map(len, positions))
    if count == 0:
        return nulls
    # Nearly always all keys have one schema, and are in their order.
    if len(positions) == 1 and len(positions[0]) == len(nulls):
        return pieces[0]
    order = np.full(len(nulls), -1)
    order[pa.concat_arrays(positions).to_numpy()] = np.arange(count)
    return pa.concat_arrays(pieces).take(pa.array(order, mask=order < 0))
