"""Values that are not Avro: kills, a registry that is away or forgets, and one topic with all formats and garbage.

Each row and each dead letter is compared with the record that Kafka has at its offset.
"""

import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.demo.devstack.events import Encode, generate
from headrace.writer.demo.devstack.protobuf_encoding import ProtobufEncoding, message_encoder, schema_text
from headrace.writer.demo.devstack.stack import Registry
from headrace.writer.demo.devstack.value_encoding import AvroEncoding, JsonEncoding, encode_json
from tests.fault.outcomes import WANTED as WHOLE
from tests.servers import faulty
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.format_values import (
    FORMAT_VALUES,
    GARBAGE_KEY,
    JSON,
    JSON_SCHEMA,
    RAW,
    FormatValues,
    JsonSchemaEncoding,
    Message,
    encode_events,
    encode_garbage,
    interleave,
    json_schema,
    start_pipeline,
)
from tests.support.writer_process import NOW, Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
POINTS = ("before_stage", "after_stage", "before_commit", "after_commit", "before_redo", "after_batch")
# Formats whose values name a schema of a registry, but Avro.
BY_SCHEMAS = ("json_schema", "protobuf")
GRACE_S = 2  # of an id that the registry does not know, in the site's configuration


@pytest.fixture
def registry(site: Site, tmp_path: Path) -> Iterator[Registry]:
    """The site's own, which may be stopped."""
    with Registry(tmp_path / "registry") as started:
        site.registry_url = started.url
        yield started


def fill(
    site: Site, values: FormatValues, topic: str, count: int, *, kind: str = "clicks", seed: int = 7, garbage: int = 0
) -> None:
    """Produce events of a format, and some garbage among the first of them."""
    encoding = values.open_encoding(site.registry_url)
    events = encode_events(encoding, topic, count, kind=kind, seed=seed)
    broken = encode_garbage(encoding, topic, garbage, kind=kind, seed=seed) if garbage else []
    site.send(topic, interleave(events, broken))


def check_records(site: Site, lake: Path, topic: str, values: FormatValues) -> None:
    """Assert that each row and each dead letter is the record at its offset, and that none is in the wrong table."""
    records = site.records(topic)
    expected = {
        place: value if values is RAW else (key or b"").decode()
        for place, (key, value) in records.items()
        if key != GARBAGE_KEY
    }
    rows = oracle.rows(lake, f"_partition, _offset, {values.event_column}")
    assert {(partition, offset): event for partition, offset, event in rows} == expected
    failures = oracle.rows(dead_letter_table(lake), "_partition, _offset")
    assert sorted(failures) == sorted(place for place, (key, _) in records.items() if key == GARBAGE_KEY)


def dead_letter_table(lake: Path) -> Path:
    return lake.with_name(f"{lake.name}_dead_letters")


def dead_letters(lake: Path) -> dict[object, object]:
    groups = oracle.rows(dead_letter_table(lake), "error, count(*)", "GROUP BY ALL")
    return dict(groups)  # type: ignore[arg-type]


def new_members(lake: Path, values: FormatValues) -> int:
    """Count the rows that have the member of the later schema."""
    ((count,),) = oracle.rows(lake, f"count({values.new_member})")
    return int(str(count))


@pytest.mark.cell("kill -9 of the driver", "right before a commit, values in {value_format}")
@pytest.mark.parametrize("value_format", FORMAT_VALUES)
def test_a_driver_killed_before_a_commit_loses_and_doubles_nothing(
    site: Site, topic: MakeTopic, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, commit={"max_offsets": 400})
    fill(site, values, name, 1_000, garbage=0 if values is RAW else 4)
    site.once(env={"HEADRACE_FAULT": "before_commit:2"}, code=-signal.SIGKILL)
    oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)


@pytest.mark.cell("kill -9 of the driver", "at six points, one after the other, values in {value_format}")
@pytest.mark.parametrize("value_format", FORMAT_VALUES)
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(
    site: Site, topic: MakeTopic, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, raw=True, commit={"max_offsets": 1_000})
    kinds = ["clicks"] * 3 + ["clicks_2"] * 3
    for round_, (point, kind) in enumerate(zip(POINTS, kinds, strict=True)):
        fill(site, values, name, 2_000, kind=kind, seed=round_, garbage=0 if values is RAW else 4)
        site.once(env={"HEADRACE_FAULT": f"{point}:{1 + round_ % 2}"}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)
    if values.new_member is not None:
        assert new_members(lake, values) == 3 * 2_000


