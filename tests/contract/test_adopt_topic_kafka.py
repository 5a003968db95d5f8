"""`headrace topic adopt` on a real broker: a copy of a topic goes on where the table ends, with the records proved."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.clients.kafka import Cluster
from headrace.writer.core.errors import HeadraceError
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def headrace(*words: object, code: int = 0) -> str:
    """Run the command in this process, as into a pipe of 100 columns. Returns what it printed, or its error."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    error = result.exception
    assert (error.exit_code if isinstance(error, HeadraceError) else result.exit_code) == code, result.output
    return str(error) if isinstance(error, HeadraceError) else result.stdout


def copied(site: Site, topic: str) -> list[tuple[int, bytes, bytes, int]]:
    """Partition, key, value and timestamp of all records, in the order of their offsets."""
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": "copy"})
    ends = {source: end for source, end in site.ends(topic).items() if end}
    consumer.assign([TopicPartition(*source, 0) for source in ends])
    records = []
    count = sum(ends.values())
    while len(records) < count:
        records += consumer.consume(count - len(records), timeout=1)
    consumer.close()
    return [(m.partition(), m.key(), m.value(), m.timestamp()[1]) for m in records]


def pour(site: Site, topic: str, records: list[tuple[int, bytes, bytes, int]], *, skip: int = 0) -> None:
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for partition, key, value, stamp in records[skip:]:
        producer.produce(topic, value, key, partition, timestamp=stamp)
    assert producer.flush(30) == 0


def test_a_copy_under_the_same_name_goes_on_as_the_same_incarnation(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], on_topic_recreated="stop")
    site.fill(name, 500, broken=2)
    site.once()
    assert "nothing to adopt" in headrace("topic", "adopt", site.config)
    records = copied(site, name)
    site.again(name, 2)
    pour(site, name, records)
    site.fill(name, 100, seed=8)
    assert "headrace topic adopt" in site.once(code=2)
    before = oracle.replay(lake)
    shown = headrace("topic", "adopt", site.config)
    assert "2 partitions compared: the same records" in " ".join(shown.split())
    assert oracle.replay(lake) == before, "it was only shown"
    document = json.loads(headrace("topic", "adopt", site.config, "--yes", "--json"))
    assert [(t["from"]["incarnation"], t["to"]["incarnation"], t["offsets"]) for t in document["topics"]] == [
        (1, 1, "kept")
    ]
    assert all(partition["same_records"] for partition in document["partitions"])
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "DISTINCT _incarnation") == [(1,)]
    assert "nothing to adopt" in headrace("topic", "adopt", site.config)


def test_other_records_at_the_same_offsets_are_refused(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.pipeline("events", [name])
    site.fill(name, 200)
    site.once()
    records = copied(site, name)
    site.again(name)
    pour(site, name, [(p, k, v, stamp + 5_000) for p, k, v, stamp in records])
    assert "have other timestamps than the table's rows" in headrace("topic", "adopt", site.config, "--yes", code=2)


def test_a_copy_under_another_name_goes_on_there(site: Site, topic: MakeTopic) -> None:
    old, new = topic(2), topic(2, prefix="west")
    lake = site.pipeline("events", [old])
    site.fill(old, 500)
    site.once()
    ends = site.ends(old)
    pour(site, new, copied(site, old))
    site.pipelines["events"]["topics"] = [new]
    _copy_subject(site, old, new)
    headrace("topic", "adopt", site.config, "--map", f"{old}={new}", "--yes")
    site.fill(new, 100, seed=8)
    site.once()
    total = [(600, 600)]
    assert oracle.rows(lake, "count(*), count(DISTINCT (_partition, _offset))") == total
    for (_, partition), end in ends.items():
        result_rows = oracle.rows(lake, "min(_offset)", f"WHERE _topic = '{new}' AND _partition = {partition}")
        assert result_rows == [(end,)]


def test_a_copy_with_other_offsets_goes_on_where_a_group_says(site: Site, topic: MakeTopic) -> None:
    name, group = topic(1), f"moved-{uuid4().hex[:8]}"
    lake = site.pipeline("events", [name])
    site.fill(name, 300)
    site.once()
    records = copied(site, name)
    site.again(name)
    pour(site, name, records, skip=100)  # the copy began later: 300 is 200 now
    assert "ends at 200, the table at 300" in headrace("topic", "adopt", site.config, code=2)
    Cluster(site.bootstrap, timedelta(seconds=10)).mirror(group, {(name, 0): 190})
    site.fill(name, 50, seed=8)
    headrace("topic", "adopt", site.config, "--offsets-of", group, "--yes")
    site.once()
    assert oracle.rows(lake, "_incarnation, count(*), min(_offset)", "GROUP BY ALL ORDER BY 1") == [
        (1, 300, 0), (2, 60, 190),
    ]  # fmt: skip


def test_a_driver_that_runs_is_in_the_way(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.pipeline("events", [name])
    site.fill(name, 100)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    output = headrace("topic", "adopt", site.config, "--offsets", f"{name}:0=100", "--yes", code=1)
    assert "a driver of pipeline 'events' runs" in output
    writer.stop()


def _copy_subject(site: Site, old: str, new: str) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        registry.register_schema(f"{new}-value", registry.get_latest_version(f"{old}-value").schema)


def test_a_mistyped_option_is_named(tmp_path: Path, site: Site) -> None:
    site.pipeline("events", ["clicks"])
    assert "write --offsets topic:partition=offset" in headrace("topic", "adopt", site.config, "--offsets", "x", code=2)
    assert "write --map old=new" in headrace("topic", "adopt", site.config, "--map", "x", code=2)
    assert not list(tmp_path.glob("lake/*"))
