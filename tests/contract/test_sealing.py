"""Buckets on real tables of every format are closed, sealed, reopened by late rows and sealed again, each once."""

import json
import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.units import microseconds
from headrace.writer.driver.sealing.steps import Closer, seal_due
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.rules import SealBlocked, SealLater, SealNow
from headrace.writer.sealing.unsealed import INDEX, IndexCheckpoint
from headrace.writer.table.log.foreign_writes import BucketsClosed, NothingToClose, Resealed
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.operations.seals import Closing, Sealing
from tests.support.bucket_lake import HOUR, MINUTE, NOON, PARTS, Lake, SilentTopics, label
from tests.support.sample_records import GAP_FACTS


def closer(ends: dict[tuple[str, int], int] | None = None) -> Closer:
    return Closer(LogEndWatch(SilentTopics(ends or {}), ["clicks"]), lambda: {"clicks": 1})


def closed(lake: Lake, until: datetime) -> int:
    return lake.table.append(Closing(uuid4().hex, until, {"reason": "watermark"}), lake.table.snapshot())


def manifest(lake: Lake, hour: datetime) -> Manifest | None:
    return lake.sealer().manifests.newest(label(hour))


# --- the entries ------------------------------------------------------------------------------------------------


def test_buckets_are_closed_forward_only(lake: Lake) -> None:
    assert lake.table.snapshot().closed_until is None
    first = closed(lake, NOON)
    assert (first, lake.table.snapshot().closed_until) == (lake.table.snapshot().version, NOON)
    for until in (NOON, NOON - HOUR):
        with pytest.raises(NothingToClose, match="are closed until"):
            closed(lake, until)
    assert lake.table.snapshot().version == first
    closed(lake, NOON + HOUR)
    assert lake.table.snapshot().closed_until == NOON + HOUR


def test_a_batch_that_was_judged_before_a_close_is_refused_and_lands_once_judged_again(lake: Lake) -> None:
    before = lake.table.snapshot()
    judged = lake.batch(NOON)
    closed(lake, NOON + HOUR)
    with pytest.raises(BucketsClosed, match="judged by None"):
        lake.table.append(judged, before)
    with pytest.raises(BucketsClosed):
        lake.table.append(judged, lake.table.snapshot())
    assert lake.rows() == 0
    lake.offset = 0
    lake.write(NOON, late=10)
    assert lake.rows() == 10


def test_the_newest_event_time_of_a_partition_is_in_the_table(lake: Lake) -> None:
    assert lake.table.snapshot().newest_event_time(PARTS[0]) is None
    lake.write(NOON, seen={PARTS[0]: NOON + MINUTE, PARTS[1]: NOON})
    snapshot = lake.table.snapshot()
    assert [snapshot.newest_event_time(part) for part in PARTS] == [microseconds(NOON + MINUTE), microseconds(NOON)]
    assert set(snapshot.parts()) == set(PARTS)


def test_a_seal_is_refused_when_its_bucket_changed_since(lake: Lake) -> None:
    lake.write(NOON)
    before = lake.table.snapshot()
    entry = {"bucket": list(label(NOON)), "version": 1}
    lake.write(NOON + HOUR)  # another bucket
    sealing = Sealing(uuid4().hex, [{**entry, "bucket": list(label(NOON - HOUR))}])
    assert lake.table.append(sealing, before) == before.version + 2
    lake.write(NOON)
    with pytest.raises(Resealed, match="changed"):
        lake.table.append(Sealing(uuid4().hex, [entry]), before)
    now = lake.table.snapshot()
    lake.table.append(Sealing(uuid4().hex, [entry]), now)
    with pytest.raises(Resealed):  # by another process
        lake.table.append(Sealing(uuid4().hex, [entry]), now)


# --- from open to sealed ----------------------------------------------------------------------------------------


