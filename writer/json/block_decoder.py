"""Decodes a block of JSON values at once, and tells which of them are to be read one by one.

Arrow reads most columns (`native_reader`). It refuses a member that is named twice, numbers that its type does not
hold, and, where a value may have only declared members, any other. Where it may have others, each value is cut into its
members as well, which shows that it is one object.

Arrow reads no maps, and no text of a member. Such columns, and `rest`, are made of these slices.
(docs/adr/0069-json-values.md)
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import BlockRefused, DecodedBlock, Mask, PartRefused
from headrace.writer.decoding.decode import decode
from headrace.writer.json.decimal_guard import DecimalGuard
from headrace.writer.json.members import ERRORS, mask_unsound
from headrace.writer.json.native_reader import NativeReader, UndeclaredMember
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
from headrace.writer.json.value_types import ValueType

# What the columns of values may raise.
_ERRORS = (*ERRORS, pa.ArrowException, OverflowError)
_END_OF_VALUE = 2**31 - 1


class JsonSingleDecoder:
    """Reads one value at a time: the judge of what a block refuses."""

    def __init__(self, record: avro.Record, header_bytes: int = 0) -> None:
        self._header_bytes = header_bytes
        self._unfit = UnfitCounts()
        self._root = compile_nodes(record, self._unfit)
        self._schema = pa.schema(list(avro.table_fields(record).items()))

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value on its own; never raises for what a value holds."""
        rows: dict[int, pa.RecordBatch] = {}
        failures: dict[int, str] = {}
        unfit = UnfitCounts()
        for position, value in enumerate(values.to_pylist()):
            try:
                row = read_value(self._root, value[self._header_bytes :])
                # Some values are more than Arrow takes.
                rows[position] = pa.RecordBatch.from_pylist([row], self._schema)
            except _ERRORS as error:
                failures[position] = reason_of(error)
                self._unfit.take()
            else:
                unfit.counts.update(self._unfit.take())
        table = pa.Table.from_batches(rows.values(), self._schema).combine_chunks()
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
        self._takes = single.takes
        self._unfit = UnfitCounts()
        self._root = compile_nodes(record, self._unfit)
        self._decode_typed = typed_decoder(self._root)
        self._schema = pa.schema(list(avro.table_fields(record).items()))
        self._native = {name: node for name, node in self._root.columns.items() if not needs_slices(node)}
        fields = [pa.field(name, _native_type(node)) for name, node in self._native.items()]
        self._reader = NativeReader(fields, self._find_unsound, typed_decoder(self._root, only_numbers=True))
        self._slices = SliceColumns(self._root, self._schema)
        self._decimals = DecimalGuard(self._native)
        # Whether values of the last block had members that are not declared: each is cut into its members then.
        self._has_others = False

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all values. Raises PartRefused where some are suspects, and BlockRefused."""
        part = _Part(self._cut_headers(values))
        part.drop(find_no_utf8(part.values))
        is_inexact = self._decimals.find_inexact(part.values)
        if is_inexact is not None:
            part.drop(is_inexact)
        try:
            needs_cuts = self._has_others or bool(self._slices.special)
            self._read_columns(part, "ignore" if needs_cuts else "error")
        except UndeclaredMember:
            needs_cuts = True
            self._read_columns(part, "ignore")
        slices = self._read_slices(part) if needs_cuts else NO_SLICES
        rows = self._build(part, slices)
        if part.count < len(values):
            raise PartRefused(rows, part.is_suspect, self._unfit.take())
        return rows, None

    def take_unfit(self) -> dict[str, int]:
        """Return the counts of the block that was decoded last."""
        return self._unfit.take()

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask | None:  # noqa: ARG002 - all are looked at
        """Return the values that are not of their columns' types; where none is known, those that are no row."""
        return self._find_unsound(self._cut_headers(values).to_pylist())

    def _find_unsound(self, values: Sequence[bytes]) -> Mask:
        """Return the values that are not of their columns' types; where there are none, those that are no row."""
        is_unsound = mask_unsound(values, self._decode_typed)
        if not is_unsound.any():
            is_unsound = mask_unsound(values, self._takes)
        return is_unsound

    def _cut_headers(self, values: pa.Array) -> pa.Array:
        if self._header_bytes == 0:
            return values
        return pc.binary_slice(values, self._header_bytes, _END_OF_VALUE)

    def _read_columns(self, part: "_Part", undeclared: str) -> None:
        """Read the columns that need no slices, and drop the values that Arrow does not take, or cannot convert."""
        if not self._native:
            return
        struct, is_suspect = self._reader.read(part.values, undeclared)
        part.drop(is_suspect)
        part.struct = struct
        is_suspect = np.zeros(part.count, dtype=bool)
        for node, array in zip(self._native.values(), struct.flatten(), strict=True):
            is_suspect |= find_unconvertible(node, array)
        part.drop(is_suspect)

    def _read_slices(self, part: "_Part") -> Slices:
        """Cut the values into their members, and drop those that cannot be cut. Raises BlockRefused."""
        try:
            slices = self._cut(part)
        except _ERRORS:
            part.drop(mask_unsound(part.values.to_pylist(), self._slices.is_cuttable))
            try:
                slices = self._cut(part)
            except _ERRORS as error:
                raise BlockRefused("a value cannot be cut into its members") from error
        self._has_others = slices.has_others
        return slices

    def _cut(self, part: "_Part") -> Slices:
        self._unfit.take()
        return self._slices.read(part.values.to_pylist())

    def _build(self, part: "_Part", slices: Slices) -> pa.Table:
        """Return the columns of the table, of what Arrow read and of slices. Raises BlockRefused."""
        arrays = dict(slices.columns)
        try:
            if part.struct is not None:
                for (name, node), array in zip(self._native.items(), part.struct.flatten(), strict=True):
                    arrays[name] = convert_column(node, array, slices.rests)
            if self._root.rest_name is not None:
                arrays[self._root.rest_name] = rest_column(self._root, part.count, slices.rests)
        except (pa.ArrowException, ValueError) as error:
            raise BlockRefused("the texts of rest are not those of the objects") from error
        return pa.table([arrays[name] for name in self._schema.names], schema=self._schema)


