"""The demo's account and `headrace audit` count by the same terms: what was taken out on purpose is not lost."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.demo import verification
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.table.iceberg.metadata.schema import MAPPING
from headrace.writer.table.log.operations.seals import Closing
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, value

TIMED = {**EVENT, "fields": [{**field, "name": field["name"].replace("at", "event_time")} for field in EVENT["fields"]]}
ENDS = {("clicks", 0): 40}


def event(number: int) -> bytes:
    return value(1, TIMED, {"id": number % 5, "event_time": NOW, "note": None})


@pytest.fixture
def driver(form: str, tmp_path: Path) -> Driver:
    """Forty offsets: thirty-four rows, half of them in the table of late rows, two broken values, four tombstones."""
    schemas = Schemas({1: TIMED}, [1])
    new_driver = Driver(
        tmp_path, form, schemas=schemas, seal={"late": "late_table"}, event_time={"field": "event_time"}
    )
    new_driver.start()
    values = {n: None if n % 10 == 3 else event(n) for n in range(40)} | {11: event(1)[:-1], 31: event(1)[:-1]}
    new_driver.carry([log({n: values[n] for n in range(20)})], {0: 20})
    new_driver.table.append(Closing("c", NOW + timedelta(days=1), {"reason": "command"}), new_driver.table.snapshot())
    new_driver.carry([log({n: values[n] for n in range(20, 40)})], {0: 40})
    return new_driver


def test_an_event_that_is_deleted_or_late_or_a_tombstone_is_not_lost(driver: Driver) -> None:
    before = verification.committed_account(driver.config, "clicks", ENDS, since=NOW - timedelta(hours=1))
    sentence = "40 produced = 17 rows + 0 quarantined + 2 dead letters + 17 rows of the late table + 4 tombstones"
    assert verification.sentence(before) == f"{sentence} + 0 lost, 0 twice"
    run_deletion(driver.config, DeletionRequest("clicks", where("id = 4"), NOW), driver.schemas, write=True)
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    report = verification.committed_account(driver.config, "clicks", ENDS, since=NOW - timedelta(hours=1))
    sentence = "40 produced = 13 rows + 0 quarantined + 2 dead letters + 13 rows of the late table + 4 tombstones"
    assert verification.sentence(report) == f"{sentence} + 8 taken by delete + 0 lost, 0 twice"
    assert report.damage() == []


def test_rows_that_are_gone_without_a_reason_are_lost(driver: Driver) -> None:
    report = verification.committed_account(driver.config, "clicks", ENDS | {("clicks", 0): 42}, since=NOW)
    assert report.damage() == ["2 of 42 offsets are in no table"]


def test_an_iceberg_table_is_counted_by_what_a_scan_returns(tmp_path: Path) -> None:
    schemas = Schemas({1: TIMED}, [1])
    driver = Driver(tmp_path, "iceberg", schemas=schemas, event_time={"field": "event_time"})
    driver.start()
    driver.carry([log({n: event(n) for n in range(4)})], {0: 4})
    ends = {("clicks", 0): 4}
    assert verification.committed_account(driver.config, "clicks", ends, since=NOW).damage() == []
    catalog_table = driver.config.catalog_place("clicks", driver.settings.table.location)
    assert catalog_table is not None
    table = load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).load_table(catalog_table.identifier)
    mapping, swapped = table.properties[MAPPING], {"_partition": "_incarnation", "_incarnation": "_partition"}
    for name in swapped:
        mapping = mapping.replace(f'"{name}"', f'"<{name}>"')
    for name, other in swapped.items():
        mapping = mapping.replace(f'"<{name}>"', f'"{other}"')
    with table.transaction() as change:
        change.set_properties({MAPPING: mapping})
    assert verification.committed_account(driver.config, "clicks", ends, since=NOW).damage() == [
        "4 of 4 offsets are in no table", "4 offsets were never produced",
    ]  # fmt: skip
