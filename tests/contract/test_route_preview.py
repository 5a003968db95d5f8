"""What `preview`, `validate` and `size` say of a pipeline with a route, of records on a real broker."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
CLICK, INSTALL = "headrace.demo.Click", "headrace.demo.Install"


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic) -> Site:
    """30 clicks, 20 installs with a bucket of a day, a value that is broken, and a tombstone."""
    site, name = Site(tmp_path_factory.mktemp("routed"), bootstrap, registry_url), topic(1)
    lake = site.root / "lake"
    bucket = {"type": "event_time", "width": "1 d", "zone": "UTC"}
    targets = {CLICK: str(lake / "clicks"), "*": {"location": str(lake / "{name}"), "bucket": bucket}}
    site.pipeline("events", [name], raw=True, route={"targets": targets})
    for kind, count in (("clicks", 30), ("installs", 20)):
        site.send(name, site.values(name, count, kind=kind, subject=f"{name}-{kind}"))
    site.send(name, [(b"k", b"\0\0\0\0\1"), (b"k", None)])  # type: ignore[list-item]
    return site


def lines(site: Site, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in say("preview", str(site.config), "--json", *words).splitlines()]


def untouched(site: Site) -> None:
    assert not (site.root / "lake").exists(), "nothing was made"


def test_preview_shows_the_records_of_each_table_and_those_without_one(routed: Site) -> None:
    records = lines(routed, "--at", "assigned", "-n", "52")
    assert Counter((record["target"], record["outcome"]) for record in records) == {
        (CLICK, "row"): 30, (INSTALL, "row"): 20, (None, "dead_letter"): 1,
    }  # fmt: skip
    hours, days = (
        {next(iter(record["bucket"].values())) for record in records if record["target"] == target}
        for target in (CLICK, INSTALL)
    )
    assert all(len(hour) == len("2026-11-20T05") for hour in hours), hours
    assert all(len(day) == len("2026-11-20") for day in days), days
    only = lines(routed, "--target", INSTALL, "-n", "52")
    assert {record["target"] for record in only} == {INSTALL}
    assert {record["outcome"] for record in only} == {"row"}
    assert lines(routed, "--at", "staged", "--target", CLICK, "-n", "52")[0]["rows"]
    assert len(lines(routed, "--at", "raw", "-n", "52")) == 52
    shown = say("preview", str(routed.config), "-n", "52", COLUMNS="120")
    assert f"{CLICK} → {routed.root}/lake/clicks" in shown
    assert "no table: 1 record" in shown
    untouched(routed)


def test_a_target_that_is_not_there_is_refused(routed: Site) -> None:
    say("preview", str(routed.config), "--target", "headrace.demo", "--at", "raw", code=2)
    say("preview", str(routed.config), "--follow", code=2)
    assert "none of 52 records goes to other" in say("preview", str(routed.config), "--target", "other", "-n", "52")


def test_validate_judges_the_records_of_each_table(routed: Site) -> None:
    findings = json.loads(say("validate", str(routed.config), "--json", "--sample", "60"))["findings"]
    by = {finding["check"]: finding for finding in findings if finding["pipeline"] == "events"}
    assert by["route"]["message"].startswith(f"2 tables: {CLICK} 30, {INSTALL} 20")
    for target in (CLICK, INSTALL):
        for check in ("decode", "event_time", "buckets", "spill"):
            assert by[f"{check} {target}"]["status"] in ("ok", "warning"), by[f"{check} {target}"]
    assert by["schemas"]["status"] != "not_checked"
    untouched(routed)


def test_size_has_one_pipeline_and_its_tables(routed: Site) -> None:
    document = json.loads(say("size", str(routed.config), "--json", "--events-per-second", "100"))
    records = document["pipelines"]["events"]["sizing"]
    tables = list(records["tables"].values())
    assert (list(document["pipelines"]), list(records["tables"])) == (["events"], [CLICK, INSTALL])
    per_s = [
        next(line["value"] for line in record["lines"] if line["name"] == "events per second")
        for record in (records, *tables)
    ]
    assert per_s == pytest.approx([100, 100 * 30 / 52, 100 * 20 / 52])
    whole = {line["name"]: line["value"] for line in records["lines"]}
    rows = sum(line["value"] for table in tables for line in table["lines"] if line["name"] == "lake a day")
    assert whole["lake a day"] == pytest.approx(rows + whole["raw table a day"])
    shown = say("size", str(routed.config), "--events-per-second", "100", COLUMNS="120")
    assert all(target in shown for target in (CLICK, INSTALL))
    assert "in one application" not in shown
    untouched(routed)


def test_a_route_by_field_that_stops_is_judged(routed: Site, tmp_path: Path) -> None:
    site = Site(tmp_path, routed.bootstrap, routed.registry_url)
    lake = site.root / "lake"
    route = {"by": {"field": "country"}, "targets": {"DE": str(lake / "de")}, "unrouted": "stop"}
    site.pipeline("events", routed.pipelines["events"]["topics"], route=route)
    findings = json.loads(say("validate", str(site.config), "--json", "--sample", "60", code=2))["findings"]
    by = {finding["check"]: finding for finding in findings if finding["pipeline"] == "events"}
    assert by["route"]["status"] == "failed"
    assert "route.unrouted is stop" in by["route"]["fix"]
