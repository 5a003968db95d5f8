"""Wrong data landed: the table goes back by `headrace rewind`, killed on its way; a corrected writer reads again."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
WRONG = {"event_time": {"field": "event_time", "max_age": "36500 d", "max_ahead": "36500 d",
                        "clocks": [{"shift": "-720 h"}]}}  # fmt: skip


def run_audit(site: Site) -> dict:
    return dict(json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"])


def hours(lake: Path) -> Counter[str]:
    """Rows by bucket, as the folders say."""
    return Counter(str(hour) for (hour,) in oracle.rows(lake, "regexp_extract(filename, 'hour=([^/]+)', 1)"))


def version_of(lake: Path) -> int:
    return oracle.replay(lake).version


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_wrong_data_is_taken_back_though_killed_and_a_corrected_writer_reads_it_once(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form)
    made = site.fill(name, 2_000, broken=4)
    site.once()
    right, before = version_of(lake), hours(lake)
    made += site.fill(name, 1_500, seed=8, broken=3)
    ends = site.ends(name)
    site.pipeline("events", [name], form=form, **WRONG)
    site.once()
    wrong = hours(lake)
    assert wrong.keys() - before.keys(), "rows lie in hours that no event is of"

    config = str(site.config)
    shown = json.loads(say("rewind", config, "--to", str(right), "--json"))
    assert (shown["version"], shown["refused"]) == (None, [])
    assert sum(p["table_end"] - p["back_to"] for p in shown["partitions"]) == shown["offsets"] == 1_503
    assert hours(lake) == wrong, "it was only shown"
    say("rewind", config, "--to", str(right), "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="before_rewind:1")
    assert hours(lake) == wrong
    say("rewind", config, "--to", str(right), "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="after_rewind:1")

    site.pipeline("events", [name], form=form)
    site.once()
    found = run_audit(site)
    assert (found["adds_up"], found["offsets_rewound"]) == (True, 1_503)
    assert found["rows_removed_by"] == {"rewind": 1_500}
    assert found["dead_letter_table_rows_removed_by"] == {"rewind": 3}
    oracle.check(lake, "events", ends)
    assert len(oracle.rows(lake, "1")) == 3_500
    assert not wrong.keys() - before.keys() & hours(lake).keys()
    assert json.loads(say("rewind", config, "--to", str(version_of(lake) - 1), "--json"))["refused"] == []


def test_beside_a_live_driver_it_is_refused_and_a_driver_that_is_not_seen_is_fenced(
    site: Site, topic: MakeTopic
) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    site.once()
    right = version_of(lake)
    site.fill(name, 300, seed=8)
    writer = site.start()
    writer.until(lambda: len(oracle.rows(lake, "1")) == 800, seconds=240)
    said = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "rewind", str(site.config), "--to", str(right), "--yes"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert said.returncode == 1, said.stdout + said.stderr
    assert "a driver of pipeline 'events' runs" in said.stderr
    assert len(oracle.rows(lake, "1")) == 800
    os.kill(writer.process.pid, signal.SIGSTOP)  # it answers nobody, and will wake up
    try:
        say("rewind", str(site.config), "--to", str(right), "--yes", "--json")
        assert len(oracle.rows(lake, "1")) == 500
        site.fill(name, 200, seed=9)
    finally:
        os.kill(writer.process.pid, signal.SIGCONT)
    assert writer.wait(240) == 4, "fenced"
    assert len(oracle.rows(lake, "1")) == 500
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert run_audit(site)["adds_up"]


def test_offsets_that_retention_took_are_refused_then_given_up_as_a_gap(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 300)
    site.once()
    right = version_of(lake)
    site.fill(name, 300, seed=8)
    site.once()
    site.forget(name, {0: 400})
    config = str(site.config)
    refused = json.loads(say("rewind", config, "--to", str(right), "--yes", "--json", code=2))
    assert refused["partitions"][0]["not_held"] == [300, 400]
    assert len(oracle.rows(lake, "1")) == 600
    say("rewind", config, "--to", str(right), "--yes", "--accept-loss")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.gaps(lake) == {(name, 0): list(range(300, 400))}
    assert run_audit(site)["adds_up"]
