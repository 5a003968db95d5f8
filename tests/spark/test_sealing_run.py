"""The life of a bucket in a real run: sealed by the driver, late rows, sealed again; a close beside a running batch."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.writer.config.loader import load
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.sealer import Sealer
from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def manifests(site: Site) -> dict[tuple[str | None, ...], Manifest]:
    return {m.bucket: m for m in Sealer("events", load(site.config)).manifests.all()}


def run_audit(site: Site) -> dict:
    return dict(json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"])


def facts(lake: Path) -> list[dict]:
    return [c for c in oracle.replay(lake).commits if c["kind"] == "batch"]


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_the_driver_seals_a_silent_topic_and_late_rows_are_sealed_again(
    site: Site, topic: MakeTopic, form: str
) -> None:
    """Its events are of a day that is over: the clock closes their buckets once all of them are read."""
    name = topic(2)
    lake = site.pipeline(
        "events", [name], seal={"reopen_after": "0 s"}, table={"location": str(site.root / "lake"), "format": form}
    )
    lake = site.root / "lake"
    first = site.fill(name, 400, seed=1)
    assert "bucket_sealed" in site.once()
    one = manifests(site)
    rows = run_audit(site)["records"]["rows"]
    assert 0 < rows <= first
    assert sum(m.rows for m in one.values()) == rows
    assert {m.version for m in one.values()} == {1}
    assert "clock" in {m.reason for m in one.values()} <= {"clock", "watermark"}
    assert sum(m.late for m in one.values()) == 0
    again = site.fill(name, 60, seed=2)
    site.once()
    two, found = manifests(site), run_audit(site)
    assert found["adds_up"], found
    changed = {bucket: m for bucket, m in two.items() if m.version == 2}
    assert changed
    assert sum(m.rows for m in two.values()) == found["records"]["rows"]
    assert sum(m.late for m in two.values()) > 0
    assert found["records"]["read"] == first + again
    for bucket, m in changed.items():
        assert m.added == m.rows - one[bucket].rows > 0
    document = json.loads(say("seal", str(site.config), "--yes", "--json"))
    assert (document["sealed"], document["blocked"]) == ([], [])
    if form == "parquet":
        assert len(list(lake.glob("hour=*/_SUCCESS"))) == len(two)
    status = json.loads(say("status", str(site.config), "--json"))["pipelines"]["events"]["seals"]
    assert (status["open"], status["closed"], status["reopened"]) == (0, 0, 0)


def test_a_batch_is_judged_again_when_its_buckets_are_closed_beside_it(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    tiers = [{"within": "12 h", "to": "late_table"}, {"to": "dead_letter"}]
    lake = site.pipeline("events", [name], seal={"late": tiers, "after": None})
    site.fill(name, 100, seed=3)
    site.once()
    site.fill(name, 80, seed=4)
    flag = site.root / "staged"
    writer = site.start("--once", env={"HEADRACE_FAULT": f"after_stage:1:{flag}"})
    writer.until(flag.exists)
    document = json.loads(say("seal", str(site.config), "--until", "2026-11-21T00:00Z", "--yes", "--json"))
    assert document["sealed"]
    flag.unlink()
    assert writer.wait(120) == 0, writer.output()
    assert "batch_reclassified" in writer.output()
    before, after = (c["late"] for c in facts(lake))
    assert sum(before["beyond"]) == 0
    assert sum(after["beyond"]) > 0
    found = run_audit(site)
    assert found["adds_up"], found
    elsewhere = Counter[str]()
    for _, to, rows in after["elsewhere"]:
        elsewhere[to] += rows
    assert elsewhere.keys() == {"late_table", "dead_letter"}
    assert elsewhere.total() == sum(after["beyond"])
    assert found["records"]["late_table"] == elsewhere["late_table"]
    said = oracle.rows(lake.with_name("events_dead_letters"), "count(*)", "WHERE error LIKE 'late: %'")
    assert said == [(elsewhere["dead_letter"],)]
    assert sum(m.rows for m in manifests(site).values()) == found["records"]["rows"]
