"""The tables of a route as the driver opens, makes and refuses them, over a real log and real tables on a disk."""

import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace import bucketers
from headrace.writer.batch.staging.raw_records import RAW_COLUMNS
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import RejectedSchema
from headrace.writer.commit.builder import merge_reports
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError, LimitReached
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.privacy.keyring import KeyringPlace, KeySource
from headrace.writer.privacy.policy import Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.storage.local import LocalStore
from headrace.writer.table import held_files
from headrace.writer.table.factory import all_tables, table_at
from headrace.writer.table.log.snapshot import FORMAT, TargetRecord
from tests.support.route_targets import (
    BY_HEADER,
    PART,
    TEXT,
    RouteTables,
    SchemaStub,
    files,
    hold_row,
    put_back,
    refusing_tables,
    take_away,
)

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
HOURLY = {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"}


def test_a_new_log_takes_no_tables_of_an_old_one(tmp_path: Path) -> None:
    """Their versions are of the old log: what the new one commits would pass for applied, and be lost."""
    place = str(tmp_path / "a")
    first = RouteTables(tmp_path, {"targets": {"a": place}})
    first.commit(place)
    first.tables.apply_side_files()
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(ConfigError, match=r"holds rows that the log at .*/log does not know of"):
        RouteTables(tmp_path, {"targets": {"a": place}})
    assert files(place) == 1


def test_a_table_that_was_a_pipelines_own_is_no_target(tmp_path: Path) -> None:
    """The new log begins anew: each row would be there twice."""
    place = str(tmp_path / "a")
    own = RouteTables(tmp_path, {"targets": {"b": str(tmp_path / "b")}}).config.pipelines["p"]
    old = table_at("delta", place, "p")
    columns = bucketers.build(own.bucket).columns
    old.create(pa.schema([(name, pa.string()) for name in columns]), columns, layout(own.bucket))
    old.begin({PART: 0}, {"t": ["id"]})
    with pytest.raises(ConfigError, match="they would be there twice"):
        RouteTables(tmp_path, {"targets": {"a": place}})


@pytest.mark.parametrize("is_back", [False, True])
def test_a_table_that_was_removed_is_not_made_anew_in_silence(tmp_path: Path, is_back: bool) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    one.commit(a, b)
    one.tables.apply_side_files()
    shutil.rmtree(a)
    if is_back:
        RouteTables(tmp_path / "other", {"targets": {"a": a}})
    one.commit(b)
    one.commit(a, b)
    one.tables.apply_side_files()
    assert files(b) == 3
    assert set(refusing_tables(one)) == {"a"}
    again = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    assert ("was removed and made again" if is_back else "no log of a table") in refusing_tables(again)["a"]


@pytest.mark.parametrize(
    ("name", "then"),
    [("x" * 300, 1), ("shop.", 1), ("orders", 0), ("orders.eu", 0), ("checkpoints", 0), ("log", 0), ("iceberg", 0)],
)
def test_a_name_that_can_be_no_table_is_refused_and_ends_nothing(tmp_path: Path, name: str, then: int) -> None:
    """A producer chose it: neither this batch nor a later start may fail by it."""
    other = table_at("delta", str(tmp_path / "orders"), "other")
    other.create(pa.schema([("a", pa.int64())]), [])
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "metadata" / "v1.metadata.json").write_text("{}")
    targets = {"orders.*": str(tmp_path / "log" / "{name}"), "*": str(tmp_path / "{full_name}")}
    route = {**BY_HEADER, "targets": targets}
    one = RouteTables(tmp_path, route)
    assert len(one.learn(name)) == then
    again = RouteTables(tmp_path, route)
    assert len(again.learn("click")) >= then


def test_names_without_number_cost_one_line_and_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    route = {**BY_HEADER, "targets": {"*": str(tmp_path / "{name}")}, "max_targets": 2}
    one = RouteTables(tmp_path, route)
    assert len(one.learn(*(f"n{at:05}" for at in range(2_500)))) == 2
    said = [line for line in caplog.messages if "targets_beyond_max" in line]
    assert len(said) == 1
    assert "names=2498" in said[0]
    assert one.targets.route().is_full
    assert len(one.targets.route().own_targets) == 2


def test_a_stop_names_the_name_and_the_reason(tmp_path: Path) -> None:
    route = {**BY_HEADER, "targets": {"a*": str(tmp_path / "{name}")}, "max_targets": 1, "unrouted": "stop"}
    one = RouteTables(tmp_path, route)
    one.learn("a1")
    with pytest.raises(LimitReached, match=r"has no table for a2: route\.max_targets is 1, and route\.unrouted"):
        one.learn("a2")
    with pytest.raises(LimitReached, match="has no table for a record: the route goes by the header 'type'"):
        one.learn("")


