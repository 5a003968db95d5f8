"""A run by hand beside a supervisor: refused while it renews its lease, delayed after its death, else begun at once."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from writer.core.errors import ExitCode, Occupied
from writer.lease import occupancy
from writer.lease.holder import LeaseHolder
from writer.lease.lease import LeaseRecord, StoreLeases
from writer.lease.occupancy import check_unoccupied
from writer.storage.base import Mark
from writer.storage.locations import store_at

EXPIRY = timedelta(seconds=3)


class Clock:
    """A monotonic clock that passes while something sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(occupancy, "time", clock)
    return clock


def script(clock: Clock, look: Callable[[float], LeaseRecord | None]) -> Callable[[], LeaseRecord | None]:
    """Return the look at a lease that is a function of the seconds since now."""
    begin_s = clock.now_s
    return lambda: look(clock.now_s - begin_s)


def record(beat: int, *, released: bool = False) -> LeaseRecord:
    return LeaseRecord(3, "host/1", Mark((str(beat),)), released)


@pytest.mark.parametrize(
    ("look", "waits_s"),
    [
        (lambda _: None, 0),
        (lambda _: record(1, released=True), 0),
        (lambda _: record(1), 3),
        (lambda seconds: record(1, released=seconds >= 1), 1),
    ],
    ids=["never taken", "released", "its holder died", "released meanwhile"],
)
def test_a_lease_that_nobody_renews_blocks_no_longer_than_it_lives(
    clock: Clock, look: Callable[[float], LeaseRecord | None], waits_s: float
) -> None:
    check_unoccupied({"clicks": script(clock, look)}, EXPIRY)
    assert clock.now_s - 100 == pytest.approx(waits_s, abs=0.5)


@pytest.mark.parametrize("renewal_s", [0.75, 2.9])
def test_a_lease_that_is_renewed_refuses_a_run_at_the_first_renewal(clock: Clock, renewal_s: float) -> None:
    free = script(clock, lambda _: None)
    taken = script(clock, lambda seconds: record(int(seconds / renewal_s)))
    with pytest.raises(Occupied, match="supervisor host/1 runs pipeline 'views' and renews its lease"):
        check_unoccupied({"clicks": free, "views": taken}, EXPIRY)
    assert clock.now_s - 100 <= renewal_s + 0.5


def test_another_holder_that_takes_the_lease_meanwhile_refuses_a_run(clock: Clock) -> None:
    def look(seconds: float) -> LeaseRecord:
        return LeaseRecord(4, "other/1", Mark(("9",))) if seconds >= 2 else record(1)

    with pytest.raises(Occupied, match="supervisor other/1"):
        check_unoccupied({"clicks": script(clock, look)}, EXPIRY)


def test_a_storage_that_does_not_answer_refuses_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def look(_: float) -> LeaseRecord:
        raise OSError("it is down")

    check_unoccupied({"clicks": script(clock, look)}, EXPIRY)
    assert "lease_unreadable" in caplog.text


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.yaml"
    raw = {
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
        "registry": {"url": "http://127.0.0.1:1"},
        "checkpoints": str(tmp_path / "checkpoints"),
        "supervisor": {"lease_expiry": "2 s"},
        "http": {"port": 0},
        "pipelines": {
            "clicks": {
                "topics": ["clicks"],
                "table": {"location": str(tmp_path / "lake")},
                "event_time": {"field": "at"},
            }
        },
    }
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture
def holder(config: Path) -> Iterator[LeaseHolder]:
    """Return a supervisor that renews the lease."""
    leases = StoreLeases(store_at(str(config.parent / "checkpoints" / "clicks")))
    holder = LeaseHolder({"clicks": leases}, "host/1", expires_after=timedelta(seconds=2))
    assert holder.try_take("clicks")
    yield holder
    holder.close()


def end_of(*words: str, **environment: str) -> tuple[int, str]:
    """Run a command. Returns its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "writer.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_is_refused_with_a_code_of_its_own_and_takes_over_where_that_is_wanted(
    config: Path, holder: LeaseHolder
) -> None:
    for flags in ([], ["--once"], ["--new-run", "--yes"]):
        code, output = end_of("run", str(config), *flags)
        assert code == ExitCode.OCCUPIED == 6, output
        assert "supervisor host/1 runs pipeline 'clicks'" in output
        assert "--take-over" in output
    code, output = end_of("run", str(config), "--take-over")
    assert code == ExitCode.CRASH
    assert "no Kafka broker answers" in output
    assert not (config.parent / "lake").exists()
    assert holder.lost_pipeline is None, "who only looks takes no lease"


def test_a_run_begins_once_the_lease_of_a_dead_supervisor_has_ended(config: Path) -> None:
    assert StoreLeases(store_at(str(config.parent / "checkpoints" / "clicks"))).take(1, "host/1")
    begin_s = time.monotonic()
    code, output = end_of("run", str(config))
    assert time.monotonic() - begin_s >= 2
    assert code == ExitCode.CRASH, output
    assert "lease_awaited pipeline=clicks holder=host/1" in output
    assert "no Kafka broker answers" in output


@pytest.mark.parametrize("words", [["backfill", "--yes"], ["shadow", "--table"], ["audit"]], ids=lambda words: words[0])
def test_other_commands_ask_for_no_lease(config: Path, holder: LeaseHolder, words: list[str]) -> None:
    name, *flags = words
    if name == "shadow":
        flags.append(str(config.parent / "shadow"))
    code, output = end_of(name, str(config), *flags)
    assert code in {ExitCode.DONE, ExitCode.CRASH, ExitCode.CONFIGURATION}, output
    assert "lease" not in output
    assert not holder.lost_pipeline
