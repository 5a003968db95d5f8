"""Decodes a block of JSON values at once, and proves that row i is value i.

Arrow reads documents one behind another, so a value that is two documents, or none, or half of one, would shift its
neighbours. Each value is wrapped as `{"v":VALUE,"<name>":"<nonce>"}`, with a name and nonce that no producer knows: as
many rows as values, and the nonce in each row, prove that row i is value i. Arrow refuses a member that is named twice,
numbers that its type does not hold, and, where a value may have only declared members, any other. Where it may have
others, each value is cut into its members as well, which shows that it is one object.

Arrow reads no maps, and no text of a member. Such columns, and `rest`, are made of these slices.
(docs/adr/0068-json-values.md)
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import BlockRefused, DecodedBlock, Mask
from headrace.writer.decoding.decode import decode
from headrace.writer.json.members import ERRORS
from headrace.writer.json.slice_columns import NO_SLICES, Rests, SliceColumns, Slices, needs_slices
from headrace.writer.json.typed_decoder import typed_decoder
from headrace.writer.json.value_reader import (
    Items,
    Node,
    ObjectMembers,
    Single,
    UnfitCounts,
    compile_nodes,
    read_value,
    reason_of,
)

_ROW = re.compile(r" in row (\d+)")
_UNEXPECTED = "unexpected field"
# Bytes that are put around a value.
_WRAP_BYTES = 64
_BODY_BYTES_MAX = 2**31 - 2**20
# How many values are stepped over one by one in a refused block.
_STEPS_MAX = 200
_END_OF_VALUE = 2**31 - 1


class _NotCuttable(BlockRefused):
    """A value cannot be cut into its members."""


class _NotConvertible(BlockRefused):
    """A value that Arrow read is not of its column's type."""

    def __init__(self, is_suspect: Mask) -> None:
        super().__init__("a value cannot be converted")
        self.is_suspect = is_suspect