def test_a_stop_quotes_no_header_where_a_pipeline_protects_fields(tmp_path: Path) -> None:
    route = {**BY_HEADER, "targets": {"a*": str(tmp_path / "{name}")}, "unrouted": "stop"}
    one = RouteTables(tmp_path, route)
    one.known.plan = replace(one.known.plan, privacy=Privacy(Policies(), KeySource(KeyringPlace())))
    with pytest.raises(LimitReached, match=r"has no table for \(protected\): the route goes by the header") as raised:
        one.learn("maria")
    assert "maria" not in str(raised.value)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("commits", [60, 1_500])
def test_a_table_far_behind_costs_the_others_nothing_and_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """The log is tidied meanwhile, as after each batch: what the table lacks stays."""
    places = [str(tmp_path / name) for name in "abc"]
    one = RouteTables(tmp_path, {"targets": dict(zip("abc", places, strict=True))})
    (tmp_path / "a" / "_delta_log").rename(tmp_path / "away")
    (tmp_path / "a" / "_delta_log").write_text("no folder")
    reads: Counter[str] = Counter()
    read = LocalStore.read

    def counted(store: LocalStore, path: str) -> Any:
        reads[store.location] += 1
        return read(store, path)

    monkeypatch.setattr(LocalStore, "read", counted)
    seen = []
    for _ in range(commits):
        one.commit(*places)
        reads.clear()
        one.tables.apply_side_files()
        one.tables.tidy(places)
        seen.append(sum(n for place, n in reads.items() if not place.startswith(places[0])))
    assert max(seen[-110:]) <= max(seen[:110]), "tidying once in 50 entries included"
    assert (files(places[1]), files(places[2])) == (commits, commits)
    waste = find_unneeded(one.config, "p", None, datetime.now(UTC) + timedelta(days=99))
    assert not [found.path for place in waste for found in place.waste if found.path.endswith(".parquet")]
    (tmp_path / "a" / "_delta_log").unlink()
    (tmp_path / "away").rename(tmp_path / "a" / "_delta_log")
    again = all_tables("p", one.config)
    again.apply_side_files()
    assert again.behind == {}
    assert files(places[0]) == commits


