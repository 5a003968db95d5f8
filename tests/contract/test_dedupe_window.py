"""A repeat that comes hours later goes, in every format, and the account knows it."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.cli.maintain.compact import open_compaction
from headrace.writer.driver.sealing.steps import beside_seals, seal_due
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.compaction.late_rows import MARK, LateRows, compactor_of
from headrace.writer.maintenance.rewrite import Job
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.operations.seals import Closing
from tests.support.dedupe_window import BASE, MUCH_LATER, WINDOW, bucket
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, value


def made(root: Path, form: str, **settings: Any) -> Driver:
    driver = Driver(root, form, **{"compact": {"at_seal": True, "dedupe": WINDOW}, **settings})
    driver.start()
    return driver


def carry(driver: Driver, at: int, rows: Sequence[tuple[int, int]], came: int = 0, note: str | None = None) -> None:
    """Commit rows of these ids and hours; `came`: minutes of Kafka's time."""
    values = {
        at + n: value(1, EVENT, {"id": row_id, "at": BASE + timedelta(hours=hour), "note": note})
        for n, (row_id, hour) in enumerate(rows)
    }
    driver.carry([log(values, kafka_time=NOW + timedelta(minutes=came))], {0: at + len(rows)})


def close(driver: Driver, hours: int) -> None:
    closing = Closing(uuid4().hex, BASE + timedelta(hours=hours), {"reason": "watermark"})
    driver.table.append(closing, driver.table.snapshot())


def sealed(driver: Driver, *, late: bool = False) -> Sealer:
    """Seal what is closed, as the driver does; `late`: and look at late rows."""
    sealer = Sealer("clicks", driver.config)
    steps = beside_seals(sealer, driver.config, here)
    if late:
        steps["late rows"](sealer, MUCH_LATER)
    seal_due(sealer, MUCH_LATER)
    return sealer


def offsets(driver: Driver, place: str | None = None) -> list[int]:
    table = driver.side(place) if place else driver.table
    return sorted(table.rows().to_table(columns=["_offset"]).column("_offset").to_pylist())


def check(driver: Driver, *, rows: int = 0, late: int = 0) -> None:
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert (report.rows_taken.get("dedupe", 0), report.late_taken.get("dedupe", 0)) == (rows, late)


def test_a_repeat_of_an_earlier_bucket_goes_when_its_own_is_sealed(tmp_path: Path, form: str) -> None:
    driver = made(tmp_path, form)
    carry(driver, 0, [(1, 0), (2, 0), (3, 1)])
    close(driver, 2)
    first = sealed(driver)
    before = driver.table.bucket_files(driver.table.snapshot(), bucket(0))
    carry(driver, 3, [(1, 2), (3, 4), (4, 4)])
    close(driver, 5)
    sealer = sealed(driver)
    assert offsets(driver) == [0, 1, 2, 5]
    assert driver.table.bucket_files(driver.table.snapshot(), bucket(0)) == before
    manifests = {
        manifest.bucket: (manifest.version, manifest.rows, manifest.deduped) for manifest in sealer.manifests.all()
    }
    assert manifests == {bucket(0): (1, 2, 0), bucket(1): (1, 1, 0), bucket(2): (1, 0, 1), bucket(4): (1, 1, 1)}
    assert len(first.sealed) == 2
    check(driver, rows=2)


def test_of_a_chain_that_is_longer_than_the_window_each_row_goes_by_one_that_stays(tmp_path: Path) -> None:
    """9 and 6 hours, and 3: the third is a repeat of the second, which goes, and not of the first."""
    driver = made(tmp_path, "delta")
    carry(driver, 0, [(1, 0), (1, 3), (1, 7)])
    close(driver, 8)
    sealed(driver)
    assert offsets(driver) == [0, 2]
    check(driver, rows=1)


