"""Columns that come later: readers that go by the catalog find their values, whatever headrace or others did since."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from headrace.writer.audit.audit import audit
from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.table.iceberg.catalog.catalog_client import CatalogClient
from headrace.writer.table.iceberg.metadata.schema import MAPPING, mapping_of, schema_of
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.log.operations.seals import Closing
from tests.support.grown_iceberg import HOUR, NEW, OLD, GrownTable, expected, its_catalog, new, old
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import NOW, Schemas, value
from tests.support.table_formats import iceberg_table

Step = Callable[[], Any]


def test_values_of_added_columns_are_found_after_whatever_headrace_does(tmp_path: Path) -> None:
    grown = GrownTable(tmp_path)
    grown.check()
    for step in (grown.compact, grown.delete, grown.rewind, grown.compact):
        step()
        grown.check()
    report = audit(grown.driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_tables_beside_it_have_values_of_added_columns_too(tmp_path: Path) -> None:
    late_table = {"seal": {"late": "late_table"}}
    grown = GrownTable(tmp_path, **late_table)
    grown.driver.table.append(Closing(uuid4().hex, NOW, {"reason": "command"}), grown.driver.table.snapshot())
    late = str(grown.driver.settings.late_table)
    grown.carry(schema_id=1)
    grown.driver.tables.side(late).grow(list(grown.driver.row_columns()))
    grown.carry(schema_id=2)
    grown.check(late, range(40, 60))
    grown.driver.carry([log({60: b"broken"})], {0: 61})
    for location in (late, grown.driver.dead_letters):
        cut(grown.driver, location, lambda fields: fields[:1])
        again = grown.driver.tables.side(location)
        columns, snapshot = again.snapshot().columns(), again.snapshot()
        again.create(columns, snapshot.state.metadata["partitionColumns"], snapshot.state.metadata["description"] or "")
        assert again.snapshot().version == snapshot.version, "it is no entry"
        assert its_catalog(grown.driver, location).scan().to_arrow().num_rows == {late: 20}.get(location, 1)
    grown.check(late, range(40, 60))


@pytest.mark.parametrize("was", ["delta", "parquet"])
def test_so_has_a_table_that_was_converted(tmp_path: Path, was: str) -> None:
    schemas = Schemas({1: OLD, 2: NEW}, [1])
    before = Driver(tmp_path, was, schemas=schemas)
    before.start()
    before.carry([log({0: value(1, OLD, {"id": 0, "at": HOUR, **old(0)})})], {0: 1})
    run_convert(pipeline_config(tmp_path, "iceberg"), "clicks", write=True, now=NOW)
    driver = Driver(tmp_path, "iceberg", schemas=schemas)
    driver.start()
    driver.carry([log({1: value(2, NEW, {"id": 1, "at": HOUR, **new(1)})})], {0: 2})
    rows = its_catalog(driver, driver.lake).scan().to_arrow().sort_by("id").select(list(new(0))).to_pylist()
    assert rows == [expected(old(0)), expected(new(1))]


# --- mappings that lack columns, or have more than the table ---------------------------------------------------------


def cut(driver: Driver, location: str, left: Callable[[list[Any]], list[Any]]) -> None:
    """Let the mapping be as another hand left it."""
    table = its_catalog(driver, location)
    fields = left(json.loads(table.properties[MAPPING]))
    with table.transaction() as change:
        change.set_properties({MAPPING: json.dumps(fields)})


def innermost(fields: list[Any]) -> list[Any]:
    """Take y out of a struct, a list of structs and a map of structs."""
    return [
        {**field, "fields": innermost(field["fields"])} if "fields" in field else field
        for field in fields
        if field["names"] != ["y"]
    ]


LEFT: dict[str, Callable[[list[Any]], list[Any]]] = {
    "none": lambda _: [], "the first": lambda fields: fields[:3], "no field of a struct": innermost,
}  # fmt: skip


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("step", ["start", "carry", "compact"])
def test_a_mapping_that_lacks_columns_is_mended_by_the_next_entry(
    tmp_path: Path, left: Callable[[list[Any]], list[Any]], step: str
) -> None:
    grown = GrownTable(tmp_path)
    whole = its_catalog(grown.driver, grown.driver.lake).properties[MAPPING]
    cut(grown.driver, grown.driver.lake, left)
    with pytest.raises(ValueError, match=r"Could not find field with name|missing from NameMapping"):
        grown.check()
    (grown.driver.start if step == "start" else getattr(grown, step))()
    grown.check()
    assert json.loads(its_catalog(grown.driver, grown.driver.lake).properties[MAPPING]) == json.loads(whole)


def test_a_mapping_that_no_reader_understands_is_made_anew(tmp_path: Path) -> None:
    grown = GrownTable(tmp_path)
    with its_catalog(grown.driver, grown.driver.lake).transaction() as change:
        change.set_properties({MAPPING: "[{"})
    grown.carry()
    grown.check()


def test_names_that_another_client_put_into_the_mapping_stay(tmp_path: Path) -> None:
    grown = GrownTable(tmp_path)

    def more(fields: list[Any]) -> list[Any]:
        fields[0]["names"].append("number")
        fields[2]["fields"][0]["names"].append("left")
        return [*fields, {"field-id": 999, "names": ["before"]}]

    cut(grown.driver, grown.driver.lake, more)
    mapping = its_catalog(grown.driver, grown.driver.lake).properties[MAPPING]
    grown.carry()
    assert its_catalog(grown.driver, grown.driver.lake).properties[MAPPING] == mapping
    grown.driver.table.grow([pa.field("extra", pa.int64()), pa.field("before", pa.int64())], grown.driver.epoch)
    fields = json.loads(its_catalog(grown.driver, grown.driver.lake).properties[MAPPING])
    by_name = {name: field for field in fields for name in field["names"]}
    assert by_name["number"]["names"] == ["id", "number"]
    assert by_name["spot"]["fields"][0]["names"] == ["x", "left"]
    assert by_name["before"]["field-id"] != 999, "the name is a column's by now"
    assert "extra" in by_name
    grown.check()


@pytest.mark.parametrize("adds", [True, False], ids=["column", "order"])
def test_a_column_that_another_client_adds_at_the_same_time_stays_in_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adds: bool
) -> None:
    grown = GrownTable(tmp_path)
    cut(grown.driver, grown.driver.lake, lambda fields: fields[:3])
    commit, came = CatalogClient.commit, list[int]()

    def second(client: CatalogClient, *words: Any) -> None:
        if not came:
            came.append(1)
            with its_catalog(grown.driver, grown.driver.lake).update_schema() as change:
                if adds:
                    change.add_column("theirs", LongType())
                else:
                    change.move_first("notes")
        commit(client, *words)

    monkeypatch.setattr(CatalogClient, "commit", second)
    grown.carry()
    table = its_catalog(grown.driver, grown.driver.lake)
    names = {name for field in json.loads(table.properties[MAPPING]) for name in field["names"]}
    assert {field.name for field in table.schema().fields} <= names
    grown.check()


@pytest.mark.parametrize("renames", [True, False], ids=["renamed", "dropped"])
def test_a_field_that_another_client_drops_or_renames_stops_the_writer(tmp_path: Path, renames: bool) -> None:
    grown = GrownTable(tmp_path)
    with its_catalog(grown.driver, grown.driver.lake).update_schema(allow_incompatible_changes=True) as change:
        if renames:
            change.rename_column("spots.element.y", "z")
        else:
            change.delete_column(("spots", "element", "y"))
    with pytest.raises(ForeignChange, match=r"column spots\.element\.y was dropped or renamed"):
        grown.driver.table.snapshot()


def test_the_mapping_of_many_columns_is_as_small_as_if_they_had_come_at_once(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("hour", pa.string())])
    table = iceberg_table(str(tmp_path / "lake" / "events"), "events")
    table.create(columns, ["hour"])
    epoch = table.begin({}, {})
    for group in range(20):
        columns = pa.schema([*columns, *(pa.field(f"column_{group}_{n}", pa.float64()) for n in range(10))])
        table.grow(list(columns), epoch)
    for _ in range(5):
        epoch = table.begin({}, {})
    mapping = table._log.table().properties[MAPPING]
    assert json.loads(mapping) == json.loads(mapping_of(schema_of(columns)))
    assert len(mapping) < 10_000
