"""A table goes back to a version: rows, letters, late rows, frontier and seals together; the account knows, in both
formats, whatever was compacted, deleted or replayed since.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.recovery.cli.fix import rewind
from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.core.errors import ConfigError, Fenced, HeadraceError
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.driver.sealing.steps import seal_due
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.offsets.log_check import LogCheck
from headrace.writer.output.tables import console
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import main_table
from headrace.writer.table.ledger.segment_store import LedgerStore
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.foreign_writes import CommitFailed, FilesGone, NothingToClose, Overtaken
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.operations.rows import Batch, RemovedRows, Replay, Rewrite
from headrace.writer.table.log.operations.seals import Closing
from tests.support.local_driver import Driver, log
from tests.support.rewound_cluster import Cluster, DamagedDriver, rewind_of, rewind_report, run_rewind
from tests.support.sample_records import EVENT, GAP_FACTS, NOW, WIDER, Schemas, event, value

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
P0 = TopicPartition("clicks", 1, 0)
LATER = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture
def driver(form: str, tmp_path: Path) -> DamagedDriver:
    """Twelve offsets with two letters, then twelve more with two letters: what is to go back."""
    new_driver = DamagedDriver(tmp_path, form)
    new_driver.start()
    new_driver.carry([good(0, 12)], {0: 12})
    new_driver.good = new_driver.table.snapshot().version
    new_driver.carry([good(12, 24)], {0: 24})
    return new_driver


def good(start: int, end: int) -> Any:
    """Rows in three hours; every sixth record is broken."""
    return log({n: b"broken" if n % 6 == 5 else event(n, event_time=NOW - n % 3 * HOUR) for n in range(start, end)})


class LeaderAnswers:
    """The leader of a log that ends at an offset in the epoch of the table's mark."""

    def __init__(self, end: int) -> None:
        self.end = end

    def leader_epochs(self, _: Mapping[str, UUID]) -> dict[Source, int]:
        return {("clicks", 0): 4}

    def marks_before(self, _offsets: Mapping[Source, int], _ids: Mapping[str, UUID]) -> dict[Source, LogMark]:
        return {}

    def epoch_ends(self, epochs: Mapping[Source, int]) -> dict[Source, EpochEnd]:
        return {source: EpochEnd(0, epoch, self.end) for source, epoch in epochs.items()}


def ids(driver: DamagedDriver) -> list[int]:
    return sorted(main_table("clicks", driver.config).rows().to_table(columns=["id"]).column("id").to_pylist())


def dead_letters(driver: DamagedDriver) -> list[int]:
    return sorted(driver.side(driver.dead_letters).rows().to_table(columns=["_offset"]).column("_offset").to_pylist())


def sound(driver: DamagedDriver) -> Any:
    for deep in (False, True):
        report = audit(driver.config, "clicks", since=None, deep=deep)
        assert report.adds_up, report.problems
    return report


@pytest.mark.parametrize(("end", "is_cut"), [(15, True), (25, False)])
def test_no_rows_go_back_to_a_log_that_was_cut(driver: DamagedDriver, end: int, is_cut: bool) -> None:
    table = main_table("clicks", driver.config)
    epoch = table.snapshot().epoch
    last = OffsetRange(P0, 24, 25)
    facts = {"ranges": [{**last.to_json(), "read": 1, "rows": 1}]}
    table.append(Batch("marked", epoch, [last], facts=facts, marks={P0: LogMark(3, 30)}), table.snapshot())
    check = LogCheck("clicks", LeaderAnswers(end), lambda: table.entries(-1))
    # The log has grown beyond the table; nothing is left of the batch before the frontier.
    cluster: Any = Cluster(40, earliest=25)
    look = RewindExecution(driver.config, "clicks", cluster, check).preview(driver.good)
    assert ["log was cut below" in obstacle for obstacle in look.plan.obstacles] == [True] * is_cut


def again(driver: DamagedDriver) -> None:
    """Start the writer anew, and read on."""
    driver.start()
    driver.carry([good(12, 24)], {0: 24})


