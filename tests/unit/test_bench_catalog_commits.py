"""What `python -m headrace.bench.features.catalog_commits` refuses of what it saw, and that it runs."""

from pathlib import Path

import pytest

from headrace.bench.features.catalog_commits import METADATA_MAX, WINDOW, CommitSamples, commit


def test_figures_beyond_a_limit_are_named() -> None:
    flat = [0.02] * (2 * WINDOW)
    assert CommitSamples(flat, flat, [1_000]).problems() == []
    assert CommitSamples(flat, flat, []).problems() == [], "a Delta table has no such file"
    grown = [0.02] * WINDOW + [0.031] * WINDOW
    slower, larger = CommitSamples(grown, flat, [1_000, METADATA_MAX]).problems()
    assert slower == "a commit took 1.55 times the CPU at the end, 1.5 is the limit"
    assert larger == "the metadata file had 65,536 bytes, 65,536 is the limit"


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_commits_are_made_and_measured(tmp_path: Path, form: str) -> None:
    seen = commit(5, form, tmp_path, print)
    assert (len(seen.cpu_s), len(seen.wall_s), len(seen.metadata)) == (5, 5, 5 if form == "iceberg" else 0)
    assert min(*seen.cpu_s, *seen.wall_s) > 0
