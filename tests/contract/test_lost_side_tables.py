"""A table beside the log that is removed: no start makes it anew in silence, all commands say it, a person decides."""

import re
import shutil
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from rich.console import Console

from headrace.recovery.checkpoints.checks import preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.checkpoints.walk_back import walk_back
from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.cli.maintain import table_adopt
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.core.errors import exit_code
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.driver.start.pipeline_start import make_tables
from headrace.writer.maintenance.dead_letters.listing import group_dead_letters
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest, delete_rows
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.output.health import health
from headrace.writer.preflight.checks import host_checks
from headrace.writer.status.document import document
from headrace.writer.status.from_table import view
from headrace.writer.status.table_facts import TableFactsReader
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.operations.seals import Closing
from headrace.writer.table.lost_tables import SideTableLost
from tests.support.audits import run_audit
from tests.support.local_driver import Driver, log
from tests.support.raw_table import VALUES, carry_values
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW, event

DAY = timedelta(days=1)
KINDS = {"dead_letters": "dead-letter table", "late": "late table", "raw": "raw table"}
SEAL = {"late": "late_table", "allowed_lateness": "0 s"}


def open_driver(root: Path, form: str) -> Driver:
    return Driver(root, form, table={"raw": {"location": str(root / "lake" / "clicks_raw")}}, seal=SEAL)


def locate(driver: Driver, table: str) -> str:
    place = {"dead_letters": driver.dead_letters, "late": driver.settings.late_table, "raw": driver.settings.raw_place}
    return str(place[table])


