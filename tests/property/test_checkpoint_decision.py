"""Whatever checkpoint and table say, a start loses nothing, doubles nothing, and asks nothing that Spark cannot do."""

from hypothesis import given, strategies as st

from headrace.writer.core.offsets import Source
from headrace.writer.offsets.spark_checkpoint import NewRun, NextBatch, Offsets, Resume, decide
from headrace.writer.offsets.start_decision import Refuse

NEWEST_RUN = 3
# Few, so that checkpoint and table often agree.
SOURCES = [("clicks", 0), ("clicks", 1), ("views", 0)]
FRONTIERS = st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 3))


@st.composite
def next_batches(draw: st.DrawFn) -> NextBatch:
    start: dict[Source, int] = draw(FRONTIERS)
    if draw(st.booleans()):
        return NextBatch(start, None)
    return NextBatch(start, {source: offset + draw(st.integers(0, 2)) for source, offset in start.items()})


def has_table_its_batch(next_batch: NextBatch, frontier: Offsets) -> bool:
    return next_batch.end is not None and dict(next_batch.end) == dict(frontier)


@given(next_batches(), FRONTIERS, st.booleans())
def test_a_start_goes_on_where_the_table_ends_and_never_asks_for_a_replay_that_spark_lacks(
    next_batch: NextBatch, frontier: Offsets, can_replay: bool
) -> None:
    decision = decide(NEWEST_RUN, next_batch, frontier, can_replay=can_replay)
    if isinstance(decision, Resume):
        assert decision.run == NEWEST_RUN
        assert dict(next_batch.start) == dict(frontier) or has_table_its_batch(next_batch, frontier)
        assert next_batch.end is None or can_replay
    elif isinstance(decision, NewRun):
        assert decision.run > NEWEST_RUN
        assert decision.reason


@given(next_batches(), FRONTIERS, st.booleans())
def test_a_start_is_refused_exactly_where_the_checkpoint_is_ahead_of_the_table(
    next_batch: NextBatch, frontier: Offsets, can_replay: bool
) -> None:
    decision = decide(NEWEST_RUN, next_batch, frontier, can_replay=can_replay)
    both = next_batch.start.keys() & frontier.keys()
    assert isinstance(decision, Refuse) == any(next_batch.start[source] > frontier[source] for source in both)


@given(next_batches(), FRONTIERS)
def test_a_spark_without_replays_decides_otherwise_only_where_a_planned_batch_would_be_resumed(
    next_batch: NextBatch, frontier: Offsets
) -> None:
    with_replays = decide(NEWEST_RUN, next_batch, frontier)
    without_replays = decide(NEWEST_RUN, next_batch, frontier, can_replay=False)
    if isinstance(with_replays, Resume) and next_batch.end is not None:
        assert isinstance(without_replays, NewRun)
    else:
        assert type(without_replays) is type(with_replays)
