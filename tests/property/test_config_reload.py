"""Whatever order a file is changed, read, drained and killed in: in the end what runs is what the file says."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings, strategies as st

from tests.support.simulated_supervisor import BROKEN, Release, release

NAMES = ("clicks", "orders", "views")
GOOD = st.integers(1, 3)
FILES = st.dictionaries(st.sampled_from(NAMES), GOOD, min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.dictionaries(st.sampled_from(NAMES), GOOD | st.just(BROKEN), min_size=1)),
        st.tuples(st.sampled_from(["signal", "round", "kill"]), st.none()),
        st.tuples(st.just("step"), st.sampled_from([0.2, 2.5, 30.0])),
        st.tuples(st.just("drain"), st.integers(0, 4)),
        st.tuples(st.just("late"), st.booleans()),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(FILES, STEPS, FILES)
@example({"clicks": 1}, [("write", {"clicks": BROKEN}), ("step", 0.2)], {"clicks": 1})  # it failed just before
@example({"clicks": 1}, [("write", {"clicks": BROKEN}), ("step", 0.2), ("late", True)], {"clicks": 1})
# The driver reads a file without the pipeline, which its supervisor never sees.
@example({"orders": 2}, [("step", 0.2), ("signal", None), ("step", 0.2), ("drain", 0), ("write", {"clicks": BROKEN}),
                         ("round", None), ("round", None)], {"orders": 2})  # fmt: skip
def test_in_the_end_what_runs_is_what_the_file_says(before: dict[str, int], steps: list, after: dict[str, int]) -> None:
    with TemporaryDirectory() as folder, release(Path(folder), before) as one:
        for kind, value in steps:
            if (code := did(one, kind, value)) is not None:
                assert code
                assert all(pipeline.halted for pipeline in one.supervisor.supervised_pipelines.values())
                return
        one.reload(after)
        assert one.go(400, 2.5) is None
        assert one.running == after
        assert set(one.held.epochs) == set(one.supervisor.supervised_pipelines) == set(after)
        assert one.file.last.error == ""


def did(one: Release, kind: str, value: object) -> int | None:
    """Do one thing. Returns the exit code of the supervisor, if it ends."""
    match kind:
        case "write":
            one.write(value)  # type: ignore[arg-type]
        case "drain":
            one.drain_rounds = value  # type: ignore[assignment]
        case "late":
            one.signals_come_late = bool(value)
        case "signal":
            one.requested.set()
        case "round":
            one.round()
        case "kill" if one.drivers and one.drivers[-1].code is None:
            one.drivers[-1].kill()
        case "step":
            return one.step(value)  # type: ignore[arg-type]
    return None
