"""From events to analysts: what was sealed is the same number in every engine, and again after late events."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.bench.engines.statement import Coordinator
from headrace.writer.config.loader import load
from headrace.writer.hooks.dispatcher import hook_health
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.sealer import Sealer
from tests.engines.engines import delta_view
from tests.engines.events import HOURS, Produced, Row
from tests.servers.druid import Druid
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1200)]
HOUR = "2026-11-20T05"
BUCKET = (HOUR,)
_BY_HOUR = f"hour = '{HOUR}'"
_BY_TIME = "TIME_FLOOR(__time, 'PT1H') = TIMESTAMP '2026-11-20 05:00:00'"
Ask = Callable[[], Sequence[Any]]


def test_late_events_change_the_number_of_a_sealed_hour_in_all_five_engines(
    lakes: Path, bootstrap: str, registry_url: str, topic: Callable[..., str], trino: Coordinator, presto: Coordinator,
    druid: Druid, spark: Any,
) -> None:  # fmt: skip
    """Events, a seal, one number; late events, another seal, one new number. Druid knows only what the hook told it."""
    name = topic(2, prefix="sealed")
    site = Site(lakes / "sealed_site", bootstrap, registry_url)
    site.root.mkdir()
    location = lakes / "sealed"
    site.pipeline(
        "events", [name], table={"location": str(location)}, commit={"max_delay": "2 s"},
        seal={"enabled": True, "after": None, "reopen_after": "2 s"},
        hooks=[
            {"type": "trino", "url": trino.url, "table": "delta.lake.sealed", "location": "local:///sealed"},
            {"type": "presto", "url": presto.url, "table": "delta.lake.sealed", "location": f"file://{location}"},
            {"type": "druid", "url": druid.overlord, "datasource": "sealed"},
        ],
    )  # fmt: skip
    asks = {
        "trino": lambda: trino.ask(_number("delta.lake.sealed", _BY_HOUR)).rows,
        "presto": lambda: presto.ask(_number("delta.lake.sealed", _BY_HOUR)).rows,
        "druid": lambda: druid.ask(_number('"sealed"', _BY_TIME)),
        "spark": lambda: spark.sql(_number(f"delta.`{location}`", _BY_HOUR)).collect(),
        "duckdb": lambda: _duckdb(str(location)),
    }
    produced = Produced()
    in_hour = lambda start, stop: range(start * HOURS, stop * HOURS, HOURS)  # noqa: E731
    produced.send(bootstrap, registry_url, name, in_hour(0, 200), later=False)
    early = list(produced.rows)
    produced.send(bootstrap, registry_url, name, [n + 1 for n in in_hour(0, 100)], later=False)  # the hour after
    writer = site.start()
    first = _sealed(writer, site, version=1)
    assert (first.rows, first.late) == (200, 0)
    _agree(writer, site, asks, early, seals=1)
    produced.send(bootstrap, registry_url, name, in_hour(200, 250), later=True)
    second = _sealed(writer, site, version=2)
    assert (second.rows, second.added, second.late) == (250, 50, 50)
    _agree(writer, site, asks, [row for row in produced.rows if row["hour"] == HOUR], seals=2)
    writer.stop()
    command = [sys.executable, "-m", "headrace.writer.cli", "audit", str(site.config), "--deep", "--json"]
    audit = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout)
    pipeline_document = audit["pipelines"]["events"]
    assert pipeline_document["adds_up"], pipeline_document
    assert pipeline_document["records"]["rows"] == len(produced.rows) == 350


def _number(table: str, where: str) -> str:
    """Rows, distinct ids, their sum, and money: what an analyst asks of one hour."""
    return f"SELECT count(*), count(DISTINCT id), sum(id), CAST(sum(price) AS double) FROM {table} WHERE {where}"


def _duckdb(location: str) -> Sequence[Any]:
    with duckdb.connect() as connection:
        delta_view(connection, "sealed", location, DeltaTable(location).metadata().partition_columns)
        return connection.execute(_number("sealed", _BY_HOUR)).fetchall()


def _agree(writer: Writer, site: Site, asks: Mapping[str, Ask], rows: Sequence[Row], *, seals: int) -> None:
    """Wait until all hooks have delivered and each engine answers what the events say, and all of them stay with it."""
    ids = [row["id"] for row in rows]
    money = float(sum((row["price"] for row in rows), Decimal(0)))
    expected = (len(ids), len(set(ids)), sum(ids), money)
    config = load(site.config)
    writer.until(
        lambda: {(value.delivered, value.waiting) for value in hook_health("events", config).values()} == {(seals, 0)},
        300,
    )
    answers: dict[str, Any] = {}

    def right() -> bool:
        for engine in asks:
            try:
                ((rows, distinct, total, price),) = asks[engine]()
                answers[engine] = (rows, distinct, total, round(price or 0, 2))
            except AssertionError as error:  # Druid's broker has not heard of the datasource yet
                answers[engine] = error
        return all(answer == expected for answer in answers.values())

    deadline = time.monotonic() + 120  # Druid lets go of the old segments a moment after it has the new ones
    while not right():
        assert time.monotonic() < deadline, (answers, expected)
        time.sleep(1)
    assert right(), (answers, expected)


def _sealed(writer: Writer, site: Site, *, version: int) -> Manifest:
    """Wait until the hour is sealed in a version. Returns its manifest."""
    manifests = Sealer("events", load(site.config)).manifests
    writer.until(lambda: manifests.read(BUCKET, version) is not None, 300)
    manifest = manifests.newest(BUCKET)
    assert manifest is not None
    assert manifest.version == version
    return manifest
