"""Playbooks of the runbook, done as they stand there: storage that is away, retention that is about to bite."""

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.faulty import SLOW_DOWN, proxy
from tests.servers.objects import ObjectServer
from tests.servers.scripted import Reply, serve_script
from tests.support import oracle
from tests.support.process import say
from tests.support.promql import Series, evaluate
from tests.support.supervisor_process import Supervised, explain
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
MakeTopic = Callable[..., str]
ALERTS = Path(__file__).parents[2] / "recovery" / "alerts.yaml"
GROUPS = yaml.safe_load(ALERTS.read_text())["groups"]
RULES = {r["alert"]: r["expr"] for group in GROUPS for r in group["rules"] if "alert" in r}


def scraped(url: str) -> list[Series]:
    """What Prometheus reads at one moment."""
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [
        Series(s.name, frozenset(s.labels.items()), [(0.0, s.value)]) for family in families for s in family.samples
    ]


def pending(url: str) -> set[str]:
    """Alerts whose expression is true of one scrape; those that ask how something changes need more than one."""
    data = scraped(url)
    return {name for name, expr in RULES.items() if "[" not in expr and evaluate(expr, data, 0.0)}


def url_of(writer: Writer) -> str:
    writer.until(lambda: "http_listening" in writer.output())
    return re.findall(r"http_listening \S*?url=(\S+)", writer.output())[-1]


def test_storage_that_is_down_is_waited_for_at_the_foot_of_the_ladder(
    site: Site, topic: MakeTopic, s3: ObjectServer, tmp_path: Path, start: Callable[..., Supervised]
) -> None:
    """As for an hour: longer than the patience of any one operation, for several starts."""
    bucket, name = s3.bucket(), topic(2)
    lake = f"{bucket}/lake/events"
    with proxy(s3.url, tmp_path) as faults:
        site.overrides = {
            "checkpoints": str(tmp_path / "checkpoints"), "s3": {"endpoint": faults.url, "retry_timeout": "2 s"},
        }  # fmt: skip
        site.pipeline("events", [name], table={"location": lake}, commit={"max_delay": "1 s"})
        site.fill(name, 500)
        running = start()
        running.wait_for_commits()
        faults.always(SLOW_DOWN)
        made = site.fill(name, 300, seed=8)
        running.until(lambda: waits(running) >= 2, seconds=420)
        committed = running.times("batch_committed")
        metrics = running.ask("/metrics")
        assert 'headrace_recovery_level{pipeline="events"} 0.0' in metrics
        assert 'headrace_recovery_halted{pipeline="events"} 0.0' in metrics
        known = explain(site)["events"]
        assert known["next"].startswith("L0"), known
        assert running.process.poll() is None
        faults.calm()
        running.until(lambda: running.times("batch_committed") > committed, seconds=420)
        running.until(running.recoveries)
        assert {level for level, _ in running.recoveries()} == {"L0"}
        assert running.stop() == 0, running.output()
        site.once()
        found = json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"]
    assert (found["adds_up"], found["records"]["rows"]) == (True, 500 + made)
    copy = tmp_path / "copy" / "events"
    s3.download(lake, copy)
    s3.download(f"{lake}_dead_letters", copy.with_name("events_dead_letters"))
    oracle.check(copy, "events", site.ends(name))


def waits(running: Supervised) -> int:
    """How often the supervisor decided to wait and start again as it was; anything else is a failure."""
    decided = re.findall(r"recovery_decided .*decided='?(L\d)", running.output())
    assert set(decided) <= {"L0"}, running.output()
    return len(decided)


def test_retention_that_is_about_to_bite_pages_and_is_averted(site: Site, topic: MakeTopic) -> None:
    """A paused pipeline, records that Kafka deletes within two hours; more retention, then resume."""
    week = timedelta(days=7)
    name = topic(1, **{"retention.ms": str(int(week.total_seconds() * 1000))})
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.overrides = {"kafka": {"bootstrap_servers": site.bootstrap, "request_timeout": "10 s", "lag_interval": "1 s"}}
    produced = int((time.time() - (week - timedelta(hours=2)).total_seconds()) * 1000)
    first, *others = site.values(name, 201)
    send(site, name, [first], produced)
    site.once()
    send(site, name, others, produced)
    config = str(site.config)
    say("pause", config, "--reason", "somebody forgot it")
    writer = site.start()
    try:
        url = url_of(writer)
        writer.until(lambda: "HeadraceRetentionNear" in pending(url))
        near = {"HeadraceRetentionNear", "HeadraceRetentionShrinks", "HeadracePaused"}
        assert near <= pending(url), "and the cause of it"
        retention(site, name, 2 * week)
        writer.until(lambda: not {"HeadraceRetentionNear", "HeadraceRetentionShrinks"} & pending(url), seconds=240)
        assert "HeadracePaused" in pending(url)
        say("resume", config)
        writer.until(lambda: len(oracle.rows(lake, "1")) == 201, seconds=240)
        writer.until(lambda: not pending(url))
        writer.stop()
    finally:
        if writer.process.poll() is None:
            writer.kill()
    oracle.check(lake, "events", site.ends(name))
    assert json.loads(say("audit", config, "--deep", "--json"))["pipelines"]["events"]["adds_up"]


def send(site: Site, topic: str, messages: Sequence[tuple[bytes, bytes]], stamp_ms: int) -> None:
    """Produce messages that are as old as their stamp says."""
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for key, value in messages:
        producer.produce(topic, value, key, timestamp=stamp_ms)
    assert producer.flush(30) == 0


def retention(site: Site, topic: str, wanted: timedelta) -> None:
    """Change how long a topic keeps its records, as the runbook's command does."""
    entry = ConfigEntry(
        "retention.ms", str(int(wanted.total_seconds() * 1000)), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": site.bootstrap})  # its futures fail once it is collected
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=60)


def test_a_driver_tells_at_once_of_a_gap_and_of_a_topic_that_was_created_again(site: Site, topic: MakeTopic) -> None:
    """To a server that fails first; the URL, a secret, stands in no log."""
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.overrides = {"notifications": {"url_env": "TEST_NOTIFY_URL"}}
    failing = [503, 500]
    with serve_script(lambda _: Reply(failing.pop() if failing else 200)) as server:
        env = {"TEST_NOTIFY_URL": f"{server.url}/services/T0/s3cr3t"}
        site.fill(name, 200)
        said = site.once(env=env)
        assert server.asked == []
        site.fill(name, 100, seed=8)
        site.forget(name, {0: 250})
        said += site.once(env=env)
        gap = server.asked[-1].json()
        assert len(server.asked) == 3, "two failures, then it was taken"
        assert (gap["event"], gap["severity"], gap["pipeline"]) == ("gap_opened", "critical", "events")
        assert [(r["start"], r["end"]) for r in gap["fields"]["ranges"]] == [(200, 250)]
        site.again(name)
        site.fill(name, 50, seed=9)
        said += site.once(env=env)
    told = [asked.json()["event"] for asked in server.asked]
    assert told == ["gap_opened"] * 3 + ["topic_recreated"]
    assert name in server.asked[-1].json()["text"]
    assert "s3cr3t" not in said
    assert len(oracle.rows(lake, "1")) == 300
