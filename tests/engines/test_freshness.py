"""How old an event is when a query first sees it: the bench's own measurement, with the writer, DuckDB and Trino."""

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.bench.features.freshness import RATE, measure_freshness, send_seconds

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
MAX_DELAY = timedelta(seconds=15)
WORK_MAX = timedelta(minutes=1)  # for a batch and a query beside it; seen: a few seconds on a quiet machine


def test_an_event_is_seen_within_the_delay_of_a_commit_and_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        results = measure_freshness([MAX_DELAY], ["duckdb", "trino"], RATE, tmp_path, lambda line: print(f"\n{line}"))
    assert [result.engine for result in results] == ["duckdb", "trino"]
    for result in results:
        assert result.events == RATE * send_seconds(MAX_DELAY).total_seconds()
        assert 0 < result.median_s <= result.p95_s <= result.max_s <= (MAX_DELAY + WORK_MAX).total_seconds()
        commits_max = send_seconds(MAX_DELAY) / MAX_DELAY + 2
        assert 2 <= result.commits <= commits_max, "the delay held commits back, or there is nothing to measure"
