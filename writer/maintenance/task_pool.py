"""Runs the tasks of one commit in processes of their own, so that a command works on every core.

The command hands reads to the processes, which fetch, decode and stage the records. Before a task takes records, the
command says which of them, and when: so the rate, the wait for the live writer, the lock of a gap and the account of
what was read stay in one place. The processes stay for further tasks, until the pool is closed.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection as connections, get_context
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.writer.batch import task_process
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import Admit, Read, Task
from headrace.writer.batch.task_process import READY, TaskDone, TaskFailed, TaskOrder, decode_table
from headrace.writer.batch.task_report import Report
from headrace.writer.core.errors import HeadraceError

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# The kernel's, for a quota that was written without a period.
_DEFAULT_PERIOD_US = 100_000
# A process removes what it staged once the command has closed the connection.
_END_WITHIN_S = 30.0
_KILLED_WITHIN_S = 5.0


class TaskProcessEnded(HeadraceError):
    """A process that carried a part of the records has ended without a report. Nothing was committed."""


def usable_cores(quota: Path = _CGROUP_QUOTA) -> int:
    """Return how many cores this process may use: by its affinity, and by the CPU quota of its container."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with suppress(OSError, UnicodeDecodeError):
        cores = min(cores, quota_cores(quota.read_text(encoding="ascii")) or cores)
    return max(1, cores)


def quota_cores(text: str) -> int | None:
    """Return the cores that a quota of cgroup v2 is enough for, at least one; None: it has no limit.

    "150000 100000" is enough for one core, "max 100000" has no limit. Where only the limit is there, its period is the
    system's default. Any other text is no limit that a process could keep to.
    """
    words = text.split()
    if not words or not all(word.isdecimal() for word in words):
        return None
    match [int(word) for word in words]:
        case [limit_us]:
            return max(1, limit_us // _DEFAULT_PERIOD_US)
        case [limit_us, period_us] if period_us:
            return max(1, limit_us // period_us)
    return None


class TaskPool:
    """Processes that run tasks. A context manager, which ends them."""

    def __init__(self, size: int = 1) -> None:
        """`size`: how many tasks run at once; 1: none of them in a process of its own."""
        self.size = size
        self._idle: list[_TaskProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self, plan: TaskPlan, batch_records: int, groups: Sequence[Iterable[Read]], admit: Admit) -> list[Report]:
        """Run a task on each group of reads. Returns a report for each.

        A single task runs in this process. A group that is there several times is shared out to as many tasks, read by
        read. `batch_records`: that a task takes at once. `admit`: is asked before a task takes records. Where a report
        lacks schemas, nothing stays staged. Raises TaskProcessEnded, what a task raises, what a group and `admit`
        raise; then the processes are gone, and so is what they staged.
        """
        if len(groups) == 1:
            return [Task(plan).run_reads(groups[0], batch_records, admit)]
        streams = {id(reads): iter(reads) for reads in groups}
        processes: list[_TaskProcess] = []
        try:
            for reads in groups:
                processes.append(self._take_process())
                processes[-1].begin(TaskOrder(plan, batch_records), streams[id(reads)])
            _answer_processes(processes, admit)
            done = [process.done for process in processes]
            is_kept = not any(task_done.report.lacks_schemas for task_done in done)
            for process in processes:
                process.end_task(is_kept=is_kept)
        except BaseException:
            self._idle += processes
            self.close()
            raise
        for process in processes:
            if process.done.is_reusable:
                self._idle.append(process)
            else:
                process.close()
        return [task_done.report for task_done in done]

    def start_processes(self, tasks: int) -> None:
        """Start the processes of so many tasks, which takes them a second, while the command prepares the tasks."""
        while tasks > 1 and len(self._idle) < tasks:
            self._idle.append(_TaskProcess())

    def close(self) -> None:
        """End the processes. They remove what they staged for a task that has not ended."""
        processes = self._idle
        self._idle = []
        for process in processes:
            process.hang_up()
        for process in processes:
            process.close()

    def _take_process(self) -> "_TaskProcess":
        return self._idle.pop() if self._idle else _TaskProcess()


class _TaskProcess:
    """One process, and what the task that it runs waits for."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connection, child_connection = context.Pipe()
        # Daemonic: it ends with the command, however that ends.
        self._process = context.Process(
            target=task_process.serve, args=(child_connection,), name="headrace task", daemon=True
        )
        self._process.start()
        # The connection ends for one side once the other side has ended.
        child_connection.close()
        self._reads: Iterator[Read] = iter(())
        self._done: TaskDone | None = None

    @property
    def done(self) -> TaskDone:
        """How the task ended."""
        assert self._done is not None, "the task has ended"
        return self._done

    @property
    def is_done(self) -> bool:
        """Whether the task has ended."""
        return self._done is not None

    def begin(self, order: TaskOrder, reads: Iterator[Read]) -> None:
        """Begin a task. Raises TaskProcessEnded."""
        self._reads = reads
        self._done = None
        self._send(order)

    def answer(self, admit: Admit) -> None:
        """Take a message of the process, and answer it.

        Raises TaskProcessEnded, what the task raised, what the reads and `admit` raise.
        """
        try:
            message = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._explain_end() from error
        match message:
            case TaskDone():
                self._done = message
            case TaskFailed():
                raise message.error
            case pa.Buffer():
                (positions,) = decode_table(message).to_batches()
                self._send(admit(positions))
            case _:
                assert message == READY, message
                self._send(next(self._reads, None))

    def end_task(self, *, is_kept: bool) -> None:
        """Say whether an entry may name what was staged. Raises TaskProcessEnded."""
        self._send(is_kept)

    def hang_up(self) -> None:
        """Close the connection: the process ends."""
        self.connection.close()

    def close(self) -> None:
        """End the process, by force where it does not end by itself."""
        self.hang_up()
        self._process.join(_END_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_KILLED_WITHIN_S)

    def _send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._explain_end() from error

    def _explain_end(self) -> TaskProcessEnded:
        self._process.join(_KILLED_WITHIN_S)
        return TaskProcessEnded(explain_end(self._process.pid, self._process.exitcode))


def explain_end(pid: int | None, code: int | None) -> str:
    """Say how a process ended, and what to do. `code`: as `multiprocessing` has it; below 0 it is that of a signal."""
    how = f"ended with code {code}"
    reason = "what it wrote on standard error says why"
    if code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        reason = (
            "where memory is short, the system ends processes so: fewer --tasks or a smaller memory.buffer need less"
        )
    return (
        f"process {pid}, which carried a part of the records of this command, {how}; {reason}. Nothing of its part was "
        "committed, and what was committed before stays. Run the command again."
    )


def _answer_processes(processes: Sequence[_TaskProcess], admit: Admit) -> None:
    """Answer processes until all tasks have ended."""
    while open_processes := {process.connection: process for process in processes if not process.is_done}:
        for ready in connections.wait(list(open_processes)):
            open_processes[ready].answer(admit)  # type: ignore[index]
