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

from tests.support.table_formats import iceberg_table
from tests.support.tables import COLUMNS, batch, begun, written
from writer.core.files import StagedFile
from writer.storage.local import LocalStore
from writer.table.log.operations import Rewrite
from writer.table.table import PipelineTable

HOUR, EPOCH = "2026-11-20T05", 1
EFFECTS = (  # on the store of the log, the files of metadata, and the catalog
    (LocalStore, "put"), (LocalStore, "put_if_absent"), (LocalStore, "delete"), (PyArrowFileIO, "new_output"),
    (PyArrowFileIO, "delete"), (Session, "commit"),
)  # fmt: skip
SPAWNED = get_context("forkserver")
SPAWNED.set_forkserver_preload([__name__])  # else each process imports for seconds
Operation = Callable[[PipelineTable, StagedFile], Any]


def _rewrite(table: PipelineTable, file: StagedFile) -> None:
    snapshot = table.snapshot()
    table.rewrite(snapshot, Rewrite("merge", table.bucket_files(snapshot), [file]))


OPERATIONS: dict[str, Operation] = {
    "create": lambda table, _: table.create(COLUMNS, ["hour"]),
    "start": lambda table, _: begun(table),
    "commit": lambda table, file: table.commit(table.snapshot(), batch(EPOCH, 20, 40, file)),
    "rewrite": _rewrite,
    "grow": lambda table, _: table.grow([pa.field("price", pa.float64())], EPOCH),
}


def killed(location: str, operation: str, at: int) -> bool:
    """Do the operation in a process that kills itself before the effect number `at`. False: it passed before."""
    return _is_killed(_done, location, operation, at)


def killed_in(do: Callable[..., None], *args: Any, at: str) -> None:
    """Do it in a process that kills itself: before an effect, by its number, or at a point of HEADRACE_FAULT."""
    assert _is_killed(_undone, do, args, at), f"{do.__name__} passed before {at}"


def _is_killed(do: Callable[..., None], *args: Any) -> bool:
    process = SPAWNED.Process(target=do, args=args)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"{do.__name__}{args} ended with {process.exitcode}"
    return process.exitcode != 0


def _undone(do: Callable[..., None], args: Sequence[Any], at: str) -> None:
    if at.isdigit():
        with _dying(int(at)):
            do(*args)
    os.environ["HEADRACE_FAULT"] = at
    do(*args)


def _done(location: str, operation: str, at: int) -> None:
    table = iceberg_table(location, "events")
    file = written(location, HOUR, 20, "iceberg")
    with _dying(at):
        OPERATIONS[operation](table, file)


@contextmanager
def _dying(at: int) -> Iterator[None]:
    left = at

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **kwargs)

        return call

    for owner, name in EFFECTS:
        setattr(owner, name, counted(getattr(owner, name)))
    yield