@pytest.mark.cell("kill -9 of the driver", "while Spark writes its checkpoint, values in {value_format}")
@pytest.mark.parametrize("value_format", FORMAT_VALUES)
def test_a_driver_killed_while_spark_writes_its_checkpoint_loses_nothing(
    site: Site, topic: MakeTopic, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, commit={"max_offsets": 400})
    chance = random.Random(11)
    for round_ in range(4 if WHOLE else 2):
        fill(site, values, name, 1_600, seed=round_)
        with site.start("--once") as writer:
            wanted = chance.randrange(1, 4)
            writer.until(lambda writer=writer, wanted=wanted: writer.commits() >= wanted)
            time.sleep(chance.uniform(0, 0.15))
            writer.kill()
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)


@pytest.mark.cell("kill -9 of a worker", "while it decodes, values in {value_format}")
@pytest.mark.parametrize("value_format", FORMAT_VALUES)
def test_a_killed_worker_is_replaced_and_its_task_tried_again(site: Site, topic: MakeTopic, value_format: str) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, memory={"batch_records": 2_000})
    fill(site, values, name, 6_000, garbage=0 if values is RAW else 20)
    flag = site.root / "held"
    with site.start("--once", env={"HEADRACE_FAULT": f"in_decode:1:{flag}"}) as writer:
        writer.until(flag.exists)
        for _ in range(2):
            # While the flag is there, each new worker waits at its first decoding.
            writer.until(lambda: bool(python_workers(writer)))
            for worker in python_workers(writer):
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
            oracle.check_rows(lake, "events")
        while writer.process.poll() is None:
            flag.unlink(missing_ok=True)
            time.sleep(0.1)
        assert writer.wait(120) == 0, writer.output()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)


def python_workers(writer: Writer) -> list[psutil.Process]:
    """Return PySpark's workers, without the daemon that starts them."""
    (java,) = (process for process in writer.family() if process.name() == "java")
    return [worker for daemon in java.children() for worker in daemon.children()]


@pytest.mark.cell("the registry is down", "at a start, values in {value_format}")
@pytest.mark.parametrize("value_format", BY_SCHEMAS)
def test_a_start_without_a_registry_leaves_the_table_and_the_next_goes_on(
    site: Site, topic: MakeTopic, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name)
    fill(site, values, name, 500, garbage=4)
    site.once()
    before = oracle.replay(lake)
    fill(site, values, name, 500, seed=8)
    there, site.registry_url = site.registry_url, "http://127.0.0.1:9"
    output = site.once(code=1)
    assert "http://127.0.0.1:9" in output
    assert oracle.replay(lake) == before, "not even the epoch was raised"
    oracle.check_rows(lake, "events")
    site.registry_url = there
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)


@pytest.mark.cell("the registry is down", "in the middle of a run, and a new schema arrives, values in {value_format}")
@pytest.mark.parametrize("value_format", BY_SCHEMAS)
def test_a_batch_with_a_new_schema_waits_for_a_registry_that_is_down(
    site: Site, registry: Registry, topic: MakeTopic, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, commit={"max_delay": "2 s"})
    fill(site, values, name, 500)
    with site.start() as writer:
        writer.until(lambda: writer.commits() == 1)
        wider = encode_events(values.open_encoding(site.registry_url), name, 300, kind="clicks_2", seed=8)
        registry.stop()
        site.send(name, wider)
        writer.until(lambda: writer.output().count("registry_unreachable") >= 2)
        time.sleep(GRACE_S)
        oracle.check_rows(lake, "events")
        assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
        registry.start()
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 800)
        output = writer.stop()
    assert "pipeline_restarting" not in output
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)
    assert new_members(lake, values) == 300