ROWS = [n for n in range(24) if n % 6 != 5]


def test_rows_dead_letters_and_frontier_go_back_together_and_are_read_again_once(driver: DamagedDriver) -> None:
    assert run_rewind(driver, driver.good) == 0
    snapshot = driver.table.snapshot()
    assert (snapshot.frontier(P0), snapshot.epoch, snapshot.rewinds) == (12, 2, 1)
    assert (ids(driver), dead_letters(driver)) == ([n for n in ROWS if n < 12], [5, 11])
    sums = sound(driver)
    assert (sums.rows_taken, sums.dead_letters_taken) == ({"rewind": 10}, {"rewind": 2})
    assert sums.reconciliation.lines[0].rewound == 12
    again(driver)
    assert (ids(driver), dead_letters(driver)) == (ROWS, [5, 11, 17, 23])
    assert sound(driver).reconciliation.total("read") == 36


def test_a_rewind_changes_nothing_without_yes(driver: DamagedDriver) -> None:
    version = driver.table.snapshot().version
    report = rewind_report(driver, driver.good, write=False)
    document = report.document()
    assert (report.exit_code, report.has_changes) == (0, True)
    assert (document["offsets"], document["rows"], document["dead_letter_table_rows"], document["version"]) == (
        12,
        10,
        2,
        None,
    )
    assert document["partitions"][0] | {"topic": "clicks"} == {
        "topic": "clicks", "incarnation": 1, "partition": 0, "table_end": 24, "back_to": 12, "log_start": 0,
        "log_end": 24, "not_held": None,
    }  # fmt: skip
    assert driver.table.snapshot().version == version
    assert ids(driver) == ROWS


def test_a_person_is_shown_partitions_buckets_and_what_to_do(driver: DamagedDriver, capsys: Any) -> None:
    rewind_report(driver, driver.good, write=False).render(console())
    text = capsys.readouterr().out
    assert "12 offsets, 10 rows in" in text
    assert "clicks/0" in text
    assert "Stop the driver, if one runs." in text
    assert "hour=2026-11-20T" in text


def test_a_time_means_the_newest_version_that_was_written_by_then(driver: DamagedDriver) -> None:
    written = [parse_commit_info(actions)[0]["timestamp"] for _, actions in driver.table.entries(-1)]
    time = datetime.fromtimestamp(written[driver.good] / 1000, UTC)
    same = max(version for version, stamp in enumerate(written) if stamp <= written[driver.good])
    assert rewind_of(driver).preview(time).plan.to == same
    with pytest.raises(ConfigError, match="no version that old"):
        rewind_of(driver).preview(NOW - timedelta(days=9_000))


def test_back_to_the_start_takes_everything(driver: DamagedDriver) -> None:
    first = next(n for n, _ in driver.table.entries(-1) if driver.table.snapshot_at(n).epoch)
    assert run_rewind(driver, first) == 0
    assert (ids(driver), dead_letters(driver), driver.table.snapshot().frontier(P0)) == ([], [], 0)
    driver.start()
    driver.carry([good(0, 24)], {0: 24})
    assert ids(driver) == ROWS
    sound(driver)


def test_a_version_before_the_first_start_or_not_yet_there_is_refused(driver: DamagedDriver) -> None:
    assert run_rewind(driver, 0) == 2
    with pytest.raises(ConfigError, match="choose an earlier one"):
        rewind_of(driver).preview(driver.table.snapshot().version)
    assert ids(driver) == ROWS


def test_rows_that_were_deleted_since_stay_deleted_until_they_are_read_again(driver: DamagedDriver) -> None:
    run_deletion(
        driver.config,
        DeletionRequest("clicks", where("id IN (3, 14)"), NOW, with_dead_letters=False),
        driver.schemas,
        write=True,
    )
    look = rewind_of(driver).preview(driver.good)
    assert look.rows == 9
    assert "run `headrace delete-rows` again" in " ".join(rewind.notes(look))
    assert run_rewind(driver, driver.good) == 0
    assert ids(driver) == [n for n in ROWS if n < 12 and n != 3]
    assert sound(driver).rows_taken == {"delete": 2, "rewind": 9}
    again(driver)
    assert ids(driver) == [n for n in ROWS if n != 3]
    sound(driver)


