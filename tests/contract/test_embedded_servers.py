"""The servers of the demo and the tests are real, and leave nothing behind."""

import io
import json
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from fastavro import parse_schema, schemaless_reader

from headrace.writer.demo.devstack import events
from headrace.writer.demo.devstack.process import Process, free_ports, is_listening
from headrace.writer.demo.devstack.stack import Broker, Registry, ServerFailed
from headrace.writer.demo.devstack.value_encoding import AvroEncoding

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 20, 6, 30, tzinfo=UTC)


def read(bootstrap, topic, partitions=1):
    """Return every message of a topic, in order within each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        want = sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in range(partitions))
        messages = []
        deadline = time.monotonic() + 60
        while len(messages) < want and time.monotonic() < deadline:
            messages += consumer.consume(min(10_000, want - len(messages)), timeout=1)
        assert [m.error() for m in messages if m.error()] == []
        assert len(messages) == want
        return messages
    finally:
        consumer.close()


def write(bootstrap, topic, *values):
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def gone_within(pid, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def using(directory):
    """Return the processes whose command line names this directory."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(p.info["cmdline"] or [])]


# The broker


def test_records_are_consumed_in_the_order_in_which_they_were_produced(bootstrap, topic):
    name = topic()
    write(bootstrap, name, *(b"%d" % i for i in range(1000)))
    assert [m.value() for m in read(bootstrap, name)] == [b"%d" % i for i in range(1000)]


def test_a_topic_created_again_has_another_id(bootstrap, topic):
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic_id(name, other_than=""):
        """The broker answers a moment before it knows of what it has just done."""
        deadline = time.monotonic() + 60
        while True:
            with suppress(KafkaException):
                found = str(admin.describe_topics(TopicCollection([name]))[name].result(timeout=60).topic_id)
                if found != other_than:
                    return found
            assert time.monotonic() < deadline, f"{name} has no other id than {other_than!r}"
            time.sleep(0.05)

    name = topic(partitions=2)
    first = topic_id(name)
    assert topic_id(name) == first
    admin.delete_topics([name])[name].result(timeout=60)
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result(timeout=60)
    assert topic_id(name, other_than=first) != first


def test_a_restart_keeps_port_data_and_cluster(tmp_path):
    with Broker(tmp_path, auto_create=True) as broker:
        write(broker.bootstrap, "kept", b"before")
        cluster = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).cluster_id
        address, pid = broker.bootstrap, broker.pid
        broker.stop()
        broker.start()
        assert broker.bootstrap == address
        assert broker.pid != pid
        assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).cluster_id == cluster
        write(address, "kept", b"after")
        assert [m.value() for m in read(address, "kept")] == [b"before", b"after"]


def test_a_directory_opened_by_a_second_broker_still_holds_its_data(tmp_path):
    with Broker(tmp_path, auto_create=True) as broker:
        write(broker.bootstrap, "kept", b"value")
    with Broker(tmp_path) as broker:
        assert [m.value() for m in read(broker.bootstrap, "kept")] == [b"value"]


def test_stop_leaves_no_process_and_may_be_called_twice(tmp_path):
    broker, registry = Broker(tmp_path / "kafka"), Registry(tmp_path / "registry")
    broker.start()
    registry.start()
    assert len(using(tmp_path)) == 2
    for server in (broker, registry, broker, registry):
        server.stop()
    assert using(tmp_path) == []
    assert not is_listening(broker.port)
    assert not is_listening(registry.port)


