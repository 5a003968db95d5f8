"""Makes cheap what PySpark does in a Python worker around each task, which a task of a few records costs less than.

The daemon calls `reduce_overhead` before it forks its first worker. PySpark looks at all objects of a worker after each
task (`gc.collect` in `pyspark/daemon.py`), and before each one lets Python read the contents of all archives on its
path again (`importlib.invalidate_caches` in `pyspark/worker_util.py`), Spark's own with thousands of names among them.
And a worker without work for a minute is ended, so that the next batch of a quiet pipeline imports everything anew.
"""

import gc
import importlib
import zipimport
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# What a task imports, also where it does so only once it needs it. No import of these starts a thread that a forked
# process would miss: Arrow and DataFusion start theirs with the first work.
_MODULES = ("pyspark.worker", "headrace.writer.batch.range_task", "datafusion")


def reduce_overhead(modules: Sequence[str] = _MODULES) -> None:
    """Import what tasks need, and exempt it from the collections of garbage of this process and of its children."""
    for module in modules:
        # The task that needs it says what is missing.
        with suppress(ImportError):
            importlib.import_module(module)
    _read_only_changed_archives()
    gc.collect()
    gc.freeze()


def _read_only_changed_archives() -> None:
    """Let Python read an archive on its path again only where the file is another one by now."""
    read_again = zipimport.zipimporter.invalidate_caches
    states: dict[str, tuple[int, int, int] | None] = {}

    def invalidate_caches(self: zipimport.zipimporter) -> None:
        state = _file_state(self.archive)
        if states.get(self.archive) != state:
            states[self.archive] = state
            read_again(self)

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]
    # So that workers know how the archives are now.
    importlib.invalidate_caches()


def _file_state(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None: there is none."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
