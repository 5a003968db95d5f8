"""A gap's life: opened with the frontier in one entry, filled in chunks or given up, told by log, ledger, audit."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.recovery.checkpoints.checks import leads_to, preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.audit.audit import audit
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.core.errors import Fenced, LogChanged
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.text import iso
from headrace.writer.driver.table_watch import TableWatch
from headrace.writer.offsets import skip_to_latest, start_decision
from headrace.writer.offsets.spark_checkpoint import Checkpoints, NewRun
from headrace.writer.sealing.manifest import Manifest, Manifests
from headrace.writer.sealing.rules import SealBlocked, SealNow
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.progress import Progress
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.log.operations.gaps import Loss
from tests.support.backfill_gaps import check, fill_from_archives, only_gap, skip_offsets, values, write_archive
from tests.support.gap_table import driver, headrace
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event
from tests.support.simulated_cluster import Cluster

__all__ = ["driver"]


def test_a_skip_moves_the_frontier_and_carries_the_gap_in_one_entry(driver):
    gap = only_gap(driver)
    assert gap.opened is not None
    assert (gap.opened.cause, gap.opened.by, gap.opened.reason) == ("latest", "ann", "a test")
    assert gap.opened.topic_ids == {"clicks": "uuid-1"}
    assert [(r.part.partition, r.start, r.end) for r in gap.opened.ranges] == [(0, 20, 120), (1, 20, 60)]
    assert (gap.state, gap.offsets, gap.unfilled_offsets.ranges()) == ("open", 140, list(gap.opened.ranges))
    assert driver.table.snapshot().gaps == (1, 140)
    assert [h.end for h in gap.opened.hints] == [NOW + driver.settings.seal.out_of_orderness] * 2
    check(driver, 72, 8)


def test_a_skip_fences_the_writer_that_runs(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 50)
    with pytest.raises(Fenced):
        driver.carry([log(values(0, 60))], {0: 60})
    assert driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) == 50


def plan_batch(driver: Driver, run: int, end: int) -> None:
    """Write a checkpoint as Spark does, whose batch 0 read the topic from its beginning and is done."""
    folder = Path(driver.config.checkpoints) / "clicks" / f"{run:06d}"
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"11111111-1111-1111-1111-111111111111"}')
    (folder / "offsets" / "0").write_text(
        f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0}}\n{{"clicks":{{"0":{end}}}}}'
    )
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (folder / "sources" / "0" / "0").write_text('v1\n{"clicks":{"0":0}}')


@pytest.mark.parametrize("newest_run", [1, 3])
def test_a_start_after_a_skip_is_no_failure_that_a_supervisor_counts(tmp_path, newest_run):
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    plan_batch(driver, newest_run, 20)
    no_broker = BrokerUnreachable("it is not asked")

    def find_level() -> RecoveryLevel | None:
        return leads_to(preflight(collect_pipeline_facts(driver.config, "clicks", no_broker).facts))

    assert find_level() == RecoveryLevel.WAIT, "only the broker is missed"
    skip_offsets(driver, 50)
    assert find_level() == RecoveryLevel.WAIT, "no new run is taken from its budget"
    decision = Checkpoints(driver.config.checkpoints, "clicks").choose(
        {("clicks", 0): 50}, "", driver.table.snapshot().closed
    )
    assert isinstance(decision, NewRun)
    assert decision.run == newest_run + 1
    driver.start(offset=50)
    assert driver.table.snapshot().closed == newest_run, "no later start opens it again"


def test_a_commit_between_look_and_skip_wins(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    preview = skip_to_latest.preview_skip(driver.config, "clicks", Cluster((0, 50), id_="uuid-1"), "person")
    driver.carry([log(values(0, 20))], {0: 20})
    with pytest.raises(Fenced, match="offset 20 of clicks/0 is committed"):
        skip_to_latest.skip(driver.config, "clicks", preview, by="ann", reason="r", now=NOW)
    assert gap_records(driver.table, "clicks") == {}


def test_only_a_person_skips_records_that_kafka_still_holds(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    with pytest.raises(LogChanged, match="Kafka still holds the frontier of clicks/0"):
        skip_offsets(driver, 50, asker="automatic")
    skip_offsets(driver, 50, asker="automatic", log_start=7)
    assert only_gap(driver).offsets == 50
    assert (
        skip_to_latest.preview_skip(driver.config, "clicks", Cluster((0, 50), id_="uuid-1"), "person").decision
        == skip_to_latest.NothingToSkip()
    )


def test_another_log_under_the_name_is_not_skipped(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    for cluster, text in ((Cluster((0, 50), id_="new"), "created again"), (Cluster((0, -1), id_="uuid-1"), "shorter")):
        preview = skip_to_latest.preview_skip(driver.config, "clicks", cluster, "person").decision
        assert isinstance(preview, start_decision.Refuse)
        assert text in preview.reason


def test_offsets_that_the_archive_lacks_stay_open_until_a_person_gives_them_up(driver, tmp_path):
    archive = write_archive(tmp_path, values(30, 120))
    (outcome,) = fill_from_archives(driver, archive)
    assert outcome.gap_record.state == "open"
    assert [(r.part.partition, r.start, r.end) for r in outcome.absent.ranges()] == [(0, 20, 30), (1, 20, 60)]
    check(driver, 72 + 81, 8 + 9)
    gap = outcome.gap_record.id[:8]
    listed = json.loads(headrace(driver, tmp_path, "gaps", "list", "--json", code=1))["pipelines"]["clicks"]
    assert [(one["state"], one["offsets"], one["left"]) for one in listed] == [("open", 140, 50)]
    assert "clicks/1 of incarnation 1 [20, 60)" in headrace(driver, tmp_path, "gaps", "show", gap)
    assert "50 offsets of gap" in headrace(driver, tmp_path, "gaps", "close", gap, "--reason", "gone")
    assert only_gap(driver).state == "open"
    headrace(driver, tmp_path, "gaps", "close", gap, "--yes", "--reason", "nobody kept it", "--by", "bob")
    ended = only_gap(driver).ended
    assert ended is not None
    assert (ended.how, ended.by, ended.reason, ended.left) == ("lost", "bob", "nobody kept it", 50)
    assert driver.table.snapshot().gaps == (0, 0)
    assert "by bob, 50 offsets not filled: nobody kept it\n" in headrace(driver, tmp_path, "gaps", "show", gap)
    document = json.loads(headrace(driver, tmp_path, "gaps", "show", gap, "--json"))
    assert (document["ended"]["how"], document["ended"]["left"], document["opened_at"]) == ("lost", 50, iso(NOW))
    window = driver.settings.seal.out_of_orderness
    assert document["hints"] == [{"from": iso(NOW - window), "until": iso(NOW + window)}] * 2
    assert "No gap is open" in headrace(driver, tmp_path, "gaps", "list")
    assert "is lost already" in headrace(driver, tmp_path, "gaps", "close", gap, "--yes", "--reason", "x", code=2)
    check(driver, 72 + 81, 8 + 9)


def test_a_driver_tells_since_when_gaps_are_open_and_how_much_of_them_is_settled(driver, tmp_path):
    progress = Progress("clicks")
    watch = TableWatch("clicks", driver.config, progress)
    first = only_gap(driver)

    def told() -> tuple[tuple[int, int], int | None, datetime | None]:
        watch.read()
        gaps = progress.view().gaps
        return (gaps.open, gaps.offsets), gaps.offsets_closed, gaps.oldest

    assert first.opened is not None
    assert told() == ((1, 140), 0, first.opened.opened_at)
    fill_from_archives(driver, write_archive(tmp_path, values(30, 120)))
    assert told() == ((1, 50), 90, first.opened.opened_at)
    second = skip_offsets(driver, 150, 80, now=NOW + timedelta(hours=3))
    assert told() == ((2, 60), 90, first.opened.opened_at), "the older one"
    for gap, settled, left in ((first.id, 140, (1, 10)), (second, 150, (0, 0))):
        headrace(driver, tmp_path, "gaps", "close", gap, "--yes", "--reason", "nobody kept it")
        assert told() == (left, settled, NOW + timedelta(hours=3) if left[0] else None)


def test_gap_records_outlive_the_log(tmp_path):
    driver = Driver(tmp_path, interval=5)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 60)
    driver.start()
    for end in range(70, 150, 10):
        driver.carry([log(values(60, end))], {0: end})
    pages = list(Path(driver.lake).glob("_headrace/ledger/*/*.json"))
    assert pages
    for entry in sorted(Path(driver.lake, "_delta_log").glob("*.json"))[:4]:
        entry.unlink()
    archive = write_archive(tmp_path, values(0, 60))
    fill_from_archives(driver, archive, rows_max=7)
    assert only_gap(driver).state == "done"
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    offsets = driver.table.rows().to_table(columns=["_offset"]).column("_offset").to_pylist()
    assert sorted(offsets) == [offset for offset in range(140) if offset % 10 != 5]


def risen(start: int, end: int) -> dict[int, bytes | None]:
    """Ten events an hour, from 02:00 on."""
    return {n: event(n, event_time=NOW - timedelta(hours=10) + timedelta(minutes=6 * n)) for n in range(start, end)}


@pytest.mark.parametrize("way", ["filled", "lost"])
def test_a_bucket_is_blocked_until_its_gap_is_filled_or_given_up_and_says_which(tmp_path, form, way):
    driver = Driver(tmp_path, form, seal={"out_of_orderness": "1 min", "reopen_after": "0 s"})
    driver.start()
    driver.carry([log(risen(0, 20))], {0: 20})
    skip_offsets(driver, 55)
    driver.start()
    driver.carry([log(risen(55, 80))], {0: 80})
    closed_until = NOW - timedelta(hours=3)
    sealer = Sealer("clicks", driver.config)
    sealer.close(sealer.follow(), closed_until, "watermark", NOW)
    _seal(sealer)
    assert sorted(_manifests(driver)) == ["02"], "all that is after the frontier's rows may miss some"
    states = sealer.due(sealer.follow(), NOW)
    assert all(isinstance(state, SealBlocked) and "headrace backfill" in state.why for state in states)
    if way == "filled":
        archive = write_archive(tmp_path, risen(20, 55))
        fill_from_archives(driver, archive, rows_max=20)
    else:
        gap_record = only_gap(driver)
        facts = {"by": "bob", "reason": "gone", "at": NOW.isoformat()}
        driver.table.append(Loss("x", gap_record.id, 0, 35, facts), driver.table.snapshot())
    _seal(sealer)
    _seal(Sealer("clicks", driver.config))
    manifests = _manifests(driver)
    hours = ["02", "03", "04", "05", "06", "07", "08"] if way == "filled" else ["02", "03", "07", "08"]
    assert sorted(manifests) == hours
    touched = {hour for hour, manifest in manifests.items() if manifest.with_gap}
    assert touched == (set() if way == "filled" else {"03", "07", "08"})
    assert sum(manifest.rows for manifest in manifests.values()) == (70 if way == "filled" else 35)


def test_a_bucket_that_was_sealed_with_a_gap_is_sealed_again_once_it_is_filled(tmp_path, form):
    driver = Driver(tmp_path, form, seal={"out_of_orderness": "1 min", "reopen_after": "0 s"})
    driver.start()
    driver.carry([log(risen(0, 20))], {0: 20})
    skip_offsets(driver, 25)
    driver.start()
    driver.carry([log(risen(25, 60))], {0: 60})
    sealer = Sealer("clicks", driver.config)
    sealer.close(sealer.follow(), NOW - timedelta(hours=5), "watermark", NOW)
    sealer.seal([SealNow(state.bucket) for state in sealer.due(sealer.follow(), NOW)], NOW)
    before = _manifests(driver)
    assert before["04"].with_gap
    fill_from_archives(driver, write_archive(tmp_path, risen(20, 25)))
    _seal(sealer)
    after = _manifests(driver)["04"]
    assert (after.version, after.rows, after.with_gap, after.late) == (2, before["04"].rows + 5, False, 0)


def _seal(sealer: Sealer) -> None:
    now = datetime.now(UTC)  # the log says when rows came
    sealer.seal([state for state in sealer.due(sealer.follow(), now) if isinstance(state, SealNow)], now)


def _manifests(driver: Driver) -> dict[str, Manifest]:
    manifests = Manifests(driver.table.store, driver.columns)
    return {str(manifest.bucket[0])[-2:]: manifest for manifest in manifests.all()}
