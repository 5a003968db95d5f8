"""How far the tables of a route are, by a driver and without one: what waits, since when, and what is said of it."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.writer.batch.route import NoTarget, Route, RouteRule
from headrace.writer.batch.task_report import NAMES_MAX, Report
from headrace.writer.cli.look.audit import run_audit
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.clients.notifications import Event
from headrace.writer.columns.schema_plan import RejectedSchema
from headrace.writer.commit.builder import merge_reports
from headrace.writer.core.errors import LimitReached
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.driver.batches.commit_report import CommitReport
from headrace.writer.driver.batches.tasks import Tasks
from headrace.writer.output.command_inputs import ChosenPipelines
from headrace.writer.schemas.tracker import ASK_AGAIN
from headrace.writer.status import from_table
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.web.metrics_export import families
from tests.support import commits
from tests.support.route_targets import (
    BY_HEADER,
    PART,
    TEXT,
    RouteTables,
    hold_row,
    put_back,
    refusing_tables,
    row,
    take_away,
)

LATER = datetime.now(UTC) + timedelta(hours=2)


def commit(one: RouteTables, *places: str, at: datetime) -> int:
    """Commit as many offsets as places, with a row for each; put together at a time. Returns the version."""
    start = one.tables.main.snapshot().frontier(PART) or 0
    part, count = OffsetRange(PART, start, start + len(places)), len(places)
    account = {**part.to_json(), "read": count, "rows": count, "dead_letters": 0, "quarantined": 0, "tombstones": 0}
    about = {"ranges": [account], "assembled": at.isoformat(), "bytes": 100, "files": count}
    facts = {**commits.facts(0, count), **about}
    side = {place: [row(place, start + i)] for i, place in enumerate(places) if Path(place).is_dir()}
    side |= {place: [row(one.tables.main.location, start + i)] for i, place in enumerate(places) if place not in side}
    one.tables.main.append(
        Batch(uuid4().hex, one.epoch, [part], side_files=side, settled=one.tables.settled, facts=facts),
        one.tables.main.snapshot(),
    )
    return one.tables.main.snapshot().version


def described(one: RouteTables, now: datetime = LATER) -> dict[str, dict[str, Any]]:
    """The tables as `headrace status --json` has them without a driver, by name."""
    view = from_table.view("p", one.config, BrokerUnreachable("away"), now)
    return {target["name"]: target for target in document([view], now, source="lake")["pipelines"]["p"]["targets"]}


def test_without_a_driver_a_table_is_as_far_behind_as_its_driver_said(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    commit(one, a, b, at=LATER - timedelta(hours=1))
    one.tables.apply_side_files()
    assert {name: found["behind"] for name, found in described(one).items()} == {"a": None, "b": None}
    take_away(a)
    first = LATER - timedelta(minutes=30)
    version = commit(one, a, b, at=first)
    commit(one, a, at=LATER - timedelta(minutes=1))
    one.tables.apply_side_files()
    newest = one.tables.main.snapshot().version
    told, found = one.targets.states(), described(one)
    assert told["a"].pending == (version - 1, 2, 0, first)
    assert told["b"].pending == (newest, 0, 0, None)
    assert list(found) == ["a", "b"], "the one that is behind first"
    keys = ("applied_version", "waiting_entries", "held_bytes", "behind_seconds")
    assert [found["a"][key] for key in keys] == [version - 1, 2, 0, 1_800.0]
    assert [found["b"][key] for key in keys] == [newest, 0, 0, None]
    assert "no folder" not in found["a"]["behind"]
    assert a in found["a"]["behind"]
    put_back(a)


def test_the_clock_of_a_table_behind_does_not_begin_anew_with_a_process(tmp_path: Path) -> None:
    a, first = str(tmp_path / "a"), LATER - timedelta(minutes=30)
    one = RouteTables(tmp_path, {"targets": {"a": a}})
    take_away(a)
    one.tables.main.store.put("_headrace/held/1.columns", pa.schema([]).serialize().to_pybytes())
    commit(one, a, at=first)
    for started in (one, RouteTables(tmp_path, {"targets": {"a": a}})):
        started.tables.apply_side_files()
        state = started.targets.states()["a"]
        assert state.pending.since == first
        assert state.why
        progress = Progress("p", now=lambda: LATER)
        progress.set(targets={"a": state})
        samples = {s.name: s.value for family in families({"p": progress}, LATER) for s in family.samples}
        assert samples["headrace_target_behind_seconds"] == 1_800.0
        assert samples["headrace_target_waiting_entries"] == 1
        (told,) = document([progress.view()], LATER)["pipelines"]["p"]["targets"]
        assert told["behind_seconds"] == 1_800.0


def test_targets_that_a_killed_writer_left_behind_are_behind_until_a_start(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    commit(one, a, at=LATER - timedelta(minutes=5))
    found = described(one)
    assert (found["a"]["behind_seconds"], found["a"]["behind"]) == (
        300.0, "no driver has given it what was committed for it; a start does",
    )  # fmt: skip
    assert found["b"]["behind"] is None
    RouteTables(tmp_path, {"targets": {"a": a, "b": b}})
    assert described(one)["a"]["behind"] is None


def test_bytes_that_wait_at_the_log_are_those_that_the_limit_counts(tmp_path: Path) -> None:
    a = str(tmp_path / "a")
    route = {"targets": {"a": a}, "held": {"max_bytes": "1 B"}}
    one = RouteTables(tmp_path, route)
    take_away(a)
    hold_row(one, a, 1)
    found = described(one)["a"]
    assert found["held_bytes"] > 0
    one.tables.apply_side_files()
    assert one.targets.states()["a"].pending.held_bytes == found["held_bytes"]
    with pytest.raises(LimitReached, match=r"refuses, and .* wait for it, the first for"):
        one.targets.route()


def test_a_table_that_was_made_again_is_said_to_be_another(tmp_path: Path) -> None:
    a = str(tmp_path / "a")
    one = RouteTables(tmp_path, {"targets": {"a": a}})
    commit(one, a, at=LATER)
    one.tables.apply_side_files()
    take_away(a)
    commit(one, a, at=LATER)
    Path(a).unlink()
    RouteTables(tmp_path / "other", {"targets": {"a": a}})
    assert described(one)["a"]["behind"] == "it was removed and made again"


def test_an_entry_without_a_time_of_its_own_waits_since_it_was_logged(tmp_path: Path) -> None:
    a, before = str(tmp_path / "a"), datetime.now(UTC) - timedelta(seconds=1)
    one = RouteTables(tmp_path, {"targets": {"a": a}})
    take_away(a)
    side = {a: [row(one.tables.main.location, 0)]}
    one.tables.main.append(
        Batch("x", one.epoch, [OffsetRange(PART, 0, 1)], side_files=side), one.tables.main.snapshot()
    )
    tables = all_tables("p", one.config)
    tables.collect_pending()
    since = tables.pending_entries(a).since
    assert since is not None
    assert before <= since <= datetime.now(UTC)


def test_a_schema_that_a_table_rejects_is_counted_and_forgotten_after_a_while(tmp_path: Path) -> None:
    bucket = {"type": "field", "field": "country"}
    other = TEXT.replace('"name": "R"', '"name": "S"').replace('"x"', '"country"').replace('"int"', '"string"')
    one = RouteTables(
        tmp_path, {"targets": {"R": str(tmp_path / "a"), "S": str(tmp_path / "b")}}, {1: TEXT, 2: other}, bucket=bucket
    )
    assert set(one.targets.rejected_schemas()) == {1}
    progress, settings = Progress("p"), one.config.pipelines["p"]
    tasks = Tasks(settings, [one.tables.main], one.targets._schemas, None, progress, None, None, targets=one.targets)  # type: ignore[arg-type]
    tasks.count_schemas()
    assert progress.view().schemas == {"native": 1, "single": 0, "rejected": 1}
    asked_s = one.targets._targets["R"].asked_s[1]
    one.targets.forget_rejected_schemas(asked_s + ASK_AGAIN.total_seconds() - 1)
    assert set(one.targets.rejected_schemas()) == {1}
    one.targets.forget_rejected_schemas(asked_s + ASK_AGAIN.total_seconds())
    assert one.targets.rejected_schemas() == {}
    assert 1 not in one.targets._targets["R"].plan.schemas, "the next batch that meets it asks again"
    assert not isinstance(one.targets._targets["S"].plan.schemas[2], RejectedSchema)


class Notified(list[Event]):
    """Takes notifications."""

    send = list.append


def told(one: RouteTables, report: CommitReport) -> None:
    one.tables.apply_side_files()
    report.report_targets(one.targets.states(), one.targets.refused, one.targets.beyond, one.targets.section)


def test_names_without_a_table_and_tables_behind_are_notified_once(tmp_path: Path) -> None:
    route = {
        **BY_HEADER, "max_targets": 1, "unrouted": "b",
        "targets": {"b": str(tmp_path / "b"), "log": str(tmp_path / "log" / "{name}"), "*": str(tmp_path / "{name}")},
    }  # fmt: skip
    notified, progress = Notified(), Progress("p")
    one, report = RouteTables(tmp_path, route), CommitReport("p", progress, notified)  # type: ignore[arg-type]
    one.learn("log")
    told(one, report)
    told(one, report)
    one.learn("n1", "n2", "n3")
    told(one, report)
    one.targets.keep(replace(Report(), beyond_names={"n4"}))
    told(one, report)
    take_away(str(tmp_path / "b"))
    commit(one, str(tmp_path / "b"), at=LATER)
    told(one, report)
    told(one, report)
    assert [(event.kind, event.severity) for event in notified] == [
        ("target_refused", "critical"), ("targets_beyond_max", "critical"), ("target_behind", "warning"),
    ]  # fmt: skip
    assert "no table can be made for log (" in notified[0].text
    assert notified[0].text.endswith("Their records go by route.unrouted: b.")
    assert "route.max_targets is 1, and 2 names more got no table: n2, n3." in notified[1].text
    assert notified[2].fields["targets"].keys() == {"b"}
    assert progress.view().without_table == {"refused": 1, "beyond_max": 3}
    samples = {
        s.labels["reason"]: s.value
        for family in families({"p": progress}, LATER) for s in family.samples
        if s.name == "headrace_names_without_table"
    }  # fmt: skip
    assert samples == {"refused": 1, "beyond_max": 3}
    shown = document([progress.view()], LATER)["pipelines"]["p"]
    assert "4 names without a table" in shown["health"]["reasons"]


def test_a_start_that_finds_as_many_tables_as_may_be_still_says_which_names_have_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks do not ask for names beyond the limit; they report them."""
    route = {**BY_HEADER, "targets": {"*": str(tmp_path / "{name}")}, "max_targets": 1}
    RouteTables(tmp_path, route).learn("a")
    one = RouteTables(tmp_path, route)
    assert one.targets.route().is_full
    assert [name for name in ("a", "b", "") if one.targets.route().is_beyond(name)] == ["b"]
    reports = [replace(Report(), beyond_names={f"n{at:05}" for at in range(some)}) for some in (900, 1_200)]
    one.targets.keep(merge_reports(Report.from_json(report.to_json()) for report in reports))
    assert len(one.targets.beyond) == NAMES_MAX
    assert len([line for line in caplog.messages if "targets_beyond_max" in line]) == 1


