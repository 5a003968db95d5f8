"""Our reading and writing of a Delta log, held to delta-rs: both work on one table, and both must see the same."""

import json
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from hypothesis import given, settings, strategies as st

from headrace.writer.batch.staging.parquet_files import delta_statistics
from headrace.writer.table.log.log import Log
from tests.support.delta_logs import (
    COLUMNS,
    LINES,
    SAID,
    add_action,
    append_actions,
    create,
    log_at,
    log_files,
    txn_action,
    write_checkpoint,
)
from tests.support.example_counts import share


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
    entries = dict(log.entries_after(-1))
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
            append_actions(
                log,
                txn_action("ours", next(numbers)),
                add_action(location, None),
                add_action(location, "a b/ü%:=" + LINES),
            )
        case "move":
            append_actions(log, *(txn_action(name, next(numbers)) for name in ("ours", "both", "ours/ü " + LINES)))
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


@settings(max_examples=share(30))
@given(st.lists(st.sampled_from(OURS + THEIRS), min_size=1, max_size=10), st.sampled_from([0, 30]))
def test_delta_rs_and_we_see_the_same_table_from_every_writer(actions: list[str], days_kept: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        location = Path(root) / "lake ü"
        kept = {"delta.logRetentionDuration": f"interval {days_kept} days"}
        log, numbers = create(location, **kept), count(1)
        for action in actions:
            act(action, log, location, numbers)
            agree(log, location, {"ours", "both", "theirs", "ours/ü " + LINES})
        assert not log_files(location, ".*")


def test_null_and_odd_bucket_values_read_back_through_delta_rs(tmp_path: Path) -> None:
    values = [None, "2026-11-20T05", "a b", "100%", "%41", "a/b=c", "ü", LINES, "\U00020000", "\U0010ffff", '"', "\\"]
    append_actions(create(tmp_path), *(add_action(tmp_path, value) for value in values))
    found = [bucket["hour"] for bucket in DeltaTable(str(tmp_path)).partitions()]
    assert sorted(found, key=str) == sorted(values, key=str)
    assert DeltaTable(str(tmp_path)).count() == 2 * len(values)
    write_checkpoint(tmp_path)
    assert sorted((bucket["hour"] for bucket in DeltaTable(str(tmp_path)).partitions()), key=str) == sorted(
        values, key=str
    )


def test_bounds_of_texts_read_back_through_delta_rs_as_they_were_written(tmp_path: Path) -> None:
    """A bound that reads as less than it is hides rows."""
    log = create(tmp_path)
    for text in ("\U00020000", "\U0002a6df" * 40, LINES, "\U0001f600", "\U0010ffff", "a" * 40, '"\\'):
        action = add_action(tmp_path)
        path = tmp_path / action["add"]["path"]
        pq.write_table(pa.table({"id": [1], "text": [text]}), path)
        stats = delta_statistics(pq.read_metadata(path))
        append_actions(log, {"add": {**action["add"], "size": path.stat().st_size, "stats": stats}})
        found = {
            row["path"]: row for row in pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
        }
        bounds = json.loads(stats)
        assert found[action["add"]["path"]]["min.text"] == bounds["minValues"]["text"]
        assert found[action["add"]["path"]]["max.text"] == bounds["maxValues"]["text"]
        assert bounds["minValues"]["text"] <= text <= bounds["maxValues"]["text"]


def test_thousands_of_offsets_are_read_from_entry_and_checkpoint_alike(tmp_path: Path) -> None:
    log = create(tmp_path)
    state = append_actions(log, *(txn_action(f"events/clicks@1/{n}", n) for n in range(2_000)))
    write_checkpoint(tmp_path)
    assert state.transactions == log_at(tmp_path).state().transactions
    assert len(state.transactions) == 2_000
