"""A reprocess that is killed at each of its steps, and run again, loses and doubles no row."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.audits import describe_problems, run_audit
from tests.support.backfill_run import MakeTopic, check_offsets, headrace, start_writer
from tests.support.fault_cells import FORMATS
from tests.support.process import run_code_until
from tests.support.reprocess_lake import BERLIN, check_equal, open_writer, run_reprocess, table_pair, write_history
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KILLED = """
import sys
from pathlib import Path
from tests.support.reprocess_lake import open_writer, run_reprocess
run_reprocess(open_writer(Path(sys.argv[1]), sys.argv[2]))
"""
POINTS = (
    "before_reprocess_read:2", "before_reprocess_swap:2", "before_reprocess:1", "after_reprocess:2", "before_apply:1",
)  # fmt: skip
BUCKETS = ("--buckets", "2026-11-20T00..2026-11-20T23", "--from", "raw", "--yes")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_it_loses_and_doubles_no_row(
    tmp_path: Path, form: str, point: str, record: Callable[..., None]
) -> None:
    before = oracle.tally.copy()
    _, wanted = table_pair(tmp_path, form, {}, BERLIN, lambda driver: write_history(driver, 0, 20, tombstones=False))
    run_code_until(KILLED, str(tmp_path / "old"), form, point=point)
    driver = open_writer(tmp_path / "old", form)
    lake = Path(driver.lake)
    oracle.check_rows(lake, "clicks")
    assert run_audit(driver).adds_up, describe_problems(run_audit(driver))
    driver.start(2)
    write_history(driver, 20, 40, tombstones=False)
    write_history(wanted, 20, 40, tombstones=False)
    run_reprocess(driver)
    check_equal(driver, wanted)
    oracle.check(lake, "clicks", {("clicks", 0): 40, ("clicks", 1): 20})
    tally = oracle.tally.since(before)
    record(
        fault="kill -9 of a reprocess", moment=point.partition(":")[0].replace("_", " "),
        on=f"in-process, {FORMATS[form]}, local", times=1, seen_twice=tally.seen_twice, records=tally.records,
        lost=tally.lost, twice=tally.twice, ended="killed 1",
    )  # fmt: skip


@pytest.mark.cell("kill -9 of a reprocess", "at each step, beside the live writer")
def test_beside_the_live_writer_killed_at_each_step_it_puts_a_wrong_clock_right(site: Site, topic: MakeTopic) -> None:
    """The writer that wrote the wrong rows is corrected; its rows are made anew from the raw table while it goes on."""
    name, fast = topic(2), {"max_delay": "2 s"}
    lake = site.pipeline("events", [name], raw=True, commit=fast)
    right = dict(site.pipelines["events"]["event_time"])
    site.pipelines["events"]["event_time"] = {**right, "clocks": [{"shift": "-3 h"}]}
    site.fill(name, 900, broken=4)
    site.once()
    assert in_other_buckets(lake) == 900
    site.pipelines["events"]["event_time"] = right
    writer = start_writer(site, name, lake)
    for point in POINTS[:-1]:  # its dead letters stay what they are
        headrace(site, "reprocess", *BUCKETS, env={"HEADRACE_FAULT": point}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
        site.fill(name, 50, seed=len(point))
    headrace(site, "reprocess", *BUCKETS)
    shown = json.loads(headrace(site, "reprocess", *BUCKETS, "--json").splitlines()[-1])
    assert shown["changed"] == 0, "a second time nothing changes"
    assert "fenced" not in writer.stop()
    site.once()
    assert in_other_buckets(lake) == 0
    check_offsets(site, lake, name)


def in_other_buckets(lake: Path) -> int:
    """Count the rows whose bucket is not that of their event time."""
    hour = "strftime(event_time AT TIME ZONE 'UTC', '%Y-%m-%dT%H')"
    return int(str(oracle.rows(lake, "count(*)", f"WHERE hour::VARCHAR <> {hour}")[0][0]))
