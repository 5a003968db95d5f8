"""Files that another client named in a form of its own: headrace rewrites and removes them all the same."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.maintain.table_adopt import run_adopt
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.retention import Retention
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.table.iceberg.catalog.catalog_client import file_settings
from headrace.writer.table.iceberg.metadata.data_files import canonical_path
from tests.servers.objects import ObjectServer
from tests.support.foreign_iceberg import BY_HOUR, COLUMNS, START
from tests.support.foreign_rows import old_rows
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.reverted_change import revert_change
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW, event
from tests.support.small_files import compactor

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
HOUR = timedelta(hours=1)


class Adopted:
    """A table that another client made and filled, with its location in one of the forms, and its pipeline."""

    def __init__(self, root: Path, form: str, s3: ObjectServer | None) -> None:
        where_it_lies = f"{s3.bucket()}/lake/clicks" if s3 else str(root / "lake" / "clicks")
        settings: dict[str, Any] = {"start": START, "table": {"location": where_it_lies}}
        self.config = pipeline_config(root, "iceberg", **settings)
        table = self.catalog().create_table(
            self.name, Schema(*COLUMNS), form + where_it_lies.removeprefix("s3://").removeprefix("/"), BY_HOUR
        )
        table.append(old_rows().slice(0, 4))
        table.append(old_rows().slice(4))
        run_adopt(self.config, "clicks", write=True, now=NOW)
        self.driver = Driver(root, "iceberg", **settings)
        self.driver.start(offset=100)
        self.driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(100, 110)})], {0: 110})
        self.ids = [*range(100, 110), *range(1000, 1006)]

    def catalog(self) -> Any:
        location = self.config.pipelines["clicks"].table.location
        catalog_table = self.config.catalog_place("clicks", location)
        assert catalog_table is not None
        self.name = catalog_table.identifier
        table = load_catalog(catalog_table.catalog, **dict(catalog_table.settings), **file_settings(location))
        table.create_namespace_if_not_exists(catalog_table.namespace)
        return table

    def table(self) -> Table:
        found: Table = self.catalog().load_table(self.name)
        return found

    def files(self) -> list[str]:
        return [task.file.file_path for task in self.table().scan().plan_files()]

    def check(self, version: int, *gone: int) -> None:
        """Check that the log went on, that these rows are gone, and that log and catalog name the same files."""
        driver, self.ids = self.driver, [row_id for row_id in self.ids if row_id not in gone]
        snapshot = driver.table.snapshot()
        assert snapshot.version > version
        assert sorted(self.table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()) == self.ids
        bucket_files = {f"{driver.lake}/{file.path}" for file in driver.table.bucket_files(snapshot)}
        assert {canonical_path(path) for path in self.files()} == bucket_files
        report = audit(driver.config, "clicks", since=None, deep=True)
        assert report.adds_up, report.problems


@pytest.mark.parametrize("form", ["/", "file:/", "file:///", "s3://", "s3a://"])
def test_adopted_files_are_compacted_deleted_from_dropped_and_not_vacuumed(
    tmp_path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    adopted = Adopted(tmp_path, form, request.getfixturevalue("on_s3") if form.startswith("s3") else None)
    assert len([path for path in adopted.files() if path.startswith(form)]) >= 5
    driver, version = adopted.driver, adopted.driver.table.snapshot().version
    (hour,) = {bucket for bucket in driver.table.buckets() if bucket == (f"{NOW:%Y-%m-%dT%H}",)}
    compaction, snapshot = compactor(driver), driver.table.snapshot()
    planned = compaction.plan(snapshot, [hour], open_too=True)
    assert [done.rows for pieces in planned.values() for done in compaction.carry_out(snapshot, pieces, here)] == [12]
    assert len(driver.table.bucket_files(driver.table.snapshot(), hour)) == 1
    adopted.check(version)
    version = driver.table.snapshot().version
    run_deletion(
        driver.config,
        DeletionRequest("clicks", where("id = 1004"), NOW, with_dead_letters=False),
        driver.schemas,
        write=True,
    )
    adopted.check(version, 1004)
    version = driver.table.snapshot().version
    assert list(Retention(driver.table, bucketers.build(driver.settings.bucket), HOUR).run(NOW + HOUR / 2))
    adopted.check(version, 1002, 1005)
    places = find_unneeded(driver.config, "clicks", None, datetime.now(UTC) + timedelta(days=3000))
    waste = {file.path for location in places if location.location == driver.lake for file in location.waste}
    assert len({path for path in waste if path.endswith(".parquet")}) >= 5
    assert not {path.removeprefix(f"{driver.lake}/") for path in map(canonical_path, adopted.files())} & waste
    kept, end = driver.table.snapshot().version, 110
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(end, end + 5)})], {0: end + 5})
    assert revert_change(driver, kept, cluster=Cluster(end + 5)) == 0
    adopted.check(kept + 1)


def test_a_delete_of_another_client_takes_files_of_either_form(tmp_path: Path) -> None:
    adopted = Adopted(tmp_path, "file:///", None)
    version = adopted.driver.table.snapshot().version
    adopted.table().delete("id IN (103, 1003)")
    adopted.driver.start(offset=110)
    adopted.check(version, 103, 1003)