def start_writer(root: Path, form: str) -> Driver:
    """Return a writer with 4 dead letters, 1 late row and 10 raw records."""
    driver = open_driver(root, form)
    driver.start()
    carry_values(driver, VALUES)
    driver.table.append(Closing("c1", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    driver.carry([log({8: event(8), 9: b"cut"})], {0: 10})
    return driver


def remove(driver: Driver, table: str) -> str:
    """Remove a table as a person may: its folder, and its name in a catalog. Returns its location."""
    location = locate(driver, table)
    if driver.settings.table.format == "iceberg":
        catalog_table = driver.config.in_catalog(driver.settings.table_at(location), location)
        assert catalog_table is not None
        load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).drop_table(catalog_table.identifier)
    shutil.rmtree(location)
    return location


def counts(driver: Driver) -> dict[str, int]:
    return {table: driver.side(locate(driver, table)).rows().count_rows() for table in KINDS}


def problems_of(driver: Driver) -> list[str]:
    return [problem.description for problem in run_audit(driver).problems]


def shown(driver: Driver, *, write: bool) -> str:
    out = Console(file=StringIO(), width=160)
    table_adopt.run_accept(driver.config, "clicks", write=write, now=NOW).render(out)
    assert isinstance(out.file, StringIO)
    return " ".join(out.file.getvalue().split())


@pytest.mark.parametrize("table", KINDS)
@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_a_table_that_was_removed_is_no_new_one_until_a_person_accepts_it(
    tmp_path: Path, form: str, table: str
) -> None:
    driver = start_writer(tmp_path, form)
    rows = counts(driver)
    assert rows == {"dead_letters": 4, "late": 1, "raw": 10}
    assert problems_of(driver) == []
    location = remove(driver, table)
    lost = f"the {KINDS[table]} at {re.escape(location)} is not there any more: the log at {re.escape(driver.lake)}"
    with pytest.raises(SideTableLost, match=lost) as refused:
        open_driver(tmp_path, form)
    assert exit_code(refused.value) == 2
    assert not Path(location).exists(), "nothing is made"

    probed = host_checks.ProbedLocations(driver.config.stores, driver.config.catalog_place)
    findings = host_checks.tables("clicks", driver.config, probed)
    failed = {finding.check: finding.message for finding in findings if finding.status == "failed"}
    assert list(failed) == [{"late": "late_table", "raw": "raw_table"}.get(table, table)]
    unreachable = BrokerUnreachable("none")
    facts = collect_pipeline_facts(driver.config, "clicks", unreachable).facts
    assert [bool(re.match(lost, check.message)) for check in preflight(facts) if check.halt] == [True]
    status = view("clicks", driver.config, unreachable, NOW)
    assert re.search(lost, status.error)
    problems = problems_of(driver)
    assert [bool(re.match(lost, problem)) for problem in problems].count(True) == 1
    assert any(f"hold 0 rows of the {KINDS[table]}" in problem or "hold 0 raw" in problem for problem in problems)

    told = f"the {KINDS[table]} at {location} is lost: {rows[table]} row"
    assert told in shown(driver, write=False)
    with pytest.raises(SideTableLost):
        open_driver(tmp_path, form)
    assert "was made anew, empty" in shown(driver, write=True)
    assert "no table is lost" in shown(driver, write=True)
    # Before the next start, and after it.
    assert problems_of(driver) == []
    second = open_driver(tmp_path, form)
    second.start()
    second.carry([log({10: event(10), 11: b"cut", 12: event(12)})], {0: 13})
    assert problems_of(second) == []
    added = {"dead_letters": 1, "late": 2, "raw": 3}
    assert counts(second) == {name: added[name] + (rows[name] if name != table else 0) for name in KINDS}
    third = open_driver(tmp_path, form)
    third.start()
    assert third.table.snapshot().side_table_ids[location] == third.side(location).snapshot().table_id
    remove(third, table)
    with pytest.raises(SideTableLost, match=lost):
        open_driver(tmp_path, form)
    assert "was made anew, empty" in shown(third, write=True)
    assert problems_of(open_driver(tmp_path, form)) == []


def test_a_table_that_comes_back_goes_on(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    shutil.move(driver.dead_letters, tmp_path / "away")
    with pytest.raises(SideTableLost):
        driver.carry([log({10: b"cut"})], {0: 11})
    assert driver.table.snapshot().parts().popitem()[1] == 11, "the batch is committed, and its dead letter waits"
    with pytest.raises(SideTableLost):
        open_driver(tmp_path, "delta")
    (waiting,) = Path(driver.dead_letters).rglob("*.parquet")
    assert not list(Path(driver.dead_letters).rglob("*.json"))
    shutil.move(waiting, tmp_path / "away" / waiting.name)
    shutil.rmtree(driver.dead_letters)
    shutil.move(tmp_path / "away", driver.dead_letters)
    second = open_driver(tmp_path, "delta")
    second.start()
    assert counts(second)["dead_letters"] == 5
    assert problems_of(second) == []


def test_what_came_after_the_loss_is_kept_by_an_acceptance(tmp_path: Path) -> None:
    """The last commit of before is not known to be applied either, and its file is gone with the table."""
    driver = start_writer(tmp_path, "delta")
    remove(driver, "dead_letters")
    with pytest.raises(SideTableLost):
        driver.carry([log({10: b"cut"})], {0: 11})
    assert "is lost: 4 rows went with it" in shown(driver, write=False)
    shown(driver, write=True)
    second = open_driver(tmp_path, "delta")
    second.start()
    assert counts(second)["dead_letters"] == 1
    assert problems_of(second) == []
    assert run_audit(second).dead_letters_taken == {"table accept": 4}


def test_another_table_in_the_place_of_one_is_found_out_by_a_start_and_by_a_running_writer(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    remove(driver, "dead_letters")
    # As an older headrace, or another tool, would make it.
    other = all_tables("clicks", driver.config).side(driver.dead_letters)
    other.create(driver.tables.main.snapshot().columns(), [])
    another = f"the (dead-letter )?table at {driver.dead_letters} is not the one that the log at"
    with pytest.raises(SideTableLost, match=another):
        driver.carry([log({10: b"cut"})], {0: 11})
    with pytest.raises(SideTableLost, match=another):
        open_driver(tmp_path, "delta")


def test_a_running_writer_is_told_by_the_thread_that_counts_rows(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    reader = TableFactsReader("clicks", driver.config, clock=lambda: 0.0)
    assert reader.contents(reader.snapshot(), NOW).dead_letters == 4
    shutil.move(driver.dead_letters, tmp_path / "away")
    contents = reader.contents(reader.snapshot(), NOW)
    assert (contents.dead_letters, contents.lost[:22]) == (None, "the dead-letter table ")
    run = PipelineRun("clicks", driver.config, schemas=driver.schemas, cluster=None)  # type: ignore[arg-type]
    run.progress.set(contents=contents)
    pipeline = document([run.progress.view()], NOW)["pipelines"]["clicks"]
    assert [reason for reason in health(pipeline).reasons if "is not there any more" in reason]
    with pytest.raises(SideTableLost, match="is not there any more"):
        run.parts.check_side_tables(driver.table.snapshot())
    shutil.move(tmp_path / "away", driver.dead_letters)
    run.parts.check_side_tables(driver.table.snapshot())
    assert reader.contents(reader.snapshot(), NOW).lost == ""


def test_a_log_that_knows_no_ids_has_the_tables_made_and_knows_them_from_then_on(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.table.begin({}, {"clicks": ["uuid-1"]})
    assert driver.table.snapshot().side_table_ids == {}
    shutil.rmtree(driver.dead_letters)
    second = Driver(tmp_path)
    second.start()
    assert list(second.table.snapshot().side_table_ids) == [driver.dead_letters]
    version = second.table.snapshot().version
    third = Driver(tmp_path)
    third.table.begin({}, {"clicks": ["uuid-1"]}, side_table_ids=third._side_table_ids)
    (entry,) = third.table.history(1)
    assert (entry.version, "side_tables" in entry.facts) == (version + 1, False), "only news are entered"


def test_another_location_is_a_new_table_and_the_one_that_is_left_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start_writer(tmp_path, "delta")
    assert "side_table_left" not in caplog.text
    settings = driver.settings.table.model_copy(update={"dead_letters": str(tmp_path / "lake" / "elsewhere")})
    moved = driver.settings.model_copy(update={"table": settings})
    config = driver.config.model_copy(update={"pipelines": {"clicks": moved}})
    findings = host_checks.tables("clicks", config, host_checks.ProbedLocations(config.stores))
    (doubt,) = [finding for finding in findings if finding.status == "warning" and finding.check == "dead_letters"]
    assert f"is a new place: the log knows tables at {driver.dead_letters}, which" in doubt.message
    ids = make_tables(moved, all_tables("clicks", config), driver.row_columns(), driver.columns)
    assert "side_table_left" in caplog.text
    assert set(ids) > {str(tmp_path / "lake" / "elsewhere")}


def test_files_prove_no_offsets_while_a_table_is_lost(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    remove(driver, "dead_letters")
    result = walk_back(driver.config, "clicks", None)  # type: ignore[arg-type]
    assert "so its rows prove nothing" in str(result)


@pytest.mark.parametrize("table", KINDS)
def test_a_command_passes_over_no_rows_that_may_come_back_with_a_lost_table(tmp_path: Path, table: str) -> None:
    """A mount that is away still has the rows that a delete promises to remove."""
    driver = start_writer(tmp_path, "delta")
    shutil.move(locate(driver, table), tmp_path / "away")
    version = driver.table.snapshot().version
    with pytest.raises(SideTableLost, match=KINDS[table]):
        delete_rows(driver.config, DeletionRequest("clicks", where("id = 1"), NOW), driver.schemas, write=True)
    with pytest.raises(SideTableLost, match=KINDS[table]):
        RewindExecution(driver.config, "clicks", Cluster(10)).preview(0)
    with pytest.raises(SideTableLost, match=KINDS[table]):
        group_dead_letters("clicks", driver.config, Selection())
    assert driver.table.snapshot().version == version
    shutil.move(tmp_path / "away", locate(driver, table))
    deletion = delete_rows(driver.config, DeletionRequest("clicks", where("id = 1"), NOW), driver.schemas, write=True)
    assert deletion.dead_letters is not None


def test_a_table_that_was_moved_is_known_by_its_new_location_alone(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    moved = str(tmp_path / "lake" / "moved")
    shutil.copytree(driver.dead_letters, moved)
    table = {"raw": {"location": locate(driver, "raw")}, "dead_letters": moved}
    second = Driver(tmp_path, "delta", table=table, seal=SEAL)
    second.start()
    shutil.rmtree(driver.dead_letters)
    assert set(second.table.snapshot().side_table_ids) == {moved, locate(driver, "raw"), locate(driver, "late")}
    assert problems_of(second) == []


def test_a_rewind_after_an_acceptance_reads_the_lost_dead_letters_again(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    remove(driver, "dead_letters")
    shown(driver, write=True)
    second = open_driver(tmp_path, "delta")
    second.start()
    start = min(entry.version for entry in second.table.history() if entry.kind == "batch") - 1
    rewind = RewindExecution(driver.config, "clicks", Cluster(10))
    rewind.write(rewind.preview(start), NOW)
    third = open_driver(tmp_path, "delta")
    third.start()
    third.carry([log({**VALUES, 8: event(8), 9: b"cut"})], {0: 10})
    assert counts(third)["dead_letters"] == 4
    assert problems_of(third) == []