def test_a_bucket_is_closed_sealed_reopened_by_late_rows_and_sealed_again(lake: Lake) -> None:
    sealer = lake.sealer()
    lake.write(NOON, NOON + HOUR, seen={PARTS[0]: NOON + 62 * MINUTE, PARTS[1]: NOON + 80 * MINUTE})
    closer()(sealer, NOON + 2 * HOUR)
    assert lake.table.snapshot().closed_until is None  # 13:02 less five minutes is before 13:00
    lake.write(NOON, rows=7, seen={PARTS[0]: NOON + 65 * MINUTE})
    now = NOON + 2 * HOUR
    closer()(sealer, now)
    assert lake.table.snapshot().closed_until == NOON + HOUR
    seal_due(sealer, now)
    first = manifest(lake, NOON)
    assert first is not None
    assert (first.version, first.rows, first.files, first.added, first.late) == (1, 17, 2, 17, 0)
    assert (first.start, first.end, first.reason, first.sealed_at) == (NOON, NOON + HOUR, "watermark", now)
    assert (first.event_time_min, first.event_time_max) == (NOON, NOON + 59 * MINUTE)
    assert first.table_version == lake.table.snapshot().version == first.log_position + 1
    assert manifest(lake, NOON + HOUR) is None
    marker = lake.root / "lake" / "hour=2026-11-20T12" / "_SUCCESS"
    assert marker.exists() == (lake.form == "parquet")
    seal_due(sealer, now)
    assert lake.table.snapshot().version == first.table_version  # nothing was left to do

    lake.write(NOON, rows=3, late=3)
    changed = datetime.now(UTC)  # the log's own clock
    (resting,) = sealer.due(sealer.follow(), changed)
    assert isinstance(resting, SealLater)
    seal_due(sealer, changed)
    assert manifest(lake, NOON) == first
    again = lake.sealer()  # another process, after the rest
    seal_due(again, resting.due)
    second = manifest(lake, NOON)
    assert second is not None
    assert (second.version, second.rows, second.added, second.late, second.files) == (2, 20, 3, 3, 3)
    assert lake.sealer().manifests.versions(label(NOON)) == [1, 2]
    assert lake.rows() == 30


def test_the_clock_closes_a_silent_topic_once_all_of_it_is_read(lake: Lake) -> None:
    lake.write(NOON, seen={PARTS[0]: NOON + 50 * MINUTE, PARTS[1]: NOON + 50 * MINUTE})
    sealer, late = lake.sealer(), NOON + 2 * HOUR
    waiting = {("clicks", 0): 10, ("clicks", 1): 1}
    closer(waiting)(sealer, late)
    assert lake.table.snapshot().closed_until is None
    read = {**waiting, ("clicks", 1): 0}
    closer(read)(sealer, late - MINUTE)
    assert lake.table.snapshot().closed_until is None
    closer(read)(sealer, late)
    assert lake.table.snapshot().closed_until == NOON + HOUR
    seal_due(sealer, late)
    sealed_manifest = manifest(lake, NOON)
    assert sealed_manifest is not None
    assert sealed_manifest.reason == "clock"


def test_a_new_partition_that_holds_records_keeps_the_clock_from_closing(lake: Lake) -> None:
    lake.write(NOON, seen={PARTS[0]: NOON + 50 * MINUTE, PARTS[1]: NOON + 50 * MINUTE})
    closer({("clicks", 0): 10, ("clicks", 1): 0, ("clicks", 2): 1})(lake.sealer(), NOON + 9 * HOUR)
    assert lake.table.snapshot().closed_until is None


