"""JSON without a schema: declared columns through the steps, the commit and all that is done to its tables."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.record_columns import check_sound
from tests.support.sample_records import EVENT, NOW, Schemas, config, event

DECLARED: dict[str, Any] = {
    "id": "long",
    "at": "timestamp",
    "price": "decimal(10, 2)",
    "user": {"name": "string", "tags": ["string"]},
    "counts": {"*": "long"},
    "payload": "json",
}
AT = f"{NOW - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"


def start(root: Path, form: str = "delta", schemas: Schemas | None = None, **settings: Any) -> Driver:
    columns = {"declared": DECLARED, **settings.pop("columns", {})}
    driver = Driver(
        root,
        form,
        schemas=schemas or Schemas({}, []),
        **{"formats": "json", "columns": columns, "limits": {"max_failed_ratio": 1}, **settings},
    )
    driver.start()
    return driver


def order(number: int, **members: Any) -> bytes:
    return json.dumps({"id": number, "at": AT, **members}).encode()


def reasons(driver: Driver) -> dict[int, str]:
    return dict(oracle.rows(Path(driver.dead_letters), "_offset, error", "ORDER BY 1"))


def test_members_become_columns_and_the_others_go_to_rest(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    values = {
        0: order(0, price=1.5, user={"name": "a", "tags": ["x", None], "zip": 1.00}, counts={"k": 2}, payload=[1.50]),
        1: b'{"id": 1, "at": "%s", "new": 1.00, "list": [ 1 ]}' % AT.encode(),
        2: order(2),
    }
    driver.carry([log(values)], {0: 3})
    columns = 'id, price, "user".name, "user".rest, counts[\'k\'], payload, rest'
    shown = oracle.rows(Path(driver.lake), columns, "ORDER BY 1")
    assert [tuple(str(cell) for cell in row) for row in shown] == [
        ("0", "1.50", "a", '{"zip":1.0}', "2", "[1.5]", "None"),
        ("1", "None", "None", "None", "None", "None", '{"list":[ 1 ],"new":1.00}'),
        ("2", "None", "None", "None", "None", "None", "None"),
    ]
    check_sound(driver)


def test_a_bad_value_fails_alone_with_its_place(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    bad = {
        1: b'{"id": 1',
        3: order(3, user={"tags": ["a", 5]}),
        5: b"\x00\x00\x00\x00\x07avro",
        7: b'{"id": 7, "id": 8}',
        9: b"",
        11: order(11, price=1.234),
    }
    values: dict[int, bytes | None] = {number: bad.get(number, order(number)) for number in range(40)}
    driver.carry([log(values)], {0: 40})
    found = reasons(driver)
    assert found[3] == "$.user.tags[1]: expected text, not a number"
    assert found[7] == "$.id: the member stands there twice"
    assert found[9] == "$: the value is empty"
    assert list(found) == list(bad)
    ids = oracle.rows(Path(driver.lake), "id", "ORDER BY 1")
    assert ids == [(number,) for number in range(40) if number not in bad]
    check_sound(driver)


def test_a_dead_letter_is_replayed_once_the_columns_are_right(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form)
    driver.carry([log({0: order(0), 1: order(1, note=[5]), 2: order(2, price="a lot")})], {0: 3})
    assert list(reasons(driver)) == [2]
    wider = start(tmp_path, form, columns={"declared": {**DECLARED, "note": "json"}, "misfit": "null"})
    wider.table.grow(list(wider.row_columns()), wider.epoch)
    result = DeadLetterReplay("clicks", wider.config, wider.schemas).run(Selection(), NOW)
    assert result.rows == 1
    assert oracle.rows(Path(driver.lake), "id, price, rest", "ORDER BY 1") == [
        (0, None, None),
        (1, None, '{"note":[5]}'),
        (2, None, '{"price":"a lot"}'),
    ]
    check_sound(wider)


def test_avro_json_and_garbage_of_one_topic_are_split(tmp_path: Path, form: str) -> None:
    driver = start(
        tmp_path,
        form,
        schemas=Schemas({1: EVENT}, [1]),
        formats=["avro", "json"],
        columns={"declared": {"id": "long", "at": "timestamp", "note": "string"}},
    )
    values = {}
    for number in range(0, 60, 3):
        values |= {number: event(number), number + 1: order(number + 1), number + 2: b"garbage"}
    driver.carry([log(values)], {0: 60})
    ids = [number for (number,) in oracle.rows(Path(driver.lake), "id", "ORDER BY 1")]
    assert ids == [number for number in range(60) if number % 3 != 2]
    found = reasons(driver)
    assert list(found) == list(range(2, 60, 3))
    check_sound(driver)


@pytest.mark.parametrize(
    ("undeclared", "rest", "failed", "counts"),
    [
        ("rest", '{"new":1}', {}, {}),
        ("drop", None, {}, {"dropped": 1}),
        ("dead_letter", None, {0: "$.new: no column is declared for it"}, {}),
    ],
)
def test_undeclared_members_go_where_they_are_meant(
    tmp_path: Path, undeclared: str, rest: str | None, failed: dict[int, str], counts: dict[str, int]
) -> None:
    driver = start(tmp_path, columns={"undeclared": undeclared})
    driver.carry([log({0: order(0, new=1), 1: order(1)})], {0: 2})
    assert reasons(driver) == failed
    (entry,) = driver.table.recent_batches(1)
    assert entry.facts.get("unfit_members", {}) == counts
    if undeclared == "rest":
        assert oracle.rows(Path(driver.lake), "rest", "ORDER BY id") == [(rest,), (None,)]
    check_sound(driver)


def test_a_member_that_does_not_fit_is_null_and_counted(tmp_path: Path) -> None:
    driver = start(tmp_path, columns={"misfit": "null"})
    driver.carry([log({0: order(0, price="much", user={"name": 5}), 1: order(1, user=[1])})], {0: 2})
    assert oracle.rows(Path(driver.lake), 'price, "user".rest, rest', "ORDER BY id") == [
        (None, '{"name":5}', '{"price":"much"}'),
        (None, None, '{"user":[1]}'),
    ]
    (entry,) = driver.table.recent_batches(1)
    assert entry.facts["unfit_members"] == {"nulled": 3}


def test_a_declaration_that_the_table_cannot_follow_is_refused_at_the_start(tmp_path: Path) -> None:
    start(tmp_path).carry([log({0: order(0)})], {0: 1})
    with pytest.raises(ConfigError, match=r"pipelines.clicks.columns.declared: field 'id' is string, but column 'id'"):
        start(tmp_path, columns={"declared": {**DECLARED, "id": "string"}})


def test_a_later_declaration_adds_columns(tmp_path: Path, form: str) -> None:
    start(tmp_path, form).carry([log({0: order(0, new=5)})], {0: 1})
    wider = start(tmp_path, form, columns={"declared": {**DECLARED, "new": "long"}})
    wider.table.grow(list(wider.row_columns()), wider.epoch)
    wider.carry([log({1: order(1, new=6)})], {0: 2})
    assert oracle.rows(Path(wider.lake), "id, new, rest", "ORDER BY 1") == [(0, None, '{"new":5}'), (1, 6, None)]
    check_sound(wider)


def test_times_that_are_numbers_have_their_unit_in_a_map_too(tmp_path: Path) -> None:
    units = {"s": 1_700_000_000, "ms": 1_700_000_000_000, "us": 1_700_000_000_000_000, "ns": 1_700_000_000_000_000_000}
    declared = {"id": "long", "at": "timestamp", **{unit: {"*": f"timestamp({unit})"} for unit in units}}
    driver = start(tmp_path, columns={"declared": declared})
    driver.carry([log({0: order(0, **{unit: {"k": number} for unit, number in units.items()})})], {0: 1})
    (row,) = driver.table.rows().to_table().to_pylist()
    assert {dict(row[unit])["k"] for unit in units} == {datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}


def test_no_registry_is_needed(tmp_path: Path) -> None:
    settings = config(tmp_path, formats="json", columns={"declared": DECLARED}, sections={"registry": {}})
    assert not settings.registry.has_schemas
    with pytest.raises(ValueError, match="clicks reads records that name a schema"):
        config(tmp_path, sections={"registry": {}})