def test_a_parent_killed_with_minus_9_leaves_no_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from headrace.writer.demo.devstack.stack import Broker\n"
        "broker = Broker(Path(sys.argv[1])); broker.start(); print(broker.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    assert gone_within(pid)
    assert [p for p in using(tmp_path) if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_setting_the_broker_refuses_is_one_sentence(tmp_path):
    with pytest.raises(
        ServerFailed, match=r"^kafka cannot format .*Invalid value none for configuration num\.io\.threads.*$"
    ):
        Broker(tmp_path, overrides={"num.io.threads": "none"}).start()
    assert using(tmp_path) == []


def test_a_broker_that_ends_early_shows_the_end_of_its_log(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=77\ncluster.id=of-another-broker\n")
    with pytest.raises(
        ServerFailed, match=r"(?s)kafka exited with code 1 before it answered\. The end of .*kafka\.log:.*node.id"
    ):
        Broker(tmp_path).start()
    assert using(tmp_path) == []


def test_a_taken_port_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServerFailed, match="the port is taken"):
        Broker(tmp_path, port=taken.getsockname()[1]).start()


# The registry


def schema(**fields):
    return Schema(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": n, **field} for n, field in fields.items()]}),
        "AVRO",
    )


def test_a_registered_schema_is_found_by_id_and_registered_once(registry_url):
    with SchemaRegistryClient({"url": registry_url}) as client:
        first = client.register_schema("found-value", schema(a={"type": "string"}))
        assert client.register_schema("found-value", schema(a={"type": "string"})) == first
    with SchemaRegistryClient({"url": registry_url}) as client:
        assert json.loads(client.get_schema(first).schema_str)["fields"] == [{"name": "a", "type": "string"}]
        assert client.get_latest_version("found-value").schema_id == first


def test_a_registry_that_starts_again_knows_its_schemas_by_their_ids_and_an_empty_one_does_not(tmp_path):
    registry, schema = Registry(tmp_path / "kept"), Schema('"string"', "AVRO")
    with registry, SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("first-value", Schema('"long"', "AVRO"))
        number = client.register_schema("kept-value", schema)
    with registry, SchemaRegistryClient({"url": registry.url}) as client:
        assert client.get_schema(number).schema_str == '"string"'
    with Registry(tmp_path / "empty", port=registry.port) as empty, SchemaRegistryClient({"url": empty.url}) as client:
        assert client.get_subjects() == []


def test_an_unknown_id_is_404(registry_url):
    with SchemaRegistryClient({"url": registry_url}) as client, pytest.raises(SchemaRegistryError) as caught:
        client.get_schema(987_654)
    assert (caught.value.http_status_code, caught.value.error_code) == (404, 40403)


def test_an_incompatible_schema_is_409_and_a_compatible_one_is_not(registry_url):
    with SchemaRegistryClient({"url": registry_url}) as client:
        client.register_schema("evolving-value", schema(a={"type": "string"}))
        client.register_schema("evolving-value", schema(a={"type": "string"}, b={"type": "int", "default": 0}))
        with pytest.raises(SchemaRegistryError) as caught:
            client.register_schema("evolving-value", schema(a={"type": "string"}, c={"type": "int"}))
    assert caught.value.http_status_code == 409


# Processes


def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    child = Process("deaf", [sys.executable, "-c", code], cwd=tmp_path, log=tmp_path / "log")
    child.launch()
    child.wait_until(lambda: "up" in (tmp_path / "log").read_text(), within=timedelta(seconds=60))
    pid = child.pid
    child.stop(grace=timedelta(milliseconds=200))
    assert not psutil.pid_exists(pid)


def test_a_child_that_never_answers_is_named_with_its_log(tmp_path):
    child = Process("mute", ["sleep", "600"], cwd=tmp_path, log=tmp_path / "log")
    child.launch()
    with pytest.raises(ServerFailed, match=r"(?s)mute did not answer within 0\.2 s.*log.*empty"):
        child.wait_until(lambda: False, within=timedelta(milliseconds=200))
    child.stop()


def test_stop_ends_the_grandchildren_too(tmp_path):
    child = Process("family", ["sh", "-c", "sleep 600 & echo $!; wait"], cwd=tmp_path, log=tmp_path / "log")
    child.launch()
    child.wait_until(lambda: (tmp_path / "log").read_text().endswith("\n"), within=timedelta(seconds=60))
    grandchild = int((tmp_path / "log").read_text())
    child.stop()
    assert gone_within(grandchild)


def test_a_program_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ServerFailed, match="ghost cannot be executed"):
        Process("ghost", [tmp_path / "ghost"], cwd=tmp_path, log=tmp_path / "log").launch()


def test_free_ports_differ_and_are_not_ephemeral():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32_768


# The demo's events


@pytest.mark.parametrize("kind", ["clicks", "installs"])
def test_events_are_the_same_for_the_same_seed_and_read_back_equal(kind):
    messages = list(events.generate(kind, 3000, now=NOW, hours=3, seed=1))
    assert messages == list(events.generate(kind, 3000, now=NOW, hours=3, seed=1))
    assert messages != list(events.generate(kind, 3000, now=NOW, hours=3, seed=2))
    encode, parsed = events.encoder(events.SCHEMAS[kind], 9), parse_schema(events.SCHEMAS[kind])
    for key, record in messages:
        value = encode(record)
        assert struct.unpack(">bI", value[:5]) == (0, 9)
        assert schemaless_reader(io.BytesIO(value[5:]), parsed, parsed) == record
        assert key == record["user_id"].encode()


@pytest.mark.parametrize("kind", ["clicks", "installs"])
def test_events_have_distinct_ids_and_fill_every_hour_up_to_now(kind):
    records = [record for _, record in events.generate(kind, 50_000, now=NOW, hours=4)]
    assert len({r["event_id"] for r in records}) == 50_000
    assert all(NOW - timedelta(hours=4) <= r["event_time"] <= NOW for r in records)
    hours = Counter(r["event_time"].hour for r in records)
    assert sorted(hours) == [2, 3, 4, 5, 6]
    assert min(hours.values()) > 5000


def test_an_event_is_made_in_less_than_200_microseconds():
    encode = events.encoder(events.SCHEMAS["clicks"], 1)
    begin = time.process_time()
    for _, record in events.generate("clicks", 20_000, now=NOW):
        encode(record)
    assert time.process_time() - begin < 20_000 * 200e-6


def test_a_naive_now_is_refused():
    with pytest.raises(ValueError, match="aware"):
        next(events.generate("clicks", 1, now=datetime(2026, 11, 20)))  # noqa: DTZ001


@pytest.mark.parametrize("kind", ["clicks", "installs"])
def test_produced_counts_are_what_the_partitions_hold(kind, bootstrap, registry_url, topic):
    name = topic(partitions=3, prefix=kind)
    produced = events.produce(bootstrap, AvroEncoding(registry_url), name, 5000, now=NOW, kind=kind, broken=31)
    messages = read(bootstrap, name, partitions=3)
    assert Counter(m.partition() for m in messages) == produced.per_partition
    assert sum(produced.good.values()) == 5000
    assert sum(produced.broken.values()) == 31
    with SchemaRegistryClient({"url": registry_url}) as client:
        registered = client.get_latest_version(f"{name}-value")
    parsed = parse_schema(json.loads(registered.schema.schema_str))
    header = struct.pack(">bI", 0, registered.schema_id)

    def decodable(value):
        body = io.BytesIO(value[5:])
        try:
            schemaless_reader(body, parsed, parsed)
        except (EOFError, ValueError, IndexError):
            return False
        return value[:5] == header and body.read() == b""

    broken = Counter(m.partition() for m in messages if not decodable(m.value()))
    assert broken == produced.broken


def test_a_failed_delivery_raises_and_creates_no_topic(bootstrap, registry_url):
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        events.produce(bootstrap, AvroEncoding(registry_url), "never-created", 10, now=NOW, kind="clicks")
    assert "never-created" not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
