"""A process that runs tasks for a command: it gets plans and reads over a connection, and sends reports back.

A read fetches its records itself: it says from where, and by which login. So records cross the connection only where
the command has them already. The process is started anew, not forked: native libraries hang after a fork. What it needs
to know, keys and logins among it, comes over the connection alone, so nothing of it stands in the arguments or in the
environment.

A conversation about one task, `>` from the command and `<` from this process:

    > TaskOrder        the plan
    < READY            it takes a read
    > a read or None
    < positions        topic, partition and offset of each record of a piece, before the task takes it
    > a mask or None   which of them it takes; None: all
    < READY            the read has no more pieces
    > None             there are no more reads
    < TaskDone         the report; what was staged waits
    > True, False      an entry will name what was staged; it is removed

A task that fails sends TaskFailed in the place of any of these, and has removed what it staged. If the command is gone,
the connection ends, and what was staged is removed.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

import pyarrow as pa

from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import Read, Task
from headrace.writer.batch.task_report import Report
from headrace.writer.core.errors import HeadraceError, panics_as_errors
from headrace.writer.core.freed_memory import keep_freed_memory

# The task takes a read.
READY = "ready"


@dataclass(frozen=True)
class TaskOrder:
    """A task is to be run, by a plan. `batch_records`: that it takes at once."""

    plan: TaskPlan
    batch_records: int


@dataclass(frozen=True)
class TaskDone:
    """A task has ended. `is_reusable`: the process can run another one."""

    report: Report
    is_reusable: bool


@dataclass(frozen=True)
class TaskFailed:
    """A task has failed with an error."""

    error: Exception


class CommandGone(Exception):
    """The command has closed the connection, or has ended."""


def serve(connection: Connection) -> None:
    """Run tasks until the connection ends."""
    # A terminal interrupts all processes of a command. The command ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    channel = _Channel(connection)
    with suppress(CommandGone):
        while True:
            _run_task(channel)


def encode_table(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    """Return rows as bytes that a connection carries; of a slice no more than its rows, as its pickle has."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


def decode_table(encoded: pa.Buffer) -> pa.Table:
    """Return the rows of what `encode_table` made."""
    return pa.ipc.open_stream(encoded).read_all()


class _Channel:
    """The connection to the command. Every method raises CommandGone where it has ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise CommandGone from error

    def receive(self) -> object:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise CommandGone from error

    def ask(self, question: object) -> object:
        self.send(question)
        return self.receive()

    def receive_reads(self) -> Iterator[Read]:
        """Yield the reads of a task."""
        while True:
            read = self.ask(READY)
            if read is None:
                return
            yield cast(Read, read)

    def ask_mask(self, positions: pa.RecordBatch) -> pa.BooleanArray | None:
        """Return which records the task takes, when it may take them."""
        return cast("pa.BooleanArray | None", self.ask(encode_table(positions)))


def _run_task(channel: _Channel) -> None:
    """Run one task. Raises CommandGone."""
    order = channel.receive()
    assert isinstance(order, TaskOrder)
    try:
        task = Task(order.plan)
        with panics_as_errors():
            report = task.run_reads(channel.receive_reads(), order.batch_records, channel.ask_mask)
    except CommandGone:
        raise
    # The command raises it again, whatever it is.
    except Exception as error:  # noqa: BLE001
        channel.send(TaskFailed(_to_sendable(error)))
        return
    try:
        channel.send(TaskDone(report, not task.unresponsive))
        is_kept = channel.receive()
    except CommandGone:
        task.abandon()
        raise
    if not is_kept:
        task.abandon()
    # A thread spins in native code for ever.
    if task.unresponsive:
        os._exit(0)


def _to_sendable(error: Exception) -> Exception:
    """Return an error that the command can read: itself, or one with its sentence. A bug brings its traceback."""
    if not isinstance(error, HeadraceError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - written by this line
    # How it fails is up to the class of the error.
    except Exception:  # noqa: BLE001
        return HeadraceError(f"{type(error).__name__}: {error}")
    return error
