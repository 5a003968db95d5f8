"""Buckets of the tables of a route in a real run: each table closes, seals and takes late rows by itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.writer.config.loader import load
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.sealer import Sealer
from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MakeTopic = Callable[..., str]
CLICK, INSTALL = "headrace.demo.Click", "headrace.demo.Install"


def routed(site: Site, topic: str, form: str = "delta", **click: object) -> Path:
    """Write a pipeline of two tables: one sealed again at once, one with a table of late rows."""
    lake = site.root / "lake"
    targets = {
        CLICK: {"location": str(lake / "clicks"), **click},
        INSTALL: {
            "location": str(lake / "installs"), "format": "parquet" if form == "delta" else form,
            "seal": {"late": "late_table"},
        },
    }  # fmt: skip
    site.pipeline("events", [topic], form=form, seal={"reopen_after": "0 s"}, route={"targets": targets})
    return lake


def fill(site: Site, topic: str, seed: int, count: int = 100) -> None:
    for kind in ("clicks", "installs"):
        site.send(topic, site.values(topic, count, seed=seed, kind=kind, subject=f"{topic}-{kind}"))


def manifests(site: Site, target: str) -> dict[tuple[str | None, ...], Manifest]:
    """Newest manifests of a table, by bucket."""
    return {m.bucket: m for m in Sealer("events", load(site.config), target).manifests.all()}


def audited(site: Site) -> dict:
    found = dict(json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"])
    assert found["adds_up"], found
    return found


def rows(table: Path) -> int:
    return oracle.count(table)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_each_table_seals_its_buckets_and_takes_late_rows_in_its_own_way(
    site: Site, topic: MakeTopic, form: str
) -> None:
    """Events are of a day that is over: the clock closes their buckets once all of them are read."""
    name = topic(2)
    lake = routed(site, name, form)
    fill(site, name, seed=1)
    output = site.once()
    assert f"bucket_sealed pipeline=events target={CLICK}" in output
    clicks, installs = manifests(site, CLICK), manifests(site, INSTALL)
    for sealed, table in ((clicks, "clicks"), (installs, "installs")):
        assert sum(m.rows for m in sealed.values()) == rows(lake / table) > 0
        assert {m.version for m in sealed.values()} == {1}
        assert {m.table for m in sealed.values()} == {str(lake / table)}
    assert len(list((lake / "installs").glob("hour=*/_SUCCESS"))) == (len(installs) if form == "delta" else 0)
    fill(site, name, seed=2)
    site.once()
    again, late = manifests(site, CLICK), rows(lake / "installs_late")
    assert any(m.version == 2 and m.late > 0 for m in again.values()), "late rows reopened buckets of one table"
    assert sum(m.rows for m in again.values()) == rows(lake / "clicks")
    assert late > 0, "and went to the table of late rows of the other"
    assert manifests(site, INSTALL) | installs == manifests(site, INSTALL)
    found = audited(site)["records"]
    assert (found["rows"], found["late_table"]) == (rows(lake / "clicks") + rows(lake / "installs"), late)
    document = json.loads(say("seal", str(site.config), "--target", CLICK, "--yes", "--json"))
    assert (document["sealed"], document["blocked"]) == ([], [])
    shown = json.loads(say("buckets", str(site.config), "--target", INSTALL, "--json"))["pipelines"][
        f"events/{INSTALL}"
    ]
    assert {bucket["state"] for bucket in shown["buckets"]} == {"sealed"}
    status = json.loads(say("status", str(site.config), "--json"))["pipelines"]["events"]["seals"]
    assert (status["open"], status["closed"], status["reopened"]) == (0, 0, 0)


def test_a_batch_is_judged_again_when_buckets_of_one_table_are_closed_beside_it(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = routed(site, name, seal={"after": None, "late": "late_table"})
    fill(site, name, seed=3)
    site.once()
    fill(site, name, seed=4)
    flag = site.root / "staged"
    writer = site.start("--once", env={"HEADRACE_FAULT": f"after_stage:1:{flag}"})
    writer.until(flag.exists)
    document = json.loads(
        say("seal", str(site.config), "--target", CLICK, "--until", "2026-11-21T00:00Z", "--yes", "--json")
    )
    assert document["closed_until"] == "2026-11-21T00:00:00.000Z", "who seals then, it or the driver, is a race"
    before = rows(lake / "clicks")
    flag.unlink()
    assert writer.wait(120) == 0, writer.output()
    assert "batch_reclassified" in writer.output()
    assert rows(lake / "clicks") == before == sum(m.rows for m in manifests(site, CLICK).values())
    assert rows(lake / "clicks_late") > 0
    audited(site)


@pytest.mark.parametrize("fault", ["after_close:1", "before_apply:3", "before_seal:1", "before_manifest:2"])
def test_a_driver_that_dies_between_a_close_and_its_seals_ends_both_at_the_next_start(
    site: Site, topic: MakeTopic, fault: str
) -> None:
    name = topic(1)
    lake = routed(site, name)
    fill(site, name, seed=5)
    site.once(env={"HEADRACE_FAULT": fault}, code=-9)
    site.once()
    for target, table in ((CLICK, "clicks"), (INSTALL, "installs")):
        assert sum(m.rows for m in manifests(site, target).values()) == rows(lake / table) > 0
    audited(site)
