"""How records become rows, in each format of values: times, buckets, tables of a route, specs, privacy, columns.

Each test declares a feature of the table in docs/TYPES.md, which `make reference` writes.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import read_keyring
from headrace.writer.table.log.operations.seals import Closing
from tests.support.audits import run_audit
from tests.support.format_features import (
    ORDERS,
    FormatCase,
    Order,
    Refusal,
    carry_routed,
    check_refused,
    check_rows,
    failures_of,
    feature,
    refusals_of,
    rows_of,
)
from tests.support.local_driver import Driver
from tests.support.private_table import hash_of, keyring_at
from tests.support.record_columns import check_sound
from tests.support.sample_records import NOW, Schemas, value

HOUR = timedelta(hours=1)


def setting(**settings: Any) -> Any:
    """Return what starts a pipeline with settings that it refuses."""
    return lambda case, root: case.start(root, **settings)


def hours_of(driver: Driver) -> dict[int, str]:
    return {offset: row["hour"] for offset, row in rows_of(driver).items()}


def hour(time: Any) -> str:
    return f"{time:%Y-%m-%dT%H}"


@feature(
    "Event time: a member",
    refusals={
        "raw": Refusal("values of the format raw have no members", setting(event_time={"field": "created"})),
    },
)
def test_the_event_time_is_a_member(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path)
    orders = {number: Order(number, at=NOW - number * HOUR) for number in range(3)}
    driver.carry([case.records(orders)], {0: 3})
    check_rows(driver, case, orders)
    assert hours_of(driver) == {number: hour(NOW - number * HOUR) for number in range(3)}
    check_sound(driver)


@feature(
    "Event time: a nested member",
    refusals={
        "raw": Refusal("values of the format raw have no members", setting(event_time={"field": "user.seen"})),
    },
)
def test_the_event_time_is_a_nested_member(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path, event_time={"field": "user.seen"})
    driver.carry([case.records({0: Order(0, seen=NOW - 4 * HOUR)})], {0: 1})
    assert hours_of(driver) == {0: hour(NOW - 4 * HOUR)}


@feature("Event time: Kafka's timestamp")
def test_the_event_time_is_that_of_kafka(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path, event_time={"field": "_kafka_time"})
    driver.carry([case.records({0: Order(0)}, kafka_time=NOW - 2 * HOUR)], {0: 1})
    assert hours_of(driver) == {0: hour(NOW - 2 * HOUR)}
    check_sound(driver)


@feature("Event time: a header")
def test_the_event_time_is_a_header(case: FormatCase, tmp_path: Path) -> None:
    columns = {"header_columns": {"sent": {"header": "at", "type": "long"}}}
    driver = case.start(tmp_path, columns=columns, event_time={"field": "sent", "unit": "ms"})
    driver.carry([case.records({0: Order(0, at=NOW - HOUR)})], {0: 1})
    assert hours_of(driver) == {0: hour(NOW - HOUR)}
    check_sound(driver)


FIELD: dict[str, Any] = {"type": "field", "field": "country", "column": "land"}


@feature("Buckets: of a field", notes={"raw": "a column of a header"})
def test_buckets_are_those_of_a_field(case: FormatCase, tmp_path: Path, form: str) -> None:
    driver = case.start(tmp_path, form, bucket=FIELD)
    driver.carry([case.records(ORDERS)], {0: 6})
    assert {offset: row["land"] for offset, row in rows_of(driver).items()} == {
        offset: order.country for offset, order in ORDERS.items()
    }
    assert len(driver.table.buckets()) == 2
    check_sound(driver)


@feature("Buckets: composite", notes={"raw": "a column of a header"})
def test_buckets_are_composite(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(
        tmp_path, bucket={"type": "composite", "parts": [{"type": "event_time", "width": "1 h"}, FIELD]}
    )
    driver.carry([case.records(ORDERS)], {0: 6})
    rows = rows_of(driver)
    assert {(row["hour"], row["land"]) for row in rows.values()} == {(hour(NOW - HOUR), "at"), (hour(NOW - HOUR), "de")}
    check_sound(driver)


# --- routes -----------------------------------------------------------------------------------------------------------


@feature(
    "Routes: by the name of the record",
    notes={
        "json": "all records have the name `declared`, so all go to one table",
        "raw": "all records have the name `raw`, so all go to one table",
    },
)
def test_the_name_of_the_record_names_the_table(case: FormatCase, tmp_path: Path) -> None:
    assert carry_routed(case, tmp_path, "record", [case.record, "other"]) == {case.record: list(ORDERS)}


@feature(
    "Routes: by a member",
    notes={"json": "a record's kind may be such a member"},
    refusals={
        "raw": Refusal(
            "values of the format raw have no members",
            lambda case, root: case.config(root, route={"by": {"field": "kind"}, "targets": {"*": str(root)}}),
        ),
    },
)
def test_a_member_names_the_table(case: FormatCase, tmp_path: Path) -> None:
    shown = carry_routed(case, tmp_path, {"field": "country"}, ["at", "de"])
    assert shown == {"at": [1, 3, 5], "de": [0, 2, 4]}


@feature("Routes: by a header, or the topic")
def test_a_header_or_the_topic_names_the_table(case: FormatCase, tmp_path: Path) -> None:
    (tmp_path / "header").mkdir()
    (tmp_path / "topic").mkdir()
    by_header = carry_routed(case, tmp_path / "header", {"header": "country"}, ["at", "de"])
    assert by_header == {"at": [1, 3, 5], "de": [0, 2, 4]}
    assert carry_routed(case, tmp_path / "topic", "topic", ["clicks"]) == {"clicks": list(ORDERS)}


# --- specs, privacy, columns ------------------------------------------------------------------------------------------


@feature(
    "Event specs",
    notes={"json": "the name of the record is `declared`"},
    refusals={"raw": Refusal("values of the format raw have no members", setting(specs={"raw": {"where": "true"}}))},
)
def test_a_spec_shapes_the_rows(case: FormatCase, tmp_path: Path) -> None:
    spec = {
        "where": "id <> 3",
        "columns": {"exclude": ["tags"]},
        "rename": {"country": "land"},
        "derive": {"twice": "id * 2"},
        "flatten": ["user"],
    }
    driver = case.start(tmp_path, specs={case.record: spec})
    driver.carry([case.records(ORDERS)], {0: 6})
    rows = driver.table.rows().to_table().to_pylist()
    shown = {row["_offset"]: (row["twice"], row["land"], row["user_email"]) for row in rows}
    assert shown == {n: (2 * n, order.country, order.email) for n, order in ORDERS.items() if n != 3}
    assert "tags" not in rows[0]
    assert run_audit(driver).adds_up


def start_private(case: FormatCase, root: Path, **privacy: Any) -> Driver:
    """Start a pipeline that protects values. Columns of keys and headers are in the clear."""
    source = keyring_at(root)
    columns = dict.fromkeys(case.config(root).pipelines["clicks"].record_columns.names, "clear")
    fields = {**columns, **privacy.pop("fields", {})}
    return case.start(root, privacy={"fields": fields, **privacy}, sections={"keys": {"file": source.place.file}})


@feature(
    "Privacy: by the path of a member",
    notes={"json": "members of a `json` column, and those in `rest`, have paths, too"},
    refusals={
        "raw": Refusal(
            "values of the format raw have no members", lambda c, r: start_private(c, r, fields={"a": "hash"})
        )
    },
)
def test_a_path_is_protected(case: FormatCase, tmp_path: Path) -> None:
    driver = start_private(case, tmp_path, fields={"user.email": "hash", "country": {"mask": 1}})
    bad = {3: case.unreadable}
    driver.carry([case.records({**ORDERS, **bad})], {0: 6})
    rows = rows_of(driver)
    assert {(row["email"], row["country"]) for row in rows.values()} == {
        (hash_of(tmp_path, ORDERS[0].email), "****t"),
        (hash_of(tmp_path, ORDERS[0].email), "****e"),
    }
    assert list(failures_of(driver)) == [3]
    check_sound(driver)


@feature("Privacy: of keys and headers", notes={"raw": "and of the whole value, as `value`"})
def test_keys_and_headers_are_protected(case: FormatCase, tmp_path: Path) -> None:
    columns = {
        "key": "string",
        "header_columns": {"land": "country", "id": "id", "at": {"header": "at", "type": "long"}},
    }
    if case.has_members:
        columns["header_columns"] = {"land": "country"}
    fields = {"_key": "hash", "land": "encrypt"}
    if not case.has_members:
        fields |= {"value": "encrypt", "id": "clear", "at": "clear", "_headers": "clear"}
    source = keyring_at(tmp_path)
    sections = {"keys": {"file": source.place.file}}
    driver = case.start(tmp_path, columns=columns, privacy={"fields": fields}, sections=sections)
    driver.carry([case.records(ORDERS)], {0: 6})
    secret = read_keyring(source).encryption_keys["k1"]
    for offset, row in rows_of(driver).items():
        assert row["_key"] == hash_of(tmp_path, f"k{offset}")
        assert decrypt_text(row["land"], secret) == ORDERS[offset].country.encode()
        if not case.has_members:
            assert decrypt_text(row["value"], secret) == case.value(ORDERS[offset])
    check_sound(driver)


NO_TAGS = Refusal(
    "privacy.tags: only schemas of a registry have tags",
    lambda case, root: case.config(root, sections={"keys": {"env": "KEYS"}}, privacy={"tags": {"PII": "hash"}}),
)


@feature("Privacy: by tags of the schema", refusals={"json": NO_TAGS, "raw": NO_TAGS})
def test_a_tag_is_protected(case: FormatCase, tmp_path: Path) -> None:
    driver = start_private(case, tmp_path, tags={"PII": "hash"})
    driver.carry([case.records(ORDERS)], {0: 6})
    emails = {row["email"] for row in rows_of(driver).values()}
    assert emails == {hash_of(tmp_path, ORDERS[0].email)}
    check_sound(driver)


@feature("Keys and headers as columns", notes={"raw": "always, as `_key` and `_headers`"})
def test_keys_and_headers_are_columns(case: FormatCase, tmp_path: Path, form: str) -> None:
    columns = {"key": "string", "headers": "_headers", "header_columns": {"land": "country", "id": "id", "at": "at"}}
    if case.has_members:
        columns["header_columns"] = {"land": "country"}
    driver = case.start(tmp_path, form, columns=columns, event_time={"field": "_kafka_time"})
    driver.carry([case.records(ORDERS)], {0: 6})
    rows = rows_of(driver)
    assert {offset: (row["_key"], row["land"]) for offset, row in rows.items()} == {
        offset: (f"k{offset}", order.country) for offset, order in ORDERS.items()
    }
    assert dict(rows[1]["_headers"])["country"] == b"at"
    check_sound(driver)


KEY = {"type": "record", "name": "Key", "fields": [{"name": "shop", "type": "int"}]}


@feature("Keys that are Avro, as columns")
def test_an_avro_key_is_a_column(case: FormatCase, tmp_path: Path) -> None:
    schemas = Schemas({**case.documents(), 9: KEY}, list(case.documents()), keys=[9])
    columns = {"key": {"type": "avro", "wire": "confluent"}}
    driver = Driver(tmp_path, schemas=schemas, **case.merge({"columns": columns}))
    driver.start()
    driver.table.grow(list(driver.row_columns()), driver.epoch)
    keys: dict[int, bytes | None] = {offset: value(9, KEY, {"shop": offset}) for offset in ORDERS}
    driver.carry([case.records(ORDERS, keys=keys)], {0: 6})
    assert {offset: row["_key"] for offset, row in rows_of(driver).items()} == {n: {"shop": n} for n in ORDERS}
    check_rows(driver, case, ORDERS)
    check_sound(driver)


@feature(
    "Columns that come later",
    notes={"json": "once they are declared, at the next start"},
    absent={"raw": "a value is one column"},
)
def test_a_later_version_adds_a_column(case: FormatCase, tmp_path: Path, form: str) -> None:
    first = case.start(tmp_path, form)
    first.carry([case.records({0: Order(0)})], {0: 1})
    driver = case.start(tmp_path, form, later=True)
    driver.carry([case.records({1: Order(1, coupon="c"), 2: Order(2)})], {0: 3})
    assert {offset: row["coupon"] for offset, row in rows_of(driver).items()} == {0: None, 1: "c", 2: None}
    check_rows(driver, case, {0: Order(0), 1: Order(1, coupon="c"), 2: Order(2)})
    check_sound(driver)


@feature("Late rows")
def test_late_rows_go_to_their_table(case: FormatCase, tmp_path: Path) -> None:
    driver = case.start(tmp_path, seal={"late": "late_table"})
    driver.carry([case.records({0: Order(0)})], {0: 1})
    driver.table.append(Closing("c", NOW + HOUR, {"reason": "command"}), driver.table.snapshot())
    driver.carry([case.records({1: Order(1)})], {0: 2})
    assert (list(rows_of(driver)), list(rows_of(driver, place=driver.settings.late_table))) == ([0], [1])
    check_sound(driver)


@pytest.mark.parametrize(("case", "refusal"), refusals_of(__name__))
def test_what_a_format_does_not_offer_is_refused(case: FormatCase, refusal: Refusal, tmp_path: Path) -> None:
    check_refused(case, refusal, tmp_path)
