"""A schema id that means another schema than it did: refused before anything is written, until somebody accepts it."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.avro.fingerprint import schema_fingerprint
from headrace.writer.batch.task_report import Report
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain import schema_accept
from headrace.writer.clients.driver_endpoint import DriverAlive
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, SchemaChanged
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.output.command_inputs import ChosenPipeline
from headrace.writer.schemas.schema_id_check import registry_name
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.schema_ids import SchemaAcceptance
from headrace.writer.table.log.snapshot import PipelineSnapshot
from tests.support import oracle
from tests.support.backfill_gaps import fill_from_archives, only_gap, skip_offsets, write_archive
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, records, value
from tests.support.simulated_cluster import Cluster

# Bytes of one are bytes of the other: without a look at the ids, its records would be rows, in a column of their own.
OTHER = {**EVENT, "fields": [{"name": "session", "type": "long"}, *EVENT["fields"][1:]]}
REBUILT = Schemas({1: OTHER}, [1])
NAME = "clicks/schema/127.0.0.1%3A1/confluent/1"
BEFORE, AFTER = schema_fingerprint(json.dumps(EVENT)), schema_fingerprint(json.dumps(OTHER))
LATER = NOW + timedelta(hours=1)


def kept(snapshot: PipelineSnapshot) -> dict[str, int]:
    return {
        name: transaction
        for name, transaction in snapshot.state.transactions.items()
        if name.startswith("clicks/schema/")
    }


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    return begun(tmp_path, form)


@pytest.fixture
def delta(tmp_path: Path) -> Driver:
    """A table for what does not depend on its format."""
    return begun(tmp_path, "delta")


def begun(root: Path, form: str) -> Driver:
    driver = Driver(root, form)
    driver.start()
    driver.carry([log({offset: event(offset) if offset % 10 else b"\0\0\0\0\1cut" for offset in range(20)})], {0: 20})
    return driver


def again(driver: Driver, schemas: Schemas = REBUILT) -> Driver:
    """Another start, with the schemas of a registry that was made anew."""
    root = Path(driver.lake).parents[1]
    return Driver(root, driver.settings.table.format, schemas=schemas)


def accepted(driver: Driver, *ids: str, since: datetime | None = None, write: bool = True) -> str:
    out = Console(file=StringIO(), width=140)
    pipeline = ChosenPipeline("clicks", driver.config)
    schema_accept.run_accept(pipeline, REBUILT, ids, since, write=write, now=LATER).render(out)
    return str(out.file.getvalue())  # type: ignore[attr-defined]


def refused(driver: Driver, action: Any) -> None:
    """Assert that it is refused with a sentence, and that nothing was written."""
    before = driver.table.snapshot()
    with pytest.raises(
        SchemaChanged, match=r"^schema id 1 at 127\.0\.0\.1:1 is another schema .*`headrace schema accept"
    ):
        action()
    after = driver.table.snapshot()
    assert (after.version, after.columns()) == (before.version, before.columns())
    oracle.check_rows(Path(driver.lake), "clicks")


def test_the_batch_that_first_uses_an_id_keeps_what_it_means_and_no_later_one_does(driver: Driver) -> None:
    assert kept(driver.table.snapshot()) == {NAME: BEFORE}
    driver.carry([log({offset: event(offset) for offset in range(20, 25)})], {0: 25})
    (_, actions) = driver.table.entries(driver.table.snapshot().version - 1)[-1]
    assert parse_commit_info(actions)[1]["kind"] == "batch"
    assert not any("/schema/" in action["txn"]["appId"] for action in actions if "txn" in action)


def test_the_meaning_of_an_id_outlives_the_checkpoints_and_entries_of_the_log(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form, interval=2)
    driver.start()
    for offset in range(6):
        driver.carry([log({offset: event(offset)})], {0: offset + 1})
    assert driver.table._log.checkpoint_version() > 3
    for entry in [*Path(driver.lake).glob("_delta_log/*0[0-3].json")]:  # as a clean-up does
        entry.unlink()
    assert kept(again(driver, driver.schemas).table.snapshot()) == {NAME: BEFORE}
    with pytest.raises(SchemaChanged):
        again(driver)


def test_a_start_refuses_an_id_that_means_another_schema(driver: Driver) -> None:
    refused(driver, lambda: again(driver))
    assert SchemaChanged.exit_code == 2


def test_the_pipeline_s_own_start_refuses_it_before_its_epoch_rises(driver: Driver) -> None:
    def start(schemas: Schemas) -> PipelineRun:
        cluster = Cluster((0, 20), id_="uuid-1")
        run = PipelineRun("clicks", driver.config, schemas=schemas, cluster=cluster)  # type: ignore[arg-type]
        run.check()
        run.start(new_run=False)
        return run

    refused(driver, lambda: start(REBUILT))
    run = start(driver.schemas)
    assert run.epoch == 2
    assert run.parts.schemas.confirm(Report(schemas={1}), 0.0) == {NAME: BEFORE}
    accepted(driver)
    assert start(REBUILT).parts.schemas.plan.since == {1: NOW}


def test_a_batch_that_meets_such_an_id_is_refused_before_a_column_is_added(driver: Driver) -> None:
    later = again(driver, Schemas({1: OTHER}, []))  # registered, but not for this topic
    later.start()
    refused(driver, lambda: later.carry([log({offset: event(offset) for offset in range(20, 25)})], {0: 25}))


@pytest.mark.parametrize("text", [{"type": "object"}, {"type": "record", "name": "Event", "fields": []}])
def test_an_id_that_means_no_schema_at_all_any_more_is_refused_too(delta: Driver, text: dict[str, Any]) -> None:
    refused(delta, lambda: again(delta, Schemas({1: text}, [1])))


def test_another_spelling_of_the_same_schema_is_no_change(delta: Driver) -> None:
    spelt = {"fields": EVENT["fields"], "name": "Event", "type": "record", "doc": "A click."}
    again(delta, Schemas({1: spelt}, [1])).start()


def test_a_commit_is_refused_when_the_log_has_another_meaning_by_then(driver: Driver) -> None:
    accepted(driver)
    refused(driver, lambda: driver.carry([log({offset: event(offset) for offset in range(20, 25)})], {0: 25}))


def moved(driver: Driver, **registry: Any) -> Config:
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    return Config.model_validate({**raw, "registry": registry})


def test_a_registry_at_another_address_is_another_one(delta: Driver) -> None:
    for schemas in (delta.schemas, REBUILT):
        config = moved(delta, url="http://registry-2:8081")
        assert open_local_pipeline("clicks", config, schemas).schemas.id_meanings(Report(schemas={1})).keys() == {
            NAME.replace("127.0.0.1%3A1", "registry-2%3A8081")
        }


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://Registry:8081", "registry:8081"), ("https://u:p@registry:8081/", "registry:8081"),
        ("https://registry:443/apis/ccompat/v7/", "registry/apis/ccompat/v7"), ("http://registry", "registry"),
        ("http://b:1,http://a:2", "a:2,b:1"), ("http://[::1]:8081", "::1:8081"),
    ],
)  # fmt: skip
def test_a_registry_is_known_by_its_address(tmp_path: Path, url: str, named: str) -> None:
    driver = Driver(tmp_path)
    assert registry_name(moved(driver, url=url).registry, "confluent") == named
    core = moved(driver, url=url, core_url="http://core:8080/apis/registry/v3").registry
    assert (registry_name(core, "confluent"), registry_name(core, "global")) == (named, "core:8080/apis/registry/v3")


def test_each_kind_of_id_has_meanings_of_its_own_and_a_fingerprint_needs_none(delta: Driver) -> None:
    local_pipeline = open_local_pipeline("clicks", delta.config, delta.schemas).schemas
    kinds = ("confluent", "global", "content", "fingerprint")
    names = {ids: local_pipeline.meanings.of({1: json.dumps(EVENT)}, ids) for ids in kinds}  # type: ignore[misc]
    assert [list(found) for found in names.values()] == [
        [NAME], [NAME.replace("confluent", "global")], [NAME.replace("confluent", "content")], [],
    ]  # fmt: skip
    guid = 2**100
    (name,) = local_pipeline.meanings.of({guid: json.dumps(EVENT)}, "confluent")
    assert name.endswith("/confluent/00000010-0000-0000-0000-000000000000")


def test_files_are_held_against_the_log_as_a_registry_is(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form)
    driver.config = moved(driver, files={"1": str(tmp_path / "1.avsc")})
    driver._pipeline = open_local_pipeline("clicks", driver.config, driver.schemas)
    driver.start()
    driver.carry([log({0: event(0)})], {0: 1})
    with pytest.raises(SchemaChanged, match="schema id 1 at files is another"):
        open_local_pipeline("clicks", driver.config, REBUILT)


def test_a_replay_refuses_and_the_dead_letters_stay(driver: Driver) -> None:
    driver.carry([log({20: value(2, WIDER, {"id": 20, "at": NOW, "note": None, "extra": 1})})], {0: 21})
    refused(driver, lambda: DeadLetterReplay("clicks", driver.config, REBUILT).run(Selection(), NOW))
    changed = Schemas({1: EVENT, 2: WIDER}, [1])
    assert DeadLetterReplay("clicks", driver.config, changed).run(Selection(), NOW).rows == 1
    assert kept(driver.table.snapshot()).keys() == {NAME, NAME[:-1] + "2"}
    refused_2 = Schemas({1: EVENT, 2: OTHER}, [1, 2])
    with pytest.raises(SchemaChanged, match="schema id 2 at"):
        DeadLetterReplay("clicks", driver.config, refused_2).run(Selection(), NOW)


def test_a_backfill_refuses_and_keeps_what_ids_mean(driver: Driver, tmp_path: Path) -> None:
    skip_offsets(driver, 40)
    archive = write_archive(tmp_path, {offset: event(offset, schema_id=3) for offset in range(20, 40)})
    driver.schemas = Schemas({1: OTHER, 3: EVENT}, [1])
    refused(driver, lambda: fill_from_archives(driver, archive))
    driver.schemas = Schemas({1: EVENT, 3: EVENT}, [1])
    fill_from_archives(driver, archive)
    assert only_gap(driver).state == "done"
    assert kept(driver.table.snapshot())[NAME[:-1] + "3"] == BEFORE


def test_a_preview_refuses_as_a_start_does(delta: Driver) -> None:
    refused(delta, lambda: open_local_pipeline("clicks", delta.config, REBUILT))
    assert open_local_pipeline("clicks", delta.config, REBUILT, checked=False).plan.columns.names == [
        "id",
        "at",
        "note",
        "session",
    ]


# What an operator accepts.


def test_an_accepted_meaning_is_read_by_from_its_instant_on(driver: Driver) -> None:
    shown = accepted(driver, write=False)
    assert "another schema" in shown
    assert "Stop the driver, if one runs." in shown
    assert kept(driver.table.snapshot()) == {NAME: BEFORE}
    assert "Written as version" in accepted(driver)
    later = again(driver)
    later.start()
    new = [log({offset: event(offset) for offset in range(20, 25)}, kafka_time=NOW - timedelta(minutes=1)),
           log({offset: event(offset) for offset in range(25, 30)}, kafka_time=NOW)]  # fmt: skip
    later.carry(new, {0: 30})
    assert oracle.rows(Path(driver.lake), "list_sort(list(session))", "WHERE session IS NOT NULL") == [
        ([*range(25, 30)],)
    ]
    errors = oracle.rows(Path(driver.dead_letters), "error, count(*)", "WHERE _offset >= 20 GROUP BY ALL")
    why = "schema id 1 means another schema since 2026-11-20T12:00:00Z, this record is older"
    assert errors == [(why, 5)]
    oracle.check(Path(driver.lake), "clicks", {("clicks", 0): 30})
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert "There is nothing to accept" in accepted(driver)


def test_earlier_dead_letters_stay_dead_letters_when_they_are_replayed(driver: Driver) -> None:
    unlucky = {
        offset: event(offset, event_time=NOW + timedelta(days=9)) for offset in range(20, 25)
    }  # quarantined, and sound
    driver.carry([log(unlucky, kafka_time=NOW - timedelta(hours=1))], {0: 25})
    accepted(driver)
    replay = DeadLetterReplay("clicks", driver.config, REBUILT)
    result = replay.run(Selection(), NOW + timedelta(days=9))
    assert (result.chosen, result.rows) == (7, 0)
    assert "session" not in oracle.rows(Path(driver.lake), "*", "LIMIT 0")
    accepted(driver, "1", since=NOW - timedelta(hours=2))
    assert replay.run(Selection(outcome="dead_letter"), NOW + timedelta(days=9)).rows == 5


def test_records_from_before_an_accepted_schema_are_dead_letters(delta: Driver) -> None:
    accepted(delta)
    local_pipeline = open_local_pipeline("clicks", delta.config, REBUILT)
    old = local_pipeline.decode(records([event(1), event(2)], kafka_time=NOW - timedelta(seconds=1)))
    assert (old.rows, [dead_letter.position[2] for dead_letter in old.dead_letters]) == (0, [0, 1])
    new = local_pipeline.decode(records([event(1), event(2)], kafka_time=NOW))
    assert ([group.rows.column("session").to_pylist() for group in new.groups], new.dead_letters) == ([[1, 2]], [])


def test_an_acceptance_applies_to_the_start_that_was_shown(driver: Driver) -> None:
    snapshot = driver.table.snapshot()
    driver.start()
    with pytest.raises(CommitFailed, match="was started meanwhile; nothing was accepted"):
        driver.table.append(SchemaAcceptance("a", {NAME: AFTER}), snapshot)
    assert kept(driver.table.snapshot()) == {NAME: BEFORE}


def test_a_driver_that_runs_is_stopped_first(delta: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.writer.clients.driver_endpoint import this_driver

    monkeypatch.setattr(
        "headrace.writer.clients.driver_endpoint.answers", lambda *_: this_driver("http://127.0.0.1:1", 1)
    )
    with pytest.raises(DriverAlive, match="Stop it, then accept"):
        accepted(delta)
    assert kept(delta.table.snapshot()) == {NAME: BEFORE}


def test_an_id_that_was_never_used_has_nothing_to_accept(delta: Driver) -> None:
    with pytest.raises(ConfigError, match=r"--id 7: no record was read by this id .* The table's log knows 1\."):
        accepted(delta, "7")
    with pytest.raises(ConfigError, match="--id: "):
        accepted(delta, "seven")


def test_an_entry_that_accepts_is_passed_over_by_who_does_not_know_it(driver: Driver) -> None:
    """What a headrace of before finds: no part's frontier in its `txn`, no file, and a kind that it does not know."""
    accepted(driver)
    snapshot = driver.table.snapshot()
    assert snapshot.parts().keys() == {part for part in snapshot.parts() if part.topic == "clicks"}
    (_, actions) = driver.table.entries(snapshot.version - 1)[-1]
    assert {kind for action in actions for kind in action} == {"commitInfo", "txn"}
    assert parse_commit_info(actions)[1]["kind"] == "schema"
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_the_verb_shows_first_and_writes_with_yes(tmp_path: Path, form: str) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(EVENT))
    driver = Driver(tmp_path, form)
    driver.config = moved(driver, files={"1": str(tmp_path / "1.avsc")})
    driver._pipeline = open_local_pipeline("clicks", driver.config, driver.schemas)
    driver.start()
    driver.carry([log({0: event(0)})], {0: 1})
    (tmp_path / "1.avsc").write_text(json.dumps(OTHER))
    path = tmp_path / "headrace.yaml"
    path.write_text(driver.config.model_dump_json(exclude_unset=True))

    def told(*words: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["schema", "accept", str(path), "--json", *words])
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.output))

    shown = told("--since", "2026-11-20T05:00Z")
    assert (shown["registry"], shown["version"], shown["since"]) == ("files", None, "2026-11-20T05:00:00.000Z")
    assert shown["ids"] == [
        {"id": "1", "state": "other", "before": f"{BEFORE:016x}", "now": f"{AFTER:016x}", "schema": "Event, 3 fields"}
    ]
    assert told("--id", "1", "--yes", "--since", "2026-11-20T05:00Z")["version"] == driver.table.snapshot().version
    assert told()["ids"][0]["state"] == "same"
    since = driver.table.snapshot().state.transactions["clicks/schema/files/confluent/1/since"]
    assert since == datetime(2026, 11, 20, 5, tzinfo=UTC).timestamp() * 1_000_000
