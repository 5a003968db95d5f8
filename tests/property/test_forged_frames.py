"""Values that look like frames of Kafka's records: each row is of its own record, whoever shares its batch.

Mirrors and REST proxies put records of many clients into one batch. Here one client claims in a value that its last
field reaches over the records of others, into a later value of its own, where frames lie that take their places.
Numbers of records, lengths and offsets all add up.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, reject, settings, strategies as st

from headrace.writer.batch import range_task
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.range_task import ReadPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.framing.wire_format import Wire
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.reader import ReadLimits
from headrace.writer.kafka_reader.requests.metadata import Metadata
from tests.servers.kafka_cluster import Cluster as Fake
from tests.support.avro_records import MILLIS, record as avro_record
from tests.support.example_counts import share
from tests.support.kafka_batches import Raw, Rec, nullable, record as record_frame, zigzag
from tests.support.task_topic import NOW, ms, read

SCHEMA_ID, FORGED = 7, 777
SCHEMA = avro_record("Event", ("at", MILLIS), ("n", "long"), ("content", "bytes"))
WIRES = [
    Wire("confluent"),
    Wire("apicurio", "global"),
    Wire("glue", "glue"),
    Wire("single_object", "fingerprint"),
    Wire("bare", schema_id=SCHEMA_ID),
]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
NO_HEADERS = b"\0"


@dataclass(frozen=True)
class Client:
    """Who sends events of the schema."""

    head: bytes  # before each value
    key: bytes | None

    def begin_value(self, number: int, content_bytes: int) -> bytes:
        """Return a value up to its last field, whose length it claims to be this."""
        return self.head + zigzag(ms(NOW)) + zigzag(number) + zigzag(content_bytes)

    def value(self, number: int, content: bytes) -> bytes:
        return self.begin_value(number, len(content)) + content

    def frame(self, delta: int, value: bytes) -> bytes:
        return record_frame(Rec(delta, 0, self.key, value), 0, 0)

    def begin_frame(self, delta: int, frame_bytes: int) -> bytes:
        """Return a frame up to its value, that claims to have so many bytes. Raises LookupError where none has."""
        length = length_within(frame_bytes)
        before = b"\0" + zigzag(0) + zigzag(delta) + nullable(self.key)
        value_bytes = length_within(length - len(before) - len(NO_HEADERS))
        return zigzag(length) + before + zigzag(value_bytes)


def length_within(total: int) -> int:
    """Return the length that has, with its own varint, so many bytes. Raises LookupError where there is none."""
    for varint_bytes in (1, 2, 3):
        length = total - varint_bytes
        if length >= 0 and len(zigzag(length)) == varint_bytes:
            return length
    raise LookupError(total)


def forge_values(client: Client, delta: int, victims: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the values before and behind those of the victims. `delta`: of the first. Raises LookupError.

    The first claims that its content ends where that of the last begins. There lie the rest of its own frame, frames
    that claim to be as long as the victims', and one that claims to be as long as the last.
    """
    frames = [client.frame(delta + 1 + position, victim) for position, victim in enumerate(victims)]
    hidden = NO_HEADERS + b"".join(
        client.begin_frame(delta + 1 + position, len(frame)) + client.value(FORGED, b"EVIL") + NO_HEADERS
        for position, frame in enumerate(frames)
    )
    last_delta = delta + 1 + len(victims)
    last, content = _last_value(client, last_delta, hidden)
    bytes_before_content = len(client.frame(last_delta, last)) - len(NO_HEADERS) - len(content)
    own_content = b"a"
    claimed_bytes = len(own_content) + len(NO_HEADERS) + sum(map(len, frames)) + bytes_before_content
    return client.begin_value(1, claimed_bytes) + own_content, last


def _last_value(client: Client, delta: int, hidden: bytes) -> tuple[bytes, bytes]:
    """Return a value, and its content: hidden frames, and behind them one that claims to be as long as its record."""
    for frame_bytes in range(len(hidden) + 20, len(hidden) + 400):
        for padding in range(60):
            content = hidden + client.begin_frame(delta, frame_bytes) + client.value(FORGED, b"z" * padding)
            value = client.value(2, content)
            if len(client.frame(delta, value)) == frame_bytes:
                return value, content
    raise LookupError(delta)


