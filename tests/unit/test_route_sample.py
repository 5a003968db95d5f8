"""A sample of a route, split by its tables: what `validate`, `preview` and `size` say of it. No broker, no registry."""

from pathlib import Path
from typing import Any

import pytest

from tests.looking import EVENT, NOW, Schemas, config, records, value
from writer.maintenance.local_pipeline import LocalPipeline, opened
from writer.preflight.finding import Finding
from writer.preflight.route_sample import split
from writer.preflight.sample_checks import sampled_route

NAMES = {1: "Click", 2: "View"}
SCHEMAS = Schemas({number: {**EVENT, "name": name} for number, name in NAMES.items()}, [1, 2])


def good(schema_id: int = 1) -> bytes:
    return value(schema_id, EVENT, {"id": 1, "at": NOW, "note": None})


def cut(schema_id: int) -> bytes:
    """A value that ends in the middle."""
    return good(schema_id)[:-1]


def routed(root: Path, **route: Any) -> LocalPipeline:
    targets = {name: str(root / name) for name in NAMES.values()}
    return opened("clicks", config(root, route={"targets": targets, **route}), SCHEMAS, before_route=True)


def findings(root: Path, values: list[bytes], **route: Any) -> dict[str, Finding]:
    return {one.check: one for one in sampled_route(routed(root, **route), SCHEMAS, records(values), NOW)}


def test_a_schema_whose_records_all_fail_to_decode_has_no_part(tmp_path: Path) -> None:
    found = split(routed(tmp_path), records([good()] * 20 + [cut(2)]))
    assert [(part.target, part.records.num_rows) for part in found.parts] == [("Click", 20)]
    assert [one.schema_id for one in found.undecoded] == [2]
    assert found.unrouted == []


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
