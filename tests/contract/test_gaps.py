"""A gap's life: opened with the frontier in one entry, filled in chunks or given up, told by log, ledger, audit."""

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from recovery.backfill.shelf import files, partitions
from recovery.backfill.source import SourceFailed
from recovery.cli import join
from tests import oracle
from tests.carried import Driver, log
from tests.looking import EVENT, NOW, event
from tests.skipped import Silent, archived, at_of, check, decoded, filled, only, skipped, values
from tests.unit.test_standing import Cluster
from writer.cli import app
from writer.errors import ConfigError, Fenced, LogChanged
from writer.gaps import latest
from writer.gaps.book import tickets
from writer.gaps.claims import Claimed, Claims
from writer.ledger.audit import audit
from writer.progress import Progress
from writer.seals.manifest import Manifest, Manifests
from writer.seals.seal import Blocked, Ready
from writer.seals.sealer import Sealer
from writer.seals.sealing import Rounds
from writer.stores.location import store_at
from writer.tables.changes import Fill, Loss
from writer.tables.errors import Overtaken
from writer.tables.gaps import TooOld
from writer.tables.parts import Part


@pytest.fixture(params=["delta", "parquet"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    """A table that ends at 20, a gap up to 120, and rows after it."""
    made = Driver(tmp_path, form)
    made.start(2)
    made.carry([log(values(0, 20)), log(values(0, 20), 1)], {0: 20, 1: 20})
    skipped(made, 120, 60)
    made.start(2)
    made.carry([log(values(120, 140)), log(values(60, 80), 1)], {0: 140, 1: 80})
    return made


def test_a_skip_moves_the_frontier_and_carries_the_gap_in_one_entry(driver):
    one = only(driver)
    assert one.opened is not None
    assert (one.opened.cause, one.opened.by, one.opened.reason) == ("latest", "ann", "a test")
    assert one.opened.topic_ids == {"clicks": "uuid-1"}
    assert [(r.part.partition, r.start, r.end) for r in one.opened.ranges] == [(0, 20, 120), (1, 20, 60)]
    assert (one.state, one.offsets, one.left()) == ("open", 140, list(one.opened.ranges))
    assert driver.table.snapshot().gaps == (1, 140)
    assert [h.end for h in one.opened.hints] == [NOW + driver.settings.seal.out_of_orderness] * 2
    check(driver, 72, 8)


def test_who_runs_is_fenced_by_the_skip(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skipped(driver, 50)
    with pytest.raises(Fenced):
        driver.carry([log(values(0, 60))], {0: 60})
    assert driver.table.snapshot().frontier(Part("clicks", 1, 0)) == 50


def test_a_commit_between_look_and_skip_wins(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    found = latest.look(driver.config, "clicks", Cluster((0, 50), id_="uuid-1"), "person")
    driver.carry([log(values(0, 20))], {0: 20})
    with pytest.raises(Fenced, match="offset 20 of clicks/0 is committed"):
        latest.skip(driver.config, "clicks", found, by="ann", reason="r", now=NOW)
    assert tickets(driver.table, "clicks") == {}


def test_what_kafka_still_holds_only_a_person_skips(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    with pytest.raises(LogChanged, match="Kafka still holds the frontier of clicks/0"):
        skipped(driver, 50, asker="automatic")
    skipped(driver, 50, asker="automatic", held=7)
    assert only(driver).offsets == 50
    assert latest.look(driver.config, "clicks", Cluster((0, 50), id_="uuid-1"), "person").decision == latest.Nothing()


def test_another_log_under_the_name_is_not_skipped(tmp_path):
    driver = Driver(tmp_path)
    driver.start()
    for cluster, said in ((Cluster((0, 50), id_="new"), "created again"), (Cluster((0, -1), id_="uuid-1"), "shorter")):
        found = latest.look(driver.config, "clicks", cluster, "person").decision
        assert isinstance(found, latest.Refuse)
        assert said in found.reason


def test_an_archive_with_offsets_fills_it_exactly_and_the_audit_is_clean(driver, tmp_path):
    archived(tmp_path, values(60, 120), folder="day=21")
    archived(tmp_path, values(0, 90), folder="day=20")  # each offset is taken once
    place = archived(tmp_path, values(0, 80), partition=1)
    (found,) = filled(driver, place, rows_max=25)
    assert (found.ticket.state, found.absent) == ("done", [])
    assert len(found.chunks) >= 6
    assert found.ticket.rows == 140 - 14
    check(driver, 220 - 22, 22)
    assert driver.table.snapshot().gaps == (0, 0)
    assert filled(driver, place) == [], "a second time nothing is open"
    check(driver, 220 - 22, 22)
    shown = json.loads(headrace(driver, tmp_path, "audit", "--deep", "--json"))["pipelines"]["clicks"]
    assert (shown["gaps"], shown["offsets_in_gaps"]) == ({"open": 0, "done": 1, "lost": 0, "rewound": 0}, 0)


def test_what_the_archive_lacks_stays_open_and_is_given_up_by_a_person(driver, tmp_path):
    place = archived(tmp_path, values(30, 120))
    (found,) = filled(driver, place)
    assert found.ticket.state == "open"
    assert [(r.part.partition, r.start, r.end) for r in found.absent] == [(0, 20, 30), (1, 20, 60)]
    check(driver, 72 + 81, 8 + 9)
    gap = found.ticket.id[:8]
    listed = json.loads(headrace(driver, tmp_path, "gaps", "list", "--json", code=1))["pipelines"]["clicks"]
    assert [(one["state"], one["offsets"], one["left"]) for one in listed] == [("open", 140, 50)]
    assert "clicks/1 of incarnation 1 [20, 60)" in headrace(driver, tmp_path, "gaps", "show", gap)
    assert "give" in headrace(driver, tmp_path, "gaps", "close", gap, "--reason", "gone", code=2)
    headrace(driver, tmp_path, "gaps", "close", gap, "--lost", "--reason", "nobody kept it", "--by", "bob")
    ended = only(driver).ended
    assert ended is not None
    assert (ended.how, ended.by, ended.reason, ended.left) == ("lost", "bob", "nobody kept it", 50)
    assert driver.table.snapshot().gaps == (0, 0)
    assert "No gap is open" in headrace(driver, tmp_path, "gaps", "list")
    assert "is lost already" in headrace(driver, tmp_path, "gaps", "close", gap, "--lost", "--reason", "x", code=2)
    check(driver, 72 + 81, 8 + 9)


def test_a_driver_tells_since_when_gaps_are_open_and_how_much_of_them_is_settled(driver, tmp_path):
    progress = Progress("clicks")
    rounds = Rounds(Sealer("clicks", driver.config), {}, progress)
    first = only(driver)

    def told() -> tuple[tuple[int, int], int | None, datetime | None]:
        rounds.once()
        view = progress.view()
        return view.gaps, view.gaps_settled, view.gap_oldest

    assert first.opened is not None
    assert told() == ((1, 140), 0, first.opened.at)
    filled(driver, archived(tmp_path, values(30, 120)))
    assert told() == ((1, 50), 90, first.opened.at)
    second = skipped(driver, 150, 80, now=NOW + timedelta(hours=3))
    assert told() == ((2, 60), 90, first.opened.at), "the older one"
    for gap, settled, left in ((first.id, 140, (1, 10)), (second, 150, (0, 0))):
        headrace(driver, tmp_path, "gaps", "close", gap, "--lost", "--reason", "nobody kept it")
        assert told() == (left, settled, NOW + timedelta(hours=3) if left[0] else None)


def test_decoded_rows_with_offsets_are_taken_as_well(driver, tmp_path):
    for partition, end in ((0, 120), (1, 60)):
        place = decoded(
            tmp_path, range(20, end), folder=f"p={partition}",
            columns=lambda n, p=partition: {"src": "clicks", "p": p, "o": n},
        )  # fmt: skip
    filled(driver, place, columns="topic=src,partition=p,offset=o")
    assert only(driver).state == "done"
    check(driver, 72 + 140, 8)
    assert oracle.rows(Path(driver.lake), "note", "WHERE _partition = 0 AND _offset = 33") == [("note 33",)]


def test_an_archive_of_another_headrace_is_an_archive(driver, tmp_path):
    other = Driver(tmp_path / "other")
    other.start(2)
    other.carry([log(values(0, 140)), log(values(0, 80), 1)], {0: 140, 1: 80})
    (found,) = filled(driver, Path(other.lake))
    assert [r.end - r.start for r in found.absent] == [1] * 14, "what is no row there is open here"
    check(driver, 72 + 126, 8)


def test_avro_files_are_an_archive(driver, tmp_path):
    from fastavro import parse_schema, writer

    fields = [("p", "int"), ("o", "long"), ("id", "long"), ("at", EVENT["fields"][1]["type"])]
    schema = parse_schema({
        "type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields],
    })  # fmt: skip
    (tmp_path / "avro").mkdir()
    with (tmp_path / "avro" / "a.avro").open("wb") as out:
        writer(out, schema, [{"p": 0, "o": n, "id": n, "at": at_of(n)} for n in range(20, 120)])
    filled(driver, tmp_path / "avro", columns="partition=p,offset=o")
    assert [(r.part.partition, r.start, r.end) for r in only(driver).left()] == [(1, 20, 60)]
    check(driver, 72 + 100, 8)


def test_without_offsets_rows_come_by_event_time_each_once_and_the_ticket_says_so(tmp_path, form):
    driver = Driver(tmp_path, form)
    driver.start()

    def risen(start: int, end: int) -> dict[int, bytes | None]:
        return {n: event(n, at=NOW - timedelta(minutes=300 - n)) for n in range(start, end)}

    driver.carry([log(risen(0, 60))], {0: 60})
    skipped(driver, 200)
    driver.start()
    driver.carry([log(risen(200, 240))], {0: 240})
    for hour in range(5):  # the archive holds what the table has, too, and some of it twice
        ids = range(60 * hour, 60 * hour + 60)
        when = {n: NOW - timedelta(minutes=300 - n) for n in ids}
        for _ in range(2):
            place = decoded(tmp_path, ids, folder=f"hour={hour}", columns=lambda n, at=when: {"at": at[n]})
    (found,) = filled(driver, place, by_time="id", rows_max=50)
    ticket = found.ticket
    assert (ticket.state, ticket.unplaced) == ("done", 200)
    assert sum(c.rows > 0 for c in found.chunks) >= 4, "results are visible after each"
    assert oracle.rows(Path(driver.lake), "count(*), count(DISTINCT id)") == [(300, 300)]
    audited = audit(driver.config, "clicks", since=None, deep=True)
    assert audited.adds_up, audited.problems
    assert audited.statement.unplaced == ticket.unplaced
    assert "by event time: about right" in headrace(driver, tmp_path, "audit", "--deep")
    assert filled(driver, place, by_time="id") == []


def test_an_archive_whose_column_is_another_type_is_a_sentence_and_nothing_is_committed(driver, tmp_path):
    place = decoded(tmp_path, range(20, 30), folder="a", columns=lambda n: {"id": f"no {n}", "p": 0, "o": n})
    with pytest.raises(SourceFailed, match="column id is string in the archive"):
        filled(driver, place, columns="partition=p,offset=o")
    check(driver, 72, 8)
    with pytest.raises(ConfigError, match="no offsets that can be recognised"):
        filled(driver, place)


KILLED = """
import sys
from pathlib import Path
from tests.carried import Driver
from tests.skipped import filled
filled(Driver(Path(sys.argv[1]), sys.argv[2]), Path(sys.argv[1]) / "archive", rows_max=30)
"""
POINTS = ["before_chunk", "after_chunk", "before_fill", "after_fill", "before_chunk_redo"]


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_step_of_a_chunk_and_run_again_it_loses_and_doubles_nothing(driver, form, tmp_path, point, nth):
    archived(tmp_path, values(0, 120))
    place = archived(tmp_path, values(0, 80), partition=1)
    root = Path(__file__).parents[2]
    env = {**os.environ, "HEADRACE_FAULT": f"{point}:{nth}", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), form], env=env, cwd=root, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    oracle.check_rows(Path(driver.lake), "clicks")
    found = audit(driver.config, "clicks", since=None, deep=True)
    assert found.adds_up, found.problems
    driver.carry([log(values(0, 160))], {0: 160})
    filled(driver, place)
    assert only(driver).state == "done"
    check(driver, 240 - 24, 24)


def test_two_backfills_at_once_and_the_live_writer_settle_each_offset_once(driver, tmp_path):
    archived(tmp_path, values(0, 120))
    place = archived(tmp_path, values(0, 80), partition=1)
    snapshot, ticket = driver.table.snapshot(), only(driver)
    stale = Fill("late", ticket.id, snapshot.changes(ticket.id), 0, 140, done=False, facts={"source": "x"})
    errors: list[BaseException] = []

    def one() -> None:
        try:
            filled(driver, place, rows_max=20, by="same")
        except (Overtaken, Claimed):
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
    filled(driver, place)
    assert only(driver).state == "done"
    check(driver, 270 - 27, 27)
    with pytest.raises(Overtaken):
        driver.table.fill(snapshot, stale)
    with pytest.raises(Overtaken):
        driver.table.give_up(snapshot, Loss("late", ticket.id, 0, 140, {"by": "x", "reason": "x"}))


def test_a_claim_keeps_others_away_until_its_time_is_over(driver):
    claims, gap = Claims(driver.table.store), only(driver).id
    mine = claims.take(gap, "ann", NOW)
    with pytest.raises(Claimed, match="is being filled by ann"):
        claims.take(gap, "bob", NOW + timedelta(minutes=1))
    mine = claims.renew(gap, mine, NOW + timedelta(minutes=1))
    with pytest.raises(Claimed):
        claims.take(gap, "bob", NOW + timedelta(minutes=2, seconds=30))
    assert claims.take(gap, "bob", NOW + timedelta(minutes=4)).by == "bob"
    with pytest.raises(Claimed, match="was taken over by bob"):
        claims.renew(gap, mine, NOW + timedelta(minutes=4))
    assert claims.take(gap, "eve", NOW + timedelta(minutes=4), lambda by: by == "bob").by == "eve"
    claims.release(gap)
    assert claims.newest(gap) is None


def test_tickets_outlive_the_log(tmp_path):
    driver = Driver(tmp_path, interval=5)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skipped(driver, 60)
    driver.start()
    for end in range(70, 150, 10):
        driver.carry([log(values(60, end))], {0: end})
    pages = list(Path(driver.lake).glob("_headrace/ledger/*/*.json"))
    assert pages
    for entry in sorted(Path(driver.lake, "_delta_log").glob("*.json"))[:4]:
        entry.unlink()
    place = archived(tmp_path, values(0, 60))
    filled(driver, place, rows_max=7)
    assert only(driver).state == "done"
    found = audit(driver.config, "clicks", since=None, deep=True)
    assert found.adds_up, found.problems
    offsets = driver.table.rows().to_table(columns=["_offset"]).column("_offset").to_pylist()
    assert sorted(offsets) == [at for at in range(140) if at % 10 != 5]


@pytest.mark.parametrize("form", ["delta"])
def test_a_table_whose_driver_knows_no_fills_is_not_filled(driver, tmp_path, monkeypatch):
    monkeypatch.setattr("writer.tables.gaps.FORMAT", 99)
    with pytest.raises(TooOld, match="start pipeline 'clicks' once with this headrace"):
        filled(driver, archived(tmp_path, values(0, 120)))
    check(driver, 72, 8)


def test_a_compaction_beside_a_backfill_moves_rows_and_doubles_none(driver, tmp_path):
    from tests.contract.test_compact import compacted

    archived(tmp_path, values(0, 120))
    place = archived(tmp_path, values(0, 80), partition=1)
    thread = threading.Thread(target=filled, args=(driver, place), kwargs={"rows_max": 10})
    thread.start()
    while thread.is_alive():
        compacted(driver)
    thread.join()
    assert only(driver).state == "done"
    check(driver, 220 - 22, 22)


def headrace(driver: Driver, root: Path, *words: str, code: int = 0) -> str:
    join(app)
    path = root / "headrace.yaml"
    (root / "1.avsc").write_text(json.dumps(EVENT))
    path.write_text(json.dumps({
        "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "checkpoints": str(root / "checkpoints"),
        "registry": {"files": {1: str(root / "1.avsc")}},
        "pipelines": {"clicks": {
            "topics": ["clicks"], "table": {"location": driver.lake, "format": driver.settings.table.format},
            "event_time": {"field": "at", "max_age": "30000 d"},
        }},
    }))  # fmt: skip
    at = 2 if words[0] == "gaps" else 1
    result = CliRunner().invoke(app, [*words[:at], str(path), *words[at:]], env={"COLUMNS": "160"})
    said = result.output + ("" if isinstance(result.exception, SystemExit) else str(result.exception or ""))
    found = getattr(result.exception, "exit_code", result.exit_code)
    assert found == code, said
    return said


def test_the_verb_fills_from_an_archive_and_says_how_it_went(driver, tmp_path):
    archived(tmp_path, values(0, 120))
    place = archived(tmp_path, values(0, 80), partition=1)
    said = headrace(driver, tmp_path, "backfill", "--from-archive", str(place), "--dry-run")
    assert "140 of 140 offsets are there" in said
    assert only(driver).state == "open"
    out = [json.loads(line) for line in headrace(
        driver, tmp_path, "backfill", "--from-archive", str(place), "--chunk-rows", "50", "--json"
    ).splitlines() if line.startswith("{")]  # fmt: skip
    assert [one["event"] for one in out][-1] == "ended"
    assert out[-1]["gaps"][0]["state"] == "done"
    check(driver, 220 - 22, 22)
    assert pq.read_schema(next(Path(driver.lake).rglob("*backfill*.parquet"))).field("_offset").type == pa.int64()


def test_options_that_do_not_go_together_are_a_sentence(driver, tmp_path):
    assert "--from-mirror needs --map" in headrace(driver, tmp_path, "backfill", "--from-mirror", "b:1/t", code=2)
    assert "say which with" in headrace(driver, tmp_path, "backfill", "--map", "0:1=2", code=2)
    assert "is no gap of this pipeline" in headrace(driver, tmp_path, "gaps", "show", "abcdef", code=2)


def test_records_of_a_gap_that_are_older_than_max_age_are_believed_by_when_the_broker_had_them(tmp_path):
    driver = Driver(tmp_path, event_time={"field": "at", "max_age": "1 d"})
    driver.start()
    skipped(driver, 10)
    place = archived(tmp_path, {n: event(n, at=NOW - timedelta(hours=5)) for n in range(10)})  # NOW is long ago
    filled(driver, place)
    check(driver, 10, 0)


def risen(start: int, end: int) -> dict[int, bytes | None]:
    """Ten events an hour, from 02:00 on."""
    return {n: event(n, at=NOW - timedelta(hours=10) + timedelta(minutes=6 * n)) for n in range(start, end)}


@pytest.mark.parametrize("way", ["filled", "lost"])
def test_a_bucket_is_blocked_until_its_gap_is_filled_or_given_up_and_says_which(tmp_path, form, way):
    driver = Driver(tmp_path, form, seal={"out_of_orderness": "1 min", "reopen_after": "0 s"})
    driver.start()
    driver.carry([log(risen(0, 20))], {0: 20})
    skipped(driver, 55)
    driver.start()
    driver.carry([log(risen(55, 80))], {0: 80})
    closed_until = NOW - timedelta(hours=3)
    sealer = Sealer("clicks", driver.config)
    sealer.close(sealer.follow(), closed_until, "watermark", NOW)
    _seal(sealer)
    assert sorted(_manifests(driver)) == ["02"], "all that is after the frontier's rows may miss some"
    states = sealer.due(sealer.follow(), NOW)
    assert all(isinstance(state, Blocked) and "headrace backfill" in state.why for state in states)
    if way == "filled":
        place = archived(tmp_path, risen(20, 55))
        filled(driver, place, rows_max=20)
    else:
        ticket = only(driver)
        facts = {"by": "bob", "reason": "gone", "at": NOW.isoformat()}
        driver.table.give_up(driver.table.snapshot(), Loss("x", ticket.id, 0, 35, facts))
    _seal(sealer)
    _seal(Sealer("clicks", driver.config))
    found = _manifests(driver)
    hours = ["02", "03", "04", "05", "06", "07", "08"] if way == "filled" else ["02", "03", "07", "08"]
    assert sorted(found) == hours
    touched = {hour for hour, one in found.items() if one.with_gap}
    assert touched == (set() if way == "filled" else {"03", "07", "08"})
    assert sum(one.rows for one in found.values()) == (70 if way == "filled" else 35)


def test_a_bucket_that_was_sealed_with_a_gap_is_sealed_again_once_it_is_filled(tmp_path, form):
    driver = Driver(tmp_path, form, seal={"out_of_orderness": "1 min", "reopen_after": "0 s"})
    driver.start()
    driver.carry([log(risen(0, 20))], {0: 20})
    skipped(driver, 25)
    driver.start()
    driver.carry([log(risen(25, 60))], {0: 60})
    sealer = Sealer("clicks", driver.config)
    sealer.close(sealer.follow(), NOW - timedelta(hours=5), "watermark", NOW)
    sealer.seal([Ready(state.bucket) for state in sealer.due(sealer.follow(), NOW)], NOW)
    before = _manifests(driver)
    assert before["04"].with_gap
    filled(driver, archived(tmp_path, risen(20, 25)))
    _seal(sealer)
    after = _manifests(driver)["04"]
    assert (after.version, after.rows, after.with_gap, after.late) == (2, before["04"].rows + 5, False, 0)


def _seal(sealer: Sealer) -> None:
    now = datetime.now(UTC)  # the log says when rows came
    sealer.seal([state for state in sealer.due(sealer.follow(), now) if isinstance(state, Ready)], now)


def _manifests(driver: Driver) -> dict[str, Manifest]:
    manifests = Manifests(driver.table.store, driver.columns)
    return {str(one.bucket[0])[-2:]: one for one in manifests.all()}


@pytest.mark.slow
def test_table_and_archive_may_lie_in_a_bucket(tmp_path, on_s3):
    place = archived(tmp_path, values(0, 60))
    archive = f"{on_s3.bucket()}/archive"
    for file in place.rglob("*.parquet"):
        store_at(archive).put(file.relative_to(place).as_posix(), file.read_bytes())
    driver = Driver(tmp_path, table={"location": f"{on_s3.bucket()}/clicks"})
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skipped(driver, 60)
    filled(driver, archive)
    assert only(driver).state == "done"
    found = audit(driver.config, "clicks", since=None, deep=True)
    assert found.adds_up, found.problems
    assert found.statement.total("rows") == 54
    other = Driver(tmp_path / "other")  # a Delta table in a bucket is an archive, too
    other.start()
    skipped(other, 60)
    filled(other, driver.lake)
    assert sum(r.end - r.start for r in only(other).left()) == 6


def test_an_account_from_any_version_on_adds_up_around_a_backfill(driver, tmp_path):
    archived(tmp_path, values(0, 120))
    filled(driver, archived(tmp_path, values(0, 80), partition=1), rows_max=40)
    driver.carry([log(values(120, 160))], {0: 160})
    for version in range(driver.table.snapshot().version + 1):
        found = audit(driver.config, "clicks", since=version, deep=True)
        assert found.adds_up, (version, found.problems)


def test_archives_are_read_in_step_oldest_partition_first(tmp_path):
    for place, days in (("a", (20, 22)), ("b", (21, 20))):
        for day in days:
            archived(tmp_path / place, values(0, 3), folder=f"day={day}")
    places = [str(tmp_path / place / "archive") for place in ("a", "b")]
    (tmp_path / "a" / "archive" / "_temporary").mkdir()
    (tmp_path / "a" / "archive" / "_temporary" / "x.parquet").write_bytes(b"half")
    found = [(name, [file.location[-9] for file in each]) for name, each in partitions(files(places, None))]
    assert found == [("day=20", ["a", "b"]), ("day=21", ["b"]), ("day=22", ["a"])]
    with pytest.raises(ConfigError, match="holds no Parquet, Avro or Delta files"):
        files([str(tmp_path / "none")], None)


@pytest.mark.parametrize("form", ["delta"])
def test_a_chunk_that_was_planned_before_somebody_else_filled_it_is_planned_anew(driver, tmp_path):
    archived(tmp_path, values(0, 120))
    place = archived(tmp_path, values(0, 80), partition=1)

    class Meanwhile(Silent):
        """After the first chunk, another backfill brings all that is left but the last offsets."""

        def settled(self, ticket, chunk):  # noqa: ARG002
            if chunk.left == 130:
                (tmp_path / "other").mkdir()
                other = archived(tmp_path / "other", values(0, 115))
                filled(driver, other)

    (found,) = filled(driver, place, rows_max=10, board=Meanwhile())
    assert found.ticket.state == "done"
    check(driver, 220 - 22, 22)


@pytest.mark.parametrize("form", ["delta"])
def test_a_column_that_the_live_writer_adds_meanwhile_is_followed(driver, tmp_path):
    place = archived(tmp_path, values(0, 120))

    class Meanwhile(Silent):
        def settled(self, ticket, chunk):  # noqa: ARG002
            if chunk.left == 90:
                driver.table.grow([pa.field("extra", pa.int64())])

    (found,) = filled(driver, place, rows_max=50, board=Meanwhile())
    assert len(found.chunks) == 2
    assert "extra" in pq.read_schema(max(Path(driver.lake).rglob("*.parquet"), key=lambda p: p.stat().st_mtime)).names
    check(driver, 72 + 90, 18)
