"""`headrace seal`: a person closes and seals."""

from typing import Any

import pytest

from tests.support.bucket_lake import HOUR, NOON, Lake, label
from writer.cli.write.seal import SealRequest, SealResult, seal_table
from writer.core.errors import ConfigError, HeadraceError
from writer.sealing.unsealed import INDEX


def by_hand(lake: Lake, **given: Any) -> SealResult:
    wanted = {"bucket": None, "until": None, "with_gap": False, "dry_run": False, **given}
    return seal_table("events", lake.config, SealRequest(**wanted), NOON + 9 * HOUR)


def test_a_person_closes_and_seals_until_a_time_and_a_dry_run_writes_nothing(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR, NOON + 2 * HOUR)
    version = lake.table.snapshot().version
    thought = by_hand(lake, until=NOON + 2 * HOUR, dry_run=True)
    assert (lake.table.snapshot().version, lake.table.store.read(INDEX)) == (version, None)
    sealed = by_hand(lake, until=NOON + 2 * HOUR)
    assert [m["bucket"] for m in thought.sealed] == [m["bucket"] for m in sealed.sealed]
    assert [m["rows"] for m in sealed.sealed] == [10, 10]
    assert {m["reason"] for m in sealed.sealed} == {"command"}
    assert set(lake.sealer().follow().unsealed.buckets) == {label(NOON + 2 * HOUR)}
    with pytest.raises(ConfigError, match="has not come yet"):
        by_hand(lake, until=NOON + 10 * HOUR)


def test_a_person_seals_one_bucket_and_again_without_the_rest(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR)
    (one,) = by_hand(lake, bucket="2026-11-20T13").sealed
    assert (one["bucket"], lake.table.snapshot().closed_until) == (["2026-11-20T13"], NOON + 2 * HOUR)
    again = by_hand(lake, bucket="hour=2026-11-20T13")
    assert (again.sealed, "manifest 1" in again.notes[0]) == ((), True)
    lake.write(NOON + HOUR, late=10)
    (two,) = by_hand(lake, bucket="2026-11-20T13").sealed
    assert (two["version"], two["rows"], two["late"]) == (2, 20, 10)
    with pytest.raises(HeadraceError, match="no rows in hour=2026-11-20T19"):
        by_hand(lake, bucket="2026-11-20T19")
    with pytest.raises(ConfigError, match="write it as hour=…"):
        by_hand(lake, bucket="a/b")
