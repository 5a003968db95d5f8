"""Values decoded together with their frames: the same as in the general way, or the general way itself."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from tests.avro_specification import parts_of
from tests.examples import share
from tests.kafka_batches import Raw, Rec, record, zigzag
from tests.property.test_decode import DAMAGES, FLAT, NESTED, Case
from tests.tasked import NOW, ms
from writer.avro import schema as avro
from writer.avro.block_decoder import BlockRefused
from writer.avro.frame_decoder import FrameDecoder
from writer.avro.schema_plan import SchemaPlan
from writer.avro.wire_format import header
from writer.batch.bucketing import TimeRule
from writer.batch.plan import TaskPlan
from writer.batch.range_task import FrameReader
from writer.batch.record_steps import RecordSteps
from writer.batch.staging.raw_records import as_raw
from writer.core.offsets import OffsetRange, TopicPartition
from writer.kafka_reader.columns import ColumnChoice, DecodedRecords, columns
from writer.kafka_reader.errors import Corrupt
from writer.kafka_reader.record_batches import Batch
from writer.kafka_reader.record_buffer import RecordBuffer

ID = 7  # of the schema, as the values of Case have it
SCHEMAS = {"flat": FLAT, "nested": NESTED}
CHOICE = ColumnChoice(raw=True)
PARTS = [TopicPartition("clicks", 1, 0), TopicPartition("views", 3, 5)]


@cache
def case_of(name: str) -> Case:
    return Case(SCHEMAS[name], True)


def plan_of(schema: dict[str, Any], folder: Path) -> TaskPlan:
    window = timedelta(days=200_000)  # half of all times of the schema are beyond it, and quarantined
    return TaskPlan(
        now=NOW, frontier={}, incarnations={"clicks": 1, "views": 3},
        schemas=SchemaPlan(pa.schema([])).extend(ID, json.dumps(schema)),
        time_rule=TimeRule("at", "auto", window, window), bucket={"type": "event_time", "width": timedelta(hours=1)},
        table=str(folder), dead_letters=str(folder), prefix="0", budget=2**20, target_file_size=2**20,
    )  # fmt: skip


@dataclass
class Outcome:
    """What became of records, each by its partition and offset."""

    rows: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    refused: dict[tuple[str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    raw: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)  # as the raw table has them
    counts: dict[Any, Any] = field(default_factory=dict)
    value_bytes: int = 0


def outcome(plan: TaskPlan, pieces: Sequence[pa.RecordBatch | DecodedRecords]) -> Outcome:
    found = Outcome()

    def refuse(
        records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        for at, one in enumerate(records.to_pylist()):
            place = (one["topic"], one["partition"], one["offset"])
            assert place not in found.refused
            found.refused[place] = (one["timestamp"], one["key"], one["value"], schema_id, reason(at), outcome)

    def keep(records: pa.Table) -> None:
        places = records.select(["topic", "partition", "offset", "timestamp"]).to_pylist()
        for one, kept in zip(places, as_raw(records).to_pylist(), strict=True):
            found.raw[one["topic"], one["partition"], one["offset"]] = {**one, **kept}

    steps = RecordSteps(plan, refuse, keep=keep)
    for piece in pieces:
        decoded = isinstance(piece, DecodedRecords)
        for group in [steps.conform(steps.count_decoded(piece))] if decoded else steps.decode(piece):
            done = steps.assign(group)
            records = done.records.select(["topic", "partition", "offset", "timestamp", "key"]).to_pylist()
            for one, row in zip(records, done.rows.to_pylist(), strict=True):
                found.rows[one["topic"], one["partition"], one["offset"]] = {**one, **row}
    found.counts, found.value_bytes = dict(steps.counts), steps.report.value_bytes
    return found


def buffer_of(log: Sequence[tuple[OffsetRange, Raw, bytes]]) -> RecordBuffer:
    """The buffer that holds these batches, with other bytes than their own where some are given."""
    buffer = RecordBuffer()
    for of, raw, body in log:
        append_time = raw.append_time_ms is not None
        time_ms = raw.append_time_ms if raw.append_time_ms is not None else raw.first_ms
        buffer.add(
            Batch(raw.base, raw.after, time_ms, append_time, len(raw.records), 0, memoryview(body)), of
        )  # fmt: skip
    return buffer


def body(raw: Raw) -> bytes:
    return b"".join(record(one, raw.base, raw.first_ms) for one in raw.records)


def both(plan: TaskPlan, log: Sequence[tuple[OffsetRange, Raw, bytes]]) -> tuple[Outcome, Outcome, bool]:
    """What becomes of a buffer in the general way, and by frames; and whether these were decoded. Raises Corrupt."""
    piece, counts = FrameReader(plan, CHOICE)(buffer_of(log))
    by_frames = outcome(plan, [piece])
    rows, expected = columns(buffer_of(log), CHOICE)
    assert counts.tolist() == expected.tolist()
    return outcome(plan, [rows]), by_frames, isinstance(piece, DecodedRecords)


def text_of(found: Outcome) -> str:  # NaN is not itself
    return repr((sorted(found.rows.items()), sorted(found.refused.items()), sorted(found.raw.items()), found.counts,
                 found.value_bytes))  # fmt: skip


@st.composite
def alike(draw: st.DrawFn) -> tuple[str, list[tuple[OffsetRange, Raw, bytes]]]:
    """Batches of two partitions with records of one schema, keys all or none, and the ranges they are read for."""
    name = draw(st.sampled_from(sorted(SCHEMAS)))
    case, keyed = case_of(name), draw(st.booleans())
    keys = st.binary(max_size=70) if keyed else st.none()
    found, base = list[tuple[OffsetRange, Raw, bytes]](), draw(st.sampled_from([0, 2**40]))
    for part in PARTS[: draw(st.integers(1, 2))]:
        raws, at = list[Raw](), base
        for _ in range(draw(st.integers(1, 3))):
            steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 90]), min_size=8, max_size=25))
            offsets = list(accumulate(steps, initial=at))
            times = draw(st.integers(0, 2**41))
            records = tuple(
                Rec(offset, times + draw(st.integers(-9_000, 9_000)), draw(keys), draw(st.sampled_from(case.sound)))
                for offset in offsets
            )
            at = offsets[-1] + draw(st.integers(1, 3))
            raws.append(Raw(records, offsets[0], at, append_time_ms=draw(st.none() | st.integers(0, 2**41))))
        of = OffsetRange(part, draw(st.integers(base, base + 4)), draw(st.integers(at - 4, at)))
        found += [(of, raw, body(raw)) for raw in raws]
    return name, found


@given(drawn=alike())
@settings(max_examples=share(60), deadline=None)
def test_records_that_are_alike_are_decoded_with_their_frames_and_become_the_same(
    drawn: tuple[str, list[tuple[OffsetRange, Raw, bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, log = drawn
    general, by_frames, decoded = both(plan_of(case_of(name).schema, tmp_path_factory.getbasetemp()), log)
    assert decoded
    assert text_of(by_frames) == text_of(general)
    assert len(general.rows) + len(general.refused) == sum(count.read for count in general.counts.values())
    assert len(general.raw) == sum(count.read for count in general.counts.values())


def unlike(rng: random.Random, records: list[Rec], *, keyed: bool) -> None:
    """Make some of the records other than the rest."""
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        at = rng.randrange(len(records))
        one = records[at]
        if one.value is None:
            continue
        match rng.randrange(9):
            case 0:
                records[at] = replace(one, key=None if keyed else b"k")
            case 1:
                records[at] = replace(one, value=None)
            case 2:
                records[at] = replace(one, headers=((b"trace", b"1"),))
            case 3:
                records[at] = replace(one, value=header(8) + one.value[5:])
            case 4:
                records[at] = replace(one, value=one.value[: rng.randrange(7)])
            case _:
                records[at] = replace(one, value=header(ID) + rng.choice(DAMAGES)(one.value[5:], rng))


def random_log(rng: random.Random, case: Case, *, damaged: bool) -> list[tuple[OffsetRange, Raw, bytes]]:
    of, keyed, log, at = OffsetRange(PARTS[0], 0, 10**6), rng.random() < 0.5, [], 0
    for _ in range(rng.randint(1, 4)):
        records = [
            Rec(at + n, ms(NOW) + rng.randrange(99), b"%d" % n if keyed else None, rng.choice(case.sound))
            for n in range(rng.choice([9, 17, 40]))
        ]
        if damaged:
            unlike(rng, records, keyed=keyed)
        raw = Raw(tuple(records), at, at + len(records))
        log.append((of, raw, body(raw)))
        at = raw.after
    return log


@pytest.mark.timeout(900)  # of the long profile
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_records_that_are_not_alike_fail_alone_as_in_the_general_way(name: str, tmp_path: Path) -> None:
    plan, tally = plan_of(case_of(name).schema, tmp_path), {True: 0, False: 0}
    for seed in range(share(150)):
        log = random_log(random.Random(f"{name} {seed}"), case_of(name), damaged=True)
        general, by_frames, decoded = both(plan, log)
        assert text_of(by_frames) == text_of(general), seed
        tally[decoded] += 1
    assert min(tally.values()) > 0, tally


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_an_index_that_has_no_branch_is_a_dead_letter_also_in_frames(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    plan = plan_of(case.schema, tmp_path)
    value = case.sound[0][5:]
    for part in parts_of(case.record, value):
        if part.kind == "index":
            damaged = value[: part.start] + zigzag(9) + value[part.end :]
            values = [*case.sound[:9], header(ID) + damaged, *case.sound[:9]]
            raw = Raw(tuple(Rec(at, ms(NOW), None, one) for at, one in enumerate(values)), 0, len(values))
            general, by_frames, decoded = both(plan, [(OffsetRange(PARTS[0], 0, 100), raw, body(raw))])
            assert not decoded
            assert text_of(by_frames) == text_of(general)
            assert general.refused[PARTS[0].topic, PARTS[0].partition, 9][-1] == "dead_letter"


@pytest.mark.timeout(900)  # of the long profile
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_damaged_frames_are_an_error_or_read_as_in_the_general_way(name: str, tmp_path: Path) -> None:
    plan, corrupt = plan_of(case_of(name).schema, tmp_path), 0
    for seed in range(share(250)):
        rng = random.Random(f"frames {name} {seed}")
        log = random_log(rng, case_of(name), damaged=False)
        at = rng.randrange(len(log))
        of, raw, whole = log[at]
        bytes_ = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(min(40, len(bytes_))) if rng.random() < 0.3 else rng.randrange(len(bytes_))
            bytes_[place] ^= 1 << rng.randrange(8)
        log[at] = (of, raw, bytes(bytes_))
        try:
            general, by_frames, _ = both(plan, log)
        except Corrupt:
            corrupt += 1
            with pytest.raises(Corrupt):
                columns(buffer_of(log), CHOICE)
            continue
        assert text_of(by_frames) == text_of(general), seed
    assert corrupt > 0


def test_a_record_cannot_reach_into_the_batch_of_another_producer() -> None:
    """One whose text ends behind the next batch's first record, and one that has two records in it: the count fits."""
    schema = avro.parse(json.dumps({"type": "record", "name": "E", "fields": [{"name": "a", "type": "string"}]}))

    def framed(value: bytes, offset: int) -> bytes:
        return record(Rec(offset, 0, None, b"\0\0\0\0\1" + value), 0, 0)

    victim = framed(zigzag(1) + b"x", 0)
    for swallowed in range(1, 40):
        first = framed(zigzag(1) + b"y", 0) + framed(zigzag(swallowed) + b"", 1)
        ends = np.array([len(first), len(first) + 3 * len(victim)])
        with pytest.raises(BlockRefused):
            FrameDecoder(schema, head=b"\0\0\0\0\1", keyed=False)(
                memoryview(first + 3 * victim), ends, np.array([2, 3])
            )


def test_after_buffers_that_are_not_alike_it_tries_more_and_more_seldom(tmp_path: Path) -> None:
    case = case_of("flat")
    plan = plan_of(case.schema, tmp_path)
    rng, reader = random.Random(1), FrameReader(plan, CHOICE)
    mixed, good = random_log(rng, case, damaged=False), random_log(rng, case, damaged=False)
    of, raw, _ = mixed[0]
    changed = Raw((replace(raw.records[0], headers=((b"h", None),)), *raw.records[1:]), raw.base, raw.after)
    mixed[0] = (of, changed, body(changed))
    tried = []
    for _ in range(20):
        before = reader.seconds
        assert isinstance(reader(buffer_of(mixed))[0], pa.RecordBatch)
        tried.append(reader.seconds > before)
    assert [at for at, one in enumerate(tried) if one] == [0, 3, 8, 17]
    found = [isinstance(reader(buffer_of(good))[0], DecodedRecords) for _ in range(20)]
    assert found == [False] * 14 + [True] * 6
