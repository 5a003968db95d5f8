"""Where records begin: a walk through many sections finds what one from record to record finds, or nothing."""

import random
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import Phase, given, settings, strategies as st

from headrace.writer.core.offsets import OffsetRange
from headrace.writer.kafka_reader.errors import Corrupt
from headrace.writer.kafka_reader.record_batches import Batch
from headrace.writer.kafka_reader.record_buffer import RecordBuffer
from headrace.writer.kafka_reader.record_starts import find_starts, walk_records
from tests.support.batch_reader import PART
from tests.support.example_counts import share
from tests.support.kafka_batches import Rec, record, zigzag

# Short sections, so that few records have many of them.
SECTION_RECORDS = 8
VALUE_BYTES: list[Callable[[random.Random], int]] = [
    lambda _: 60,
    lambda _: 200,
    lambda draw: draw.randrange(120),
    lambda draw: draw.randrange(400),
    lambda draw: int(draw.lognormvariate(5, 1)),
    # Lengths of one, two and three bytes.
    lambda draw: draw.choice([10, 10, 300, 300, 9_000]),
]


def random_records(draw: random.Random, count: int) -> list[bytes]:
    """The bytes of records with and without keys, headers and values, of like or of very different lengths."""
    value_bytes = draw.choice(VALUE_BYTES)
    content = draw.choice([draw.randbytes, lambda size: b"\0" * size, lambda size: b"a\0" * (size // 2)])
    key = draw.choice([None, b"", b"k", b"key of a user"])
    headers = draw.choice([(), ((b"traceparent", b"00-4bf92f"), (b"", None))])
    records = list[bytes]()
    for offset in range(count):
        value = None if draw.random() < 0.1 else content(value_bytes(draw))
        records.append(record(Rec(offset, offset // 5, draw.choice([None, key]), value, headers), 0, 0))
    return records


def plain_starts(data: bytes) -> list[int] | None:
    """Walk from record to record, as the format says; None where the last one does not end at the end."""
    starts = list[int]()
    position = 0
    while position < len(data):
        starts.append(position)
        length = 0
        for digit in range(5):
            if position == len(data):
                return None
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << (7 * digit)
            if byte < 0x80:
                break
        else:
            return None
        if length % 2:
            return None
        position += length // 2
    return starts if position == len(data) else None


@given(st.integers(0, 2**64))
@settings(max_examples=share(200), phases=[Phase.explicit, Phase.generate])
def test_sections_give_the_records_of_a_plain_walk_or_nothing(seed: int) -> None:
    """Also of damaged and of cut bytes, whatever lies behind them in the memory."""
    draw = random.Random(seed)
    count = draw.randrange(2 * SECTION_RECORDS, 300)
    data = bytearray(b"".join(random_records(draw, count)))
    for _ in range(draw.choice([0, 0, 1, 3])):
        data[draw.randrange(len(data))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    size = draw.choice([len(data), len(data), draw.randrange(7 * count, len(data) + 1)])
    memory = bytearray(data + draw.randbytes(draw.choice([1, 50])))
    expected_count = draw.choice([count, draw.randrange(2 * SECTION_RECORDS, count + 1)])
    starts = find_starts(memory, size, expected_count, SECTION_RECORDS)
    assert starts is None or starts.tolist() == plain_starts(bytes(memory[:size]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mean_bytes", [20, 200, 1_000])
def test_sections_are_proven_where_lengths_vary_by_half(mean_bytes: int, seed: int) -> None:
    draw = random.Random(seed)
    values = [draw.randbytes(draw.randrange(mean_bytes // 2, mean_bytes * 3 // 2)) for _ in range(6_400)]
    # One has a length of three bytes.
    values[draw.randrange(6_400)] = bytes(10_000)
    # The last byte of a record would be a damaged length, which no walk may take for one.
    headers = ((b"sequence", b"7"),)
    records = [record(Rec(offset, 0, b"key", value, headers), 0, 0) for offset, value in enumerate(values)]
    starts = find_starts(bytearray(b"".join(records) + b"\0"), sum(map(len, records)), len(records))
    assert starts is not None
    assert starts.tolist() == [0, *accumulate(map(len, records[:-1]))]


def buffer_of(batches: list[list[bytes]], counts: list[int]) -> RecordBuffer:
    """A buffer of batches, which say that they have so many records."""
    buffer = RecordBuffer()
    base = 0
    for records, count in zip(batches, counts, strict=True):
        body = memoryview(b"".join(records))
        after = base + len(records)
        buffer.add(Batch(base, after, 0, False, count, 0, body), OffsetRange(PART, 0, 2**40))
        base = after
    return buffer


def plain_bounds(buffer: RecordBuffer) -> list[int] | str:
    try:
        return buffer._walk_batches().tolist()
    except Corrupt as error:
        return str(error)


def bounds(buffer: RecordBuffer) -> list[int] | str:
    try:
        return buffer.bounds().tolist()
    except Corrupt as error:
        return str(error)


@given(st.integers(0, 2**64))
@settings(max_examples=share(20), phases=[Phase.explicit, Phase.generate])
def test_a_large_buffer_has_the_bounds_of_its_batches_or_the_error_of_one(seed: int) -> None:
    draw = random.Random(seed)
    distinct = random_records(draw, 500)
    batches = [draw.choices(distinct, k=draw.choice([1, 700, 5_000])) for _ in range(3)]
    batches.append(draw.choices(distinct, k=6_400))
    counts = [len(records) for records in batches]
    if draw.random() < 0.3:
        # The last batch has bytes enough for one more.
        counts[-1] += draw.choice([-1, 1])
    if draw.random() < 0.3:
        batch = draw.choice(batches)
        index = draw.randrange(len(batch))
        damaged = bytearray(batch[index])
        damaged[0] = draw.randrange(256)
        batch[index] = bytes(damaged)
    buffer = buffer_of(batches, counts)
    assert bounds(buffer) == plain_bounds(buffer)


def test_records_that_move_over_the_end_of_their_batch_are_refused() -> None:
    """All records together end where the buffer ends, and are as many as the batches say."""
    records = [record(Rec(offset, 0, None, bytes(200)), 0, 0) for offset in range(8_000)]
    buffer = buffer_of([records[:4_000], records[4_000:]], [3_999, 4_001])
    with pytest.raises(Corrupt, match=r"clicks/3 at offset 0: .*its records do not end where it ends"):
        buffer.bounds()


@pytest.mark.parametrize("length", [-1, -60, -70, -9_000, -(2**31)])
def test_a_negative_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="the length of a record is negative"):
        list(walk_records(bytearray(zigzag(length) + bytes(20)), 0, 1))


def test_plain_starts_are_those_of_the_encoder() -> None:
    """The plain walk of these tests reads what was written."""
    records = random_records(random.Random(5), 200)
    starts = plain_starts(b"".join(records))
    assert starts is not None
    lengths = [end - start for start, end in pairwise([*starts, sum(map(len, records))])]
    assert lengths == [len(data) for data in records]