def test_a_gap_blocks_the_buckets_that_it_may_touch_and_no_other(lake: Lake) -> None:
    hints = [{"from": (NOON + 70 * MINUTE).isoformat(), "until": (NOON + 80 * MINUTE).isoformat()}]
    lake.write(NOON, NOON + HOUR, NOON + 2 * HOUR)
    gap = Gap(uuid4().hex, lake.epoch, [OffsetRange(PARTS[1], 0, 5)], "retention", {**GAP_FACTS, "hints": hints})
    lake.table.append(gap, lake.table.snapshot())
    closed(lake, NOON + 3 * HOUR)
    sealer = lake.sealer()
    seal_due(sealer, NOON + 4 * HOUR)
    assert [manifest(lake, NOON + n * HOUR) is not None for n in range(3)] == [True, False, True]
    (state,) = sealer.due(sealer.follow(), NOON + 4 * HOUR)
    assert isinstance(state, SealBlocked)
    assert gap.id in state.why
    assert state.by_gap
    sealer.seal([SealNow(state.bucket)], NOON + 4 * HOUR)
    sealed_manifest = manifest(lake, NOON + HOUR)
    assert sealed_manifest is not None
    assert sealed_manifest.with_gap
    assert not manifest(lake, NOON).with_gap  # type: ignore[union-attr]


def test_a_bucket_whose_files_hold_other_rows_than_the_log_counts_is_not_sealed(lake: Lake) -> None:
    lake.write(NOON)
    state = lake.table.snapshot().state
    stray = lake.stage(NOON, 4)
    add = {"path": stray.path, "size": stray.bytes, "stats": stray.statistics, "dataChange": True,
           "partitionValues": {"hour": "2026-11-20T12"}, "modificationTime": 0}  # fmt: skip
    info = {"timestamp": 0, "operation": "WRITE", "headrace": json.dumps({"kind": "riddle"})}
    assert lake.table._log.append(state, [{"commitInfo": info}, {"add": add}])
    closed(lake, NOON + HOUR)
    sealer = lake.sealer()
    seal_due(sealer, NOON + 2 * HOUR)
    assert manifest(lake, NOON) is None
    (decision,) = sealer.due(sealer.follow(), NOON + 2 * HOUR)
    assert isinstance(decision, SealBlocked)
    assert "its files hold 14 rows, the log has 10" in decision.why
    assert not decision.by_gap


def test_rows_that_only_move_leave_a_seal_alone_and_rows_that_go_reopen_it(lake: Lake) -> None:
    lake.write(NOON, rows=6)
    lake.write(NOON, rows=4)
    closed(lake, NOON + HOUR)
    sealer, now = lake.sealer(), datetime.now(UTC) + HOUR
    seal_due(sealer, now)

    def swap(rows: int, taken: RemovedRows | None = None) -> None:
        snapshot = lake.table.snapshot()
        files = lake.table.bucket_files(snapshot, label(NOON))
        lake.table.append(Rewrite(uuid4().hex, files, [lake.stage(NOON, rows)], taken), snapshot)

    swap(10)
    assert sealer.follow().unsealed.buckets == {}
    swap(8, RemovedRows("dedupe", 2))
    seal_due(sealer, now)
    second = manifest(lake, NOON)
    assert second is not None
    assert (second.version, second.rows, second.added, second.deduped, second.files) == (2, 8, -2, 2, 1)
    swap(5, RemovedRows("delete", 3))
    seal_due(lake.sealer(), now)
    third = manifest(lake, NOON)
    assert third is not None
    assert (third.version, third.rows, third.added, third.deduped) == (3, 5, -3, 2)


def test_a_bucket_that_retention_emptied_is_forgotten_and_may_begin_again(lake: Lake) -> None:
    lake.write(NOON, NOON + HOUR)
    closed(lake, NOON + HOUR)
    sealer, now = lake.sealer(), datetime.now(UTC) + HOUR
    seal_due(sealer, now)
    snapshot = lake.table.snapshot()
    lake.table.append(
        Rewrite(uuid4().hex, lake.table.bucket_files(snapshot, label(NOON)), removed_rows=RemovedRows("retention", 10)),
        snapshot,
    )
    assert set(sealer.follow().unsealed.buckets) == {label(NOON + HOUR)}
    lake.write(NOON, rows=2, late=2)
    seal_due(lake.sealer(), now)
    sealed_manifest = manifest(lake, NOON)
    assert sealed_manifest is not None
    assert (sealed_manifest.version, sealed_manifest.rows, sealed_manifest.added) == (2, 2, -8)


