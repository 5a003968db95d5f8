"""Keys that are Avro become columns of their own types: in the stream and at every other exit, in both formats."""

import json
import re
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from pydantic import ValidationError

from headrace.writer.audit.audit import audit
from headrace.writer.avro.fingerprint import crc_fingerprint, schema_fingerprint
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.maintain import schema_accept
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import SchemaChanged
from headrace.writer.framing.wire_format import CONFLUENT, Wire
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.output.command_inputs import ChosenPipeline
from headrace.writer.preflight.checks.source_checks import _keys
from headrace.writer.schemas.registry import SchemaNotFound, source
from tests.support import oracle
from tests.support.backfill_gaps import fill_from_archives, skip_offsets
from tests.support.local_driver import Driver, log
from tests.support.record_columns import check_sound, start_driver
from tests.support.sample_records import EVENT, NOW, Schemas, event
from tests.support.small_files import compactor

USER = {"type": "record", "name": "User", "fields": [
    {"name": "id", "type": "int"}, {"name": "region", "type": ["null", "string"]},
]}  # fmt: skip
WIDER_USER = {"type": "record", "name": "User", "fields": [
    {"name": "id", "type": "long"}, {"name": "region", "type": ["null", "string"]},
    {"name": "shard", "type": "int", "default": 7},
]}  # fmt: skip
BY_ID: dict[int, Any] = {1: EVENT, 5: USER, 6: WIDER_USER, 7: "string", 8: {"type": "array", "items": "int"}}
KNOWN = Schemas(BY_ID, [1], [5])
AVRO = {"key": "avro"}
CUT = b"\0\0\0\0\5"  # the header of a key, and no key


def key(value: Any, schema_id: int = 5, wire: Wire = CONFLUENT, schemas: Any = None) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema((schemas or BY_ID)[schema_id]), value)
    return wire.value_header(schema_id) + out.getvalue()


def user(number: int) -> bytes:
    return key({"id": number, "region": "eu" if number % 2 else None})


def carried(driver: Driver, keys: dict[int, bytes | None], **others: Any) -> None:
    driver.carry(
        [log({offset: event(offset, event_time=NOW) for offset in keys}, keys=keys, **others)], {0: max(keys) + 1}
    )


def shown(location: str, what: str = "_key") -> list[tuple[Any, ...]]:
    return oracle.rows(Path(location), f"_offset, {what}", "ORDER BY 1")


def dead(driver: Driver) -> list[tuple[Any, ...]]:
    return oracle.rows(Path(driver.dead_letters), "_offset, schema_id, error", "ORDER BY 1")


def test_a_table_that_exists_has_a_struct_from_the_next_commit_on(tmp_path: Path, form: str) -> None:
    start_driver(tmp_path, form).carry([log({0: event(0)})], {0: 1})
    driver = start_driver(tmp_path, form, AVRO, schemas=KNOWN)
    carried(driver, {1: user(1), 2: None, 3: user(4)})
    expected = [(0, None), (1, {"id": 1, "region": "eu"}), (2, None), (3, {"id": 4, "region": None})]
    assert shown(driver.lake) == expected
    check_sound(driver)
    run_deletion(driver.config, DeletionRequest("clicks", where("_key.id = 1"), NOW), driver.schemas, write=True)
    assert shown(driver.lake) == [expected[0], *expected[2:]]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_the_key_s_schema_changes_as_a_value_s(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, AVRO, schemas=KNOWN)
    carried(driver, {0: user(0)})
    carried(driver, {1: key({"id": 2**40, "region": None, "shard": 3}, 6), 2: user(2)})  # 6 is not registered for it
    assert shown(driver.lake) == [
        (0, {"id": 0, "region": None, "shard": None}), (1, {"id": 2**40, "region": None, "shard": 3}),
        (2, {"id": 2, "region": None, "shard": 7}),
    ]  # fmt: skip
    before = shown(driver.lake)
    snapshot = driver.table.snapshot()
    (bucket,) = {file.bucket for file in driver.table.bucket_files(snapshot)}
    pieces = compactor(driver).plan(snapshot, [bucket], open_too=True)[bucket]
    compactor(driver).carry_out(snapshot, pieces, here)
    assert shown(driver.lake) == before
    check_sound(driver)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"u1", "the key: no Confluent header (magic byte 0 and a 4-byte schema id)"),
        (CUT, "the key: the value ends before the record does"),
        (key("text", 7), "the key: schema id 7: field '_key' is string, but column '_key' holds struct<"),
        (b"\0\0\0\0\x09\2", "the key: schema id 9 is unknown to the registry"),
    ],
)
def test_a_key_that_cannot_be_decoded_is_a_dead_letter_or_null(tmp_path: Path, bad: bytes, why: str) -> None:
    driver = start_driver(tmp_path, "delta", AVRO, schemas=KNOWN)
    carried(driver, {0: user(0), 1: bad, 2: user(2)})
    assert [offset for offset, _ in shown(driver.lake)] == [0, 2]
    ((offset, schema_id, error),) = dead(driver)
    assert (offset, schema_id) == (1, 1)
    assert error.startswith(why)
    check_sound(driver)
    lenient = start_driver(tmp_path, "delta", {**AVRO, "undecodable": "null"}, schemas=KNOWN)
    carried(lenient, {3: bad, 4: user(4)})
    assert DeadLetterReplay("clicks", lenient.config, lenient.schemas).run(Selection(), NOW).rows == 1
    assert [(offset, key and key["id"]) for offset, key in shown(driver.lake)] == [
        (0, 0), (1, None), (2, 2), (3, None), (4, 4)
    ]  # fmt: skip
    check_sound(lenient)


