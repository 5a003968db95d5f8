"""What a backfill brings, and how: archives of each kind, exact whatever dies, whoever writes beside it."""

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.recovery.backfill.archive_files import files, partitions
from headrace.recovery.backfill.source import SourceFailed
from headrace.writer.audit.audit import audit
from headrace.writer.core.errors import ConfigError
from headrace.writer.storage.locations import store_at
from headrace.writer.table.backfill_locks import BackfillLocked, BackfillLocks
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.operations.gaps import Fill, Loss
from tests.support import oracle
from tests.support.backfill_gaps import (
    Silent,
    check,
    event_time_of,
    fill_from_archives,
    only_gap,
    skip_offsets,
    values,
    write_archive,
    write_decoded_archive,
)
from tests.support.gap_table import driver, headrace
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, event

__all__ = ["driver"]


def test_an_archive_with_offsets_fills_it_exactly_and_the_audit_is_clean(driver, tmp_path):
    write_archive(tmp_path, values(60, 120), folder="day=21")
    write_archive(tmp_path, values(0, 90), folder="day=20")  # each offset is taken once
    archive = write_archive(tmp_path, values(0, 80), partition=1)
    (outcome,) = fill_from_archives(driver, archive, rows_max=25)
    assert (outcome.gap_record.state, outcome.absent.count) == ("done", 0)
    assert len(outcome.chunks) >= 6
    assert outcome.gap_record.rows == 140 - 14
    check(driver, 220 - 22, 22)
    assert driver.table.snapshot().gaps == (0, 0)
    assert fill_from_archives(driver, archive) == [], "a second time nothing is open"
    check(driver, 220 - 22, 22)
    shown = json.loads(headrace(driver, tmp_path, "audit", "--deep", "--json"))["pipelines"]["clicks"]
    assert (shown["gaps"], shown["offsets_in_gaps"]) == ({"open": 0, "done": 1, "lost": 0, "rewound": 0}, 0)


def test_decoded_rows_with_offsets_are_taken_as_well(driver, tmp_path):
    for partition, end in ((0, 120), (1, 60)):
        archive = write_decoded_archive(
            tmp_path, range(20, end), folder=f"p={partition}",
            columns=lambda n, p=partition: {"src": "clicks", "p": p, "o": n},
        )  # fmt: skip
    fill_from_archives(driver, archive, columns="topic=src,partition=p,offset=o")
    assert only_gap(driver).state == "done"
    check(driver, 72 + 140, 8)
    assert oracle.rows(Path(driver.lake), "note", "WHERE _partition = 0 AND _offset = 33") == [("note 33",)]


def test_an_archive_of_another_headrace_is_an_archive(driver, tmp_path):
    other = Driver(tmp_path / "other")
    other.start(2)
    other.carry([log(values(0, 140)), log(values(0, 80), 1)], {0: 140, 1: 80})
    (outcome,) = fill_from_archives(driver, Path(other.lake))
    assert [r.count for r in outcome.absent.ranges()] == [1] * 14, "what is no row there is open here"
    check(driver, 72 + 126, 8)


def test_avro_files_are_an_archive(driver, tmp_path):
    from fastavro import parse_schema, writer

    fields = [("p", "int"), ("o", "long"), ("id", "long"), ("at", EVENT["fields"][1]["type"])]
    schema = parse_schema({
        "type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields],
    })  # fmt: skip
    (tmp_path / "avro").mkdir()
    with (tmp_path / "avro" / "a.avro").open("wb") as out:
        writer(out, schema, [{"p": 0, "o": n, "id": n, "at": event_time_of(n)} for n in range(20, 120)])
    fill_from_archives(driver, tmp_path / "avro", columns="partition=p,offset=o")
    assert [(r.part.partition, r.start, r.end) for r in only_gap(driver).unfilled_offsets.ranges()] == [(1, 20, 60)]
    check(driver, 72 + 100, 8)