# --- crashes and races ------------------------------------------------------------------------------------------


def test_the_unsealed_index_is_the_same_from_any_checkpoint_or_none(lake: Lake) -> None:
    sealer = lake.sealer()
    lake.write(NOON, NOON + HOUR)
    marks = [sealer.follow().unsealed]
    closed(lake, NOON + HOUR)
    marks.append(sealer.follow().unsealed)
    seal_due(sealer, NOON + 2 * HOUR)
    lake.write(NOON, rows=2, late=2)
    wanted = sealer.follow().unsealed
    assert wanted.buckets[label(NOON)].sealed == 1
    checkpoint = IndexCheckpoint(lake.table.store)
    for old in marks:
        checkpoint.put(old)
        (stored,) = json.loads(lake.table.store.read(INDEX).content)["buckets"][:1]  # type: ignore[union-attr]
        assert stored["rows_known"] is True
        assert lake.sealer().follow().unsealed == wanted
    lake.table.store.put(INDEX, b"{")
    assert lake.sealer().follow().unsealed == wanted
    lake.table.store.delete(INDEX)
    assert lake.sealer().follow().unsealed == wanted


def test_a_seal_whose_manifest_was_not_put_yet_is_completed_by_the_next_reader(lake: Lake) -> None:
    lake.write(NOON)
    closed(lake, NOON + HOUR)
    sealer = lake.sealer()
    standing = sealer.follow()
    (drawn,), _ = sealer.build_manifests(standing, [SealNow(label(NOON))], NOON + 2 * HOUR)
    version = lake.table.append(Sealing(uuid4().hex, [drawn.to_json()]), standing.table_snapshot)
    assert lake.sealer().follow(write=False).unsealed.buckets == {}
    assert manifest(lake, NOON) is None  # a reader that keeps nothing puts nothing
    lake.sealer().follow()
    assert manifest(lake, NOON) == drawn.with_table_version(version)


def test_many_sealers_beside_a_writer_seal_each_state_once_and_no_row_is_lost(lake: Lake) -> None:
    problems: list[BaseException] = []
    stop = threading.Event()

    def sealing() -> None:
        sealer = lake.sealer()
        try:
            while not stop.is_set():
                closer()(sealer, NOON + 9 * HOUR)
                seal_due(sealer, datetime.now(UTC) + HOUR)  # no bucket rests
        except BaseException as error:  # noqa: BLE001 - shown below
            problems.append(error)

    threads = [threading.Thread(target=sealing) for _ in range(3)]
    for thread in threads:
        thread.start()
    written = 0
    for n in range(12):
        hour = NOON + (n % 4) * HOUR
        seen = dict.fromkeys(PARTS, NOON + n * 30 * MINUTE)
        while True:
            try:
                lake.write(hour, rows=5, seen=seen)
            except BucketsClosed:
                lake.offset -= 5
                continue
            break
        written += 5
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    last = lake.sealer()
    closer()(last, NOON + 9 * HOUR)
    seal_due(last, datetime.now(UTC) + HOUR)
    assert lake.rows() == written
    manifests = {m.bucket: m for m in last.manifests.all()}
    assert {label(NOON + n * HOUR) for n in range(4)} == manifests.keys()
    assert sum(m.rows for m in manifests.values()) == written
    for m in manifests.values():
        each = [last.manifests.read(m.bucket, version) for version in last.manifests.versions(m.bucket)]
        assert [manifest.version for manifest in each] == list(range(1, m.version + 1))  # type: ignore[union-attr]
        assert sum(manifest.added for manifest in each) == m.rows  # type: ignore[union-attr]
    assert last.follow().unsealed.buckets == {}