def test_a_key_of_any_type_is_a_column_and_an_unregistered_one_comes_with_its_first_batch(
    tmp_path: Path, form: str
) -> None:
    driver = start_driver(tmp_path, form, {"key": {"type": "avro", "name": "owner"}}, schemas=Schemas(BY_ID, [1]))
    carried(driver, {0: None})
    assert "owner" not in driver.table.snapshot().columns().names, "no schema of it is known yet"
    carried(driver, {1: key("ü", 7), 2: None})
    assert shown(driver.lake, "owner") == [(0, None), (1, "ü"), (2, None)]
    assert driver.table.snapshot().columns().field("owner").type == pa.string()
    check_sound(driver)
    other = start_driver(tmp_path / "other", form, AVRO, schemas=Schemas(BY_ID, [1]))
    carried(other, {0: key([1, 2], 8), 1: key([], 8)})
    assert shown(other.lake) == [(0, [1, 2]), (1, [])]


FORMATS: dict[str, dict[str, Any]] = {
    "apicurio": {"format": "apicurio"},
    "header": {"format": "header", "header": "apicurio.key.globalId"},
    "confluent-header": {"format": "header", "header": "__key_schema_id"},
    "single_object": {"format": "single_object"},
    "bare": {"format": "bare", "schema_id": 5},
}


@pytest.mark.parametrize(
    ("named", "told_by"),
    [
        *((named, "the configuration") for named in FORMATS),
        *((named, "the keys") for named in FORMATS if named != "bare"),  # nothing in such a key says so
    ],
)
def test_keys_have_a_wire_format_of_their_own(tmp_path: Path, named: str, told_by: str) -> None:
    columns = {"key": {"type": "avro", "wire": FORMATS[named]}}
    driver = start_driver(tmp_path, "delta", columns, schemas=KNOWN)
    wire = driver.settings.columns.key.wire.fixed  # type: ignore[union-attr]
    assert wire is not None
    schema_id = crc_fingerprint(json.dumps(USER)) if wire.ids == "fingerprint" else 5
    schemas = Schemas({**BY_ID, schema_id: USER}, [1], [schema_id])
    driver = start_driver(tmp_path, "delta", columns if told_by == "the configuration" else AVRO, schemas=schemas)
    headers = {} if wire.header is None else {
        offset: {wire.header: wire.kafka_header_value(schema_id) or b""} for offset in range(30)
    }  # fmt: skip
    keys = {offset: key({"id": offset, "region": None}, schema_id, wire, {schema_id: USER}) for offset in range(30)}
    records = log({offset: event(offset) for offset in keys}, keys=keys, headers=headers)
    driver._pipeline.settle_wire(records)
    driver.carry([records], {0: 30})
    assert shown(driver.lake) == [(offset, {"id": offset, "region": None}) for offset in range(30)]
    later = open_local_pipeline("clicks", driver.config, schemas)
    assert later.key_wire == wire, "the table's commits keep it"
    assert later.needs_headers == (wire.header is not None)


