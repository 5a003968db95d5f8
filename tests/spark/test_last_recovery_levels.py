"""The last rungs, climbed by the real supervisor with a real driver: what the table forgot, and what Kafka lost."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from tests.support import oracle
from tests.support.forgotten_offsets import forget
from tests.support.supervisor_process import Supervised
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
Start = Callable[..., Supervised]


def test_a_table_that_forgot_its_frontier_is_walked_back_by_itself(site: Site, topic: MakeTopic, start: Start) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000, broken=3)
    site.once()
    forget(lake)
    site.fill(name, 400, seed=8)
    supervised = start()
    supervised.until(supervised.recoveries)
    supervised.check_recovery("L4", "the table's log forgot the frontier", 120)
    assert "recovery_finished pipeline=events recovery_level=L4" in supervised.output()
    assert supervised.stop() == 0, supervised.output()
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert audit(load(site.config), "events", since=None, deep=True).adds_up


def test_where_kafka_lost_records_and_no_new_run_begins_the_rest_is_skipped_and_brought_back(
    site: Site, topic: MakeTopic, start: Start
) -> None:
    """Each driver dies when it would record what was lost, so at last the supervisor does, and all after it."""
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.overrides["supervisor"] = {"port": 0, "lease_expiry": "6 s", "allow_skip_to_latest": True}
    site.fill(name, 300)
    site.once()
    site.fill(name, 1_000, seed=8)
    site.forget(name, {0: 450})
    dies = f'grep -q _level=L5 {site.root}/supervisor-0.log || export HEADRACE_FAULT=before_commit:1; exec "$@"'
    supervised = start(
        "--", "sh", "-c", dies, "sh", sys.executable, "-m", "headrace.writer.cli", "run", str(site.config)
    )
    supervised.until(lambda: "recovery_finished pipeline=events recovery_level=L5" in supervised.output(), 600)
    assert oracle.gaps(lake) == {(name, 0): list(range(300, 1_300))}
    site.fill(name, 200, seed=9)
    supervised.until(supervised.recoveries)
    supervised.check_recovery("L5", "Kafka lost records, and no new run began", 300)
    assert supervised.stop() == 0, supervised.output()
    backfill = [sys.executable, "-m", "headrace.writer.cli", "backfill", str(site.config), "--yes", "--json"]
    done = subprocess.run(backfill, capture_output=True, text=True, check=False, timeout=300)
    assert json.loads(done.stdout.splitlines()[-1])["gaps"], done.stderr
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.gaps(lake) == {(name, 0): list(range(300, 450))}, "what Kafka still held came back"
    assert audit(load(site.config), "events", since=None, deep=True).adds_up
