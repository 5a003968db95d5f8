"""Bytes of record batches to columns: the records that were encoded, or an error; never others, no hang, no flood."""

import random
import resource
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings, strategies as st

from headrace.writer.kafka_reader.errors import Corrupt, OldRecordFormat, ReadFailed
from headrace.writer.kafka_reader.record_batches import MissingReason
from tests.support.batch_reader import BATCH_BYTES_MAX, read
from tests.support.example_counts import share
from tests.support.kafka_batches import Raw, Rec, batch, marker, zigzag

CODECS = ["none", "gzip", "snappy", "snappy-xerial", "lz4", "zstd"]
NAMES = st.sampled_from([b"", b"trace", b"\xff\xfe", "é".encode()])
BYTES = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 200, b"y" * 9_000])


@st.composite
def logs(draw: st.DrawFn) -> list[Raw]:
    """A log of batches with offsets missing between and within them."""
    found, base = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        base += draw(st.integers(0, 3))
        offsets = [base]
        for _ in range(draw(st.integers(0, 5))):
            offsets.append(offsets[-1] + draw(st.integers(1, 3)))
        first_ms = draw(st.integers(0, 2**41))
        records = tuple(
            Rec(offset, first_ms + draw(st.integers(-5_000, 2**33)), draw(BYTES), draw(BYTES), draw(headers()))
            for offset in offsets
        )
        after = offsets[-1] + draw(st.integers(1, 3))
        codec, time_ms = draw(st.sampled_from(CODECS)), draw(st.none() | st.integers(0, 2**41))
        found.append(Raw(records, base, after, codec, append_time_ms=time_ms))
        base = after
    return found


def headers() -> st.SearchStrategy[tuple[tuple[bytes, bytes | None], ...]]:
    pair = st.tuples(NAMES, st.none() | st.binary(max_size=8))
    return st.just(()) | st.lists(pair, max_size=3).map(tuple)


