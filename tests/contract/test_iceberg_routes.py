"""Iceberg tables of a route: each takes every entry of the pipeline's log once, whatever befalls it or its catalog."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.table.factory import all_tables
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.rows import Batch
from tests.support import oracle
from tests.support.catalog_faults import FAULTS, fail
from tests.support.effect_failures import Died
from tests.support.iceberg_effects import die_after_effects
from tests.support.iceberg_routes import TARGETS, apply_waiting, start_route
from tests.support.route_targets import BY_HEADER, PART, RouteTables, refusing_tables

NOW = datetime(2026, 11, 20, 5, tzinfo=UTC)


def places(root: Path) -> list[str]:
    return [str(root / name) for name in TARGETS]


def counts(root: Path) -> list[int]:
    return [oracle.count(Path(location)) for location in places(root)]


def client(one: RouteTables, name: str = "a") -> tuple[Catalog, tuple[str, ...]]:
    """Return the client of the catalog that the writer uses, and what the table of a target is called there."""
    catalog_table = one.config.catalog_place("p", str(Path(one.tables.main.location).with_name(name)))
    assert catalog_table is not None
    rest_client = catalog_client.open_catalog(catalog_table.catalog, tuple(sorted(catalog_table.settings)))
    return rest_client, catalog_table.identifier


def theirs(one: RouteTables, name: str = "a") -> Table:
    """Return the table of a target as another client opens it."""
    catalog_table = one.config.catalog_place("p", str(Path(one.tables.main.location).with_name(name)))
    assert catalog_table is not None
    return load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).load_table(catalog_table.identifier)


def test_tables_of_a_route_are_applied_from_its_log_and_known_to_the_catalog_by_their_names(tmp_path: Path) -> None:
    route = start_route(tmp_path)
    for _ in range(3):
        route.commit(*places(tmp_path))
        assert apply_waiting(route) == {}
    assert counts(tmp_path) == [3, 3]
    assert oracle.rows(tmp_path / "log", "count(*)") == [], "the log has no rows"
    rest_client, (namespace, _) = client(route)
    assert {name for _, name in rest_client.list_tables(namespace)} == {"log", "log_dead_letters", "a", "b"}
    versions = [entry.version for entry in route.tables.main.history() if entry.kind == "batch"]
    for location in places(tmp_path):
        side = [entry.facts["main_version"] for entry in route.tables.side(location).history() if entry.kind == "side"]
        assert side == versions, "one entry of its log, and one snapshot, for each of the pipeline's"
    assert len(theirs(route).metadata.snapshots) == len(versions)


def test_of_two_processes_that_apply_an_entry_one_does(tmp_path: Path) -> None:
    route = start_route(tmp_path)
    route.commit(*places(tmp_path))
    others = [all_tables("p", route.config) for _ in range(2)]
    for tables in others:
        tables._read_entries(tables.main.snapshot(), ())
    for tables in (*others, route.tables):
        tables.apply_side_files()
        assert tables.behind == {}
    assert counts(tmp_path) == [1, 1]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_catalog_does_to_a_request_an_entry_is_applied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    route = start_route(tmp_path)
    for _ in range(2):
        route.commit(*places(tmp_path))
        with fail(monkeypatch, client(route)[0], fault) as failed:
            route.tables.apply_side_files()
            assert apply_waiting(route) == {}
        assert failed() > 0
    assert counts(tmp_path) == [2, 2]


@pytest.mark.parametrize("after", range(8))
def test_a_writer_that_dies_after_any_effect_of_applying_an_entry_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    route = start_route(tmp_path, ("a",))
    route.commit(str(tmp_path / "a"))
    rest_client, _ = client(route)
    dying = die_after_effects(monkeypatch, route.tables.side(str(tmp_path / "a")), after, rest_client)
    next(dying)
    with suppress(Died):
        route.tables.apply_side_files()
    next(dying)
    again = start_route(tmp_path, ("a",))
    again.commit(str(tmp_path / "a"))
    assert apply_waiting(again) == {}
    assert oracle.count(tmp_path / "a") == 2


def appended(table: Table) -> None:
    columns = table.schema().as_arrow()
    row = {field.name: "2026" if field.name == "hour" else 0 if field.name == "_offset" else None for field in columns}
    table.append(pa.Table.from_pylist([row], schema=columns))


def rolled_back(table: Table) -> None:
    before = table.metadata.snapshots[-2].snapshot_id
    table.manage_snapshots().set_current_snapshot(before).commit()


@pytest.mark.parametrize(
    ("change", "left"),
    [(appended, 3), (lambda table: table.delete(EqualTo("_offset", 0)), 1), (rolled_back, 1)],
    ids=["append", "delete", "rollback"],
)
def test_a_change_by_another_client_neither_doubles_rows_nor_brings_them_back(
    tmp_path: Path, change: Callable[[Table], None], left: int
) -> None:
    route = start_route(tmp_path)
    for _ in range(2):
        route.commit(*places(tmp_path))
        assert apply_waiting(route) == {}
    change(theirs(route))
    assert counts(tmp_path) == [left, 2]
    route.commit(*places(tmp_path))
    assert apply_waiting(route) == {}
    again = start_route(tmp_path)
    assert apply_waiting(again) == {}
    assert counts(tmp_path) == [left + 1, 3]


def test_a_table_that_was_taken_out_of_the_catalog_holds_no_other_up_and_catches_up_when_it_is_back(
    tmp_path: Path,
) -> None:
    route = start_route(tmp_path)
    route.commit(*places(tmp_path))
    assert apply_waiting(route) == {}
    rest_client, name = client(route)
    metadata = rest_client.load_table(name).metadata_location
    rest_client.drop_table(name)
    for _ in range(2):
        route.commit(*places(tmp_path))
        assert list(apply_waiting(route)) == ["a"]
    again = start_route(tmp_path)
    assert set(refusing_tables(again)) == {"a"}, "a start waits for it, and makes no other"
    rest_client.register_table(name, metadata)
    assert apply_waiting(again) == {}
    assert counts(tmp_path) == [3, 3]


def test_a_catalog_that_refuses_one_table_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route = start_route(tmp_path)
    rest_client, name = client(route)
    commit = rest_client.commit_table

    def refused(table: Table, *rest: Any) -> Any:
        if table.name() == name:
            raise PermissionError("not yours")
        return commit(table, *rest)

    monkeypatch.setattr(rest_client, "commit_table", refused)
    for _ in range(3):
        route.commit(*places(tmp_path))
        (why,) = apply_waiting(route).values()
        assert "not yours" in why
    assert counts(tmp_path) == [0, 3]
    monkeypatch.undo()
    assert apply_waiting(route) == {}
    assert counts(tmp_path) == [3, 3]


def test_two_tables_that_the_catalog_would_call_alike_are_refused_before_the_second_is_made(tmp_path: Path) -> None:
    location = str(tmp_path / "{namespace}" / "{name}")
    route = {**BY_HEADER, "targets": {"*": location}}
    target = RouteTables(tmp_path, route, form="iceberg")
    assert [known.name for known in target.learn("eu.click", "us.Click").values()] == ["eu.click"]
    assert not (tmp_path / "us").exists()
    root = tmp_path / "other"
    targets = {"*": {"location": str(root / "{namespace}" / "{name}"), "name": "{namespace}.{name}"}}
    two = RouteTables(root, {**BY_HEADER, "targets": targets}, form="iceberg")
    *plain, odd = sorted((known.table for known in two.learn("eu.click", "us.Click", "a/b.c-d").values()), reverse=True)
    assert plain == ["us.Click", "eu.click"]
    assert re.fullmatch(r"a_b_[0-9a-f_]+\.c___d", odd)


def test_a_table_keeps_its_name_and_gets_its_rows_when_it_left_the_configuration(tmp_path: Path) -> None:
    a, b = places(tmp_path)
    named = {"a": {"location": a, "name": "shop.first"}, "b": b}
    target = RouteTables(tmp_path, {"targets": named}, form="iceberg")
    target.commit(a, b)
    assert apply_waiting(start_route(tmp_path, ("b",))) == {}
    assert counts(tmp_path) == [1, 1]
    with pytest.raises(ConfigError, match=r"is called shop\.first, the configuration says headrace\.a; keep the name"):
        start_route(tmp_path)


@pytest.mark.parametrize(("log", "target"), [("delta", "iceberg"), ("iceberg", "parquet")])
def test_a_table_has_a_format_of_its_own(tmp_path: Path, log: str, target: str) -> None:
    location = str(tmp_path / "{name}")
    route = {**BY_HEADER, "targets": {"*": {"location": location, "format": target, "seal": {"late": "late_table"}}}}
    one = RouteTables(tmp_path, route, form=log)
    one.learn("a", "b")
    late = f"{places(tmp_path)[0]}_late"
    one.commit(*places(tmp_path), late)
    assert apply_waiting(one) == {}
    assert counts(tmp_path) == [1, 1]
    assert oracle.count(Path(late)) == 1
    forms = {type(one.tables.side(place)._format).__name__ for place in (*places(tmp_path), late)}
    assert forms == {target.capitalize()}


def events(root: Path, one: RouteTables, offsets: range) -> None:
    """Commit an event for each offset to both tables, a file for each."""
    for offset in offsets:
        files = {}
        for location in places(root):
            values = {
                "_topic": ["t"],
                "_partition": [0],
                "_offset": [offset],
                "_incarnation": [1],
                "user": [offset % 2],
            }
            columns = one.tables.side(location).snapshot().columns()
            path = f"hour=2026-11-20T05/{uuid4().hex}.parquet"
            Path(location, path).parent.mkdir(exist_ok=True)
            schema = pa.schema([columns.field(name) for name in values])
            pq.write_table(pa.table(values, schema=schema), f"{location}/{path}")
            stats = {"numRecords": 1, "minValues": {"_offset": offset}, "maxValues": {"_offset": offset}}
            size = Path(location, path).stat().st_size
            files[location] = [
                StagedFile(path, ("2026-11-20T05",), 1, size, json.dumps(stats), NOW, NOW, {("t", 0): 1})
            ]
        entry = Batch(uuid4().hex, one.epoch, [OffsetRange(PART, offset, offset + 1)], side_files=files)
        one.tables.main.append(entry, one.tables.main.snapshot())
        assert apply_waiting(one) == {}


def test_each_verb_of_maintenance_works_on_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route = start_route(tmp_path)
    for location in places(tmp_path):
        route.tables.side(location).grow([pa.field("user", pa.int64())])
    events(tmp_path, route, range(6))
    monkeypatch.setenv("COLUMNS", "200")

    def said(verb: str, *flags: str, config: Config = route.config) -> str:
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
        result = CliRunner().invoke(app, [verb, str(path), *flags])
        assert result.exit_code == 0, (result.output, result.exception)
        return " ".join(result.stdout.split())

    of_a = ("--target", "a", "--yes")
    assert "5 files fewer" in said("compact", *of_a)
    assert (len(oracle._files(tmp_path / "a")), len(oracle._files(tmp_path / "b"))) == (1, 6)
    assert "3 rows with 1 value of user" in said("delete-rows", "--where", "user = 1", "--no-dead-letters", *of_a)
    assert counts(tmp_path) == [3, 6]
    said("vacuum", "--yes")
    assert counts(tmp_path) == [3, 6]
    aged = route.config.model_dump(mode="json", exclude_unset=True)
    aged["pipelines"]["p"] |= {"retention": "1 d", "event_time": {"field": "at", "max_age": "1 d"}}
    said("retention", *of_a, config=Config.model_validate(aged))
    assert counts(tmp_path) == [0, 6]
    events(tmp_path, route, range(6, 8))
    assert counts(tmp_path) == [2, 8]


def test_a_database_that_another_program_locks_is_waited_for_and_then_a_sentence(tmp_path: Path) -> None:
    route = start_route(tmp_path)
    route.commit(*places(tmp_path))
    assert route.config.catalog is not None
    impatient = route.config.catalog.model_copy(update={"retry_timeout": timedelta(seconds=1)})
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CommitFailed, match="database is locked"):
            all_tables("p", route.config.model_copy(update={"catalog": impatient})).main.snapshot()
    assert apply_waiting(route) == {}
    assert counts(tmp_path) == [1, 1]