def test_without_offsets_rows_come_by_event_time_each_once_and_the_gap_record_says_so(tmp_path, form):
    driver = Driver(tmp_path, form)
    driver.start()

    def risen(start: int, end: int) -> dict[int, bytes | None]:
        return {n: event(n, event_time=NOW - timedelta(minutes=300 - n)) for n in range(start, end)}

    driver.carry([log(risen(0, 60))], {0: 60})
    skip_offsets(driver, 200)
    driver.start()
    driver.carry([log(risen(200, 240))], {0: 240})
    for hour in range(5):  # the archive holds what the table has, too, and some of it twice
        ids = range(60 * hour, 60 * hour + 60)
        when = {n: NOW - timedelta(minutes=300 - n) for n in ids}
        for _ in range(2):
            archive = write_decoded_archive(
                tmp_path, ids, folder=f"hour={hour}", columns=lambda n, at=when: {"at": at[n]}
            )
    (outcome,) = fill_from_archives(driver, archive, by_time="id", rows_max=50)
    gap_record = outcome.gap_record
    assert (gap_record.state, gap_record.unplaced) == ("done", 200)
    assert sum(c.rows > 0 for c in outcome.chunks) >= 4, "results are visible after each"
    assert oracle.rows(Path(driver.lake), "count(*), count(DISTINCT id)") == [(300, 300)]
    audited = audit(driver.config, "clicks", since=None, deep=True)
    assert audited.adds_up, audited.problems
    assert audited.reconciliation.unplaced == gap_record.unplaced
    assert "by event time: about right" in headrace(driver, tmp_path, "audit", "--deep")
    assert fill_from_archives(driver, archive, by_time="id") == []


def test_an_archive_whose_column_is_another_type_is_a_sentence_and_nothing_is_committed(driver, tmp_path):
    archive = write_decoded_archive(
        tmp_path, range(20, 30), folder="a", columns=lambda n: {"id": f"no {n}", "p": 0, "o": n}
    )
    with pytest.raises(SourceFailed, match="column id is string in the archive"):
        fill_from_archives(driver, archive, columns="partition=p,offset=o")
    check(driver, 72, 8)
    with pytest.raises(ConfigError, match="no offsets that can be recognised"):
        fill_from_archives(driver, archive)


KILLED = """
import sys
from pathlib import Path
from tests.support.local_driver import Driver
from tests.support.backfill_gaps import fill_from_archives
fill_from_archives(Driver(Path(sys.argv[1]), sys.argv[2]), Path(sys.argv[1]) / "archive", rows_max=30)
"""


POINTS = ["before_chunk", "after_chunk", "before_fill", "after_fill", "before_chunk_redo"]


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_step_of_a_chunk_and_run_again_it_loses_and_doubles_nothing(driver, form, tmp_path, point, nth):
    write_archive(tmp_path, values(0, 120))
    archive = write_archive(tmp_path, values(0, 80), partition=1)
    root = Path(__file__).parents[2]
    env = {**os.environ, "HEADRACE_FAULT": f"{point}:{nth}", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), form], env=env, cwd=root, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    oracle.check_rows(Path(driver.lake), "clicks")
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    driver.carry([log(values(0, 160))], {0: 160})
    fill_from_archives(driver, archive)
    assert only_gap(driver).state == "done"
    check(driver, 240 - 24, 24)


def test_two_backfills_at_once_and_the_live_writer_settle_each_offset_once(driver, tmp_path):
    write_archive(tmp_path, values(0, 120))
    archive = write_archive(tmp_path, values(0, 80), partition=1)
    snapshot, gap_record = driver.table.snapshot(), only_gap(driver)
    stale = Fill("late", gap_record.id, snapshot.gap_changes(gap_record.id), 0, 140, done=False, facts={"source": "x"})
    errors: list[BaseException] = []

    def one() -> None:
        try:
            fill_from_archives(driver, archive, rows_max=20, by="same")
        except (Overtaken, BackfillLocked):
            pass  # the other one has it
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for end in range(150, 200, 10):
        driver.carry([log(values(0, end))], {0: end})
    for thread in threads:
        thread.join()
    assert not errors
    fill_from_archives(driver, archive)
    assert only_gap(driver).state == "done"
    check(driver, 270 - 27, 27)
    with pytest.raises(Overtaken):
        driver.table.append(stale, snapshot)
    with pytest.raises(Overtaken):
        driver.table.append(Loss("late", gap_record.id, 0, 140, {"by": "x", "reason": "x"}), snapshot)


