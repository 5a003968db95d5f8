"""Buckets are compacted while others write: every row stays, once, and the account adds up."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from typer.testing import CliRunner

from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.cli.maintain.compact import open_compaction
from headrace.writer.driver.sealing.seal_request import SealRequest, seal_buckets
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.rewrite import Job
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support import hive_readers, oracle
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, value
from tests.support.small_files import (
    BUCKET,
    HOUR,
    carry,
    close,
    compact_bucket,
    compactor,
    files,
    fill_table,
    offsets,
    row,
)


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    return fill_table(tmp_path, form)


def test_small_files_become_one_and_every_row_stays(driver: Driver) -> None:
    (result,) = compact_bucket(driver)
    assert (result.removed, result.files, result.rows, result.taken) == (6, 1, 60, 0)
    assert (files(driver), offsets(driver)) == (1, list(range(60)))
    assert compact_bucket(driver) == []
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.rows_removed == 0
    (file,) = driver.table.bucket_files(driver.table.snapshot(), BUCKET)
    assert (file.event_time_min, file.event_time_max) == (HOUR, HOUR + timedelta(seconds=59))


def test_the_writer_goes_on_after_it(driver: Driver) -> None:
    compact_bucket(driver)
    carry(driver, 6)
    assert (files(driver), offsets(driver)) == (2, list(range(70)))
    compact_bucket(driver)
    assert (files(driver), offsets(driver)) == (1, list(range(70)))


def test_readers_of_the_files_see_what_readers_of_the_log_see(driver: Driver, form: str) -> None:
    compact_bucket(driver)
    lake = Path(driver.lake)
    oracle.check_exactly(lake, {("clicks", 1, 0): range(60)})
    if form == "parquet":
        assert hive_readers.query(driver.lake, "count(*)") == [(60,)]


def test_a_repeated_key_is_taken_out_once_the_bucket_is_closed_and_the_account_knows(tmp_path: Path, form: str) -> None:
    driver = fill_table(tmp_path, form, compact={"at_seal": True, "dedupe": {"key": ["id"]}})
    assert compact_bucket(driver)[0].taken == 0
    close(driver)
    (result,) = compact_bucket(driver)
    ids = [(10 * n + i) - 10 * n - i + 8 * n + i for n in range(6) for i in range(10)]
    first = {row_id: index for index, row_id in reversed(list(enumerate(ids)))}
    assert (result.rows, result.taken) == (60, 60 - len(first))
    assert offsets(driver) == sorted(first.values())
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert (report.rows_removed, report.reconciliation.removals[0].operation) == (result.taken, "dedupe")
    assert compact_bucket(driver) == []


def test_the_ledger_keeps_what_dedupe_took(tmp_path: Path, form: str) -> None:
    driver = fill_table(
        tmp_path, form, interval=1, compact={"at_seal": True, "dedupe": {"key": ["id"], "keep": "last"}}
    )
    close(driver)
    (result,) = compact_bucket(driver)
    driver.table.tidy()
    carry(driver, 6)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.rows_removed == result.taken > 0


def test_a_row_lost_in_a_rewritten_file_is_still_found(driver: Driver) -> None:
    compact_bucket(driver)
    (file,) = driver.table.bucket_files(driver.table.snapshot(), BUCKET)
    path = Path(driver.lake) / file.path
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert not report.adds_up
    assert "1 rows are not there" in " ".join(problem.description for problem in report.problems)


def test_rows_are_put_in_order_when_the_bucket_is_closed(tmp_path: Path, form: str) -> None:
    driver = fill_table(tmp_path, form, compact={"at_seal": True, "sort_by": ["id"]})
    close(driver)
    compact_bucket(driver)
    (file,) = driver.table.bucket_files(driver.table.snapshot(), BUCKET)
    ids = pq.read_table(Path(driver.lake) / file.path, partitioning=None).column("id").to_pylist()
    assert ids == sorted(ids)
    assert compact_bucket(driver) == []


def test_a_bucket_is_rewritten_before_it_is_sealed(tmp_path: Path, form: str) -> None:
    driver = fill_table(tmp_path, form, compact={"at_seal": True, "dedupe": {"key": ["id"]}})
    seal_buckets(
        "clicks", driver.config, SealRequest(None, HOUR + timedelta(hours=1), with_gap=False, dry_run=False), NOW
    )
    manifest = Sealer("clicks", driver.config).manifests.newest(BUCKET)
    assert manifest is not None
    assert (manifest.files, manifest.rows, manifest.deduped) == (1, len(offsets(driver)), 60 - len(offsets(driver)))
    assert manifest.deduped > 0
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_files_of_a_sealed_bucket_are_near_the_target_size(tmp_path: Path, form: str) -> None:
    """Many small files, and too much for one: none that the seal leaves is beyond 30 % of the target."""
    target = 256 * 2**10
    driver = Driver(tmp_path, form, compact={"at_seal": True}, roll={"target_file_size": "256 KiB"})
    driver.start()
    rng = random.Random(1)
    for n in range(12):
        offsets_ = range(20 * n, 20 * n + 20)
        noise = {offset: value(1, EVENT, row(offset, 0) | {"note": rng.randbytes(3500).hex()}) for offset in offsets_}
        driver.carry([log(noise)], {0: 20 * n + 20})
    before = [file.bytes for file in driver.table.bucket_files(driver.table.snapshot(), BUCKET)]
    assert all(size < 0.7 * target for size in before), before
    seal_buckets(
        "clicks", driver.config, SealRequest(None, HOUR + timedelta(hours=1), with_gap=False, dry_run=False), NOW
    )
    manifest = Sealer("clicks", driver.config).manifests.newest(BUCKET)
    assert manifest is not None
    sizes = [file.bytes for file in driver.table.bucket_files(driver.table.snapshot(), BUCKET)]
    assert (manifest.files, manifest.rows, manifest.bytes) == (len(sizes), 240, sum(sizes))
    assert 1 < len(sizes) < len(before)
    assert all(0.7 * target <= size <= 1.3 * target for size in sizes), sizes
    assert offsets(driver) == list(range(240))


def test_of_two_compactors_at_once_one_stands(driver: Driver) -> None:
    """The second has read the same files when the first commits."""
    snapshot = driver.table.snapshot()
    compaction = compactor(driver)
    pieces = compaction.plan(snapshot, [BUCKET], open_too=True)[BUCKET]
    first, second = (compaction.carry_out(snapshot, pieces, held) for held in _together(2))
    (result,), (late,) = list(first), list(second)
    assert (result.version, late.version) == (snapshot.version + 1, None)
    assert (files(driver), offsets(driver)) == (1, list(range(60)))
    stray = {p.name for p in Path(driver.lake).rglob("rewrite-*")} - {
        Path(f.path).name for f in driver.table.bucket_files(driver.table.snapshot())
    }
    assert stray == set()  # what the second had staged is gone


def _together(count: int) -> list[Any]:
    """Ways to run jobs whose results all exist before the first is committed."""
    rows_left: list[list[Any]] = []

    def run(jobs: Sequence[Job]) -> Any:
        if not rows_left:
            rows_left.extend(list(here(jobs)) for _ in range(count))
        yield from rows_left.pop()

    return [run] * count


def test_threads_that_compact_while_the_writer_commits_keep_every_row(tmp_path: Path, form: str) -> None:
    driver = fill_table(tmp_path, form, commits=2)
    problems: list[BaseException] = []
    done = threading.Event()

    def rewriting() -> None:
        other = Driver(tmp_path, form)
        try:
            while not done.is_set():
                compact_bucket(other)
        except BaseException as error:  # noqa: BLE001 - told below
            problems.append(error)

    threads = [threading.Thread(target=rewriting) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(2, 20):
            carry(driver, n)
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert problems == []
    compact_bucket(driver)
    assert (files(driver), offsets(driver)) == (1, list(range(200)))
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


@pytest.mark.parametrize("what", ["delete", "optimize"])
def test_another_client_that_came_first_is_looked_at_again(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    driver = fill_table(tmp_path, "delta")
    snapshot = driver.table.snapshot()
    compaction = compactor(driver)
    pieces = compaction.plan(snapshot, [BUCKET], open_too=True)[BUCKET]

    def run(jobs: Sequence[Job]) -> Any:
        for outcome in list(here(jobs)):
            theirs = DeltaTable(driver.lake)
            _ = theirs.delete("id < 8") if what == "delete" else theirs.optimize.compact()
            yield outcome

    (result,) = compaction.carry_out(snapshot, pieces, run)
    assert result.version is None
    (conflict,) = [line for line in caplog.messages if "rewrite_conflict" in line]
    assert f"bucket=hour={BUCKET[0]}" in conflict
    left = list(range(8, 60)) if what == "delete" else list(range(60))
    assert offsets(driver) == left
    compact_bucket(driver)
    assert (files(driver), offsets(driver)) == (1, left)
    outcome = audit(driver.config, "clicks", since=None, deep=True)
    assert outcome.adds_up, outcome.problems


def test_another_client_that_came_second_is_refused(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    theirs = DeltaTable(driver.lake)
    compact_bucket(driver)
    with pytest.raises(CommitFailedError):
        theirs.delete("id < 8")
    assert offsets(driver) == list(range(60))


def test_a_table_that_takes_no_entry_gets_no_files_of_a_compaction(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    DeltaTable(driver.lake).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    paths = set(Path(driver.lake).rglob("*.parquet"))
    with pytest.raises(ForeignChange, match="setTransactionRetentionDuration"):
        compact_bucket(driver)
    assert set(Path(driver.lake).rglob("*.parquet")) == paths


def test_columns_that_grow_meanwhile_do_no_harm(driver: Driver) -> None:
    import pyarrow as pa

    snapshot = driver.table.snapshot()
    compaction = compactor(driver)
    pieces = compaction.plan(snapshot, [BUCKET], open_too=True)[BUCKET]

    def run(jobs: Sequence[Job]) -> Any:
        for outcome in list(here(jobs)):
            driver.table.grow([pa.field("extra", pa.int64())], driver.epoch)
            yield outcome

    (result,) = compaction.carry_out(snapshot, pieces, run)
    assert result.version == snapshot.version + 2
    assert driver.table.rows().to_table().column("extra").null_count == 60


def test_the_log_names_a_bucket_by_its_folder(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    close(driver)
    with caplog.at_level("INFO", "headrace"):
        compactor(driver).before_seal(BUCKET, here)
    (line,) = [message for message in caplog.messages if "bucket_rewritten" in message]
    assert f"bucket=hour={BUCKET[0]} " in line


def test_a_file_that_is_gone_is_named(driver: Driver) -> None:
    (Path(driver.lake) / driver.table.bucket_files(driver.table.snapshot(), BUCKET)[0].path).unlink()
    with pytest.raises(Exception, match=r"that the table at .* names is gone"):
        compact_bucket(driver)


def written(driver: Driver, root: Path) -> Path:
    path = root / "headrace.yaml"
    raw = json.loads(driver.config.model_dump_json())
    raw["pipelines"]["clicks"]["bucket"] = {"type": "event_time", "width": "1 h"}
    raw["registry"] = {"url": "http://127.0.0.1:1"}
    path.write_text(yaml.safe_dump(raw))
    return path


POINTS = ["in_rewrite:1", "before_commit:1", "after_commit:1"]
KILLED = [
    *product(["delta", "parquet", "iceberg"], POINTS),
    *product(["parquet"], ["publish:1", "after_publish:1"]),
    *product(["iceberg"], ["before_catalog:1", "after_catalog:1"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "point"), KILLED)
def test_a_compaction_killed_at_any_moment_keeps_every_row(
    driver: Driver, form: str, tmp_path: Path, point: str
) -> None:
    command = [sys.executable, "-m", "headrace.writer.cli", "compact", str(written(driver, tmp_path)), "--yes"]
    died = subprocess.run(command, env={**os.environ, "HEADRACE_FAULT": point}, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died
    again = Driver(tmp_path, form)
    if form != "parquet":
        assert offsets(again) == list(range(60))
    assert len(set(offsets(again))) == len(offsets(again))
    list(open_compaction("clicks", again.config, None).carry_out())
    assert (offsets(again), files(again)) == (list(range(60)), 1)
    report = audit(again.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_the_command_shows_and_does_it(driver: Driver, tmp_path: Path) -> None:
    (hour,) = BUCKET
    path = str(written(driver, tmp_path))

    def run(*flags: str) -> str:
        result = CliRunner().invoke(app, ["compact", path, *flags])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "would look at 6 files of 1 bucket" in run()
    assert files(driver) == 6
    (bucket,) = json.loads(run("--bucket", f"hour={hour}", "--json"))["buckets"]
    assert (bucket["bucket"], len(bucket["files"])) == ([hour], 6)
    (bucket,) = json.loads(run("--bucket", hour, "--json", "--yes"))["buckets"]
    assert (bucket["bucket"], bucket["removed"], bucket["files"], bucket["rows"]) == ([hour], 6, 1, 60)
    assert "the files are as they should be" in run("--yes")


def test_a_bucket_that_is_not_there_is_named(driver: Driver, tmp_path: Path) -> None:
    run = lambda *args: CliRunner().invoke(app, ["compact", str(written(driver, tmp_path)), *args])  # noqa: E731
    assert "no files of bucket hour=2020-01-01T00" in str(run("--bucket", "2020-01-01T00").exception)
    assert "'a/b' names no bucket of this table. They are named hour=" in str(run("--bucket", "a/b").exception)
