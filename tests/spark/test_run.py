"""`headrace run` on a real broker, registry, Spark and table."""

import json
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import encoder
from tests.support import oracle
from tests.support.table_formats import delta_table
from tests.support.writer_process import QUICK_START, READER, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def test_once_carries_every_record_and_a_second_time_adds_nothing(site: Site, topic: MakeTopic) -> None:
    clicks, installs = topic(3, prefix="clicks"), topic(2, prefix="installs")
    columns = {"key": "string", "headers": "_headers", "header_columns": {"trace": "trace-id"}}
    lake = site.pipeline("events", [clicks, installs], columns=columns)
    site.fill(clicks, 20_000, broken=12)
    site.fill(installs, 5_000, kind="installs", broken=5)
    options = {"client.rack": "rack-a", "max.partition.fetch.bytes": 300_000}
    site.overrides["kafka"] = {"bootstrap_servers": site.bootstrap, "reader": "spark", "options": options}
    conf = {"spark.driver.extraJavaOptions": QUICK_START, "spark.log.level": "INFO"}
    site.overrides["spark"] = {"conf": conf}
    output = site.once()
    assert {"client.rack = rack-a", "max.partition.fetch.bytes = 300000"} <= {
        line.strip() for line in output.splitlines()
    }
    del site.overrides["spark"]
    oracle.check(lake, "events", site.ends(clicks, installs))
    before = oracle.replay(lake)
    output = site.once()
    after = oracle.replay(lake)
    assert before.files == after.files
    assert "run_started" not in output, "an agreeing checkpoint is continued"
    (dead,) = oracle.rows(lake.with_name("events_dead_letters"), "count(*), count(error), count(value), count(headers)")
    assert dead == (17, 17, 17, 17)
    (beside,) = oracle.rows(lake, "count(_key), count(_headers['source']), count(trace), count(DISTINCT trace)")
    assert beside == (25_000, 25_000, 25_000, 20_000)
    ((nested,),) = oracle.rows(lake, "count(attribution.network)")
    assert nested > 0


def test_a_partition_with_few_records_costs_no_wait_of_its_own(site: Site, topic: MakeTopic) -> None:
    partitions = 110
    name = topic(partitions, prefix="sparse")
    lake = site.pipeline("events", [name], columns={"key": "avro"})
    site.overrides["spark"] = {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": QUICK_START}}
    values = site.values(name, partitions * 4)
    user = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "string"}]}
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        encoded = encoder(user, registry.register_schema(f"{name}-key", Schema(json.dumps(user), "AVRO")))
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for index, (key, value) in enumerate(values):
        producer.produce(name, value, encoded({"id": key.decode()}), partition=index % partitions)
    assert producer.flush(30) == 0
    output = site.once()
    assert "keys have a Confluent header" in output
    oracle.check(lake, "events", site.ends(name))
    keys = Counter(found for (found,) in oracle.rows(lake, "_key.id"))
    assert keys == Counter(key.decode() for key, _ in values), "each key is decoded by its own schema"
    (facts,) = [one.facts for one in delta_table(str(lake), "events").commits_since(-1)]
    by_spark = READER == "spark"
    assert facts["tasks"] == 1 + by_spark, "of Spark's, one would walk all the partitions while the other slot is idle"
    # A fetch that waits for more records, half a second of each partition, would make it 55 s in one task.
    assert facts["phases"]["tasks"] < 25, facts["phases"]


def test_records_are_committed_by_timeout_and_sigterm_drains(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline(
        "events", [name], commit={"max_delay": "3 s", "min_offsets": 1_000_000, "max_offsets": 1_000_000}
    )
    site.fill(name, 3_000)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    site.fill(name, 500, seed=8)
    ends = site.ends(name)
    writer.until(lambda: oracle.frontier_of(lake, "events") == ends)
    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0
    oracle.check(lake, "events", ends)


def test_records_are_committed_by_count_before_the_timeout(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 h", "min_offsets": 2_000})
    site.fill(name, 100)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)  # the first batch does not wait
    site.fill(name, 2_500, seed=8)
    writer.until(lambda: writer.commits() == 2)
    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0
    frontier = oracle.check(lake, "events")
    assert sum(frontier.values()) >= 2_100  # what came after the count was reached waits for its hour


def test_one_pipeline_fails_alone(site: Site, topic: MakeTopic) -> None:
    good, bad = topic(1), topic(1)
    lake = site.pipeline("good", [good])
    site.pipeline("bad", [bad], event_time={"field": "evnt_time"})
    site.fill(good, 2_000)
    site.fill(bad, 100)
    output = site.once(code=2)
    assert "did you mean 'event_time'" in output
    oracle.check(lake, "good", site.ends(good))


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_schema_registered_while_it_runs_is_in_the_first_batch_that_carries_it(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "2 s"})
    site.fill(name, 1_000, kind="clicks")
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    assert not oracle.rows(lake, "*", "LIMIT 0") or "attribution" not in _columns(lake)
    # Its own subject, so that the registry's compatibility rule does not stand in the way of quite another schema.
    other = topic(1, prefix="installs")
    site.fill(other, 10, kind="installs")
    _copy(site, other, name)
    writer.until(lambda: writer.committed_records() == 1_010)
    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0
    assert "attribution" in _columns(lake)
    ((with_tags,),) = oracle.rows(lake, "count(*)", "WHERE tags IS NOT NULL")
    assert with_tags == 10
    ends = oracle.check(lake, "events", site.ends(name))
    if form == "iceberg":  # as the catalog's clients find it
        seen = oracle.scan(lake, "_kafka_partition", "_offset", "tags", "attribution", "hour")
        assert len({*zip(seen["_kafka_partition"], seen["_offset"], strict=True)}) == sum(ends.values())
        assert [sum(one is not None for one in seen[column]) for column in ("tags", "hour")] == [10, 1_010]


