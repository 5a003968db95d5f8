"""One catalog commit of another client with several snapshots is one change, and a rewind takes it back whole."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as st
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThanOrEqual, In
from pyiceberg.table import Transaction

from headrace.writer.audit.audit import audit
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support.example_counts import share
from tests.support.iceberg_clients import client_table
from tests.support.iceberg_transactions import (
    REPLACING,
    Theirs,
    check_sound,
    read_rows,
    refusal,
    tag_rows,
    upsert,
)
from tests.support.reverted_change import revert_change
from tests.support.small_files import carry, fill_table


@pytest.mark.parametrize("theirs", REPLACING)
def test_rows_that_one_commit_replaces_stop_it_and_the_rewind_it_names_restores_them(
    tmp_path: Path, theirs: Theirs
) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    own = driver.table.snapshot().version
    theirs(client_table(driver))
    text, outcome = refusal(driver, 6)
    assert outcome == own, text
    assert not audit(driver.config, "clicks", since=None, deep=False).adds_up
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before
    driver.start()
    carry(driver, 6)
    assert sum(read_rows(driver).values()) == 70
    check_sound(driver)


def test_an_append_and_its_delete_in_one_commit_are_nothing(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    table = client_table(driver)
    rows = tag_rows(table, [7, 8])
    with table.transaction() as change:
        change.append(rows)
        (snapshot,) = [s for s in change.table_metadata.snapshots if s not in table.metadata.snapshots]
        added = [
            entry.data_file
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
        ]
        with change.update_snapshot().overwrite() as taken:
            for file in added:
                taken.delete_data_file(file)
    carry(driver, 6)
    assert sum(read_rows(driver).values()) == 70
    assert before <= read_rows(driver)
    check_sound(driver)


def test_deletes_of_one_commit_go_on_and_are_counted_together(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    own = driver.table.snapshot().version
    with client_table(driver).transaction() as change:
        change.delete(In("_offset", [3, 4]))
        change.delete(GreaterThanOrEqual("_offset", 58))
    carry(driver, 6)
    assert driver.table.snapshot().version == own + 2, "one entry of theirs, and one of ours"
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.rows_taken) == (True, {"DELETE": 4}), report.problems


def test_two_commits_stay_two_changes(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    own = driver.table.snapshot().version
    table = client_table(driver)
    rows = tag_rows(table, [7, 8])
    table.delete(In("_offset", [7, 8]))
    left = read_rows(driver)
    client_table(driver).append(rows)
    text, outcome = refusal(driver, 6)
    assert outcome == own + 1
    assert "another client ran INSERT" in text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == left
    check_sound(driver)


def test_several_commits_whose_metadata_files_are_gone_are_one_change(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    own = driver.table.snapshot().version
    table = client_table(driver)
    rows = tag_rows(table, [7, 8])
    table.delete(In("_offset", [7, 8]))
    between = client_table(driver).metadata_location
    table.append(rows)
    Path(between.removeprefix("file://")).unlink()
    text, outcome = refusal(driver, 6)
    assert outcome == own
    assert "another client ran changes whose metadata files are gone" in text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before
    driver.start()
    check_sound(driver)


def test_more_deletes_than_metadata_files_are_kept_go_on(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    for offset in range(25):
        client_table(driver).delete(EqualTo("_offset", offset))
    carry(driver, 6)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.rows_taken) == (True, {"DELETE": 25}), report.problems


def test_a_rollback_and_what_follows_it_are_one_change(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    own = driver.table.snapshot().version
    table = client_table(driver)
    table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[-2].snapshot_id).commit()
    upsert(client_table(driver))
    text, outcome = refusal(driver, 6)
    assert outcome == own
    assert "another client ran ROLLBACK" in text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before


def test_a_branch_that_becomes_main_is_one_change(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    own = driver.table.snapshot().version
    table = client_table(driver)
    rows = tag_rows(table, [7, 8])
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "work").commit()
    client_table(driver).delete(In("_offset", [7, 8]), branch="work")
    client_table(driver).append(rows, branch="work")
    driver.table.snapshot()
    assert read_rows(driver) == before
    work = client_table(driver).metadata.refs["work"].snapshot_id
    client_table(driver).manage_snapshots().set_current_snapshot(work).commit()
    text, outcome = refusal(driver, 6)
    assert outcome == own, text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before


def test_a_commit_whose_first_snapshot_expired_is_taken_back_whole(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = read_rows(driver)
    own = driver.table.snapshot().version
    upsert(client_table(driver))
    table = client_table(driver)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[-2].snapshot_id).commit()
    text, outcome = refusal(driver, 6)
    assert outcome == own, text
    assert revert_change(driver, outcome) == 0
    assert read_rows(driver) == before


# Steps of a transaction, by a number that chooses offsets.
STEPS: dict[str, Callable[[Transaction, pa.Table, list[int]], None]] = {
    "append": lambda change, rows, _: change.append(rows),
    "delete": lambda change, _, offsets: change.delete(In("_offset", offsets)),
    "overwrite": lambda change, rows, offsets: change.overwrite(rows, overwrite_filter=In("_offset", offsets)),
    "overwrite all": lambda change, rows, _: change.overwrite(rows, overwrite_filter=AlwaysTrue()),
    "properties": lambda change, *_: change.set_properties({"owner": "someone"}) and None,
}
COMMITS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([*STEPS, "delete", "delete", "append", "overwrite"]),
            st.lists(st.integers(0, 29), min_size=1, max_size=4, unique=True),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.timeout(1800)  # a second for each of 250 examples
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@settings(max_examples=share(25), phases=[Phase.generate])
@given(commits=COMMITS)
def test_of_random_commits_rows_that_only_go_go_on_and_a_rewind_restores_all_others(
    commits: list[list[tuple[str, list[int]]]],
) -> None:
    """The oracle reads the table between the commits, and compares rows."""
    with TemporaryDirectory() as root:
        driver = fill_table(Path(root), "iceberg", commits=3)
        own = driver.table.snapshot().version
        states = [read_rows(driver)]
        for steps in commits:
            table = client_table(driver)
            snapshot_id = table.metadata.current_snapshot_id
            with table.transaction() as change:
                for step, offsets in steps:
                    STEPS[step](change, tag_rows(table, offsets), offsets)
            if client_table(driver).metadata.current_snapshot_id != snapshot_id:
                states.append(read_rows(driver))
        is_loss_alone = all(after <= before for before, after in pairwise(states))
        try:
            carry(driver, 3)
        except ForeignChange as refused:
            outcome = int((re.search(r"rewind --to (\d+)", str(refused)) or [])[1])
            if revert_change(driver, outcome) == 2:
                # A delete that came after the change would be undone with it: a person decides.
                assert any(after <= before for before, after in pairwise(states[outcome - own + 1 :]))
                assert read_rows(driver) == states[-1]
                return
            assert read_rows(driver) == states[outcome - own]
            driver.start()
        else:
            assert is_loss_alone
            taken = sum(states[0].values()) - sum(states[-1].values())
            assert audit(driver.config, "clicks", since=None, deep=False).rows_removed == taken
        check_sound(driver)
