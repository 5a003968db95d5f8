"""An Iceberg table whose columns grow."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.table.iceberg.catalog.catalog_client import file_settings
from tests.support.local_driver import Driver, log
from tests.support.reverted_change import revert_change
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW, TIME, Schemas, value

HOUR = NOW.replace(minute=0) - timedelta(hours=1)


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def nested(*more: tuple[str, Any], x: str) -> dict[str, Any]:
    """Return a record with a struct, a list of structs and a map of structs; `more`: fields of each."""
    spots = {"type": "array", "items": record("InList", ("x", "int"), *more)}
    notes = {"type": "map", "values": record("InMap", ("x", "int"), *more)}
    spot = record("Spot", ("x", x), *more)
    return record("Event", ("id", "long"), ("at", TIME), ("spot", spot), ("spots", spots), ("notes", notes))


OLD = nested(x="int")


NEW = nested(("y", "string"), x="long")
NEW["fields"] += [{"name": "price", "type": "double"}, {"name": "tags", "type": {"type": "array", "items": "string"}}]


def old(number: int) -> dict[str, Any]:
    return {"spot": {"x": number}, "spots": [{"x": number}], "notes": {"k": {"x": number}}}


def new(number: int) -> dict[str, Any]:
    inner = {"x": number, "y": f"y{number}"}
    return {"spot": inner, "spots": [inner], "notes": {"k": inner}, "price": number / 2, "tags": [f"t{number}"]}


class GrownTable:
    """A pipeline with twenty records of an old schema, and then of a new one, and what readers must find."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.next = 0
        self.hour = HOUR
        self.driver = Driver(root, "iceberg", schemas=Schemas({1: OLD, 2: NEW}, [1]), **settings)
        self.driver.start()
        for schema_id in (1, 1, 2, 2):
            self.carry(schema_id)

    def carry(self, schema_id: int = 2) -> None:
        values = {}
        for offset in range(self.next, self.next + 10):
            schema, row = (OLD, old(offset)) if schema_id == 1 else (NEW, new(offset))
            values[offset] = value(
                schema_id, schema, {"id": offset, "at": self.hour + timedelta(seconds=offset), **row}
            )
            self.rows[offset] = row
        self.next += 10
        self.driver.carry([log(values)], {0: self.next})

    def compact(self) -> None:
        driver = self.driver
        snapshot = self.driver.table.snapshot()
        compactor = Compactor("clicks", driver.settings, driver.table, driver.config.stores)
        planned = compactor.plan(snapshot, compactor.buckets(snapshot), open_too=True)
        assert [result for pieces in planned.values() for result in compactor.carry_out(snapshot, pieces, here)]

    def delete(self) -> None:
        run_deletion(
            self.driver.config,
            DeletionRequest("clicks", where("id = 7"), NOW, with_dead_letters=False),
            self.driver.schemas,
            write=True,
        )
        del self.rows[7]

    def rewind(self) -> None:
        version = self.driver.table.snapshot().version
        end = self.next
        self.carry()
        assert revert_change(self.driver, version, cluster=Cluster(self.next)) == 0
        self.rows = {offset: row for offset, row in self.rows.items() if offset < end}
        self.next = end
        self.driver.start()
        self.carry()

    def rows_of_others(self, location: str = "") -> dict[int, dict[str, Any]]:
        """Return rows by offset as pyiceberg finds them by the catalog: nested fields that a file has not are null."""
        rows = its_catalog(self.driver, location or self.driver.lake).scan().to_arrow().to_pylist()
        assert len({row["_offset"] for row in rows}) == len(rows)
        return {row["_offset"]: {name: row[name] for name in new(0)} for row in rows}

    def check(self, location: str = "", offsets: Iterator[int] | range | None = None) -> None:
        rows_by_offset = self.rows_of_others(location)
        assert sorted(rows_by_offset) == sorted(self.rows if offsets is None else offsets)
        for offset, row in rows_by_offset.items():
            assert row == expected(self.rows[offset]), offset


def expected(row: dict[str, Any]) -> dict[str, Any]:
    def inner(spot: dict[str, Any]) -> dict[str, Any]:
        return {"y": None, **spot}

    return {
        "price": None,
        "tags": None,
        **row,
        "spot": inner(row["spot"]),
        "spots": [inner(spot) for spot in row["spots"]],
        "notes": [(key, inner(spot)) for key, spot in row["notes"].items()],
    }


def its_catalog(driver: Driver, location: str) -> Table:
    catalog_table = driver.config.catalog_place("clicks", location)
    assert catalog_table is not None
    files = file_settings(location, driver.config.stores)
    return load_catalog(catalog_table.catalog, **dict(catalog_table.settings), **files).load_table(
        catalog_table.identifier
    )
