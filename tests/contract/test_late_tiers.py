"""Late rows by how late they are: each tier has a destination, and counts, manifests and the account know of it."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from headrace.writer.sealing.rules import SealNow
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.model import Totals
from tests.support.audits import describe_problems, run_audit
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

TIERS = [{"within": "2 h", "to": "reopen"}, {"within": "7 d", "to": "late_table"}, {"to": "dead_letter"}]
HOUR = timedelta(hours=1)


def at(hours_before: float) -> datetime:
    return NOW - hours_before * HOUR


def made(root: Path, form: str, **settings: object) -> Driver:
    driver = Driver(root, form, seal={"late": TIERS, "out_of_orderness": "0 s", "reopen_after": "0 s"}, **settings)
    driver.start(1)
    return driver


def close(driver: Driver, until: datetime) -> None:
    sealer = Sealer("clicks", driver.config)
    sealer.close(sealer.follow(), until, "watermark", NOW)


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_rows_go_by_how_far_the_watermark_is_past_their_bucket(tmp_path: Path, form: str) -> None:
    driver = made(tmp_path, form)
    first = {n: event(n, event_time=at(hours)) for n, hours in enumerate((0, 1.5, 3.5, 200))}
    driver.carry([log(first)], {0: 4})
    close(driver, at(0))
    sealer = Sealer("clicks", driver.config)
    assert not sealer.seal([SealNow((f"{at(hours):%Y-%m-%dT%H}",)) for hours in (1.5, 3.5, 200)], NOW)
    # Hours that ended 0, 1 and 2 hours before the watermark, which is NOW; then 2.5, a day, 7 days, 8 days.
    late = (0.5, 1.5, 2.5, 3.5, 24.5, 168.5, 200)
    driver.carry([log({4 + n: event(4 + n, event_time=at(hours)) for n, hours in enumerate(late)})], {0: 11})
    report = run_audit(driver, deep=True)
    assert report.adds_up, describe_problems(report)
    (line,) = report.reconciliation.lines
    assert {name: line.outcomes[name] for name in ("rows", "late", "dead_letters")} == {
        "rows": 4 + 3, "late": 3, "dead_letters": 1,
    }  # fmt: skip
    totals = Totals()
    for commit in driver.table.commits_since(0):
        if commit.facts.get("kind") == "batch":
            totals.add(commit.facts)
    assert (totals.late_rows, totals.late.by_policy) == (7, {"reopen": 3, "late_table": 3, "dead_letter": 1})

    sealer = Sealer("clicks", driver.config)
    standing = sealer.follow()
    assert standing.unsealed.late_elsewhere((f"{at(3.5):%Y-%m-%dT%H}",), None) == {"late_table": 1}
    assert (f"{at(3.5):%Y-%m-%dT%H}",) not in standing.unsealed.buckets, "it stays sealed"
    assert not sealer.seal([SealNow((f"{at(1.5):%Y-%m-%dT%H}",))], NOW)
    assert (sealer.sealed[-1].late, sealer.sealed[-1].late_elsewhere) == (1, {})


def test_the_next_manifest_counts_what_went_elsewhere_since(tmp_path: Path) -> None:
    driver, key = made(tmp_path, "delta"), (f"{at(3.5):%Y-%m-%dT%H}",)
    driver.carry([log({0: event(0, event_time=at(0)), 1: event(1, event_time=at(3.5))})], {0: 2})
    close(driver, at(3))
    driver.carry([log({2: event(2, event_time=at(3.5))})], {0: 3})
    sealer = Sealer("clicks", driver.config)
    assert not sealer.seal([SealNow(key)], NOW)
    assert (sealer.sealed[-1].rows, sealer.sealed[-1].late_elsewhere) == (1, {"late_table": 1})
    assert Sealer("clicks", driver.config).follow().unsealed.elsewhere == {}
    assert Sealer("clicks", driver.config).manifests.newest(key) == sealer.sealed[-1]


def test_the_watermark_counts_where_no_bucket_closed_since(tmp_path: Path) -> None:
    driver = made(tmp_path, "delta")
    driver.carry([log({0: event(0, event_time=at(9.5))})], {0: 1})
    close(driver, at(9))
    driver.carry([log({1: event(1, event_time=at(0))})], {0: 2})  # the watermark is nine hours further
    driver.carry([log({2: event(2, event_time=at(9.5))})], {0: 3})
    assert run_audit(driver).reconciliation.total("late") == 1


def test_a_partition_without_rows_leaves_it_to_what_is_closed(tmp_path: Path) -> None:
    driver = Driver(tmp_path, seal={"late": TIERS, "out_of_orderness": "0 s"})
    driver.start(2)
    driver.carry([log({0: event(0, event_time=at(9.5)), 1: event(1, event_time=at(0))})], {0: 2, 1: 0})
    close(driver, at(9))
    driver.carry([log({2: event(2, event_time=at(9.5))})], {0: 3, 1: 0})
    assert Counter(run_audit(driver).reconciliation.lines[0].outcomes)["rows"] == 3
