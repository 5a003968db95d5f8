"""The watermark and what is decided by it, over parts and moments drawn at random."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.units import instant, microseconds
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.rules import (
    AskKafka,
    Close,
    KeepOpen,
    MissingRange,
    SealBlocked,
    SealLater,
    SealNow,
    Unsealed,
    choose_close,
    choose_seals,
    is_closed,
)
from headrace.writer.sealing.watermark import (
    KafkaEnds,
    PartitionEventTime,
    advanced_event_times,
    highest_watermark,
    watermark,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
POLICY = Seal(
    out_of_orderness=5 * MINUTE, allowed_lateness=timedelta(0), idle_timeout=10 * MINUTE, after=HOUR,
    reopen_after=10 * MINUTE,
)  # fmt: skip
MOMENTS = st.integers(-300, 300).map(lambda minutes: NOON + minutes * MINUTE)
PARTS = st.lists(
    st.builds(PartitionEventTime, st.builds(TopicPartition, st.just("clicks"), st.just(1), st.integers(0, 9)),
    st.none() | MOMENTS,
              st.booleans()),
    max_size=6, unique_by=lambda seen: seen.part,
)  # fmt: skip
POLICIES = st.builds(
    Seal,
    out_of_orderness=st.integers(0, 90).map(lambda n: n * MINUTE),
    allowed_lateness=st.integers(0, 90).map(lambda n: n * MINUTE),
    idle_timeout=st.integers(1, 90).map(lambda n: n * MINUTE),
    after=st.none() | st.just(HOUR),
)


def bucket(end: datetime, **facts) -> Unsealed:
    return Unsealed((f"{end - HOUR:%Y-%m-%dT%H-%M}",), end - HOUR, end, **{"changed": NOON - HOUR, "added": 1, **facts})


BUCKETS = st.lists(MOMENTS.map(bucket), max_size=6, unique_by=lambda b: b.bucket)


@given(PARTS, st.integers(0, 30))
def test_no_active_part_is_behind_the_watermark(parts, minutes):
    slack = minutes * MINUTE
    found = watermark(parts, slack)
    active = [seen for seen in parts if not seen.idle]
    if any(seen.instant is None for seen in active):
        assert found.instant is None
    elif active:
        assert found.instant == min(seen.instant for seen in active) - slack
    else:
        seen = [s.instant for s in parts if s.instant is not None]
        assert found.instant == (max(seen) - slack if seen else None)
    best = highest_watermark(parts, slack)
    assert found.instant is None or (best is not None and found.instant <= best)


@given(PARTS, st.data())
def test_the_watermark_never_falls_as_parts_come_further(parts, data):
    before = watermark(parts, 5 * MINUTE).instant
    further = [
        PartitionEventTime(
            s.part, None if s.instant is None else s.instant + data.draw(st.integers(0, 60)) * MINUTE, s.idle
        )
        for s in parts
    ]
    after = watermark(further, 5 * MINUTE).instant
    assert before is None or (after is not None and after >= before)


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 9)), st.lists(st.dictionaries(st.integers(0, 3), st.integers()))
)
def test_a_partition_keeps_the_latest_event_time_that_it_has_seen(known, batches):
    table = {TopicPartition("t", 1, p): at for p, at in known.items()}
    wanted = dict(table)
    for batch in batches:
        found = {TopicPartition("t", 1, p): at for p, at in batch.items()}
        written = advanced_event_times(table, found)
        assert all(at > table.get(part, at - 1) for part, at in written.items())
        table |= written
        wanted |= {part: max(at, wanted.get(part, at)) for part, at in found.items()}
    assert table == wanted


@given(POLICIES, BUCKETS, PARTS, st.none() | MOMENTS, MOMENTS, st.booleans())
def test_a_close_ends_a_bucket_that_nothing_is_expected_for(policy, buckets, parts, closed, now, caught_up):
    decision = choose_close(policy, buckets, parts, closed, now, caught_up=caught_up)
    assert not isinstance(decision, AskKafka)
    reached = watermark(parts, policy.out_of_orderness).instant
    due = [
        b.end for b in buckets
        if not is_closed(b.end, closed) and (
            (reached is not None and b.end + policy.allowed_lateness <= reached)
            or (caught_up and policy.after is not None and b.end + policy.after <= now)
        )
    ]  # fmt: skip
    assert decision == KeepOpen() if not due else isinstance(decision, Close) and decision.until == max(due)
    if isinstance(decision, Close) and closed is not None:
        assert decision.until > closed


@given(POLICIES, BUCKETS, PARTS, st.none() | MOMENTS, MOMENTS)
def test_kafka_is_asked_when_its_answer_may_close_a_bucket_and_only_then(policy, buckets, parts, closed, now):
    unasked = [PartitionEventTime(s.part, s.instant) for s in parts]
    first = choose_close(policy, buckets, unasked, closed, now, caught_up=None)
    if isinstance(first, Close):
        return
    answers = [
        choose_close(policy, buckets, [PartitionEventTime(s.part, s.instant, s.part.partition in idle) for s in parts],
        closed, now,
                 caught_up=caught_up)
        for caught_up in (True, False)
        for idle in [set(), {s.part.partition for s in parts}, *({s.part.partition} for s in parts)]
    ]  # fmt: skip
    if any(isinstance(answer, Close) for answer in answers):
        assert first == AskKafka()
    if first == KeepOpen():
        assert set(answers) == {KeepOpen()}


@given(
    POLICIES, BUCKETS, st.lists(st.builds(MissingRange, st.just("g"), st.none() | MOMENTS, MOMENTS)), MOMENTS, MOMENTS
)
def test_every_closed_bucket_is_sealed_now_later_or_has_a_reason(policy, buckets, missing_ranges, closed, now):
    states = {state.bucket: state for state in choose_seals(policy, buckets, missing_ranges, closed, now)}
    assert set(states) == {b.bucket for b in buckets if b.end <= closed}
    for b in buckets:
        missing = any(
            b.start < missing_range.end and (missing_range.start is None or missing_range.start < b.end)
            for missing_range in missing_ranges
        )
        if b.bucket in states:
            assert isinstance(states[b.bucket], SealBlocked if missing else SealNow)


def test_a_sealed_bucket_rests_before_it_is_sealed_again() -> None:
    changed = bucket(NOON, sealed=1, changed=NOON + HOUR)
    (early,) = choose_seals(POLICY, [changed], [], NOON, NOON + HOUR + 9 * MINUTE)
    assert early == SealLater(changed.bucket, NOON + HOUR + 10 * MINUTE)
    gap = MissingRange("g", None, NOON)  # it blocked the first manifest, or was accepted then
    (due,) = choose_seals(POLICY, [changed], [gap], NOON, early.due)
    assert due == SealNow(changed.bucket)


def test_a_bucket_that_does_not_go_by_time_is_never_closed() -> None:
    timeless = Unsealed(("DE",), None, None, NOON, added=1)
    parts = [PartitionEventTime(TopicPartition("t", 1, 0), NOON + 9 * HOUR)]
    assert choose_close(POLICY, [timeless], parts, None, NOON + 10 * HOUR, caught_up=None) == KeepOpen()
    assert choose_seals(POLICY, [timeless], [], NOON + 9 * HOUR, NOON) == []


def test_an_outage_with_unread_backlog_closes_nothing_by_silence() -> None:
    """Partition 1 has three hours unread; partition 0 is read to its end."""
    frontier, ends = {("t", 0): 50, ("t", 1): 10}, {("t", 0): 50, ("t", 1): 90}
    look = KafkaEnds(NOON + 3 * HOUR, ends, frozenset(ends))  # nobody has written for a while: quiet, both of them
    assert look.idle_sources(frontier) == {("t", 0)}
    assert not look.has_caught_up(frontier)
    idle = look.idle_sources(frontier)
    parts = [
        PartitionEventTime(TopicPartition("t", 1, 0), NOON + 3 * HOUR, ("t", 0) in idle),
        PartitionEventTime(TopicPartition("t", 1, 1), NOON - MINUTE, ("t", 1) in idle),
    ]
    waiting = [bucket(NOON), bucket(NOON + HOUR)]
    assert choose_close(POLICY, waiting, parts, None, look.at, caught_up=look.has_caught_up(frontier)) == KeepOpen()
    read = {**frontier, ("t", 1): 90}
    parts = [PartitionEventTime(s.part, s.instant, True) for s in parts]
    decision = choose_close(POLICY, waiting, parts, None, look.at, caught_up=look.has_caught_up(read))
    assert decision == Close(NOON + HOUR, "watermark")


@given(st.integers(-(10**15), 10**16))
def test_an_instant_is_its_microseconds(us):
    assert microseconds(instant(us)) == us


class Broker:
    """One partition: where its log ends, and the timestamps (ms) of its records."""

    def __init__(self, *stamps_ms: int) -> None:
        self.stamps_ms = list(stamps_ms)

    @property
    def ends(self):
        return {("t", 0): len(self.stamps_ms)}

    def sources(self, _):
        return [("t", 0)]

    def earliest(self, _):
        return {("t", 0): 0}

    def latest(self, _):
        return self.ends

    def first_records(self, wanted):
        return {source: self._first(instant) for source, instant in wanted.items()}

    def _first(self, instant_ms):
        return next(((n, at) for n, at in enumerate(self.stamps_ms) if at >= instant_ms), (-1, -1))


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


LONG_AGO, OF_2099, SECONDS, NONE = ms(NOON - HOUR), 4_070_908_800_000, int(NOON.timestamp()), -1


@pytest.mark.parametrize(
    ("stamps_ms", "first_look_is_idle"),
    [
        ((), True),
        ((LONG_AGO,), True),
        ((LONG_AGO, ms(NOON - MINUTE)), False),
        ((OF_2099,), False),
        ((LONG_AGO, OF_2099, LONG_AGO), False),
        ((SECONDS, SECONDS), False),
        ((NONE,), False),
        ((2**63 - 1, -(2**63)), False),
    ],
)
def test_a_partition_whose_end_has_not_moved_for_the_timeout_is_idle_whatever_its_timestamps(
    stamps_ms: tuple[int, ...], first_look_is_idle: bool
) -> None:
    broker, clock = Broker(*stamps_ms), [1_000.0]
    listener = LogEndWatch(broker, ["t"], seconds=lambda: clock[0])

    def idle() -> bool:
        return bool(listener.fetch(10 * MINUTE, NOON).idle_sources(broker.ends))

    assert idle() == first_look_is_idle
    clock[0] += 599
    assert idle() == first_look_is_idle
    clock[0] += 1
    assert idle()
    broker.stamps_ms.append(LONG_AGO)
    assert not idle(), "its end moved, though the record looks old"
    clock[0] += 599
    assert not idle()
    clock[0] += 1
    assert idle()
    assert not listener.fetch(10 * MINUTE, NOON).idle_sources({("t", 0): len(stamps_ms)}), "one record waits"


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8))
def test_a_step_of_the_wall_clock_makes_no_partition_idle_and_none_busy(steps: list[int]) -> None:
    broker, clock = Broker(ms(NOON)), [0.0]
    listener = LogEndWatch(broker, ["t"], seconds=lambda: clock[0])
    for step in [0, *steps]:
        assert not listener.fetch(10 * MINUTE, NOON + timedelta(seconds=step)).idle_sources(broker.ends)
        clock[0] += 60
    clock[0] = 600.0
    assert listener.fetch(10 * MINUTE, NOON + timedelta(seconds=steps[0])).idle_sources(broker.ends)
