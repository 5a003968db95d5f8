"""A run by hand holds leases: refused while another process renews one, delayed after its death, else begun at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.recovery.escalation.decide import State
from headrace.recovery.escalation.state import Failure, Memory, write
from headrace.writer.cli.main import app
from headrace.writer.clients.supervisor_record import HaltRecord
from headrace.writer.core.errors import ConfigError, Draining, ExitCode, Occupied
from headrace.writer.lease import holder as holder_module
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.lease import LeaseRecord, Leases, StoreLeases
from headrace.writer.lease.run_leases import RunLeases
from headrace.writer.storage.locations import store_at

EXPIRY = timedelta(seconds=3)
TAKEN_AT = datetime(2026, 11, 27, 1, 52, 3, tzinfo=UTC)


class Clock:
    """A monotonic clock, and a stop for which a run waits meanwhile. `stops_at_s`: when the stop comes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stops_at_s = float("inf")

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= self.stops_at_s


class ScriptedLeases:
    """A lease that is a function of the seconds since now. What is taken stays with who took it."""

    def __init__(self, clock: Clock, look: Callable[[float], LeaseRecord | None]) -> None:
        self._clock = clock
        self._begin_s = clock.now_s
        self._look = look
        self.taken = list[int]()
        self.released = list[int]()

    def look(self) -> LeaseRecord | None:
        return self._look(self._clock.now_s - self._begin_s)

    def take(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        self.taken.append(epoch)
        return True

    def renew(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        return True

    def release(self, epoch: int, holder: str) -> None:  # noqa: ARG002 - the interface of leases
        self.released.append(epoch)


class LostLeases:
    """A lease that is free, until another process takes it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.beat = 0
        self.is_lost = False
        self.releases = 0

    def look(self) -> LeaseRecord | None:
        return record(self.beat, epoch=self.epoch, holder="other/1") if self.is_lost else None

    def take(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        self.epoch = epoch
        return True

    def renew(self, epoch: int, holder: str) -> bool:  # noqa: ARG002 - the interface of leases
        return not self.is_lost

    def release(self, epoch: int, holder: str) -> None:  # noqa: ARG002 - the interface of leases
        self.releases += 1

    def lose(self) -> None:
        self.epoch += 1
        self.is_lost = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(holder_module, "time", clock)
    return clock


def record(beat: int, *, epoch: int = 3, holder: str = "host/1", released: bool = False) -> LeaseRecord:
    return LeaseRecord(epoch, holder, (str(beat),), released, TAKEN_AT)


def hold(clock: Clock, takes_over: bool = False, **leases: Leases) -> dict[str, int]:
    """Begin a run by hand of these pipelines. Returns the epochs that it holds then; they are released."""
    holder = LeaseHolder({}, "me/1", expires_after=EXPIRY)
    run_leases = RunLeases(holder, leases.__getitem__, takes_over=takes_over)
    with run_leases.hold(list(leases), clock):  # type: ignore[arg-type]
        return dict(holder.epochs)


@pytest.mark.parametrize(
    ("look", "waits_s", "epoch"),
    [
        (lambda _: None, 0, 1),
        (lambda _: record(1, released=True), 0, 4),
        (lambda _: record(1), 3, 4),
        (lambda seconds: record(1, released=seconds >= 1), 1, 4),
    ],
    ids=["never taken", "released", "its holder died", "released meanwhile"],
)
def test_a_lease_that_nobody_renews_blocks_no_longer_than_it_lives(
    clock: Clock, look: Callable[[float], LeaseRecord | None], waits_s: float, epoch: int
) -> None:
    leases = ScriptedLeases(clock, look)
    assert hold(clock, clicks=leases) == {"clicks": epoch}
    assert clock.now_s - 100 == pytest.approx(waits_s, abs=0.5)
    assert leases.released == [epoch], "it is given back at the end"


@pytest.mark.parametrize("renewal_s", [0.75, 2.9])
def test_a_lease_that_is_renewed_refuses_a_run_at_the_first_renewal(clock: Clock, renewal_s: float) -> None:
    free = ScriptedLeases(clock, lambda _: None)
    taken = ScriptedLeases(clock, lambda seconds: record(int(seconds / renewal_s)))
    with pytest.raises(Occupied) as refusal:
        hold(clock, clicks=free, views=taken)
    text = str(refusal.value)
    assert "pipeline 'views' is run by another process: host/1 has its lease since 2026-11-27 01:52:03 UTC" in text
    assert "Stop that process first, or take the pipeline over with `headrace run --take-over`" in text
    assert clock.now_s - 100 <= renewal_s + 0.5
    assert free.released == free.taken == [1], "what it had taken already is free again"
    assert taken.taken == []


@pytest.mark.parametrize(("halted_after_s", "is_given_up"), [(None, False), (-60, False), (0, True), (3600, True)])
def test_a_refusal_says_where_the_holder_has_given_the_pipeline_up(
    clock: Clock, halted_after_s: float | None, is_given_up: bool
) -> None:
    halt = None
    if halted_after_s is not None:
        halt = HaltRecord(TAKEN_AT + timedelta(seconds=halted_after_s), "the schema 7 is gone.")
    leases = ScriptedLeases(clock, lambda seconds: record(int(seconds / 0.75)))
    holder = LeaseHolder({}, "me/1", expires_after=EXPIRY)
    run_leases = RunLeases(holder, lambda _: leases, takes_over=False, find_halt=lambda _: halt)
    with pytest.raises(Occupied) as refusal, run_leases.hold(["clicks"], clock):  # type: ignore[arg-type]
        pass
    text = str(refusal.value)
    assert "host/1 has its lease since 2026-11-27 01:52:03 UTC" in text
    assert ("is run by another process" in text) == (not is_given_up)
    assert ("is given up since" in text) == is_given_up
    if is_given_up:
        assert "The reason: the schema 7 is gone. Mend that, and let the supervisor start it again" in text
        assert "`headrace reload`" in text
        assert "`headrace run --take-over`" in text


def test_another_holder_that_takes_the_lease_meanwhile_refuses_a_run(clock: Clock) -> None:
    def look(seconds: float) -> LeaseRecord:
        return record(9, epoch=4, holder="other/1") if seconds >= 2 else record(1)

    with pytest.raises(Occupied, match="other/1"):
        hold(clock, clicks=ScriptedLeases(clock, look))


def test_a_storage_that_does_not_answer_refuses_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def look(_: float) -> LeaseRecord:
        raise OSError("it is down")

    for takes_over in (False, True):
        assert hold(clock, takes_over, clicks=ScriptedLeases(clock, look)) == {}
    assert clock.now_s == 100
    assert caplog.text.count("lease_unreadable") == 2


def test_a_take_over_takes_the_lease_of_a_living_holder_at_once(clock: Clock) -> None:
    leases = ScriptedLeases(clock, lambda seconds: record(int(seconds / 0.75)))
    assert hold(clock, takes_over=True, clicks=leases) == {"clicks": 4}
    assert clock.now_s == 100
    assert leases.released == [4]


def test_a_stop_while_it_waits_for_a_lease_is_no_failure(clock: Clock) -> None:
    clock.stops_at_s = 101
    free = ScriptedLeases(clock, lambda _: None)
    with pytest.raises(Draining, match="asked to stop while it waited for the lease of views") as end:
        hold(clock, clicks=free, views=ScriptedLeases(clock, lambda _: record(1)))
    assert end.value.exit_code == ExitCode.DONE
    assert free.released == [1]


def test_where_no_lease_can_be_kept_only_a_take_over_runs(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def open_leases(_: str) -> Leases:
        raise ConfigError("this process runs in no pod")

    refused = RunLeases(LeaseHolder({}, "me/1"), open_leases, takes_over=False)
    with pytest.raises(ConfigError), refused.hold(["clicks"], clock):  # type: ignore[arg-type]
        pass
    run_leases = RunLeases(LeaseHolder({}, "me/1"), open_leases, takes_over=True)
    with run_leases.hold(["clicks"], clock):  # type: ignore[arg-type]
        assert run_leases.enter("clicks") is None
    assert "lease_unreadable pipeline=clicks error='this process runs in no pod'" in caplog.text


def test_a_pipeline_that_comes_later_waits_for_its_lease_and_takes_it_when_it_is_free(clock: Clock) -> None:
    leases = ScriptedLeases(clock, lambda seconds: record(int(seconds), released=seconds >= 10))
    holder = LeaseHolder({}, "me/1", expires_after=EXPIRY)
    run_leases = RunLeases(holder, lambda _: leases, takes_over=True)
    with run_leases.hold([], clock):  # type: ignore[arg-type]
        for _ in range(9):
            with pytest.raises(Occupied):
                run_leases.enter("clicks")
            clock.wait(1)
        wait = run_leases.lease_wait("clicks")
        assert wait is not None
        assert wait.reason.startswith("host/1 has its lease since 2026-11-27 01:52:03 UTC")
        assert (datetime.now(UTC) - wait.since).total_seconds() == pytest.approx(9, abs=1)
        clock.wait(1)
        assert run_leases.enter("clicks") == 4
        assert run_leases.lease_wait("clicks") is None


def test_a_lease_that_falls_silent_after_it_was_renewed_is_still_waited_for(clock: Clock) -> None:
    def look(seconds: float) -> LeaseRecord:
        if 3 <= seconds < 6:
            raise OSError("it does not answer")
        return record(int(seconds), released=seconds >= 8)

    run_leases = RunLeases(
        LeaseHolder({}, "me/1", expires_after=EXPIRY), lambda _: ScriptedLeases(clock, look), takes_over=False
    )
    with run_leases.hold([], clock):  # type: ignore[arg-type]
        for second in range(8):
            with pytest.raises(Occupied):
                run_leases.enter("clicks")
            wait = run_leases.lease_wait("clicks")
            assert wait is not None
            assert ("it does not answer" in wait.reason) == (3 <= second < 6)
            clock.wait(1)
        assert run_leases.enter("clicks") == 4


def test_what_was_lost_is_waited_for_and_never_taken_back_from_who_renews_it(clock: Clock) -> None:
    leases = LostLeases()
    holder = LeaseHolder({}, "me/1", expires_after=EXPIRY)
    run_leases = RunLeases(holder, lambda _: leases, takes_over=True)
    with run_leases.hold(["clicks"], clock):  # type: ignore[arg-type]
        leases.lose()
        holder.renew()
        assert [loss.holder for loss in run_leases.take_losses()] == ["other/1"]
        for _ in range(20):
            leases.beat += 1
            with pytest.raises(Occupied):
                run_leases.enter("clicks")
            clock.wait(1)
    assert leases.releases == 0, "it is not its own any more"


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
        [sys.executable, "-m", "headrace.writer.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_is_refused_with_a_code_of_its_own(config: Path, holder: LeaseHolder) -> None:
    for flags in ([], ["--once", "--new-run", "--yes"]):
        code, output = end_of("run", str(config), *flags)
        assert code == ExitCode.OCCUPIED == 6, output
        assert "pipeline 'clicks' is run by another process: host/1 has its lease since 20" in output
        assert "--take-over" in output
        assert "Traceback" not in output
    assert not (config.parent / "lake").exists()
    holder.renew()
    assert holder.take_losses() == [], "who is refused takes no lease"


@pytest.mark.usefixtures("holder")
def test_a_run_beside_a_supervisor_that_gave_the_pipeline_up_says_so(config: Path) -> None:
    failure = Failure(
        datetime.now(UTC),
        exit_code=2,
        row="schema",
        halt=True,
        message="",
        error="",
        run=None,
        frontier="held",
        level=None,
    )
    memory = Memory(state=State(halted="the schema 7 is gone"), failure=failure)
    write(store_at(str(config.parent / "checkpoints" / "clicks")), memory)
    code, output = end_of("run", str(config))
    assert code == ExitCode.OCCUPIED, output
    assert "is given up since" in output
    assert "The reason: the schema 7 is gone. Mend that" in output


@pytest.mark.parametrize("flags", [[], ["--once"]])
def test_a_run_that_takes_over_has_the_lease_and_gives_it_back(
    config: Path, holder: LeaseHolder, flags: list[str]
) -> None:
    code, output = end_of("run", str(config), "--take-over", *flags)
    assert code == ExitCode.CRASH
    assert "no Kafka broker answers" in output
    assert "lease_acquired pipeline=clicks epoch=2" in output
    holder.renew()
    assert [loss.pipeline for loss in holder.take_losses()] == ["clicks"]
    record = leases_beside(config).look()
    assert record is not None
    assert (record.epoch, record.released) == (2, True), "also a run that fails gives it back"
    assert holder.try_take("clicks"), "who lost it has it again at once"


def leases_beside(config: Path) -> StoreLeases:
    return StoreLeases(store_at(str(config.parent / "checkpoints" / "clicks")))


def test_a_run_begins_once_the_lease_of_a_dead_holder_has_ended(config: Path) -> None:
    assert leases_beside(config).take(1, "host/1")
    begin_s = time.monotonic()
    code, output = end_of("run", str(config))
    assert time.monotonic() - begin_s >= 2
    assert code == ExitCode.CRASH, output
    assert "lease_awaited pipeline=clicks holder=host/1" in output
    assert "no Kafka broker answers" in output


def test_a_stop_while_a_run_waits_for_a_lease_ends_it_well(config: Path) -> None:
    config.write_text(config.read_text().replace("lease_expiry: 2 s", "lease_expiry: 60 s"))
    assert leases_beside(config).take(1, "host/1")
    run = subprocess.Popen(
        [sys.executable, "-m", "headrace.writer.cli", "run", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert run.stdout is not None
    lines = [next(run.stdout).decode()]
    while "lease_awaited" not in lines[-1]:
        lines.append(next(run.stdout).decode())
    run.send_signal(signal.SIGTERM)
    output = run.stdout.read().decode()
    assert run.wait(30) == 0, output
    assert "asked to stop while it waited for the lease of clicks" in output


@pytest.mark.parametrize(
    "words", [["backfill", "--yes"], ["shadow", "--location"], ["audit"]], ids=lambda words: words[0]
)
def test_other_commands_ask_for_no_lease(
    config: Path, holder: LeaseHolder, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    name, *flags = words
    if name == "shadow":
        flags.append(str(config.parent / "shadow"))
    result = CliRunner().invoke(app, [name, str(config), *flags])
    assert "has no table at" in str(result.exception)
    assert "lease" not in result.output + caplog.text
    holder.renew()
    assert holder.take_losses() == []
