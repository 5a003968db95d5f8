"""A promoted shadow takes the place of its table, wherever the switch breaks off, and gives it back."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.factory import existing_table
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.appender import TableSuperseded
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.gaps import Gap
from tests.support import oracle
from tests.support.effect_failures import Died, die_after
from tests.support.local_driver import Driver
from tests.support.sample_records import GAP_FACTS
from tests.support.shadow_lake import FORMS, Lake, contents, names, run_shadow, writer_fixture  # noqa: F401 - a fixture


@pytest.mark.parametrize("form", FORMS)
def test_promote_puts_the_shadow_in_the_place_of_the_first_and_no_writer_goes_on_there(
    tmp_path: Path, form: str
) -> None:
    lake = Lake(tmp_path, form)
    driver = lake.shadow()
    lake.to(driver, 22)
    before = contents(tmp_path)
    shown = lake.promote()
    named = "pipelines.clicks.table.name: headrace.clicks\n"
    assert (f"pipelines.clicks.table.location: {lake.place}\n" in shown, named in shown) == (True, form == "iceberg")
    assert "20 offsets that both tables committed: 0 rows equal, 16 different, 1 only in the first" in shown
    assert shown.endswith("Nothing was changed. The same with --yes does it.\n")
    assert contents(tmp_path) == before
    result = lake.promote("--yes", "--json")
    assert (result["done"], result["older"], result["diff"]["different"]) == (True, 0, 16)
    assert result["changes"]["pipelines.clicks.table.location"] == lake.place
    with pytest.raises(ConfigError, match=r"put the table at|lies at"):
        Driver(tmp_path, configuration=load(lake.file))
    with pytest.raises((TableSuperseded, HeadraceError), match=r"put the table at|lies at|dropped or renamed"):
        lake.to(lake.first, 25)
    sql = result["statements"]
    assert (sql != {}) == (form != "iceberg")
    if form == "delta":
        assert sql["trino"][0] == ("CALL delta.system.unregister_table(schema_name => 'lake', table_name => 'clicks')")
        assert f"table_location => 'local://{lake.place}'" in sql["trino"][-1]
        assert sql["presto"][0] == "DROP TABLE delta.lake.clicks"
    tables = {name: place for name, place in names(tmp_path).items() if name.startswith("clicks")}
    if form == "iceberg":
        assert {name: lake.place in table for name, table in tables.items()} == {
            "clicks": True, "clicks_before_1": False, "clicks_dead_letters": False, "clicks_late": False,
        }  # fmt: skip
    assert "is the pipeline's" in lake.promote(), "a second time there is nothing to do"
    new = Driver(tmp_path, configuration=load(lake.write_promoted_config()))
    new.start()
    lake.to(new, 30)
    assert audit(new.config, "clicks", since=None, deep=True).adds_up
    assert not [entry for entry in new.table.history() if entry.kind == "promote"], "the entry is the first's alone"


def test_commands_that_maintain_the_first_table_refuse_and_those_that_read_it_do_not(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    for end in (21, 22, 23):
        lake.to(lake.first, end)
    lake.to(lake.shadow(), 23)
    lake.promote("--yes")
    before = contents(tmp_path)
    raw = yaml.safe_load(lake.file.read_text())
    raw["pipelines"]["clicks"] |= {"retention": "30 d"}
    lake.file.write_text(yaml.safe_dump(raw))
    for arguments in (["compact", "--yes"], ["delete-rows", "--where", "id = 4", "--yes"], ["vacuum"], ["retention"]):
        result = CliRunner().invoke(app, [arguments[0], str(lake.file), *arguments[1:]])
        assert f"Set pipelines.clicks.table.location: {lake.place}" in str(result.exception), (arguments, result.output)
    new = {path: data for path, data in contents(tmp_path).items() if path not in before}
    assert {path: data for path, data in contents(tmp_path).items() if path in before} == before
    assert not any("_delta_log" in path for path in new)
    for arguments in (["audit"], ["buckets"], ["explain", "--json"]):
        result = CliRunner().invoke(app, [arguments[0], str(lake.file), *arguments[1:]])
        assert result.exit_code == 0, (arguments, result.output, result.exception)


def behind(lake: Lake) -> None:
    lake.to(lake.shadow(), 19)


def later(lake: Lake) -> None:
    lake.to(lake.shadow("now"), 21)


def gapped(lake: Lake) -> None:
    driver = lake.shadow()
    part = TopicPartition("clicks", 1, 0)
    gap = Gap("a", driver.epoch, [OffsetRange(part, 0, 6)], "retention", GAP_FACTS)
    driver.table.append(gap, driver.table.snapshot())
    lake.to(driver, 20)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (behind, "The shadow is behind: clicks/0 by 1"),
        (later, "has 20 offsets from before the shadow's start: clicks/0 by 20"),
        (gapped, "gaps where the first table has none: clicks/0 by 6"),
    ],
)
def test_a_shadow_that_lacks_offsets_is_not_promoted(tmp_path: Path, how: Any, problem: str) -> None:
    lake = Lake(tmp_path, "delta")
    how(lake)
    before = contents(tmp_path)
    assert problem in lake.promote("--yes", code=2)
    assert contents(tmp_path) == before
    if how is later:
        result = lake.promote("--yes", "--leave-history", "--json")
        assert (result["older"], result["diff"]) == (20, None)


def test_an_older_incarnation_is_history_and_a_new_partition_is_not(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    first, two = (TopicPartition("clicks", 2, p) for p in (0, 1))
    lake.first.table.begin({first: 0, two: 0}, {"clicks": ["uuid-1", "uuid-2"]})
    driver = Driver(tmp_path, configuration=lake.config_of("now"))
    driver.table.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-2"]})
    assert "clicks/0 by 20" in lake.promote(code=2)
    assert lake.promote("--leave-history", "--json")["older"] == 20
    epoch = lake.first.table.snapshot().epoch
    gap = Gap("a", epoch, [OffsetRange(two, 0, 5)], "retention", GAP_FACTS)
    lake.first.table.append(gap, lake.first.table.snapshot())
    assert "The shadow is behind: clicks/1 by 5" in lake.promote("--leave-history", code=2)


def test_a_commit_between_look_and_switch_is_not_lost(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    seen = lake.first.table.snapshot().parts()
    lake.to(lake.first, 22)
    with pytest.raises(CommitFailed, match="was written to meanwhile"):
        lake.first.table.supersede(seen, lake.place, {})
    assert not lake.first.table.snapshot().superseded_by


@pytest.mark.parametrize("which", ["first", "shadow"])
def test_a_running_writer_is_in_the_way(tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 20)
    location = load(lake.file).checkpoints if which == "first" else lake.config_of().checkpoints
    living_driver = type("Driver", (), {"pid": 7, "url": "http://127.0.0.1:7"})
    monkeypatch.setattr(
        "headrace.writer.clients.driver_endpoint.answers",
        lambda config, _: living_driver if config.checkpoints == location else None,
    )
    assert "(process 7, http://127.0.0.1:7)" in lake.promote("--yes", code=1)


def test_deletions_from_the_first_table_are_reported(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 20)
    result = CliRunner().invoke(app, ["delete-rows", str(lake.file), "--where", "id = 4", "--yes"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert lake.promote("--json")["deleted"] == 1
    assert "1 only in the second" in lake.promote()
    assert "1 row went from the first table" in lake.promote("--no-diff")


def test_deletions_by_another_client_from_the_first_table_are_reported(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.to(lake.shadow(), 20)
    DeltaTable(lake.first.lake).delete("id = 4")
    lake.to(lake.first, 20)
    assert lake.promote("--json")["deleted"] == 1


EFFECTS: Mapping[Any, Any] = {
    LocalStore: ("put", "put_if_absent", "move", "delete"), SqlCatalog: ("commit_table", "rename_table"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_promotion_that_dies_at_any_effect_is_ended_by_the_next(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made"
    lake = Lake(path, form)
    lake.to(lake.shadow(), 20)
    result = CliRunner().invoke(app, ["delete-rows", str(lake.file), "--where", "id = 4", "--yes"])
    assert result.exit_code == 0, (result.output, result.exception)
    work = tmp_path / "made"
    folder = tmp_path / "kept"
    shutil.copytree(path, folder)
    for after in range(40):
        shutil.rmtree(work)
        shutil.copytree(folder, work)
        catalog_client._load_catalog.cache_clear()  # the database is another file
        steps, is_dead = die_after(monkeypatch, after, EFFECTS), False
        next(steps)
        try:
            lake.promote("--yes", "--no-diff")
        except (Died, AssertionError):
            is_dead = True
        with suppress(StopIteration):
            next(steps)
        catalog_client._load_catalog.cache_clear()
        found = lake.promote("--yes", "--no-diff", "--json")
        assert (found["done"], found["deleted"]) == (True, 1), (
            "the run that ends it says what the first would have said"
        )
        state = existing_table("clicks", load(lake.write_promoted_config())).snapshot()
        assert state.parts() == {TopicPartition("clicks", 1, 0): 20}
        tables = {name for name in names(work) if name in ("clicks", "clicks_shadow", "clicks_before_1")}
        assert tables == ({"clicks", "clicks_before_1"} if form == "iceberg" else set())
        if not is_dead:
            assert after >= (1 if form != "iceberg" else 4)
            return
    raise AssertionError("it has more effects than expected")


@pytest.mark.parametrize("form", FORMS)
def test_the_other_direction_goes_back(tmp_path: Path, form: str, writer: list[int]) -> None:
    lake = Lake(tmp_path, form)
    lake.to(lake.shadow(), 20)
    lake.promote("--yes")
    new = Driver(tmp_path, configuration=load(lake.write_promoted_config()))
    new.start()
    lake.to(new, 30)
    old, lake.file = lake.file, lake.write_promoted_config()
    lake.other, lake.place = old, lake.first.lake  # the former file, by which the former table is written
    assert "The shadow is behind: clicks/0 by 10" in lake.promote("--yes", code=2)
    writer.append(30)
    run_shadow(lake)
    assert lake.promote("--yes", "--json")["changes"] == {}, "the former file is right as it is"
    with pytest.raises(HeadraceError, match=r"put the table at|lies at|dropped or renamed"):
        lake.to(new, 33)
    with pytest.raises(ConfigError, match=r"put the table at|lies at"):
        Driver(tmp_path, configuration=load(lake.file))
    back = Driver(tmp_path, configuration=load(old))
    back.start()
    lake.to(back, 40)
    assert audit(back.config, "clicks", since=None, deep=True).adds_up
    dead = [offset for offset in range(40) if offset % 7 == 5]
    assert oracle.offsets(Path(back.lake))["clicks", 0] == [offset for offset in range(40) if offset not in dead]
    assert oracle.offsets(Path(back.dead_letters))["clicks", 0] == dead


def test_a_table_that_was_never_promoted_is_not_revived(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    version = driver.table.snapshot().version
    assert driver.table.revive({}) == version
    assert driver.table.snapshot().version == version
