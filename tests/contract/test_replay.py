"""Dead letters go through the steps once more: exactly once, whatever dies, whoever else writes."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.core.errors import HeadraceError
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay, ReplayResult
from headrace.writer.maintenance.dead_letters.selection import DeadLettersGone, Selection
from headrace.writer.schemas.registry import RegistryUnreachable
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.operations.rows import Replay
from tests.support import oracle
from tests.support.local_driver import Died, Driver, log
from tests.support.process import run_code_until
from tests.support.replay_records import ALL, BOTH_SCHEMAS, FUTURE, mixed_values
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    new_driver = Driver(tmp_path, form)
    new_driver.start(2)
    new_driver.carry([log(mixed_values(0, 50)), log(mixed_values(0, 20), 1)], {0: 50, 1: 20})
    return new_driver


def replayed(driver: Driver, selection: Selection = ALL, *, now=NOW, schemas: Schemas = BOTH_SCHEMAS) -> ReplayResult:
    return DeadLetterReplay("clicks", driver.config, schemas).run(selection, now)


def check(driver: Driver, rows: int, dead_letters: int) -> None:
    """Assert by the oracle and by the audit that each offset is there once."""
    lake, aside = Path(driver.lake), Path(driver.dead_letters)
    assert (len(oracle.rows(lake, "_offset")), len(oracle.rows(aside, "_offset"))) == (rows, dead_letters)
    oracle.check(lake, "clicks")
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_dead_letters_that_decode_become_rows_and_the_others_stay(driver):
    check(driver, 49, 21)
    result = replayed(driver)
    assert (result.chosen, result.rows) == (21, 7)
    assert sum(result.failed.values()) == 14
    check(driver, 56, 14)
    assert oracle.rows(Path(driver.lake), "count(extra), max(extra)") == [(7, 42)]
    key = oracle.rows(Path(driver.dead_letters), "key", "WHERE _offset = 46 and _partition = 0")
    assert key == [(b"k46",)]


def test_a_second_time_changes_nothing(driver):
    replayed(driver)
    before = oracle.replay(Path(driver.lake)).version, oracle.replay(Path(driver.dead_letters)).version
    again = replayed(driver)
    assert (again.chosen, again.rows, again.versions) == (14, 0, [])
    assert (oracle.replay(Path(driver.lake)).version, oracle.replay(Path(driver.dead_letters)).version) == before
    staged = {path.relative_to(driver.lake).as_posix() for path in Path(driver.lake).rglob("*.parquet")}
    assert staged == set(oracle.replay(Path(driver.lake)).files), "what was not committed is taken away"


def test_the_times_of_today_decide(driver):
    result = replayed(driver, Selection(outcome="quarantined"), now=FUTURE)
    assert (result.chosen, result.rows, result.failed) == (7, 7, {})
    check(driver, 56, 14)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(outcome="dead_letter"), 14), (Selection(schema_id=2), 7), (Selection(partition=1), 6),
        (Selection(offsets=(12, 25)), 8), (Selection(reason="UNKNOWN to"), 7), (Selection(topic="other"), 0),
        (Selection(since=NOW), 21), (Selection(until=NOW), 0), (Selection(since=NOW, schema_id=1, partition=0), 10),
    ],
)  # fmt: skip
def test_dead_letters_are_chosen(driver, selection, chosen):
    assert replayed(driver, selection).chosen == chosen
    oracle.check(Path(driver.lake), "clicks")


def test_a_new_reason_takes_the_place_of_the_old_one(driver):
    narrow = Schemas({1: EVENT, 2: {**EVENT, "fields": [{"name": "id", "type": "string"}]}}, [1])
    result = replayed(driver, Selection(schema_id=2), schemas=narrow)
    assert (result.rows, len(result.versions)) == (0, 1)
    errors = oracle.rows(Path(driver.dead_letters), "DISTINCT error", "WHERE schema_id = 2")
    assert errors == [("schema id 2: field 'id' is string, but column 'id' holds int64",)]
    check(driver, 49, 21)


def test_a_registry_that_does_not_answer_changes_nothing(driver):
    class Silent(Schemas):
        def schema(self, schema_id: int) -> str:  # noqa: ARG002
            raise RegistryUnreachable("silent")

    with pytest.raises(RegistryUnreachable):
        replayed(driver, schemas=Silent({1: EVENT}, []))
    check(driver, 49, 21)


def test_a_replay_makes_commits_of_bounded_size(driver, monkeypatch):
    monkeypatch.setattr("headrace.writer.maintenance.dead_letters.replay.DEAD_LETTERS_AT_ONCE", 5)
    monkeypatch.setattr("headrace.writer.maintenance.dead_letters.selection._ROWS_AT_ONCE", 3)
    result = replayed(driver)
    assert (result.chosen, result.rows) == (21, 7)
    assert len(result.versions) >= 3
    check(driver, 56, 14)


def test_the_writer_goes_on_beside_it(driver):
    snapshot = driver.table.snapshot()
    replayed(driver)
    assert driver.table.snapshot().epoch == snapshot.epoch
    driver.carry([log(mixed_values(0, 80)), log(mixed_values(0, 20), 1)], {0: 80, 1: 20})
    check(driver, 56 + 21, 14 + 9)


def test_a_replay_and_a_start_do_not_mind_each_other(driver):
    driver.start(2)
    replayed(driver)
    driver.start(2)
    check(driver, 56, 14)


def test_recent_commits_are_those_of_batches_whatever_starts_and_replays_add(driver):
    for _ in range(12):
        driver.start(2)
    assert [facts["time_unit"] for facts in driver.table.recent_commits(10)] == ["logical"]


def test_of_two_replays_of_the_same_dead_letters_one_is_overtaken(driver):
    snapshot = driver.table.snapshot()
    replayed(driver)
    late = Replay("late", snapshot.replays, [], {}, {}, {"moves": []})
    with pytest.raises(Overtaken):
        driver.table.append(late, snapshot)


def test_replays_at_once_carry_each_dead_letter_once(driver):
    driver.carry([log(mixed_values(0, 400))], {0: 400})
    errors: list[BaseException] = []

    def one() -> None:
        try:
            replayed(driver)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for end in range(420, 500, 20):
        driver.carry([log(mixed_values(0, end))], {0: end})
    for thread in threads:
        thread.join()
    assert not errors
    replayed(driver)
    check(driver, 400, 100)


def test_redo_by_the_writer_is_redo(driver):
    """The replay dies between its commit and its redo; the writer's next batch takes the letters out."""
    doing = DeadLetterReplay("clicks", driver.config, BOTH_SCHEMAS)
    doing._record_table.tables.side = lambda _: Undone()
    with pytest.raises(Died):
        doing.run(ALL, NOW)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.waiting) == (True, 1), report.problems
    assert len(oracle.rows(Path(driver.dead_letters), "_offset")) == 21
    driver.carry([log(mixed_values(0, 60)), log(mixed_values(0, 20), 1)], {0: 60, 1: 20})
    check(driver, 56 + 7, 14 + 3)