def test_a_name_of_a_rule_with_a_table_is_not_beyond() -> None:
    route = Route("topic", "", [RouteRule("a.*", "a"), RouteRule("*")], is_full=True, otherwise="rest")
    assert [route.is_beyond(name) for name in ("a.x", "b")] == [False, True]
    assert not replace(route, is_full=False).is_beyond("b")


@pytest.mark.parametrize("topics", [["b"] * 5, ["b", "a", "b"], ["b", "c", "b", "b"], ["c"], []])
def test_a_slice_of_one_topic_is_split_as_any_other(topics: list[str]) -> None:
    """Its names are not encoded: each record goes where it would go among others."""
    route = Route("topic", "", [RouteRule("b", "B"), RouteRule("a", "A")])
    records = pa.table({"topic": pa.array(topics, pa.string()), "offset": pa.array(range(len(topics)), pa.int64())})
    found: dict[int, Any] = {}
    for share in route.shares(1, records, records):
        mine = records if share.mask is None else records.filter(share.mask)
        for at, offset in enumerate(mine.column("offset").to_pylist()):
            found[offset] = (share.target, share.name(at))
        assert share.distinct_names() == {name for target, name in found.values() if target == share.target}
    wanted = {"a": "A", "b": "B"}
    assert found == {at: (wanted.get(name, NoTarget.UNROUTED), name) for at, name in enumerate(topics)}