def test_a_claim_keeps_others_away_until_its_time_is_over(driver):
    claims, gap = BackfillLocks(driver.table.store), only_gap(driver).id
    mine = claims.acquire(gap, "ann", NOW)
    with pytest.raises(BackfillLocked, match="is being filled by ann"):
        claims.acquire(gap, "bob", NOW + timedelta(minutes=1))
    mine = claims.renew(gap, mine, NOW + timedelta(minutes=1))
    with pytest.raises(BackfillLocked):
        claims.acquire(gap, "bob", NOW + timedelta(minutes=2, seconds=30))
    assert claims.acquire(gap, "bob", NOW + timedelta(minutes=4)).owner == "bob"
    with pytest.raises(BackfillLocked, match="was taken over by bob"):
        claims.renew(gap, mine, NOW + timedelta(minutes=4))
    assert claims.acquire(gap, "eve", NOW + timedelta(minutes=4), lambda by: by == "bob").owner == "eve"
    claims.release(gap)
    assert claims.newest(gap) is None


def test_a_compaction_beside_a_backfill_moves_rows_and_doubles_none(driver, tmp_path):
    from tests.support.small_files import compact_bucket

    write_archive(tmp_path, values(0, 120))
    archive = write_archive(tmp_path, values(0, 80), partition=1)
    thread = threading.Thread(target=fill_from_archives, args=(driver, archive), kwargs={"rows_max": 10})
    thread.start()
    while thread.is_alive():
        compact_bucket(driver)
    thread.join()
    assert only_gap(driver).state == "done"
    check(driver, 220 - 22, 22)


def test_the_verb_fills_from_an_archive_and_says_how_it_went(driver, tmp_path):
    write_archive(tmp_path, values(0, 120))
    archive = write_archive(tmp_path, values(0, 80), partition=1)
    output = headrace(driver, tmp_path, "backfill", "--from-archive", str(archive), "--dry-run")
    assert "140 of 140 offsets are there" in output
    assert only_gap(driver).state == "open"
    estimate = json.loads(headrace(driver, tmp_path, "backfill", "--from-archive", str(archive), "--json"))
    assert (estimate["pipeline"], estimate["gaps"][0]["offsets"], estimate["gaps"][0]["available"]) == (
        "clicks",
        140,
        140,
    )
    out = [json.loads(line) for line in headrace(
        driver, tmp_path, "backfill", "--from-archive", str(archive), "--chunk-rows", "50", "--yes", "--json"
    ).splitlines() if line.startswith("{")]  # fmt: skip
    assert [line["event"] for line in out][-1] == "ended"
    done = out[-1]["gaps"][0]
    assert (done["state"], done["absent"], done["chunks"]) == (
        "done",
        [],
        sum(line["event"] == "chunk" for line in out),
    )
    check(driver, 220 - 22, 22)
    assert pq.read_schema(next(Path(driver.lake).rglob("*backfill*.parquet"))).field("_offset").type == pa.int64()


def test_options_that_do_not_go_together_are_a_sentence(driver, tmp_path):
    assert "--from-mirror needs --map" in headrace(driver, tmp_path, "backfill", "--from-mirror", "b:1/t", code=2)
    assert "say which with" in headrace(driver, tmp_path, "backfill", "--map", "0:1=2", code=2)
    assert "is no gap of pipeline 'clicks'" in headrace(driver, tmp_path, "gaps", "show", "abcdef", code=2)


def test_records_of_a_gap_that_are_older_than_max_age_are_believed_by_when_the_broker_had_them(tmp_path):
    driver = Driver(tmp_path, event_time={"field": "at", "max_age": "1 d"})
    driver.start()
    skip_offsets(driver, 10)
    archive = write_archive(
        tmp_path, {n: event(n, event_time=NOW - timedelta(hours=5)) for n in range(10)}
    )  # NOW is long ago
    fill_from_archives(driver, archive)
    check(driver, 10, 0)


