"""Backfill and reprocess by several processes, with a real broker: as one process does it, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from headrace.writer.table.factory import main_table
from tests.support import oracle
from tests.support.audits import describe_problems
from tests.support.backfill_run import COMMAND, MakeTopic, headrace
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# An eighth of it is some hundred rows: what comes again is enough for two tasks.
SMALL_FILES: dict[str, Any] = {"roll": {"target_file_size": "64 KiB"}}
BUCKETS = ("--buckets", "2026-11-20T00..2026-11-20T23", "--from", "kafka", "--yes")


def sorted_rows(lake: Path) -> list[dict[str, Any]]:
    """Return the rows that readers see, by partition and offset."""
    rows: list[dict[str, Any]] = DeltaTable(str(lake)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def entry_facts(site: Site, pipeline: str, kind: str, *names: str) -> list[Any]:
    """Return what the entries of one kind say."""
    entries = main_table(pipeline, load(site.config)).history()
    return [{name: entry.facts[name] for name in names} for entry in entries if entry.kind == kind]


def check_exact(site: Site, lake: Path, pipeline: str, topic: str) -> None:
    """Assert that each offset is there once, by the oracle and by a deep audit."""
    oracle.check(lake, pipeline, site.ends(topic))
    result = audit(load(site.config), pipeline, since=None, deep=True)
    assert result.adds_up, describe_problems(result)


@pytest.fixture
def session_processes() -> Iterator[list[int]]:
    """Take the sessions of commands; none of their processes is left."""
    sessions: list[int] = []
    yield sessions
    deadline = time.monotonic() + 60
    while left := [session for session in sessions if is_alive(session)]:
        assert time.monotonic() < deadline, f"processes of {left} are left"
        time.sleep(0.1)


def is_alive(session: int) -> bool:
    """Return whether a session has a process that is no zombie."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def start_backfill(site: Site, fault: str) -> subprocess.Popen[str]:
    """Start a backfill of pipeline two in a session of its own."""
    words = ["backfill", str(site.config), "--pipeline", "two", "--yes", "--tasks", "2"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, "HEADRACE_FAULT": fault},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(flag: Path) -> None:
    deadline = time.monotonic() + 120
    while not flag.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_backfill_by_two_processes_is_that_of_one_whatever_is_killed(
    site: Site, topic: MakeTopic, session_processes: list[int]
) -> None:
    name = topic(2)
    lakes = {pipeline: site.pipeline(pipeline, [name], **SMALL_FILES) for pipeline in ("one", "two")}
    site.fill(name, 300, broken=3)
    site.once()
    site.fill(name, 3_000, seed=8, broken=5)
    for pipeline in lakes:
        headrace(site, "gaps", "open", "--pipeline", pipeline, "--reason", "a test", "--yes")
    before = sorted_rows(lakes["two"])
    killed = start_backfill(site, "in_decode:1")
    session_processes.append(killed.pid)
    _, stderr = killed.communicate(timeout=120)
    assert killed.returncode == 1, stderr
    assert "was ended by SIGKILL" in stderr
    assert "Traceback" not in stderr
    killed = start_backfill(site, "after_chunk:1")
    session_processes.append(killed.pid)
    _, stderr = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, stderr
    flag = site.root / "held"
    interrupted = start_backfill(site, f"in_decode:1:{flag}")
    session_processes.append(interrupted.pid)
    wait_for(flag)
    os.killpg(interrupted.pid, signal.SIGINT)
    flag.unlink()
    _, stderr = interrupted.communicate(timeout=120)
    assert interrupted.returncode not in (0, -signal.SIGKILL), stderr
    assert "Traceback" not in stderr
    assert sorted_rows(lakes["two"]) == before
    for pipeline, tasks in (("one", "1"), ("two", "2")):
        headrace(site, "backfill", "--pipeline", pipeline, "--yes", "--tasks", tasks)
        check_exact(site, lakes[pipeline], pipeline, name)
    assert sorted_rows(lakes["two"]) == sorted_rows(lakes["one"])
    names = ("ranges", "rows", "unplaced", "left_out")
    assert entry_facts(site, "two", "fill", *names) == entry_facts(site, "one", "fill", *names)


def test_a_reprocess_by_two_processes_is_that_of_one(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lakes = {pipeline: site.pipeline(pipeline, [name], **SMALL_FILES) for pipeline in ("one", "two")}
    right = dict(site.pipelines["one"]["event_time"])
    for pipeline in lakes:
        site.pipelines[pipeline]["event_time"] = {**right, "clocks": [{"shift": "-3 h"}]}
    site.fill(name, 2_000)
    site.once()
    for pipeline in lakes:
        site.pipelines[pipeline]["event_time"] = right
    site.fill(name, 100, seed=8)
    site.once()
    killed = {"HEADRACE_FAULT": "in_decode:1"}
    headrace(site, "reprocess", *BUCKETS, "--pipeline", "two", "--tasks", "2", code=1, env=killed)
    moved = {}
    for pipeline, tasks in (("one", "1"), ("two", "2")):
        output = headrace(site, "reprocess", *BUCKETS, "--pipeline", pipeline, "--tasks", tasks, "--json")
        lines = [json.loads(line) for line in output.splitlines()]
        moved[pipeline] = [(line["bucket"], line["rows"], line["moved"]) for line in lines if line["event"] == "bucket"]
        check_exact(site, lakes[pipeline], pipeline, name)
    assert moved["two"] == moved["one"]
    assert sum(rows for _, _, rows in moved["two"]) > 0
    assert sorted_rows(lakes["two"]) == sorted_rows(lakes["one"])
