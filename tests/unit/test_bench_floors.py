"""What `python -m headrace.bench.features.floors` tells of a task's steps."""

from headrace.bench.features.floors import _CALLS, fetch_floor, measure
from headrace.bench.features.specs import batches


def test_each_call_is_met_within_its_step() -> None:
    # Of fewer no file is large enough for a look at its columns.
    records = batches(60_000)
    # The first run fills caches, beside the steps.
    measure(records)
    steps, calls = measure(records)
    assert calls.keys() == {call.title for call in _CALLS}
    for step in {call.step for call in _CALLS}:
        assert 0 < sum(calls[call.title] for call in _CALLS if call.step == step) <= steps[step] * 1.05
    assert all(nanoseconds > 0 for _, nanoseconds in fetch_floor(records))
