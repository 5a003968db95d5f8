"""Looking at a real broker and registry: what is read is what was written, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import Cluster
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate
from tests.support.read_commands import headrace, write
from tests.support.writer_process import NOW

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka(bootstrap):
    return Kafka.model_validate({"bootstrap_servers": bootstrap, "request_timeout": "10 s"})


@pytest.fixture
def cluster(bootstrap):
    return Cluster(bootstrap, timedelta(seconds=10))


def documents(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_sample_is_what_was_written_in_the_shape_of_a_task(bootstrap, topic, kafka, cluster):
    name = topic(3)
    start = int(NOW.timestamp() * 1000)
    written = [(n % 3, f"k{n}".encode(), None if n % 7 == 0 else b"v%d" % n, start + n) for n in range(300)]
    write(bootstrap, name, written)
    batch = kafka_sample.read(kafka, kafka_sample.spans(cluster, [name], 1000, "earliest"))
    assert batch.schema == RECORDS
    expected = sorted((p, n // 3, k, v, timestamp_ms) for n, (p, k, v, timestamp_ms) in enumerate(written))
    columns = [batch.column(column).to_pylist() for column in RECORDS.names]
    came = [datetime.fromtimestamp(timestamp_ms / 1000, UTC) for *_, timestamp_ms in expected]
    assert columns == [
        [name] * 300, [row[0] for row in expected], [row[1] for row in expected], came,
        [row[2] for row in expected], [row[3] for row in expected], [None] * 300,
    ]  # fmt: skip


def test_the_newest_the_first_and_those_from_a_time_on(bootstrap, topic, kafka, cluster):
    name = topic(2)
    start = int(NOW.timestamp() * 1000)
    write(bootstrap, name, [(n % 2, None, b"v", start + 1000 * n) for n in range(100)])

    def offsets(count, position):
        return Counter(
            kafka_sample.read(kafka, kafka_sample.spans(cluster, [name], count, position)).column("offset").to_pylist()
        )

    assert offsets(10, "latest") == Counter(dict.fromkeys(range(45, 50), 2))
    assert offsets(10, "earliest") == Counter(dict.fromkeys(range(5), 2))
    assert offsets(4, NOW + timedelta(seconds=50)) == Counter({25: 2, 26: 2})
    assert offsets(10, NOW + timedelta(days=1)) == Counter()


def test_offsets_without_a_record_are_passed_over(bootstrap, topic, kafka, cluster):
    name = topic(1)
    for key in ("a", "b"):
        producer = write(bootstrap, name, [(0, None, key.encode(), 0)] * 5, **{"transactional.id": f"{name}-{key}"})
        (producer.commit_transaction if key == "a" else producer.abort_transaction)(10)
    began = time.monotonic()
    while cluster.latest([(name, 0)])[name, 0] < 12:  # ten records and two marks, the second of which comes by itself
        assert time.monotonic() < began + 60
        time.sleep(0.05)
    spans = kafka_sample.spans(cluster, [name], 100)
    assert spans == {(name, 0): (0, 12)}
    began = time.monotonic()
    patient = kafka.model_copy(update={"request_timeout": timedelta(seconds=60)})
    values = kafka_sample.read(patient, spans).column("value").to_pylist()
    assert values == [b"a"] * 5  # what was aborted never appears, as in the table
    assert time.monotonic() - began < 20


def test_a_look_joins_no_group_and_commits_no_offset(bootstrap, topic, kafka, cluster):
    name = topic(1)
    write(bootstrap, name, [(0, None, b"v", 0)] * 10)
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def groups():
        return {group.group_id for group in admin.list_consumer_groups().result(60).valid}

    before = groups()
    assert kafka_sample.read(kafka, kafka_sample.spans(cluster, [name], 10)).num_rows == 10
    assert groups() <= before


def test_a_tail_goes_on_with_what_comes(bootstrap, topic, kafka):
    name = topic(2)
    write(bootstrap, name, [(n % 2, None, b"old", 0) for n in range(10)])
    tail = kafka_sample.follow(kafka, {(name, 0): 3, (name, 1): 5})
    seen = next(tail)
    assert seen.column("offset").to_pylist() == [3, 4]
    write(bootstrap, name, [(0, None, b"new", 0), (1, None, b"new", 0)])
    later = []
    while len(later) < 2:
        later += next(tail).column("value").to_pylist()
    assert later == [b"new", b"new"]
    tail.close()


def test_a_broker_that_goes_silent_is_a_sentence(cluster, topic, bootstrap):
    name = topic(1)
    write(bootstrap, name, [(0, None, b"v", 0)])
    spans = kafka_sample.spans(cluster, [name], 1)
    nobody = Kafka.model_validate({"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"})
    with pytest.raises(HeadraceError, match=r"no Kafka broker answers at 127.0.0.1:1 within 1 s"):
        kafka_sample.read(nobody, spans)


def test_a_sample_that_takes_too_much_memory_is_refused(bootstrap, topic, kafka, cluster, monkeypatch):
    name = topic(1)
    write(bootstrap, name, [(0, None, b"v" * 1000, 0), (0, b"k", None, 0)] * 10)
    monkeypatch.setattr(kafka_sample, "_BYTES_MAX", 5_000)
    with pytest.raises(kafka_sample.TooLarge, match=r"\d+ records are over 4.9 KiB already; ask for fewer"):
        kafka_sample.read(kafka, kafka_sample.spans(cluster, [name], 20))


def test_the_cluster_says_how_it_lets_go_of_records(cluster, topic):
    kept, compacted = topic(1), topic(1, **{"cleanup.policy": "compact,delete"})
    assert cluster.cleanup([kept, compacted]) == {kept: "delete", compacted: "compact,delete"}
    assert cluster.brokers() == 1


@pytest.fixture
def clicks(site, topic):
    """A site with one pipeline and 500 events, 9 of them broken."""
    name = topic(2, prefix="clicks")
    site.pipeline("clicks", [name])
    site.fill(name, 491, broken=9)
    return name


@pytest.mark.usefixtures("clicks")
def test_preview_shows_the_rows_that_were_produced(site):
    shown = documents(headrace("preview", site.config, "-n", 500, "--json"))
    assert Counter(record["outcome"] for record in shown) == {"row": 491, "dead_letter": 9}
    produced = {record["event_id"]: record for _, record in generate("clicks", 491, now=NOW, seed=7)}
    rows = {record["row"]["event_id"]: record["row"] for record in shown if record["outcome"] == "row"}
    assert rows.keys() == produced.keys()
    for event_id, row in rows.items():
        expected = {**produced[event_id], "event_time": produced[event_id]["event_time"].isoformat()}
        assert datetime.fromisoformat(row.pop("event_time")) == datetime.fromisoformat(expected.pop("event_time"))
        assert row == expected


@pytest.mark.parametrize("at", ["raw", "decoded", "assigned", "staged"])
def test_each_room_is_readable_at_100_columns_and_as_json(site, clicks, at):
    shown = headrace("preview", site.config, "--at", at, "-n", 30)
    assert clicks in shown
    assert max(len(line) for line in shown.splitlines()) <= 130  # sentences are one line in a pipe
    assert documents(headrace("preview", site.config, "--at", at, "-n", 30, "--json"))


def test_preview_follows_until_it_is_interrupted(site, clicks):
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.writer.cli", "preview", str(site.config), "--follow", "--json", "-n", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    write(site.bootstrap, clicks, [(0, b"late", b"no header", 0)])
    last = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=400)
    assert (process.returncode, rest, said) == (0, "", "")
    assert [record["key"] for record in first] != ["late", "late"]
    assert (last["key"], last["outcome"]) == ("late", "dead_letter")


def test_validate_is_content_with_what_works_and_leaves_nothing(site, clicks):
    before = sorted(site.root.rglob("*"))
    findings = json.loads(headrace("validate", site.config, "--json"))["findings"]
    by = {finding["check"]: finding for finding in findings}
    assert {by[c]["status"] for c in ("broker", "registry", "topics", "schemas", "columns", "table", "driver")} == {
        "ok"
    }
    assert by["topics"]["message"].startswith(f"{clicks}: 2 partitions, 500 offsets held")
    assert by["wire"]["message"].startswith("3 of 500 values have no Confluent header")
    assert "491 of 497 values with a header are decoded" in by["decode"]["message"]
    assert sorted(set(site.root.rglob("*")) - {site.config}) == sorted(set(before) - {site.config})


def test_validate_says_what_is_wrong_and_exits_2(site, topic):
    plain = topic(1, prefix="plain")
    write(site.bootstrap, plain, [(0, None, b'{"id": 1}', 0)] * 3)
    site.pipeline("typo", [plain[:-1]])
    site.pipeline("plain", [plain])
    findings = json.loads(headrace("validate", site.config, "--json", code=2))["findings"]
    wrong = {(f["pipeline"], f["check"]): f for f in findings if f["status"] == "failed"}
    assert wrong.keys() == {("typo", "topics"), ("plain", "wire")}
    assert wrong["typo", "topics"]["fix"] == f"Did you mean {plain!r}?"
    assert all(finding["fix"] for finding in wrong.values())
    shown = headrace("validate", site.config, code=2)
    assert max(len(line) for line in shown.splitlines() if str(site.root) not in line) <= 100


@pytest.mark.usefixtures("clicks")
def test_validate_knows_a_registry_that_is_down(site):
    site.overrides["registry"] = {"url": "http://me:sesame@127.0.0.1:1"}
    shown = headrace("validate", site.config, code=2)
    assert "✗ registry" in shown
    assert "✓ topics" in shown
    assert "sesame" not in shown


def test_validate_notes_a_compacted_topic_and_a_short_retention(site, topic):
    names = [topic(1, **{"cleanup.policy": "compact"}), topic(1, **{"retention.ms": "3600000"})]
    site.pipeline("users", names)
    topics = [f for f in json.loads(headrace("validate", site.config, "--json"))["findings"] if f["check"] == "topics"]
    assert [f["status"] for f in topics] == ["warning", "warning"]
    assert topics[0]["message"].endswith("nothing removed by age, compacted")
    assert topics[1]["message"].endswith("kept 1 h")


def test_plan_measures_the_traffic_by_the_brokers_clock(site, topic):
    name = topic(2, prefix="live")
    site.pipeline("live", [name])
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        schema_id = registry.register_schema(f"{name}-value", Schema(json.dumps(SCHEMAS["clicks"]), "AVRO"))
    encode, now = encoder(SCHEMAS["clicks"], schema_id), datetime.now(UTC)
    start = int((now - timedelta(hours=2)).timestamp() * 1000)
    messages = [
        (n % 2, key, encode(record), start + n * 1000)
        for n, (key, record) in enumerate(generate("clicks", 7200, now=now, hours=2, seed=3))
    ]
    write(site.bootstrap, name, messages)
    pipelines = json.loads(headrace("size", site.config, "--sample", 2000, "--json"))["pipelines"]
    assert len(pipelines) == 1
    values = {line["name"]: line["value"] for pipeline in pipelines.values() for line in pipeline["sizing"]["lines"]}
    assert values["events per second"] == pytest.approx(1, rel=0.05)
    assert values["an event in Kafka"] == pytest.approx(
        sum(len(message[2]) for message in messages[-2000:]) / 2000, rel=0.02
    )
    assert values["a commit every"] == pytest.approx(600)
    assert values["cores"] == 1
    shown = headrace("size", site.config, "--sample", 2000, "--events-per-second", 200_000, "--rate", 50_000)
    assert "given by --events-per-second" in shown
    assert "200,000 ÷ 50,000" in shown


def test_plan_has_nothing_to_say_of_an_empty_topic(site, topic):
    site.pipeline("empty", [topic(1)])
    assert headrace("size", site.config, code=2) == ""


def test_a_topic_with_many_partitions_is_sampled_in_one_go(bootstrap, kafka, cluster):
    name = f"wide-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=50, replication_factor=1)])[name].result(30)
    write(bootstrap, name, [(n % 50, None, b"v%d" % n, 0) for n in range(500)])
    batch = kafka_sample.read(kafka, kafka_sample.spans(cluster, [name], 100))
    assert pa.table([batch.column("partition")], ["p"]).group_by("p").aggregate([([], "count_all")]).num_rows == 50
