"""Delta and Parquet tables with a history become Iceberg tables: nothing is lost or doubled, whoever dies."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from headrace.writer.audit.audit import audit
from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.sealing.seal_request import SealRequest, seal_buckets
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.appender import TableConverted
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.backfill_gaps import fill_from_archives, skip_offsets, write_archive
from tests.support.effect_failures import Died, die_after
from tests.support.local_driver import Died as DriverDied, Driver, log, pipeline_config
from tests.support.replay_records import BOTH_SCHEMAS, FUTURE, mixed_values
from tests.support.rewound_cluster import Cluster, run_rewind
from tests.support.sample_records import NOW, WIDER, event, value

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
FORMS = ["delta", "parquet"]
HOUR = timedelta(hours=1)
P0 = TopicPartition("clicks", 1, 0)
SEAL = {"late": "late_table"}


def before(root: Path, form: str) -> Driver:
    """A table with dead letters, a compaction, a seal, late rows, a gap, a new column and a rewind in its history."""
    driver = Driver(root, form, seal=SEAL)
    driver.start()
    for offset in range(0, 40, 10):
        driver.carry([log(mixed_values(offset, offset + 10))], {0: offset + 10})
    assert compacted(driver)
    seal_buckets("clicks", driver.config, SealRequest(None, NOW.replace(minute=0) - HOUR, False, False), NOW)
    driver.carry([log({offset: event(offset, event_time=NOW - 3 * HOUR) for offset in range(40, 45)})], {0: 45})
    skip_offsets(driver, 60)
    driver.start()
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(60, 70)})], {0: 70})
    driver.table.grow([pa.field("extra", pa.int64())], driver.epoch)
    version = driver.table.snapshot().version
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(70, 80)})], {0: 80})
    assert run_rewind(driver, version, Cluster(200)) == 0
    driver.start()
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(70, 75)})], {0: 75})
    return driver


def compacted(driver: Driver) -> list[Any]:
    compaction, snapshot = Compactor("clicks", driver.settings, driver.table, None), driver.table.snapshot()
    planned = compaction.plan(snapshot, compaction.buckets(snapshot), open_too=True)
    return [result for pieces in planned.values() for result in compaction.carry_out(snapshot, pieces, here)]


def converted(root: Path, form: str = "iceberg", *, write: bool = True, **table: Any) -> bool:
    settings = pipeline_config(root, form, seal=SEAL, **table)
    return run_convert(settings, "clicks", write=write, now=NOW).has_changes


def theirs(driver: Driver, location: str) -> Table:
    catalog_table = driver.config.catalog_place("clicks", location)
    assert catalog_table is not None
    settings = {**dict(catalog_table.settings), **catalog_client.file_settings(location)}
    return load_catalog(catalog_table.catalog, **settings).load_table(catalog_table.identifier)


def facts(driver: Driver) -> dict[str, Any]:
    """What must be the same before and after."""
    places = {"rows": driver.lake, "dead letters": driver.dead_letters, "late": str(driver.settings.late_table)}
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    snapshot = driver.table.snapshot()
    totals = {name: report.reconciliation.total(name) for name in ("read", "rows", "late", "dead_letters")}
    kinds = [(entry.version, entry.kind) for entry in driver.table.history() if entry.kind != "convert"]
    return {
        **{what: oracle.offsets(Path(location)) for what, location in places.items()},
        "account": totals, "kinds": kinds,
        "frontier": snapshot.parts(), "gaps": snapshot.gaps, "closed": snapshot.closed_until,
        "columns": snapshot.columns(),
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_rows_offsets_and_history_are_those_of_before_and_the_writer_goes_on(tmp_path: Path, form: str) -> None:
    old = before(tmp_path, form)
    entry_facts, files = (
        facts(old),
        {path for path in Path(old.lake).rglob("*.parquet") if "_delta_log" not in path.parts},
    )
    with pytest.raises(ConfigError, match=r"`headrace convert` makes an Iceberg table"):
        Driver(tmp_path, "iceberg", seal=SEAL)
    assert converted(tmp_path, write=False)
    assert facts(old) == entry_facts, "it was only shown"
    assert converted(tmp_path)
    assert not converted(tmp_path), "nothing is left to do"
    new = Driver(tmp_path, "iceberg", seal=SEAL, schemas=BOTH_SCHEMAS)
    assert facts(new) == entry_facts
    assert files == {
        p for p in Path(old.lake).rglob("*.parquet") if "_delta_log" not in p.parts and "_headrace/log" not in str(p)
    }
    scan = theirs(new, new.lake).scan(selected_fields=("_kafka_partition", "_offset", "id", "hour"))
    by_reader = scan.to_arrow()
    assert sorted(by_reader.column("_offset").to_pylist()) == entry_facts["rows"]["clicks", 0]
    assert set(by_reader.column("_kafka_partition").to_pylist()) == {0}
    assert theirs(new, new.dead_letters).scan().count() == len(entry_facts["dead letters"]["clicks", 0])
    goes_on(new, tmp_path)


def goes_on(driver: Driver, root: Path) -> None:
    """Read on, replay, bring the gap back and rewind over the change."""
    driver.start()
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(75, 80)})], {0: 80})
    assert DeadLetterReplay("clicks", driver.config, BOTH_SCHEMAS).run(Selection(), FUTURE).rows == 8
    (brought,) = fill_from_archives(
        driver, write_archive(root, {offset: event(offset, event_time=NOW) for offset in range(45, 60)})
    )
    assert brought.gap_record.state == "done"
    entry_facts = facts(driver)
    assert sorted(o for what in ("rows", "dead letters", "late") for o in entry_facts[what]["clicks", 0]) == list(
        range(80)
    )
    (ended,) = [entry.version for entry in driver.table.history() if entry.kind == "convert"]
    assert run_rewind(driver, ended - 2, Cluster(200)) == 0
    driver.start()
    at = driver.table.snapshot().frontier(P0)
    assert at == 70
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(70, 80)})], {0: 80})
    facts(driver)
    assert [offset for offset in oracle.offsets(Path(driver.lake))["clicks", 0] if offset >= 60] == list(range(60, 80))


def test_a_delta_log_that_was_cleaned_up_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta", seal=SEAL, interval=4)
    driver.start()
    for at in range(0, 100, 10):
        driver.carry([log(mixed_values(at, at + 10))], {0: at + 10})
    entry_facts = facts(driver)
    checkpointed = json.loads(Path(driver.lake, "_delta_log", "_last_checkpoint").read_text())["version"]
    gone = [path for path in Path(driver.lake, "_delta_log").glob("*.json") if int(path.stem) < checkpointed]
    assert len(gone) > 4
    for path in gone:
        path.unlink()
    assert converted(tmp_path)
    new = Driver(tmp_path, "iceberg", seal=SEAL, interval=4)
    new.start()
    for at in range(100, 160, 10):  # the journal's own checkpoints stand beside the one of Delta
        new.carry([log(mixed_values(at, at + 10))], {0: at + 10})
    found = facts(Driver(tmp_path, "iceberg", seal=SEAL, interval=4))
    assert found["account"]["read"] == entry_facts["account"]["read"] + 60
    assert [offset for offset in found["rows"]["clicks", 0] if offset < 100] == entry_facts["rows"]["clicks", 0]
    assert new.table.snapshot_at(checkpointed).version == checkpointed
    assert compacted(new)
    assert facts(new)["rows"] == found["rows"]


@pytest.mark.parametrize("form", ["delta", pytest.param("parquet", marks=pytest.mark.long)])
def test_on_s3_it_is_the_same(tmp_path: Path, form: str, on_s3: ObjectServer) -> None:
    table = {"location": f"{on_s3.bucket()}/lake/clicks"}
    driver = Driver(tmp_path, form, seal=SEAL, table=table)
    driver.start()
    driver.carry([log(mixed_values(0, 10))], {0: 10})
    assert converted(tmp_path, table=table)
    new = Driver(tmp_path, "iceberg", seal=SEAL, table=table)
    new.start()
    new.carry([log(mixed_values(10, 20))], {0: 20})
    report = audit(new.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.reconciliation.total("read")) == (True, 20), report.problems
    assert [theirs(new, location).scan().count() for location in (new.lake, new.dead_letters)] == [14, 6]


# --- the old format -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_writer_of_the_old_format_stops_with_a_sentence(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form, seal=SEAL)
    driver.start()
    driver.carry([log(mixed_values(0, 10))], {0: 10})
    converted(tmp_path)
    with pytest.raises(TableConverted, match=r"`headrace convert` makes .* nothing follows version 3 of its old log"):
        driver.carry([log(mixed_values(10, 20))], {0: 20})
    with pytest.raises(TableConverted):
        Driver(tmp_path, form, seal=SEAL)
    assert TableConverted.exit_code == 2
    assert oracle.offsets(Path(driver.lake))["clicks", 0] == [
        offset for offset in range(10) if offset % 10 not in (2, 4, 6)
    ]


def test_readers_of_delta_keep_the_rows_and_other_clients_neither_write_nor_vacuum(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta", seal=SEAL)
    driver.start()
    driver.carry([log(mixed_values(0, 10))], {0: 10})
    converted(tmp_path)
    new = Driver(tmp_path, "iceberg", seal=SEAL)
    new.start()
    new.carry([log(mixed_values(10, 20))], {0: 20})
    table = DeltaTable(driver.lake)
    assert (table.count(), new.table.rows().count_rows()) == (7, 14)
    for write in (lambda: table.delete("id = 1"), table.optimize.compact):
        with pytest.raises(CommitFailedError, match=r"headrace\.convertedToIceberg"):
            write()
    assert table.vacuum() == []
    with pytest.raises(TableConverted, match=r"Set table\.format: iceberg"):
        find_unneeded(driver.config, "clicks", None, datetime.now(UTC) + timedelta(days=3000))


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_file_older_than_a_widening_that_iceberg_does_not_know_is_refused_until_it_is_compacted(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path, "delta", seal=SEAL, schemas=BOTH_SCHEMAS)
    driver.start()
    for offset in range(2):
        driver.carry(
            [log({offset: value(2, WIDER, {"id": offset, "at": NOW, "note": None, "extra": 1})})], {0: offset + 1}
        )
    driver.table.grow([pa.field("extra", pa.float64())], driver.epoch)
    with pytest.raises(ConfigError, match=r"Its file hour=.* is older than the type that column extra has now"):
        converted(tmp_path)
    assert driver.table.snapshot().converted == -1
    assert compacted(driver)
    assert converted(tmp_path)
    new = Driver(tmp_path, "iceberg", seal=SEAL)
    assert theirs(new, new.lake).scan().to_arrow().column("extra").to_pylist() == [1.0, 1.0]


def test_columns_that_iceberg_does_not_have_are_named(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta", seal=SEAL)
    driver.start()
    driver.table.grow([pa.field("_pos", pa.int64()), pa.field("small", pa.int16())], driver.epoch)
    with pytest.raises(ConfigError, match=r"(?s)column _pos has a name that Iceberg keeps.*column small is short"):
        converted(tmp_path)


@pytest.mark.parametrize("form", [*FORMS, "iceberg"])
def test_a_table_that_was_dropped_from_the_catalog_since_is_not_converted_again(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form, seal=SEAL)
    driver.start()
    assert converted(tmp_path) == (form != "iceberg")
    new = Driver(tmp_path, "iceberg", seal=SEAL)
    new.start()
    catalog_table = new.config.catalog_place("clicks", new.lake)
    assert catalog_table is not None
    load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).drop_table(catalog_table.identifier)
    with pytest.raises(ConfigError, match="was an Iceberg table already, and the catalog does not know it"):
        converted(tmp_path)


def test_changes_of_other_clients_are_answered_before(tmp_path: Path) -> None:
    delta, parquet = (Driver(tmp_path / form, form, seal=SEAL) for form in FORMS)
    for driver in (delta, parquet):
        driver.start()
        driver.carry([log({offset: event(offset) for offset in range(4)})], {0: 4})
    DeltaTable(delta.lake).update({"id": "id + 1"})
    with pytest.raises(ForeignChange, match="another client ran UPDATE"):
        converted(tmp_path / "delta")
    (file, *_) = Path(parquet.lake).glob("hour=*/*.parquet")
    shutil.copy(file, file.with_name("theirs.parquet"))
    with pytest.raises(ConfigError, match=r"Its file hour=.*theirs\.parquet was never committed"):
        converted(tmp_path / "parquet")
    assert delta.table.snapshot().converted == parquet.table.snapshot().converted == -1


def test_a_location_that_is_no_table_of_the_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table at"):
        converted(tmp_path)
    Driver(tmp_path, "delta", seal=SEAL)
    with pytest.raises(ConfigError, match=r"table\.format is delta: set it to iceberg"):
        converted(tmp_path, "delta")
    other = pipeline_config(tmp_path, "iceberg", seal=SEAL, bucket={"type": "event_time", "width": "1 d"})
    with pytest.raises(ConfigError, match="keep 'bucket' as it was"):
        run_convert(other, "clicks", write=True, now=NOW)


# --- it breaks off ------------------------------------------------------------------------------------------------


def short(root: Path, form: str) -> Driver:
    driver = Driver(root, form, seal=SEAL)
    driver.start()
    driver.carry([log(mixed_values(0, 10))], {0: 10})
    with suppress(DriverDied):
        driver.carry([log(mixed_values(10, 20))], {0: 20}, die="after_commit")  # its dead letters wait
    return driver


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("form", FORMS)
def test_after_a_death_at_any_effect_it_is_run_again_or_the_old_writer_goes_on(
    tmp_path: Path, form: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(tmp_path / "now", form)
    (tmp_path / "now").rename(tmp_path / "then")
    after, is_done, ends = 0, False, set()
    while not is_done:
        shutil.rmtree(tmp_path / "now", ignore_errors=True)
        shutil.copytree(tmp_path / "then", tmp_path / "now")
        catalog_client._load_catalog.cache_clear()
        at_effect = die_after(monkeypatch, after)
        next(at_effect)
        with suppress(Died):
            converted(tmp_path / "now")
            is_done = True
        next(at_effect)
        ends.add(check_again(tmp_path / "now", form))
        after += step
    assert (after > 10, ends) == (True, {20, 30}), "before the old log is at its end, and after"


def check_again(root: Path, form: str) -> int:
    """Let both writers go on, as far as they may. Returns where the old one ended."""
    end = 20
    with suppress(TableConverted):
        old = Driver(root, form, seal=SEAL)
        old.start()
        old.carry([log(mixed_values(20, 30))], {0: 30})
        end = 30
    converted(root)
    new = Driver(root, "iceberg", seal=SEAL)
    new.start()
    new.carry([log(mixed_values(end, 40))], {0: 40})
    assert new.table.snapshot().frontier(P0) == 40
    found = {offset: oracle.offsets(Path(offset))["clicks", 0] for offset in (new.lake, new.dead_letters)}
    assert sorted(offset for offsets in found.values() for offset in offsets) == list(range(40))
    return end


def test_a_killed_process_is_followed_by_one_that_ends_what_it_began(tmp_path: Path) -> None:
    short(tmp_path, "delta")
    code = "import sys; from pathlib import Path; from tests.contract.test_convert import converted\n"
    code += "converted(Path(sys.argv[1]))"
    environment = {**os.environ, "HEADRACE_FAULT": "after_copy:2"}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, cwd=Path(__file__).parents[2], check=False
    )
    assert ended.returncode == -signal.SIGKILL
    check_again(tmp_path, "delta")


@pytest.mark.parametrize("own", [None, "interval 3 weeks"])
def test_how_long_the_owner_keeps_removed_files_stays_what_it_was(tmp_path: Path, own: str | None) -> None:
    name = "delta.deletedFileRetentionDuration"
    old = short(tmp_path, "delta")
    if own:
        DeltaTable(old.lake).alter.set_table_properties({name: own})
    assert converted(tmp_path)
    assert DeltaTable(old.lake).metadata().configuration[name] == "interval 5000 weeks"
    assert Driver(tmp_path, "iceberg", seal=SEAL).table.snapshot().state.configuration.get(name) == own
