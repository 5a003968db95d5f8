"""Reads a block of JSON values with Arrow, and proves that row i is value i.

Arrow reads documents one behind another, so a value that is two documents, or none, or half of one, would shift its
neighbours. Each value is wrapped as `{"v":VALUE,"<name>":"<nonce>"}`, with a name and nonce that no producer knows: as
many rows as values, and the nonce in each row, prove that row i is value i.

Arrow reads the documents in pieces. Where it refuses one, the pieces before it stay, the value is overwritten with
spaces, which Arrow skips, and it goes on from the begin of that piece: a bad value costs some hundred others a second
reading. (docs/adr/0069-json-values.md)
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from headrace.writer.decoding.block import BlockRefused, Mask
from headrace.writer.json.members import mask_unsound

# Bytes of a piece: a larger one costs less for each value, and a smaller one less for each bad value.
_PIECE_BYTES = 2**20
_PIECE_BYTES_WITH_SUSPECTS = 3 * 2**16
# Bytes that are put around a value.
_WRAP_BYTES = 64
_BODY_BYTES_MAX = 2**31 - 2**20
_UNEXPECTED = "unexpected field"
# Arrow counts the documents of the piece.
_ROW = re.compile(r" in row (\d+)$")
_REPEATED = re.compile(r"Column\(/v/(?:.*/)?([^/]*)\) was specified twice")
# What is no number is not looked for.
_UNCONVERTED = re.compile(r"^Failed to convert JSON to [^,]*, couldn't parse:([-+.eE0-9]{1,100})$")
# Refusals are dear: after one for so many values, and not fewer than these, all values are looked at.
_VALUES_OF_REFUSAL = 256
_REFUSALS = 16
# A look at the numbers of all values before Arrow reads them pays from one in so many that it cannot convert.
_VALUES_OF_UNCONVERTED = 2048
# Where more than one in so many values has a name twice, it stands in objects inside them as well.
_VALUES_OF_REPEATED = 2
# Where more values than these have what Arrow could not convert, it says little.
_VALUES_WITH_TOKEN_MAX = 4


class UndeclaredMember(BlockRefused):
    """A value has a member that no column is declared for, and the block may have none."""


class NativeReader:
    """Reads the columns of values that Arrow can read."""

    def __init__(
        self,
        fields: Sequence[pa.Field],
        find_unsound: Callable[[Sequence[bytes]], Mask],
        decode_numbers: Callable[[bytes], object],
    ) -> None:
        """`fields`: of the columns.

        `find_unsound` tells which values, without their headers, Arrow may not take; `decode_numbers` raises ValueError
        for one whose numbers it cannot convert.
        """
        self._struct = pa.struct(fields)
        self._find_unsound = find_unsound
        self._decode_numbers = decode_numbers
        # Where the last block had suspects, the next one will have some.
        self._had_suspects = False
        # Whether the last block had many numbers that Arrow cannot convert. It reads a piece to its end for each.
        self._had_unconverted = False
        self._unconverted_count = 0

    def read(self, values: pa.BinaryArray, undeclared: str) -> tuple[pa.StructArray, Mask]:
        """Return the columns of the values that Arrow takes, and which ones it does not take.

        `undeclared`: Arrow's `unexpected_field_behavior`. Raises UndeclaredMember, and BlockRefused where it does not
        take many.
        """
        documents = _Documents(values, _PIECE_BYTES_WITH_SUSPECTS if self._had_suspects else _PIECE_BYTES)
        self._unconverted_count = 0
        if self._had_unconverted:
            unconverted = np.flatnonzero(mask_unsound(values.to_pylist(), self._decode_numbers))
            self._unconverted_count = len(unconverted)
            documents.blank(unconverted)
        options = arrow_json.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", self._struct), pa.field(documents.name, pa.string())]),
            unexpected_field_behavior=undeclared,
        )
        refusals = 0
        refusals_max = max(_REFUSALS, len(values) // _VALUES_OF_REFUSAL)
        columns: list[pa.StructArray] = []
        while documents.unread_count:
            try:
                # What was read before a refusal stays in the list.
                columns.extend(documents.read_pieces(options))
            except _Refused as refusal:
                if _UNEXPECTED in refusal.reason:
                    raise UndeclaredMember(_UNEXPECTED) from None
                if refusals == refusals_max:
                    raise BlockRefused("Arrow does not take many of the values") from None
                refusals += 1
                culprits = self._find_culprits(values, documents, refusal)
                if refusals == refusals_max // 2:
                    culprits = _find_repeated(values, documents, refusal.reason, culprits)
                documents.blank(culprits)
                documents.limit_pieces(_PIECE_BYTES_WITH_SUSPECTS)
        self._had_suspects = bool(documents.is_suspect.any())
        self._had_unconverted = self._unconverted_count * _VALUES_OF_UNCONVERTED > len(values)
        struct = pa.concat_arrays(columns) if columns else pa.array([], self._struct)
        return struct, documents.is_suspect

    def _find_culprits(
        self, values: pa.BinaryArray, documents: "_Documents", refusal: "_Refused"
    ) -> npt.NDArray[np.int64]:
        """Return the positions of values that Arrow refuses, or may refuse. Raises BlockRefused for none."""
        if refusal.row is not None:
            return documents.next_positions(refusal.row + 1)[-1:]
        self._unconverted_count += 1
        positions = documents.positions_of_piece()
        piece = values.take(pa.array(positions))
        is_unsound = _find_token(piece, refusal.reason)
        if is_unsound is None:
            is_unsound = self._find_unsound(piece.to_pylist())
        if not is_unsound.any():
            raise BlockRefused("Arrow does not take a value, and it cannot be told which")
        return positions[is_unsound]


class _Refused(Exception):
    """Arrow refuses a piece. `row`: the one to blame among the documents that were not read yet; None: not known."""

    def __init__(self, reason: str, row: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


class _Documents:
    """The documents around the values of a block, of which some were read."""

    def __init__(self, values: pa.BinaryArray, piece_bytes: int) -> None:
        """Raise BlockRefused for too many bytes."""
        if values.nbytes + _WRAP_BYTES * len(values) > _BODY_BYTES_MAX:
            raise BlockRefused("the block has too many bytes for one document each")
        self.name = f"_{os.urandom(8).hex()}"
        self._nonce = os.urandom(8).hex()
        self._body, self._offsets = _wrap(values, self.name, self._nonce)
        self.is_suspect = np.zeros(len(values), dtype=bool)
        # Positions of the values that are no suspects, and how many of them were read.
        self._positions = np.arange(len(values))
        self._read_count = 0
        # A document has to lie in one piece.
        self._piece_bytes_min = min(2 * int(np.diff(self._offsets).max(initial=0)), len(self._body) + 1)
        if len(values) and _has_line_break(values[0].as_py()):
            # Arrow cuts pieces at line breaks, and so would cut most values in two.
            self._piece_bytes_min = len(self._body) + 1
        self._piece_bytes = max(piece_bytes, self._piece_bytes_min)

    @property
    def unread_count(self) -> int:
        """Number of documents that are to be read."""
        return len(self._positions) - self._read_count

    def limit_pieces(self, piece_bytes: int) -> None:
        """Read so many bytes at once from now on, or what the longest document needs."""
        self._piece_bytes = max(min(piece_bytes, self._piece_bytes), self._piece_bytes_min)

    def next_positions(self, count: int) -> npt.NDArray[np.int64]:
        """Return the positions of the next documents. Raises BlockRefused where there are fewer."""
        positions: npt.NDArray[np.int64] = self._positions[self._read_count : self._read_count + count]
        if len(positions) < count:
            raise BlockRefused("Arrow reads more documents than there are")
        return positions

    def positions_of_piece(self) -> npt.NDArray[np.int64]:
        """Return the positions of the documents that the next piece may have."""
        positions = self._positions[self._read_count :]
        end = self._offsets[positions[0]] + self._piece_bytes
        count = int(np.searchsorted(self._offsets[positions], end))
        return self.next_positions(count)

    def blank(self, positions: npt.NDArray[np.int64]) -> None:
        """Overwrite documents with spaces."""
        self.is_suspect[positions] = True
        self._positions = np.flatnonzero(~self.is_suspect)
        for position in positions:
            self._body[self._offsets[position] : self._offsets[position + 1]] = ord(" ")

    def read_pieces(self, options: arrow_json.ParseOptions) -> Iterator[pa.StructArray]:
        """Yield the columns of the documents that were not read yet, piece by piece. Raises _Refused."""
        start = self._offsets[self._positions[self._read_count]]
        body = pa.py_buffer(self._body[start:])
        read_options = arrow_json.ReadOptions(use_threads=False, block_size=self._piece_bytes)
        try:
            reader = arrow_json.open_json(pa.BufferReader(body), read_options, options)
            for batch in reader:
                yield self._prove(batch)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            row = _ROW.search(str(error))
            raise _Refused(str(error), row and int(row[1])) from error
        if self.unread_count:
            raise BlockRefused("Arrow reads fewer documents than there are")

    def _prove(self, batch: pa.RecordBatch) -> pa.StructArray:
        """Return the columns of a batch whose rows are the next documents. Raises _Refused."""
        column = batch.column("v")
        is_proven = pc.equal(batch.column(self.name), self._nonce)
        if is_proven.null_count or column.null_count or pc.all(is_proven).as_py() is False:
            is_document = pc.and_(pc.fill_null(is_proven, False), column.is_valid())
            raise _Refused("a value is not one object", pc.index(is_document, False).as_py())
        if batch.num_rows > self.unread_count:
            raise BlockRefused("Arrow reads more documents than there are")
        self._read_count += batch.num_rows
        return column


def _find_repeated(
    values: pa.BinaryArray, documents: _Documents, reason: str, culprits: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the positions of all unread documents in which a name stands twice, if Arrow refuses a culprit for that.

    The culprits alone where it does not, or where the name stands in objects inside many values as well.
    """
    repeated = _REPEATED.search(reason)
    if repeated is None:
        return culprits
    positions = documents.next_positions(documents.unread_count)
    counts = pc.count_substring(values.take(pa.array(positions)), pattern=f'"{repeated[1]}"')
    is_repeated: Mask = pc.greater(counts, 1).to_numpy(zero_copy_only=False)
    if np.count_nonzero(is_repeated) * _VALUES_OF_REPEATED > len(values):
        return culprits
    return np.union1d(positions[is_repeated], culprits)


