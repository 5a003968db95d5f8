"""What a signal asks of a process, a second one, and one that reaches process 1 before it has a handler."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.writer.core import signals
from headrace.writer.core.signals import StopEvents, stop_on_signals
from headrace.writer.driver import child_processes


@pytest.fixture
def events() -> Iterator[StopEvents]:
    events = StopEvents()
    with stop_on_signals(events):
        yield events


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(signals, "time", clock)
    return clock


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_asks_for_a_sooner_end_once_it_cannot_be_the_same_request(
    clock: Clock, events: StopEvents, second: signal.Signals
) -> None:
    assert not events.stop.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    assert events.stop.wait(30)
    clock.now_s += 2.9
    os.kill(os.getpid(), second)
    assert not events.hurry.is_set()
    clock.now_s += 0.2
    os.kill(os.getpid(), second)
    assert events.hurry.wait(30)


# A signal comes while the main thread holds the lock of the event that its handler sets, as in `Event.wait`.
HOLDS_THE_LOCK = """
import os, signal, sys, threading
from headrace.writer.core import signals
events, reload = signals.StopEvents(), threading.Event()
signals.on_signals(events)
signals.on_hangup(reload)
for event, number in ((reload, signal.SIGHUP), (events.stop, signal.SIGTERM)):
    with event._cond:
        os.kill(os.getpid(), number)
    assert event.wait(30)
"""


def test_a_signal_is_taken_while_the_main_thread_holds_the_lock_of_its_event() -> None:
    subprocess.run([sys.executable, "-c", HOLDS_THE_LOCK], check=True, timeout=60)


def test_handlers_are_those_from_before_once_it_has_ended() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stop_on_signals(StopEvents()):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_only_a_child_that_is_started_as_the_jvm_is_ignores_the_signals() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"

    def ask_child() -> str:
        # As PySpark does, with a function for the child.
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, preexec_fn=lambda: None
        ).stdout.strip()

    assert ask_child() == "False"
    with child_processes.stops_reach_the_driver():
        assert ask_child() == "True"
    assert ask_child() == "False"


def test_the_driver_keeps_its_own_handler_of_ctrl_c(events: StopEvents) -> None:
    with child_processes.stops_reach_the_driver():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    assert events.stop.wait(30)


def test_a_start_on_another_thread_sets_no_handler() -> None:
    def start() -> None:
        with child_processes.stops_reach_the_driver():
            pass
        ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert ended


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes namespaces of process ids")
def test_process_1_of_a_container_ends_at_sigterm_before_a_command_listens() -> None:
    # A signal just before a long sleep is handled after it: the sleeps are short.
    code = """
import time
from headrace.writer.core.signals import end_as_process_1
end_as_process_1()
print("up", flush=True)
while True:
    time.sleep(0.1)
"""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == "up\n"
        (first,) = subprocess.run(
            ["pgrep", "-P", str(unshare.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        begin_s = time.monotonic()
        os.kill(int(first), signal.SIGTERM)
        assert unshare.wait(30) == 128 + signal.SIGTERM
        assert time.monotonic() - begin_s < 20
