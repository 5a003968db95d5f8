"""However batches come: a rate limit holds in the long run, and weights share the task slots."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given, strategies as st

from headrace.writer.commit.rate_limit import BatchUse, RateLimit, offsets_max, wait_s
from headrace.writer.config.sections.resource_limits import Scheduling
from headrace.writer.driver.batches.batch_queue import FairOrder

BEGAN = datetime(2026, 11, 20, 12, tzinfo=UTC)
RATES = st.one_of(st.none(), st.floats(0.1, 1e6))
BATCHES = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**8), st.floats(0, 100), st.floats(0, 500)), min_size=1
)


@given(RATES, RATES, BATCHES)
def test_at_most_the_limit_and_one_batch_are_committed(records_per_s, bytes_per_s, batches):
    """Each batch: records, bytes, seconds that it takes, and seconds until the next one is there."""
    limit, now_s = RateLimit(records_per_s, bytes_per_s), 0.0
    last, begun_s, done = None, [], []
    for records, size, takes_s, comes_s in batches:
        now_s += comes_s
        now_s += wait_s(limit, last, now_s - (begun_s[-1] if begun_s else 0.0))
        last = BatchUse(BEGAN + timedelta(seconds=now_s), records, size)
        begun_s.append(now_s)
        done.append((records, size))
        now_s += takes_s
    for first in range(len(done)):
        for end in range(first + 1, len(done) + 1):
            passed_s, (records, size) = begun_s[end - 1] - begun_s[first], done[end - 1]
            allowed = passed_s + limit.seconds(records, size)
            for rate, which in ((records_per_s, 0), (bytes_per_s, 1)):
                assert rate is None or sum(one[which] for one in done[first:end]) <= rate * allowed * (1 + 1e-6) + 1e-3


@given(RATES, st.integers(1, 10**7), st.floats(1, 3_600), st.one_of(st.none(), st.floats(1, 1e5)))
def test_a_batch_at_the_limit_takes_no_more_than_its_delay(records_per_s, most, delay_s, each):
    found = offsets_max(RateLimit(records_per_s), most, timedelta(seconds=delay_s), each)
    assert 1 <= found <= most
    assert found == 1 or records_per_s is None or found <= records_per_s * delay_s + 1e-3


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=12), st.integers(1, 4),
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=7),
)  # fmt: skip
@example([1, 1, 1, 1], 3, [1.0])  # two of the four had twice as much as the others
def test_where_all_have_work_each_gets_slots_by_its_weight(weights, most, lengths):
    """Each batch has one task; those of one pipeline take four times as long as those of another at most."""
    shares = {f"p{i:02}": Scheduling(weight=weight, min_share=0) for i, weight in enumerate(weights)}
    turns, now_s = FairOrder(), 0.0
    ends: dict[str, tuple[float, float]] = {}  # of the batches that run: when they end, and how long they take
    got = dict.fromkeys(shares, 0.0)
    most = min(most, len(shares) - 1)
    for name in shares:
        turns = turns.add(name)
    for _ in range(600):
        turns = turns.start(shares, most)
        assert len(turns.running) == most, "no slot is free while a batch waits"
        for name in turns.running - ends.keys():
            took_s = lengths[int(name[1:]) % len(lengths)]
            ends[name] = now_s + took_s, took_s
        name = min(ends, key=lambda one: (ends[one], one))
        now_s, took_s = ends.pop(name)
        got[name] += took_s
        turns = turns.finish(name, shares[name], took_s).add(name)
    by_weight = sorted(got[name] / shares[name].weight for name in shares)
    fits = max(weights) * most <= sum(weights)  # one pipeline has one batch at a time: it cannot use two slots
    assert not fits or by_weight[-1] - by_weight[0] <= 2 * max(lengths) * (most + 1)  # the first turn is free


def test_one_slow_turn_is_not_paid_for():
    share = Scheduling(weight=1, min_share=0)
    turns = FairOrder()
    for took_s in (30.0, 1.0, 60.0, 1.0, 2.0):
        turns = turns.add("a").start({"a": share}, 1).finish("a", share, took_s)
    assert turns.spent["a"] == 0 + 1 + 1 + 1 + 1


def test_one_that_was_idle_gets_no_credit_and_one_with_a_minimum_share_goes_first():
    shares = {"a": Scheduling(weight=1, min_share=0), "b": Scheduling(weight=1, min_share=0),
              "z": Scheduling(weight=1, min_share=1)}  # fmt: skip
    turns = FairOrder()
    for _ in range(100):
        turns = turns.add("a").start(shares, 1).finish("a", shares["a"], 1.0)
    turns = turns.add("a").start(shares, 1).add("b")
    assert turns.spent["b"] == turns.spent["a"] == 99, "its first turn was free"
    turns = turns.add("z").finish("a", shares["a"], 1.0).start(shares, 1)
    assert turns.running == {"z"}
    assert turns.finish("z", shares["z"], 9.0).start(shares, 1).running == {"b"}
