"""A wrong key of dedupe: a bucket of which most rows would go is blocked, until a person has seen it and says yes."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, strategies as st
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.batch.staging.sorting import TakenLimit
from headrace.writer.cli.main import app
from headrace.writer.core.errors import HeadraceError
from headrace.writer.driver.sealing.steps import beside_seals, seal_due
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.sealing.sealer import Sealer
from tests.support import oracle
from tests.support.sealed_lake import DAY, SealedLake

# Of seven users; more than half of the rows of each hour repeat one.
USERS, ROWS = 7, 70
LATER = DAY + timedelta(hours=8)
REASON = (
    "dedupe by user would take 63 of 70 rows of hour=2026-11-20T05 (90%), more than compact.dedupe.max_taken_ratio 0.5 "
    "allows. If they are repeats, `headrace compact --bucket hour=2026-11-20T05 --yes` takes them; if not, correct "
    "compact.dedupe.key"
)


def lake_of(root: Path, form: str, **dedupe: Any) -> SealedLake:
    """Return a table with a closed hour, 05."""
    compact = {"at_seal": True, "dedupe": {"key": ["user"], "min_taken_rows": 10, **dedupe}}
    lake = SealedLake(root, form, compact=compact)
    lake.add(5, ROWS)
    lake.close(5)
    return lake


def driver_of(lake: SealedLake) -> Sealer:
    """Return what a driver seals with."""
    sealer = Sealer("clicks", lake.config)
    beside_seals(sealer, lake.config, here)
    return sealer


def blocked(sealer: Sealer, minutes: int = 0) -> dict[str, str]:
    """Return the buckets that are shown as blocked, with the reason."""
    now = LATER + timedelta(minutes=minutes)
    return dict(sealer.bucket_counts(sealer.follow(), now).blocked)


def compact(lake: SealedLake, root: Path, *flags: str) -> str:
    path = root / "headrace.yaml"
    raw = json.loads(lake.config.model_dump_json())
    raw["pipelines"]["clicks"]["bucket"] = {"type": "event_time", "width": "1 h"}
    raw["registry"] = {"url": "http://127.0.0.1:1"}
    path.write_text(yaml.safe_dump(raw))
    result = CliRunner().invoke(app, ["compact", str(path), *flags])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_bucket_of_which_most_rows_would_go_is_blocked_until_a_person_says_yes(tmp_path: Path, form: str) -> None:
    lake = lake_of(tmp_path, form)
    driver = driver_of(lake)
    seal_due(driver, LATER)
    assert blocked(driver) == {"hour=2026-11-20T05": REASON}
    assert driver.sealed == []
    assert oracle.count(Path(lake.table.location)) == ROWS, "no row went"

    assert "dedupe would take 63 rows" in compact(lake, tmp_path)
    (bucket,) = json.loads(compact(lake, tmp_path, "--json"))["buckets"]
    assert (bucket["bucket"], bucket["taken"]) == (["2026-11-20T05"], ROWS - USERS)
    assert oracle.count(Path(lake.table.location)) == ROWS, "it was only shown"

    compact(lake, tmp_path, "--bucket", "hour=2026-11-20T05", "--yes")
    assert blocked(driver) == {}
    seal_due(driver, LATER)
    (manifest,) = driver.sealed
    assert (manifest.rows, manifest.deduped) == (USERS, ROWS - USERS)
    assert audit(lake.config, "clicks", since=None, deep=True).rows_removed == ROWS - USERS


def test_a_file_that_is_gone_is_named_where_a_compaction_is_only_shown(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, "delta")
    compact(lake, tmp_path)
    next(Path(lake.table.location).rglob("*2026-11-20T05/*.parquet")).unlink()
    result = CliRunner().invoke(app, ["compact", str(tmp_path / "headrace.yaml")])
    assert isinstance(result.exception, HeadraceError)
    assert "names is gone" in str(result.exception)


def test_other_buckets_are_sealed_meanwhile(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, "delta")
    # Seven users, each once.
    lake.add(6, USERS)
    lake.close(6)
    driver = driver_of(lake)
    seal_due(driver, LATER)
    assert [manifest.name for manifest in driver.sealed] == ["hour=2026-11-20T06"]
    assert set(blocked(driver)) == {"hour=2026-11-20T05"}


def test_a_blocked_bucket_is_tried_again_now_and_then_and_at_once_with_a_corrected_key(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, "delta")
    driver = driver_of(lake)
    seal_due(driver, LATER)
    assert set(blocked(driver, minutes=4)) == {"hour=2026-11-20T05"}
    assert blocked(driver, minutes=5) == {}
    seal_due(driver, LATER + timedelta(minutes=5))
    assert set(blocked(driver, minutes=6)) == {"hour=2026-11-20T05"}, "it is as before"
    lake.settings.compact.dedupe.key[:] = ["id"]  # type: ignore[union-attr]
    corrected = driver_of(lake)
    seal_due(corrected, LATER + timedelta(minutes=6))
    assert [manifest.rows for manifest in corrected.sealed] == [ROWS]


@pytest.mark.parametrize("limit", [{"max_taken_ratio": 1.0}, {"min_taken_rows": ROWS}])
def test_a_driver_takes_what_the_configuration_allows(tmp_path: Path, limit: dict[str, Any]) -> None:
    lake = lake_of(tmp_path, "delta", **limit)
    driver = driver_of(lake)
    seal_due(driver, LATER)
    assert [(manifest.rows, manifest.deduped) for manifest in driver.sealed] == [(USERS, ROWS - USERS)]


@given(st.integers(0, 5_000), st.integers(1, 5_000), st.floats(0, 1), st.integers(1, 3_000))
def test_few_rows_and_a_small_share_need_no_person(taken: int, rows: int, ratio: float, least: int) -> None:
    taken = min(taken, rows)
    limit = TakenLimit(ratio, least)
    # Beside the limit, where the share of floats is exact.
    assume(abs(taken - ratio * rows) > 1e-6)
    assert limit.is_exceeded(taken, rows) == (taken >= least and taken / rows > ratio)
    assert not limit.is_exceeded(least - 1, rows)
    assert not TakenLimit(1.0, 1).is_exceeded(taken, rows)