def test_an_unknown_schema_id_is_a_dead_letter_after_the_grace(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 100)
    producer = Producer({"bootstrap.servers": site.bootstrap})
    producer.produce(name, struct.pack(">bI", 0, 987_654) + b"whatever")
    producer.flush()
    output = site.once()
    assert "schema_unknown" in output
    found = oracle.rows(lake.with_name("events_dead_letters"), "schema_id, error")
    assert found == [(987_654, "schema id 987654 is unknown to the registry")]
    oracle.check(lake, "events", site.ends(name))


def test_initial_positions(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.fill(name, 100)
    latest = site.pipeline("latest", [name], start="latest")
    given = site.pipeline("given", [name], start={"offsets": {name: {0: 40}}})
    past = site.pipeline("past", [name], start={"timestamp": "2020-01-01T00:00:00Z"})
    site.once()
    site.fill(name, 5, seed=9)
    site.once()
    assert oracle.offsets(latest) == {(name, 0): list(range(100, 105))}
    assert oracle.offsets(given) == {(name, 0): list(range(40, 105))}
    assert oracle.offsets(past) == {(name, 0): list(range(105))}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (
            {"kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "3 s"}},
            1,
            "no Kafka broker answers at 127.0.0.1:1",
        ),
        ({"kafka": {"bootstrap_server": "x"}}, 2, "did you mean 'bootstrap_servers'"),
        ({"registry": {"url": "http://127.0.0.1:1"}}, 1, "schema registry at http://127.0.0.1:1 does not answer"),
    ],
)
def test_a_start_that_fails_prints_one_sentence(
    site: Site, topic: MakeTopic, change: dict[str, object], code: int, words: str
) -> None:
    site.pipeline("events", [topic(1)])
    site.overrides = change
    output = site.once(code=code)
    assert words in output
    assert not (site.root / "lake").exists(), "nothing half-written"
    without_spark(output)


def without_spark(said: str) -> None:
    """Assert that a start found what was wrong before Spark, and that nothing comes after the plain sentence."""
    assert "spark_starting" not in said
    _, sentence, last = f"\n{said}".rpartition("\nheadrace: ")
    assert sentence
    assert "pipeline=" not in last


def test_an_event_time_field_that_is_none_is_found_without_spark(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.fill(name, 10)
    site.pipeline("events", [name], event_time={"field": "evnt_time"})
    output = site.once(code=2)
    assert "did you mean 'event_time'" in output
    assert "ERROR pipeline_failed pipeline=events exit_code=2" in output
    without_spark(output)


def test_an_unknown_topic_is_named_with_its_neighbour(site: Site, topic: MakeTopic) -> None:
    name = topic(1, prefix="clicks")
    site.pipeline("events", [name[:-1]])
    output = site.once(code=2)
    assert f"topic '{name[:-1]}' does not exist" in output
    assert f"did you mean '{name}'" in output
    without_spark(output)


def test_a_table_inside_another_is_refused_before_anything_is_made(site: Site, topic: MakeTopic) -> None:
    lake = site.root / "lake"
    site.pipeline("events", [topic(1)], table={"location": str(lake), "dead_letters": f"{lake}/dead_letters"})
    site.pipeline("others", [topic(1)], table={"location": f"{lake}/others"})
    output = site.once(code=2)
    assert f"the dead-letter table of pipeline 'events' at {lake}/dead_letters is inside the table of" in output
    assert (
        f"the table of pipeline 'others' at {lake}/others is inside the table of pipeline 'events' at {lake}" in output
    )
    assert not lake.exists()
    assert not (site.root / "checkpoints").exists()
    without_spark(output)


def test_a_lake_that_cannot_be_written_stops_with_the_place(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.fill(name, 10)
    site.pipeline("events", [name], table={"location": "/proc/headrace/events"})
    output = site.once(code=2)
    assert "/proc/headrace/events cannot be used: cannot write /proc/headrace/events/" in output
    without_spark(output)


def _columns(lake: Path) -> set[str]:
    return {str(column) for (column, *_) in oracle.describe(lake)}


def _copy(site: Site, source: str, target: str) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": site.bootstrap, "group.id": f"copy-{target}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([source])
    producer = Producer({"bootstrap.servers": site.bootstrap})
    copied = 0
    while copied < 10:
        message = consumer.poll(10)
        assert message is not None
        producer.produce(target, message.value())
        copied += 1
    producer.flush()
    consumer.close()
