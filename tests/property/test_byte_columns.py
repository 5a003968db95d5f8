"""Columns that are cut out of a buffer: each value is the slice of its position and length."""

from itertools import accumulate

import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.writer.kafka_reader.byte_columns import cut_strings, read_varint, read_varints
from tests.support.example_counts import share


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.sampled_from([0, 1, 12, 13, 40])), min_size=1), st.data())
@settings(max_examples=share(100))
def test_pieces_are_cut_as_slices_are(gaps: list[tuple[int, int | None]], data: st.DataObject) -> None:
    """`gaps`: bytes before each piece, and of it."""
    sizes = [gap + (length or 0) for gap, length in gaps]
    ends = list(accumulate(sizes))
    content = data.draw(st.binary(min_size=ends[-1], max_size=ends[-1]))
    lengths = np.array([-1 if length is None else length for _, length in gaps])
    positions = np.array([end - max(length, 0) for end, length in zip(ends, lengths.tolist(), strict=True)])
    pieces = cut_strings(pa.py_buffer(content), positions, lengths)
    pieces.validate(full=True)
    expected = list[bytes | None]()
    for end, (_, length) in zip(ends, gaps, strict=True):
        expected.append(None if length is None else content[end - length : end])
    assert pieces.to_pylist() == expected


@given(st.binary(min_size=1, max_size=12).map(lambda content: content.replace(b"\0", b"\xff")), st.binary(max_size=3))
@settings(max_examples=share(200))
def test_a_number_alone_is_read_as_a_column_of_them(begin: bytes, end: bytes) -> None:
    content = begin + end
    outcomes = list[tuple[int, int] | str]()
    for read in (lambda: read_varint(memoryview(content), 0), lambda: read_first(content)):
        try:
            outcomes.append(read())
        except (IndexError, ValueError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]


def read_first(content: bytes) -> tuple[int, int]:
    values, after = read_varints(np.frombuffer(content, np.uint8), np.array([0]))
    return int(values[0]), int(after[0])
