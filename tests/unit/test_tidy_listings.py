"""Tidying does not list a log again and again: its entries stay, and a listing costs a request for each thousand."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.bench.features.catalog_commits import TableOfCommits
from headrace.writer.storage.base import StoredObject
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.delta import Delta, log_retention
from headrace.writer.table.log.log import Log, State
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

    def read(self, name: str) -> StoredObject | None:
        self.counts[f"read {name}"] += 1
        return super().read(name)


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


def test_a_log_whose_newest_entry_is_known_is_not_listed_to_see_that_it_is_there(tmp_path: Path) -> None:
    log_store = ListedStore(f"{tmp_path}/table/{LOG}")
    table = PipelineTable(Parquet(LocalStore(f"{tmp_path}/table"), log_store), "events")
    assert not table.exists()
    TableOfCommits(table)
    table.snapshot()
    log_store.counts.clear()
    assert table.exists()
    assert log_store.counts["list"] == 0
    for name in list(log_store.list()):
        log_store.delete(name)
    assert not table.exists(), "it was removed"


def test_the_newest_checkpoint_is_asked_for_only_when_another_may_be_due(tmp_path: Path) -> None:
    log_store = ListedStore(f"{tmp_path}/table/{LOG}")
    table = PipelineTable(Parquet(LocalStore(f"{tmp_path}/table"), log_store), "events", checkpoint_interval=10)
    writer = TableOfCommits(table)
    reads = []
    for number in range(25):
        table.append(writer.stage(number), table.snapshot())
        log_store.counts.clear()
        table.tidy()
        reads.append(log_store.counts["read _last_checkpoint"])
    # A look at the log is one read; the question whether a checkpoint is due another, and to write it a third.
    assert reads.count(1) == 23


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


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        (None, timedelta(days=30)),
        ("interval 7 days", timedelta(days=7)),
        ("interval 1 week", timedelta(weeks=1)),
        ("INTERVAL 90 minutes", timedelta(minutes=90)),
        ("interval 0 seconds", timedelta(0)),
        ("interval 3 months", timedelta(0)),
        ("interval 99999999 weeks", timedelta(weeks=99_999_999)),
        ("interval 999999999 weeks", timedelta(0)),
        ("for ever", timedelta(0)),
    ],
)
def test_the_retention_of_a_delta_log_is_read_from_its_properties(text: str | None, retention: timedelta) -> None:
    assert log_retention({} if text is None else {"delta.logRetentionDuration": text}) == retention


class CleanedUpTable:
    """Stands for delta-rs's table, and counts what is asked of it."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def create_checkpoint(self) -> None:
        self.counts["checkpoint"] += 1

    def cleanup_metadata(self) -> None:
        self.counts["cleanup"] += 1


@pytest.mark.parametrize(
    ("properties", "cleanups"),
    [
        ({}, 2),
        ({"delta.logRetentionDuration": "interval 12 hours"}, 3),
        ({"delta.logRetentionDuration": "interval 0 seconds"}, 7),
        ({"delta.logRetentionDuration": "for ever"}, 7),
        ({"delta.enableExpiredLogCleanup": "false"}, 0),
    ],
)
def test_a_delta_log_is_cleaned_up_once_an_hour_or_more_often_where_its_retention_is_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str], cleanups: int
) -> None:
    table = CleanedUpTable()
    delta = Delta(str(tmp_path), 50)
    monkeypatch.setattr(delta, "_open", lambda: table)
    state = State(50, {"id": "1", "configuration": properties})
    for look in range(7):
        now = 1000.0 + 601 * look
        monkeypatch.setattr("headrace.writer.table.delta.time.monotonic", lambda now=now: now)
        delta.tidy(state)
    assert table.counts == {"checkpoint": 7, **({"cleanup": cleanups} if cleanups else {})}