def rows_of(found: pa.RecordBatch) -> list[dict[str, object]]:
    at = found.schema.get_field_index("timestamp")
    plain = found.set_column(at, "timestamp", found.column(at).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    return plain.select(["offset", "timestamp", "key", "value", "headers"]).to_pylist()


def expected_records(log: Sequence[Raw], start: int, end: int) -> list[dict[str, object]]:
    return [row for one in log for row in one.rows if start <= row["offset"] < end]  # type: ignore[operator]


@given(logs(), st.data())
@settings(max_examples=share(100))
def test_encoded_records_are_read_within_any_range(log: list[Raw], data: st.DataObject) -> None:
    low, high = log[0].base, log[-1].after
    start = data.draw(st.integers(max(low - 2, 0), high - 1))
    end = data.draw(st.integers(start + 1, high + 2))
    found, _ = read(b"".join(one.encode() for one in log), start, end)
    assert rows_of(found) == expected_records(log, start, end)
    assert set(found.column("topic").to_pylist()) <= {"clicks"}
    assert set(found.column("partition").to_pylist()) <= {3}
    kinds = {offset: int(one.append_time_ms is not None) for one in log for offset in range(one.base, one.after)}
    assert found.column("timestampType").to_pylist() == [kinds[at] for at in found.column("offset").to_pylist()]


def random_log(draw: random.Random) -> list[Raw]:
    """As `logs`, and twenty times as fast."""
    found, base = [], draw.choice([0, 7, 2**40])
    for _ in range(draw.randint(1, 3)):
        base += draw.choice([0, 0, 2])
        offsets = list(accumulate(draw.choice([1, 1, 1, 3]) for _ in range(draw.randint(0, 5))))
        records = tuple(
            Rec(base + at, draw.randrange(2**41), piece(draw), piece(draw), some(draw)) for at in [0, *offsets]
        )
        after = records[-1].offset + draw.choice([1, 1, 2])
        found.append(Raw(records, base, after, draw.choice(CODECS), append_time_ms=draw.choice([None, 5])))
        base = after
    return found


def piece(draw: random.Random) -> bytes | None:
    return draw.choice([None, b"", draw.randbytes(draw.randrange(20)), draw.randbytes(100), b"z" * 500])


def some(draw: random.Random) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((draw.choice([b"", b"trace", b"\xff"]), piece(draw)) for _ in range(draw.choice([0, 0, 1, 3])))


def rows_or_error(data: bytes, start: int, end: int) -> list[dict[str, object]] | ReadFailed:
    """Read an answer. Any other error fails the test."""
    try:
        return rows_of(read(data, start, end)[0])
    except ReadFailed as error:
        return error


@given(st.integers(0, 2**64))
@settings(max_examples=share(2_000), phases=[Phase.explicit, Phase.generate])
def test_of_damaged_bytes_comes_an_error_or_the_right_records(seed: int) -> None:
    """All but base offsets, which no checksum of Kafka covers: only the order of batches protects them."""
    draw = random.Random(seed)
    log = random_log(draw)
    raw, unprotected = bytearray(), set[int]()
    for one in log:
        unprotected |= set(range(len(raw), len(raw) + 8))
        raw += one.encode()
    for _ in range(draw.randint(0, 4)):
        at = draw.randrange(len(raw))
        raw[at] ^= 0 if at in unprotected else draw.randint(1, 255)
    cut_at = draw.choice([len(raw), draw.randint(0, len(raw))])
    found = rows_or_error(bytes(raw[:cut_at]), log[0].base, log[-1].after)
    if isinstance(found, ReadFailed):
        assert found.topic == "clicks"
        assert "clicks/3 at offset" in str(found)
    else:
        assert found == expected_records(log, log[0].base, log[-1].after)[: len(found)]


@given(st.integers(0, 2**64))
@settings(max_examples=share(2_000), phases=[Phase.explicit, Phase.generate])
def test_a_batch_with_a_fitting_checksum_cannot_break_the_reader(seed: int) -> None:
    """A client that encodes wrongly: its checksum fits. An error, or records within the batch; memory stays bounded."""
    draw = random.Random(seed)
    log = random_log(draw)
    one = replace(log[0], codec=draw.choice(["none", "none", *CODECS]))
    raw = bytearray(one.encode())
    for _ in range(draw.randint(1, 4)):
        raw[draw.randrange(21, len(raw))] = draw.choice([0, 0xFF, 0x80, draw.randrange(256)])
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = rows_or_error(
        bytes(raw[:17]) + struct.pack(">I", google_crc32c.value(bytes(raw[21:]))) + raw[21:], 0, 2**41
    )
    if isinstance(found, ReadFailed):
        assert "clicks/3 at offset" in str(found)
    else:
        assert len(found) <= 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 2**16


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=30), st.data())
@settings(max_examples=share(100))
def test_records_of_aborted_transactions_are_never_read(turns: list[tuple[int, int]], data: st.DataObject) -> None:
    """Three producers, each in one transaction after the other; 3 offsets at most in a batch."""
    log, base, opened = [], 0, dict[int, int]()
    aborted = dict[tuple[int, int], int]()  # producer, first offset: the marker's
    owner = dict[int, tuple[int, int]]()  # offset: producer, first offset of its transaction
    for producer, count in turns:
        ends = producer in opened and data.draw(st.booleans())
        if ends:
            first = opened.pop(producer)
            log.append(marker(base, producer))
            if data.draw(st.booleans()):
                aborted[producer, first] = base
        else:
            log.append(batch(base, [b"%d" % n for n in range(count)], producer=producer, transactional=True))
            first = opened.setdefault(producer, base)
            owner |= dict.fromkeys(range(base, base + count), (producer, first))
        base = log[-1].after
    # What is open at the end is beyond the last stable offset, and a broker gives none of it.
    end = min(opened.values(), default=base)
    log = [one for one in log if one.base < end]
    if not log:
        return
    start = data.draw(st.integers(0, end - 1))
    told = [one for one, ends_at in aborted.items() if one[1] < end and ends_at >= start]  # as a broker answers
    first_batch = next(index for index, one in enumerate(log) if one.after > start)
    found, missing = read(b"".join(one.encode() for one in log[first_batch:]), start, end, told)
    good = [row for row in expected_records(log, start, end) if owner.get(int(str(row["offset"])), None) not in aborted]
    good = [row for row in good if int(str(row["offset"])) in owner]
    assert rows_of(found) == good
    assert {one.reason for one in missing} <= {MissingReason.CONTROL, MissingReason.ABORTED}