def _find_token(piece: pa.BinaryArray, reason: str) -> Mask | None:
    """Return which values have what Arrow could not convert, as it says; None where it does not help."""
    token = _UNCONVERTED.search(reason)
    if token is None:
        return None
    pattern = rf"[:\[,]\s*\"?{re.escape(token[1])}[\"\s,\]}}]"
    has_token: Mask = pc.match_substring_regex(piece, pattern).to_numpy(zero_copy_only=False)
    return has_token if 0 < np.count_nonzero(has_token) <= _VALUES_WITH_TOKEN_MAX else None


def _wrap(values: pa.BinaryArray, name: str, nonce: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the documents around the values, one behind the other, and where each begins, with their end."""
    begin = pa.scalar(b'{"v":', pa.binary())
    tail = pa.scalar(f',"{name}":"{nonce}"}}\n'.encode(), pa.binary())
    documents = pc.binary_join_element_wise(begin, values, tail, pa.scalar(b"", pa.binary()))
    offsets = np.frombuffer(documents.buffers()[1], np.int32)[documents.offset :][: len(documents) + 1]
    body = np.frombuffer(documents.buffers()[2], np.uint8)[: offsets[-1]]
    if not body.flags.writeable:
        body = body.copy()
    return body, offsets.astype(np.int64)


def _has_line_break(value: bytes) -> bool:
    return b"\n" in value or b"\r" in value
