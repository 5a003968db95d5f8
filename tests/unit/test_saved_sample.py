"""A sample in a file: it comes back as it was, with the schemas that its records need, and is not written twice."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.cli.main import app
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import Wire
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import plain
from headrace.writer.preflight.samples import preview
from headrace.writer.schemas import saved_sample
from headrace.writer.schemas.registry import RegistryUnreachable
from headrace.writer.schemas.saved_sample import SavedSample
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config, event, records, value

MIXED = [
    event(0), None, b'{"id": 5}', event(2)[:-1], event(3, event_time=NOW - timedelta(days=60)),
    value(2, WIDER, {"id": 4, "at": NOW, "note": None, "extra": 9}), event(5, schema_id=77), b"", "ünï".encode(),
]  # fmt: skip
KNOWN = Schemas({1: EVENT, 2: WIDER, 5: "no schema of these records"}, [1])


def file_of(tmp_path: Path, batch: pa.RecordBatch, **settings: Any) -> tuple[Path, SavedSample]:
    path = tmp_path / "sample.jsonl"
    sample = preview.record_sample(config(tmp_path, **settings), "clicks", ["clicks", "empty"], batch, KNOWN)
    saved_sample.save(path, sample)
    return path, sample


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    odd = records(MIXED, partitions=2, headers={"source": b"web", "raw": b"\0\xff"})
    timeless = pa.array([None, *odd.column("timestamp").to_pylist()[1:]], RECORDS.field("timestamp").type)
    odd = odd.set_column(3, RECORDS.field("timestamp"), timeless)
    path, sample = file_of(tmp_path, odd)
    found = saved_sample.load(path)
    assert found.records.equals(odd)
    assert (found.pipeline, found.topics) == ("clicks", ["clicks", "empty"])
    assert [(one.id, one.topics) for one in sample.schemas.saved] == [(1, ("clicks", "empty")), (2, ())]
    assert [json.loads(one.text) for one in found.schemas.saved] == [EVENT, WIDER]


@pytest.mark.parametrize("at", ["decoded", "assigned"])
def test_the_records_of_a_file_are_shown_as_those_of_kafka(tmp_path: Path, at: str) -> None:
    batch = records(MIXED, partitions=2)
    path, _ = file_of(tmp_path, batch)
    ready = open_local_pipeline("clicks", config(tmp_path), KNOWN, topics=["clicks"])
    wanted = preview.describe_rows(ready, batch) if at == "decoded" else preview.describe_buckets(ready, batch, NOW)
    (tmp_path / "pipelines.yaml").write_text(json.dumps({
        "kafka": {"bootstrap_servers": "${env:NOWHERE}"}, "pipelines": {"clicks": {
            "topics": ["clicks"], "table": {"location": "s3://none/clicks"},
            "event_time": {"field": "at", "max_age": "36500 d"},
        }},
    }))  # fmt: skip
    words = ["preview", str(tmp_path / "pipelines.yaml"), "--file", str(path), "--at", at, "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    shown = [json.loads(line) for line in done.output.splitlines()]
    if at == "decoded":
        assert shown == [plain(one) for one in wanted]
    else:  # which is as old as it is now
        assert [one["offset"] for one in shown] == [one["offset"] for one in wanted]


@pytest.mark.parametrize("wire", ["apicurio", "single_object"])
def test_schemas_are_kept_by_the_ids_of_the_wire_format(tmp_path: Path, wire: str) -> None:
    plain_value = event(1)[5:]
    found = Wire("apicurio", "global") if wire == "apicurio" else Wire("single_object", "fingerprint")
    fixed = config(tmp_path, wire=wire).pipelines["clicks"].wire.fixed
    assert fixed == found
    schema_id = 1 if wire == "apicurio" else crc_fingerprint(json.dumps(EVENT))
    path, _ = file_of(tmp_path, records([found.value_header(schema_id) + plain_value]), wire=wire)
    sample = saved_sample.load(path)
    walk = open_local_pipeline(
        "clicks", config(tmp_path, wire=wire), sample.schemas, topics=sample.topics, with_table=False
    )
    assert walk.decode(sample.records).rows == 1


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path, sample = file_of(tmp_path, records([event(1)]))
    before = path.read_text()
    with pytest.raises(ConfigError, match="is there already, and is left as it is"):
        saved_sample.save(path, sample)
    assert path.read_text() == before
    with pytest.raises(ConfigError, match="cannot be written"):
        saved_sample.save(tmp_path / "no" / "such", sample)


def test_a_registry_that_does_not_answer_is_said_before_a_file_is_written(tmp_path: Path) -> None:
    class Silent(Schemas):
        def topic_schemas(self, topic: str) -> dict[int, str]:
            raise RegistryUnreachable(f"nothing of {topic}")

    with pytest.raises(RegistryUnreachable):
        preview.record_sample(config(tmp_path), "clicks", ["clicks"], records([event(1)]), Silent({}, []))


NOTHING = {**dict.fromkeys(["timestamp", "key", "value", "headers"]), "topic": "c", "partition": 0, "offset": 0}


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "{}", "holds no sample of this release"), (0, "[]", "holds no sample of this release"),
        (0, "no JSON", "line 1"), (1, "{}", "line 2: KeyError('schema')"),
        (2, '{"topic": "clicks"}', "line 3: KeyError"),
        (2, json.dumps({**NOTHING, "topic": 5}), "line 3"),
        (2, json.dumps({**NOTHING, "key": {"base64": "?"}}), "line 3"),
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path: Path, line: int, text: str, message: str) -> None:
    path, _ = file_of(tmp_path, records([event(1)]))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:line], text, *lines[line + 1 :]]))
    with pytest.raises(ConfigError, match=r"sample\.jsonl") as raised:
        saved_sample.load(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("words", [["--follow"], ["--save", "x"], ["--from", "earliest"]])
def test_a_file_is_shown_whole_and_alone(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["preview", "pipelines.yaml", "--file", str(tmp_path / "x"), *words])
    assert "leave --follow, --from and --save out" in str(done.exception)


def test_a_stream_without_an_end_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--save writes a sample that has an end"):
        preview.preview_topics(
            config(tmp_path),
            preview.PreviewRequest(None, None, "decoded"),
            preview.TopicSelection(1, "latest", follows=True, save=tmp_path / "x"),
            screen=Screen(as_json=False, has_lines=True),
            now=NOW,
        )
