"""A pause of a real writer: nothing is committed, it says so, and it goes on where it was."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support import oracle
from tests.support.cluster_driver import Driver
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def status(site: Site) -> dict[str, Any]:
    return dict(json.loads(say("status", str(site.config), "--json"))["pipelines"]["events"])


def test_a_paused_writer_commits_nothing_drains_and_goes_on_within_seconds(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.overrides["kafka"] = {
        "bootstrap_servers": site.bootstrap, "request_timeout": "10 s", "lag_interval": "1 s",
    }  # fmt: skip
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 100)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    say("pause", str(site.config), "--reason", "the table moves")
    writer.until(lambda: "pipeline_paused" in writer.output())
    site.fill(name, 50)
    writer.until(lambda: Driver(writer).pipeline("events")["lag"]["offsets"] == 50)
    time.sleep(3)
    told = status(site)
    assert (told["state"], told["source"], told["pause"]["reason"]) == ("paused", "driver", "the table moves")
    driver = json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())
    with urlopen(driver["url"] + "/readyz", timeout=60) as answer:
        assert "pipeline events is paused since" in answer.read().decode()
    assert (writer.commits(), oracle.frontier_of(lake, "events")) == (1, {(name, 0): 100})

    say("resume", str(site.config))
    began = time.monotonic()
    writer.until(lambda: writer.commits() == 2)
    assert time.monotonic() - began < 90, "within seconds; the machine may be busy"
    say("pause", str(site.config))
    site.fill(name, 50)
    writer.until(lambda: Driver(writer).pipeline("events")["lag"]["offsets"] == 50)
    writer.stop()  # while the batch is held

    version = oracle.replay(lake).version
    assert "is paused since" in site.once(code=5)
    again = site.start()
    again.until(lambda: "pipeline_paused" in again.output())
    time.sleep(5)
    assert oracle.replay(lake).version == version, "a start waits as well"
    say("resume", str(site.config))
    again.until(lambda: again.commits() == 1)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait(120) == 0
    oracle.check(lake, "events", {(name, 0): 200})
