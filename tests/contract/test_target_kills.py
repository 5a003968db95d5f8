"""Fifty tables of a route: kill -9 while they are made, an entry is applied to them, or held files come."""

from pathlib import Path

import pytest

from headrace.writer.table.factory import all_tables
from tests.support import oracle
from tests.support.killed_process import kill_within
from tests.support.route_targets import BY_HEADER, RouteTables

NAMES = [f"t{offset:02}" for offset in range(50)]
FORMATS = pytest.mark.parametrize("form", ["delta", "iceberg"])


def started(root: Path, form: str) -> RouteTables:
    return RouteTables(root, {**BY_HEADER, "targets": {"*": str(root / "{name}")}}, form=form)


def make(root: Path, form: str) -> None:
    started(root, form).learn(*NAMES)


def apply(root: Path, form: str) -> None:
    all_tables("p", started(root, form).config).apply_side_files()


def check_all_have_each_commit_once(root: Path, form: str, commits: int) -> None:
    """Start again, and commit once more: nothing is lost, doubled or left behind."""
    route = started(root, form)
    assert {record.name for record in route.learn(*NAMES).values()} == set(NAMES)
    route.commit(*(str(root / name) for name in NAMES))
    route.tables.apply_side_files()
    assert route.tables.behind == {}
    records = route.tables.main.snapshot().targets().values()
    assert sorted(record.location for record in records) == [str(root / name) for name in NAMES]
    for name in NAMES:
        offsets = sorted(int(str(offset)) for (offset,) in oracle.rows(root / name, "_offset"))
        assert offsets == list(range(commits + 1)), name


@FORMATS
@pytest.mark.parametrize("at", ["1", "2", "40", "41", "90"])
def test_tables_that_were_being_made_are_made_once(tmp_path: Path, form: str, at: str) -> None:
    started(tmp_path, form)
    kill_within(make, tmp_path, form, moment=at)
    check_all_have_each_commit_once(tmp_path, form, 0)


@FORMATS
@pytest.mark.parametrize("at", ["before_apply:20", "0", "1", "33", "48", "after_apply:49"])
def test_an_entry_that_was_being_applied_is_in_each_table_once(tmp_path: Path, form: str, at: str) -> None:
    route = started(tmp_path, form)
    route.learn(*NAMES)
    for _ in range(2):
        route.commit(*(str(tmp_path / name) for name in NAMES))
    kill_within(apply, tmp_path, form, moment=at)
    check_all_have_each_commit_once(tmp_path, form, 2)


@FORMATS
@pytest.mark.parametrize("at", ["after_bring:1", "after_bring:26", "60"])
def test_files_that_were_being_brought_are_in_each_table_once(tmp_path: Path, form: str, at: str) -> None:
    route = started(tmp_path, form)
    route.learn(*NAMES)
    route.hold({record.location: number for number, record in route.tables.main.snapshot().targets().items()})
    kill_within(apply, tmp_path, form, moment=at)
    check_all_have_each_commit_once(tmp_path, form, 1)
