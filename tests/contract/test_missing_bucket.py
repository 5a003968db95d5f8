"""A bucket that is deleted under a writer: batches end by its name, no start begins anew, and nothing is given up."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.checkpoints.checks import preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.core.errors import ConfigError
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.preflight.checks import host_checks
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.foreign_writes import CommitFailed
from tests.support import oracle
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import EVENT, Schemas, event
from tests.support.simulated_cluster import Cluster

FIXTURES = {"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}
NO_BUCKET = r"there is no (bucket|container) '[a-z]+-[0-9a-f]{12}': 404 .*Make the (bucket|container), or correct"
NO_METADATA = r"the metadata file that the catalog names for table headrace\.clicks is not there: s3://"
LOST = r"^the table at \S+ is not there any more: run 1, begun at .*Restore the table with its log, or correct"


class Lake:
    """A table in a bucket, whose checkpoints lie on the local disk."""

    def __init__(self, root: Path, form: str, server: Any) -> None:
        self.root = root
        self.form = form
        self.server = server
        self.home = server.bucket()
        self.location = f"{self.home}/lake/clicks"
        # Nobody is asked for records to tell their wire format.
        self.cluster = Cluster((0, 0), id_="uuid-1")
        self.driver = self.open()

    def open(self) -> Driver:
        return Driver(self.root, self.form, table={"location": self.location})

    def start(self) -> None:
        """Start the pipeline as a driver does, up to where Spark would begin."""
        run = PipelineRun("clicks", self.driver.config, schemas=self.driver.schemas, cluster=self.cluster)  # type: ignore[arg-type]
        run.check()
        run.start(new_run=False)
        self.driver.epoch = run.epoch
        self.driver.specs = 0

    def carry(self, start: int, end: int) -> None:
        self.driver.carry([log({offset: event(offset) for offset in range(start, end)})], {0: end})

    def objects(self) -> dict[str, bytes]:
        store = store_at(self.home)
        contents = {}
        for key in self.server.keys(self.home):
            stored = store.read(key)
            assert stored is not None
            contents[key] = stored.content
        return contents


@pytest.fixture(
    params=[("s3", "delta"), ("s3", "parquet"), ("s3", "iceberg"), ("gs", "delta"), ("az", "delta")], ids="-".join
)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    kind, form = request.param
    return Lake(tmp_path, form, request.getfixturevalue(FIXTURES[kind]))


@pytest.mark.slow
def test_a_bucket_that_is_deleted_under_a_writer_ends_it_and_is_no_empty_table(lake: Lake, tmp_path: Path) -> None:
    lake.start()
    lake.cluster.held = [(0, 40)]
    lake.carry(0, 20)
    before = lake.objects()
    lake.server.remove_bucket(lake.home)
    with pytest.raises(CommitFailed, match=NO_BUCKET):
        lake.carry(20, 40)
    with pytest.raises(ConfigError, match=NO_BUCKET):
        lake.start()

    lake.server.bucket(lake.home.partition("://")[2])
    in_catalog = lake.form == "iceberg"
    with pytest.raises(CommitFailed, match=NO_METADATA if in_catalog else "there is no log of a table"):
        lake.carry(20, 40)
    with pytest.raises(ConfigError, match=NO_METADATA if in_catalog else LOST):
        lake.start()
    assert lake.server.keys(lake.home) == [], "nothing was begun"
    facts = collect_pipeline_facts(lake.driver.config, "clicks", BrokerUnreachable("none")).facts
    halting = [check.message for check in preflight(facts) if check.halt]
    # Without its metadata a table in a catalog is no missing one: it does not answer.
    assert in_catalog or [bool(re.search(LOST, message)) for message in halting] == [True], halting

    home = store_at(lake.home)
    for key, content in before.items():
        home.put(key, content)
    lake.driver = lake.open()
    lake.cluster.held = [(0, 20)]
    lake.start()
    lake.carry(20, 40)
    lake.server.download(f"{lake.home}/lake", tmp_path / "copy")
    oracle.check(tmp_path / "copy" / "clicks", "clicks", {("clicks", 0): 40})


def start_on_disk(root: Path, folder: str) -> PipelineRun:
    settings = pipeline_config(root, "delta", table={"location": str(root / folder / "clicks")})
    cluster = Cluster((0, 0), id_="uuid-1")
    run = PipelineRun("clicks", settings, schemas=Schemas({1: EVENT}, [1]), cluster=cluster)  # type: ignore[arg-type]
    run.check()
    run.start(new_run=False)
    return run


def test_a_table_that_is_lost_begins_anew_where_its_checkpoints_are_moved_away(tmp_path: Path) -> None:
    settings = start_on_disk(tmp_path, "lake").parts.config
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(ConfigError, match=f"{LOST}.* move {tmp_path}/checkpoints/clicks away"):
        start_on_disk(tmp_path, "lake")
    assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file()] == []
    findings = host_checks.tables("clicks", settings, host_checks.ProbedLocations(settings.stores))
    failed = [finding.message for finding in findings if finding.status == "failed"]
    assert [bool(re.search(LOST.partition(".*")[0], message)) for message in failed] == [True], failed
    (tmp_path / "checkpoints" / "clicks").rename(tmp_path / "moved")
    assert start_on_disk(tmp_path, "lake").epoch == 1


def test_an_empty_table_that_no_start_has_used_is_no_found_one(tmp_path: Path) -> None:
    start_on_disk(tmp_path, "lake")
    shutil.rmtree(tmp_path / "lake")
    Driver(tmp_path, table={"location": str(tmp_path / "lake" / "clicks")})
    with pytest.raises(ConfigError, match=LOST):
        start_on_disk(tmp_path, "lake")


def test_a_table_at_another_location_is_no_lost_one(tmp_path: Path) -> None:
    assert start_on_disk(tmp_path, "first").epoch == 1
    assert start_on_disk(tmp_path, "second").epoch == 1
    assert start_on_disk(tmp_path, "second").epoch == 2
