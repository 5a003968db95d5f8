"""When too many records cannot become rows."""

import pytest

from headrace.writer.batch.task_report import Counts, FailedRecords, Report
from headrace.writer.commit import failed_records_limit
from headrace.writer.config.sections.resource_limits import Limits
from headrace.writer.core.errors import LimitReached
from tests.support.sample_records import config

SOURCE = ("clicks", 0)


def judged(bad: int, good: int, *, tombstones: int = 0, share_max: float = 0.5, records_min: int = 10) -> None:
    counts = {SOURCE: Counts(read=bad + good + tombstones, rows=good, dead_letters=bad, tombstones=tombstones)}
    reasons = [
        FailedRecords("dead_letter", None, bad - 1, "no header", *SOURCE, 12),
        FailedRecords("dead_letter", 7, 1, "schema id 7 is odd", *SOURCE, 3),
    ]
    limits = Limits(max_failed_ratio=share_max, min_failed_records=records_min)
    failed_records_limit.check_failed_records("clicks", Report(counts=counts, failed_records=reasons), limits)


@pytest.mark.parametrize(
    ("bad", "good", "limits"),
    [
        (0, 0, {}), (9, 0, {}), (10, 10, {}), (10, 11, {}), (1000, 0, {"share_max": 1.0}),
        (100, 0, {"records_min": 101}),
    ],
)  # fmt: skip
def test_failures_within_the_limit_pass(bad, good, limits):
    judged(bad, good, **limits)


@pytest.mark.parametrize(("bad", "good", "tombstones"), [(10, 9, 0), (11, 10, 1000), (10, 0, 0)])
def test_failures_beyond_the_limit_stop_with_the_share_the_reasons_and_a_mend(bad, good, tombstones):
    with pytest.raises(LimitReached) as stopped:
        judged(bad, good, tombstones=tombstones)
    said = str(stopped.value)
    assert f"{bad:,} of {bad + good:,} records of a batch" in said
    assert "pipelines.clicks.limits.max_failed_ratio allows (50%)" in said
    assert f"{bad - 1} such as clicks/0 at offset 12 (no header); 1 such as clicks/0 at offset 3 (schema id 7" in said
    assert stopped.value.exit_code == 5


def test_quarantined_records_count_as_well():
    report = Report(counts={SOURCE: Counts(read=4, rows=1, quarantined=3)})
    with pytest.raises(LimitReached):
        failed_records_limit.check_failed_records("p", report, Limits(max_failed_ratio=0.5, min_failed_records=3))


def test_dead_letters_for_no_fault_of_theirs_do_not_count() -> None:
    """Nor may many of them hide that all others fail."""
    counts = {SOURCE: Counts(read=1000, rows=300, dead_letters=700)}
    limits = Limits(max_failed_ratio=0.5, min_failed_records=10)
    failed_records_limit.check_failed_records("p", Report(counts=counts, unrouted=400), limits)
    with pytest.raises(LimitReached, match="301 of 601 records"):
        failed_records_limit.check_failed_records("p", Report(counts=counts, unrouted=399), limits)


def test_a_limit_of_zero_tolerates_nothing(tmp_path):
    limits = config(tmp_path, limits={"max_failed_ratio": 0, "min_failed_records": 1}).pipelines["clicks"].limits
    with pytest.raises(LimitReached):
        judged(1, 10**6, share_max=limits.max_failed_ratio, records_min=limits.min_failed_records)
