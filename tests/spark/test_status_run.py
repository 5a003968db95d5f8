"""What a running writer tells of itself, against what the lake holds."""

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from headrace.writer.web.metrics_catalogue import CATALOGUE
from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site, Writer

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def url(site: Site) -> str:
    return str(json.loads((site.root / "checkpoints" / "events" / "driver.json").read_text())["url"])


def get(site: Site, path: str) -> str:
    with urlopen(url(site) + path, timeout=60) as response:
        return str(response.read().decode())


def scrape(site: Site) -> dict[tuple[str, ...], float]:
    families = list(text_string_to_metric_families(get(site, "/metrics")))
    assert {f.name + ("_total" if f.type == "counter" else "") for f in families} == {m.name for m in CATALOGUE}
    return {
        (s.name, *(value for key, value in s.labels.items() if key != "pipeline")): s.value
        for family in families
        for s in family.samples
    }


def status(site: Site) -> dict[str, Any]:
    return dict(json.loads(say("status", str(site.config), "--json"))["pipelines"]["events"])


def explain_pipelines(site: Site, *which: str) -> dict[str, Any]:
    return dict(json.loads(say("explain", str(site.config), "--json", *which))["pipelines"]["events"])


def agrees(site: Site, lake: Path) -> None:
    """Assert that metrics and /status say what the oracle finds in the lake."""
    found, told = scrape(site), json.loads(get(site, "/status"))["pipelines"]["events"]
    dead_letters = lake.with_name(lake.name + "_dead_letters")
    good = sum(len(offsets) for offsets in oracle.offsets(lake).values())
    bad = sum(len(offsets) for offsets in oracle.offsets(dead_letters).values())
    log = oracle.replay(lake)
    assert found["headrace_records_total", "rows"] == told["totals"]["records"]["rows"] == good
    assert found["headrace_dead_letter_table_rows_total",] == bad
    assert found["headrace_records_read_total",] == good + bad
    assert found["headrace_files_total",] == told["totals"]["files"] == len(log.files)
    assert found["headrace_bytes_total",] == sum((lake / path).stat().st_size for path in log.files)
    assert told["buckets"] == len({path.split("/")[0] for path in log.files})
    frontier = {(p["topic"], p["partition"]): p["frontier"] for p in told["lag"]["partitions"]}
    assert frontier == oracle.check(lake, "events")
    batches = [commit for commit in log.commits if commit["kind"] == "batch"]
    assert sum(n for name, n in told["totals"]["commits"].items()) == len(batches)
    assert [commit["batch"] for commit in told["commits"]] == [commit["batch"] for commit in reversed(batches)]


def carried(writer: Writer, commits: int) -> None:
    writer.until(lambda: writer.commits() == commits)


def test_a_running_writer_tells_what_the_lake_holds_and_why_it_committed(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline(
        "events", [name], commit={"max_delay": "20 s", "min_offsets": 2_000, "max_offsets": 10_000},
        commit_offsets_to_group=f"shown-{name}",
    )  # fmt: skip
    site.overrides = {"kafka": {"bootstrap_servers": site.bootstrap, "lag_interval": "500 ms"}}
    assert status(site)["state"] == "not started"
    site.fill(name, 300, broken=3)
    writer = site.start()
    carried(writer, 1)
    site.fill(name, 3_000, seed=8, broken=5)
    carried(writer, 2)
    site.fill(name, 400, seed=9)
    carried(writer, 3)  # nothing more comes: the delay ends it
    agrees(site, lake)
    assert get(site, "/healthz") == get(site, "/readyz") == "ok\n"
    told = status(site)
    assert (told["source"], told["state"], told["epoch"]) == ("driver", "running", 1)
    writer.until(lambda: scrape(site)["headrace_lag_offsets", "0", name] == 0)
    assert scrape(site)["headrace_lag_source_age_seconds",] < 30

    why = [explain_pipelines(site, "--batch", str(batch)) for batch in range(3)]
    # A first batch that lasts longer than the delay lets the second begin with the first record that comes.
    assert [why[0]["reason"], *sorted(one["reason"] for one in why[1:])] == ["start", "size", "timeout"]
    by_size, by_time = sorted(why[1:], key=lambda one: one["reason"])
    assert by_size["waiting"] >= 2_000
    assert by_size["limits"]["offsets_min"] == 2_000
    assert by_time["waiting"] < 2_000
    for one in why:
        assert {"look", "tasks"} <= one["phase_seconds"].keys()
        assert one["step_cpu_seconds"]["decode"] >= 0
        assert one["tasks"] >= 1
        assert sum(one["records"][outcome] for outcome in one["records"] if outcome != "read") == one["records"]["read"]
    assert "commit" in why[0]["phase_seconds"], "the next commit told"

    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0
    assert not (site.root / "checkpoints" / "events" / "driver.json").exists()
    after = status(site)
    assert (after["source"], after["state"], after["lag"]["offsets"]) == ("lake", "unknown", 0)
    assert after["totals"]["records"] == told["totals"]["records"]
    assert [p["frontier"] for p in after["lag"]["partitions"]] == [p["frontier"] for p in told["lag"]["partitions"]]
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": f"shown-{name}"})
    try:
        shown = consumer.committed([TopicPartition(name, partition) for partition in (0, 1)], timeout=60)
        assert {(tp.topic, tp.partition): tp.offset for tp in shown} == site.ends(name)
    finally:
        consumer.close()


def test_a_killed_driver_leaves_a_file_that_misleads_no_command_and_its_batch_is_read_again(
    site: Site, topic: MakeTopic
) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    site.fill(name, 500)
    writer = site.start(env={"HEADRACE_FAULT": "before_commit:1"})
    assert writer.wait(90) == -signal.SIGKILL
    told = status(site)
    assert (told["source"], told["state"], told["driver"]["answers"]) == ("lake", "unknown", False)
    assert told["lag"]["offsets"] == 500
    assert told["lag"]["seconds"] > 0
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert explain_pipelines(site)["reason"] == "replay"


def test_a_port_that_is_taken_stops_the_driver_before_spark(site: Site, topic: MakeTopic) -> None:
    site.pipeline("events", [topic(1)])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.overrides = {"http": {"port": port}}
        output = site.once(code=1)
    assert f"port {port} of 127.0.0.1 is taken" in output
    assert "spark_starting" not in output
