"""Our reading and writing of a Delta log, held to delta-rs: both work on one table, and both must see the same."""

import errno
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commits import PARTS, Lake
from writer.errors import ConfigError, Fenced
from writer.rooms.statistics import delta_statistics
from writer.stores.base import NotExclusive
from writer.stores.location import store_at
from writer.tables.base import CommitFailed, ForeignChange
from writer.tables.formats import delta_table
from writer.tables.log import Log, LogUnreadable, State

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("hour", pa.string())])
LINES = "one\u2028two\u2029three\x85four\x0bfive"  # all of them end a line for str.splitlines, none does in a Delta log
SAID = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}}}


def log_at(location: Path) -> Log:
    return Log(store_at(f"{location}/_delta_log"))


def create(location: Path, **properties: str) -> Log:
    DeltaTable.create(
        str(location), schema=Schema.from_arrow(COLUMNS), partition_by=["hour"], name="lake",
        configuration=properties,
    )  # fmt: skip
    return log_at(location)


def moved(name: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": name, "version": version, "lastUpdated": 1}}


def added(location: Path, hour: str | None = "x") -> dict[str, Any]:
    """Return the action for a file that is there."""
    path = f"hour=some/{uuid4().hex}.parquet"
    target = location / path
    target.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2], "text": [LINES, None]}), target)
    return {
        "add": {
            "path": path, "size": target.stat().st_size, "stats": json.dumps({"numRecords": 2}), "dataChange": True,
            "partitionValues": {"hour": hour}, "modificationTime": 1,
        }
    }  # fmt: skip


def grown(log: Log, *actions: dict[str, Any]) -> State:
    assert log.append(log.state(), [SAID, *actions])
    return log.state()


def facts(state: State) -> list[Any]:
    """What entries and checkpoint must both say."""
    metadata = [state.metadata[name] for name in ("name", "partitionColumns", "schemaString")]
    protocol = [state.protocol[name] for name in ("minReaderVersion", "minWriterVersion")]
    return [state.place, dict(state.transactions), dict(state.configuration), *metadata, *protocol]


def logged(location: Path, pattern: str = "*") -> list[Path]:
    return sorted((location / "_delta_log").glob(pattern))


def checkpointed(location: Path) -> Path:
    """Write a checkpoint of the newest version. Returns its file."""
    DeltaTable(str(location)).create_checkpoint()
    return logged(location, "*.checkpoint.parquet")[-1]


# ---- held to delta-rs


def agree(log: Log, location: Path, names: set[str]) -> None:
    theirs = DeltaTable(str(location))
    described, protocol = theirs.metadata(), theirs.protocol()
    for state in (log.state(), log_at(location).state()):
        assert state.version == theirs.version()
        assert dict(state.transactions) == {
            name: at for name in names if (at := theirs.transaction_version(name)) is not None
        }
        assert (state.metadata["id"], state.metadata["name"]) == (str(described.id), described.name)
        assert state.metadata["partitionColumns"] == described.partition_columns
        assert state.configuration == described.configuration
        assert json.loads(state.metadata["schemaString"]) == json.loads(theirs.schema().to_json())
        assert state.protocol["minReaderVersion"] == protocol.min_reader_version
        assert state.protocol["minWriterVersion"] == protocol.min_writer_version
    entries = dict(log.since(-1))
    for said in theirs.history():
        ours = next(action["commitInfo"] for action in entries[said["version"]] if "commitInfo" in action)
        assert (ours["operation"], ours["timestamp"]) == (said["operation"], said["timestamp"])
    assert sorted(entries) == list(range(min(entries), theirs.version() + 1))
    if 0 in entries:
        files: set[str] = set()
        for _, actions in sorted(entries.items()):
            files |= {unquote(action["add"]["path"]) for action in actions if "add" in action}
            files -= {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        found = {unquote(uri).removeprefix(f"{location}/") for uri in theirs.file_uris()}
        assert found == {unquote(path) for path in files}


OURS = ("append", "move", "bare")
THEIRS = (
    "write", "write_moving", "optimize", "vacuum", "delete", "add_column", "restore", "set_property", "checkpoint",
    "clean_up",
)  # fmt: skip


def act(action: str, log: Log, location: Path, numbers: Iterator[int]) -> None:
    theirs = DeltaTable(str(location))
    rows = pa.table({"id": [next(numbers)], "text": [LINES], "hour": ["odd :%/ü" + LINES]}, schema=COLUMNS)
    match action:
        case "append":
            grown(log, moved("ours", next(numbers)), added(location, None), added(location, "a b/ü%:=" + LINES))
        case "move":
            grown(log, *(moved(name, next(numbers)) for name in ("ours", "both", "ours/ü " + LINES)))
        case "bare":
            assert log.append(log.state(), [SAID])
        case "write":
            note = CommitProperties({"note": LINES})
            write_deltalake(theirs, rows, mode="append", schema_mode="merge", commit_properties=note)
        case "write_moving":
            moves = [Transaction("theirs", next(numbers)), Transaction("both", next(numbers))]
            about = CommitProperties(app_transactions=moves)
            write_deltalake(theirs, rows, mode="append", schema_mode="merge", commit_properties=about)
        case "optimize":
            theirs.optimize.compact()
        case "vacuum":
            theirs.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        case "delete":
            theirs.delete("id = 1")
        case "add_column":
            theirs.alter.add_columns([Field(f"column{next(numbers)}", "string")])
        case "restore":
            if theirs.version() > 0 and (location / "_delta_log" / f"{theirs.version() - 1:020}.json").exists():
                theirs.restore(theirs.version() - 1, protocol_downgrade_allowed=True, ignore_missing_files=True)
        case "set_property":
            theirs.alter.set_table_properties({"note": LINES + str(next(numbers))}, raise_if_not_exists=False)
        case "checkpoint":
            theirs.create_checkpoint()
        case "clean_up":
            theirs.cleanup_metadata()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(OURS + THEIRS), min_size=1, max_size=10), st.sampled_from([0, 30]))
