"""Old rules and then a reprocess by new ones give what the new rules give from the start."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition as Where
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace.recovery.reprocess.run import SourceChoice
from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.cli.main import app
from headrace.writer.clients.kafka import Cluster
from headrace.writer.core.errors import ConfigError, LimitReached
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.sealing.rules import SealNow
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.ledger.segment_store import LedgerStore
from headrace.writer.table.log.foreign_writes import LiveDeleteFiles
from headrace.writer.table.log.operations.rows import BucketChange, RemovedRows, Reprocess, Rewrite
from headrace.writer.table.log.operations.seals import Closing
from tests.support.foreign_iceberg import delete_rows_by_file
from tests.support.iceberg_clients import client_table
from tests.support.local_driver import Driver, log
from tests.support.reprocess_lake import (
    BERLIN,
    HOUR,
    ONE,
    TWO,
    Between,
    check_equal,
    check_sound,
    dead_letter_rows,
    delete,
    mixed_values,
    offset_key,
    reprocess_run,
    rows,
    run_reprocess,
    start_writer,
    table_pair,
    write_history,
)
from tests.support.rewound_cluster import Cluster as Ends
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, value


def test_old_rules_and_a_reprocess_give_what_the_new_rules_give_from_the_start(tmp_path: Path, form: str) -> None:
    def during(driver: Driver) -> None:
        write_history(driver)
        delete(driver, "id IN (6, 14, 20)")

    driver, wanted = table_pair(tmp_path, form, {}, BERLIN, during)
    assert rows(driver) != rows(wanted)
    write_history(driver, 60, 80)
    write_history(wanted, 60, 80)
    done = run_reprocess(driver)
    check_equal(driver, wanted)
    assert sum(bucket.moved for bucket in done.buckets) > 20
    assert done.dead_letters.rows == 9, "those of the schema that was unknown"
    version = driver.table.snapshot().version
    again = run_reprocess(driver)
    assert [bucket.version for bucket in again.buckets if bucket.version] == []
    assert driver.table.snapshot().version == version, "a second time changes nothing"


SHAPED: dict[str, Any] = {
    "specs": {"Event": {"where": "id % 10 <> 9", "derive": {"twice": "id * 2"}, "rename": {"note": "remark"}}},
}  # fmt: skip


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_columns_and_conditions_of_new_specs_hold_for_rows_that_landed_before(tmp_path: Path, form: str) -> None:
    driver, wanted = table_pair(tmp_path, form, {}, SHAPED, write_history)
    done = run_reprocess(driver)
    assert sum(bucket.filtered for bucket in done.buckets) == 9
    left_out = {"note"}  # a column stays in the table, null in each row
    cells = [{key: cell for key, cell in row.items() if key not in left_out} for row in rows(driver)]
    assert cells == rows(wanted)
    assert dead_letter_rows(driver) == dead_letter_rows(wanted)
    check_sound(driver)
    assert [bucket.version for bucket in run_reprocess(driver).buckets if bucket.version] == []


def test_a_wrong_unit_of_the_event_time_is_put_right(tmp_path: Path) -> None:
    schema = {**EVENT, "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}]}
    schemas = Schemas({1: schema}, [1])
    old, new = ({"event_time": {"field": "at", "unit": unit, "max_age": "36500 d"}} for unit in ("us", "ms"))

    def during(driver: Driver) -> None:
        times = {n: int((NOW - n * HOUR / 4).timestamp() * 1000) for n in range(20)}
        driver.carry([log({n: value(1, schema, {"id": n, "at": time}) for n, time in times.items()})], {0: 20})

    driver, wanted = table_pair(tmp_path, "delta", old, new, during, (schemas, schemas))
    assert {row["hour"] for row in rows(driver)} == {"1970-01-21T18"}
    (bucket,) = run_reprocess(driver, "1970-01-21T18").buckets
    assert (bucket.stay, bucket.moved, len(bucket.into)) == (0, 20, 6)
    check_equal(driver, wanted)


def test_late_rows_are_read_again_and_sealed_buckets_get_a_next_manifest(tmp_path: Path, form: str) -> None:
    def during(driver: Driver) -> None:
        write_history(driver, 0, 40)
        driver.table.append(Closing("c", NOW + HOUR, {"reason": "command"}), driver.table.snapshot())
        write_history(driver, 40, 60)  # late: they join their buckets

    driver, wanted = table_pair(tmp_path, form, {}, BERLIN, during)
    sealer = Sealer("clicks", driver.config)
    ready = [action for action in sealer.due(sealer.follow(), NOW + HOUR) if isinstance(action, SealNow)]
    sealer.seal(ready, NOW + HOUR)
    buckets = {row["hour"] for row in rows(driver)}
    assert {manifest.bucket[0] for manifest in sealer.sealed} == buckets
    run_reprocess(driver)
    check_equal(driver, wanted)
    later = NOW + timedelta(days=9)
    again = Sealer("clicks", driver.config)
    due = [action for action in again.due(again.follow(), later) if isinstance(action, SealNow)]
    again.seal(due, later)
    held = {bucket: sum(row["hour"] == bucket for row in rows(driver)) for bucket in buckets}
    for manifest in again.sealed:
        (bucket,) = manifest.bucket
        count = sum(row["hour"] == bucket for row in rows(driver))
        assert (manifest.version, manifest.rows) == (2 if bucket in buckets else 1, count)
    assert {bucket for bucket in buckets if not held[bucket]} <= {m.bucket[0] for m in again.sealed}, (
        "one that is empty now is sealed so"
    )
    assert not [action for action in again.due(again.follow(), later) if isinstance(action, SealNow)]


@pytest.mark.parametrize("form", ["delta"])
def test_rows_that_another_client_dedupe_or_retention_took_stay_out(tmp_path: Path, form: str) -> None:
    driver = start_writer(tmp_path, form)
    write_history(driver)
    DeltaTable(driver.lake).delete("id = 10")
    table = driver.table
    files = [file for file in table.bucket_files(table.snapshot()) if file.bucket == ("2026-11-20T11",)]
    count = sum(file.rows or 0 for file in files)
    table.append(
        Rewrite("r", files, (), RemovedRows("retention", count), {"buckets": [["2026-11-20T11"]]}), table.snapshot()
    )
    before = [offset_key(row) for row in rows(driver)]
    driver = start_writer(tmp_path, form, **BERLIN)
    done = run_reprocess(driver)
    after = [offset_key(row) for row in rows(driver)]
    assert set(before) <= set(after)
    assert len(after) == len(before) + done.dead_letters.rows
    assert not {row["id"] for row in rows(driver)} & {10}
    check_sound(driver)


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_rows_of_the_table_of_late_rows_are_read_again_and_stay_there(tmp_path: Path, form: str) -> None:
    late: dict[str, Any] = {"seal": {"late": "late_table"}}

    def during(driver: Driver) -> None:
        write_history(driver, 0, 20)
        driver.table.append(Closing("c", NOW + HOUR, {"reason": "command"}), driver.table.snapshot())
        write_history(driver, 20, 40)

    def beside(driver: Driver) -> list[dict[str, Any]]:
        result_rows = driver.side(driver.settings.late_place).rows().to_table().to_pylist()
        return [{k: v for k, v in row.items() if k != "extra"} for row in sorted(result_rows, key=offset_key)]

    shaped = {"specs": {"Event": {"derive": {"twice": "id * 2"}}}}
    driver, wanted = table_pair(tmp_path, form, late, {**late, **shaped}, during, (TWO, TWO))
    old = len(beside(driver))
    assert old > 20
    done = run_reprocess(driver, source=Between(lambda: delete(driver, "id IN (22, 24, 30)")))
    delete(wanted, "id IN (22, 24, 30)")
    versions = {bucket.version for bucket in done.buckets if bucket.late and bucket.version}
    assert versions
    entries = [actions for offset, actions in driver.side(driver.settings.late_place).entries(-1) if offset in versions]
    changes = {action["add"]["dataChange"] for actions in entries for action in actions if "add" in action}
    assert changes == {True}, "who reads the table as a stream sees them"
    assert beside(driver) == beside(wanted)
    assert len(beside(driver)) < old
    check_equal(driver, wanted)
    assert [bucket.version for bucket in run_reprocess(driver).buckets if bucket.version] == []


@pytest.mark.parametrize("form", ["delta"])
def test_rows_that_were_only_late_stay_dead_letters(tmp_path: Path, form: str) -> None:
    late: dict[str, Any] = {"seal": {"late": "dead_letter"}}

    def during(driver: Driver) -> None:
        on_time = {offset: event(offset, event_time=NOW + (2 + offset % 3) * HOUR) for offset in range(20, 30, 2)}
        driver.carry([log({offset: event(offset) for offset in range(20)})], {0: 20})
        driver.table.append(Closing("c", NOW + HOUR, {"reason": "command"}), driver.table.snapshot())
        values = on_time | {offset: event(offset) for offset in range(21, 30, 2)}
        driver.carry([log(values, kafka_time=NOW + 6 * HOUR)], {0: 30}, now=NOW + 6 * HOUR)

    shaped = {"specs": {"Event": {"derive": {"twice": "id * 2"}}}}
    driver, wanted = table_pair(tmp_path, form, late, {**late, **shaped}, during, (TWO, TWO))
    assert [dead_letter_row[1] for dead_letter_row in dead_letter_rows(driver)] == [21, 23, 25, 27, 29]
    assert run_reprocess(driver).dead_letters.chosen == 0
    check_equal(driver, wanted)


def test_too_many_failed_records_leave_all_as_it_was(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    write_history(driver)
    before = rows(driver)
    table = {"raw": {"location": str(tmp_path / "lake" / "clicks_raw")}}
    strict = Driver(
        tmp_path, "delta", schemas=TWO, table=table, limits={"max_failed_ratio": 0.1, "min_failed_records": 1},
        event_time={"field": "at", "max_age": "30 d", "clocks": [{"shift": "+500 d"}]},
    )  # fmt: skip
    strict.start(2)
    with pytest.raises(LimitReached):
        run_reprocess(strict)
    assert rows(driver) == before
    assert not list(Path(driver.lake).rglob("reprocess*"))
    check_sound(driver)


def test_rows_become_dead_letters_and_come_back(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    write_history(driver)
    before, aside = rows(driver), dead_letter_rows(driver)
    wrong = start_writer(
        tmp_path, "delta", event_time={"field": "at", "max_age": "30 d", "clocks": [{"shift": "+500 d"}]}
    )
    done = run_reprocess(wrong)
    assert (sum(bucket.quarantined for bucket in done.buckets), rows(wrong)) == (len(before), [])
    check_sound(wrong)
    again = start_writer(tmp_path, "delta")
    assert run_reprocess(again).buckets == [], "no bucket has rows that say their offsets"
    DeadLetterReplay("clicks", again.config, TWO).run(Selection(), NOW)
    assert (rows(again), dead_letter_rows(again)) == (before, aside)
    check_sound(again)


@pytest.mark.parametrize(
    ("buckets", "match"),
    [
        ("2026-11-20T05..2026-11-20T04", "names the later bucket first"),
        ("yesterday..2026-11-20T04", "names no bucket"),
        ("day=2026-11-20..2026-11-21", "names no bucket"),
    ],
)  # fmt: skip
def test_buckets_that_are_none_are_refused(tmp_path: Path, buckets: str, match: str) -> None:
    driver = start_writer(tmp_path, "delta")
    write_history(driver, 0, 20)
    with pytest.raises(ConfigError, match=match):
        reprocess_run(driver, buckets).preview()


def test_without_its_source_or_with_a_route_it_is_a_sentence(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta")
    driver.start()
    driver.carry([log({0: event(0)})], {0: 1})
    with pytest.raises(ConfigError, match="has no raw table"):
        reprocess_run(driver).preview()
    with pytest.raises(ConfigError, match="needs --archive LOCATION"):
        SourceChoice("archive")
    with pytest.raises(ConfigError, match="--columns speaks of an archive"):
        SourceChoice("raw", columns="offset=o")


def test_the_command_shows_first_and_then_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start_writer(tmp_path, "delta")
    write_history(driver, 0, 20)
    driver = start_writer(tmp_path, "delta", **BERLIN)
    for number, schema in ((1, EVENT), (2, WIDER)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    document = driver.config.model_dump(mode="json", exclude_unset=True)
    document["registry"] = {"files": {n: str(tmp_path / f"{n}.avsc") for n in (1, 2)}}
    document["pipelines"]["clicks"]["event_time"]["max_age"] = "30000 d"
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("COLUMNS", "160")

    def say(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["reprocess", str(tmp_path / "headrace.yaml"), *words])
        assert result.exit_code == code, result.output
        return str(result.stdout)

    flags = ("--buckets", "2026-11-20T11..2026-11-20T12", "--from", "raw")
    version = driver.table.snapshot().version
    text = " ".join(say(*flags).split())
    assert "hour=2026-11-20T11" in text
    assert "would be read" in text
    assert json.loads(say(*flags, "--json"))["buckets"][0]["available"] > 0
    assert driver.table.snapshot().version == version
    *each, last = [json.loads(line) for line in say(*flags, "--yes", "--json").splitlines()]
    assert [line["bucket"] for line in each] == [["2026-11-20T11"], ["2026-11-20T12"]]
    assert (last["event"], last["changed"], last["absent"]) == ("ended", 2, 0)
    assert "0 of" in say(*flags, "--yes") or "no bucket" in say(*flags)
    check_sound(driver)


def test_from_kafka_and_what_it_has_no_more_stays(tmp_path: Path, bootstrap: str) -> None:
    """A real broker: records that are held are read again, the row of one that was deleted stays as it is."""
    admin, name = AdminClient({"bootstrap.servers": bootstrap}), "clicks"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    try:
        values = mixed_values(0, 20)
        producer = Producer({"bootstrap.servers": bootstrap})
        for offset, sent in values.items():
            producer.produce(name, sent, f"k{offset}".encode(), 0, timestamp=int(NOW.timestamp() * 1000))
        assert producer.flush(30) == 0

        ids: dict[str, list[str]] = {}

        def lake(root: str, schemas: Schemas, **rules: Any) -> Driver:
            kafka = {"bootstrap_servers": bootstrap, "request_timeout": "30 s"}
            limits = {"max_failed_ratio": 1}
            driver = Driver(
                tmp_path / root, "delta", schemas=schemas, limits=limits, sections={"kafka": kafka}, **rules
            )
            kafka_ = driver.config.kafka
            ids[name] = [Cluster(kafka_.address, kafka_.request_timeout).topics([name])[name].id]
            driver.epoch = driver.table.begin({TopicPartition(name, 1, 0): 0}, ids)
            driver.specs = 0
            return driver

        def during(driver: Driver) -> None:
            driver.carry([log(values)], {0: 20})
            delete(driver, "id = 2")

        during(lake("old", ONE))
        driver, wanted = lake("old", TWO, **BERLIN), lake("new", TWO, **BERLIN)
        during(wanted)
        before = {offset_key(row): row["hour"] for row in rows(driver)}
        admin.delete_records([Where(name, 0, 2)])[Where(name, 0, 2)].result(30)
        look = reprocess_run(driver, source=SourceChoice("kafka")).preview()
        assert sum(bucket.rows - bucket.available for bucket in look.buckets) == 2
        done = run_reprocess(driver, source=SourceChoice("kafka"))
        assert sum(bucket.absent for bucket in done.buckets) == 2
        stayed = {offset_key(row): row["hour"] for row in rows(driver) if row["_offset"] < 2}
        assert stayed == {at: before[at] for at in stayed}
        assert [row for row in rows(driver) if row["_offset"] >= 2] == [r for r in rows(wanted) if r["_offset"] >= 2]
        assert dead_letter_rows(driver) == dead_letter_rows(wanted)
        check_sound(driver)
    finally:
        admin.delete_topics([name])[name].result(30)


@pytest.mark.parametrize("shift", ["-3 h", "+500 d"], ids=["rows", "dead_letters"])
def test_rows_that_delete_files_of_another_client_take_are_not_brought_back(tmp_path: Path, shift: str) -> None:
    write_history(start_writer(tmp_path, "iceberg"), 0, 20)
    rules = {"event_time": {"field": "at", "max_age": "30 d", "clocks": [{"shift": shift}]}}
    driver = start_writer(tmp_path, "iceberg", **rules)
    delete_rows_by_file(client_table(driver))
    aside = dead_letter_rows(driver)
    with pytest.raises(LiveDeleteFiles, match="by delete files"):
        run_reprocess(driver)
    assert "reprocess" not in {entry.kind for entry in driver.table.history()}
    assert dead_letter_rows(driver) == aside


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_the_ledger_keeps_its_account_and_a_rewind_goes_past_it(tmp_path: Path, form: str) -> None:
    before = start_writer(tmp_path, form, schemas=ONE, interval=2)
    write_history(before)
    early = before.table.snapshot().version - 1
    driver = start_writer(tmp_path, form, interval=2, **BERLIN)
    run_reprocess(driver)
    driver.table.tidy()
    assert LedgerStore(driver.table.store, driver.table.state().metadata["id"], "clicks").last_version() > early
    check_sound(driver)
    back = RewindExecution(driver.config, "clicks", Ends(60, partitions=2))
    look = back.preview(early)
    assert look.moves
    back.write(look, NOW)
    check_sound(driver)
    driver.start(2)
    write_history(driver)
    wanted = start_writer(tmp_path / "new", form, **BERLIN)
    write_history(wanted)
    check_equal(driver, wanted)


def test_an_entry_that_does_not_add_up_is_none() -> None:
    bucket = ("2026-11-20T05",)
    file = BucketFile("a.parquet", bucket, 3, 1)
    Reprocess("r", [file], (), (), [BucketChange(bucket, 3, 0)])
    with pytest.raises(ValueError, match="of 3 rows 2 go, 0 stay, 0 of 0 come: that does not add up"):
        Reprocess("r", [file], (), (), [BucketChange(bucket, 2, 0)])
    with pytest.raises(ValueError, match="removes at least one file"):
        Reprocess("r", [], (), (), [])
