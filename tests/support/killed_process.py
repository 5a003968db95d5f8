"""Operations on tables by a process that kills itself before the n-th of their effects."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from multiprocessing import get_context
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy.orm import Session

from headrace.writer.core.files import StagedFile
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.table import PipelineTable
from tests.support import local_driver, reprocess_lake
from tests.support.table_formats import iceberg_table
from tests.support.tables import COLUMNS, batch, begin, write_file

HOUR = "2026-11-20T05"
EPOCH = 1
# On the store of the log, the files of metadata, and the catalog.
EFFECTS = (
    (LocalStore, "put"),
    (LocalStore, "put_if_absent"),
    (LocalStore, "delete"),
    (PyArrowFileIO, "new_output"),
    (PyArrowFileIO, "delete"),
    (Session, "commit"),
)
SPAWNED = get_context("forkserver")
# Without these each process imports for seconds.
SPAWNED.set_forkserver_preload([__name__, local_driver.__name__, reprocess_lake.__name__])
Operation = Callable[[PipelineTable, StagedFile], Any]


def _rewrite(table: PipelineTable, file: StagedFile) -> None:
    snapshot = table.snapshot()
    table.append(Rewrite("merge", table.bucket_files(snapshot), [file]), snapshot)


OPERATIONS: dict[str, Operation] = {
    "create": lambda table, _: table.create(COLUMNS, ["hour"]),
    "start": lambda table, _: begin(table),
    "commit": lambda table, file: table.append(batch(EPOCH, 20, 40, file), table.snapshot()),
    "rewrite": _rewrite,
    "grow": lambda table, _: table.grow([pa.field("price", pa.float64())], EPOCH),
}


def is_killed_before(location: str, operation: str, number: int) -> bool:
    """Run an operation in a process that kills itself before an effect, by its number. False: it had fewer effects."""
    return _is_killed(_run_operation, location, operation, number)


def kill_within(function: Callable[..., None], *args: Any, moment: str) -> None:
    """Call a function in a process that kills itself before an effect, by number, or at a point of HEADRACE_FAULT."""
    assert _is_killed(_call, function, args, moment), f"{function.__name__} passed before {moment}"


def _is_killed(function: Callable[..., None], *args: Any) -> bool:
    process = SPAWNED.Process(target=function, args=args)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"{function.__name__}{args} ended with {process.exitcode}"
    return process.exitcode != 0


def _call(function: Callable[..., None], args: Sequence[Any], moment: str) -> None:
    if moment.isdigit():
        with _kill_before(int(moment)):
            function(*args)
    os.environ["HEADRACE_FAULT"] = moment
    function(*args)


def _run_operation(location: str, operation: str, number: int) -> None:
    table = iceberg_table(location, "events")
    file = write_file(location, HOUR, 20, "iceberg")
    with _kill_before(number):
        OPERATIONS[operation](table, file)


@contextmanager
def _kill_before(number: int) -> Iterator[None]:
    """Let this process kill itself before an effect, by its number."""
    remaining = number

    def count(effect: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(effect)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1
            return effect(*args, **kwargs)

        return call

    for owner, name in EFFECTS:
        setattr(owner, name, count(getattr(owner, name)))
    yield
