"""The account of a real run: Spark's count, holes of a real broker, poison, and the verbs that prove and fix it."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.writer.clients.next_records import next_records
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def say(*words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "headrace.writer.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def audited(site: Site, code: int = 0) -> dict:
    return dict(json.loads(say("audit", str(site.config), "--deep", "--json", code=code))["pipelines"]["events"])


def transactions(site: Site, topic: str, values: list[bytes], *, each: int, abort_every: int) -> int:
    """Produce values in transactions of `each`; each `abort_every`-th is aborted. Returns how many were committed."""
    producer = Producer({"bootstrap.servers": site.bootstrap} | {"transactional.id": f"t-{topic}"})
    producer.init_transactions(10)
    committed = 0
    for number, at in enumerate(range(0, len(values), each)):
        producer.begin_transaction()
        for value in values[at : at + each]:
            producer.produce(topic, value, partition=0)
        producer.flush()
        if number % abort_every == abort_every - 1:
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)
            committed += len(values[at : at + each])
    return committed


def test_missing_offsets_of_transactions_are_looked_up_and_no_loss(site: Site, topic: MakeTopic) -> None:
    name, other = topic(1), topic(1)
    site.fill(other, 50)
    values = _values(site, other)
    committed = transactions(site, name, values, each=5, abort_every=1000)
    committed += site.fill(name, 30, broken=2)
    lake = site.pipeline("events", [name])
    site.once()
    found = audited(site)
    (part,) = found["topic_partitions"]
    assert (part["read"], part["offsets_without_records"]) == (committed, 10)
    assert found["adds_up"]
    (account,) = [a for c in oracle.replay(lake).commits if c["kind"] == "batch" for a in c["ranges"]]
    assert account["without_records"]["spans"] == [[at, at + 1] for at in range(5, 60, 6)]
    assert account["without_records"]["reason"] == "the log holds no record there"
    end = site.ends(name)[name, 0]
    questions = [((name, 0), (5, 6)), ((name, 0), (3, 5)), ((name, 0), (end, end + 5))]
    answers = next_records(ClusterAddress(addresses(site.bootstrap)), timedelta(seconds=10), questions)
    assert list(answers.values()) == [None, 3, None]


def _values(site: Site, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": "values"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    end = site.ends(topic)[topic, 0]
    while len(found) < end:
        found += [m.value() for m in consumer.consume(end - len(found), 5)]
    consumer.close()
    return found


def test_a_topic_of_broken_records_stops_with_exit_5_and_commits_nothing(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], limits={"max_failed_ratio": 0.2, "min_failed_records": 50})
    site.fill(name, 100)
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for _ in range(60):
        producer.produce(name, b"{}")
    producer.flush()
    output = site.once(code=5)
    assert "60 of 160 records of a batch (37.5%) cannot become rows" in output
    assert f"60 such as {name}/0 at offset 100 (no Confluent header" in output
    assert oracle.rows(lake, "*") == []
    site.pipeline("events", [name], limits={"max_failed_ratio": 1})
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert audited(site)["records"]["dead_letters"] == 60


def test_dead_letters_of_a_schema_that_came_late_are_replayed_beside_the_writer(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    site.fill(name, 200, broken=3)
    late = {"type": "record", "name": "Late", "fields": [
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "late", "type": "string"},
    ]}  # fmt: skip
    file = site.root / "late.avsc"
    file.write_text(json.dumps(late))
    producer = Producer({"bootstrap.servers": site.bootstrap})
    value = struct.pack(">bI", 0, 4_711) + b"\x80\xa0\xfd\xd6\xca\x66" + b"\x04ab"
    producer.produce(name, value)
    producer.flush()
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    assert audited(site)["records"]["dead_letters"] == 4
    site.overrides = {"registry": {"files": {4_711: str(file)}}}
    repaired = json.loads(say("dlq", "replay", str(site.config), "--schema-id", "4711", "--yes", "--json"))
    assert (repaired["chosen"], repaired["rows"]) == (1, 1)
    site.overrides = {}
    site.fill(name, 100, seed=8)
    writer.until(lambda: writer.commits() >= 2)
    writer.process.terminate()
    assert writer.wait(120) == 0
    oracle.check(lake, "events", site.ends(name))
    found = audited(site)
    assert (found["adds_up"], found["rows_moved"], found["records"]["dead_letters"]) == (True, 1, 3)
    assert oracle.rows(lake, "late", "WHERE late IS NOT NULL") == [("ab",)]