def test_missing_offsets_are_told_by_reason() -> None:
    log = [
        batch(10, [b"a", b"b"]),
        batch(14, [b"c"], producer=5, transactional=True),
        marker(15, 5),
        Raw((), 16, 20),
        batch(22, [b"d"]),
    ]
    found, missing = read(b"".join(one.encode() for one in log), 10, 30, [(5, 14)])
    assert found.column("value").to_pylist() == [b"a", b"b", b"d"]
    compacted, aborted, control = MissingReason.COMPACTED, MissingReason.ABORTED, MissingReason.CONTROL
    ends = [(one.after, one.reason) for one in missing]
    assert ends == [(14, compacted), (15, aborted), (16, control), (20, compacted), (22, compacted)]


def test_a_batch_behind_the_end_of_the_range_tells_that_the_rest_is_missing() -> None:
    found, missing = read(batch(40, [b"a"]).encode(), 10, 30)
    assert found.num_rows == 0
    assert [(one.after, one.reason) for one in missing] == [(30, MissingReason.COMPACTED)]


@pytest.mark.parametrize("form", [0, 1])
def test_an_old_message_format_is_refused_with_the_way_out(form: int) -> None:
    with pytest.raises(OldRecordFormat, match=r"clicks/3 at offset 7.*format \d, from before.*kafka.reader: spark"):
        read(batch(7, [b"a"], form=form).encode()[:40], 7, 8)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_decompresses_to_too_much_is_refused(codec: str) -> None:
    bomb = batch(7, [b"\0" * (BATCH_BYTES_MAX + 1)], codec=codec).encode()
    with pytest.raises(Corrupt, match=r"clicks/3 at offset 7: .*more than 1048576 bytes in one batch"):
        read(bomb, 7, 8)


def test_a_count_of_records_that_its_bytes_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(Corrupt, match="2147483647 records in"):
        read(batch(7, [b"a"], count=2**31 - 1).encode(), 7, 8)


def test_many_headers_of_one_record_stay_in_order() -> None:
    many = tuple((b"%d" % at, b"v") for at in range(3_000))
    records = tuple(Rec(at, 0, None, b"", many if at == 20 else many[: at % 3]) for at in range(40))
    found, _ = read(Raw(records, 0, 40).encode(), 0, 40)
    assert rows_of(found) == [record.row for record in records]


def test_hundreds_of_thousands_of_headers_cost_little() -> None:
    many = ((b"h", None),) * 300_000
    records = tuple(Rec(at, 0, None, b"", many if at == 20 else ()) for at in range(40))
    content = Raw(records, 0, 40, "zstd").encode()
    began_s = time.process_time()
    found, _ = read(content, 0, 40)
    assert time.process_time() - began_s < 2
    assert pc.list_value_length(found.column("headers")).fill_null(0).to_pylist() == [0] * 20 + [300_000] + [0] * 19


def test_more_headers_than_bytes_are_refused_before_memory_is_taken() -> None:
    content = Raw((Rec(7, 0, None, b"v", ((b"aaaaaa", None),)),), 7, 8).encode()
    one_header = b"\x02\x0caaaaaa\x01"
    claimed = content.replace(one_header, zigzag(2**50).ljust(len(one_header), b"\0"))
    crc = struct.pack(">I", google_crc32c.value(claimed[21:]))
    with pytest.raises(Corrupt, match="a record has more headers than bytes"):
        read(claimed[:17] + crc + claimed[21:], 7, 8)
