"""Whatever a table went through, a reprocess by new rules makes it that of the new rules
from the start."""

import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings, strategies as st

from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.table.log.foreign_writes import NothingToClose
from headrace.writer.table.log.operations.seals import Closing
from tests.support.example_counts import share
from tests.support.local_driver import Driver, log
from tests.support.reprocess_lake import (
    BERLIN,
    ONE,
    TWO,
    check_equal,
    dead_letter_rows,
    delete,
    mixed_values,
    rows,
    run_reprocess,
    start_writer,
)
from tests.support.sample_records import NOW

DERIVED: dict[str, Any] = {"specs": {"Event": {"derive": {"twice": "id * 2"}}}}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(1, 12)),
        st.tuples(st.just("delete"), st.sampled_from([0, 1, 6, 7, 9, 12, 20])),  # those that both rules decode
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 5)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def gone_through(driver: Driver, steps: list[tuple[str, int]]) -> None:
    """Take the steps; the first and the last are batches."""
    at = 0
    for kind, number in [("batch", 20), *steps, ("batch", 10)]:
        if kind == "batch":
            driver.carry([log(mixed_values(at, at + number))], {0: at + number})
            at += number
        elif kind == "delete":
            delete(driver, f"id = {number}")
        elif kind == "close":
            until = NOW - timedelta(hours=number)
            # A second close finds them closed.
            with suppress(NothingToClose):
                driver.table.append(Closing(f"c{at}", until, {"reason": "command"}), driver.table.snapshot())
        else:
            compactor = Compactor("clicks", driver.settings, driver.table, None)
            snapshot = driver.table.snapshot()
            for pieces in compactor.plan(snapshot, compactor.buckets(snapshot), open_too=True).values():
                list(compactor.carry_out(snapshot, pieces, here))


@settings(max_examples=share(15), suppress_health_check=list(HealthCheck))
@given(STEPS, st.sampled_from([BERLIN, {**BERLIN, **DERIVED}]))
def test_old_rules_and_a_reprocess_are_the_new_rules(before: list[tuple[str, int]], new: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        old = start_writer(Path(folder) / "old", "delta", schemas=ONE)
        gone_through(old, before)
        # A reprocess replays dead letters up to the last row of its buckets, and none behind it.
        assume(dead_letter_rows(old)[-1][1] < rows(old)[-1]["_offset"])
        driver = start_writer(Path(folder) / "old", "delta", schemas=TWO, **new)
        wanted = start_writer(Path(folder) / "new", "delta", schemas=TWO, **new)
        gone_through(wanted, before)
        run_reprocess(driver)
        check_equal(driver, wanted)
        assert [bucket.version for bucket in run_reprocess(driver).buckets if bucket.version] == []
