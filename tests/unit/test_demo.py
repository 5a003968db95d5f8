"""What the demo shows is what there is: numbers from a table's log, the writer's status, the account."""

import io
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from rich.console import Console

from headrace import bucketers
from headrace.writer.batch.lateness import LateTier, find_late_rows
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo import produce, status_view, verification
from headrace.writer.demo.devstack import events
from headrace.writer.demo.devstack.workspace import Interruption, Stopped, Workspace
from headrace.writer.demo.interactive import query_command
from headrace.writer.demo.status_view import View
from headrace.writer.demo.table_reader import LakeReader, ReadTable, TableLog
from headrace.writer.demo.terminal import Screen
from headrace.writer.demo.workload import ProducedMessages
from headrace.writer.output import status_screen
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.operations.rows import Batch
from tests.support.demo_view import VIEW
from tests.support.table_formats import parquet_table

SINCE = datetime(2026, 11, 20, 5, tzinfo=UTC)
CLICKS, INSTALLS = ("clicks", 0), ("installs", 0)


# The lake's log


def commit(place, hours, *, facts=None, **txn):
    table = pa.table({"hour": hours, "n": list(range(len(hours)))})
    properties = CommitProperties(
        custom_metadata=None if facts is None else {"headrace": json.dumps(facts)},
        app_transactions=[Transaction(name, version) for name, version in txn.items()],
    )
    write_deltalake(
        place, table, mode="append", schema_mode="merge", partition_by=["hour"], commit_properties=properties
    )


def test_the_log_is_followed_as_it_grows(tmp_path):
    place = tmp_path / "lake" / "a table"
    log = TableLog(place)
    assert not log.follow()
    assert (log.version, log.files, log.commits) == (-1, set(), [])
    commit(place, ["h1", "h2"], facts={"kind": "start"}, epoch=1)
    assert log.follow()
    assert not log.follow()
    assert (log.columns, len(log.files), log.transactions) == (("hour", "n"), 2, {"epoch": 1})
    assert log.commits == [], "no batch yet"
    DeltaTable(place).alter.add_columns([Field("more", "string")])
    commit(place, ["h2", "h3"], facts={"kind": "batch", "ranges": [{"rows": 2, "read": 3}, {"rows": 5}]}, part=7)
    assert log.follow()
    (found,) = log.commits
    assert (found.version, found.columns, found.frontier) == (log.version, ("hour", "n", "more"), {"part": 7})
    table = DeltaTable(place)
    table.optimize.compact()
    log.follow()
    assert {Path(path).name for path in log.files} == {Path(uri).name for uri in table.file_uris()}
    assert len(log.files) == 3, "files that went are gone"


# The status


def drawn(view, width, encoding="utf-8"):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=out, width=width, force_terminal=True, color_system=None).print(status_view.render(view))
    out.flush()
    return [line.rstrip() for line in out.buffer.getvalue().decode(encoding).splitlines()]


