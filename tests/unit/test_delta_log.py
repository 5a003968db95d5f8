"""What is read from a Delta log whatever became of it, and what is written to it: one entry in each place, or none."""

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.writer.core.errors import ConfigError
from headrace.writer.storage.base import NotExclusive, StoredObject
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.log.file_listing import list_bucket_files
from headrace.writer.table.log.log import Log, LogUnreadable
from tests.support.commits import PARTS, Lake
from tests.support.delta_logs import (
    SAID,
    add_action,
    append_actions,
    create,
    facts,
    log_at,
    log_files,
    txn_action,
    write_checkpoint,
)

# ---- what is read


def test_entries_before_the_first_are_not_asked_for(tmp_path: Path) -> None:
    """In a bucket each of them is a request."""

    class Counted(LocalStore):
        read_names: list[str] = []  # noqa: RUF012

        def read(self, name: str) -> StoredObject | None:
            self.read_names.append(name)
            return super().read(name)

    create(tmp_path)
    log = Log(Counted(f"{tmp_path}/_delta_log"))
    assert [version for version, _ in log.entries_after(-1000)] == [0]
    assert len(Counted.read_names) < 10


def test_actions_that_we_do_not_know_are_passed_over(tmp_path: Path) -> None:
    log = create(tmp_path)
    before = log.state()
    unknown = [
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
        {"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}},
        {"remove": {"path": "r", "dataChange": True, "deletionTimestamp": 1}},
        {"somethingNew": {"txn": {"appId": "inside", "version": 1}}},
        {"txn": None, "metaData": None, "protocol": None},
    ]
    path = tmp_path / "_delta_log" / f"{1:020}.json"
    path.write_text("\n\n".join(json.dumps(action) for action in unknown))
    after = log.state()
    assert (after.version, after.transactions, after.metadata) == (1, before.transactions, before.metadata)


@pytest.mark.parametrize("content", [b'{"txn":{"appId', b"\xff\xfe", b"5\n", b"[]\n", b'"text"\n', b"\x00" * 64])
def test_a_corrupt_entry_is_named_by_its_path_and_nothing_is_written_after_it(tmp_path: Path, content: bytes) -> None:
    log = create(tmp_path)
    before = log.state()
    corrupt = tmp_path / "_delta_log" / f"{1:020}.json"
    corrupt.write_bytes(content)
    for follower in (log, log_at(tmp_path)):
        with pytest.raises(LogUnreadable, match=f"{corrupt} is not an entry of a table's log"):
            follower.state()
    with pytest.raises(LogUnreadable):
        log.append(before, [SAID])
    corrupt.unlink()
    assert log.state() == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version":"x"}', '{"version":99}', '{"version":0}', "{}"])
def test_a_wrong_last_checkpoint_costs_nothing(tmp_path: Path, content: str) -> None:
    log = create(tmp_path)
    append_actions(log, txn_action("a", 1))
    write_checkpoint(tmp_path)
    state = append_actions(log, txn_action("b", 2))
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text(content)
    assert facts(log.state()) == facts(log_at(tmp_path).state()) == facts(state)
    assert append_actions(log, txn_action("c", 3)).version == state.version + 1


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_a_corrupt_checkpoint_is_passed_over_while_the_entries_are_there(tmp_path: Path, keep: int) -> None:
    log = create(tmp_path)
    append_actions(log, txn_action("a", 1))
    write_checkpoint(tmp_path)
    state = append_actions(log, txn_action("b", 2))
    newest = write_checkpoint(tmp_path)
    newest.write_bytes(newest.read_bytes()[:keep])
    assert facts(log_at(tmp_path).state()) == facts(state)


def test_a_corrupt_checkpoint_whose_entries_are_gone_is_refused(tmp_path: Path) -> None:
    """Else the writer would go on at the end of the older checkpoint, where no reader looks."""
    log = create(tmp_path)
    write_checkpoint(tmp_path)
    for n in range(3):
        append_actions(log, txn_action("a", n))
    newest = write_checkpoint(tmp_path)
    newest.write_bytes(b"PAR1")
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(LogUnreadable, match=r"goes to version 3, but there is neither an entry 1 nor a sound check"):
        log_at(tmp_path).state()


def test_an_entry_that_is_missing_in_between_is_told(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(4):
        append_actions(log, txn_action("a", n))
    (tmp_path / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(LogUnreadable, match="goes to version 4, but there is neither an entry 2"):
        log_at(tmp_path).state()


def parted(checkpoint: Path, total: int, *, leave_out: int = 0) -> None:
    """Replace a checkpoint by one in `total` parts."""
    actions = pq.read_table(checkpoint)
    version = checkpoint.name[:20]
    for n in range(total):
        if n + 1 != leave_out:
            path = checkpoint.with_name(f"{version}.checkpoint.{n + 1:010}.{total:010}.parquet")
            pq.write_table(actions.take(list(range(n, actions.num_rows, total))), path)


def test_a_checkpoint_in_parts_is_read_and_an_incomplete_one_is_not(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(5):
        state = append_actions(log, txn_action(f"a{n}", n), add_action(tmp_path))
    whole = write_checkpoint(tmp_path)
    parted(whole, 3, leave_out=2)
    assert facts(log_at(tmp_path).state()) == facts(state)  # beside the whole one
    whole.unlink()
    assert facts(log_at(tmp_path).state()) == facts(state)  # from the entries
    for entry in log_files(tmp_path, "*.json")[:-1]:
        entry.unlink()
    with pytest.raises(LogUnreadable):
        log_at(tmp_path).state()


def test_a_checkpoint_in_parts_serves_when_the_entries_are_gone(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(5):
        state = append_actions(log, txn_action(f"a{n}", n), add_action(tmp_path))
    whole = write_checkpoint(tmp_path)
    parted(whole, 3)
    parted(whole, 2, leave_out=1)
    whole.unlink()
    for entry in log_files(tmp_path, "*.json"):
        entry.unlink()
    assert facts(log_at(tmp_path).state()) == facts(state)


def test_of_two_checkpoints_of_a_version_the_sound_one_serves(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(5):
        state = append_actions(log, txn_action(f"a{n}", n), add_action(tmp_path))
    whole = write_checkpoint(tmp_path)
    parted(whole, 2)
    for entry in log_files(tmp_path, "*.json"):
        entry.unlink()
    for torn in (whole, *log_files(tmp_path, "*.checkpoint.0*")[:1]):
        sound = torn.read_bytes()
        torn.write_bytes(b"PAR1")
        assert facts(log_at(tmp_path).state()) == facts(state)
        assert log_at(tmp_path).checkpoint_adds(state.version)[1].num_rows == 5
        torn.write_bytes(sound)


def test_a_checkpoint_with_statistics_as_structs_says_rows_and_offsets(tmp_path: Path) -> None:
    properties = {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"}
    rows = pa.table({"_offset": pa.array([3, 9], pa.int64()), "at": pa.array([0, 1], pa.timestamp("us", "UTC"))})
    write_deltalake(str(tmp_path), rows, configuration=properties)
    path = write_checkpoint(tmp_path)
    assert "stats" not in pq.read_table(path).schema.field("add").type.names, "nothing as JSON"
    log = log_at(tmp_path)
    (file,) = list_bucket_files(log, log.state(), None)
    assert (file.rows, file.offset_min, file.offset_max) == (2, 3, 9)


def test_a_clean_up_below_a_follower_is_seen(tmp_path: Path) -> None:
    log, other = create(tmp_path), log_at(tmp_path)
    append_actions(log, txn_action("a", 1))
    for n in range(3):
        append_actions(other, txn_action("b", n))
    write_checkpoint(tmp_path)
    last = append_actions(other, txn_action("b", 4))
    for entry in log_files(tmp_path, "*.json")[:-1]:
        entry.unlink()
    assert facts(log.state()) == facts(last)
    assert [version for version, _ in log.entries_after(-1)] == [last.version]


def test_no_entry_is_put_at_a_version_that_a_clean_up_removed(tmp_path: Path) -> None:
    """Below the newest checkpoint an entry is free to be written, and nobody would ever read it."""
    log, other = create(tmp_path), log_at(tmp_path)
    stale = log.state()
    for n in range(3):
        append_actions(other, txn_action("b", n))
    write_checkpoint(tmp_path)
    for version in (1, 2):  # in whatever order a clean-up takes them
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    assert not log.append(stale, [SAID])
    assert log.state().version == 3
    assert not log_files(tmp_path, f"{1:020}.json")


def test_another_table_in_the_same_place_is_seen(tmp_path: Path) -> None:
    log = create(tmp_path / "lake")
    old = append_actions(log, txn_action("a", 1))
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(FileNotFoundError):
        log.state()
    fresh = create(tmp_path / "lake")
    append_actions(fresh, txn_action("a", 7))
    assert log.state() == fresh.state() != old
    assert not log.append(old, [SAID])


def test_no_table_is_no_table(tmp_path: Path) -> None:
    for location in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError):
            log_at(location).state()
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no log of a table at"):
        log_at(tmp_path).state()


# ---- what is written


def test_an_entry_is_put_where_nothing_is(tmp_path: Path) -> None:
    log, other = create(tmp_path), log_at(tmp_path)
    at = log.state()
    assert other.append(other.state(), [SAID, txn_action("theirs", 1)])
    assert not log.append(at, [SAID, txn_action("ours", 1)])
    assert dict(log.state().transactions) == {"theirs": 1}
    assert not log_files(tmp_path, ".*")


def test_an_entry_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    log = create(tmp_path)
    before = os.umask(0o027)
    try:
        append_actions(log, txn_action("a", 1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "_delta_log" / f"{1:020}.json").stat().st_mode) == 0o640


def failing(call: Callable[..., Any], *, at: str, code: int, once: bool = True) -> Callable[..., Any]:
    """Make a system call that fails before or after it did its work."""
    left = [1]

    def fails(*args: Any) -> Any:
        if at == "after":
            call(*args)
        if once and not left:
            return None if at == "after" else call(*args)
        left.clear()
        raise OSError(code, os.strerror(code))

    return fails


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_storage_that_fails_around_the_link_leaves_one_commit_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    monkeypatch.setattr(os, "link", failing(os.link, at=at, code=errno.EIO))
    version = lake.commit(0, 10)
    found = lake.table.commits_since(-1)
    assert [commit.version for commit in found] == [version]
    assert lake.table.snapshot().frontier(PARTS[0]) == 10
    assert not log_files(tmp_path, ".*")


def test_an_entry_whose_link_was_made_and_then_refused_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create(tmp_path)
    link = os.link

    def link_twice(*paths: str) -> None:
        link(*paths)
        link(*paths)

    # So a network mount does where the first answer is lost.
    monkeypatch.setattr(os, "link", link_twice)
    assert log.append(log.state(), [SAID])
    assert (log.state().version, log_files(tmp_path, ".*")) == (1, [])


def test_a_full_disk_leaves_no_entry_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(os.fsync, at="before", code=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        log.append(log.state(), [SAID])
    assert (log.state().version, log_files(tmp_path, ".*")) == (0, [])


def test_without_hard_links_a_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    monkeypatch.setattr(os, "link", failing(os.link, at="before", code=errno.EPERM, once=False))
    with pytest.raises(ConfigError, match=r"no hard link could be made there. Choose a location on a file system that"):
        lake.begin()
    log = log_at(tmp_path)
    with pytest.raises(NotExclusive):
        log.append(log.state(), [SAID])


def test_a_draft_that_a_dead_writer_left_does_no_harm_and_is_swept(tmp_path: Path) -> None:
    log = create(tmp_path)
    left = [tmp_path / "_delta_log" / f".{n:020}.json.{uuid4().hex}.tmp" for n in (1, 2)]
    for draft in left:
        draft.write_text('{"txn":')
    state = append_actions(log, txn_action("a", 1))
    write_checkpoint(tmp_path)
    assert DeltaTable(str(tmp_path)).version() == log_at(tmp_path).state().version == state.version
    os.utime(left[0], (1_000, 1_000))
    log.sweep(before=2_000)
    assert [draft.exists() for draft in left] == [False, True]


def test_sweeping_minds_no_draft_that_its_writer_removes_meanwhile(tmp_path: Path) -> None:
    log = create(tmp_path)
    (tmp_path / "_delta_log" / f".{1:020}.json.{uuid4().hex}.tmp").symlink_to("gone")  # listed, and not there
    log.sweep(before=2_000)


def test_threads_racing_for_one_place_leave_one_entry_in_it(tmp_path: Path) -> None:
    create(tmp_path)
    begin = threading.Barrier(4)
    won: list[int] = []

    def write(who: int) -> None:
        log = log_at(tmp_path)
        for _ in range(10):
            state = log.state()
            begin.wait()
            if log.append(state, [SAID, txn_action(f"w{who}", state.version)]):
                won.append(state.version)
            begin.wait()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == list(range(10))
    assert DeltaTable(str(tmp_path)).version() == 10
