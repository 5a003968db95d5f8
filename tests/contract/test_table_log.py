"""A table on top of its log: who owns it, what makes it unfit, what a commit says that finds no place in it."""

import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.writer.core.errors import Fenced
from headrace.writer.table.log.foreign_writes import CommitFailed, ForeignChange
from tests.support.commits import PARTS, Lake
from tests.support.delta_logs import log_files
from tests.support.table_formats import delta_table


def test_a_supervisor_may_ask_for_the_owner_while_a_batch_commits(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    done, epochs, failures = threading.Event(), set(), []

    def ask() -> None:
        try:
            while not done.is_set():
                epochs.add(lake.table.snapshot().epoch)
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    for n in range(20):
        lake.commit(n, n + 1)
    done.set()
    asking.join()
    assert (failures, epochs) == ([], {lake.epoch})
    assert lake.table.snapshot().frontier(PARTS[0]) == 20


def test_a_table_whose_offsets_would_be_forgotten_is_refused(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    with pytest.raises(ForeignChange, match="the next checkpoint forgets offsets"):
        lake.commit(0, 10)


def test_a_table_whose_protocol_was_raised_is_refused(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(ForeignChange, match=r"raised the protocol .* to reader 1, writer 3"):
        lake.commit(0, 10)


def test_a_table_that_was_made_again_is_not_the_one_that_was_taken_over(tmp_path: Path) -> None:
    """Its epoch and frontier may be the same; the files that the batch staged are gone."""
    old = Lake(str(tmp_path / "lake"))
    old.begin()
    shutil.rmtree(tmp_path / "lake")
    new = Lake(str(tmp_path / "lake"))
    new.begin()
    assert new.epoch == old.epoch
    with pytest.raises(Fenced, match="was removed and made again since pipeline 'clicks' was started"):
        old.commit(0, 10)
    new.commit(0, 10)


def test_a_commit_that_loses_every_race_until_its_patience_ends_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    lake.table = delta_table(str(tmp_path), "clicks", retry_timeout=timedelta(0))
    write = lake.table.write

    def late(snapshot: Any, *args: Any) -> None:
        DeltaTable(str(tmp_path)).alter.set_table_properties({"note": "x"}, raise_if_not_exists=False)
        write(snapshot, *args)

    monkeypatch.setattr(lake.table, "write", late)
    with pytest.raises(CommitFailed, match="took no commit for 0 s: another entry follows version 1"):
        lake.commit(0, 10)


def test_an_own_commit_that_could_not_be_looked_up_at_once_is_not_taken_for_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    write, ours, answers = lake.table.write, lake.table.commits_since, iter(["down"])

    def lost(*args: Any) -> None:
        write(*args)
        raise OSError("connection reset")

    def unreadable(since: int) -> Any:
        if next(answers, None):
            raise CommitFailed("cannot read")
        return ours(since)

    monkeypatch.setattr(lake.table, "write", lost)
    monkeypatch.setattr(lake.table, "commits_since", unreadable)
    assert lake.commit(0, 10) == lake.table.snapshot().version
    assert [commit.version for commit in ours(-1)] == [lake.table.snapshot().version]


def test_a_table_is_tidied_by_entries_since_its_checkpoint_from_every_writer(tmp_path: Path) -> None:
    """With another client's entry after each of ours, no commit of ours may ever fall on a round version."""
    lake = Lake(str(tmp_path))
    lake.table._checkpoint_interval = 4
    lake.begin()
    DeltaTable(str(tmp_path)).alter.set_table_properties(
        {"delta.checkpointInterval": "1000", "delta.enableExpiredLogCleanup": "false"}
    )
    for n in range(6):
        version = lake.commit(n, n + 1)
        lake.table.tidy()
        DeltaTable(str(tmp_path)).alter.set_table_properties({"note": str(version)}, raise_if_not_exists=False)
    assert [int(path.name[:20]) for path in log_files(tmp_path, "*.checkpoint.parquet")] == [3, 7, 11]
    assert len(log_files(tmp_path, "*.json")) == lake.table.snapshot().version + 1
