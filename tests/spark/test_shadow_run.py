"""A shadow by another file beside the running writer, killed on its way; then it takes the place of the first table."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import JAVA_OPTIONS, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def test_a_shadow_beside_the_writer_is_compared_and_promoted(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    place, other = site.root / "shadow" / "events", site.root / "new.yaml"
    site.fill(name, 1_500, broken=4)
    site.once()
    raw = yaml.safe_load(site.config.read_text())
    raw["pipelines"]["events"]["commit"] = {"max_offsets": 300}
    raw["pipelines"]["events"]["specs"] = {"*": {"columns": {"exclude": ["ip"]}}}
    raw["spark"]["conf"][JAVA_OPTIONS] += " -XX:+UseLargePages"  # where there are none, the JVM prints a warning
    other.write_text(yaml.safe_dump(raw))
    words = ["shadow", str(site.config), "--with", str(other), "--location", str(place), "--json"]
    writer = site.start()
    try:
        site.fill(name, 500, seed=8)
        say(*words, code=-signal.SIGKILL, HEADRACE_FAULT="after_commit:2")
        document = json.loads(say(*words, own_process=True))
        ends = site.ends(name)
        assert {(name, partition["partition"]): partition["end"] for partition in document["partitions"]} == ends
        assert (document["rows"], document["dead_letters"]) == (2_000, 4)
        writer.until(lambda: oracle.count(lake) == 2_000)
        writer.stop()
    finally:
        writer.kill()
    oracle.check(place, "events", ends)
    beside = ["--with", str(other), "--shadow", str(place), "--json"]
    same = json.loads(say("diff", str(site.config), *beside))
    assert (same["equal"], same["different"], same["only_first"]) == (2_000, 0, 0)
    promote = ["promote", str(site.config), *beside, "--yes"]
    say(*promote, code=-signal.SIGKILL, HEADRACE_FAULT="after_supersede:1")
    assert json.loads(say(*promote))["changes"] == {"pipelines.events.table.location": str(place)}
    assert f"Set pipelines.events.table.location: {place}" in site.once(code=2)
    goes_on(site, place)
    site.fill(name, 100, seed=10)
    site.once()
    oracle.check(place, "events", site.ends(name))
    assert (oracle.count(place), oracle.count(lake)) == (2_100, 2_000)
    assert json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"]["adds_up"]


def goes_on(site: Site, place: Path) -> None:
    """Let the pipeline have the other table, by the file of the shadow."""
    raw = yaml.safe_load((site.root / "new.yaml").read_text())
    site.pipelines = raw["pipelines"]
    site.pipelines["events"]["table"]["location"] = str(place)
