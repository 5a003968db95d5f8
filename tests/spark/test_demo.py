"""The demo accounts for every event, and leaves nothing behind, whenever and however it is ended."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests import oracle
from writer.demo import account

pytestmark = pytest.mark.slow

SUM = re.compile(r"([\d,]+) produced = ([\d,]+) rows \+ ([\d,]+) dead letters \+ ([\d,]+) lost, ([\d,]+) twice")


@dataclass
class Demo:
    """A running demo whose processes carry a tag in their environment, and whose temporary files lie in one place."""

    process: subprocess.Popen[bytes]
    tag: str
    out: Path
    temporary: Path

    def said(self) -> str:
        return self.out.read_text()

    def until(self, words: str, seconds: float = 100) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.said():
            assert self.process.poll() is None, f"the demo ended before it said {words!r}:\n{self.said()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {words!r}\n{self.said()}"
            time.sleep(0.02)

    def alive(self) -> dict[int, str]:
        """Every process with the tag, the demo too."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self.tag.encode() in (place / "environ").read_bytes():  # empty for one that has ended
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:150]
            except OSError:
                continue
        return found

    def nothing_alive(self, within: float) -> None:
        deadline = time.monotonic() + within
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"left running: {left}\n{self.said()}"


@pytest.fixture
def start(tmp_path):
    running = []

    def start(*flags, **env):
        tag = uuid.uuid4().hex
        temporary = tmp_path / f"tmp-{tag}"
        temporary.mkdir()
        out = tmp_path / f"{tag}.txt"
        with out.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "writer.cli", "demo", *flags],
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "HEADRACE_DEMO_TAG": tag, "TMPDIR": str(temporary), "COLUMNS": "100", **env},
            )  # fmt: skip
        running.append(Demo(process, tag, out, temporary))
        return running[-1]

    yield start
    for demo in running:
        demo.process.kill()
        demo.process.wait()
        demo.nothing_alive(within=20)


def test_every_event_is_a_row_or_a_dead_letter(start, tmp_path):
    kept = tmp_path / "to keep"
    demo = start("--events", "20000", "--keep", str(kept))
    assert demo.process.wait(200) == 0, demo.said()
    assert demo.alive() == {}
    produced, rows, letters, lost, twice = (int(n.replace(",", "")) for n in SUM.search(demo.said()).groups())
    assert (produced, lost, twice) == (20_000, 0, 0)
    assert rows + letters == 20_000
    assert letters > 0
    frontier = oracle.check(kept / "lake" / "events", "events")
    assert sum(frontier.values()) == 20_000
    assert len(frontier) == 6, "each partition got some"
    assert len(oracle.replay(kept / "lake" / "events").commits) > 3, "start and several batches"
    assert sorted(p.name for p in kept.iterdir()) == ["checkpoints", "headrace.yaml", "lake", "servers", "writer.log"]
    assert list(demo.temporary.iterdir()) == []

    hint = next(line for line in demo.said().splitlines() if line.startswith("look further"))
    look = subprocess.run(shlex.split(hint.removeprefix("look further")), capture_output=True, text=True, check=True)
    assert "clicks" in look.stdout

    again = start("--keep", str(kept))
    assert again.process.wait(30) == 2
    assert again.said() == f"headrace: {kept} is not empty. Give --keep a directory that is new.\n"


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
    demo.process.send_signal(signal.SIGINT)  # somebody is impatient
    code = demo.process.wait(15)
    assert demo.alive() == {}, demo.said()
    assert list(demo.temporary.iterdir()) == []
    assert code in (128 + asked, -asked), demo.said()  # the latter before it could take the signal over
    if words:
        assert code == 128 + asked
        assert demo.said().splitlines()[-1] == "stopped; nothing is left running"
        assert "Traceback" not in demo.said()


@pytest.mark.parametrize(("words", "later"), [("topics created", 1.0), ("writer started", 2.0)])
def test_a_demo_killed_with_minus_9_takes_all_its_processes_along(start, words, later):
    demo = start("--events", "5000")
    demo.until(words)
    time.sleep(later)
    assert len(demo.alive()) > 3
    demo.process.kill()
    demo.process.wait()
    demo.nothing_alive(within=20)


def test_a_writer_that_dies_is_told_with_its_last_words(start):
    demo = start("--events", "1000")
    demo.until("writer started")
    (writer,) = [pid for pid, command in demo.alive().items() if "writer.cli run" in command]
    os.kill(writer, signal.SIGKILL)
    assert demo.process.wait(30) == 1
    assert demo.alive() == {}
    assert list(demo.temporary.iterdir()) == []
    assert "headrace: the writer was ended by SIGKILL" in demo.said()
    assert "schema_admitted" in demo.said()
    assert "Traceback" not in demo.said()


def test_what_does_not_add_up_is_named(tmp_path):
    def when(hour):
        return datetime(2026, 11, 20, hour, 30, tzinfo=UTC)

    def write(table, offsets, **columns):
        count = len(offsets)
        provenance = {"_topic": ["clicks"] * count, "_incarnation": [1] * count, "_partition": [0] * count}
        write_deltalake(
            tmp_path / table, pa.table({**provenance, "_offset": offsets, **columns}), mode="append",
            partition_by=["hour"] if "hour" in columns else None,
        )  # fmt: skip

    source = ("clicks", 0)
    write("lake", [0, 1], hour=["2026-11-20T05"] * 2, event_time=[when(5)] * 2)
    assert account.of(tmp_path / "lake", tmp_path / "none", good={source: 2}, broken={}).differences() == []
    write("letters", [2], error=["bad"])
    found = account.of(tmp_path / "lake", tmp_path / "letters", good={source: 2}, broken={source: 1})
    assert found.differences() == []
    assert account.sentence(found) == "3 produced = 2 rows + 1 dead letters + 0 lost, 0 twice"
    write("lake", [1, 2, 9], hour=["2026-11-20T05"] * 3, event_time=[when(5), when(5), when(6)])
    found = account.of(tmp_path / "lake", tmp_path / "letters", good={source: 4}, broken={source: 1})
    assert (found.lost, found.twice, found.unknown) == (2, 2, 1)
    assert found.differences() == [
        "2 of 5 offsets are in neither table",
        "2 offsets are there twice",
        "1 offsets were never produced",
        "1 rows lie in the bucket of another hour",
        "5 rows have 4 distinct offsets",
        "4 good events became 5 rows",
    ]


def test_without_java_it_is_one_line(start):
    demo = start(PATH="/nonexistent", JAVA_HOME="")
    assert demo.process.wait(30) == 2
    assert re.fullmatch(r"headrace: No JDK 17 or newer found.*\n", demo.said()), demo.said()


def test_without_a_repository_it_is_one_line_after_the_header(start, tmp_path):
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers>'
        f'<ibiblio name="disk" m2compatible="true" root="file://{tmp_path}/nothing/"/></resolvers></ivysettings>'
    )
    demo = start(HEADRACE_CACHE=str(tmp_path / "cache"), HEADRACE_IVY_SETTINGS=str(settings))
    assert demo.process.wait(60) == 2
    assert demo.said().splitlines()[-1].startswith("headrace: ")
    assert "Traceback" not in demo.said()
    assert list(demo.temporary.iterdir()) == []
