"""A sample of a route, split by its tables: what `validate`, `preview` and `size` say of it. No broker, no registry."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import Cluster
from headrace.writer.maintenance.local_pipeline import LocalPipeline, open_local_pipeline
from headrace.writer.preflight.checks.finding import Finding
from headrace.writer.preflight.checks.sample_checks import route_sample_findings
from headrace.writer.preflight.samples import traffic
from headrace.writer.preflight.samples.route_sample import open_part, split
from tests.support.sample_records import EVENT, NOW, Schemas, config, records, value

NAMES = {1: "Click", 2: "View"}
SCHEMAS = Schemas({number: {**EVENT, "name": name} for number, name in NAMES.items()}, [1, 2])


def good(schema_id: int = 1) -> bytes:
    return value(schema_id, EVENT, {"id": 1, "at": NOW, "note": None})


def cut(schema_id: int) -> bytes:
    """A value that ends in the middle."""
    return good(schema_id)[:-1]


def routed(root: Path, **route: Any) -> LocalPipeline:
    targets = {name: str(root / name) for name in NAMES.values()}
    return open_local_pipeline("clicks", config(root, route={"targets": targets, **route}), SCHEMAS, before_route=True)


def findings(root: Path, values: list[bytes], **route: Any) -> dict[str, Finding]:
    return {one.check: one for one in route_sample_findings(routed(root, **route), SCHEMAS, records(values), NOW)}


def test_a_schema_whose_records_all_fail_to_decode_has_no_part(tmp_path: Path) -> None:
    found = split(routed(tmp_path), records([good()] * 20 + [cut(2)]))
    assert [(part.target, part.records.num_rows) for part in found.parts] == [("Click", 20)]
    assert [one.schema_id for one in found.undecoded] == [2]
    assert found.unrouted == []


@pytest.mark.parametrize("by", ["record", {"field": "note"}])
@pytest.mark.parametrize("with_table", [True, False])
def test_a_table_gets_the_columns_of_its_own_schemas(tmp_path: Path, by: Any, with_table: bool) -> None:
    view = {"type": "record", "name": "View", "fields": [{"name": "id", "type": "string"}, *EVENT["fields"][1:]]}
    newer = {**EVENT, "name": "Click", "fields": [*EVENT["fields"], {"name": "more", "type": "int", "default": 0}]}
    schemas = Schemas({1: {**EVENT, "name": "Click"}, 2: view, 3: newer}, [1, 2, 3])
    settings = config(tmp_path, route={"by": by, "targets": {name: str(tmp_path / name) for name in NAMES.values()}})
    walk = open_local_pipeline("clicks", settings, schemas, before_route=True)
    row = {"at": NOW, "note": "Click"}
    batch = records([value(1, EVENT, {**row, "id": 1}), value(2, view, {**row, "id": "x", "note": "View"})])
    for part in split(walk, batch).parts:
        table = open_part("clicks", part, schemas, with_table=with_table)
        assert table.decode(part.records).rows == 1
        registered = ["more"] if part.target == "Click" and by == "record" else []  # before a record brings it
        assert table.plan.columns.names == ["id", "at", "note", *registered]


@pytest.mark.parametrize("unrouted", ["stop", "dead_letters"])
def test_a_record_that_does_not_decode_never_comes_to_the_route(tmp_path: Path, unrouted: str) -> None:
    found = findings(tmp_path, [good()] * 20 + [cut(1)], unrouted=unrouted)
    assert (found["route"].status, found["route"].message) == ("ok", "1 table: Click 20")
    assert found["decode"].status == "warning"
    assert "20 of 21 values with a header are decoded; 1: " in found["decode"].message


def test_records_without_a_table_fail_a_route_that_stops(tmp_path: Path) -> None:
    values = [good()] * 20 + [good(2), cut(1)]
    targets = {"Click": str(tmp_path / "Click")}
    stops, goes_on = (
        findings(tmp_path, values, targets=targets, unrouted=one)["route"] for one in ("stop", "dead_letters")
    )
    assert (stops.status, goes_on.status) == ("failed", "warning")
    assert stops.message == goes_on.message
    assert "1 table: Click 20; 1: the route goes by the record, which is 'View'" in stops.message


def measured(root: Path, monkeypatch: pytest.MonkeyPatch, values: list[bytes], **view: Any) -> traffic.Measurement:
    """Measure the traffic of these records, 100 of them a second."""
    targets = {"Click": str(root / "Click"), "View": {"location": str(root / "View"), **view}}
    monkeypatch.setattr(kafka_sample, "spans", lambda *_: None)
    monkeypatch.setattr(kafka_sample, "read", lambda *_: records(values))
    monkeypatch.setattr(traffic, "choose_topics", lambda *_: SimpleNamespace(names=["clicks"]))
    monkeypatch.setattr(traffic, "source", lambda _: SCHEMAS)
    settings = config(root, route={"targets": targets})
    return traffic.measure_traffic("clicks", settings, Nobody(), 100, NOW, 100.0)


class Nobody(Cluster):
    """A cluster that nothing is asked of but its partitions."""

    def __init__(self) -> None:
        """Connect to nothing."""

    def sources(self, topics: Any) -> list[tuple[str, int]]:
        return [(topic, 0) for topic in topics]


def test_the_traffic_of_a_route_is_that_of_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, monkeypatch, [good()] * 30 + [good(2)] * 20)
    assert found.left_out == {}
    assert {name: one.events_per_s for name, (one, _) in found.tables.items()} == {"Click": 60.0, "View": 40.0}
    assert found.traffic.bucket_shares == pytest.approx([0.6, 0.4])
    assert found.traffic.buckets_per_day == 48
    lake = sum(one.events_per_s * one.row_bytes_parquet for one, _ in found.tables.values())
    assert found.traffic.events_per_s * found.traffic.row_bytes_parquet == pytest.approx(lake)


@pytest.mark.parametrize("bad", ["old", "no time"])
def test_a_table_that_gets_no_row_is_left_out_of_the_size_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    old = value(2, EVENT, {"id": 1, "at": NOW - timedelta(days=90), "note": None})
    view = {} if bad == "old" else {"event_time": {"field": "nope"}}
    found = measured(tmp_path, monkeypatch, [good()] * 49 + [old], **view)
    assert list(found.tables) == ["Click"]
    assert found.traffic.events_per_s == 100
    why = "1 record in the sample, and none becomes a row" if bad == "old" else "event_time"
    assert why in found.left_out["View"]
    assert "the newest 50 records of clicks" in found.looked_at
    assert "1 of them are no rows" in found.looked_at


def test_a_route_of_which_nothing_becomes_a_row_cannot_be_sized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(traffic.NothingToMeasure, match="no record of clicks becomes a row"):
        measured(tmp_path, monkeypatch, [cut(1), cut(2)])
