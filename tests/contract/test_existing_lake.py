"""Lakes of log format 1 that stay as they were made: each is read, counted, continued and maintained by this code."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.config.loader import load
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.output.entry_text import batch_end_reason
from headrace.writer.table.log.appender import TableConverted, TableSuperseded
from headrace.writer.table.log.snapshot import FORMAT, KINDS
from tests.fixtures.make_lake import TAGGED
from tests.support import oracle
from tests.support.fixture_lakes import FIXTURES, Facts, archives, kinds_of, lake_facts, table_of, unpack
from tests.support.local_driver import Driver, log
from tests.support.routed_window import Routed
from tests.support.sample_records import EVENT, NOW, Schemas, event, value

# A fixture is never made anew: what is added later comes with files of its own (docs/adr/0047-log-format-1.md).
DIGESTS = {
    "log-1-cut.json": "4674d574e40b75fd156beb0155d180b4a0011b34b5b4654b7a070415afb9c1ee",
    "log-1-cut.tar.xz": "bd04c0851bd336ca4588241e976e4106216a5f3fd238b1f08fbd61566816eee9",
    "log-1-privacy.json": "151800536c91958b98d1ea9b75c6456b2fb57c471665d1cd26a2732c638886bb",
    "log-1-privacy.tar.xz": "e4b5e9b71fbecd74e852363d1d13e2d023baa76b09f2c7a12ac1b39641e42366",
    "log-1-zones.json": "59e651ea11bbd29ef80779aea59c22f197d65345b7bfc5113b634c2f56f6f79a",
    "log-1-zones.tar.xz": "f827cb6f7881f44c005ff22a508301b7879e0a2d0cb09cd1ece5b36238234829",
    "log-1.json": "2b1ba0eeb5553391ace618859559d2fb3e61d50f5cd1608519d557a51ae46ecd",
    "log-1.tar.xz": "3d067acfb33554be25ebc04a054b7302240feb6b7a528ace5045f9d9588ffd14",
}
SCHEMAS: Mapping[str, Any] = {"shaped_delta": TAGGED, "shaped_parquet": TAGGED}
CONTINUED = ["tended_delta", "tended_parquet", "shaped_delta", "shaped_parquet", "taken", "changed"]
P0 = TopicPartition("clicks", 1, 0)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Facts]]:
    """The lakes, as they are; and what they said when they were made."""
    root = tmp_path_factory.mktemp("lakes")
    facts: dict[str, Facts] = {}
    for archive in archives():
        facts |= unpack(archive, root)
    return root, facts


def lakes(root: Path) -> Path:
    """Return lakes of one's own, to change them."""
    for archive in archives():
        unpack(archive, root)
    return root


def test_no_fixture_is_replaced() -> None:
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in FIXTURES.glob("log-1*")}
    assert digests == DIGESTS


def test_every_kind_of_entry_is_in_a_fixture(unpacked: tuple[Path, Mapping[str, Facts]]) -> None:
    _, facts = unpacked
    assert {kind for fact in facts.values() for kind in fact.kinds} == set(KINDS)


def test_a_lake_says_what_it_said_when_it_was_made(unpacked: tuple[Path, Mapping[str, Facts]]) -> None:
    root, facts = unpacked
    for name, wanted in facts.items():
        assert lake_facts(root / name) == wanted, name


def test_every_entry_is_parsed_as_a_kind_of_this_format(unpacked: tuple[Path, Mapping[str, Facts]]) -> None:
    root, facts = unpacked
    for name in facts:
        table = table_of(load(root / name / "headrace.yaml"))
        assert set(kinds_of(table)) <= {*KINDS, "create", "client"}, name
        assert table.snapshot().format == FORMAT, name
    assert list(root.glob("tended_delta/lake/clicks/_delta_log/*.checkpoint.parquet"))
    assert list(root.glob("tended_parquet/lake/clicks/_headrace/log/*.checkpoint.*"))
    assert list(root.glob("tended_*/lake/clicks/_headrace/ledger/*/*.json"))
    assert list(root.glob("tended_*/lake/clicks/_headrace/sealed/*/v1.json"))


def test_limits_of_batches_have_the_names_of_today(unpacked: tuple[Path, Mapping[str, Facts]]) -> None:
    """These entries call offsets records, as they were called when the fixture was made."""
    root, _ = unpacked
    table = table_of(load(root / "tended_delta" / "headrace.yaml"))
    (facts,) = table.recent_commits(1)
    limits = facts["limits"]
    assert [name for name in limits if "records" in name] == []
    assert limits["offsets_max"] == 5_000_000
    assert "commit takes" in batch_end_reason({**facts, "reason": "backlog"})


