"""The decisions of a backfill: when it waits, what it chooses, what columns mean, what a ticket says."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.recovery.backfill.archive_source import column_roles
from headrace.recovery.backfill.chunk_commit import ChunkCommit
from headrace.recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, select_gap_records
from headrace.recovery.backfill.read_order import instants
from headrace.recovery.backfill.source_factory import mirror, mirror_segments
from headrace.recovery.backfill.throttle import BackfillPace, Delay, lag_delay, lag_max, rate_delay
from headrace.recovery.cli.fix.backfill import ProgressListener, describe_outcomes
from headrace.recovery.identity import is_gone, process
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.output.report import Screen
from headrace.writer.table.gap_records import NoSuchGap, find_gap_records
from headrace.writer.table.ledger.gap_record import GapRecord, from_json, merge_gap_record, parse_gap, to_json
from headrace.writer.table.log.operations.gaps import Fill
from tests.support.sample_records import GAP_FACTS, config, records

P0, P1 = TopicPartition("t", 1, 0), TopicPartition("u", 1, 0)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_backfill_waits_while_the_live_writer_is_behind_and_not_where_none_runs():
    limit = lag_max(timedelta(minutes=10))
    assert limit == timedelta(minutes=15)
    assert lag_max(timedelta(seconds=2)) == timedelta(seconds=32)
    assert (lag_delay(None, limit), lag_delay(900.0, limit)) == (None, None)
    assert isinstance(lag_delay(901.0, limit), Delay)


def test_a_backfill_waits_for_its_rate():
    assert rate_delay(100, 0.5, None) is None
    assert rate_delay(100, 1.0, 100.0) is None
    found = rate_delay(100, 0.25, 100.0)
    assert isinstance(found, Delay)
    assert found.seconds == 0.75


def test_a_pace_holds_pieces_while_the_lag_is_high_and_shows_that_it_lives():
    lags, now, alive, said = iter([100.0, 100.0, 1.0, 1.0, 1.0]), [0.0], [0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def live() -> None:
        alive[0] += 1

    pace = BackfillPace(
        lambda: next(lags),
        timedelta(seconds=60),
        10.0,
        alive=live,
        on_wait=said.append,
        clock=lambda: now[0],
        sleep=sleep,
    )
    for _ in range(2):
        pace.admit_records(records([b"x"] * 20))
    assert now[0] == pytest.approx(10 + 2)
    assert len([why for why in said if "behind" in why]) == 2
    assert alive[0] > 10


def test_columns_are_recognised_or_said():
    ours = ["id", "_topic", "_incarnation", "_partition", "_offset", "_kafka_time"]
    assert column_roles(ours, None)["offset"] == "_offset"
    assert column_roles(["partition", "offset", "value"], None)["value"] == "value"
    assert column_roles(["p", "o"], "partition=p, offset=o") == {"partition": "p", "offset": "o"}
    for names, said, why in (
        (["id"], None, "no offsets that can be recognised"), (["p"], "partition=p", "which column is the offset"),
        (["p"], "partition=p,offset=o", "no column 'o'"), (["p"], "partitions=p", "none of topic"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            column_roles(names, said)


def test_pairs_that_map_nothing_are_a_sentence():
    ranges = [OffsetRange(P0, 10, 20), OffsetRange(P1, 0, 5)]
    for text, why in (("x", "maps no offset"), ("0:1=2", "several topics"), ("t/7:1=2", "no offsets of t/7")):
        with pytest.raises(ConfigError, match=why):
            mirror_segments(ranges, [text], "copy")
    (found,) = mirror_segments(ranges, ["t/0:12=3"], "copy")
    assert (found.range, found.shift) == (OffsetRange(P0, 10, 20), -9)


class UnopenedTable(RecordTable):
    """A table whose pipeline is not to be opened."""

    def __init__(self, config: Config) -> None:
        self.name = "clicks"
        self.config = config

    @property
    def pipeline(self) -> LocalPipeline:
        raise AssertionError("a registry is asked for schemas")


def test_a_mapping_is_refused_before_the_registry_is_asked(tmp_path: Path) -> None:
    gap = parse_gap(3, {**GAP_FACTS, "kind": "gap", "id": "abcdef", "cause": "latest", "ranges": []})
    assert isinstance(gap, GapRecord)
    with pytest.raises(ConfigError, match="maps no offset"):
        mirror(UnopenedTable(config(tmp_path)), gap, "broker:9092/clicks", ["x"])


def test_instants_lie_between_the_first_and_the_last_record():
    found = instants(NOON, NOON + timedelta(hours=1), 1_000, 100)
    assert len(found) == 19
    assert found == sorted(found)
    assert found[0] > NOON
    assert found[-1] < NOON + timedelta(hours=1)
    assert instants(NOON, NOON, 1_000, 100) == []


def test_a_gap_record_is_named_by_its_beginning_and_only_open_ones_are_chosen():
    gap = parse_gap(3, {**GAP_FACTS, "kind": "gap", "id": "abcdef", "cause": "latest", "ranges": []})
    other = parse_gap(4, {**GAP_FACTS, "kind": "gap", "id": "abcxyz", "cause": "latest", "ranges": []})
    lost = parse_gap(5, {"kind": "lost", "gap": "abcxyz", "by": "a", "reason": "r", "left": 0})
    assert isinstance(gap, GapRecord)
    assert isinstance(other, GapRecord)
    assert isinstance(lost, GapRecord)
    gap_records = {"abcdef": gap, "abcxyz": merge_gap_record(other, lost)}
    assert select_gap_records(gap_records, BackfillRequest()) == [gap]
    assert select_gap_records(gap_records, BackfillRequest(("abcdef",))) == [gap]
    assert select_gap_records(gap_records, BackfillRequest(("abcxyz",))) == []
    assert find_gap_records("clicks", gap_records, "abcd") == [gap]
    assert find_gap_records("clicks", gap_records, "abcxyz") == [gap_records["abcxyz"]]
    with pytest.raises(NoSuchGap, match="'abc' is no gap of pipeline 'clicks'; there are: abcdef, abcxyz"):
        find_gap_records("clicks", gap_records, "abc")


def test_a_gap_record_is_what_its_entries_say_however_they_are_stored():
    ranges = [{**vars(P0), "start": 10, "end": 50}]
    hints = [{"from": None, "until": NOON.isoformat()}]
    opened = parse_gap(
        3, {**GAP_FACTS, "kind": "gap", "id": "g", "cause": "retention", "ranges": ranges, "hints": hints}
    )
    account = {**vars(P0), "spans": [[10, 20], [30, 35]], "read": 14, "rows": 13, "dead_letters": 1,
               "without_records": {"offsets": 1}}  # fmt: skip
    fill = {"kind": "fill", "gap": "g", "ranges": [account], "source": "kafka", "left": 25, "done": False, "files": 2}
    filled = parse_gap(4, fill)
    assert isinstance(opened, GapRecord)
    assert isinstance(filled, GapRecord)
    whole = merge_gap_record(opened, filled)
    assert [(r.start, r.end) for r in whole.unfilled_offsets.ranges()] == [(20, 30), (35, 50)]
    assert (whole.rows, whole.files, whole.changes, whole.state) == (13, 2, 1, "open")
    assert whole.backfilled[P0].sound
    assert merge_gap_record(from_json(to_json(opened)), from_json(to_json(filled))) == whole
    assert from_json(to_json(whole)) == whole
    assert not merge_gap_record(whole, filled).backfilled[P0].sound, "the same offsets a second time"
    assert parse_gap(5, {"kind": "batch"}) is None


def test_a_fill_that_leaves_nothing_ends_its_gap_record():
    with pytest.raises(ValueError, match="ends its gap record"):
        Fill("x", "g", 0, 5, 0, done=False)
    with pytest.raises(ValueError, match="at least nothing"):
        Fill("x", "g", 0, -1, 0, done=True)
    assert GapRecord("g").unfilled_offsets.ranges() == []


def test_a_process_of_this_machine_that_is_gone_is_known_to_be():
    mine = process("ann@here")
    assert not is_gone(mine)
    assert not is_gone("ann@here")
    assert is_gone(f"{mine.rpartition('/')[0]}/99999999")
    assert not is_gone("ann@there/otherhost/1")


def test_a_terminal_gets_a_bar_with_what_is_left_and_a_pipe_a_line_a_chunk():
    ranges = [{**vars(P0), "start": 0, "end": 100}]
    opened = parse_gap(3, {**GAP_FACTS, "kind": "gap", "id": "abcdefghij", "cause": "latest", "ranges": ranges})
    assert isinstance(opened, GapRecord)
    chunk = ChunkCommit(version=9, offsets=60, rows=58, files=2, bytes=10, left=40, done=False)
    said = {}
    for terminal in (True, False):
        screen = Screen(as_json=False, has_lines=True)
        screen.out = out = Console(file=StringIO(), force_terminal=terminal, width=140)
        with ProgressListener("clicks", screen) as board:
            board.on_begin(opened, 100)
            board.on_chunk(opened, chunk)
            board.on_wait("the live writer is 90 s behind, beyond 60 s")
        assert isinstance(out.file, StringIO)
        said[terminal] = out.file.getvalue()
    assert "60/100" in said[True]
    assert "waits: the live writer is 90 s behind" in said[True]
    assert "version 9: 60 offsets, 58 rows in 2 files; 40 left" in said[False]
    out = Console(file=StringIO(), width=140)
    report = describe_outcomes("clicks", [GapOutcome(opened, [chunk], opened.unfilled_offsets)])
    report.render(out)
    assert report.exit_code == 1
    assert isinstance(out.file, StringIO)
    assert "100 offsets are not in this source: t/0 [0, 100)" in " ".join(out.file.getvalue().split())