@pytest.mark.cell("the registry is slow", "in the middle of a run, and a new schema arrives, values in {value_format}")
@pytest.mark.parametrize("value_format", BY_SCHEMAS)
def test_a_batch_with_a_new_schema_waits_while_answers_are_none_and_takes_late_ones(
    site: Site, topic: MakeTopic, tmp_path: Path, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, commit={"max_delay": "2 s"})
    fill(site, values, name, 500)
    encoding = values.open_encoding(site.registry_url)
    address, found, path = site.registry_url.partition("/apis/")
    with faulty.proxy(address, tmp_path) as proxy:
        site.registry_url = f"{proxy.url}{found}{path}"
        proxy.always(faulty.DELAY)
        with site.start() as writer:
            writer.until(lambda: writer.commits() == 1)
            # A schema that is registered before the start would be known from then on.
            wider = encode_events(encoding, name, 300, kind="clicks_2", seed=8)
            proxy.always(faulty.SILENT)
            site.send(name, wider)
            for fault in (faulty.SILENT, faulty.EMPTY, faulty.PAGE, faulty.CUT):
                proxy.always(fault)
                writer.until(lambda fault=fault: proxy.done[fault] > 0)  # type: ignore[misc]
            oracle.check_rows(lake, "events")
            assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
            proxy.always(faulty.DELAY)
            writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 800)
            output = writer.stop()
    assert "pipeline_restarting" not in output
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)
    assert new_members(lake, values) == 300


@pytest.mark.cell(
    "the registry has forgotten its ids", "in the middle of a run, and at a start, values in {value_format}"
)
@pytest.mark.parametrize("value_format", BY_SCHEMAS)
def test_ids_that_the_registry_lost_stop_a_start_and_its_dead_letters_become_rows_again(
    site: Site, registry: Registry, topic: MakeTopic, tmp_path: Path, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name, commit={"max_delay": "2 s"})
    messages = encode_events(values.open_encoding(site.registry_url), name, 2_900)
    site.send(name, messages[:500])
    with site.start() as writer:
        writer.until(lambda: writer.commits() == 1)
        registry.stop()
        with Registry(tmp_path / "empty", port=registry.port):
            site.send(name, messages[500:1_000])
            writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
            writer.stop()
            assert dead_letters(lake) == {}, "what a run has read once it knows"
            site.send(name, messages[1_000:1_400])
            # Fewer than limits.min_failed_records.
            site.once()
            oracle.check_rows(lake, "events")
            ((error, count),) = dead_letters(lake).items()
            assert ("is unknown to the registry" in str(error), count) == (True, 400)
            site.send(name, messages[1_400:])
            before = oracle.replay(lake).files
            assert "limits.max_failed_ratio" in site.once(code=5)
            assert oracle.replay(lake).files == before
            oracle.check_rows(lake, "events")
    registry.start()
    site.once()
    replayed = CliRunner().invoke(app, ["dlq", "replay", str(site.config), "--yes"])
    assert replayed.exit_code == 0, replayed.output
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, values)


@pytest.mark.cell("the registry's ids mean other schemas", "at a start, values in {value_format}")
@pytest.mark.parametrize("value_format", BY_SCHEMAS)
def test_ids_that_mean_other_schemas_stop_a_start_until_they_are_accepted(
    site: Site, registry: Registry, topic: MakeTopic, tmp_path: Path, value_format: str
) -> None:
    name = topic(2)
    values = FORMAT_VALUES[value_format]
    lake = start_pipeline(site, values, name)
    fill(site, values, name, 500)
    site.once()
    registry.stop()
    with Registry(tmp_path / "anew", port=registry.port):
        encode = OTHER_MEANINGS[value_format](site.registry_url, name)
        events = generate("clicks", 300, now=NOW, seed=8)
        site.send(name, [(str(event["event_id"]).encode(), encode(_with_visit(event))) for _, event in events])
        before = oracle.replay(lake)
        said = site.once(code=2)
        assert "schema id 1 at 127.0.0.1" in said
        assert "headrace schema accept --pipeline events" in said
        assert oracle.replay(lake) == before, "not even the epoch was raised"
        oracle.check_rows(lake, "events")
        for words in ([], ["--yes"]):
            done = CliRunner().invoke(app, ["schema", "accept", str(site.config), *words])
            assert done.exit_code == 0, done.output
        site.once()
        oracle.check(lake, "events", site.ends(name))
        check_records(site, lake, name, values)
        assert oracle.rows(lake, "count(visit_id), count(session_id), count(*)") == [(300, 500, 800)]


