"""A pause holds a driver at a batch and at a start, lets it drain, and ends when it is taken back."""

import json
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import Draining
from headrace.writer.driver.pipeline_runner import PipelineRunner
from headrace.writer.status import pause
from headrace.writer.status.pause import CONTROL, Pause, Paused, PauseGate
from headrace.writer.status.progress import Progress
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.local import LocalStore
from headrace.writer.web.endpoints import answer
from tests.support.sample_records import NOW, config

WHO = Pause("2026-11-20T12:00:00.000Z", "ada@ops", "moving house")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "lake"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.01)


def asked(store: LocalStore) -> None:
    assert pause.pause(store, WHO.by, WHO.reason, NOW) == (WHO, True)


def test_of_two_who_pause_the_second_is_told_of_the_first(store: LocalStore) -> None:
    asked(store)
    assert pause.pause(store, "eve@ops", "", NOW + timedelta(hours=1)) == (WHO, False)
    assert pause.resume(store) == WHO
    assert pause.resume(store) is None
    assert pause.find_pause(store) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"paused": null}', b"\xff"])
def test_an_object_that_cannot_be_read_holds_too(store: LocalStore, content: bytes) -> None:
    store.put(CONTROL, content)
    found = pause.find_pause(store)
    assert found is not None
    assert "is not what this headrace writes" in found.text


@pytest.mark.usefixtures("quick")
def test_a_batch_is_held_until_the_pause_is_over(store: LocalStore) -> None:
    progress, done = Progress("clicks"), threading.Event()
    progress.set_running()
    gate = PauseGate(store, "clicks", lambda pause: progress.set(pause=pause))
    gate.enter(once=False)
    asked(store)

    def batch() -> None:
        gate.hold(threading.Event())
        done.set()

    threading.Thread(target=batch, daemon=True).start()
    assert not done.wait(0.2)
    assert (progress.view().state, progress.view().pause) == ("paused", WHO)
    pause.resume(store)
    assert done.wait(60)
    assert (progress.view().state, progress.view().pause) == ("running", None)


def test_a_held_batch_drains(store: LocalStore) -> None:
    asked(store)
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(Draining):
        PauseGate(store, "clicks", lambda _: None).hold(stopping)


def test_once_does_not_wait(store: LocalStore) -> None:
    gate = PauseGate(store, "clicks", lambda _: None)
    gate.enter(once=True)
    asked(store)
    with pytest.raises(
        Paused, match=r"'clicks' is paused since .* by ada@ops: moving house. `headrace resume` ends it"
    ):
        gate.hold(threading.Event())
    with pytest.raises(Paused):
        gate.enter(once=True)


@pytest.mark.usefixtures("quick")
def test_a_pause_is_noticed_while_no_records_come(store: LocalStore) -> None:
    progress = Progress("clicks")
    gate = PauseGate(store, "clicks", lambda pause: progress.set(pause=pause))
    gate.watch()
    try:
        asked(store)
        until = threading.Event()
        for _ in range(500):
            if progress.view().pause == WHO:
                break
            until.wait(0.01)
        assert progress.view().pause == WHO
    finally:
        gate.close()


def test_a_stop_does_not_wait_for_a_storage_that_hangs(store: LocalStore) -> None:
    is_asked = threading.Event()
    may_answer = threading.Event()

    class Hanging(LocalStore):
        def read(self, name: str):
            is_asked.set()
            assert may_answer.wait(60)
            return super().read(name)

    asked(store)
    pauses: list[Pause | None] = []
    gate = PauseGate(Hanging(store.location), "clicks", pauses.append)
    gate.watch()
    assert is_asked.wait(60)
    began_s = time.monotonic()
    gate.close()
    assert time.monotonic() - began_s < 1
    may_answer.set()
    assert gate._thread.close(60)
    assert pauses == [], "a later start looks by itself"


@pytest.mark.usefixtures("quick")
def test_a_storage_that_fails_leaves_a_held_batch_held(store: LocalStore) -> None:
    class Failing(LocalStore):
        broken = False

        def read(self, name: str):
            if self.broken:
                raise StoreError("read", name, "it is away", "Wait.")
            return super().read(name)

    failing = Failing(store.location)
    asked(store)
    gate, done = PauseGate(failing, "clicks", lambda _: None), threading.Event()

    def batch() -> None:
        gate.hold(threading.Event())
        done.set()

    threading.Thread(target=batch, daemon=True).start()
    assert not done.wait(0.1)
    failing.broken = True
    pause.resume(store)
    assert not done.wait(0.2)
    failing.broken = False
    assert done.wait(60)


@pytest.mark.parametrize("waits", [True, False])
def test_a_start_waits_for_the_end_of_the_pause_and_once_fails(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("headrace.writer.driver.pipeline_runner.time.monotonic", lambda: clock[0])
    begun: list[bool] = []

    def begin(r: PipelineRunner, new_run: bool) -> None:
        begun.append(new_run)
        if len(begun) < 3:
            raise Paused("pipeline 'clicks' is paused")
        r.pipeline, r.query = object(), None  # type: ignore[assignment]

    r = PipelineRunner(Progress("clicks"), begin, waits=waits)
    r.begin(new_run=True)
    assert isinstance(r.error, Paused) is not waits
    if waits:
        assert not r.look(stopping=False)
        assert begun == [True], "it is not asked all the time"
        clock[0] += 3
        assert not r.look(stopping=False)
        clock[0] += 3
        assert not r.look(stopping=False)
        assert (begun, r.error, r.progress.view().state) == ([True, True, True], None, "running")


def test_a_start_that_is_held_ends_well_when_a_stop_is_asked_for() -> None:
    def begin(_: PipelineRunner, __: bool) -> None:
        raise Paused("pipeline 'clicks' is paused")

    r = PipelineRunner(Progress("clicks"), begin)
    r.begin()
    assert r.look(stopping=True)
    assert (r.error, r.progress.view().state) == (None, "stopped")


def test_a_paused_driver_is_healthy_and_ready_and_says_so() -> None:
    progress = Progress("clicks")
    progress.record_start(epoch=1, run=1, frontier={}, limits={}, buckets=[], recent=[])
    progress.set_running()
    progress.set(pause=WHO)
    board = {"clicks": progress}
    assert answer("/healthz", "", board, NOW)[0] == 200
    status, _, body = answer("/readyz", "", board, NOW)
    assert (status, body.decode()) == (200, f"ok\npipeline clicks is paused {WHO.text}\n")
    assert 'headrace_paused{pipeline="clicks"} 1.0' in answer("/metrics", "", board, NOW)[2].decode()
    told = json.loads(answer("/status", "", board, NOW)[2])["pipelines"]["clicks"]
    assert (told["state"], told["pause"]) == ("paused", {**vars(WHO), "text": WHO.text})
    progress.record_failure("the disk is full")
    assert answer("/readyz", "", board, NOW)[0] == 503, "a failure is not hidden by a pause"


def test_the_verbs_say_who_when_and_why(tmp_path: Path) -> None:
    settings = config(tmp_path)
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)))

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    assert said("resume", str(path)) == "clicks: it was not paused."
    assert "by ada@ops: moving house. A driver finishes its batch first." in said(
        "pause", str(path), "--by", "ada@ops", "--reason", "moving house"
    )
    assert "clicks: already paused since" in said("pause", str(path), "--by", "eve@ops")
    told = json.loads(said("resume", str(path), "--json"))
    assert told["pipelines"]["clicks"]["was_paused"]["by"] == "ada@ops"