def test_rows_of_both_sides_in_one_file_are_parted(driver: DamagedDriver) -> None:
    """As after a compaction: the files of the earlier version are gone, in a Parquet table for good."""
    compacted(driver)
    look = rewind_of(driver).preview(driver.good)
    assert (look.rows, look.files) == (10, 3)
    assert run_rewind(driver, driver.good) == 0
    assert ids(driver) == [n for n in ROWS if n < 12]
    sound(driver)
    again(driver)
    assert ids(driver) == ROWS
    sound(driver)


def compacted(driver: DamagedDriver) -> None:
    """Write the files of each bucket as one."""
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    compactor = Compactor("clicks", driver.settings, driver.table, None)
    for bucket in compactor.buckets(driver.table.snapshot()):
        compactor.before_seal(bucket, here)
    assert len(driver.table.bucket_files(driver.table.snapshot())) == 3


def test_a_sealed_bucket_is_reopened_and_its_next_manifest_has_the_next_version(driver: DamagedDriver) -> None:
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    sealer = Sealer("clicks", driver.config)
    seal_due(sealer, NOW + DAY)
    before = {m.bucket: (m.version, m.rows) for m in sealer.manifests.all()}
    assert {version for version, _ in before.values()} == {1}
    assert run_rewind(driver, driver.good) == 0
    assert driver.table.snapshot().closed_until is None
    standing = sealer.follow()
    assert {bucket.bucket: bucket.sealed for bucket in standing.unsealed.buckets.values()} == dict.fromkeys(before, 1)
    assert sealer.due(standing, NOW + DAY) == [], "nothing is closed"
    again(driver)
    driver.table.append(Closing("d", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    fresh = Sealer("clicks", driver.config)
    seal_due(fresh, LATER)
    assert {m.bucket: (m.version, m.rows) for m in fresh.manifests.all()} == {
        bucket: (2, rows) for bucket, (_, rows) in before.items()
    }  # fmt: skip
    sound(driver)


def test_a_bucket_that_is_empty_after_it_gets_a_manifest_only_if_it_had_one(driver: DamagedDriver) -> None:
    other = NOW - 5 * HOUR
    driver.carry([log({24: event(24, event_time=other)})], {0: 25})
    assert run_rewind(driver, driver.good, Cluster(25)) == 0
    driver.start()
    assert ("2026-11-20T07",) not in {
        b.bucket for b in Sealer("clicks", driver.config).follow().unsealed.buckets.values()
    }
    driver.carry([log({n: event(n, event_time=other) for n in range(12, 14)})], {0: 14})
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    seal_due(Sealer("clicks", driver.config), LATER)
    assert run_rewind(driver, driver.good, Cluster(25)) == 0
    driver.start()
    driver.table.append(Closing("d", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    sealer = Sealer("clicks", driver.config)
    seal_due(sealer, LATER)
    newest = {m.bucket: m for m in sealer.manifests.all()}["2026-11-20T07",]
    assert (newest.version, newest.rows) == (2, 0)
    sound(driver)


def test_offsets_that_kafka_does_not_hold_are_named_and_refused_without_the_flag(driver: DamagedDriver) -> None:
    preview = rewind_report(driver, driver.good, Cluster(24, earliest=15), write=False)
    assert (preview.exit_code, preview.has_changes) == (0, False), "it is only shown"
    report = rewind_report(driver, driver.good, Cluster(24, earliest=15))
    assert report.exit_code == 2
    document = report.document()
    assert document["partitions"][0]["not_held"] == [12, 15]
    assert "clicks/0 [12, 15)" in document["refused"][0]
    assert ids(driver) == ROWS
    assert run_rewind(driver, driver.good, Cluster(24, earliest=15), accept_loss=True) == 0
    epoch = driver.table.begin({}, {"clicks": ["uuid-1"]})
    driver.table.append(Gap("g", epoch, [OffsetRange(P0, 12, 15)], "retention", GAP_FACTS), driver.table.snapshot())
    driver.start()
    driver.carry([good(15, 24)], {0: 24})
    assert ids(driver) == [n for n in ROWS if not 12 <= n < 15]
    assert sound(driver).reconciliation.lines[0].gap == 3


def test_a_topic_that_is_another_one_now_is_not_taken_back_even_with_the_flag(driver: DamagedDriver) -> None:
    assert run_rewind(driver, driver.good, Cluster(24, topic_id="uuid-2"), accept_loss=True) == 2
    assert ids(driver) == ROWS


def test_a_gap_that_was_opened_since_is_over_and_opened_again_where_kafka_lacks_it(driver: DamagedDriver) -> None:
    driver.table.append(
        Gap("g1", driver.epoch, [OffsetRange(P0, 24, 30)], "retention", GAP_FACTS), driver.table.snapshot()
    )
    assert driver.table.snapshot().gaps == (1, 6)
    look = rewind_of(driver, Cluster(40, earliest=0)).preview(driver.good)
    assert look.plan.gaps == {"g1": 6}
    assert run_rewind(driver, driver.good, Cluster(40)) == 0
    assert driver.table.snapshot().gaps == (0, 0)
    driver.start()
    driver.carry([good(12, 36)], {0: 36})
    assert ids(driver) == [n for n in range(36) if n % 6 != 5]
    assert sound(driver).reconciliation.lines[0].gap == 0


def test_late_rows_go_out_of_their_table(form: str, tmp_path: Path) -> None:
    driver = Driver(tmp_path, form, seal={"late": "late_table"})
    driver.start()
    driver.carry([good(0, 12)], {0: 12})
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    version = driver.table.snapshot().version
    driver.carry([good(12, 24)], {0: 24})
    assert audit(driver.config, "clicks", since=None, deep=True).reconciliation.total("late") == 10
    assert run_rewind(driver, version) == 0
    assert sound(driver).late_taken == {"rewind": 10}
    assert driver.table.snapshot().closed_until == NOW + DAY, "as it was at that version"
    again(driver)
    assert ids(driver) == [n for n in ROWS if n < 12]
    sound(driver)


def test_an_earlier_writer_is_fenced_and_a_replay_reads_again(driver: DamagedDriver) -> None:
    table = main_table("clicks", driver.config)
    before = table.snapshot()
    files = table.bucket_files(before)
    assert run_rewind(driver, driver.good) == 0
    with pytest.raises(Fenced):
        driver.carry([good(24, 25)], {0: 25})
    with pytest.raises(Overtaken):
        table.append(Replay("r", before.replays, [], {}, {}, {"moves": []}), before)
    with pytest.raises(NothingToClose, match="was rewound meanwhile"):
        table.append(Closing("late", NOW + DAY, {"reason": "watermark"}), before)
    gone = [file for file in files if file not in table.bucket_files(table.snapshot())]
    swap = Rewrite("w", gone, (), RemovedRows("delete", sum(file.rows or 0 for file in gone)))
    with pytest.raises(FilesGone):
        table.append(swap, before)
    sound(driver)


def test_a_rewind_applies_to_the_version_that_it_showed_or_not_at_all(driver: DamagedDriver) -> None:
    going = rewind_of(driver)
    look = going.preview(driver.good)
    driver.carry([good(24, 25)], {0: 25})
    with pytest.raises(CommitFailed, match="written to meanwhile"):
        going.write(look, NOW)
    assert ids(driver) == sorted([*ROWS, 24])
    staged = list(Path(driver.lake).rglob("*rewind-*"))
    assert staged == [], "what was staged for it is removed"
    sound(driver)


def test_a_rewind_that_cannot_read_the_checkpoints_leaves_nothing_behind(driver: DamagedDriver) -> None:
    compacted(driver)
    rewind = rewind_of(driver)
    preview = rewind.preview(driver.good)
    files_before = sorted(Path(driver.lake).rglob("*.parquet"))
    checkpoints = Path(rewind._config.checkpoints)
    checkpoints.mkdir(parents=True, exist_ok=True)
    # A link to itself, where the folder of the runs is to be.
    (checkpoints / "clicks").symlink_to("clicks")
    with pytest.raises(HeadraceError, match="it cannot be told whether a driver of pipeline 'clicks' runs"):
        rewind.write(preview, NOW)
    assert sorted(Path(driver.lake).rglob("*.parquet")) == files_before, "vacuum has nothing to wait for"
    assert driver.table.snapshot().version == preview.snapshot.version
    (checkpoints / "clicks").unlink()
    assert run_rewind(driver, driver.good) == 0
    sound(driver)


def test_a_replay_under_way_adds_no_row_that_a_rewind_took_back(driver: DamagedDriver) -> None:
    """The rewind comes once the replay has read the dead letters, when it asks for their schema."""
    last = log({24: value(2, WIDER, {"id": 24, "at": NOW, "note": None, "extra": 1})})
    driver.carry([last], {0: 25})
    codes: list[int] = []

    class Meanwhile(Schemas):
        def schema(self, schema_id: int) -> str:
            if schema_id == 2 and not codes:
                codes.append(run_rewind(driver, driver.good, Cluster(25)))
            return super().schema(schema_id)

    DeadLetterReplay("clicks", driver.config, Meanwhile({1: EVENT, 2: WIDER}, [1])).run(Selection(), NOW)
    assert codes == [0]
    again(driver)
    driver.carry([last], {0: 25})
    assert ids(driver) == ROWS
    assert dead_letters(driver) == [5, 11, 17, 23, 24]
    sound(driver)


def test_a_rewind_does_nothing_where_nothing_landed_since(driver: DamagedDriver) -> None:
    driver.start()
    version = driver.table.snapshot().version
    driver.start()
    assert run_rewind(driver, version) == 0
    assert driver.table.snapshot().rewinds == 0


@pytest.mark.parametrize("point", ["after_rewind", "before_redo"])
def test_a_crash_after_the_entry_is_ended_by_the_next_start(
    driver: DamagedDriver, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == point:
            raise Died

    with monkeypatch.context() as dying:
        dying.setattr("headrace.writer.core.fault_points.point", die)
        with pytest.raises(Died):
            run_rewind(driver, driver.good)
    if driver.settings.table.format == "delta" or point == "before_redo":
        assert ids(driver) == [n for n in ROWS if n < 12]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up, "what redo is still to do is known"
    again(driver)
    assert (ids(driver), dead_letters(driver)) == (ROWS, [5, 11, 17, 23])
    sound(driver)


def test_a_version_that_the_log_has_lost_is_refused(driver: DamagedDriver, form: str) -> None:
    folder = Path(driver.lake) / ("_delta_log" if form == "delta" else "_headrace/log")
    (folder / f"{driver.good:020}.json").unlink()
    with pytest.raises(HeadraceError):
        rewind_of(driver).preview(driver.good)


def test_the_ledger_keeps_where_it_went_back(form: str, tmp_path: Path) -> None:
    """Pages of some entries each: the account is bound over the way back, and does not join what it parts."""
    driver = DamagedDriver(tmp_path, form, interval=2)
    driver.start()
    driver.carry([good(0, 12)], {0: 12})
    driver.good = driver.table.snapshot().version
    driver.carry([good(12, 24)], {0: 24})
    for _ in range(2):
        assert run_rewind(driver, driver.good) == 0
        driver.start()
        for start in (12, 18):
            driver.carry([good(start, start + 6)], {0: start + 6})
    book = LedgerStore(driver.table.store, driver.table.snapshot().state.metadata["id"], "clicks")
    pages = book.pages()
    assert sum(len(page.rewound_ranges) for page in pages) == 2
    assert book.last_version() > driver.good + 4
    sums = sound(driver)
    assert (sums.reconciliation.lines[0].rewound, sums.rows_taken) == (24, {"rewind": 20})
    assert ids(driver) == ROWS
