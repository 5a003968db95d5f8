"""Event specs with a real broker and Spark: what lands is what Python makes of the events, and the audit adds up."""

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from headrace.writer.demo.devstack.events import generate
from tests.support import oracle
from tests.support.writer_process import NOW, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
SPEC = {
    "where": "event_name <> 'view'",
    "sample": {"share": "50 %", "by": "user_id"},
    "columns": {"exclude": ["ip", "url", "event_time"]},
    "rename": {"event_id": "id"},
    "derive": {
        "seconds": "duration_ms / 1000", "place": "country || '/' || city", "share": "1000 / (duration_ms % 50)",
    },
}  # fmt: skip


def say(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", *words], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def expected(record: dict[str, Any]) -> str:
    """What becomes of an event by SPEC."""
    if record["event_name"] == "view":
        return "where"
    if int(sha256(record["user_id"].encode()).hexdigest(), 16) >= 2**255:
        return "sample"
    return "failed" if record["duration_ms"] % 50 == 0 else "row"


def test_a_spec_decides_what_lands_and_the_audit_adds_up(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], specs={"headrace.demo.*": SPEC})
    count = site.fill(name, 2_000, broken=5)
    assert count == 2_005
    site.once()
    events = {record["event_id"]: record for _, record in generate("clicks", 2_000, now=NOW)}
    fates = {event: expected(record) for event, record in events.items()}
    rows = oracle.rows(lake, "id, seconds, place, share", "ORDER BY id")
    assert {row[0] for row in rows} == {event for event, fate in fates.items() if fate == "row"}
    for event, seconds, place, share in rows:
        one = events[event]
        assert (seconds, share) == (one["duration_ms"] // 1000, 1000 // (one["duration_ms"] % 50))
        assert place == (None if None in (one["country"], one["city"]) else f"{one['country']}/{one['city']}")
    found = say("audit", str(site.config), "--deep", "--json")["pipelines"]["events"]
    fate = {kind: sum(value == kind for value in fates.values()) for kind in ("where", "sample", "failed", "row")}
    assert found["adds_up"]
    assert found["filtered_by"] == {"headrace.demo.*": {"where": fate["where"], "sample": fate["sample"]}}
    records = found["records"]
    assert (records["read"], records["rows"], records["filtered"]) == (
        count,
        fate["row"],
        fate["where"] + fate["sample"],
    )
    assert records["dead_letters"] == fate["failed"] + 5
    assert min(fate.values()) > 5, "each fate is met"
    said = {row[0] for row in oracle.rows(lake.with_name("events_dead_letters"), "error")}
    assert "spec 'headrace.demo.*': derive.share: Divide by zero error" in said

    site.pipeline("events", [name], specs={"headrace.demo.Click": {"where": "event_name = 'purchase'"}})
    ends = site.ends(name)
    site.fill(name, 300, seed=8)
    site.once()
    found = say("audit", str(site.config), "--deep", "--json")["pipelines"]["events"]
    assert found["adds_up"]
    assert found["records"]["read"] == count + 300

    def commit_of(offset: str) -> Any:
        return say("explain", str(site.config), "--json", "--offset", offset)["pipelines"]["events"]

    versions = {
        commit_of(f"{name}/{partition}:{offset}")["specs"]["version"]
        for partition, offset in ((0, 0), (1, ends[name, 1] - 1))
    }
    later = commit_of(f"{name}/0:{ends[name, 0]}")["specs"]
    assert (versions, later["version"]) == ({1}, 2)
    status = say("status", str(site.config), "--json")["pipelines"]["events"]["totals"]
    assert status["records"]["filtered"] == found["filtered_by"]["headrace.demo.Click"]["where"], "of the last start"