class _Part:
    """The values of a block without its suspects, and the columns that Arrow read of them."""

    def __init__(self, values: pa.BinaryArray) -> None:
        self.values = values
        self.struct: pa.StructArray | None = None
        self.is_suspect = np.zeros(len(values), dtype=bool)

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    def drop(self, is_suspect: Mask) -> None:
        """Leave out some of the values."""
        if not is_suspect.any():
            return
        positions = np.flatnonzero(~self.is_suspect)
        self.is_suspect[positions[is_suspect]] = True
        is_sound = pa.array(~is_suspect)
        self.values = self.values.filter(is_sound)
        if self.struct is not None:
            self.struct = self.struct.filter(is_sound)


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
            if node.rest_name is not None:
                children.append(rest_column(node, len(array), rests))
                names.append(node.rest_name)
            return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    raise AssertionError(f"{node} is made of slices")


def find_unconvertible(node: Node, array: pa.Array) -> Mask:
    """Return which values of a column as Arrow read it cannot be converted: halved until they stand alone."""
    is_suspect = np.zeros(len(array), dtype=bool)
    if isinstance(node, Single) and node.type.pattern:
        array, is_suspect = _drop_other_texts(node.type, array)
    with suppress(pa.ArrowException, ValueError):
        convert_column(node, array, {})
        return is_suspect
    pending = [(0, len(array))]
    while pending:
        start, stop = pending.pop()
        # A slice of a list would keep all items.
        part = array.slice(start, stop - start) if isinstance(node, Single) else array.take(pa.arange(start, stop))
        try:
            convert_column(node, part, {})
        except (pa.ArrowException, ValueError):
            middle = (start + stop) // 2
            if stop - start == 1:
                is_suspect[start] = True
            else:
                pending += [(start, middle), (middle, stop)]
    return is_suspect


def _drop_other_texts(kind: ValueType, texts: pa.StringArray) -> tuple[pa.StringArray, Mask]:
    """Return texts with nulls for those that are not of a type's pattern, if there may be some; and which these are."""
    try:
        texts.cast(kind.table)
    except pa.ArrowInvalid:
        is_kept = pc.fill_null(pc.match_substring_regex(texts, kind.pattern), True)
        return pc.if_else(is_kept, texts, None), pc.invert(is_kept).to_numpy(zero_copy_only=False)
    return texts, np.zeros(len(texts), dtype=bool)


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


def find_no_utf8(values: pa.BinaryArray) -> Mask:
    """Return which values are not UTF-8: Arrow does not look into members that it skips."""
    is_suspect = np.zeros(len(values), dtype=bool)
    pending = [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        try:
            values.slice(start, stop - start).cast(pa.string())
        except pa.ArrowInvalid:
            middle = (start + stop) // 2
            if stop - start == 1:
                is_suspect[start] = True
            else:
                pending += [(start, middle), (middle, stop)]
    return is_suspect


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