def test_a_table_that_left_the_configuration_is_still_seen_to_be_behind(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    (tmp_path / "a" / "_delta_log").rename(tmp_path / "away")
    (tmp_path / "a" / "_delta_log").write_text("no folder")
    one.commit(a, b)
    two = RouteTables(tmp_path, {"targets": {"b": b}})
    assert set(refusing_tables(two)) == {f"a ({a})"}


def test_a_name_that_another_rule_gives_the_place_of_an_old_one_is_refused(tmp_path: Path) -> None:
    RouteTables(tmp_path, {**BY_HEADER, "targets": {"a.*": str(tmp_path / "{name}")}}).learn("a.Click")
    two = RouteTables(tmp_path, {**BY_HEADER, "targets": {"b.*": str(tmp_path / "{name}")}})
    assert [one.name for one in two.learn("b.Click", "b.View").values()] == ["a.Click", "b.View"]


def test_a_changed_format_is_refused_and_a_new_name_for_the_same_table_is_not(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    RouteTables(tmp_path, {"targets": {"a": place}})
    assert [one.name for one in RouteTables(tmp_path, {"targets": {"b": place}}).learn().values()] == ["b"]
    with pytest.raises(ConfigError, match="has format delta, the configuration says parquet"):
        RouteTables(tmp_path, {"targets": {"b": {"location": place, "format": "parquet"}}})


def test_a_schema_without_the_field_of_the_buckets_is_rejected_alone(tmp_path: Path) -> None:
    bucket = {"type": "field", "field": "country"}
    one = RouteTables(tmp_path, {"targets": {"R": str(tmp_path / "a")}}, {1: TEXT}, bucket=bucket)
    (target,) = one.targets._targets.values()
    assert isinstance(found := target.plan.schemas[1], RejectedSchema)
    assert "bucket: field 'country' is not in the record" in found.reason


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_field_named_as_one_of_iceberg_is_rejected_by_an_iceberg_table_alone(tmp_path: Path, form: str) -> None:
    targets = {"R": {"location": str(tmp_path / "a"), "format": form}}
    one = RouteTables(tmp_path, {"targets": targets}, {1: TEXT.replace('"x"', '"_file"')})
    (target,) = one.targets._targets.values()
    assert isinstance(target.plan.schemas[1], RejectedSchema) == (form == "iceberg")


def test_schema_ids_that_mean_others_by_now_are_admitted_anew(tmp_path: Path) -> None:
    one = RouteTables(tmp_path, {"targets": {"R": str(tmp_path / "a")}}, {1: TEXT})
    (target,) = one.targets._targets.values()
    assert 1 in target.plan.schemas
    one.targets._schemas = SchemaStub({1: TEXT.replace('"x"', '"y"')})  # type: ignore[assignment]
    one.targets._forget_changed_schemas(target)
    assert 1 not in target.plan.schemas


def test_key_schemas_that_tables_lack_are_those_that_the_driver_learns() -> None:
    of_table = Report()
    of_table.unknown_key_schemas, of_table.key_schemas = {7}, {3}
    report = Report()
    report.targets = {"a": of_table}
    total = merge_reports([report])
    assert (total.unknown_key_schemas, total.key_schemas, total.lacks_schemas) == ({7}, {3}, True)


def test_a_table_that_is_renamed_while_its_rows_wait_gets_them(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    take_away(place)
    hold_row(one, place, 1)
    two = RouteTables(tmp_path, {"targets": {"b": place}})
    assert set(refusing_tables(two)) == {"b"}
    put_back(place)
    three = all_tables("p", two.config)
    three.apply_side_files()
    assert three.behind == {}
    assert pq.read_table(DeltaTable(place).file_uris()[0]).num_rows == 1


def test_two_processes_that_bring_the_same_file_leave_it_whole(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    hold_row(one, place, 1)
    first, second = all_tables("p", one.config), all_tables("p", one.config)
    for tables in (first, second):
        tables._read_entries(tables.main.snapshot(), ())
    (entry,) = second._pending[place]
    first.apply_side_files()
    held_files.copy_to_table(
        second.main.store, second.side(place), entry
    )  # it had looked before the other one was done
    second.apply_side_files()
    assert (files(place), second.behind) == (1, {})
    assert not list(Path(place).rglob("*.tmp"))


def test_files_that_went_with_a_mount_are_missed_by_any_process(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    one.commit(place)
    next(Path(place).glob("*.parquet")).unlink()  # written below the mount point, and the mount came back
    again = all_tables("p", one.config)
    again.apply_side_files()
    assert "is gone. Restore it" in again.behind[place]


def test_a_new_name_whose_storage_is_away_waits_and_is_made_later(tmp_path: Path) -> None:
    (tmp_path / "mount").write_text("no folder")
    route = {**BY_HEADER, "targets": {"*": str(tmp_path / "mount" / "{name}")}}
    one = RouteTables(tmp_path, route)
    one.learn("click")
    assert set(refusing_tables(one)) == {"click"}
    place = str(tmp_path / "mount" / "click")
    hold_row(one, place, 1)
    two = RouteTables(tmp_path, route)
    assert set(refusing_tables(two)) == {"click"}
    (tmp_path / "mount").unlink()
    two.targets._asked_s.clear()
    two.targets.states()
    two.tables._retries.clear()
    two.tables.apply_side_files()
    assert (two.tables.behind, files(place)) == ({}, 1)
    two.targets._asked_s.clear()
    assert refusing_tables(two) == {}
    assert two.tables.main.snapshot().targets()[1].id


def test_other_buckets_are_refused_also_while_the_table_is_away(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    RouteTables(tmp_path, {"targets": {"a": place}})
    take_away(place)
    with pytest.raises(ConfigError, match="is bucketed by event_time, width 1 h, zone UTC, the configuration says"):
        RouteTables(tmp_path, {"targets": {"a": place}}, bucket={"type": "event_time", "width": "1 d"})


def test_columns_that_two_processes_keep_are_all_kept(tmp_path: Path) -> None:
    log = RouteTables(tmp_path, {"targets": {"a": str(tmp_path / "a")}}).tables.main.store
    held_files.save_columns(log, 1, pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    held_files.save_columns(log, 1, pa.schema([("a", pa.string()), ("c", pa.int64())]))
    found = held_files.saved_columns(log, 1)
    assert found is not None
    types = {field.name: str(field.type) for field in found}
    assert (types["a"], types["b"], types["c"]) == ("string", "int64", "int64")


def test_two_targets_at_one_place_are_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    with pytest.raises(ValueError, match=f"pipeline 'p' would write two tables to {place}; give each its own"):
        RouteTables(tmp_path, {"targets": {"a": place, "b": f"{place}/"}})


def test_the_log_of_a_route_and_each_of_its_tables_have_the_format(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    one = RouteTables(tmp_path, {"targets": {"a": place}})
    one.commit(place)
    one.tables.apply_side_files()
    assert [table.snapshot().format for table in (one.tables.main, one.tables.side(place))] == [FORMAT, FORMAT]


TAKEN = {
    "the log": "log", "dead letters": "log_dead_letters", "raw table": "log_raw", "checkpoints": "checkpoints",
    "upper case": "LOG", "another pipeline": "other", "its dead letters": "other_dead_letters",
}  # fmt: skip
BESIDE = {"topics": ["o"], "event_time": {"field": "at"}}  # but its table


@pytest.mark.parametrize("name", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("linked", [False, True], ids=["", "through a link"])
def test_no_name_takes_the_place_of_another_table(tmp_path: Path, name: str, linked: bool) -> None:
    root = tmp_path / "link" if linked else tmp_path
    if linked:
        root.symlink_to(tmp_path)
    beside = {"other": {**BESIDE, "table": {"location": str(tmp_path / "other")}}}
    raw = {"table": {"raw": {"location": str(tmp_path / "log_raw"), "enabled": False}}}
    one = RouteTables(tmp_path, {**BY_HEADER, "targets": {"*": f"{root}/{{name}}"}}, beside=beside, **raw)
    assert [record.name for record in one.learn("a", name).values()] == ["a"]
    assert "is another table's" in one.targets.refused[name]


@pytest.mark.parametrize("name", ["log", "other", "a"])
def test_no_name_takes_the_place_where_late_rows_of_another_table_may_come(tmp_path: Path, name: str) -> None:
    beside = {"other": {**BESIDE, "table": {"location": str(tmp_path / "other")}}}
    targets = {"a": f"{tmp_path}/a", "b.*": f"{tmp_path}/{{name}}_late"}
    one = RouteTables(tmp_path, {**BY_HEADER, "targets": targets}, beside=beside)
    assert [record.name for record in one.learn(f"b.{name}").values()] == ["a"]
    assert "is another table's" in one.targets.refused[f"b.{name}"]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_name_that_ends_as_late_rows_do_keeps_no_real_name_from_its_table(tmp_path: Path, form: str) -> None:
    table = {"name": "shop.app"} if form == "iceberg" else {}
    route = {**BY_HEADER, "targets": {"*": f"{tmp_path}/{{name}}"}}
    one = RouteTables(tmp_path, route, form=form, table=table, seal={"late": "late_table"})
    names = ["Click_late", "Click", "log_late", "LOG_LATE", "Click_LATE"]
    for name in names:
        one.learn(name)
    assert one.targets.refused == {}
    found = {record.name: record for record in one.learn().values()}
    places = [place for record in found.values() for place in (record.location, record.late)]
    assert len({place.casefold() for place in places}) == 2 * len(names)
    assert found["Click"].location == f"{tmp_path}/Click"


def test_a_raw_table_that_left_the_configuration_keeps_its_place(tmp_path: Path) -> None:
    one = RouteTables(tmp_path, {**BY_HEADER, "targets": {"*": f"{tmp_path}/{{name}}"}})
    one.tables.side(str(tmp_path / "kept")).create(RAW_COLUMNS, [])
    one.tables.enter_raw(one.epoch, str(tmp_path / "kept"))
    assert one.learn("kept") == {}
    assert "is another table's" in one.targets.refused["kept"]


def test_a_target_whose_late_rows_would_lie_at_another_table_stays_without(tmp_path: Path) -> None:
    """The other one was made before: its name is a rule's now, which had another one then."""
    route = {**BY_HEADER, "targets": {"*": f"{tmp_path}/{{name}}"}}
    first = RouteTables(tmp_path, {**route, "max_targets": 5})
    first.tables.main.add_targets(first.epoch, [TargetRecord("a", f"{tmp_path}/a", "delta")])
    first.tables.main.add_targets(first.epoch, [TargetRecord("a_late", f"{tmp_path}/a_late", "delta")])
    second = RouteTables(tmp_path, route, seal={"late": "late_table"})
    assert set(second.targets.refused) == {"a"}
    assert "can have no table of late rows" in second.targets.refused["a"]


def test_a_target_that_gets_a_table_of_late_rows_later_has_it_in_the_log(tmp_path: Path) -> None:
    route = {**BY_HEADER, "targets": {"*": f"{tmp_path}/{{name}}"}}
    assert [one.late for one in RouteTables(tmp_path, route).learn("a").values()] == [""]
    second = RouteTables(tmp_path, route, seal={"late": "late_table"})
    assert [one.late for one in second.learn().values()] == [f"{tmp_path}/a_late"]


def test_names_that_a_catalog_does_not_tell_apart_are_two_tables(tmp_path: Path) -> None:
    route = {**BY_HEADER, "targets": {"*": f"{tmp_path}/{{name}}"}}
    table = {"name": "shop.app"}
    one = RouteTables(tmp_path, route, form="iceberg", table=table, seal={"late": "late_table"})
    names = ["a-b", "a_b", "a__b", "a b", "A_b"]
    found = [record.table for record in one.learn(*names).values()]
    assert sorted(one.targets.refused) == ["a_b"], "which differs from A_b in nothing but case"
    assert len({name.casefold() for name in found}) == 4
