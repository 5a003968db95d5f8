"""One topic fills several tables: each record is in one of them, however the writer dies between commit and tables."""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.writer.config.loader import load
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.table.log.foreign_writes import CommitFailed
from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
Message = tuple[bytes, bytes]
CLICK, INSTALL = "headrace.demo.Click", "headrace.demo.Install"


def values(site: Site, topic: str, clicks: int, installs: int, seed: int = 7) -> list[Message]:
    """Clicks and installs in turn, then what is left of the longer list."""
    both = [
        site.values(topic, count, seed=seed, kind=kind, subject=f"{topic}-{kind}")
        for count, kind in ((clicks, "clicks"), (installs, "installs"))
    ]
    return [message for pair in zip_longest(*both) for message in pair if message]


def fill(site: Site, topic: str, clicks: int, installs: int, seed: int = 7) -> None:
    """Produce clicks and installs in turn, and three values that are broken."""
    sound = values(site, topic, clicks, installs, seed)
    at = 2 * min(clicks, installs)
    # Which record the id 1 names depends on what else this registry has seen.
    site.send(topic, [*sound[:at], (b"k", b"broken"), *sound[at:], (b"k", b"\0\0\0\0\1"), (b"k", b"")])


def offsets(table: Path) -> set[int]:
    """Offsets of a table's rows, of a topic with one partition; each once."""
    found = [int(str(offset)) for (offset,) in oracle.rows(table, "_offset")]
    assert len(found) == len(set(found)), "a row is there twice"
    return set(found)


def targets(site: Site, source: str) -> list[dict[str, Any]]:
    """The tables as `headrace status` has them, which asks the driver, or else the lake."""
    (found,) = json.loads(say("status", str(site.config), "--json"))["pipelines"].values()
    assert found["source"] == source
    return list(found["targets"])


def check_counts(site: Site, rows: dict[str, int], *, rewound: int) -> None:
    """Each table has its rows in the audit, and they are all that there are; so many went by a rewind."""
    (found,) = json.loads(say("audit", str(site.config), "--json"))["pipelines"].values()
    assert found["rows_removed_by"].get("rewind", 0) == rewound
    assert {target["name"]: target["rows"] - target["rows_removed"] for target in found["targets"]} == rows
    assert sum(target["rows"] for target in found["targets"]) == found["records"]["rows"] + found["rows_by_event_time"]
    assert sum(target["rows_removed"] for target in found["targets"]) == found["rows_removed"]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize(
    "fault",
    ["", "before_commit:2", "after_commit:2", "before_redo:1", "before_apply:2", "after_apply:2", "after_apply:3"],
)
def test_a_topic_fills_two_tables_and_no_record_is_lost_or_twice(
    site: Site, topic: MakeTopic, fault: str, form: str
) -> None:
    name = topic(1)
    lake = site.root / "lake"
    route = {"targets": {CLICK: str(lake / "clicks"), "*": str(lake / "{namespace}" / "{name}")}}
    log = site.pipeline("events", [name], form=form, raw=True, commit={"max_offsets": 200}, route=route)
    fill(site, name, 150, 100)
    if fault:
        site.once(env={"HEADRACE_FAULT": fault}, code=-9)
    site.once()
    fill(site, name, 20, 30, seed=8)
    output = site.once()
    clicks, installs, dead = (
        offsets(lake / "clicks"),
        offsets(lake / "headrace.demo" / "Install"),
        offsets(Path(f"{log}_dead_letters")),
    )
    assert (len(clicks), len(installs), len(dead)) == (170, 130, 6), output
    assert clicks | installs | dead == offsets(Path(f"{log}_raw")) == set(range(306))
    assert oracle.rows(log, "count(*)") == [], "the log has no rows"
    assert oracle.frontier_of(log, "events") == {(name, 0): 306}
    assert "306 read = 300 rows + 6 dead letters. It adds up." in say("audit", str(site.config), "--deep")
    newest = oracle.replay(log).version
    applied = {
        t: oracle.replay(t).frontier["events/main"] for t in (lake / "clicks", lake / "headrace.demo" / "Install")
    }
    assert len(set(applied.values())) == 1
    assert max(applied.values()) <= newest


