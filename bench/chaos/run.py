"""Runs one chaos schedule: starts the stack, injects the faults, waits for the end, and verifies the lake."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from headrace.bench.chaos.report import ChaosReport
from headrace.bench.chaos.schedule import Event, script
from headrace.bench.chaos.stack import PIPELINE, ChaosStack
from headrace.bench.chaos.verification import Verdict, judge, read_offsets
from headrace.writer.audit.audit import audit
from headrace.writer.config.loader import load
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo.devstack.stack import ServerFailed
from headrace.writer.demo.devstack.workspace import Interruption, Stopped, Workspace
from headrace.writer.demo.main import require_extra
from headrace.writer.demo.terminal import Screen

# Events of each topic that are produced before the first fault.
FIRST = 1000


def chaos(
    seed: int, lasts: timedelta, table_format: TableFormat, keep: Path | None, screen: Screen
) -> ChaosReport | SignalCode:
    """Run it. Returns what became of the records; 128 + n on signal n.

    Without `keep` the directory is removed, unless something is wrong. Call it from the main thread.

    Raises ConfigError, ServerFailed, KafkaException.
    """
    require_extra("chaos", "bench")
    directory = keep or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    workspace = Workspace(directory, table_format)
    interruption = Interruption()
    verdict: Verdict | None = None
    try:
        try:
            interruption.listen()
            workspace.make()
            verdict = _play(ChaosStack(workspace), script(seed, lasts), screen, interruption)
        finally:
            interruption.hold()
    except Stopped:
        pass
    finally:
        workspace.clear()
        interruption.restore_handlers()
    clean = verdict is not None and verdict.clean and not verdict.said
    if keep is None and (clean or verdict is None):
        shutil.rmtree(directory, ignore_errors=True)
    if verdict is None:
        screen.write("stopped; nothing is left running")
        return interruption.exit_code
    return ChaosReport(seed, lasts / timedelta(minutes=1), clean, verdict, table_format, directory)


def _play(stack: ChaosStack, events: Sequence[Event], screen: Screen, interruption: Interruption) -> Verdict:
    """Produce and strike, until the script is over; then let the writer read to the end, and judge."""
    try:
        with screen.step("starting broker, registry and supervisor", "broker, registry and supervisor started"):
            stack.start()
        with screen.step("waiting for the first commit", "the first events are in the lake"):
            stack.produce(FIRST, 0)
            if not stack.settle():
                raise ServerFailed(f"no commit within ten minutes, and no fault was done yet: see {stack.log}")
        start_s = time.monotonic()
        for event in events:
            while time.monotonic() - start_s < event.offset.total_seconds():
                interruption.check()
                time.sleep(0.1)
            stack.produce(event.events, event.seed, event.broken)
            outcome = stack.strike(event)
            interruption.check()
            elapsed = timedelta(seconds=int(time.monotonic() - start_s))
            screen.finish_step(f"{elapsed}  {event}{f' ({outcome})' if outcome else ''}")
        with screen.step("waiting until the writer has read everything", "the faults are over; the logs are read"):
            settled = stack.settle()
        exit_code = stack.finish()
        step = screen.step("reading the lake with DuckDB", "lake read by DuckDB; audit of every file")
        with step, interruption.later():
            return _verify_lake(stack, settled=settled, exit_code=exit_code)
    finally:
        stack.stop()


def _verify_lake(stack: ChaosStack, *, settled: bool, exit_code: int | None) -> Verdict:
    numbers = stack.numbers()
    # A life that ended before the writer saw it has neither a number nor rows.
    unnumbered = len(numbers)
    lives = {}
    for life_id, life in stack.lives.items():
        unnumbered += life_id not in numbers
        lives[life.topic, numbers.get(life_id, -unnumbered)] = life
    verdict = judge(lives, read_offsets([stack.lake, stack.dead_letters]))
    problems = list(verdict.said)
    if not settled:
        problems.append("the writer did not read to the end of the logs within ten minutes after the last fault")
    if exit_code != 0:
        problems.append(f"asked to drain, the supervisor ended with code {exit_code}")
    report = audit(load(stack.config), PIPELINE, since=None, deep=True)
    problems += [f"audit: {problem.description} {problem.part} {problem.spans}" for problem in report.problems]
    return Verdict(**{**asdict(verdict), "said": tuple(problems)})
