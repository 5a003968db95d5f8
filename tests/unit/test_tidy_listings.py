"""Tidying does not list a log again and again: its entries stay, and a listing costs a request for each thousand."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.features.catalog_commits import TableOfCommits
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.log.log import Log
from headrace.writer.table.parquet import LOG, Parquet
from headrace.writer.table.table import PipelineTable
from tests.support.table_formats import parquet_table


class ListedStore(LocalStore):
    """Counts what lists a folder."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.counts = Counter[str]()

    def list(self, folder: str = "") -> Iterator[str]:
        self.counts["list"] += 1
        return super().list(folder)

    def sweep(self, folder: str, before: float) -> None:
        self.counts["sweep"] += 1
        super().sweep(folder, before)


def commit_and_tidy(table: PipelineTable, first: int, commits: int) -> None:
    writer = TableOfCommits(table)
    for number in range(first, first + commits):
        table.append(writer.stage(number), table.snapshot())
        table.tidy()


def test_the_log_is_listed_and_swept_once_in_many_checkpoints(tmp_path: Path) -> None:
    log_store = ListedStore(f"{tmp_path}/table/{LOG}")
    form = Parquet(LocalStore(f"{tmp_path}/table"), log_store)
    table = PipelineTable(form, "events", checkpoint_interval=2)
    TableOfCommits(table)
    log_store.counts.clear()
    commit_and_tidy(table, 0, 40)
    assert log_store.counts["sweep"] == 1
    assert log_store.counts["list"] <= 3
    kept = sorted(name for name in log_store.list() if ".checkpoint." in name)
    newest = form.log.checkpoint_version()
    assert kept == [f"{version:020}.checkpoint.json" for version in (newest - 2, newest)]
    assert newest >= 40


def test_checkpoints_that_an_earlier_process_left_are_removed(tmp_path: Path) -> None:
    location = f"{tmp_path}/table"
    for first in (0, 6):
        commit_and_tidy(parquet_table(location, "events", checkpoint_interval=2), first, 6)
    log = Log(LocalStore(f"{location}/{LOG}"))
    names = [name for name in LocalStore(f"{location}/{LOG}").list() if ".checkpoint." in name]
    assert len(names) == 2
    assert f"{log.checkpoint_version():020}.checkpoint.json" in names


def test_drafts_are_swept_again_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_store = ListedStore(f"{tmp_path}/table/{LOG}")
    table = PipelineTable(Parquet(LocalStore(f"{tmp_path}/table"), log_store), "events", checkpoint_interval=1)
    commit_and_tidy(table, 0, 3)
    assert log_store.counts["sweep"] == 1
    a_day_later = time.monotonic() + 25 * 3600
    monkeypatch.setattr("headrace.writer.table.table.time.monotonic", lambda: a_day_later)
    commit_and_tidy(table, 3, 3)
    assert log_store.counts["sweep"] == 2
