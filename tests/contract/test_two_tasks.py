"""Two tasks in processes of their own bring the rows of one task: from Kafka, from raw tables, to tables of a route."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, fill_gaps
from headrace.recovery.backfill.source import Source
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.maintenance.task_pool import TaskPool
from headrace.writer.offsets import skip_to_latest
from headrace.writer.privacy.encryption import decrypt_text
from headrace.writer.privacy.keyring import read_keyring
from headrace.writer.table.log.operations.seals import Closing
from tests.support.backfill_gaps import Silent, skip_offsets, task_processes
from tests.support.local_driver import Driver, log
from tests.support.private_table import keyring_at
from tests.support.reprocess_lake import (
    ALL,
    HOUR,
    TWO,
    check_equal,
    check_sound,
    dead_letter_rows,
    offset_key,
    reprocess_run,
    rows,
    table_pair,
    write_history,
)
from tests.support.route_targets import BY_HEADER, RouteTables
from tests.support.sample_records import EVENT, NOW, Schemas, value
from tests.support.simulated_cluster import Cluster as LogEnds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PERSON: dict[str, Any] = {
    **EVENT,
    "fields": [
        {**EVENT["fields"][0], "pii": "name"},
        EVENT["fields"][1],
        {**EVENT["fields"][2], "pii": "secret"},
        {"name": "home", "type": "string", "pii": "gone"},
    ],
}
WIDER_PERSON = {**PERSON, "fields": [*PERSON["fields"], {"name": "extra", "type": "int"}]}
PRIVACY = {"tags": {"name": "hash", "secret": "encrypt", "gone": "drop"}, "attributes": ["pii"]}
# An eighth of it is two rows: each chunk is enough for two tasks.
SMALL_FILES: dict[str, Any] = {"roll": {"target_file_size": "1 KiB"}, "limits": {"max_failed_ratio": 1}}
# Offsets of the two partitions.
ENDS = (180, 60)
TABLES = 12


def person(number: int) -> bytes:
    at = NOW - (number % 4) * HOUR
    return value(1, PERSON, {"id": number, "at": at, "note": f"note {number}", "home": f"street {number}"})


def wider_person(number: int) -> bytes:
    return value(2, WIDER_PERSON, {"id": number, "at": NOW, "note": None, "home": "street", "extra": number})


def persons(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one is a tombstone, one is cut; the last ten, which one of two tasks gets, have a schema more."""
    kinds: dict[int, Callable[[int], bytes | None]] = {3: lambda _: None, 5: lambda _: b"\0\0\0\0\1cut"}
    values = {offset: kinds.get(offset % 10, person)(offset) for offset in range(start, end)}
    return values | {offset: wider_person(offset) for offset in range(end - 10, end)}


@pytest.fixture(scope="module")
def pool() -> Iterator[TaskPool]:
    """Two processes, for all tests of the module."""
    with TaskPool(2) as two_tasks:
        yield two_tasks
        assert len(task_processes()) == 2, "tasks ran in them, one after the other"


@dataclass(frozen=True)
class FilledTopic:
    """A topic of a real broker."""

    bootstrap: str
    id: str


@pytest.fixture(scope="module")
def clicks(bootstrap: str) -> Iterator[FilledTopic]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("clicks", 2, 1)])["clicks"].result(30)
    try:
        producer = Producer({"bootstrap.servers": bootstrap})
        for partition, end in enumerate(ENDS):
            for offset, sent in persons(0, end).items():
                headers = [("type", f"kind{offset % TABLES}".encode())]
                key = f"k{offset}".encode()
                time_ms = int(NOW.timestamp() * 1000)
                producer.produce("clicks", sent, key, partition, timestamp=time_ms, headers=headers)
        assert producer.flush(30) == 0
        yield FilledTopic(bootstrap, Cluster(bootstrap, timedelta(seconds=30)).topics(["clicks"])["clicks"].id)
    finally:
        admin.delete_topics(["clicks"])["clicks"].result(30)


def fill(name: str, config: Config, pool: TaskPool | None, raw: str | None = None) -> list[GapOutcome]:
    """Run a backfill from Kafka, or from a raw table."""
    record_table = RecordTable(name, config, Schemas({1: PERSON, 2: WIDER_PERSON}, [1]), pool)

    def open_sources(_: object) -> list[Source]:
        if raw is not None:
            return [source_factory.raw(record_table, raw)]
        return [source_factory.kafka(record_table)]

    return fill_gaps(record_table, open_sources, BackfillRequest(by="ann"), Silent())


def private_driver(root: Path, keys: Path, sections: Mapping[str, Any], **settings: Any) -> Driver:
    schemas = Schemas({1: PERSON, 2: WIDER_PERSON}, [1])
    sections = {**sections, "keys": {"file": keyring_at(keys).place.file}}
    return Driver(root, schemas=schemas, privacy=PRIVACY, sections=sections, **SMALL_FILES, **settings)


def clear_rows(driver: Driver, keys: Path) -> list[dict[str, Any]]:
    """Return the rows, with what is encrypted as it was: each value has a nonce of its own."""
    keyring = read_keyring(keyring_at(keys))
    key = keyring.encryption_keys[keyring.primary["encrypt"]]
    return [{**row, "note": row["note"] and decrypt_text(row["note"], key)} for row in rows(driver)]


