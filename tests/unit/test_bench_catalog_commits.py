"""What `python -m headrace.bench.features.catalog_commits` refuses of what it saw, and that it runs."""

from pathlib import Path

import pytest

from headrace.bench.features.catalog_commits import METADATA_MAX, WINDOW, CommitSamples, FolderSize, commit, main


def test_figures_beyond_a_limit_are_named() -> None:
    flat = [0.02] * (2 * WINDOW)
    assert CommitSamples(flat, flat, [1_000]).problems() == []
    assert CommitSamples(flat, flat, []).problems() == [], "a Delta table has no such file"
    grown = [0.02] * WINDOW + [0.031] * WINDOW
    slower, larger = CommitSamples(grown, flat, [1_000, METADATA_MAX]).problems()
    assert slower == "a commit took 1.55 times the CPU at the end, 1.5 is the limit"
    assert larger == "the metadata file had 65,536 bytes, 65,536 is the limit"


@pytest.mark.parametrize("form", ["delta", "iceberg", "parquet"])
def test_commits_are_made_and_measured(tmp_path: Path, form: str) -> None:
    seen = commit(5, form, tmp_path, print)
    assert (len(seen.cpu_s), len(seen.wall_s), len(seen.metadata)) == (5, 5, 5 if form == "iceberg" else 0)
    assert min(*seen.cpu_s, *seen.wall_s) > 0
    assert len(seen.tidy_cpu_s) == 5
    assert [size.commits for size in seen.folder] == [1, 2, 3, 4, 5]
    assert [size.data_files for size in seen.folder] == [1, 2, 3, 4, 5]
    assert seen.folder[-1].metadata_files >= 7, "an entry for the table, the start and each commit"
    assert seen.folder[-1].metadata_bytes > seen.folder[0].metadata_bytes > 0


def test_a_longer_interval_makes_fewer_checkpoints(tmp_path: Path) -> None:
    sizes = {}
    for interval in (2, 10):
        directory = tmp_path / str(interval)
        directory.mkdir()
        sizes[interval] = commit(20, "parquet", directory, print, checkpoint_interval=interval).folder[-1]
    # Each checkpoint comes with a page of the ledger.
    assert sizes[2].metadata_files - sizes[10].metadata_files >= 8


def test_commits_end_when_their_time_is_over(tmp_path: Path) -> None:
    seen = commit(1_000, "parquet", tmp_path, print, minutes=0.01)
    assert 1 <= len(seen.cpu_s) < 1_000
    assert seen.folder[-1].commits == len(seen.cpu_s)


def test_a_window_has_a_checkpoint_of_the_log_in_it(tmp_path: Path) -> None:
    assert commit(5, "parquet", tmp_path, print, checkpoint_interval=400).window == 400
    seen = CommitSamples([0.01] * 399 + [0.41] + [0.01] * 399 + [0.41], [0.0] * 800, [], window=400)
    assert seen.cpu() == pytest.approx((0.011, 0.011, 0.011))
    assert seen.problems() == []
    assert CommitSamples([0.01] * 3, [0.0] * 3, [], window=400).cpu() == pytest.approx((0.01, 0.01, 0.01))


def test_the_figures_are_said() -> None:
    flat = [0.02] * (2 * WINDOW)
    size = FolderSize(2 * WINDOW, 200, 210, 3 * 2**20)
    requests = [{"PUT": 200, "LIST": 100}, {"PUT": 200, "LIST": 250}]
    first, tidying, folder, *counts = CommitSamples(
        flat, flat, [2**10], [0.001] * (2 * WINDOW), [size], requests
    ).sentences()
    assert first.startswith("200 commits: 20.0 ms of a processor each in the first 100, 20.0 in the last (x 1.00)")
    assert first.endswith("20 ms by the clock; the metadata file has 1.0 KiB at most")
    assert tidying == "the tidying alone: 1.00 ms of each in the first 100, 1.00 in the last"
    assert folder == "after 200 commits the folder has 200 data files, and 210 others of 3.0 MiB"
    assert counts == [
        "requests of a commit, in the first 100: 3: LIST 1, PUT 2",
        "requests of a commit, in the last 100: 4.5: LIST 2.5, PUT 2",
    ]


@pytest.mark.parametrize("arguments", [["--commits", "100"], ["--s3", "s3://lake/t"], ["--format", "orc"]])
def test_options_that_cannot_be_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[0] in capsys.readouterr().err