def _with_visit(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event whose session is called a visit."""
    members = dict(event)
    members["visit_id"] = members.pop("session_id")
    return members


def _other_json_schema(registry_url: str, topic: str) -> Encode:
    """Register as id 1 a JSON Schema of events with visits, and return what encodes them."""
    other = json_schema("clicks")
    other["properties"]["visit_id"] = other["properties"].pop("session_id")
    assert JsonSchemaEncoding(registry_url).register(topic, other) == 1
    return lambda event: b"\0\0\0\0\1" + encode_json(event)


def _other_protobuf(registry_url: str, topic: str) -> Encode:
    """Register as id 1 a Protobuf schema of events with visits, and return what encodes them.

    The visit has a number of its own: by that of the session it would be the session, renamed.
    """
    text = re.sub(r"string session_id = \d+;", "string visit_id = 99;", schema_text("clicks"))
    with SchemaRegistryClient({"url": registry_url}) as client:
        assert client.register_schema(f"{topic}-value", Schema(text, "PROTOBUF")) == 1
    encode = message_encoder(text)
    return lambda event: b"\0\0\0\0\1\0" + encode(event)


OTHER_MEANINGS: Mapping[str, Callable[[str, str], Encode]] = {
    "json_schema": _other_json_schema,
    "protobuf": _other_protobuf,
}


@pytest.mark.cell("kill -9 of the driver", "at six points, while formats, schemas and garbage alternate in one topic")
@pytest.mark.parametrize("form", FORMATS)
def test_a_topic_of_all_formats_and_garbage_loses_and_doubles_nothing(site: Site, topic: MakeTopic, form: str) -> None:
    name = topic(2)
    formats = ["avro", "json_schema", "protobuf", "json"]
    settings = {**JSON.settings, "formats": formats}
    lake = site.pipeline("events", [name], form=form, raw=True, commit={"max_offsets": 1_000}, **settings)
    sent = 0
    # In each half of a round another format goes over to its next schema.
    for round_, point in enumerate(POINTS):
        for half in (0, 1):
            later = formats[: round_ + half]
            kinds = {format_: "clicks_2" if format_ in later else "clicks" for format_ in formats}
            site.send(name, mixed_messages(site, name, 300, kinds, seed=2 * round_ + half))
            sent += 300 * len(later)
        site.once(env={"HEADRACE_FAULT": f"{point}:{1 + round_ % 2}"}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name, JSON)
    # A member of plain JSON stays in `rest`, also when schemas have made a column of that name.
    assert new_members(lake, JSON) + new_members(lake, JSON_SCHEMA) == sent


def mixed_messages(site: Site, topic: str, count: int, kinds: dict[str, str], seed: int) -> Iterator[Message]:
    """Yield an event in each format, of its format's kind, then garbage made of them, and so on."""
    encodings: dict[str, Any] = {
        "avro": AvroEncoding(site.registry_url),
        "json_schema": JsonSchemaEncoding(site.registry_url, f"{topic}-json"),
        "protobuf": ProtobufEncoding(site.registry_url, f"{topic}-protobuf"),
        "json": JsonEncoding(),
    }
    groups = [
        encode_events(encoding, topic, count, kind=kinds[format_], seed=10 * seed + number)
        for number, (format_, encoding) in enumerate(encodings.items())
    ]
    values = [tuple(value or b"" for _, value in messages) for messages in zip(*groups, strict=True)]
    garbage = [(GARBAGE_KEY, garbage_value(turn, *some)) for turn, some in enumerate(values)]
    return interleave(*groups, garbage)


def garbage_value(turn: int, avro: bytes, framed: bytes, message: bytes, plain: bytes) -> bytes:
    """Return a value that no format has, made from an event in Avro, by JSON Schema, in Protobuf, and in JSON."""
    values = (
        message[:-1],
        # A message that the schema does not have, indexes that are cut, and values behind the ids of others.
        message[:5] + b"\x02\x12" + message[6:],
        message[:5] + b"\x02",
        message[:5] + avro[5:],
        framed[:5] + message[6:],
        avro[:5] + message[5:],
        avro[:-1],
        framed[:-1],
        plain[:-1],
        framed[:5] + avro[5:],
        avro[:5] + plain,
        b"\xff\xfe" + plain,
        b"[%b]" % plain,
        plain * 2,
        plain.replace(b'"app_id":', b'"app_id":NaN,"other":'),
        plain.replace(b'"app_id":', b'"app_id":1,"app_id":'),
        plain.replace(b'"app_id":', b'"app_id":"text","other":'),
        b"garbage",
        b"\0",
        b"",
    )
    return values[turn % len(values)]
