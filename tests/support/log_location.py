"""An Iceberg table whose log lies apart from it."""

from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.driver.sealing.steps import seal_due
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.vacuum import list_objects
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.storage.locations import store_at
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event
from tests.support.small_files import carry, close, compact_bucket
from tests.support.vacuum_time import days_ahead


def write_history(driver: Driver) -> None:
    """Let a table have rows, dead letters, a bucket that is sealed, rewritten files, and rows that were deleted."""
    driver.carry([log({60: b"broken", 61: event(61, event_time=NOW)})], {0: 62})
    close(driver)
    seal_due(Sealer("clicks", driver.config), days_ahead())
    compact_bucket(driver)
    run_deletion(driver.config, DeletionRequest("clicks", where("id = 61"), NOW), driver.schemas, write=True)
    carry(driver, 7)
    result = audit(driver.config, "clicks", since=None, deep=True)
    assert result.adds_up, result.problems


def folders_below(driver: Driver, location: str) -> set[str]:
    """Return the folders directly below a location that hold something."""
    store = store_at(location, driver.config.stores)
    return {stored_object.path.partition("/")[0] for stored_object in list_objects(store)}
