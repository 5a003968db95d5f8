"""Hooks and the texts of `headrace ddl` on the real Trino, Presto and Druid: what was sealed is what they answer."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bucketers import EventTime
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import describe_table
from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.dispatcher import deliveries
from headrace.writer.sealing.bucket_selection import parse_buckets
from tests.support.sealed_lake import SealedLake

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
FORMATS = ["delta", "parquet"]
CATALOG = {"delta": "delta", "parquet": "hive"}
PER_HOUR = "SELECT hour, count(*), count(DISTINCT _offset), sum(id), max(attrs.x) FROM {} GROUP BY hour ORDER BY hour"


@pytest.fixture
def root(lakes: Path) -> Path:
    return lakes


def lake_at(root: Path, name: str, form: str, **hook: Any) -> tuple[SealedLake, HookDelivery]:
    lake = SealedLake(root / f"{name}_site", form, location=str(root / name), hooks=[hook])
    (delivery,) = deliveries("clicks", lake.config)
    delivery.run_round(datetime.now(UTC))
    return lake, delivery


def hours(*held: tuple[int, range]) -> list[list[Any]]:
    """What PER_HOUR must answer: hour, and the ids that are in it. The oracle is what was produced."""
    by_hour: dict[int, list[int]] = {}
    for hour, ids in held:
        by_hour.setdefault(hour, []).extend(ids)
    return [
        [f"2026-11-20T{hour:02}", len(ids), len(ids), sum(ids), max(n % 11 for n in ids)]
        for hour, ids in sorted(by_hour.items())
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_trino_answers_what_was_sealed_and_what_came_late(root: Path, trino: Any, form: str):
    name = f"trino_{form}"
    table = f"{CATALOG[form]}.lake.{name}"
    lake, delivery = lake_at(
        root,
        name,
        form,
        type="trino",
        url=trino.url,
        table=table,
        location=f"local:///{name}",
        analyze=form == "parquet",
    )
    _answers(lake, delivery, lambda: [list(row) for row in trino.ask(PER_HOUR.format(table)).rows])
    ((least,),) = trino.ask(f"SELECT CAST(min(at) AS varchar) FROM {table}").rows
    assert least.startswith("2026-11-20 05:00:00.000007" if form == "parquet" else "2026-11-20 05:00:00.000")


@pytest.mark.parametrize("form", FORMATS)
def test_presto_answers_what_was_sealed_and_what_came_late(root: Path, presto: Any, form: str):
    name = f"presto_{form}"
    table = f"{CATALOG[form]}.lake.{name}"
    lake, delivery = lake_at(
        root, name, form, type="presto", url=presto.url, table=table, location=f"file://{root}/{name}"
    )
    _answers(lake, delivery, lambda: [list(row) for row in presto.ask(PER_HOUR.format(table)).rows])


def _answers(lake: SealedLake, delivery: HookDelivery, ask: Callable[[], list[list[Any]]]) -> None:
    assert delivery.hook.check()
    lake.add(5, 100)
    lake.seal(5)
    assert delivery.run_round(datetime.now(UTC)).delivered == 1, delivery.health.error
    assert ask() == hours((5, range(100)))
    lake.add(6, 3)
    lake.add(5, 10, minute=30)
    lake.seal(5)
    lake.seal(6)
    assert delivery.run_round(datetime.now(UTC)).pending == (), delivery.health.error
    assert ask() == hours((5, range(100)), (6, range(100, 103)), (5, range(103, 113)))


def test_a_column_that_came_later_is_read_by_trino_in_new_and_in_older_partitions(root: Path, trino: Any):
    """Of a Parquet table, whose partitions keep the columns that they began with."""
    lake, delivery = lake_at(
        root, "grown", "parquet", type="trino", url=trino.url, table="hive.lake.grown", location="local:///grown"
    )  # fmt: skip
    lake.add(5, 10)
    lake.seal(5)
    delivery.run_round(datetime.now(UTC))
    lake.table.grow([pa.field("extra", pa.int64())], lake.epoch)
    lake.extra = True
    lake.add(5, 4, minute=30)
    lake.add(6, 2)
    lake.seal(5)
    lake.seal(6)
    assert delivery.run_round(datetime.now(UTC)).pending == (), delivery.health.error
    answer = trino.ask(
        "SELECT hour, count(*), count(extra), sum(extra) FROM hive.lake.grown GROUP BY 1 ORDER BY 1"
    ).rows
    assert [tuple(row) for row in answer] == [
        ("2026-11-20T05", 14, 4, 10 + 11 + 12 + 13), ("2026-11-20T06", 2, 2, 14 + 15),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [*FORMATS, "iceberg"])
def test_druid_has_each_row_of_a_bucket_once_however_often_it_is_sealed(root: Path, druid: Any, form: str):
    name = f"druid_{form}"
    lake, delivery = lake_at(root, name, form, type="druid", url=druid.overlord, datasource=name)
    assert delivery.hook.check()
    lake.add(5, 100)
    lake.seal(5)
    _delivered(delivery)
    _served(druid, name, hours((5, range(100))))
    lake.add(6, 3)
    lake.add(5, 10, minute=30)
    lake.add(7, 1)
    lake.seal(5)
    lake.seal(6)
    _delivered(delivery)
    _served(druid, name, hours((5, range(100)), (6, range(100, 103)), (5, range(103, 113))))
    _delivered(delivery, again="2026-11-20T05")  # by hand, once more
    _served(druid, name, hours((5, range(100)), (6, range(100, 103)), (5, range(103, 113))))


def test_a_file_that_druid_does_not_find_is_a_failure_and_not_a_bucket_without_it(root: Path, druid: Any):
    lake, delivery = lake_at(root, "druid_lost", "delta", type="druid", url=druid.overlord, datasource="druid_lost")
    lake.add(5, 100)
    lake.seal(5)
    (file,) = (root / "druid_lost").glob("hour=*/*.parquet")
    renamed = file.rename(root / "kept.parquet")
    _delivered(delivery, tries=1)
    assert "took 0 of 100 rows" in delivery.health.error
    renamed.rename(file)
    delivery.make_due()
    _delivered(delivery)
    _served(druid, "druid_lost", hours((5, range(100))))


def test_druid_takes_the_task_of_a_whole_table(root: Path, druid: Any):
    lake = SealedLake(root / "whole_site", "parquet", location=str(root / "whole"))
    lake.add(5, 20)
    lake.add(6, 5)
    spec = registration(describe_table("clicks", lake.config, lake.table), "druid", name="whole", location=None)
    druid.ingest(spec)
    _served(druid, "whole", hours((5, range(20)), (6, range(20, 25))))


@pytest.mark.parametrize("form", FORMATS)
def test_the_texts_of_ddl_run_in_trino_and_presto(root: Path, trino: Any, presto: Any, form: str):
    name = f"ddl_{form}"
    lake = SealedLake(root / f"{name}_site", form, location=str(root / name))
    lake.add(5, 20)
    description = describe_table("clicks", lake.config, lake.table)
    table = f"{CATALOG[form]}.lake.{name}"
    for engine, server, location in (("trino", trino, f"local:///{name}"), ("presto", presto, f"file://{root}/{name}")):
        for statement in registration(description, engine, name=table, location=location):
            if not statement.startswith("SET SESSION"):  # of a session; each request here has its own
                server.ask(statement)
        assert [list(row) for row in server.ask(PER_HOUR.format(table)).rows] == hours((5, range(20)))


def _delivered(delivery: HookDelivery, *, again: str = "", tries: int = 0) -> None:
    if again:
        delivery.redeliver(parse_buckets(again, EventTime(timedelta(hours=1))))
    deadline = time.monotonic() + 120
    while (box := delivery.run_round(datetime.now(UTC))).pending:
        if tries and box.pending[0].attempts >= tries:
            return
        assert time.monotonic() < deadline, box
        assert tries or not delivery.health.error, delivery.health.error
        time.sleep(0.3)
    assert not tries


def _served(druid: Any, name: str, expected: list[list[Any]]) -> None:
    """Wait until Druid answers what it must: it lets go of the old segments a moment after it has the new ones."""
    sql = f"""SELECT TIME_FORMAT(TIME_FLOOR(__time, 'PT1H'), 'yyyy-MM-dd''T''HH'), COUNT(*), COUNT(DISTINCT "_offset"),
      SUM(id), MAX(JSON_VALUE(attrs, '$.x' RETURNING BIGINT)) FROM "{name}" GROUP BY 1 ORDER BY 1"""
    deadline = time.monotonic() + 90
    answer: Any = None
    while answer != expected:
        assert time.monotonic() < deadline, (answer, expected)
        try:
            answer = [list(row) for row in druid.ask(sql)]
        except AssertionError as error:
            if "not found" not in str(error):  # the broker has not heard of the datasource yet
                raise
            answer = error
        time.sleep(0.3)
