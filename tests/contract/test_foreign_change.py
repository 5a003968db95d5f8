"""The pipeline refuses what another client did to its table; it is taken back, or it is accepted, and goes on."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from headrace.recovery.cli.fix.rewind import RewindReport
from headrace.writer.audit.audit import audit
from headrace.writer.cli.look.audit import run_audit as report_audits
from headrace.writer.cli.maintain import table_adopt
from headrace.writer.core.errors import ConfigError, Fenced
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.output.report import Screen
from headrace.writer.output.tables import console
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support.audits import P0, describe_problems, mixed_values, run_audit
from tests.support.local_driver import Driver, log
from tests.support.reverted_change import revert_change
from tests.support.rewound_cluster import Cluster, rewind_report
from tests.support.sample_records import NOW

Theirs = Callable[[DeltaTable, int], Any]  # what another client does; the version after the first batch

UPDATE: Theirs = lambda table, _: table.update(updates={"note": "'x'"}, predicate="id < 25")  # noqa: E731
RESTORE: Theirs = lambda table, first: table.restore(first)  # noqa: E731
TWICE: Theirs = lambda table, _: write_deltalake(table, table.to_pyarrow_table().slice(0, 3), mode="append")  # noqa: E731
MERGE: Theirs = lambda table, _: (  # noqa: E731
    table.merge(table.to_pyarrow_table().slice(0, 2), "s._offset = t._offset", source_alias="s", target_alias="t")
    .when_matched_delete().execute()
)  # fmt: skip
CHANGES = {"UPDATE": UPDATE, "RESTORE": RESTORE, "WRITE": TWICE, "MERGE": MERGE}


class Changed(Driver):
    """A driver whose table another client has changed."""

    first = own = 0  # versions: after the first batch, and the last of its own


def changed(root: Path, theirs: Theirs, **settings: Any) -> Changed:
    """Forty offsets in two batches; then another client comes."""
    made = Changed(root, **settings)
    made.start()
    made.carry([log(mixed_values(0, 20))], {0: 20})
    made.first = made.table.snapshot().version
    made.carry([log(mixed_values(0, 40))], {0: 40})
    made.own = made.table.snapshot().version
    theirs(DeltaTable(made.lake), made.first)
    return made


@pytest.fixture(params=CHANGES)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Changed:
    return changed(tmp_path, CHANGES[request.param])


def rows(driver: Driver) -> list[dict[str, Any]]:
    result_rows = main_table("clicks", driver.config).rows().to_table().to_pylist()
    return sorted(result_rows, key=lambda row: row["_offset"])


def accepted(driver: Driver, *, write: bool = True, as_json: bool = False) -> None:
    report = table_adopt.run_accept(driver.config, "clicks", write=write, now=NOW)
    Screen(as_json=as_json, has_lines=False).show(report)


def goes_on(driver: Driver, end: int = 60, **flags: Any) -> Changed:
    """Start the writer anew, and read on, twice: exactly what is not there yet."""
    changed = Changed(Path(driver.lake).parents[1], **flags)
    changed.start()
    changed.carry([log(mixed_values(0, end))], {0: end})
    changed.start()
    assert changed.carry([log(mixed_values(0, end))], {0: end}) is None
    return changed


def test_the_refusal_names_both_ways(driver: Changed) -> None:
    with pytest.raises(ForeignChange) as refused:
        Driver(Path(driver.lake).parents[1]).start()
    assert refused.value.exit_code == 2
    assert f"(version {driver.own + 1})" in str(refused.value)
    assert f"`headrace rewind --to {driver.own}` takes it back" in str(refused.value)
    assert "`headrace table accept` keeps the rows as they are" in str(refused.value)


def page(report: RewindReport) -> str:
    """Return what a person is shown, on one line."""
    out = Console(file=StringIO(), width=160)
    report.render(out)
    assert isinstance(out.file, StringIO)
    return " ".join(out.file.getvalue().split())


def test_a_rewind_to_the_last_version_of_its_own_undoes_it(tmp_path: Path, driver: Changed) -> None:
    untouched = rows(changed(tmp_path / "beside", lambda *_: None))
    preview = rewind_report(driver, driver.own, Cluster(60), write=False)
    assert (preview.exit_code, preview.has_changes) == (0, True)
    shown = page(preview)
    assert "What others did is undone: another client ran" in shown
    assert "0 offsets" in shown
    with pytest.raises(ForeignChange):
        driver.tables.apply_side_files()
    assert revert_change(driver, driver.own) == 0
    assert rows(driver) == untouched
    with pytest.raises(Fenced):
        driver.carry([log(mixed_values(0, 60))], {0: 60})
    made = goes_on(driver)
    for deep in (False, True):
        report = run_audit(made, deep=deep)
        assert report.adds_up, describe_problems(report)
        assert report.accepted is None
    assert made.table.snapshot().frontier(P0) == 60


def test_a_rewind_further_back_undoes_it_and_reads_the_same_again(driver: Changed) -> None:
    assert revert_change(driver, driver.first) == 0
    assert driver.table.snapshot().frontier(P0) == 20
    changed = goes_on(driver, 40)
    assert [row["_offset"] for row in rows(changed)] == [offset for offset in range(40) if offset % 10 not in (3, 5, 7)]
    for deep in (False, True):
        report = run_audit(changed, deep=deep)
        assert report.adds_up, describe_problems(report)


def test_files_that_a_vacuum_removed_do_not_come_back(tmp_path: Path) -> None:
    driver = changed(tmp_path, RESTORE)
    files = set(DeltaTable(driver.lake).file_uris())
    for path in Path(driver.lake).rglob("*.parquet"):
        if str(path) not in files and "_delta_log" not in str(path):
            path.unlink()
    report = rewind_report(driver, driver.own, Cluster(60))
    assert report.exit_code == 2
    assert "a VACUUM removed them. Choose the version that a RESTORE went back to." in page(report)
    assert revert_change(driver, driver.first) == 0, "whose files are those of now"
    made = goes_on(driver, 40)
    for deep in (False, True):
        found = run_audit(made, deep=deep)
        assert found.adds_up, describe_problems(found)
    assert [row["_offset"] for row in rows(made)] == [offset for offset in range(40) if offset % 10 not in (3, 5, 7)]


def test_a_later_change_of_files_prevents_the_rewind_of_a_foreign_change(tmp_path: Path) -> None:
    driver = changed(tmp_path, UPDATE)
    DeltaTable(driver.lake).delete("_offset = 1")
    report = rewind_report(driver, driver.own, Cluster(60))
    assert report.exit_code == 2
    assert f"and version {driver.own + 2} changed files after it, which would be taken back too." in page(report)
    accepted(driver)
    assert len(rows(goes_on(driver))) == 60 - 18 - 1


def test_accepted_it_stays_and_the_rest_is_proven(driver: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    there = rows(driver)
    accepted(driver, write=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "can then no longer prove that rows of these offsets are what Kafka held, each there once: clicks/0 below 40"
        in shown
    )
    assert "`headrace rewind --to" in shown
    assert driver.table.snapshot().version == driver.own + 1
    accepted(driver)
    version = driver.table.snapshot().version
    assert f"Accepted, as version {version} of the table." in " ".join(capsys.readouterr().out.split())
    with pytest.raises(Fenced):
        driver.carry([log(mixed_values(0, 60))], {0: 60})
    changed = goes_on(driver, interval=1)  # with pages of the ledger
    key = lambda row: (row["_offset"], str(row))  # noqa: E731
    new = [row for row in rows(changed) if row["_offset"] >= 40]
    assert sorted((row for row in rows(changed) if row["_offset"] < 40), key=key) == sorted(there, key=key)
    assert [row["_offset"] for row in new] == [offset for offset in range(40, 60) if offset % 10 not in (3, 5, 7)]
    for deep in (False, True):
        found = run_audit(changed, deep=deep)
        assert found.adds_up, describe_problems(found)
        assert found.accepted is not None
        assert found.accepted.version == version
    report = report_audits(ChosenPipelines(["clicks"], changed.config))
    report.render(console())
    assert report.exit_code == 0
    assert f"which was accepted as version {version}: rows are proven" in " ".join(capsys.readouterr().out.split())


def test_after_an_acceptance_a_row_that_goes_is_found(tmp_path: Path) -> None:
    driver = changed(tmp_path, UPDATE)
    accepted(driver)
    made = goes_on(driver)
    DeltaTable(made.lake).update(updates={"note": "'y'"}, predicate="_offset = 41")
    with pytest.raises(ForeignChange):
        made.tables.apply_side_files()
    report = run_audit(made, deep=False)
    assert "another client ran UPDATE" in describe_problems(report), "only the first was accepted"
    accepted(made)
    again = goes_on(made, 80)
    entry = max(Path(again.lake, "_delta_log").glob("*[0-9].json"))
    lost = next(json.loads(line)["add"] for line in reversed(Path(entry).read_text().splitlines()) if '"add"' in line) \
        if '"add"' in entry.read_text() else None  # fmt: skip
    assert lost is None, "the newest entry is a start"
    DeltaTable(again.lake).delete("_offset = 70")
    assert run_audit(again).rows_taken["DELETE"] == 1


def test_where_the_frontier_went_back_too_only_a_rewind_helps(tmp_path: Path) -> None:
    """A client whose RESTORE takes the table's transactions back with its files."""
    made = {}
    for to in ("own", "first"):
        driver = changed(tmp_path / to, RESTORE)
        entry = max(Path(driver.lake, "_delta_log").glob("*[0-9].json"))
        txn = json.dumps({"txn": {"appId": "clicks/clicks@1/0", "version": 20}})
        entry.write_text(f"{entry.read_text().rstrip()}\n{txn}\n")
        driver = Changed(tmp_path / to)
        assert driver.table.snapshot().frontier(P0) == 20
        with pytest.raises(ConfigError, match="frontier of clicks/0 went from 40 to 20 with it"):
            accepted(driver)
        version = driver.table.snapshot().version - 1
        assert revert_change(driver, version if to == "own" else version - 1) == 0
        assert driver.table.snapshot().frontier(P0) == (40 if to == "own" else 20)
        made[to] = goes_on(driver, 40)
        for deep in (False, True):
            report = run_audit(made[to], deep=deep)
            assert report.adds_up, describe_problems(report)
    assert [row["id"] for row in rows(made["own"])] == [row["id"] for row in rows(made["first"])]


def test_where_nothing_was_done_nothing_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = changed(tmp_path, lambda table, _: table.delete("_offset = 1"))
    accepted(driver)
    assert "no other client did anything that needs to be accepted" in capsys.readouterr().out
    assert driver.table.snapshot().version == driver.own + 1


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = changed(tmp_path, MERGE)
    accepted(driver, as_json=True)
    document = json.loads(capsys.readouterr().out)
    (change,) = document["changes"]
    assert (change["operation"], change["rows_before"], change["rows_after"], document["rows_fewer"]) == (
        "MERGE",
        28,
        26,
        2,
    )
    assert document["not_proven_below"] == [{"topic": "clicks", "incarnation": 1, "partition": 0, "offset": 40}]
    assert document["version"] == driver.own + 2
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
