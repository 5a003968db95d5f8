"""Columns that are cut out of a buffer: each value is the slice of its position and length."""

from itertools import accumulate

import numpy as np
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.writer.kafka_reader.byte_columns import cut_strings
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
