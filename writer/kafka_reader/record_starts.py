"""Finds where the records of a buffer begin: the length of each record, a zig-zag varint, stands before it.

Python takes a tenth of a microsecond to step from one record to the next. `find_starts` takes a third of that: numpy
walks through many sections of the buffer at the same time. Where a section begins is a guess, and the walks prove it:
the first section begins with the first record, and each walk has to arrive exactly where the next section begins, the
last one at the end. Then the positions are those of one walk through all records, whatever the guesses were.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.writer.kafka_reader.byte_columns import Bytes, Longs

# Of a section. Longer ones take more turns, shorter ones more guesses.
SECTION_RECORDS = 64
# The most turns, for each record that a section has in the mean.
_TURNS_FACTOR = 4
# A guess is looked for in so many bytes of a section, in records of mean length, and then in the next ones.
_WINDOW_RECORDS = 1.5
_WINDOWS_MAX = 3
# So many sections have to have a guess: a walk through several sections takes all others along.
_GUESSED_SHARE = 0.9
# From a guess, so many steps have to lead to what looks like a record.
_GUESS_STEPS = 7
# Length, attributes, two deltas, two lengths, count of headers.
RECORD_BYTES_MIN = 7
# Of a length, which is a number of 32 bits.
_VARINT_BYTES_MAX = 5
# A byte of a varint up to here is its last one.
_LAST_BYTE_MAX = 0x7F
# In place of a step: the length has more than two bytes, or is negative. A position behind it is outside of any buffer.
_OTHER_LENGTH = 2**40


def _step_table() -> Longs:
    """Return the step from a record to the next one, by its first two bytes (the second one times 256)."""
    pairs = np.arange(2**16)
    first = pairs & 0xFF
    second = pairs >> 8
    is_short = first <= _LAST_BYTE_MAX
    steps = np.where(is_short, first // 2 + 1, (first & 0x7F) // 2 + (second << 6) + 2)
    is_other = (first % 2 == 1) | (~is_short & (second > _LAST_BYTE_MAX))
    return np.where(is_other, _OTHER_LENGTH, steps)


_STEPS = _step_table()
# The same for one walk: two look-ups in lists and a sum, which is negative where the length has not two bytes.
_STEP_OF_LOW_BYTE = [
    (byte & 0x7F) // 2 + 2 if byte > _LAST_BYTE_MAX and byte % 2 == 0 else -_OTHER_LENGTH for byte in range(256)
]
_STEP_OF_HIGH_BYTE = [byte << 6 if byte <= _LAST_BYTE_MAX else -_OTHER_LENGTH for byte in range(256)]


def walk_records(memory: bytearray, position: int, count: int) -> Iterator[int]:
    """Yield where so many records begin, one after the other, and where the last one ends.

    `memory`: has at least one byte behind the last record. Raises ValueError, IndexError.
    """
    # Local names are faster in the loop.
    low = _STEP_OF_LOW_BYTE
    high = _STEP_OF_HIGH_BYTE
    for _ in range(count):
        yield position
        step = low[memory[position]] + high[memory[position + 1]]
        if step < 0:
            step = _record_size(memory, position)
        position += step
    yield position


def find_starts(memory: bytearray, size: int, count: int, section_records: int = SECTION_RECORDS) -> Longs | None:
    """Find where the records in the first `size` bytes begin; None: it is not proven, or the lengths are damaged.

    `memory`: has at least one byte more. `count`: how many records are expected, two sections of them at least.
    `section_records`: 8 at least.

    Example: sections begin at 0, 40 and 90 of 120 bytes. The walks give 0, 20, 40, then 40, 55, 90, then 90, 120, so
    records begin at 0, 20, 40, 55 and 90. Had the second walk met 89 and 130 instead of 90, nothing would be proven.
    """
    pairs = _byte_pairs(memory)
    starts = _guess_starts(memory, size, count, section_records)
    if starts is None:
        return None
    ends = np.append(starts[1:], size)
    position = starts
    turns = [position]
    for turn in range(_TURNS_FACTOR * section_records):
        # A walk that has arrived goes on until all have; beyond the last record it stays at the last byte.
        within = np.minimum(position, size - 1)
        step = _STEPS.take(pairs[within])
        is_other = step == _OTHER_LENGTH
        if np.count_nonzero(is_other):
            for index in np.flatnonzero(is_other & (position < ends)).tolist():
                try:
                    step[index] = _record_size(memory, int(within[index]))
                except (IndexError, ValueError):
                    return None
        position = within + step
        turns.append(position)
        if turn >= section_records and (position >= ends).all():
            break
    else:
        return None
    walks = np.stack(turns, axis=1)
    is_inside = walks < ends[:, np.newaxis]
    arrivals = walks[np.arange(len(ends)), is_inside.sum(axis=1)]
    if (arrivals != ends).any():
        return None
    return walks[is_inside]


def _guess_starts(memory: bytearray, size: int, count: int, section_records: int) -> Longs | None:
    """Return where sections may begin, in their order, the first one at 0; None: too few of them are found.

    Lengths that vary much take several windows until most sections have a guess.
    """
    sections = count // section_records
    spacing = size // sections
    record_bytes = size / count
    width = int(_WINDOW_RECORDS * record_bytes)
    # Most lengths have one byte, or else two.
    is_short = record_bytes <= _LAST_BYTE_MAX // 2
    length_bytes = 1 if is_short else 2
    starts = np.zeros(1, np.int64)
    for window in range(_WINDOWS_MAX):
        begin = spacing + window * width
        shape = (sections - 1, width)
        length: Bytes = np.ndarray(shape, np.uint8, memory, begin, (spacing, 1))
        attributes: Bytes = np.ndarray(shape, np.uint8, memory, begin + length_bytes, (spacing, 1))
        has_length = length >= RECORD_BYTES_MIN if is_short else length > _LAST_BYTE_MAX
        section, column = np.divmod(np.flatnonzero((attributes == 0) & has_length), width)
        guesses = _follow_lengths(memory, size, begin + section * spacing + column, spacing)
        starts = np.unique(np.append(starts, guesses))
        starts = starts[np.diff(starts // spacing, prepend=-1) > 0]
        if len(starts) > _GUESSED_SHARE * sections:
            return starts
    return None


def _follow_lengths(memory: bytearray, size: int, position: Longs, step_max: int) -> Longs:
    """Go from what may be records to the next ones, some times. Returns where records probably begin, in any order.

    Behind the length of a record is a byte of attributes, which is 0. Where several steps lead to what looks so, the
    last ones are right even if the first position was wrong: sooner or later its steps meet a record.
    """
    pairs = _byte_pairs(memory)
    data = np.frombuffer(memory, np.uint8)
    for _ in range(_GUESS_STEPS):
        position = position[position < size - 2]
        pair = pairs[position]
        step = _STEPS.take(pair)
        has_attributes = data[position + 1 + (pair >> 7 & 1)] == 0
        is_record = has_attributes & (step >= RECORD_BYTES_MIN) & (step <= step_max)
        position = position[is_record] + step[is_record]
    return position[position < size]


def _byte_pairs(memory: bytearray) -> npt.NDArray[np.uint16]:
    """Return each byte with the one behind it, which counts 256 times, as a view."""
    return np.ndarray(len(memory) - 1, "<u2", memory, strides=1)


def _record_size(memory: bytearray, position: int) -> int:
    """Return the bytes of a record with those of its length. Raises ValueError for a length that is none."""
    value = 0
    for digit in range(_VARINT_BYTES_MAX):
        byte = memory[position + digit]
        value |= (byte & 0x7F) << (7 * digit)
        if byte <= _LAST_BYTE_MAX:
            if value & 1:
                break
            return (value >> 1) + digit + 1
    raise ValueError("the length of a record is negative, or no number of 32 bits")
