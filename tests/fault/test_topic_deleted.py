"""A topic that is deleted under the tasks of a batch: they end, its pipeline says why, the others go on."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.demo.devstack.process import free_ports
from headrace.writer.demo.devstack.stack import Broker
from tests.servers.latency import Latency
from tests.servers.login_broker import add_login
from tests.support import oracle
from tests.support.writer_process import QUICK_START, Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
STOP_TIMEOUT_S, SOON_S = 4, 60  # and what a crowded machine takes to notice, to cancel and to end
ALL_SLOTS = {"target_file_size": "4 KiB"}  # so many files that a batch of 300 events has work for both slots


def shorten_waits(site: Site, *, lag_interval: str, tries: int = 4) -> Site:
    """Let a driver with two slots run on a site, and cancel soon what a stop has to wait for."""
    kafka = {"bootstrap_servers": site.bootstrap, "request_timeout": "10 s", "lag_interval": lag_interval}
    spark = {"master": f"local[2, {tries}]", "conf": {"spark.driver.extraJavaOptions": QUICK_START}}
    site.overrides |= {"kafka": kafka, "spark": spark, "stop_timeout": f"{STOP_TIMEOUT_S} s"}
    return site


def delete(site: Site, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.delete_topics([topic])[topic].result(timeout=60)


def hang(site: Site, gone: str, flag: Path, **env: str) -> Writer:
    """Start a driver, and delete a topic after the look at its id and before the first question of a consumer."""
    fault = ",".join(filter(None, (f"before_stage@gone:1:{flag}", env.pop("HEADRACE_FAULT", ""))))
    writer = site.start(env={"HEADRACE_FAULT": fault, **env})
    writer.until(flag.exists)
    delete(site, gone)
    flag.unlink()
    return writer


def stopped_within_s(writer: Writer) -> float:
    """Ask it to stop. Returns the seconds until it had ended, well."""
    began_s = time.monotonic()
    writer.process.send_signal(signal.SIGTERM)
    writer.process.wait(120)
    took_s = time.monotonic() - began_s
    assert writer.wait(1) == 0, writer.output()
    return took_s


def test_a_topic_that_is_deleted_under_its_tasks_ends_them_and_holds_up_no_other_pipeline(
    site: Site, topic: MakeTopic
) -> None:
    gone, stays, flag, held = topic(4), topic(1), site.root / "before", site.root / "held"
    shorten_waits(site, lag_interval="5 s")  # mostly, the tasks ask for the topic by then
    lake = site.pipeline("gone", [gone], commit={"max_delay": "1 s"}, roll=ALL_SLOTS)
    other = site.pipeline("stays", [stays], commit={"max_delay": "1 s"})
    site.fill(gone, 300)
    site.fill(stays, 100)
    writer = hang(site, gone, flag, HEADRACE_FAULT=f"in_decode:3:{held}")
    writer.until(lambda: "pipeline_restarting pipeline=gone" in writer.output(), SOON_S)
    writer.until(lambda: writer.commits() >= 1, SOON_S)
    seed = 8
    while not held.exists():  # the tasks of the other one hold both slots no longer than they have to
        site.fill(stays, 100, seed=seed)
        before, seed = writer.commits(), seed + 1
        writer.until(lambda before=before: held.exists() or writer.commits() > before, SOON_S)  # type: ignore[misc]
    assert stopped_within_s(writer) < STOP_TIMEOUT_S + SOON_S, "a task that waits for ever is cancelled"
    output = writer.output()
    assert f"topic '{gone}' does not exist on {site.writer_address}: it was deleted" in output
    assert "no Kafka broker answers" not in output
    assert output.count("batch_cancelled") == 2
    oracle.check_rows(other, "stays")
    assert oracle.frontier_of(other, "stays") == {(stays, 0): 100 * writer.commits()}
    assert oracle.frontier_of(lake, "gone") == {(gone, p): 0 for p in range(4)}


def test_a_stop_ends_a_driver_whose_tasks_ask_for_a_deleted_topic(tmp_path: Path, registry_url: str) -> None:
    """Nobody notices the deletion here, and the broker creates each topic that a consumer lets it create."""
    with add_login(Broker(tmp_path / "kafka", auto_create=True)) as broker:
        site = shorten_waits(Site(tmp_path, broker.bootstrap, registry_url), lag_interval="1 h")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic("gone", 4, 1), NewTopic("stays", 1, 1)]).values():
            made.result(30)
        lake = site.pipeline("gone", ["gone"], commit={"max_delay": "1 s"}, roll=ALL_SLOTS)
        other = site.pipeline("stays", ["stays"], commit={"max_delay": "1 s"})
        site.fill("gone", 300)
        site.fill("stays", 100)
        writer = hang(site, "gone", tmp_path / "before")
        writer.until(lambda: writer.commits() >= 1)
        site.fill("stays", 100, seed=8)
        writer.until(lambda: writer.commits() >= 2)
        assert "gone" not in admin.list_topics(timeout=60).topics, "the tasks' consumers created it again"
        assert stopped_within_s(writer) < STOP_TIMEOUT_S + SOON_S
        assert "batch_cancelled pipeline=gone reason='it took longer than stop_timeout'" in writer.output()
        admin.create_topics([NewTopic("gone", 1, 1)])["gone"].result(30)
        site.fill("gone", 50, seed=9)
        site.fill("stays", 100, seed=9)
        site.once()
        oracle.check_exactly(lake, {("gone", 2, 0): range(50)})
        oracle.check_exactly(other, {("stays", 1, 0): range(300)})


def test_a_task_on_a_partition_that_is_gone_ends_in_bounded_time(site: Site, topic: MakeTopic) -> None:
    """Nobody notices the deletion here but the task's own consumer: one poll and one question, 90 s, for each try."""
    gone = topic(1)
    shorten_waits(site, lag_interval="1 h", tries=1)
    site.pipeline("gone", [gone])
    site.fill(gone, 300)
    writer = hang(site, gone, site.root / "before")
    began_s = time.monotonic()
    writer.until(lambda: "pipeline_restarting pipeline=gone" in writer.output())
    assert 60 < time.monotonic() - began_s < 90 + SOON_S
    assert "batch_cancelled" not in writer.output()
    assert stopped_within_s(writer) < STOP_TIMEOUT_S + SOON_S