class JsonSingleDecoder:
    """Reads one value at a time: the judge of what a block refuses."""

    def __init__(self, record: avro.Record, header_bytes: int = 0) -> None:
        self._header_bytes = header_bytes
        self._unfit = UnfitCounts()
        self._root = compile_nodes(record, self._unfit)
        self._schema = pa.schema(list(avro.table_fields(record).items()))

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value on its own; never raises for what a value holds."""
        rows: dict[int, pa.Table] = {}
        failures: dict[int, str] = {}
        unfit = UnfitCounts()
        for position, value in enumerate(values.to_pylist()):
            try:
                row = read_value(self._root, value[self._header_bytes :])
                rows[position] = pa.Table.from_pylist([row], self._schema)
            except (*ERRORS, pa.ArrowException, OverflowError) as error:
                failures[position] = reason_of(error)
                self._unfit.take()
            else:
                unfit.counts.update(self._unfit.take())
        table = pa.concat_tables([self._schema.empty_table(), *rows.values()]).combine_chunks()
        return DecodedBlock(table, pa.array(list(rows), pa.int64()), failures, unfit.take())

    def takes(self, value: bytes) -> bool:
        """Return whether a value, without its header, is a row."""
        try:
            read_value(self._root, value)
        except ERRORS:
            return False
        finally:
            self._unfit.take()
        return True


class JsonBlockDecoder:
    """Reads all values of a block with Arrow."""

    def __init__(self, record: avro.Record, single: JsonSingleDecoder, header_bytes: int = 0) -> None:
        self._header_bytes = header_bytes
        self._single = single
        self._unfit = UnfitCounts()
        self._root = compile_nodes(record, self._unfit)
        self._schema = pa.schema(list(avro.table_fields(record).items()))
        self._native = {name: node for name, node in self._root.columns.items() if not needs_slices(node)}
        self._native_fields = [pa.field(name, _native_type(node)) for name, node in self._native.items()]
        self._slices = SliceColumns(self._root, self._schema)
        self._decode_typed = typed_decoder(self._root)
        # Whether a value had a member that is not declared; from then on each value is cut into its members.
        self._has_others = bool(self._slices.special)

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all values. Raises BlockRefused."""
        self._unfit.take()
        values = self._cut_headers(values)
        _check_utf8(values)
        struct: pa.StructArray | None = None
        slices = NO_SLICES
        if not self._has_others:
            try:
                struct = self._read_natively(values, "error")
            except BlockRefused as refusal:
                if _UNEXPECTED not in str(refusal):
                    raise
                self._has_others = True
        if self._has_others:
            struct = self._read_natively(values, "ignore")
            slices = self._read_slices(values)
        return self._convert(struct, slices, len(values)), None

    def take_unfit(self) -> dict[str, int]:
        """Return the counts of the block that was decoded last."""
        return self._unfit.take()

    def _read_slices(self, values: pa.Array) -> Slices:
        try:
            return self._slices.read(values.to_pylist())
        except (*ERRORS, pa.ArrowException, OverflowError) as error:
            raise _NotCuttable("a value cannot be cut into its members") from error

    def _convert(self, struct: pa.StructArray | None, slices: Slices, count: int) -> pa.Table:
        """Return the columns of the table, of what Arrow read and of slices. Raises BlockRefused."""
        arrays = dict(slices.columns)
        try:
            if struct is not None:
                parts = zip(self._native.items(), struct.flatten(), strict=True)
                arrays |= {name: convert_column(node, array, slices.rests) for (name, node), array in parts}
            if self._root.rest is not None:
                arrays[self._root.rest] = rest_column(self._root, count, slices.rests)
        except (pa.ArrowException, ValueError) as error:
            raise _NotConvertible(self._find_unconvertible(struct)) from error
        return pa.table([arrays[name] for name in self._schema.names], schema=self._schema)

    def _find_unconvertible(self, struct: pa.StructArray | None) -> Mask:
        """Return which rows that Arrow read cannot be converted: halved until the culprits stand alone."""
        assert struct is not None, "columns of slices are complete"
        is_suspect = np.zeros(len(struct), dtype=bool)
        pending = [(0, len(struct))]
        while pending and np.count_nonzero(is_suspect) < _STEPS_MAX:
            start, stop = pending.pop()
            # A slice of a list would keep all items.
            part = struct.take(pa.arange(start, stop))
            try:
                for node, array in zip(self._native.values(), part.flatten(), strict=True):
                    convert_column(node, array, {})
            except (pa.ArrowException, ValueError):
                middle = (start + stop) // 2
                if stop - start == 1:
                    is_suspect[start] = True
                else:
                    pending += [(start, middle), (middle, stop)]
        return is_suspect

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask | None:
        """Return the values that Arrow names, cannot convert or cannot cut; where none is known, those of no row."""
        values = self._cut_headers(values)
        match refusal:
            case _NotConvertible():
                return refusal.is_suspect
            case _NotCuttable():
                return _mask(values, self._slices.is_cuttable)
        row = _row_of(refusal)
        if row is not None:
            return self._step_over(values, row)
        is_suspect = _mask(values, self._has_types)
        if is_suspect.any():
            return is_suspect
        return _mask(values, self._single.takes)

    def _has_types(self, value: bytes) -> bool:
        try:
            self._decode_typed(value)
        except ERRORS:
            return False
        return True

    def _step_over(self, values: pa.Array, row: int) -> Mask:
        """Mark the rows that Arrow names, one behind another. What it cannot convert is found without these."""
        is_suspect = np.zeros(len(values), dtype=bool)
        start = 0
        next_row: int | None = row
        for _ in range(_STEPS_MAX):
            if next_row is None or start + next_row >= len(values):
                break
            is_suspect[start + next_row] = True
            start += next_row + 1
            try:
                self._read_natively(values.slice(start), "ignore")
                break
            except BlockRefused as refusal:
                next_row = _row_of(refusal)
        return is_suspect

    def _cut_headers(self, values: pa.Array) -> pa.Array:
        if self._header_bytes == 0:
            return values
        return pc.binary_slice(values, self._header_bytes, _END_OF_VALUE)

    def _read_natively(self, values: pa.Array, undeclared: str) -> pa.StructArray | None:
        """Read the columns that need no slices; None where there are none. `undeclared`: of Arrow's option."""
        if len(values) == 0 or not self._native:
            return None
        name = f"_{os.urandom(8).hex()}"
        nonce = os.urandom(8).hex()
        body = _wrap(values, name, nonce)
        wrapped = pa.schema([pa.field("v", pa.struct(self._native_fields)), pa.field(name, pa.string())])
        try:
            table = arrow_json.read_json(
                pa.BufferReader(body),
                arrow_json.ReadOptions(use_threads=False, block_size=body.size + 1),
                arrow_json.ParseOptions(explicit_schema=wrapped, unexpected_field_behavior=undeclared),
            ).combine_chunks()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise BlockRefused(str(error)) from error
        if table.num_rows != len(values):
            raise BlockRefused(f"{table.num_rows} documents were read of {len(values)} values")
        is_proven = pc.all(pc.equal(table.column(name), nonce), skip_nulls=False).as_py()
        if not is_proven or table.column("v").null_count:
            raise BlockRefused("a value is not one object")
        return table.column("v").chunk(0)


