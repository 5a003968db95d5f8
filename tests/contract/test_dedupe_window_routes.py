"""Repeats that come hours later to one table of a route go there, and nothing of its other tables does."""

from pathlib import Path

import pytest

from headrace.writer.cli.maintain.compact import open_compaction
from tests.support.dedupe_window import bucket
from tests.support.routed_window import Routed


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_repeat_of_an_earlier_bucket_goes_from_its_table_alone(tmp_path: Path, form: str) -> None:
    lake = Routed(tmp_path, form)
    lake.carry([(1, 1, 0), (2, 1, 0), (1, 2, 0)])
    first = lake.seal(2)
    lake.carry([(1, 1, 2), (2, 1, 2), (1, 3, 4), (2, 1, 4)])
    sealer = lake.seal(5)
    assert lake.offsets(lake.places["Event"]) == [0, 2, 5]
    assert lake.offsets(lake.places["Other"]) == [1, 4, 6], "without dedupe each stays, whatever the other table has"
    assert len(first.sealed) == 1
    manifests = {
        manifest.bucket: (manifest.version, manifest.rows, manifest.deduped) for manifest in sealer.manifests.all()
    }
    assert manifests == {bucket(0): (1, 2, 0), bucket(2): (1, 0, 1), bucket(4): (1, 1, 0)}
    lake.check(rows=1)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_late_rows_and_those_that_kafka_had_first_are_judged_in_a_table_of_a_route(tmp_path: Path, form: str) -> None:
    lake = Routed(tmp_path, form, seal={"late": "late_table"})
    place = f"{lake.places['Event']}_late"
    lake.carry([(1, 1, 2), (2, 1, 2), (1, 2, 4)])
    lake.seal(5, late=True)
    lake.carry([(1, 1, 0), (1, 2, 0), (2, 1, 0), (1, 3, 4), (1, 3, 3)], came=5)  # the second lies outside the window
    lake.seal(5, late=True)
    assert (lake.offsets(lake.places["Event"]), lake.offsets(place)) == ([0, 2], [4, 6])
    assert lake.offsets(lake.places["Other"]) == [1, 5]
    lake.check(rows=0, late=2)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_buckets_from_before_the_window_are_deduped_by_the_command(tmp_path: Path, form: str) -> None:
    old = Routed(tmp_path, form, {"key": ["id"]})
    old.carry([(1, 1, 0), (2, 1, 0), (1, 1, 2), (1, 2, 2), (2, 1, 2)])
    old.seal(4)
    lake = Routed(tmp_path, form)
    assert lake.offsets(lake.places["Event"]) == [0, 2, 3]
    settings = lake.config.at_target("clicks", "Event")
    assert sum(result.taken for result in open_compaction("clicks", settings, None).carry_out()) == 1
    assert (lake.offsets(lake.places["Event"]), lake.offsets(lake.places["Other"])) == ([0, 3], [1, 4])
    manifests = {manifest.bucket: (manifest.version, manifest.rows) for manifest in lake.seal(4).manifests.all()}
    assert manifests == {bucket(0): (1, 1), bucket(2): (2, 1)}
    lake.check(rows=1)
