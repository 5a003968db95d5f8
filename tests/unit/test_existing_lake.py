"""A lake that release 0.1.0 left behind is read as that release read it: what storage alone says, without servers."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from autoscaler.runtime import state_store
from recovery.escalation import state
from recovery.lease.lease import StoreLeases
from tests import oracle
from tests.existing import (
    CONFIG,
    DIED,
    FORMATS,
    OF_ALL,
    OF_THE_LAKE,
    PAUSED,
    Place,
    differences,
    facts,
    now,
    then,
    unpack,
)  # fmt: skip
from tests.json_keys import documented, paths
from tests.unit.test_scaling import Cluster as Executors
from writer.audit.audit import audit
from writer.cli.main import app
from writer.cli.table.convert import run_convert
from writer.cli.table.promote import Request, run_promote
from writer.clients.driver_endpoint import announced
from writer.config.connections import Autoscaler
from writer.config.loader import load
from writer.config.table_sections import layout
from writer.hooks.outbox import Outbox
from writer.offsets import checkpoint_backups, run_record
from writer.offsets.spark_checkpoint import Checkpoints
from writer.output.tables import console
from writer.scaling.executor_manager import ExecutorManager
from writer.status import pause as pausing
from writer.storage.locations import store_at
from writer.table.factory import all_tables, main_table
from writer.table.gap_claims import BackfillLocks
from writer.table.gap_records import gap_records
from writer.table.ledger.segment_store import LedgerStore
from writer.table.locations import shadow_of
from writer.table.log.appender import Superseded

KINDS = {
    "start", "batch", "columns", "replay", "close", "seal", "rewrite", "gap", "fill", "lost", "rewind", "side",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    found = Place(str(tmp_path_factory.mktemp("existing")), "127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:2")
    unpack(found, servers=False)
    file = Path(found.root) / CONFIG
    settings = yaml.safe_load(file.read_text())
    settings["kafka"]["request_timeout"] = "500 ms"  # nobody answers, and each of its pipelines asks
    file.write_text(yaml.safe_dump(settings))
    return found


@pytest.fixture(scope="module")
def root(place: Place) -> Path:
    return Path(place.root)


@pytest.mark.parametrize("name", OF_THE_LAKE)
def test_a_command_answers_as_the_release_did(place: Place, name: str) -> None:
    assert differences(then(place, name), now(place, name)) == []


@pytest.mark.parametrize(
    ("words", "not_here"),
    [
        *((words, set[str]()) for words in OF_THE_LAKE.values()),
        *((OF_ALL[name], set[str]()) for name in ("doctor", "recovery")),
        (OF_ALL["status"], {"releases", "pipelines.*.at"}),
        (("dlq", "show", "{config}", "--pipeline", "clicks", "-n", "1", "--json"), {"value", "decoded"}),
        (("explain", "{config}", "--json"), set[str]()),
        (("vacuum", "{config}", "--pipeline", "clicks", "--json"), set[str]()),
        (("table", "accept", "{config}", "--pipeline", "clicks", "--json"), set[str]()),
        (
            ("wait", "{config}", "--pipeline", "clicks", "--sealed", "2026-11-20T05", "--timeout", "10 ms", "--json"),
            {"why", "watermark"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_prints_every_key_that_is_documented(place: Place, words: Sequence[str], not_here: set[str]) -> None:
    told = CliRunner().invoke(app, [word.format(config=f"{place.root}/{CONFIG}") for word in words])
    keys = documented()[" ".join(words).partition(" {")[0]]
    assert set(paths(json.loads(told.stdout), keys)) == set(keys) - not_here


def test_the_files_hold_the_rows_that_they_held(root: Path) -> None:
    assert {table.name: list(oracle.identities(table)) for table in (root / "lake").iterdir()} == facts()["rows"]


def test_every_kind_of_entry_is_there(root: Path) -> None:
    assert {str(entry["kind"]) for t in (root / "lake").iterdir() for entry in oracle.replay(t).commits} == KINDS
    assert list((root / "lake").glob("*/_delta_log/*.checkpoint.parquet")), "of a Delta table's log"
    assert list((root / "lake").glob("*/_headrace/log/*.checkpoint.*")), "of a Parquet table's log"
    assert list((root / "lake").glob("*/_headrace/ledger/*/*.json"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_is_its_pipelines_own_and_its_ledger_is_read(root: Path, name: str) -> None:
    config = load(root / "headrace.yaml")
    table = main_table(name, config)
    table.check_identity(["hour"], layout(config.pipelines[name].bucket))
    pages = LedgerStore(table.store, table.snapshot().state.metadata["id"], name).pages()
    assert pages
    assert pages[0].first == 0


@pytest.mark.parametrize("name", FORMATS)
def test_what_stands_beside_the_checkpoints_is_read(root: Path, name: str) -> None:
    """What cannot be read is begun anew without a word, so each is held against its file."""
    store = store_at(f"{root}/checkpoints/{name}")
    known = state.read(store)
    assert {"format": 1, **state.document(known)} == _json(root, name, "_recovery.json")
    assert known.failure is not None
    assert (known.failure.row, len(known.state.attempts)) == ("killed", 1)
    lease = StoreLeases(store).look()
    assert lease is not None
    assert (lease.epoch, lease.released) == (1, False)
    assert lease.holder.startswith("localhost/")
    checkpoints = Checkpoints(f"{root}/checkpoints", name)
    runs = sorted(checkpoints.runs())
    for run in runs:
        told = run_record.read(store, run)
        assert told is not None
        assert told.batches
        assert told.versions["headrace"] == "0.1.0"
    found = checkpoint_backups.backups(store)
    assert found
    assert {copy.run for copy in found} <= set(runs)


def test_the_autoscaler_remembers_what_it_decided(root: Path) -> None:
    told = state_store.read_state(store_at(f"{root}/checkpoints/clicks"))
    assert [(one.before, one.after) for one in told.memory.scalings] == [(2, 1), (1, 2)]
    assert all(one.there_at for one in told.memory.scalings)
    assert {"down", "up"} <= {one.verdict for one in told.events}
    assert state_store._AS_JSON.dump_python(told, mode="json") == _json(root, "clicks", "autoscaler.json")


def test_a_driver_wants_the_executors_that_the_one_before_was_told_of(root: Path) -> None:
    executor_manager = ExecutorManager(
        "spark://host:7077", Autoscaler(), refusal=None, cpus_per_task=1,
        stores=lambda: [store_at(f"{root}/checkpoints/{name}") for name in FORMATS], boundary=lambda: True,
    )  # fmt: skip
    executor_manager.begin(Executors)
    try:
        assert executor_manager.to_dict()["requested"] == 2
    finally:
        executor_manager.close()


@pytest.mark.parametrize("name", PAUSED)
def test_a_pause_stands(root: Path, name: str) -> None:
    pause = pausing.standing(store_at(f"{root}/lake/{name}"))
    assert pause is not None
    assert (pause.by, pause.reason) == ("operator@localhost", "the readers move")


@pytest.mark.parametrize("name", DIED)
def test_a_broken_off_backfill_and_deliveries_that_wait_are_known(root: Path, name: str) -> None:
    config = load(root / "headrace.yaml")
    table = main_table(name, config)
    lost, begun = gap_records(table, name).values()
    assert (lost.state, begun.state) == ("lost", "open")
    claim = BackfillLocks(table.store).newest(begun.id)
    assert claim is not None
    assert claim.by.startswith("operator@localhost/localhost/")
    assert not claim.stands(datetime.now(UTC))
    box = Outbox(table.store, "webhook").read()
    assert box is not None
    assert box.delivered
    assert box.pending
    assert any(pending.attempts and pending.error for pending in box.pending)
    driver = announced(config.checkpoints, name)
    assert driver is not None
    assert asdict(driver)["epoch"] == table.snapshot().epoch


def test_its_tables_become_iceberg_tables_with_the_same_rows_and_account(tmp_path: Path) -> None:
    old, new = (_unpacked(tmp_path / name) for name in ("old", "new"))
    settings = yaml.safe_load((new / CONFIG).read_text())
    for pipeline in settings["pipelines"].values():
        pipeline["table"]["format"] = "iceberg"
    settings["catalog"] = {"type": "sql", "uri": f"sqlite:///{new}/catalog.db"}
    (new / CONFIG).write_text(yaml.safe_dump(settings))
    was, config = load(old / CONFIG), load(new / CONFIG)
    for name in FORMATS:
        all_tables(name, was).apply_side_files()  # two of the drivers died before that
        run_convert(config, name, write=True, now=datetime.now(UTC), as_json=True, out=console())
        before, after = (audit(one, name, since=None, deep=True) for one in (was, config))
        assert (after.problems, after.reconciliation.lines) == (before.problems, before.reconciliation.lines)
    rows = [{table.name: oracle.identities(table) for table in (root / "lake").iterdir()} for root in (old, new)]
    assert rows[0] == rows[1]
    places = [Path(place) for name in FORMATS for place in config.pipelines[name].locations if Path(place).exists()]
    assert all(map(oracle._iceberg, places))


def test_a_copy_of_its_tables_takes_their_place_and_gives_it_back(tmp_path: Path) -> None:
    root = _unpacked(tmp_path)
    config = load(root / CONFIG)
    for name in FORMATS:
        all_tables(name, config).apply_side_files()
        before = audit(config, name, since=None, deep=True)
        copy = shadow_of(config, config, name, str(tmp_path / "copy" / name))
        for one, other in zip(config.pipelines[name].locations, copy.pipelines[name].locations, strict=True):
            if Path(one).exists():
                shutil.copytree(one, other)
        there = main_table(name, copy).location
        asked = Request(config, config, root / CONFIG, name, there, compares=False)
        run_promote(asked, write=True, now=datetime.now(UTC), as_json=True, out=console())
        with pytest.raises(Superseded, match=re.escape(f"Set pipelines.{name}.table.location: {there}")):
            main_table(name, config).begin({}, {})
        for one in (config, copy):
            assert audit(one, name, since=None, deep=True).reconciliation.lines == before.reconciliation.lines
        back = Request(copy, config, root / CONFIG, name, config.pipelines[name].table.location, compares=False)
        run_promote(back, write=True, now=datetime.now(UTC), as_json=True, out=console())
        assert main_table(name, config).snapshot().superseded_by == ""
        assert main_table(name, copy).snapshot().superseded_by == config.pipelines[name].table.location


def _unpacked(root: Path) -> Path:
    unpack(Place(str(root), "127.0.0.1:1", "http://127.0.0.1:1", "http://127.0.0.1:2"), servers=False)
    return root


def _json(root: Path, name: str, file: str) -> dict[str, Any]:
    return dict(json.loads((root / "checkpoints" / name / file).read_text()))
