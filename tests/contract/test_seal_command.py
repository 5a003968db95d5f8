"""`headrace seal`: a person closes and seals."""

from typing import Any

import pytest

from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.driver.sealing.seal_request import SealRequest, SealResult, seal_buckets
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.unsealed import INDEX
from tests.support.bucket_lake import HOUR, NOON, Lake, label


def seal(lake: Lake, bucket: str | None = None, **request: Any) -> SealResult:
    selection = None if bucket is None else parse_buckets(bucket, lake.sealer().bucketer)
    return seal_buckets("events", lake.config, SealRequest(selection, **request), NOON + 9 * HOUR)


def test_a_person_closes_and_seals_until_a_time_and_a_dry_run_writes_nothing(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR, NOON + 2 * HOUR)
    version = lake.table.snapshot().version
    preview = seal(lake, until=NOON + 2 * HOUR, dry_run=True)
    assert (lake.table.snapshot().version, lake.table.store.read(INDEX)) == (version, None)
    assert preview.closes_buckets
    result = seal(lake, until=NOON + 2 * HOUR)
    assert [manifest.bucket for manifest in preview.manifests] == [manifest.bucket for manifest in result.manifests]
    assert [manifest.rows for manifest in result.manifests] == [10, 10]
    assert {manifest.reason for manifest in result.manifests} == {"command"}
    assert set(lake.sealer().follow().unsealed.buckets) == {label(NOON + 2 * HOUR)}
    with pytest.raises(ConfigError, match="has not come yet"):
        seal(lake, until=NOON + 10 * HOUR)


def test_a_person_seals_one_bucket_and_again_after_late_rows(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR)
    (manifest,) = seal(lake, "2026-11-20T13").manifests
    assert (manifest.bucket, lake.table.snapshot().closed_until) == (("2026-11-20T13",), NOON + 2 * HOUR)
    again = seal(lake, "hour=2026-11-20T13")
    assert (again.manifests, "manifest 1" in again.notes[0]) == ((), True)
    lake.write(NOON + HOUR, late=10)
    (manifest,) = seal(lake, "2026-11-20 13:00").manifests
    assert (manifest.version, manifest.rows, manifest.late) == (2, 20, 10)
    with pytest.raises(HeadraceError, match="no rows in hour=2026-11-20T19"):
        seal(lake, "2026-11-20T19")
    with pytest.raises(ConfigError, match="They are named hour=2026-11-20T05"):
        seal(lake, "a/b")


def test_a_person_seals_a_day_or_a_range_of_buckets(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR)
    first = seal(lake, "2026-11-20T12..2026-11-20T13")
    assert [manifest.bucket for manifest in first.manifests] == [label(NOON), label(NOON + HOUR)]
    rest = seal(lake, "2026-11-20")
    assert [manifest.bucket for manifest in rest.manifests] == [label(NOON + 2 * HOUR), label(NOON + 3 * HOUR)]
    assert lake.table.snapshot().closed_until == NOON + 4 * HOUR
    again = seal(lake, "2026-11-20")
    assert (again.manifests, len(again.notes)) == ((), 4)
    with pytest.raises(HeadraceError, match="no rows in 2026-11-19: there is nothing to seal"):
        seal(lake, "2026-11-19")
