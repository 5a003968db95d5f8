"""Runs one contender once: starts it, measures it until its whole process tree has ended, and checks its rows."""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import BinaryIO

import psutil

from headrace.bench.contenders.contenders import HEADRACE, Contender, environment, steps_of
from headrace.bench.contenders.measure import Meter
from headrace.bench.figures import WARM_FROM, BatchMark, BenchFailed, Run, Usage
from headrace.bench.job import Job
from headrace.writer.demo.devstack.process import Process
from headrace.writer.demo.devstack.workspace import JVM_GRACE, ProcessGroup

# The time between two samples of the process tree.
SAMPLE = timedelta(milliseconds=250)
# The time between two reads of the output. A mark is late by this much at most.
_POLL = timedelta(milliseconds=20)
# The longest time without a finished batch; the slowest contender takes two minutes.
SILENCE_MAX = timedelta(minutes=15)
_MARK = re.compile(rb"\bbatch_committed\b.*\bread=(\d+)(?:.*\bseconds=([\d.]+))?(?:.*\bsteps=(\{.*\}))?")


class ContenderProcess(Process):
    """A contender's first process."""

    def has_ended(self) -> bool:
        """Return whether it has ended. Raises BenchFailed if that was not in order."""
        assert self._child is not None, "launch comes before has_ended"
        code = self._child.poll()
        if code is None:
            return False
        # Another process may soon have its number.
        self._child = None
        if code:
            raise BenchFailed(f"{self.name} ended with code {code}. {self._log_end()}")
        return True

    def silent(self) -> BenchFailed:
        """Return what to say when it does not get on."""
        minutes = SILENCE_MAX / timedelta(minutes=1)
        return BenchFailed(f"{self.name} finished no batch within {minutes:g} minutes. {self._log_end()}")


@dataclass
class ContenderSample:
    """What is seen of a contender while it runs."""

    meter: Meter
    output: BinaryIO
    profile: bool
    marks: list[BatchMark]
    remainder: bytes = b""

    def look(self) -> None:
        """Sample the tree for each batch that was finished since the last look."""
        *lines, self.remainder = (self.remainder + self.output.read()).split(b"\n")
        for match in filter(None, map(_MARK.search, lines)):
            before = self.marks[-1].events if self.marks else 0
            threads = self.meter.threads() if self.profile else {}
            steps = json.loads(match[3] or "{}")
            batch_s = None if match[2] is None else float(match[2])
            self.marks.append(BatchMark(before + int(match[1]), self.meter.read(), threads, steps, batch_s))


def run(
    contender: Contender,
    job: Job,
    *,
    repeat: int,
    value_bytes: int,
    profile: bool = False,
    look: Callable[[int], None] = lambda _: None,
    warm_from: float = WARM_FROM,
) -> Run:
    """Run a contender to its end. `look` gets the events carried so far, some times a second; it may raise.

    No process of the contender is left when this returns or raises, and its scratch directory is gone.
    Raises BenchFailed when it fails, gets stuck, loses or doubles events.
    """
    job.scratch.mkdir(parents=True)
    job.log.touch()
    others = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    process = ContenderProcess(
        contender.name, contender.command(job), cwd=job.scratch, log=job.log, env={**environment(job), **contender.env}
    )
    process_group = ProcessGroup()
    process_group.adopt()
    meter = Meter(others)
    try:
        with job.log.open("rb") as output:
            sample = ContenderSample(meter, output, profile, [])
            process.launch()
            first_process_usage = _watch(process, sample, look)
        process_group.end(grace=JVM_GRACE)
        usage = replace(meter.read(), wall_s=first_process_usage.wall_s)
    finally:
        process.stop(grace=timedelta(0))
        process_group.end(grace=timedelta(0))
        shutil.rmtree(job.scratch, ignore_errors=True)
    written = contender.count_rows(job)
    marks = _with_steps(contender, job, sample.marks) if profile else sample.marks
    return Run(
        contender.name,
        repeat,
        job.events,
        value_bytes,
        tuple(marks),
        usage,
        meter.rss_peak_bytes,
        written,
        job.partitions,
        warm_from,
        slots=1 if contender.has_one_slot else job.slots,
    )


def _watch(process: ContenderProcess, sample: ContenderSample, look: Callable[[int], None]) -> Usage:
    """Look on until the first process has ended. Returns what was used by then."""
    sample_s = progress_s = time.monotonic()
    while True:
        has_ended = process.has_ended()
        batches = len(sample.marks)
        sample.look()
        if has_ended:
            return sample.meter.read()
        now = time.monotonic()
        if len(sample.marks) > batches:
            progress_s = now
        if now - progress_s > SILENCE_MAX.total_seconds():
            raise process.silent()
        if now - sample_s >= SAMPLE.total_seconds():
            sample_s = now
            sample.meter.read()
            look(sample.marks[-1].events if sample.marks else 0)
        time.sleep(_POLL.total_seconds())


def _with_steps(contender: Contender, job: Job, marks: list[BatchMark]) -> list[BatchMark]:
    """Add what headrace says of its steps in its commits; the others have said it, or have none."""
    if contender.letter not in HEADRACE:
        return marks
    return [replace(mark, steps=steps) for mark, steps in zip(marks, steps_of(job), strict=True)]