@pytest.mark.parametrize("width", [30, 44, 60, 79, 80, 100, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_status_fits_with_room_for_what_a_terminal_echoes(width, encoding):
    assert all(len(line) <= width - 2 for line in drawn(VIEW, width, encoding))


@pytest.mark.parametrize("width", [80, 120])
def test_the_demo_shows_the_status_of_the_product_below_a_line_of_its_own(width):
    head, *lines = drawn(VIEW, width)
    assert head == "demo  the writer runs  120,000 of 200,000 events produced"
    out = io.StringIO()
    Console(file=out, width=width - 2, color_system=None).print(status_screen.block("events", VIEW.status))
    assert lines == [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_writer_that_does_not_answer_yet_has_no_status():
    assert drawn(View("the writer starts", "events", 5_000, 200_000), 80) == [
        "demo  the writer starts  5,000 of 200,000 events produced"
    ]


def test_when_the_demo_sends_no_more_it_counts_none():
    assert drawn(replace(VIEW, produced=None), 80)[0] == "demo  the writer runs"
    assert "produced" not in status_view.sentence(replace(VIEW, produced=None))


def test_the_screen_has_no_colour_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True).print(status_view.render(VIEW))
    assert "\x1b[3" not in out.getvalue()
    assert "\x1b[9" not in out.getvalue()


# The screen without a terminal


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "")
    return Screen(Console(file=io.StringIO(), width=100))


def test_without_a_terminal_each_commit_is_a_line_and_nothing_moves(screen):
    assert not screen.moves
    with screen.live():
        screen.show(View("", "events", 9, 9))
        screen.show(VIEW)
        screen.show(replace(VIEW, produced=130_000))
    with screen.step("doing [it]", "done [it]"):
        pass
    text = screen.console.file.getvalue()
    assert "\x1b" not in text
    first, second = text.splitlines()
    status = status_screen.line("events", VIEW.status, VIEW.status["at"])
    assert first == f"  produced=120000 of=200000 {status}"
    assert " lag_offsets=60000 " in first
    assert second.startswith("✓ done [it]  ")


def test_tables_in_a_pipe_have_no_blanks_at_their_ends_and_long_lines_are_whole(screen):
    screen.write(
        verification.show(verification.account_of("none", "none", {CLICKS: 0}, lambda _: ReadTable([]), since=SINCE))
    )
    screen.write("x" * 300)
    lines = screen.console.file.getvalue().splitlines()
    assert lines[0] == "The lake, as DuckDB reads it"
    assert lines[-1] == "x" * 300
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_pipe_that_wants_colour_gets_no_live_status(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = Screen(Console(file=io.StringIO(), width=100))
    assert screen.console.is_terminal
    assert not screen.moves


def test_where_only_ascii_can_be_written_ascii_is_written():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    screen = Screen(Console(file=out, width=100))
    screen.finish_step("well")
    screen.finish_step("badly", good=False)
    screen.write(
        verification.show(verification.account_of("none", "none", {CLICKS: 0}, lambda _: ReadTable([]), since=SINCE))
    )
    out.flush()
    assert out.buffer.getvalue().decode("ascii").startswith("ok well ")


# Signals


def test_a_signal_that_was_taken_as_an_answer_lets_the_next_one_be_the_first():
    interruption = Interruption()
    interruption.asked = 2
    with pytest.raises(Stopped):
        interruption.check()
    interruption.accept()
    interruption.check()
    assert interruption.asked is None
    interruption.asked = 15
    with pytest.raises(Stopped):
        interruption.check()
    assert interruption.exit_code == 143


# Events


@pytest.mark.parametrize("minute", range(0, 60, 7))
def test_of_events_up_to_now_exactly_so_many_are_late_as_asked_for(minute):
    now = SINCE + timedelta(hours=12, minutes=minute, seconds=1)
    hours = produce.ON_TIME / timedelta(hours=1)
    made = events.generate("clicks_2", 10_000, now=now, hours=hours)
    found = [
        (what, record["event_time"]) for what, _, record in events.move_event_times(made, events.spread(10_000, 100, 0))
    ]
    times = pa.array([at for _, at in found], pa.timestamp("us", "UTC"))
    buckets = bucketers.build({"type": "event_time", "width": timedelta(hours=1)}).assign(
        pa.table({"event_time": times}), times
    )
    closed_until = now - Seal().out_of_orderness  # no watermark is later
    closed = find_late_rows(buckets, closed_until, None, [LateTier(None, "reopen")])
    assert closed.mask("reopen").to_pylist() == [what == "late" for what, _ in found]
    assert closed.mask("reopen").true_count == 100


@pytest.mark.parametrize(
    ("n", "late", "ahead"), [(10, 0, 0), (10, 3, 2), (10, 10, 0), (7, 3, 4), (1, 0, 1), (5000, 25, 2)]
)
def test_late_events_and_those_ahead_are_as_many_as_asked_for(n, late, ahead):
    found = events.spread(n, late, ahead)
    assert Counter(found.values()) == Counter({"late": late, "ahead": ahead}) - Counter()
    assert all(0 <= at < n for at in found)
    assert list(found) == sorted(found)


def test_the_second_version_of_clicks_has_one_more_field_that_is_always_set():
    names = [field["name"] for field in events.SCHEMAS["clicks"]["fields"]]
    assert [field["name"] for field in events.SCHEMAS["clicks_2"]["fields"]] == [*names, events.NEW_FIELD]
    records = [record for _, record in events.generate("clicks_2", 500, now=SINCE)]
    assert all(record[events.NEW_FIELD] for record in records)
    encode = events.encoder(events.SCHEMAS["clicks_2"], 7)
    assert all(encode(record) for record in records)


# The account


def write(place, offsets, **columns):
    count = len(offsets)
    provenance = {"_topic": ["clicks"] * count, "_incarnation": [1] * count, "_partition": [0] * count}
    write_deltalake(
        place, pa.table({**provenance, "_offset": offsets, **columns}), mode="append", schema_mode="merge",
        partition_by=["hour"] if "hour" in columns else None,
    )  # fmt: skip


def rows(place, offsets, *hours, **columns):
    times = [SINCE.replace(hour=hour, minute=30) for hour in hours]
    write(place, offsets, hour=[f"{time:%Y-%m-%dT%H}" for time in times], event_time=times, **columns)


def account_of(place, dead_letters, ends):
    return verification.account_of(str(place), str(dead_letters), ends, LakeReader(place).open, since=SINCE)


def test_an_account_that_adds_up(tmp_path):
    lake, dead_letters = tmp_path / "lake", tmp_path / "letters"
    rows(lake, [0, 1, 4], 5, 6, 1)
    rows(lake, [5], 7, **{events.NEW_FIELD: ["email/camp3"]})
    write(
        dead_letters, [2, 3], outcome=["dead_letter", "quarantined"],
        error=[
            "bad (byte 7)",
            "event_time is 2026-12-20 05:30:00.123Z, outside [2025-11-20T05:00:00Z, 2026-11-21T05:00:00Z]",
        ],
    )  # fmt: skip
    given = ProducedMessages(
        SINCE, Counter({CLICKS: 3}), Counter({CLICKS: 1}), Counter({CLICKS: 1}), Counter({CLICKS: 1}), new_field=1
    )
    found = account_of(lake, dead_letters, given.ends)
    assert found.differences(given) == []
    sentence = "6 produced = 4 rows + 1 quarantined + 1 dead letters + 0 lost, 0 twice"
    assert verification.sentence(found) == sentence
    assert [(b.name, b.rows, b.delayed) for b in found.buckets][:2] == [
        ("2026-11-20T01", 1, 1),
        ("2026-11-20T05", 1, 0),
    ]
    assert found.reasons == (
        ("dead_letter", "bad", 1),
        ("quarantined", "event_time lies outside what the writer believes", 1),
    )


def test_an_account_that_does_not_add_up_names_the_difference(tmp_path):
    lake, dead_letters = tmp_path / "lake", tmp_path / "letters"
    rows(lake, [0, 1], 5, 5)
    write(dead_letters, [2], error=["bad"], outcome=["dead_letter"])
    write(lake, [1, 2, 9], hour=["2026-11-20T05"] * 3, event_time=[SINCE, SINCE, SINCE.replace(hour=6)])
    given = ProducedMessages(
        SINCE, Counter({CLICKS: 2}), Counter({CLICKS: 1}), Counter({CLICKS: 1}), Counter({CLICKS: 2}), 3
    )
    found = account_of(lake, dead_letters, given.ends)
    assert (found.lost, found.twice, found.unknown) == (3, 2, 1)
    assert found.differences(given) == [
        "3 of 6 offsets are in no table",
        "2 offsets are there twice",
        "1 offsets were never produced",
        "1 rows lie in the bucket of another hour",
        "5 rows have 4 distinct offsets",
        "3 good events became 5 rows",
        "1 delayed events became 0 delayed rows",
        "1 events from the future left 0 quarantined",
        "2 broken values became 1 dead letters",
        "3 events had referrer_campaign, 0 rows have it",
    ]


def test_the_question_for_duckdb_is_a_command_that_answers(tmp_path, capfd):
    import shlex
    import subprocess

    workspace = Workspace(tmp_path / "it's a lake")
    write_deltalake(
        workspace.table, pa.table({"hour": ["2026-11-20T05"] * 3, "_topic": ["clicks", "clicks", "installs"]})
    )
    command = query_command(workspace).plain.split("\n", 1)[1].strip()
    subprocess.run(shlex.split(command), check=True, timeout=400)
    said = capfd.readouterr().out
    assert "2026-11-20T05" in said
    assert "installs" in said


def in_folders(place):
    """Write a Parquet table with two files, as the writer does, and one that no commit names."""
    table = parquet_table(str(place), "clicks")
    table.create(pa.schema([("_topic", pa.string()), ("hour", pa.string())]), ["hour"])
    epoch = table.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-1"]})
    files = []
    for hour, offsets in (("2026-11-20T05", [0, 1]), ("2026-11-20T06", [2]), ("2026-11-20T07", [3])):
        to = Destination(store_at(str(place)), ("hour",), "test", 2**20, hidden=True)
        path, sink = to.open((hour,))
        count = len(offsets)
        found = {
            "_topic": ["clicks"] * count, "_incarnation": [1] * count, "_partition": [0] * count, "_offset": offsets,
            "event_time": [SINCE.replace(hour=int(hour[-2:]))] * count,
        }  # fmt: skip
        pq.write_table(pa.table(found), sink)
        size = sink.tell()
        sink.close()
        files.append(StagedFile(path, (hour,), count, size, "{}", SINCE, SINCE, {}))
    facts = {"ranges": [{"rows": 3}]}
    table.append(
        Batch("a", epoch, [OffsetRange(TopicPartition("clicks", 1, 0), 0, 3)], files[:2], facts=facts), table.snapshot()
    )
    return files


def test_a_parquet_table_is_accounted_for_by_its_folders(tmp_path):
    place = tmp_path / "lake"
    first, second, _ = in_folders(place)
    given = ProducedMessages(SINCE, Counter({CLICKS: 3}))
    found = account_of(place, tmp_path / "none", given.ends)
    assert (found.damage(), found.rows) == ([], 3)
    assert [(b.name, b.rows, b.bytes) for b in found.buckets] == [
        ("2026-11-20T05", 2, first.bytes), ("2026-11-20T06", 1, second.bytes)
    ]  # fmt: skip
    log = TableLog(place)
    assert log.follow()
    assert (log.version, log.files, len(log.commits)) == (2, {first.path, second.path}, 1)


def test_the_question_for_a_parquet_table_answers_too(tmp_path, capfd):
    import shlex
    import subprocess

    workspace = Workspace(tmp_path / "it's a lake", "parquet")
    in_folders(workspace.table)
    subprocess.run(shlex.split(query_command(workspace).plain.split("\n", 1)[1].strip()), check=True, timeout=400)
    said = capfd.readouterr().out
    assert "2026-11-20T06" in said
    assert "2026-11-20T07" not in said