def test_headers_name_tables_until_there_are_enough_and_the_rest_is_a_dead_letter(site: Site, topic: MakeTopic) -> None:
    name, lake = topic(1), site.root / "lake"
    route = {
        "by": {"header": "type"}, "max_targets": 1,
        "targets": {"buy": str(lake / "buys"), "*": str(lake / "by_type" / "{name}")},
    }  # fmt: skip
    log = site.pipeline("events", [name], route=route)
    producer = Producer({"bootstrap.servers": site.bootstrap})
    types = ("buy", "view", "buy", None, "scroll")
    for at, (key, value) in enumerate(site.values(name, 50)):
        kind = types[at % len(types)]
        producer.produce(name, value, key, headers=[] if kind is None else [("type", kind.encode())])
    assert producer.flush(30) == 0
    output = site.once()
    made = {path.name for path in (lake / "by_type").iterdir()}
    assert made == {"scroll"}, "the first by name is made"
    assert "targets_beyond_max pipeline=events names=1 first=view reason='route.max_targets is 1'" in output
    assert offsets(lake / "buys") == {at for at in range(50) if at % 5 in (0, 2)}
    assert offsets(lake / "by_type" / "scroll") == set(range(4, 50, 5))
    reasons = dict(oracle.rows(Path(f"{log}_dead_letters"), "error, count(*)", "GROUP BY 1"))
    assert reasons == {
        "the route goes by the header 'type', which is 'view': it may not have a table of its own": 10,
        "the route goes by the header 'type', and there is none": 10,
    }