def convert_column(node: Node, array: pa.Array, rests: Rests) -> pa.Array:
    """Return a column as the table has it, of one as Arrow read it. Raises pa.ArrowException, ValueError."""
    match node:
        case Single():
            return node.type.convert(array)
        case Items():
            items = convert_column(node.item, array.values, rests)
            kind = pa.list_(pa.field("element", items.type))
            return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
        case ObjectMembers():
            children = [
                convert_column(column, array.field(index), rests) for index, column in enumerate(node.columns.values())
            ]
            names = list(node.columns)
            if node.rest is not None:
                children.append(rest_column(node, len(array), rests))
                names.append(node.rest)
            return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    raise AssertionError(f"{node} is made of slices")


def rest_column(node: ObjectMembers, count: int, rests: Rests) -> pa.Array:
    """Return the texts of `rest` of so many objects. Raises ValueError where slices give another number of them."""
    texts = rests.get(id(node))
    if texts is None:
        return pa.nulls(count, pa.string())
    if len(texts) != count:
        raise ValueError(f"{len(texts)} texts of {count} objects")
    return texts


def _native_type(node: Node) -> pa.DataType:
    match node:
        case Single():
            return node.type.native
        case Items():
            return pa.list_(pa.field("element", _native_type(node.item)))
        case ObjectMembers():
            return pa.struct([pa.field(name, _native_type(column)) for name, column in node.columns.items()])
    raise AssertionError(f"{node} is made of slices")


def _check_utf8(values: pa.Array) -> None:
    """Raise BlockRefused where a value is not UTF-8: Arrow does not look into members that it skips."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BlockRefused("a value is not UTF-8") from error


def _wrap(values: pa.Array, name: str, nonce: str) -> pa.Buffer:
    """Return the documents around the values, one behind the other. Raises BlockRefused for too many bytes."""
    if values.nbytes + _WRAP_BYTES * len(values) > _BODY_BYTES_MAX:
        raise BlockRefused("the block has too many bytes for one document each")
    begin = pa.scalar(b'{"v":', pa.binary())
    end = pa.scalar(f',"{name}":"{nonce}"}}\n'.encode(), pa.binary())
    documents = pc.binary_join_element_wise(begin, values, end, pa.scalar(b"", pa.binary()))
    offsets = memoryview(documents.buffers()[1]).cast("i")
    first = offsets[documents.offset]
    return documents.buffers()[2].slice(first, offsets[documents.offset + len(documents)] - first)


def _mask(values: pa.Array, is_sound: Callable[[bytes], bool]) -> Mask:
    """Return which values are not sound."""
    return np.fromiter((not is_sound(value) for value in values.to_pylist()), dtype=bool, count=len(values))


def _row_of(refusal: BlockRefused) -> int | None:
    """Return the row that Arrow names; None where it names none."""
    row = _ROW.search(str(refusal))
    return None if row is None else int(row[1])


@dataclass(frozen=True)
class JsonDecoder:
    """Decodes JSON values: by blocks, and one by one where a block is refused."""

    block: JsonBlockDecoder
    single: JsonSingleDecoder

    @property
    def unresponsive(self) -> bool:
        """Whether the decoder of this process is lost: Arrow and msgspec do not spin."""
        return False

    def decode(self, values: pa.Array) -> DecodedBlock:
        """Decode a block of values, each behind its header."""
        return decode(values, self.block, self.single)
