"""Keeps the memory that a task frees for its next block, in a process that Spark has not started.

Spark's workers get the same by their environment (`WORKER_ENVIRONMENT`), which says why.
"""

import ctypes

import pyarrow as pa

# Names and numbers of glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_BYTES = 2**30
# The most that an int takes.
_TRIM_BYTES = 2**31 - 1


def keep_freed_memory() -> None:
    """Let Arrow and the decoders share one heap that gives nothing back to the kernel; without glibc, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())
