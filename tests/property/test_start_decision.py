"""Where a start reads on, for any frontier and any log: nothing between the table and the log goes unsaid."""

from hypothesis import given, strategies as st

from headrace.writer.core.offsets import TopicPartition
from headrace.writer.offsets.start_decision import (
    Begin,
    LogRange,
    RecordGap,
    Refuse,
    decide,
    incarnation_number,
    incarnations,
    log_change,
    recreated_topics,
)

PARTS = [TopicPartition("clicks", 1, partition) for partition in range(4)]
OFFSETS = st.integers(0, 30)


@st.composite
def facts(draw):
    parts = draw(st.lists(st.sampled_from(PARTS), unique=True, min_size=1))
    held = {}
    for part in parts:
        earliest = draw(OFFSETS)
        held[part] = LogRange(earliest, earliest + draw(OFFSETS))
    return {part: draw(OFFSETS) for part in parts}, held


@given(facts(), st.sampled_from(["record", "stop"]))
def test_every_offset_is_read_lost_or_refused(found, on_data_loss):
    frontier, held = found
    short = any(at > held[part].end for part, at in frontier.items())
    lost = {(part, o) for part, at in frontier.items() for o in range(at, held[part].earliest)}
    match decide(frontier, held, on_data_loss):
        case Begin(offsets):
            assert offsets == frontier
            assert not lost
            assert not short
        case RecordGap(ranges, offsets):
            assert on_data_loss == "record"
            assert not short
            put_down = [(r.part, o) for r in ranges for o in range(r.start, r.end)]
            assert len(put_down) == len(set(put_down))
            assert set(put_down) == lost
            for part, at in offsets.items():
                assert held[part].earliest <= at <= held[part].end
                assert {(part, o) for o in range(frontier[part], at)} <= lost
        case Refuse(reason):
            assert short or (lost and on_data_loss == "stop")
            assert reason.endswith(".")


@given(facts())
def test_after_a_gap_the_same_facts_begin(found):
    """The next start, whatever happened to this one after its gap was committed, records no second gap."""
    frontier, held = found
    first = decide(frontier, held, "record")
    if isinstance(first, RecordGap):
        moved = {**frontier} | {r.part: r.end for r in first.lost}
        assert decide(moved, held, "record") == Begin(first.offsets)


IDS = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(st.dictionaries(st.sampled_from(["clicks", "installs"]), IDS), max_size=8))
def test_an_id_keeps_its_number_whatever_comes_after(history):
    known: dict[str, list[str]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for now in history:
        again = recreated_topics(known, now)
        after = incarnations(known, now)
        assert incarnations(after, now) == after
        assert not recreated_topics(after, now)
        for topic, found in now.items():
            here = numbers.setdefault((topic, found), incarnation_number(after[topic], found))
            assert incarnation_number(after[topic], found) == here
            assert (topic in again) == (bool(known.get(topic)) and found not in known[topic])
        known = after
    assert len({(topic, n) for (topic, _), n in numbers.items()}) == len(numbers), "no two ids share a number"


@given(st.dictionaries(st.sampled_from(["clicks", "installs"]), IDS), facts())
def test_logs_that_only_grow_have_not_changed(ids, found):
    frontier = {("clicks", part.partition): at for part, at in found[0].items()}
    assert log_change(ids, ids, frontier, frontier) == ""
    assert log_change(ids, ids, frontier, {source: at + 5 for source, at in frontier.items()}) == ""
    for source, at in frontier.items():
        if at:
            assert f"ends at {at - 1:,}, 1 offset before" in log_change(ids, ids, frontier, {source: at - 1})