def test_the_schema_of_a_key_id_is_kept_and_another_is_refused_until_it_is_accepted(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, AVRO, schemas=KNOWN)
    carried(driver, {0: user(0)})
    fingerprint = driver.table.transactions()["clicks/schema/127.0.0.1%3A1/confluent/5"]
    assert fingerprint == schema_fingerprint(json.dumps(USER)), "as the registry has it"
    rebuilt = Schemas({**BY_ID, 5: {**USER, "name": "Other"}}, [1], [5])
    with pytest.raises(SchemaChanged, match="schema id 5 at"):
        open_local_pipeline("clicks", driver.config, rebuilt)
    since = datetime(2026, 11, 20, 13, tzinfo=UTC)
    pipeline = ChosenPipeline("clicks", driver.config)
    assert schema_accept.run_accept(pipeline, rebuilt, ["5"], since, write=True, now=NOW).has_changes
    later = start_driver(tmp_path, form, AVRO, schemas=rebuilt)
    carried(later, {1: user(1), 2: user(2)}, kafka_time=since - timedelta(seconds=1))
    assert [offset for offset, _ in shown(driver.lake)] == [0]
    assert dead(driver)[0][2].startswith("the key: schema id 5 means another schema since 2026-11-20T13:00:00Z")


def test_a_copy_and_an_archive_bring_them_to_a_gap(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, AVRO, schemas=KNOWN)
    carried(driver, {0: user(0)})
    skip_offsets(driver, 2)
    other = start_driver(tmp_path / "other", form, AVRO, schemas=KNOWN)
    carried(other, {0: user(0), 1: user(1)})
    fill_from_archives(driver, Path(other.lake))
    skip_offsets(driver, 3)
    (tmp_path / "archive").mkdir()
    records = log({2: event(2)}, keys={2: key({"id": 2, "region": None, "shard": 1}, 6)})
    pq.write_table(pa.Table.from_batches([records]), tmp_path / "archive" / "part-0.parquet")
    fill_from_archives(driver, tmp_path / "archive")
    assert [key["id"] for _, key in shown(driver.lake)] == [0, 1, 2]
    check_sound(driver)


def test_late_rows_and_preview_have_them(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, AVRO, schemas=KNOWN, seal={"late": "late_table"})
    local_pipeline = open_local_pipeline("clicks", driver.config, driver.schemas)
    (group,) = local_pipeline.assign_buckets(log({0: event(0)}, keys={0: user(3)}), NOW).groups
    assert group.rows.column("_key").to_pylist() == [{"id": 3, "region": "eu"}]
    findings = [(key.check, key.message) for key in _keys(local_pipeline.schemas.keys, "clicks-key")]
    assert findings[0] == ("keys", "id 5: decoded natively")
    assert findings[1][1].startswith("column _key struct")
    late = {file.name for file in driver.side(str(driver.settings.late_table)).snapshot().columns()}
    assert "_key" in late


def test_files_have_schemas_of_keys_apart(tmp_path: Path) -> None:
    for name, schema in (("event", EVENT), ("user", USER)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    files = {"files": {1: str(tmp_path / "event.avsc")}, "key_files": {5: str(tmp_path / "user.avsc")}}
    known = source(Registry.model_validate(files))
    driver = start_driver(tmp_path, "delta", AVRO, schemas=known)
    assert "region" not in driver.row_columns().names
    carried(driver, {0: user(1)})
    assert shown(driver.lake) == [(0, {"id": 1, "region": "eu"})]
    with pytest.raises(SchemaNotFound, match=r"schema id 5 is not in registry\.files"):
        known.schema(5)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": {"type": "string", "wire": "confluent"}}, "a key of type 'string' has no 'wire'"),
        ({"key": {"type": "avro", "name": "user key"}}, "letters, digits and _, not 'user key'"),
        ({"key": {"type": "avro", "wire": {"format": "header"}}}, "format 'header' needs 'header'"),
    ],
)
def test_a_key_that_cannot_be_is_a_sentence(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        Driver(tmp_path, columns=columns)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"url": "http://r", "key_files": {5: "k.avsc"}}, "'key_files' goes with 'files'"),
        ({"files": {5: "v.avsc"}, "key_files": {5: "k.avsc"}}, "schema id 5 has one file in 'files' and another"),
    ],
)
def test_files_of_keys_that_cannot_be_are_a_sentence(files: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        Registry.model_validate(files)
