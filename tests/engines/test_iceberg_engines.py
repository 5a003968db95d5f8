"""Spark, Trino, DuckDB and pyiceberg as readers of headrace's Iceberg tables: after each step, the produced numbers.

All find the tables in one REST catalog. One table lies on a local disk, one in S3, which is all that Trino reads.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan

from headrace.bench.engines.statement import Coordinator
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import describe_table
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.servers import duckdb_extensions
from tests.servers.iceberg_rest import iceberg_rest
from tests.servers.objects import ObjectServer
from tests.servers.trino import trino
from tests.support.grown_iceberg import GrownTable
from tests.support.local_driver import Driver, log
from tests.support.reverted_change import revert_change
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import EVENT, NOW, value

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
FIRST = NOW.replace(minute=0) - timedelta(hours=4)
HOURS = [FIRST + timedelta(hours=n) for n in range(3)]
Rows = dict[int, datetime]  # offset, which is the id, too → event time
Ask = Callable[[str], Sequence[Sequence[Any]]]


@pytest.fixture(scope="module")
def url(s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with iceberg_rest(tmp_path_factory.mktemp("rest"), s3) as server:
        yield server


@pytest.fixture(scope="module")
def trino_iceberg(url: str, s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    catalog = {"connector.name": "iceberg", "iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": url}
    with trino(tmp_path_factory.mktemp("trino"), tmp_path_factory.mktemp("lakes"), s3, catalog) as server:
        yield server


class Produced:
    """A table that is written step by step, and the rows that it must show."""

    def __init__(self, root: Path, url: str, s3: ObjectServer, location: str, name: str) -> None:
        self.rows: Rows = {}
        self.next = 0
        self.root, self.table = root, {"location": location, "name": name}
        self.sections = {"catalog": {"type": "rest", "uri": url}, "s3": {"endpoint": s3.url}}
        self.driver = self.started()

    def started(self) -> Driver:
        driver = Driver(self.root, "iceberg", sections=self.sections, table=self.table)
        driver.start()
        return driver

    def carry(self, hour: datetime, count: int) -> None:
        new = {self.next + n: hour + timedelta(seconds=n) for n in range(count)}
        self.next += count
        self.rows |= new
        values = {offset: value(1, EVENT, {"id": offset, "at": when, "note": None}) for offset, when in new.items()}
        self.driver.carry([log(values)], {0: self.next})

    def steps(self) -> Iterator[str]:
        """Write, a step at a time. Yields what was done."""
        for hour in (*HOURS, *HOURS):
            self.carry(hour, 20)
        yield "commits"
        compactor = Compactor("clicks", self.driver.settings, self.driver.table, self.driver.config.stores)
        snapshot = self.driver.table.snapshot()
        for pieces in compactor.plan(snapshot, compactor.buckets(snapshot), open_too=True).values():
            assert list(compactor.carry_out(snapshot, pieces, here))
        yield "compaction"
        self.carry(HOURS[0] + timedelta(minutes=30), 1)
        yield "late row"
        run_deletion(
            self.driver.config,
            DeletionRequest("clicks", where("id = 7"), NOW, with_dead_letters=False),
            self.driver.schemas,
            write=True,
        )
        del self.rows[7]
        yield "delete-rows"
        version, end = self.driver.table.snapshot().version, self.next
        self.carry(HOURS[1], 5)
        assert revert_change(self.driver, version, cluster=Cluster(self.next)) == 0
        self.rows = {offset: when for offset, when in self.rows.items() if offset < end}
        self.next, self.driver = end, self.started()
        self.carry(HOURS[2] + timedelta(minutes=1), 3)
        yield "rewind"

    def description(self) -> Any:
        return describe_table("clicks", self.driver.config, self.driver.table)


def check(produced: Produced, engine: str, ask: Ask, view: str, step: str) -> None:
    """Ask for all rows, those of a bucket, those of a time, and where a row came from: the documented query."""
    rows, hour, late = produced.rows, HOURS[1], FIRST + timedelta(minutes=30)
    column, kind = {"spark": ("at", "TIMESTAMP"), "duckdb": ('"at"', "TIMESTAMPTZ")}.get(engine, ('"at"', "TIMESTAMP"))
    start, end = (f"{kind} '{when:%Y-%m-%d %H:%M:%S}+00:00'" for when in (late, hour))
    conditions = {
        "1 = 1": list(rows),
        f"hour = '{hour:%Y-%m-%dT%H}'": [
            offset for offset, when in rows.items() if hour <= when < hour + timedelta(hours=1)
        ],
        f"{column} >= {start} AND {column} < {end}": [offset for offset, when in rows.items() if late <= when < hour],
    }
    for condition, expected in conditions.items():
        ((count, total),) = ask(f"SELECT count(*), sum(id) FROM {view} WHERE {condition}")
        assert (int(count), int(total or 0)) == (len(expected), sum(expected)), (engine, step, condition)
    ids = ask(f"SELECT id FROM {view} WHERE _topic = 'clicks' AND _partition = 0 AND _offset = 30")
    assert [int(row_id) for (row_id,) in ids] == [30], (engine, step)


def test_spark_and_duckdb_read_a_table_on_a_local_disk(spark: Any, url: str, s3: ObjectServer, tmp_path: Path) -> None:
    produced = Produced(tmp_path, url, s3, str(tmp_path / "lake" / "clicks"), "local.clicks")
    for step in produced.steps():
        for statement in registration(produced.description(), "spark", name=None, location=None):
            spark.sql(statement)
        check(produced, "spark", lambda sql: [tuple(row) for row in spark.sql(sql).collect()], "clicks", step)
        told = registration(produced.description(), "duckdb", name=None, location=None)
        check(produced, "duckdb", lambda sql, told=told: duckdb_extensions.ask([*told, sql]), "clicks", step)  # type: ignore[misc]
        _pyiceberg(produced, step)
    audited(produced)


def test_trino_and_duckdb_read_a_table_in_s3(
    trino_iceberg: Coordinator, url: str, s3: ObjectServer, tmp_path: Path
) -> None:
    produced = Produced(tmp_path, url, s3, f"{s3.bucket()}/lake/clicks", "remote.clicks")
    secret = (
        f"CREATE OR REPLACE SECRET lake (TYPE s3, KEY_ID '{s3.key}', SECRET '{s3.secret}', URL_STYLE 'path', "
        f"ENDPOINT '{s3.url.removeprefix('http://')}', USE_SSL false, REGION 'us-east-1')"
    )
    for step in produced.steps():
        for statement in registration(produced.description(), "trino", name=None, location=None):
            trino_iceberg.ask(statement)
        view = "headrace.remote.clicks_view"
        check(produced, "trino", lambda sql: trino_iceberg.ask(sql).rows, view, step)
        told = [
            secret if "SECRET lake" in column else column
            for column in registration(produced.description(), "duckdb", name=None, location=None)
        ]
        check(produced, "duckdb", lambda sql, told=told: duckdb_extensions.ask([*told, sql]), "clicks", step)  # type: ignore[misc]
        _pyiceberg(produced, step)
    audited(produced)
    _prunes(trino_iceberg)
    # Trino deletes by delete files, whatever the table's properties say. No rewrite of ours brings the rows back.
    trino_iceberg.ask("DELETE FROM headrace.remote.clicks WHERE id < 3")
    produced.rows = {offset: when for offset, when in produced.rows.items() if offset >= 3}
    check(produced, "trino", lambda sql: trino_iceberg.ask(sql).rows, view, "DELETE")
    compactor = Compactor("clicks", produced.driver.settings, produced.driver.table, produced.driver.config.stores)
    snapshot = produced.driver.table.snapshot()
    (first,) = {
        file.bucket for file in produced.driver.table.bucket_files(snapshot) if file.bucket[0] == f"{FIRST:%Y-%m-%dT%H}"
    }
    pieces = compactor.plan(snapshot, [first], open_too=True)[first]
    with pytest.raises(ForeignChange, match="by delete files"):
        list(compactor.carry_out(snapshot, pieces, here))
    produced.carry(HOURS[2], 2)
    trino_iceberg.ask("ALTER TABLE headrace.remote.clicks EXECUTE optimize")
    produced.driver = produced.started()
    produced.carry(HOURS[0], 2)
    check(produced, "trino", lambda sql: trino_iceberg.ask(sql).rows, view, "optimize")
    audited(produced)


# What each engine calls values of columns that came later: at the top, in a struct, in a list, and in a map. Iceberg's
# reader in Spark fails where nothing of a map that an older file has is asked for.
LATER = "_offset, price, spot.y, spots[{}].y, notes['k'].y, tags[{}], spot.x, spots[{}].x, notes['k'].x"


def check_later(grown: GrownTable, engine: str, ask: Ask, view: str) -> None:
    """Ask for the values of columns that came later, of rows from before and after."""
    expected = {}
    for offset, row in grown.rows.items():
        y, tags = (row[name].get("y") if name == "spot" else row.get(name) for name in ("spot", "tags"))
        expected[offset] = (offset, row.get("price"), y, y, y, tags and tags[0], *[row["spot"]["x"]] * 3)
    columns = LATER.replace("{}", "0" if engine == "spark" else "1")
    rows_found = {row[0]: tuple(row) for row in ask(f"SELECT {columns} FROM {view}")}
    assert rows_found == expected, engine
    price = sum(row["price"] for row in grown.rows.values() if "price" in row and row["price"] >= 12)
    ((total,),) = ask(f"SELECT sum(price) FROM {view} WHERE price >= 12")
    assert float(total) == price, engine


def later_steps(grown: GrownTable) -> Iterator[str]:
    yield "commits"
    for step in (grown.compact, grown.delete, grown.rewind):
        step()
        grown.check()
        yield step.__name__


def test_spark_and_duckdb_find_values_of_columns_that_came_later(
    spark: Any, url: str, s3: ObjectServer, tmp_path: Path
) -> None:
    sections = {"catalog": {"type": "rest", "uri": url}, "s3": {"endpoint": s3.url}}
    grown = GrownTable(tmp_path, sections=sections, table={"name": "later.clicks"})
    for _ in later_steps(grown):
        description = describe_table("clicks", grown.driver.config, grown.driver.table)
        for statement in registration(description, "spark", name=None, location=None):
            spark.sql(statement)
        check_later(grown, "spark", lambda sql: spark.sql(sql).collect(), "clicks")
        told = registration(description, "duckdb", name=None, location=None)
        check_later(grown, "duckdb", lambda sql, told=told: duckdb_extensions.ask([*told, sql]), "clicks")  # type: ignore[misc]


def test_trino_finds_values_of_columns_that_came_later(
    trino_iceberg: Coordinator, url: str, s3: ObjectServer, tmp_path: Path
) -> None:
    sections = {"catalog": {"type": "rest", "uri": url}, "s3": {"endpoint": s3.url}}
    table = {"location": f"{s3.bucket()}/lake/clicks", "name": "later_remote.clicks"}
    grown = GrownTable(tmp_path, sections=sections, table=table)
    for _ in later_steps(grown):
        for statement in registration(
            describe_table("clicks", grown.driver.config, grown.driver.table), "trino", name=None, location=None
        ):
            trino_iceberg.ask(statement)
        check_later(grown, "trino", lambda sql: trino_iceberg.ask(sql).rows, "headrace.later_remote.clicks_view")


def audited(produced: Produced) -> None:
    for deep in (False, True):
        report = audit(produced.driver.config, "clicks", since=None, deep=deep)
        assert report.adds_up, report.problems


def _prunes(server: Coordinator) -> None:
    """Check that Trino opens the files of one bucket, and those of one time, alone."""
    conditions = ("1 = 1", f"hour = '{HOURS[1]:%Y-%m-%dT%H}'", f"\"at\" < TIMESTAMP '{FIRST:%Y-%m-%d %H:%M:%S}.5 UTC'")
    everything, bucket, time = (
        server.ask(f"SELECT count(id), max(_offset) FROM headrace.remote.clicks WHERE {condition}").stats[
            "completedSplits"
        ]
        for condition in conditions
    )
    assert max(bucket, time) < everything


def _pyiceberg(produced: Produced, step: str) -> None:
    catalog_table = produced.driver.config.catalog_place("clicks", produced.driver.lake)
    assert catalog_table is not None
    settings = catalog_client.file_settings(produced.driver.lake, produced.driver.config.stores)
    table = load_catalog(catalog_table.catalog, **dict(catalog_table.settings), **settings).load_table(
        catalog_table.identifier
    )
    assert sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()) == sorted(produced.rows), step
    every = len(list(table.scan().plan_files()))
    hour = HOURS[1]
    of_bucket = table.scan(EqualTo("hour", f"{hour:%Y-%m-%dT%H}"))
    of_time = table.scan(
        And(GreaterThanOrEqual("at", hour.isoformat()), LessThan("at", (hour + timedelta(hours=1)).isoformat()))
    )
    expected = sorted(offset for offset, when in produced.rows.items() if hour <= when < hour + timedelta(hours=1))
    for scan in (of_bucket, of_time):
        assert sorted(scan.to_arrow()["id"].to_pylist()) == expected, step
        assert len(list(scan.plan_files())) < every, step