class Undone:
    """A dead-letter table that its process does not live to write to."""

    location = "dead_letters"

    def snapshot(self):
        return SimpleNamespace(applied=-1)

    def apply_side(self, entry):
        if entry.withdrawn:
            raise Died


KILLED = """
import sys
from pathlib import Path
from tests.support.local_driver import Driver
from tests.support.replay_records import ALL, BOTH_SCHEMAS
from tests.support.sample_records import NOW
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
DeadLetterReplay("clicks", Driver(Path(sys.argv[1]), sys.argv[2]).config, BOTH_SCHEMAS).run(ALL, NOW)
"""


@pytest.mark.parametrize("point", ["before_commit:1", "after_commit:1"])
@pytest.mark.slow
def test_killed_at_either_side_of_its_commit_it_loses_and_doubles_nothing(driver, form, tmp_path, point):
    run_code_until(KILLED, str(tmp_path), form, point=point)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert (report.adds_up, report.waiting) == (True, int(point.startswith("after"))), report.problems
    replayed(driver)
    check(driver, 56, 14)


def test_a_batch_tried_again_is_classified_anew_and_stands_once(tmp_path):
    """It dies with its files staged; meanwhile the schema is registered, and the future has come nearer."""
    driver = Driver(tmp_path)
    driver.start()
    with pytest.raises(Died):
        driver.carry([log(mixed_values(0, 50))], {0: 50}, die="after_stage")
    again = Driver(tmp_path, schemas=BOTH_SCHEMAS)
    again.start()
    again.carry([log(mixed_values(0, 50))], {0: 50}, now=FUTURE)
    check(again, 45, 5)


def test_a_batch_that_was_committed_keeps_its_classification(tmp_path):
    """It dies before redo; the next start would judge otherwise, but the commit has decided. Replay judges anew."""
    driver = Driver(tmp_path)
    driver.start()
    with pytest.raises(Died):
        driver.carry([log(mixed_values(0, 50))], {0: 50}, die="after_commit")
    again = Driver(tmp_path, schemas=BOTH_SCHEMAS)
    again.start()
    assert again.carry([log(mixed_values(0, 50))], {0: 50}, now=FUTURE) is None
    check(again, 35, 15)
    replayed(again, now=FUTURE)
    check(again, 45, 5)


@pytest.mark.parametrize("form", ["delta"])
def test_a_dead_letter_table_that_another_client_compacted_is_replayed_as_well(driver):
    driver.carry([log(mixed_values(0, 90))], {0: 90})
    DeltaTable(driver.dead_letters).optimize.compact()
    replayed(driver)
    check(driver, 49 + 7 + 28 + 4, 14 + 8)


