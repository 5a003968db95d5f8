"""Rows deleted beside a real writer, and a real writer that goes on in a table that another one made."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import NOW, Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def audited(site: Site) -> dict:
    return dict(json.loads(say("audit", str(site.config), "--deep", "--json"))["pipelines"]["events"])


def germans(lake: Path) -> int:
    return sum(1 for (country,) in oracle.rows(lake, "country") if country == "DE")


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_rows_are_deleted_beside_the_writer_and_nothing_else_is_lost(site: Site, topic: MakeTopic, form: str) -> None:
    name = topic(2)
    lake = site.root / "lake" / "events"
    site.pipeline("events", [name], commit={"max_delay": "1 s"}, table={"location": str(lake), "format": form})
    site.fill(name, 3_000, broken=5)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1 and len(oracle.rows(lake, "1")) == 3_000)
    meant = germans(lake)
    assert meant > 0
    config, where = str(site.config), "country = 'DE'"
    more = [site.fill(name, 300, seed=seed) for seed in (11, 12, 13)]
    document = json.loads(say("delete-rows", config, "--where", where, "--yes", "--json"))
    taken = sum(one["rows"] for one in document["table"]["deleted"])
    assert taken >= meant, "and perhaps some that came meanwhile"
    writer.until(lambda: len(oracle.rows(lake, "1")) == 3_000 + sum(more) - taken)
    writer.stop()
    again = json.loads(say("delete-rows", config, "--where", where, "--yes", "--json"))
    taken += sum(one["rows"] for one in again["table"]["deleted"])
    assert germans(lake) == 0
    found = audited(site)
    assert (found["adds_up"], found["rows_removed_by"], found["records"]["rows"]) == (
        True, {"delete": taken}, 3_000 + sum(more),
    )  # fmt: skip
    assert len(oracle.rows(lake, "1")) == 3_000 + sum(more) - taken
    site.once()
    assert audited(site)["adds_up"]


def test_a_writer_goes_on_in_a_table_that_another_one_made(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    times = [NOW - timedelta(hours=n % 4) for n in range(20)]
    old = pa.table(
        {
            "event_id": [f"old-{n}" for n in range(20)], "event_time": pa.array(times, pa.timestamp("us", "UTC")),
            "note": ["of before"] * 20, "hour": [f"{at:%Y-%m-%dT%H}" for at in times],
        }
    )  # fmt: skip
    site.fill(name, 100)
    lake = site.pipeline("events", [name], start={"offsets": {name: {0: 40}}})
    write_deltalake(str(lake), old, partition_by=["hour"])
    assert "`headrace table adopt`" in site.once(code=2)
    document = json.loads(say("table", "adopt", str(site.config), "--yes", "--json"))
    assert (document["rows"], document["version"]) == (20, 1)
    site.once()
    found = audited(site)
    assert (found["adds_up"], found["rows_adopted"], found["records"]["rows"]) == (True, 20, 60)
    rows = DeltaTable(str(lake)).to_pyarrow_table()
    assert rows.num_rows == 80
    assert rows.filter(pa.compute.equal(rows.column("note"), "of before")).column("_offset").null_count == 20
    assert sorted(rows.column("_offset").drop_null().to_pylist()) == list(range(40, 100))
    say("delete-rows", str(site.config), "--where", "event_id = 'old-3'", "--yes")
    assert audited(site)["adds_up"]