def test_an_audit_counts_each_table_and_the_sums_are_those_of_all(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = RouteTables(tmp_path, {"targets": {"a": a, "b": b, "c": str(tmp_path / "c")}})
    for _ in range(3):
        commit(one, a, b, at=LATER)
        one.tables.apply_side_files()
    commit(one, a, at=LATER)
    pipelines = ChosenPipelines(["p"], one.config)
    report = run_audit(pipelines)
    found = report.document()["pipelines"]["p"]
    assert found["adds_up"], found["problems"]
    assert [(t["name"], t["rows"], t["commits_waiting"]) for t in found["targets"]] == [
        ("a", 4, 1), ("b", 3, 0), ("c", 0, 0),
    ]  # fmt: skip
    sums = Counter[str]()
    for target in found["targets"]:
        sums.update({key: target[key] for key in ("rows", "late_table")})
    assert sums == {key: found["records"][key] for key in ("rows", "late_table")}
    assert not run_audit(pipelines, since="5").pipelines["p"].targets
    out = StringIO()
    report.render(Console(file=out, width=80, highlight=False))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert [line for line in lines if line[:1] in (["a"], ["b"], ["c"])] == [
        ["a", "4", "1"],
        ["b", "3", "0"],
        ["c", "0", "0"],
    ]
    assert ["all", "7"] in lines
    assert refusing_tables(one) == {}
