"""What `headrace test` encodes is what fastavro writes, and what it says of records is what the steps of a task say."""

import json
import math
from datetime import UTC, datetime, timedelta
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from fastavro import json_writer, parse_schema, schemaless_writer
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.preflight.samples import preview
from headrace.writer.preflight.testing.avro_json import AvroEncoder
from headrace.writer.preflight.testing.outcomes import outcomes
from headrace.writer.schemas import saved_sample
from headrace.writer.sealing.manifest import bucket_path
from tests.support.avro_kinds import kinds, with_unique_names
from tests.support.avro_records import record
from tests.support.example_counts import share
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config, event, records, value


def alike(value: Any) -> Any:
    """Return a value with one NaN for all: JSON has no sign for it."""
    match value:
        case dict():
            return {name: alike(one) for name, one in value.items()}
        case list() | tuple():
            return type(value)(map(alike, value))
        case float() if math.isnan(value):
            return math.nan
    return value


@given(st.data())
@settings(max_examples=share(200), suppress_health_check=list(HealthCheck))
def test_a_value_in_avros_json_is_the_value_that_fastavro_writes(data: st.DataObject) -> None:
    kind = data.draw(kinds())
    schema = with_unique_names(record("R", ("x", kind.schema)))
    parsed, row = parse_schema(json.loads(json.dumps(schema))), {"x": alike(data.draw(kind.values))}
    text, binary = StringIO(), BytesIO()
    try:
        json_writer(text, parsed, [row])
    except Exception as error:
        assume("No key was set" not in str(error))  # it takes an empty key of a map for none
        raise
    schemaless_writer(binary, parsed, row)
    assert AvroEncoder(json.dumps(schema))(json.loads(text.getvalue())) == binary.getvalue()


SPEC = {"where": "id % 5 <> 0", "sample": {"share": "70 %", "by": "id"}, "derive": {"ratio": "10 / (id - 4)"}}
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.builds(
        event, st.integers(0, 60), event_time=st.integers(-60, 60).map(lambda minutes: NOW + timedelta(minutes=minutes))
    ),
    st.builds(
        event, st.integers(0, 60), event_time=st.sampled_from([NOW - timedelta(days=50), NOW + timedelta(days=2)])
    ),
    st.integers(0, 60).map(lambda n: value(2, WIDER, {"id": n, "at": NOW, "note": "x", "extra": n})),
    st.integers(0, 60).map(lambda n: event(n)[:-1]),
    st.just(event(1, schema_id=77)),
)


@given(st.lists(VALUES, min_size=1, max_size=20), st.booleans(), st.integers(1, 3))
@settings(max_examples=share(40), suppress_health_check=list(HealthCheck))
def test_a_pipeline_test_reports_of_each_record_what_the_steps_make_of_it(
    values: list[bytes | None], has_specs: bool, partitions: int
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        made = config(root, wire="confluent", specs={"Event": SPEC} if has_specs else {})
        known, batch = Schemas({1: EVENT, 2: WIDER}, [1]), records(values, partitions=partitions)
        saved_sample.save(root / "sample", preview.record_sample(made, "clicks", ["clicks"], batch, known))
        found = outcomes(made, "clicks", saved_sample.load(root / "sample"), NOW, None)
        ready = open_local_pipeline("clicks", made, known, topics=["clicks"])
        steps = preview.describe_buckets(ready, batch, NOW)
        rows = {(row["topic"], row["partition"], row["offset"]): row for row in preview.describe_rows(ready, batch)}
    assert len(found) == batch.num_rows == len(steps)
    for one in steps:
        place = one["topic"], one["partition"], one["offset"]
        got = found[place]
        assert got.exit == one["outcome"]
        if got.exit == "row":
            assert got.bucket == bucket_path(list(one["bucket"]), tuple(one["bucket"].values()))
            assert got.row is not None
            assert {name: got.row[name] for name in rows[place]["row"]} == rows[place]["row"]
        elif got.exit == "filtered":
            assert one["reason"] == f"{got.rule} of spec {got.spec!r}"
        else:
            assert got.reason == one.get("reason")


BYTES = st.none() | st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
ROW = st.fixed_dictionaries({
    "topic": st.sampled_from(["a", "b"]), "partition": st.integers(0, 2**31 - 1), "offset": st.integers(0, 2**63 - 1),
    "timestamp": st.none() | st.integers(0, 10**10).map(lambda at: datetime.fromtimestamp(at / 1000, UTC)),
    "key": BYTES, "value": BYTES,
    "headers": st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": BYTES}), min_size=1),
})  # fmt: skip


@given(st.lists(ROW, max_size=5))
@settings(max_examples=share(60))
def test_any_records_come_back_from_a_file(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=RECORDS)
    assert batch.schema.field("headers").type == HEADERS
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        saved_sample.save(path, saved_sample.SavedSample("p", ["a"], batch, saved_sample.SavedSchemas([])))
        assert saved_sample.load(path).records.equals(batch)
