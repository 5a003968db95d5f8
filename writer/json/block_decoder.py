"""Decodes a block of JSON values at once, and proves that row i is value i.

Arrow reads documents one behind another, so a value that is two documents, or none, or half of one, would shift its
neighbours. Each value is wrapped as `{"v":VALUE,"<name>":"<nonce>"}`, with a name and nonce that no producer knows: as
many rows as values, and the nonce in each row, prove that row i is value i. Arrow refuses a member that is named twice,
numbers that its type does not hold, and, where a value may have only declared members, any other. Where it may have
others, each value is cut into its members as well, which shows that it is one object.

Arrow reads no maps, and no text of a member. Such columns, and `rest`, are made of these slices.
(docs/adr/0069-json-values.md)
"""

import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import BlockRefused, DecodedBlock, Mask, PartRefused
from headrace.writer.decoding.decode import decode
from headrace.writer.json.decimal_guard import DecimalGuard
from headrace.writer.json.members import ERRORS
from headrace.writer.json.slice_columns import NO_SLICES, Rests, SliceColumns, Slices, needs_slices
from headrace.writer.json.suspects import SuspectFinder, mask_unsound
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

_UNEXPECTED = "unexpected field"
# Bytes that are put around a value.
_WRAP_BYTES = 64
_BODY_BYTES_MAX = 2**31 - 2**20
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
        self._suspects = SuspectFinder(self._root, single.takes)
        self._decimals = DecimalGuard(self._native)
        # Whether values of the last block had members that are not declared: each is cut into its members then.
        self._has_others = False

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all values. Raises BlockRefused."""
        self._unfit.take()
        if len(values) == 0:
            return self._schema.empty_table(), None
        values = self._cut_headers(values)
        _check_utf8(values)
        is_inexact = self._decimals.find_inexact(values)
        if is_inexact is not None:
            raise _NotConvertible(is_inexact)
        if not self._has_others and not self._slices.special:
            try:
                return self._convert(self._read_natively(values, "error"), NO_SLICES, len(values)), None
            except BlockRefused as refusal:
                if _UNEXPECTED not in str(refusal):
                    raise
        struct = self._read_natively(values, "ignore")
        slices = self._read_slices(values.to_pylist())
        return self._convert(struct, slices, len(values)), None

    def take_unfit(self) -> dict[str, int]:
        """Return the counts of the block that was decoded last."""
        return self._unfit.take()

    def _read_slices(self, values: list[bytes]) -> Slices:
        """Cut the values into their members, if they may have some that are not declared. Raises BlockRefused."""
        try:
            slices = self._slices.read(values)
        except (*ERRORS, pa.ArrowException, OverflowError) as error:
            raise _NotCuttable("a value cannot be cut into its members") from error
        self._has_others = slices.has_others
        return slices

    def _convert(self, struct: pa.StructArray | None, slices: Slices, count: int) -> pa.Table:
        """Return the columns of the table, of what Arrow read and of slices. Raises PartRefused."""
        is_suspect = np.zeros(count, dtype=bool)
        arrays = dict(slices.columns)
        if struct is not None:
            for (name, node), array in zip(self._native.items(), struct.flatten(), strict=True):
                try:
                    arrays[name] = convert_column(node, array, slices.rests)
                except (pa.ArrowException, ValueError) as error:
                    column_suspects = find_unconvertible(node, array)
                    if not column_suspects.any():
                        raise BlockRefused("the texts of rest are not those of the objects") from error
                    is_suspect |= column_suspects
        if is_suspect.any():
            raise self._make_part_refusal(struct, slices, is_suspect)
        if self._root.rest_name is not None:
            arrays[self._root.rest_name] = rest_column(self._root, count, slices.rests)
        return pa.table([arrays[name] for name in self._schema.names], schema=self._schema)

    def _make_part_refusal(self, struct: pa.StructArray | None, slices: Slices, is_suspect: Mask) -> BlockRefused:
        """Return a refusal with the rows of all values but the suspects."""
        # The texts of objects inside are not cut by values.
        if slices.rests.keys() - {id(self._root)}:
            return _NotConvertible(is_suspect)
        sound = pa.array(~is_suspect)
        rests = {key: texts.filter(sound) for key, texts in slices.rests.items()}
        columns = {name: array.filter(sound) for name, array in slices.columns.items()}
        sound_slices = Slices(columns, rests, has_others=slices.has_others)
        sound_struct = None if struct is None else struct.filter(sound)
        count = int(np.count_nonzero(~is_suspect))
        if slices.has_others and "dropped" in self._unfit.counts:
            return _NotConvertible(is_suspect)
        return PartRefused(self._convert(sound_struct, sound_slices, count), is_suspect, self._unfit.take())

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask | None:
        """Return the values that Arrow names or cannot cut; where none is known, those that are no row."""
        cut_values = self._cut_headers(values).to_pylist()
        match refusal:
            case _NotConvertible():
                return refusal.is_suspect
            case _NotCuttable():
                return mask_unsound(cut_values, self._slices.is_cuttable)
        return self._suspects.find(cut_values, str(refusal))

    def _cut_headers(self, values: pa.Array) -> pa.Array:
        if self._header_bytes == 0:
            return values
        return pc.binary_slice(values, self._header_bytes, _END_OF_VALUE)

    def _read_natively(self, values: pa.Array, undeclared: str) -> pa.StructArray | None:
        """Read the columns that need no slices; None where there are none. `undeclared`: of Arrow's option."""
        if not self._native:
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
            if node.rest_name is not None:
                children.append(rest_column(node, len(array), rests))
                names.append(node.rest_name)
            return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    raise AssertionError(f"{node} is made of slices")


def find_unconvertible(node: Node, array: pa.Array) -> Mask:
    """Return which values of a column as Arrow read it cannot be converted: halved until they stand alone."""
    is_suspect = np.zeros(len(array), dtype=bool)
    if isinstance(node, Single) and node.type.pattern:
        # One look at all finds nearly all of them.
        is_text = pc.fill_null(pc.match_substring_regex(array, node.type.pattern), True)
        is_suspect = pc.invert(is_text).to_numpy(zero_copy_only=False)
        array = pc.if_else(is_text, array, None)
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
    tail = pa.scalar(f',"{name}":"{nonce}"}}\n'.encode(), pa.binary())
    documents = pc.binary_join_element_wise(begin, values, tail, pa.scalar(b"", pa.binary()))
    offsets = memoryview(documents.buffers()[1]).cast("i")
    first = offsets[documents.offset]
    return documents.buffers()[2].slice(first, offsets[documents.offset + len(documents)] - first)


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