def plan_of(folder: Path, wire: Wire) -> TaskPlan:
    schemas = SchemaPlan(pa.schema([]), frozenset({*PROVENANCE.names, "hour"})).extend(SCHEMA_ID, json.dumps(SCHEMA))
    return TaskPlan(
        now=NOW, frontier={}, incarnations={"clicks": 1}, schemas=schemas, wire=wire,
        time_rule=TimeRule("at", "auto", timedelta(days=1), timedelta(days=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1)}, table=str(folder / "table"),
        dead_letters=str(folder / "dead"), raw=str(folder / "raw"), prefix="0", budget=2**20, target_file_size=2**20,
    )  # fmt: skip


def carry(plan: TaskPlan, log: Sequence[Raw]) -> Report:
    """Let a task read a log that brokers hold."""
    end = log[-1].after
    wanted = [[OffsetRange(TopicPartition("clicks", 1, 0), 0, end)]]
    with Fake({("clicks", 0): list(log)}).running() as brokers:
        address = ClusterAddress(brokers, timeout_s=2)
        limits = ReadLimits(fetch_wait_ms=10)
        reading = ReadPlan(address, Metadata(), {}, ColumnChoice(raw=True), limits, wanted)
        (row,) = range_task.run(0, plan, reading)
    return Report.from_json(row["report"][0].as_py())


def read_rows(folder: str, files: list[StagedFile]) -> list[dict[str, Any]]:
    return read(folder, files).to_pylist() if files else []


def read_value(value: bytes, head: bytes) -> tuple[int, bytes] | None:
    """Return the fields of a value as fastavro reads them, None where it is none of the schema's."""
    source = BytesIO(value[len(head) :])
    try:
        event: dict[str, Any] = schemaless_reader(source, parse_schema(SCHEMA), None)  # type: ignore[assignment]
    except EOFError:
        return None
    return None if source.read() else (event["n"], event["content"])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Wire, list[Raw]]:
    """A batch in which a client forges frames among sound records, and a sound one behind it."""
    wire = draw(st.sampled_from(WIRES))
    client = Client(wire.value_header(SCHEMA_ID), draw(st.none() | st.binary(max_size=3)))
    before = [client.value(number, b"sound") for number in range(draw(st.integers(0, 20)))]
    behind = [client.value(number, b"sound") for number in range(20)]
    contents = draw(st.lists(st.binary(min_size=20, max_size=200), min_size=1, max_size=3))
    victims = [client.value(100 + position, content) for position, content in enumerate(contents)]
    try:
        first, last = forge_values(client, len(before), victims)
    except LookupError:
        reject()
    codec = draw(st.sampled_from(CODECS))
    forged = raw_batch(0, [*before, first, *victims, last, *behind], client.key, codec)
    return wire, [forged, raw_batch(forged.after, behind, client.key, codec)]


def raw_batch(base: int, values: Sequence[bytes], key: bytes | None, codec: str) -> Raw:
    records = tuple(Rec(base + position, ms(NOW), key, value) for position, value in enumerate(values))
    return Raw(records, base, base + len(records), codec)


@given(forged=batches())
@settings(max_examples=share(60), deadline=None)
def test_bytes_of_one_record_never_take_the_place_of_another(
    forged: tuple[Wire, list[Raw]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wire, log = forged
    plan = plan_of(tmp_path_factory.mktemp("forged"), wire)
    records = [record for raw in log for record in raw.records]
    events = {record.offset: read_value(record.value or b"", wire.value_header(SCHEMA_ID)) for record in records}
    report = carry(plan, log)
    rows = read_rows(plan.table, report.files)
    dead_letters = read_rows(plan.dead_letters, report.dead_letter_files)
    raw_rows = read_rows(str(plan.raw), report.raw_files)
    assert {row["_offset"]: (row["n"], row["content"]) for row in rows} == {
        offset: event for offset, event in events.items() if event is not None
    }
    assert sorted(row["_offset"] for row in dead_letters) == [
        offset for offset, event in events.items() if event is None
    ]
    assert {row["_offset"]: (row["key"], row["value"]) for row in raw_rows} == {
        record.offset: (record.key, record.value) for record in records
    }
