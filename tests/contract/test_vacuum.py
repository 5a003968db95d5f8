"""Vacuum removes what is not needed, and nothing else: on a disk and on S3, in both formats."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.avro import schema
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain.vacuum import run_vacuum
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.maintenance.vacuum import find_unneeded, list_objects, remove
from headrace.writer.storage.locations import store_at
from headrace.writer.table.ledger.segment_store import FOLDER
from tests.servers.objects import ObjectServer
from tests.support.local_driver import Died, Driver, log
from tests.support.report_page import render_page
from tests.support.sample_records import EVENT, event
from tests.support.small_files import carry, compact_bucket, fill_table, offsets
from tests.support.tables import LOGS, iceberg_table_of, put_table
from tests.support.vacuum_time import days_ahead

pytestmark = pytest.mark.usefixtures("scratch")

DAYS = timedelta(days=1)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest, tmp_path: Path, form: str) -> Callable[..., Driver]:
    """A factory of drivers, in each kind of store."""
    table: dict[str, Any] = {}
    if request.param == "s3":
        server: ObjectServer = request.getfixturevalue("on_s3")
        table = {"location": f"{server.bucket()}/lake"}
    return lambda **settings: fill_table(tmp_path, form, table={**table, **settings.pop("table", {})}, **settings)


def names(driver: Driver) -> dict[str, int]:
    return {list_object.path: list_object.bytes for list_object in list_objects(store_at(driver.lake))}


def found(driver: Driver, now: datetime | None = None, older_than: timedelta | None = None) -> dict[str, str]:
    places = find_unneeded(driver.config, "clicks", older_than, now or days_ahead())
    return {f"{location.location}/{waste.path}": waste.why for location in places for waste in location.waste}


def test_a_table_at_work_has_nothing_to_remove(make) -> None:
    driver = make()
    driver.carry([log({60: b"broken", 61: event(3)})], {0: 62})
    assert found(driver) == {}


def test_files_that_a_dead_driver_staged_go_once_they_are_old(make) -> None:
    driver = make()
    before = names(driver)
    with pytest.raises(Died):
        driver.carry([log({60: b"broken", 61: event(3)})], {0: 62}, die="after_stage")
    staged = names(driver).keys() - before.keys()
    assert len(staged) == 1
    assert found(driver, days_ahead(6)) == {}
    waste = found(driver)
    assert set(waste.values()) == {"orphan"}
    assert {path.removeprefix(driver.lake) for path in waste if not path.startswith(driver.dead_letters)} == {
        f"/{path}" for path in staged
    }
    assert len([path for path in waste if path.startswith(driver.dead_letters)]) == 1
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert names(driver) == before
    assert found(driver) == {}
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_side_files_of_a_commit_that_redo_has_not_applied_stay(make) -> None:
    driver = make()
    with pytest.raises(Died):
        driver.carry([log({60: b"broken", 61: event(3)})], {0: 62}, die="after_commit")
    assert found(driver) == {}
    driver.start()
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_files_that_were_rewritten_go_after_a_while(make, form: str) -> None:
    driver = make()
    compact_bucket(driver)
    carry(driver, 6)
    waste = found(driver)
    if form == "parquet":  # they went when the new one came
        assert waste == {}
        return
    assert set(waste.values()) == {"removed"}
    assert len(waste) == 6
    assert found(driver, days_ahead(6)) == {}
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert offsets(driver) == list(range(70))
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


@pytest.mark.parametrize("form", ["iceberg"])
def test_metadata_that_no_snapshot_names_goes_and_what_a_kept_snapshot_needs_stays(make) -> None:
    driver = make()
    compact_bucket(driver)
    catalog_table = driver.config.catalog_place("clicks", driver.lake)
    before = iceberg_table_of(driver.lake, catalog_table)
    carry(driver, 6)
    store = store_at(f"{driver.lake}/metadata")
    for left in ("0-m0.avro", "snap-1-0-x.avro", "00009-x.metadata.json", "notes.txt"):  # a commit died: no catalog's
        store.put(left, b"x")
    assert found(driver, datetime.now(UTC)) == {}
    before.manage_snapshots().create_tag(before.metadata.snapshots[-2].snapshot_id, "month").commit()
    waste = found(driver)
    assert sorted(waste.values()) == ["orphan"] * 3, "the files that the compaction replaced are those of a tag"
    before.refresh().manage_snapshots().remove_tag("month").commit()
    assert sorted(found(driver).values()) == ["orphan"] * 3 + ["removed"] * 6
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    after = iceberg_table_of(driver.lake, catalog_table)
    assert [snapshot.snapshot_id for snapshot in after.metadata.snapshots] == [after.metadata.current_snapshot_id]
    assert store.read("notes.txt") is not None
    assert len(after.scan().to_arrow()) == len(offsets(driver)) == 70
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    carry(driver, 7)
    assert offsets(driver) == list(range(80))


def test_files_are_kept_as_long_as_the_tables_owner_says(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    driver = fill_table(tmp_path, "delta")
    compact_bucket(driver)
    DeltaTable(driver.lake).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 3 weeks"})
    assert found(driver, days_ahead(20)) == {}
    assert set(found(driver, days_ahead(22)).values()) == {"removed"}


def test_the_ledger_and_what_it_stands_for_stay(make) -> None:
    driver = make(interval=1)
    driver.table.tidy()
    assert found(driver, days_ahead(400)) == {}
    assert any(FOLDER in name for name in names(driver))


def test_drafts_manifests_and_runs_of_old_go(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    lake, runs = Path(driver.lake), tmp_path / "checkpoints" / "clicks"
    for path in ("hour=x/.a.parquet.5f.tmp", "_delta_log/.1.json.5f.tmp"):
        (lake / path).parent.mkdir(exist_ok=True)
        (lake / path).write_bytes(b"half")
    for n in (1, 2):
        (lake / "_headrace" / "sealed" / "hour=x").mkdir(parents=True, exist_ok=True)
        (lake / "_headrace" / "sealed" / "hour=x" / f"v{n}.json").write_text("{}")
    for run in range(1, 6):
        (runs / f"{run:06}" / "offsets").mkdir(parents=True)
        (runs / f"{run:06}" / "offsets" / "0").write_text("v1")
    waste = found(driver)
    assert sorted(waste.values()) == ["checkpoint", "checkpoint", "draft", "draft", "manifest"]
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert sorted(path.name for path in runs.iterdir()) == ["000003", "000004", "000005"]
    assert [path.name for path in (lake / "_headrace" / "sealed" / "hour=x").iterdir()] == ["v2.json"]
    assert found(driver) == {}


def test_files_that_dead_tasks_spilled_on_this_machine_go(tmp_path: Path, scratch: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1)
    for name in ("headrace-stage-a", "headrace-stage-b", "headrace-rewrite-c", "headrace-reprocess-c", "somebodys-d"):
        (scratch / name).mkdir()
        (scratch / name / "run-0.arrow").write_bytes(b"12345")
    os.utime(scratch / "headrace-stage-b" / "run-0.arrow", (days_ahead(7.5).timestamp(),) * 2)  # it is written to
    alive = NativeDecoder(schema.parse(json.dumps(EVENT)), scratch=str(scratch))
    (decoder,) = scratch.glob("headrace-avro-*")
    (scratch / "headrace-avro-e").mkdir()
    (scratch / "headrace-avro-e" / "block.avro").symlink_to("/proc/999999999/fd/8")
    gone = ["headrace-avro-e", "headrace-reprocess-c", "headrace-rewrite-c", "headrace-stage-a"]
    assert sorted(found(driver)) == [f"{scratch}/{name}" for name in gone]
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert sorted(path.name for path in scratch.iterdir()) == sorted([decoder.name, "headrace-stage-b", "somebodys-d"])
    assert alive.scratch == str(scratch)


def test_folders_that_tasks_remove_meanwhile_are_passed_over(tmp_path: Path, scratch: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1)
    ended = Event()

    def spill() -> None:
        while not ended.is_set():
            for number in range(20):
                (scratch / f"headrace-avro-{number}" / "runs").mkdir(parents=True)
            for number in range(20):
                rmtree(scratch / f"headrace-avro-{number}")

    with ThreadPoolExecutor(1) as tasks:
        spills = tasks.submit(spill)
        try:
            for _ in range(30):
                find_unneeded(driver.config, "clicks", None, days_ahead())
        finally:
            ended.set()
        spills.result()


def test_an_age_below_that_of_orphans_is_refused(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1)
    with pytest.raises(ConfigError, match=r"--older-than 1 d is less than table\.orphan_retention \(7 d\)"):
        find_unneeded(driver.config, "clicks", DAYS, days_ahead())


def test_an_age_above_it_keeps_more(make) -> None:
    driver = make()
    with pytest.raises(Died):
        driver.carry([log({61: event(3)})], {0: 62}, die="after_stage")
    assert found(driver, days_ahead(8), 9 * DAYS) == {}
    assert len(found(driver, days_ahead(10), 9 * DAYS)) == 1


def test_without_a_table_it_says_so(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    config = driver.config.model_copy(deep=True)
    object.__setattr__(config.pipelines["clicks"].table, "location", str(tmp_path / "elsewhere"))
    with pytest.raises(HeadraceError, match="has no table at"):
        find_unneeded(config, "clicks", None, days_ahead())


def test_the_command_shows_first_and_removes_when_told(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    compact_bucket(driver)
    page = render_page(run_vacuum("clicks", driver.config, None, write=False, now=days_ahead()))
    assert "6 objects of" in page
    assert "removed from the table" in page
    document = run_vacuum("clicks", driver.config, "7 d", write=True, now=days_ahead()).document()
    (location,) = document["locations"]
    assert (document["deleted"], location["location"], len(location["objects"])) == (True, driver.lake, 6)
    report = run_vacuum("clicks", driver.config, None, write=True, now=days_ahead())
    assert "nothing that has been unneeded for 7 d" in render_page(report)


def test_the_verbs_refuse_nonsense(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1)
    path = tmp_path / "headrace.yaml"
    raw = json.loads(driver.config.model_dump_json())
    raw["pipelines"]["clicks"]["bucket"] = {"type": "event_time", "width": "1 h"}
    path.write_text(yaml.safe_dump(raw))
    result = CliRunner().invoke(app, ["vacuum", str(path), "--older-than", "soon"])
    assert "--older-than 'soon' needs a number and a unit" in str(result.exception)


# --- tables inside the table's folder -----------------------------------------------------------------------------


def apart(driver: Driver, now: datetime | None = None) -> dict[str, list[str]]:
    places = find_unneeded(driver.config, "clicks", None, now or days_ahead())
    return {location.location: list(location.left_alone) for location in places if location.left_alone}


def test_dead_letters_inside_the_table_lose_nothing(make) -> None:
    lake = f"{make(commits=0).lake}2"
    driver = make(table={"location": lake, "dead_letters": f"{lake}/letters"})
    driver.carry([log({60: b"broken", 61: b"broken too"})], {0: 62})
    store_at(driver.dead_letters).put(".1.parquet.5f.tmp", b"half")
    before = names(driver)
    assert any(path.startswith("letters/") and path.endswith(".parquet") for path in before)
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    # The draft is the dead letters' own, and goes with what is theirs.
    assert names(driver).keys() == before.keys() - {"letters/.1.parquet.5f.tmp"}
    assert audit(driver.config, "clicks", since=None, deep=False).adds_up
    assert apart(driver) == {driver.lake: ["letters"]}


@pytest.mark.parametrize("inner", LOGS)
def test_a_table_of_another_writer_inside_the_table_is_left_alone(make, inner: str) -> None:
    driver = make(commits=1)
    put_table(f"{driver.lake}/other", inner)
    put_table(f"{driver.lake}/hour=x/deep/other", inner)
    put_table(f"{driver.lake}/other/inside/that", inner)
    put_table(f"{driver.lake}/_hidden", inner)
    store_at(driver.lake).put("another/.d.parquet.5f.tmp", b"half")
    before = names(driver)
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert names(driver).keys() == before.keys() - {"another/.d.parquet.5f.tmp"}
    assert apart(driver) == {driver.lake: ["_hidden", "hour=x/deep/other", "other"]}


def test_a_table_among_the_checkpoints_is_left_alone(tmp_path: Path) -> None:
    """With entropy_bits the folders of a table have the names of runs."""
    driver = fill_table(tmp_path, "delta", commits=1)
    runs = tmp_path / "checkpoints" / "clicks"
    for run in range(1, 8):
        (runs / f"{run:06}" / "offsets").mkdir(parents=True)
        (runs / f"{run:06}" / "offsets" / "0").write_text("v1")
    put_table(str(runs / "000001"), "delta")
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert sorted(path.name for path in runs.iterdir()) == ["000001", "000005", "000006", "000007"]
    assert apart(driver) == {str(runs): ["000001"]}
    assert (runs / "000001" / "b.parquet").exists()
    (runs / "_delta_log").mkdir()
    (runs / "_delta_log" / "0.json").write_text("{}")
    (runs / "000008").mkdir()
    (runs / "000008" / "a.parquet").write_text("")
    assert apart(driver) == {str(runs): [""]}
    assert found(driver) == {}


def test_files_that_a_link_leads_to_are_left_alone(tmp_path: Path) -> None:
    driver = fill_table(tmp_path / "mine", "delta", commits=1)
    other = fill_table(tmp_path / "other", "delta", commits=1)
    (folder,) = (path for path in Path(other.lake).iterdir() if path.name.startswith("hour="))
    (Path(driver.lake) / "linked").symlink_to(folder)
    before = names(other)
    remove(find_unneeded(driver.config, "clicks", None, days_ahead()))
    assert names(other) == before
    assert apart(driver) == {driver.lake: ["linked"]}


def test_the_dry_run_names_what_it_left_alone(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=1)
    put_table(f"{driver.lake}/other", "delta")
    report = run_vacuum("clicks", driver.config, None, write=False, now=days_ahead())
    page = render_page(report)
    assert f"left alone: {driver.lake}/other" in " ".join(page.split())
    assert "nothing that has been unneeded for 7 d" in page
    (location,) = report.document()["locations"]
    assert location == {"location": driver.lake, "objects": [], "left_alone": ["other"]}