def test_a_file_of_dead_letters_that_is_gone_is_a_sentence(driver):
    driver.carry([log(mixed_values(0, 90))], {0: 90})
    gone = min(Path(driver.dead_letters).rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(DeadLettersGone, match=rf"{gone.name} is gone, and the table names it\. Restore it"):
        replayed(driver)


def test_without_tables_it_is_a_sentence(tmp_path):
    with pytest.raises(HeadraceError, match=r"has no table at .* yet"):
        DeadLetterReplay("clicks", config(tmp_path), BOTH_SCHEMAS)


def config_file(driver: Driver, tmp_path: Path) -> str:
    for number, schema in ((1, EVENT), (2, WIDER)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    path = tmp_path / "headrace.yaml"
    path.write_text(json.dumps({
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "checkpoints": str(tmp_path / "checkpoints"),
        "registry": {"files": {n: str(tmp_path / f"{n}.avsc") for n in (1, 2)}},
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"},
        "pipelines": {"clicks": {
            "topics": ["clicks"], "table": {"location": driver.lake, "format": driver.settings.table.format},
            "event_time": {"field": "at", "max_age": "30000 d"},
        }},
    }))  # fmt: skip
    return str(path)


def say(*words: str) -> str:
    result = CliRunner().invoke(app, ["dlq", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_verbs_list_show_and_replay(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = config_file(driver, tmp_path)
    listed = json.loads(say("list", file, "--json"))["groups"]
    assert sorted((k["outcome"], k["schema_id"], k["records"]) for k in listed) == [
        ("dead_letter", 1, 7), ("dead_letter", 2, 7), ("quarantined", 1, 7)
    ]  # fmt: skip
    assert "clicks: 14 dead letters and 7 quarantined, of 3 kinds" in say("list", file)
    hidden = say("show", file, "--schema-id", "2", "-n", "2")
    assert "clicks/0 offset 2" in hidden
    assert "key k2" in hidden
    assert "decoded" not in hidden
    assert "0000 " not in hidden
    shown = say("show", file, "--schema-id", "2", "-n", "1", "--values")
    assert "0000  00 00 00 00 02" in shown
    assert "'extra': 2" in shown
    summary = [
        json.loads(line) for line in say("show", file, "--outcome", "quarantined", "--json", "--values").splitlines()
    ]
    assert len(summary) == 7
    assert (summary[0]["decoded"]["id"], summary[0]["not_decoded"]) == (4, None)
    assert summary[0]["kafka_time"].endswith(".000Z"), "as all times of documents"
    assert "clicks: 7 dead letters and 0 quarantined, of 1 kind" in say("replay", file, "--schema-id", "2")
    preview = json.loads(say("replay", file, "--schema-id", "2", "--json"))
    assert (preview["chosen"], preview["rows"], preview["versions"], preview["failed"]) == (7, 0, [], [])
    done = json.loads(say("replay", file, "--schema-id", "2", "--yes", "--json"))
    assert (done["chosen"], done["rows"], len(done["versions"])) == (7, 7, 1)
    check(driver, 56, 14)


@pytest.mark.parametrize("form", ["delta"])
def test_without_a_registry_dead_letters_are_shown_and_each_line_says_why_they_are_not_decoded(driver, tmp_path):
    file = Path(config_file(driver, tmp_path))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"registry": {"url": "http://127.0.0.1:1"}}))
    assert "not decoded: the schema registry at http://127.0.0.1:1" in say("show", str(file), "--values", "-n", "2")
    shown = [json.loads(line) for line in say("show", str(file), "--values", "-n", "2", "--json").splitlines()]
    assert [(dead_letter["decoded"], "does not answer" in dead_letter["not_decoded"]) for dead_letter in shown] == [
        (None, True)
    ] * 2


def test_a_replay_that_brings_no_row_says_so_and_exits_1(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file = config_file(driver, tmp_path)
    say("replay", file, "--yes")
    none_chosen = CliRunner().invoke(app, ["dlq", "replay", file, "--topic", "other", "--yes"])
    assert (none_chosen.exit_code, "no row came" in none_chosen.output) == (1, True)
    none_decodes = CliRunner().invoke(app, ["dlq", "replay", file, "--schema-id", "1", "--yes"])
    assert none_decodes.exit_code == 1
    assert "none became a row" in none_decodes.output
    assert "failed again and stay" in none_decodes.output
    as_json = CliRunner().invoke(app, ["dlq", "replay", file, "--schema-id", "1", "--yes", "--json"])
    document = json.loads(as_json.output)
    assert (as_json.exit_code, document["rows"]) == (1, 0)
    assert sum(failed["records"] for failed in document["failed"]) == document["chosen"] > 0
    say("replay", file, "--schema-id", "1")
