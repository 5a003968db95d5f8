"""A running writer that reads its file again: pipelines come, change and go, and the others do not notice."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import oracle
from tests.support.cluster_driver import Driver
from tests.support.process import say
from tests.support.supervisor_process import Supervised
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
FAST = {"commit": {"max_delay": "1 s"}}


def driver(site: Site) -> dict[str, Any]:
    return dict(json.loads(say("status", str(site.config), "--json"))["pipelines"])


def has_arrived(lake: Path, pipeline: str, count: int) -> Callable[[], bool]:
    return lambda: lake.exists() and sum(oracle.frontier_of(lake, pipeline).values()) == count


def test_pipelines_of_a_supervised_driver_are_added_changed_and_removed_while_one_goes_on(
    site: Site, topic: MakeTopic, start: Callable[..., Supervised]
) -> None:
    names = {pipeline: topic(1) for pipeline in ("clicks", "views", "orders")}
    lakes = {pipeline: site.pipeline(pipeline, [names[pipeline]], **FAST) for pipeline in ("clicks", "views")}
    for name in names.values():
        site.fill(name, 200)
    supervised = start()
    for pipeline, lake in lakes.items():
        supervised.until(has_arrived(lake, pipeline, 200))
    before = driver(site)

    lakes["orders"] = site.pipeline("orders", [names["orders"]], **FAST)
    site.pipelines["views"]["commit"] = {"max_delay": "2 s"}
    site.overrides["stop_timeout"] = "3 min"
    document = json.loads(say("reload", str(site.config), "--json"))
    assert {what: document[what] for what in ("added", "changed", "removed", "restart", "error")} == {
        "added": ["orders"], "changed": ["views"], "removed": [], "restart": ["stop_timeout"], "error": None,
    }  # fmt: skip
    supervised.until(has_arrived(lakes["orders"], "orders", 200))
    supervised.until(lambda: Driver(supervised).pipeline("views")["epoch"] == before["views"]["epoch"] + 1)
    now = driver(site)
    assert now["clicks"]["epoch"] == before["clicks"]["epoch"], "it goes on"
    assert len(supervised.drivers()) == 1
    assert supervised.ask("/status")["pipelines"]["orders"]["lease_epoch"] == 1

    site.pipelines["orders"]["topcs"] = ["wrong"]
    assert "did you mean 'topics'" in refusal_of(site)
    assert "did you mean 'topics'" in supervised.ask("/status")["config"]["error"], "the writer knows, too"
    del site.pipelines["orders"]["topcs"]

    del site.pipelines["views"]
    assert "views" in say("reload", str(site.config))
    supervised.until(lambda: "views" not in supervised.ask("/status")["pipelines"])
    for name in names.values():
        site.fill(name, 100, seed=8)
    for pipeline in ("clicks", "orders"):
        supervised.until(has_arrived(lakes[pipeline], pipeline, 300))
    assert sum(oracle.frontier_of(lakes["views"], "views").values()) == 200
    lease = sorted((site.root / "checkpoints" / "views" / "_lease").iterdir())
    assert lease, "it was released for another supervisor"

    site.pipelines["views"] = {**site.pipelines["clicks"], "topics": [names["views"]]}
    site.pipelines["views"]["table"] = {"location": str(lakes["views"]), "format": "delta"}
    say("reload", str(site.config))
    supervised.until(has_arrived(lakes["views"], "views", 300))
    assert supervised.stop() == 0, supervised.output()
    assert len(supervised.drivers()) == 1
    for pipeline, lake in lakes.items():
        oracle.check(lake, pipeline, site.ends(names[pipeline]))


def test_all_pipelines_are_exchanged_while_the_driver_is_killed(
    site: Site, topic: MakeTopic, start: Callable[..., Supervised]
) -> None:
    name = topic(1)
    lakes = {"old": site.pipeline("old", [name], **FAST)}
    site.fill(name, 200)
    supervised = start()
    supervised.until(has_arrived(lakes["old"], "old", 200))
    site.pipelines.clear()
    lakes["new"] = site.pipeline("new", [name], **FAST)
    assert site.config.exists(), "written"
    supervised.process.send_signal(signal.SIGHUP)
    supervised.until(lambda: supervised.times("config_reloaded") >= 1)
    os.kill(supervised.drivers()[-1], signal.SIGKILL)
    site.fill(name, 100, seed=8)
    supervised.until(has_arrived(lakes["new"], "new", 300))
    supervised.until(lambda: set(supervised.ask("/status")["pipelines"]) == {"new"})
    before = supervised.times("config_reloaded")
    site.pipelines.clear()
    site.pipeline("old", [name], **FAST)
    assert site.config.exists(), "written"
    supervised.process.send_signal(signal.SIGHUP)
    supervised.until(lambda: supervised.times("config_reloaded") > before)
    supervised.until(has_arrived(lakes["old"], "old", 300))
    supervised.until(lambda: set(supervised.ask("/status")["pipelines"]) == {"old"})
    assert supervised.stop() == 0, supervised.output()
    for pipeline, lake in lakes.items():
        oracle.check(lake, pipeline, site.ends(name))


def refusal_of(site: Site) -> str:
    """Ask for a reload of a file that is invalid. Returns why it is."""
    from subprocess import run as called
    from sys import executable

    done = called(
        [executable, "-m", "headrace.writer.cli", "reload", str(site.config)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr


def test_a_watched_file_and_a_signal_do_the_same_without_a_supervisor(site: Site, topic: MakeTopic) -> None:
    names = {pipeline: topic(1) for pipeline in ("clicks", "views")}
    lakes = {"clicks": site.pipeline("clicks", [names["clicks"]], **FAST)}
    for name in names.values():
        site.fill(name, 100)
    writer = site.start("--watch-config")
    writer.until(has_arrived(lakes["clicks"], "clicks", 100))
    lakes["views"] = site.pipeline("views", [names["views"]], **FAST)
    assert site.config.exists(), "written"
    writer.until(has_arrived(lakes["views"], "views", 100))
    good = site.config.read_text()
    site.config.write_text("pipelines: [")
    writer.process.send_signal(signal.SIGHUP)
    writer.until(lambda: "config_reload_failed" in writer.output())
    (site.root / "headrace.yaml").write_text(good)
    assert driver(site)["clicks"]["state"] == "running"
    del site.pipelines["clicks"]
    assert site.config.exists(), "written"
    writer.process.send_signal(signal.SIGHUP)
    writer.until(lambda: "pipeline_removed pipeline=clicks" in writer.output())
    site.fill(names["views"], 50, seed=8)
    writer.until(has_arrived(lakes["views"], "views", 150))
    writer.stop()
    for pipeline, lake in lakes.items():
        oracle.check(lake, pipeline, site.ends(names[pipeline]))


def test_a_shorter_retention_of_a_watched_file_drops_nothing_until_it_is_accepted(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    window = {"field": "event_time", "max_ahead": "36500 d"}
    seal = {"enabled": True}
    long = {"event_time": {**window, "max_age": "36500 d"}, "retention": "36500 d", "seal": seal}
    lake = site.pipeline("clicks", [name], **FAST, **long)
    site.fill(name, 100)
    writer = site.start("--watch-config")
    writer.until(has_arrived(lake, "clicks", 100))
    rows = len(oracle.rows(lake, "_offset"))
    site.pipeline("clicks", [name], **FAST, event_time={**window, "max_age": "1 h"}, retention="1 h", seal=seal)
    assert site.config.exists(), "written"
    writer.until(lambda: "retention_waits" in writer.output())
    (wait,) = driver(site)["clicks"]["retention_waits"]
    assert (wait["retention_seconds"], wait["rows"]) == (3600, rows)
    assert len(oracle.rows(lake, "_offset")) == rows
    # A start that nobody attends is no acceptance either.
    writer.stop()
    writer = site.start()
    writer.until(lambda: "retention_waits" in writer.output())
    assert len(oracle.rows(lake, "_offset")) == rows
    accepted = json.loads(say("retention", str(site.config), "--yes", "--json"))["pipelines"]["clicks"]["table"]
    assert (accepted["rows_dropped"], oracle.rows(lake, "_offset")) == (rows, [])
    writer.until(lambda: Driver(writer).pipeline("clicks")["retention_waits"] == [])
    writer.stop()
