"""Routes in a running writer: by topic, by a field and by record types that appear; one of its pipelines is paused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MakeTopic = Callable[..., str]
CLICK, INSTALL = "headrace.demo.Click", "headrace.demo.Install"


def count_rows_by(table: Path, by: str) -> dict[str, int]:
    return {str(name): int(str(rows)) for name, rows in oracle.rows(table, f"{by}, count(*)", "GROUP BY 1")}


def test_topics_fields_and_types_that_appear_have_their_tables_while_one_pipeline_is_paused(
    site: Site, topic: MakeTopic
) -> None:
    eu, us, other = (topic(1, prefix=prefix) for prefix in ("eu", "us", "other"))
    lake, fast = site.root / "lake", {"commit": {"max_delay": "1 s"}}
    routes = {
        "by_topic": ([eu, us, other], {
            "by": "topic", "targets": {eu: str(lake / "eu"), "us-*": str(lake / "topics" / "{name}")}, "unrouted": eu,
        }),
        "by_field": ([eu], {
            "by": {"field": "country"}, "unrouted": "DE",
            "targets": {"DE": str(lake / "de"), "[A-F]*": str(lake / "countries" / "{name}")},
        }),
        "by_record": ([us], {"targets": {"*": str(lake / "types" / "{name}")}}),
    }  # fmt: skip
    logs = {name: site.pipeline(name, topics, route=route, **fast) for name, (topics, route) in routes.items()}
    for name, count in ((eu, 60), (us, 40), (other, 20)):
        site.fill(name, count)

    def arrived(pipeline: str, ends: dict[str, int]) -> Callable[[], bool]:
        return lambda: oracle.frontier_of(logs[pipeline], pipeline) == {(name, 0): end for name, end in ends.items()}

    writer = site.start()
    writer.until(arrived("by_topic", {eu: 60, us: 40, other: 20}))
    writer.until(arrived("by_field", {eu: 60}))
    writer.until(arrived("by_record", {us: 40}))

    say("pause", str(site.config), "--pipeline", "by_topic")
    writer.until(lambda: "pipeline_paused pipeline=by_topic" in writer.output())
    site.fill(eu, 15, seed=8)
    site.send(us, site.values(us, 30, kind="installs", subject=f"{us}-installs"))
    writer.until(arrived("by_field", {eu: 75}))
    writer.until(arrived("by_record", {us: 70}))
    assert arrived("by_topic", {eu: 60, us: 40, other: 20})(), "it is paused, the others are not"
    assert f"target_made pipeline=by_record name={INSTALL}" in writer.output()
    say("resume", str(site.config), "--pipeline", "by_topic")
    writer.until(arrived("by_topic", {eu: 75, us: 70, other: 20}))
    writer.stop()

    assert count_rows_by(lake / "eu", "_topic") == {eu: 75, other: 20}
    assert count_rows_by(lake / "topics" / us, "_topic") == {us: 70}
    made = {path.name: count_rows_by(path, "country") for path in (lake / "countries").iterdir()}
    assert made
    assert all(set(found) == {name} for name, found in made.items()), made
    rest = count_rows_by(lake / "de", "country")
    assert not any("A" <= name[0] <= "F" for name in set(rest) - {"DE", "None"})
    assert sum(rest.values()) + sum(sum(found.values()) for found in made.values()) == 75
    assert [sum(count_rows_by(lake / "types" / name, "_topic").values()) for name in ("Click", "Install")] == [40, 30]
    audits = json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]
    assert {name: (one["adds_up"], one["records"]["dead_letters"]) for name, one in audits.items()} == dict.fromkeys(
        routes, (True, 0)
    )