def test_a_late_repeat_goes_and_the_sealed_bucket_after_it_stays_as_it_is(tmp_path: Path, form: str) -> None:
    driver = made(tmp_path, form)
    carry(driver, 0, [(1, 0), (2, 2)])
    close(driver, 3)
    sealed(driver)
    carry(driver, 2, [(2, 0), (3, 0)], came=60)
    sealer = sealed(driver)
    assert offsets(driver) == [0, 1, 3]
    manifests = {
        manifest.bucket: (manifest.version, manifest.rows, manifest.late, manifest.deduped)
        for manifest in sealer.manifests.all()
    }
    assert manifests == {bucket(0): (2, 2, 2, 1), bucket(2): (1, 1, 0, 0)}
    check(driver, rows=1)


def test_a_record_that_kafka_had_first_and_comes_later_takes_its_repeat_out_of_a_sealed_bucket(
    tmp_path: Path, form: str
) -> None:
    """As a backfill brings it: the bucket of the repeat is sealed again, with a row less."""
    driver = made(tmp_path, form)
    carry(driver, 0, [(1, 0), (2, 2), (3, 2)], came=60)
    close(driver, 3)
    sealed(driver)
    carry(driver, 3, [(2, 0)], came=0)
    sealed(driver)
    sealer = sealed(driver)
    assert offsets(driver) == [0, 2, 3]
    manifests = {
        manifest.bucket: (manifest.version, manifest.rows, manifest.deduped) for manifest in sealer.manifests.all()
    }
    assert manifests == {bucket(0): (2, 2, 0), bucket(2): (2, 1, 1)}
    check(driver, rows=1)


def test_rows_without_a_key_stay(tmp_path: Path) -> None:
    driver = made(tmp_path, "delta", compact={"dedupe": {**WINDOW, "key": ["note"]}})
    carry(driver, 0, [(1, 0), (1, 1)])
    carry(driver, 2, [(1, 0), (1, 1)], note="same")
    close(driver, 2)
    sealed(driver)
    assert offsets(driver) == [0, 1, 2]


def test_a_late_row_goes_by_a_row_of_the_table_whichever_came_first(tmp_path: Path, form: str) -> None:
    driver = made(tmp_path, form, seal={"late": "late_table"})
    late_table = driver.settings.late_table
    assert late_table is not None
    carry(driver, 0, [(1, 2), (2, 4)])
    close(driver, 5)
    sealed(driver, late=True)
    carry(driver, 2, [(1, 0), (2, 0), (3, 4), (3, 3), (4, 4)], came=5)  # the second lies outside the window
    sealed(driver, late=True)
    assert (offsets(driver), offsets(driver, late_table)) == ([0, 1], [3, 4, 6])
    check(driver, late=2)
    assert (Path(late_table) / MARK).exists()
    carry(driver, 7, [(4, 6)], came=6)
    close(driver, 7)
    sealed(driver)
    assert (offsets(driver), offsets(driver, late_table)) == ([0, 1, 7], [3, 4])
    check(driver, late=3)
    version = driver.side(late_table).snapshot().version
    sealed(driver, late=True)
    assert driver.side(late_table).snapshot().version == version, "what was judged is not written again"


def test_between_two_looks_at_late_rows_is_a_rest_by_the_monotonic_clock(tmp_path: Path) -> None:
    driver = made(tmp_path, "delta", seal={"late": "late_table"})
    late_table = driver.settings.late_table
    assert late_table is not None
    carry(driver, 0, [(1, 2), (2, 4)])
    close(driver, 5)
    sealed(driver)
    now_s = 0.0
    compactor, _ = compactor_of(Sealer("clicks", driver.config), driver.config)
    late_rows = LateRows(compactor, driver.side(late_table), timedelta(minutes=10), seconds=lambda: now_s)
    marks = list[str]()
    for first, seconds in ((2, 0.0), (3, 599.0), (4, 600.0)):
        carry(driver, first, [(first, 0)], came=5)
        now_s = seconds
        late_rows.dedupe(here)
        marks.append((Path(late_table) / MARK).read_text())
    assert marks[0] == marks[1] != marks[2]