@pytest.mark.slow
def test_table_and_archive_may_lie_in_a_bucket(tmp_path, on_s3):
    folder = write_archive(tmp_path, values(0, 60))
    archive = f"{on_s3.bucket()}/archive"
    for file in folder.rglob("*.parquet"):
        store_at(archive).put(file.relative_to(folder).as_posix(), file.read_bytes())
    driver = Driver(tmp_path, table={"location": f"{on_s3.bucket()}/clicks"})
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 60)
    fill_from_archives(driver, archive)
    assert only_gap(driver).state == "done"
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.reconciliation.total("rows") == 54
    other = Driver(tmp_path / "other")  # a Delta table in a bucket is an archive, too
    other.start()
    skip_offsets(other, 60)
    fill_from_archives(other, driver.lake)
    assert sum(r.end - r.start for r in only_gap(other).unfilled_offsets.ranges()) == 6


def test_an_account_from_any_version_on_adds_up_around_a_backfill(driver, tmp_path):
    write_archive(tmp_path, values(0, 120))
    fill_from_archives(driver, write_archive(tmp_path, values(0, 80), partition=1), rows_max=40)
    driver.carry([log(values(120, 160))], {0: 160})
    for version in range(driver.table.snapshot().version + 1):
        report = audit(driver.config, "clicks", since=version, deep=True)
        assert report.adds_up, (version, report.problems)


def test_archives_are_read_in_step_oldest_partition_first(tmp_path):
    for folder, days in (("a", (20, 22)), ("b", (21, 20))):
        for day in days:
            write_archive(tmp_path / folder, values(0, 3), folder=f"day={day}")
    places = [str(tmp_path / folder / "archive") for folder in ("a", "b")]
    (tmp_path / "a" / "archive" / "_temporary").mkdir()
    (tmp_path / "a" / "archive" / "_temporary" / "x.parquet").write_bytes(b"half")
    found = [(name, [file.location[-9] for file in each]) for name, each in partitions(files(places, None))]
    assert found == [("day=20", ["a", "b"]), ("day=21", ["b"]), ("day=22", ["a"])]
    with pytest.raises(ConfigError, match="holds no Parquet, Avro or Delta files"):
        files([str(tmp_path / "none")], None)


@pytest.mark.parametrize("form", ["delta"])
def test_a_chunk_that_another_backfill_filled_meanwhile_is_planned_anew(driver, tmp_path):
    write_archive(tmp_path, values(0, 120))
    archive = write_archive(tmp_path, values(0, 80), partition=1)

    class Meanwhile(Silent):
        """After the first chunk, another backfill brings all that is left but the last offsets."""

        def on_chunk(self, gap_record, chunk):  # noqa: ARG002
            if chunk.left == 130:
                (tmp_path / "other").mkdir()
                other = write_archive(tmp_path / "other", values(0, 115))
                fill_from_archives(driver, other)

    (outcome,) = fill_from_archives(driver, archive, rows_max=10, listener=Meanwhile())
    assert outcome.gap_record.state == "done"
    check(driver, 220 - 22, 22)


@pytest.mark.parametrize("form", ["delta"])
def test_a_column_that_the_live_writer_adds_meanwhile_is_followed(driver, tmp_path):
    archive = write_archive(tmp_path, values(0, 120))

    class Meanwhile(Silent):
        def on_chunk(self, gap_record, chunk):  # noqa: ARG002
            if chunk.left == 90:
                driver.table.grow([pa.field("extra", pa.int64())])

    (outcome,) = fill_from_archives(driver, archive, rows_max=50, listener=Meanwhile())
    assert len(outcome.chunks) == 2
    assert "extra" in pq.read_schema(max(Path(driver.lake).rglob("*.parquet"), key=lambda p: p.stat().st_mtime)).names
    check(driver, 72 + 90, 18)
