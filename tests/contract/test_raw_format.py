"""Raw values: key, value, headers and provenance as Kafka has them, in each format of tables."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.maintenance.compaction.compactor import here
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.record_columns import check_sound
from tests.support.sample_records import NOW, Schemas, config
from tests.support.small_files import compactor

RAW: dict[str, Any] = {"formats": "raw", "event_time": {"field": "_kafka_time"}}


def start(root: Path, form: str = "delta", **settings: Any) -> Driver:
    driver = Driver(root, form, schemas=Schemas({}, []), **{**RAW, **settings})
    driver.start()
    return driver


def test_each_record_is_a_row_as_kafka_has_it(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    values = {0: b"\x00\x00\x00\x00\x07garbage", 1: None, 2: b"", 3: b'{"a":1}', 4: b"\xff\xfe"}
    headers = {0: {"trace": b"t", "n": b"\x00"}}
    keys = {0: b"k0", 1: b"k1", 2: None, 3: b"\xff", 4: b""}
    driver.carry([log(values, headers=headers, keys=keys)], {0: 5})
    rows = oracle.rows(Path(driver.lake), "_offset, _key, value, _headers['n'], _partition", "ORDER BY 1")
    shown = [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in rows]
    assert shown == [
        (0, b"k0", values[0], b"\x00", 0),
        (1, b"k1", None, None, 0),
        (2, None, b"", None, 0),
        (3, b"\xff", values[3], None, 0),
        (4, b"", values[4], None, 0),
    ]
    check_sound(driver)


def test_the_bucket_is_that_of_the_kafka_timestamp(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    for number, hours in enumerate((0, 3)):
        records = log({number: b"v"}, kafka_time=NOW - timedelta(hours=hours))
        driver.carry([records], {0: number + 1})
    hours = oracle.rows(Path(driver.lake), "DISTINCT date_trunc('hour', _kafka_time)")
    assert len(hours) == 2
    assert len(driver.table.buckets()) == 2


def test_the_event_time_may_be_a_header(tmp_path: Path) -> None:
    columns = {"header_columns": {"at": {"header": "at", "type": "long"}}}
    driver = start(tmp_path, event_time={"field": "at", "unit": "ms"}, columns=columns)
    milliseconds = int(NOW.timestamp() * 1000)
    headers = {0: {"at": str(milliseconds).encode()}, 1: {"at": b"17"}, 2: {"at": b"soon"}}
    driver.carry([log(dict.fromkeys(range(4), b"v"), headers=headers)], {0: 4})
    assert oracle.rows(Path(driver.lake), '_offset, "at"') == [(0, milliseconds)]
    reasons = dict(oracle.rows(Path(driver.dead_letters), "_offset, outcome", "ORDER BY 1"))
    assert reasons == {1: "quarantined", 2: "dead_letter", 3: "quarantined"}
    check_sound(driver)


def test_a_table_of_raw_records_is_compacted(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    for number in range(6):
        driver.carry([log({number: None if number == 3 else b"v%d" % number})], {0: number + 1})
    snapshot = driver.table.snapshot()
    (bucket,) = driver.table.buckets()
    pieces = compactor(driver).plan(snapshot, [bucket], open_too=True)[bucket]
    compactor(driver).carry_out(snapshot, pieces, here)
    values = oracle.rows(Path(driver.lake), "_offset, value", "ORDER BY 1")
    assert [value and bytes(value) for _, value in values] == [b"v0", b"v1", b"v2", None, b"v4", b"v5"]
    check_sound(driver)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ["raw", "avro"]}, "raw takes every value, so no other format stands beside it"),
        ({"formats": "raw", "wire": "confluent"}, "values of the format raw name no schema"),
        ({"formats": "raw", "columns": {"declared": {"a": "long"}}}, "columns are declared for the format json"),
        ({"formats": "raw", "columns": {"misfit": "null"}}, "columns.misfit is of JSON, which `formats` does not name"),
        ({"formats": "json"}, "JSON without a schema has the columns that are declared"),
        ({"formats": ["json", "json"], "columns": {"declared": {"a": "long"}}}, "'json' stands there twice"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"formats|columns|wire") as refusal:
        config(tmp_path, **{"event_time": {"field": "_kafka_time"}, **settings})
    assert message in str(refusal.value)