def test_a_route_may_stop_at_a_record_without_a_table(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    route = {"targets": {CLICK: str(site.root / "lake" / "clicks")}, "unrouted": "stop"}
    log = site.pipeline("events", [name], route=route)
    site.send(name, values(site, name, 5, 5))
    assert f"has no table for {INSTALL}: the route goes by the record, which is '{INSTALL}': " in site.once(code=5)
    assert oracle.frontier_of(log, "events") == {(name, 0): 0}


def test_a_table_that_takes_nothing_holds_up_no_other_and_catches_up_by_itself(site: Site, topic: MakeTopic) -> None:
    name, lake = topic(1), site.root / "lake"
    route = {"targets": {CLICK: str(lake / "clicks"), INSTALL: str(lake / "installs")}}
    log = site.pipeline("events", [name], commit={"max_delay": "1 s"}, route=route)
    fill(site, name, 10, 10)
    writer = site.start()
    writer.until(lambda: len(offsets(lake / "installs")) == 10)
    (lake / "installs" / "_delta_log").rename(lake / "away")
    (lake / "installs" / "_delta_log").write_text("no folder")
    fill(site, name, 15, 5, seed=8)
    writer.until(lambda: len(offsets(lake / "clicks")) == 25)
    fill(site, name, 5, 15, seed=9)
    writer.until(lambda: len(offsets(lake / "clicks")) == 30)
    writer.until(lambda: oracle.frontier_of(log, "events") == {(name, 0): 69})
    (lake / "installs" / "_delta_log").unlink()
    (lake / "away").rename(lake / "installs" / "_delta_log")
    writer.until(lambda: len(offsets(lake / "installs")) == 30)  # no record comes meanwhile
    assert "target_behind pipeline=events target=headrace.demo.Install" in writer.output()
    writer.stop()
    assert "target_caught_up pipeline=events target=headrace.demo.Install" in writer.output()
    assert "69 read = 60 rows + 9 dead letters. It adds up." in say("audit", str(site.config), "--deep")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_what_went_wrong_is_taken_back_replayed_and_filled_in_every_table(
    site: Site, topic: MakeTopic, form: str
) -> None:
    """A type without a table is replayed once it has one; a rewind and a skip concern all tables."""
    name, lake = topic(1), site.root / "lake"
    targets = {CLICK: str(lake / "clicks")}
    site.pipeline("events", [name], form=form, raw=True, commit={"max_offsets": 100}, route={"targets": targets})
    fill(site, name, 60, 60)
    site.once()
    assert (len(offsets(lake / "clicks")), (lake / "installs").exists()) == (60, False)
    seals = {"after": None}
    both = {**targets, INSTALL: str(lake / "installs")}
    log = site.pipeline("events", [name], form=form, raw=True, seal=seals, route={"targets": both})
    say("dlq", "replay", str(site.config), "--yes")
    assert len(offsets(lake / "installs")) == 60
    assert "123 read = 120 rows + 3 dead letters. It adds up." in say("audit", str(site.config), "--deep")
    before = oracle.replay(log).version
    fill(site, name, 30, 30, seed=8)
    site.once()
    for target in (CLICK, INSTALL):
        say("seal", str(site.config), "--target", target, "--until", "2026-11-21T00:00Z", "--yes")
    fill(site, name, 5, 5, seed=9)
    site.once()
    assert (len(offsets(lake / "clicks")), len(offsets(lake / "installs"))) == (95, 95)
    shown = say("rewind", str(site.config), "--to", str(before))
    assert f"{CLICK}: hour=" in shown
    # A new process applies the last batch once more, to the raw table and both tables, before it commits the rewind.
    say("rewind", str(site.config), "--to", str(before), "--yes", HEADRACE_FAULT="before_apply:5", code=-9)
    audit = say("audit", str(site.config), "--deep")
    assert "It adds up." in audit, audit
    check_counts(site, {CLICK: 60, INSTALL: 60}, rewound=70)
    output = site.once()
    check_counts(site, {CLICK: 95, INSTALL: 95}, rewound=70)
    assert (len(offsets(lake / "clicks")), len(offsets(lake / "installs"))) == (95, 95), output
    again = say("seal", str(site.config), "--target", CLICK, "--until", "2026-11-21T00:00Z", "--yes")
    assert "is not sealed" not in again, again
    assert "It adds up." in say("audit", str(site.config), "--deep")
    fill(site, name, 20, 20, seed=10)
    say("gaps", "open", str(site.config), "--reason", "a test", "--yes")
    say("backfill", str(site.config), "--yes")
    assert (len(offsets(lake / "clicks")), len(offsets(lake / "installs"))) == (115, 115)
    check_counts(site, {CLICK: 115, INSTALL: 115}, rewound=70)
    ends = oracle.frontier_of(log, "events")
    assert offsets(Path(f"{log}_raw")) == set(range(ends[name, 0]))
    assert "It adds up." in say("audit", str(site.config), "--deep")


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_rows_for_a_storage_that_is_away_wait_at_the_log_over_starts_and_kills(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name, lake = topic(1), site.root / "lake"
    installs = {"location": str(lake / "installs"), "format": form}
    route = {"targets": {CLICK: str(lake / "clicks"), INSTALL: installs}}
    log = site.pipeline("events", [name], commit={"max_delay": "1 s"}, route=route)
    fill(site, name, 10, 10)
    writer = site.start()
    writer.until(lambda: len(offsets(lake / "clicks")) == 10 == len(offsets(lake / "installs")))
    (lake / "installs").rename(lake / "away")
    (lake / "installs").write_text("no folder")
    fill(site, name, 15, 5, seed=8)
    writer.until(lambda: len(offsets(lake / "clicks")) == 25)
    writer.kill()
    fill(site, name, 5, 15, seed=9)
    writer = site.start()  # it knows the columns of the table that is away
    writer.until(lambda: len(offsets(lake / "clicks")) == 30)
    writer.until(lambda: oracle.frontier_of(log, "events") == {(name, 0): 69})
    held = [path for path in (log / "_headrace" / "held").rglob("*") if path.suffix in (".parquet", ".staged")]
    assert len(held) >= 2
    say("audit", str(site.config), code=1)  # rows of a table that is away cannot be counted
    look = partial(find_unneeded, load(site.config), "events", None, datetime.now(UTC) + timedelta(days=99))
    if form == "iceberg":  # the catalog knows the table, so it is not passed over
        with pytest.raises(CommitFailed, match=r"cannot read the table at .*/installs"):
            look()
    else:
        assert not [one.path for place in look() for one in place.waste if "/held/" in one.path], "they are needed"
    running = targets(site, "driver")
    writer.stop()
    ended = targets(site, "lake")
    for one, other in zip(running, ended, strict=True):
        keys = ("name", "applied_version", "waiting_entries", "held_bytes")
        assert [one[key] for key in keys] == [other[key] for key in keys]
    assert [(one["name"], one["waiting_entries"] > 0, one["held_bytes"] > 0) for one in ended] == [
        (INSTALL, True, True), (CLICK, False, False),
    ]  # fmt: skip
    assert ended[0]["behind_seconds"] >= running[0]["behind_seconds"] > 0
    (lake / "installs").unlink()
    (lake / "away").rename(lake / "installs")
    site.once(env={"HEADRACE_FAULT": "after_bring:1"}, code=-9)
    site.once()
    assert len(offsets(lake / "installs")) == 30
    assert "69 read = 60 rows + 9 dead letters. It adds up." in say("audit", str(site.config), "--deep")
    assert [one["behind"] for one in targets(site, "lake")] == [None, None]
    fill(site, name, 1, 1, seed=10)
    site.once()
    assert [one.why for place in look() for one in place.waste if "/held/" in one.path], "copied, so nothing needs them"


@pytest.mark.timeout(7_200)
def test_a_table_that_refuses_for_long_gets_all_of_it_in_order_while_the_other_goes_on(
    site: Site, topic: MakeTopic
) -> None:
    """A minute, or as HEADRACE_TEST_REFUSES_S says: an hour was run by hand."""
    name, lake = topic(1), site.root / "lake"
    route = {"targets": {CLICK: str(lake / "clicks"), INSTALL: str(lake / "installs")}}
    site.pipeline("events", [name], commit={"max_delay": "1 s"}, route=route)
    fill(site, name, 10, 10)
    writer = site.start()
    writer.until(lambda: len(offsets(lake / "clicks")) == 10 == len(offsets(lake / "installs")))
    (lake / "installs").rename(lake / "away")
    (lake / "installs").write_text("no folder")
    until, sent = time.monotonic() + float(os.environ.get("HEADRACE_TEST_REFUSES_S", "60")), 1
    while time.monotonic() < until:
        sent += 1
        fill(site, name, 10, 10, seed=sent)
        writer.until(lambda: len(offsets(lake / "clicks")) == 10 * sent)  # noqa: B023 - called at once
        time.sleep(min(20, max(0, until - time.monotonic())))
    status = json.loads(say("status", str(site.config), "--json"))["pipelines"]["events"]
    assert [target["name"] for target in status["targets"] if target["behind"]] == [INSTALL]
    assert status["health"]["reasons"][0].startswith("1 table behind")
    (lake / "installs").unlink()
    (lake / "away").rename(lake / "installs")
    writer.until(
        lambda: len(offsets(lake / "installs")) == 10 * sent, 600
    )  # the rest between two tries is 5 min at most
    writer.stop()
    versions = [
        commit["main_version"] for commit in oracle.replay(lake / "installs").commits if commit["kind"] == "side"
    ]
    assert versions == sorted(set(versions)), "each entry once, in the order of the log"
    assert f"{20 * sent + 3 * sent:,} read = {20 * sent:,} rows + {3 * sent:,} dead letters. It adds up." in say(
        "audit", str(site.config), "--deep"
    )


@pytest.mark.parametrize("on_limit", ["stop", "dead_letters"])
def test_what_waits_for_a_storage_is_bounded(site: Site, topic: MakeTopic, on_limit: str) -> None:
    name, lake = topic(1), site.root / "lake"
    held = {"max_bytes": "1 kB", "on_limit": on_limit}
    route = {"targets": {CLICK: str(lake / "clicks"), INSTALL: str(lake / "installs")}, "held": held}
    log = site.pipeline("events", [name], route=route)
    fill(site, name, 10, 10)
    site.once()
    (lake / "installs").rename(lake / "away")
    (lake / "installs").write_text("no folder")
    fill(site, name, 5, 5, seed=8)
    site.once()
    fill(site, name, 5, 5, seed=9)
    if on_limit == "stop":
        assert f"the table of target '{INSTALL}' of pipeline 'events' refuses" in site.once(code=5)
    else:
        site.once()
        (one,) = oracle.rows(Path(f"{log}_dead_letters"), "error", "WHERE error LIKE '%waits for it%' LIMIT 1")
        assert one == (f"the table of '{INSTALL}' refuses, and too much waits for it (route.held)",)
    (lake / "installs").unlink()
    (lake / "away").rename(lake / "installs")
    site.once()
    if on_limit == "dead_letters":
        say("dlq", "replay", str(site.config), "--yes")
    assert (len(offsets(lake / "clicks")), len(offsets(lake / "installs"))) == (20, 20)
    assert "It adds up." in say("audit", str(site.config), "--deep")


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize("fault", ["before_apply:20", "after_apply:1", "after_apply:49", "before_redo:2"])
def test_a_kill_amid_fifty_tables_leaves_each_record_in_one(
    site: Site, topic: MakeTopic, fault: str, form: str
) -> None:
    name, lake = topic(1), site.root / "lake"
    route = {"by": {"header": "type"}, "targets": {"*": str(lake / "{name}")}}
    log = site.pipeline("events", [name], form=form, commit={"max_offsets": 400}, route=route)
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for at, (key, value) in enumerate(site.values(name, 1_000)):
        producer.produce(name, value, key, headers=[("type", f"t{at % 50:02}".encode())])
    assert producer.flush(30) == 0
    site.once(env={"HEADRACE_FAULT": fault}, code=-9)
    site.once()
    tables = sorted(path for path in lake.iterdir() if path.name.startswith("t"))
    found = [offsets(table) for table in tables]
    assert [len(rows) for rows in found] == [20] * 50
    assert set().union(*found) == set(range(1_000))
    assert oracle.frontier_of(log, "events") == {(name, 0): 1_000}
    assert "It adds up." in say("audit", str(site.config), "--deep")