def test_a_row_whose_first_was_deleted_meanwhile_stays(tmp_path: Path, form: str) -> None:
    driver = made(tmp_path, form)
    carry(driver, 0, [(1, 0)])
    carry(driver, 1, [(1, 2), (2, 2)])
    close(driver, 3)
    sealer = Sealer("clicks", driver.config)
    deleted: list[int] = []

    def run(jobs: Sequence[Job]) -> Any:
        for job, result in zip(jobs, list(here(jobs)), strict=True):
            if job.bucket == bucket(2) and not deleted:
                snapshot = driver.table.snapshot()
                files = driver.table.bucket_files(snapshot, bucket(0))
                deleted.append(driver.table.append(Rewrite("d", files, (), RemovedRows("delete", 1)), snapshot))
            yield result

    compactor, _ = compactor_of(sealer, driver.config)
    compactor.before_seal(bucket(2), run)
    assert deleted
    assert offsets(driver) == [1, 2]
    check(driver)


def test_buckets_from_before_the_window_are_deduped_by_the_command(tmp_path: Path, form: str) -> None:
    old = made(tmp_path, form, compact={"at_seal": True, "dedupe": {"key": ["id"]}})
    carry(old, 0, [(1, 0), (1, 2), (2, 2), (2, 3)])
    close(old, 4)
    sealed(old)
    assert offsets(old) == [0, 1, 2, 3]
    driver = made(tmp_path, form)
    carry(driver, 4, [(5, 5)])
    close(driver, 6)
    sealed(driver)
    assert offsets(driver) == [0, 1, 2, 3, 4], "a seal looks at the rows of its bucket"
    assert sum(result.taken for result in open_compaction("clicks", driver.config, None).carry_out()) == 2
    assert offsets(driver) == [0, 2, 4]
    manifests = {manifest.bucket: manifest.version for manifest in sealed(driver).manifests.all()}
    assert manifests == {bucket(0): 1, bucket(2): 2, bucket(3): 2, bucket(5): 1}
    check(driver, rows=2)


def test_without_a_window_no_other_bucket_is_read(tmp_path: Path) -> None:
    driver = made(tmp_path, "delta", compact={"dedupe": {"key": ["id"]}})
    carry(driver, 0, [(1, 0), (1, 0), (1, 2)])
    close(driver, 3)
    jobs: list[Job] = []

    def run(some: Sequence[Job]) -> Any:
        jobs.extend(some)
        return here(some)

    sealer = Sealer("clicks", driver.config)
    assert list(beside_seals(sealer, driver.config, run)) == ["merge"]
    seal_due(sealer, MUCH_LATER)
    assert {job.window for job in jobs} == {None}
    assert offsets(driver) == [0, 2]


def test_files_that_hold_none_of_the_keys_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.writer.maintenance import rewrite as module

    driver = made(tmp_path, "delta", compact={"dedupe": {**WINDOW, "window": "9 h"}})
    for n, (row_id, hour) in enumerate([(1, 0), (50, 1), (90, 2), (60, 3), (55, 4)]):
        carry(driver, n, [(row_id, hour)], came=n)
    carry(driver, 5, [(40, 3)], came=3)
    close(driver, 4)
    read: list[str] = []
    batches_of = module.batches_of
    monkeypatch.setattr(module, "batches_of", lambda store, path, c: read.append(path) or batches_of(store, path, c))
    compactor, _ = compactor_of(Sealer("clicks", driver.config), driver.config)
    compactor.before_seal(bucket(3), here)
    hours = {path.partition("/")[0][-2:] for path in read}
    assert hours == {bucket(1)[0][-2:], bucket(3)[0][-2:]}, "by the key, and by the time at which it came"


def test_a_compactor_without_buckets_to_compare_dedupes_within_one(tmp_path: Path) -> None:
    driver = made(tmp_path, "delta")
    carry(driver, 0, [(1, 0), (1, 1), (1, 1)])
    close(driver, 2)
    Compactor("clicks", driver.settings, driver.table, None).before_seal(bucket(1), here)
    assert offsets(driver) == [0, 1]