def test_delta_rs_and_we_see_the_same_table_whoever_writes(actions: list[str], days_kept: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        location = Path(root) / "lake ü"
        kept = {"delta.logRetentionDuration": f"interval {days_kept} days"}
        log, numbers = create(location, **kept), count(1)
        for action in actions:
            act(action, log, location, numbers)
            agree(log, location, {"ours", "both", "theirs", "ours/ü " + LINES})
        assert not logged(location, ".*")


def test_null_and_odd_bucket_values_read_back_through_delta_rs(tmp_path: Path) -> None:
    values = [None, "2026-11-20T05", "a b", "100%", "%41", "a/b=c", "ü", LINES, "\U00020000", "\U0010ffff", '"', "\\"]
    grown(create(tmp_path), *(added(tmp_path, value) for value in values))
    found = [bucket["hour"] for bucket in DeltaTable(str(tmp_path)).partitions()]
    assert sorted(found, key=str) == sorted(values, key=str)
    assert DeltaTable(str(tmp_path)).count() == 2 * len(values)
    checkpointed(tmp_path)
    assert sorted((bucket["hour"] for bucket in DeltaTable(str(tmp_path)).partitions()), key=str) == sorted(
        values, key=str
    )


def test_bounds_of_texts_read_back_through_delta_rs_as_they_were_written(tmp_path: Path) -> None:
    """A bound that reads as less than it is hides rows."""
    log = create(tmp_path)
    for text in ("\U00020000", "\U0002a6df" * 40, LINES, "\U0001f600", "\U0010ffff", "a" * 40, '"\\'):
        action = added(tmp_path)
        path = tmp_path / action["add"]["path"]
        pq.write_table(pa.table({"id": [1], "text": [text]}), path)
        stats = delta_statistics(pq.read_metadata(path))
        grown(log, {"add": {**action["add"], "size": path.stat().st_size, "stats": stats}})
        found = {
            row["path"]: row for row in pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
        }
        bounds = json.loads(stats)
        assert found[action["add"]["path"]]["min.text"] == bounds["minValues"]["text"]
        assert found[action["add"]["path"]]["max.text"] == bounds["maxValues"]["text"]
        assert bounds["minValues"]["text"] <= text <= bounds["maxValues"]["text"]


def test_thousands_of_offsets_are_read_from_entry_and_checkpoint_alike(tmp_path: Path) -> None:
    log = create(tmp_path)
    state = grown(log, *(moved(f"events/clicks@1/{n}", n) for n in range(2_000)))
    checkpointed(tmp_path)
    assert state.transactions == log_at(tmp_path).state().transactions
    assert len(state.transactions) == 2_000


# ---- what is read


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
def test_a_torn_entry_is_told_by_its_path_and_nothing_is_written_after_it(tmp_path: Path, content: bytes) -> None:
    log = create(tmp_path)
    before = log.state()
    torn = tmp_path / "_delta_log" / f"{1:020}.json"
    torn.write_bytes(content)
    for follower in (log, log_at(tmp_path)):
        with pytest.raises(LogUnreadable, match=f"{torn} is not an entry of a table's log"):
            follower.state()
    with pytest.raises(LogUnreadable):
        log.append(before, [SAID])
    torn.unlink()
    assert log.state() == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version":"x"}', '{"version":99}', '{"version":0}', "{}"])
def test_a_wrong_last_checkpoint_costs_nothing(tmp_path: Path, content: str) -> None:
    log = create(tmp_path)
    grown(log, moved("a", 1))
    checkpointed(tmp_path)
    state = grown(log, moved("b", 2))
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text(content)
    assert facts(log.state()) == facts(log_at(tmp_path).state()) == facts(state)
    assert grown(log, moved("c", 3)).version == state.version + 1


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_a_torn_checkpoint_is_passed_over_while_the_entries_are_there(tmp_path: Path, keep: int) -> None:
    log = create(tmp_path)
    grown(log, moved("a", 1))
    checkpointed(tmp_path)
    state = grown(log, moved("b", 2))
    newest = checkpointed(tmp_path)
    newest.write_bytes(newest.read_bytes()[:keep])
    assert facts(log_at(tmp_path).state()) == facts(state)


def test_a_torn_checkpoint_whose_entries_are_gone_is_refused(tmp_path: Path) -> None:
    """Else the writer would go on at the end of the older checkpoint, where no reader looks."""
    log = create(tmp_path)
    checkpointed(tmp_path)
    for n in range(3):
        grown(log, moved("a", n))
    newest = checkpointed(tmp_path)
    newest.write_bytes(b"PAR1")
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(LogUnreadable, match=r"goes to version 3, but there is neither an entry 1 nor a sound check"):
        log_at(tmp_path).state()


def test_an_entry_that_is_missing_in_between_is_told(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(4):
        grown(log, moved("a", n))
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
        state = grown(log, moved(f"a{n}", n), added(tmp_path))
    whole = checkpointed(tmp_path)
    parted(whole, 3, leave_out=2)
    assert facts(log_at(tmp_path).state()) == facts(state)  # beside the whole one
    whole.unlink()
    assert facts(log_at(tmp_path).state()) == facts(state)  # from the entries
    for entry in logged(tmp_path, "*.json")[:-1]:
        entry.unlink()
    with pytest.raises(LogUnreadable):
        log_at(tmp_path).state()


def test_a_checkpoint_in_parts_serves_when_the_entries_are_gone(tmp_path: Path) -> None:
    log = create(tmp_path)
    for n in range(5):
        state = grown(log, moved(f"a{n}", n), added(tmp_path))
    whole = checkpointed(tmp_path)
    parted(whole, 3)
    parted(whole, 2, leave_out=1)
    whole.unlink()
    for entry in logged(tmp_path, "*.json"):
        entry.unlink()
    assert facts(log_at(tmp_path).state()) == facts(state)


def test_a_clean_up_below_a_follower_is_seen(tmp_path: Path) -> None:
    log, other = create(tmp_path), log_at(tmp_path)
    grown(log, moved("a", 1))
    for n in range(3):
        grown(other, moved("b", n))
    checkpointed(tmp_path)
    last = grown(other, moved("b", 4))
    for entry in logged(tmp_path, "*.json")[:-1]:
        entry.unlink()
    assert facts(log.state()) == facts(last)
    assert [version for version, _ in log.since(-1)] == [last.version]


def test_nothing_is_put_into_a_hole_that_a_clean_up_left(tmp_path: Path) -> None:
    """Below the newest checkpoint an entry is free to be written, and nobody would ever read it."""
    log, other = create(tmp_path), log_at(tmp_path)
    stale = log.state()
    for n in range(3):
        grown(other, moved("b", n))
    checkpointed(tmp_path)
    for version in (1, 2):  # in whatever order a clean-up takes them
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    assert not log.append(stale, [SAID])
    assert log.state().version == 3
    assert not logged(tmp_path, f"{1:020}.json")


def test_another_table_in_the_same_place_is_seen(tmp_path: Path) -> None:
    log = create(tmp_path / "lake")
    old = grown(log, moved("a", 1))
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(FileNotFoundError):
        log.state()
    fresh = create(tmp_path / "lake")
    grown(fresh, moved("a", 7))
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
    assert other.append(other.state(), [SAID, moved("theirs", 1)])
    assert not log.append(at, [SAID, moved("ours", 1)])
    assert dict(log.state().transactions) == {"theirs": 1}
    assert not logged(tmp_path, ".*")


def test_an_entry_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    log = create(tmp_path)
    before = os.umask(0o027)
    try:
        grown(log, moved("a", 1))
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
    assert not logged(tmp_path, ".*")


def test_a_full_disk_leaves_no_entry_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(os.fsync, at="before", code=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        log.append(log.state(), [SAID])
    assert (log.state().version, logged(tmp_path, ".*")) == (0, [])


def test_without_hard_links_a_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    monkeypatch.setattr(os, "link", failing(os.link, at="before", code=errno.EPERM, once=False))
    with pytest.raises(ConfigError, match=r"no hard link could be made there. Choose a location on a file system that"):
        lake.begin()
    log = log_at(tmp_path)
    with pytest.raises(NotExclusive):
        log.append(log.state(), [SAID])


def test_a_draft_that_a_dead_writer_left_harms_nobody_and_is_swept(tmp_path: Path) -> None:
    log = create(tmp_path)
    left = [tmp_path / "_delta_log" / f".{n:020}.json.{uuid4().hex}.tmp" for n in (1, 2)]
    for draft in left:
        draft.write_text('{"txn":')
    state = grown(log, moved("a", 1))
    checkpointed(tmp_path)
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
            if log.append(state, [SAID, moved(f"w{who}", state.version)]):
                won.append(state.version)
            begin.wait()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == list(range(10))
    assert DeltaTable(str(tmp_path)).version() == 10


# ---- the table on top of it


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
    lake.table = delta_table(str(tmp_path), "clicks", patience=timedelta(0))
    write = lake.table._end.write

    def late(snapshot: Any, *args: Any) -> None:
        DeltaTable(str(tmp_path)).alter.set_table_properties({"note": "x"}, raise_if_not_exists=False)
        write(snapshot, *args)

    monkeypatch.setattr(lake.table._end, "write", late)
    with pytest.raises(CommitFailed, match="took no commit for 0 s: another entry follows version 1"):
        lake.commit(0, 10)


def test_an_own_commit_that_could_not_be_looked_up_at_once_is_not_taken_for_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    lake.begin()
    write, ours, answers = lake.table._end.write, lake.table._end.ours, iter(["down"])

    def lost(*args: Any) -> None:
        write(*args)
        raise OSError("connection reset")

    def unreadable(since: int) -> Any:
        if next(answers, None):
            raise CommitFailed("cannot read")
        return ours(since)

    monkeypatch.setattr(lake.table._end, "write", lost)
    monkeypatch.setattr(lake.table._end, "ours", unreadable)
    assert lake.commit(0, 10) == lake.table.snapshot().version
    assert [commit.version for commit in ours(-1)] == [lake.table.snapshot().version]


def test_a_table_is_tidied_by_entries_since_its_checkpoint_whoever_wrote_them(tmp_path: Path) -> None:
    """With another client's entry after each of ours, no commit of ours may ever fall on a round version."""
    lake = Lake(str(tmp_path))
    lake.table._interval = 4
    lake.begin()
    DeltaTable(str(tmp_path)).alter.set_table_properties(
        {"delta.checkpointInterval": "1000", "delta.enableExpiredLogCleanup": "false"}
    )
    for n in range(6):
        at = lake.commit(n, n + 1)
        lake.table.tidy()
        DeltaTable(str(tmp_path)).alter.set_table_properties({"note": str(at)}, raise_if_not_exists=False)
    assert [int(path.name[:20]) for path in logged(tmp_path, "*.checkpoint.parquet")] == [3, 7, 11]
    assert len(logged(tmp_path, "*.json")) == lake.table.snapshot().version + 1
