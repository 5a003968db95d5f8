"""The demo accounts for every event, and leaves nothing behind, whenever and however it is ended."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from headrace.writer.demo.table_reader import TableLog
from tests.support import oracle
from tests.support.demo_process import PRODUCED, SUM, numbers, run_demos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def start(tmp_path):
    """Start a demo; none of its processes outlives the test."""
    with run_demos(tmp_path) as start_demo:
        yield start_demo


def test_every_event_is_accounted_for(start, tmp_path):
    kept = tmp_path / "to keep"
    demo = start("--events", "20000", "--keep", str(kept))
    assert demo.process.wait(400) == 0, demo.output()
    assert demo.alive() == {}
    produced, rows, quarantined, dead_letters, lost, twice = numbers(SUM.search(demo.output()).groups())
    assert (produced, lost, twice) == (20_000, 0, 0)
    assert rows + quarantined + dead_letters == 20_000
    total, late, ahead, broken = numbers(PRODUCED.search(demo.output()).groups())
    assert (total, ahead, broken) == (20_000, quarantined, dead_letters)
    assert min(late, ahead, broken) > 0
    assert re.search(r"\n  its page: http://127\.0\.0\.1:\d+/\n", demo.output())
    assert re.search(r"\n✓ version \d+ is the first to carry it: the table has its column ", demo.output())
    lake = kept / "lake" / "events"
    upgraded, clicks = oracle.rows(lake, "count(referrer_campaign), count(*) FILTER (_topic = 'clicks')")[0]
    assert 0 < upgraded < clicks, "it came while the writer ran"
    assert f"\n  {upgraded:,} rows carry referrer_campaign, as many as were produced with it\n" in demo.output()
    assert f"\n  {late:,} delayed rows, each in the bucket of its own hour\n" in demo.output()
    assert "\n  every row has the values of its event: a digest of 26 columns is equal\n" in demo.output()
    frontier = oracle.check(lake, "events")
    assert "\n✓ topic app, 2 tables: 1,000 produced = 500 rows of Click + 500 rows of Install\n" in demo.output()
    assert sum(frontier.values()) == 20_000
    assert len(frontier) == 6, "each partition got some"
    assert len(oracle.replay(lake).commits) > 3, "start and several batches"
    assert sorted(p.name for p in kept.iterdir()) == ["checkpoints", "headrace.yaml", "lake", "servers", "writer.log"]
    assert list(demo.temporary.iterdir()) == []
    assert "\x1b" not in demo.output(), "a file is no terminal"
    assert [line for line in demo.output().splitlines() if line != line.rstrip()] == []
    lines = re.findall(
        r"^  produced=(\d+) of=20000 \S+ events state=running .* version=\d+ ", demo.output(), re.MULTILINE
    )
    assert len(lines) > 1, "a line of `headrace status --watch` for each commit"
    assert lines[-1] == "20000"

    hint = demo.output().split("\nask DuckDB\n")[1]
    look = subprocess.run(shlex.split(hint), capture_output=True, text=True, check=True)
    assert "clicks" in look.stdout

    again = start("--keep", str(kept))
    assert again.process.wait(120) == 2
    assert again.output() == f"headrace: {kept} is not empty. Give --keep a directory that is new.\n"


def test_an_iceberg_demo_counts_what_a_scan_returns(start, tmp_path):
    kept = tmp_path / "kept"
    demo = start("--events", "3000", "--keep", str(kept), "--table-format", "iceberg")
    assert demo.process.wait(400) == 0, demo.output()
    produced, rows, quarantined, dead_letters, lost, twice = numbers(SUM.search(demo.output()).groups())
    assert (produced, rows + quarantined + dead_letters, lost, twice) == (3_000, 3_000, 0, 0)
    seen = oracle.scan(kept / "lake" / "events", "_topic", "_kafka_partition", "_offset", "referrer_campaign")
    assert len({*zip(seen["_topic"], seen["_kafka_partition"], seen["_offset"], strict=True)}) == rows
    upgraded = sum(one is not None for one in seen["referrer_campaign"])
    assert 0 < upgraded < seen["_topic"].count("clicks")
    assert f"\n  {upgraded:,} rows carry referrer_campaign, as many as were produced with it\n" in demo.output()
    assert "\n✓ topic app, 2 tables: 200 produced = 100 rows of Click + 100 rows of Install\n" in demo.output()
    hint = demo.output().split("\nask DuckDB\n")[1]
    look = subprocess.run(shlex.split(hint), capture_output=True, text=True, check=True)
    assert "clicks" in look.stdout


def test_a_json_demo_keeps_undeclared_members_and_counts_what_is_broken(start, tmp_path):
    kept = tmp_path / "kept"
    demo = start("--events", "6000", "--keep", str(kept), "--format", "json")
    assert demo.process.wait(400) == 0, demo.output()
    assert demo.alive() == {}
    assert demo.output().startswith("headrace demo: 6,000 events of JSON, ")
    assert "registry" not in demo.output() + (kept / "headrace.yaml").read_text()
    produced, rows, quarantined, dead_letters, lost, twice = numbers(SUM.search(demo.output()).groups())
    assert (produced, rows + quarantined + dead_letters, lost, twice) == (6_000, 6_000, 0, 0)
    _, late, ahead, broken = numbers(PRODUCED.search(demo.output()).groups())
    assert (ahead, broken) == (quarantined, dead_letters)
    assert min(late, ahead, broken) > 0
    assert re.search(r"\n✓ version \d+ is the first to carry it: the column rest keeps it ", demo.output())
    lake = kept / "lake" / "events"
    in_rest, clicks, others, touched, attributed = oracle.rows(
        lake,
        "count(rest->>'$.referrer_campaign'), count(*) FILTER (_topic = 'clicks'), "
        "count(*) FILTER (json_array_length(json_keys(rest)) > 1), "
        "count(*) FILTER (CAST(attribution.rest->>'$.touch_count' AS INT) BETWEEN 1 AND 5), count(attribution)",
    )[0]
    assert 0 < in_rest < clicks, "it came while the writer ran"
    assert others == 0
    assert touched == attributed > 0
    assert f"\n  {in_rest:,} rows keep referrer_campaign in rest, as many as were produced with it\n" in demo.output()
    assert re.search(r'\n  rest of one of them: \{"referrer_campaign":"[a-z]+/[a-z0-9]+"\}\n', demo.output())
    assert "\n  every row has the values of its event: a digest of 26 columns is equal\n" in demo.output()
    reasons = dict(oracle.rows(kept / "lake" / "events_dead_letters", "error, count(*)", "GROUP BY ALL"))
    assert sum("$.app_id" in reason for reason in reasons) == 1, reasons
    assert "unknown" not in "".join(reasons), "a reason names no value"
    assert sum("it is no JSON" in reason for reason in reasons) > 1, reasons
    assert "unknown" not in demo.output()
    assert "\n✓ topic app, 2 tables: 300 produced = 150 rows of Click + 150 rows of Install\n" in demo.output()


def test_a_protobuf_demo_reads_each_message_by_its_schema(start, tmp_path):
    kept = tmp_path / "kept"
    demo = start("--events", "6000", "--keep", str(kept), "--format", "protobuf")
    assert demo.process.wait(400) == 0, demo.output()
    assert demo.alive() == {}
    produced, rows, quarantined, dead_letters, lost, twice = numbers(SUM.search(demo.output()).groups())
    assert (produced, rows + quarantined + dead_letters, lost, twice) == (6_000, 6_000, 0, 0)
    _, late, ahead, broken = numbers(PRODUCED.search(demo.output()).groups())
    assert (ahead, broken) == (quarantined, dead_letters)
    assert min(late, ahead, broken) > 0
    assert "\n  every row has the values of its event: a digest of 26 columns is equal\n" in demo.output()
    reasons = dict(oracle.rows(kept / "lake" / "events_dead_letters", "error, count(*)", "GROUP BY ALL"))
    assert any("is Protobuf, and no message has the indexes [7]" in reason for reason in reasons), reasons
    assert any("it is no message headrace.demo." in reason for reason in reasons), reasons
    assert "\n✓ topic app, 2 tables: 300 produced = 150 rows of Click + 150 rows of Install\n" in demo.output()


def followed(lake):
    log = TableLog(lake)
    log.follow()
    return log


def committed_offsets(lake):
    ranges = [offsets for commit in followed(lake).commits for offsets in commit.facts["ranges"]]
    return sum(offsets["end"] - offsets["start"] for offsets in ranges)


def late_rows(lake):
    batches = [facts for facts in oracle.replay(lake).commits if facts["kind"] == "batch"]
    return sum(sum(facts["late"]["beyond"]) for facts in batches)


def test_a_demo_with_hold_takes_events_of_a_user_until_a_signal(start, tmp_path):
    kept = tmp_path / "kept"
    demo = start("--events", "6000", "--keep", str(kept), "--hold")
    demo.until("\nask DuckDB\n", 400)
    assert numbers(SUM.search(demo.output()).groups())[0] == 6_000
    page = demo.output().split("\nopen its page\n")[1].split()[0]
    assert page in (kept / "writer.log").read_text(), "as `headrace run` prints it"
    asked = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert b"<title>headrace</title>" in answer.read()
    look = next(line for line in demo.output().splitlines() if " explain " in line)
    told = subprocess.run(shlex.split(look), capture_output=True, text=True, check=True)
    assert "\nIts batch ended because " in told.stdout
    lake = kept / "lake" / "events"
    before = late_rows(lake)
    hint = next(line for line in demo.output().splitlines() if "headrace.writer.demo.produce" in line)
    told = subprocess.run(shlex.split(hint), capture_output=True, text=True, check=True)
    assert told.stdout.startswith("10,010 events in clicks, ")
    unknown = subprocess.run([*shlex.split(hint), "--kind", "nothing"], capture_output=True, text=True, check=False)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    demo.until("16010 offsets", of=lambda: f"{committed_offsets(lake)} offsets")
    # The screen shows a commit once its dead letters are in their table.
    demo.until(f" version={followed(lake).commits[-1].version} ")
    assert late_rows(lake) - before == 100, "as many as it was asked for, by the writer's own count"
    assert sum(oracle.check(lake, "events").values()) == 16_010
    user, count = oracle.rows(lake, "user_id, count(*)", "GROUP BY user_id ORDER BY 2 DESC, 1 LIMIT 1")[0]
    command = [
        sys.executable,
        "-m",
        "headrace.writer.cli",
        "delete-rows",
        str(kept / "headrace.yaml"),
        "--pipeline",
        "events",
    ]
    subprocess.run([*command, "--where", f"user_id = '{user}'", "--no-dead-letters", "--yes"], check=True)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(120) == 0, demo.output()
    assert f" + {count:,} taken by delete + 0 lost, 0 twice\n" in demo.output()
    assert demo.alive() == {}
    assert "writer drained: SIGTERM, then exit code 0" in demo.output()
    last = numbers(SUM.findall(demo.output())[-1])
    assert (last[0], last[-2:]) == (16_010, [0, 0])
    assert list(demo.temporary.iterdir()) == []


def test_an_impatient_second_signal_ends_a_held_demo_at_once(start):
    demo = start("--events", "1000", "--hold")
    demo.until("\nask DuckDB\n")
    time.sleep(1)
    demo.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 128 + signal.SIGINT, demo.output()
    assert demo.output().splitlines()[-1] == "stopped; nothing is left running"
    assert demo.alive() == {}
    assert list(demo.temporary.iterdir()) == []


# (what the demo has said, seconds later): from before Python has started to the last moments
MOMENTS = [
    ("", 0.1), ("", 1.0), ("lake", 0.3), ("lake", 1.5), ("lake", 3.2),
    ("topics created", 0.5), ("topics created", 4.0), ("writer started", 1.0), ("all committed", 0.3), ("stopped", 0.1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "moment"), list(enumerate(MOMENTS)), ids=[f"{w or 'start'}+{s}" for w, s in MOMENTS]
)
def test_a_signal_at_any_moment_leaves_nothing(start, number, moment):
    words, later = moment
    asked = signal.SIGINT if number % 2 else signal.SIGTERM
    demo = start("--events", "1000")
    demo.until(words)
    time.sleep(later)
    demo.process.send_signal(asked)
    time.sleep(0.15)
    demo.process.send_signal(asked)  # by somebody impatient; of two different ones, either may be handled first
    code = demo.process.wait(60)
    assert demo.alive() == {}, demo.output()
    assert list(demo.temporary.iterdir()) == []
    assert code in (128 + asked, -asked), demo.output()  # the latter before it could take the signal over
    if words:
        assert code == 128 + asked
        assert demo.output().splitlines()[-1] == "stopped; nothing is left running"
        assert "Traceback" not in demo.output()


@pytest.mark.parametrize(("words", "later"), [("topics created", 1.0), ("writer started", 2.0)])
def test_a_demo_killed_with_minus_9_takes_all_its_processes_along(start, words, later):
    demo = start("--events", "5000")
    demo.until(words)
    time.sleep(later)
    assert len(demo.alive()) > 3
    demo.process.kill()
    demo.process.wait()
    demo.nothing_alive(within=60)


def test_a_writer_that_dies_is_told_with_its_last_words(start):
    demo = start("--events", "1000")
    demo.until("writer started")
    (log,) = demo.temporary.rglob("writer.log")
    demo.until("schema_admitted", of=log.read_text)
    (writer,) = [pid for pid, command in demo.alive().items() if "headrace.writer.cli run" in command]
    os.kill(writer, signal.SIGKILL)
    assert demo.process.wait(120) == 1
    assert demo.alive() == {}
    assert list(demo.temporary.iterdir()) == []
    assert "headrace: the writer was ended by SIGKILL" in demo.output()
    assert "schema_admitted" in demo.output()
    assert "Traceback" not in demo.output()


def test_without_java_it_is_one_line(start):
    demo = start(PATH="/nonexistent", JAVA_HOME="")
    assert demo.process.wait(120) == 2
    assert re.fullmatch(r"headrace: No JDK 17 to 21 found.*\n", demo.output()), demo.output()


def test_without_a_repository_it_is_one_line_after_the_header(start, tmp_path):
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers>'
        f'<ibiblio name="disk" m2compatible="true" root="file://{tmp_path}/nothing/"/></resolvers></ivysettings>'
    )
    demo = start(HEADRACE_CACHE=str(tmp_path / "cache"), HEADRACE_IVY_SETTINGS=str(settings))
    assert demo.process.wait(120) == 2
    assert demo.output().splitlines()[-1].startswith("headrace: ")
    assert "Traceback" not in demo.output()
    assert list(demo.temporary.iterdir()) == []