def counts(config: Config, name: str) -> list[Any]:
    """Return what the entries of a backfill say of offsets and rows."""
    table = RecordTable(name, config, Schemas({1: PERSON, 2: WIDER_PERSON}, [1])).table
    fills = [entry.facts for entry in table.history() if entry.kind == "fill"]
    return [(fill["ranges"], fill["rows"], fill["unplaced"]) for fill in fills]


def check_private(drivers: Mapping[str, Driver], keys: Path) -> None:
    """Assert that two tasks brought what one brought, protected alike."""
    one, two = drivers["one"], drivers["two"]
    assert clear_rows(two, keys) == clear_rows(one, keys)
    assert [row[:-1] for row in dead_letter_rows(two)] == [row[:-1] for row in dead_letter_rows(one)]
    assert counts(two.config, "clicks") == counts(one.config, "clicks")
    assert {"home"}.isdisjoint(rows(two)[0])
    assert all(row["note"] is None or row["note"].startswith("hr1.") for row in rows(two))
    assert all(len(row["id"]) == 64 for row in rows(two))
    assert len(rows(two)) + len(dead_letter_rows(two)) > 200
    check_sound(two)


def test_a_backfill_from_kafka_protects_columns_and_keeps_dead_letters(
    tmp_path: Path, clicks: FilledTopic, pool: TaskPool
) -> None:
    kafka = {"kafka": {"bootstrap_servers": clicks.bootstrap, "request_timeout": "30 s"}}
    drivers = {name: private_driver(tmp_path / name, tmp_path, kafka, topic_id=clicks.id) for name in ("one", "two")}
    for name, driver in drivers.items():
        driver.start(2)
        skip_offsets(driver, *ENDS, topic_id=clicks.id)
        (outcome,) = fill("clicks", driver.config, pool if name == "two" else None)
        assert outcome.gap_record.state == "done"
    check_private(drivers, tmp_path)


def test_a_backfill_from_an_encrypted_raw_table_is_decrypted_by_each_task(tmp_path: Path, pool: TaskPool) -> None:
    raw = str(tmp_path / "raw")
    before = private_driver(tmp_path / "before", tmp_path, {}, table={"raw": raw})
    before.start(2)
    # So that there are two files for two tasks.
    for start in (0, 100):
        records = [log(persons(start, start + 100)), log(persons(start, start + 100), 1)]
        before.carry(records, {0: start + 100, 1: start + 100})
    drivers = {name: private_driver(tmp_path / name, tmp_path, {}) for name in ("one", "two")}
    for name, driver in drivers.items():
        driver.start(2)
        skip_offsets(driver, 200, 200)
        (outcome,) = fill("clicks", driver.config, pool if name == "two" else None, raw=raw)
        assert outcome.gap_record.state == "done"
    check_private(drivers, tmp_path)


def test_many_tables_of_a_route_get_the_same_rows(tmp_path: Path, clicks: FilledTopic, pool: TaskPool) -> None:
    parts = tuple(TopicPartition("clicks", 1, partition) for partition in range(len(ENDS)))
    table_rows: dict[str, list[list[dict[str, Any]]]] = {}
    letters: dict[str, int] = {}
    for name, tasks in (("one", None), ("two", pool)):
        root = tmp_path / name
        route = {**BY_HEADER, "targets": {"*": {"location": str(root / "targets" / "{name}")}}}
        settings = {"bootstrap": clicks.bootstrap, "topic_id": clicks.id, **SMALL_FILES}
        lake = RouteTables(root, route, parts=parts, **settings)
        ends = LogEnds(*((0, end) for end in ENDS), id_=clicks.id)
        preview = skip_to_latest.preview_skip(lake.config, "p", ends, "person")  # type: ignore[arg-type]
        skip_to_latest.skip(lake.config, "p", preview, by="ann", reason="a test", now=NOW, fence=False)
        (outcome,) = fill("p", lake.config, tasks)
        assert outcome.gap_record.state == "done"
        tables = [lake.tables.side(str(root / "targets" / f"kind{number}")) for number in range(TABLES)]
        table_rows[name] = [sorted(table.rows().to_table().to_pylist(), key=offset_key) for table in tables]
        letters[name] = lake.tables.side(lake.config.pipelines["p"].dead_letters).rows().count_rows()
    assert table_rows["two"] == table_rows["one"]
    assert all(table_rows["two"])
    assert letters["two"] == letters["one"] > 0


def test_late_rows_are_made_anew_by_two_tasks_and_stay_in_their_table(tmp_path: Path, pool: TaskPool) -> None:
    late: dict[str, Any] = {"seal": {"late": "late_table"}, "roll": SMALL_FILES["roll"]}

    def during(driver: Driver) -> None:
        write_history(driver, 0, 20)
        driver.table.append(Closing("c", NOW + HOUR, {"reason": "command"}), driver.table.snapshot())
        write_history(driver, 20, 40)

    shaped = {"specs": {"Event": {"derive": {"twice": "id * 2"}}}}
    two, wanted = table_pair(tmp_path, "delta", late, {**late, **shaped}, during, (TWO, TWO))
    result = reprocess_run(two, ALL, pool=pool).run(NOW)
    assert [outcome for outcome in result.buckets if outcome.late and outcome.version]
    late_rows = [
        sorted(driver.side(driver.settings.late_place).rows().to_table().to_pylist(), key=offset_key)
        for driver in (two, wanted)
    ]
    assert late_rows[0] == late_rows[1]
    assert len(late_rows[0]) > 20
    check_equal(two, wanted)