@pytest.mark.parametrize("after_s", [0, 0.5, 1, 2, 3, 4, 5, 6, 7])
def test_whenever_a_topic_is_deleted_its_pipeline_says_so_soon(site: Site, topic: MakeTopic, after_s: float) -> None:
    name = topic(4)
    shorten_waits(site, lag_interval="500 ms")
    lake = site.pipeline("gone", [name], commit={"max_delay": "1 s"}, roll=ALL_SLOTS)
    site.fill(name, 300)
    writer = site.start()
    writer.until(lambda: list((site.root / "checkpoints" / "gone").glob("*/offsets/0")))
    time.sleep(after_s)
    delete(site, name)
    writer.until(lambda: "pipeline_restarting" in writer.output(), 20 + SOON_S)
    assert stopped_within_s(writer) < STOP_TIMEOUT_S + SOON_S
    # Who notices first names the topic, or a partition of it.
    subject = rf"(topic '{name}'|{name}/\d)"
    assert re.search(rf"{subject} does not exist on {site.writer_address}: it was deleted", writer.output())
    oracle.check_rows(lake, "gone")
    assert sum(oracle.frontier_of(lake, "gone").values()) in (0, 300)


def test_a_broker_that_is_slow_fails_no_task(tmp_path: Path, registry_url: str) -> None:
    """Each answer comes eight seconds late; a consumer that has just come asks four times before it has a record."""
    listens, speaks = free_ports(2)
    overrides = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{speaks}"}
    with Broker(tmp_path / "kafka", port=listens, overrides=overrides) as broker, Latency(speaks, listens) as latency:
        site = shorten_waits(Site(tmp_path, f"127.0.0.1:{speaks}", registry_url), lag_interval="1 h", tries=1)
        site.overrides["kafka"]["request_timeout"] = "30 s"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("slow", 2, 1)])["slow"].result(30)
        lake = site.pipeline("slow", ["slow"], commit={"max_delay": "1 s"}, roll=ALL_SLOTS)
        site.fill("slow", 300)
        flag = tmp_path / "before"
        writer = site.start(env={"HEADRACE_FAULT": f"before_stage:1:{flag}"})
        writer.until(flag.exists)
        latency.seconds = 8
        flag.unlink()
        writer.until(lambda: writer.commits() >= 1)
        latency.seconds = 0
        writer.stop()
        oracle.check(lake, "slow", site.ends("slow"))
        assert "pipeline_restarting" not in writer.output()