@pytest.mark.parametrize("name", CONTINUED)
def test_a_start_continues_the_table_and_the_account_adds_up(tmp_path: Path, name: str) -> None:
    root = lakes(tmp_path) / name
    schema = SCHEMAS.get(name, EVENT)
    driver = Driver(root, configuration=load(root / "headrace.yaml"), schemas=Schemas({1: schema}, [1]))
    before = driver.table.snapshot()
    driver.start()
    start = before.frontier(P0) or 0
    made = {
        offset: value(1, schema, {"id": offset, "at": NOW, "note": f"note {offset}"})
        for offset in range(start, start + 10)
    }
    driver.carry([log(made)], {0: start + 10})
    after = driver.table.snapshot()
    assert (after.epoch, after.frontier(P0), after.format) == (before.epoch + 1, start + 10, FORMAT)
    assert audit(driver.config, "clicks", since=None, deep=True).problems == ()
    offsets = oracle.rows(Path(driver.lake), "_offset", f"WHERE _offset >= {start} ORDER BY 1")
    assert offsets == [(offset,) for offset in range(start, start + 10)]


def test_a_route_goes_on_with_its_tables(tmp_path: Path) -> None:
    lake = Routed(lakes(tmp_path) / "routed", "delta")
    before = [len(lake.offsets(location)) for location in lake.places.values()]
    lake.carry([(1, 1, 6), (2, 1, 6)])
    assert [len(lake.offsets(location)) for location in lake.places.values()] == [rows + 1 for rows in before]
    assert audit(lake.config, "clicks", since=None, deep=True).problems == ()


def test_a_log_that_ended_refuses_and_its_heir_goes_on(tmp_path: Path) -> None:
    root = lakes(tmp_path)
    with pytest.raises(TableConverted, match="nothing follows version 3 of its old log"):
        table_of(load(root / "converted" / "headrace.yaml")).begin({}, {})
    with pytest.raises(TableSuperseded, match=str(root / "promoted" / "elsewhere" / "v2")):
        table_of(load(root / "promoted" / "headrace.yaml")).begin({}, {})
    heir = Driver(root / "promoted", configuration=load(root / "promoted" / "promoted.yaml"))
    heir.start()
    heir.carry([log({offset: event(offset) for offset in range(22, 30)})], {0: 30})
    assert audit(heir.config, "clicks", since=None, deep=True).problems == ()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "{config}", "--json"), 0),
        (("audit", "{config}", "--deep", "--json"), 0),
        (("buckets", "{config}", "--json"), 0),
        (("gaps", "list", "{config}", "--all", "--json"), 1),
        (("dlq", "list", "{config}", "--pipeline", "clicks", "--json"), 0),
        (("explain", "{config}", "--json"), 0),
        (("vacuum", "{config}", "--pipeline", "clicks", "--json"), 0),
    ],
    ids=lambda found: found[0] if isinstance(found, tuple) else "",
)
@pytest.mark.parametrize("name", ["tended_delta", "tended_parquet"])
def test_a_command_answers(
    unpacked: tuple[Path, Mapping[str, Facts]], name: str, words: tuple[str, ...], code: int
) -> None:
    config = unpacked[0] / name / "headrace.yaml"
    result = CliRunner().invoke(app, [word.format(config=config) for word in words])
    assert (result.exit_code, result.exception if result.exit_code not in (0, 1) else None) == (code, None), (
        result.output
    )
    assert json.loads(result.stdout)


@pytest.mark.parametrize("name", ["tended_delta", "tended_parquet"])
def test_its_tables_become_iceberg_tables_with_the_same_rows_and_account(tmp_path: Path, name: str) -> None:
    root = lakes(tmp_path) / name
    before = lake_facts(root)
    settings = yaml.safe_load((root / "headrace.yaml").read_text())
    settings["pipelines"]["clicks"]["table"]["format"] = "iceberg"
    settings["catalog"] = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}
    (root / "iceberg.yaml").write_text(yaml.safe_dump(settings))
    config = load(root / "iceberg.yaml")
    assert run_convert(config, "clicks", write=True, now=datetime.now(UTC)).has_changes
    report = audit(config, "clicks", since=None, deep=True)
    assert report.problems == ()
    assert {outcome: report.reconciliation.total(outcome) for outcome in before.totals} == before.totals
    assert oracle.count(Path(config.pipelines["clicks"].table.location)) == before.rows["lake/clicks"][0]
