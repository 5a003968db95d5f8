"""A real run keeps what Kafka has, whichever reader brings it: bytes, headers, timestamps and their types."""

import json
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import oracle
from tests.support.writer_process import NOW, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_each_record_is_kept_as_kafka_has_it(site: Site, topic: MakeTopic, reader: str) -> None:
    site.reader = reader
    created, appended = topic(2), f"{topic(1)}-appended"
    new = NewTopic(appended, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.create_topics([new])[appended].result(timeout=60)
    lake = site.pipeline("events", [created, appended], raw=True)
    for name in (created, appended):
        site.fill(name, 200, broken=2)
        _odd(site, name)
    site.once()
    ends = site.ends(created, appended)
    assert oracle.frontier_of(lake, "events") == ends
    expected = {(name, p): _messages(site, name, p, end) for (name, p), end in ends.items()}
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    columns = "_topic, _partition, key, value, headers, epoch_ms(_kafka_time), timestamp_type"
    for name, partition, *rest in oracle.rows(lake.with_name("events_raw"), columns, "ORDER BY _offset"):
        key, value, headers, *time = rest
        beside = [(h["key"], h["value"]) for h in headers or ()]  # type: ignore[attr-defined]
        found.setdefault((str(name), int(str(partition))), []).append((key, value, beside, *time))
    assert found == expected
    said = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "audit", str(site.config), "--deep", "--json"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    audited = json.loads(said.stdout)["pipelines"]["events"]
    assert (audited["adds_up"], audited["raw_records"]) == (True, sum(ends.values())), audited["problems"]


def _odd(site: Site, name: str) -> None:
    """Send tombstones, records that no schema fits, keys that are no text, and headers of all sorts."""
    chance, producer = random.Random(name), Producer({"bootstrap.servers": site.bootstrap})
    for at in range(60):
        value = None if at % 5 == 0 else chance.randbytes(at)
        headers = [("a", b"1"), ("é", None), ("a", b"\xff\0")][: at % 4]
        key = None if at % 3 else chance.randbytes(9)
        producer.produce(name, value, key, headers=headers, timestamp=NOW_MS - at * 7_000_000, partition=0)
    assert producer.flush(30) == 0


def _messages(site: Site, name: str, partition: int, end: int) -> list[tuple[object, ...]]:
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": "raw"})
    consumer.assign([TopicPartition(name, partition, 0)])
    found: list[tuple[object, ...]] = []
    while len(found) < end:
        for message in consumer.consume(end - len(found), 5):
            kind, when = message.timestamp()
            found.append((message.key(), message.value(), list(message.headers() or ()), when, kind - 1))
    consumer.close()
    return found
